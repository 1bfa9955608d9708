"""Restricted Boltzmann machine: a layer that pretrains itself by contrastive divergence, the building block of a DBN.

Sources: Hinton 2002, "Training products of experts by minimizing contrastive divergence"; Nair and Hinton 2010 for
rectified units. Legacy: ``org.deeplearning4j.nn.layers.feedforward.rbm.RBM``, whose gradient this follows: positive
phase from probabilities, negative phase from visible samples and hidden probabilities, visible bias from the
reconstruction's probabilities.
"""

from __future__ import annotations

from dl4jlegacy.arrays.backend import Array, Scalar, get_array_module
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.errors import ConfError
from dl4jlegacy.kernels.elementary import softplus, tanh
from dl4jlegacy.nn.layers.feedforward import FeedForwardLayer, Params, ParamShapes
from dl4jlegacy.nn.layers.reconstruction_loss import check_pretrain_rate, mean_score, reconstruction_scores
from dl4jlegacy.nn.optimization.losses import LOSSES
from dl4jlegacy.nn.optimization.step import Step

__all__ = ["RBM", "UNITS"]

UNITS = {
    "binary": "sigmoid",
    "gaussian": "identity",
    "identity": "identity",
    "linear": "identity",
    "rectified": "relu",
    "softmax": "softmax",
}
"""Kind of unit to the activation that gives its mean. Softmax, linear and identity units are not sampled (legacy)."""


class RBM(FeedForwardLayer, tag="rbm"):
    """Restricted Boltzmann machine with ``n_in`` visible and ``n_out`` hidden units, trained by CD-``k``.

    The output is the mean of the hidden units, so ``hidden_unit`` decides and the inherited ``activation`` is not used.
    ``sparsity`` > 0 is the target mean of every hidden unit; the hidden biases then follow only this target (legacy).
    Drop-out acts in fine-tuning, not in pretraining. ``pretrain_learning_rate`` replaces the updater's base rate there.
    """

    pretrains = True

    visible_unit: str = "binary"
    hidden_unit: str = "binary"
    k: int = 1
    sparsity: float = 0.0
    loss: str = "reconstruction_crossentropy"
    visible_bias_init: float = 0.0
    pretrain_learning_rate: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_pretrain_rate(self.title(), self.pretrain_learning_rate)
        for field in ("visible_unit", "hidden_unit"):
            self.resolve(field, UNITS)
        if self.k < 1:
            raise ConfError(f"{self.title()}: k={self.k}; contrastive divergence needs at least 1 step")
        self.resolve("loss", LOSSES)

    def param_shapes(self) -> ParamShapes:
        """Return the shapes of a dense layer's parameters, then ``vb (n_in,)``, the visible bias."""
        return (*super().param_shapes(), ("vb", (self.n_in,)))

    def init_params(self, params: Params, stream: Stream) -> None:
        """Fill ``params`` with initial values."""
        super().init_params(params, stream)
        params["vb"][...] = self.visible_bias_init

    def forward_activation(self) -> str:
        """Return the activation that gives the mean of the hidden units."""
        return UNITS[self.hidden_unit]

    def pretrain_gradient(self, params: Params, x: Array, grads: Params, step: Step, *, scale: float) -> Scalar:
        """Write the CD-k gradient of ``x (examples, n_in)`` times ``scale``; return the mean reconstruction loss.

        The gradient points uphill in the loss, so that ``params -= learning_rate * gradient`` descends. The loss is the
        mean over the batch's first examples (``mean_score``): only listeners use it, and logarithms are slow.
        """
        m = x.shape[0]
        visible = step.buffer("visible", (2 * m, self.n_in), x)  # data above, reconstruction below:
        hidden = step.buffer("hidden", (2 * m, self.n_out), x)  # the gradient of both phases is then one product
        reconstruction = self._chain(params, x, visible[m:], hidden, step)
        score = mean_score(self.loss, x, reconstruction, UNITS[self.visible_unit], step.kernels)
        if self.sparsity:
            grads["b"][...] = (hidden[:m].mean(axis=0) - self.sparsity) * (m * scale)
        self._bias_gradients(x, reconstruction, visible[:m], hidden, grads, step=step, scale=scale)
        step.kernels.matmul(hidden.T, visible, grads["W"].T)
        return score

    def _bias_gradients(
        self, x: Array, reconstruction: Array, kept: Array, hidden: Array, grads: Params, *, step: Step, scale: float
    ) -> None:
        """Write the biases' gradients; ``kept`` becomes ``x``, ``hidden`` its factor in the gradient of ``W``."""
        gb = grads["b"]
        if self.sparsity:  # was already written
            gb = step.buffer("hidden_sums", gb.shape, x)
        step.kernels.difference_sums(reconstruction, x, kept, grads["vb"], scale)
        step.kernels.signed_sums(hidden, len(x), gb, scale)

    def free_energy(self, params: Params, x: Array) -> Array:
        """Return the free energy of every row of ``x``, ``(examples,)``; lower means more probable.

        It is implemented for binary hidden units with binary or gaussian (unit variance) visible units.

        Raises:
            ConfError: the units are of other kinds.
        """
        if self.hidden_unit != "binary" or self.visible_unit not in ("binary", "gaussian"):
            raise ConfError(f"{self.title()}: no free energy for {self.visible_unit} and {self.hidden_unit} units")
        hidden = softplus(x @ params["W"] + params["b"]).sum(axis=1)
        if self.visible_unit == "binary":
            energy: Array = -(x @ params["vb"]) - hidden
        else:
            energy = 0.5 * ((x - params["vb"]) ** 2).sum(axis=1) - hidden
        return energy

    def reconstruct(self, params: Params, x: Array, step: Step) -> Array:
        """Return the mean visible units given the mean hidden units given ``x``, in a work buffer."""
        hidden = self.linear(params, x, step)
        _mean(self.hidden_unit, hidden, params["b"], step)
        return self.decode(params, hidden, step)

    def decode(self, params: Params, hidden: Array, step: Step) -> Array:
        """Return the mean visible units, ``(examples, n_in)``, given ``hidden (examples, n_out)``, in a work buffer."""
        visible = step.buffer("reconstruction", (len(hidden), self.n_in), hidden)
        step.kernels.matmul(hidden, params["W"].T, visible)
        _mean(self.visible_unit, visible, params["vb"], step)
        return visible

    def sample(self, params: Params, count: int, gibbs_steps: int, step: Step) -> Array:
        """Return the mean visible units, ``(count, n_in)``, at the end of ``count`` Gibbs chains, in a work buffer.

        A chain starts with hidden units drawn from their biases alone. Each of the ``gibbs_steps`` steps (at least 1)
        draws the visible units; the last step takes their mean instead. ``step`` selects the random numbers.
        """
        W, b, vb = params["W"], params["b"], params["vb"]
        z, h = (step.buffer(name, (count, self.n_out), W) for name in ("hidden", "hidden_sample"))
        mean, v = (step.buffer(name, (count, self.n_in), W) for name in ("visible_mean", "visible"))
        z.fill(0)
        _sample(self.hidden_unit, z, b, h, step, key=step.key("gibbs hidden"))
        for i in range(1, gibbs_steps):
            step.kernels.matmul(h, W.T, mean)
            _sample(self.visible_unit, mean, vb, v, step, key=step.key("gibbs visible", i))
            step.kernels.matmul(v, W, z)
            _sample(self.hidden_unit, z, b, h, step, key=step.key("gibbs hidden", i))
        return self.decode(params, h, step)

    def reconstruction_error(self, params: Params, x: Array, step: Step) -> Array:
        """Return the loss of ``reconstruct`` for every example, ``(examples,)``."""
        return reconstruction_scores(self.loss, x, self.reconstruct(params, x, step), UNITS[self.visible_unit])

    def _chain(self, params: Params, x: Array, v: Array, hidden: Array, step: Step) -> Array:
        """Run the Gibbs chain from ``x``; return the means of the visible units.

        ``hidden`` is filled with the hidden means of both phases, ``v`` with samples of the visible units.
        """
        W, b, matmul = params["W"], params["b"], step.kernels.matmul
        m = x.shape[0]
        data, fantasy = hidden[:m], hidden[m:]
        h = step.buffer("hidden_sample", data.shape, x)
        mean = step.buffer("visible_mean", v.shape, x)
        matmul(x, W, data)
        _sample(self.hidden_unit, data, b, h, step, key=step.key("hidden"))
        for i in range(1, self.k + 1):
            matmul(h, W.T, mean)
            _sample(self.visible_unit, mean, params["vb"], v, step, key=step.key("visible", i))
            matmul(v, W, fantasy)
            if i < self.k:
                _sample(self.hidden_unit, fantasy, b, h, step, key=step.key("hidden", i))
        _mean(self.hidden_unit, fantasy, b, step)
        return mean


def _mean(unit: str, z: Array, bias: Array, step: Step) -> None:
    """Replace ``z`` by the mean of units of this kind with input ``z + bias``."""
    if unit == "binary":
        step.kernels.sigmoid_bias(z, bias)
        return
    step.kernels.bias_activation(z, bias, "relu" if unit == "rectified" else "identity")
    if unit == "softmax":
        step.kernels.softmax(z)


def _sample(unit: str, z: Array, bias: Array, sample: Array, step: Step, *, key: int) -> None:
    """Replace ``z`` by the units' mean as ``_mean`` does, and draw ``sample`` from them."""
    if unit == "binary":
        step.kernels.sigmoid_sample(z, bias, z, sample, key)
    elif unit == "rectified":
        _sample_rectified(z, bias, sample, step, key)
    else:
        _mean(unit, z, bias, step)
        if unit == "gaussian":
            step.kernels.gaussian(sample, key)
            sample += z
        else:
            sample[...] = z


def _sample_rectified(z: Array, bias: Array, sample: Array, step: Step, key: int) -> None:
    """Draw ``max(0, z + N(0, sigmoid(z)))`` (Nair and Hinton 2010, section 2); its mean field is ``max(0, z)``."""
    xp = get_array_module(z)
    z += bias
    step.kernels.gaussian(sample, key)
    deviation = xp.sqrt(0.5 * (1 + tanh(0.5 * z)))  # Legacy: took sigmoid(max(0, z)) for the variance
    sample *= deviation
    sample += z
    xp.maximum(sample, 0, out=sample)
    xp.maximum(z, 0, out=z)
