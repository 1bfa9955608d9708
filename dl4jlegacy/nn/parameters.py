"""The layout of a network's parameters in one flat vector.

Layers in order, each layer's parameters in the order of its ``param_shapes`` (DL4J's: ``W``, ``b``, visible bias).
Matrices lie column by column ('f' order), so model files interchange with Deeplearning4j. Averaging, compression,
saving and network messages use the one vector; layers use views.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import ShapeError
from dl4jlegacy.nn.layers.layer import Layer

__all__ = ["ParamLayout", "ParamSpan"]


@dataclass(frozen=True, slots=True)
class ParamSpan:
    """One parameter: ``flat[start:stop]`` holds ``name`` of layer ``layer``.

    Attributes:
        is_bias: the regularization of biases applies, not that of weights.
        is_pretrain: only pretraining changes it.
        is_state: not a trained parameter but state of a layer, such as the running mean of a batch normalization. It is
            in the vector so that averaging, saving and resuming include it. Its "gradient" is the step itself,
            ``params -= gradient``, as in DL4J: no updater, regularization or normalization applies.
        is_c_ordered: stored in 'c' order: everything but matrices.
    """

    layer: int
    name: str
    shape: tuple[int, ...]
    start: int
    stop: int
    is_bias: bool
    is_pretrain: bool
    is_state: bool
    is_c_ordered: bool

    @property
    def indices(self) -> range:
        """The parameter's indices in the flat vector."""
        return range(self.start, self.stop)

    def view(self, flat: Array) -> Array:
        """Return the parameter as a view of the flat vector; matrices are in Fortran order unless ``is_c_ordered``."""
        part = flat[self.start : self.stop]
        return part.reshape(self.shape) if self.is_c_ordered else part.reshape(self.shape[::-1]).T


@dataclass(frozen=True, slots=True)
class ParamLayout:
    """The spans of all parameters, in order; ``size`` is the length of the flat vector."""

    spans: tuple[ParamSpan, ...]
    layer_slices: tuple[slice, ...]
    size: int

    @classmethod
    def of(cls, layers: Sequence[Layer]) -> ParamLayout:
        """Return the layout of resolved layers."""
        spans: list[ParamSpan] = []
        slices: list[slice] = []
        end = 0
        for index, layer in enumerate(layers):
            start = end
            for name, shape in layer.param_shapes():
                spans.append(_span(index, layer, name, shape, end))
                end = spans[-1].stop
            slices.append(slice(start, end))
        return cls(tuple(spans), tuple(slices), end)

    def views(self, flat: Array) -> tuple[dict[str, Array], ...]:
        """Return, for every layer, its parameters by name as views of ``flat``."""
        views: tuple[dict[str, Array], ...] = tuple({} for _ in self.layer_slices)
        for span in self.spans:
            views[span.layer][span.name] = span.view(flat)
        return views

    def of_layer(self, layer: int) -> tuple[ParamSpan, ...]:
        """Return the spans of one layer."""
        return tuple(span for span in self.spans if span.layer == layer)

    def trainable(self, layer: int) -> slice:
        """Return the slice of a layer's parameters with gradient steps: all but the layer's state, which is last."""
        whole = self.layer_slices[layer]
        states = [span.start for span in self.of_layer(layer) if span.is_state]
        return slice(whole.start, min(states, default=whole.stop))

    def check(self, what: str, flat: Array) -> None:
        """Raise ``ShapeError`` unless ``flat`` is a vector of the right length."""
        if flat.shape != (self.size,):
            raise ShapeError(
                f"{what} have shape {flat.shape}, the network has ({self.size},); was the configuration changed?"
            )


def _span(index: int, layer: Layer, name: str, shape: tuple[int, ...], start: int) -> ParamSpan:
    return ParamSpan(
        layer=index,
        name=name,
        shape=shape,
        start=start,
        stop=start + math.prod(shape),
        is_bias=name not in layer.weights,
        is_pretrain=layer.is_pretrain_param(name),
        is_state=name in layer.states,
        is_c_ordered=len(shape) != 2 or name in layer.c_ordered,
    )
