"""Resolves a stack of layers into stages: each layer with all sizes filled in, and the preprocessor before it.

A layer's open fields are inherited from the network-wide configuration; its sizes are inferred from the input type.
Legacy: ``MultiLayerConfiguration.Builder.setInputType``, and before 0.5 ``ConvolutionLayerSetup``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import ConfError, ShapeError
from dl4jlegacy.kernels.protocol import Kernels, host_kernels
from dl4jlegacy.nn.input_type import AnyInputType, InputTypeFeedForward, InputTypeRecurrent
from dl4jlegacy.nn.layers.convolution import ConvolutionLayer, is_pooled
from dl4jlegacy.nn.layers.feedforward import Backward, Params
from dl4jlegacy.nn.layers.layer import Layer
from dl4jlegacy.nn.layers.output import BaseOutputLayer
from dl4jlegacy.nn.layers.subsampling import SubsamplingLayer
from dl4jlegacy.nn.optimization.losses import LOSSES
from dl4jlegacy.nn.optimization.step import Step
from dl4jlegacy.nn.preprocessors import InputPreProcessor, resolve_preprocessor

__all__ = ["INHERITED", "Stage", "infer_input_type", "resolve_layer", "stages"]

INHERITED = (
    "activation",
    "weight_init",
    "dist",
    "bias_init",
    "updater",
    "l1",
    "l2",
    "l1_bias",
    "l2_bias",
    "drop_out",
    "gradient_normalization",
    "gradient_normalization_threshold",
)
"""Fields that a layer inherits from ``NeuralNetConfiguration`` if its own is None."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A resolved layer with the preprocessor before it, and the input and output types of the pair."""

    layer: Layer
    pre_processor: InputPreProcessor | None
    input_type: AnyInputType
    layer_input_type: AnyInputType
    output_type: AnyInputType

    def preprocess(self, x: Array, step: Step) -> tuple[Array, Step, Any]:
        """Return the output of the preprocessor, its ``Step``, and its backward pass (None without a preprocessor)."""
        pre = self.pre_processor
        if pre is None:
            return x, step, None
        y, back = pre.forward(x, step)
        return y, step.at(step.layer, rows=pre.rows(x, step), mask=pre.forward_mask(step.mask, step)), back

    def is_pooled_by(self, behind: Stage, kernels: Kernels) -> bool:
        """Return whether this stage and the next one can run as one; see ``ConvolutionLayer.forward_pooled``."""
        return (
            behind.pre_processor is None and host_kernels(kernels) is not None and is_pooled(self.layer, behind.layer)
        )

    def forward(
        self, params: Params, x: Array, step: Step, behind: Stage | None = None
    ) -> tuple[Array, Step, Backward]:  # fmt: skip
        """Return the output, the ``Step`` behind the layer (rows, mask), and the backward pass.

        If the next stage ``behind`` is given, the results are those of both stages; ``is_pooled_by`` must allow this.
        """
        x, step, back = self.preprocess(x, step)
        layer = self.layer
        try:
            if behind is None:
                y, backward = layer.forward(params, x, step.at(step.layer, train=False) if layer.frozen else step)
            else:
                assert isinstance(layer, ConvolutionLayer) and isinstance(behind.layer, SubsamplingLayer)
                y, backward = layer.forward_pooled(behind.layer, params, x, step)
        except ShapeError as exc:  # the length is known only from the batch
            raise ShapeError(f"layer {step.layer} ({layer.title()}): {exc}") from exc
        if step.mask is not None:
            step = step.at(step.layer, mask=layer.forward_mask(step.mask, step))
        if back is None:
            return y, step, backward

        def whole(dy: Array, grads: Params, need_dx: bool = True) -> Array | None:
            dx = backward(dy, grads, need_dx)
            result: Array | None = back(dx) if dx is not None else None
            return result

        return y, step, whole


def infer_input_type(layer: Layer, pre_processor: InputPreProcessor | None) -> AnyInputType | None:
    """Return the type of a network's input if it can be inferred from its first layer, else None."""
    if pre_processor is not None and not pre_processor.keeps_type:
        return pre_processor.natural_input()
    size = layer.input_size()
    if size and layer.consumes[0] == "feed_forward":
        return InputTypeFeedForward(size=size)
    return InputTypeRecurrent(size=size) if size and layer.consumes[0] == "recurrent" else None


def resolve_layer(layer: Layer, given: AnyInputType, conf: Any, title: str) -> Layer:
    """Return a layer with its sizes and its inherited fields from ``conf``, a ``NeuralNetConfiguration``.

    Raises:
        ShapeError: a size is open or does not fit; ``title`` begins the message.
        ConfError: weight init "distribution" without a distribution.
    """
    try:
        layer = layer.with_input(given)
    except ShapeError as exc:
        raise ShapeError(f"{title}: {exc}") from exc
    layer = msgspec.structs.replace(layer, **_inherited(layer, conf))
    if layer.weight_init == "distribution" and layer.dist is None:
        raise ConfError(f"{title}: weight_init is 'distribution' but dist is not set")
    return layer


def stages(
    layers: Sequence[Layer],
    conf: Any,
    input_type: AnyInputType | None,
    pre_processors: Mapping[int, InputPreProcessor],
) -> tuple[Stage, ...]:
    """Return the stages of a stack of layers; raises like ``resolve_layer``."""
    given = input_type or infer_input_type(layers[0], pre_processors.get(0))
    result: list[Stage] = []
    for index, layer in enumerate(layers):
        title = f"layer {index} ({layer.title()})"
        if given is None:
            raise ShapeError(f"{title}: {_unknown(layer)}")
        try:
            pre, enters = resolve_preprocessor(pre_processors.get(index), given, layer.consumes)
        except ShapeError as exc:
            raise ShapeError(f"{title} {exc}") from exc
        layer = resolve_layer(layer, enters, conf, title)
        try:
            leaves = layer.output_type(enters)
        except ShapeError as exc:
            raise ShapeError(f"{title}: {exc}") from exc
        result.append(Stage(layer, pre, given, enters, leaves))
        given = leaves
    return tuple(result)


def _unknown(layer: Layer) -> str:
    if layer.consumes[0] == "convolutional":
        return (
            "the size of its images is not known; set input_type=InputType.convolutional_flat(height, width, channels) "
            "or InputType.convolutional(height, width, channels)"
        )
    return "n_in is not set; give the number of units"


def _inherited(layer: Layer, conf: Any) -> dict[str, Any]:
    names = [name for name in INHERITED if name not in layer.unused and getattr(layer, name) is None]
    open_fields = {name: getattr(conf, name) for name in names}
    if isinstance(layer, BaseOutputLayer) and "activation" in open_fields:
        # Legacy: 0.9.1's output layers inherit e.g. "relu", which no cross-entropy accepts; 1.0.0 uses softmax.
        open_fields["activation"] = LOSSES[layer.loss].natural or open_fields["activation"]
    return open_fields
