"""Compiled updaters: one read-and-write pass over the flat vectors, ``params -= up``, with a test for finite results.

Formulas and sources are in ``Kernels``. Hyper-parameters are float64 arguments, rounded once to the vectors' dtype;
the caller computes values that depend only on the iteration.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.kernels.numba import team
from dl4jlegacy.kernels.numba.compile import helper, kernel
from dl4jlegacy.kernels.numba.work_queue import get, vector_at

__all__ = [
    "adabelief",
    "adadelta",
    "adagrad",
    "adam",
    "adamax",
    "amsgrad",
    "decay",
    "nadam",
    "nesterovs",
    "rmsprop",
    "sgd",
]


_LINE = 64  # elements of which parts of vectors are made up


@kernel("mrf")
def sgd(params: Array, gradient: Array, lr: float) -> bool:
    """``up = lr g``."""
    rate = params.dtype.type(lr)
    bad = False
    for i in range(params.size):
        moved = params[i] - rate * gradient[i]
        params[i] = moved
        bad |= moved - moved != 0
    return not bad


@kernel("mrmff")
def nesterovs(params: Array, gradient: Array, v: Array, lr: float, mu: float) -> bool:
    """``v' = mu v - lr g; up = mu v - (1 + mu) v'``."""
    kind = params.dtype.type
    rate, momentum, ahead = kind(lr), kind(mu), kind(1.0 + mu)
    bad = False
    for i in range(params.size):
        old = v[i]
        new = momentum * old - rate * gradient[i]
        v[i] = new
        moved = params[i] - (momentum * old - ahead * new)
        params[i] = moved
        bad |= moved - moved != 0
    return not bad


@helper
def _adagrad(params: Array, gradient: Array, h: Array, lr: float, eps: float) -> bool:
    kind = params.dtype.type
    rate, small = kind(lr), kind(eps)
    bad = False
    for i in range(params.size):
        g = gradient[i]
        total = h[i] + g * g
        h[i] = total
        moved = params[i] - rate * g / (np.sqrt(total) + small)
        params[i] = moved
        bad |= moved - moved != 0
    return not bad


@kernel("mrmff")
def _adagrad_alone(params: Array, gradient: Array, h: Array, lr: float, eps: float) -> bool:
    is_finite: bool = _adagrad(params, gradient, h, lr, eps)
    return is_finite


@helper
def _adagrad_part(kind: Any, numbers: int, part: int) -> None:
    """Compute a part of ``adagrad``; the numbers are those of ``team.share_vectors``."""
    size, parts = get(numbers + 24), get(numbers + 32)
    begin, end = size * part // parts // _LINE * _LINE, size * (part + 1) // parts // _LINE * _LINE
    if part == parts - 1:
        end = size
    params, gradient = vector_at(kind, get(numbers), size), vector_at(kind, get(numbers + 8), size)
    h, more = vector_at(kind, get(numbers + 16), size), vector_at(np.float64, numbers + 40, 3)
    if not _adagrad(params[begin:end], gradient[begin:end], h[begin:end], more[0], more[1]):
        more[2] = 0.0  # whichever thread comes to it: nobody writes anything else


def _adagrad_float32(numbers: int, part: int, scratch: int) -> int:
    _adagrad_part(np.float32, numbers, part)
    return 0


def _adagrad_float64(numbers: int, part: int, scratch: int) -> int:
    _adagrad_part(np.float64, numbers, part)
    return 0


def adagrad(params: Array, gradient: Array, h: Array, lr: float, eps: float) -> bool:
    """``h += g^2; up = lr g / (sqrt(h) + eps)``; threads divide long vectors: each element is computed separately."""
    part = _adagrad_float32 if params.dtype == np.float32 else _adagrad_float64
    shared = team.share_vectors(part, (params, gradient, h), (lr, eps, 1.0))
    return bool(_adagrad_alone(params, gradient, h, lr, eps) if shared is None else shared[2])


@kernel("mrmfff")
def rmsprop(params: Array, gradient: Array, c: Array, lr: float, decay: float, eps: float) -> bool:
    """``c = decay c + (1 - decay) g^2; up = lr g / (sqrt(c) + eps)``."""
    kind = params.dtype.type
    rate, small, old, new = kind(lr), kind(eps), kind(decay), kind(1.0 - decay)
    bad = False
    for i in range(params.size):
        g = gradient[i]
        mean = old * c[i] + new * g * g
        c[i] = mean
        moved = params[i] - rate * g / (np.sqrt(mean) + small)
        params[i] = moved
        bad |= moved - moved != 0
    return not bad


@kernel("mrmmffff")
def adam(params: Array, gradient: Array, m: Array, v: Array,
         rate: float, beta1: float, beta2: float, eps: float) -> bool:  # fmt: skip
    """``up = rate m / (sqrt(v) + eps)``."""
    kind = params.dtype.type
    step, small, b1, b2, c1, c2 = kind(rate), kind(eps), kind(beta1), kind(beta2), kind(1.0 - beta1), kind(1.0 - beta2)
    bad = False
    for i in range(params.size):
        g = gradient[i]
        mean, square = b1 * m[i] + c1 * g, b2 * v[i] + c2 * g * g
        m[i], v[i] = mean, square
        moved = params[i] - step * mean / (np.sqrt(square) + small)
        params[i] = moved
        bad |= moved - moved != 0
    return not bad


@kernel("mf")
def decay(params: Array, factor: float) -> None:
    """``params -= factor params``."""
    share = params.dtype.type(factor)
    for i in range(params.size):
        params[i] -= share * params[i]


@kernel("mrmmfff")
def adamax(params: Array, gradient: Array, m: Array, u: Array, rate: float, beta1: float, beta2: float) -> bool:
    """``u = max(beta2 u, |g|) + 1e-32; up = rate m / u``."""
    kind = params.dtype.type
    step, tiny, b1, b2, c1 = kind(rate), kind(1e-32), kind(beta1), kind(beta2), kind(1.0 - beta1)
    bad = False
    for i in range(params.size):
        g = gradient[i]
        mean, decayed, size = b1 * m[i] + c1 * g, b2 * u[i], abs(g)
        top = (decayed if decayed > size else size) + tiny
        m[i], u[i] = mean, top
        moved = params[i] - step * mean / top
        params[i] = moved
        bad |= moved - moved != 0
    return not bad


@kernel("mrmmff")
def adadelta(params: Array, gradient: Array, msg: Array, msdx: Array, rho: float, eps: float) -> bool:
    """``up = g sqrt(msdx + eps) / sqrt(msg + eps)``."""
    kind = params.dtype.type
    small, old, new = kind(eps), kind(rho), kind(1.0 - rho)
    bad = False
    for i in range(params.size):
        g = gradient[i]
        square, before = old * msg[i] + new * g * g, msdx[i]
        up = g * np.sqrt(before + small) / np.sqrt(square + small)
        msg[i], msdx[i] = square, old * before + new * up * up
        moved = params[i] - up
        params[i] = moved
        bad |= moved - moved != 0
    return not bad


@kernel("mrmmffff")
def nadam(params: Array, gradient: Array, m: Array, v: Array,
          rate: float, beta1: float, beta2: float, eps: float) -> bool:  # fmt: skip
    """``up = rate (beta1 m + (1 - beta1) g) / (sqrt(v) + eps)``."""
    kind = params.dtype.type
    step, small, b1, b2, c1, c2 = kind(rate), kind(eps), kind(beta1), kind(beta2), kind(1.0 - beta1), kind(1.0 - beta2)
    bad = False
    for i in range(params.size):
        g = gradient[i]
        mean, square = b1 * m[i] + c1 * g, b2 * v[i] + c2 * g * g
        m[i], v[i] = mean, square
        moved = params[i] - step * (b1 * mean + c1 * g) / (np.sqrt(square) + small)
        params[i] = moved
        bad |= moved - moved != 0
    return not bad


@kernel("mrmmmffff")
def amsgrad(params: Array, gradient: Array, m: Array, v: Array, v_hat: Array,
            rate: float, beta1: float, beta2: float, eps: float) -> bool:  # fmt: skip
    """``v_hat = max(v_hat, v); up = rate m / (sqrt(v_hat) + eps)``."""
    kind = params.dtype.type
    step, small, b1, b2, c1, c2 = kind(rate), kind(eps), kind(beta1), kind(beta2), kind(1.0 - beta1), kind(1.0 - beta2)
    bad = False
    for low in range(0, params.size, 1024):  # two loops over a cached stretch: five arrays in one do not vectorise
        high = low + 1024
        p, grad, mean, square, top = params[low:high], gradient[low:high], m[low:high], v[low:high], v_hat[low:high]
        for i in range(p.size):
            g = grad[i]
            mean[i], square[i] = b1 * mean[i] + c1 * g, b2 * square[i] + c2 * g * g
        for i in range(p.size):
            largest = top[i] if top[i] > square[i] else square[i]
            top[i] = largest
            moved = p[i] - step * mean[i] / (np.sqrt(largest) + small)
            p[i] = moved
            bad |= moved - moved != 0
    return not bad


@kernel("mrmmffff")
def adabelief(params: Array, gradient: Array, m: Array, s: Array,
              rate: float, beta1: float, beta2: float, eps: float) -> bool:  # fmt: skip
    """``s = beta2 s + (1 - beta2) (g - m)^2 + eps; up = rate m / (sqrt(s) + eps)``."""
    kind = params.dtype.type
    step, small, b1, b2, c1, c2 = kind(rate), kind(eps), kind(beta1), kind(beta2), kind(1.0 - beta1), kind(1.0 - beta2)
    bad = False
    for i in range(params.size):
        g = gradient[i]
        mean = b1 * m[i] + c1 * g
        surprise = g - mean
        square = b2 * s[i] + c2 * surprise * surprise + small
        m[i], s[i] = mean, square
        moved = params[i] - step * mean / (np.sqrt(square) + small)
        params[i] = moved
        bad |= moved - moved != 0
    return not bad
