"""Summary of a network: layers, shapes, parameters, memory and multiply-adds, from its configuration alone.

Legacy: ``MultiLayerNetwork.summary()``, ``ComputationGraph.summary()`` and ``memoryInfo``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dl4jlegacy.nn.conf.network import ComputationGraphConfiguration, MultiLayerConfiguration
from dl4jlegacy.nn.conf.stages import Stage
from dl4jlegacy.nn.input_type import AnyInputType, InputTypeConvolutional, InputTypeRecurrent
from dl4jlegacy.nn.layers.embedding import EmbeddingLayer
from dl4jlegacy.nn.layers.layer import Layer
from dl4jlegacy.nn.layers.normalization import BatchNormalization
from dl4jlegacy.nn.multilayer_updater import MultiLayerUpdater
from dl4jlegacy.nn.parameters import ParamLayout
from dl4jlegacy.nn.vertices.shape import StackVertex, UnstackVertex

__all__ = ["NetworkSummary", "SummaryRow", "summarize"]

_WIDTH = 80
_WIDTHS = (13, 19, 11, 11, 11, 10)
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """One layer, vertex or network input.

    Attributes:
        name, kind: a layer without a name has its number.
        inputs: the names of the rows that it reads.
        pre_processor: the preprocessor before the layer; empty if there is none.
        output: shape of the output for one example, outside the network; 0 for a variable number of time steps.
        parameters, trained: the number of all parameters, and of those that training changes.
        multiply_adds: of the weights (and of batch normalization) for one example; with a variable number of time
            steps, for one time step.
        activations: values of the output of one example, or time step.
        frozen: whether the layer is frozen.
        n_in, n_out: of a layer with parameters (DL4J's nIn and nOut); 0: the row has none.
        shapes: the shapes of the parameters, by DL4J's names.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    pre_processor: str
    output: tuple[int, ...]
    parameters: int
    trained: int
    multiply_adds: int
    activations: int
    frozen: bool = False
    n_in: int = 0
    n_out: int = 0
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def sizes(self) -> str:
        """Return DL4J's ``nIn,nOut``: ``784,100``; ``-,-`` for a layer without parameters."""
        return f"{self.n_in or '-'},{self.n_out or '-'}"

    def shape(self) -> str:
        """Return the shape as text: ``20x24x24``, ``64xT``."""
        return "x".join(str(size or "T") for size in self.output)


@dataclass(frozen=True, slots=True)
class NetworkSummary:
    """The rows and totals of a network; ``updater_state`` counts values of ``dtype``."""

    kind: str
    dtype: str
    rows: tuple[SummaryRow, ...]
    outputs: tuple[str, ...]
    updater_state: int

    @property
    def parameters(self) -> int:
        """All parameters."""
        return sum(row.parameters for row in self.rows)

    @property
    def trained(self) -> int:
        """Number of parameters that training changes."""
        return sum(row.trained for row in self.rows)

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of a forward pass for one example; training takes about three times as many."""
        return sum(row.multiply_adds for row in self.rows)

    @property
    def has_open_length(self) -> bool:
        """Whether the number of time steps is variable; all numbers are then for one time step."""
        return any(0 in row.output for row in self.rows)

    def memory(self, batch_size: int) -> dict[str, int]:
        """Return bytes by name: of the vectors, and of a batch in prediction and in training."""
        item = np.dtype(self.dtype).itemsize
        vectors = {"parameters": self.parameters, "gradient": self.parameters, "updater_state": self.updater_state}
        found = {name: values * item for name, values in vectors.items()}
        found["activations_of_an_example"] = sum(row.activations for row in self.rows) * item
        batch = batch_size * found["activations_of_an_example"]
        found["output_of_a_batch"] = found["parameters"] + batch
        found["training_of_a_batch"] = sum(vectors.values()) * item + 2 * batch
        return found

    def to_dict(self, batch_size: int) -> dict[str, Any]:
        """Return everything as plain JSON values."""
        rows = [
            asdict(row)
            | {"inputs": list(row.inputs), "output": list(row.output)}
            | {"shapes": {name: list(shape) for name, shape in row.shapes}}
            for row in self.rows
        ]
        return {
            "kind": self.kind,
            "dtype": self.dtype,
            "layers": rows,
            "outputs": list(self.outputs),
            "parameters": self.parameters,
            "trained_parameters": self.trained,
            "multiply_adds": self.multiply_adds,
            "per_time_step": self.has_open_length,
            "batch_size": batch_size,
            "memory_bytes": self.memory(batch_size),
        }

    def text(self, batch_size: int) -> str:
        """Return a table of at most 80 columns."""
        lines = [_line(("layer", "kind", "nIn,nOut", "output", "parameters", "mult-adds")), "-" * _WIDTH]
        before = ""
        for row in self.rows:
            numbers = (_number(row.parameters, _WIDTHS[4]), _number(row.multiply_adds, _WIDTHS[5]))
            lines.append(_line((row.name, row.kind, row.sizes(), row.shape(), *numbers)))
            lines += [f"    {note}"[:_WIDTH] for note in _notes(row, before)]
            before = row.name
        total = (_number(self.parameters, _WIDTHS[4]), _number(self.multiply_adds, _WIDTHS[5]))
        lines += ["-" * _WIDTH, _line(("total", "", "", "", *total)), "", *self._facts(batch_size)]
        return "\n".join(lines)

    def _facts(self, batch_size: int) -> Iterator[str]:
        memory = {name: _size(size) for name, size in self.memory(batch_size).items()}
        per = "a time step" if self.has_open_length else "an example"
        yield f"{self.kind}, {self.dtype}; outputs: {', '.join(self.outputs)}"[:_WIDTH]
        if self.trained != self.parameters:
            yield f"trained     {self.trained:,} of {self.parameters:,} parameters"
        yield (
            f"memory      parameters {memory['parameters']}, updater state {memory['updater_state']}, gradient "
            + (memory["gradient"])
        )
        yield f"            activations {memory['activations_of_an_example']} {per}"
        yield (
            f"            with batches of {batch_size}: output {memory['output_of_a_batch']}, training "
            + (memory["training_of_a_batch"])
        )
        yield f"work        {self.multiply_adds:,} multiply-adds {per}, about three times that to train"[:_WIDTH]


def _line(cells: Sequence[str]) -> str:
    texts = [_fit(text, width) for text, width in zip(cells, _WIDTHS, strict=True)]
    left = [f"{text:<{width}}" for text, width in zip(texts[:4], _WIDTHS[:4], strict=True)]
    right = [f"{text:>{width}}" for text, width in zip(texts[4:], _WIDTHS[4:], strict=True)]
    return " ".join([*left, *right]).rstrip()


def _number(value: int, width: int) -> str:
    """Return all digits of a number if they fit into ``width``, else a rounded form: ``1.547e+10``."""
    text = f"{value:,}"
    return text if len(text) <= width else f"{value:.3e}"


def _fit(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "~"


def _notes(row: SummaryRow, before: str) -> Iterator[str]:
    if row.inputs and row.inputs != (before,):
        yield f"from {', '.join(row.inputs)}"
    if row.pre_processor:
        yield f"through {row.pre_processor}"
    if row.frozen:
        yield "frozen"
    if row.shapes:
        yield ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in row.shapes)


def _size(count: float) -> str:
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:.0f} {_UNITS[unit]}" if unit == 0 else f"{count:.1f} {_UNITS[unit]}"


def summarize(conf: MultiLayerConfiguration | ComputationGraphConfiguration) -> NetworkSummary:
    """Return the summary of the network of ``conf``; raises like ``conf.resolved``."""
    rows = tuple(_graph_rows(conf) if isinstance(conf, ComputationGraphConfiguration) else _stack_rows(conf))
    layers = conf.resolved()
    state = MultiLayerUpdater(layers, ParamLayout.of(layers)).state_size
    is_graph = isinstance(conf, ComputationGraphConfiguration)
    outputs = conf.network_outputs if isinstance(conf, ComputationGraphConfiguration) else (rows[-1].name,)
    return NetworkSummary(
        "ComputationGraph" if is_graph else "MultiLayerNetwork", conf.conf.dtype, rows, outputs, state
    )


def _stack_rows(conf: Any) -> Iterator[SummaryRow]:
    stages: Sequence[Stage] = conf.stages()
    yield _input_row("input", stages[0].input_type)
    before = "input"
    for index, stage in enumerate(stages):
        name = f"{index} {stage.layer.name}" if stage.layer.name else str(index)
        yield _layer_row(name, stage, (before,))
        before = name


def _graph_rows(conf: ComputationGraphConfiguration) -> Iterator[SummaryRow]:
    nodes = conf.nodes()
    copies: list[int] = []  # rows at a node for one example of the network
    for node in nodes:
        inputs = tuple(nodes[place].name for place in node.inputs)
        copies.append(copies[node.inputs[0]] if node.inputs else 1)
        if isinstance(node.vertex, StackVertex):
            copies[-1] = sum(copies[place] for place in node.inputs)
        elif isinstance(node.vertex, UnstackVertex):
            copies[-1] = max(1, copies[-1] // node.vertex.stack_size)
        if node.stage is not None:
            yield _layer_row(node.name, node.stage, inputs, copies[-1])
        elif node.vertex is not None:
            size = _values(node.kind) * copies[-1]
            yield SummaryRow(node.name, node.vertex.title(), inputs, "", node.kind.shape, 0, 0, 0, size)
        else:
            yield _input_row(node.name, node.kind)


def _input_row(name: str, kind: AnyInputType) -> SummaryRow:
    return SummaryRow(name, "network input", (), "", kind.shape, 0, 0, 0, _values(kind))


def _layer_row(name: str, stage: Stage, inputs: tuple[str, ...], copies: int = 1) -> SummaryRow:
    layer, leaves = stage.layer, stage.output_type
    shapes = layer.param_shapes()
    parameters = sum(math.prod(shape) for _, shape in shapes)
    states = sum(math.prod(shape) for param, shape in shapes if param in layer.states)
    return SummaryRow(
        name=name,
        kind=str(layer.__struct_config__.tag),
        inputs=inputs,
        pre_processor="" if stage.pre_processor is None else stage.pre_processor.title(),
        output=leaves.shape,
        parameters=parameters,
        trained=0 if layer.frozen else parameters - states,
        multiply_adds=_multiply_adds(layer, stage.layer_input_type, leaves) * copies,
        activations=_values(leaves) * copies,
        frozen=layer.frozen,
        n_in=(getattr(layer, "n_in", 0) or 0) if shapes else 0,
        n_out=(getattr(layer, "n_out", 0) or 0) if shapes else 0,
        shapes=tuple((param, tuple(shape)) for param, shape in shapes),
    )


def _values(kind: AnyInputType) -> int:
    """Return the number of values of one example; for sequences of variable length, of one time step."""
    return math.prod(size or 1 for size in kind.shape)


def _multiply_adds(layer: Layer, enters: AnyInputType, leaves: AnyInputType) -> int:
    """Return the multiply-adds of one example: each weight counts once per place of an image, or per time step."""
    if isinstance(layer, BatchNormalization):
        return _values(leaves)
    if isinstance(layer, EmbeddingLayer):
        return 0  # an embedding: a row is looked up
    weights = 0
    for name, shape in layer.param_shapes():
        if name in layer.weights and not layer.is_pretrain_param(name):
            weights += math.prod(shape)
    if isinstance(leaves, InputTypeConvolutional):
        return weights * leaves.height * leaves.width
    steps = leaves.timesteps if isinstance(leaves, InputTypeRecurrent) else 0
    if not steps and isinstance(enters, InputTypeRecurrent):
        steps = enters.timesteps
    return weights * (steps or 1)
