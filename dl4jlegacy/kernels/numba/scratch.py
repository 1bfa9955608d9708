"""Working memory of kernels: each thread has its own, which is kept from call to call."""

from __future__ import annotations

import threading
from collections.abc import Hashable

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.kernels.host_memory import host_vector

__all__ = ["Scratch"]


class Scratch(threading.local):
    """Flat arrays that begin at a cache line, by key; each grows to the largest requested size.

    Their content is undefined. Pages that are never written take no memory.
    """

    def __init__(self) -> None:
        self.of: dict[Hashable, Array] = {}

    def __call__(self, key: Hashable, size: int, char: str = "f") -> Array:
        """Return the array of a key: at least ``size`` elements of dtype ``char``, which is fixed for a key."""
        found = self.of.get(key)
        if found is None or found.size < size:
            found = self.of[key] = host_vector(size, char)
        return found
