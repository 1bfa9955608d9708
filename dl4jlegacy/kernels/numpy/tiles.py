"""Images as tiles in plain NumPy: the reference for ``numba.tiles``, also used in float64 or without Numba.

Arrays are ``(tiles, channels, height, width, lanes)`` as in ``Kernels``; every function works for any number of lanes.
With the examples innermost, unrolling a convolution is one copy of long runs for each place of the kernel, and the
product with the weights already has the next layer's layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import ConfError, nearest
from dl4jlegacy.kernels.elementary import positive_power
from dl4jlegacy.kernels.protocol import MOST_PLACES, Pool

__all__ = [
    "POOLINGS",
    "conv_backward_input",
    "conv_backward_weights",
    "conv_forward",
    "conv_pool_backward",
    "conv_pool_forward",
    "lanes",
    "pool_backward",
    "pool_forward",
    "tile",
    "untile",
]

POOLINGS = ("avg", "max", "pnorm", "sum")
_LANES = 32  # examples a tile: long runs for NumPy's loops, small enough for the second-level cache
_SMALL = 1e-8  # DL4J's eps: what a p-norm is divided by at least

Pair = tuple[int, int]
Matmul = Callable[[Array, Array, Array], Any]


def lanes(char: str, rows: int) -> int:
    """See ``Kernels``."""
    return max(1, min(rows, _LANES))


def tile(x: Array, tiles: Array) -> None:
    """See ``Kernels``."""
    width = tiles.shape[-1]
    for index in range(len(tiles)):
        part = x[index * width : (index + 1) * width]
        flat = tiles[index].reshape(-1, width)
        flat[:, : len(part)] = part.T
        flat[:, len(part) :] = 0


def untile(tiles: Array, x: Array) -> None:
    """See ``Kernels``."""
    width = tiles.shape[-1]
    for index in range(-(-len(x) // width)):
        part = x[index * width : (index + 1) * width]
        part[...] = tiles[index].reshape(-1, width)[:, : len(part)].T


def _places(kernel: Pair, out: Pair, stride: Pair, dilation: Pair) -> Iterator[tuple[int, int, slice, slice]]:
    """Yield every place of the kernel, and the rows and columns of the input under it."""
    for ky in range(kernel[0]):
        for kx in range(kernel[1]):
            top, left = ky * dilation[0], kx * dilation[1]
            rows = slice(top, top + (out[0] - 1) * stride[0] + 1, stride[0])
            yield ky, kx, rows, slice(left, left + (out[1] - 1) * stride[1] + 1, stride[1])


def _columns(x: Array, W: Array, y: Array, stride: Pair, dilation: Pair) -> Array:
    """Return one tile unrolled: ``(C * kh * kw, OH * OW * lanes)``."""
    kernel, out = (W.shape[2], W.shape[3]), (y.shape[1], y.shape[2])
    columns = np.empty((x.shape[0], *kernel, *out, x.shape[3]), x.dtype)
    for ky, kx, rows, cols in _places(kernel, out, stride, dilation):
        columns[:, ky, kx] = x[:, rows, cols]
    return columns.reshape(W[0].size, -1)


def conv_forward(
    x: Array, W: Array, b: Array, y: Array, stride: Pair, dilation: Pair, relu: bool, matmul: Matmul = np.matmul
) -> None:
    """See ``Kernels``."""
    weights = W.reshape(len(W), -1)
    for index in range(len(x)):
        columns = _columns(x[index], W, y[index], stride, dilation)
        matmul(weights, columns, y[index].reshape(len(W), -1))
    y += b[:, None, None, None]
    if relu:
        np.maximum(y, 0, out=y)


def conv_backward_weights(
    x: Array, dz: Array, gW: Array, stride: Pair, dilation: Pair, matmul: Matmul = np.matmul
) -> None:
    """See ``Kernels``."""
    total, found = np.zeros((2, len(gW), gW[0].size), x.dtype)
    for index in range(len(x)):
        columns = _columns(x[index], gW, dz[index], stride, dilation)
        matmul(dz[index].reshape(len(gW), -1), columns.T, found)
        total += found
    gW[...] = total.reshape(gW.shape)


def conv_backward_input(
    dz: Array, W: Array, dx: Array, stride: Pair, dilation: Pair, matmul: Matmul = np.matmul
) -> None:
    """See ``Kernels``."""
    dx[...] = 0
    weights = W.reshape(len(W), -1).T
    for index in range(len(dz)):
        shape = (*W.shape[1:], *dz.shape[2:])
        columns = np.empty(shape, dz.dtype)
        matmul(weights, dz[index].reshape(len(W), -1), columns.reshape(len(weights), -1))
        for ky, kx, rows, cols in _places((shape[1], shape[2]), (shape[3], shape[4]), stride, dilation):
            dx[index][:, rows, cols] += columns[:, ky, kx]


def _windows(
    x: Array, y: Array, kernel: Pair, stride: Pair, pad: Pair
) -> Iterator[tuple[int, tuple[slice, ...], tuple[slice, ...]]]:
    """Yield every place of the window, the part of ``x`` under it, and the corresponding part of ``y``."""
    for code in range(kernel[0] * kernel[1]):
        inside, outside = [slice(None)] * 2, [slice(None)] * 2
        for axis, place in enumerate(divmod(code, kernel[1])):
            shift = place - pad[axis]
            first = max(0, -(shift // stride[axis]))
            last = min(y.shape[2 + axis] - 1, (x.shape[2 + axis] - 1 - shift) // stride[axis])
            start = first * stride[axis] + shift
            inside.append(slice(start, start + max(0, last - first) * stride[axis] + 1, stride[axis]))
            outside.append(slice(first, last + 1))
            if last < first:
                inside[-1] = slice(0, 0)
        yield code, tuple(inside), tuple(outside)


def _counts(x: Array, y: Array, kernel: Pair, stride: Pair, pad: Pair) -> Array:
    """Return the number of values in each window, without padding: ``(OH, OW, 1)``."""
    counts = np.zeros((1, 1, *y.shape[2:4], 1), y.dtype)
    for _, _, outside in _windows(x, y, kernel, stride, pad):
        counts[outside] += 1
    result: Array = counts[0, 0]
    return result


def _check_kind(kind: str) -> None:
    if kind not in POOLINGS:
        raise ConfError(f"unknown pooling {kind!r}{nearest(kind, POOLINGS)}")


def pool_forward(
    x: Array, y: Array, winners: Array, kernel: Pair, stride: Pair, pad: Pair, kind: str, p: float = 2.0
) -> None:
    """See ``Kernels``."""
    _check_kind(kind)
    y[...] = -np.inf if kind == "max" else 0
    winners[...] = 0
    for code, inside, outside in _windows(x, y, kernel, stride, pad):
        values, total = x[inside], y[outside]
        if kind == "max":
            better = values > total
            np.copyto(total, values, where=better)
            np.copyto(winners[outside], code, where=better)
        else:
            total += positive_power(np.abs(values), p) if kind == "pnorm" else values
    if kind == "avg":
        y /= _counts(x, y, kernel, stride, pad)
    elif kind == "pnorm":
        y[...] = positive_power(y, 1 / p)


def pool_backward(
    dy: Array, x: Array, y: Array, winners: Array, dx: Array, kernel: Pair, stride: Pair, pad: Pair, kind: str,
    p: float = 2.0,
) -> None:  # fmt: skip
    """See ``Kernels``."""
    _check_kind(kind)
    dx[...] = 0
    if kind == "avg":
        dy = dy / _counts(x, y, kernel, stride, pad)
    elif kind == "pnorm":
        dy = dy / np.maximum(positive_power(y, p - 1), dy.dtype.type(_SMALL))
    for code, inside, outside in _windows(x, y, kernel, stride, pad):
        part = dy[outside]
        if kind == "max":
            part = part * (winners[outside] == code)
        elif kind == "pnorm":
            part = part * np.sign(x[inside]) * positive_power(np.abs(x[inside]), p - 1)
        dx[inside] += part


def conv_pool_forward(
    x: Array, W: Array, b: Array, y: Array, winners: Array, stride: Pair, dilation: Pair, relu: bool, pool: Pool,
    matmul: Matmul = np.matmul,
) -> None:  # fmt: skip
    """See ``HostKernels``."""
    shape, kernel, step, pad = pool
    z = np.empty((*y.shape[:2], *shape, y.shape[4]), y.dtype)
    conv_forward(x, W, b, z, stride, dilation, relu, matmul)
    pool_forward(z, y, winners, kernel, step, pad, "max")
    if relu:
        np.copyto(winners, MOST_PLACES, where=~(y > 0))


def conv_pool_backward(
    x: Array, W: Array, dy: Array, winners: Array, gW: Array, gb: Array, dx: Array | None, stride: Pair, dilation: Pair,
    pool: Pool, matmul: Matmul = np.matmul,
) -> None:  # fmt: skip
    """See ``HostKernels``."""
    shape, kernel, step, pad = pool
    dz = np.empty((*dy.shape[:2], *shape, dy.shape[4]), dy.dtype)
    pool_backward(dy, dz, dy, winners, dz, kernel, step, pad, "max")
    gb[...] = dz.sum(axis=(0, 2, 3, 4))
    conv_backward_weights(x, dz, gW, stride, dilation, matmul)
    if dx is not None:
        conv_backward_input(dz, W, dx, stride, dilation, matmul)
