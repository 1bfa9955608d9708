"""``write_onnx``: exports a network as an ONNX file, for onnxruntime and other programs.

The file computes ``network.output`` for batches of any size, and for sequences of any length in which all time steps
count: ONNX files have no masks. Arrays have the shapes outside a network.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.columns.column_scale import width
from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.datasets.normalizers import Normalizer, NormalizerMinMaxScaler, NormalizerStandardize
from dl4jlegacy.errors import ModelError
from dl4jlegacy.nn.graph.computation_graph import ComputationGraph
from dl4jlegacy.nn.input_type import AnyInputType, InputTypeConvolutional, InputTypeRecurrent
from dl4jlegacy.nn.interchange.onnx.graph import OPSET, OnnxGraph, Signal, import_onnx
from dl4jlegacy.nn.interchange.onnx.layers import add_layer, add_preprocessor
from dl4jlegacy.nn.interchange.onnx.vertices import add_vertex, from_outside, to_outside
from dl4jlegacy.nn.networks import Network
from dl4jlegacy.system import files
from dl4jlegacy.system.strict_json import to_json

__all__ = ["write_onnx"]

_IR_VERSION = 8  # onnxruntime 1.12 and later read it
_MOST_BYTES = 2**31 - 1  # of a protocol buffer


def write_onnx(
    network: Network,
    path: str | os.PathLike[str],
    *,
    normalizer: Normalizer | None = None,
    label_names: Sequence[str] = (),
) -> None:
    """Write the computation of ``network`` to ``path``; an existing file is replaced atomically.

    Inputs and outputs have the names of the graph; for a stack of layers ``input`` and ``output``. Numbers are float32,
    for networks of any dtype; but features are float64 if the normalizer scales columns so far from 0 that float32
    would lose their differences.

    Args:
        network: of either kind; the updater's state is not exported.
        path: the ``.onnx`` file to write; its folder must exist.
        normalizer: scales the features first, within the file.
        label_names: kept in the file's metadata, as a JSON list under ``label_names``.

    Raises:
        ModelError: ONNX has no operator for a layer or vertex, which the message names; the library onnx is missing;
            or the file cannot be written.
    """
    onnx, graph = import_onnx(), OnnxGraph()
    write = _graph if isinstance(network, ComputationGraph) else _stack
    inputs, outputs = write(graph, network, normalizer)
    for name, found in outputs:
        place = to_outside(graph, found.name, found.kind)
        graph.nodes.append(onnx.helper.make_node("Identity", [place], [name], name=f"identity_{name}"))
    body = onnx.helper.make_graph(
        graph.nodes,
        "dl4jlegacy",
        [_described(onnx, name, kind, exact=_takes_float64(normalizer)) for name, kind in inputs],
        [_described(onnx, name, found.kind) for name, found in outputs],
        graph.constants,
    )
    made = onnx.helper.make_model(body, opset_imports=[onnx.helper.make_opsetid("", OPSET)])
    made.ir_version, made.producer_name = _IR_VERSION, "dl4jlegacy"
    if label_names:
        onnx.helper.set_model_props(made, {"label_names": to_json(list(label_names))})
    if made.ByteSize() > _MOST_BYTES:
        raise ModelError(f"{path} would have {made.ByteSize()} bytes; an ONNX file has at most {_MOST_BYTES}")
    with (
        files.errors_as(ModelError, f"{path} cannot be written", "choose a writable place"),
        files.replacing(Path(path)) as file,
    ):
        file.write(made.SerializeToString(deterministic=True))


def _described(onnx: Any, name: str, kind: AnyInputType, *, exact: bool = False) -> Any:
    """Return ONNX's description of an input or output; variable sizes have names."""
    sizes = ["examples", *((f"{name}_time_steps" if size == 0 else size) for size in kind.shape)]
    if isinstance(kind, InputTypeRecurrent):
        sizes[2] = f"{name}_time_steps"
    kept = onnx.TensorProto.DOUBLE if exact else onnx.TensorProto.FLOAT
    return onnx.helper.make_tensor_value_info(name, kept, sizes)


Ends = tuple[list[tuple[str, AnyInputType]], list[tuple[str, Signal]]]


def _entry(graph: OnnxGraph, name: str, kind: AnyInputType, normalizer: Normalizer | None) -> Signal:
    """Return a network input, scaled and in the layout inside."""
    x = name if normalizer is None else _scaled(graph, name, kind, normalizer)
    return Signal(from_outside(graph, x, kind), kind, graph.size(name, 0))


def _scaled(graph: OnnxGraph, x: str, kind: AnyInputType, normalizer: Normalizer) -> str:
    """Return the features after a normalizer, which multiplies every column and adds to it.

    The computation is float64 if a column lies far from 0.
    """
    columns = kind.columns
    shape: tuple[int, ...] = (columns, 1) if isinstance(kind, InputTypeRecurrent) else (columns,)
    if isinstance(kind, InputTypeConvolutional):
        shape = kind.shape
    if _takes_float64(normalizer):
        origin, scale, shift = _exact_scale(normalizer)
        moved = graph.add("Sub", x, graph.exact_numbers(origin.reshape(shape), "origin"))
        stretched = graph.add("Mul", moved, graph.exact_numbers(scale.reshape(shape), "scale"))
        there = graph.add("Add", stretched, graph.exact_numbers(shift.reshape(shape), "shift"))
        return graph.add("Cast", there, to=import_onnx().TensorProto.FLOAT)
    probe = [np.full((1, *shape), value) for value in (0.0, 1.0)]
    zero, one = (normalizer.transform(DataSet(p, np.zeros((1, 1)))).features for p in probe)
    stretched = graph.add("Mul", x, graph.numbers((one - zero)[0], "scale"))
    return graph.add("Add", stretched, graph.numbers(zero[0], "shift"))


def _takes_float64(normalizer: Normalizer | None) -> bool:
    """Return whether a normalizer scales columns so far from 0 that float32 would lose their differences."""
    if isinstance(normalizer, NormalizerStandardize | NormalizerMinMaxScaler):
        return bool(normalizer.far_columns().any())
    return False


def _exact_scale(normalizer: Normalizer) -> tuple[Array, Array, Array]:
    """Return for each column: the number subtracted first, the factor, and the number added last."""
    if isinstance(normalizer, NormalizerStandardize):
        return normalizer.mean, 1 / normalizer.std, np.zeros_like(normalizer.mean)
    assert isinstance(normalizer, NormalizerMinMaxScaler)
    scale = (normalizer.max_range - normalizer.min_range) / width(normalizer.min, normalizer.max)
    return normalizer.min, scale, np.full_like(scale, normalizer.min_range)


def _stack(graph: OnnxGraph, network: Any, normalizer: Normalizer | None) -> Ends:
    kind = network.stages[0].input_type
    x = _entry(graph, "input", kind, normalizer)
    views = network.layout.views(network.params)
    for index, stage in enumerate(network.stages):
        title = f"layer {index} ({stage.layer.title()})"
        x = _stage(graph, stage, views[index], x, title)
    return [("input", kind)], [("output", x)]


def _stage(graph: OnnxGraph, stage: Any, params: Any, x: Signal, title: str) -> Signal:
    if stage.pre_processor is not None:
        x = add_preprocessor(graph, stage.pre_processor, x, title)
    y = add_layer(graph, stage.layer, params, Signal(x.name, stage.layer_input_type, x.examples), title)
    return Signal(y, stage.output_type, x.examples)


def _graph(graph: OnnxGraph, network: Any, normalizer: Normalizer | None) -> Ends:
    views = network.layout.views(network.params)
    inputs: dict[str, Signal] = {}
    found: list[Signal] = []
    for node in network.nodes:
        given = [found[index] for index in node.inputs]
        if node.stage is not None:
            found.append(_stage(graph, node.stage, views[node.layer], given[0], f"layer {node.title()}"))
        elif node.vertex is not None:
            found.append(add_vertex(graph, node.vertex, given, inputs, f"vertex {node.title()}"))
        else:
            inputs[node.name] = _entry(graph, node.name, node.kind, normalizer)
            found.append(inputs[node.name])
    kinds = {node.name: node.kind for node in network.nodes}
    names = network.conf.network_outputs
    places = {node.name: index for index, node in enumerate(network.nodes)}
    return (
        [(name, kinds[name]) for name in network.conf.network_inputs],
        [(name, found[places[name]]) for name in names],
    )
