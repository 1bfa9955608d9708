"""For how long a process waits for a tracker that does not answer: once, whichever threads ask it for what."""

from __future__ import annotations

import logging
import threading

from dl4jlegacy.system.clock import RUNNING, Clock

__all__ = ["RetryDeadline"]

logger = logging.getLogger(__name__)

SAID_SECONDS = 3.0
"""After so long it is said that the tracker does not answer; a member that dies is replaced sooner."""
LAST_SECONDS = 0.5
"""So long each request is tried for, even if the process has given the tracker up."""


class RetryDeadline:
    """Counts from the first request that is not answered to the next one that is. Thread-safe.

    Args:
        where: the tracker's address, for the messages.
        seconds: for which the process waits; may be changed while threads wait.
        clock: None: that of the process.
    """

    def __init__(self, where: str, seconds: float, clock: Clock | None = None) -> None:
        self.seconds = seconds
        self._where, self._clock, self._lock = where, clock or RUNNING, threading.Lock()
        self._since: float | None = None
        self._told_of: float | None = None
        """Since when the wait lasts of which was told that it began, but not that it is over."""
        self._waiting: set[float] = set()
        """When the requests began that have not been answered in time; of several members one may be away alone."""
        self._waited, self._counted = 0.0, float("-inf")

    def begin(self) -> float:
        """Return when a request begins."""
        return self._clock.now()

    def left(self, begun: float) -> float:
        """Return for how many more seconds a request that was begun then is tried."""
        since, last = self._since, min(LAST_SECONDS, self.seconds)
        first = begun if since is None else min(since, begun)
        return max(first + self.seconds, begun + last) - self._clock.now()

    def waited(self) -> float:
        """Return the seconds for which this process has waited, all in all; they grow while it does.

        No second counts twice: when one thread has been answered, another one's older request may still be waiting.
        """
        with self._lock:
            return self._waited + self._uncounted(self._clock.now())

    def away(self) -> float:
        """Return for how long there has been no answer so far; 0.0: there is none to be waited for."""
        with self._lock:
            return 0.0 if self._since is None else self._clock.now() - self._since

    def _uncounted(self, now: float) -> float:
        """Return the seconds of the present wait that are in ``_waited`` not yet; under the lock."""
        return 0.0 if self._since is None else now - max(self._since, self._counted)

    def unanswered(self, begun: float, cause: str) -> None:
        """Take note that a request that was begun then is not answered so far; say so, once, if it lasts."""
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
        """Take note that a request that was begun then was answered; say so if some were not, and all of these are."""
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
        """Take note that nobody waits any more for the answer to the request that was begun then."""
        if begun in self._waiting:
            with self._lock:
                self._waiting.discard(begun)
