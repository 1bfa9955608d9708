"""What the phases of a round take: a recorder that master and workers are given, which keeps nothing unless it is told.

A phase is what one thread does at a time, such as fitting a job's batches; phases of a thread do not overlap. How long
one takes is measured with the clock of its process (``dl4jlegacy.system.clock``), so that time in which that was
stopped does not count. When it began is for people, who compare processes: the time of day by the wall clock when the
recorder was made, plus what its monotonic clock has counted since. A wall clock that is set meanwhile changes nothing;
between two machines starts are as comparable as their wall clocks were then.

Nothing in a run reads any of it.

Legacy: ``org.deeplearning4j.spark.api.stats`` (``CommonSparkTrainingStats``, ``StatsCalculationHelper``) and its
``EventStats``, whose times came from an NTP server.
"""

from __future__ import annotations

import itertools
import socket
import time
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Literal, Self, get_args

import msgspec

from dl4jlegacy.system.clock import Clock

__all__ = ["MOST_WAITING", "NO_PHASES", "PHASES", "EventStats", "Phase", "PhaseRecorder", "Phases", "Span"]

MOST_WAITING = 20_000
"""So many events wait at most for who takes them; then the oldest are dropped, which their numbers show."""

Phase = Literal[
    "WorkerWait",
    "WorkerGetJob",
    "WorkerGetModel",
    "WorkerGetData",
    "WorkerInit",
    "WorkerFit",
    "WorkerValidate",
    "WorkerEncode",
    "WorkerSend",
    "WorkerFold",
    "MasterIssue",
    "MasterWait",
    "MasterWatch",
    "MasterReadUpdates",
    "MasterAggregate",
    "MasterScore",
    "MasterStoreModel",
    "MasterCommit",
    "MasterCheckpoint",
]
PHASES: tuple[Phase, ...] = get_args(Phase)
"""All phases, in the order in which a round comes to them."""
At = tuple[int | None, int | None]
"""A round, and one of its slots; None: none, or all of them."""
NOWHERE: At = None, None
_Recording = tuple[int, str, Phase, At, float, float]
"""An event: its number, thread, phase and place, when it began by the machine's monotonic clock, and its seconds."""


class EventStats(msgspec.Struct, frozen=True, gc=False):
    """One phase of one thread, once.

    Attributes:
        phase: one of ``PHASES``; a newer version may have others.
        machine, process, thread: the host's name; the process's, which no other has; what the thread is, ``worker-0``.
        number: counts the events of the process from 0, so that a gap tells that some were lost.
        round, slot: where it was in the plan; None: in none, or in no single one.
        start: when it began, in seconds since 1970 by its machine's clock (see the module).
        seconds: how long it took, without the time for which its process was stopped.
    """

    phase: str
    machine: str
    process: str
    thread: str
    number: int
    round: int | None
    slot: int | None
    start: float
    seconds: float


class Span:
    """A phase that has begun. This one is not measured; ``PhaseRecorder`` gives those that are."""

    __slots__ = ()

    def stop(self) -> None:
        """Count no longer; ``end`` will say what it was."""

    def end(self, phase: Phase, at: At = NOWHERE) -> None:
        """Record that it was this phase, which ends now, or has ended with ``stop``."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End a phase that ``Phases.phase`` has begun, also if it fails."""


class Phases:
    """Where one thread says what it does. These record nothing, at next to no cost."""

    __slots__ = ()

    def begin(self) -> Span:
        """Return a phase that begins now, and is recorded when its ``end`` is called."""
        return _UNMEASURED

    def phase(self, phase: Phase, at: At = NOWHERE) -> Span:
        """Return a context manager whose body is this phase."""
        return _UNMEASURED


_UNMEASURED = Span()
NO_PHASES = Phases()
"""What master and workers have unless ``Conf.collect_training_stats`` is set."""


class PhaseRecorder:
    """Records the phases of a process's threads. Thread-safe; holds at most ``MOST_WAITING`` events.

    Args:
        process: the process's name.
        clock: of running time.
    """

    def __init__(self, process: str, clock: Clock) -> None:
        self.process, self.machine, self.clock = process, socket.gethostname(), clock
        self._offset = time.time() - time.monotonic()
        self._numbers = itertools.count()
        self._events: deque[_Recording] = deque(maxlen=MOST_WAITING)

    def thread(self, name: str) -> Phases:
        """Return where a thread of this name says what it does."""
        return _Recorded(self, self._events, self._numbers, name)

    def take(self, most: int = MOST_WAITING) -> list[EventStats]:
        """Return the oldest events that were not taken before, in the order in which they ended. For one thread."""
        events = list[EventStats]()
        while self._events and len(events) < most:
            number, thread, phase, (round_, slot), began, seconds = self._events.popleft()
            began, seconds = round(began + self._offset, 6), round(seconds, 7)
            events.append(EventStats(phase, self.machine, self.process, thread, number, round_, slot, began, seconds))
        return events


class _Recorded(Phases):
    """Those of a thread; what spans need of the recorder is at hand here, since there are many of them."""

    __slots__ = ("append", "now", "number", "thread")

    def __init__(self, recorder: PhaseRecorder, events: deque[_Recording], numbers: Iterator[int], thread: str) -> None:
        self.append, self.number, self.now, self.thread = events.append, numbers.__next__, recorder.clock.now, thread

    def begin(self) -> Span:
        return _Measured(self, None, NOWHERE)

    def phase(self, phase: Phase, at: At = NOWHERE) -> Span:
        return _Measured(self, phase, at)


class _Measured(Span):
    __slots__ = ("_at", "_began", "_phase", "_seconds", "_since", "_where")

    def __init__(self, where: _Recorded, phase: Phase | None, at: At) -> None:
        self._where, self._phase, self._at = where, phase, at
        self._seconds: float | None = None
        self._began, self._since = time.monotonic(), where.now()

    def stop(self) -> None:
        self._seconds = self._where.now() - self._since

    def end(self, phase: Phase, at: At = NOWHERE) -> None:
        where = self._where
        seconds = where.now() - self._since if self._seconds is None else self._seconds
        where.append((where.number(), where.thread, phase, at, self._began, seconds))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        where = self._where
        if self._phase is not None:
            where.append((where.number(), where.thread, self._phase, self._at, self._began, where.now() - self._since))
