"""The layers of a network, and ``Layer``: the union of all of them, told apart by ``type`` in JSON.

Dense and output layers are here; the layers that pretrain themselves have a module each.
"""

from __future__ import annotations

import numpy as np

from dl4jlegacy.backend import Array, get_array_module
from dl4jlegacy.errors import ConfError, nearest
from dl4jlegacy.nn.autoencoder import AutoEncoder
from dl4jlegacy.nn.feedforward import FeedForwardLayer, Params, activate
from dl4jlegacy.nn.losses import LOSSES
from dl4jlegacy.nn.rbm import RBM
from dl4jlegacy.nn.step import Step

__all__ = ["RBM", "AutoEncoder", "DenseLayer", "FeedForwardLayer", "Layer", "OutputLayer"]

_CROSS_ENTROPY = ("mcxent", "negativeloglikelihood")


class DenseLayer(FeedForwardLayer, frozen=True, kw_only=True, tag="dense"):
    """Fully connected layer: ``y = activation(x W + b)``."""


class OutputLayer(FeedForwardLayer, frozen=True, kw_only=True, tag="output"):
    """Dense layer that ends a network and knows the loss.

    ``loss_weights`` weighs the outputs in the loss, one value for each.
    """

    loss: str = "mcxent"
    loss_weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss not in LOSSES:
            raise ConfError(f"{self.title()}: unknown loss {self.loss!r}{nearest(self.loss, list(LOSSES))}")
        if self.loss_weights is not None and self.n_out and len(self.loss_weights) != self.n_out:
            raise ConfError(f"{self.title()}: {len(self.loss_weights)} loss_weights for {self.n_out} outputs")

    def takes_indices(self) -> bool:
        """Return whether labels are class indices ``(examples, 1)`` rather than one column for each output."""
        return LOSSES[self.loss].indices

    def scores(self, labels: Array, y: Array) -> Array:
        """Return the loss of every example, shape ``(examples,)``."""
        return LOSSES[self.loss].score(labels, y, self.loss_weights)

    def loss_gradient(
        self, params: Params, x: Array, labels: Array, grads: Params, step: Step, *, scale: float, need_dx: bool
    ) -> tuple[float, Array | None]:
        """Run the layer forward and back: write ``grads``, return the summed loss and ``dx``.

        All gradients are those of ``scale * loss``; ``scale = 1 / examples`` gives the mean.
        """
        dropped = self.drop(x, step)
        z = self.linear(params, dropped, step)
        if self.forward_activation() == "softmax" and self.loss in _CROSS_ENTROPY and self.loss_weights is None:
            score, dz = self._softmax_cross_entropy(z, params["b"], labels, step)
            self._scale(dz, scale, grads["b"])
        elif self.forward_activation() == "sigmoid" and self.loss == "xent" and self.loss_weights is None:
            step.kernels.bias_activation(z, params["b"], "sigmoid")
            score, dz = float(self.scores(labels, z).sum()), z - labels
            self._scale(dz, scale, grads["b"])
        else:
            y, to_dz = activate(z, params["b"], self.forward_activation(), step)
            score = float(self.scores(labels, y).sum())
            dy = LOSSES[self.loss].gradient(labels, y, self.loss_weights) * y.dtype.type(scale)
            dz = to_dz(np.ascontiguousarray(dy), grads["b"])
        return score, self.linear_backward(params, dropped, dz, grads, step, need_dx)

    def _softmax_cross_entropy(self, z: Array, b: Array, labels: Array, step: Step) -> tuple[float, Array]:
        step.kernels.bias_activation(z, b, "identity")
        step.kernels.softmax(z)
        dz = step.buffer("dz", z.shape, z)
        return step.kernels.softmax_cross_entropy(z, labels, dz), dz

    @staticmethod
    def _scale(dz: Array, scale: float, gb: Array) -> None:
        dz *= dz.dtype.type(scale)
        get_array_module(dz).add.reduce(dz, axis=0, out=gb)


Layer = DenseLayer | OutputLayer | RBM | AutoEncoder
