"""The reconstruction loss of pretrain layers, shared by the RBM and the autoencoder.

Here ``reconstruction_crossentropy`` is the Bernoulli cross-entropy for sigmoid reconstructions, and the squared error
for other reconstructions, so the layer's error signal is ``z - x`` in both cases. Legacy: the loss of that name is a
Kullback-Leibler divergence for output layers, but DL4J's pretrain layers always used ``x - z``.
"""

from __future__ import annotations

import math

from dl4jlegacy.arrays.backend import Array, Scalar, scalar
from dl4jlegacy.errors import ConfError
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.nn.optimization.losses import LOSSES

__all__ = [
    "CANONICAL",
    "SCORED_ROWS",
    "check_pretrain_rate",
    "mean_score",
    "reconstruction_scores",
]

CANONICAL = "reconstruction_crossentropy"
SCORED_ROWS = 16
"""Number of leading examples whose loss a pretraining step reports; scoring the whole batch costs a fifth of a step."""


def check_pretrain_rate(title: str, rate: float | None) -> None:
    """Raise ``ConfError`` with the layer's title if pretraining cannot use the learning rate ``rate``.

    None means that the layer has no learning rate of its own.
    """
    if rate is not None and not (rate >= 0 and math.isfinite(rate)):
        raise ConfError(f"{title}: pretrain_learning_rate is {rate}; it must be a finite number, not negative")


def reconstruction_scores(loss: str, x: Array, z: Array, activation: str) -> Array:
    """Return the loss of reconstructions ``z`` of ``x``, both ``(examples, n_in)``, one value per example."""
    if loss != CANONICAL:
        return LOSSES[loss].score(x, z)
    if activation == "sigmoid":
        return LOSSES["xent"].score(x, z)
    scores: Array = 0.5 * ((z - x) ** 2).sum(axis=1)
    return scores


def mean_score(loss: str, x: Array, z: Array, activation: str, kernels: Kernels) -> Scalar:
    """Return the mean loss of the first ``SCORED_ROWS`` examples; for the usual loss a kernel computes the sum."""
    x, z = x[:SCORED_ROWS], z[:SCORED_ROWS]
    if loss == CANONICAL and activation == "sigmoid":
        return kernels.binary_cross_entropy(z, x) / len(x)
    return scalar(reconstruction_scores(loss, x, z, activation).mean())
