"""Denoising autoencoder with tied weights: a layer that pretrains itself by backpropagation.

Source: Vincent, Larochelle, Bengio, Manzagol 2008, "Extracting and composing robust features with denoising
autoencoders". Legacy: ``org.deeplearning4j.nn.layers.feedforward.autoencoder.AutoEncoder``.
"""

from __future__ import annotations

from collections.abc import Callable

from dl4jlegacy.arrays.backend import Array, Scalar, get_array_module
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.errors import ConfError
from dl4jlegacy.nn.layers.feedforward import FeedForwardLayer, Params, ParamShapes, activate
from dl4jlegacy.nn.layers.reconstruction_loss import CANONICAL, check_pretrain_rate, mean_score, reconstruction_scores
from dl4jlegacy.nn.optimization.functions import ACTIVATIONS
from dl4jlegacy.nn.optimization.losses import LOSSES
from dl4jlegacy.nn.optimization.step import Step

__all__ = ["AutoEncoder"]


class AutoEncoder(FeedForwardLayer, tag="autoencoder"):
    """Denoising autoencoder: ``y = f(x' W + b)``, ``z = g(y W^T + vb)``; ``x'`` is ``x`` with some inputs set to 0.

    ``corruption_level`` is the probability that an input is set to 0. With the default loss the decoder ``g`` is the
    sigmoid if the encoder is a sigmoid, and linear otherwise (Vincent et al. 2010, section 3.3); with any other
    loss ``g`` is ``f``, as in the legacy. ``sparsity`` > 0 is a target for the mean of every hidden unit, which the
    hidden bias moves towards. ``pretrain_learning_rate`` replaces the updater's base rate in pretraining.
    """

    pretrains = True

    corruption_level: float = 0.3
    sparsity: float = 0.0
    loss: str = "reconstruction_crossentropy"
    visible_bias_init: float = 0.0
    pretrain_learning_rate: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_pretrain_rate(self.title(), self.pretrain_learning_rate)
        if not 0 <= self.corruption_level < 1:
            raise ConfError(f"{self.title()}: corruption_level={self.corruption_level}; it must be in [0, 1)")
        self.resolve("loss", LOSSES)

    def param_shapes(self) -> ParamShapes:
        """Return the shapes of a dense layer's parameters, then ``vb (n_in,)``, the visible bias."""
        return (*super().param_shapes(), ("vb", (self.n_in,)))

    def init_params(self, params: Params, stream: Stream) -> None:
        """Fill ``params`` with initial values."""
        super().init_params(params, stream)
        params["vb"][...] = self.visible_bias_init

    def decoder_activation(self) -> str:
        """Return the name of ``g``."""
        encoder = self.forward_activation()
        return encoder if self.loss != CANONICAL or encoder == "sigmoid" else "identity"

    def pretrain_gradient(self, params: Params, x: Array, grads: Params, step: Step, *, scale: float) -> Scalar:
        """Write the gradient of ``scale * loss`` for ``x (examples, n_in)``; return the mean reconstruction loss.

        The returned loss is the mean over the batch's first examples, see ``mean_score``.
        """
        m = x.shape[0]
        visible = step.buffer("visible", (2 * m, self.n_in), x)  # x' above, dz below
        hidden = step.buffer("hidden", (2 * m, self.n_out), x)  # dy above, y below: the gradient of W is one product
        corrupted = visible[:m]
        if self.corruption_level:
            step.kernels.corrupt(x, corrupted, self.corruption_level, step.key("corrupt"))
        else:
            corrupted[...] = x
        y, to_dy = activate(self.linear(params, corrupted, step), params["b"], self.forward_activation(), step)
        hidden[m:] = y
        before, z, to_dz = self._decode(params, y, step)
        score = mean_score(self.loss, x, z, self.decoder_activation(), step.kernels)
        dz = self._error(x, before, z)
        if dz is None:
            dy = LOSSES[self.loss].gradient(x, z) * x.dtype.type(scale)
            dz = to_dz(get_array_module(x).ascontiguousarray(dy), grads["vb"])
        else:
            dz *= x.dtype.type(scale)
            step.kernels.column_sums(dz, grads["vb"])
        visible[m:] = dz
        back = hidden[:m]
        step.kernels.matmul(visible[m:], params["W"], back)
        hidden[:m] = to_dy(back, grads["b"])
        if self.sparsity:
            grads["b"][...] += (y.mean(axis=0) - self.sparsity) * (m * scale)
        step.kernels.matmul(hidden.T, visible, grads["W"].T)
        return score

    def reconstruct(self, params: Params, x: Array, step: Step) -> Array:
        """Return ``z`` for the uncorrupted ``x`` in a work buffer."""
        y, _ = activate(self.linear(params, x, step), params["b"], self.forward_activation(), step)
        return self.decode(params, y, step)

    def decode(self, params: Params, y: Array, step: Step) -> Array:
        """Return ``z (examples, n_in)`` for ``y (examples, n_out)`` in a work buffer."""
        return self._decode(params, y, step)[1]

    def reconstruction_error(self, params: Params, x: Array, step: Step) -> Array:
        """Return the loss of ``reconstruct`` for every example, ``(examples,)``."""
        return reconstruction_scores(self.loss, x, self.reconstruct(params, x, step), self.decoder_activation())

    def _decode(self, params: Params, y: Array, step: Step) -> tuple[Array, Array, Callable[[Array, Array], Array]]:
        """Return the decoder's output before and after the activation, and its backward function.

        If the activation overwrites its input, the first array no longer holds the values before the activation.
        """
        before = step.buffer("reconstruction", (y.shape[0], self.n_in), y)
        step.kernels.matmul(y, params["W"].T, before)
        return before, *activate(before, params["vb"], self.decoder_activation(), step)

    def _error(self, x: Array, before: Array, z: Array) -> Array | None:
        """Return the loss gradient before the decoder's activation if it can be had without ``dL/dz``; else None."""
        if self.loss != CANONICAL:
            return LOSSES[self.loss].gradient_before(x, before, z, ACTIVATIONS[self.decoder_activation()])
        z -= x
        return z
