"""MultiLayerNetwork: a stack of layers over one flat parameter vector, with fit, pretrain, output and score.

The class is independent of clusters: a worker sets ``params`` and ``updater_state``, calls ``fit_batch`` or
``pretrain_batch`` with a position in the run and that position's random stream, and reads the two vectors back. Legacy:
``org.deeplearning4j.nn.multilayer.MultiLayerNetwork``; the order of an update is that of version 1.0.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self

import numpy as np

from dl4jlegacy.arrays.backend import Array, Scalar, as_contiguous, asarray, get_array_module, is_on_device, to_host
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.datasets.batches import Data, epochs_of
from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.datasets.sparse_features import SparseFeatures
from dl4jlegacy.errors import ConfError
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.nn.arrays import (
    array_batches,
    as_data_set,
    as_features,
    as_numbers,
    is_data_set,
    resolve_epochs,
    warn_of_one_batch,
)
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration
from dl4jlegacy.nn.evaluation.evaluate import Compared, compared, label_mask
from dl4jlegacy.nn.foreign import check_configuration
from dl4jlegacy.nn.formats import mask_to_internal, to_external
from dl4jlegacy.nn.layers.layer import PretrainLayer
from dl4jlegacy.nn.layers.sequences import Memory, as_sequences, layer_states, segment_count, segments
from dl4jlegacy.nn.network.flat_network import FlatNetwork, row_slices
from dl4jlegacy.nn.network.sparse_input import SparseInput
from dl4jlegacy.nn.network.stack import Stack

__all__ = ["MultiLayerNetwork"]


class MultiLayerNetwork(FlatNetwork):
    """A network with its parameters, updater state and work buffers; used by one thread at a time.

    Args:
        conf: layers, sizes, seed, updaters.
        kernels: the device of the network: the CPU (default: ``kernels.load()``), or with ``load("cupy")`` a GPU.
        init: whether to draw the initial parameters. Otherwise they are zeros, for callers that set others.

    Attributes:
        iteration: the number of updates by ``finetune`` (a worker has its own count and passes the number).
        pretrain_iterations: the same for every layer that ``pretrain`` has trained.
        listeners: called after every update of ``fit`` and ``pretrain``.

    ``params`` and ``updater_state`` are not copies: writing into them changes the network. For differences on a GPU see
    ``FlatNetwork``.
    """

    conf: MultiLayerConfiguration
    pretrains_and_finetunes: ClassVar[bool] = False  # ``fit`` does both, whatever the configuration says

    def __init__(self, conf: MultiLayerConfiguration, *, kernels: Kernels | None = None, init: bool = True) -> None:
        check_configuration("MultiLayerNetwork", conf, MultiLayerConfiguration)
        self.conf = conf
        stages = conf.stages()
        layers = tuple(stage.layer for stage in stages)
        super().__init__(conf.conf, layers, [layer.title() for layer in layers], kernels)
        self.stages = stages
        self.pretrain_iterations: dict[int, int] = {}
        views = self.layout.views(self._params), self.layout.views(self._gradient)
        self._stack = Stack(self.stages, *views, self.kernels.xp)
        self._sparse: SparseInput | None = None
        if init:
            self._init_params()
        else:
            self.reset_updater()

    def init(self) -> Self:
        """Draw the initial parameters from ``conf``'s seed and reset the updater, as the constructor does."""
        self._gradient.fill(0)
        self._init_params()
        self.pretrain_iterations.clear()
        return self

    def clone(self) -> MultiLayerNetwork:
        """Return an independent copy with the same parameters, updater state and iteration, without listeners."""
        copy = MultiLayerNetwork(self.conf, kernels=self.kernels, init=False)
        copy.set_params(self._params)
        copy.set_updater_state(self._state)
        copy.iteration = self.iteration
        copy.pretrain_iterations = dict(self.pretrain_iterations)
        return copy

    # -- the flat vectors --------------------------------------------------------------------------------------------

    @property
    def n_in(self) -> int:
        """Number of values of one example; for sequences, of one time step."""
        return self.stages[0].input_type.columns

    @property
    def n_out(self) -> int:
        """Number of outputs for one example."""
        return self.layers[-1].n_out

    @property
    def param_table(self) -> dict[str, Array]:
        """Parameters by DL4J's names (``0_W``, ``0_b``, ``0_vb``, ``1_W``, ...), as views."""
        return {f"{i}_{name}": view for i, views in enumerate(self._stack.params) for name, view in views.items()}

    # -- one step ----------------------------------------------------------------------------------------------------

    def fit_batch(
        self,
        x: Array | SparseFeatures,
        labels: Array,
        *,
        iteration: int,
        stream: Stream,
        features_mask: Array | None = None,
        labels_mask: Array | None = None,
    ) -> Scalar:
        """Do one update from a batch, in place; return the score before it.

        With truncated backpropagation there is one update per segment, and the returned score is the sum over segments.

        Args:
            x: features ``(examples, n_in)``, or images or sequences as in ``input_type``; may be read-only. Or
                ``SparseFeatures``, if the first layer is dense and its updater Sgd or AdaGrad.
            labels: ``(examples, n_out)``, or ``(examples, n_out, time steps)``; may be read-only.
            iteration: the number of updates before this one; schedules and bias corrections depend on it.
            stream: the random numbers of this position in the run (drop-out).
            features_mask: ``(examples, time steps)``, 0 after the end of a sequence.
            labels_mask: likewise; 0 also excludes single labels.

        Raises:
            ShapeError: sizes that do not fit the network.
            NotFiniteError: the score is NaN or infinite (nothing was updated), or the update made a parameter so; on a
                GPU ``check_finite`` raises it.
        """
        if isinstance(x, SparseFeatures):
            return self.sparse_input().fit_batch(x, labels, iteration=iteration, stream=stream, labels_mask=labels_mask)
        x = as_features(x, self.stages[0].input_type)
        count = segment_count(self.conf, x)
        iterations = range(iteration * count, (iteration + 1) * count)
        batch = (x, labels, features_mask, labels_mask)
        return self._training_step(
            "fit", batch, stream, lambda a, s: self._fit_batch(a, s, iterations), iterations=iterations
        )

    def _fit_batch(self, batch: Any, stream: Stream, iterations: range) -> Scalar:
        parts = segments(self.conf, *batch)
        memory: Memory | None = {} if self.conf.backprop_type == "truncated_bptt" else None
        total: Scalar = 0.0
        for index, (part, iteration) in enumerate(zip(parts, iterations, strict=True)):
            own = stream if index == 0 else stream.at(index, purpose="segment")
            _, score = self.gradient_and_score(part[0], part[1], own, part[2], part[3], memory=memory)
            self._apply(iteration, segments=len(iterations))
            total = total + score if index else score
        return total

    def gradient_and_score(
        self,
        x: Array,
        labels: Array,
        stream: Stream,
        features_mask: Array | None = None,
        labels_mask: Array | None = None,
        *,
        memory: Memory | None = None,
    ) -> tuple[Array, Scalar]:
        """Return the loss gradient of a batch, without regularization, and the score, with regularization.

        The gradient is the network's flat vector itself: the gradient of the mean over the examples, or of their sum
        without ``mini_batch``. Raises like ``fit_batch``.
        """
        x, labels = self._stack.prepare(self._dtype, x, labels, features_mask, labels_mask)
        step = self._step(stream, train=True, mask=mask_to_internal(features_mask, x), memory=memory)
        back = 0 if memory is None else self.conf.tbptt_back_length
        step = step.at(0, labels_mask=mask_to_internal(labels_mask, labels), back_length=back)
        with np.errstate(all="ignore"):  # _check_score reports what a warning would, with the layer
            loss = self._stack.backpropagate(x, labels, step, scale=self._scale(x.shape[0]))
            score = self._add_penalty(loss / x.shape[0])
        return self._gradient, self._check_score(score, self._activations(x))

    def pretrain_batch(self, layer: int, x: Array, *, iteration: int, stream: Stream) -> Scalar:
        """Do one pretraining update of one layer from a batch, in place; return its reconstruction loss.

        ``x (examples, n_in)`` is the network's input, which passes through the lower layers without drop-out. Only the
        layer's parameters and its part of the updater state change. Raises like ``fit_batch``.
        """

        def step(batch: Any, own: Stream) -> Scalar:
            _, score = self.pretrain_gradient_and_score(layer, batch[0], own)
            self._apply(iteration, layer)
            return score

        return self._training_step(
            "pretrain", (x,), stream, step, iterations=range(iteration, iteration + 1), layer=layer
        )

    def pretrain_gradient_and_score(self, layer: int, x: Array, stream: Stream) -> tuple[Array, Scalar]:
        """Return the results of ``gradient_and_score`` for pretraining; writes only the layer's part of the vector."""
        trained = self._pretrain_layer(layer)
        x, _ = self._stack.prepare(self._dtype, x, None)
        with np.errstate(all="ignore"):
            below, step = self._stack.layer_input(x, self._step(), layer)
            step = step.at(layer, stream=stream, train=True)
            views, grads = self._stack.params[layer], self._stack.grads[layer]
            loss = trained.pretrain_gradient(views, below, grads, step, scale=self._scale(x.shape[0]))
            score = self._add_penalty(loss, layer)
        return self._gradient, self._check_score(score, self._activations(x), layer)

    # -- training ----------------------------------------------------------------------------------------------------

    def fit(self, data: Any, labels: Any = None, epochs: int | None = None, *, batch_size: int = 32) -> None:
        """Train for ``epochs`` epochs (default 1): ``pretrain`` if the configuration says so, then ``finetune``.

        ``fit(iterator, 5)``, ``fit(data_set, epochs=5)`` or ``fit(features, labels, epochs=5)``.

        Args:
            data: batches from an iterator, a list or a generator; a ``DataSet``, which is one batch; or features, as an
                array or nested lists.
            labels: of features: ``(examples, n_out)``, or the number of each example's class, ``(examples,)``.
            epochs: passes over the data; without labels it is the second argument.
            batch_size: examples in a batch of features and labels, which are shuffled anew in every epoch.

        Raises:
            DataError: features or labels are not numbers, do not belong together, or are missing; an item is not a
                batch; or the data ends before the last epoch.
            ConfError: batches are ``MultiDataSet``s, which a ``ComputationGraph`` takes.
            ShapeError: sizes that do not fit the network.
        """
        labels, epochs = resolve_epochs(labels, epochs)
        warn_of_one_batch(data, epochs, batch_size)
        if not is_data_set(data):
            trains_all = self.conf.backprop or self.pretrains_and_finetunes
            layer = self._stack.output_layer() if trains_all else None
            kind = self.stages[0].input_type
            data = array_batches(data, labels, kind, layer, batch_size, self.conf.conf.seed)
        if self.conf.pretrain or self.pretrains_and_finetunes:
            self.pretrain(data, epochs)
        if self.conf.backprop or self.pretrains_and_finetunes:
            self.finetune(data, epochs)

    def finetune(self, data: Data, epochs: int = 1) -> None:
        """Train all layers by backpropagation.

        The first fine-tuning after pretraining starts with a fresh updater, as in DL4J, where pretraining has its own
        updater.
        """
        if self.iteration == 0 and any(self.pretrain_iterations.values()):
            self.reset_updater()
        for batch in self._looked_at(self.batches(data, epochs), data):
            stream = self._stream.at(self.iteration, purpose="finetune")
            score = self.fit_batch(
                batch.features,
                batch.labels,
                iteration=self.iteration,
                stream=stream,
                features_mask=batch.features_mask,
                labels_mask=batch.labels_mask,
            )
            self._notify(self.iteration, score, batch.num_examples)
            self.iteration += 1
        self._check_device()

    def pretrain(self, data: Data, epochs: int = 1) -> None:
        """Train every pretrain layer by itself, from the input upwards, for ``epochs`` epochs each."""
        for layer in self.pretrain_layers:
            for batch in self._looked_at(self.batches(data, epochs), data):
                iteration = self.pretrain_iterations.get(layer, 0)
                stream = self._stream.at(layer, iteration, purpose="pretrain")
                score = self.pretrain_batch(layer, batch.features, iteration=iteration, stream=stream)
                self._notify(iteration, score, batch.num_examples)
                self.pretrain_iterations[layer] = iteration + 1
            self._check_device()

    @property
    def pretrain_layers(self) -> tuple[int, ...]:
        """Indices of the layers that can pretrain."""
        return tuple(i for i, layer in enumerate(self.layers) if layer.pretrains)

    # -- using it ----------------------------------------------------------------------------------------------------

    def output(self, x: Array | SparseFeatures, features_mask: Array | None = None) -> Array:
        """Return the outputs, ``(examples, n_out)`` or as in ``input_type``, for features as in ``fit_batch``.

        Raises:
            NotFiniteError: an output is NaN or infinite; names row and layer.
        """
        return self.masked_output(x, features_mask)[0]

    def masked_output(
        self, x: Array | SparseFeatures, features_mask: Array | None = None
    ) -> tuple[Array, Array | None]:
        """Return the result of ``output``, and its mask ``(examples, time steps)``; None: all time steps count."""
        if isinstance(x, SparseFeatures):
            return self.sparse_input().masked_output(x)
        features_mask = None if features_mask is None else as_numbers(features_mask, "the features mask")
        x, _ = self._stack.prepare(self._dtype, x, None, features_mask)
        parts: list[Array] = []
        masks: list[Array] = []
        with np.errstate(all="ignore"):
            for rows in row_slices(x.shape[0]):
                mask = None if features_mask is None else mask_to_internal(features_mask[rows], x)
                y, own = self._stack.output(x[rows], self._step(mask=mask))
                parts.append(y)
                masks += [] if own is None else [own]
        xp = get_array_module(x)
        whole: Array = parts[0] if len(parts) == 1 else xp.concatenate(parts)
        self._check_output([whole], lambda rows: self._named_activations(x[rows]))
        return whole, xp.concatenate(masks) if masks else None

    def feed_forward(self, x: Array) -> list[Array]:
        """Return copies of the input and every layer's output, in the layout outside (see ``input_type``)."""
        x, _ = self._stack.prepare(self._dtype, x, None)
        activations = [x.copy()]
        for stage, (y, step) in zip(self.stages, self._stack.layer_outputs(x, self._step()), strict=True):
            activations.append(to_external(y, stage.output_type, step.rows))
        return activations

    def reconstruct(self, x: Array, layer: int = 0) -> Array:
        """Return a pretrain layer's reconstruction of its own input, for the network's input ``x``."""
        trained = self._pretrain_layer(layer)
        x, _ = self._stack.prepare(self._dtype, x, None)
        below, step = self._stack.layer_input(x, self._step(), layer)
        return trained.reconstruct(self._stack.params[layer], below, step.at(layer)).copy()

    def reconstruction_error(self, x: Array, layer: int = 0) -> Array:
        """Return the loss between ``reconstruct`` and the layer's input for each example, on the host."""
        trained = self._pretrain_layer(layer)
        x, _ = self._stack.prepare(self._dtype, x, None)
        with np.errstate(all="ignore"):
            below, step = self._stack.layer_input(x, self._step(), layer)
            errors = to_host(trained.reconstruction_error(self._stack.params[layer], below, step.at(layer)))
        return np.array(errors)

    def rnn_time_step(self, x: Array) -> Array:
        """Return the outputs for the next time steps of the same sequences; calls continue where the last one ended.

        ``x (examples, n_in)`` is one time step and gives ``(examples, n_out)``; ``(examples, n_in, time steps)`` are
        several. Raises ``ShapeError`` if the number of sequences changes without ``rnn_clear_previous_state``.
        """
        steps, is_one = as_sequences(as_features(x, self.stages[0].input_type), self.stages[0].input_type)
        steps, _ = self._stack.prepare(self._dtype, steps, None)
        with np.errstate(all="ignore"):  # _check_output reports what a warning would, with the row
            y, _ = self._stack.output(steps, self._step(memory=self._memory))
        self._check_output([y])
        return y[:, :, -1] if is_one and y.ndim == 3 else y

    def rnn_get_previous_state(self, layer: int) -> dict[str, Array]:
        """Return a layer's state by name (``h``, ``c``), each ``(examples, units)``; empty before the first step."""
        return layer_states(self._memory, layer)

    def rnn_set_previous_state(self, layer: int, state: Mapping[str, Array]) -> None:
        """Set a layer's state, in the form that ``rnn_get_previous_state`` returns."""
        self._memory.update({(layer, name): asarray(value, like=self._params).copy() for name, value in state.items()})

    def batches(self, data: Data, epochs: int = 1) -> Iterator[DataSet]:
        """Yield the batches of ``epochs`` epochs as ``DataSet``s; raises ``ConfError`` if one is a ``MultiDataSet``."""
        return (as_data_set(batch, f"batch {index}") for index, batch in enumerate(epochs_of(data, epochs)))

    def compared(self, batch: DataSet) -> list[Compared]:
        """Return the arrays that evaluations compare for a batch, for the only output."""
        y, own = self.masked_output(batch.features, batch.features_mask)
        return [compared(self.layers[-1], batch.labels, y, batch.labels_mask, own)]

    def scored_output(self, data: Any) -> tuple[Array, Compared]:
        """Return the results of ``score_examples`` and ``compared`` for a data set, from one forward pass."""
        labels = self._stack.labels(self._dtype, data)
        y, own = self.masked_output(data.features, data.features_mask)
        mask = label_mask(labels, data.labels_mask, own)
        if mask is not None and is_on_device(y):
            mask = as_contiguous(mask, self.kernels.xp, self._dtype)
        layer = self._stack.output_layer()
        return to_host(layer.scores(labels, y, mask)), compared(layer, labels, y, data.labels_mask, own)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _whole(self, features: Any, labels: Any) -> DataSet:
        """Return features and labels, as given to ``score`` or ``evaluate``, as one data set."""
        layer, kind = self._stack.output_layer(), self.stages[0].input_type
        return array_batches(features, labels, kind, layer, 1, 0).dataset

    def sparse_input(self) -> SparseInput:
        """Return the network's ``SparseInput``; raises ``ConfError`` if the network cannot take sparse features."""
        if self._sparse is None:
            self._sparse = SparseInput(self, lambda conf: MultiLayerNetwork(conf, kernels=self.kernels))
        return self._sparse

    def _pretrain_layer(self, index: int) -> PretrainLayer:
        layer = self.layers[index] if 0 <= index < len(self.layers) else None
        if not isinstance(layer, PretrainLayer):
            raise ConfError(f"layer {index} cannot pretrain; those that can: {list(self.pretrain_layers)}")
        return layer

    def _named_activations(self, x: Array) -> Iterator[tuple[str, Array]]:
        names = [f"the output of layer {index} ({layer.title()})" for index, layer in enumerate(self.layers)]
        yield "the network's input", x
        yield from zip(names, self._activations(x), strict=True)

    def _activations(self, x: Array) -> Iterator[Array]:
        return (y for y, _ in self._stack.layer_outputs(x, self._step()))
