"""The initial model of a run, version 0: drawn from its configuration, or given by its program."""

from __future__ import annotations

from collections.abc import Callable

from dl4jlegacy.arrays.backend import to_host
from dl4jlegacy.errors import CheckpointError, ConfError, ShapeError
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.nn.networks import Network, TrainableNetwork, build_network
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.contract import check_finite
from dl4jlegacy.scaleout.state.aggregate import PARAMS, STATE, CollectingAggregator, JobAggregator
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.updater_beginning import beginning_of

__all__ = ["first_model", "first_model_of"]

_OTHER_JOBS = "jobs that are no network's need an aggregator and a first_model, which is a Result"


def first_model(network: TrainableNetwork) -> Result:
    """Return version 0 of a network's model: a pure function of its configuration."""
    return Result(beginning_of(network), {PARAMS: to_host(network.params), STATE: to_host(network.updater_state)})


def first_model_of(
    conf: Conf,
    given: Result | Network | None,
    aggregator: JobAggregator | None,
    kernels: Kernels,
    *,
    resumes: bool = False,
    had_one: Callable[[], bool] = lambda: False,
) -> Callable[[], Result]:
    """Return a function that creates the initial model.

    Args:
        conf: of the run.
        given: by its program; None: the model is drawn from the network's configuration.
        aggregator: of its program, required for jobs without a network; None: there is none.
        kernels: of this process, for work in host memory.
        resumes: whether the run was begun before, so that it normally needs no initial model.
        had_one: returns whether the run began with a given model; called when version 0 is needed.

    Raises:
        ConfError: the given model does not fit the run's jobs. NotFiniteError: it contains NaN or infinity.
    """
    if conf.network_conf is None:
        if aggregator is None:
            raise ConfError(_OTHER_JOBS)
        if isinstance(given, Result):
            check_finite("first_model", given)
            if isinstance(aggregator, CollectingAggregator) and "value" not in given.values:
                raise ConfError(
                    f"first_model has the values {sorted(given.values)}, and CollectingAggregator begins with 'value': "
                    'give Result({"value": ...})'
                )
            return lambda: given
        if given is not None or not resumes:
            raise ConfError(_OTHER_JOBS)
    network_conf = conf.network_conf
    if given is not None and network_conf is not None:
        network = build_network(network_conf, kernels, init=False)
        _begin_with(network, given)
        return lambda: first_model(network)

    def first() -> Result:
        if network_conf is None or had_one():
            raise CheckpointError(
                f"run {conf.run} began with a model that its program gave it, of which nothing is left, and this "
                "process was given none: give it that first_model"
            )
        return first_model(build_network(network_conf, kernels))

    return first


def _begin_with(network: Network, given: Result | Network) -> None:
    """Copy the parameters and updater state of the given network into a network of the run."""
    if isinstance(given, Result):
        raise ConfError("first_model is a Result, and the run trains a network: give it the network to begin with")
    try:
        network.set_params(given.params)
        network.set_updater_state(given.updater_state)
    except ShapeError as exc:
        raise ConfError(f"first_model is no network of the Conf's: {exc}") from exc
