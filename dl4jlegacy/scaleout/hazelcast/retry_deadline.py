"""One waiting time per process for a tracker that does not answer, shared by all threads and requests."""

from __future__ import annotations

import logging
import threading

from dl4jlegacy.system.clock import RUNNING, Clock

__all__ = ["RetryDeadline"]

logger = logging.getLogger(__name__)

SAID_SECONDS = 3.0
"""Seconds without an answer after which a warning is logged; a member that dies is replaced sooner."""
LAST_SECONDS = 0.5
"""Minimum seconds for which each request is tried, even if the process has given the tracker up."""


class RetryDeadline:
    """Measures the time from the first unanswered request to the next answered one. Thread-safe.

    Args:
        where: the tracker's address, for the messages.
        seconds: how long the process waits; may be changed while threads wait.
        clock: None: the clock of the process.
    """

    def __init__(self, where: str, seconds: float, clock: Clock | None = None) -> None:
        self.seconds = seconds
        self._where, self._clock, self._lock = where, clock or RUNNING, threading.Lock()
        self._since: float | None = None
        self._told_of: float | None = None
        """Start of the wait whose beginning was logged and whose end was not."""
        self._waiting: set[float] = set()
        """Start times of requests that were not answered in time; one of several members may be away alone."""
        self._waited, self._counted = 0.0, float("-inf")

    def begin(self) -> float:
        """Return the start time of a request."""
        return self._clock.now()

    def left(self, begun: float) -> float:
        """Return for how many more seconds a request that began at ``begun`` is tried."""
        since, last = self._since, min(LAST_SECONDS, self.seconds)
        first = begun if since is None else min(since, begun)
        return max(first + self.seconds, begun + last) - self._clock.now()

    def waited(self) -> float:
        """Return the total seconds for which this process has waited, including the current wait.

        No second counts twice: after one thread got an answer, an older request of another thread may still be waiting.
        """
        with self._lock:
            return self._waited + self._uncounted(self._clock.now())

    def away(self) -> float:
        """Return the seconds since the tracker stopped answering; 0.0 if it answers."""
        with self._lock:
            return 0.0 if self._since is None else self._clock.now() - self._since

    def _uncounted(self, now: float) -> float:
        """Return the seconds of the current wait that are not yet included in ``_waited``; called under the lock."""
        return 0.0 if self._since is None else now - max(self._since, self._counted)

    def unanswered(self, begun: float, cause: str) -> None:
        """Note that the request that began at ``begun`` has no answer so far; log a warning, once, if this lasts."""
        with self._lock:
            self._waiting.add(begun)
            self._since = begun if self._since is None else min(self._since, begun)
            waits = self._clock.now() - self._since
            must_say = waits >= min(SAID_SECONDS, self.seconds / 2) and self._told_of is None
            if must_say:
                self._told_of = self._since
        if must_say:
            logger.warning(
                "the state tracker at %s does not answer (%s); this process waits for it, up to %.0f s more",
                self._where,
                cause,
                max(0.0, self.seconds - waits),
            )

    def answered(self, begun: float) -> None:
        """Note that the request that began at ``begun`` was answered; log when all overdue requests are answered."""
        if self._since is None and self._told_of is None:  # nearly always
            return
        with self._lock:
            now = self._clock.now()
            if self._since is not None:
                self._waited += self._uncounted(now)
                self._since, self._counted = None, now
            self._waiting.discard(begun)
            over = None if self._waiting else self._told_of
            if over is not None:
                self._told_of = None
        if over is not None:
            logger.warning("the state tracker at %s answers again, after %.0f s", self._where, now - over)

    def forget(self, begun: float) -> None:
        """Note that the request that began at ``begun`` is no longer waited for."""
        if begun in self._waiting:
            with self._lock:
                self._waiting.discard(begun)
