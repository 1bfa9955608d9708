"""Convolution and pooling of tiles, compiled: sixteen examples a vector, blocks of outputs in registers.

float32 only; float64, where nobody waits for it, goes to ``numpy.tiles``. Compiled code does not check bounds: shapes
are checked here. Sums run in a fixed order that depends on no block size.
"""

# mypy: allow-untyped-calls, allow-untyped-decorators
from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import types

from dl4jlegacy.backend import Array
from dl4jlegacy.errors import ShapeError
from dl4jlegacy.kernels.numba.compile import compile_cached, has_wide_registers
from dl4jlegacy.kernels.numba.product import matmul
from dl4jlegacy.kernels.numba.tile_blocks import forward_block, input_block, weights_block
from dl4jlegacy.kernels.numpy import tiles as numpy_tiles
from dl4jlegacy.kernels.philox import LANES

__all__ = ["conv_backward_input", "conv_backward_weights", "conv_forward", "lanes", "tiles_array"]

Pair = tuple[int, int]
_GROUP = 4  # tiles between two sums over lanes
_INT = types.int64


def lanes(char: str, rows: int) -> int:
    """See ``Kernels``."""
    return LANES if char == "f" else numpy_tiles.lanes(char, rows)


@functools.cache
def _registers() -> int:
    """Return how many vectors of sixteen floats stay in registers, less one; with AVX2 each takes two."""
    return 31 if has_wide_registers() else 7


def _largest(limit: int, size: int) -> int:
    """Return the largest divisor of ``size`` that is at most ``limit``."""
    return max(d for d in range(1, max(1, min(limit, size)) + 1) if size % d == 0)


def _starts(size: int, block: int) -> Array:
    """Return where blocks begin that cover ``size``; the last one may overlap the one before."""
    return np.array([min(at, size - block) for at in range(0, size, block)], np.int64)


def tiles_array(dimensions: int, kind: Any = types.float32, *, is_read: bool = True) -> Any:
    """Return Numba's type of a C-contiguous array; one that is only read may be read-only."""
    return types.Array(kind, dimensions, "C", readonly=is_read)


@functools.cache
def _forward_kernel(FB: int, XB: int, SX: int) -> Any:
    def conv_forward_tiles(
        x: Array, w: Array, b: Array, y: Array, filters: Array, columns: Array, kh: int, kw: int, stride: int,
        down: int, across: int, relu: int,
    ) -> None:  # fmt: skip
        channels, width = x.shape[1], x.shape[3]
        line, row, plane = np.uint64(64), np.uint64(width * 64), np.uint64(x.shape[2] * width * 64)
        z_plane = np.uint64(y.shape[2] * y.shape[3] * 64)
        size = channels * kh * kw * FB * 4
        for t in range(x.shape[0]):
            for fb in range(filters.size):
                f = filters[fb]
                for i in range(y.shape[2]):
                    for jb in range(columns.size):
                        j = columns[jb]
                        forward_block(
                            np.uint64(x.ctypes.data) + np.uint64(t * channels) * plane
                            + np.uint64(i * stride) * row + np.uint64(j * SX) * line,
                            np.uint64(w.ctypes.data) + np.uint64(fb * size),
                            np.uint64(b.ctypes.data) + np.uint64(4 * f),
                            np.uint64(y.ctypes.data) + np.uint64(t * y.shape[1] + f) * z_plane
                            + np.uint64((i * y.shape[3] + j) * 64),
                            np.uint64(channels), np.uint64(kh), np.uint64(kw),
                            plane, np.uint64(down) * row, np.uint64(across) * line, z_plane, np.uint64(relu),
                            FB, XB, SX,
                        )  # fmt: skip

    blocks = (tiles_array(1, _INT), tiles_array(1, _INT))
    arrays = (tiles_array(5), tiles_array(1), tiles_array(1), tiles_array(5, is_read=False))
    signature = (*arrays, *blocks, *[_INT] * 6)
    return compile_cached(signature, conv_forward_tiles)


def conv_forward(x: Array, W: Array, b: Array, y: Array, stride: Pair, dilation: Pair, relu: bool) -> None:
    """See ``Kernels``."""
    if x.dtype.char != "f":
        numpy_tiles.conv_forward(x, W, b, y, stride, dilation, relu, matmul)
        return
    _check(x, W, y, stride, dilation)
    _, _, kh, kw = W.shape
    XB, FB = _forward_blocks(y.shape[3], len(W))
    filters = _starts(len(W), FB)
    packed = W.reshape(len(W), -1)[filters[:, None] + np.arange(FB)].transpose(0, 2, 1)
    kernel = _forward_kernel(FB, XB, stride[1])
    kernel(x, np.ascontiguousarray(packed).reshape(-1), np.ascontiguousarray(b), y, filters, _starts(y.shape[3], XB),
           kh, kw, stride[0], dilation[0], dilation[1], int(relu))  # fmt: skip


@functools.cache
def _forward_blocks(width: int, filters: int) -> Pair:
    """Return pixels and filters of a block: as few blocks as possible, then as square as possible."""
    costs: dict[Pair, float] = {}
    for pixels in range(1, min(width, 8) + 1):
        for block in range(1, min(filters, max(1, (_registers() - 1 - pixels) // pixels)) + 1):
            blocks = -(-width // pixels) * -(-filters // block)
            busy = max(pixels * block, 8) / 2  # a multiply-add takes four clocks, and two begin in each
            costs[pixels, block] = blocks * (busy + 0.25 * (pixels + block) + 1)
    return min(costs, key=lambda pair: costs[pair])


@functools.cache
def _weights_kernel(FB: int, KB: int, DX: int) -> Any:
    def conv_backward_weights_tiles(
        x: Array, dz: Array, g: Array, filters: Array, places: Array, kh: int, kw: int, down: int, stride_row: int,
        stride_column: int,
    ) -> None:  # fmt: skip
        tiles, channels, width = x.shape[0], x.shape[1], x.shape[3]
        row, plane = np.uint64(width * 64), np.uint64(x.shape[2] * width * 64)
        z_plane = np.uint64(dz.shape[2] * dz.shape[3] * 64)
        for first in range(0, tiles, 4):
            for fb in range(filters.size):
                f = filters[fb]
                for c in range(channels):
                    for ky in range(kh):
                        for kb in range(places.size):
                            k = places[kb]
                            weights_block(
                                np.uint64(x.ctypes.data) + np.uint64(first * channels + c) * plane
                                + np.uint64(ky * down) * row + np.uint64(k * DX * 64),
                                np.uint64(dz.ctypes.data) + np.uint64(first * dz.shape[1] + f) * z_plane,
                                np.uint64(g.ctypes.data) + np.uint64(
                                    ((((first // 4) * dz.shape[1] + f) * channels + c) * kh + ky) * kw * 4 + k * 4
                                ),
                                np.uint64(min(4, tiles - first)), np.uint64(dz.shape[2]), np.uint64(dz.shape[3]),
                                np.uint64(channels) * plane, np.uint64(stride_row) * row,
                                np.uint64(stride_column * 64),
                                np.uint64(dz.shape[1]) * z_plane, z_plane, np.uint64(channels * kh * kw * 4),
                                FB, KB, DX,
                            )  # fmt: skip

    blocks = (tiles_array(1, _INT), tiles_array(1, _INT))
    signature = (tiles_array(5), tiles_array(5), tiles_array(5, is_read=False), *blocks, *[_INT] * 5)
    return compile_cached(signature, conv_backward_weights_tiles)


def conv_backward_weights(x: Array, dz: Array, gW: Array, stride: Pair, dilation: Pair) -> None:
    """See ``Kernels``."""
    if x.dtype.char != "f":
        numpy_tiles.conv_backward_weights(x, dz, gW, stride, dilation, matmul)
        return
    _check(x, gW, dz, stride, dilation)
    kh, kw = gW.shape[2], gW.shape[3]
    KB = _largest(_registers() // 3, kw)
    FB = min(len(gW), max(1, (_registers() - 1 - KB) // KB))
    g = np.empty((-(-len(x) // _GROUP), *gW.shape), np.float32)
    kernel = _weights_kernel(FB, KB, dilation[1])
    kernel(x, dz, g, _starts(len(gW), FB), _starts(kw, KB), kh, kw, dilation[0], *stride)
    gW[...] = g[0] if len(g) == 1 else g.sum(axis=0, dtype=np.float64)


@functools.cache
def _input_kernel(CB: int, KB: int, XB: int, SX: int, DX: int) -> Any:
    def conv_backward_input_tiles(dz: Array, w: Array, dx: Array, kh: int, kw: int, down: int, stride_row: int) -> None:
        filters, out_rows, out_columns = dz.shape[1], dz.shape[2], dz.shape[3]
        channels, width = dx.shape[1], dx.shape[3]
        plane, z_plane = np.uint64(dx.shape[2] * width * 64), np.uint64(out_rows * out_columns * 64)
        size = filters * CB * KB * 4
        for t in range(dz.shape[0]):
            dx[t] = np.float32(0)
            for i in range(out_rows):
                for ky in range(kh):
                    row = i * stride_row + ky * down
                    for cb in range(channels // CB):
                        for kb in range(kw // KB):
                            for j in range(out_columns - XB, -1, -XB):  # as ``input_block`` adds
                                input_block(
                                    np.uint64(dz.ctypes.data) + np.uint64(t * filters) * z_plane
                                    + np.uint64((i * out_columns + j) * 64),
                                    np.uint64(w.ctypes.data)
                                    + np.uint64(((ky * (channels // CB) + cb) * (kw // KB) + kb) * size),
                                    np.uint64(dx.ctypes.data) + np.uint64(t * channels + cb * CB) * plane
                                    + np.uint64((row * width + j * SX + kb * KB * DX) * 64),
                                    np.uint64(filters), z_plane, plane,
                                    CB, KB, XB, SX, DX,
                                )  # fmt: skip

    signature = (tiles_array(5), tiles_array(1), tiles_array(5, is_read=False), *[_INT] * 4)
    return compile_cached(signature, conv_backward_input_tiles)


def conv_backward_input(dz: Array, W: Array, dx: Array, stride: Pair, dilation: Pair) -> None:
    """See ``Kernels``."""
    if dz.dtype.char != "f":
        numpy_tiles.conv_backward_input(dz, W, dx, stride, dilation, matmul)
        return
    _check(dx, W, dz, stride, dilation)
    F, C, kh, kw = W.shape
    CB, KB, XB = _input_blocks(C, kw, dz.shape[3])
    packed = W.reshape(F, C // CB, CB, kh, kw // KB, KB).transpose(3, 1, 4, 0, 2, 5)
    kernel = _input_kernel(CB, KB, XB, stride[1], dilation[1])
    kernel(dz, np.ascontiguousarray(packed).reshape(-1), dx, kh, kw, dilation[0], stride[0])


@functools.cache
def _input_blocks(channels: int, places: int, pixels: int) -> tuple[int, int, int]:
    """Return channels, kernel places and pixels of a block: divisors, as many as fit into the registers."""
    KB = _largest(_registers() // 3, places)
    XB = _largest(2 if KB > 1 else 8, pixels)
    return _largest((_registers() - 1 - XB) // (KB * XB), channels), KB, XB


def _check(x: Array, W: Array, y: Array, stride: Pair, dilation: Pair) -> None:
    """Raise ``ShapeError`` unless a convolution of ``x`` (padded) with ``W`` gives ``y``."""
    reach = [(size - 1) * step + 1 for size, step in zip(W.shape[2:], dilation, strict=True)]
    out = [(size - far) // step + 1 for size, far, step in zip(x.shape[2:4], reach, stride, strict=True)]
    wanted = (len(x), len(W), *out, LANES)
    if x.shape[1] != W.shape[1] or y.shape != wanted or x.shape[4] != LANES or min(out) < 1:
        raise ShapeError(
            f"convolution of tiles {x.shape} with weights {W.shape}, stride {stride}, dilation {dilation} gives "
            f"{wanted}, not {y.shape}"
        )
    if not (x.flags.c_contiguous and y.flags.c_contiguous):
        raise ShapeError(
            f"convolution of tiles {x.shape} needs C-contiguous arrays, got strides {x.strides}, {y.strides}"
        )
