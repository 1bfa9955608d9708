"""RnnOutputLayer: a loss for every time step of a sequence.

Legacy: ``org.deeplearning4j.nn.conf.layers.RnnOutputLayer``: an example's score is the sum over its time steps.
"""

from __future__ import annotations

from dl4jlegacy.arrays.backend import Array, Scalar, get_array_module
from dl4jlegacy.nn.input_type import AnyInputType, InputTypeRecurrent
from dl4jlegacy.nn.layers.feedforward import Backward, Params
from dl4jlegacy.nn.layers.output import BaseOutputLayer
from dl4jlegacy.nn.optimization.step import Step

__all__ = ["RnnOutputLayer"]


class RnnOutputLayer(BaseOutputLayer, tag="rnn_output"):
    """Dense output for every time step; labels ``(examples, n_out, time steps)``.

    Without a mask for the labels, the mask of the features applies.
    """

    consumes = ("recurrent",)

    def output_type(self, given: AnyInputType) -> AnyInputType:
        """Return sequences of ``n_out`` values."""
        return InputTypeRecurrent(size=self.n_out, timesteps=getattr(given, "timesteps", 0))

    def label_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the labels for features of ``shape``."""
        return (shape[0], 1 if self.takes_indices() else self.n_out, shape[-1])

    def scores(self, labels: Array, y: Array, mask: Array | None = None) -> Array:
        """Return the loss of every example, ``(examples,)``; arrays ``(examples, n, time steps)``, mask without n."""
        xp = get_array_module(y)
        rows = [xp.ascontiguousarray(array.transpose(0, 2, 1)).reshape(-1, array.shape[1]) for array in (labels, y)]
        scores = super().scores(rows[0], rows[1]).reshape(len(y), -1)
        total: Array = (scores if mask is None else scores * mask).sum(axis=1)
        return total

    def forward(self, params: Params, x: Array, step: Step) -> tuple[Array, Backward]:
        """Return ``y (time steps, examples, n_out)`` and the backward pass."""
        y, inner = super().forward(params, x.reshape(-1, x.shape[2]), step)

        def backward(dy: Array, grads: Params, need_dx: bool = True) -> Array | None:
            dx = inner(dy.reshape(-1, dy.shape[2]), grads, need_dx)
            return None if dx is None else dx.reshape(x.shape)

        return y.reshape(*x.shape[:2], -1), backward

    def loss_gradient(
        self, params: Params, x: Array, labels: Array, grads: Params, step: Step, *, scale: float, need_dx: bool
    ) -> tuple[Scalar, Array | None]:
        """Run the layer forward and back; ``labels (time steps, examples, n)``."""
        mask = step.mask if step.labels_mask is None else step.labels_mask
        loss, dx = super().loss_gradient(
            params,
            x.reshape(-1, x.shape[2]),
            labels.reshape(-1, labels.shape[2]),
            grads,
            step.at(step.layer, labels_mask=None if mask is None else mask.reshape(-1)),
            scale=scale,
            need_dx=need_dx,
        )
        return loss, None if dx is None else dx.reshape(x.shape)
