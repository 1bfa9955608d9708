"""Every kernel in plain NumPy: the reference for tests, and the fallback without Numba.

Implements ``dl4jlegacy.kernels.Kernels``; see there for the description of each function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import ConfError, ShapeError, nearest
from dl4jlegacy.kernels.elementary import integer_power, log, sine_and_cosine
from dl4jlegacy.kernels.lrn import response_backward, response_forward
from dl4jlegacy.kernels.numpy.recurrent import lstm_backward, lstm_forward
from dl4jlegacy.kernels.numpy.rice import rice_decode, rice_encode
from dl4jlegacy.kernels.numpy.threshold import threshold_decode, threshold_encode
from dl4jlegacy.kernels.numpy.tiles import (
    conv_backward_input,
    conv_backward_weights,
    conv_forward,
    conv_pool_backward,
    conv_pool_forward,
    lanes,
    pool_backward,
    pool_forward,
    tile,
    untile,
)
from dl4jlegacy.kernels.philox import BLOCK, uniforms

__all__ = [
    "activation_backward_bias",
    "adabelief",
    "adadelta",
    "adagrad",
    "adam",
    "adamax",
    "add_regularization",
    "all_finite",
    "amsgrad",
    "axpy",
    "bias_activation",
    "binary_cross_entropy",
    "box_muller",
    "channel_backward",
    "column_sums",
    "conv_backward_input",
    "conv_backward_weights",
    "conv_forward",
    "conv_pool_backward",
    "conv_pool_forward",
    "corrupt",
    "decay",
    "difference_sums",
    "dropout",
    "dropout_backward",
    "embedding_gradient",
    "gaussian",
    "lanes",
    "lstm_backward",
    "lstm_forward",
    "matmul",
    "nadam",
    "name",
    "nesterovs",
    "noop",
    "pool_backward",
    "pool_forward",
    "response_backward",
    "response_forward",
    "rice_decode",
    "rice_encode",
    "rmsprop",
    "sgd",
    "sigmoid_bias",
    "sigmoid_sample",
    "signed_sums",
    "softmax",
    "softmax_cross_entropy",
    "threshold_decode",
    "threshold_encode",
    "tile",
    "transpose",
    "uniform",
    "untile",
    "weighted_sum",
    "xp",
]

name = "numpy"
xp = np
_LEAK = 0.01
_BINARY_CLIP = 1e-5  # and LossBinaryXENT here
_CLIP = 1e-10  # DL4J's LossMCXENT clips the softmax here
_CHUNK = 1 << 16  # elements of weighted_sum that stay in the second-level cache; smaller ones fight for the GIL
_SPAN = 1 << 20  # elements that one task of the pool sums


def _sigmoid(z: Array) -> None:
    np.negative(z, out=z)
    with np.errstate(over="ignore"):  # exp(-z) = inf is right: 1 / inf = 0
        np.exp(z, out=z)
    z += 1
    np.reciprocal(z, out=z)


def _unknown(activation: str) -> ConfError:
    known = ("identity", "leakyrelu", "relu", "sigmoid", "tanh")
    return ConfError(f"activation {activation!r} has no fused kernel{nearest(activation, known)}")


def matmul(a: Array, b: Array, out: Array, accumulate: bool = False) -> None:
    """See ``Kernels``."""
    if accumulate:
        out += a @ b
    else:
        np.matmul(a, b, out=out)


def bias_activation(z: Array, b: Array, activation: str) -> None:
    """See ``Kernels``."""
    z += b
    match activation:
        case "identity":
            pass
        case "relu":
            np.maximum(z, 0, out=z)
        case "leakyrelu":
            np.multiply(z, np.where(z > 0, 1, _LEAK).astype(z.dtype), out=z)
        case "sigmoid":
            _sigmoid(z)
        case "tanh":
            np.tanh(z, out=z)
        case _:
            raise _unknown(activation)


def activation_backward_bias(dy: Array, y: Array, gb: Array, activation: str) -> None:
    """See ``Kernels``."""
    match activation:
        case "identity":
            pass
        case "relu":
            dy *= y > 0
        case "leakyrelu":
            dy *= np.where(y > 0, 1, _LEAK).astype(dy.dtype)
        case "sigmoid":
            dy *= y * (1 - y)
        case "tanh":
            dy *= 1 - y * y
        case _:
            raise _unknown(activation)
    np.add.reduce(dy, axis=0, out=gb)


def column_sums(x: Array, out: Array) -> None:
    """See ``Kernels``."""
    np.add.reduce(x, axis=0, out=out)


def difference_sums(model: Array, data: Array, copy: Array, out: Array, factor: float) -> None:
    """See ``Kernels``."""
    copy[...] = data
    np.subtract(np.add.reduce(model, axis=0), np.add.reduce(data, axis=0), out=out)
    out *= out.dtype.type(factor)


def signed_sums(x: Array, half: int, out: Array, factor: float) -> None:
    """See ``Kernels``."""
    x[:half] *= x.dtype.type(-factor)
    x[half:] *= x.dtype.type(factor)
    np.add.reduce(x, axis=0, out=out)


def channel_backward(dy: Array, y: Array, gb: Array, activation: str) -> None:
    """See ``Kernels``."""
    rows = dy.reshape(-1, dy.shape[-1])
    activation_backward_bias(rows, y.reshape(rows.shape), np.empty(dy.shape[-1], dy.dtype), activation)
    gb[...] = dy.sum(axis=(0, 2, 3, 4))


def transpose(x: Array, out: Array) -> None:
    """See ``Kernels``."""
    out[...] = x.T


def softmax(z: Array) -> None:
    """See ``Kernels``."""
    z -= z.max(axis=1, keepdims=True, initial=-np.inf)
    np.exp(z, out=z)
    z /= z.sum(axis=1, keepdims=True)


def softmax_cross_entropy(p: Array, labels: Array, dz: Array) -> float:
    """See ``Kernels``."""
    loss = -float(np.sum(labels * np.log(np.maximum(p, _CLIP)), dtype=np.float64))
    np.multiply(p, labels.sum(axis=1, keepdims=True), out=dz)
    dz -= labels
    return loss


def binary_cross_entropy(p: Array, labels: Array) -> float:
    """See ``Kernels``."""
    q = np.clip(p, _BINARY_CLIP, 1 - _BINARY_CLIP)
    return -float(np.sum(labels * log(q) + (1 - labels) * log(1 - q), dtype=np.float64))


def embedding_gradient(dz: Array, index: Array, gW: Array) -> None:
    """See ``Kernels``."""
    gW[...] = 0
    order = np.argsort(index, kind="stable")  # rows of one class are summed in their order, whatever the size
    there, first = np.unique(index[order], return_index=True)
    gW[there] = np.add.reduceat(dz[order], first, axis=0)


def noop(params: Array, gradient: Array) -> bool:
    """See ``Kernels``."""
    params -= gradient
    return all_finite(params)


def sgd(params: Array, gradient: Array, lr: float) -> bool:
    """See ``Kernels``."""
    params -= gradient * lr
    return all_finite(params)


def nesterovs(params: Array, gradient: Array, v: Array, lr: float, mu: float) -> bool:
    """See ``Kernels``."""
    params -= mu * v
    v *= mu
    v -= lr * gradient
    params += (1 + mu) * v
    return all_finite(params)


def adagrad(params: Array, gradient: Array, h: Array, lr: float, eps: float) -> bool:
    """See ``Kernels``."""
    up = gradient * gradient
    h += up
    np.sqrt(h, out=up)
    up += eps
    np.divide(gradient, up, out=up)
    up *= lr
    params -= up
    return all_finite(params)


def rmsprop(params: Array, gradient: Array, c: Array, lr: float, decay: float, eps: float) -> bool:
    """See ``Kernels``."""
    c *= decay
    c += (1 - decay) * gradient * gradient
    params -= lr * gradient / (np.sqrt(c) + eps)
    return all_finite(params)


def _moment(m: Array, gradient: Array, beta: float) -> None:
    m *= beta
    m += (1 - beta) * gradient


def _rate(lr: float, beta1: float, beta2: float, t: int) -> float:
    return float(lr * math.sqrt(1 - integer_power(beta2, t + 1)) / (1 - integer_power(beta1, t + 1)))


def adam(params: Array, gradient: Array, m: Array, v: Array,
         lr: float, beta1: float, beta2: float, eps: float, t: int) -> bool:  # fmt: skip
    """See ``Kernels``."""
    _moment(m, gradient, beta1)
    _moment(v, gradient * gradient, beta2)
    params -= _rate(lr, beta1, beta2, t) * m / (np.sqrt(v) + eps)
    return all_finite(params)


def decay(params: Array, factor: float) -> None:
    """See ``Kernels``."""
    params -= factor * params


def adamax(params: Array, gradient: Array, m: Array, u: Array,
           lr: float, beta1: float, beta2: float, eps: float, t: int) -> bool:  # fmt: skip
    """See ``Kernels``."""
    _moment(m, gradient, beta1)
    u *= beta2
    np.maximum(u, np.abs(gradient), out=u)
    u += 1e-32
    params -= lr / (1 - integer_power(beta1, t + 1)) * m / u
    return all_finite(params)


def adadelta(params: Array, gradient: Array, msg: Array, msdx: Array, rho: float, eps: float) -> bool:
    """See ``Kernels``."""
    _moment(msg, gradient * gradient, rho)
    up = gradient * np.sqrt(msdx + eps) / np.sqrt(msg + eps)
    _moment(msdx, up * up, rho)
    params -= up
    return all_finite(params)


def nadam(params: Array, gradient: Array, m: Array, v: Array,
          lr: float, beta1: float, beta2: float, eps: float, t: int) -> bool:  # fmt: skip
    """See ``Kernels``."""
    _moment(m, gradient, beta1)
    _moment(v, gradient * gradient, beta2)
    ahead = beta1 * m + (1 - beta1) * gradient
    params -= lr / (1 - integer_power(beta1, t + 1)) * ahead / (np.sqrt(v) + eps)
    return all_finite(params)


def amsgrad(params: Array, gradient: Array, m: Array, v: Array, v_hat: Array,
            lr: float, beta1: float, beta2: float, eps: float, t: int) -> bool:  # fmt: skip
    """See ``Kernels``."""
    _moment(m, gradient, beta1)
    _moment(v, gradient * gradient, beta2)
    np.maximum(v_hat, v, out=v_hat)
    params -= _rate(lr, beta1, beta2, t) * m / (np.sqrt(v_hat) + eps)
    return all_finite(params)


def adabelief(params: Array, gradient: Array, m: Array, s: Array,
              lr: float, beta1: float, beta2: float, eps: float, t: int) -> bool:  # fmt: skip
    """See ``Kernels``."""
    _moment(m, gradient, beta1)
    _moment(s, (gradient - m) ** 2, beta2)
    s += eps
    params -= _rate(lr, beta1, beta2, t) * m / (np.sqrt(s) + eps)
    return all_finite(params)


def uniform(out: Array, key: int) -> None:
    """See ``Kernels``."""
    out[...] = uniforms(out.size, key).reshape(out.shape)


def box_muller(out: Array, key: int, fill: Callable[[Array, int], None]) -> None:
    """Fill the flat ``out`` with normals from the uniforms of ``fill``: in each block 32 radii, then 32 angles."""
    blocks = -(-out.size // BLOCK)
    u = np.empty(blocks * BLOCK, out.dtype)
    fill(u, key)
    radii, angles = u.reshape(blocks, 2, BLOCK // 2).transpose(1, 0, 2)
    radius = np.sqrt(-2 * log(1 - radii))  # 1 - u lies in (0, 1]
    sine, cosine = sine_and_cosine(angles)
    np.multiply(radius, cosine, out=radii)
    np.multiply(radius, sine, out=angles)
    out[...] = u[: out.size]


def gaussian(out: Array, key: int) -> None:
    """See ``Kernels``."""
    box_muller(out.reshape(-1), key, uniform)


def sigmoid_bias(z: Array, b: Array) -> None:
    """See ``Kernels``."""
    bias_activation(z, b, "sigmoid")


def sigmoid_sample(z: Array, b: Array, probability: Array, sample: Array, key: int) -> None:
    """See ``Kernels``."""
    np.add(z, b, out=probability)
    _sigmoid(probability)
    np.less(uniforms(z.size, key).reshape(z.shape), probability, out=sample, casting="unsafe")


def dropout(x: Array, out: Array, retain: float, key: int) -> None:
    """See ``Kernels``."""
    keep = uniforms(x.size, key).reshape(x.shape) < retain
    out[...] = np.where(keep, x * out.dtype.type(1 / retain), out.dtype.type(0))


def dropout_backward(dy: Array, retain: float, key: int) -> None:
    """See ``Kernels``."""
    dropout(dy, dy, retain, key)


def corrupt(x: Array, out: Array, level: float, key: int) -> None:
    """See ``Kernels``."""
    out[...] = np.where(uniforms(x.size, key).reshape(x.shape) < level, out.dtype.type(0), x)


def _sum_span(vectors: Sequence[Array], weights: Sequence[float], out: Array, start: int) -> None:
    scratch = np.empty(_CHUNK, out.dtype)
    for low in range(start, min(start + _SPAN, out.size), _CHUNK):
        part = slice(low, min(low + _CHUNK, start + _SPAN, out.size))
        total, term = out[part], scratch[: part.stop - low]
        np.multiply(vectors[0][part], weights[0], out=total)
        for vector, weight in zip(vectors[1:], weights[1:], strict=True):
            np.multiply(vector[part], weight, out=term)
            total += term


def weighted_sum(vectors: Sequence[Array], weights: Sequence[float], out: Array,
                 pool: Executor | None = None) -> None:  # fmt: skip
    """See ``Kernels``."""
    if not vectors or len(vectors) != len(weights) or any(v.shape != out.shape for v in vectors):
        sizes = sorted({v.size for v in vectors})
        raise ShapeError(
            f"weighted_sum needs one weight for each of at least one vector of {out.size} elements; "
            f"got {len(vectors)} vectors of {sizes} elements and {len(weights)} weights"
        )
    starts = range(0, out.size, _SPAN)
    if pool is None or len(starts) < 2:
        for start in starts:
            _sum_span(vectors, weights, out, start)
        return
    for done in [pool.submit(_sum_span, vectors, weights, out, start) for start in starts]:
        done.result()


def axpy(y: Array, x: Array, a: float) -> None:
    """See ``Kernels``."""
    y += a * x


def add_regularization(gradient: Array, params: Array, l1: float, l2: float) -> None:
    """See ``Kernels``."""
    if l2:
        gradient += l2 * params
    if l1:
        gradient += l1 * np.sign(params)


def all_finite(x: Array) -> bool:
    """See ``Kernels``."""
    return bool(np.isfinite(x).all())
