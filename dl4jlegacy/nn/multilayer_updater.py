"""The step from a gradient to new parameters: normalization, regularization, updater, on the flat vectors.

The order is that of Deeplearning4j 1.0.0: the gradient is already divided by the number of examples; it is normalized;
L1 and L2 are added; the updater turns it into a step and subtracts the step. Legacy:
``org.deeplearning4j.nn.updater.MultiLayerUpdater`` and ``UpdaterBlock``, with the same state layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dl4jlegacy.arrays.backend import Array, Scalar, get_array_module, scalar
from dl4jlegacy.kernels.elementary import sum_of_squares
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.nn.layers.layer import Layer, PretrainLayer
from dl4jlegacy.nn.optimization.gradient_normalization import GRADIENT_NORMALIZATIONS
from dl4jlegacy.nn.optimization.updaters import AdamW, NoOp, Sgd, Updater, in_step
from dl4jlegacy.nn.parameters import ParamLayout, ParamSpan

__all__ = ["MultiLayerUpdater", "UpdaterBlock"]


@dataclass(frozen=True, slots=True)
class UpdaterBlock:
    """Consecutive parameters that share one updater configuration: ``params[start:stop]``.

    Its state is ``updater_state[state_start:state_stop]``: ``rows`` vectors of the block's length one after the other
    (DL4J: first all m, then all v). Visible biases have blocks of their own, which fine-tuning does not change.
    ``weights`` are the parameters to which weight decay applies.
    """

    updater: Updater
    start: int
    stop: int
    state_start: int
    rows: int
    is_pretrain: bool
    weights: tuple[slice, ...] = ()

    @property
    def state_stop(self) -> int:
        """End of the block's state."""
        return self.state_start + self.rows * (self.stop - self.start)

    def apply(
        self,
        params: Array,
        gradient: Array,
        state: Array,
        part: slice,
        *,
        updater: Updater,
        iteration: int,
        kernels: Kernels,
    ) -> bool:
        """Update the block's parameters within ``part``, in place, by ``updater``, the block's own but for its rate.

        Return the result of ``Updater.apply``.
        """
        start, stop = max(self.start, part.start), min(self.stop, part.stop)
        if start >= stop:
            return True
        if isinstance(updater, AdamW):
            for weights in self.weights:
                if part.start <= weights.start < part.stop:  # a part is one layer, or all of them
                    updater.decay(params[weights], iteration, kernels)
        own = state[self.state_start : self.state_stop]
        if stop - start == self.stop - self.start:
            return updater.apply(params[start:stop], gradient[start:stop], own, iteration, kernels)
        # A block can span layers; pretraining one of them touches only its columns of the state.
        columns = own.reshape(self.rows, self.stop - self.start)[:, start - self.start : stop - self.start]
        work = columns.flatten()
        is_finite = updater.apply(params[start:stop], gradient[start:stop], work, iteration, kernels)
        columns[...] = work.reshape(columns.shape)
        return is_finite


class MultiLayerUpdater:
    """Applies gradients to a network's parameters. Immutable: the network holds the state vector."""

    __slots__ = ("_layers", "_layout", "_regularized", "beginnings", "blocks", "state_size")

    def __init__(self, layers: Sequence[Layer], layout: ParamLayout) -> None:
        self._layers = tuple(layers)
        self._layout = layout
        found = [(span, *_coefficients(self._layers[span.layer], span)) for span in layout.spans]
        self._regularized = tuple((span, l1, l2) for span, l1, l2 in found if l1 or l2)
        self.blocks = _blocks(self._layers, layout)
        self.state_size = self.blocks[-1].state_stop if self.blocks else 0
        self.beginnings = _beginnings(self.blocks)

    def initial_state(self, state: Array) -> None:
        """Fill ``state`` with its initial values: zeros, and the numbers of ``beginnings``."""
        state.fill(0)
        for start, stop, number in self.beginnings:
            state[start:stop] = number

    def begin_within(self, state: Array) -> None:
        """Add the initial values to ``state``, which started with zeros."""
        for start, stop, number in self.beginnings:
            state[start:stop] += number

    def penalty(self, params: Array, layer: int | None = None) -> Scalar:
        """Return the score's regularization term: ``l1 |w|_1 + l2 / 2 |w|^2``, of all parameters or one layer."""
        xp = get_array_module(params)
        total: Scalar = 0.0
        for place, l1, l2 in self._penalties(layer):
            part = params[place]
            if l2:
                total = total + 0.5 * l2 * sum_of_squares(part)
            if l1:
                total = total + l1 * scalar(xp.abs(part).sum())
        return total

    def regularize(self, params: Array, gradient: Array, kernels: Kernels, layer: int | None = None) -> None:
        """Add the gradient of ``penalty`` to ``gradient``."""
        for place, l1, l2 in self._penalties(layer):
            kernels.add_regularization(gradient[place], params[place], l1, l2)

    def normalize(self, gradient: Array, layer: int | None = None) -> None:
        """Apply the layers' gradient normalization, in place."""
        for index, conf in enumerate(self._layers):
            rule = GRADIENT_NORMALIZATIONS[conf.gradient_normalization or "none"]
            if rule is None or layer not in (None, index) or conf.frozen:
                continue
            function, per_param = rule
            threshold = 1.0 if conf.gradient_normalization_threshold is None else conf.gradient_normalization_threshold
            spans = [span for span in self._layout.of_layer(index) if not span.is_state]
            slices = [slice(s.start, s.stop) for s in spans] if per_param else [self._layout.trainable(index)]
            for piece in slices:
                function(gradient[piece], threshold)

    def update(
        self,
        params: Array,
        gradient: Array,
        state: Array,
        *,
        iteration: int,
        kernels: Kernels,
        layer: int | None = None,
        segments: int = 1,
    ) -> bool:
        """Turn ``gradient`` (overwritten) into new ``params`` and ``state``: all layers, or pretraining of one.

        ``iteration`` counts updates, and ``segments`` is their number for each batch.
        Return whether all changed parameters are finite. On a GPU the result is always True, since a check would have
        to wait for the device.
        """
        self.normalize(gradient, layer)
        self.regularize(params, gradient, kernels, layer)
        return self.step(params, gradient, state, iteration=iteration, kernels=kernels, layer=layer, segments=segments)

    def step(
        self,
        params: Array,
        gradient: Array,
        state: Array,
        *,
        iteration: int,
        kernels: Kernels,
        layer: int | None = None,
        segments: int = 1,
    ) -> bool:
        """Do the last part of ``update``, which is the only part that depends on ``iteration``."""
        part = slice(0, self._layout.size) if layer is None else self._layout.layer_slices[layer]
        pretrained = None if layer is None else self._layers[layer]
        rate = pretrained.pretrain_learning_rate if isinstance(pretrained, PretrainLayer) else None
        is_finite = True
        for block in self.blocks:
            if layer is not None or not block.is_pretrain:
                updater = in_step(block.updater, segments=segments, pretrains=layer is not None, learning_rate=rate)
                is_finite &= block.apply(
                    params, gradient, state, part, updater=updater, iteration=iteration, kernels=kernels
                )
        return is_finite

    def _penalties(self, layer: int | None) -> Iterator[tuple[slice, float, float]]:
        """Yield slice, l1 and l2 of the regularized parameters that an update of ``layer`` (None: all) changes."""
        for span, l1, l2 in self._regularized:
            if span.layer == layer or (layer is None and not span.is_pretrain):
                yield slice(span.start, span.stop), l1, l2


def _coefficients(layer: Layer, span: ParamSpan) -> tuple[float, float]:
    if span.is_state or layer.frozen:
        return 0.0, 0.0
    l1, l2 = (layer.l1_bias, layer.l2_bias) if span.is_bias else (layer.l1, layer.l2)
    return l1 or 0.0, l2 or 0.0


def _blocks(layers: Sequence[Layer], layout: ParamLayout) -> tuple[UpdaterBlock, ...]:
    """Merge neighbouring parameters with equal updaters, as DL4J's ``UpdaterUtils.updaterConfigurationsEquals``."""
    groups: list[list[ParamSpan]] = []
    for span in layout.spans:
        last = groups[-1][-1] if groups else None
        if last is not None and _joinable(layers, last, span):
            groups[-1].append(span)
        else:
            groups.append([span])
    blocks: list[UpdaterBlock] = []
    end = 0
    for group in groups:
        updater = _updater_of(layers, group[0])
        start, stop = group[0].start, group[-1].stop
        rows = updater.state_size(stop - start) // (stop - start)
        weights = tuple(slice(span.start, span.stop) for span in group if not span.is_bias)
        blocks.append(UpdaterBlock(updater, start, stop, end, rows, group[0].is_pretrain, weights))
        end = blocks[-1].state_stop
    return tuple(blocks)


def _beginnings(blocks: Sequence[UpdaterBlock]) -> tuple[tuple[int, int, float], ...]:
    """Return the parts of the state with non-zero initial values, each as (start, stop, value)."""
    parts: list[tuple[int, int, float]] = []
    for block in blocks:
        number = block.updater.begins_at
        if not (block.rows and number):
            continue
        if parts and parts[-1][1:] == (block.state_start, number):
            parts[-1] = (parts[-1][0], block.state_stop, number)
        else:
            parts.append((block.state_start, block.state_stop, number))
    return tuple(parts)


def _updater_of(layers: Sequence[Layer], span: ParamSpan) -> Updater:
    """Return the updater of one parameter; layer state and frozen layers have none, which is DL4J's NoOp."""
    layer = layers[span.layer]
    return NoOp() if span.is_state or layer.frozen else layer.updater or Sgd()


def _joinable(layers: Sequence[Layer], a: ParamSpan, b: ParamSpan) -> bool:
    if _updater_of(layers, a) != _updater_of(layers, b):
        return False
    if a.is_pretrain or b.is_pretrain:
        return a.layer == b.layer and a.is_pretrain and b.is_pretrain
    return True
