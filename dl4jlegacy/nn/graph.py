"""ComputationGraph: layers and vertices in any acyclic order, with several inputs and outputs (L2).

Works like ``MultiLayerNetwork``: one flat parameter vector, ``fit_batch`` at a position of a run, nothing known of
clusters. Legacy: ``org.deeplearning4j.nn.graph.ComputationGraph``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from dl4jlegacy.backend import Array
from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.datasets.multi_dataset import MultiDataSet
from dl4jlegacy.errors import ConfError, ShapeError
from dl4jlegacy.kernels import Kernels, load
from dl4jlegacy.nn.batches import chunks
from dl4jlegacy.nn.evaluation import Evaluation
from dl4jlegacy.nn.evaluation_rows import IEvaluation
from dl4jlegacy.nn.graph_conf import ComputationGraphConfiguration
from dl4jlegacy.nn.graph_stack import Batch, GraphStack
from dl4jlegacy.nn.input_type import AnyInputType
from dl4jlegacy.nn.layers import Layer
from dl4jlegacy.nn.listeners import TrainingListener
from dl4jlegacy.nn.multilayer_updater import MultiLayerUpdater
from dl4jlegacy.nn.not_finite import not_finite
from dl4jlegacy.nn.parameters import ParamLayout
from dl4jlegacy.nn.step import Step, Workspace, aligned
from dl4jlegacy.seeding import Stream

__all__ = ["ComputationGraph", "Several"]

Several = Array | Sequence[Array]
"""One array for each input or output; a single array where there is one."""

Data = DataSet | MultiDataSet


class ComputationGraph:
    """A graph with its parameters, updater state and work buffers; used by one thread at a time.

    Args:
        conf: inputs, layers, vertices, outputs.
        kernels: the CPU kernels; default ``kernels.load()``.

    Attributes:
        iteration: updates done by ``fit`` (a worker counts for itself and passes the number).
        listeners: told about every update of ``fit``.

    ``params`` and ``updater_state`` are live: writing into them changes the network.
    """

    pretrain_layers: tuple[int, ...] = ()

    def __init__(self, conf: ComputationGraphConfiguration, *, kernels: Kernels | None = None) -> None:
        self.conf = conf
        self.kernels = kernels or load()
        self.nodes = conf.nodes()
        self.layers: tuple[Layer, ...] = tuple(node.stage.layer for node in self.nodes if node.stage is not None)
        self.layout = ParamLayout.of(self.layers)
        self.updater = MultiLayerUpdater(self.layers, self.layout)
        self.listeners: list[TrainingListener] = []
        self.iteration = 0
        self._stream = Stream.of(conf.conf.seed)
        self._dtype = np.dtype(conf.conf.dtype)
        self._workspace = Workspace()
        self._params = aligned(self.layout.size, self._dtype)
        self._gradient = aligned(self.layout.size, self._dtype)
        self._state = aligned(self.updater.state_size, self._dtype)
        views = self.layout.views(self._params), self.layout.views(self._gradient)
        self._stack = GraphStack(self.nodes, conf.network_outputs, *views)
        self.init()

    def init(self) -> Self:
        """Draw the initial parameters from ``conf``'s seed and reset the updater; the constructor has done so once."""
        self._gradient.fill(0)
        self.updater.initial_state(self._state)
        for index, (layer, views) in enumerate(zip(self.layers, self._stack.params, strict=True)):
            layer.init_params(views, self._stream.at(index, purpose="weights"))
        self.iteration = 0
        return self

    def clone(self) -> ComputationGraph:
        """Return an independent copy with the same parameters, updater state and iteration, without listeners."""
        copy = ComputationGraph(self.conf, kernels=self.kernels)
        copy.set_params(self._params)
        copy.set_updater_state(self._state)
        copy.iteration = self.iteration
        return copy

    # -- the flat vectors --------------------------------------------------------------------------------------------

    @property
    def params(self) -> Array:
        """The flat parameter vector, live: the layers in topological order."""
        return self._params

    @property
    def updater_state(self) -> Array:
        """The flat updater state in DL4J's block layout, live."""
        return self._state

    @property
    def num_params(self) -> int:
        """Length of ``params``."""
        return self.layout.size

    @property
    def n_in(self) -> int:
        """Values of one example of the first input; for sequences, of one time step."""
        return self.nodes[self._stack.inputs[0]].kind.columns

    @property
    def input_types(self) -> tuple[AnyInputType, ...]:
        """What every network input holds."""
        return tuple(self.nodes[place].kind for place in self._stack.inputs)

    @property
    def n_out(self) -> int:
        """Values of the first output for one example; for sequences, for one time step."""
        return self.nodes[self._stack.outputs[0]].kind.n_in

    @property
    def layer_slices(self) -> tuple[slice, ...]:
        """Where each layer's parameters lie in ``params``."""
        return self.layout.layer_slices

    @property
    def param_table(self) -> dict[str, Array]:
        """Parameters by DL4J's names (``<vertex>_W``, ...), live."""
        names = [node.name for node in self.nodes if node.stage is not None]
        pairs = zip(names, self._stack.params, strict=True)
        return {f"{vertex}_{name}": view for vertex, views in pairs for name, view in views.items()}

    def set_params(self, params: Array) -> None:
        """Copy ``params`` into the network; raises ``ShapeError`` if the length differs."""
        self.layout.check("the given params", params)
        self._params[...] = params

    def set_updater_state(self, state: Array) -> None:
        """Copy ``state`` into the network; raises ``ShapeError`` if the length differs."""
        if state.shape != self._state.shape:
            raise ShapeError(
                f"the given updater state has shape {state.shape}, the network's has {self._state.shape}; "
                "do both sides use the same updaters?"
            )
        self._state[...] = state

    # -- one step ----------------------------------------------------------------------------------------------------

    def fit_batch(
        self,
        x: Several,
        labels: Several,
        *,
        iteration: int,
        stream: Stream,
        features_mask: Any = None,
        labels_mask: Any = None,
    ) -> float:
        """Do one update from a batch, in place; return the score before it.

        Args:
            x: features for every input as in ``input_type``; may be read-only.
            labels: for every output, ``(examples, n_out)`` or ``(examples, n_out, time steps)``.
            iteration: updates done before this one; schedules and bias corrections depend on it.
            stream: the random numbers of this position in the run (drop-out).
            features_mask: ``(examples, time steps)``, or one such or None for every input.
            labels_mask: likewise for every output.

        Raises:
            ShapeError: sizes that do not fit the network.
            NotFiniteError: the score is NaN or infinite (nothing was updated), or the update made a parameter so.
        """
        _, score = self.gradient_and_score(x, labels, stream, features_mask, labels_mask)
        self._apply(iteration)
        return score

    def gradient_and_score(
        self, x: Several, labels: Several, stream: Stream, features_mask: Any = None, labels_mask: Any = None
    ) -> tuple[Array, float]:
        """Return the loss gradient of a batch (live flat vector, without regularization) and the score (with it).

        The gradient is that of the mean over the examples, or of their sum without ``mini_batch``; several outputs'
        losses are added. Raises like ``fit_batch``.
        """
        batch = self._stack.checked(self._dtype, _list(x), _list(labels), _masks(features_mask), _masks(labels_mask))
        step = self._step(stream, train=True)
        with np.errstate(all="ignore"):  # what a warning could say, _finite says with the layer
            loss = self._stack.backpropagate(batch, step, scale=self._scale(batch.examples))
            score = loss / batch.examples + self.updater.penalty(self._params)
        return self._gradient, self._finite(score, batch)

    def pretrain_batch(self, layer: int, x: Array, *, iteration: int, stream: Stream) -> float:
        """Graphs do not pretrain: raises ``ConfError``."""
        raise ConfError(f"layer {layer} cannot pretrain: a ComputationGraph trains by backpropagation only")

    def update_from(self, gradient: Array, *, iteration: int) -> None:
        """Apply somebody else's gradient (regularization is added here) to the parameters, in place."""
        self.layout.check("the given gradient", gradient)
        self._gradient[...] = gradient
        self._apply(iteration)

    def check_finite(self) -> None:
        """Raise ``NotFiniteError`` naming the first layer that has a NaN or infinite parameter."""
        if not self.kernels.all_finite(self._params):
            self._finite(math.nan, None)

    # -- training ----------------------------------------------------------------------------------------------------

    def fit(self, data: Iterable[Data] | Data, epochs: int = 1) -> None:
        """Train on a data set (one batch) or on the batches of an iterator, for so many epochs."""
        for batch in _batches(data, epochs):
            score = self.fit_batch(
                batch.features,
                batch.labels,
                iteration=self.iteration,
                stream=self._stream.at(self.iteration, purpose="finetune"),
                features_mask=batch.features_masks,
                labels_mask=batch.labels_masks,
            )
            for listener in self.listeners:
                listener.iteration_done(self, self.iteration, score, examples=batch.num_examples)
            self.iteration += 1

    # -- using it ----------------------------------------------------------------------------------------------------

    def outputs(self, *x: Array, features_masks: Sequence[Array | None] | None = None) -> list[Array]:
        """Return every output, in the order of ``network_outputs``, for the features of every input."""
        batch = self._stack.checked(self._dtype, x, None, features_masks)
        parts = [self._stack.output(_rows(batch, rows), self._step()) for rows in chunks(batch.examples)]
        if len(parts) == 1:
            return parts[0]
        return [np.concatenate(columns) for columns in zip(*parts, strict=True)]

    def output(self, x: Several, features_mask: Any = None) -> Array:
        """Return the first output, as a ``MultiLayerNetwork`` does its only one; ``outputs`` returns all."""
        return self.outputs(*_list(x), features_masks=_masks(features_mask))[0]

    def predict(self, x: Several) -> Array:
        """Return the most probable class of every example in the first output, ``(examples,)``."""
        classes: Array = self.output(x).argmax(axis=1)
        return classes

    def feed_forward(self, *x: Array, features_masks: Sequence[Array | None] | None = None) -> dict[str, Array]:
        """Return the activation of every network input, layer and vertex by name, as outside."""
        return self._stack.activations(self._stack.checked(self._dtype, x, None, features_masks), self._step())

    def score(self, data: Data) -> float:
        """Return the mean loss of ``data``, all outputs added, plus the regularization term, without drop-out."""
        return float(self.score_examples(data).mean()) + self.updater.penalty(self._params)

    def score_examples(self, data: Data) -> Array:
        """Return the loss of every example, all outputs added, without regularization, ``(examples,)``."""
        multi = MultiDataSet.of(data)
        batch = self._stack.checked(self._dtype, multi.features, multi.labels, multi.features_masks, multi.labels_masks)
        total = np.zeros(batch.examples, self._dtype)
        found = self.outputs(*multi.features, features_masks=multi.features_masks)
        pairs = zip(self._stack.outputs, found, batch.labels, batch.labels_masks, strict=True)
        for place, y, labels, mask in pairs:
            layer = self._stack.output_layer(place)
            wanted = layer.label_shape(y.shape)
            if labels.shape != wanted:
                title = self.nodes[place].title()
                raise ShapeError(f"labels have shape {labels.shape}, network output {title} wants {wanted}")
            total += layer.scores(labels, y, mask)
        return total

    def evaluate(self, data: Iterable[Data] | Data, label_names: Sequence[str] | None = None) -> Evaluation:
        """Return the classification metrics of the first output on ``data`` (one epoch of an iterator)."""
        evaluation = Evaluation(self.n_out, label_names)
        self.do_evaluation(data, {self.conf.network_outputs[0]: (evaluation,)})
        return evaluation

    def do_evaluation(self, data: Iterable[Data] | Data, evaluations: Mapping[str, Sequence[IEvaluation]]) -> None:
        """Let evaluations of any kind look at the outputs that they are named for, over one epoch of ``data``."""
        for name in evaluations:
            if name not in self.conf.network_outputs:
                raise ConfError(f"{name!r} is no network output; those are {list(self.conf.network_outputs)}")
        for batch in _batches(data, 1):
            found = self.outputs(*batch.features, features_masks=batch.features_masks)
            triples = zip(self.conf.network_outputs, found, batch.labels, batch.labels_masks, strict=True)
            for name, y, labels, mask in triples:
                for evaluation in evaluations.get(name, ()):
                    evaluation.eval(labels, y, mask)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _step(self, stream: Stream | None = None, *, train: bool = False) -> Step:
        return Step(self.kernels, self._workspace, stream or Stream(0), train)

    def _scale(self, examples: int) -> float:
        sign = 1.0 if self.conf.conf.minimize else -1.0
        return sign / examples if self.conf.conf.mini_batch else sign

    def _apply(self, iteration: int) -> None:
        with np.errstate(all="ignore"):
            self.updater.update(self._params, self._gradient, self._state, iteration=iteration, kernels=self.kernels)
        self.check_finite()

    def _finite(self, score: float, batch: Batch | None) -> float:
        """Return ``score``; if it is not finite, find the layer where that began and say so."""
        if math.isfinite(score):
            return score
        parts = [self._params[part] for part in self.layer_slices]
        with np.errstate(all="ignore"):
            found: list[Array] = []
            if batch is not None:
                values, _ = self._stack.forward(batch, self._step())
                pairs = zip(self.nodes, values, strict=True)
                found = [value.y for node, value in pairs if node.stage is not None and value is not None]
            raise not_finite(self.layers, parts, found, score, self.kernels)


def _list(arrays: Several) -> Sequence[Array]:
    return arrays if isinstance(arrays, list | tuple) else [arrays]  # type: ignore[list-item]


def _masks(masks: Any) -> Sequence[Array | None] | None:
    return masks if masks is None or isinstance(masks, list | tuple) else [masks]


def _rows(batch: Batch, rows: slice) -> Batch:
    masks = tuple(None if mask is None else mask[rows] for mask in batch.features_masks)
    return Batch(tuple(x[rows] for x in batch.features), (), masks, ())


def _batches(data: Iterable[Data] | Data, epochs: int) -> Iterable[MultiDataSet]:
    """Yield the batches of so many epochs; a data set is one batch."""
    for _ in range(epochs):
        for batch in [data] if isinstance(data, Data) else data:
            yield MultiDataSet.of(batch)
