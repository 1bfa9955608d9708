"""Graph vertices that change the examples, time steps or places, and ``Vertex``: the union of all vertices.

See ``vertices``. Legacy: ``org.deeplearning4j.nn.conf.graph`` and ``...conf.graph.rnn``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import msgspec

from dl4jlegacy.arrays.backend import Array, get_array_module
from dl4jlegacy.errors import ConfError, DataError, ShapeError
from dl4jlegacy.nn.formats import to_external, to_internal
from dl4jlegacy.nn.input_type import AnyInputType, InputTypeConvolutional, InputTypeFeedForward, InputTypeRecurrent
from dl4jlegacy.nn.optimization.step import Step
from dl4jlegacy.nn.preprocessors import InputPreProcessor
from dl4jlegacy.nn.vertices.combine import (
    ElementWiseVertex,
    GraphVertex,
    Inputs,
    L2NormalizeVertex,
    L2Vertex,
    MergeVertex,
    ScaleVertex,
    ShiftVertex,
    SubsetVertex,
    Value,
    VertexOutput,
)

__all__ = [
    "DuplicateToTimeSeriesVertex",
    "LastTimeStepVertex",
    "PoolHelperVertex",
    "PreprocessorVertex",
    "ReshapeVertex",
    "StackVertex",
    "UnstackVertex",
    "Vertex",
]


def _by_example(value: Value, step: Step, name: str) -> Array:
    """Return an activation as ``(time steps or 1, examples, values)``; for images this is a copy."""
    y, examples = value.y, value.step.examples
    if isinstance(value.kind, InputTypeConvolutional):
        rows = step.buffer(name, (value.step.rows, value.kind.columns), y)
        step.kernels.untile(y, rows)
        y = rows
    return y.reshape(-1, examples, y.shape[-1])


def _as_inside(rows: Array, kind: AnyInputType, step: Step, name: str) -> Array:
    """Return ``rows``, which are contiguous, in the layout inside: the inverse of ``_by_example``."""
    if isinstance(kind, InputTypeRecurrent):
        return rows
    flat = rows.reshape(-1, rows.shape[2])
    if not isinstance(kind, InputTypeConvolutional):
        return flat
    lanes = step.kernels.lanes(flat.dtype.char, len(flat))
    tiles = step.buffer(name, (-(-len(flat) // lanes), *kind.shape, lanes), flat)
    step.kernels.tile(flat, tiles)
    return tiles


class StackVertex(GraphVertex, tag="stack_vertex"):
    """Concatenates its inputs along the examples, so that one layer can process all of them."""

    max_inputs = None

    def output_type(self, given: Sequence[AnyInputType]) -> AnyInputType:
        """Return the common type."""
        if len(set(given)) > 1:
            raise ShapeError(f"{self.title()} stacks inputs of one type; they are {', '.join(map(str, given))}")
        return given[0]

    def forward(self, values: Sequence[Value], step: Step, inputs: Inputs) -> VertexOutput:
        """See ``GraphVertex``."""
        kind = values[0].kind
        parts = [_by_example(value, step, f"rows{i}") for i, value in enumerate(values)]
        if len({len(part) for part in parts}) > 1:
            raise ShapeError(f"{self.title()} got sequences of {', '.join(str(len(p)) for p in parts)} time steps")
        ends = [0, *itertools.accumulate(part.shape[1] for part in parts)]
        places = [slice(*pair) for pair in itertools.pairwise(ends)]
        xp = get_array_module(parts[0])
        whole = xp.empty((len(parts[0]), ends[-1], parts[0].shape[2]), parts[0].dtype)
        for place, part in zip(places, parts, strict=True):
            whole[:, place] = part
        y = _as_inside(whole, kind, step, "y")
        behind = step.at(step.layer, examples=ends[-1], rows=sum(v.step.rows for v in values))
        behind = behind.at(step.layer, mask=_stacked_mask(values), memory=None)

        def backward(dy: Array) -> Sequence[Array]:
            rows = _by_example(Value(dy, behind, kind), step, "dy")
            grads = []
            for i, place in enumerate(places):
                grads.append(_as_inside(xp.ascontiguousarray(rows[:, place]), kind, step, f"dx{i}"))
            return grads

        return y, behind, backward


def _stacked_mask(values: Sequence[Value]) -> Array | None:
    """Return the inputs' masks concatenated, with ones for inputs without a mask; None if no input has one."""
    known = next((value.step.mask for value in values if value.step.mask is not None), None)
    if known is None:
        return None
    ends = [0, *itertools.accumulate(value.step.examples for value in values)]
    whole: Array = get_array_module(known).ones((len(known), ends[-1]), known.dtype)
    for value, (start, stop) in zip(values, itertools.pairwise(ends), strict=True):
        if value.step.mask is not None:
            whole[:, start:stop] = value.step.mask
    return whole


class UnstackVertex(GraphVertex, tag="unstack_vertex"):
    """Takes part ``from_index`` (from 0) of the output of a ``StackVertex`` with ``stack_size`` inputs."""

    from_index: int
    stack_size: int

    def __post_init__(self) -> None:
        if not 0 <= self.from_index < self.stack_size:
            raise ConfError(
                f"{self.title()}: from_index is {self.from_index}; with stack_size={self.stack_size} it must be from "
                f"0 to {self.stack_size - 1}"
            )

    def forward(self, values: Sequence[Value], step: Step, inputs: Inputs) -> VertexOutput:
        """See ``GraphVertex``."""
        value = values[0]
        rows = _by_example(value, step, "rows")
        examples, rest = divmod(rows.shape[1], self.stack_size)
        if rest:
            raise ShapeError(f"{self.title()}: {rows.shape[1]} examples are no stack of {self.stack_size} equal parts")
        part = slice(self.from_index * examples, (self.from_index + 1) * examples)
        xp = get_array_module(rows)
        y = _as_inside(xp.ascontiguousarray(rows[:, part]), value.kind, step, "y")
        mask = None if value.step.mask is None else xp.ascontiguousarray(value.step.mask[:, part])
        behind = step.at(step.layer, examples=examples, rows=value.step.rows // self.stack_size, mask=mask, memory=None)

        def backward(dy: Array) -> Sequence[Array]:
            whole = xp.zeros(rows.shape, dy.dtype)
            whole[:, part] = _by_example(Value(dy, behind, value.kind), step, "dy")
            return [_as_inside(whole, value.kind, step, "dx")]

        return y, behind, backward


class ReshapeVertex(GraphVertex, tag="reshape_vertex"):
    """Reshapes the values of every example, in row-major order.

    ``new_shape`` is ``(-1, size)``, ``(-1, size, time steps)`` or ``(-1, channels, height, width)``; -1 stands for the
    examples.
    """

    new_shape: tuple[int, ...]

    def __post_init__(self) -> None:
        sizes = self.new_shape[1:]
        if len(self.new_shape) not in (2, 3, 4) or self.new_shape[0] != -1 or min(sizes) < 1:
            raise ConfError(
                f"{self.title()}: new_shape is {list(self.new_shape)}; it must be -1 (the examples) and then 1, 2 or 3 "
                "sizes: (-1, size), (-1, size, time steps) or (-1, channels, height, width)"
            )

    def output_type(self, given: Sequence[AnyInputType]) -> AnyInputType:
        """Return the type of the new shape."""
        kind, sizes = given[0], self.new_shape[1:]
        if getattr(kind, "sequences", False):
            raise ShapeError(f"{self.title()} takes one value an example; time steps by themselves cannot be reshaped")
        timesteps = kind.timesteps if isinstance(kind, InputTypeRecurrent) else 1
        if timesteps and kind.columns * timesteps != math.prod(sizes):
            raise ShapeError(
                f"{self.title()}: new_shape {list(self.new_shape)} has {math.prod(sizes)} values an example, its input "
                f"{kind} has {kind.columns * timesteps}"
            )
        if len(sizes) == 1:
            return InputTypeFeedForward(size=sizes[0])
        if len(sizes) == 2:
            return InputTypeRecurrent(size=sizes[0], timesteps=sizes[1])
        return InputTypeConvolutional(channels=sizes[0], height=sizes[1], width=sizes[2])

    def forward(self, values: Sequence[Value], step: Step, inputs: Inputs) -> VertexOutput:
        """See ``GraphVertex``."""
        value = values[0]
        kind = self.output_type([value.kind])
        outside = to_external(value.y, value.kind, value.step.rows)
        if outside[0].size != math.prod(self.new_shape[1:]):
            raise ShapeError(f"{self.title()}: {outside.shape[1:]} cannot be reshaped to {self.new_shape[1:]}")
        here = value.step.at(step.layer, mask=None, rows=value.step.examples)
        y = to_internal(outside.reshape(len(outside), *self.new_shape[1:]), kind, here, "y")

        def backward(dy: Array) -> Sequence[Array]:
            back = to_external(dy, kind, here.rows).reshape(outside.shape)
            return [to_internal(back, value.kind, here, "dx")]

        return y, here, backward


class LastTimeStepVertex(GraphVertex, tag="last_time_step_vertex"):
    """The last time step of every sequence: the last one that the mask of network input ``mask_array_input`` keeps."""

    mask_array_input: str | None = None

    def referenced_input(self) -> str | None:
        """``mask_array_input``."""
        return self.mask_array_input

    def output_type(self, given: Sequence[AnyInputType]) -> AnyInputType:
        """Return vectors."""
        if not isinstance(given[0], InputTypeRecurrent):
            raise ShapeError(f"{self.title()} takes sequences, what comes in is {given[0]}")
        return InputTypeFeedForward(size=given[0].size)

    def forward(self, values: Sequence[Value], step: Step, inputs: Inputs) -> VertexOutput:
        """See ``GraphVertex``."""
        x = values[0].y
        source = values[0] if self.mask_array_input is None else inputs[self.mask_array_input]
        mask = source.step.mask
        xp = get_array_module(x)
        examples = xp.arange(x.shape[1])
        last = xp.full(x.shape[1], len(x) - 1)
        if mask is not None:
            if mask.shape != x.shape[:2]:
                raise DataError(
                    f"{self.title()}: the mask of {self.mask_array_input!r} is of {mask.shape[::-1]} examples and time "
                    f"steps, the sequences are of {x.shape[1::-1]}"
                )
            last = len(mask) - 1 - xp.argmax(mask[::-1] != 0, axis=0)
        y = xp.ascontiguousarray(x[last, examples])

        def backward(dy: Array) -> Sequence[Array]:
            dx = step.buffer("dx", x.shape, x)
            dx.fill(0)
            dx[last, examples] = dy
            return [dx]

        return y, values[0].step.at(step.layer, mask=None), backward


class DuplicateToTimeSeriesVertex(GraphVertex, tag="duplicate_to_time_series_vertex"):
    """Repeats a vector for every time step of the network input ``input_name``."""

    input_name: str

    def referenced_input(self) -> str | None:
        """``input_name``."""
        return self.input_name

    def output_type(self, given: Sequence[AnyInputType]) -> AnyInputType:
        """Return sequences."""
        if not isinstance(given[0], InputTypeFeedForward) or given[0].sequences:
            raise ShapeError(f"{self.title()} takes one vector an example, what comes in is {given[0]}")
        return InputTypeRecurrent(size=given[0].size)

    def forward(self, values: Sequence[Value], step: Step, inputs: Inputs) -> VertexOutput:
        """See ``GraphVertex``."""
        x, source = values[0].y, inputs[self.input_name]
        y = step.buffer("y", (len(source.y), *x.shape), x)
        y[...] = x
        behind = values[0].step.at(step.layer, mask=source.step.mask)
        return y, behind, lambda dy: [dy.sum(axis=0)]


class PreprocessorVertex(GraphVertex, tag="preprocessor_vertex"):
    """A preprocessor by itself."""

    pre_processor: InputPreProcessor

    def output_type(self, given: Sequence[AnyInputType]) -> AnyInputType:
        """Return the output type of the preprocessor."""
        return self.pre_processor.output_type(given[0])

    def forward(self, values: Sequence[Value], step: Step, inputs: Inputs) -> VertexOutput:
        """See ``GraphVertex``."""
        x, pre = values[0].y, self.pre_processor
        here = values[0].step.at(step.layer)
        y, back = pre.forward(x, here)
        behind = here.at(step.layer, rows=pre.rows(x, here), mask=pre.forward_mask(here.mask, here))
        return y, behind, lambda dy: [get_array_module(dy).ascontiguousarray(back(dy))]


class PoolHelperVertex(GraphVertex, tag="pool_helper_vertex"):
    """Drops the first row and column of images, to compensate for the rounding of another library's pooling."""

    def output_type(self, given: Sequence[AnyInputType]) -> AnyInputType:
        """Return the type of images with one row and one column less."""
        kind = given[0]
        if not isinstance(kind, InputTypeConvolutional) or min(kind.height, kind.width) < 2:
            raise ShapeError(f"{self.title()} takes images of at least 2x2, what comes in is {kind}")
        return msgspec.structs.replace(kind, height=kind.height - 1, width=kind.width - 1)

    def forward(self, values: Sequence[Value], step: Step, inputs: Inputs) -> VertexOutput:
        """See ``GraphVertex``."""
        x = values[0].y
        y = get_array_module(x).ascontiguousarray(x[:, :, 1:, 1:])

        def backward(dy: Array) -> Sequence[Array]:
            dx = step.buffer("dx", x.shape, x)
            dx.fill(0)
            dx[:, :, 1:, 1:] = dy
            return [dx]

        return y, values[0].step.at(step.layer), backward


Vertex = (
    MergeVertex
    | ElementWiseVertex
    | SubsetVertex
    | StackVertex
    | UnstackVertex
    | ScaleVertex
    | ShiftVertex
    | L2Vertex
    | L2NormalizeVertex
    | LastTimeStepVertex
    | DuplicateToTimeSeriesVertex
    | ReshapeVertex
    | PreprocessorVertex
    | PoolHelperVertex
)
