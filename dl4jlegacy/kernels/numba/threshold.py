"""The threshold codec, compiled: one pass each, where ``numpy.threshold`` needs several."""

from __future__ import annotations

from typing import Any

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.kernels.numba import lanes
from dl4jlegacy.kernels.numba.compile import helper, kernel

__all__ = ["threshold_decode", "threshold_encode", "threshold_encode_lines"]


@kernel("mCfiii")
def threshold_encode(residual: Array, codes: Array, tau: float, low: int, high: int, found: int) -> int:
    """Write the codes of elements ``low`` to ``high`` from ``codes[found]`` on, and subtract their quanta."""
    quantum = residual.dtype.type(tau)
    for i in range(low, high):
        if found == codes.size:
            break
        if abs(residual[i]) >= quantum:
            codes[found] = i + 1 if residual[i] > 0 else -(i + 1)
            residual[i] -= quantum if residual[i] > 0 else -quantum
            found += 1
    return found


def _reaching(address: Any, bound: Any) -> Any:
    """Return a bit for each of the sixty-four float32 at ``address``: whether its size is at least ``bound``."""
    bits = np.uint64(0)
    for line in range(4):
        here = lanes.load(address + np.uint64(64 * line))
        bits |= lanes.reach(here, bound) << np.uint64(16 * line)
    return bits


_reaching_jit: Any = helper(_reaching)


@kernel("mCfiii")
def threshold_encode_lines(residual: Array, codes: Array, tau: float, low: int, high: int, found: int) -> int:
    """float32: the same for whole lines of 64, of which most have no codes or very few."""
    quantum = residual.dtype.type(tau)
    bound, address = lanes.splat(quantum), np.uint64(residual.ctypes.data)
    for line in range(low, high, 64):
        bits = _reaching_jit(address + np.uint64(4 * line), bound)
        while bits and found < codes.size:
            i = line + lanes.lowest(bits)
            codes[found] = i + 1 if residual[i] > 0 else -(i + 1)
            residual[i] -= quantum if residual[i] > 0 else -quantum
            found += 1
            bits &= bits - np.uint64(1)
    return found


@kernel("mcf")
def threshold_decode(target: Array, codes: Array, tau: float) -> bool:
    """Add the quanta; return False before any addition if the codes do not ascend or lie outside."""
    quantum, last = target.dtype.type(tau), 0
    for code in codes:
        index = abs(int(code))
        if index <= last or index > target.size:
            return False
        last = index
    for code in codes:
        target[abs(int(code)) - 1] += quantum if code > 0 else -quantum
    return True
