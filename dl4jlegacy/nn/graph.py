"""ComputationGraph: layers and vertices in any acyclic order, with several inputs and outputs (L2).

Works like ``MultiLayerNetwork``: one flat parameter vector, ``fit_batch`` at a position of a run, nothing known of
clusters. Legacy: ``org.deeplearning4j.nn.graph.ComputationGraph``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from dl4jlegacy.backend import Array
from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.datasets.multi_dataset import MultiDataSet
from dl4jlegacy.errors import ConfError, ShapeError
from dl4jlegacy.kernels import Kernels, load
from dl4jlegacy.nn.batches import chunks
from dl4jlegacy.nn.evaluating import Data, batches_of, counted
from dl4jlegacy.nn.evaluation import Evaluation
from dl4jlegacy.nn.evaluation_rows import IEvaluation
from dl4jlegacy.nn.graph_conf import ComputationGraphConfiguration
from dl4jlegacy.nn.graph_sequences import pieces, single_steps
from dl4jlegacy.nn.graph_stack import Batch, GraphStack
from dl4jlegacy.nn.input_type import AnyInputType
from dl4jlegacy.nn.layers import Layer
from dl4jlegacy.nn.listeners import TrainingListener
from dl4jlegacy.nn.multilayer_updater import MultiLayerUpdater
from dl4jlegacy.nn.not_finite import not_finite
from dl4jlegacy.nn.parameters import ParamLayout
from dl4jlegacy.nn.sequences import Memory
from dl4jlegacy.nn.step import Step, Workspace, aligned
from dl4jlegacy.seeding import Stream

__all__ = ["ComputationGraph", "Several"]

Several = Array | Sequence[Array]
"""One array for each input or output; a single array where there is one."""


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
        self._memory: Memory = {}
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

        With truncated backpropagation it is one update a segment, and the sum of their scores.

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
        batch = self._stack.checked(self._dtype, _list(x), _list(labels), _masks(features_mask), _masks(labels_mask))
        parts = pieces(self.conf, batch)
        memory: Memory | None = {} if self.conf.backprop_type == "truncated_bptt" else None
        total = 0.0
        for index, part in enumerate(parts):
            total += self._backpropagate(part, stream if index == 0 else stream.at(index, purpose="segment"), memory)
            self._apply(iteration * len(parts) + index)
        return total

    def gradient_and_score(
        self, x: Several, labels: Several, stream: Stream, features_mask: Any = None, labels_mask: Any = None
    ) -> tuple[Array, float]:
        """Return the loss gradient of a batch (live flat vector, without regularization) and the score (with it).

        The gradient is that of the mean over the examples, or of their sum without ``mini_batch``; several outputs'
        losses are added. Raises like ``fit_batch``.
        """
        batch = self._stack.checked(self._dtype, _list(x), _list(labels), _masks(features_mask), _masks(labels_mask))
        return self._gradient, self._backpropagate(batch, stream, None)

    def _backpropagate(self, batch: Batch, stream: Stream, memory: Memory | None) -> float:
        """Write the loss gradient of a batch; return the score."""
        back = 0 if memory is None else self.conf.tbptt_back_length
        step = self._step(stream, train=True, memory=memory).at(0, back_length=back)
        with np.errstate(all="ignore"):  # what a warning could say, _finite says with the layer
            loss = self._stack.backpropagate(batch, step, scale=self._scale(batch.examples))
            score = loss / batch.examples + self.updater.penalty(self._params)
        return self._finite(score, batch)

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

    def fit(self, data: Data, epochs: int = 1) -> None:
        """Train on a data set (one batch) or on the batches of an iterator, for so many epochs."""
        for batch in batches_of(data, epochs):
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
        return [y for y, _ in self._outputs(x, features_masks)]

    def _outputs(
        self, x: Sequence[Array], features_masks: Sequence[Array | None] | None
    ) -> list[tuple[Array, Array | None]]:
        """Return every output with its mask."""
        batch = self._stack.checked(self._dtype, x, None, features_masks)
        parts = [self._stack.output(_rows(batch, rows), self._step()) for rows in chunks(batch.examples)]
        if len(parts) == 1:
            return parts[0]
        whole: list[tuple[Array, Array | None]] = []
        for column in zip(*parts, strict=True):
            masks = [mask for _, mask in column if mask is not None]
            whole.append((np.concatenate([y for y, _ in column]), np.concatenate(masks) if masks else None))
        return whole

    def rnn_time_step(self, *x: Array) -> list[Array]:
        """Return every output for the next time steps of the same sequences; each call goes on where the last ended.

        Inputs that are sequences are ``(examples, n)`` for one time step, and then so are the outputs, or
        ``(examples, n, time steps)``. Raises ``ShapeError`` if the number of sequences changes.
        """
        steps, is_one = single_steps(x, self.input_types)
        batch = self._stack.checked(self._dtype, steps, None)
        found = self._stack.output(batch, self._step(memory=self._memory))
        return [y[:, :, -1] if is_one and y.ndim == 3 else y for y, _ in found]

    def rnn_clear_previous_state(self) -> None:
        """Let the next ``rnn_time_step`` begin new sequences."""
        self._memory.clear()

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

    def score(self, data: DataSet | MultiDataSet) -> float:
        """Return the mean loss of ``data``, all outputs added, plus the regularization term, without drop-out."""
        return float(self.score_examples(data).mean()) + self.updater.penalty(self._params)

    def score_examples(self, data: DataSet | MultiDataSet) -> Array:
        """Return the loss of every example, all outputs added, without regularization, ``(examples,)``."""
        multi = MultiDataSet.of(data)
        batch = self._stack.checked(self._dtype, multi.features, multi.labels, multi.features_masks, multi.labels_masks)
        total = np.zeros(batch.examples, self._dtype)
        found = self._outputs(multi.features, multi.features_masks)
        pairs = zip(self._stack.outputs, found, batch.labels, batch.labels_masks, strict=True)
        for place, (y, own), labels, mask in pairs:
            layer = self._stack.output_layer(place)
            wanted = layer.label_shape(y.shape)
            if labels.shape != wanted:
                title = self.nodes[place].title()
                raise ShapeError(f"labels have shape {labels.shape}, network output {title} wants {wanted}")
            total += layer.scores(labels, y, counted(labels, mask, own))
        return total

    def evaluate(self, data: Data, label_names: Sequence[str] | None = None) -> Evaluation:
        """Return the classification metrics of the first output on ``data`` (one epoch of an iterator)."""
        evaluation = Evaluation(self.n_out, label_names)
        self.do_evaluation(data, {self.conf.network_outputs[0]: (evaluation,)})
        return evaluation

    def do_evaluation(self, data: Data, evaluations: Mapping[str, Sequence[IEvaluation]]) -> None:
        """Let evaluations of any kind look at the outputs that they are named for, over one epoch of ``data``."""
        for name in evaluations:
            if name not in self.conf.network_outputs:
                raise ConfError(f"{name!r} is no network output; those are {list(self.conf.network_outputs)}")
        for batch in batches_of(data):
            found = self._outputs(batch.features, batch.features_masks)
            triples = zip(self.conf.network_outputs, found, batch.labels, batch.labels_masks, strict=True)
            for name, (y, own), labels, mask in triples:
                for evaluation in evaluations.get(name, ()):
                    evaluation.eval(labels, y, counted(labels, mask, own))

    # -- inside ------------------------------------------------------------------------------------------------------

    def _step(self, stream: Stream | None = None, *, train: bool = False, memory: Memory | None = None) -> Step:
        return Step(self.kernels, self._workspace, stream or Stream(0), train, memory=memory)

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
