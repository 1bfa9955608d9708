"""Durations of the phases of a round: a recorder for master and workers, which records nothing unless enabled.

A phase is an activity of one thread, such as fitting a job's batches; the phases of a thread do not overlap. Durations
are measured with the clock of the process (``dl4jlegacy.system.clock``), so that time in which the process was stopped
does not count. Start times are for comparing processes by eye: the wall-clock time when the recorder was created, plus
the time on the monotonic clock since then. A later change of the wall clock has no effect; start times on two machines
are as comparable as the machines' wall clocks were when the recorders were created.

Nothing in a run depends on these measurements.

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
"""Maximum number of events that wait to be taken; then the oldest are dropped, which gaps in the numbers show."""

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
"""All phases, in the order in which they occur in a round."""
At = tuple[int | None, int | None]
"""A round, and one of its slots; None: no round or slot, or all slots."""
NOWHERE: At = None, None
_Recording = tuple[int, str, Phase, At, float, float]
"""An event: number, thread, phase, place, start by the machine's monotonic clock, and duration in seconds."""


class EventStats(msgspec.Struct, frozen=True, gc=False):
    """One occurrence of a phase in a thread.

    Attributes:
        phase: one of ``PHASES``; a newer version may have others.
        machine, process, thread: the host's name; the unique name of the process; the role of the thread, such as
            ``worker-0``.
        number: counts the events of the process from 0, so that a gap shows that some were lost.
        round, slot: position in the plan; None: no round or slot, or not a single one.
        start: in seconds since 1970 by its machine's clock (see the module).
        seconds: duration, without the time in which its process was stopped.
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
    """A phase that has begun. This class measures nothing; ``PhaseRecorder`` creates those that do."""

    __slots__ = ()

    def stop(self) -> None:
        """Stop the time measurement; ``end`` is called later with the name of the phase."""

    def end(self, phase: Phase, at: At = NOWHERE) -> None:
        """Record this phase, which ends now, or ended with ``stop``."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End a phase that ``Phases.phase`` has begun, also after an exception."""


class Phases:
    """The interface by which one thread reports its phases. This class records nothing, at almost no cost."""

    __slots__ = ()

    def begin(self) -> Span:
        """Return a phase that begins now, and is recorded when its ``end`` is called."""
        return _UNMEASURED

    def phase(self, phase: Phase, at: At = NOWHERE) -> Span:
        """Return a context manager whose body is this phase."""
        return _UNMEASURED


_UNMEASURED = Span()
NO_PHASES = Phases()
"""Used by master and workers unless ``Conf.collect_training_stats`` is set."""


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
        """Return the ``Phases`` of a thread with this name."""
        return _Recorded(self, self._events, self._numbers, name)

    def take(self, most: int = MOST_WAITING) -> list[EventStats]:
        """Return the oldest events that were not taken before, in the order of their ends. For one thread."""
        events = list[EventStats]()
        while self._events and len(events) < most:
            number, thread, phase, (round_, slot), began, seconds = self._events.popleft()
            began, seconds = round(began + self._offset, 6), round(seconds, 7)
            events.append(EventStats(phase, self.machine, self.process, thread, number, round_, slot, began, seconds))
        return events


class _Recorded(Phases):
    """The ``Phases`` of a thread; keeps the recorder's functions that spans need, since spans are frequent."""

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
