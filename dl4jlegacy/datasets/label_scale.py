"""LabelScale: converts numbers to predict between their own units and the network's (mean 0, standard deviation 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.columns.column_scale import mean_and_std
from dl4jlegacy.datasets.precision import far_columns
from dl4jlegacy.kernels.elementary import expm1, log1p

__all__ = ["LabelScale", "signed_log", "suits_log"]

_SKEWED = 1.5


@dataclass(frozen=True, slots=True)
class LabelScale:
    """Mean and standard deviation of each number to predict, or of its ``signed_log``.

    Attributes:
        means, stds: one for each number.
        limits: for each number, its smallest and its largest value in the training rows if the network learns its
            logarithm, else None; (): it learns no logarithm.
    """

    means: tuple[float, ...]
    stds: tuple[float, ...]
    limits: tuple[tuple[float, float] | None, ...] = ()

    @property
    def is_linear(self) -> bool:
        """Whether the network learns no logarithm."""
        return not any(self.limits)

    def standardized(self, labels: Array) -> Array:
        """Return labels standardized for the network, float64; shapes as for ``in_units``."""
        scale, shift = self._like(labels)
        learned: Array = (signed_log(labels, self._logged) - shift) / scale
        return learned

    def in_units(self, outputs: Array, *, limited: bool = True) -> Array:
        """Return a network's outputs, ``(examples, n_out)`` or ``(examples, n_out, time steps)``, in the labels' units.

        The result is float64 if float32 would lose the differences between labels that are far from 0. A number whose
        logarithm is learned stays between its ``limits``; labels, which may lie beyond, are not ``limited``.
        """
        scale, shift = self._like(outputs)
        scaled: Array = outputs.astype(np.float64) * scale + shift
        low, high = shift - 2 * scale, shift + 2 * scale
        for column in self._logged:
            ends = np.array(self.limits[column])
            least, most = signed_log(ends[:, None], (0,))[:, 0] if limited else (-np.inf, np.inf)
            values = np.clip(scaled[:, column], least, most)
            scaled[:, column] = np.sign(values) * expm1(np.abs(values))
            low[column], high[column] = ends
        return scaled if far_columns(low, high).any() else scaled.astype(outputs.dtype)

    @property
    def _logged(self) -> tuple[int, ...]:
        """The numbers whose logarithm is learned."""
        return tuple(index for index, limits in enumerate(self.limits) if limits)

    def _like(self, labels: Array) -> tuple[Array, Array]:
        """Return standard deviations and means in a shape that broadcasts with labels."""
        shape = (-1, 1) if labels.ndim == 3 else (-1,)
        return np.array(self.stds).reshape(shape), np.array(self.means).reshape(shape)


def signed_log(labels: Array, columns: Sequence[int]) -> Array:
    """Return labels with log(1 + y) in some columns, float64, and -log(1 - y) where y is negative.

    Shapes as for ``LabelScale.in_units``.
    """
    if not columns:
        return labels
    found: Array = labels.astype(np.float64)
    for column in columns:
        values = found[:, column]
        found[:, column] = np.sign(values) * log1p(np.abs(values))
    return found


def suits_log(labels: Array) -> bool:
    """Return whether numbers to predict are learned better by their logarithm.

    None is negative, their skewness is above 1.5, and that of log(1 + y) at most half as large in absolute value. On
    such labels a logarithm changed the mean absolute error by -25 to 0 %, and the root of the mean square by -11 to
    +4 %.
    """
    if not len(labels) or labels.min() < 0:
        return False
    skewness = _skewness(labels / max(labels.max(), 1.0))
    return skewness > _SKEWED and abs(_skewness(log1p(labels))) <= skewness / 2


def _skewness(values: Array) -> float:
    """Return the third standardized moment; 0 if the values do not differ."""
    [mean], [std] = mean_and_std([values.reshape(-1, 1)])
    standard = (values - mean) / std
    return float((standard * standard * standard).mean())
