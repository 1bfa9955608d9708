"""Convolution of images and of sequences.

Parameters in DL4J's order: ``b (n_out,)`` first, then ``W (n_out, n_in, height, width)`` in 'c' order. As in DL4J, the
operation is a cross-correlation: kernels are not flipped. Legacy:
``org.deeplearning4j.nn.conf.layers.ConvolutionLayer`` and ``Convolution1DLayer``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from dl4jlegacy.arrays.backend import Array, get_array_module
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.kernels.protocol import FUSED_ACTIVATIONS, MOST_PLACES, host_kernels
from dl4jlegacy.nn.input_type import AnyInputType, InputTypeConvolutional, InputTypeRecurrent
from dl4jlegacy.nn.layers.feedforward import FeedForwardLayer, LayerOutput, Params, ParamShapes, sample_activation
from dl4jlegacy.nn.layers.subsampling import SubsamplingLayer
from dl4jlegacy.nn.layers.windows import PAIRS, Mode, Window, check_window, image_windows, time_window
from dl4jlegacy.nn.optimization.functions import ACTIVATIONS
from dl4jlegacy.nn.optimization.step import Step
from dl4jlegacy.nn.optimization.weights import fill_weights

__all__ = ["Convolution1DLayer", "ConvolutionLayer", "is_pooled"]


class _Convolution(FeedForwardLayer):
    def _kernel(self) -> tuple[int, int]:
        raise NotImplementedError

    def _strides(self) -> tuple[int, int]:
        raise NotImplementedError

    def param_shapes(self) -> ParamShapes:
        """Return ``b (n_out,)``, then ``W (n_out, n_in, height, width)``."""
        return (("b", (self.n_out,)), ("W", (self.n_out, self.n_in, *self._kernel())))

    def init_params(self, params: Params, stream: Stream) -> None:
        """Fill ``params``; fans as in DL4J: the inputs of one output, and the outputs of one input at the stride."""
        (kh, kw), (sh, sw) = self._kernel(), self._strides()
        fan_out, kind = max(1, self.n_out * kh * kw // (sh * sw)), self.weight_init or "xavier"
        fill_weights(params["W"], kind, self.n_in * kh * kw, fan_out, stream, distribution=self.dist)
        params["b"][...] = self.bias_init or 0.0


class ConvolutionLayer(_Convolution, tag="convolution"):
    """Convolution of images: ``y = activation(x * W + b)``; sizes are (height, width).

    ``convolution_mode``: "truncate" drops rows and columns that no whole kernel covers, "strict" raises an error for
    them, "same" pads so that the output has ``ceil(input / stride)`` rows and columns (``padding`` must then be 0).
    """

    positional = ("n_out", "kernel_size")
    repeated: ClassVar[Mapping[str, int]] = PAIRS
    consumes = ("convolutional",)

    kernel_size: tuple[int, int] = (5, 5)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    convolution_mode: Mode = "truncate"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_window(self.title(), self, 2)

    def _kernel(self) -> tuple[int, int]:
        return self.kernel_size

    def _strides(self) -> tuple[int, int]:
        return self.stride

    def output_type(self, given: AnyInputType) -> AnyInputType:
        """Return images of ``n_out`` channels."""
        assert isinstance(given, InputTypeConvolutional)
        rows, columns = image_windows(self, (given.height, given.width))
        return InputTypeConvolutional(
            height=rows.out, width=columns.out, channels=self.n_out, sequences=given.sequences
        )

    def forward(self, params: Params, x: Array, step: Step) -> LayerOutput:
        """Return ``y (tiles, n_out, out height, out width, lanes)`` and the backward pass."""
        windows = image_windows(self, (x.shape[2], x.shape[3]))
        padded = _padded(self.drop(x, step), windows, step)
        name = self.forward_activation()
        y = step.buffer("y", (len(x), self.n_out, windows[0].out, windows[1].out, x.shape[4]), x)
        step.kernels.conv_forward(padded, params["W"], params["b"], y, self.stride, self.dilation, name == "relu")
        kept = _activate(y, name, step)

        def backward(dy: Array, grads: Params, need_dx: bool = True) -> Array | None:
            if name in FUSED_ACTIVATIONS:
                step.kernels.channel_backward(dy, y, grads["b"], name)
            else:
                dy = ACTIVATIONS[name].backward(dy, kept, y)
                step.kernels.channel_backward(dy, y, grads["b"], "identity")
            step.kernels.conv_backward_weights(padded, dy, grads["W"], self.stride, self.dilation)
            return self._input_gradient(params["W"], dy, x, windows, step) if need_dx else None

        return y, backward

    def forward_pooled(self, pool: SubsamplingLayer, params: Params, x: Array, step: Step) -> LayerOutput:
        """Return the output of the pooling layer ``pool`` behind this layer, and the backward pass of both layers.

        The output of this layer is never stored as a whole. See ``is_pooled`` for when this is possible.
        """
        windows, behind, host = (
            image_windows(self, (x.shape[2], x.shape[3])),
            step.at(step.layer + 1),
            host_kernels(step.kernels),
        )
        assert host is not None
        padded, relu = _padded(self.drop(x, step), windows, step), self.forward_activation() == "relu"
        shape = (windows[0].out, windows[1].out)
        rows, columns = image_windows(pool, shape)
        y = behind.buffer("y", (len(x), self.n_out, rows.out, columns.out, x.shape[4]), x)
        winners = behind.buffer("winners", y.shape, x, np.uint8)
        how, pooling = (
            (self.stride, self.dilation),
            (shape, pool.kernel_size, pool.stride, (rows.before, columns.before)),
        )
        host.conv_pool_forward(padded, params["W"], params["b"], y, winners, *how, relu, pooling)

        def backward(dy: Array, grads: Params, need_dx: bool = True) -> Array | None:
            dx = step.buffer("dx", padded.shape, x) if need_dx else None
            host.conv_pool_backward(padded, params["W"], dy, winners, grads["W"], grads["b"], dx, *how, pooling)
            return None if dx is None else self._unpadded(dx, x, windows, step)

        return y, backward

    def _input_gradient(self, W: Array, dz: Array, x: Array, windows: tuple[Window, Window], step: Step) -> Array:
        dx = step.buffer("dx", (*x.shape[:2], windows[0].padded, windows[1].padded, x.shape[4]), x)
        step.kernels.conv_backward_input(dz, W, dx, self.stride, self.dilation)
        return self._unpadded(dx, x, windows, step)

    def _unpadded(self, dx: Array, x: Array, windows: tuple[Window, Window], step: Step) -> Array:
        """Return the gradient of ``x``, given the gradient of ``x`` after drop-out and padding."""
        rows, columns = windows
        if dx.shape != x.shape:
            whole = dx[:, :, rows.before : rows.before + rows.size, columns.before : columns.before + columns.size]
            dx = step.buffer("dx_cropped", x.shape, x)
            dx[...] = whole
        return self.drop_backward(dx, step)


def is_pooled(layer: FeedForwardLayer, behind: FeedForwardLayer) -> bool:
    """Return whether ``layer`` can be fused with ``behind``: max pooling of its identity or ReLU output."""
    return (
        isinstance(layer, ConvolutionLayer)
        and isinstance(behind, SubsamplingLayer)
        and layer.forward_activation() in ("identity", "relu")
        and behind.pooling_type == "max"
        and math.prod(behind.kernel_size) <= MOST_PLACES
        and not (behind.drop_out or layer.frozen or behind.frozen)
    )


def _padded(x: Array, windows: tuple[Window, Window], step: Step) -> Array:
    """Return ``x`` with a border of zeros, or ``x`` itself if no border is needed."""
    rows, columns = windows
    shape = (*x.shape[:2], rows.padded, columns.padded, x.shape[4])
    if shape == x.shape:
        return x
    padded = step.buffer("padded", shape, x)
    padded[...] = 0
    padded[:, :, rows.before : rows.before + rows.size, columns.before : columns.before + columns.size] = x
    return padded


def _activate(y: Array, name: str, step: Step) -> Array:
    """Apply the activation unless the kernel did; return the array its backward pass needs besides ``y``."""
    if name in ("identity", "relu"):
        return y
    if name in FUSED_ACTIVATIONS:
        lanes = y.shape[-1]
        zeros = get_array_module(y).zeros(lanes, y.dtype)
        step.kernels.bias_activation(y.reshape(-1, lanes), zeros, name)
        return y
    function, z = ACTIVATIONS[name], y.copy()
    y[...] = sample_activation(function, z, step) if step.train else function.forward(z)
    return z


class Convolution1DLayer(_Convolution, tag="convolution1d"):
    """Convolution along the time axis of sequences; sizes are one number instead of the pair of ``ConvolutionLayer``.

    Masked time steps count as zero. If the output has the input's length at stride 1, it has the input's mask.
    Otherwise a time step is masked if its window covers only masked time steps. ``W`` is
    ``(n_out, n_in, kernel_size, 1)``.
    """

    positional = ("n_out", "kernel_size")
    consumes = ("recurrent",)

    kernel_size: int = 5
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    convolution_mode: Mode = "truncate"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_window(self.title(), self, 1)

    def _kernel(self) -> tuple[int, int]:
        return (self.kernel_size, 1)

    def _strides(self) -> tuple[int, int]:
        return (self.stride, 1)

    def output_type(self, given: AnyInputType) -> AnyInputType:
        """Return sequences of vectors of ``n_out`` values."""
        assert isinstance(given, InputTypeRecurrent)
        steps = time_window(self, given.timesteps).out if given.timesteps else 0
        return InputTypeRecurrent(size=self.n_out, timesteps=steps)

    def forward_mask(self, mask: Array | None, step: Step) -> Array | None:
        """Return a mask that is 1 where the window covers an unmasked time step; see ``Window.reduced_mask``."""
        return None if mask is None else time_window(self, len(mask)).reduced_mask(mask)

    def forward(self, params: Params, x: Array, step: Step) -> LayerOutput:
        """Return ``y (out steps, examples, n_out)`` and the backward pass: one product over the unrolled sequence."""
        xp, window, matmul = get_array_module(x), time_window(self, len(x)), step.kernels.matmul
        dropped = self.drop(x, step)
        if step.mask is not None:
            dropped = dropped * step.mask[:, :, None]
        columns = window.unfold(dropped).reshape(window.out * x.shape[1], -1)
        weights = xp.ascontiguousarray(params["W"][..., 0].transpose(2, 1, 0)).reshape(-1, self.n_out)
        z = step.buffer("z", (len(columns), self.n_out), x)
        matmul(columns, weights, z)
        name = self.forward_activation()
        z += params["b"]
        y = xp.ascontiguousarray(ACTIVATIONS[name].forward(z))
        out_mask = self.forward_mask(step.mask, step)
        shown = y.reshape(window.out, x.shape[1], self.n_out)
        if out_mask is not None:
            shown = shown * out_mask[:, :, None]

        def backward(dy: Array, grads: Params, need_dx: bool = True) -> Array | None:
            if out_mask is not None:
                dy = dy * out_mask[:, :, None]
            dz = ACTIVATIONS[name].backward(dy.reshape(z.shape), z, y)
            step.kernels.column_sums(dz, grads["b"])
            self._weight_gradient(columns, dz, grads["W"], step)
            return self._input_gradient(dz, weights, window, x.shape, step) if need_dx else None

        return shown, backward

    def _weight_gradient(self, columns: Array, dz: Array, gW: Array, step: Step) -> None:
        found = step.buffer("gW", (columns.shape[1], self.n_out), dz)
        step.kernels.matmul(columns.T, dz, found)
        gW[..., 0] = found.reshape(self.kernel_size, self.n_in, self.n_out).transpose(2, 1, 0)

    def _input_gradient(self, dz: Array, weights: Array, window: Window, shape: tuple[int, ...], step: Step) -> Array:
        columns = step.buffer("dcolumns", (len(dz), len(weights)), dz)
        step.kernels.matmul(dz, weights.T, columns)
        dx = window.fold(columns, shape)
        if step.mask is not None:
            dx *= step.mask[:, :, None]
        return self.drop_backward(dx, step)
