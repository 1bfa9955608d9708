"""Compiled kernels on lanes: sigmoid, tanh, Philox uniforms, Bernoulli samples, drop-out, masking noise.

All run over the flat array in blocks of 64 elements, one ``uniform_block`` each; a part block at the end goes through
scratch arrays, so that an element's number never depends on the shape around it. A bias is first written out with its
beginning repeated behind its end, so that sixteen lanes may run over the end of a row into the next one.

Loops run over slices from 0: Numba cannot see that ``start + k`` is not negative, and would test every index. What is
left at the end is copied element by element: an assignment to a slice takes Numba two seconds to compile.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dl4jlegacy.backend import Array
from dl4jlegacy.kernels.numba import lanes
from dl4jlegacy.kernels.numba.compile import helper, kernel
from dl4jlegacy.kernels.numba.elementary import exp_jit

__all__ = [
    "corrupt",
    "dropout",
    "sigmoid_lanes",
    "sigmoid_sample_lanes",
    "sigmoid_sample_scalar",
    "tanh_lanes",
    "uniform_lanes",
    "uniform_scalar",
]


def _wrapped(b: Array) -> Array:
    """Return ``b`` followed by sixteen more elements of its endless repetition."""
    wrapped = np.empty(b.size + 16, b.dtype)
    for index in range(wrapped.size):
        wrapped[index] = b[index % b.size]
    return wrapped


def _next(column: int, n: int) -> int:
    """Return the column sixteen elements further in rows of ``n``."""
    column += 16
    if column >= n:
        column -= n
        if column >= n:
            column %= n
    return column


_wrapped_jit: Any = helper(_wrapped)
_next_jit: Any = helper(_next)


def _sample_block(z: int, bias: int, probability: int, sample: int, u: int, column: int, n: int) -> int:
    """Sixty-four elements from the addresses given; ``u`` holds their uniforms. Return the next column."""
    for group in range(4):
        at = np.uint64(64 * group)
        p = lanes.sigmoid(lanes.add(lanes.load(z + at), lanes.load(bias + np.uint64(4 * column))))
        lanes.store(probability + at, p)
        lanes.store(sample + at, lanes.below(lanes.load(u + at), p))
        column = _next_jit(column, n)
    return column


_sample_block_jit: Any = helper(_sample_block)


@kernel("MrMMu")
def sigmoid_sample_lanes(z: Array, b: Array, probability: Array, sample: Array, key: int) -> None:
    """float32: ``probability = sigmoid(z + b)``, ``sample = u < probability``."""
    size, n, column = z.size, z.shape[1], 0
    bias, u, spare = _wrapped_jit(b), np.empty(64, z.dtype), np.zeros(192, z.dtype)
    ua, ba = np.uint64(u.ctypes.data), np.uint64(bias.ctypes.data)
    za, pa, sa = np.uint64(z.ctypes.data), np.uint64(probability.ctypes.data), np.uint64(sample.ctypes.data)
    for block in range(size // 64):
        lanes.uniform_block(np.uint64(block), key, ua)
        at = np.uint64(block * 256)
        column = _sample_block_jit(za + at, ba, pa + at, sa + at, ua, column, n)
    start = size // 64 * 64
    if start < size:
        rest, ca = size - start, np.uint64(spare.ctypes.data)
        zs, ps, ss = z.reshape(-1), probability.reshape(-1), sample.reshape(-1)
        for k in range(rest):
            spare[k] = zs[start + k]
        lanes.uniform_block(np.uint64(size // 64), key, ua)
        _sample_block_jit(ca, ba, ca + np.uint64(256), ca + np.uint64(512), ua, column, n)
        for k in range(rest):
            ps[start + k], ss[start + k] = spare[64 + k], spare[128 + k]


@kernel("MrMMu")
def sigmoid_sample_scalar(z: Array, b: Array, probability: Array, sample: Array, key: int) -> None:
    """The same for float64, an element at a time."""
    zs, ps, ss = z.reshape(-1), probability.reshape(-1), sample.reshape(-1)
    u, n, one = np.empty(64, np.float32), z.shape[1], z.dtype.type(1)
    for start in range(0, zs.size, 64):
        lanes.uniform_block(np.uint64(start // 64), key, np.uint64(u.ctypes.data))
        for k in range(start, min(start + 64, zs.size)):
            p = one / (one + exp_jit(-np.float64(zs[k] + b[k % n])))
            ps[k] = p
            ss[k] = one if u[k - start] < p else one - one


@kernel("Mr")
def sigmoid_lanes(z: Array, b: Array) -> None:
    """float32: ``z = sigmoid(z + b)``."""
    size, n, column = z.size, z.shape[1], 0
    bias, spare = _wrapped_jit(b), np.zeros(16, z.dtype)
    za, ba, ca = np.uint64(z.ctypes.data), np.uint64(bias.ctypes.data), np.uint64(spare.ctypes.data)
    for group in range(size // 16):
        at = za + np.uint64(64 * group)
        lanes.store(at, lanes.sigmoid(lanes.add(lanes.load(at), lanes.load(ba + np.uint64(4 * column)))))
        column = _next_jit(column, n)
    start = size // 16 * 16
    if start < size:
        rest = z.reshape(-1)[start:]
        for k in range(rest.size):
            spare[k] = rest[k]
        lanes.store(ca, lanes.sigmoid(lanes.add(lanes.load(ca), lanes.load(ba + np.uint64(4 * column)))))
        for k in range(rest.size):
            rest[k] = spare[k]


@kernel("Mr")
def tanh_lanes(z: Array, b: Array) -> None:
    """float32: ``z = tanh(z + b)``, which reaches -1 and 1."""
    size, n, column = z.size, z.shape[1], 0
    bias, spare = _wrapped_jit(b), np.zeros(16, z.dtype)
    za, ba, ca = np.uint64(z.ctypes.data), np.uint64(bias.ctypes.data), np.uint64(spare.ctypes.data)
    for group in range(size // 16):
        at = za + np.uint64(64 * group)
        lanes.store(at, lanes.tanh(lanes.add(lanes.load(at), lanes.load(ba + np.uint64(4 * column)))))
        column = _next_jit(column, n)
    start = size // 16 * 16
    if start < size:
        rest = z.reshape(-1)[start:]
        for k in range(rest.size):
            spare[k] = rest[k]
        lanes.store(ca, lanes.tanh(lanes.add(lanes.load(ca), lanes.load(ba + np.uint64(4 * column)))))
        for k in range(rest.size):
            rest[k] = spare[k]


@kernel("mu")
def uniform_lanes(out: Array, key: int) -> None:
    """float32: the stream itself."""
    whole, spare = out.size // 64, np.empty(64, out.dtype)
    address = np.uint64(out.ctypes.data)
    for block in range(whole):
        lanes.uniform_block(np.uint64(block), key, address + np.uint64(256 * block))
    if out.size % 64:
        lanes.uniform_block(np.uint64(whole), key, np.uint64(spare.ctypes.data))
        rest = out[whole * 64 :]
        for k in range(rest.size):
            rest[k] = spare[k]


def _fill(u: Array, start: int, count: int, key: int) -> None:
    """Write the uniforms of elements ``start ... start + count`` to ``u``; ``start`` is a multiple of 64."""
    for block in range((count + 63) // 64):
        lanes.uniform_block(np.uint64(start // 64 + block), key, np.uint64(u.ctypes.data) + np.uint64(256 * block))


_fill_jit: Any = helper(_fill)


@kernel("mu")
def uniform_scalar(out: Array, key: int) -> None:
    """float64: the same 24-bit numbers, widened."""
    u = np.empty(1024, np.float32)
    for start in range(0, out.size, 1024):
        part = out[start : start + 1024]
        _fill_jit(u, start, part.size, key)
        for k in range(part.size):
            part[k] = u[k]


@kernel("mrfu")
def dropout(out: Array, x: Array, retain: float, key: int) -> None:
    """``out = x / retain`` where ``u < retain``, else 0."""
    u, zero = np.empty(1024, np.float32), x.dtype.type(0)
    bound, scale = np.float32(retain), x.dtype.type(1.0 / retain)
    for start in range(0, out.size, 1024):
        part, source = out[start : start + 1024], x[start : start + 1024]
        _fill_jit(u, start, part.size, key)
        for k in range(part.size):
            kept = source[k] * scale  # computed in any case: a conditional load would not vectorise
            part[k] = kept if u[k] < bound else zero


@kernel("mrfu")
def corrupt(out: Array, x: Array, level: float, key: int) -> None:
    """``out = 0`` where ``u < level``, else ``x``."""
    u, zero, bound = np.empty(1024, np.float32), x.dtype.type(0), np.float32(level)
    for start in range(0, out.size, 1024):
        part, source = out[start : start + 1024], x[start : start + 1024]
        _fill_jit(u, start, part.size, key)
        for k in range(part.size):
            kept = source[k]
            part[k] = zero if u[k] < bound else kept
