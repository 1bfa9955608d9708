"""ComputationGraph: an acyclic graph of layers and vertices, with several inputs and outputs.

It works like ``MultiLayerNetwork``: one flat parameter vector, ``fit_batch`` at a position of a run, and independent of
clusters. Legacy: ``org.deeplearning4j.nn.graph.ComputationGraph``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np

from dl4jlegacy.arrays.backend import Array, Scalar, get_array_module, to_host
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.datasets.batches import Batch as DataSets
from dl4jlegacy.datasets.batches import Data, epochs_of
from dl4jlegacy.datasets.multi_dataset import ListMultiDataSetIterator, MultiDataSet
from dl4jlegacy.errors import ConfError, DataError, ShapeError, counted
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.nn.arrays import as_features, is_data_set, is_several, resolve_epochs, warn_of_one_batch
from dl4jlegacy.nn.conf.network import ComputationGraphConfiguration
from dl4jlegacy.nn.evaluation.evaluate import Compared, IEvaluation, compared, label_mask
from dl4jlegacy.nn.foreign import check_configuration
from dl4jlegacy.nn.graph.sequences import all_as_sequences, segments
from dl4jlegacy.nn.graph.stack import Batch, GraphStack
from dl4jlegacy.nn.input_type import AnyInputType
from dl4jlegacy.nn.layers.sequences import Memory, segment_count
from dl4jlegacy.nn.network.flat_network import FlatNetwork, row_slices

__all__ = ["ComputationGraph", "Several"]

Several = Array | Sequence[Array]
"""One array for each input or output; with only one input or output, an array alone."""


class ComputationGraph(FlatNetwork):
    """A graph with its parameters, updater state and work buffers; used by one thread at a time.

    Args:
        conf: inputs, layers, vertices, outputs.
        kernels: the device of the network: the CPU (default: ``kernels.load()``), or with ``load("cupy")`` a GPU.

    Attributes:
        iteration: the number of updates by ``fit`` (a worker has its own count and passes the number).
        listeners: called after every update of ``fit``.

    ``params`` and ``updater_state`` are not copies: writing into them changes the network. For differences on a GPU see
    ``FlatNetwork``.
    """

    conf: ComputationGraphConfiguration
    pretrain_layers: tuple[int, ...] = ()

    def __init__(
        self, conf: ComputationGraphConfiguration, *, kernels: Kernels | None = None, init: bool = True
    ) -> None:
        check_configuration("ComputationGraph", conf, ComputationGraphConfiguration)
        self.conf = conf
        nodes = conf.nodes()
        layers = [node.stage.layer for node in nodes if node.stage is not None]
        super().__init__(conf.conf, layers, [node.title() for node in nodes], kernels)
        self.nodes = nodes
        views = self.layout.views(self._params), self.layout.views(self._gradient)
        self._stack = GraphStack(self.nodes, conf.network_outputs, *views, self.kernels.xp)
        if init:
            self._init_params()
        else:
            self.reset_updater()

    def init(self) -> Self:
        """Draw the initial parameters from ``conf``'s seed and reset the updater, as the constructor does."""
        self._gradient.fill(0)
        self._init_params()
        return self

    def clone(self) -> ComputationGraph:
        """Return an independent copy with the same parameters, updater state and iteration, without listeners."""
        copy = ComputationGraph(self.conf, kernels=self.kernels, init=False)
        copy.set_params(self._params)
        copy.set_updater_state(self._state)
        copy.iteration = self.iteration
        return copy

    # -- the flat vectors --------------------------------------------------------------------------------------------

    @property
    def n_in(self) -> int:
        """Number of values of one example of the first input; for sequences, of one time step."""
        return self.nodes[self._stack.inputs[0]].kind.columns

    @property
    def input_types(self) -> tuple[AnyInputType, ...]:
        """The types of the network inputs."""
        return tuple(self.nodes[place].kind for place in self._stack.inputs)

    @property
    def n_out(self) -> int:
        """Number of values of the first output for one example; for sequences, for one time step."""
        return self.nodes[self._stack.outputs[0]].kind.n_in

    @property
    def param_table(self) -> dict[str, Array]:
        """Parameters by DL4J's names (``<vertex>_W``, ...), as views."""
        names = [node.name for node in self.nodes if node.stage is not None]
        pairs = zip(names, self._stack.params, strict=True)
        return {f"{vertex}_{name}": view for vertex, views in pairs for name, view in views.items()}

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
    ) -> Scalar:
        """Do one update from a batch, in place; return the score before it.

        With truncated backpropagation there is one update per segment, and the returned score is the sum over segments.

        Args:
            x: features for every input as in ``input_type``; may be read-only.
            labels: for every output, ``(examples, n_out)`` or ``(examples, n_out, time steps)``.
            iteration: the number of updates before this one; schedules and bias corrections depend on it.
            stream: the random numbers of this position in the run (drop-out).
            features_mask: ``(examples, time steps)``, or one such mask or None for every input.
            labels_mask: likewise for every output.

        Raises:
            ShapeError: sizes that do not fit the network.
            NotFiniteError: the score is NaN or infinite (nothing was updated), or the update made a parameter so; on a
                GPU ``check_finite`` raises it.
        """
        groups: list[Any] = [_list(x), _list(labels), _masks(features_mask), _masks(labels_mask)]
        sizes = [0 if group is None else len(group) for group in groups]
        count = max((segment_count(self.conf, array) for array in (*groups[0], *groups[1])), default=1)
        iterations = range(iteration * count, (iteration + 1) * count)

        def step(arrays: Any, own: Stream) -> Scalar:
            given = iter(arrays)
            parts: list[Any] = [None if group is None else [next(given) for _ in group] for group in groups]
            return self._fit_batch(self._stack.prepare(self._dtype, *parts), own, iterations)

        flat = tuple(array for group in groups if group is not None for array in group)
        return self._training_step(f"fit {sizes}", flat, stream, step, iterations=iterations)

    def _fit_batch(self, batch: Batch, stream: Stream, iterations: range) -> Scalar:
        parts = segments(self.conf, batch)
        memory: Memory | None = {} if self.conf.backprop_type == "truncated_bptt" else None
        total: Scalar = 0.0
        for index, (part, iteration) in enumerate(zip(parts, iterations, strict=True)):
            own = stream if index == 0 else stream.at(index, purpose="segment")
            score = self._backpropagate(part, own, memory)
            self._apply(iteration, segments=len(iterations))
            total = total + score if index else score
        return total

    def gradient_and_score(
        self, x: Several, labels: Several, stream: Stream, features_mask: Any = None, labels_mask: Any = None
    ) -> tuple[Array, Scalar]:
        """Return the loss gradient of a batch, without regularization, and the score, with regularization.

        The gradient is the network's flat vector itself: the gradient of the mean over the examples, or of their sum
        without ``mini_batch``; the losses of several outputs are added. Raises like ``fit_batch``.
        """
        batch = self._stack.prepare(self._dtype, _list(x), _list(labels), _masks(features_mask), _masks(labels_mask))
        return self._gradient, self._backpropagate(batch, stream, None)

    def _backpropagate(self, batch: Batch, stream: Stream, memory: Memory | None) -> Scalar:
        """Write the loss gradient of a batch; return the score."""
        back = 0 if memory is None else self.conf.tbptt_back_length
        step = self._step(stream, train=True, memory=memory).at(0, back_length=back)
        with np.errstate(all="ignore"):  # _check_score reports what a warning would, with the layer
            loss = self._stack.backpropagate(batch, step, scale=self._scale(batch.examples))
            score = self._add_penalty(loss / batch.examples)
        return self._check_score(score, self._activations(batch))

    def pretrain_batch(self, layer: int, x: Array, *, iteration: int, stream: Stream) -> Scalar:
        """Graphs do not pretrain: raises ``ConfError``."""
        raise ConfError(f"layer {layer} cannot pretrain: a ComputationGraph trains by backpropagation only")

    # -- training ----------------------------------------------------------------------------------------------------

    def fit(self, data: Any, labels: Any = None, epochs: int | None = None, *, batch_size: int = 32) -> None:
        """Train for ``epochs`` epochs (default 1).

        ``fit(iterator, 5)``, ``fit(data_set, epochs=5)`` or ``fit(features, labels, epochs=5)``.

        Args:
            data: batches from an iterator, a list or a generator; a ``MultiDataSet``, which is one batch (a ``DataSet``
                if there is one input and one output); or features: an array, or a list with one array for each input.
            labels: of features, for every output as in ``MultiLayerNetwork.fit``.
            epochs: passes over the data; without labels it is the second argument.
            batch_size: examples in a batch of features and labels, which are shuffled anew in every epoch.

        Raises:
            DataError: features or labels are not numbers, do not belong together, or are missing; an item is not a
                batch; or the data ends before the last epoch.
            ShapeError: sizes that do not fit the graph.
        """
        labels, epochs = resolve_epochs(labels, epochs)
        warn_of_one_batch(data, epochs, batch_size)
        if not is_data_set(data):
            data = ListMultiDataSetIterator(self._whole(data, labels), batch_size, seed=self.conf.conf.seed)
        for batch in self._looked_at(self.batches(data, epochs), data):
            score = self.fit_batch(
                batch.features,
                batch.labels,
                iteration=self.iteration,
                stream=self._stream.at(self.iteration, purpose="finetune"),
                features_mask=batch.features_masks,
                labels_mask=batch.labels_masks,
            )
            self._notify(self.iteration, score, batch.num_examples)
            self.iteration += 1
        self._check_device()

    # -- using it ----------------------------------------------------------------------------------------------------

    def outputs(self, *x: Array, features_masks: Sequence[Array | None] | None = None) -> list[Array]:
        """Return every output, in the order of ``network_outputs``, for the features of every input.

        Raises:
            NotFiniteError: an output is NaN or infinite; names row and vertex.
        """
        x = tuple(self._features(x))
        with np.errstate(all="ignore"):
            outputs = [y for y, _ in self._outputs(x, features_masks)]
        self._check_output(outputs, lambda rows: self._named_activations([each[rows] for each in x]))
        return outputs

    def _named_activations(self, x: Sequence[Array]) -> Iterator[tuple[str, Array]]:
        return ((f"the output of {name!r}", y) for name, y in self.feed_forward(*x).items())

    def _outputs(
        self, x: Sequence[Array], features_masks: Sequence[Array | None] | None
    ) -> list[tuple[Array, Array | None]]:
        """Return every output with its mask."""
        batch = self._stack.prepare(self._dtype, x, None, features_masks)
        parts = [self._stack.output(_rows(batch, rows), self._step()) for rows in row_slices(batch.examples)]
        if len(parts) == 1:
            return parts[0]
        whole: list[tuple[Array, Array | None]] = []
        for column in zip(*parts, strict=True):
            masks = [mask for _, mask in column if mask is not None]
            xp = get_array_module(column[0][0])
            whole.append((xp.concatenate([y for y, _ in column]), xp.concatenate(masks) if masks else None))
        return whole

    def rnn_time_step(self, *x: Array) -> list[Array]:
        """Return every output for the next time steps of the same sequences; calls continue where the last one ended.

        Inputs that are sequences have shape ``(examples, n)`` for one time step, and then the outputs have it too, or
        ``(examples, n, time steps)``. Raises ``ShapeError`` if the number of sequences changes.
        """
        steps, is_one = all_as_sequences(x, self.input_types)
        batch = self._stack.prepare(self._dtype, steps, None)
        with np.errstate(all="ignore"):  # _check_output reports what a warning would, with the row
            found = self._stack.output(batch, self._step(memory=self._memory))
        self._check_output([y for y, _ in found])
        return [y[:, :, -1] if is_one and y.ndim == 3 else y for y, _ in found]

    def output(self, x: Several, features_mask: Any = None) -> Array:
        """Return the first output, for the interface of ``MultiLayerNetwork``; ``outputs`` returns all."""
        return self.outputs(*self._several(x), features_masks=_masks(features_mask))[0]

    def masked_output(self, x: Several, features_mask: Any = None) -> tuple[Array, Array | None]:
        """Return the result of ``output``, and its mask ``(examples, time steps)``; None: all time steps count."""
        features = self._features(self._several(x))
        with np.errstate(all="ignore"):
            y, mask = self._outputs(features, _masks(features_mask))[0]
        self._check_output([y], lambda rows: self._named_activations([each[rows] for each in features]))
        return y, mask

    def feed_forward(self, *x: Array, features_masks: Sequence[Array | None] | None = None) -> dict[str, Array]:
        """Return the activation of every network input, layer and vertex by name, in the layout outside."""
        return self._stack.activations(self._stack.prepare(self._dtype, x, None, features_masks), self._step())

    def batches(self, data: Data, epochs: int = 1) -> Iterator[MultiDataSet]:
        """Yield the batches of ``epochs`` epochs as ``MultiDataSet``s."""
        return (MultiDataSet.of(batch) for batch in epochs_of(data, epochs))

    def compared(self, batch: DataSets) -> list[Compared]:
        """Return the arrays that evaluations compare, for every output; raises ``ShapeError`` if labels are missing."""
        names, batch = self.conf.network_outputs, MultiDataSet.of(batch)
        if len(batch.labels) != len(names):
            raise ShapeError(
                f"a batch has {counted(len(batch.labels), 'array')} of labels, the graph has the outputs "
                f"{', '.join(names)}; give labels for each"
            )
        found = self._outputs(batch.features, batch.features_masks)
        self._check_output(
            [y for y, _ in found], lambda rows: self._named_activations([x[rows] for x in batch.features])
        )
        pairs = zip(self._stack.outputs, found, batch.labels, batch.labels_masks, strict=True)
        return [compared(self._stack.layer(place), labels, y, mask, own) for place, (y, own), labels, mask in pairs]

    def scored_output(self, data: Any) -> tuple[Array, Compared]:
        """Return the results of ``score_examples`` and (for the first output) ``compared``, from one forward pass."""
        multi = MultiDataSet.of(data)
        batch = self._stack.prepare(self._dtype, multi.features, multi.labels, multi.features_masks, multi.labels_masks)
        total: Array = self.kernels.xp.zeros(batch.examples, self._dtype)
        found = self._outputs(multi.features, multi.features_masks)
        pairs = zip(self._stack.outputs, found, batch.labels, batch.labels_masks, strict=True)
        for place, (y, own), labels, mask in pairs:
            layer = self._stack.output_layer(place)
            layer.check_label_shape(labels, y.shape, f"network output {self.nodes[place].title()}")
            total += layer.scores(labels, y, label_mask(labels, mask, own))
        (y, own), first = found[0], self._stack.layer(self._stack.outputs[0])
        return to_host(total), compared(first, batch.labels[0], y, multi.labels_masks[0], own)

    def do_evaluation(self, data: Data, evaluations: Mapping[str, Sequence[IEvaluation]]) -> None:
        """Add the outputs over one epoch of ``data`` to the evaluations, given by the name of their output."""
        for name in evaluations:
            if name not in self.conf.network_outputs:
                raise ConfError(f"{name!r} is no network output; those are {list(self.conf.network_outputs)}")
        for batch in self.batches(data):
            for name, of_output in zip(self.conf.network_outputs, self.compared(batch), strict=True):
                for evaluation in evaluations.get(name, ()):
                    evaluation.eval(*of_output)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _several(self, given: Any) -> list[Any]:
        """Return the features as a list with one entry per input; an array or nested lists belong to a single input."""
        are_several = is_several(given) or (isinstance(given, list | tuple) and len(self.input_types) > 1)
        return list(given) if are_several else [given]

    def _features(self, x: Sequence[Any]) -> list[Array]:
        kinds = [*self.input_types, *self.input_types[-1:] * len(x)]  # a wrong number of inputs is reported later
        return [as_features(each, kind) for each, kind in zip(x, kinds, strict=False)]

    def _whole(self, features: Any, labels: Any) -> MultiDataSet:
        """Return features and labels, as given to ``fit`` or ``score``, as one data set."""
        if labels is None:
            raise DataError("labels are missing: give features and labels, a MultiDataSet, or an iterator over batches")
        is_one = len(self.conf.network_outputs) == 1 and not is_several(labels)
        return MultiDataSet(
            self._features(self._several(features)), self._stack.as_labels([labels] if is_one else labels)
        )

    def _activations(self, batch: Batch) -> Iterator[Array]:
        values, _ = self._stack.forward(batch, self._step())
        for node, value in zip(self.nodes, values, strict=True):
            if node.stage is not None and value is not None:
                yield value.y


def _list(arrays: Several) -> Sequence[Array]:
    return arrays if isinstance(arrays, list | tuple) else [arrays]  # type: ignore[list-item]


def _masks(masks: Any) -> Sequence[Array | None] | None:
    return masks if masks is None or isinstance(masks, list | tuple) else [masks]


def _rows(batch: Batch, rows: slice) -> Batch:
    masks = tuple(None if mask is None else mask[rows] for mask in batch.features_masks)
    return Batch(tuple(x[rows] for x in batch.features), (), masks, ())
