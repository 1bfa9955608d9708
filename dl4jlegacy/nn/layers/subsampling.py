"""Pooling over windows of images and sequences, and over whole images and sequences.

Padding holds no values: a maximum never picks padding and an average does not count it, as in Deeplearning4j 1.0.0.
Legacy: ``org.deeplearning4j.nn.conf.layers.SubsamplingLayer``, ``Subsampling1DLayer`` and ``GlobalPoolingLayer``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Self, get_args

import msgspec
import numpy as np

from dl4jlegacy.arrays.backend import Array, get_array_module
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.errors import ConfError
from dl4jlegacy.kernels.elementary import integer_power, positive_power
from dl4jlegacy.nn.input_type import AnyInputType, InputTypeConvolutional, InputTypeFeedForward, InputTypeRecurrent
from dl4jlegacy.nn.layers.feedforward import PARAMETER_FIELDS, FeedForwardLayer, LayerOutput, Params, ParamShapes
from dl4jlegacy.nn.layers.windows import PAIRS, Mode, check_window, image_windows, time_window
from dl4jlegacy.nn.optimization.step import Step

__all__ = ["GlobalPoolingLayer", "ParameterlessLayer", "Pooling", "Subsampling1DLayer", "SubsamplingLayer"]

Pooling = Literal["max", "avg", "pnorm", "sum"]
_SMALL = 1e-8


class ParameterlessLayer(FeedForwardLayer):
    """Base of layers without parameters: ``n_out`` is ``n_in``, and there is nothing to initialise or to update."""

    positional: ClassVar[tuple[str, ...]] = ()
    unused: ClassVar[tuple[str, ...]] = ("activation", *PARAMETER_FIELDS)

    def with_input(self, given: AnyInputType) -> Self:
        """Return the layer with ``n_out = n_in``."""
        size = given.n_in
        return super(ParameterlessLayer, msgspec.structs.replace(self, n_out=size)).with_input(given)

    def output_type(self, given: AnyInputType) -> AnyInputType:
        """Return ``given``: the output has the type of the input."""
        return given

    def param_shapes(self) -> ParamShapes:
        """Return (): the layer has no parameters."""
        return ()

    def init_params(self, params: Params, stream: Stream) -> None:
        """Do nothing."""


class _Pooling(ParameterlessLayer):
    positional: ClassVar[tuple[str, ...]] = ("kernel_size", "stride")
    pooling_type: Pooling = "max"
    pnorm: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self.resolve("pooling_type", get_args(Pooling))
        if self.pnorm < 1:
            raise ConfError(f"{self.title()}: pnorm is {self.pnorm}; it must be at least 1")


def _check_padding(title: str, kernel: tuple[int, ...], padding: tuple[int, ...]) -> None:
    """Raise ``ConfError`` if a window may lie wholly in the padding, where there is nothing to pool."""
    if any(around >= size for size, around in zip(kernel, padding, strict=True)):
        sizes = ["x".join(map(str, given)) for given in (padding, kernel)]
        raise ConfError(
            f"{title}: padding is {sizes[0]} and kernel_size {sizes[1]}: windows would lie wholly in the padding, "
            "where there is nothing to pool; give less padding than kernel_size"
        )


class SubsamplingLayer(_Pooling, tag="subsampling"):
    """Pooling of images: the maximum, mean, sum or p-norm of every window, for each channel."""

    repeated: ClassVar[Mapping[str, int]] = PAIRS
    consumes = ("convolutional",)

    kernel_size: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (2, 2)
    padding: tuple[int, int] = (0, 0)
    convolution_mode: Mode = "truncate"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_window(self.title(), self, 2)
        _check_padding(self.title(), self.kernel_size, self.padding)

    def output_type(self, given: AnyInputType) -> AnyInputType:
        """Return the type of smaller images with the same number of channels."""
        assert isinstance(given, InputTypeConvolutional)
        rows, columns = image_windows(self, (given.height, given.width))
        return msgspec.structs.replace(given, height=rows.out, width=columns.out)

    def forward(self, params: Params, x: Array, step: Step) -> LayerOutput:
        """Return ``y (tiles, channels, out height, out width, lanes)`` and the backward pass."""
        rows, columns = image_windows(self, (x.shape[2], x.shape[3]))
        x = self.drop(x, step)
        y = step.buffer("y", (*x.shape[:2], rows.out, columns.out, x.shape[4]), x)
        winners = step.buffer("winners", y.shape, x, np.int32)
        place = (self.kernel_size, self.stride, (rows.before, columns.before))
        step.kernels.pool_forward(x, y, winners, *place, self.pooling_type, float(self.pnorm))

        def backward(dy: Array, grads: Params, need_dx: bool = True) -> Array | None:
            if not need_dx:
                return None
            dx = step.buffer("dx", x.shape, x)
            step.kernels.pool_backward(dy, x, y, winners, dx, *place, self.pooling_type, float(self.pnorm))
            return self.drop_backward(dx, step)

        return y, backward


class Subsampling1DLayer(_Pooling, tag="subsampling1d"):
    """Pooling along the time axis of sequences; masked time steps hold no values, like padding."""

    consumes = ("recurrent",)

    kernel_size: int = 1
    stride: int = 2
    padding: int = 0
    convolution_mode: Mode = "truncate"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_window(self.title(), self, 1)
        _check_padding(self.title(), (self.kernel_size,), (self.padding,))

    def output_type(self, given: AnyInputType) -> AnyInputType:
        """Return shorter sequences."""
        assert isinstance(given, InputTypeRecurrent)
        steps = time_window(self, given.timesteps).out if given.timesteps else 0
        return msgspec.structs.replace(given, timesteps=steps)

    def forward_mask(self, mask: Array | None, step: Step) -> Array | None:
        """Return a mask that is 1 where the window covers an unmasked time step; see ``Window.reduced_mask``."""
        return None if mask is None else time_window(self, len(mask)).reduced_mask(mask)

    def forward(self, params: Params, x: Array, step: Step) -> LayerOutput:
        """Return ``y (out steps, examples, n)`` and the backward pass."""
        window = time_window(self, len(x))
        seen = window.unfold(self.drop(x, step))  # (out, examples, kernel, n)
        mask = get_array_module(x).ones(x.shape[:2], x.dtype) if step.mask is None else step.mask
        valid = window.unfold(mask[:, :, None]) > 0
        y, slope = pooled(seen, valid, 2, self.pooling_type, self.pnorm)
        on = self.forward_mask(step.mask, step)
        if on is not None:
            y *= on[:, :, None]
            slope *= on[:, :, None, None]

        def backward(dy: Array, grads: Params, need_dx: bool = True) -> Array | None:
            if not need_dx:
                return None
            return self.drop_backward(window.fold(dy[:, :, None] * slope, x.shape), step)

        return y, backward


def pooled(x: Array, valid: Array, axis: int, kind: Pooling, p: int) -> tuple[Array, Array]:
    """Return the pooled values of ``x`` along ``axis`` where ``valid``, and the share of each value in their gradient.

    Where nothing is valid, result and gradient are 0.
    """
    xp = get_array_module(x)
    weight = xp.broadcast_to(valid, x.shape).astype(x.dtype)
    if kind == "max":
        winner = xp.expand_dims(xp.where(valid, x, -xp.inf).argmax(axis=axis), axis)
        places = xp.arange(x.shape[axis]).reshape((-1,) + (1,) * (x.ndim - axis - 1))
        slope = (places == winner).astype(x.dtype)
        slope *= weight
        return xp.ascontiguousarray((xp.where(valid, x, 0) * slope).sum(axis=axis)), slope
    if kind == "pnorm":
        powers = integer_power(xp.abs(x), p) * weight
        y: Array = positive_power(powers.sum(axis=axis), 1 / p)
        below = xp.expand_dims(xp.maximum(integer_power(y, p - 1), x.dtype.type(_SMALL)), axis)
        return y.astype(x.dtype, copy=False), xp.sign(x) * integer_power(xp.abs(x), p - 1) * weight / below
    if kind == "avg":
        weight /= xp.maximum(weight.sum(axis=axis, keepdims=True), 1)
    return xp.ascontiguousarray((x * weight).sum(axis=axis)), weight


class GlobalPoolingLayer(_Pooling, tag="global_pooling"):
    """Pooling over all unmasked time steps of a sequence, or all places of an image; one value per channel remains.

    With ``collapse_dimensions`` the result is a vector; without, it is an image of one place, or a sequence of one
    time step.
    """

    positional = ("pooling_type",)
    consumes = ("recurrent", "convolutional")

    collapse_dimensions: bool = True

    def output_type(self, given: AnyInputType) -> AnyInputType:
        """Return the type of vectors, or of images or sequences of size 1."""
        if isinstance(given, InputTypeConvolutional):
            if self.collapse_dimensions:
                return InputTypeFeedForward(size=given.channels, sequences=given.sequences)
            return msgspec.structs.replace(given, height=1, width=1)
        if self.collapse_dimensions:
            return InputTypeFeedForward(size=given.n_in)
        return InputTypeRecurrent(size=given.n_in, timesteps=1)

    def forward_mask(self, mask: Array | None, step: Step) -> Array | None:
        """Return None: the pooled output has no masked time steps."""
        return None

    def forward(self, params: Params, x: Array, step: Step) -> LayerOutput:
        """Return ``y`` and the backward pass."""
        return self._sequences(x, step) if x.ndim == 3 else self._images(x, step)

    def _sequences(self, x: Array, step: Step) -> LayerOutput:
        mask = get_array_module(x).ones(x.shape[:2], x.dtype) if step.mask is None else step.mask
        y, slope = pooled(self.drop(x, step), mask[:, :, None] > 0, 0, self.pooling_type, self.pnorm)

        def backward(dy: Array, grads: Params, need_dx: bool = True) -> Array | None:
            return self.drop_backward(slope * dy.reshape(1, *y.shape), step) if need_dx else None

        return y if self.collapse_dimensions else y[None], backward

    def _images(self, x: Array, step: Step) -> LayerOutput:
        xp = get_array_module(x)
        places = self.drop(x, step).reshape(*x.shape[:2], -1, x.shape[4])
        y, slope = pooled(places, xp.ones((1, 1, 1, 1), bool), 2, self.pooling_type, self.pnorm)
        tiled = y.reshape(*y.shape[:2], 1, 1, y.shape[2])
        rows = xp.empty((step.rows, y.shape[1]), x.dtype)
        if self.collapse_dimensions:
            step.kernels.untile(tiled, rows)

        def backward(dy: Array, grads: Params, need_dx: bool = True) -> Array | None:
            if not need_dx:
                return None
            if self.collapse_dimensions:
                step.kernels.tile(xp.ascontiguousarray(dy), tiled)
                dy = tiled
            return self.drop_backward((slope * dy.reshape(*y.shape[:2], 1, -1)).reshape(x.shape), step)

        return rows if self.collapse_dimensions else tiled, backward
