"""How far the values of a column spread, in float64: what normalizers, steps of a table and regressors divide by.

Mean and variance are merged over parts after Chan, Golub and LeVeque 1983, "Algorithms for computing the sample
variance", of the distances from the first row: these are exactly 0 where a column never varies, however many rows it
has and however large its value is. A column whose values differ by rounding alone counts as one that never varies.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from dl4jlegacy.arrays.backend import Array

__all__ = ["mean_and_std", "weighted_mean_and_std", "width"]

_ROUNDING = 8 * np.finfo(np.float64).eps
"""Share of a value by which computing it in two ways can change it: a few of its last binary places."""


def mean_and_std(parts: Iterable[Array]) -> tuple[Array, Array]:
    """Return mean and standard deviation (of the population) of each column, ``(columns,)`` float64.

    Args:
        parts: ``(rows, columns)`` each, at least one row in all.

    Returns:
        the standard deviation is 1 where the values of a column differ by rounding alone.
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
    """Return what ``mean_and_std`` does of ``x (rows, columns)``, where each row counts for its weight, ``(rows,)``."""
    origin = x[0].astype(np.float64)
    shares = (weights / weights.max())[:, None]
    shares = shares / shares.sum()
    distances = x - origin
    mean = (distances * shares).sum(axis=0)
    std = np.sqrt(((distances - mean) ** 2 * shares).sum(axis=0))
    mean = origin + mean
    return mean, _or_1(std, mean)


def width(low: Any, high: Any) -> Array:
    """Return ``high - low`` of each column; 1 where they differ by rounding alone."""
    low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
    return _or_1(high - low, np.maximum(np.abs(low), np.abs(high)))


def _or_1(spread: Array, value: Array) -> Array:
    return np.where(spread > _ROUNDING * np.abs(value), spread, 1.0)
