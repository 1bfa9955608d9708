"""Inference of a network's input type from a Deeplearning4j file, which does not store it.

``configuration.json`` has no input type. Sizes are inferred from the first layer's ``nin`` and, for images, from the
preprocessor behind them: of all image sizes that end in that preprocessor's height and width, the smallest is taken,
of which no window cuts off a part. If the file has no such information (images that end in a global pooling, inputs
that meet in a merge), the caller must give the types.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from dl4jlegacy.errors import ConfError, ModelError, ShapeError
from dl4jlegacy.nn.conf.graph_order import topological_order
from dl4jlegacy.nn.conf.graph_stages import GraphNode, nodes
from dl4jlegacy.nn.conf.stages import infer_input_type, stages
from dl4jlegacy.nn.input_type import AnyInputType, InputTypeConvolutional, InputTypeFeedForward, InputTypeRecurrent
from dl4jlegacy.nn.layers.bidirectional import LastTimeStep
from dl4jlegacy.nn.layers.feedforward import FeedForwardLayer
from dl4jlegacy.nn.layers.layer import Layer
from dl4jlegacy.nn.layers.subsampling import GlobalPoolingLayer
from dl4jlegacy.nn.preprocessors import (
    CnnToFeedForwardPreProcessor,
    CnnToRnnPreProcessor,
    InputPreProcessor,
    RnnToFeedForwardPreProcessor,
)
from dl4jlegacy.nn.vertices import combine, shape

__all__ = ["graph_input_types", "is_superfluous", "stack_input_type"]

logger = logging.getLogger(__name__)

_LARGEST: Final = 2048
"""Largest number of rows or columns of images in the search."""
_BEHIND_IMAGES: Final = (CnnToFeedForwardPreProcessor, CnnToRnnPreProcessor)
_KEEP_TYPE: Final = (
    combine.ElementWiseVertex,
    combine.ScaleVertex,
    combine.ShiftVertex,
    combine.L2NormalizeVertex,
    combine.L2Vertex,
    shape.StackVertex,
    shape.UnstackVertex,
)
"""Vertices whose inputs have the type of the output, or of each other."""
_HOW: Final = (
    "the file does not say how large the images are; give them, restore_model(path, "
    "input_types=[InputType.convolutional(height, width, channels)])"
)


def is_superfluous(pre: InputPreProcessor | None, below: Any) -> bool:
    """Return whether a preprocessor from sequences to rows gets rows already, as written by 1.0.0."""
    return isinstance(pre, RnnToFeedForwardPreProcessor) and isinstance(
        below, GlobalPoolingLayer | LastTimeStep | shape.LastTimeStepVertex
    )


def stack_input_type(
    layers: Sequence[Layer], pres: Mapping[int, InputPreProcessor], conf: Any, given: Sequence[AnyInputType]
) -> AnyInputType | None:
    """Return the input type of a stack of layers; None if it can be inferred from the first layer."""
    if given:
        return given[0]
    pre = pres.get(0)
    if infer_input_type(layers[0], pre) is not None:
        return None
    first = next((i for i in sorted(pres) if not pres[i].keeps_type), None)
    if first and (natural := pres[first].natural_input()) and not any(layer.param_shapes() for layer in layers[:first]):
        return natural  # layers before it, such as an activation, do not change rows
    if layers[0].consumes[0] != "convolutional" or pre is not None:
        return _plain(layers, pre)
    behind = next((i for i in sorted(pres) if isinstance(pres[i], _BEHIND_IMAGES)), None)
    if behind is None:
        if all("feed_forward" in layer.consumes for layer in layers):
            return InputTypeFeedForward(size=_channels(layers))
        raise ModelError(_HOW)
    last: Any = pres[behind]
    below = [_lenient(layer) for layer in layers[:behind]]

    def end(kind: AnyInputType) -> AnyInputType:
        return stages(below, conf, kind, {i: pre for i, pre in pres.items() if i < behind})[-1].output_type

    return _images(_channels(layers), last, end)


def _plain(layers: Sequence[Layer], pre: InputPreProcessor | None) -> AnyInputType | None:
    size = _channels(layers)
    is_sequences = layers[0].consumes[0] == "recurrent" or isinstance(pre, RnnToFeedForwardPreProcessor)
    return InputTypeRecurrent(size=size) if is_sequences else InputTypeFeedForward(size=size)


def _channels(layers: Sequence[Any]) -> int:
    """Return ``n_in`` of the first layer with a size: layers before it keep the number of channels."""
    for layer in layers:
        if size := layer.input_size() or layer.n_in:
            return int(size)
    raise ModelError(_HOW)


def _images(channels: int, last: Any, end: Callable[[AnyInputType], AnyInputType]) -> InputTypeConvolutional:
    """Return the smallest images whose output has the height and width of the preprocessor ``last``."""
    heights: list[int] = []
    widths: list[int] = []
    for size in range(1, _LARGEST + 1):
        try:
            found = end(InputTypeConvolutional(height=size, width=size, channels=channels))
        except (ShapeError, ConfError):
            continue  # too small for some window
        if not isinstance(found, InputTypeConvolutional):
            break
        heights += [size] if found.height == last.height else []
        widths += [size] if found.width == last.width else []
        if found.height > last.height and found.width > last.width:
            break
    if not heights or not widths:
        raise ModelError(f"no size of images ends in {last.channels}x{last.height}x{last.width}: {_HOW}")
    if len(heights) > 1 or len(widths) > 1:
        logger.warning(
            "the file does not say how large the images are: %dx%d is taken, the smallest that fits (up to %dx%d do); "
            "if they are larger, give restore_model their input_types",
            heights[0],
            widths[0],
            heights[-1],
            widths[-1],
        )
    return InputTypeConvolutional(height=heights[0], width=widths[0], channels=channels)


def _lenient(layer: Any) -> Any:
    """Return a layer that accepts sizes not covered by its windows: the smallest that fits is covered anyway."""
    if getattr(layer, "convolution_mode", "") != "strict":
        return layer
    return msgspec.structs.replace(layer, convolution_mode="truncate")


# -- graphs ----------------------------------------------------------------------------------------------------------


def graph_input_types(
    inputs: Sequence[str], given: Sequence[GraphNode], conf: Any, types: Sequence[AnyInputType]
) -> tuple[AnyInputType, ...]:
    """Return the types of a graph's inputs; empty if they can be inferred from its layers."""
    if types:
        return tuple(types)
    by_name = {node.name: node for node in given}
    found = {name: _of_input(name, by_name) for name in inputs}
    missing = [name for name, kind in found.items() if kind is None]
    if len(missing) == 1 and (images := _graph_images(missing[0], inputs, by_name, found, conf)) is not None:
        found[missing[0]] = images
    elif len(missing) == 1:
        found[missing[0]] = _beside_others(missing[0], inputs, by_name, found, conf)
    return tuple(kind for kind in found.values() if kind) if all(found.values()) else ()


def _of_input(name: str, given: Mapping[str, GraphNode]) -> AnyInputType | None:
    """Return the type required by the layers that read an input, directly or through vertices that keep its type."""
    seen, waiting = {name}, [name]
    while waiting:
        current = waiting.pop()
        for node in given.values():
            if current not in node.inputs:
                continue
            if isinstance(node.vertex, FeedForwardLayer):
                kind = infer_input_type(node.vertex, node.pre_processor)
                if kind is None and isinstance(node.pre_processor, RnnToFeedForwardPreProcessor) and node.vertex.n_in:
                    kind = InputTypeRecurrent(size=node.vertex.n_in)
                if kind is not None:
                    return kind
            elif isinstance(node.vertex, _KEEP_TYPE) and node.name not in seen:
                new = {node.name, *(source for source in node.inputs if source not in given)} - seen
                seen |= new
                waiting += new
    return None


def _graph_images(
    name: str,
    inputs: Sequence[str],
    given: Mapping[str, GraphNode],
    known: Mapping[str, AnyInputType | None],
    conf: Any,
) -> AnyInputType | None:
    """Return the image type of the only unknown input, from the first preprocessor behind images."""
    order = topological_order(tuple(inputs), {node.name: node.inputs for node in given.values()})
    ends = [given[each] for each in order if each in given and isinstance(given[each].pre_processor, _BEHIND_IMAGES)]
    readers = [node.vertex for node in given.values() if name in node.inputs]
    if not ends or not all(isinstance(reader, FeedForwardLayer) for reader in readers):
        return None
    source = ends[0].inputs[0]
    wanted = _above(source, given)
    part = [each for each in order if each in wanted]
    types = {each: kind for each, kind in known.items() if kind is not None}
    lenient = {each: msgspec.structs.replace(node, vertex=_lenient(node.vertex)) for each, node in given.items()}

    def end(kind: AnyInputType) -> AnyInputType:
        return nodes(part, lenient, {**types, name: kind}, conf)[-1].kind

    reached = sorted((each for each in wanted if each in given), key=part.index)
    if not reached or name not in wanted:
        return None
    layers: list[Any] = [given[each].vertex for each in reached]
    return _images(
        _channels([each for each in layers if isinstance(each, FeedForwardLayer)]), ends[0].pre_processor, end
    )


def _beside_others(
    name: str,
    inputs: Sequence[str],
    given: Mapping[str, GraphNode],
    known: Mapping[str, AnyInputType | None],
    conf: Any,
) -> AnyInputType | None:
    """Return the type of the only unknown input, from the other inputs of a merge and the layer that reads it."""
    order = topological_order(tuple(inputs), {node.name: node.inputs for node in given.values()})
    types = {each: kind for each, kind in known.items() if kind is not None}
    for node in given.values():
        if not isinstance(node.vertex, combine.MergeVertex) or name not in node.inputs:
            continue
        others = [source for source in node.inputs if source != name]
        readers = [each.vertex for each in given.values() if node.name in each.inputs]
        sizes = [reader.n_in for reader in readers if isinstance(reader, FeedForwardLayer) and reader.n_in]
        needed = set[str]().union(*(_above(source, given) for source in others))
        if not others or not sizes or name in needed:
            continue
        part = [each for each in order if each in needed]
        found = dict(zip(part, nodes(part, given, types, conf), strict=True))
        kinds = [found[source].kind for source in others]
        left, rest = divmod(sizes[0] - sum(kind.n_in for kind in kinds), node.inputs.count(name))
        if isinstance(kinds[0], InputTypeFeedForward | InputTypeRecurrent) and left > 0 and not rest:
            return msgspec.structs.replace(kinds[0], size=left)
    return None


def _above(name: str, given: Mapping[str, GraphNode]) -> set[str]:
    """Return a vertex and all vertices that it depends on."""
    found, waiting = {name}, [name]
    while waiting:
        current = waiting.pop()
        if current in given:
            new = set(given[current].inputs) - found
            found |= new
            waiting += new
    return found
