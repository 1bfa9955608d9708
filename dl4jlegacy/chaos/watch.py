"""How a run gets on, seen from outside: the head of its tracker, its workers, its journal. Only reads."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

from dl4jlegacy.errors import Dl4jError
from dl4jlegacy.scaleout.hazelcast.store import HazelcastStateTracker
from dl4jlegacy.scaleout.journal import JournalEntry, JournalReader
from dl4jlegacy.scaleout.monitor import GONE
from dl4jlegacy.scaleout.records import Head, WorkerRecord

__all__ = ["Sample", "Watch", "last_slow_moment", "rounds_per_second"]

_LOOK_SECONDS = 0.05
_KEPT = 4000
_STEP_SECONDS = 0.1


class Sample(NamedTuple):
    """Where the run was at a moment of our monotonic clock."""

    at: float
    round: int
    version: int


def rounds_per_second(samples: Sequence[Sample], start: float, end: float) -> float:
    """Return how fast rounds were closed between two moments; 0 if nothing is known of the first one."""
    times = [sample.at for sample in samples]
    first, last = bisect_right(times, start) - 1, bisect_right(times, end) - 1
    if first < 0 or end <= start:
        return 0.0
    return (samples[last].round - samples[first].round) / (end - start)


def last_slow_moment(samples: Sequence[Sample], since: float, end: float, window: float, least: float) -> float:
    """Return the end of the last stretch of ``window`` seconds, after ``since``, with fewer rounds per second.

    ``since`` if there was none; ``end`` if the last one before it was such a stretch.
    """
    start = end - window
    while start >= since:
        if rounds_per_second(samples, start, start + window) < least:
            return start + window
        start -= _STEP_SECONDS
    return since


class Watch:
    """Reads a run's head twenty times a second, on a thread of its own. As a context manager.

    Args:
        connect: opens a client of the run's tracker, which may yet be empty; closed at the end.
    """

    def __init__(self, connect: Callable[[], HazelcastStateTracker]) -> None:
        self._tracker = connect()
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._samples: deque[Sample] = deque(maxlen=_KEPT)
        self._head: Head | None = None
        self._trouble = ""
        self._moved = time.monotonic()
        self._reader = JournalReader(self._tracker)
        self._thread = threading.Thread(target=self._run, name="chaos-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopped.set()
        self._tracker.shutdown()
        self._thread.join(30.0)

    @property
    def head(self) -> Head | None:
        """The newest head that was seen; it stays when the run's part of the grid is cleared."""
        with self._lock:
            return self._head

    @property
    def samples(self) -> list[Sample]:
        """The newest samples, oldest first."""
        with self._lock:
            return list(self._samples)

    @property
    def still_seconds(self) -> float:
        """For how long the head has been the same."""
        with self._lock:
            return time.monotonic() - self._moved

    @property
    def trouble(self) -> str:
        """Why the last look failed; "" if it did not."""
        with self._lock:
            return self._trouble

    def rate(self, seconds: float) -> float:
        """Rounds per second in the last so many seconds."""
        now = time.monotonic()
        return rounds_per_second(self.samples, now - seconds, now)

    def workers(self) -> list[WorkerRecord]:
        """Return what workers say of themselves; none if the tracker does not answer."""
        try:
            return self._tracker.workers()
        except Dl4jError:
            return []

    def gone(self) -> list[str]:
        """Return the processes that the master takes for gone; none if the tracker does not answer."""
        try:
            return sorted(self._tracker.get(GONE) or {})
        except Dl4jError:
            return []

    def news(self) -> list[JournalEntry]:
        """Return the journal's entries since the last call; none if the tracker does not answer."""
        try:
            return self._reader.read()
        except Dl4jError:
            return []

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_SECONDS):
            asked = time.monotonic()
            try:
                head, trouble = self._tracker.head(), ""
            except Dl4jError as exc:
                head, trouble = None, str(exc)
            with self._lock:
                self._trouble = trouble
                if head is None:
                    continue
                if self._head is None or (head.version, head.status) != (self._head.version, self._head.status):
                    self._moved = time.monotonic()
                self._head = head
                self._samples.append(Sample(asked, head.round, head.version))
