"""Elementwise layers without parameters: activation, drop-out, zero padding.

Legacy: ``org.deeplearning4j.nn.conf.layers.ActivationLayer``, ``DropoutLayer``, ``ZeroPaddingLayer`` and
``ZeroPadding1DLayer``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from dl4jlegacy.arrays.backend import Array, get_array_module
from dl4jlegacy.errors import ConfError
from dl4jlegacy.nn.input_type import AnyInputType, InputTypeConvolutional, InputTypeRecurrent
from dl4jlegacy.nn.layers.feedforward import LayerOutput, Params, sample_activation
from dl4jlegacy.nn.layers.subsampling import ParameterlessLayer
from dl4jlegacy.nn.optimization.functions import ACTIVATIONS
from dl4jlegacy.nn.optimization.step import Step

__all__ = ["ActivationLayer", "DropoutLayer", "ZeroPadding1DLayer", "ZeroPaddingLayer"]

_ANY = ("feed_forward", "recurrent", "convolutional")


class ActivationLayer(ParameterlessLayer, tag="activation"):
    """``y = activation(x)``, for vectors, sequences and images."""

    positional = ("activation",)
    consumes = _ANY
    unused = tuple(name for name in ParameterlessLayer.unused if name != "activation")

    def forward(self, params: Params, x: Array, step: Step) -> LayerOutput:
        """Return ``y`` and the backward pass; softmax goes over channels (of sequences: over the values)."""
        xp, name = get_array_module(x), self.forward_activation()
        z = _last(self.drop(x, step), name)
        function = ACTIVATIONS[name]
        rows = z.reshape(-1, z.shape[-1])
        y = xp.ascontiguousarray(sample_activation(function, rows, step, z) if step.train else function.forward(rows))

        def backward(dy: Array, grads: Params, need_dx: bool = True) -> Array | None:
            if not need_dx:
                return None
            dz = function.backward(_last(dy, name).reshape(rows.shape), rows, y)
            return self.drop_backward(xp.ascontiguousarray(_back(dz.reshape(z.shape), name, x.ndim)), step)

        return xp.ascontiguousarray(_back(y.reshape(z.shape), name, x.ndim)), backward


def _last(x: Array, name: str) -> Array:
    """Return ``x`` with the axis that softmax sums over moved last; other activations need no particular axis order."""
    if name != "softmax" or x.ndim != 5:
        return x
    xp = get_array_module(x)
    moved: Array = xp.ascontiguousarray(xp.moveaxis(x, 1, -1))
    return moved


def _back(x: Array, name: str, dimensions: int) -> Array:
    if name != "softmax" or dimensions != 5:
        return x
    moved: Array = get_array_module(x).moveaxis(x, -1, 1)
    return moved


class DropoutLayer(ParameterlessLayer, tag="dropout"):
    """A layer that only applies drop-out: ``drop_out`` is the probability that a value is retained."""

    consumes = _ANY

    def forward(self, params: Params, x: Array, step: Step) -> LayerOutput:
        """Return ``x`` after drop-out, and the backward pass."""

        def backward(dy: Array, grads: Params, need_dx: bool = True) -> Array | None:
            return self.drop_backward(dy, step) if need_dx else None

        return self.drop(x, step), backward


class ZeroPaddingLayer(ParameterlessLayer, tag="zero_padding"):
    """Adds zeros around images: ``padding`` is (top, bottom, left, right)."""

    positional = ("padding",)
    repeated: ClassVar[Mapping[str, int]] = {"padding": 4}
    consumes = ("convolutional",)

    padding: tuple[int, int, int, int] = (0, 0, 0, 0)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_padding(self.title(), self.padding)

    def output_type(self, given: AnyInputType) -> AnyInputType:
        """Return larger images."""
        assert isinstance(given, InputTypeConvolutional)
        top, bottom, left, right = self.padding
        return msgspec.structs.replace(given, height=given.height + top + bottom, width=given.width + left + right)

    def forward(self, params: Params, x: Array, step: Step) -> LayerOutput:
        """Return the padded images and the backward pass."""
        top, bottom, left, right = self.padding
        height, width = x.shape[2], x.shape[3]
        y = step.buffer("y", (*x.shape[:2], height + top + bottom, width + left + right, x.shape[4]), x)
        y[...] = 0
        y[:, :, top : top + height, left : left + width] = self.drop(x, step)

        def backward(dy: Array, grads: Params, need_dx: bool = True) -> Array | None:
            if not need_dx:
                return None
            return self.drop_backward(dy[:, :, top : top + height, left : left + width].copy(), step)

        return y, backward


class ZeroPadding1DLayer(ParameterlessLayer, tag="zero_padding1d"):
    """Adds time steps of zeros before and after sequences: ``padding`` is (before, after)."""

    positional = ("padding",)
    repeated: ClassVar[Mapping[str, int]] = {"padding": 2}
    consumes = ("recurrent",)

    padding: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_padding(self.title(), self.padding)

    def output_type(self, given: AnyInputType) -> AnyInputType:
        """Return longer sequences."""
        assert isinstance(given, InputTypeRecurrent)
        steps = given.timesteps + sum(self.padding) if given.timesteps else 0
        return msgspec.structs.replace(given, timesteps=steps)

    def forward_mask(self, mask: Array | None, step: Step) -> Array | None:
        """Return the mask; padded time steps are not masked, as in DL4J."""
        if mask is None:
            return None
        return self._padded(mask, 1)

    def forward(self, params: Params, x: Array, step: Step) -> LayerOutput:
        """Return the padded sequences and the backward pass."""
        before, steps = self.padding[0], len(x)

        def backward(dy: Array, grads: Params, need_dx: bool = True) -> Array | None:
            return self.drop_backward(dy[before : before + steps].copy(), step) if need_dx else None

        return self._padded(self.drop(x, step), 0), backward

    def _padded(self, x: Array, fill: int) -> Array:
        """Return ``x (time steps, ...)`` with ``fill`` before and after it."""
        before, after = self.padding
        padded: Array = get_array_module(x).empty((before + len(x) + after, *x.shape[1:]), x.dtype)
        padded[:before] = fill
        padded[before : before + len(x)] = x
        padded[before + len(x) :] = fill
        return padded


def _check_padding(title: str, padding: tuple[int, ...]) -> None:
    if min(padding) < 0:
        raise ConfError(f"{title}: padding is {'x'.join(map(str, padding))}; it must not be negative")
