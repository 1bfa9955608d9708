"""Graph vertices: operations of a ``ComputationGraph`` between layers, without parameters.

A vertex is a frozen struct like a layer: ``output_type`` infers the output's type from the inputs' types, ``forward``
computes on activations in the layout inside a network (see ``input_type``) and returns the backward pass. Vertices that
change the examples or time steps are in ``vertices.shape``. Legacy: ``org.deeplearning4j.nn.conf.graph``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import msgspec

from dl4jlegacy.arrays.backend import Array, get_array_module
from dl4jlegacy.errors import ConfError, ShapeError
from dl4jlegacy.nn.arguments import Tagged
from dl4jlegacy.nn.input_type import (
    AnyInputType,
    InputTypeConvolutional,
    InputTypeConvolutionalFlat,
    InputTypeFeedForward,
    InputTypeRecurrent,
)
from dl4jlegacy.nn.optimization.step import Step

__all__ = [
    "ElementWiseVertex",
    "GraphVertex",
    "Inputs",
    "L2NormalizeVertex",
    "L2Vertex",
    "MergeVertex",
    "ScaleVertex",
    "ShiftVertex",
    "SubsetVertex",
    "Value",
    "VertexBackward",
    "VertexOutput",
    "feature_axis",
    "flat_as_vectors",
]

VertexBackward = Callable[[Array], Sequence[Array]]
"""``backward(dy)`` overwrites ``dy`` and returns every input's gradient, each in its own memory (one may be dy's)."""


@dataclass(frozen=True, slots=True)
class Value:
    """An activation in a graph: ``y`` of type ``kind``; ``step`` has its examples, rows and mask."""

    y: Array
    step: Step
    kind: AnyInputType


Inputs = Mapping[str, Value]
"""The network's inputs by name."""

VertexOutput = tuple[Array, Step, VertexBackward]
"""The output of a vertex, the ``Step`` behind it (examples, rows, mask), and the backward pass."""


def flat_as_vectors(kind: AnyInputType) -> AnyInputType:
    """Return the type; images given as rows count as vectors."""
    return InputTypeFeedForward(size=kind.columns) if isinstance(kind, InputTypeConvolutionalFlat) else kind


def feature_axis(kind: AnyInputType) -> int:
    """Return the axis of the values (or channels) in an array of type ``kind`` in the layout inside."""
    return 2 if isinstance(kind, InputTypeRecurrent) else 1


Op = Literal["add", "subtract", "product", "average", "max"]


class GraphVertex(Tagged, omit_defaults=True):
    """Base of all vertices; a vertex has ``min_inputs`` to ``max_inputs`` inputs (None: any number)."""

    min_inputs: ClassVar[int] = 1
    max_inputs: ClassVar[int | None] = 1

    def referenced_input(self) -> str | None:
        """Return the name of the network input that the vertex uses besides its inputs; None if there is none."""
        return None

    def output_type(self, given: Sequence[AnyInputType]) -> AnyInputType:
        """Return the type of the output; raise ``ShapeError`` if the inputs' types do not fit."""
        return given[0]

    def forward(self, values: Sequence[Value], step: Step, inputs: Inputs) -> VertexOutput:
        """Return the output, the ``Step`` behind the vertex (examples, rows, mask), and the backward pass.

        Args:
            values: the vertex's inputs, which are only read.
            step: provides buffers and kernels under this vertex's number.
            inputs: the network's inputs by name.
        """
        raise NotImplementedError


def _same_kind(title: str, given: Sequence[AnyInputType], what: str) -> None:
    kinds = {kind.kind for kind in given}
    if len(kinds) > 1 or len({getattr(kind, "sequences", False) for kind in given}) > 1:
        raise ShapeError(f"{title} {what}; its inputs are {' and '.join(map(str, given))}, which differ in kind")


def _behind(values: Sequence[Value], step: Step) -> Step:
    """Return the ``Step`` behind a vertex that keeps examples and time steps, with the maximum of the inputs' masks."""
    first = values[0].step
    masks = [value.step.mask for value in values]
    mask = None
    known = [m for m in masks if m is not None]
    if len(known) == len(masks):
        mask = known[0]
        for other in known[1:]:
            mask = get_array_module(mask).maximum(mask, other)
    return first.at(step.layer, mask=mask)


class MergeVertex(GraphVertex, tag="merge_vertex"):
    """Concatenates vectors, the vectors of sequences, or the channels of images."""

    max_inputs = None

    def output_type(self, given: Sequence[AnyInputType]) -> AnyInputType:
        """Return the type with the sum of all sizes."""
        _same_kind(self.title(), given, "puts values of one kind together")
        first = given[0]
        total = sum(kind.n_in for kind in given)
        if isinstance(first, InputTypeConvolutional):
            if len({kind.shape[1:] for kind in given}) > 1:
                raise ShapeError(f"{self.title()} got images of different sizes: {', '.join(map(str, given))}")
            return msgspec.structs.replace(first, channels=total)
        if isinstance(first, InputTypeRecurrent):
            return InputTypeRecurrent(size=total, timesteps=_timesteps(self.title(), given))
        return InputTypeFeedForward(size=total, sequences=getattr(first, "sequences", False))

    def forward(self, values: Sequence[Value], step: Step, inputs: Inputs) -> VertexOutput:
        """See ``GraphVertex``."""
        axis = feature_axis(values[0].kind)
        parts = [value.y for value in values]
        ends = [0, *itertools.accumulate(part.shape[axis] for part in parts)]
        places = [(slice(None),) * axis + (slice(*pair),) for pair in itertools.pairwise(ends)]
        shape = (*parts[0].shape[:axis], ends[-1], *parts[0].shape[axis + 1 :])
        y = step.buffer("y", shape, parts[0])
        for place, part in zip(places, parts, strict=True):
            y[place] = part

        def backward(dy: Array) -> Sequence[Array]:
            grads = []
            for i, place in enumerate(places):
                grads.append(step.buffer(f"dx{i}", dy[place].shape, dy))
                grads[-1][...] = dy[place]
            return grads

        return y, _behind(values, step), backward


def _timesteps(title: str, given: Sequence[AnyInputType]) -> int:
    known = {kind.timesteps for kind in given if isinstance(kind, InputTypeRecurrent) and kind.timesteps}
    if len(known) > 1:
        raise ShapeError(f"{title} got sequences of different lengths: {', '.join(map(str, given))}")
    return known.pop() if known else 0


class ElementWiseVertex(GraphVertex, tag="element_wise_vertex"):
    """Adds, subtracts (two), multiplies or averages its inputs value by value, or takes the (first) largest."""

    max_inputs = None

    op: Op

    def __post_init__(self) -> None:
        self.resolve("op", get_args(Op))

    def output_type(self, given: Sequence[AnyInputType]) -> AnyInputType:
        """Return the common type."""
        if self.op == "subtract" and len(given) != 2:
            raise ConfError(f"{self.title()} subtracts the second of 2 inputs from the first; it has {len(given)}")
        _same_kind(self.title(), given, "combines values of one kind")
        if len({kind.shape[:1] if isinstance(kind, InputTypeRecurrent) else kind.shape for kind in given}) > 1:
            raise ShapeError(f"{self.title()} combines inputs of one size; they are {', '.join(map(str, given))}")
        if isinstance(given[0], InputTypeRecurrent):
            return msgspec.structs.replace(given[0], timesteps=_timesteps(self.title(), given))
        return given[0]

    def forward(self, values: Sequence[Value], step: Step, inputs: Inputs) -> VertexOutput:
        """See ``GraphVertex``."""
        parts = [value.y for value in values]
        if len({part.shape for part in parts}) > 1:
            raise ShapeError(f"{self.title()} got arrays of different shapes: {', '.join(str(p.shape) for p in parts)}")
        y = step.buffer("y", parts[0].shape, parts[0])
        y[...] = parts[0]
        xp = get_array_module(y)
        combine = {"subtract": xp.subtract, "product": xp.multiply, "max": xp.maximum}.get(self.op, xp.add)
        for part in parts[1:]:
            combine(y, part, out=y)
        if self.op == "average":
            y /= y.dtype.type(len(parts))
        return y, _behind(values, step), lambda dy: self._back(dy, parts, y, step)

    def _back(self, dy: Array, parts: Sequence[Array], y: Array, step: Step) -> Sequence[Array]:
        grads = [step.buffer(f"dx{i}", dy.shape, dy) for i in range(len(parts))]
        xp = get_array_module(dy)
        taken = xp.zeros(dy.shape, bool) if self.op == "max" else None
        for i, dx in enumerate(grads):
            dx[...] = dy
            if self.op == "subtract" and i == 1:
                xp.negative(dx, out=dx)
            elif self.op == "average":
                dx /= dx.dtype.type(len(parts))
            elif self.op == "product":
                for j, other in enumerate(parts):
                    if j != i:
                        dx *= other
            elif taken is not None:
                here = (parts[i] == y) & ~taken
                dx *= here
                taken |= here
        return grads


class SubsetVertex(GraphVertex, tag="subset_vertex"):
    """Keeps values (or channels) ``from_index`` to ``to_index``, both included."""

    from_index: int
    to_index: int

    def output_type(self, given: Sequence[AnyInputType]) -> AnyInputType:
        """Return the type of the kept values."""
        kind, size = given[0], self.to_index - self.from_index + 1
        if not 0 <= self.from_index <= self.to_index < kind.n_in:
            raise ShapeError(
                f"{self.title()} keeps values {self.from_index} to {self.to_index}; its input {kind} has 0 to "
                f"{kind.n_in - 1}"
            )
        return msgspec.structs.replace(
            kind, **{"channels" if isinstance(kind, InputTypeConvolutional) else "size": size}
        )

    def forward(self, values: Sequence[Value], step: Step, inputs: Inputs) -> VertexOutput:
        """See ``GraphVertex``."""
        x, axis = values[0].y, feature_axis(values[0].kind)
        kept = (slice(None),) * axis + (slice(self.from_index, self.to_index + 1),)
        y = step.buffer("y", x[kept].shape, x)
        y[...] = x[kept]

        def backward(dy: Array) -> Sequence[Array]:
            dx = step.buffer("dx", x.shape, x)
            dx.fill(0)
            dx[kept] = dy
            return [dx]

        return y, _behind(values, step), backward


class ScaleVertex(GraphVertex, tag="scale_vertex"):
    """Multiplies every value by ``scale_factor``."""

    scale_factor: float

    def forward(self, values: Sequence[Value], step: Step, inputs: Inputs) -> VertexOutput:
        """See ``GraphVertex``."""
        x = values[0].y
        y = step.buffer("y", x.shape, x)
        factor = x.dtype.type(self.scale_factor)
        get_array_module(x).multiply(x, factor, out=y)

        def backward(dy: Array) -> Sequence[Array]:
            dy *= factor
            return [dy]

        return y, _behind(values, step), backward


class ShiftVertex(GraphVertex, tag="shift_vertex"):
    """Adds ``shift_factor`` to every value."""

    shift_factor: float

    def forward(self, values: Sequence[Value], step: Step, inputs: Inputs) -> VertexOutput:
        """See ``GraphVertex``."""
        x = values[0].y
        y = step.buffer("y", x.shape, x)
        get_array_module(x).add(x, x.dtype.type(self.shift_factor), out=y)
        return y, _behind(values, step), lambda dy: [dy]


def _of_example(value: Value, x: Array) -> tuple[tuple[int, ...], Array]:
    """Return the axes of one example's values, and ``x`` with masked values set to 0."""
    if isinstance(value.kind, InputTypeRecurrent):
        mask = value.step.mask
        return (0, 2), x if mask is None else x * mask[:, :, None]
    return ((1, 2, 3) if isinstance(value.kind, InputTypeConvolutional) else (1,)), x


class L2NormalizeVertex(GraphVertex, tag="l2_normalize_vertex"):
    """Divides every example by its Euclidean norm (of a whole sequence or image), or by ``eps`` if that is larger."""

    eps: float = 1e-8

    def forward(self, values: Sequence[Value], step: Step, inputs: Inputs) -> VertexOutput:
        """See ``GraphVertex``."""
        axes, x = _of_example(values[0], values[0].y)
        xp = get_array_module(x)
        raw = xp.sqrt(xp.square(x).sum(axis=axes, keepdims=True))
        norm = xp.maximum(raw, x.dtype.type(self.eps))
        y = step.buffer("y", x.shape, x)
        xp.divide(x, norm, out=y)

        def backward(dy: Array) -> Sequence[Array]:
            if x is not values[0].y:
                dy *= values[0].step.mask[:, :, None]  # type: ignore[index]  # a sequence with a mask
            along = (dy * y).sum(axis=axes, keepdims=True) * (raw >= norm)
            dy -= y * along
            dy /= norm
            return [dy]

        return y, _behind(values, step), backward


class L2Vertex(GraphVertex, tag="l2_vertex"):
    """The Euclidean distance of two inputs, one value per example; the gradient divides by at least ``eps``."""

    min_inputs = 2
    max_inputs = 2

    eps: float = 1e-8

    def output_type(self, given: Sequence[AnyInputType]) -> AnyInputType:
        """Return vectors of 1 value."""
        _same_kind(self.title(), given, "compares inputs of one kind")
        if given[0].shape[:1] != given[1].shape[:1] or given[0].columns != given[1].columns:
            raise ShapeError(f"{self.title()} compares inputs of one size; they are {given[0]} and {given[1]}")
        if isinstance(given[0], InputTypeConvolutional) and given[0].sequences:
            raise ShapeError(f"{self.title()} takes vectors, sequences or images, not sequences of images")
        return InputTypeFeedForward(size=1, sequences=getattr(given[0], "sequences", False))

    def forward(self, values: Sequence[Value], step: Step, inputs: Inputs) -> VertexOutput:
        """See ``GraphVertex``."""
        first = values[0]
        axes, away = _of_example(first, first.y - values[1].y)
        xp = get_array_module(away)
        distance = xp.sqrt(xp.square(away).sum(axis=axes))
        rows = first.step.rows if isinstance(first.kind, InputTypeConvolutional) else distance.size
        y = xp.ascontiguousarray(distance.reshape(-1)[:rows].reshape(-1, 1))
        back = _behind(values, step)
        if not isinstance(first.kind, InputTypeFeedForward):
            back = back.at(step.layer, mask=None)

        def backward(dy: Array) -> Sequence[Array]:
            slope = xp.zeros(distance.size, dy.dtype)
            slope[: len(dy)] = dy[:, 0] / xp.maximum(distance.reshape(-1)[: len(dy)], dy.dtype.type(self.eps))
            dx = away * xp.expand_dims(slope.reshape(distance.shape), axes)
            return [dx, -dx]

        return y, back, backward
