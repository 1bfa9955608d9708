"""Worker performers, which compute jobs. Each worker has its own performer, used by its thread only.

Legacy: ``WorkerPerformer``, ``BaseMultiLayerNetworkWorkPerformer`` (one shared by all workers of a process, and its
``update`` was never called, so no worker ever trained on the average).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from numbers import Real
from typing import Any, Protocol, cast

from dl4jlegacy.arrays.backend import Array, Scalar, get_array_module, is_on_device, to_host
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.datasets import DataSet, MultiDataSet
from dl4jlegacy.errors import ConfError, ContractError, JobError, NotFiniteError
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.nn.batch_evaluation import evaluate_batches
from dl4jlegacy.nn.listeners import TrainingListener
from dl4jlegacy.nn.networks import Network, TrainableNetwork, build_network
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.contract import check_finite, check_settled
from dl4jlegacy.scaleout.phases import NO_PHASES, Phases
from dl4jlegacy.scaleout.plan import VALIDATE
from dl4jlegacy.scaleout.state.aggregate import PARAMS, STATE, result_of
from dl4jlegacy.scaleout.state.job import Job, Result
from dl4jlegacy.scaleout.state.own_parts import check_methods
from dl4jlegacy.scaleout.strategies import WorkRouter
from dl4jlegacy.scaleout.updater_beginning import tells_beginning
from dl4jlegacy.system.exits import exits_as_errors

__all__ = [
    "CheckedPerformer",
    "MultiLayerNetworkPerformer",
    "WorkerPerformer",
    "perform_in_slot",
    "trained_network",
]

logger = logging.getLogger(__name__)


class WorkerPerformer(Protocol):
    """Performs jobs."""

    @property
    def progress(self) -> int:
        """Increases while a job advances; a worker whose count does not change for too long loses its lease."""
        ...

    def update(self, model: Result) -> None:
        """Load a model version, whose arrays are read-only views that are valid during this call only."""
        ...

    def perform(self, job: Job) -> Result | None:
        """Return the job's result, or None if ``job.is_wanted()`` became False. Any error fails the job.

        The result must depend only on the job and the model.
        """
        ...


def trained_network(conf: Conf, model: Result, kernels: Kernels) -> Any:
    """Return the run's network with the parameters of one of its models; raises ``ConfError`` if it has no network."""
    if conf.network_conf is None:
        raise ConfError("this run trained no network")
    network = build_network(conf.network_conf, kernels, init=False)
    network.set_params(model.arrays[PARAMS])
    network.set_updater_state(model.arrays[STATE])
    if not tells_beginning(model.values):  # a checkpoint of an older version
        network.updater.begin_within(network.updater_state)
    return network


def perform_in_slot(
    performer: WorkerPerformer,
    router: WorkRouter,
    job: Job,
    model: Result,
    state: Result | None,
    kernels: Kernels,
    phases: Phases = NO_PHASES,
) -> tuple[Result, ...] | None:
    """Perform a job that starts from a model and the state of its slot; on the worker's thread.

    Args:
        router: of the job's round.
        state: state of the slot; None if this is the slot's first job of its phase, or slots have no memory.
        kernels: for host memory.
        phases: records the activity of the worker's thread.

    Returns:
        The update and, if slots have memory, the new state; None if the job is no longer wanted.

    Raises:
        JobError: the model, or the performer's result, lacks an array that the router needs.
    """
    memory = router.memory
    if memory is None:
        performer.update(model)
        result = performer.perform(job)
        return None if result is None else (result,)
    _check_arrays(router, "the model", model, {PARAMS, STATE})
    performer.update(memory.replica(model, state))
    result = performer.perform(job)
    if result is None:
        return None
    _check_arrays(router, f"the result of {type(performer).__name__}", result, {router.update_kind, STATE})
    with phases.phase("WorkerEncode", job.slot[:2]):
        return check_settled(memory, memory.settle(model, state, result, kernels))


def _check_arrays(router: WorkRouter, what: str, found: Result, wanted: set[str]) -> None:
    if lacking := sorted(wanted - found.arrays.keys()):
        raise JobError(
            f"{what} has the arrays {sorted(found.arrays)}, and {router.name} needs {' and '.join(lacking)} too; "
            "choose another router for jobs that train no network"
        )


class CheckedPerformer:
    """A wrapper for a user's own performer, which checks its results before they are used.

    Raises:
        JobError: a result is not a ``Result``. NotFiniteError: a result contains NaN or infinity, which would spread to
            all.
    """

    def __init__(self, performer: WorkerPerformer) -> None:
        check_methods(performer, "a performer", WorkerPerformer, ("update", "perform"))
        self._performer = performer

    @property
    def progress(self) -> int:
        """See ``WorkerPerformer``; a performer without ``progress`` never counts as stuck within a job."""
        with exits_as_errors():
            progress: Any = getattr(self._performer, "progress", 0)
        if not isinstance(progress, int | float):
            raise ContractError(
                f"{type(self._performer).__name__}.progress is {progress!r}; it must be a number that grows while a "
                "job advances"
            )
        return int(progress)

    def update(self, model: Result) -> None:
        """See ``WorkerPerformer``."""
        self._performer.update(model)

    def perform(self, job: Job) -> Result | None:
        """See ``WorkerPerformer``."""
        result: Any = self._performer.perform(job)
        if result is None and not job.is_wanted():
            return None
        name, where = type(self._performer).__name__, f"round {job.slot.round}, slot {job.slot.slot}"
        if not isinstance(result, Result):
            raise JobError(f"{where}: {name}.perform returned {type(result).__name__}, and not a Result")
        check_finite(f"{where}: {name}.perform", result)
        score, examples = result.values.get("score"), result.values.get("examples")
        if score is not None and (isinstance(score, bool) or not isinstance(score, Real)):
            raise JobError(f"{where}: {name}.perform returned the score {score!r}; it must be a number, or None")
        if score is not None and (type(examples) is not int or examples < 1):
            raise JobError(
                f"{where}: {name}.perform returned a score, and the value 'examples' is {examples!r}; it must be the "
                "number of examples that the score is the mean of"
            )
        return result


class MultiLayerNetworkPerformer:
    """Trains a network of either kind on the batches of a job, starting from the job's model version.

    A GPU is synchronised once per job, at its end, to read the score and to check that all numbers are finite.

    Args:
        network: this worker's own replica.
        seed: of the run; together with the job's position it seeds drop-out and sampling.
        update_kind: content of results: ``"params"``, or their ``"delta"`` from the job's model.
        sends_updater_state: whether results contain the updater state; if not, each job starts from a new one.
        listeners: called after every batch with this replica as the network, on the worker's thread, which waits for
            them. An exception in a listener is logged once, and the job continues. With listeners a GPU is synchronised
            after each batch.
    """

    def __init__(
        self,
        network: TrainableNetwork,
        *,
        seed: int,
        update_kind: str = "params",
        sends_updater_state: bool = True,
        listeners: Sequence[TrainingListener] = (),
    ) -> None:
        self.progress = 0
        self._listeners, self._failed = tuple(listeners), set[int]()
        self._network = network
        self._stream = Stream.of(seed)
        self._sends_state = sends_updater_state
        self._started = get_array_module(network.params).empty_like(network.params) if update_kind == "delta" else None

    def update(self, model: Result) -> None:
        """See ``WorkerPerformer``."""
        params, state = model.arrays[PARAMS], model.arrays[STATE]
        if params.shape != self._network.params.shape or state.shape != self._network.updater_state.shape:
            raise JobError(
                f"the model has {params.size} parameters and {state.size} numbers of updater state, this worker's "
                f"network {self._network.params.size} and {self._network.updater_state.size}; was the Conf changed "
                "during the run?"
            )
        self._network.set_params(params)
        self._network.set_updater_state(state)
        if self._started is not None:
            self._started[:] = self._network.params

    def perform(self, job: Job) -> Result | None:
        """See ``WorkerPerformer``. The arrays of the result are the network's own: encode them before the next call."""
        if job.phase.kind == VALIDATE:
            return self._validate(job)
        if not self._sends_state:
            self._network.reset_updater()
        slot, batches = job.slot, _batches(job)
        weighted: Scalar = 0.0
        examples = 0
        for index, batch in enumerate(batches):
            if index and not job.is_wanted():
                return None
            stream = self._stream.at(slot.epoch, slot.training_round, slot.slot, index, purpose="train")
            with _locating(job, f"batch {slot.first + index}"):
                score = self._step(job, batch, slot.iteration + index, stream)
            examples += batch.num_examples
            weighted = weighted + score * batch.num_examples
            self.progress += 1
            self._tell(slot.iteration + index, score, batch.num_examples)
        if is_on_device(weighted):
            with _locating(job, f"batches {slot.first} to {slot.first + len(batches) - 1}"):
                self._network.check_finite()
        values = {"examples": examples, "score": float(weighted) / examples, "version": job.version}
        return Result(values, self._arrays())

    def _tell(self, iteration: int, score: Scalar, examples: int) -> None:
        for number, listener in enumerate(self._listeners):
            try:
                with exits_as_errors():
                    listener.iteration_done(self._network, iteration, float(score), examples=examples)
            except Exception:
                if number not in self._failed:
                    name = type(listener).__name__
                    logger.warning("%s failed, and the worker goes on without what it does", name, exc_info=True)
                self._failed.add(number)

    def _validate(self, job: Job) -> Result | None:
        """Evaluate the model on the job's batches, without training."""
        batches, parts, network = _batches(job), [], cast(Network, self._network)  # both kinds are scored alike
        with _locating(job, f"batches {job.slot.first} to {job.slot.last - 1}"):
            for part in evaluate_batches(
                network,
                batches,
                classifies=job.classifies,
                first=job.slot.first,
                batch_size=len(batches[0]),
                label_scale=job.label_scale,
            ):
                parts.append(part)
                self.progress += 1
                if len(parts) < len(batches) and not job.is_wanted():
                    return None
        return result_of(parts)

    def _step(self, job: Job, batch: DataSet | MultiDataSet, iteration: int, stream: Stream) -> Scalar:
        if isinstance(batch, MultiDataSet):
            masks: Any = (batch.features_masks, batch.labels_masks)
        else:
            masks = (batch.features_mask, batch.labels_mask)
        if job.phase.kind == "pretrain" and isinstance(batch, DataSet):
            return self._network.pretrain_batch(job.phase.layer, batch.features, iteration=iteration, stream=stream)
        return self._network.fit_batch(
            batch.features,
            batch.labels,
            iteration=iteration,
            stream=stream,
            features_mask=masks[0],
            labels_mask=masks[1],
        )

    def _arrays(self) -> dict[str, Array]:
        arrays: dict[str, Array] = {}
        if self._started is None:
            arrays[PARAMS] = to_host(self._network.params)
        else:
            xp = get_array_module(self._started)  # the previous parameters are no longer needed
            arrays["delta"] = to_host(xp.subtract(self._network.params, self._started, out=self._started))
        if self._sends_state:
            arrays[STATE] = to_host(self._network.updater_state)
        return arrays


@contextlib.contextmanager
def _locating(job: Job, batches: str) -> Iterator[None]:
    """Add the position in the run to an error about numbers that are not finite."""
    slot = job.slot
    try:
        yield
    except NotFiniteError as exc:
        where = f"round {slot.round}, slot {slot.slot}, {batches} of epoch {slot.epoch}"
        raise NotFiniteError(f"{where} ({job.phase.kind}): {exc}") from exc


def _batches(job: Job) -> Sequence[DataSet | MultiDataSet]:
    if not isinstance(job.work, list) or not all(isinstance(item, DataSet | MultiDataSet) for item in job.work):
        raise JobError(f"round {job.slot.round}, slot {job.slot.slot} holds {type(job.work).__name__}, not DataSets")
    return job.work
