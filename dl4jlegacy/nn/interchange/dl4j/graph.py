"""Writes and reads ``configuration.json`` of a ComputationGraph in the formats of Deeplearning4j 0.9.1 and 1.0.0.

It is the counterpart of ``dl4j.json`` and ``dl4j.reader`` for graphs, and uses their layers and preprocessors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from dl4jlegacy.errors import ConfError, ModelError
from dl4jlegacy.nn.conf.graph_order import topological_order
from dl4jlegacy.nn.conf.graph_stages import GraphNode, Node
from dl4jlegacy.nn.conf.network import ComputationGraphConfiguration
from dl4jlegacy.nn.input_type import AnyInputType
from dl4jlegacy.nn.interchange.dl4j.input_types import graph_input_types, is_superfluous
from dl4jlegacy.nn.interchange.dl4j.json import layer_conf, network_tree
from dl4jlegacy.nn.interchange.dl4j.keys import check_keys, check_values
from dl4jlegacy.nn.interchange.dl4j.layers import pre_processor, pre_processor_tree
from dl4jlegacy.nn.interchange.dl4j.names import listed, tagged
from dl4jlegacy.nn.interchange.dl4j.reader import read_layer, read_network, read_truncation
from dl4jlegacy.nn.interchange.dl4j.versions import UNREADABLE_IN_OLD, Version, is_old
from dl4jlegacy.nn.vertices import combine, shape

__all__ = ["graph_from_dl4j", "graph_to_dl4j"]

Tree = dict[str, Any]
_GRAPH: Final = "org.deeplearning4j.nn.conf.graph."


@dataclass(frozen=True, slots=True)
class _Kind:
    """A vertex's class name (after ``_GRAPH``), our field for each of its keys, and fixed keys of 1.0.0."""

    name: str
    cls: Any
    keys: dict[str, str]
    fixed: dict[str, Any]

    @property
    def short(self) -> str:
        return self.name.rpartition(".")[2]


_KINDS: Final = (
    _Kind("MergeVertex", combine.MergeVertex, {}, {"mergeAxis": 1, "modified": False}),
    _Kind("ElementWiseVertex", combine.ElementWiseVertex, {"op": "op"}, {}),
    _Kind("SubsetVertex", combine.SubsetVertex, {"from": "from_index", "to": "to_index"}, {}),
    _Kind("StackVertex", shape.StackVertex, {}, {}),
    _Kind("UnstackVertex", shape.UnstackVertex, {"from": "from_index", "stackSize": "stack_size"}, {}),
    _Kind("ScaleVertex", combine.ScaleVertex, {"scaleFactor": "scale_factor"}, {}),
    _Kind("ShiftVertex", combine.ShiftVertex, {"shiftFactor": "shift_factor"}, {}),
    _Kind("L2Vertex", combine.L2Vertex, {}, {}),
    _Kind("L2NormalizeVertex", combine.L2NormalizeVertex, {"eps": "eps"}, {"dimension": None}),
    _Kind("PoolHelperVertex", shape.PoolHelperVertex, {}, {}),
    _Kind(
        "ReshapeVertex",
        shape.ReshapeVertex,
        {"newShape": "new_shape"},
        {"reshapeOrder": "c", "maskShape": None},
    ),
    _Kind("rnn.LastTimeStepVertex", shape.LastTimeStepVertex, {"maskArrayInputName": "mask_array_input"}, {}),
    _Kind(
        "rnn.DuplicateToTimeSeriesVertex",
        shape.DuplicateToTimeSeriesVertex,
        {"inputName": "input_name"},
        {},
    ),
)
_BY_CLASS: Final = {kind.cls: kind for kind in _KINDS}
_BY_NAME: Final = {kind.short: kind for kind in _KINDS}
_FIXED: Final[dict[str, tuple[Any, ...]]] = {
    "modified": (False, True),  # whether 1.0.0 has set mergeAxis itself
    "reshapeOrder": ("c", "C"),
    "dimension": ([], [1]),
}
"""Other values of ``_Kind.fixed`` with the same meaning."""
_WRITE: Final[dict[str, Callable[[Any], Any]]] = {"op": str.capitalize, "newShape": list}
_READ: Final[dict[str, Callable[[Any], Any]]] = {"op": lambda op: str(op).lower(), "newShape": tuple}


# -- writing ---------------------------------------------------------------------------------------------------------


def graph_to_dl4j(conf: ComputationGraphConfiguration, *, iteration: int = 0, version: Version = "0.9.1") -> Tree:
    """Return ``conf`` as the tree of ``configuration.json``; arguments as ``dl4j.json.to_dl4j``."""
    nodes = {node.name: node for node in conf.nodes()}
    old = version == "0.9.1" and all(is_old(layer) for layer in conf.resolved())
    old = old and not any(isinstance(node.vertex, UNREADABLE_IN_OLD) for node in conf.vertices)
    own: Tree = {
        "defaultConfiguration": _defaults(conf, old=old),
        "networkInputs": list(conf.network_inputs),
        "networkOutputs": list(conf.network_outputs),
        "vertexInputs": {node.name: list(node.inputs) for node in conf.vertices},
        "vertices": {node.name: _vertex_tree(conf, nodes[node.name], old=old) for node in conf.vertices},
    }
    place = {name: i for i, name in enumerate((*conf.network_inputs, *(node.name for node in conf.vertices)))}
    order = conf.order()
    of_new = {"topologicalOrder": [place[name] for name in order], "topologicalOrderStr": list(order)}
    return network_tree(conf, own, iteration=iteration, old=old, own_of_new=of_new)


def _defaults(conf: ComputationGraphConfiguration, *, old: bool) -> Tree:
    """Return the tree with the defaults that layers inherit, without a layer."""
    node = next(node for node in conf.nodes() if node.stage is not None)
    assert node.stage is not None
    tree = layer_conf(conf, node.stage.layer, 0, old=old)
    empty: Tree = {key: {} for key in ("l1ByParam", "l2ByParam", "learningRateByParam") if key in tree}
    return tree | empty | {"layer": None, "variables": []}


def _vertex_tree(conf: ComputationGraphConfiguration, node: Node, *, old: bool) -> Tree:
    if node.stage is not None:
        pre = node.stage.pre_processor
        fields: Tree = {
            "layerConf": layer_conf(conf, node.stage.layer, node.layer, old=old),
            "outputVertex": node.name in conf.network_outputs,
            "preProcessor": None if pre is None else pre_processor_tree(pre, old=old),
        }
        return {"LayerVertex": fields} if old else {"@class": _GRAPH + "LayerVertex", **fields}
    vertex: Any = node.vertex
    if isinstance(vertex, shape.PreprocessorVertex):
        fields = {"preProcessor": pre_processor_tree(vertex.pre_processor, old=old)}
        return {"PreprocessorVertex": fields} if old else {"@class": _GRAPH + "PreprocessorVertex", **fields}
    kind = _BY_CLASS[type(vertex)]
    fields = {key: _WRITE.get(key, _same)(getattr(vertex, field)) for key, field in kind.keys.items()}
    return {kind.short: fields} if old else {"@class": _GRAPH + kind.name, **kind.fixed, **fields}


def _same(value: Any) -> Any:
    return value


# -- reading ---------------------------------------------------------------------------------------------------------


def graph_from_dl4j(tree: Tree, input_types: Sequence[AnyInputType] = ()) -> ComputationGraphConfiguration:
    """Return the configuration in the tree of a graph's ``configuration.json``.

    Args:
        tree: the parsed file.
        input_types: types of the graph's inputs; empty: inferred from the file.

    Raises:
        ModelError: not a graph, or one with layers or vertices that this package does not have.
    """
    given, sources = tree.get("vertices"), tree.get("vertexInputs")
    if not isinstance(given, dict) or not isinstance(sources, dict):
        raise ModelError("configuration.json has no maps 'vertices' and 'vertexInputs'; it describes no graph")
    try:
        network, inputs = _network(tree, given), tuple(listed(tree, "networkInputs", "configuration"))
        found = _without_superfluous(
            [_node(name, node, sources) for name, node in _ordered(tree, given, inputs, sources)]
        )
        return ComputationGraphConfiguration(
            conf=network,
            network_inputs=inputs,
            network_outputs=tuple(listed(tree, "networkOutputs", "configuration")),
            vertices=found,
            input_types=graph_input_types(inputs, found, network, input_types),
            **read_truncation(tree),
        )
    except ConfError as exc:
        raise ModelError(f"configuration.json does not fit together: {exc}") from exc


def _ordered(tree: Tree, given: Tree, inputs: tuple[str, ...], sources: Tree) -> list[tuple[str, Any]]:
    """Return the vertices in an order that gives their parameters the order stored by 1.0.0."""
    order = listed(tree, "topologicalOrderStr", "configuration")
    written = [name for name in order if isinstance(name, str) and name in given]
    reads = {name: tuple(listed(sources, name, "vertexInputs")) for name in given}
    known = {*inputs, *given}
    is_sound = len(written) == len(given) and all(source in known for each in reads.values() for source in each)
    if not is_sound or [name for name in topological_order(inputs, reads) if name in given] == written:
        return list(given.items())
    return [(name, given[name]) for name in written]


def _without_superfluous(found: list[GraphNode]) -> tuple[GraphNode, ...]:
    by_name = {node.name: node.vertex for node in found}
    return tuple(
        msgspec.structs.replace(node, pre_processor=None)
        if node.inputs and is_superfluous(node.pre_processor, by_name.get(node.inputs[0]))
        else node
        for node in found
    )


def _network(tree: Tree, given: Tree) -> Any:
    for name, node in given.items():
        short, fields = tagged(node, f"vertices.{name}")
        if short == "LayerVertex" and isinstance(fields.get("layerConf"), dict):
            return read_network(fields["layerConf"])
    defaults = tree.get("defaultConfiguration")
    return read_network(defaults if isinstance(defaults, dict) else {})


def _node(name: str, node: Any, sources: Tree) -> GraphNode:
    where = f"vertices.{name}"
    short, fields = tagged(node, where)
    inputs = tuple(listed(sources, name, "vertexInputs"))
    if short == "LayerVertex":
        conf = fields.get("layerConf")
        if not isinstance(conf, dict):
            raise ModelError(f"{where} is a LayerVertex without layerConf")
        pre = fields.get("preProcessor")
        before = None if pre is None else pre_processor(pre, f"{where}.preProcessor")
        return GraphNode(name=name, inputs=inputs, vertex=read_layer(conf, f"{where}.layerConf"), pre_processor=before)
    if short == "PreprocessorVertex":
        found = pre_processor(fields.get("preProcessor"), f"{where}.preProcessor")
        return GraphNode(name=name, inputs=inputs, vertex=shape.PreprocessorVertex(pre_processor=found))
    kind = _BY_NAME.get(short)
    if kind is None:
        raise ModelError(f"{where} is a {short}; known vertices are LayerVertex, {', '.join(sorted(_BY_NAME))}")
    check_keys(fields, {*kind.keys, *kind.fixed}, where, is_layer=False)
    check_values(fields, {key: _FIXED.get(key, (value,)) for key, value in kind.fixed.items()}, where)
    values = {field: _READ.get(key, _same)(fields[key]) for key, field in kind.keys.items() if key in fields}
    try:
        return GraphNode(name=name, inputs=inputs, vertex=kind.cls(**values))
    except TypeError as exc:
        raise ModelError(f"{where} is a {short} without all of {', '.join(kind.keys)}") from exc
