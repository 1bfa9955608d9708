"""Memory that kernels work in: each thread's own, kept from call to call."""

from __future__ import annotations

import threading
from collections.abc import Hashable

import numpy as np

from dl4jlegacy.backend import Array

__all__ = ["LINE", "Scratch"]

LINE = 64


class Scratch(threading.local):
    """Flat arrays that begin at a cache line, by key; each grows to the largest size asked for.

    What they hold is anything. Pages that are never written to take no memory.
    """

    def __init__(self) -> None:
        self.of: dict[Hashable, Array] = {}

    def __call__(self, key: Hashable, size: int, char: str = "f") -> Array:
        """Return the array of a key, of at least so many elements of dtype ``char``, always the same for the key."""
        found = self.of.get(key)
        if found is None or found.size < size:
            whole = np.zeros(size + LINE, char)
            skip = -whole.ctypes.data % LINE // whole.itemsize
            found = self.of[key] = whole[skip : skip + size]
        return found
