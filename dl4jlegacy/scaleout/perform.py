"""Worker performers: what a worker does with a job. Each worker has its own performer, used by its thread only.

Legacy: ``WorkerPerformer``, ``BaseMultiLayerNetworkWorkPerformer`` (one shared by all workers of a process, and its
``update`` was never called, so no worker ever trained on the average).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from dl4jlegacy.backend import Array, Scalar, get_array_module, is_on_device, to_host
from dl4jlegacy.datasets import DataSet, MultiDataSet
from dl4jlegacy.errors import JobError, NotFiniteError
from dl4jlegacy.nn.networks import TrainableNetwork
from dl4jlegacy.scaleout.aggregate import PARAMS, STATE
from dl4jlegacy.scaleout.job import Job, Result
from dl4jlegacy.seeding import Stream

__all__ = ["MultiLayerNetworkPerformer", "WorkerPerformer", "first_model"]


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


def first_model(network: TrainableNetwork) -> Result:
    """Return version 0 of a network's model: a pure function of its configuration."""
    return Result({}, {PARAMS: to_host(network.params), STATE: to_host(network.updater_state)})


class MultiLayerNetworkPerformer:
    """Trains a network of either kind on the batches of a job, from the model version the job starts from.

    A GPU is synchronised once per job, at its end, to read the score and to check that all numbers are finite.

    Args:
        network: this worker's own replica.
        seed: the run's; together with the job's position it seeds drop-out and sampling.
        shares: ``"params"``, or ``"delta"`` from the model version of the job.
        shares_updater_state: whether updates contain the updater state; if not, it is zero at the start of each job.
    """

    def __init__(
        self, network: TrainableNetwork, *, seed: int, shares: str = "params", shares_updater_state: bool = True
    ) -> None:
        self.progress = 0
        self._network = network
        self._stream = Stream.of(seed)
        self._shares, self._shares_state = shares, shares_updater_state
        self._started = get_array_module(network.params).empty_like(network.params) if shares == "delta" else None

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
        if not self._shares_state:
            self._network.updater_state.fill(0)
        slot, batches = job.slot, _batches(job)
        weighted: Scalar = 0.0
        examples = 0
        for index, batch in enumerate(batches):
            if index and not job.is_wanted():
                return None
            stream = self._stream.at(slot.epoch, slot.round, slot.slot, index, purpose="train")
            with _locating(job, f"batch {slot.first + index}"):
                score = self._step(job, batch, slot.iteration + index, stream)
            examples += batch.num_examples
            weighted = weighted + score * batch.num_examples
            self.progress += 1
        if is_on_device(weighted):
            with _locating(job, f"batches {slot.first} to {slot.first + len(batches) - 1}"):
                self._network.check_finite()
        values = {"examples": examples, "score": float(weighted) / examples, "version": job.version}
        return Result(values, self._arrays())

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
            arrays["delta"] = to_host(self._network.params - self._started)
        if self._shares_state:
            arrays[STATE] = to_host(self._network.updater_state)
        return arrays


@contextlib.contextmanager
def _locating(job: Job, batches: str) -> Iterator[None]:
    """Add the place in the run to the error about numbers that are not finite."""
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
