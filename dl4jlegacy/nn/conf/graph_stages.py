"""From a graph's configuration to its nodes: in order, with all sizes, types and preprocessors filled in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from dl4jlegacy.errors import ConfError, ShapeError
from dl4jlegacy.nn.conf.stages import Stage, filled, first_type
from dl4jlegacy.nn.input_type import AnyInputType
from dl4jlegacy.nn.layers.feedforward import FeedForwardLayer
from dl4jlegacy.nn.layers.layer import Layer
from dl4jlegacy.nn.preprocessors import InputPreProcessor, resolve_preprocessor
from dl4jlegacy.nn.vertices.combine import plain
from dl4jlegacy.nn.vertices.shape import Vertex

__all__ = ["GraphNode", "Node", "nodes", "titled"]


class GraphNode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A vertex of a graph's configuration: a layer or a vertex without parameters, and the names of its inputs.

    ``pre_processor`` stands before a layer; the one that follows from the types need not be named.
    """

    name: str
    inputs: tuple[str, ...]
    vertex: Layer | Vertex
    pre_processor: InputPreProcessor | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """A resolved vertex in its place: ``inputs`` are the places of its inputs, ``kind`` is what leaves it.

    It is a layer (``stage``, number ``layer`` among the layers), a vertex, or a network input (neither).
    """

    name: str
    inputs: tuple[int, ...]
    kind: AnyInputType
    stage: Stage | None = None
    vertex: Vertex | None = None
    layer: int = -1

    def title(self) -> str:
        """Return kind and name, for messages."""
        if self.stage is not None:
            return titled(self.name, self.stage.layer)
        return titled(self.name, self.vertex)


def titled(name: str, vertex: Any) -> str:
    """Return what messages call a vertex or layer: ``'out' (output)``; None is a network input."""
    kind = "network input" if vertex is None else str(vertex.__struct_config__.tag)
    return f"{name!r} ({kind})"


def nodes(
    order: Sequence[str],
    given: Mapping[str, GraphNode],
    input_types: Mapping[str, AnyInputType],
    conf: Any,
) -> tuple[Node, ...]:
    """Return the nodes of a graph in ``order``.

    Args:
        order: names of network inputs and vertices, topologically.
        given: the vertices by name.
        input_types: what is known of the network inputs.
        conf: the ``NeuralNetConfiguration`` that layers inherit from.

    Raises:
        ShapeError: a size is open, or does not fit what comes before; both are named.
        ConfError: as ``filled``.
    """
    place = {name: index for index, name in enumerate(order)}
    result: list[Node] = []
    layers = 0
    for name in order:
        node = given.get(name)
        if node is None:
            result.append(Node(name, (), _input_type(name, given, input_types)))
            continue
        below = [result[place[source]] for source in node.inputs]
        inputs = tuple(place[source] for source in node.inputs)
        if isinstance(node.vertex, FeedForwardLayer):
            stage = _stage(node, below[0], conf)
            result.append(Node(name, inputs, stage.leaves, stage=stage, layer=layers))
            layers += 1
        else:
            result.append(Node(name, inputs, _vertex_type(node, below), vertex=node.vertex))
    return tuple(result)


def _input_type(name: str, given: Mapping[str, GraphNode], known: Mapping[str, AnyInputType]) -> AnyInputType:
    """Return the type of a network input: as said, or as the layers that read it need it."""
    if name in known:
        return known[name]
    for node in given.values():
        if name in node.inputs and isinstance(node.vertex, FeedForwardLayer):
            found = first_type(node.vertex, node.pre_processor)
            if found is not None:
                return found
    raise ShapeError(
        f"network input {name!r}: its size is not known; give n_in of a layer that reads it, or "
        "set_input_types(InputType.feed_forward(size), ...), one for every network input"
    )


def _stage(node: GraphNode, below: Node, conf: Any) -> Stage:
    layer: Any = node.vertex
    title = f"layer {titled(node.name, layer)} behind {below.title()}"
    if layer.name is None:
        layer = msgspec.structs.replace(layer, name=node.name)
    try:
        pre, enters = resolve_preprocessor(node.pre_processor, below.kind, layer.consumes)
    except ShapeError as exc:
        raise ShapeError(f"{title} {exc}") from exc
    layer = filled(layer, enters, conf, title)
    try:
        return Stage(layer, pre, below.kind, enters, layer.output_type(enters))
    except ShapeError as exc:
        raise ShapeError(f"{title}: {exc}") from exc


def _vertex_type(node: GraphNode, below: Sequence[Node]) -> AnyInputType:
    assert not isinstance(node.vertex, FeedForwardLayer)
    sources = " and ".join(b.title() for b in below)
    try:
        return node.vertex.output_type([plain(b.kind) for b in below])
    except (ShapeError, ConfError) as exc:
        raise type(exc)(f"vertex {node.name!r} behind {sources}: {exc}") from exc
