"""Output layers, which compute the loss: their base class, and the dense ``OutputLayer``.

Legacy: ``org.deeplearning4j.nn.conf.layers.BaseOutputLayer`` and ``OutputLayer``.
"""

from __future__ import annotations

from dl4jlegacy.arrays.backend import Array, Scalar, asarray, get_array_module, scalar
from dl4jlegacy.errors import ConfError, ShapeError
from dl4jlegacy.kernels.protocol import device_kernels
from dl4jlegacy.nn.layers.feedforward import FeedForwardLayer, Params, activate
from dl4jlegacy.nn.optimization.functions import ACTIVATIONS
from dl4jlegacy.nn.optimization.losses import LOSSES
from dl4jlegacy.nn.optimization.step import Step

__all__ = ["BaseOutputLayer", "OutputLayer"]

_CROSS_ENTROPY = ("mcxent", "negativeloglikelihood", "sparse_mcxent")


class BaseOutputLayer(FeedForwardLayer):
    """A layer with a loss, which can only be the last one.

    ``loss_weights`` are factors of the outputs in the loss, one for each output.
    """

    loss: str = "mcxent"
    loss_weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.resolve("loss", LOSSES)
        if self.loss_weights is not None and self.n_out and len(self.loss_weights) != self.n_out:
            raise ConfError(f"{self.title()}: {len(self.loss_weights)} loss_weights for {self.n_out} outputs")

    def takes_indices(self) -> bool:
        """Return whether labels are class indices ``(examples, 1)`` instead of one column per output."""
        return LOSSES[self.loss].indices

    def outputs_of(self, columns: int) -> int:
        """Return the number of outputs for ``columns`` label columns; for class indices, the layer's ``n_out``."""
        return self.n_out if self.takes_indices() and columns == 1 and self.n_out else columns

    def label_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the labels for features of ``shape``, both in the layout outside the network."""
        return (shape[0], 1 if self.takes_indices() else self.n_out)

    def check_label_shape(self, labels: Array, shape: tuple[int, ...], title: str) -> None:
        """Raise ``ShapeError`` unless the shape of the labels fits features of ``shape``; ``title`` names the layer.

        A layer that accepts class indices also accepts labels with one column per output.
        """
        wanted = self.label_shape(shape)
        if labels.shape not in (wanted, (wanted[0], self.n_out, *wanted[2:])):
            raise ShapeError(f"labels have shape {labels.shape}, {title} has n_out={self.n_out} and wants {wanted}")

    def targets(self, labels: Array, y: Array) -> Array:
        """Return labels in the shape of the outputs ``y``, both as outside the network; class indices become one-hot.

        Raises:
            ShapeError: the shapes of labels and outputs do not fit. DataError: a class index is not one of the outputs.
        """
        return LOSSES[self.loss].targets(labels, y)

    def scores(self, labels: Array, y: Array, mask: Array | None = None) -> Array:
        """Return the loss of every example, ``(examples,)``; arrays as outside the network (see ``input_type``).

        ``mask`` has one factor for every example, ``(examples,)``, or for every output, ``(examples, n_out)``.
        """
        weights = None if self.loss_weights is None else asarray(self.loss_weights, like=y)
        on = None if mask is None else asarray(mask, like=y)
        return LOSSES[self.loss].score(labels, y, _factors(weights, on, len(y)))

    def loss_gradient(
        self, params: Params, x: Array, labels: Array, grads: Params, step: Step, *, scale: float, need_dx: bool
    ) -> tuple[Scalar, Array | None]:
        """Run the layer forward and back: write ``grads``, return the summed loss and ``dx``.

        All gradients are those of ``scale * loss``; ``scale = 1 / examples`` gives the mean. ``labels`` are in the
        layout inside the network; ``step.labels_mask`` excludes labels.
        """
        dropped = self.drop(x, step)
        z = self.linear(params, dropped, step)
        score, dz = self.score_gradient(z, params["b"], labels, grads["b"], step, scale=scale)
        return score, self.linear_backward(params, dropped, dz, grads, step, need_dx=need_dx)

    def score_gradient(
        self, z: Array, b: Array, labels: Array, gb: Array, step: Step, *, scale: float
    ) -> tuple[Scalar, Array]:
        """Return the summed loss of ``f(z + b)`` and ``dz``, all ``(rows, n_out)``; write ``gb``, overwrite ``z``."""
        name, loss = self.forward_activation(), LOSSES[self.loss]
        if name == "softmax" and self.loss in _CROSS_ENTROPY and self.loss_weights is None and step.labels_mask is None:
            return self._softmax_cross_entropy(z, b, loss.targets(labels, z), gb, step, scale=scale)
        y, to_dz = activate(z, b, name, step)
        weights = self.loss_weights
        given = None if weights is None else step.constant("loss_weights", weights, y)
        factors = _factors(given, step.labels_mask, len(y))
        score = scalar(loss.score(labels, y, factors).sum())
        dz = loss.gradient_before(labels, z, y, ACTIVATIONS[name], factors)
        if dz is not None:
            _scale(dz, scale, gb, step)
            return score, dz
        dy = loss.gradient(labels, y, factors) * y.dtype.type(scale)
        return score, to_dz(get_array_module(dy).ascontiguousarray(dy), gb)

    def _softmax_cross_entropy(
        self, z: Array, b: Array, labels: Array, gb: Array, step: Step, *, scale: float
    ) -> tuple[Scalar, Array]:
        dz, device = step.buffer("dz", z.shape, z), device_kernels(step.kernels)
        if device is not None:
            return device.softmax_loss(z, b, labels, dz, gb, scale), dz
        step.kernels.bias_activation(z, b, "identity")
        step.kernels.softmax(z)
        score = step.kernels.softmax_cross_entropy(z, labels, dz)
        _scale(dz, scale, gb, step)
        return score, dz


def _scale(dz: Array, scale: float, gb: Array, step: Step) -> None:
    dz *= dz.dtype.type(scale)
    step.kernels.column_sums(dz, gb)


def _factors(weights: Array | None, mask: Array | None, rows: int) -> Array | None:
    """Return the factor of each output's loss, from ``loss_weights (n_out,)`` and the mask of the labels."""
    if mask is None:
        return weights
    own: Array = mask.reshape(rows, -1)
    return own if weights is None else own * weights


class OutputLayer(BaseOutputLayer, tag="output"):
    """Dense layer at the end of a network, with a loss."""
