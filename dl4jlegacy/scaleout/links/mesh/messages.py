"""The committed messages that a process has at hand: a cache, believed by digest alone.

A log entry says by digest which messages lead to its version. Who has them all need not read them; whether they were
pushed by others, or read before, or made here, makes no difference.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Protocol

from dl4jlegacy.arrays.wire import Frame, digest

__all__ = ["HISTORY", "MESSAGES_NBYTES", "MessageCache", "Messages"]

HISTORY = 2048
"""So many messages are remembered, and of these so many kept as go into the bytes that there are for them."""
MESSAGES_NBYTES = 64 << 20


class Messages(Protocol):
    """What the protocol needs of the messages at hand. Called on many threads."""

    def find(self, digest: str) -> Frame | None:
        """Return the message that has a digest; None if it is not at hand."""
        ...

    def add(self, frame: Frame) -> None:
        """Have a message at hand that was read."""
        ...

    def commit(self, frame: Frame) -> None:
        """Have a message at hand that was committed here, and pass it on; never waits."""
        ...


class MessageCache:
    """The newest messages. ``Messages`` that go nowhere else; thread-safe.

    Args:
        most_nbytes: all messages together are never longer than this.
    """

    def __init__(self, most_nbytes: int = MESSAGES_NBYTES) -> None:
        self._most_nbytes, self._nbytes = most_nbytes, 0
        self._frames: OrderedDict[str, bytes] = OrderedDict()
        self._known: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()
        self.found = self.missed = 0
        """How many messages were looked for with success, and without."""

    @property
    def nbytes(self) -> int:
        """The length of all messages together."""
        return self._nbytes

    def find(self, digest: str) -> bytes | None:
        """See ``Messages``."""
        with self._lock:
            frame = self._frames.get(digest)
            self.found, self.missed = self.found + (frame is not None), self.missed + (frame is None)
        return frame

    def add(self, frame: Frame) -> None:
        """See ``Messages``."""
        self.take(digest(frame), frame)

    def commit(self, frame: Frame) -> None:
        """See ``Messages``."""
        self.add(frame)

    def take(self, digest: str, frame: Frame) -> bool:
        """Have a message at hand whose digest was computed; return False if it is one of the last ``HISTORY``."""
        with self._lock:
            if digest in self._known:
                return False
            self._known[digest] = None
            self._frames[digest] = bytes(frame)
            self._nbytes += len(self._frames[digest])
            while self._nbytes > self._most_nbytes:
                self._nbytes -= len(self._frames.popitem(last=False)[1])
            while len(self._known) > HISTORY:
                forgotten, _ = self._known.popitem(last=False)
                self._nbytes -= len(self._frames.pop(forgotten, b""))
        return True
