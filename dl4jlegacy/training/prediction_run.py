"""Predictions or losses computed as a run: its jobs are ranges of rows, and its only model is the network.

The model does not change between rounds, so each worker reads it once. The results of a round go to the reader in the
order of the rows, and the run then forgets them. So neither memory nor grid use grows with the number of rows.
"""

from __future__ import annotations

import os
import queue
import tempfile
import threading
from array import array
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dl4jlegacy.arrays import wire
from dl4jlegacy.arrays.backend import Array, to_host
from dl4jlegacy.datasets import DataSet
from dl4jlegacy.datasets.batches import Batch
from dl4jlegacy.errors import DataError, ShapeError, TrainingError
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.models.model import ANSWERS_AT, TrainedModel, answers_in
from dl4jlegacy.models.prediction import PredictedRows, named_rows
from dl4jlegacy.nn.batch_evaluation import example_scores
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.monitoring.monitor import ClusterMonitor
from dl4jlegacy.scaleout.monitoring.outcome import RunStatus
from dl4jlegacy.scaleout.plan import Phase, Plan, SlotPlan
from dl4jlegacy.scaleout.state.aggregate import Aggregation
from dl4jlegacy.scaleout.state.job import Job, Result
from dl4jlegacy.scaleout.state.store import Buffer
from dl4jlegacy.scaleout.tracker import StateTracker
from dl4jlegacy.scaleout.workers.plugins import register_performer
from dl4jlegacy.system import files
from dl4jlegacy.system.exits import exits_as_errors
from dl4jlegacy.system.service_threads import ServiceThread
from dl4jlegacy.training.passes import Batches, ExampleBatches, Examples, InferencePerformer, InferenceRun
from dl4jlegacy.training.run import Run

__all__ = ["PREDICT", "SCORES", "PredictionPerformer", "PredictionRun", "ScoringRun", "Spool"]

PREDICT = "dl4jlegacy.predict"
"""The name of the performer, which every worker has."""
SCORES = "scores"
"""The value of ``finds`` for a run that computes the losses of examples."""
_JOBS_PER_ROUND = 32
_JOB_NBYTES = 1 << 20
"""Approximate bytes of features, or of outputs, per job, unless a single batch has more."""
_MOST_UNREAD = 2
"""Maximum rounds with unread outputs; while there are so many, no more jobs are issued."""


@register_performer(PREDICT)
class PredictionPerformer(InferencePerformer):
    """Computes the answers of the network, or the losses of the examples, for each batch of a job."""

    def __init__(self, conf: Conf, kernels: Kernels) -> None:
        super().__init__(conf, kernels)
        self._finds = str(conf.performer_args["finds"])
        self._rows, self._unit = int(conf.performer_args["rows"]), str(conf.performer_args["unit"])

    def perform(self, job: Job) -> Result | None:
        """See ``WorkerPerformer``."""
        found: list[Array] = []
        for index, batch in enumerate(job.work, job.slot.first):
            found.append(self._found(batch, index * self._rows))
            self.progress += 1
            if not job.is_wanted():
                return None
        return Result({"examples": sum(map(len, found))}, {"found": np.concatenate(found)})

    def _found(self, batch: Batch, first: int) -> Array:
        if self._finds == SCORES:
            return example_scores(self.network, batch, first=first)
        with named_rows(first, self._unit):
            features: Any = batch.features
            return answers_in(np.array(to_host(self.network.output(features))), self._finds)


class Spool:
    """Feature blocks in a temporary file, which is deleted when the process ends; thread-safe once it is filled.

    Implements ``Batches``: each block is a batch.

    Attributes:
        n_in: the columns of the first block.
        examples, steps: the number of rows of all blocks; for sequences, the number of time steps.
        is_even: whether all blocks but the last have equally many rows.

    Raises:
        DataError: the file cannot be written. Errors of the blocks are raised, too.
    """

    def __init__(self, blocks: Iterable[Array]) -> None:
        self._file, self._ends = tempfile.TemporaryFile(prefix="dl4j-rows-"), array("q", [0])  # noqa: SIM115
        self.n_in, self.examples, self.steps, self.is_even = 0, 0, 0, True
        self._first, self._last = 0, 0
        self._shapes: set[tuple[int, ...]] = set()
        try:
            for features in blocks:
                self._add(DataSet(features))
            if not self.examples:
                raise DataError("there are no rows to answer")
        except BaseException:
            self._file.close()
            raise

    def _add(self, block: DataSet) -> None:
        content = wire.encode({}, block.arrays())
        with files.errors_as(DataError, "the rows cannot be kept", "set TMPDIR to a larger disk"):
            self._file.write(content)
            self._file.flush()
        self.is_even = self.is_even and (not self.examples or self._last == self._first >= len(block))
        self.n_in, self._first = self.n_in or block.features.shape[1], self._first or len(block)
        self._last, self.examples = len(block), self.examples + len(block)
        self.steps += len(block) * (block.features.shape[2] if len(block.features.shape) == 3 else 1)
        self._shapes.add(block.features.shape[1:])
        self._ends.append(self._ends[-1] + len(content))

    @property
    def batches(self) -> int:
        """The number of blocks."""
        return len(self._ends) - 1

    @property
    def batch_size(self) -> int:
        """Rows of each block but the last; 1 if the blocks have different numbers of rows."""
        return self._first if self.is_even else 1

    @property
    def nbytes(self) -> int:
        """Mean bytes of a block."""
        return self._ends[-1] // self.batches

    @property
    def is_of_one_shape(self) -> bool:
        """Whether the examples of all blocks have the same shape; sequences may have different lengths."""
        return len(self._shapes) == 1

    def batch(self, index: int) -> DataSet:
        """Return a block."""
        first, stop = self._ends[index : index + 2]
        with files.errors_as(DataError, f"block {index} cannot be read again"):
            content = os.pread(self._file.fileno(), stop - first, first)
        return DataSet.from_arrays(wire.decode(content)[1].get)

    def close(self) -> None:
        """Remove the file."""
        self._file.close()


class _Jobs:
    """A job for each range of consecutive batches. A ``JobIterator``."""

    def __init__(self, model: TrainedModel, batches: Batches, is_even: bool) -> None:
        self._model, self._batches = model, batches
        count = batches.batches
        large = _JOB_NBYTES // max(batches.nbytes, 4 * batches.batch_size * model.network.n_out)
        self.plan = Plan(
            phases=(Phase(kind="predict"),),
            batches=count,
            examples=batches.examples if is_even else count,
            batch_size=batches.batch_size,
            jobs_per_round=_JOBS_PER_ROUND,
            averaging_frequency=max(1, min(large, count // _JOBS_PER_ROUND)),
        )

    def work(self, slot: SlotPlan) -> list[Batch]:
        """Return the batches of a slot, scaled as in training."""
        batches = (self._batches.batch(index) for index in range(slot.first, slot.last))
        return [self._model.normalize(batch) if isinstance(batch, DataSet) else batch for batch in batches]


@dataclass(slots=True)
class _Aggregator:
    """Keeps the results of a round until the round counts, and then passes them on. A ``JobAggregator``.

    It is also a listener: a round counts exactly once, when its head was written.
    """

    outputs: queue.SimpleQueue[list[Array] | Exception | None] = field(default_factory=queue.SimpleQueue)
    """The outputs of each round; at the end the error that ended the run, or None."""
    rounds: dict[int, list[Array]] = field(default_factory=dict)

    def begin(self, model: Buffer, *, version: int, examples: Sequence[int]) -> Aggregation:
        """See ``JobAggregator``."""
        self.rounds[version] = []
        return _Round(model, self.rounds[version])

    def iteration_done(self, network: Any, iteration: int, score: float, *, examples: int = 0) -> None:
        """Pass on the outputs of a round; called on the master's thread, so it never blocks."""
        if found := self.rounds.pop(iteration, []):
            self.outputs.put(found)

    def is_read(self) -> bool:
        """Return whether the reader keeps up; if it pauses (``| less``), the run waits without limit."""
        return self.outputs.qsize() < _MOST_UNREAD


@dataclass(slots=True)
class _Round:
    """The outputs of a round; the model does not change. An ``Aggregation``."""

    model: Buffer
    outputs: list[Array]

    def add(self, updates: Sequence[Buffer]) -> None:
        """See ``Aggregation``."""
        self.outputs += [np.array(Result.decode(frame).arrays["found"]) for frame in updates]

    def finish(self, *, ends_phase: bool) -> tuple[Buffer, float | None]:
        """See ``Aggregation``."""
        return self.model, None


class _NobodyReadsError(Exception):
    """The reader of the predictions has stopped."""


class _FindingRun(InferenceRun):
    """The results of a model for each example, as a run.

    Args:
        model: the model, which scales the examples itself.
        batches: the batches of the unscaled examples; at least one.
        finds: ``SCORES``, or the place of the model's answers, one of ``ANSWERS_AT``.
        expected: the number of results.
        is_even: whether all batches but the last have equally many examples.
    """

    def __init__(self, model: TrainedModel, batches: Batches, finds: str, expected: int, *, is_even: bool) -> None:
        self._model, self._expected, self._is_wanted = model, expected, threading.Event()
        self._outputs = _Aggregator()
        super().__init__(
            model.network,
            performer=PREDICT,
            jobs=_Jobs(model, batches, is_even),
            aggregator=self._outputs,
            finds=finds,
            rows=batches.batch_size,
            unit="rows" if is_even else "blocks",
        )

    def perform(
        self, run: Run, *, tracker: StateTracker | None = None, monitor: ClusterMonitor | None = None, tick: Any = None
    ) -> None:
        """Lead the run to its end, or until the reader stops; args and errors as for ``lead``."""

        def look(status: RunStatus) -> None:
            if not self._is_wanted.is_set():
                raise _NobodyReadsError
            if tick is not None:
                tick(status)

        outputs = self._outputs
        self.lead(run, tracker=tracker, monitor=monitor, tick=look, listeners=[outputs], takes_more=outputs.is_read)

    def found(self, lead: Callable[[], None]) -> Generator[Array, None, None]:
        """Yield the results in the order of the examples, while ``lead`` performs the run on another thread.

        Errors of ``lead`` are raised here.
        """

        def work() -> None:
            end: Exception | None = None
            try:
                with exits_as_errors():
                    lead()
            except _NobodyReadsError:
                return
            except Exception as exc:  # noqa: BLE001  # raised again in the reader
                end = exc
            self._outputs.outputs.put(end)

        self._is_wanted.set()
        thread, count = ServiceThread(target=work, name="dl4j-predict", daemon=False), 0
        thread.start()
        try:
            while (item := self._outputs.outputs.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                for answers in item:
                    yield answers
                    count += len(answers)
            if count != self._expected:
                raise TrainingError(f"{count} of {self._expected} rows were answered; this is a bug")
        finally:
            self._is_wanted.clear()
            thread.join()


class PredictionRun(_FindingRun):
    """A model's predictions for the blocks of a spool, as a run.

    Raises:
        ShapeError: the blocks are sequences of different lengths, and the model answers with all outputs.
    """

    def __init__(self, model: TrainedModel, spool: Spool) -> None:
        self._n_in, place = spool.n_in, model.answers_at
        if place == ANSWERS_AT[0] and not spool.is_of_one_shape:
            raise ShapeError(
                f"the blocks have sequences of different lengths, and the outputs of {model.name} for these are no one "
                "array; give those of one length at a time"
            )
        expected = spool.steps if place == "each step" else spool.examples
        super().__init__(model, spool, place, expected, is_even=spool.is_even)

    def predicted(self, lead: Callable[[], None]) -> Generator[PredictedRows, None, None]:
        """Yield the predictions, in the order of the rows; args and errors as for ``found``."""
        first = 0
        for answers in self.found(lead):
            outputs = self._model.in_label_units(answers)
            yield PredictedRows(first, self._n_in, outputs, outputs.argmax(axis=1).tolist())
            first += len(answers)


class ScoringRun(_FindingRun):
    """The losses of unscaled examples, as a run; ``found`` yields them.

    Raises:
        ConfError: the network takes another kind of batch. DataError: there is no batch, or an item is no batch.
    """

    def __init__(self, model: TrainedModel, examples: Examples) -> None:
        batches = ExampleBatches(examples)
        next(model.network.batches(batches.batch(0)))
        super().__init__(model, batches, SCORES, batches.examples, is_even=True)
