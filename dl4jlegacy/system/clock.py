"""Clocks for durations, which count only time in which this process ran; and the deadlines of all that it waits for.

A process that was stopped (SIGSTOP, a suspended machine, one without a free core) finds when it goes on that every
deadline has passed. It would blame whoever it waited for, and who may have answered long ago. Hence a gap between two
readings of the clock counts for next to nothing, and all waits read it often.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from dl4jlegacy.system.service_threads import ServiceThread

__all__ = ["RUNNING", "SLICE_SECONDS", "Clock", "Deadline", "RunningClock", "read_often"]

SLICE_SECONDS = 0.2
"""For so long at most a wait does not read the clock."""
GAP_SECONDS = 1.0
"""Two readings that are further apart count as this: the process was stopped in between."""


class Clock(Protocol):
    """What measures durations; tests use their own. Each process has its own, whose readings mean nothing to others."""

    def now(self) -> float:
        """Return seconds, which never go back; only differences are meaningful."""
        ...


class RunningClock:
    """A clock that nobody sets, and that stands still while its process does. Thread-safe.

    Args:
        monotonic: returns the seconds of the machine's monotonic clock; None: ``time.monotonic``.
        gap_seconds: as much of a gap between two readings counts; somebody in the process must read it more often.
    """

    def __init__(self, monotonic: Callable[[], float] | None = None, gap_seconds: float = GAP_SECONDS) -> None:
        self._monotonic = monotonic or (lambda: time.monotonic())  # looked up at each reading, for the tests
        self._gap, self._lock = gap_seconds, threading.Lock()
        self._read, self._ran = self._monotonic(), 0.0

    def now(self) -> float:
        """Return the seconds in which the process has run."""
        with self._lock:
            now = self._monotonic()
            since = now - self._read
            self._read = now
            if since > 0.0:
                self._ran += since if since < self._gap else self._gap
            return self._ran


RUNNING = RunningClock()
"""The clock of this process. What waits in slices reads it often enough for all."""


@contextmanager
def read_often(clock: Clock) -> Iterator[None]:
    """Read a clock on a thread of its own, as often as waits do, while the body makes calls that block for longer."""
    over = threading.Event()

    def read() -> None:
        while not over.wait(SLICE_SECONDS):
            clock.now()

    thread = ServiceThread(target=read, name="clock")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class Deadline:
    """The end of a wait for somebody else, who must have had the time: it counts only while this process runs.

    Args:
        seconds: from now; 0 is allowed, and is one look.
        clock: None: that of the process.
    """

    def __init__(self, seconds: float, clock: Clock | None = None) -> None:
        self.seconds, self._clock = seconds, clock or RUNNING
        self._end = self._clock.now() + seconds

    def left(self) -> float:
        """Return the seconds that are left; 0 when it has passed."""
        return max(0.0, self._end - self._clock.now())

    def slice(self) -> float:
        """Return the seconds to wait before this is asked again."""
        return min(self.left(), SLICE_SECONDS)

    def passed(self) -> bool:
        """Return whether nothing is left."""
        return self.left() <= 0

    def wait(self, wait: Callable[[float], bool]) -> bool:
        """Call ``wait(seconds)`` with short times, at least once, until it returns True; return False at the deadline.

        For the ``wait`` of an event or the like, which knows whether what it waits for is there.
        """
        while not wait(self.slice()):
            if self.passed():
                return False
        return True
