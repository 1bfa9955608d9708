"""Random numbers of distributions with the same bits on every processor, from a stream's generator.

NumPy's normal generator calls ``log1p`` of the C library in its tails; its exponential, log-normal and binomial ones
call ``exp`` and ``log`` everywhere. The last bits of these functions differ by machine. Here ``elementary`` functions
are used instead. Normals are NumPy's, except in the tails: one in some thousands is recomputed from the same random
bits.

Source of the normals: Marsaglia and Tsang 2000, "The ziggurat method for generating random variables"; of their tails:
Marsaglia 1964, "Generating a variable from the tail of the normal distribution".
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.kernels import elementary

__all__ = ["PART", "binomial", "exponential", "normal", "uniform"]

Shape = tuple[int, ...]

_TAIL, _PER_TAIL = 3.6541528853610087963519472518, 0.27366123732975827203338247596  # where it begins, and 1 / that
PART = 1 << 16  # normals at a time
_BESIDE = 0.022  # words that a normal needs besides its first one, on average
_REACH = 64 + int(10 * math.sqrt(_BESIDE * PART))  # that their number is off the average, at most
_SAME = 1e-13  # two logarithms of one number do not differ by more


def uniform(generator: np.random.Generator, shape: Shape, lower: float, upper: float) -> Array:
    """Return uniform float64 values of the given shape, on ``[lower, upper)``."""
    return lower + (upper - lower) * generator.random(shape)


def normal(generator: np.random.Generator, shape: Shape, mean: float = 0.0, std: float = 1.0) -> Array:
    """Return normal float64 values of the given shape."""
    values = np.empty(math.prod(shape))
    for start in range(0, values.size, PART):
        part = values[start : start + PART]
        again: Any = np.random.Philox()
        again.state = generator.bit_generator.state
        generator.standard_normal(out=part)
        places = np.flatnonzero(np.abs(part) > _TAIL)
        if places.size:
            part[places] = _tails(part[places], places, again.random_raw(part.size + part.size // 20 + 1024))
    return (mean + std * values).reshape(shape)


def _tails(found: Array, places: Array, words: Array) -> Array:
    """Return recomputed normals of the tails.

    The random word of a normal is found by its value. Its index exceeds the index of the normal by the number of extra
    words used before, about two in a hundred.

    Args:
        found: the normals, computed with NumPy's logarithm.
        places: the number of normals drawn before each.
        words: the random bits from the first normal on.
    """
    usual = (places * (1 + _BESIDE)).astype(np.intp)
    near = np.clip(usual[:, None] + np.arange(-_REACH, _REACH), 0, words.size - 1)
    units = (words[near] >> np.uint64(11)).astype(np.float64) * 2.0**-53
    sizes = _TAIL + -_PER_TAIL * elementary.log1p(-units)
    away = np.abs(sizes - np.abs(found)[:, None])
    best = (np.arange(len(found)), away.argmin(axis=1))
    return np.where(away[best] < _SAME, np.copysign(sizes[best], found), found)


def exponential(generator: np.random.Generator, shape: Shape) -> Array:
    """Return exponential float64 values of rate 1."""
    result: Array = -elementary.log1p(-generator.random(shape))
    return result


def binomial(generator: np.random.Generator, shape: Shape, trials: int, probability: float) -> Array:
    """Return numbers of successes as float64 values.

    They are found by inversion: the position of uniforms in the distribution function, whose steps are computed by
    ratios of neighbours from the most likely number outwards.
    """
    if not trials or probability in (0.0, 1.0):
        return np.full(shape, trials * probability)
    odds = probability / (1 - probability)
    numbers = np.arange(1, trials + 1, dtype=np.float64)
    ratios = (trials - numbers + 1) / numbers * odds  # of a number's probability to that of the one before
    top = min(trials, int((trials + 1) * probability))
    below = np.cumprod(1 / ratios[:top][::-1])[::-1]
    share = np.concatenate([below, [1.0], np.cumprod(ratios[top:])])
    upto = np.cumsum(share)
    result: Array = np.searchsorted(upto, generator.random(shape) * upto[-1], side="right").astype(np.float64)
    return result
