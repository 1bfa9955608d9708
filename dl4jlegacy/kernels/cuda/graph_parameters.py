"""The parameters of a captured CUDA graph: numbers that change from step to step, stored where its kernels read them.

A graph repeats the same launches with the same arguments. Two training steps of equal shapes differ in the random keys,
which depend on the position in the run, and in the updaters' scalars, which depend on the iteration. During a capture,
kernels get the address of such a number instead of its value: one 8-byte word on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.errors import CaptureError

__all__ = ["GraphParameters", "TracedStream", "trace"]

_WORD = 8
Path = tuple[tuple[tuple[int, ...], str], ...]
"""Path from the batch's stream to a derived stream: position and purpose of every ``at`` call."""


class _TracedKey(int):
    """A random key with its path; its value is that of the step being captured."""

    path: Path


@dataclass(frozen=True, slots=True)
class TracedStream(Stream):
    """A stream that records its path, so that the same place can be found below another batch's stream."""

    path: Path = ()

    def at(self, *position: int, purpose: str = "") -> TracedStream:
        """See ``Stream``."""
        return trace(Stream(int(self.key)).at(*position, purpose=purpose), (*self.path, (position, purpose)))

    def generator(self) -> np.random.Generator:
        """Raise ``CaptureError``: numbers drawn on the host would be the same in every replay."""
        raise CaptureError("a step draws random numbers on the host; it cannot become a CUDA graph")


def trace(stream: Stream, path: Path = ()) -> TracedStream:
    """Return ``stream`` as a ``TracedStream`` at ``path``: its keys record how they were reached."""
    key = _TracedKey(stream.key)
    key.path = path
    return TracedStream(key, path)


class GraphParameters:
    """The places of one captured step's parameters, in the order of its kernels' requests.

    Args:
        words: ``(capacity,)`` uint64 on the device.
    """

    def __init__(self, words: Array) -> None:
        self.words = words
        self._entries: list[Path | None] = []  # None: the next scalar
        self._places: dict[Path, int] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def key(self, key: int) -> int:
        """Return the address of a random key.

        Raises:
            CaptureError: the key does not come from the batch's stream, or there are too many numbers.
        """
        path: Path | None = getattr(key, "path", None)
        if path is None:
            raise CaptureError("a step uses a random key that does not follow from its position in the run")
        if path not in self._places:
            self._places[path] = self._append(path)
        return self._address(self._places[path])

    def scalars(self, count: int) -> int:
        """Return the address of the next ``count`` scalars, doubles; raises ``CaptureError`` if there are too many."""
        place = len(self._entries)
        for _ in range(count):
            self._append(None)
        return self._address(place)

    def values(self, stream: Stream, scalars: Sequence[float]) -> Array:
        """Return the parameters of a step as words, ``(len,)`` uint64 on the host, given its ``stream`` and scalars."""
        words = np.empty(len(self._entries), np.uint64)
        doubles = words.view(np.float64)
        given = iter(scalars)
        known: dict[Path, Stream] = {(): stream}
        for place, path in enumerate(self._entries):
            if path is None:
                doubles[place] = next(given)
            else:
                words[place] = _follow(path, known).key
        if next(given, None) is not None:
            raise CaptureError(f"a step has {len(scalars)} scalars, more than when it was captured")
        return words

    def _append(self, entry: Path | None) -> int:
        if len(self._entries) == self.words.size:
            raise CaptureError(f"a step has more than {self.words.size} keys and scalars")
        self._entries.append(entry)
        return len(self._entries) - 1

    def _address(self, place: int) -> int:
        return int(self.words.data.ptr) + place * _WORD  # type: ignore[attr-defined]


def _follow(path: Path, known: dict[Path, Stream]) -> Stream:
    if path not in known:
        position, purpose = path[-1]
        known[path] = _follow(path[:-1], known).at(*position, purpose=purpose)
    return known[path]
