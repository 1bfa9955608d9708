"""Foreign values in a run's part of a store: counted, reported once, remembered until the master removes them.

Anybody who can reach a store can write to it. A value without the run's signature, or one that cannot be parsed, is
*foreign*: it is treated as missing, and never ends a process of the run.
"""

from __future__ import annotations

import logging
import threading
from itertools import islice

__all__ = ["UntrustedKeys", "shortened"]

logger = logging.getLogger(__name__)

_MOST_REPORTED = 20
_MOST_REMEMBERED = 100_000


class UntrustedKeys:
    """The foreign keys and values that one process has found in one store. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reported: set[str] = set()
        self._found: dict[str, None] = {}
        self._next_total = 100
        self.count = 0
        """The number of foreign values found, repeated ones included."""

    def note(self, key: str, reason: str) -> None:
        """Count a foreign value. Logs each of the first keys once; after that only the totals 100, 1,000, ..."""
        with self._lock:
            self.count += 1
            if len(self._found) < _MOST_REMEMBERED:
                self._found[key] = None
            is_new = key not in self._reported and len(self._reported) < _MOST_REPORTED
            if is_new:
                self._reported.add(key)
            total = self.count if self.count >= self._next_total else 0
            if total:
                self._next_total *= 10
        if is_new:
            logger.warning("%s; it is left out", reason)
        if total:
            logger.warning(
                "%s foreign values were met so far, last %s: somebody else writes to this run's part of the grid",
                f"{total:,}",
                shortened(key),
            )

    def take(self, most: int) -> list[str]:
        """Return and forget up to ``most`` of the noted keys; a key that is noted again is returned again."""
        with self._lock:
            keys = list(islice(self._found, most))
            for key in keys:
                del self._found[key]
        return keys


def shortened(key: str) -> str:
    """Return a printable key for messages, shortened if it is long."""
    return repr(key if len(key) <= 100 else f"{key[:100]}...")
