"""``exp``, ``log``, ``tanh`` and similar functions with the same bits on every processor.

NumPy selects by processor among several codes for these functions, and so does the C library behind ``math``: their
last bits differ. Here they consist of additions, multiplications, divisions and exact steps (rounding, scaling by a
power of two), each of which IEEE 754 rounds in only one way. float32 is computed in float64 and rounded once at the
end; float64 is accurate to a few units in the last place. Arrays on a GPU are computed by CuPy: a run on GPUs is
repeatable on GPUs.

Pure functions; the dtype and the shape of the argument are kept, no argument is changed, and there are no warnings. In
a process with compiled kernels these functions are compiled, too (``numba.elementary``), with the same steps and bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from dl4jlegacy.arrays.backend import Array, Scalar, get_array_module, is_on_device

__all__ = [
    "exp",
    "expm1",
    "integer_power",
    "log",
    "log1p",
    "positive_power",
    "sine_and_cosine",
    "softplus",
    "sum_of_squares",
    "tanh",
    "use_compiled",
]

_BLOCK = 1 << 13  # elements at a time: what is between stays in the second-level cache
_COLUMNS = 64  # sums of squares side by side
_PER_LN2 = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10  # the first has 32 bits that are not zero
_ROOT_HALF = 0.7071067811865476
_EXP = tuple(1.0 / math.factorial(n) for n in range(13, -1, -1))
_LOG = tuple(1.0 / n for n in range(23, 0, -2))
_SINE = tuple((-1.0) ** (n // 2) / math.factorial(n) for n in range(17, 0, -2))
_COSINE = tuple((-1.0) ** (n // 2) / math.factorial(n) for n in range(18, -1, -2))

_Float64 = Callable[[Array], Array]


def _horner(x: Array, coefficients: Sequence[float]) -> Array:
    total = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total *= x
        total += coefficient
    return total


def _exp(x: Array) -> Array:
    """Return ``2^n exp(r)``, ``r`` at most half of ln 2: Taylor's series up to r^13 / 13!."""
    x = np.minimum(np.maximum(x, -746.0), 710.0)  # beyond, it is 0 or infinity anyway; a NaN stays one
    n = np.rint(x * _PER_LN2)
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    return np.ldexp(_horner(r, _EXP), np.nan_to_num(n).astype(np.int32))


def _log(x: Array) -> Array:
    """Return ``e ln 2 + 2 artanh((m - 1) / (m + 1))`` for ``x = m 2^e``, ``m`` between the roots of 1/2 and 2."""
    m, e = np.frexp(x)
    small = m < _ROOT_HALF
    m = np.where(small, m + m, m)
    e = e - small
    s = (m - 1.0) / (m + 1.0)
    result = e * _LN2_LOW + 2.0 * s * _horner(s * s, _LOG) + e * _LN2_HIGH
    result = np.where(x > 0.0, result, np.where(x == 0.0, -np.inf, np.nan))
    return np.where(x == np.inf, np.inf, result)


def _expm1(x: Array) -> Array:
    """Return ``exp(x) - 1`` by Kahan's method: its logarithm compensates for the rounding of ``exp(x)``."""
    u = _exp(x)
    v = u - 1.0
    plain = (u == 1.0) | (v == -1.0) | ~np.isfinite(u)
    return np.where(u == 1.0, x, np.where(plain, v, v * (x / _log(np.where(plain, 2.0, u)))))


def _log1p(x: Array) -> Array:
    """Return ``log(1 + x)`` by Kahan's method."""
    u = 1.0 + x
    v = u - 1.0
    plain = (v == 0.0) | ~np.isfinite(u)
    return np.where(v == 0.0, x, np.where(plain, _log(u), _log(u) * (x / np.where(plain, 1.0, v))))


def _tanh(x: Array) -> Array:
    grown = _expm1(2.0 * np.minimum(np.abs(x), 22.0))
    return np.where(np.isnan(x), x, np.copysign(grown / (grown + 2.0), x))


def _sine_and_cosine(turns: Array) -> tuple[Array, Array]:
    """Return sine and cosine of ``2 pi turns``: reduced to quarters, the rest at most an eighth of a turn."""
    quarter = np.rint(4.0 * turns)
    angle = (turns - 0.25 * quarter) * (2.0 * math.pi)
    square = angle * angle
    sine, cosine = angle * _horner(square, _SINE), _horner(square, _COSINE)
    which = quarter.astype(np.int64) & 3
    swapped = (which & 1) == 1
    first, second = np.where(swapped, cosine, sine), np.where(swapped, sine, cosine)
    return np.where(which >= 2, -first, first), np.where((which == 1) | (which == 2), -second, second)


_compiled: list[Any] = []


def use_compiled(functions: Any) -> None:
    """Use a module with compiled versions of the functions from now on: they are faster, with the same bits."""
    _compiled[:] = [functions]


def _by_blocks(function: _Float64, x: Any, name: str = "") -> Any:
    """Return ``function`` applied to every element, computed in float64; ``name`` is its compiled version's name."""
    given = np.asarray(x)
    if given.dtype.char not in "fd":
        given = given.astype(np.float64)
    flat = np.ascontiguousarray(given).reshape(-1)  # a column of a matrix stays strided when it is reshaped
    result = np.empty(flat.shape, given.dtype)
    if name and _compiled:
        getattr(_compiled[0], name)(result, flat)
        return result.reshape(given.shape)[()]
    with np.errstate(all="ignore"):
        for start in range(0, flat.size, _BLOCK):
            part = slice(start, start + _BLOCK)
            result[part] = function(flat[part].astype(np.float64, copy=False))
    return result.reshape(given.shape)[()]


def _portable(name: str, function: _Float64, on_device: Callable[[ModuleType, Array], Array]) -> Callable[[Any], Any]:
    def apply(x: Any) -> Any:
        if is_on_device(x):
            return on_device(get_array_module(x), x)
        return _by_blocks(function, x, name)

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"Return ``{name}(x)``, element by element."
    return apply


exp = _portable("exp", _exp, lambda xp, x: xp.exp(x))
expm1 = _portable("expm1", _expm1, lambda xp, x: xp.expm1(x))
log = _portable("log", _log, lambda xp, x: xp.log(x))
log1p = _portable("log1p", _log1p, lambda xp, x: xp.log1p(x))
tanh = _portable("tanh", _tanh, lambda xp, x: xp.tanh(x))


def softplus(x: Array) -> Array:
    """Return ``log(1 + exp(x))`` without overflow."""
    xp = get_array_module(x)
    result: Array = xp.maximum(x, 0) + log1p(exp(-xp.abs(x)))
    return result


def positive_power(x: Any, exponent: float) -> Any:
    """Return ``x ** exponent`` for non-negative ``x``, an array or a number; integer exponents by ``integer_power``."""
    result: Any
    if exponent == int(exponent):
        result = integer_power(x, int(exponent))
    elif exponent == 0.5:
        result = get_array_module(x).sqrt(x)
    elif is_on_device(x):
        result = x ** x.dtype.type(exponent)
    else:
        result = _by_blocks(lambda part: _exp(_log(part) * exponent), x)
    return result


def integer_power(x: Any, exponent: int) -> Any:
    """Return ``x ** exponent`` for an array or a number, by squaring: ``0 ** 0`` is 1."""
    if exponent < 0:
        return 1.0 / integer_power(x, -exponent)
    result, square, first = x * 0 + 1, x, True
    while exponent:
        if exponent & 1:
            result, first = (square if first else result * square), False
        exponent >>= 1
        if exponent:
            square = square * square
    return result


def sine_and_cosine(turns: Array) -> tuple[Array, Array]:
    """Return the sine and the cosine of ``2 pi turns``, turns between 0 and 1, on the host."""
    given, flat = np.asarray(turns), np.asarray(turns).reshape(-1)
    sine, cosine = np.empty(flat.shape, given.dtype), np.empty(flat.shape, given.dtype)
    for start in range(0, flat.size, _BLOCK):
        part = slice(start, start + _BLOCK)
        sine[part], cosine[part] = _sine_and_cosine(flat[part].astype(np.float64, copy=False))
    return sine.reshape(given.shape), cosine.reshape(given.shape)


def sum_of_squares(x: Array) -> Scalar:
    """Return the sum of squares of a flat array, on the device of ``x``; on the host by 64 interleaved sums."""
    if is_on_device(x):
        return get_array_module(x).square(x).sum(dtype=np.float64)
    sums = np.zeros(_COLUMNS)
    if _compiled:
        _compiled[0].square_sums(np.ascontiguousarray(x), sums)
    else:
        for start in range(0, x.size, _COLUMNS):
            part = x[start : start + _COLUMNS].astype(np.float64)
            sums[: part.size] += part * part
    total = 0.0
    for one in sums.tolist():
        total += one
    return total
