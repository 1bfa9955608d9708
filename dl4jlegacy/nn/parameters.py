"""Where every parameter of a network lies in its one flat vector.

Layers in order, each layer's parameters in the order of its ``param_shapes`` (DL4J's: ``W``, ``b``, visible bias).
Matrices lie column by column ('f' order), so model files interchange with Deeplearning4j. Averaging, compression,
saving and the wire handle the one vector; layers see views.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dl4jlegacy.backend import Array
from dl4jlegacy.errors import ShapeError
from dl4jlegacy.nn.layers import Layer

__all__ = ["ParamLayout", "ParamSpan"]

_PRETRAIN_PARAMS = frozenset({"vb"})


@dataclass(frozen=True, slots=True)
class ParamSpan:
    """One parameter: ``flat[start:stop]`` holds ``name`` of layer ``layer``."""

    layer: int
    name: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def is_bias(self) -> bool:
        """Whether bias regularization applies to it."""
        return self.name != "W"

    @property
    def is_pretrain(self) -> bool:
        """Whether only pretraining changes it."""
        return self.name in _PRETRAIN_PARAMS

    def view(self, flat: Array) -> Array:
        """Return the parameter as a view of the flat vector; a matrix is 'f'-ordered."""
        part = flat[self.start : self.stop]
        return part.reshape(self.shape[::-1]).T if len(self.shape) == 2 else part


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
                spans.append(ParamSpan(index, name, shape, end, end + math.prod(shape)))
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

    def check(self, what: str, flat: Array) -> None:
        """Raise ``ShapeError`` unless ``flat`` is a vector of the right length."""
        if flat.shape != (self.size,):
            raise ShapeError(
                f"{what} have shape {flat.shape}, the network has ({self.size},); was the configuration changed?"
            )
