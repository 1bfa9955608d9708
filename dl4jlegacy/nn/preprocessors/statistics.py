"""Preprocessors that change values and leave the type as it is: standardised by the batch's columns, or sampled.

Legacy: ``UnitVarianceProcessor``, ``ZeroMeanPrePreProcessor``, ``ZeroMeanAndUnitVariancePreProcessor`` and
``BinomialSamplingPreProcessor`` of ``org.deeplearning4j.nn.conf.preprocessor``, with three differences:

- their ``backprop`` hands the gradient on as it is; here it is the derivative, mean and deviation included. Only
  sampling, which has none, passes it straight through (Bengio 2013);
- they take rows alone; here sequences too, by value over all time steps of all examples. What the mask leaves out does
  not count, and where a single row counts there is no deviation and nothing is divided;
- they overwrite their input.

As there, mean and deviation are always those of the batch at hand, in prediction too: what leaves depends on the other
examples. ``BatchNormalization`` is the layer that keeps running ones.
"""

from __future__ import annotations

from typing import ClassVar

from dl4jlegacy.backend import Array, get_array_module
from dl4jlegacy.nn.input_type import AnyInputType, InputTypeConvolutional
from dl4jlegacy.nn.preprocessors.base import Back, PreProcessor
from dl4jlegacy.nn.step import Step

__all__ = [
    "BinomialSamplingPreProcessor",
    "UnitVarianceProcessor",
    "ZeroMeanAndUnitVariancePreProcessor",
    "ZeroMeanPrePreProcessor",
]

_EPS = 1e-5
"""Added to every deviation, as ``Nd4j.EPS_THRESHOLD`` is: a column that does not vary is divided by this."""


class _Columns(PreProcessor, frozen=True, kw_only=True):
    """``y = (x - mean) / (deviation + eps)`` by column, either part of it left out or not."""

    centres: ClassVar[bool] = False
    scales: ClassVar[bool] = False

    @property
    def keeps_type(self) -> bool:
        """They do."""
        return True

    def output_type(self, given: AnyInputType) -> AnyInputType:
        """Return the same type."""
        if isinstance(given, InputTypeConvolutional):
            raise self._refuse(
                given,
                "rows or sequences (a ComposableInputPreProcessor can have a CnnToFeedForwardPreProcessor before it; a "
                "BatchNormalization layer takes images)",
            )
        return given

    def forward(self, x: Array, step: Step) -> tuple[Array, Back]:
        """Standardise the columns of rows, or of the time steps of sequences."""
        xp = get_array_module(x)
        rows = x.reshape(-1, x.shape[-1])
        mask = step.mask
        # A factor for every row, and how many count: a number, or where there is a mask an array of none dimensions.
        counts = mask.reshape(-1, 1) if mask is not None and mask.size == len(rows) else None
        n = len(rows) if counts is None else xp.maximum(counts.sum(), 1)
        mean = _sum(rows, counts) / n
        centred = rows - mean
        y = centred if self.centres else rows
        if not self.scales:
            return y.reshape(x.shape), lambda dy: _centred_back(dy, counts, n)
        degrees = max(n - 1, 1) if counts is None else xp.maximum(n - 1, 1)
        deviation = xp.sqrt(_sum(centred * centred, counts) / degrees)
        divisor = deviation + _EPS
        if counts is not None:
            divisor = xp.where(n > 1, divisor, xp.ones_like(divisor))
        elif n == 1:
            divisor = xp.ones_like(divisor)
        y = y / divisor

        def back(dy: Array) -> Array:
            """With s the deviation: ds/dx = (x - mean) / ((n - 1) s), which is taken for 0 where s is."""
            d = dy.reshape(rows.shape)
            slope = -(d * y).sum(axis=0) / (divisor * degrees * xp.where(deviation > 0, deviation, 1))
            through = centred * slope
            dx: Array = d / divisor
            if self.centres:
                through -= dx.sum(axis=0) / n
            dx += through if counts is None else counts * through
            return dx.reshape(x.shape)

        return y.reshape(x.shape), back


def _sum(rows: Array, counts: Array | None) -> Array:
    total: Array = (rows if counts is None else rows * counts).sum(axis=0)
    return total


def _centred_back(dy: Array, counts: Array | None, n: int | Array) -> Array:
    d = dy.reshape(-1, dy.shape[-1])
    through = d.sum(axis=0) / n
    dx: Array = d - (through if counts is None else counts * through)
    return dx.reshape(dy.shape)


class ZeroMeanPrePreProcessor(_Columns, frozen=True, kw_only=True, tag="zero_mean"):
    """Every column minus its mean over the batch. (The name is DL4J's.)"""

    centres: ClassVar[bool] = True


class UnitVarianceProcessor(_Columns, frozen=True, kw_only=True, tag="unit_variance"):
    """Every column divided by its standard deviation over the batch (of n - 1 degrees of freedom), plus 1e-5."""

    scales: ClassVar[bool] = True


class ZeroMeanAndUnitVariancePreProcessor(_Columns, frozen=True, kw_only=True, tag="zero_mean_and_unit_variance"):
    """Every column minus its mean, divided by its standard deviation plus 1e-5."""

    centres: ClassVar[bool] = True
    scales: ClassVar[bool] = True


class BinomialSamplingPreProcessor(PreProcessor, frozen=True, kw_only=True, tag="binomial_sampling"):
    """1 with the probability that a value says, else 0; of any type.

    Drawn in prediction too, as in DL4J, but there always from the same random numbers. The gradient passes straight
    through, as if nothing had been drawn.
    """

    @property
    def keeps_type(self) -> bool:
        """It does."""
        return True

    def output_type(self, given: AnyInputType) -> AnyInputType:
        """Return the same type."""
        return given

    def forward(self, x: Array, step: Step) -> tuple[Array, Back]:
        """Draw a value for each; lanes of tiles that hold no example get finite ones too."""
        y = step.buffer("binomial", x.shape, x)
        step.kernels.uniform(y, step.key("binomial"))
        y[...] = y < x
        return y, lambda dy: dy
