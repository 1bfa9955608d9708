"""Observes the progress of a run from outside: the head in its tracker, its workers, its journal. Only reads."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

from dl4jlegacy.errors import Dl4jError
from dl4jlegacy.scaleout.hazelcast.store import HazelcastStateTracker
from dl4jlegacy.scaleout.monitoring.monitor import GONE
from dl4jlegacy.scaleout.persistence.journal import JournalEntry, JournalReader
from dl4jlegacy.scaleout.state.records import Head, WorkerRecord

__all__ = ["RunWatcher", "Sample", "last_slow_moment", "rounds_per_second"]

_POLL_SECONDS = 0.05
_CONNECT_SECONDS = 0.5
_SAMPLES = 4000
_STEP_SECONDS = 0.1


class Sample(NamedTuple):
    """Round and model version of the run at a time of our monotonic clock."""

    at: float
    round: int
    version: int


def rounds_per_second(samples: Sequence[Sample], start: float, end: float) -> float:
    """Return rounds per second between two moments; 0 if there is no sample at or before the first one."""
    times = [sample.at for sample in samples]
    first, last = bisect_right(times, start) - 1, bisect_right(times, end) - 1
    if first < 0 or end <= start:
        return 0.0
    return (samples[last].round - samples[first].round) / (end - start)


def last_slow_moment(
    samples: Sequence[Sample], *, since: float, until: float, window: float, least_rate: float
) -> float:
    """Return the end of the last ``window`` seconds between ``since`` and ``until`` below ``least_rate`` rounds/s.

    The result is ``since`` if there were none, and ``until`` if the newest ``window`` seconds were below.
    """
    start = until - window
    while start >= since:
        if rounds_per_second(samples, start, start + window) < least_rate:
            return start + window
        start -= _STEP_SECONDS
    return since


class RunWatcher:
    """Reads a run's head twenty times a second, on its own thread. A context manager.

    Args:
        connect: returns a client of the run's tracker; if the run has not begun, the tracker is empty, and ``connect``
            is called again. The client is closed at the end.
    """

    def __init__(self, connect: Callable[[], HazelcastStateTracker]) -> None:
        self._connect, self._tracker = connect, connect()
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._samples: deque[Sample] = deque(maxlen=_SAMPLES)
        self._head: Head | None = None
        self._error = ""
        self._last_progress = time.monotonic()
        self._reader = JournalReader(self._tracker)
        self._thread = threading.Thread(target=self._run, name="chaos-watcher", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopped.set()
        self._thread.join(60.0)
        self._tracker.shutdown()

    @property
    def head(self) -> Head | None:
        """The newest head that was seen, even after the run was removed from the grid."""
        with self._lock:
            return self._head

    @property
    def samples(self) -> list[Sample]:
        """The newest samples, oldest first."""
        with self._lock:
            return list(self._samples)

    @property
    def seconds_without_progress(self) -> float:
        """Seconds since the last change of the head."""
        with self._lock:
            return time.monotonic() - self._last_progress

    @property
    def error(self) -> str:
        """Why the last read failed; "": it succeeded."""
        with self._lock:
            return self._error

    def rate(self, seconds: float) -> float:
        """Return rounds per second in the last ``seconds``."""
        now = time.monotonic()
        return rounds_per_second(self.samples, now - seconds, now)

    def workers(self) -> list[WorkerRecord]:
        """Return the workers' records; none if the tracker does not answer."""
        try:
            return self._tracker.workers()
        except Dl4jError:
            return []

    def gone(self) -> list[str]:
        """Return the processes that the master considers gone; none if the tracker does not answer."""
        try:
            return sorted(self._tracker.get(GONE) or {})
        except Dl4jError:
            return []

    def new_entries(self) -> list[JournalEntry]:
        """Return the journal's entries since the last call; none if the tracker does not answer."""
        try:
            return self._reader.read()
        except Dl4jError:
            return []

    def _connect_again(self) -> None:
        """Look for the run once more: its part of the grid has a name only once it has begun."""
        before, tracker = self._tracker, self._connect()
        self._tracker, self._reader = tracker, JournalReader(tracker)
        before.shutdown()

    def _run(self) -> None:
        while not self._stopped.wait(_POLL_SECONDS if self._head is not None else _CONNECT_SECONDS):
            read_at = time.monotonic()
            try:
                if self._head is None:
                    self._connect_again()
                head, error = self._tracker.head(), ""
            except Dl4jError as exc:
                head, error = None, str(exc)
            with self._lock:
                self._error = error
                if head is None:
                    continue
                if self._head is None or (head.version, head.status) != (self._head.version, self._head.status):
                    self._last_progress = time.monotonic()
                self._head = head
                self._samples.append(Sample(read_at, head.round, head.version))
