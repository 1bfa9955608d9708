"""Compiled passes over flat vectors: the weighted sum of the aggregators, regularization, the finiteness check."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray  # type: ignore[attr-defined,unused-ignore]

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.kernels.numba import lanes
from dl4jlegacy.kernels.numba.compile import helper, kernel

__all__ = ["add_regularization", "axpy", "finite", "noop", "sum_lines", "sum_span"]


@kernel("mAWii")
def sum_span(out: Array, addresses: Array, weights: Array, start: int, stop: int) -> None:
    """Compute ``out[start:stop]`` of the weighted sum; chunks stay in the first-level cache during the additions.

    Product and sum are rounded separately: any division into spans, and NumPy, give the same bits.
    """
    n, kind = out.size, out.dtype.type
    for low in range(start, stop, 2048):
        part = out[low : min(low + 2048, stop)]
        weight, vector = kind(weights[0]), carray(lanes.pointer(addresses[0], out), n)[low:]
        for i in range(part.size):
            part[i] = weight * vector[i]
        for k in range(1, addresses.size):
            weight, vector = kind(weights[k]), carray(lanes.pointer(addresses[k], out), n)[low:]
            for i in range(part.size):
                part[i] += weight * vector[i]


def _line(sources: Array, weights: Array, offset: int, target: int, past_caches: bool) -> None:
    """Sixty-four float32 at byte ``offset`` of every source: four sums in registers, written once to ``target``."""
    for at in range(0, 256, 64):
        here = offset + np.uint64(at)
        total = lanes.mul(lanes.splat(np.float32(weights[0])), lanes.load(sources[0] + here))
        for k in range(1, sources.size):
            total = lanes.add(total, lanes.mul(lanes.splat(np.float32(weights[k])), lanes.load(sources[k] + here)))
        if past_caches:
            lanes.stream(target + here, total)
        else:
            lanes.store(target + here, total)


_line_jit: Any = helper(_line)


@kernel("mAWiii")
def sum_lines(out: Array, addresses: Array, weights: Array, start: int, stop: int, past_caches: int) -> None:
    """float32: the same sum for ``start ... stop``, a multiple of 64 elements, each read and written once.

    ``past_caches`` avoids reading the lines that are overwritten; ``out[start]`` must then be aligned to 64 bytes.
    """
    target = np.uint64(out.ctypes.data)
    for line in range(start, stop, 64):
        _line_jit(addresses, weights, np.uint64(4 * line), target, past_caches != 0)
    lanes.fence()


@kernel("mr")
def noop(params: Array, gradient: Array) -> bool:
    """``params -= gradient``; return whether all are finite."""
    bad = False
    for i in range(params.size):
        moved = params[i] - gradient[i]
        params[i] = moved
        bad |= moved - moved != 0
    return not bad


@kernel("mrf")
def axpy(y: Array, x: Array, a: float) -> None:
    """``y += a x``."""
    scale = y.dtype.type(a)
    for i in range(y.size):
        y[i] += scale * x[i]


@kernel("mrff")
def add_regularization(gradient: Array, params: Array, l1: float, l2: float) -> None:
    """``gradient += l2 params + l1 sign(params)``."""
    kind = gradient.dtype.type
    lasso, ridge, zero = kind(l1), kind(l2), kind(0)
    for i in range(gradient.size):
        p = params[i]
        sign = lasso if p > zero else (-lasso if p < zero else zero)
        gradient[i] += ridge * p + sign


@kernel("r")
def finite(x: Array) -> bool:
    """Return whether all numbers are finite, that is whether ``x - x`` is 0; stop at the first block with another."""
    for low in range(0, x.size, 16384):
        part = x[low : low + 16384]
        bad = False
        for i in range(part.size):
            bad |= part[i] - part[i] != 0
        if bad:
            return False
    return True
