"""Compiled ``exp``, ``log`` and similar functions, with the same steps as ``kernels.elementary`` and so the same bits.

No operations are fused, and none calls the C library: LLVM vectorises the loops. The constants are repeated here, since
the cache identifies compiled code by the sources of this folder.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.kernels.numba import lanes
from dl4jlegacy.kernels.numba.compile import helper, kernel

__all__ = ["exp", "exp_jit", "expm1", "log", "log1p", "log_jit", "square_sums", "tanh", "tanh_jit"]

_PER_LN2 = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_ROOT_HALF = 0.7071067811865476
_EXP = tuple(1.0 / math.factorial(n) for n in range(13, -1, -1))
_LOG = tuple(1.0 / n for n in range(23, 0, -2))
_SMALLEST = 2.2250738585072014e-308  # of full precision
_INFINITY = math.inf
_MANTISSA, _HALF = (1 << 52) - 1, 1022 << 52


def _exp(x: float) -> float:
    x = -746.0 if x < -746.0 else x
    x = 710.0 if x > 710.0 else x
    n = np.rint(x * _PER_LN2)
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    total = _EXP[0] * r + _EXP[1]
    total = (((total * r + _EXP[2]) * r + _EXP[3]) * r + _EXP[4]) * r + _EXP[5]
    total = (((total * r + _EXP[6]) * r + _EXP[7]) * r + _EXP[8]) * r + _EXP[9]
    total = (((total * r + _EXP[10]) * r + _EXP[11]) * r + _EXP[12]) * r + _EXP[13]
    power = np.int64(n if n == n else 0.0)
    half = power >> 1  # two factors, since one may be too small or too large for a number
    result: float = total * lanes.number((half + 1023) << 52) * lanes.number((power - half + 1023) << 52)
    return result


def _log(x: float) -> float:
    small = x < _SMALLEST
    bits = lanes.bits(x * 18014398509481984.0 if small else x)  # 2^54
    e = np.float64((bits >> 52) - (1022 + 54 if small else 1022))
    m = lanes.number((bits & _MANTISSA) | _HALF)
    low = m < _ROOT_HALF
    m = m + m if low else m
    e = e - 1.0 if low else e
    s = (m - 1.0) / (m + 1.0)
    square = s * s
    total = _LOG[0] * square + _LOG[1]
    total = (((total * square + _LOG[2]) * square + _LOG[3]) * square + _LOG[4]) * square + _LOG[5]
    total = (((total * square + _LOG[6]) * square + _LOG[7]) * square + _LOG[8]) * square + _LOG[9]
    total = (total * square + _LOG[10]) * square + _LOG[11]
    result = e * _LN2_LOW + 2.0 * s * total + e * _LN2_HIGH
    result = -_INFINITY if x == 0.0 else result
    result = math.nan if x < 0.0 else result
    return x if (x == _INFINITY) | (x != x) else result


exp_jit: Any = helper(_exp, forceinline=True)
log_jit: Any = helper(_log, forceinline=True)


def _expm1(x: float) -> float:
    u = exp_jit(x)
    v = u - 1.0
    plain = (u == 1.0) | (v == -1.0) | (u - u != 0.0)  # no branches: LLVM makes vectors of this
    mended = v * (x / log_jit(2.0 if plain else u))
    result = v if plain else mended
    return x if u == 1.0 else result


def _log1p(x: float) -> float:
    u = 1.0 + x
    v = u - 1.0
    plain = (v == 0.0) | (u - u != 0.0)
    found = log_jit(u)
    mended = found * (x / (1.0 if plain else v))
    result = found if plain else mended
    return x if v == 0.0 else result


expm1_jit: Any = helper(_expm1, forceinline=True)
log1p_jit: Any = helper(_log1p, forceinline=True)


def _tanh(x: float) -> float:
    size = abs(x)
    grown = expm1_jit(2.0 * (22.0 if size > 22.0 else size))
    result = grown / (grown + 2.0)
    return x if x != x else math.copysign(result, x)


tanh_jit: Any = helper(_tanh, forceinline=True)


@kernel("mr")
def exp(out: Array, x: Array) -> None:
    """``out = exp(x)``."""
    for i in range(x.size):
        out[i] = exp_jit(np.float64(x[i]))


@kernel("mr")
def expm1(out: Array, x: Array) -> None:
    """``out = exp(x) - 1``."""
    for i in range(x.size):
        out[i] = expm1_jit(np.float64(x[i]))


@kernel("mr")
def log(out: Array, x: Array) -> None:
    """``out = log(x)``."""
    for i in range(x.size):
        out[i] = log_jit(np.float64(x[i]))


@kernel("mr")
def log1p(out: Array, x: Array) -> None:
    """``out = log(1 + x)``."""
    for i in range(x.size):
        out[i] = log1p_jit(np.float64(x[i]))


@kernel("mr")
def tanh(out: Array, x: Array) -> None:
    """``out = tanh(x)``."""
    for i in range(x.size):
        out[i] = tanh_jit(np.float64(x[i]))


@kernel("rW")
def square_sums(x: Array, sums: Array) -> None:
    """Add the squares of ``x``, in 64 interleaved sums, to ``sums (64,)``, float64."""
    whole = x.size // 64 * 64
    for start in range(0, whole, 64):
        part = x[start : start + 64]
        for column in range(64):
            value = np.float64(part[column])
            sums[column] += value * value
    rest = x[whole:]
    for column in range(rest.size):
        value = np.float64(rest[column])
        sums[column] += value * value
