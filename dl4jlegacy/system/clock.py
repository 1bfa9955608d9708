"""Clocks that count only time in which this process ran, and deadlines based on them.

A process that was stopped (SIGSTOP, a suspended machine, no free core) finds afterwards that every deadline has passed,
and would blame others that may have answered long ago. So a long gap between two readings of the clock counts as only
``GAP_SECONDS``, and all waits read the clock often.
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
"""Maximum time of a wait between two readings of the clock."""
GAP_SECONDS = 1.0
"""A longer gap between two readings counts as this much: the process was stopped meanwhile."""


class Clock(Protocol):
    """Measures durations; tests use their own. Each process has its own clock, and readings cannot be compared."""

    def now(self) -> float:
        """Return seconds, which never decrease; only differences are meaningful."""
        ...


class RunningClock:
    """A clock that cannot be set, and that stands still while its process is stopped. Thread-safe.

    Args:
        monotonic: returns the seconds of the machine's monotonic clock; None: ``time.monotonic``.
        gap_seconds: maximum counted time between two readings; some thread must read the clock more often.
    """

    def __init__(self, monotonic: Callable[[], float] | None = None, gap_seconds: float = GAP_SECONDS) -> None:
        self._monotonic = monotonic or (lambda: time.monotonic())  # looked up at each reading, for the tests
        self._gap, self._lock = gap_seconds, threading.Lock()
        self._read, self._ran = self._monotonic(), 0.0

    def now(self) -> float:
        """Return the seconds that the process has run."""
        with self._lock:
            now = self._monotonic()
            since = now - self._read
            self._read = now
            if since > 0.0:
                self._ran += since if since < self._gap else self._gap
            return self._ran


RUNNING = RunningClock()
"""The clock of this process. Waits in slices read it often enough for all users."""


@contextmanager
def read_often(clock: Clock) -> Iterator[None]:
    """Read a clock on a separate thread, as often as waits do, while the body makes long blocking calls."""
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
    """The end of a wait; it counts only time in which this process runs, so that others had that time, too.

    Args:
        seconds: from now; 0 allows a single check.
        clock: None: that of the process.
    """

    def __init__(self, seconds: float, clock: Clock | None = None) -> None:
        self.seconds, self._clock = seconds, clock or RUNNING
        self._end = self._clock.now() + seconds

    def left(self) -> float:
        """Return the seconds left; 0 after the deadline."""
        return max(0.0, self._end - self._clock.now())

    def slice(self) -> float:
        """Return the seconds to wait before the next check."""
        return min(self.left(), SLICE_SECONDS)

    def passed(self) -> bool:
        """Return whether the deadline has passed."""
        return self.left() <= 0

    def wait(self, wait: Callable[[float], bool]) -> bool:
        """Call ``wait(seconds)`` with short times, at least once, until it returns True; return False at the deadline.

        Suits the ``wait`` of an event or similar functions that return whether the event has happened.
        """
        while not wait(self.slice()):
            if self.passed():
                return False
        return True
