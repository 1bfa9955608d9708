"""Loss functions and their gradients with respect to the output: the table of ``loss`` names.

A loss is a pair of pure functions of ``labels`` and output ``y``, both ``(m, n)``: the score of every example,
``(m,)``, and ``dL/dy``, ``(m, n)``, neither divided by the number of examples. Formulas, names and clipping are DL4J's
(``org.nd4j.linalg.lossfunctions.LossFunctions``). Only the score is clipped: for an activation with values near 0 or 1,
``Loss.gradient_before`` returns ``dL/dz`` without a division by ``y``, for any error of the output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dl4jlegacy.arrays.backend import Array, asarray, get_array_module, is_on_device
from dl4jlegacy.errors import ConfError, DataError, ShapeError, nearest
from dl4jlegacy.kernels.elementary import log
from dl4jlegacy.nn.optimization.functions import Activation

__all__ = ["LOSSES", "Loss", "Weights", "loss"]

XENT_CLIP = 1e-5
SOFTMAX_CLIP = 1e-10
EPS = 1e-5

Weights = Sequence[float] | Array
"""One factor for each output, ``(n,)``, for each example, ``(m, 1)``, or for both, ``(m, n)``.

An array must be on the device of the outputs.
"""

Terms = Callable[[Array, Array], Array]
Weighted = Callable[[Array, Array, "Array | None"], Array]


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss: ``score(labels, y)`` per example and ``gradient(labels, y)`` = dL/dy, on arrays ``(m, n)``.

    ``terms`` are the contributions of each output to the score; ``slope(labels, y, weights)`` is their derivative. With
    ``indices`` the labels are class indices, ``(m, 1)``, or one-hot as for other losses. ``natural`` is the default
    activation of an output layer with this loss.

    Losses that are infinite at probabilities of 0 or 1 also have a derivative without divisions, given labels and
    ``y``: ``dL/d log y`` (``log_slope``) or ``dL/d logit y`` (``logit_slope``, ``logit y = log(y / (1 - y))``).
    """

    name: str
    terms: Terms
    slope: Weighted
    natural: str | None = None
    indices: bool = False
    log_slope: Terms | None = None
    logit_slope: Terms | None = None

    def score(self, labels: Array, y: Array, weights: Weights | None = None) -> Array:
        """Return the loss of every example, ``(m,)``; ``weights`` are factors of each output's contribution.

        Raises:
            ShapeError: labels, outputs and weights do not fit.
        """
        labels = self.targets(labels, y)
        terms = self.terms(labels, y)
        if weights is not None:
            terms = terms * _weights(weights, y)
        result: Array = terms.sum(axis=1)
        return result

    def gradient(self, labels: Array, y: Array, weights: Weights | None = None) -> Array:
        """Return ``dL/dy`` ``(m, n)`` of every example (not divided by ``m``); raises like ``score``."""
        labels = self.targets(labels, y)
        factor = None if weights is None else _weights(weights, y)
        result: Array = self.slope(labels, y, factor).astype(y.dtype, copy=False)
        return result

    def gradient_before(
        self, labels: Array, z: Array, y: Array, activation: Activation, weights: Weights | None = None
    ) -> Array | None:
        """Return ``dL/dz`` ``(m, n)`` for ``y = activation(z)`` if it can be had without ``dL/dy``; else None.

        This is exact for every ``z``. Multiplying ``gradient`` by the activation's derivative is not: for extreme
        ``z`` that is infinity times zero or, where the score is clipped, 0. Raises like ``score``.
        """
        if self.log_slope is not None and activation.from_log is not None:
            slope, back = self.log_slope, activation.from_log
        elif self.logit_slope is not None and activation.from_logit is not None:
            slope, back = self.logit_slope, activation.from_logit
        else:
            return None
        error = slope(self.targets(labels, y), y)
        if weights is not None:
            error = error * _weights(weights, y)
        result: Array = back(error, z, y).astype(y.dtype, copy=False)
        return result

    def targets(self, labels: Array, y: Array) -> Array:
        """Return the labels in the shape of the outputs ``y``; class indices become one-hot.

        ``y`` may have a last axis of time steps, ``(m, n, time steps)``; the labels then have it, too.
        """
        if self.indices and (labels.shape != y.shape or y.shape[1] == 1):
            return _one_hot(labels, y)
        if labels.shape != y.shape:
            raise ShapeError(
                f"loss {self.name!r}: labels have shape {labels.shape}, the output has {y.shape}; "
                "n_out of the output layer must be the number of label columns"
            )
        return labels


def loss(name: str) -> Loss:
    """Return the loss called ``name`` (DL4J's name in lower case; ``mae`` and similar names are aliases).

    Raises:
        ConfError: there is no loss of that name; the message gives the nearest.
    """
    try:
        return LOSSES[name]
    except KeyError:
        raise ConfError(f"unknown loss {name!r}{nearest(name, tuple(LOSSES))}") from None


def _weights(weights: Weights, y: Array) -> Array:
    if getattr(weights, "ndim", 1) == 1 and len(weights) != y.shape[1]:
        raise ShapeError(f"loss weights: {len(weights)} weights for {y.shape[1]} outputs; give one for each output")
    return asarray(weights, like=y)


def _one_hot(labels: Array, y: Array) -> Array:
    xp, (m, n, *steps) = get_array_module(y), y.shape
    if labels.shape != (m, 1, *steps):
        raise ShapeError(
            f"loss 'sparse_mcxent': labels have shape {labels.shape}, the output has {y.shape}; give class indices, "
            f"{(m, 1, *steps)}, or a column for each output"
        )
    index = labels[:, 0]
    valid = (index >= 0) & (index < n) & (index == xp.floor(index))
    if is_on_device(valid):  # a check would wait for the device: a NaN loss shows the error later
        found = xp.eye(n, dtype=y.dtype)[xp.where(valid, index, 0).astype(xp.int64)]
        marked: Array = xp.where(valid[..., None], found, xp.nan)
        of_device: Array = xp.moveaxis(marked.astype(y.dtype, copy=False), -1, 1)
        return of_device
    if not bool(valid.all()):
        place = np.unravel_index(int(valid.argmin()), valid.shape)
        raise DataError(
            f"loss 'sparse_mcxent': label {float(index[place])} of example {int(place[0])} is no class index; "
            f"need whole numbers from 0 to {n - 1}"
        )
    result: Array = xp.moveaxis(xp.eye(n, dtype=y.dtype)[index.astype(xp.int64)], -1, 1)
    return result


def _clip(y: Array, low: float, high: float | None = None) -> Array:
    result: Array = get_array_module(y).clip(y, low, high)
    return result


def _squared(labels: Array, y: Array) -> Array:
    d: Array = y - labels
    return d * d


def _absolute(labels: Array, y: Array) -> Array:
    result: Array = get_array_module(y).abs(y - labels)
    return result


def _absolute_slope(labels: Array, y: Array) -> Array:
    result: Array = get_array_module(y).sign(y - labels)
    return result


def _binary(labels: Array, y: Array) -> Array:
    p = _clip(y, XENT_CLIP, 1 - XENT_CLIP)
    result: Array = -(labels * log(p) + (1 - labels) * log(1 - p))
    return result


def _binary_slope(labels: Array, y: Array) -> Array:
    p = _clip(y, XENT_CLIP, 1 - XENT_CLIP)
    result: Array = (p - labels) / (p * (1 - p))
    return result


def _kl(labels: Array, y: Array) -> Array:
    p = _clip(labels, EPS, 1)
    result: Array = p * log(p / _clip(y, EPS, 1))
    return result


def _norms(labels: Array, y: Array) -> tuple[Array, Array]:
    xp = get_array_module(y)
    label_norm = xp.sqrt((labels * labels).sum(axis=1, keepdims=True))
    y_norm = xp.sqrt((y * y).sum(axis=1, keepdims=True))
    return xp.maximum(label_norm, EPS), xp.maximum(y_norm, EPS)


def _cosine(labels: Array, y: Array) -> Array:
    label_norm, y_norm = _norms(labels, y)
    result: Array = -labels * y / (label_norm * y_norm)
    return result


def _cosine_slope(labels: Array, y: Array, weights: Array | None) -> Array:
    label_norm, y_norm = _norms(labels, y)
    weighted = labels if weights is None else labels * weights
    along: Array = (weighted * y).sum(axis=1, keepdims=True)
    along *= y_norm > EPS  # below this, the divisor of the score does not depend on y
    result: Array = (along * y / (y_norm * y_norm) - weighted) / (label_norm * y_norm)
    return result


def _margin(labels: Array, y: Array) -> Array:
    return _clip(1 - labels * y, 0)


def _log_ratio(labels: Array, y: Array) -> Array:
    result: Array = log((1 + y) / (1 + labels))
    return result


def _separable(
    name: str, terms: Terms, slope: Terms, *, scale: float = 1.0, mean: bool = False, **more: Any,
) -> Loss:  # fmt: skip
    """Return a loss whose terms each depend on one output: ``scale`` times their sum, or their mean over the outputs.

    ``more`` are further fields of ``Loss``.
    """

    def scaled(values: Array, y: Array) -> Array:
        factor = scale / y.shape[1] if mean else scale
        return values if factor == 1 else values * factor

    def scaled_terms(labels: Array, y: Array) -> Array:
        return scaled(terms(labels, y), y)

    def scaled_slope(labels: Array, y: Array, weights: Array | None) -> Array:
        found = slope(labels, y)
        return scaled(found if weights is None else found * weights, y)

    return Loss(name, scaled_terms, scaled_slope, **more)


def _table() -> dict[str, Loss]:
    squared_slope: Terms = lambda labels, y: 2 * (y - labels)  # noqa: E731
    difference: Terms = lambda labels, y: y - labels  # noqa: E731
    binary = (_binary, _binary_slope)
    several: tuple[Terms, Terms] = (
        lambda labels, y: -labels * log(_clip(y, SOFTMAX_CLIP)),
        lambda labels, y: -labels / _clip(y, SOFTMAX_CLIP),
    )
    negative: Terms = lambda labels, y: -labels  # noqa: E731
    entries = [
        _separable("l2", _squared, squared_slope),
        _separable("mse", _squared, squared_slope, mean=True),
        _separable("squared_loss", _squared, squared_slope, mean=True),
        _separable("l1", _absolute, _absolute_slope),
        _separable("mean_absolute_error", _absolute, _absolute_slope, mean=True),
        _separable("xent", *binary, natural="sigmoid", logit_slope=difference),
        # Legacy: 0.9.1 scores this with the Kullback-Leibler formula but pretrains with the gradient of the binary
        # cross-entropy that the name meant in 2014; here score and gradient belong together.
        _separable("reconstruction_crossentropy", *binary, natural="sigmoid", logit_slope=difference),
        _separable("mcxent", *several, natural="softmax", log_slope=negative),
        _separable("negativeloglikelihood", *several, natural="softmax", log_slope=negative),
        _separable("sparse_mcxent", *several, natural="softmax", log_slope=negative, indices=True),
        _separable("kl_divergence", _kl, lambda labels, y: -_clip(labels, EPS, 1) / _clip(y, EPS),
                   log_slope=lambda labels, y: -_clip(labels, EPS, 1)),
        Loss("cosine_proximity", _cosine, _cosine_slope),
        _separable("hinge", _margin, lambda labels, y: -labels * (labels * y < 1)),
        _separable("squared_hinge", lambda labels, y: _margin(labels, y) ** 2,
                   lambda labels, y: -2 * labels * _margin(labels, y)),
        # Legacy: DL4J divides by a label of zero; a floor keeps the score finite.
        _separable("mean_absolute_percentage_error",
                   lambda labels, y: _absolute(labels, y) / _clip(abs(labels), EPS),
                   lambda labels, y: _absolute_slope(labels, y) / _clip(abs(labels), EPS), scale=100.0, mean=True),
        _separable("mean_squared_logarithmic_error", lambda labels, y: _log_ratio(labels, y) ** 2,
                   lambda labels, y: 2 * _log_ratio(labels, y) / (1 + y), mean=True),
        _separable("poisson", lambda labels, y: y - labels * log(_clip(y, SOFTMAX_CLIP)),
                   lambda labels, y: 1 - labels / _clip(y, SOFTMAX_CLIP), log_slope=difference),
        _separable("wasserstein", lambda labels, y: labels * y, lambda labels, y: labels.copy(), mean=True),
    ]  # fmt: skip
    table = {entry.name: entry for entry in entries}
    aliases = {
        "mae": "mean_absolute_error",
        "mape": "mean_absolute_percentage_error",
        "msle": "mean_squared_logarithmic_error",
    }
    return table | {alias: table[name] for alias, name in aliases.items()}


LOSSES: dict[str, Loss] = _table()
