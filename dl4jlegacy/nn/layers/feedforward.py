"""Base of all layers: the inherited fields, and ``y = activation(x W + b)`` with its backward pass.

A layer is a frozen struct with both the configuration and the behaviour; it has no mutable state. A field that is
``None`` (or a size that is 0) is filled in by ``MultiLayerConfiguration.resolved()``; only resolved layers compute.
The parameters are views into the network's flat vector, in which ``W (n_in, n_out)`` lies column by column, as in DL4J.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Self

import msgspec

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.errors import ConfError, ShapeError
from dl4jlegacy.kernels.protocol import FUSED_ACTIVATIONS
from dl4jlegacy.nn.arguments import Tagged
from dl4jlegacy.nn.input_type import AnyInputType, InputTypeFeedForward
from dl4jlegacy.nn.optimization.functions import ACTIVATIONS, Activation
from dl4jlegacy.nn.optimization.gradient_normalization import GRADIENT_NORMALIZATIONS
from dl4jlegacy.nn.optimization.step import Step
from dl4jlegacy.nn.optimization.updaters import Updater, resolve_updater
from dl4jlegacy.nn.optimization.weights import WEIGHT_INITS, Distribution, fill_weights

__all__ = [
    "PARAMETER_FIELDS",
    "Backward",
    "FeedForwardLayer",
    "LayerOutput",
    "ParamShapes",
    "Params",
    "activate",
    "sample_activation",
]

PARAMETER_FIELDS = (
    "weight_init",
    "dist",
    "bias_init",
    "updater",
    "l1",
    "l2",
    "l1_bias",
    "l2_bias",
    "gradient_normalization",
    "gradient_normalization_threshold",
)
"""Fields without a meaning for a layer without parameters."""

Params = Mapping[str, Array]
"""Parameters (or gradients) of one layer by name: ``W (n_in, n_out)``, ``b (n_out,)``, ``vb (n_in,)``."""

Backward = Callable[[Array, Params, bool], "Array | None"]
"""``backward(dy, grads, need_dx) -> dx``: overwrites ``dy``, writes ``grads``, returns ``dx`` only if ``need_dx``."""

LayerOutput = tuple[Array, Backward]
"""The output of a layer, and its backward pass."""

ParamShapes = tuple[tuple[str, tuple[int, ...]], ...]
"""Name and shape of every parameter of a layer, in the order of the flat vector."""


def sample_activation(function: Activation, z: Array, step: Step, like: Array | None = None) -> Array:
    """Return the activation of ``z`` in training; a randomised activation draws random numbers.

    ``like`` is ``z`` in its layout inside the network, if that has another shape: the random numbers of images depend
    on the layout.
    """
    if function.sample is None:
        return function.forward(z)
    return function.sample(z, step.uniforms("activation", z if like is None else like).reshape(z.shape))


def activate(z: Array, b: Array, name: str, step: Step) -> tuple[Array, Callable[[Array, Array], Array]]:
    """Return ``y = f(z + b)`` and ``to_dz(dy, gb) -> dz``, which also writes ``gb = dz.sum(axis=0)``.

    ``z`` and ``dy`` are overwritten. Activations with a fused kernel need no extra memory; the others keep ``z``.
    """
    kernels = step.kernels
    if name in FUSED_ACTIVATIONS:
        kernels.bias_activation(z, b, name)

        def fused(dy: Array, gb: Array) -> Array:
            kernels.activation_backward_bias(dy, z, gb, name)
            return dy

        return z, fused
    function = ACTIVATIONS[name]
    z += b
    y = sample_activation(function, z, step) if step.train else function.forward(z)

    def formula(dy: Array, gb: Array) -> Array:
        dz = function.backward(dy, z, y)
        kernels.column_sums(dz, gb)
        return dz

    return y, formula


class FeedForwardLayer(Tagged, omit_defaults=True):
    """Fields shared by all layers; ``None`` (0 for a size) means: inherit, or infer from the neighbouring layer.

    ``drop_out`` is the probability that an input is *retained* (inverted drop-out; 0 switches it off). A ``frozen``
    layer always works as in prediction, and its parameters never change.
    Legacy: ``org.deeplearning4j.nn.conf.layers.FeedForwardLayer``.
    """

    positional: ClassVar[tuple[str, ...]] = ("n_out", "activation")
    repeated: ClassVar[Mapping[str, int]] = {}
    pretrains: ClassVar[bool] = False  # whether the layer has pretrain_gradient
    consumes: ClassVar[tuple[str, ...]] = ("feed_forward",)  # input kinds that forward accepts, preferred first
    weights: ClassVar[frozenset[str]] = frozenset({"W"})  # regularized by l1 and l2; others: l1_bias, l2_bias
    states: ClassVar[frozenset[str]] = frozenset()  # parameters that take no gradient step, see ParamSpan.is_state
    c_ordered: ClassVar[frozenset[str]] = frozenset()  # matrices stored row by row
    needs_whole: ClassVar[bool] = False  # whether it needs whole sequences, and cannot run step by step
    unused: ClassVar[tuple[str, ...]] = ()  # meaningless fields for this kind: an error if set, and not inherited

    name: str | None = None
    n_in: int = 0
    n_out: int = 0
    activation: str | None = None
    weight_init: str | None = None
    dist: Distribution | None = None
    bias_init: float | None = None
    updater: Updater | None = None
    l1: float | None = None
    l2: float | None = None
    l1_bias: float | None = None
    l2_bias: float | None = None
    drop_out: float | None = None
    gradient_normalization: str | None = None
    gradient_normalization_threshold: float | None = None
    frozen: bool = False

    def __post_init__(self) -> None:
        for field in self.unused:
            if getattr(self, field) is not None:
                raise ConfError(f"{self.title()}: {field} has no effect, since this layer has none; leave it out")
        self.resolve("activation", ACTIVATIONS)
        self.resolve("weight_init", WEIGHT_INITS)
        self.resolve("gradient_normalization", GRADIENT_NORMALIZATIONS)
        resolve_updater(self, self.title())

    def title(self) -> str:
        """Return the layer's kind and name, for messages: ``rbm 'first'``."""
        kind = str(self.__struct_config__.tag)
        return f"{kind} {self.name!r}" if self.name else kind

    def input_size(self) -> int:
        """Return the size of the input if the layer itself determines that size, else 0."""
        return self.n_in

    def with_input(self, given: AnyInputType) -> Self:
        """Return the layer with its sizes filled in for an input of type ``given``.

        Raises:
            ShapeError: a size is open, or ``n_in`` differs.
        """
        layer = self if self.n_in else msgspec.structs.replace(self, n_in=given.n_in)
        if layer.n_in != given.n_in:
            raise ShapeError(f"n_in={layer.n_in}, but what comes in is {given}; set n_in={given.n_in} or leave it out")
        if layer.n_out < 1:
            raise ShapeError("n_out is not set; give the number of units")
        return layer

    def outputs_of(self, columns: int) -> int:
        """Return the number of outputs of this layer at the end of a network whose labels have ``columns`` columns."""
        return columns

    def output_type(self, given: AnyInputType) -> AnyInputType:
        """Return the type of a resolved layer's output for an input of type ``given``."""
        sequences = isinstance(given, InputTypeFeedForward) and given.sequences
        return InputTypeFeedForward(size=self.n_out, sequences=sequences)

    def forward_mask(self, mask: Array | None, step: Step) -> Array | None:
        """Return the mask ``(time steps, examples)`` of the layer's output, given that of its input."""
        return mask

    def param_shapes(self) -> ParamShapes:
        """Return name and shape of every parameter, in the order of the flat vector."""
        return (("W", (self.n_in, self.n_out)), ("b", (self.n_out,)))

    def is_pretrain_param(self, name: str) -> bool:
        """Return whether only pretraining changes the parameter ``name``."""
        return name == "vb"

    def init_params(self, params: Params, stream: Stream) -> None:
        """Fill ``params`` with initial values: ``W`` drawn from ``stream``, ``b`` constant."""
        kind = self.weight_init or "xavier"
        fill_weights(params["W"], kind, self.n_in, self.n_out, stream, distribution=self.dist)
        params["b"][...] = self.bias_init or 0.0

    def forward_activation(self) -> str:
        """Return the name of the function that ``forward`` applies."""
        return self.activation or "sigmoid"

    def drop(self, x: Array, step: Step) -> Array:
        """Return ``x`` after inverted drop-out; in prediction, or without drop-out, ``x`` itself."""
        if not (step.train and self.drop_out):
            return x
        dropped = step.buffer("dropped", x.shape, x)
        step.kernels.dropout(x, dropped, self.drop_out, step.key("dropout"))
        return dropped

    def drop_backward(self, dx: Array, step: Step) -> Array:
        """Apply the backward pass of the input's drop-out to ``dx``, in place, and return it."""
        if step.train and self.drop_out:
            step.kernels.dropout_backward(dx, self.drop_out, step.key("dropout"))
        return dx

    def linear(self, params: Params, x: Array, step: Step) -> Array:
        """Return ``x W`` in a work buffer of shape ``(examples, n_out)``."""
        z = step.buffer("y", (x.shape[0], self.n_out), x)
        step.kernels.matmul(x, params["W"], z)
        return z

    def linear_backward(
        self, params: Params, x: Array, dz: Array, grads: Params, step: Step, *, need_dx: bool
    ) -> Array | None:
        """Write ``grads["W"] = x^T dz``; return ``dz W^T`` (through the drop-out of ``x``) if ``need_dx``."""
        step.kernels.matmul(dz.T, x, grads["W"].T)  # a C-contiguous view: the product is written directly into it
        if not need_dx:
            return None
        dx = step.buffer("dx", x.shape, x)
        step.kernels.matmul(dz, params["W"].T, dx)
        return self.drop_backward(dx, step)

    def forward(self, params: Params, x: Array, step: Step) -> LayerOutput:
        """Return ``y (examples, n_out)`` and the backward pass; ``y`` is a work buffer and ``x`` is only read."""
        dropped = self.drop(x, step)
        y, to_dz = activate(self.linear(params, dropped, step), params["b"], self.forward_activation(), step)

        def backward(dy: Array, grads: Params, need_dx: bool = True) -> Array | None:
            dz = to_dz(dy, grads["b"])
            return self.linear_backward(params, dropped, dz, grads, step, need_dx=need_dx)

        return y, backward
