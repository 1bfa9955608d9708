"""Images as tiles in plain NumPy: the oracle of ``numba_tiles``, and what runs in float64 or without Numba.

Arrays are ``(tiles, channels, height, width, lanes)`` as in ``Kernels``; every function works for any number of lanes.
"""

from __future__ import annotations

from dl4jlegacy.backend import Array

__all__ = ["lanes", "tile", "untile"]

_LANES = 32  # examples a tile: long runs for NumPy's loops, small enough for the second-level cache


def lanes(char: str, rows: int) -> int:
    """See ``Kernels``."""
    return max(1, min(rows, _LANES))


def tile(x: Array, tiles: Array) -> None:
    """See ``Kernels``."""
    width = tiles.shape[-1]
    for index in range(len(tiles)):
        part = x[index * width : (index + 1) * width]
        flat = tiles[index].reshape(-1, width)
        flat[:, : len(part)] = part.T
        flat[:, len(part) :] = 0


def untile(tiles: Array, x: Array) -> None:
    """See ``Kernels``."""
    width = tiles.shape[-1]
    for index in range(-(-len(x) // width)):
        part = x[index * width : (index + 1) * width]
        part[...] = tiles[index].reshape(-1, width)[:, : len(part)].T
