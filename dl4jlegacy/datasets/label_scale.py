"""LabelScale: converts numbers to predict between their own units and the network's (mean 0, standard deviation 1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.precision import far_columns

__all__ = ["LabelScale"]


@dataclass(frozen=True, slots=True)
class LabelScale:
    """Mean and standard deviation of each number to predict."""

    means: tuple[float, ...]
    stds: tuple[float, ...]

    def standardized(self, labels: Array) -> Array:
        """Return labels standardized for the network, float64; shapes as for ``in_units``."""
        scale, shift = self._like(labels)
        learned: Array = (labels - shift) / scale
        return learned

    def in_units(self, outputs: Array) -> Array:
        """Return a network's outputs, ``(examples, n_out)`` or ``(examples, n_out, time steps)``, in the labels' units.

        The result is float64 if float32 would lose the differences between labels that are far from 0.
        """
        scale, shift = self._like(outputs)
        scaled: Array = outputs.astype(np.float64) * scale + shift
        return scaled if far_columns(shift - 2 * scale, shift + 2 * scale).any() else scaled.astype(outputs.dtype)

    def _like(self, labels: Array) -> tuple[Array, Array]:
        """Return standard deviations and means in a shape that broadcasts with labels."""
        shape = (-1, 1) if labels.ndim == 3 else (-1,)
        return np.array(self.stds).reshape(shape), np.array(self.means).reshape(shape)
