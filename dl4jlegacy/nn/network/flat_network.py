"""FlatNetwork: the base class of both kinds of networks: flat vectors, training steps, and the search for a NaN."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from dl4jlegacy.arrays.backend import Array, Scalar, asarray, is_on_device, to_host
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.datasets.batches import Data
from dl4jlegacy.errors import NotFiniteError, ShapeError, counted
from dl4jlegacy.kernels import load
from dl4jlegacy.kernels.protocol import Kernels, device_kernels
from dl4jlegacy.nn.arrays import is_data_set
from dl4jlegacy.nn.evaluation.classification import Evaluation
from dl4jlegacy.nn.evaluation.evaluate import Compared, do_evaluation
from dl4jlegacy.nn.layers.layer import Layer
from dl4jlegacy.nn.layers.sequences import Memory
from dl4jlegacy.nn.listeners import TrainingListener
from dl4jlegacy.nn.memory import Allocation
from dl4jlegacy.nn.multilayer_updater import MultiLayerUpdater
from dl4jlegacy.nn.network.cuda_graphs import Arrays, CapturedSteps, Run
from dl4jlegacy.nn.optimization.step import Step, Workspace, flat_vector
from dl4jlegacy.nn.parameters import ParamLayout
from dl4jlegacy.nn.rounding import warn_of_rounding
from dl4jlegacy.nn.summary import summarize
from dl4jlegacy.system.resources import check_memory

__all__ = ["FlatNetwork", "row_slices"]

_ROWS = 1024  # examples per pass of output and score, so that work buffers stay small
_REMEDY = "try a smaller learning rate, gradient clipping, or look for extreme values in the data"


def row_slices(rows: int) -> Iterator[slice]:
    """Return slices of ``rows`` rows, each small enough for one pass through a network."""
    return (slice(start, min(start + _ROWS, rows)) for start in range(0, max(rows, 1), _ROWS))


class FlatNetwork(ABC):
    """Parameters, gradient and updater state of a network, each one vector, in the memory of its kernels.

    On the CPU the vectors are NumPy arrays. With the kernels ``load("cupy")`` they are CuPy arrays on a GPU, and so are
    the results of ``output`` and similar methods; batches may be NumPy arrays, which are uploaded, or CuPy's. Scores of
    training are then 0-d arrays: ``float()`` of one waits for the GPU. No other part of training waits. A score or
    parameter that is not finite is therefore not detected at once on a GPU, but by ``check_finite``, which ``fit``
    calls at its end.
    """

    conf: Any

    def __init__(self, conf: Any, layers: Sequence[Layer], titles: Sequence[str], kernels: Kernels | None) -> None:
        self.kernels = kernels or load()
        self.layers: tuple[Layer, ...] = tuple(layers)
        self.layout = ParamLayout.of(self.layers)
        self.updater = MultiLayerUpdater(self.layers, self.layout)
        self.listeners: list[TrainingListener] = []
        self.iteration = 0
        self._conf = conf
        self._stream = Stream.of(conf.seed)
        self._dtype = np.dtype(conf.dtype)
        self._memory: Memory = {}
        self._watch = _ScoreWatch()
        self._has_warned = False
        nbytes = (2 * self.layout.size + self.updater.state_size) * self._dtype.itemsize
        check_memory(nbytes, f"a network of {self.layout.size:,} parameters")
        xp = self.kernels.xp
        self._params = flat_vector(self.layout.size, self._dtype, xp)
        self._gradient = flat_vector(self.layout.size, self._dtype, xp)
        self._state = flat_vector(self.updater.state_size, self._dtype, xp)
        if xp is not np:  # on the host these are zeros, which take no memory until they are written
            self._gradient.fill(0)
        vectors = {"parameters": self._params, "gradient": self._gradient, "updater state": self._state}
        self._workspace = Workspace(titles, [Allocation(what, int(vector.nbytes)) for what, vector in vectors.items()])
        device = device_kernels(self.kernels)
        self._captured: CapturedSteps | None = None
        if device is not None and device.captures:
            self._captured = CapturedSteps(device, self._dtype, self._workspace.arrays)

    def __repr__(self) -> str:
        """Return kind and size in one line; ``summary()`` has the layers."""
        layers = counted(len(self.layers), "layer")
        return f"<{type(self).__name__}: {layers}, {self.layout.size:,} parameters, {self._dtype}>"

    @abstractmethod
    def batches(self, data: Data, epochs: int = 1) -> Iterator[Any]:
        """Yield the batches of ``epochs`` epochs, of the kind for this network; a data set is one batch.

        Raises:
            ConfError: a batch is of another kind. DataError: an item is not a batch, or an epoch has none.
        """

    @abstractmethod
    def scored_output(self, data: Any) -> tuple[Array, Compared]:
        """Return the loss of every example of a batch, and the arrays that evaluations compare."""

    @abstractmethod
    def compared(self, batch: Any) -> list[Compared]:
        """Return the arrays that evaluations compare for a batch, for every output."""

    @abstractmethod
    def output(self, x: Any, features_mask: Any = None) -> Array:
        """Return the (first) output for features as in ``fit_batch``."""

    @property
    @abstractmethod
    def n_out(self) -> int:
        """Values of the (first) output for one example; for sequences, for one time step."""

    @abstractmethod
    def _whole(self, features: Any, labels: Any) -> Any:
        """Return features and labels, as given to ``score`` or ``evaluate``, as one data set."""

    def summary(self, batch_size: int = 32) -> str:
        """Return a table of the layers and vertices: shapes, parameters, work; and the memory of a batch."""
        return summarize(self.conf).text(batch_size)

    def predict(self, x: Any) -> Array:
        """Return the most probable class of every example, from the (first) output, ``(examples,)``."""
        classes: Array = to_host(self.output(x)).argmax(axis=1)
        return classes

    def evaluate(self, data: Any, labels: Any = None, label_names: Any = None) -> Any:
        """Return the classification metrics of the (first) output, an ``Evaluation``, over one epoch of data.

        Args:
            data: an iterator, a data set, or features, as for ``fit``.
            labels: of features; for an iterator or a data set the second argument may be ``label_names``.
            label_names: names of the classes, for the report; or an evaluation of another kind, such as
                ``ROCMultiClass()``, which is filled and returned.
        """
        if is_data_set(data):
            label_names = labels if label_names is None else label_names
        else:
            data = self._whole(data, labels)
        evaluation = label_names if hasattr(label_names, "eval") else Evaluation(self.n_out, label_names)
        do_evaluation(self, data, evaluation)
        return evaluation

    def score(self, data: Any, labels: Any = None) -> float:
        """Return the mean loss of the examples, without drop-out, plus the regularization term.

        For a graph, the losses of all outputs are added.

        Args:
            data: a data set, batches (one epoch of an iterator, a list, a generator), or features as in ``fit``.
            labels: of features.
        """
        return float(self.score_examples(data, labels).mean()) + float(self.updater.penalty(self._params))

    def score_examples(self, data: Any, labels: Any = None) -> Array:
        """Return the loss of every example, without regularization, ``(examples,)``, on the host; see ``score``."""
        given = data if is_data_set(data) else self._whole(data, labels)
        losses: Array = np.concatenate([self.scored_output(batch)[0] for batch in self.batches(given)])
        return losses

    def _looked_at(self, batches: Iterator[Any], data: Any) -> Iterator[Any]:
        """Yield the batches of training data; warn once if the network's dtype makes different values equal."""
        for index, batch in enumerate(batches):
            if not index and not self._has_warned:
                self._has_warned = warn_of_rounding(data, batch, self._dtype)
            yield batch

    def _init_params(self) -> None:
        """Draw the initial parameters on the host, so that all devices start equally, and reset the updater."""
        self.reset_updater()
        on_host = self.kernels.xp is np
        drawn = self._params if on_host else np.empty(self.layout.size, self._dtype)
        for index, (layer, views) in enumerate(zip(self.layers, self.layout.views(drawn), strict=True)):
            layer.init_params(views, self._stream.at(index, purpose="weights"))
        if on_host:
            self._watch.forget()
        else:
            self.set_params(drawn)
        self.iteration = 0

    @property
    def params(self) -> Array:
        """The flat parameter vector itself, not a copy: layer by layer (in a graph in topological order)."""
        return self._params

    @property
    def updater_state(self) -> Array:
        """The flat updater state itself, not a copy, in DL4J's block layout."""
        return self._state

    @property
    def num_params(self) -> int:
        """Length of ``params``."""
        return self.layout.size

    @property
    def layer_slices(self) -> tuple[slice, ...]:
        """The slice of each layer's parameters in ``params``."""
        return self.layout.layer_slices

    def set_params(self, params: Array) -> None:
        """Copy ``params`` from the host or a GPU into the network; raises ``ShapeError`` if the length differs.

        After this, ``check_finite`` ignores scores of the previous parameters.
        """
        self.layout.check("the given params", params)
        self._watch.forget()
        self._params[...] = asarray(params, like=self._params)

    def set_updater_state(self, state: Array) -> None:
        """Copy ``state`` from the host or a GPU into the network; raises ``ShapeError`` if the length differs."""
        if state.shape != self._state.shape:
            raise ShapeError(
                f"the given updater state has shape {state.shape}, the network's has {self._state.shape}; "
                "do both sides use the same updaters?"
            )
        self._state[...] = asarray(state, like=self._state)

    def update_from(self, gradient: Array, *, iteration: int) -> None:
        """Apply a gradient computed elsewhere (regularization is added here) to the parameters, in place."""
        self.layout.check("the given gradient", gradient)
        self._gradient[...] = asarray(gradient, like=self._gradient)
        self._apply(iteration)

    def rnn_clear_previous_state(self) -> None:
        """Make the next ``rnn_time_step`` start new sequences."""
        self._memory.clear()

    def reset_updater(self) -> None:
        """Reset the updater's state to its initial values."""
        self.updater.initial_state(self._state)

    def check_finite(self) -> None:
        """Raise ``NotFiniteError`` naming the first layer that has a NaN or infinite parameter.

        On a GPU it also reports a score that was NaN or infinite since the last call, and waits for the GPU.
        """
        layer, score = self._watch.layer, self._watch.take()
        if not (self.kernels.all_finite(self._params) and math.isfinite(score)):
            self._raise_not_finite(math.nan if math.isfinite(score) else score, (), layer)

    def _step(
        self,
        stream: Stream | None = None,
        *,
        train: bool = False,
        mask: Array | None = None,
        memory: Memory | None = None,
    ) -> Step:
        return Step(self.kernels, self._workspace, stream or Stream(0), train, mask=mask, memory=memory)

    def _scale(self, examples: int) -> float:
        sign = 1.0 if self._conf.minimize else -1.0
        return sign / examples if self._conf.mini_batch else sign

    def _training_step(
        self, kind: str, batch: Arrays, stream: Stream, step: Run, *, iterations: range, layer: int | None = None
    ) -> Scalar:
        """Do one training step and return its score; on a GPU as a CUDA graph, after the first batch of its shape.

        Args:
            kind: distinguishes different steps on batches of the same shapes.
            batch: the arrays of the batch.
            stream: the random numbers of the batch.
            step: the step itself.
            iterations: the numbers of its updates, one for each segment.
            layer: the pretrained layer; None: all layers are trained.
        """
        if self._captured is None:
            return step(batch, stream)

        def updates() -> None:
            for iteration in iterations:
                self.updater.step(
                    self._params,
                    self._gradient,
                    self._state,
                    iteration=iteration,
                    kernels=self.kernels,
                    layer=layer,
                    segments=len(iterations),
                )

        return self._captured.run((kind, layer), batch, stream, step, updates)

    def _add_penalty(self, mean: Scalar, layer: int | None = None) -> Scalar:
        """Return the score for a mean loss: add the regularization of all layers, or of one."""
        penalty = self.updater.penalty(self._params, layer)
        return mean if isinstance(penalty, float) and not penalty else mean + penalty

    def _apply(self, iteration: int, layer: int | None = None, *, segments: int = 1) -> None:
        with np.errstate(all="ignore"):
            is_finite = self.updater.update(
                self._params,
                self._gradient,
                self._state,
                iteration=iteration,
                kernels=self.kernels,
                layer=layer,
                segments=segments,
            )
        if not is_finite:  # a score can hide an infinite weight: sigmoid(inf) is 1
            self.check_finite()

    def _notify(self, iteration: int, score: Scalar, examples: int) -> None:
        for listener in self.listeners:
            listener.iteration_done(self, iteration, float(score), examples=examples)

    def _check_device(self) -> None:
        """Check the results of a GPU once, at the end; on the CPU every update is checked."""
        if is_on_device(self._params):
            self.check_finite()

    def _check_score(self, score: Scalar, activations: Iterable[Array], layer: int | None = None) -> Scalar:
        """Return ``score``; raise ``NotFiniteError`` naming the layer if it is not finite.

        A score on a GPU is only recorded for ``check_finite``. ``layer`` is the pretrained layer, if any.
        ``activations`` are the layers' outputs for the batch, computed on demand, in a context without NumPy warnings.
        A generator must not set up that context itself: an error leaves the generator unfinished, and the thread in
        which the garbage collector later runs cannot restore the error state of another thread.
        """
        if not isinstance(score, float):
            self._watch.add(score, layer)
        elif not math.isfinite(score):
            self._raise_not_finite(score, activations, layer)
        return score

    def _check_output(
        self, outputs: Sequence[Array], activations: Callable[[slice], Iterable[tuple[str, Array]]] = lambda rows: ()
    ) -> None:
        """Raise ``NotFiniteError`` naming row and layer if an output is NaN or infinite. Waits for a GPU.

        ``activations`` computes the layers' outputs of a range of rows again, with the layers' names, to find the first
        layer that is not finite; without it no layer is named.
        """
        for y in outputs:
            if self.kernels.all_finite(y.reshape(-1)):
                continue
            row = int(np.isfinite(to_host(y).reshape(len(y), -1)).all(axis=1).argmin())
            with np.errstate(all="ignore"):
                found = (name for name, a in activations(slice(row, row + 1)) if not np.isfinite(to_host(a)).all())
                place = next(found, "the output")
            raise NotFiniteError(
                f"row {row} (the first is 0): {place} is NaN or infinite; look for extreme values in this row, and "
                "scale the features as they were in training"
            )

    def _raise_not_finite(self, score: float, activations: Iterable[Array], layer: int | None) -> NoReturn:
        parts = [self._params[part] for part in self.layer_slices]
        with np.errstate(all="ignore"):
            raise _not_finite(self.layers, parts, activations, score, layer, self.kernels)


class _ScoreWatch:
    """Records on a GPU whether a score was NaN or infinite, so that the host need not wait for every score."""

    __slots__ = ("_sum", "layer")

    def __init__(self) -> None:
        self._sum: Scalar = None
        self.layer: int | None = None

    def add(self, score: Scalar, layer: int | None) -> None:
        """Record a score on a device, and the pretrained layer, if any."""
        self.layer = layer
        if self._sum is None:
            self._sum = score.copy()
        else:
            self._sum += score

    def take(self) -> float:
        """Return the sum of the scores since the last call, NaN or infinite if one was. Waits for the device."""
        if self._sum is None:
            return 0.0
        total = float(self._sum)
        self.forget()
        return total

    def forget(self) -> None:
        """Forget all scores so far."""
        if self._sum is not None:
            self._sum.fill(0)


def _not_finite(
    layers: Sequence[Layer],
    parts: Sequence[Array],
    activations: Iterable[Array],
    score: float,
    layer: int | None,
    kernels: Kernels,
) -> NotFiniteError:
    """Return the error that names the first layer with NaN or infinite parameters, or else activations.

    Args:
        layers: of the network, for their names.
        parts: each layer's flat parameters.
        activations: each layer's output for the batch, computed on demand; empty: check only the parameters.
        score: the value that was not finite.
        layer: the layer whose pretraining gave the score, to which later layers do not contribute; None: the score is
            the network's.
        kernels: for ``all_finite``.
    """
    for index, part in enumerate(parts):
        if not kernels.all_finite(part):
            return NotFiniteError(f"layer {index} ({layers[index].title()}): a parameter is NaN or infinite; {_REMEDY}")
    last = len(layers) - 1 if layer is None else layer
    for index, y in zip(range(last + 1), activations, strict=False):
        if not kernels.all_finite(y.reshape(-1)):
            title = layers[index].title()
            return NotFiniteError(f"layer {index} ({title}): an activation is NaN or infinite; {_REMEDY}")
    what = "the score" if layer is None else "the score of its pretraining"
    return NotFiniteError(f"layer {last} ({layers[last].title()}): {what} is {score}; {_REMEDY}")
