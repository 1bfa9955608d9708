"""What the kernels of convolution do besides multiplying: weights are packed, sums of groups of tiles added, and maxima
of windows of a plane taken and sent back.

Addresses are bytes, ``uint64``; a plane is the rows and columns of one channel of one tile, 64 bytes a place. ``pool``
is nine numbers: rows and columns of the plane, of the window, of its stride, of the padding above and left, and whether
windows overlap, or leave places out.
"""

# mypy: allow-untyped-calls, allow-untyped-decorators
from __future__ import annotations

import numpy as np

from dl4jlegacy.backend import Array
from dl4jlegacy.kernels.numba.compile import helper
from dl4jlegacy.kernels.numba.tile_blocks import clear, expand_window, max_window

__all__ = ["add_groups", "expand_planes", "pack_places", "pack_rows", "pool_row"]


@helper
def pack_rows(w: Array, packed: Array, filters: Array, count: int, places: int) -> None:
    """Write for every block of ``count`` filters their weights, place by place; ``w`` flat, ``places`` a filter."""
    at = 0
    for first in filters:
        for place in range(places):
            for f in range(first, first + count):
                packed[at] = w[f * places + place]
                at += 1


@helper
def pack_places(w: Array, packed: Array, channels: int, places: int) -> None:
    """Write for every row of the kernel, block of ``channels`` and block of ``places`` those of filter after filter."""
    at = 0
    for ky in range(w.shape[2]):
        for c in range(0, w.shape[1], channels):
            for kx in range(0, w.shape[3], places):
                for f in range(w.shape[0]):
                    for channel in range(c, c + channels):
                        for place in range(kx, kx + places):
                            packed[at] = w[f, channel, ky, place]
                            at += 1


@helper
def add_groups(
    g: Array,
    gw: Array,
    filters: Array,
    downs: Array,
    acrosses: Array,
    FB: int,
    DB: int,
    AB: int,
    size: int,
    groups: int,
) -> None:
    """Write to ``gw`` the sum over groups of the blocks ``g``, ``size`` each, in the order in which they were made."""
    at, step = 0, filters.size * gw.shape[1] * downs.size * acrosses.size * size
    for first in filters:
        for c in range(gw.shape[1]):
            for down in downs:
                for across in acrosses:
                    place = at
                    for f in range(first, first + FB):
                        for ky in range(down, down + DB):
                            for kx in range(across, across + AB):
                                total = np.float64(0)
                                for group in range(groups):
                                    total += g[group * step + place]
                                gw[f, c, ky, kx] = total
                                place += 1
                    at += size


@helper
def pool_row(x: int, y: int, winners: int, i: int, out_columns: int, pool: Array, relu: int) -> None:
    """Write the maxima of row ``i`` of windows of the plane ``x`` to the rows ``y`` and ``winners``."""
    height, width, kh, kw = pool[0], pool[1], pool[2], pool[3]
    above, left = i * pool[4] - pool[6], pool[7]
    first, last = max(0, above), min(height, above + kh)
    for j in range(out_columns):
        begin, end = max(0, j * pool[5] - left), min(width, j * pool[5] - left + kw)
        max_window(
            np.uint64(x) + np.uint64((first * width + begin) * 64), np.uint64(y) + np.uint64(j * 64),
            np.uint64(winners) + np.uint64(j * 16),
            np.uint64(last - first), np.uint64(end - begin), np.uint64(width * 64),
            np.uint64((first - above) * kw + begin - j * pool[5] + left), np.uint64(kw),
            np.uint64(relu), 8,
        )  # fmt: skip


@helper
def expand_planes(
    dy: Array, winners: Array, first: int, planes: int, dx: int, rows: int, begin: int, end: int, pool: Array
) -> None:  # fmt: skip
    """Write the gradient of some planes, the first of them plane ``first``, given that of their maxima.

    Only rows ``begin`` to ``end`` of the windows count; ``dx`` is where what the first of them meets goes, in planes of
    ``rows`` rows.
    """
    height, width, kh, kw, adds = pool[0], pool[1], pool[2], pool[3], pool[8]
    if adds:
        clear(np.uint64(dx), np.uint64(planes * rows * width))
    origin = max(0, begin * pool[4] - pool[6])
    for plane in range(planes):
        base = np.uint64(dx) + np.uint64(plane * rows * width * 64)
        for i in range(begin, end):
            above = i * pool[4] - pool[6]
            top, bottom = max(0, above), min(height, above + kh)
            for j in range(dy.shape[3]):
                before = j * pool[5] - pool[7]
                left, right = max(0, before), min(width, before + kw)
                place = ((first + plane) * dy.shape[2] + i) * dy.shape[3] + j
                at = np.uint64(place * 64)
                expand_window(
                    np.uint64(dy.ctypes.data) + at, np.uint64(winners.ctypes.data) + np.uint64(place * 16),
                    base + np.uint64(((top - origin) * width + left) * 64), np.uint64(bottom - top),
                    np.uint64(right - left), np.uint64(width * 64), np.uint64((top - above) * kw + left - before),
                    np.uint64(kw), np.uint64(adds),
                )  # fmt: skip
