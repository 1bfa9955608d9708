"""The state and the result of a run; ``Outcome`` passes the end of a run from the actors to the runner."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from dl4jlegacy.arrays.devices import Device
from dl4jlegacy.errors import (
    ContractError,
    DeviceMemoryError,
    Dl4jError,
    JobError,
    NotFiniteError,
    PoisonJobError,
    TrainingError,
)
from dl4jlegacy.nn.evaluation.verdict import Course
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.links.liveness.quorum import Waiting
from dl4jlegacy.scaleout.monitoring.run_state import RunState
from dl4jlegacy.scaleout.persistence.journal import JournalEntry
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.state.records import POISON, Best, Figures, Head, account
from dl4jlegacy.scaleout.state.store import Buffer
from dl4jlegacy.system.clock import Clock

__all__ = ["Outcome", "RunStatus", "TrainingResult", "failure_of"]


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """The result of a run: the last head, its comparison with the plan, the model, and the time spent here."""

    conf: Conf
    plan: Plan
    head: Head
    model: Result
    seconds: float
    examples_here: int
    warnings: tuple[str, ...] = ()
    devices: tuple[Device, ...] = ()
    """The devices of the workers in this process."""
    best_model: Result | None = None
    """The model with the best score; None: the run was not scored (``Conf.validation``, ``early_stopping``)."""
    course: Course | None = None
    """The training score at the start and at the end of the last phase; None: unknown."""

    def __repr__(self) -> str:
        head = self.head
        score = "" if self.validation is None else f", loss {self.validation.loss:.4g}"
        return f"<TrainingResult: version {head.version}, {head.examples:,} examples in {self.seconds:.1f} s{score}>"

    @property
    def best(self) -> Best | None:
        """The record of the best model: its score, and its round and epoch."""
        return self.head.best

    @property
    def validation(self) -> Figures | None:
        """The metrics of the last validation."""
        return None if self.head.scores is None else self.head.scores.figures

    @property
    def stopped_by(self) -> str:
        """The condition that ended the run before its plan, with its values; "": there is none."""
        return self.head.stopped_by

    @property
    def batches_lost(self) -> int:
        """Batches of the plan that are not in the model."""
        return account(self.head, self.plan)[0]

    @property
    def batches_duplicated(self) -> int:
        """Batches that went into the model more than once."""
        return account(self.head, self.plan)[1]

    @property
    def examples_per_second(self) -> float:
        """Examples per second while this process ran."""
        return self.examples_here / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class RunStatus:
    """A snapshot of a run in progress, for progress displays."""

    plan: Plan
    head: Head | None
    seconds: float
    workers: tuple[tuple[str, str], ...]
    """(name, state and job) of every worker: its number in this process, or its name on a cluster."""
    waiting: Waiting | None = None
    """Set while the run is paused because it has too few workers."""
    news: tuple[JournalEntry, ...] = ()
    """The journal entries since the last snapshot."""
    devices: tuple[tuple[int, str, Device], ...] = ()
    """(number, line of text, device) of every worker here whose device should be reported."""
    state: RunState = field(default_factory=RunState)


class End(NamedTuple):
    """The end of a run: its last head, its last and its best model."""

    head: Head
    frame: Buffer | None
    best: Buffer | None


class Outcome:
    """Passes the end of a run from the actors to the runner; set once, by the first caller. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._end: End | None = None
        self._error: BaseException | None = None
        self._warnings: tuple[str, ...] = ()
        self._progress = self._looked = clock.now()

    def end(self, head: Head, frame: Buffer | None, best: Buffer | None = None) -> None:
        """Set the end of the run: its last head, and its last and its best model if they are known."""
        with self._lock:
            self._end = self._end or End(head, frame, best)
        self._over.set()

    def fail(self, error: BaseException) -> None:
        """Set the error of an actor that failed; only the first is kept, as it is the root cause."""
        with self._lock:
            self._error = self._error or error
        self._over.set()

    def warn(self, message: str) -> None:
        """Add a warning about a problem that does not end the run."""
        with self._lock:
            self._warnings = (*self._warnings, message)

    def progressed(self) -> None:
        """Note that batches were done."""
        with self._lock:
            self._progress = self._clock.now()

    def look(self, *, is_excused: bool) -> None:
        """Check in; if ``is_excused``, the time since the last call does not count as idle.

        That is so while the run waits for something that has its own deadline.
        """
        with self._lock:
            before, self._looked = self._looked, self._clock.now()
            if is_excused:
                self._progress = min(self._looked, self._progress + self._looked - before)

    @property
    def idle_seconds(self) -> float:
        """Seconds since batches were last done."""
        with self._lock:
            return self._clock.now() - self._progress

    @property
    def warnings(self) -> tuple[str, ...]:
        """Problems that did not end the run."""
        with self._lock:
            return self._warnings

    def wait(self, seconds: float, tick: Callable[[], None] | None = None) -> End | None:
        """Wait up to ``seconds`` for the end; return it or None. Raises the error of an actor that failed."""
        over = self._over.wait(seconds)
        if tick is not None:
            tick()
        if not over:
            return None
        with self._lock:
            if self._error is not None:
                raise self._error
            return self._end


def failure_of(head: Head) -> Dl4jError:
    """Return the error that ended a run."""
    failure = head.failure
    if failure is None:
        return TrainingError(f"run {head.run} was {head.status} in round {head.round}")
    if failure.code == ContractError.code:
        return ContractError(f"run {head.run}, round {head.round}: {failure.message}", failure.traceback)
    if failure.code == NotFiniteError.code:
        return NotFiniteError(failure.message + (f" (worker {failure.worker})" if failure.worker else ""))
    if failure.code == DeviceMemoryError.code:
        return DeviceMemoryError(f"{failure.message} (worker {failure.worker})")
    if failure.code == POISON:
        return PoisonJobError(f"run {head.run}: {failure.message}")
    return JobError(
        f"run {head.run}: a job of round {head.round} failed on every attempt, last on worker {failure.worker}: "
        f"{failure.message}",
        failure.traceback,
    )
