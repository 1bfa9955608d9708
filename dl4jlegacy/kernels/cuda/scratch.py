"""Scratch memory on a GPU, by name. It is never freed or moved while a captured CUDA graph may write to it."""

from __future__ import annotations

import math
from types import ModuleType

import numpy as np

from dl4jlegacy.arrays.backend import Array

__all__ = ["Scratch"]


class Scratch:
    """Flat buffers of one thread's kernels, by name. Their content is undefined.

    A buffer that has to grow at least doubles, and the old one is kept: a captured graph writes to it at every replay.
    The old buffers together are therefore never larger than the current one.
    """

    __slots__ = ("_flat", "_outgrown", "_xp")

    def __init__(self, xp: ModuleType) -> None:
        self._xp = xp
        self._flat: dict[str, Array] = {}
        self._outgrown: list[Array] = []

    def buffer(self, name: str, shape: tuple[int, ...], char: str) -> Array:
        """Return an uninitialised array of ``shape`` and dtype ``char``; valid until the next request for ``name``."""
        dtype = np.dtype(char)
        size = math.prod(shape) * dtype.itemsize
        flat = self._flat.get(name)
        if flat is None or flat.size < size:
            grown = size if flat is None else max(size, 2 * flat.size)
            if flat is not None:
                self._outgrown.append(flat)
            flat = self._flat[name] = self._xp.empty(grown, np.uint8)
        return flat[:size].view(dtype).reshape(shape)

    def arrays(self) -> list[Array]:
        """Return the current buffers."""
        return list(self._flat.values())

    @property
    def size(self) -> int:
        """Bytes in use, outgrown buffers included."""
        return sum(flat.size for flat in (*self._flat.values(), *self._outgrown))
