"""Who gets a place at a port, so that strangers take neither the process's files nor other people's places. No I/O."""

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
"""The ports of a process of a run: how many connections each takes, and its share of the files that may be open.

All shares together are less than three quarters. The last quarter is the run's own, whoever comes.
"""
_LEAST = 8
_CLOSING = 8
_TELL_SECONDS = 60.0


def most_connections(port: Port) -> int:
    """Return how many connections a port takes: fewer than wanted where this process may have few files open."""
    wanted, share = PORTS[port]
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if files == resource.RLIM_INFINITY else max(_LEAST, min(wanted, int(files * share)))


class Places(Generic[Who]):
    """The places at a port. A newcomer takes that of the client that has been waited for longest. Used by one
    thread, or under a lock.

    Args:
        most: so many clients at a time.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._inside: set[Who] = set()
        self._awaited: dict[Who, None] = {}  # in the order since when
        self._leaving: set[Who] = set()

    def __len__(self) -> int:
        """Return how many are inside, those that are about to leave included."""
        return len(self._inside)

    def __iter__(self) -> Iterator[Who]:
        """Return those who are inside."""
        return iter(tuple(self._inside))

    def has_room(self, coming: int = 0) -> bool:
        """Return whether one more may come, beside so many that are on their way in.

        Some more than there are places for, since those that were told to leave take a moment.
        """
        return len(self._inside) + coming < self.most + _CLOSING

    def enter(self, who: Who) -> Who | None:
        """Let a client in, who has to say what it wants; return who must leave for it, perhaps itself, or None."""
        self._inside.add(who)
        self._awaited[who] = None
        if len(self._inside) - len(self._leaving) <= self.most:
            return None
        leaves = next(iter(self._awaited))
        del self._awaited[leaves]
        self._leaving.add(leaves)
        return leaves

    def serve(self, who: Who) -> None:
        """Note that a client has said what it wants, and keeps its place until it has got it."""
        self._awaited.pop(who, None)

    def wait(self, who: Who) -> None:
        """Note that a client has got what it wanted, and that it is its turn to say something."""
        if who in self._inside and who not in self._leaving:
            self._awaited.setdefault(who)

    def leave(self, who: Who) -> None:
        """Note that a client is gone."""
        self._inside.discard(who)
        self._awaited.pop(who, None)
        self._leaving.discard(who)


class Seldom:
    """Counts something that may happen very often, and says when it is worth a line in the log."""

    def __init__(self, seconds: float = _TELL_SECONDS, clock: Clock = RUNNING) -> None:
        self.count, self._seconds, self._clock = 0, seconds, clock
        self._told = float("-inf")

    def happens(self) -> bool:
        """Count it once more; return whether to tell: the first time, and then once in so many seconds."""
        self.count += 1
        if (now := self._clock.now()) - self._told < self._seconds:
            return False
        self._told = now
        return True
