"""Predictions as a run: its jobs are ranges of rows, its only model is the network, and each round has outputs.

The model stays as it is from round to round, so each worker reads it once; what a round has found goes to whoever asks
for it, in the order of the rows, and the run forgets it. So neither memory nor grid grow with the rows.
"""

from __future__ import annotations

import os
import queue
import tempfile
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dl4jlegacy import files
from dl4jlegacy.backend import Array, to_host
from dl4jlegacy.datasets import DataSet
from dl4jlegacy.errors import DataError, TrainingError
from dl4jlegacy.exits import exits_as_errors
from dl4jlegacy.inference import TrainedModel
from dl4jlegacy.inference_run import InferencePerformer, InferenceRun
from dl4jlegacy.nn.batch_evaluation import ROWS
from dl4jlegacy.prediction import PredictedRows, named_rows
from dl4jlegacy.run import Run
from dl4jlegacy.scaleout.aggregate import Aggregation
from dl4jlegacy.scaleout.job import Job, Result
from dl4jlegacy.scaleout.monitor import ClusterMonitor
from dl4jlegacy.scaleout.outcome import RunStatus
from dl4jlegacy.scaleout.parts import register_performer
from dl4jlegacy.scaleout.plan import Phase, Plan, SlotPlan
from dl4jlegacy.scaleout.store import Buffer
from dl4jlegacy.scaleout.tracker import StateTracker
from dl4jlegacy.service_threads import ServiceThread

__all__ = ["PREDICT", "PredictionPerformer", "PredictionRun", "Spool"]

PREDICT = "dl4jlegacy.predict"
"""The name of the performer, which every worker has."""
_JOBS_PER_ROUND = 32
_JOB_NBYTES = 1 << 20
"""So much has a job of features, or of outputs, unless a single batch has more."""
_MOST_UNREAD = 2
"""Rounds whose outputs nobody has read yet; while there are so many, no more jobs are issued."""


@register_performer(PREDICT)
class PredictionPerformer(InferencePerformer):
    """Returns the outputs of the network for a job's rows."""

    def perform(self, job: Job) -> Result | None:
        """See ``WorkerPerformer``."""
        outputs: list[Array] = []
        for index, rows in enumerate(job.work, job.slot.first):
            with named_rows(index * ROWS):
                outputs.append(np.array(to_host(self.network.output(rows.features))))
            self.progress += 1
            if not job.is_wanted():
                return None
        return Result({"examples": sum(map(len, outputs))}, {"outputs": np.concatenate(outputs)})


class Spool:
    """Rows of features in a temporary file, which ends with the process; safe on any thread once it is filled.

    Raises:
        DataError: the disk refuses; and what the blocks raise.
    """

    def __init__(self, blocks: Iterable[Array]) -> None:
        self._file, self.rows, self.n_in = tempfile.TemporaryFile(prefix="dl4j-rows-"), 0, 0  # noqa: SIM115
        self._dtype = np.dtype(np.float32)
        try:
            self._fill(blocks)
        except BaseException:
            self._file.close()
            raise

    def _fill(self, blocks: Iterable[Array]) -> None:
        for rows in blocks:
            with files.errors_as(DataError, "the rows cannot be kept", "set TMPDIR to a larger disk"):
                self._file.write(np.ascontiguousarray(rows).data)
                self._file.flush()
            self._dtype = rows.dtype
            self.rows, self.n_in = self.rows + len(rows), rows.shape[1]

    def read(self, first: int, stop: int) -> Array:
        """Return rows ``first`` to ``stop`` (exclusive), ``(rows, n_in)``."""
        width = self._dtype.itemsize * self.n_in
        with files.errors_as(DataError, f"rows {first} to {stop} cannot be read again"):
            content = os.pread(self._file.fileno(), (stop - first) * width, first * width)
        return np.frombuffer(content, self._dtype).reshape(stop - first, self.n_in)

    def close(self) -> None:
        """Remove the file."""
        self._file.close()


class _Jobs:
    """A job for each range of consecutive batches of ``ROWS`` rows. A ``JobIterator``."""

    def __init__(self, model: TrainedModel, spool: Spool) -> None:
        self._model, self._spool = model, spool
        batches = -(-spool.rows // ROWS)
        large = _JOB_NBYTES // (4 * ROWS * max(spool.n_in, model.network.n_out))
        self.plan = Plan(
            phases=(Phase(kind="predict"),),
            batches=batches,
            examples=spool.rows,
            batch_size=ROWS,
            jobs_per_round=_JOBS_PER_ROUND,
            averaging_frequency=max(1, min(large, batches // _JOBS_PER_ROUND)),
        )

    def work(self, slot: SlotPlan) -> list[DataSet]:
        """Return the batches of a slot, scaled as in training."""
        stop = min(slot.last * ROWS, self._spool.rows)
        rows = DataSet(self._spool.read(slot.first * ROWS, stop))
        return [self._model.normalize(batch) for batch in rows.batch_by(ROWS)]


@dataclass(slots=True)
class _Aggregator:
    """Keeps the outputs of a round until the round counts, and passes them on then. A ``JobAggregator``.

    It is a listener, too: only a head that was written tells that a round counts, once.
    """

    outputs: queue.SimpleQueue[list[Array] | Exception | None] = field(default_factory=queue.SimpleQueue)
    """Of each round; then the error that has ended the run, or None at its end."""
    rounds: dict[int, list[Array]] = field(default_factory=dict)

    def begin(self, model: Buffer, *, version: int, examples: Sequence[int]) -> Aggregation:
        """See ``JobAggregator``."""
        self.rounds[version] = []
        return _Round(model, self.rounds[version])

    def iteration_done(self, network: Any, iteration: int, score: float, *, examples: int = 0) -> None:
        """Pass the outputs of a round on; on the master's thread, which waits for nobody."""
        if found := self.rounds.pop(iteration, []):
            self.outputs.put(found)

    def is_read(self) -> bool:
        """Return whether the reader keeps up; for one that pauses (``| less``) the run waits, however long."""
        return self.outputs.qsize() < _MOST_UNREAD


@dataclass(slots=True)
class _Round:
    """The outputs of a round; the model stays. An ``Aggregation``."""

    model: Buffer
    outputs: list[Array]

    def add(self, updates: Sequence[Buffer]) -> None:
        """See ``Aggregation``."""
        self.outputs += [np.array(Result.decode(frame).arrays["outputs"]) for frame in updates]

    def finish(self, *, ends_phase: bool) -> tuple[Buffer, float | None]:
        """See ``Aggregation``."""
        return self.model, None


class _NobodyReadsError(Exception):
    """Nobody reads the predictions any more."""


class PredictionRun(InferenceRun):
    """The predictions of a model for the rows of a spool, as a run."""

    def __init__(self, model: TrainedModel, spool: Spool) -> None:
        self._model, self._spool, self._is_wanted = model, spool, threading.Event()
        self._outputs = _Aggregator()
        super().__init__(model.network, performer=PREDICT, jobs=_Jobs(model, spool), aggregator=self._outputs)

    def perform(
        self, run: Run, *, tracker: StateTracker | None = None, monitor: ClusterMonitor | None = None, tick: Any = None
    ) -> None:
        """Lead the run to its end, or until nobody reads the predictions; args and errors as for ``lead``."""

        def look(status: RunStatus) -> None:
            if not self._is_wanted.is_set():
                raise _NobodyReadsError
            if tick is not None:
                tick(status)

        outputs = self._outputs
        self.lead(run, tracker=tracker, monitor=monitor, tick=look, listeners=[outputs], takes_more=outputs.is_read)

    def predicted(self, lead: Callable[[], None]) -> Generator[PredictedRows, None, None]:
        """Yield the predictions, in the order of the rows, while ``lead`` performs the run on another thread.

        What it raises is raised here.
        """

        def work() -> None:
            end: Exception | None = None
            try:
                with exits_as_errors():
                    lead()
            except _NobodyReadsError:
                return
            except Exception as exc:  # noqa: BLE001  # raised again where the predictions are read
                end = exc
            self._outputs.outputs.put(end)

        self._is_wanted.set()
        thread, first = ServiceThread(target=work, name="dl4j-predict", daemon=False), 0
        thread.start()
        try:
            while (item := self._outputs.outputs.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                for found in item:
                    outputs = self._model.in_label_units(found)
                    yield PredictedRows(first, self._spool.n_in, outputs, outputs.argmax(axis=1).tolist())
                    first += len(found)
            if first != self._spool.rows:
                raise TrainingError(f"{first} of {self._spool.rows} rows were answered; this is a bug")
        finally:
            self._is_wanted.clear()
            thread.join()
