"""Output layers besides the dense one: a loss without parameters, and the center loss.

Legacy: ``org.deeplearning4j.nn.conf.layers.LossLayer`` and ``CenterLossOutputLayer``.
"""

from __future__ import annotations

from typing import Self

import msgspec

from dl4jlegacy.arrays.backend import Array, Scalar, get_array_module, scalar
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.errors import ConfError, ShapeError
from dl4jlegacy.nn.input_type import AnyInputType
from dl4jlegacy.nn.layers.feedforward import PARAMETER_FIELDS, Backward, Params, ParamShapes, activate
from dl4jlegacy.nn.layers.output import BaseOutputLayer, OutputLayer
from dl4jlegacy.nn.optimization.step import Step

__all__ = ["CenterLossOutputLayer", "LossLayer"]


class LossLayer(BaseOutputLayer, tag="loss"):
    """A loss on ``activation(x)``, without parameters."""

    positional = ("loss",)
    unused = PARAMETER_FIELDS

    def with_input(self, given: AnyInputType) -> Self:
        """Return the layer with ``n_out = n_in``; raise ``ShapeError`` if ``n_out`` is another size."""
        if self.n_out not in (0, given.n_in):
            raise ShapeError(f"n_out={self.n_out}, but what comes in is {given}, and nothing here changes its size")
        return super(LossLayer, msgspec.structs.replace(self, n_out=given.n_in)).with_input(given)

    def param_shapes(self) -> ParamShapes:
        """Return (): the layer has no parameters."""
        return ()

    def init_params(self, params: Params, stream: Stream) -> None:
        """Do nothing."""

    def linear(self, params: Params, x: Array, step: Step) -> Array:
        """Return a copy of ``x``."""
        z = step.buffer("y", x.shape, x)
        z[...] = x
        return z

    def forward(self, params: Params, x: Array, step: Step) -> tuple[Array, Backward]:
        """Return ``activation(x)`` and the backward pass."""
        zeros = self._zeros(x)
        y, to_dz = activate(self.linear(params, self.drop(x, step), step), zeros, self.forward_activation(), step)

        def backward(dy: Array, grads: Params, need_dx: bool = True) -> Array | None:
            return self.drop_backward(to_dz(dy, zeros), step) if need_dx else None

        return y, backward

    def loss_gradient(
        self, params: Params, x: Array, labels: Array, grads: Params, step: Step, *, scale: float, need_dx: bool
    ) -> tuple[Scalar, Array | None]:
        """See ``BaseOutputLayer``."""
        z = self.linear(params, self.drop(x, step), step)
        zeros = self._zeros(x)  # a bias and the array for its gradient, which is not used
        score, dz = self.score_gradient(z, zeros, labels, zeros, step, scale=scale)
        return score, self.drop_backward(dz, step) if need_dx else None

    def _zeros(self, x: Array) -> Array:
        zeros: Array = get_array_module(x).zeros(self.n_out, x.dtype)
        return zeros


class CenterLossOutputLayer(OutputLayer, tag="center_loss_output"):
    """An output layer that also pulls the features of a class together: loss ``+ lambda / 2 |x - center|^2``.

    Source: Wen, Zhang, Li, Qiao 2016. The centers ``(n_out, n_in)`` are not trained by the loss gradient. They follow
    the features of their class: ``center -= alpha sum(center - x) / (1 + examples of the class)``.
    """

    states = frozenset({"centers"})
    c_ordered = frozenset({"centers"})

    alpha: float = 0.05
    lambda_: float = msgspec.field(default=2e-4, name="lambda")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.takes_indices():
            raise ConfError(f"{self.title()}: loss {self.loss!r} takes class indices; centers need one-hot labels")
        if not 0 <= self.alpha <= 1 or self.lambda_ < 0:
            raise ConfError(
                f"{self.title()}: alpha={self.alpha} must be from 0 to 1, lambda={self.lambda_} not negative"
            )

    def param_shapes(self) -> ParamShapes:
        """Return the shapes of a dense layer's parameters, then ``centers (n_out, n_in)``."""
        return (*super().param_shapes(), ("centers", (self.n_out, self.n_in)))

    def init_params(self, params: Params, stream: Stream) -> None:
        """Fill ``params``; centers start at 0."""
        super().init_params(params, stream)
        params["centers"][...] = 0

    def loss_gradient(
        self, params: Params, x: Array, labels: Array, grads: Params, step: Step, *, scale: float, need_dx: bool
    ) -> tuple[Scalar, Array | None]:
        """See ``BaseOutputLayer``; the gradient of ``centers`` is the step of the centers."""
        xp, mask, centers, kernels = get_array_module(x), step.labels_mask, params["centers"], step.kernels
        weight = xp.ones(len(x), x.dtype) if mask is None else mask.reshape(len(x), -1)[:, 0]
        own = step.buffer("own centers", x.shape, x)
        kernels.matmul(labels, centers, own)
        away = (x - own) * weight[:, None]
        score, dx = super().loss_gradient(params, x, labels, grads, step, scale=scale, need_dx=need_dx)
        members = labels * weight[:, None]
        moved = step.buffer("moved centers", centers.shape, x)
        kernels.matmul(members.T, away, moved)
        grads["centers"][...] = -moved * x.dtype.type(self.alpha) / (1 + members.sum(axis=0))[:, None]
        if dx is not None:
            dx += away * x.dtype.type(scale * self.lambda_)
        return score + 0.5 * self.lambda_ * scalar((away * away).sum()), dx
