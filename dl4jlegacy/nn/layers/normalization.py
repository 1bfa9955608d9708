"""Batch normalization and local response normalization.

Legacy: ``org.deeplearning4j.nn.conf.layers.BatchNormalization`` and ``LocalResponseNormalization``.
"""

from __future__ import annotations

import math
from typing import Self

import msgspec

from dl4jlegacy.arrays.backend import Array, get_array_module
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.errors import ConfError
from dl4jlegacy.nn.input_type import AnyInputType
from dl4jlegacy.nn.layers.feedforward import FeedForwardLayer, LayerOutput, Params, ParamShapes
from dl4jlegacy.nn.layers.subsampling import ParameterlessLayer
from dl4jlegacy.nn.optimization.step import Step

__all__ = ["BatchNormalization", "LocalResponseNormalization"]


class BatchNormalization(FeedForwardLayer, tag="batch_normalization"):
    """``y = gamma (x - mean) / sqrt(var + eps) + beta``, for every feature, or for every channel of images.

    Source: Ioffe and Szegedy 2015. Training uses mean and variance of the batch. Prediction uses the running mean and
    variance, which are parameters without a gradient step: ``mean += (1 - decay) (batch mean - mean)``. Without
    ``is_minibatch`` (the whole data set is one batch) the running values are set to those of the batch. With
    ``lock_gamma_beta`` gamma and beta are the constants ``gamma`` and ``beta``; otherwise these are the initial values.
    """

    positional = ()
    consumes = ("convolutional", "feed_forward")
    weights = frozenset()
    states = frozenset({"mean", "var"})
    unused = (
        "activation",
        "weight_init",
        "dist",
        "bias_init",
        "l1",
        "l2",
        "l1_bias",
        "l2_bias",
        "drop_out",
    )

    decay: float = 0.9
    eps: float = 1e-5
    gamma: float = 1.0
    beta: float = 0.0
    is_minibatch: bool = True
    lock_gamma_beta: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.decay <= 1:
            raise ConfError(f"{self.title()}: decay is {self.decay}; it must be from 0 to 1")
        if not (self.eps > 0 and math.isfinite(self.eps)):
            raise ConfError(f"{self.title()}: eps is {self.eps}; it must be a positive number")

    def with_input(self, given: AnyInputType) -> Self:
        """Return the layer with ``n_out = n_in``."""
        return super(BatchNormalization, msgspec.structs.replace(self, n_out=given.n_in)).with_input(given)

    def output_type(self, given: AnyInputType) -> AnyInputType:
        """Return ``given``: the output has the type of the input."""
        return given

    def param_shapes(self) -> ParamShapes:
        """Return ``gamma, beta, mean, var``, all ``(n_in,)``; the first two only if they are learned."""
        names = ("mean", "var") if self.lock_gamma_beta else ("gamma", "beta", "mean", "var")
        return tuple((name, (self.n_in,)) for name in names)

    def init_params(self, params: Params, stream: Stream) -> None:
        """Fill ``params`` with constants; no random numbers are drawn."""
        values = {"gamma": self.gamma, "beta": self.beta, "mean": 0.0, "var": 1.0}
        for name, param in params.items():
            param[...] = values[name]

    def forward(self, params: Params, x: Array, step: Step) -> LayerOutput:
        """Return ``y`` in the layout of ``x``, and the backward pass."""
        xp, axis = get_array_module(x), _Channels(x, step.rows)
        mean, var = axis.moments(x) if step.train else (params["mean"], params["var"])
        scale = 1 / xp.sqrt(var + x.dtype.type(self.eps))
        gamma, beta = (params.get("gamma"), params.get("beta"))
        if gamma is None or beta is None:
            gamma, beta = (xp.full(self.n_in, value, x.dtype) for value in (self.gamma, self.beta))
        normal = step.buffer("normal", x.shape, x)
        xp.subtract(x, axis.spread(mean), out=normal)
        normal *= axis.spread(scale)
        y = step.buffer("y", x.shape, x)
        xp.multiply(normal, axis.spread(gamma), out=y)
        y += axis.spread(beta)

        def backward(dy: Array, grads: Params, need_dx: bool = True) -> Array | None:
            slopes = axis.sums(dy * normal), axis.sums(dy)
            for name, slope in zip(("gamma", "beta"), slopes, strict=True):
                if name in grads:
                    grads[name][...] = slope
            for name, found in (("mean", mean), ("var", var)):
                rate = params[name].dtype.type((1 - self.decay) if self.is_minibatch else 1)
                grads[name][...] = (params[name] - found) * rate if step.train else 0
            if not need_dx:
                return None
            if step.train:
                dy = dy - (normal * axis.spread(slopes[0]) + axis.spread(slopes[1])) / axis.count
                axis.clear_unused(dy)
            dx: Array = xp.multiply(dy, axis.spread(gamma * scale))
            return dx

        return y, backward


class _Channels:
    """Sums over each channel of rows ``(n, channels)`` or of tiles, without unused lanes."""

    def __init__(self, x: Array, rows: int) -> None:
        self._is_tiled = x.ndim == 5
        self._last = rows - (len(x) - 1) * x.shape[4] if self._is_tiled else 0
        self.count = x.dtype.type(rows * x.shape[2] * x.shape[3] if self._is_tiled else len(x))

    def spread(self, vector: Array) -> Array:
        """Return one value per channel, shaped to broadcast against ``x``."""
        return vector[:, None, None, None] if self._is_tiled else vector

    def sums(self, x: Array) -> Array:
        """Return the sum of every channel."""
        if not self._is_tiled:
            total: Array = x.sum(axis=0)
            return total
        total = x[:-1].sum(axis=(0, 2, 3, 4)) + x[-1, ..., : self._last].sum(axis=(1, 2, 3))
        return total

    def moments(self, x: Array) -> tuple[Array, Array]:
        """Return mean and variance of every channel."""
        mean = self.sums(x) / self.count
        away = x - self.spread(mean)
        return mean, self.sums(away * away) / self.count

    def clear_unused(self, x: Array) -> None:
        """Write zeros to the unused lanes."""
        if self._is_tiled:
            x[-1, ..., self._last :] = 0


class LocalResponseNormalization(ParameterlessLayer, tag="local_response_normalization"):
    """``y = x / (k + alpha s)^beta``, ``s`` the sum of squares over ``n`` neighbouring channels.

    Source: Krizhevsky, Sutskever, Hinton 2012, section 3.3.
    """

    consumes = ("convolutional",)

    k: float = 2.0
    n: int = 5
    alpha: float = 1e-4
    beta: float = 0.75

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n < 1:
            raise ConfError(f"{self.title()}: n is {self.n}; a channel and its neighbours are at least 1")
        is_finite = all(map(math.isfinite, (self.k, self.alpha, self.beta)))
        if self.k <= 0 or self.alpha < 0 or not is_finite:
            raise ConfError(
                f"{self.title()}: k={self.k}, alpha={self.alpha}, beta={self.beta}; k must be positive, alpha not "
                "negative, and all of them finite"
            )

    def forward(self, params: Params, x: Array, step: Step) -> LayerOutput:
        """Return ``y`` in the layout of ``x``, and the backward pass."""
        x, reach = self.drop(x, step), self.n // 2
        y, below, factor = (step.buffer(name, x.shape, x) for name in ("y", "below", "factor"))
        step.kernels.response_forward(x, y, below, factor, reach, self.k, self.alpha, self.beta)

        def backward(dy: Array, grads: Params, need_dx: bool = True) -> Array | None:
            if not need_dx:
                return None
            dx = step.buffer("dx", x.shape, x)
            step.kernels.response_backward(dy, x, y, below, factor, dx, reach, self.alpha, self.beta)
            return self.drop_backward(dx, step)

        return y, backward
