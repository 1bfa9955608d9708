"""Pooling, activation gradients and copies of tiles, compiled: one pass each, sixteen examples per vector.

float32 only, see ``numba.tiles``; p-norms, which are rare, use ``numpy.tiles`` in float32 too.
"""

# mypy: allow-untyped-calls, allow-untyped-decorators
from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import ConfError, ShapeError, nearest
from dl4jlegacy.kernels.numba import lanes
from dl4jlegacy.kernels.numba.compile import compile_cached
from dl4jlegacy.kernels.numba.product_blocks import turn
from dl4jlegacy.kernels.numba.tile_blocks import clear, max_window, spread_window, sum_window
from dl4jlegacy.kernels.numba.tiles import check_windows, tiles_array
from dl4jlegacy.kernels.numpy import kernels
from dl4jlegacy.kernels.numpy import tiles as numpy_tiles
from dl4jlegacy.kernels.philox import LANES
from dl4jlegacy.kernels.protocol import FUSED_ACTIVATIONS

__all__ = ["channel_backward", "pool_backward", "pool_forward", "tile", "untile"]

Pair = tuple[int, int]
_INT = types.int64
_NAMES = tuple(sorted(FUSED_ACTIVATIONS))


def _pool_forward(
    x: Array, y: Array, winners: Array, kh: int, kw: int, sh: int, sw: int, top: int, left: int, is_max: int,
    is_avg: int,
) -> None:  # fmt: skip
    height, width, out_rows, out_columns = x.shape[2], x.shape[3], y.shape[2], y.shape[3]
    x_row, code_row = np.uint64(width * 64), np.uint64(kw)
    for plane in range(x.shape[0] * x.shape[1]):
        for i in range(out_rows):
            first, last = max(0, i * sh - top), min(height, i * sh - top + kh)
            for j in range(out_columns):
                begin, end = max(0, j * sw - left), min(width, j * sw - left + kw)
                at = np.uint64(x.ctypes.data) + np.uint64(((plane * height + first) * width + begin) * 64)
                to = np.uint64(((plane * out_rows + i) * out_columns + j) * 64)
                rows, columns = np.uint64(last - first), np.uint64(end - begin)
                if is_max:
                    code = np.uint64((first - i * sh + top) * kw + begin - j * sw + left)
                    max_window(at, np.uint64(y.ctypes.data) + to, np.uint64(winners.ctypes.data) + to, rows, columns,
                               x_row, code, code_row, np.uint64(0), 32)  # fmt: skip
                else:
                    count = rows * columns if is_avg else np.uint64(1)
                    sum_window(at, np.uint64(y.ctypes.data) + to, rows, columns, x_row, count)


def _pool_backward(
    dy: Array, winners: Array, dx: Array, kh: int, kw: int, sh: int, sw: int, top: int, left: int, is_max: int,
    is_avg: int,
) -> None:  # fmt: skip
    height, width, out_rows, out_columns = dx.shape[2], dx.shape[3], dy.shape[2], dy.shape[3]
    x_row, code_row = np.uint64(width * 64), np.uint64(kw)
    for plane in range(dx.shape[0] * dx.shape[1]):
        clear(np.uint64(dx.ctypes.data) + np.uint64(plane * height * width * 64), np.uint64(height * width))
        for i in range(out_rows):
            first, last = max(0, i * sh - top), min(height, i * sh - top + kh)
            for j in range(out_columns):
                begin, end = max(0, j * sw - left), min(width, j * sw - left + kw)
                at = np.uint64(dx.ctypes.data) + np.uint64(((plane * height + first) * width + begin) * 64)
                to = np.uint64(((plane * out_rows + i) * out_columns + j) * 64)
                rows, columns = np.uint64(last - first), np.uint64(end - begin)
                code = np.uint64((first - i * sh + top) * kw + begin - j * sw + left)
                winner = np.uint64(winners.ctypes.data) + to if is_max else np.uint64(0)
                count = rows * columns if is_avg else np.uint64(1)
                spread_window(np.uint64(dy.ctypes.data) + to, winner, at, rows, columns, x_row, code, code_row, count)


def _channel_backward(dy: Array, y: Array, sums: Array, activation: int) -> None:
    area = dy.shape[2] * dy.shape[3] * 64
    one, zero, leak = lanes.splat(np.float32(1)), lanes.splat(np.float32(0)), lanes.splat(np.float32(0.01))
    for plane in range(dy.shape[0] * dy.shape[1]):
        start = np.uint64(plane * area)
        at, there = np.uint64(dy.ctypes.data) + start, np.uint64(y.ctypes.data) + start
        total = zero
        for offset in range(0, area, 64):
            here = np.uint64(offset)
            value = lanes.load(at + here)
            if activation == 1:
                value = lanes.pick(lanes.load(there + here), value, lanes.mul(value, leak))
            elif activation == 2:
                value = lanes.pick(lanes.load(there + here), value, zero)
            elif activation == 3:
                out = lanes.load(there + here)
                value = lanes.mul(value, lanes.mul(out, lanes.sub(one, out)))
            elif activation == 4:
                out = lanes.load(there + here)
                value = lanes.mul(value, lanes.sub(one, lanes.mul(out, out)))
            if activation:
                lanes.store(at + here, value)
            total = lanes.add(total, value)
        lanes.store(np.uint64(sums.ctypes.data) + np.uint64(plane * 64), total)


def _tile(x: Array, tiles: Array) -> None:
    rows, size = x.shape
    for t in range(tiles.shape[0]):
        filled = min(16, rows - t * 16)
        for low in range(0, size, 16):
            first = max(0, min(low, size - 16))  # the last block may overlap the one before
            if filled == 16 and size >= 16:
                turn(
                    x, np.uint64(x.ctypes.data) + np.uint64((t * 16 * size + first) * 4), np.uint64(size * 4),
                    np.uint64(tiles.ctypes.data) + np.uint64((t * size + first) * 64), np.uint64(64), 16, 0,
                )  # fmt: skip
                continue
            for lane in range(16):
                for c in range(low, min(low + 16, size)):
                    tiles[t, c, lane] = x[t * 16 + lane, c] if lane < filled else np.float32(0)


def _untile(tiles: Array, x: Array) -> None:
    rows, size = x.shape
    for t in range((rows + 15) // 16):
        filled = min(16, rows - t * 16)
        for low in range(0, size, 16):
            first = max(0, min(low, size - 16))
            if filled == 16 and size >= 16:
                turn(
                    x, np.uint64(tiles.ctypes.data) + np.uint64((t * size + first) * 64), np.uint64(64),
                    np.uint64(x.ctypes.data) + np.uint64((t * 16 * size + first) * 4), np.uint64(size * 4), 16, 0,
                )  # fmt: skip
                continue
            for lane in range(filled):
                for c in range(low, min(low + 16, size)):
                    x[t * 16 + lane, c] = tiles[t, c, lane]


_INTS = types.Array(types.int32, 5, "C")
_KERNELS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "pool_forward": (_pool_forward, (tiles_array(5), tiles_array(5, is_read=False), _INTS, *[_INT] * 8)),
    "pool_backward": (_pool_backward, (tiles_array(5), _INTS, tiles_array(5, is_read=False), *[_INT] * 8)),
    "channel_backward": (
        _channel_backward,
        (tiles_array(5, is_read=False), tiles_array(5), tiles_array(1, is_read=False), _INT),
    ),
    "tile": (_tile, (tiles_array(2), tiles_array(3, is_read=False))),
    "untile": (_untile, (tiles_array(3), tiles_array(2, is_read=False))),
}
_READY: dict[str, Any] = {}


def _kernel(name: str) -> Any:
    """Return a kernel, compiled at its first request."""
    if name not in _READY:
        function, signature = _KERNELS[name]
        _READY[name] = compile_cached(signature, function)
    return _READY[name]


def pool_forward(
    x: Array, y: Array, winners: Array, kernel: Pair, stride: Pair, pad: Pair, kind: str, p: float = 2.0
) -> None:
    """See ``Kernels``."""
    if x.dtype.char != "f" or kind not in ("max", "avg", "sum"):
        numpy_tiles.pool_forward(x, y, winners, kernel, stride, pad, kind, p)
        return
    check_windows(x.shape, y, winners, kernel, stride, pad)
    _kernel("pool_forward")(x, y, winners, *kernel, *stride, *pad, int(kind == "max"), int(kind == "avg"))


def pool_backward(
    dy: Array, x: Array, y: Array, winners: Array, dx: Array, kernel: Pair, stride: Pair, pad: Pair, kind: str,
    p: float = 2.0,
) -> None:  # fmt: skip
    """See ``Kernels``."""
    if x.dtype.char != "f" or kind not in ("max", "avg", "sum"):
        numpy_tiles.pool_backward(dy, x, y, winners, dx, kernel, stride, pad, kind, p)
        return
    check_windows(dx.shape, dy, winners, kernel, stride, pad)
    _kernel("pool_backward")(dy, winners, dx, *kernel, *stride, *pad, int(kind == "max"), int(kind == "avg"))


def channel_backward(dy: Array, y: Array, gb: Array, activation: str) -> None:
    """See ``Kernels``."""
    if dy.dtype.char != "f":
        kernels.channel_backward(dy, y, gb, activation)
        return
    if activation not in _NAMES:
        raise ConfError(f"activation {activation!r} has no fused kernel{nearest(activation, _NAMES)}")
    if dy.shape != y.shape or gb.shape != dy.shape[1:2]:
        raise ShapeError(f"channel_backward: gradients {dy.shape}, outputs {y.shape} and biases {gb.shape} do not fit")
    sums = np.empty(dy.shape[0] * dy.shape[1] * LANES, np.float32)
    _kernel("channel_backward")(dy, y, sums, _NAMES.index(activation))
    gb[...] = sums.reshape(dy.shape[0], dy.shape[1], LANES).sum(axis=(0, 2), dtype=np.float64)


def tile(x: Array, tiles: Array) -> None:
    """See ``Kernels``."""
    if x.dtype.char != "f" or tiles.shape[-1] != LANES:
        numpy_tiles.tile(x, tiles)
        return
    _check_rows(x, tiles)
    _kernel("tile")(x, tiles.reshape(len(tiles), x.shape[1], LANES))


def untile(tiles: Array, x: Array) -> None:
    """See ``Kernels``."""
    if x.dtype.char != "f" or tiles.shape[-1] != LANES:
        numpy_tiles.untile(tiles, x)
        return
    _check_rows(x, tiles)
    _kernel("untile")(tiles.reshape(len(tiles), x.shape[1], LANES), x)


def _check_rows(x: Array, tiles: Array) -> None:
    if tiles[:1].size != x.shape[1] * LANES * min(len(tiles), 1) or len(x) > len(tiles) * LANES:
        raise ShapeError(f"{len(x)} rows of {x.shape[1]} values do not fit tiles of shape {tiles.shape}")
