"""VariationalAutoencoder: a layer that is pretrained by maximising a lower bound on the data's likelihood.

An encoder gives mean and log variance of q(z|x), and a decoder gets a sample of q(z|x). The loss is the bound
``KL(q(z|x), N(0, 1)) - log p(x|z)``. In a network the layer is the encoder up to the mean. Source: Kingma and Welling
2013, "Auto-encoding variational Bayes", appendices B and C. Legacy:
``org.deeplearning4j.nn.layers.variational.VariationalAutoencoder``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from dl4jlegacy.arrays.backend import Array, Scalar, get_array_module, scalar
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.errors import ConfError
from dl4jlegacy.kernels.elementary import exp, log
from dl4jlegacy.nn.layers.feedforward import Backward, FeedForwardLayer, Params, ParamShapes, activate
from dl4jlegacy.nn.layers.reconstruction_distribution import (
    GaussianReconstructionDistribution,
    ReconstructionDistribution,
)
from dl4jlegacy.nn.layers.reconstruction_loss import check_pretrain_rate
from dl4jlegacy.nn.optimization.functions import ACTIVATIONS
from dl4jlegacy.nn.optimization.step import Step
from dl4jlegacy.nn.optimization.weights import fill_weights

__all__ = ["VariationalAutoencoder"]

_MOST_LAYERS = 64
_MEAN, _LOG_VARIANCE, _OUT = "pZXMean", "pZXLogStd2", "pXZ"

Grads = Params
_Back = Callable[[Array, Grads, bool], "Array | None"]


class VariationalAutoencoder(FeedForwardLayer, tag="variational_autoencoder"):
    """Variational autoencoder with ``n_out`` latent values.

    ``activation`` is the activation of the hidden layers of encoder and decoder, ``pzx_activation`` that of mean and
    log variance. Pretraining draws ``num_samples`` latent values for every example.
    """

    pretrains = True
    weights = frozenset(
        {f"{part}{i}W" for part in "ed" for i in range(_MOST_LAYERS)}
        | {f"{part}W" for part in (_MEAN, _LOG_VARIANCE, _OUT)}
    )

    repeated: ClassVar[Mapping[str, int]] = {"encoder_layer_sizes": 1, "decoder_layer_sizes": 1}

    encoder_layer_sizes: tuple[int, ...] = (100,)
    decoder_layer_sizes: tuple[int, ...] = (100,)
    reconstruction_distribution: ReconstructionDistribution = GaussianReconstructionDistribution(activation="tanh")
    pzx_activation: str = "identity"
    num_samples: int = 1
    pretrain_learning_rate: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_pretrain_rate(self.title(), self.pretrain_learning_rate)
        for field in ("encoder_layer_sizes", "decoder_layer_sizes"):
            sizes = getattr(self, field)
            if not 1 <= len(sizes) <= _MOST_LAYERS or min(sizes) < 1:
                raise ConfError(f"{self.title()}: {field} is {sizes}; give one positive size for each hidden layer")
        self.resolve("pzx_activation", ACTIVATIONS, "activation")
        if self.num_samples < 1:
            raise ConfError(f"{self.title()}: num_samples={self.num_samples}; at least 1 is needed")

    def is_pretrain_param(self, name: str) -> bool:
        """Return whether only pretraining changes the parameter: all parameters except the encoder's up to the mean."""
        return not name.startswith(("e", _MEAN))

    def param_shapes(self) -> ParamShapes:
        """Return ``W`` and ``b`` of encoder, mean, log variance, decoder, and of the output that describes p(x|z)."""
        shapes: list[tuple[str, tuple[int, ...]]] = []
        for name, below, above in self._parts():
            shapes += [(f"{name}W", (below, above)), (f"{name}b", (above,))]
        return tuple(shapes)

    def init_params(self, params: Params, stream: Stream) -> None:
        """Fill ``params`` with initial values."""
        for name, below, above in self._parts():
            kind, own = self.weight_init or "xavier", stream.at(purpose=name)
            fill_weights(params[f"{name}W"], kind, below, above, own, distribution=self.dist)
            params[f"{name}b"][...] = self.bias_init or 0.0

    def forward(self, params: Params, x: Array, step: Step) -> tuple[Array, Backward]:
        """Return the mean of q(z|x), ``(examples, n_out)``, and the backward pass."""
        dropped = self.drop(x, step)
        hidden, encoder_back = self._chain(params, "e", len(self.encoder_layer_sizes), dropped, step)
        mean, mean_back = _dense(params, _MEAN, hidden, self.pzx_activation, step)

        def backward(dy: Array, grads: Params, need_dx: bool = True) -> Array | None:
            for name, gradient in grads.items():
                if self.is_pretrain_param(name):
                    gradient.fill(0)
            dh = mean_back(dy, grads, True)
            assert dh is not None
            dx = encoder_back(dh, grads, need_dx)
            if dx is not None and step.train and self.drop_out:
                step.kernels.dropout_backward(dx, self.drop_out, step.key("dropout"))
            return dx

        return mean, backward

    def pretrain_gradient(self, params: Params, x: Array, grads: Params, step: Step, *, scale: float) -> Scalar:
        """Write the gradient of ``scale`` times the bound, summed over ``x (examples, n_in)``; return the mean."""
        xp, rows, samples, factor = get_array_module(x), len(x), self.num_samples, x.dtype.type(scale)
        hidden, encoder_back = self._chain(params, "e", len(self.encoder_layer_sizes), x, step)
        mean, mean_back = _dense(params, _MEAN, hidden, self.pzx_activation, step)
        log_variance, variance_back = _dense(params, _LOG_VARIANCE, hidden, self.pzx_activation, step)
        sigma = exp(0.5 * log_variance)
        noise = step.buffer("noise", (samples, *mean.shape), x)
        step.kernels.gaussian(noise.reshape(-1, self.n_out), step.key("latent"))
        z = (mean + sigma * noise).reshape(samples * rows, -1)
        decoded, decoder_back = self._chain(params, "d", len(self.decoder_layer_sizes), z, step)
        out, out_back = _dense(params, _OUT, decoded, "identity", step)
        losses, dout = self.reconstruction_distribution.loss(_repeated(x, samples), out)
        kl = 0.5 * (mean * mean + sigma * sigma - 1 - log_variance).sum(axis=1)
        score = scalar(losses.mean() + kl.mean())

        dout *= factor / samples
        ddecoded = out_back(xp.ascontiguousarray(dout, x.dtype), grads, True)
        assert ddecoded is not None
        dz = decoder_back(ddecoded, grads, True)
        assert dz is not None
        dz = dz.reshape(noise.shape)
        dmean = mean * factor + dz.sum(axis=0)
        dlog = 0.5 * ((sigma * sigma - 1) * factor + sigma * (dz * noise).sum(axis=0))
        dhidden = mean_back(dmean, grads, True)
        other = variance_back(dlog, grads, True)
        assert dhidden is not None and other is not None  # the call asked for both
        dhidden += other
        encoder_back(dhidden, grads, False)
        return score

    def reconstruct(self, params: Params, x: Array, step: Step) -> Array:
        """Return the mean of p(x|z) for the mean ``z`` of q(z|x), ``(examples, n_in)``."""
        return self.decode(params, self.forward(params, x, step)[0], step)

    def decode(self, params: Params, z: Array, step: Step) -> Array:
        """Return ``generate_at_mean_given_z``: the decoding counterpart of ``forward``."""
        return self.generate_at_mean_given_z(params, z, step)

    def reconstruction_error(self, params: Params, x: Array, step: Step) -> Array:
        """Return ``-log p(x|z)`` of every example for the mean ``z`` of q(z|x), ``(examples,)``, in nats."""
        decoded = self._decode(params, self.forward(params, x, step)[0], step)
        return self.reconstruction_distribution.loss(x, decoded)[0]

    def generate_at_mean_given_z(self, params: Params, z: Array, step: Step) -> Array:
        """Return the mean of p(x|z), ``(examples, n_in)``, for ``z (examples, n_out)``."""
        return self.reconstruction_distribution.mean(self._decode(params, z, step))

    def generate_random_given_z(self, params: Params, z: Array, step: Step) -> Array:
        """Return a sample of p(x|z), ``(examples, n_in)``, for ``z (examples, n_out)``."""
        return self.reconstruction_distribution.sample(self._decode(params, z, step), step.random("generate"))

    def reconstruction_log_probability(self, params: Params, x: Array, step: Step, num_samples: int) -> Array:
        """Return ``log p(x)`` of every example, ``(examples,)``, estimated as the log of the mean of p(x|z) over z.

        As in DL4J, ``z`` is drawn from q(z|x), and the estimate is not weighted by the density of ``z``.
        """
        xp, rows = get_array_module(x), len(x)
        hidden, _ = self._chain(params, "e", len(self.encoder_layer_sizes), x, step)
        mean, _ = _dense(params, _MEAN, hidden, self.pzx_activation, step)
        log_variance, _ = _dense(params, _LOG_VARIANCE, hidden, self.pzx_activation, step)
        each = xp.empty((num_samples, rows), x.dtype)
        noise = step.buffer("noise", mean.shape, x)
        for sample in range(num_samples):
            step.kernels.gaussian(noise, step.key("probability", sample))
            z = mean + exp(0.5 * log_variance) * noise
            each[sample] = -self.reconstruction_distribution.loss(x, self._decode(params, z, step))[0]
        top = each.max(axis=0)
        result: Array = top + log(exp(each - top).mean(axis=0))
        return result

    def _parts(self) -> list[tuple[str, int, int]]:
        """Return name, inputs and outputs of the dense parts, in DL4J's order."""
        encoder = [self.n_in, *self.encoder_layer_sizes]
        decoder = [self.n_out, *self.decoder_layer_sizes]
        described = self.reconstruction_distribution.inputs(self.n_in)
        return [
            *((f"e{i}", encoder[i], encoder[i + 1]) for i in range(len(encoder) - 1)),
            (_MEAN, encoder[-1], self.n_out),
            (_LOG_VARIANCE, encoder[-1], self.n_out),
            *((f"d{i}", decoder[i], decoder[i + 1]) for i in range(len(decoder) - 1)),
            (_OUT, decoder[-1], described),
        ]

    def _decode(self, params: Params, z: Array, step: Step) -> Array:
        decoded, _ = self._chain(params, "d", len(self.decoder_layer_sizes), z, step)
        return _dense(params, _OUT, decoded, "identity", step)[0]

    def _chain(self, params: Params, part: str, count: int, x: Array, step: Step) -> tuple[Array, _Back]:
        """Run the hidden layers of the encoder ("e") or decoder ("d")."""
        backs: list[_Back] = []
        for i in range(count):
            x, back = _dense(params, f"{part}{i}", x, self.forward_activation(), step)
            backs.append(back)

        def backward(dy: Array, grads: Grads, need_dx: bool) -> Array | None:
            dx: Array | None = dy
            for i in reversed(range(count)):
                assert dx is not None
                dx = backs[i](dx, grads, need_dx or i > 0)
            return dx

        return x, backward


def _repeated(x: Array, times: int) -> Array:
    """Return ``x`` repeated ``times`` times, all rows of a copy together."""
    if times == 1:
        return x
    several = get_array_module(x).empty((times, *x.shape), x.dtype)
    several[...] = x
    rows: Array = several.reshape(times * len(x), -1)
    return rows


def _dense(params: Params, name: str, x: Array, activation: str, step: Step) -> tuple[Array, _Back]:
    """Return ``y = activation(x W + b)`` of one part in a work buffer, and its backward pass."""
    matmul, W = step.kernels.matmul, params[f"{name}W"]
    z = step.buffer(f"{name} y", (len(x), W.shape[1]), x)
    matmul(x, W, z)
    y, to_dz = activate(z, params[f"{name}b"], activation, step)

    def backward(dy: Array, grads: Grads, need_dx: bool) -> Array | None:
        dz = to_dz(dy, grads[f"{name}b"])
        matmul(dz.T, x, grads[f"{name}W"].T)
        if not need_dx:
            return None
        dx = step.buffer(f"{name} dx", x.shape, x)
        matmul(dz, W.T, dx)
        return dx

    return y, backward
