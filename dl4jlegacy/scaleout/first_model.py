"""The model that a run begins with, version 0: drawn by its configuration, or given by its program."""

from __future__ import annotations

from collections.abc import Callable

from dl4jlegacy.backend import to_host
from dl4jlegacy.errors import ConfError, ShapeError
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.nn.networks import Network, TrainableNetwork, build_network
from dl4jlegacy.scaleout.aggregate import PARAMS, STATE
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.contract import check_finite
from dl4jlegacy.scaleout.job import Result

__all__ = ["OTHER_JOBS", "first_model", "first_model_of"]

OTHER_JOBS = "jobs that are no network's need an aggregator and a first_model, which is a Result"


def first_model(network: TrainableNetwork) -> Result:
    """Return version 0 of a network's model: a pure function of its configuration."""
    return Result({}, {PARAMS: to_host(network.params), STATE: to_host(network.updater_state)})


def first_model_of(conf: Conf, given: Result | Network | None, kernels: Kernels) -> Callable[[], Result]:
    """Return what makes version 0 of a run's model.

    Args:
        conf: the run's.
        given: by its program; None: the network's configuration draws it.
        kernels: of this process, for work in host memory.

    Raises:
        ConfError: it is none of the run's jobs. NotFiniteError: there is NaN or infinity in it.
    """
    if conf.network_conf is None:
        if not isinstance(given, Result):
            raise ConfError(OTHER_JOBS)
        check_finite("first_model", given)
        return lambda: given
    network = build_network(conf.network_conf, kernels)
    if given is not None:
        _begin_with(network, given)
        return lambda: first_model(network)

    def first() -> Result:
        network.init()
        return first_model(network)

    return first


def _begin_with(network: Network, given: Result | Network) -> None:
    """Give a network of the run the parameters and the updater state of the one that the run is to begin with."""
    if isinstance(given, Result):
        raise ConfError("first_model is a Result, and the run trains a network: give it the network to begin with")
    try:
        network.set_params(given.params)
        network.set_updater_state(given.updater_state)
    except ShapeError as exc:
        raise ConfError(f"first_model is no network of the Conf's: {exc}") from exc
