"""The interfaces of kernels: ``Kernels`` for every implementation, ``HostKernels`` with additional operations on a
CPU, ``DeviceKernels`` with additional operations on a GPU.

Every array is C-contiguous float32 or float64, and all arrays of one call have one dtype. Arguments that are only read
may be read-only arrays (decoded from a frame). Calls release the GIL for their whole run, and use one thread; a large
``matmul`` and an LSTM use up to ``threads.count()`` threads.

Kernels take all arguments by position: the order is that of the compiled functions and CUDA launches behind them, which
have no argument names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, Protocol, cast

import numpy as np

from dl4jlegacy.arrays.backend import Array, Scalar
from dl4jlegacy.arrays.seeding import Stream

__all__ = [
    "FUSED_ACTIVATIONS",
    "MOST_PLACES",
    "DeviceKernels",
    "HostKernels",
    "Kernels",
    "Pool",
    "device_kernels",
    "host_kernels",
]

FUSED_ACTIVATIONS = frozenset({"identity", "leakyrelu", "relu", "sigmoid", "tanh"})
"""Activations of ``bias_activation`` and ``activation_backward_bias``; use the NumPy formulas for others."""


class Kernels(Protocol):
    """Operations of all implementations. ``z, y, dy, p`` are ``(m, n)``; ``params, gradient, ...`` are flat ``(n,)``.

    Random kernels take a 64-bit ``key`` (``Stream.key``); element k of a stream depends only on (key, k), where k is
    the flat index ``i * n + j``, and is the same in all implementations.
    """

    @property
    def name(self) -> str:
        """``"numba"``, ``"numpy"`` or ``"cupy"``."""

    @property
    def xp(self) -> ModuleType:
        """The module of these kernels' arrays: numpy, or cupy."""

    def matmul(self, a: Array, b: Array, out: Array, accumulate: bool = False) -> None:
        """``out = a @ b``, or ``out += a @ b``, of matrices; each may be the transposed view of a C-ordered one.

        ``out`` overlaps neither factor.
        """

    # -- layers ------------------------------------------------------------------------------------------------------
    def bias_activation(self, z: Array, b: Array, activation: str) -> None:
        """``z = f(z + b)`` with ``b`` of shape ``(n,)`` and ``f`` one of ``FUSED_ACTIVATIONS``."""

    def activation_backward_bias(self, dy: Array, y: Array, gb: Array, activation: str) -> None:
        """``dy *= f'`` (expressed by the output ``y``), then ``gb = dy.sum(axis=0)``."""

    def column_sums(self, x: Array, out: Array) -> None:
        """``out = x.sum(axis=0)``, of ``(m, n)`` and ``(n,)``."""

    def difference_sums(self, model: Array, data: Array, copy: Array, out: Array, factor: float) -> None:
        """``out (n,) = factor (model - data).sum(axis=0)``, all ``(m, n)``; ``copy`` becomes ``data``."""

    def signed_sums(self, x: Array, half: int, out: Array, factor: float) -> None:
        """``x[:half] *= -factor``, ``x[half:] *= factor``; ``out (n,) = x.sum(axis=0)``."""

    def transpose(self, x: Array, out: Array) -> None:
        """``out = x.T`` of ``(m, n)`` and ``(n, m)``, both C-contiguous."""

    def softmax(self, z: Array) -> None:
        """Replace every row of ``z`` by its softmax."""

    def softmax_cross_entropy(self, p: Array, labels: Array, dz: Array) -> float:
        """Write ``dz = total * p - labels`` and return ``-sum(labels * log(max(p, 1e-10)))``; ``dz`` may be ``p``.

        ``total`` is the sum of a row's labels. On a GPU the result is a 0-d float64 array on the device: only reading
        it waits for the device.
        """

    def binary_cross_entropy(self, p: Array, labels: Array) -> float:
        """Return ``-sum(labels * log(q) + (1 - labels) * log(1 - q))``, ``q`` = ``p`` clipped to 1e-5 ... 1 - 1e-5."""

    def embedding_gradient(self, dz: Array, index: Array, gW: Array) -> None:
        """Write to ``gW (classes, n)`` the sums of the rows of ``dz (rows, n)`` by class, ``index (rows,)`` int64."""

    # -- tiles: images ``(tiles, channels, height, width, lanes)``, ``lanes`` examples side by side --------------------
    def lanes(self, char: str, rows: int) -> int:
        """Return the number of examples in a tile of dtype ``char``, for a batch of ``rows``."""

    def tile(self, x: Array, tiles: Array) -> None:
        """Copy ``x (rows, n)`` to ``tiles (t, ..., lanes)``, ``n`` values per lane; lanes without a row become 0."""

    def untile(self, tiles: Array, x: Array) -> None:
        """Copy the first rows of ``tiles (t, ..., lanes)`` back to ``x (rows, n)``."""

    def conv_forward(self, x: Array, W: Array, b: Array, y: Array,
                     stride: tuple[int, int], dilation: tuple[int, int], relu: bool) -> None:  # fmt: skip
        """Correlate: ``y[f, i, j] = b[f] + sum W[f, c, u, v] x[c, i sh + u dh, j sw + v dw]``; ReLU if ``relu``.

        ``x (t, c, h, w, lanes)`` already has its padding; ``y (t, f, out h, out w, lanes)``, ``W (f, c, kh, kw)``.
        """

    def conv_backward_weights(self, x: Array, dz: Array, gW: Array,
                              stride: tuple[int, int], dilation: tuple[int, int]) -> None:  # fmt: skip
        """Write the gradient of ``W``, given the gradient of ``y``; lanes without an example hold zeros in ``dz``."""

    def conv_backward_input(self, dz: Array, W: Array, dx: Array,
                            stride: tuple[int, int], dilation: tuple[int, int]) -> None:  # fmt: skip
        """Write the gradient of ``x``, padding included."""

    def channel_backward(self, dy: Array, y: Array, gb: Array, activation: str) -> None:
        """``dy *= f'`` for one of ``FUSED_ACTIVATIONS``, then ``gb`` = the sum of every channel; tiles."""

    def pool_forward(self, x: Array, y: Array, winners: Array, kernel: tuple[int, int], stride: tuple[int, int],
                     pad: tuple[int, int], kind: str, p: float = 2.0) -> None:  # fmt: skip
        """Pool windows of tiles: ``kind`` is max, avg, sum or pnorm; the ``pad`` places above and left have no values.

        ``winners``, int32 in the shape of ``y``, stores the place of each window's maximum for ``max``.
        """

    def pool_backward(self, dy: Array, x: Array, y: Array, winners: Array, dx: Array, kernel: tuple[int, int],
                      stride: tuple[int, int], pad: tuple[int, int], kind: str, p: float = 2.0) -> None:  # fmt: skip
        """Write the gradient of ``x``, given the gradient of ``y``."""

    def response_forward(self, x: Array, y: Array, below: Array, factor: Array, reach: int,
                         k: float, alpha: float, beta: float) -> None:  # fmt: skip
        """``below = k + alpha s``, ``s`` the squares of ``x`` summed over the channels at most ``reach`` away;
        ``factor = below^-beta``, ``y = x factor``. Tiles of one shape; only ``x`` is read.
        """

    def response_backward(self, dy: Array, x: Array, y: Array, below: Array, factor: Array, dx: Array, reach: int,
                          alpha: float, beta: float) -> None:  # fmt: skip
        """``dx = dy factor - 2 alpha beta x s``, where ``s`` is ``dy y / below`` summed over the channels likewise.

        ``dx`` overlaps none of the other arrays, which are the results of ``response_forward``.
        """

    # -- sequences: T time steps of N examples, n units; gates in the order i f o g (i: the block's input) -------------
    def lstm_forward(self, x: Array, W: Array, z: Array, recurrent: Array, b: Array, peepholes: Array, h: Array,
                     c: Array, a: Array, mask: Array) -> None:  # fmt: skip
        """Run an LSTM over time; with ``s = x_t W^T + h_{t-1} recurrent^T + b`` in four parts, one for each gate:

        ``i = tanh(s_i)``, ``f = sigmoid(s_f + p_f c_{t-1})``, ``g = sigmoid(s_g + p_g c_{t-1})``,
        ``c_t = f c_{t-1} + g i``, ``o = sigmoid(s_o + p_o c_t)``, ``a_t = tanh(c_t)``, ``h_t = o a_t``; then
        ``h_t`` and ``c_t`` become 0 where the mask is 0.

        Args:
            x: ``(T, N, m)``, the inputs.
            W: ``(4n, m)``.
            z: ``(T, N, 4n)``, written: the four gates' values.
            recurrent: ``(4n, n)``.
            b: ``(4n,)``.
            peepholes: ``(3n,)``: p_f, p_o, p_g; zeros for none.
            h, c: ``(T + 1, N, n)``; the first entry is the state before the sequence, the others are written.
            a: ``(T, N, n)``, written.
            mask: ``(T, N)``, ones and zeros.
        """

    def lstm_backward(self, dh: Array, x: Array, z: Array, recurrent: Array, peepholes: Array, h: Array, c: Array,
                      a: Array, mask: Array, first: int, gW: Array, gR: Array, gb: Array) -> None:  # fmt: skip
        """Turn the gates in ``z`` into the gradient ``dz`` of ``s``, for steps ``first`` to ``T - 1``, and write the
        gradients of the weights and of the bias, sums over these steps: ``gW = dz^T x``, ``gR = dz^T h``, ``gb``.

        ``dh (T, N, n)`` is the gradient of the outputs; the other arrays are the results of ``lstm_forward``. ``z``
        before step ``first`` is unchanged: truncated backpropagation does not reach it.
        """

    # -- updaters: one pass, ``params -= up``; the formulas are DL4J's, t counts from 0. Return whether all
    # parameters are finite then; on a GPU True, since to look would wait for it -------------------------------------
    def noop(self, params: Array, gradient: Array) -> bool:
        """``up = g``."""

    def sgd(self, params: Array, gradient: Array, lr: float) -> bool:
        """``up = lr g``."""

    def nesterovs(self, params: Array, gradient: Array, v: Array, lr: float, mu: float) -> bool:
        """``v' = mu v - lr g; up = mu v - (1 + mu) v'`` (Sutskever 2013, in DL4J's form)."""

    def adagrad(self, params: Array, gradient: Array, h: Array, lr: float, eps: float) -> bool:
        """``h += g^2; up = lr g / (sqrt(h) + eps)`` (Duchi 2011)."""

    def rmsprop(self, params: Array, gradient: Array, c: Array, lr: float, decay: float, eps: float) -> bool:
        """``c = decay c + (1 - decay) g^2; up = lr g / (sqrt(c) + eps)`` (Tieleman and Hinton 2012)."""

    def adam(self, params: Array, gradient: Array, m: Array, v: Array,
             lr: float, beta1: float, beta2: float, eps: float, t: int) -> bool:  # fmt: skip
        """``up = lr sqrt(1 - beta2^(t+1)) / (1 - beta1^(t+1)) m / (sqrt(v) + eps)`` (Kingma and Ba 2014)."""

    def decay(self, params: Array, factor: float) -> None:
        """``params -= factor params``: the weight decay of AdamW, whose ``factor`` changes with the learning rate."""

    def adamax(self, params: Array, gradient: Array, m: Array, u: Array,
               lr: float, beta1: float, beta2: float, eps: float, t: int) -> bool:  # fmt: skip
        """``u = max(beta2 u, |g|) + 1e-32; up = lr / (1 - beta1^(t+1)) m / u``; ``eps`` is not used (as in DL4J)."""

    def adadelta(self, params: Array, gradient: Array, msg: Array, msdx: Array, rho: float, eps: float) -> bool:
        """``up = g sqrt(msdx + eps) / sqrt(msg + eps)`` (Zeiler 2012); there is no learning rate."""

    def nadam(self, params: Array, gradient: Array, m: Array, v: Array,
              lr: float, beta1: float, beta2: float, eps: float, t: int) -> bool:  # fmt: skip
        """``up = lr (beta1 m + (1 - beta1) g) / (1 - beta1^(t+1)) / (sqrt(v) + eps)`` (Dozat 2016, v uncorrected)."""

    def amsgrad(self, params: Array, gradient: Array, m: Array, v: Array, v_hat: Array,
                lr: float, beta1: float, beta2: float, eps: float, t: int) -> bool:  # fmt: skip
        """Adam with ``v_hat = max(v_hat, v)`` in the denominator (Reddi 2018)."""

    def adabelief(self, params: Array, gradient: Array, m: Array, s: Array,
                  lr: float, beta1: float, beta2: float, eps: float, t: int) -> bool:  # fmt: skip
        """Adam with ``s = beta2 s + (1 - beta2) (g - m)^2 + eps`` in place of v (Zhuang 2020)."""

    # -- random ------------------------------------------------------------------------------------------------------
    def uniform(self, out: Array, key: int) -> None:
        """Fill ``out`` with uniforms in [0, 1), multiples of 2^-24; the same bits in all implementations."""

    def gaussian(self, out: Array, key: int) -> None:
        """Fill ``out`` with standard normals (Box and Muller 1958)."""

    def sigmoid_bias(self, z: Array, b: Array) -> None:
        """``z = sigmoid(z + b)``: ``bias_activation`` for the RBM's mean-field passes."""

    def sigmoid_sample(self, z: Array, b: Array, probability: Array, sample: Array, key: int) -> None:
        """``probability = sigmoid(z + b)``, ``sample = 1 if u < probability else 0``.

        ``probability`` may be ``z``; ``sample`` may be ``z`` or ``probability`` too if the probability is not needed.
        """

    def dropout(self, x: Array, out: Array, retain: float, key: int) -> None:
        """``out = x / retain`` where ``u < retain``, else 0 (inverted drop-out); ``out`` may be ``x``."""

    def dropout_backward(self, dy: Array, retain: float, key: int) -> None:
        """Apply the mask of ``dropout`` with the same ``retain`` and ``key`` to ``dy``."""

    def corrupt(self, x: Array, out: Array, level: float, key: int) -> None:
        """``out = 0`` where ``u < level``, else ``x`` (masking noise, Vincent 2008)."""

    # -- flat vectors ------------------------------------------------------------------------------------------------
    def weighted_sum(self, vectors: Sequence[Array], weights: Sequence[float], out: Array,
                     pool: Executor | None = None) -> None:  # fmt: skip
        """``out = weights[0] * vectors[0] + weights[1] * vectors[1] + ...``, strictly in this order.

        Large vectors are cut into fixed blocks for ``pool``; the bits depend neither on the pool nor on the
        implementation. ``out`` may be ``vectors[0]``, but no other one.
        """

    def axpy(self, y: Array, x: Array, a: float) -> None:
        """``y += a x``."""

    def add_regularization(self, gradient: Array, params: Array, l1: float, l2: float) -> None:
        """``gradient += l2 params + l1 sign(params)``."""

    def all_finite(self, x: Array) -> bool:
        """Return whether ``x`` holds neither NaN nor infinity; on a GPU this waits for the device."""

    # -- threshold codec: what is sent of a vector is one quantum +-tau for each element of at least that size ---------
    def threshold_encode(self, residual: Array, tau: float, codes: Array, pool: Executor | None = None) -> int:
        """Subtract one quantum from every element with ``|x| >= tau`` and write its code; return the number of codes.

        In ascending order of the index ``i``, ``+(i + 1)`` or ``-(i + 1)`` is written to ``codes`` (int32), and
        ``sign(x) tau`` is subtracted from ``residual (n,)``. At most the first ``codes.size`` elements are encoded; the
        others remain for the next call. Large vectors are cut into blocks for ``pool`` if all their codes fit; the bits
        do not depend on the pool, but the elements of ``codes`` after the returned number are then undefined. On a GPU
        this waits for the device.

        Raises:
            ConfError: ``tau`` is not positive.
            ShapeError: arrays that do not fit, or 2^31 elements and more.
        """

    def threshold_decode(self, codes: Array, tau: float, target: Array) -> None:
        """``target[|c| - 1] += sign(c) tau`` for every code ``c`` of ``threshold_encode``.

        On a GPU this waits for the device.

        Raises:
            ConfError: ``tau`` is not positive.
            ShapeError: codes do not ascend in absolute value, or lie outside; nothing was added then.
        """

    def rice_encode(self, codes: Array, size: int) -> Array:
        """Return the smallest Golomb-Rice message for codes of ``threshold_encode`` for ``size`` elements.

        Codes ``(count,)``, int32, and message ``(bytes,)``, uint8, are in the host's memory for all kernels; see
        ``numpy.rice`` for the format.

        Raises:
            ShapeError: codes do not ascend in absolute value, or lie outside.
        """

    def rice_decode(self, payload: Array, count: int, size: int) -> Array:
        """Return the codes ``(count,)``, int32, of such a message; the memory used is proportional to its bytes.

        Raises:
            WireError: not a message with ``count`` codes of ``size`` elements; says which value differs.
        """


Pool = tuple[tuple[int, int], tuple[int, int], tuple[int, int], tuple[int, int]]
"""Rows and columns of the pooled plane, of the window, of its stride, and of the padding above and left."""


MOST_PLACES = 255
"""Largest number of places in a window for one-byte winners; this value itself means: no winner."""


class HostKernels(Kernels, Protocol):
    """Additional operations of kernels on a CPU: a convolution with immediate pooling, whose output is never stored."""

    def conv_pool_forward(self, x: Array, W: Array, b: Array, y: Array, winners: Array, stride: tuple[int, int],
                          dilation: tuple[int, int], relu: bool, pool: Pool) -> None:  # fmt: skip
        """``conv_forward``, then ``pool_forward`` of the kind max, to ``y`` and ``winners``; the same bits.

        ``winners``, uint8, is the place of each window's maximum; ``MOST_PLACES`` means none, where ``relu`` passes no
        value. A window has at most ``MOST_PLACES`` places.
        """

    def conv_pool_backward(self, x: Array, W: Array, dy: Array, winners: Array, gW: Array, gb: Array,
                           dx: Array | None, stride: tuple[int, int], dilation: tuple[int, int],
                           pool: Pool) -> None:  # fmt: skip
        """Write the gradients of weights, biases and, unless ``dx`` is None, of ``x``, given the gradient of ``y``.

        The bits are the same as those of ``pool_backward``, ``channel_backward``, ``conv_backward_weights`` and
        ``conv_backward_input`` in sequence.
        """


class DeviceKernels(Kernels, Protocol):
    """Additional operations of kernels on a GPU: their own stream, captured steps, and kernels that fuse more."""

    @property
    def captures(self) -> bool:
        """Whether to capture training steps into CUDA graphs."""

    def use(self) -> AbstractContextManager[None]:
        """Make the device current on this thread, with these kernels' own stream, ordered with the outer one."""

    def synchronize(self) -> None:
        """Wait until all work launched by this thread is done."""

    def capture(self, run: Callable[[Any], Any], stream: Stream, buffers: Callable[[], Sequence[Array]]) -> Any:
        """Return a step as a CUDA graph for repeated launches, and its result; see ``cuda.graph``."""

    def updater_scalars(self, updates: Callable[[], None]) -> list[float]:
        """Return the scalars used by the updaters that ``updates`` calls; nothing is launched."""

    def softmax_loss(self, z: Array, b: Array, labels: Array, dz: Array, gb: Array, scale: float) -> Scalar:
        """Turn ``z (m, n)`` plus ``b (n,)`` into softmax probabilities and return the cross-entropy.

        ``labels (m, n)``; ``dz = scale (total p - labels)``, ``total`` the sum of a row's labels, and ``gb (n,)`` the
        sum of ``dz`` over the rows.
        """


def device_kernels(kernels: Kernels) -> DeviceKernels | None:
    """Return ``kernels`` if they are a GPU's, else None."""
    return None if kernels.xp is np else cast(DeviceKernels, kernels)


def host_kernels(kernels: Kernels) -> HostKernels | None:
    """Return ``kernels`` if they are a CPU's, else None."""
    return cast(HostKernels, kernels) if kernels.xp is np else None
