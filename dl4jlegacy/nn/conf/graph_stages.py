"""Resolves a graph into nodes: in topological order, with all sizes, types and preprocessors filled in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from dl4jlegacy.errors import ConfError, ShapeError
from dl4jlegacy.nn.conf.stages import Stage, infer_input_type, resolve_layer
from dl4jlegacy.nn.input_type import AnyInputType
from dl4jlegacy.nn.layers.feedforward import FeedForwardLayer
from dl4jlegacy.nn.layers.layer import Layer
from dl4jlegacy.nn.preprocessors import InputPreProcessor, resolve_preprocessor
from dl4jlegacy.nn.vertices.combine import flat_as_vectors
from dl4jlegacy.nn.vertices.shape import Vertex

__all__ = ["GraphNode", "Node", "nodes", "vertex_title"]


class GraphNode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A vertex of a graph's configuration: a layer or a vertex without parameters, and the names of its inputs.

    ``pre_processor`` is applied before a layer; a preprocessor that the types imply need not be named.
    """

    name: str
    inputs: tuple[str, ...]
    vertex: Layer | Vertex
    pre_processor: InputPreProcessor | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """A resolved vertex: ``inputs`` are the indices of its input nodes, ``kind`` is the type of its output.

    It is a layer (with ``stage``, and its number ``layer`` among the layers), a vertex, or a network input (neither).
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
            return vertex_title(self.name, self.stage.layer)
        return vertex_title(self.name, self.vertex)


def vertex_title(name: str, vertex: Any) -> str:
    """Return the name of a vertex or layer for messages: ``'out' (output)``; None is a network input."""
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
        input_types: types of the network inputs that have one.
        conf: the ``NeuralNetConfiguration`` that layers inherit from.

    Raises:
        ShapeError: a size is open, or does not fit the node before; both are named.
        ConfError: as ``resolve_layer``.
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
            result.append(Node(name, inputs, stage.output_type, stage=stage, layer=layers))
            layers += 1
        else:
            result.append(Node(name, inputs, _vertex_type(node, below), vertex=node.vertex))
    return tuple(result)


def _input_type(name: str, given: Mapping[str, GraphNode], known: Mapping[str, AnyInputType]) -> AnyInputType:
    """Return the type of a network input: the given one, or the one inferred from the layers that read it."""
    if name in known:
        return known[name]
    for node in given.values():
        if name in node.inputs and isinstance(node.vertex, FeedForwardLayer):
            found = infer_input_type(node.vertex, node.pre_processor)
            if found is not None:
                return found
    raise ShapeError(
        f"network input {name!r}: its size is not known; give n_in of a layer that reads it, or "
        "set_input_types(InputType.feed_forward(size), ...), one for every network input"
    )


def _stage(node: GraphNode, below: Node, conf: Any) -> Stage:
    layer: Any = node.vertex
    title = f"layer {vertex_title(node.name, layer)} behind {below.title()}"
    if layer.name is None:
        layer = msgspec.structs.replace(layer, name=node.name)
    try:
        pre, enters = resolve_preprocessor(node.pre_processor, below.kind, layer.consumes)
    except ShapeError as exc:
        raise ShapeError(f"{title} {exc}") from exc
    layer = resolve_layer(layer, enters, conf, title)
    try:
        return Stage(layer, pre, below.kind, enters, layer.output_type(enters))
    except ShapeError as exc:
        raise ShapeError(f"{title}: {exc}") from exc


def _vertex_type(node: GraphNode, below: Sequence[Node]) -> AnyInputType:
    assert not isinstance(node.vertex, FeedForwardLayer)
    sources = " and ".join(b.title() for b in below)
    try:
        return node.vertex.output_type([flat_as_vectors(b.kind) for b in below])
    except (ShapeError, ConfError) as exc:
        raise type(exc)(f"vertex {node.name!r} behind {sources}: {exc}") from exc
