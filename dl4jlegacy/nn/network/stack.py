"""Stack: the forward and backward pass through the stages of a network, over its flat vectors.

It has no state but its views; everything that changes from pass to pass is in the ``Step``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import ModuleType

import msgspec
import numpy as np
import numpy.typing as npt

from dl4jlegacy.arrays.backend import Array, Scalar, as_contiguous
from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.errors import ConfError, DataError, ShapeError
from dl4jlegacy.nn.arrays import as_features, as_labels
from dl4jlegacy.nn.conf.stages import Stage
from dl4jlegacy.nn.formats import check_batch, check_masks, to_external, to_internal
from dl4jlegacy.nn.input_type import InputTypeFeedForward, InputTypeRecurrent
from dl4jlegacy.nn.layers.feedforward import Backward, Params
from dl4jlegacy.nn.layers.output import BaseOutputLayer
from dl4jlegacy.nn.optimization.step import Step

__all__ = ["Stack"]


class Stack:
    """A network's stages with their parameters and gradients, by name as views of the two flat vectors.

    ``xp`` is the array module of the vectors' memory; batches are copied there.
    """

    def __init__(
        self, stages: Sequence[Stage], params: Sequence[Params], grads: Sequence[Params], xp: ModuleType = np
    ) -> None:
        self.xp = xp
        self.stages = tuple(stages)
        self.params = tuple(params)
        self.grads = tuple(grads)
        frozen = [stage.layer.frozen for stage in self.stages]
        self._first_trained = frozen.index(False) if False in frozen else len(frozen)

    def prepare(
        self,
        dtype: npt.DTypeLike,
        x: Array,
        labels: Array | None,
        features_mask: Array | None = None,
        labels_mask: Array | None = None,
    ) -> tuple[Array, Array]:
        """Return features and labels in the form for the network; without labels, ``x`` in their place.

        They are C-contiguous, of the network's dtype and on its device: NumPy arrays are uploaded for a GPU here and
        nowhere else.

        Raises:
            ShapeError: sizes that do not fit the network; the message names the layer.
            ConfError: arrays on a GPU for a network on the host.
            DataError: the number of labels differs from the number of examples.
        """
        x = as_features(x, self.stages[0].input_type)
        check_batch(x, self.stages[0].input_type, f"layer 0 ({self.stages[0].layer.title()})")
        x = as_contiguous(x, self.xp, dtype)
        if x.ndim != 2 and isinstance(self.stages[0].input_type, InputTypeFeedForward):
            x = x.reshape(len(x), -1)
        check_masks(x, labels, features_mask, labels_mask)
        return x, x if labels is None else self._labels(dtype, x.shape, labels)

    def labels(self, dtype: npt.DTypeLike, data: DataSet) -> Array:
        """Return the labels of a data set in the form of ``prepare``; raises likewise."""
        if data.is_sparse:
            return self._labels(dtype, data.features.shape, data.labels)
        return self.prepare(dtype, data.features, data.labels, data.features_mask, data.labels_mask)[1]

    def _labels(self, dtype: npt.DTypeLike, shape: tuple[int, ...], labels: Array) -> Array:
        """Return the labels of features of this shape."""
        layer = self.output_layer()
        labels = as_labels(labels, layer)
        if len(labels) != shape[0] or not shape[0]:
            raise DataError(f"a batch has {shape[0]} examples and {len(labels)} labels; both must be equal and not 0")
        features = (*shape[:-1], self.output_steps(shape[-1]))
        layer.check_label_shape(labels, features, f"layer {len(self.stages) - 1} ({layer.title()})")
        return as_contiguous(labels, self.xp, dtype)

    def output_steps(self, steps: int) -> int:
        """Return the number of output time steps for ``steps`` input time steps.

        Raises:
            ShapeError: a layer's window is longer than its input; the message names the layer.
        """
        for index, stage in enumerate(self.stages):
            enters = stage.layer_input_type
            if isinstance(self.stages[0].input_type, InputTypeRecurrent) and isinstance(enters, InputTypeRecurrent):
                try:
                    leaves = stage.layer.output_type(msgspec.structs.replace(enters, timesteps=steps))
                except ShapeError as exc:
                    raise ShapeError(f"layer {index} ({stage.layer.title()}): {exc}") from exc
                steps = leaves.timesteps if isinstance(leaves, InputTypeRecurrent) else steps
        return steps

    def start(self, x: Array, step: Step) -> tuple[Array, Step]:
        """Return a batch in the internal layout, and the ``Step`` of the first stage."""
        step.workspace.batch = len(x)
        inside = to_internal(x, self.stages[0].input_type, step.at(-1))
        return inside, step.at(0, examples=len(x), rows=len(x))

    def forward(self, index: int, x: Array, step: Step) -> tuple[Array, Step, Backward]:
        """Run one stage."""
        return self.stages[index].forward(self.params[index], x, step.at(index))

    def _run(self, x: Array, step: Step, stop: int) -> tuple[Array, Step, list[Backward]]:
        """Return the input of stage ``stop`` and the backward passes of all stages before, fused where possible."""
        x, step = self.start(x, step)
        backwards: list[Backward] = []
        while (index := len(backwards)) < stop:
            stage, behind = self.stages[index], self.stages[index + 1] if index + 1 < stop else None
            if behind is not None and not stage.is_pooled_by(behind, step.kernels):
                behind = None
            x, step, backward = stage.forward(self.params[index], x, step.at(index), behind)
            backwards += [backward] if behind is None else [backward, _nothing_left]
        return x, step, backwards

    def activate(self, x: Array, step: Step, stop: int) -> tuple[Array, Step]:
        """Return the input of stage ``stop`` for a batch in the layout outside: a work buffer, or ``x`` itself."""
        x, step, _ = self._run(x, step, stop)
        return x, step

    def layer_outputs(self, x: Array, step: Step) -> Iterator[tuple[Array, Step]]:
        """Yield every layer's output in the internal layout, and the ``Step`` behind it."""
        x, step = self.start(x, step)
        for index in range(len(self.stages)):
            x, step, _ = self.forward(index, x, step)
            yield x, step

    def layer_input(self, x: Array, step: Step, stop: int) -> tuple[Array, Step]:
        """Return the input of the *layer* of stage ``stop``, after its preprocessor, and the ``Step`` there."""
        x, step = self.activate(x, step, stop)
        x, step, _ = self.stages[stop].preprocess(x, step.at(stop))
        return x, step

    def output(self, x: Array, step: Step) -> tuple[Array, Array | None]:
        """Return the output for a batch, both as outside, and its mask ``(examples, time steps)`` or None."""
        y, step = self.activate(x, step, len(self.stages))
        mask = None if step.mask is None else step.mask.T
        return to_external(y, self.stages[-1].output_type, step.rows), mask

    def output_layer(self) -> BaseOutputLayer:
        """Return the last layer; raise ``ConfError`` if it has no loss."""
        layer = self.stages[-1].layer
        if not isinstance(layer, BaseOutputLayer):
            raise ConfError(f"the last layer is {layer.title()}; a loss needs an OutputLayer there")
        return layer

    def backpropagate(self, x: Array, labels: Array, step: Step, *, scale: float) -> Scalar:
        """Write the whole gradient of ``scale * loss``; return the summed loss. ``x`` and ``labels`` as outside."""
        last = len(self.stages) - 1
        y, step, backwards = self._run(x, step, last)
        loss, dy = self._loss(y, labels, step.at(last), scale)
        for index in reversed(range(last)):
            grads = self.grads[index]
            if index < self._first_trained:
                _clear(grads)
                continue
            assert dy is not None  # need_dx was set for every layer but the first trained one
            dy = backwards[index](dy, grads, index > self._first_trained)
            if self.stages[index].layer.frozen:
                _clear(grads)
            elif "vb" in grads:
                grads["vb"].fill(0)  # fine-tuning does not change the visible bias
        return loss

    def _loss(self, y: Array, labels: Array, step: Step, scale: float) -> tuple[Scalar, Array | None]:
        """Run the last stage forward and backward; return the summed loss and the gradient of its input."""
        stage, layer = self.stages[-1], self.output_layer()
        y, step, back = stage.preprocess(y, step)
        inside = to_internal(labels, stage.output_type, step, "labels") if labels.ndim == 3 else labels
        loss, dy = layer.loss_gradient(
            self.params[-1], y, inside, self.grads[-1], step, scale=scale, need_dx=self._first_trained < step.layer
        )
        if layer.frozen:
            _clear(self.grads[-1])
        return loss, back(dy) if back is not None and dy is not None else dy


def _nothing_left(dy: Array, grads: Params, need_dx: bool = True) -> Array | None:
    """Return ``dy`` unchanged: the stage before includes the backward pass of this stage without parameters."""
    return dy


def _clear(grads: Params) -> None:
    for gradient in grads.values():
        gradient.fill(0)
