"""ONNX operators for the vertices of a computation graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dl4jlegacy.errors import ModelError
from dl4jlegacy.nn.input_type import AnyInputType, InputTypeConvolutional, InputTypeFeedForward, InputTypeRecurrent
from dl4jlegacy.nn.interchange.onnx.graph import OnnxGraph, Signal
from dl4jlegacy.nn.interchange.onnx.layers import add_preprocessor
from dl4jlegacy.nn.vertices import combine, shape
from dl4jlegacy.nn.vertices.combine import feature_axis

__all__ = ["add_vertex", "from_outside", "to_outside"]

Inputs = Mapping[str, Signal]


def from_outside(graph: OnnxGraph, x: str, kind: AnyInputType) -> str:
    """Return a network input in the layout inside: sequences ``(time steps, examples, values)``."""
    return graph.transpose(x, 2, 0, 1) if isinstance(kind, InputTypeRecurrent) else x


def to_outside(graph: OnnxGraph, x: str, kind: AnyInputType) -> str:
    """Return an activation in the layout outside the network."""
    return graph.transpose(x, 1, 2, 0) if isinstance(kind, InputTypeRecurrent) else x


def add_vertex(graph: OnnxGraph, vertex: Any, given: Sequence[Signal], inputs: Inputs, title: str) -> Signal:
    """Add a vertex behind ``given``; ``inputs`` are the network's inputs in the layout inside.

    Raises:
        ModelError: ONNX has no operator for the vertex; ``title`` names it.
    """
    if isinstance(vertex, shape.PreprocessorVertex):
        return add_preprocessor(graph, vertex.pre_processor, given[0], title)
    add = _VERTICES.get(type(vertex))
    if add is None:
        raise ModelError(f"{title} cannot be exported to ONNX: it has no operator in ONNX")
    found = add(graph, vertex, given, inputs)
    if isinstance(found, Signal):
        return found
    return Signal(found, vertex.output_type([combine.flat_as_vectors(x.kind) for x in given]), given[0].examples)


_OPERATORS = {"add": "Sum", "average": "Mean", "max": "Max", "subtract": "Sub"}


def _element_wise(graph: OnnxGraph, vertex: Any, given: Sequence[Signal], inputs: Inputs) -> str:
    if vertex.op != "product":
        return graph.add(_OPERATORS[vertex.op], *(x.name for x in given))
    y = given[0].name
    for x in given[1:]:
        y = graph.add("Mul", y, x.name)
    return y


def _subset(graph: OnnxGraph, vertex: Any, given: Sequence[Signal], inputs: Inputs) -> str:
    first, behind, axis = vertex.from_index, vertex.to_index + 1, feature_axis(given[0].kind)
    return graph.add("Slice", given[0].name, *(graph.integers(n) for n in (first, behind, axis)))


def _of_example(kind: AnyInputType) -> list[int]:
    """Return the axes of one example's values."""
    if isinstance(kind, InputTypeRecurrent):
        return [0, 2]
    return [1, 2, 3] if isinstance(kind, InputTypeConvolutional) else [1]


def _l2_normalize(graph: OnnxGraph, vertex: Any, given: Sequence[Signal], inputs: Inputs) -> str:
    x = given[0]
    norm = graph.add("ReduceL2", x.name, axes=_of_example(x.kind), keepdims=1)
    return graph.add("Div", x.name, graph.add("Max", norm, graph.numbers(vertex.eps)))


def _l2(graph: OnnxGraph, vertex: Any, given: Sequence[Signal], inputs: Inputs) -> str:
    away = graph.add("Sub", given[0].name, given[1].name)
    distance = graph.add("ReduceL2", away, axes=_of_example(given[0].kind), keepdims=0)
    return graph.reshape(distance, -1, 1)


def _apart(graph: OnnxGraph, x: Signal) -> tuple[str, int]:
    """Return an activation with an axis of examples, and that axis: 1 for sequences and rows of time steps, else 0."""
    if isinstance(x.kind, InputTypeRecurrent):
        return x.name, 1
    if not getattr(x.kind, "sequences", False):
        return x.name, 0
    return graph.reshape(x.name, -1, x.examples, *x.kind.shape), 1


def _together(graph: OnnxGraph, x: str, kind: AnyInputType) -> str:
    """Undo ``_apart``."""
    return graph.reshape(x, -1, *kind.shape) if getattr(kind, "sequences", False) else x


def _stack(graph: OnnxGraph, vertex: Any, given: Sequence[Signal], inputs: Inputs) -> Signal:
    parts = [_apart(graph, x) for x in given]
    whole = graph.add("Concat", *(name for name, _ in parts), axis=parts[0][1])
    examples = graph.add("Sum", *(graph.add("Cast", x.examples, to=1) for x in given))  # 1: FLOAT, 7: INT64
    return Signal(_together(graph, whole, given[0].kind), given[0].kind, graph.add("Cast", examples, to=7))


def _unstack(graph: OnnxGraph, vertex: Any, given: Sequence[Signal], inputs: Inputs) -> Signal:
    x = given[0]
    whole, axis = _apart(graph, x)
    kept = [0] * axis
    sizes = [] if isinstance(x.kind, InputTypeRecurrent) else list(x.kind.shape)
    tail = [x.kind.n_in] if isinstance(x.kind, InputTypeRecurrent) else sizes
    parts = graph.reshape(whole, *kept, vertex.stack_size, -1, *tail)
    part = graph.add("Squeeze", graph.add("Gather", parts, graph.integers(vertex.from_index), axis=axis),
                     graph.integers(axis))  # fmt: skip
    return Signal(_together(graph, part, x.kind), x.kind, graph.size(part, axis))


def _reshape(graph: OnnxGraph, vertex: Any, given: Sequence[Signal], inputs: Inputs) -> str:
    outside = to_outside(graph, given[0].name, given[0].kind)
    kind = vertex.output_type([given[0].kind])
    return from_outside(graph, graph.reshape(outside, *vertex.new_shape), kind)


def _last_time_step(graph: OnnxGraph, vertex: Any, given: Sequence[Signal], inputs: Inputs) -> str:
    last = graph.add("Gather", given[0].name, graph.integers(-1), axis=0)
    return graph.add("Squeeze", last, graph.integers(0))


def _duplicate(graph: OnnxGraph, vertex: Any, given: Sequence[Signal], inputs: Inputs) -> str:
    x, like = given[0], inputs[vertex.input_name]
    assert isinstance(x.kind, InputTypeFeedForward)
    sizes = graph.add("Concat", graph.size(like.name, 0), x.examples, graph.integers(x.kind.size), axis=0)
    return graph.add("Expand", graph.add("Unsqueeze", x.name, graph.integers(0)), sizes)


def _pool_helper(graph: OnnxGraph, vertex: Any, given: Sequence[Signal], inputs: Inputs) -> str:
    ends = graph.integers(1 << 31, 1 << 31)
    return graph.add("Slice", given[0].name, graph.integers(1, 1), ends, graph.integers(2, 3))


_VERTICES: Mapping[type, Callable[[OnnxGraph, Any, Sequence[Signal], Inputs], str | Signal]] = {
    combine.ElementWiseVertex: _element_wise,
    combine.L2NormalizeVertex: _l2_normalize,
    combine.L2Vertex: _l2,
    combine.MergeVertex: (
        lambda graph, vertex, given, inputs: graph.add(
            "Concat", *(x.name for x in given), axis=feature_axis(given[0].kind)
        )
    ),
    combine.ScaleVertex: (
        lambda graph, vertex, given, inputs: graph.add("Mul", given[0].name, graph.numbers(vertex.scale_factor))
    ),
    combine.ShiftVertex: (
        lambda graph, vertex, given, inputs: graph.add("Add", given[0].name, graph.numbers(vertex.shift_factor))
    ),
    combine.SubsetVertex: _subset,
    shape.DuplicateToTimeSeriesVertex: _duplicate,
    shape.LastTimeStepVertex: _last_time_step,
    shape.PoolHelperVertex: _pool_helper,
    shape.ReshapeVertex: _reshape,
    shape.StackVertex: _stack,
    shape.UnstackVertex: _unstack,
}
