"""EmbeddingLayer: one vector for every class index, equivalent to a dense layer on one-hot rows.

Legacy: ``org.deeplearning4j.nn.layers.feedforward.embedding.EmbeddingLayer``.
"""

from __future__ import annotations

from typing import Self

import msgspec

from dl4jlegacy.arrays.backend import Array, get_array_module, is_on_device
from dl4jlegacy.errors import DataError, ShapeError
from dl4jlegacy.nn.input_type import AnyInputType
from dl4jlegacy.nn.layers.feedforward import Backward, FeedForwardLayer, Params, activate
from dl4jlegacy.nn.optimization.step import Step

__all__ = ["EmbeddingLayer"]


class EmbeddingLayer(FeedForwardLayer, tag="embedding"):
    """``y = activation(W[index] + b)``: the input is one column of class indices, 0 to ``n_in - 1``.

    It belongs at the beginning of a network: indices have no gradient. Sequences of indices have the shape
    ``(examples, 1, time steps)``, with ``InputType.recurrent(1)``.
    """

    positional = ("n_in", "n_out")

    def input_size(self) -> int:
        """Return 1: the input is one index."""
        return 1

    def with_input(self, given: AnyInputType) -> Self:
        """Return the layer unchanged; raise ``ShapeError`` if a size is open or the input is more than one index."""
        if given.n_in != 1:
            raise ShapeError(f"takes one column of class indices, what comes in is {given}; a DenseLayer takes vectors")
        if self.n_in < 1:
            raise ShapeError("n_in is not set; give the number of classes that its indices tell apart")
        if self.n_out < 1:
            raise ShapeError("n_out is not set; give the length of a class's vector")
        return msgspec.structs.replace(self)

    def forward(self, params: Params, x: Array, step: Step) -> tuple[Array, Backward]:
        """Return ``y (examples, n_out)`` for ``x (examples, 1)``, and the backward pass.

        Raises:
            DataError: a number is not a class index; the message names the number and its row. On a GPU a check would
                have to wait for the device, so there the output of that row is NaN, and with it the score.
        """
        index, wrong = self._indices(x)
        z = step.buffer("y", (len(x), self.n_out), x)
        z[...] = params["W"][index]
        if wrong is not None:
            z[...] = get_array_module(z).where(wrong[:, None], float("nan"), z)
        y, to_dz = activate(z, params["b"], self.forward_activation(), step)

        def backward(dy: Array, grads: Params, need_dx: bool = True) -> Array | None:
            dz = to_dz(dy, grads["b"])
            step.kernels.embedding_gradient(dz, index, grads["W"])
            return get_array_module(x).zeros_like(x) if need_dx else None

        return y, backward

    def _indices(self, x: Array) -> tuple[Array, Array | None]:
        """Return the class indices, and on a GPU a mask of the invalid ones (class 0 stands in for them)."""
        xp, column = get_array_module(x), x.reshape(-1)
        wrong = ~((column >= 0) & (column < self.n_in) & (column == xp.floor(column)))
        if is_on_device(wrong):
            return xp.where(wrong, 0, column).astype(xp.int64), wrong
        if bool(wrong.any()):
            row = int(wrong.argmax())
            raise DataError(
                f"{self.title()}: row {row} holds {float(column[row])}, which is no class index; those are whole "
                f"numbers from 0 to {self.n_in - 1}"
            )
        indices: Array = column.astype(xp.int64)
        return indices, None
