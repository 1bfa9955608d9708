"""GraphStack: the forward and backward pass through the nodes of a graph, over its flat vectors.

It is the counterpart of ``stack`` for graphs, and has no state but its views.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from dl4jlegacy.arrays.backend import Array, Scalar, as_contiguous, get_array_module
from dl4jlegacy.errors import ConfError, DataError, ShapeError
from dl4jlegacy.nn.arrays import as_features, as_labels
from dl4jlegacy.nn.conf.graph_stages import Node
from dl4jlegacy.nn.formats import check_masks, mask_to_internal, to_external, to_internal
from dl4jlegacy.nn.input_type import InputTypeFeedForward, InputTypeRecurrent
from dl4jlegacy.nn.layers.feedforward import Backward, Params
from dl4jlegacy.nn.layers.layer import Layer
from dl4jlegacy.nn.layers.output import BaseOutputLayer
from dl4jlegacy.nn.optimization.step import Step
from dl4jlegacy.nn.vertices.combine import Value, VertexBackward, flat_as_vectors

__all__ = ["Batch", "GraphStack"]


@dataclass(frozen=True, slots=True)
class Batch:
    """A checked batch in the layout outside: C-contiguous arrays of the network's dtype, each with a mask or None."""

    features: tuple[Array, ...]
    labels: tuple[Array, ...]
    features_masks: tuple[Array | None, ...]
    labels_masks: tuple[Array | None, ...]

    @property
    def examples(self) -> int:
        """Number of rows of the features."""
        return len(self.features[0])


class GraphStack:
    """A graph's nodes with the parameters and gradients of its layers, by name as views of the two flat vectors.

    ``xp`` is the array module of the vectors' memory; batches are copied there.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        outputs: Sequence[str],
        params: Sequence[Params],
        grads: Sequence[Params],
        xp: ModuleType = np,
    ) -> None:
        self.xp = xp
        self.nodes = tuple(nodes)
        self.params = tuple(params)
        self.grads = tuple(grads)
        place = {node.name: index for index, node in enumerate(self.nodes)}
        self.outputs = tuple(place[name] for name in outputs)
        self.inputs = tuple(i for i, node in enumerate(self.nodes) if node.stage is None and node.vertex is None)
        self._readers = [0] * len(self.nodes)
        for node in self.nodes:
            for source in node.inputs:
                self._readers[source] += 1
        self._needs: list[bool] = []  # whether a node, or a node below it, is trained
        for node in self.nodes:
            layer = None if node.stage is None else node.stage.layer
            own = layer is not None and not layer.frozen and bool(layer.param_shapes())
            self._needs.append(own or any(self._needs[source] for source in node.inputs))

    # -- checking ----------------------------------------------------------------------------------------------------

    def prepare(
        self,
        dtype: npt.DTypeLike,
        features: Sequence[Array],
        labels: Sequence[Array] | None,
        features_masks: Sequence[Array | None] | None = None,
        labels_masks: Sequence[Array | None] | None = None,
    ) -> Batch:
        """Return a checked batch on the network's device, without labels if none are given.

        Raises:
            ShapeError: sizes that do not fit the network; the message names input or output.
            DataError: the number of labels differs from the number of examples.
        """
        inputs, ends = self._names(self.inputs), self._names(self.outputs)
        x = [self._checked_input(*pair) for pair in zip(self.inputs, _many(features, inputs, "features"), strict=True)]
        y = [] if labels is None else self.as_labels(labels)
        x_masks = _masks("features", features_masks, len(x))
        y_masks = _masks("labels", labels_masks, len(y))
        for name, array in (*zip(inputs, x, strict=True), *zip(ends, y, strict=False)):
            if len(array) != len(x[0]) or not len(array):
                raise DataError(
                    f"{name!r} has {len(array)} examples and {inputs[0]!r} {len(x[0])}; both must be equal and not 0"
                )
        for array, mask in zip(x, x_masks, strict=True):
            check_masks(array, None, mask, None)
        for array, mask in zip(y, y_masks, strict=True):
            check_masks(x[0], array, None, mask)
        features, labels = ([as_contiguous(array, self.xp, dtype) for array in group] for group in (x, y))
        if self.xp is not np:
            x_masks = [None if mask is None else as_contiguous(mask, self.xp, dtype) for mask in x_masks]
            y_masks = [None if mask is None else as_contiguous(mask, self.xp, dtype) for mask in y_masks]
        flat = [self._flattened(*pair) for pair in zip(self.inputs, features, strict=True)]
        return Batch(tuple(flat), tuple(labels), tuple(x_masks), tuple(y_masks))

    def as_labels(self, labels: Sequence[Any]) -> list[Array]:
        """Return the labels of every output in the form for its layer; raises ``DataError``."""
        many = _many(labels, self._names(self.outputs), "labels")
        return [as_labels(each, self.output_layer(place)) for place, each in zip(self.outputs, many, strict=True)]

    def _names(self, places: Sequence[int]) -> list[str]:
        return [self.nodes[place].name for place in places]

    def _checked_input(self, place: int, x: Array) -> Array:
        node = self.nodes[place]
        x = as_features(x, node.kind)
        if not node.kind.fits(x.shape):
            wanted = ", ".join(str(size or "time steps") for size in node.kind.shape)
            raise ShapeError(
                f"features have shape {x.shape}, network input {node.name!r} takes {node.kind}: (examples, {wanted})"
            )
        return x

    def _flattened(self, place: int, x: Array) -> Array:
        is_flat = isinstance(self.nodes[place].kind, InputTypeFeedForward)
        return x.reshape(len(x), -1) if is_flat and x.ndim != 2 else x

    def layer(self, place: int) -> Layer | None:
        """Return the layer at ``place``; None if the node is not a layer."""
        stage = self.nodes[place].stage
        return None if stage is None else stage.layer

    def output_layer(self, place: int) -> BaseOutputLayer:
        """Return the output layer at ``place``; raise ``ConfError`` if it has no loss."""
        layer = self.layer(place)
        if not isinstance(layer, BaseOutputLayer):
            title = self.nodes[place].title()
            raise ConfError(f"network output {title} has no loss; training needs an OutputLayer there")
        return layer

    # -- forward -----------------------------------------------------------------------------------------------------

    def forward(
        self, batch: Batch, step: Step, *, train: bool = False
    ) -> tuple[list[Value | None], list[Backward | VertexBackward | None]]:
        """Return every node's value and backward pass; with ``train`` the output layers are left out."""
        values: list[Value | None] = []
        backs: list[Backward | VertexBackward | None] = []
        inputs: dict[str, Value] = {}
        for index, node in enumerate(self.nodes):
            back: Backward | VertexBackward | None = None
            value: Value | None = None
            if node.stage is None and node.vertex is None:
                value = inputs[node.name] = self._input_value(index, len(inputs), batch, step)
            elif not (train and index in self.outputs):
                value, back = self._node(index, values, step, inputs)
            values.append(value)
            backs.append(back)
        return values, backs

    def _input_value(self, index: int, number: int, batch: Batch, step: Step) -> Value:
        x, kind = batch.features[number], self.nodes[index].kind
        step.workspace.batch = len(x)
        here = step.at(index, examples=len(x), rows=len(x), mask=mask_to_internal(batch.features_masks[number], x))
        return Value(to_internal(x, kind, here), here, kind)

    def _node(
        self, index: int, values: Sequence[Value | None], step: Step, inputs: Mapping[str, Value]
    ) -> tuple[Value, Backward | VertexBackward]:
        node = self.nodes[index]
        below = [value for value in (values[source] for source in node.inputs) if value is not None]
        back: Backward | VertexBackward
        if node.stage is not None:
            params = self.params[node.layer]
            y, behind, back = node.stage.forward(params, below[0].y, below[0].step.at(index))
            return Value(y, behind, node.kind), back
        assert node.vertex is not None
        inputs_of_vertex = [Value(value.y, value.step, flat_as_vectors(value.kind)) for value in below]
        y, behind, back = node.vertex.forward(inputs_of_vertex, step.at(index), inputs)
        return Value(y, behind, node.kind), back

    def activations(self, batch: Batch, step: Step) -> dict[str, Array]:
        """Return copies of every node's activation by name, in the layout outside."""
        values, _ = self.forward(batch, step)
        return {
            node.name: to_external(value.y, node.kind, value.step.rows)
            for node, value in zip(self.nodes, values, strict=True)
            if value is not None
        }

    def output(self, batch: Batch, step: Step) -> list[tuple[Array, Array | None]]:
        """Return the network's outputs in the layout outside, each with its mask ``(examples, time steps)`` or None."""
        values, _ = self.forward(batch, step)
        found = []
        for place in self.outputs:
            value = values[place]
            assert value is not None
            mask = None if value.step.mask is None else value.step.mask.T
            found.append((to_external(value.y, self.nodes[place].kind, value.step.rows), mask))
        return found

    # -- backward ----------------------------------------------------------------------------------------------------

    def backpropagate(self, batch: Batch, step: Step, *, scale: float) -> Scalar:
        """Write the whole gradient of ``scale`` times all losses; return their sum."""
        for place in self.outputs:
            self.output_layer(place)
        values, backs = self.forward(batch, step, train=True)
        pending: list[Array | None] = [None] * len(self.nodes)
        losses: dict[int, Scalar] = {}
        for index in reversed(range(len(self.nodes))):
            node = self.nodes[index]
            if index in self.outputs:
                losses[index] = self._backpropagate_output(index, batch, values, pending, step, scale=scale)
            elif node.stage is not None:
                self._layer_back(index, backs[index], pending, step)
            elif node.vertex is not None and pending[index] is not None and self._needs[index]:
                back: VertexBackward = backs[index]  # type: ignore[assignment]  # of a vertex
                for source, dx in zip(node.inputs, back(_pop(pending, index)), strict=True):
                    self._accumulate(pending, source, dx, step)
        return sum(losses[place] for place in self.outputs)

    def _backpropagate_output(
        self,
        index: int,
        batch: Batch,
        values: Sequence[Value | None],
        pending: list[Array | None],
        step: Step,
        *,
        scale: float,
    ) -> Scalar:
        """Run an output layer forward and backward; return its loss."""
        node, number = self.nodes[index], self.outputs.index(index)
        layer, stage, source = self.output_layer(index), node.stage, node.inputs[0]
        value = values[source]
        assert stage is not None and value is not None
        labels, mask = batch.labels[number], mask_to_internal(batch.labels_masks[number], batch.labels[number])
        y, here, back = stage.preprocess(value.y, value.step.at(index, labels_mask=mask))
        is_sequence = isinstance(stage.layer_input_type, InputTypeRecurrent)
        shape = (here.examples, 0, len(y)) if is_sequence else (here.examples, 0)
        layer.check_label_shape(labels, shape, f"network output {node.title()}")
        inside = to_internal(labels, stage.output_type, here, "labels") if labels.ndim == 3 else labels
        if layer.frozen:
            here = here.at(index, train=False)
        needs = self._needs[source]
        grads = self.grads[node.layer]
        loss, dy = layer.loss_gradient(self.params[node.layer], y, inside, grads, here, scale=scale, need_dx=needs)
        if layer.frozen:
            _clear(grads)
        if needs and dy is not None:
            self._accumulate(pending, source, back(dy) if back is not None else dy, step)
        return loss

    def _layer_back(self, index: int, back: object, pending: list[Array | None], step: Step) -> None:
        node = self.nodes[index]
        assert node.stage is not None
        grads, layer = self.grads[node.layer], node.stage.layer
        if pending[index] is None or not self._needs[index]:
            _clear(grads)
            return
        source = node.inputs[0]
        needs = self._needs[source]
        backward: Backward = back  # type: ignore[assignment]  # of a layer
        dx = backward(_pop(pending, index), grads, needs)
        if layer.frozen:
            _clear(grads)
        elif "vb" in grads:
            grads["vb"].fill(0)  # only pretraining changes the visible bias
        if needs and dx is not None:
            self._accumulate(pending, source, dx, step)

    def _accumulate(self, pending: list[Array | None], source: int, dx: Array, step: Step) -> None:
        """Add ``dx`` to the gradient of node ``source``; a node with several readers has its own memory for the sum."""
        if not self._needs[source]:
            return
        present = pending[source]
        if present is not None:
            present += dx
        elif self._readers[source] > 1:
            total = step.at(source).buffer("sum of gradients", dx.shape, dx)
            total[...] = dx
            pending[source] = total
        else:
            pending[source] = get_array_module(dx).ascontiguousarray(dx)


def _pop(pending: list[Array | None], index: int) -> Array:
    dy, pending[index] = pending[index], None
    assert dy is not None
    return dy


def _clear(grads: Params) -> None:
    for gradient in grads.values():
        gradient.fill(0)


def _masks(what: str, masks: Sequence[Array | None] | None, count: int) -> list[Array | None]:
    if masks is None:
        return [None] * count
    if len(masks) != count:
        raise ShapeError(f"{len(masks)} masks came with {count} arrays of {what}; give one or None for each")
    return list(masks)


def _many(arrays: Sequence[Array], names: Sequence[str], what: str) -> list[Array]:
    if len(arrays) != len(names):
        raise ShapeError(f"{len(arrays)} arrays of {what} for {list(names)}; give one for each, in this order")
    return list(arrays)
