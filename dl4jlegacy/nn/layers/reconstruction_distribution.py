"""p(x|z) of a variational autoencoder: likelihood, mean and samples, given the decoder's output.

All arrays are ``(rows, ...)``: ``x (rows, n)`` and the decoder's output ``z (rows, inputs(n))`` before any activation.
Legacy: ``org.deeplearning4j.nn.conf.layers.variational.*ReconstructionDistribution``.
"""

from __future__ import annotations

from dl4jlegacy.arrays.backend import Array, get_array_module
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.kernels import draws
from dl4jlegacy.kernels.elementary import exp, log, log1p
from dl4jlegacy.nn.arguments import Tagged, resolve_name
from dl4jlegacy.nn.optimization.functions import ACTIVATIONS

__all__ = [
    "BernoulliReconstructionDistribution",
    "ExponentialReconstructionDistribution",
    "GaussianReconstructionDistribution",
    "ReconstructionDistribution",
]

_LOG_2_PI = 1.8378770664093453
_CLIP = 1e-10  # rounding can give a probability of 0 or 1, which must not cause an infinite loss


class _Distribution(Tagged):
    positional = ("activation",)

    activation: str = "identity"

    def __post_init__(self) -> None:
        resolve_name(self, f"reconstruction distribution {self.title()}", "activation", ACTIVATIONS)

    def inputs(self, n: int) -> int:
        """Return the number of decoder outputs that describe data of ``n`` values."""
        return n

    def loss(self, x: Array, z: Array) -> tuple[Array, Array]:
        """Return ``-log p(x|z)`` of every row, ``(rows,)``, and its gradient with respect to ``z``."""
        raise NotImplementedError

    def mean(self, z: Array) -> Array:
        """Return the mean data, ``(rows, n)``."""
        raise NotImplementedError

    def sample(self, z: Array, stream: Stream) -> Array:
        """Return data drawn from the distribution, ``(rows, n)``."""
        raise NotImplementedError

    def _out(self, z: Array) -> Array:
        return ACTIVATIONS[self.activation].forward(z)

    def _back(self, dout: Array, z: Array, out: Array) -> Array:
        return ACTIVATIONS[self.activation].backward(dout, z, out)


class GaussianReconstructionDistribution(_Distribution, tag="gaussian"):
    """Independent normals: the first half of the decoder's outputs are the means, the second half the log variances."""

    def inputs(self, n: int) -> int:
        """Return ``2 n``."""
        return 2 * n

    def loss(self, x: Array, z: Array) -> tuple[Array, Array]:
        """Return ``sum(log(2 pi) + log v + (x - m)^2 / v) / 2`` and its gradient."""
        xp, out, n = get_array_module(x), self._out(z), x.shape[1]
        log_variance = out[:, n:]
        difference, precision = out[:, :n] - x, exp(-log_variance)
        squares = difference * difference * precision
        losses = 0.5 * (n * _LOG_2_PI + (log_variance + squares).sum(axis=1))
        dout = xp.empty_like(out)
        dout[:, :n], dout[:, n:] = difference * precision, 0.5 * (1 - squares)
        return losses, self._back(dout, z, out)

    def mean(self, z: Array) -> Array:
        """Return the means."""
        return self._out(z)[:, : z.shape[1] // 2]

    def sample(self, z: Array, stream: Stream) -> Array:
        """Return samples of the normals."""
        xp, out, n = get_array_module(z), self._out(z), z.shape[1] // 2
        noise = xp.asarray(draws.normal(stream.generator(), (len(z), n)), dtype=z.dtype)
        drawn: Array = out[:, :n] + noise * exp(0.5 * out[:, n:])
        return drawn


class BernoulliReconstructionDistribution(_Distribution, tag="bernoulli"):
    """Independent Bernoulli variables with probabilities ``activation(z)``, for data between 0 and 1."""

    activation: str = "sigmoid"

    def loss(self, x: Array, z: Array) -> tuple[Array, Array]:
        """Return the binary cross-entropy and its gradient."""
        xp = get_array_module(x)
        if self.activation == "sigmoid":
            tail = exp(-xp.abs(z))
            losses: Array = (xp.maximum(z, 0) - x * z + log1p(tail)).sum(axis=1)
            return losses, xp.where(z >= 0, 1, tail) / (1 + tail) - x
        out = self._out(z)
        p = xp.clip(out, _CLIP, 1 - max(_CLIP, float(xp.finfo(z.dtype).eps)))
        losses = -(x * log(p) + (1 - x) * log(1 - p)).sum(axis=1)
        from_logit = ACTIVATIONS[self.activation].from_logit
        if from_logit is not None:
            return losses, from_logit(out - x, z, out)
        return losses, self._back((p - x) / (p * (1 - p)), z, out)

    def mean(self, z: Array) -> Array:
        """Return the probabilities."""
        return self._out(z)

    def sample(self, z: Array, stream: Stream) -> Array:
        """Return zeros and ones."""
        xp = get_array_module(z)
        drawn: Array = (xp.asarray(stream.generator().random(z.shape)) < self._out(z)).astype(z.dtype)
        return drawn


class ExponentialReconstructionDistribution(_Distribution, tag="exponential"):
    """Independent exponentials with rates ``exp(activation(z))``, for data that is not negative."""

    def loss(self, x: Array, z: Array) -> tuple[Array, Array]:
        """Return ``sum(exp(g) x - g)`` and its gradient."""
        out = self._out(z)
        weighted = exp(out) * x
        losses: Array = (weighted - out).sum(axis=1)
        return losses, self._back(weighted - 1, z, out)

    def mean(self, z: Array) -> Array:
        """Return the reciprocals of the rates."""
        mean: Array = exp(-self._out(z))
        return mean

    def sample(self, z: Array, stream: Stream) -> Array:
        """Return samples of the exponentials."""
        drawn: Array = get_array_module(z).asarray(draws.exponential(stream.generator(), z.shape)) * self.mean(z)
        return drawn.astype(z.dtype, copy=False)


ReconstructionDistribution = (
    GaussianReconstructionDistribution | BernoulliReconstructionDistribution | ExponentialReconstructionDistribution
)
