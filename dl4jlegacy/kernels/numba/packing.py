"""Auxiliary loops of the convolution kernels: packing of weights, sums over groups of tiles, max pooling of planes.

The gradient of pooling is here, too. Operations for which NumPy is as fast are not compiled.

Addresses are bytes, ``uint64``; a plane is the rows and columns of one channel of one tile, 64 bytes a place. ``pool``
is nine numbers: rows and columns of the plane, of the window, of its stride, of the padding above and left, and whether
windows overlap or leave out places.
"""

# mypy: allow-untyped-calls, allow-untyped-decorators
from __future__ import annotations

import functools
from typing import Any

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.kernels.numba.compile import helper, kernel
from dl4jlegacy.kernels.numba.tile_blocks import clear, expand_window, max_window
from dl4jlegacy.kernels.numba.work_queue import get

__all__ = ["add_groups", "expand_planes", "pack_filters", "pack_places", "pool_row", "put_blocks"]


def pack_filters(W: Array, packed: Array, FB: int) -> None:
    """Write the weights of every block of ``FB`` filters; those of one channel and place are side by side.

    The last block may overlap the one before.
    """
    flat, whole = W.reshape(len(W), -1), len(W) // FB
    blocks = packed[: -(-len(W) // FB) * FB * flat.shape[1]].reshape(-1, flat.shape[1], FB)
    blocks[:whole] = flat[: whole * FB].reshape(whole, FB, -1).transpose(0, 2, 1)
    if whole < len(blocks):
        blocks[whole] = flat[-FB:].T


def pack_places(W: Array, packed: Array, CB: int, KB: int) -> None:
    """Write the weights by row of the kernel, block of ``CB`` channels and block of ``KB`` places, for every filter."""
    F, C, kh, kw = W.shape
    weights = W.reshape(F, C // CB, CB, kh, kw // KB, KB).transpose(3, 1, 4, 0, 2, 5)
    packed[: W.size].reshape(weights.shape)[...] = weights


def _spans(size: int, block: int) -> list[tuple[slice, slice]]:
    """Return pairs of block numbers and the range they cover: the whole blocks, and an overlapping block at the end."""
    whole = size // block
    rest = [(slice(whole, whole + 1), slice(size - block, size))] if size % block else []
    return [(slice(0, whole), slice(0, whole * block)), *rest]


@functools.lru_cache(maxsize=1024)
def _parts(shape: tuple[int, ...], blocks: tuple[int, int, int]) -> list[tuple[Any, Any]]:
    """Return pairs of (blocks of filters, rows and columns) and the part of weights of a shape that they fill."""
    F, _, kh, kw = shape
    return [
        ((fs, slice(None), slice(None), ds, slice(None), as_), (f, slice(None), d, a))
        for fs, f in _spans(F, blocks[0])
        for ds, d in _spans(kh, blocks[1])
        for as_, a in _spans(kw, blocks[2])
    ]


def put_blocks(sums: Array, blocks: tuple[int, int, int], gW: Array) -> None:
    """Write ``sums`` to ``gW``; axes of ``sums``: blocks of filters, channels, blocks of rows and columns, a block.

    ``blocks`` are filters, rows and columns of a block. Weights in two overlapping blocks have equal sums in both.
    """
    found = sums[..., : blocks[0] * blocks[1] * blocks[2]].reshape(*sums.shape[:4], *blocks)
    found = found.transpose(0, 4, 1, 2, 5, 3, 6)
    for where, to in _parts(gW.shape, blocks):
        part = found[where]
        gW[to].reshape(part.shape)[...] = part  # a view, since axes are only split


@kernel("mii")
def add_groups(g: Array, size: int, groups: int) -> None:
    """Add ``groups`` consecutive groups of ``size`` elements, in order; the sums replace the first group of ``g``."""
    for i in range(size):
        total = np.float64(0)
        for group in range(groups):
            total += g[group * size + i]
        g[i] = total


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


def expand_planes(
    dy: int, winners: int, out_rows: int, out_columns: int, first: int, planes: int, dx: int, rows: int, begin: int,
    end: int, pool: int,
) -> None:  # fmt: skip
    """Write the gradient of some planes, from plane ``first`` on, given the gradient of their maxima.

    Compiled as a separate function: all arguments are ``uint64``, addresses or numbers. A plane of maxima has
    ``out_rows`` and ``out_columns``; only rows ``begin`` to ``end`` are used. ``dx`` is the address of
    the gradient of the first input row under row ``begin``, in planes of ``rows`` rows.
    """
    numbers, last, columns, band = np.int64(pool), np.int64(end), np.int64(out_columns), np.int64(rows)
    height, width, kh, kw = get(numbers), get(numbers + 8), get(numbers + 16), get(numbers + 24)
    down, across, above_all, left_of_all = get(numbers + 32), get(numbers + 40), get(numbers + 48), get(numbers + 56)
    adds = np.uint64(get(numbers + 64))
    if adds:
        clear(dx, np.uint64(np.int64(planes) * band * width))
    origin = max(0, np.int64(begin) * down - above_all)
    for plane in range(np.int64(planes)):
        base = dx + np.uint64(plane * band * width * 64)
        for i in range(np.int64(begin), last):
            above = i * down - above_all
            top, bottom = max(0, above), min(height, above + kh)
            for j in range(columns):
                before = j * across - left_of_all
                left, right = max(0, before), min(width, before + kw)
                place = np.uint64(((np.int64(first) + plane) * np.int64(out_rows) + i) * columns + j)
                expand_window(
                    dy + place * np.uint64(64), winners + place * np.uint64(16),
                    base + np.uint64(((top - origin) * width + left) * 64), np.uint64(bottom - top),
                    np.uint64(right - left), np.uint64(width * 64), np.uint64((top - above) * kw + left - before),
                    np.uint64(kw), adds,
                )  # fmt: skip
