"""Limits the connections at a port, so that strangers can neither exhaust file descriptors nor block others. No I/O."""

from __future__ import annotations

import resource
from collections.abc import Hashable, Iterator
from typing import Generic, Literal, TypeVar

from dl4jlegacy.system.clock import RUNNING, Clock

__all__ = ["PORTS", "Places", "Port", "Seldom", "most_connections"]

Who = TypeVar("Who", bound=Hashable)
Port = Literal["dashboard", "master", "mesh", "metrics"]

PORTS: dict[Port, tuple[int, float]] = {
    "dashboard": (256, 1 / 16),
    "master": (4096, 1 / 2),
    "mesh": (1024, 1 / 8),
    "metrics": (32, 1 / 32),
}
"""The ports of a run's process: maximum connections, and share of the allowed open files.

The shares sum up to less than three quarters. The last quarter is always left for the run itself.
"""
_LEAST = 8
_CLOSING = 8
_TELL_SECONDS = 60.0


def most_connections(port: Port) -> int:
    """Return the maximum connections of a port, reduced if this process may have few open files."""
    wanted, share = PORTS[port]
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if files == resource.RLIM_INFINITY else max(_LEAST, min(wanted, int(files * share)))


class Places(Generic[Who]):
    """The places at a port. When it is full, a new client replaces the client that has been silent for longest.

    Used by one thread, or under a lock.

    Args:
        most: maximum clients at a time.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._inside: set[Who] = set()
        self._awaited: dict[Who, None] = {}  # ordered by the start of the wait
        self._leaving: set[Who] = set()

    def __len__(self) -> int:
        """Return the number of clients, including those that are about to leave."""
        return len(self._inside)

    def __iter__(self) -> Iterator[Who]:
        """Iterate over the clients."""
        return iter(tuple(self._inside))

    def has_room(self, coming: int = 0) -> bool:
        """Return whether one more client may connect, if ``coming`` clients are connecting already.

        This allows a few more clients than places, because replaced clients take a moment to leave.
        """
        return len(self._inside) + coming < self.most + _CLOSING

    def enter(self, who: Who) -> Who | None:
        """Add a client, whose request is awaited; return the client that must leave (perhaps itself), or None."""
        self._inside.add(who)
        self._awaited[who] = None
        if len(self._inside) - len(self._leaving) <= self.most:
            return None
        leaves = next(iter(self._awaited))
        del self._awaited[leaves]
        self._leaving.add(leaves)
        return leaves

    def serve(self, who: Who) -> None:
        """Record that a client has sent its request; it keeps its place until it has the answer."""
        self._awaited.pop(who, None)

    def wait(self, who: Who) -> None:
        """Record that a client has its answer, so that its next request is awaited."""
        if who in self._inside and who not in self._leaving:
            self._awaited.setdefault(who)

    def leave(self, who: Who) -> None:
        """Record that a client has left."""
        self._inside.discard(who)
        self._awaited.pop(who, None)
        self._leaving.discard(who)


class Seldom:
    """Counts frequent events, and decides when one is worth a line in the log."""

    def __init__(self, seconds: float = _TELL_SECONDS, clock: Clock = RUNNING) -> None:
        self.count, self._seconds, self._clock = 0, seconds, clock
        self._told = float("-inf")

    def happens(self) -> bool:
        """Count an event; return whether to log it: the first one, and then at most one per interval."""
        self.count += 1
        if (now := self._clock.now()) - self._told < self._seconds:
            return False
        self._told = now
        return True
