"""Convolution and pooling of tiles, compiled: sixteen examples per vector, blocks of outputs in registers.

float32 only; float64, where speed does not matter, uses ``numpy.tiles``. Compiled code does not check bounds: shapes
are checked here. Sums run in a fixed order that does not depend on block sizes. Each block size is compiled separately,
in a tenth of a second; the loops over the blocks, which take seconds to compile, are compiled once for all sizes.
"""

# mypy: allow-untyped-calls, allow-untyped-decorators
from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numba import types

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import ShapeError
from dl4jlegacy.kernels.numba.compile import address_of, compile_cached, register_file
from dl4jlegacy.kernels.numba.emission import call_block
from dl4jlegacy.kernels.numba.packing import add_groups, expand_planes, pack_filters, pack_places, pool_row, put_blocks
from dl4jlegacy.kernels.numba.product import matmul
from dl4jlegacy.kernels.numba.scratch import Scratch
from dl4jlegacy.kernels.numba.tile_blocks import forward_block, input_block, plane_sums, weights_block
from dl4jlegacy.kernels.numpy import tiles as numpy_tiles
from dl4jlegacy.kernels.philox import LANES
from dl4jlegacy.kernels.protocol import MOST_PLACES, Pool

__all__ = [
    "check_windows",
    "conv_backward_input",
    "conv_backward_weights",
    "conv_forward",
    "conv_pool_backward",
    "conv_pool_forward",
    "lanes",
    "tiles_array",
]

Pair = tuple[int, int]
_GROUP = 4  # tiles between two sums over lanes
_NEAR = 1 << 14  # bytes that stay in the first-level cache with what else is used meanwhile
_INT = types.int64


def lanes(char: str, rows: int) -> int:
    """See ``Kernels``."""
    return LANES if char == "f" else numpy_tiles.lanes(char, rows)


def _divisors(size: int, limit: int) -> list[int]:
    """Return the divisors of ``size`` that are at most ``limit``."""
    return [d for d in range(1, min(limit, size) + 1) if size % d == 0]


@functools.cache
def _starts(size: int, block: int) -> Array:
    """Return the starts of blocks that cover ``size``; the last one may overlap the one before."""
    return _constants(min(at, size - block) for at in range(0, size, block))


def _constants(values: Iterable[int]) -> Array:
    array = np.array(list(values), np.int64)
    array.flags.writeable = False
    return array


@functools.lru_cache(maxsize=1024)
def _places(weights: tuple[int, int, int], size: Pair, dilation: Pair) -> Array:
    """Return the byte offsets of the inputs under every channel and place of a kernel, in planes of ``size``."""
    c, ky, kx = np.ogrid[: weights[0], : weights[1], : weights[2]]
    return _constants(64 * ((c * size[0] + ky * dilation[0]) * size[1] + kx * dilation[1]).reshape(-1))


@functools.lru_cache(maxsize=1024)
def _pixels(shape: Pair, width: int, stride: Pair) -> Array:
    """Return the byte offsets of the inputs under every pixel of an output of ``shape``, in planes of ``width``."""
    i, j = np.ogrid[: shape[0], : shape[1]]
    return _constants(64 * (i * stride[0] * width + j * stride[1]).reshape(-1))


def _clocks(sums: int, loads: int) -> float:
    """Return an estimate of the clocks of one step of a block.

    A multiply-add has a latency of four clocks; two multiply-adds and two loads start per clock.
    """
    return max(sums, 8, loads) / 2 + 0.5 + loads / 100


_scratch = Scratch()  # by what kernels pack there


def tiles_array(dimensions: int, kind: Any = types.float32, *, is_read: bool = True) -> Any:
    """Return Numba's type of a C-contiguous array; ``is_read``: the array may be read-only."""
    return types.Array(kind, dimensions, "C", readonly=is_read)


_STARTS, _SCRATCH = tiles_array(1, _INT), tiles_array(1, is_read=False)
_WINNERS = types.Array(types.uint8, 5, "C")
_NOT_POOLED = np.empty(0, np.int64)
_NO_WINNERS = np.empty((0,) * 5, np.uint8)


@functools.cache
def _window(pool: Pool, out: Pair) -> Array:
    """Return the kernels' numbers for a pooling to ``out`` rows and columns, as in ``packing``."""
    shape, kernel, stride, pad = pool
    covers_once = kernel == stride and pad == (0, 0) and all(out[i] * stride[i] == shape[i] for i in (0, 1))
    return _constants((*shape, *kernel, *stride, *pad, int(not covers_once)))


_call_forward, _call_weights, _call_input, _call_sums, _call_expand = map(call_block, (9, 14, 6, 5, 11))


def _apart(function: Any, arguments: int) -> tuple[Any, int]:
    """Compile a block as a separate function; return an object that keeps its code alive, and the code's address."""
    compiled = compile_cached((types.uint64,) * arguments, function, "kernels")
    return compiled, address_of(compiled)


@functools.cache
def _expand_block() -> tuple[Any, int]:
    return _apart(expand_planes, 11)


@functools.cache
def _forward_block(FB: int, XB: int, L: int) -> tuple[Any, int]:
    def conv_forward_block(
        x: int, w: int, b: int, y: int, places: int, offsets: int, x_pixel: int, y_filter: int, relu: int
    ) -> None:
        forward_block(x, w, b, y, places, offsets, x_pixel, y_filter, relu, FB, XB, L)

    return _apart(conv_forward_block, 9)


@functools.cache
def _forward_kernel(L: int) -> Any:
    def conv_forward_tiles(
        x: Array, b: Array, y: Array, winners: Array, packed: Array, planes: Array, filters: Array, columns: Array,
        offsets: Array, pool: Array, FB: int, stride: int, step: int, relu: int, code: int,
    ) -> None:  # fmt: skip
        channels, places = x.shape[1], offsets.size
        is_pooled = pool.size > 0
        height, width = (pool[0], pool[1]) if is_pooled else (y.shape[2], y.shape[3])
        kept = min(height, pool[2]) if is_pooled and pool[4] >= pool[2] else height  # rows of a plane
        line, row, plane = np.uint64(64), np.uint64(x.shape[3] * 64), np.uint64(x.shape[2] * x.shape[3] * 64)
        z_plane, y_plane = np.uint64(kept * width * 64), np.uint64(y.shape[2] * y.shape[3] * 64)
        for t in range(x.shape[0]):
            for fb in range(filters.size):
                f, done = filters[fb], 0
                first = np.uint64(t * y.shape[1] + f) * y_plane
                z = np.uint64(planes.ctypes.data) if is_pooled else np.uint64(y.ctypes.data) + first
                for r in range(y.shape[2]):
                    last, gone = r + 1, 0
                    if is_pooled:
                        last, gone = min(height, r * pool[4] - pool[6] + pool[2]), max(0, r * pool[4] - pool[6])
                        gone = gone if kept < height else 0
                    for i in range(max(done, gone), last):
                        for j in columns:
                            for lane in range(0, 16, L):
                                _call_forward(
                                    np.uint64(code),
                                    np.uint64(x.ctypes.data) + np.uint64(t * channels) * plane
                                    + np.uint64(i * stride) * row + np.uint64(j * step) * line + np.uint64(lane * 4),
                                    np.uint64(packed.ctypes.data) + np.uint64(fb * places * FB * 4),
                                    np.uint64(b.ctypes.data) + np.uint64(4 * f),
                                    z + np.uint64(((i - gone) * width + j) * 64 + lane * 4),
                                    np.uint64(places), np.uint64(offsets.ctypes.data), np.uint64(step) * line,
                                    z_plane, np.uint64(relu),
                                )  # fmt: skip
                    done = max(done, last)
                    if is_pooled:
                        for k in range(FB):
                            to = first + np.uint64(k) * y_plane + np.uint64(r * y.shape[3] * 64)
                            pool_row(z + np.uint64(k) * z_plane - np.uint64(gone * width * 64),
                                     np.uint64(y.ctypes.data) + to, np.uint64(winners.ctypes.data) + to // np.uint64(4),
                                     r, y.shape[3], pool, relu)  # fmt: skip

    written = tiles_array(5, is_read=False)
    arrays = (tiles_array(5), tiles_array(1), written, _WINNERS, _SCRATCH, _SCRATCH, *[_STARTS] * 4)
    return compile_cached((*arrays, *[_INT] * 5), conv_forward_tiles)


def conv_forward(x: Array, W: Array, b: Array, y: Array, stride: Pair, dilation: Pair, relu: bool) -> None:
    """See ``Kernels``."""
    if x.dtype.char != "f":
        numpy_tiles.conv_forward(x, W, b, y, stride, dilation, relu, matmul)
        return
    _check(x, W, y.shape, stride, dilation)
    _check_contiguous(x, y)
    _forward(x, W, b, y, _NO_WINNERS, _NOT_POOLED, y.shape[2:4], stride, dilation, relu)


def conv_pool_forward(
    x: Array, W: Array, b: Array, y: Array, winners: Array, stride: Pair, dilation: Pair, relu: bool, pool: Pool
) -> None:
    """See ``HostKernels``."""
    if x.dtype.char != "f":
        numpy_tiles.conv_pool_forward(x, W, b, y, winners, stride, dilation, relu, pool, matmul)
        return
    _check_pooled(x, W, y, winners, stride, dilation, pool)
    _forward(x, W, b, y, winners, _window(pool, y.shape[2:4]), pool[0], stride, dilation, relu)


def _forward(
    x: Array, W: Array, b: Array, y: Array, winners: Array, window: Array, shape: Pair, stride: Pair, dilation: Pair,
    relu: bool,
) -> None:  # fmt: skip
    XB, FB = _forward_blocks(shape[1], len(W), register_file()[1])
    filters = _starts(len(W), FB)
    packed = _scratch("weights", filters.size * FB * W[0].size)
    pack_filters(W, packed, FB)
    planes = _scratch("planes", FB * shape[0] * shape[1] * LANES if window.size else 0)
    lanes = register_file()[0]
    _forward_kernel(lanes)(
        x, np.ascontiguousarray(b), y, winners, packed, planes, filters,
        _starts(shape[1], XB), _places(W.shape[1:], x.shape[2:4], dilation), window, FB, *stride, int(relu),
        _forward_block(FB, XB, lanes)[1],
    )  # fmt: skip


@functools.cache
def _forward_blocks(width: int, filters: int, registers: int) -> Pair:
    """Return pixels and filters of the block with the fewest clocks, including overlapping blocks at the ends.

    There are few sizes, so that many layers share one compilation.
    """
    costs: dict[Pair, float] = {}
    for pixels in {*range(1, min(width, 4) + 1), *(_divisors(width, 8) if width % 4 else ())}:
        for block in range(1, min(filters, max(1, (registers - 1 - pixels) // pixels)) + 1):
            blocks = -(-width // pixels) * -(-filters // block)
            costs[pixels, block] = blocks * _clocks(pixels * block, pixels + block)
    return min(costs, key=lambda pair: costs[pair])


@functools.cache
def _weights_block(FB: int, DB: int, AB: int, L: int) -> tuple[Any, int]:
    def conv_weights_block(
        x: int, dz: int, g: int, kept: int, tiles: int, pixels: int, offsets: int, x_tile: int, x_down: int,
        x_across: int, z_tile: int, z_filter: int, goes_on: int, ends: int,
    ) -> None:  # fmt: skip
        weights_block(
            x, dz, g, kept, tiles, pixels, offsets, x_tile, x_down, x_across, z_tile, z_filter, goes_on, ends,
            FB, DB, AB, L,
        )  # fmt: skip

    return _apart(conv_weights_block, 14)


@functools.cache
def _sums_block(FB: int) -> tuple[Any, int]:
    def conv_sums_block(x: int, x_plane: int, count: int, out: int, goes_on: int) -> None:
        plane_sums(x, x_plane, count, out, goes_on, FB)

    return _apart(conv_sums_block, 5)


@functools.cache
def _weights_kernel() -> Any:
    def conv_backward_weights_tiles(
        x: Array, dz: Array, winners: Array, sums: Array, g: Array, kept: Array, planes: Array, filters: Array,
        downs: Array, acrosses: Array, offsets: Array, pool: Array, FB: int, DB: int, AB: int, size: int, down: int,
        across: int, band: int, code: int, sums_code: int, expand_code: int,
    ) -> None:  # fmt: skip
        tiles, channels, out, is_pooled = x.shape[0], x.shape[1], dz.shape[1], pool.size > 0
        height, width = (pool[0], pool[1]) if is_pooled else (dz.shape[2], dz.shape[3])
        row, plane = np.uint64(x.shape[3] * 64), np.uint64(x.shape[2] * x.shape[3] * 64)
        z_plane, block = np.uint64((band if is_pooled else height) * width * 64), 0
        bands, together = (height + band - 1) // band, 4 if band >= height else 1
        for group in range(0, tiles, 4):
            for fb in range(filters.size):
                start, end = block, min(tiles, group + 4)
                for part in range((end - group + together - 1) // together * bands):
                    first, at = group + part // bands * together, part % bands * band
                    count, rows = min(together, end - first), min(band, height - at)
                    z, z_tile = np.uint64(dz.ctypes.data), np.uint64(out) * z_plane
                    z += np.uint64(first * out + filters[fb]) * z_plane + np.uint64(at * width * 64)
                    if is_pooled:
                        z, z_tile = np.uint64(planes.ctypes.data), np.uint64(FB) * z_plane
                        last = dz.shape[2] if bands == 1 else (at + rows) // pool[4]
                        for t in range(count):
                            number, to = (first + t) * out + filters[fb], z + np.uint64(t) * z_tile
                            _call_expand(
                                np.uint64(expand_code), np.uint64(dz.ctypes.data), np.uint64(winners.ctypes.data),
                                np.uint64(dz.shape[2]), np.uint64(dz.shape[3]), np.uint64(number), np.uint64(FB), to,
                                np.uint64(band), np.uint64(at // pool[4]), np.uint64(last), np.uint64(pool.ctypes.data),
                            )  # fmt: skip
                            lines = np.uint64(sums.ctypes.data) + np.uint64(number * 64)
                            _call_sums(np.uint64(sums_code), to, z_plane, np.uint64(rows * width), lines, np.uint64(at))
                    block = start
                    for c in range(channels):
                        for d in downs:
                            for a in acrosses:
                                _call_weights(
                                    np.uint64(code),
                                    np.uint64(x.ctypes.data) + np.uint64(first * channels + c) * plane
                                    + np.uint64(d * down) * row + np.uint64(a * across * 64),
                                    z, np.uint64(g.ctypes.data) + np.uint64(block * size * 4),
                                    np.uint64(kept.ctypes.data) + np.uint64((block - start) * FB * DB * AB * 64),
                                    np.uint64(count), np.uint64(rows * width),
                                    np.uint64(offsets.ctypes.data) + np.uint64(at * width * 8),
                                    np.uint64(channels) * plane, np.uint64(down) * row, np.uint64(across * 64),
                                    z_tile, z_plane, np.uint64(part),
                                    np.uint64(first + count == end and at + rows == height),
                                )  # fmt: skip
                                block += 1

    arrays = (tiles_array(5), tiles_array(5), _WINNERS, *[_SCRATCH] * 4, *[_STARTS] * 5)
    return compile_cached((*arrays, *[_INT] * 10), conv_backward_weights_tiles)


def conv_backward_weights(x: Array, dz: Array, gW: Array, stride: Pair, dilation: Pair) -> None:
    """See ``Kernels``."""
    if x.dtype.char != "f":
        numpy_tiles.conv_backward_weights(x, dz, gW, stride, dilation, matmul)
        return
    _check(x, gW, dz.shape, stride, dilation)
    _check_contiguous(x, dz)
    _weights(x, dz, _NO_WINNERS, _scratch("sums", 0), gW, _NOT_POOLED, dz.shape[2:4], stride, dilation)


def _weights(
    x: Array, dz: Array, winners: Array, sums: Array, gW: Array, window: Array, shape: Pair, stride: Pair,
    dilation: Pair,
) -> None:  # fmt: skip
    F, C, kh, kw = gW.shape
    lanes, registers = register_file()
    FB, DB, AB = _weights_blocks(F, kh, kw, registers)
    filters, downs, acrosses = _starts(F, FB), _starts(kh, DB), _starts(kw, AB)
    blocks = C * downs.size * acrosses.size
    band = _band(shape, FB, blocks * FB * DB * AB, window)
    size = -(-FB * DB * AB // lanes) * lanes
    g = _scratch("gradients", -(-len(x) // _GROUP) * filters.size * blocks * size)
    kept = _scratch("kept", blocks * FB * DB * AB * LANES)
    planes = _scratch("planes", min(len(x), _GROUP) * FB * band * shape[1] * LANES if window.size else 0)
    steps = (filters, downs, acrosses, _pixels(shape, x.shape[3], stride), window, FB, DB, AB, size, *dilation, band)
    of_pool = (_sums_block(FB)[1], _expand_block()[1]) if window.size else (0, 0)
    code = _weights_block(FB, DB, AB, lanes)[1]
    _weights_kernel()(x, dz, winners, sums, g, kept, planes, *steps, code, *of_pool)
    count = filters.size * blocks * size
    add_groups(g, count, -(-len(x) // _GROUP))
    put_blocks(g[:count].reshape(filters.size, C, downs.size, acrosses.size, size), (FB, DB, AB), gW)


def _band(shape: Pair, filters: int, weights: int, window: Array) -> int:
    """Return the number of output rows to process at a time, so that they stay in the first-level cache.

    All rows, if the sums of a filter's many weights would not stay in the cache either, or if the pooled output cannot
    be cut.
    """
    line, unit = filters * shape[1] * LANES * 4, int(window[4]) if window.size else 1
    if weights * LANES * 4 > _NEAR or (window.size and window[8]) or line * shape[0] <= _NEAR:
        return shape[0]
    return min(shape[0], max(1, _NEAR // (line * unit)) * unit)


@functools.cache
def _weights_blocks(filters: int, height: int, width: int, registers: int) -> tuple[int, int, int]:
    """Return filters, rows and columns of the kernel for a block, chosen as in ``_forward_blocks``."""
    costs: dict[tuple[int, int, int], float] = {}
    for down in range(1, height + 1):
        for across in range(1, width + 1):
            for block in range(1, filters + 1):
                sums = down * across * block
                if sums + block + (block > 1) <= registers:
                    blocks = -(-filters // block) * -(-height // down) * -(-width // across)
                    costs[block, down, across] = blocks * _clocks(sums, down * across + block)
    return min(costs, key=lambda key: costs[key])


@functools.cache
def _input_block(CB: int, KB: int, XB: int, SX: int, DX: int, L: int) -> tuple[Any, int]:
    def conv_input_block(dz: int, w: int, dx: int, filters: int, z_filter: int, x_channel: int) -> None:
        input_block(dz, w, dx, filters, z_filter, x_channel, CB, KB, XB, SX, DX, L)

    return _apart(conv_input_block, 6)


@functools.cache
def _input_kernel(L: int) -> Any:
    def conv_backward_input_tiles(
        dz: Array, winners: Array, dx: Array, packed: Array, planes: Array, pool: Array, kh: int, kw: int, CB: int,
        KB: int, XB: int, SX: int, DX: int, down: int, stride: int, code: int, expand_code: int,
    ) -> None:  # fmt: skip
        filters, channels = dz.shape[1], dx.shape[1]
        is_pooled = pool.size > 0
        height, columns = (pool[0], pool[1]) if is_pooled else (dz.shape[2], dz.shape[3])
        plane, z_plane = np.uint64(dx.shape[2] * dx.shape[3] * 64), np.uint64(height * columns * 64)
        size = filters * CB * KB * 4
        for t in range(dz.shape[0]):
            dx[t] = np.float32(0)
            z = np.uint64(dz.ctypes.data) + np.uint64(t * filters) * z_plane
            if is_pooled:
                z = np.uint64(planes.ctypes.data)
                _call_expand(
                    np.uint64(expand_code), np.uint64(dz.ctypes.data), np.uint64(winners.ctypes.data),
                    np.uint64(dz.shape[2]), np.uint64(dz.shape[3]), np.uint64(t * filters), np.uint64(filters), z,
                    np.uint64(height), np.uint64(0), np.uint64(dz.shape[2]), np.uint64(pool.ctypes.data),
                )  # fmt: skip
            for i in range(height):
                for ky in range(kh):
                    row = i * stride + ky * down
                    for cb in range(channels // CB):
                        for kb in range(kw // KB):
                            for j in range(columns - XB, -1, -XB):  # as ``input_block`` adds
                                for lane in range(0, 16, L):
                                    _call_input(
                                        np.uint64(code), z + np.uint64((i * columns + j) * 64 + lane * 4),
                                        np.uint64(packed.ctypes.data)
                                        + np.uint64(((ky * (channels // CB) + cb) * (kw // KB) + kb) * size),
                                        np.uint64(dx.ctypes.data) + np.uint64(t * channels + cb * CB) * plane
                                        + np.uint64((row * dx.shape[3] + j * SX + kb * KB * DX) * 64 + lane * 4),
                                        np.uint64(filters), z_plane, plane,
                                    )  # fmt: skip

    written = tiles_array(5, is_read=False)
    arrays = (tiles_array(5), _WINNERS, written, _SCRATCH, _SCRATCH, _STARTS)
    return compile_cached((*arrays, *[_INT] * 11), conv_backward_input_tiles)


def conv_backward_input(dz: Array, W: Array, dx: Array, stride: Pair, dilation: Pair) -> None:
    """See ``Kernels``."""
    if dz.dtype.char != "f":
        numpy_tiles.conv_backward_input(dz, W, dx, stride, dilation, matmul)
        return
    _check(dx, W, dz.shape, stride, dilation)
    _check_contiguous(dx, dz)
    _input(dz, _NO_WINNERS, W, dx, _NOT_POOLED, dz.shape[2:4], stride, dilation)


def _input(
    dz: Array, winners: Array, W: Array, dx: Array, window: Array, shape: Pair, stride: Pair, dilation: Pair
) -> None:  # fmt: skip
    lanes, registers = register_file()
    CB, KB, XB = _input_blocks(W.shape[1], W.shape[3], shape[1], registers)
    planes = _scratch("planes", len(W) * shape[0] * shape[1] * LANES if window.size else 0)
    sizes, packed = (CB, KB, XB, stride[1], dilation[1]), _scratch("weights", W.size)
    pack_places(W, packed, CB, KB)
    codes = (_input_block(*sizes, lanes)[1], _expand_block()[1] if window.size else 0)
    _input_kernel(lanes)(
        dz, winners, dx, packed, planes, window, *W.shape[2:], *sizes, dilation[0], stride[0], *codes,
    )  # fmt: skip


@functools.cache
def _input_blocks(channels: int, places: int, pixels: int, registers: int) -> tuple[int, int, int]:
    """Return channels, kernel places and pixels of the block with the fewest clocks; all are divisors."""
    costs: dict[tuple[int, int, int], float] = {}
    for KB in _divisors(places, registers):
        for XB in _divisors(pixels, 8):
            for CB in _divisors(channels, registers):
                sums = CB * KB * XB
                if sums + XB + (XB > 1) <= registers or sums == 1:
                    costs[CB, KB, XB] = _clocks(sums, XB + CB * KB) / sums
    return min(costs, key=lambda key: costs[key])


def conv_pool_backward(
    x: Array, W: Array, dy: Array, winners: Array, gW: Array, gb: Array, dx: Array | None, stride: Pair, dilation: Pair,
    pool: Pool,
) -> None:  # fmt: skip
    """See ``HostKernels``."""
    if x.dtype.char != "f":
        numpy_tiles.conv_pool_backward(x, W, dy, winners, gW, gb, dx, stride, dilation, pool, matmul)
        return
    _check_pooled(x, W, dy, winners, stride, dilation, pool)
    if gW.shape != W.shape or gb.shape != W.shape[:1] or not (dx is None or dx.shape == x.shape):
        raise ShapeError(
            f"conv_pool_backward: gradients {gW.shape} and {gb.shape} of weights {W.shape}, "
            f"{None if dx is None else dx.shape} of tiles {x.shape} do not fit"
        )
    _check_contiguous(x if dx is None else dx, gW)
    size, window = len(x) * len(W) * LANES, _window(pool, dy.shape[2:4])
    sums = _scratch("sums", size)
    _weights(x, dy, winners, sums, gW, window, pool[0], stride, dilation)
    gb[...] = sums[:size].reshape(len(x), len(W), LANES).sum(axis=(0, 2), dtype=np.float64)
    if dx is not None:
        _input(dy, winners, W, dx, window, pool[0], stride, dilation)


def _check_pooled(
    x: Array, W: Array, y: Array, winners: Array, stride: Pair, dilation: Pair, pool: Pool
) -> None:  # fmt: skip
    """Raise ``ShapeError`` unless the convolution's output has the pooled shape, and the windows fit ``y``."""
    shape, *windows = pool
    z_shape = (len(x), len(W), *shape, LANES)
    _check(x, W, z_shape, stride, dilation)
    check_windows(z_shape, y, winners, *windows)
    _check_contiguous(x, y)
    if math.prod(windows[0]) > MOST_PLACES:
        raise ShapeError(f"the place in a window of {windows[0]} that holds the maximum fits no byte")


def _check(x: Array, W: Array, given: tuple[int, ...], stride: Pair, dilation: Pair) -> None:
    """Raise ``ShapeError`` unless a convolution of ``x`` (padded) with ``W`` gives tiles of the shape ``given``."""
    if W.dtype != x.dtype:
        raise ShapeError(f"convolution of {x.dtype} tiles with {W.dtype} weights; both must be of the same dtype")
    reach = [(size - 1) * step + 1 for size, step in zip(W.shape[2:], dilation, strict=True)]
    out = [(size - far) // step + 1 for size, far, step in zip(x.shape[2:4], reach, stride, strict=True)]
    wanted = (len(x), len(W), *out, LANES)
    if x.shape[1] != W.shape[1] or given != wanted or x.shape[4] != LANES or min(out) < 1:
        raise ShapeError(
            f"convolution of tiles {x.shape} with weights {W.shape}, stride {stride}, dilation {dilation} gives "
            f"{wanted}, not {given}"
        )


def _check_contiguous(x: Array, y: Array) -> None:
    if not (x.flags.c_contiguous and y.flags.c_contiguous):
        raise ShapeError(
            f"convolution of tiles {x.shape} needs C-contiguous arrays, got strides {x.strides}, {y.strides}"
        )


def check_windows(shape: tuple[int, ...], y: Array, winners: Array, kernel: Pair, stride: Pair, pad: Pair) -> None:
    """Raise ``ShapeError`` if a window over tiles of ``shape`` covers no place: reads would be out of bounds."""
    ends = [(y.shape[2 + i] - 1) * stride[i] - pad[i] for i in (0, 1)]
    fits = all(ends[i] < shape[2 + i] and kernel[i] > pad[i] for i in (0, 1))
    if shape[:2] != y.shape[:2] or winners.shape != y.shape or shape[4] != LANES or y.shape[4] != LANES or not fits:
        raise ShapeError(
            f"pooling of tiles {shape} with windows {kernel}, stride {stride} and padding {pad} cannot give {y.shape}"
        )
