"""Spread of the values in a column, in float64: the divisors of normalizers, of table steps and of regressors.

Mean and variance are merged over parts after Chan, Golub and LeVeque 1983, "Algorithms for computing the sample
variance". They are computed from differences to the first row, which are exactly 0 in a constant column, for any number
of rows and any size of the value. A column whose values differ only by rounding counts as constant.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from dl4jlegacy.arrays.backend import Array

__all__ = ["differ", "mean_and_std", "weighted_mean_and_std", "width"]

_ROUNDING = 8 * np.finfo(np.float64).eps
"""Relative difference between two ways to compute a value, at most: a few of its last binary digits."""


def mean_and_std(parts: Iterable[Array]) -> tuple[Array, Array]:
    """Return mean and standard deviation (of the population) of each column, ``(columns,)`` float64.

    Args:
        parts: ``(rows, columns)`` each, at least one row in total.

    Returns:
        the standard deviation is 1 if the values of a column differ only by rounding.
    """
    origin = mean = squares = np.zeros(1)
    count = 0
    for part in parts:
        if not len(part):
            continue
        if not count:
            origin = part[0].astype(np.float64)
        x = part - origin
        part_mean = x.mean(axis=0)
        x -= part_mean
        delta, total = part_mean - mean, count + len(x)
        squares = squares + (x**2).sum(axis=0) + delta**2 * (count * len(x) / total)
        mean = mean + delta * (len(x) / total)
        count = total
    mean, std = origin + mean, np.sqrt(squares / count)
    return mean, _or_1(std, mean)


def weighted_mean_and_std(x: Array, weights: Array) -> tuple[Array, Array]:
    """Return ``mean_and_std`` of ``x (rows, columns)`` with a weight for each row, ``(rows,)``."""
    origin = x[0].astype(np.float64)
    shares = (weights / weights.max())[:, None]
    shares = shares / shares.sum()
    distances = x - origin
    mean = (distances * shares).sum(axis=0)
    std = np.sqrt(((distances - mean) ** 2 * shares).sum(axis=0))
    mean = origin + mean
    return mean, _or_1(std, mean)


def width(low: Any, high: Any) -> Array:
    """Return ``high - low`` of each column; 1 if they differ only by rounding."""
    low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
    return np.where(differ(low, high), high - low, 1.0)


def differ(low: Array, high: Array) -> npt.NDArray[np.bool_]:
    """Return for each pair whether ``high`` is the larger one by more than rounding."""
    return _is_more(high - low, np.maximum(np.abs(low), np.abs(high)))


def _or_1(spread: Array, value: Array) -> Array:
    return np.where(_is_more(spread, value), spread, 1.0)


def _is_more(spread: Array, value: Array) -> npt.NDArray[np.bool_]:
    more: npt.NDArray[np.bool_] = spread > _ROUNDING * np.abs(value)
    return more
