"""Scratch memory on a GPU, by name. It never moves while a captured CUDA graph may write to it."""

from __future__ import annotations

import math
from types import ModuleType

import numpy as np

from dl4jlegacy.arrays.backend import Array

__all__ = ["Scratch"]


class Scratch:
    """Flat buffers of one thread's kernels, by name. Their content is whatever was there.

    A buffer that has to grow at least doubles, and what it outgrew is kept: a graph that was captured with it writes
    there when it is replayed. All that is kept is therefore never more than what is used.
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
        """Return the buffers as they are now."""
        return list(self._flat.values())

    @property
    def size(self) -> int:
        """Bytes in use, outgrown buffers included."""
        return sum(flat.size for flat in (*self._flat.values(), *self._outgrown))
