"""Compiled kernels on lanes: sigmoid, tanh, Philox uniforms, Bernoulli samples, drop-out, masking noise.

All run over the flat array in blocks of 64 elements, one ``uniform_block`` each; a partial block at the end goes
through a ``room`` (working memory), so that an element's number never depends on the shape around it. A bias is first
written to the room, followed by a repetition of its beginning, so that sixteen lanes may run over the end of a row into
the next one. The callers allocate the room: array creation takes Numba longer to compile than everything else.

Loops run over slices from 0: Numba cannot see that ``start + k`` is not negative, and would test every index.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.kernels.numba import lanes
from dl4jlegacy.kernels.numba.compile import helper, kernel
from dl4jlegacy.kernels.numba.elementary import exp_jit
from dl4jlegacy.kernels.numba.product_blocks import copy_elements

__all__ = [
    "PART",
    "ROOM",
    "corrupt",
    "dropout",
    "sigmoid_lanes",
    "sigmoid_sample_lanes",
    "sigmoid_sample_scalar",
    "tanh_lanes",
    "uniform_lanes",
    "uniform_scalar",
]

PART = 1024  # elements whose uniforms are drawn at once, to ``u``
ROOM = 272  # elements of a room besides a bias: its repetition; of a block the inputs, outputs, samples and uniforms


@helper
def _wrap(b: Array, room: Array) -> Any:
    """Write ``b`` to a room, followed by sixteen more elements of its endless repetition; return its address."""
    for index in range(b.size + 16):
        room[index] = b[index % b.size]
    return np.intp(room.ctypes.data)


def _next(column: int, n: int) -> int:
    """Return the column sixteen elements further, in rows of ``n`` columns."""
    column += 16
    if column >= n:
        column -= n
        if column >= n:
            column %= n
    return column


_next_jit: Any = helper(_next)


def _sample_block(z: int, bias: int, probability: int, sample: int, u: int, column: int, n: int) -> int:
    """Compute sixty-four elements from the given addresses; ``u`` holds their uniforms. Return the next column."""
    for group in range(4):
        at = np.uint64(64 * group)
        p = lanes.sigmoid(lanes.add(lanes.load(z + at), lanes.load(bias + np.uint64(4 * column))))
        lanes.store(probability + at, p)
        lanes.store(sample + at, lanes.below(lanes.load(u + at), p))
        column = _next_jit(column, n)
    return column


_sample_block_jit: Any = helper(_sample_block)


@kernel("MrMMmu")
def sigmoid_sample_lanes(z: Array, b: Array, probability: Array, sample: Array, room: Array, key: int) -> None:
    """float32: ``probability = sigmoid(z + b)``, ``sample = u < probability``."""
    n, column, ba = b.size, 0, _wrap(b, room)
    za, pa, sa = np.intp(z.ctypes.data), np.intp(probability.ctypes.data), np.intp(sample.ctypes.data)
    spare, rest, end = ba + 4 * (n + 16), z.size % 64, z.size // 64 * 256
    u = np.uint64(spare + 768)
    for at in range(0, 4 * z.size, 256):
        from_, to, drawn = za + at, pa + at, sa + at
        if at == end:
            copy_elements(z, from_, 4, spare, 4, rest)
            from_, to, drawn = spare, spare + 256, spare + 512
        lanes.uniform_block(np.uint64(at // 256), key, u)
        column = _sample_block_jit(np.uint64(from_), np.uint64(ba), np.uint64(to), np.uint64(drawn), u, column, n)
    copy_elements(z, spare + 256, 4, pa + end, 4, rest)
    copy_elements(z, spare + 512, 4, sa + end, 4, rest)


@kernel("MrMMu")
def sigmoid_sample_scalar(z: Array, b: Array, probability: Array, sample: Array, key: int) -> None:
    """The same for float64, one element at a time."""
    zs, ps, ss = z.reshape(-1), probability.reshape(-1), sample.reshape(-1)
    u, n, one = np.empty(64, np.float32), z.shape[1], z.dtype.type(1)
    for start in range(0, zs.size, 64):
        lanes.uniform_block(np.uint64(start // 64), key, np.uint64(u.ctypes.data))
        for k in range(start, min(start + 64, zs.size)):
            p = one / (one + exp_jit(-np.float64(zs[k] + b[k % n])))
            ps[k] = p
            ss[k] = one if u[k - start] < p else one - one


def _over_lanes(z: Array, b: Array, room: Array, function: Any) -> None:
    """``z = function(z + b)``, with a function of ``lanes``."""
    n, whole, column, ba, za = b.size, z.size // 16, 0, _wrap(b, room), np.intp(z.ctypes.data)
    for group in range(whole):
        at = np.uint64(za + 64 * group)
        lanes.store(at, function(lanes.add(lanes.load(at), lanes.load(np.uint64(ba + 4 * column)))))
        column = _next_jit(column, n)
    rest, spare = z.size - 16 * whole, ba + 4 * (n + 16)
    if rest:
        copy_elements(z, za + 64 * whole, 4, spare, 4, rest)
        at = np.uint64(spare)
        lanes.store(at, function(lanes.add(lanes.load(at), lanes.load(np.uint64(ba + 4 * column)))))
        copy_elements(z, spare, 4, za + 64 * whole, 4, rest)


_over_lanes_jit: Any = helper(_over_lanes, inline="always")  # not compiled for itself, too


@kernel("Mrm")
def sigmoid_lanes(z: Array, b: Array, room: Array) -> None:
    """float32: ``z = sigmoid(z + b)``."""
    _over_lanes_jit(z, b, room, lanes.sigmoid)


@kernel("Mrm")
def tanh_lanes(z: Array, b: Array, room: Array) -> None:
    """float32: ``z = tanh(z + b)``, which reaches -1 and 1."""
    _over_lanes_jit(z, b, room, lanes.tanh)


@kernel("mFu")
def uniform_lanes(out: Array, u: Array, key: int) -> None:
    """float32: the stream itself; only a partial block at the end goes through ``u``."""
    address, spare, end = np.intp(out.ctypes.data), np.intp(u.ctypes.data), out.size // 64 * 256
    for at in range(0, 4 * out.size, 256):
        to = spare if at == end else address + at
        lanes.uniform_block(np.uint64(at // 256), key, np.uint64(to))
    copy_elements(out, spare, 4, address + end, 4, out.size % 64)


def _fill(u: Array, start: int, count: int, key: int) -> None:
    """Write the uniforms of elements ``start ... start + count`` to ``u``; ``start`` is a multiple of 64."""
    for block in range((count + 63) // 64):
        lanes.uniform_block(np.uint64(start // 64 + block), key, np.uint64(u.ctypes.data) + np.uint64(256 * block))


_fill_jit: Any = helper(_fill)


@kernel("mFu")
def uniform_scalar(out: Array, u: Array, key: int) -> None:
    """float64: the same 24-bit numbers, converted."""
    for start in range(0, out.size, PART):
        part = out[start : start + PART]
        _fill_jit(u, start, part.size, key)
        for k in range(part.size):
            part[k] = u[k]


@kernel("mrFfu")
def dropout(out: Array, x: Array, u: Array, retain: float, key: int) -> None:
    """``out = x / retain`` where ``u < retain``, else 0."""
    bound, scale, zero = np.float32(retain), x.dtype.type(1.0 / retain), x.dtype.type(0)
    for start in range(0, out.size, PART):
        part, source = out[start : start + PART], x[start : start + PART]
        _fill_jit(u, start, part.size, key)
        for k in range(part.size):
            kept = source[k] * scale  # computed in any case: a conditional load would not vectorise
            part[k] = kept if u[k] < bound else zero


@kernel("mrFfu")
def corrupt(out: Array, x: Array, u: Array, level: float, key: int) -> None:
    """``out = 0`` where ``u < level``, else ``x``."""
    zero, bound = x.dtype.type(0), np.float32(level)
    for start in range(0, out.size, PART):
        part, source = out[start : start + PART], x[start : start + PART]
        _fill_jit(u, start, part.size, key)
        for k in range(part.size):
            kept = source[k]
            part[k] = zero if u[k] < bound else kept
