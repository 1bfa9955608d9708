"""The interface of the compiled kernels: checks sizes, selects the loop by activation and dtype, divides work.

Implements ``dl4jlegacy.kernels.Kernels``; see there for the description of each function. Compiled loops do not check
bounds, so sizes are checked here before the calls.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Executor
from functools import partial

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import ConfError, ShapeError, nearest
from dl4jlegacy.kernels.elementary import integer_power, use_compiled
from dl4jlegacy.kernels.numba import elementary, layers, rice, sampling, threshold, updaters
from dl4jlegacy.kernels.numba import vectors as numba_vectors
from dl4jlegacy.kernels.numba.lrn import response_backward, response_forward
from dl4jlegacy.kernels.numba.pooling import channel_backward, pool_backward, pool_forward, tile, untile
from dl4jlegacy.kernels.numba.product import matmul
from dl4jlegacy.kernels.numba.recurrent import lstm_backward, lstm_forward
from dl4jlegacy.kernels.numba.tiles import (
    conv_backward_input,
    conv_backward_weights,
    conv_forward,
    conv_pool_backward,
    conv_pool_forward,
    lanes,
)
from dl4jlegacy.kernels.numpy import rice as numpy_rice
from dl4jlegacy.kernels.numpy.kernels import box_muller, column_sums, embedding_gradient
from dl4jlegacy.kernels.numpy.threshold import check_encode, check_tau, wrong_codes

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

name = "numba"
xp = np
use_compiled(elementary)
_SPAN = 1 << 19  # elements that one task of the pool sums: 2 MB of float32
_ENCODED = 1 << 20  # elements that one task of the pool encodes
_STREAMED = 1 << 22  # elements from which a sum is written past the caches: 16 MB do not stay in them anyway
_FORWARD = {
    "identity": layers.forward_identity,
    "leakyrelu": layers.forward_leakyrelu,
    "relu": layers.forward_relu,
    "sigmoid": layers.forward_sigmoid,
    "tanh": layers.forward_tanh,
}
_ON_LANES = {"sigmoid": sampling.sigmoid_lanes, "tanh": sampling.tanh_lanes}  # of float32
_BACKWARD = {
    "identity": layers.backward_identity,
    "leakyrelu": layers.backward_leakyrelu,
    "relu": layers.backward_relu,
    "sigmoid": layers.backward_sigmoid,
    "tanh": layers.backward_tanh,
}


def _check(what: str, shape: tuple[int, ...], *others: Array) -> None:
    """Raise unless every array has the first one's shape: compiled loops do not check it."""
    for other in others:
        if other.shape != shape:
            raise ShapeError(
                f"{what}: arrays of shapes {list(shape)} and {list(other.shape)} met where equal ones are needed"
            )


def _check_bias(what: str, z: Array, b: Array) -> None:
    if b.shape != z.shape[1:]:
        raise ShapeError(f"{what}: {list(z.shape)} activations need a bias of {list(z.shape[1:])}, got {list(b.shape)}")


def _unknown(activation: str) -> ConfError:
    return ConfError(f"activation {activation!r} has no fused kernel{nearest(activation, tuple(_FORWARD))}")


def _room(b: Array) -> Array:
    """Return the working memory of a kernel of ``sampling``."""
    return np.zeros(b.size + sampling.ROOM, np.float32)


def bias_activation(z: Array, b: Array, activation: str) -> None:
    """See ``Kernels``."""
    _check_bias("bias_activation", z, b)
    if z.dtype.char == "f" and activation in _ON_LANES:
        _ON_LANES[activation](z, b, _room(b))
        return
    forward = _FORWARD.get(activation)
    if forward is None:
        raise _unknown(activation)
    forward(z, b)


def activation_backward_bias(dy: Array, y: Array, gb: Array, activation: str) -> None:
    """See ``Kernels``."""
    _check("activation_backward_bias", dy.shape, y)
    _check_bias("activation_backward_bias", dy, gb)
    backward = _BACKWARD.get(activation)
    if backward is None:
        raise _unknown(activation)
    backward(dy, y, gb)


def difference_sums(model: Array, data: Array, copy: Array, out: Array, factor: float) -> None:
    """See ``Kernels``."""
    _check("difference_sums", model.shape, data, copy)
    _check_bias("difference_sums", model, out)
    layers.difference_sums(model, data, copy, out, np.empty_like(out), factor)


def signed_sums(x: Array, half: int, out: Array, factor: float) -> None:
    """See ``Kernels``."""
    _check_bias("signed_sums", x, out)
    if not 0 <= half <= len(x):
        raise ShapeError(f"signed_sums: the halves of {len(x)} rows cannot meet at row {half}")
    layers.signed_sums(x, half, out, factor)


def transpose(x: Array, out: Array) -> None:
    """See ``Kernels``."""
    _check("transpose", x.shape, out.T)
    layers.transpose(out, x)


def softmax(z: Array) -> None:
    """See ``Kernels``."""
    if z.size:
        layers.softmax(z, np.empty(len(z), z.dtype))


def softmax_cross_entropy(p: Array, labels: Array, dz: Array) -> float:
    """See ``Kernels``."""
    _check("softmax_cross_entropy", p.shape, labels, dz)
    loss: float = layers.softmax_cross_entropy(dz, p, labels, np.empty(len(p), p.dtype))
    return loss


def binary_cross_entropy(p: Array, labels: Array) -> float:
    """See ``Kernels``."""
    _check("binary_cross_entropy", p.shape, labels)
    sums = np.zeros(64)
    layers.binary_cross_entropy(_flat(p), _flat(labels), sums)
    total = 0.0
    for loss in sums.tolist():
        total += loss
    return total


def noop(params: Array, gradient: Array) -> bool:
    """See ``Kernels``."""
    _check("noop", params.shape, gradient)
    return bool(numba_vectors.noop(params, gradient))


def sgd(params: Array, gradient: Array, lr: float) -> bool:
    """See ``Kernels``."""
    _check("sgd", params.shape, gradient)
    return bool(updaters.sgd(params, gradient, lr))


def nesterovs(params: Array, gradient: Array, v: Array, lr: float, mu: float) -> bool:
    """See ``Kernels``."""
    _check("nesterovs", params.shape, gradient, v)
    return bool(updaters.nesterovs(params, gradient, v, lr, mu))


def adagrad(params: Array, gradient: Array, h: Array, lr: float, eps: float) -> bool:
    """See ``Kernels``."""
    _check("adagrad", params.shape, gradient, h)
    return updaters.adagrad(params, gradient, h, lr, eps)


def rmsprop(params: Array, gradient: Array, c: Array, lr: float, decay: float, eps: float) -> bool:
    """See ``Kernels``."""
    _check("rmsprop", params.shape, gradient, c)
    return bool(updaters.rmsprop(params, gradient, c, lr, decay, eps))


def _rate(lr: float, beta1: float, beta2: float, t: int) -> float:
    """Return Adam's step size with both bias corrections."""
    return float(lr * math.sqrt(1 - integer_power(beta2, t + 1)) / (1 - integer_power(beta1, t + 1)))


def adam(params: Array, gradient: Array, m: Array, v: Array,
         lr: float, beta1: float, beta2: float, eps: float, t: int) -> bool:  # fmt: skip
    """See ``Kernels``."""
    _check("adam", params.shape, gradient, m, v)
    return bool(updaters.adam(params, gradient, m, v, _rate(lr, beta1, beta2, t), beta1, beta2, eps))


def decay(params: Array, factor: float) -> None:
    """See ``Kernels``."""
    updaters.decay(_flat(params), factor)


def adamax(params: Array, gradient: Array, m: Array, u: Array,
           lr: float, beta1: float, beta2: float, eps: float, t: int) -> bool:  # fmt: skip
    """See ``Kernels``."""
    _check("adamax", params.shape, gradient, m, u)
    return bool(updaters.adamax(params, gradient, m, u, lr / (1 - integer_power(beta1, t + 1)), beta1, beta2))


def adadelta(params: Array, gradient: Array, msg: Array, msdx: Array, rho: float, eps: float) -> bool:
    """See ``Kernels``."""
    _check("adadelta", params.shape, gradient, msg, msdx)
    return bool(updaters.adadelta(params, gradient, msg, msdx, rho, eps))


def nadam(params: Array, gradient: Array, m: Array, v: Array,
          lr: float, beta1: float, beta2: float, eps: float, t: int) -> bool:  # fmt: skip
    """See ``Kernels``."""
    _check("nadam", params.shape, gradient, m, v)
    return bool(updaters.nadam(params, gradient, m, v, lr / (1 - integer_power(beta1, t + 1)), beta1, beta2, eps))


def amsgrad(params: Array, gradient: Array, m: Array, v: Array, v_hat: Array,
            lr: float, beta1: float, beta2: float, eps: float, t: int) -> bool:  # fmt: skip
    """See ``Kernels``."""
    _check("amsgrad", params.shape, gradient, m, v, v_hat)
    return bool(updaters.amsgrad(params, gradient, m, v, v_hat, _rate(lr, beta1, beta2, t), beta1, beta2, eps))


def adabelief(params: Array, gradient: Array, m: Array, s: Array,
              lr: float, beta1: float, beta2: float, eps: float, t: int) -> bool:  # fmt: skip
    """See ``Kernels``."""
    _check("adabelief", params.shape, gradient, m, s)
    return bool(updaters.adabelief(params, gradient, m, s, _rate(lr, beta1, beta2, t), beta1, beta2, eps))


def _flat(x: Array) -> Array:
    """Return ``x`` as a flat view; writes to a copy would be lost."""
    if not x.flags.c_contiguous:
        raise ShapeError(f"kernels need C-contiguous arrays; strides {list(x.strides)}, {list(x.shape)} {x.dtype}")
    return x.reshape(-1)


def _uniforms() -> Array:
    """Return the buffer for uniforms of a kernel of ``sampling``."""
    return np.empty(sampling.PART, np.float32)


def uniform(out: Array, key: int) -> None:
    """See ``Kernels``."""
    fill = sampling.uniform_lanes if out.dtype.char == "f" else sampling.uniform_scalar
    fill(_flat(out), _uniforms(), key)


def gaussian(out: Array, key: int) -> None:
    """See ``Kernels``; NumPy's vectorised log, sin and cos are faster than a compiled loop with the C library's."""
    box_muller(_flat(out), key, uniform)


def sigmoid_bias(z: Array, b: Array) -> None:
    """See ``Kernels``."""
    bias_activation(z, b, "sigmoid")


def sigmoid_sample(z: Array, b: Array, probability: Array, sample: Array, key: int) -> None:
    """See ``Kernels``."""
    _check("sigmoid_sample", z.shape, probability, sample)
    _check_bias("sigmoid_sample", z, b)
    if z.dtype.char == "f":
        sampling.sigmoid_sample_lanes(z, b, probability, sample, _room(b), key)
    else:
        sampling.sigmoid_sample_scalar(z, b, probability, sample, key)


def dropout(x: Array, out: Array, retain: float, key: int) -> None:
    """See ``Kernels``."""
    _check("dropout", x.shape, out)
    sampling.dropout(_flat(out), _flat(x), _uniforms(), retain, key)


def dropout_backward(dy: Array, retain: float, key: int) -> None:
    """See ``Kernels``."""
    dropout(dy, dy, retain, key)


def corrupt(x: Array, out: Array, level: float, key: int) -> None:
    """See ``Kernels``."""
    _check("corrupt", x.shape, out)
    sampling.corrupt(_flat(out), _flat(x), _uniforms(), level, key)


def _check_sum(vectors: Sequence[Array], weights: Sequence[float], out: Array) -> None:
    """Check sizes, dtypes and layout before addresses are taken, which bypass Numba's own checks."""
    if not vectors or len(vectors) != len(weights):
        raise ShapeError(f"weighted_sum got {len(vectors)} vectors and {len(weights)} weights; it needs one each")
    _check("weighted_sum", out.shape, *vectors)
    for index, vector in enumerate(vectors):
        if vector.dtype != out.dtype or not vector.flags.c_contiguous:
            raise ShapeError(
                f"weighted_sum: vector {index} is {vector.dtype} with strides {list(vector.strides)}; "
                f"it must be contiguous {out.dtype} like the result"
            )


def weighted_sum(vectors: Sequence[Array], weights: Sequence[float], out: Array,
                 pool: Executor | None = None) -> None:  # fmt: skip
    """See ``Kernels``."""
    _check_sum(vectors, weights, out)
    addresses = np.array([vector.ctypes.data for vector in vectors], dtype=np.uint64)
    factors = np.array(weights, dtype=np.float64)
    if pool is None or out.size <= _SPAN:
        _sum_span(out, addresses, factors, 0, out.size)
        return
    spans = [(start, min(start + _SPAN, out.size)) for start in range(0, out.size, _SPAN)]
    for task in [pool.submit(_sum_span, out, addresses, factors, *span) for span in spans]:
        task.result()


def _sum_span(out: Array, addresses: Array, factors: Array, start: int, stop: int) -> None:
    """Sum one span: whole lines of 64 float32 by vectors, the remainders at both ends element by element."""
    if out.dtype.char != "f":
        numba_vectors.sum_span(out, addresses, factors, start, stop)
        return
    past_caches = out.size >= _STREAMED and out.ctypes.data % 4 == 0
    head = min(stop, start + (-(out.ctypes.data + 4 * start) % 64 // 4 if past_caches else 0))
    tail = head + (stop - head) // 64 * 64
    numba_vectors.sum_lines(out, addresses, factors, head, tail, past_caches)
    for low, high in ((start, head), (tail, stop)):
        if low < high:
            numba_vectors.sum_span(out, addresses, factors, low, high)


def axpy(y: Array, x: Array, a: float) -> None:
    """See ``Kernels``."""
    _check("axpy", y.shape, x)
    numba_vectors.axpy(_flat(y), _flat(x), a)


def add_regularization(gradient: Array, params: Array, l1: float, l2: float) -> None:
    """See ``Kernels``."""
    _check("add_regularization", gradient.shape, params)
    numba_vectors.add_regularization(_flat(gradient), _flat(params), l1, l2)


def all_finite(x: Array) -> bool:
    """See ``Kernels``."""
    return bool(numba_vectors.finite(_flat(x)))


def threshold_encode(residual: Array, tau: float, codes: Array, pool: Executor | None = None) -> int:
    """See ``Kernels``."""
    check_encode(residual, tau, codes)
    if pool is None or residual.size <= _ENCODED or codes.size < residual.size:
        return _encode_span(residual, codes, tau, 0, residual.size, 0)
    starts = range(0, residual.size, _ENCODED)
    spans = [(start, min(start + _ENCODED, residual.size)) for start in starts]
    tasks = [pool.submit(_encode_span, residual, codes, tau, *span, span[0]) for span in spans]
    found = 0
    for start, task in zip(starts, tasks, strict=True):  # each has written where its elements are
        part = codes[start : task.result()]
        codes[found : found + part.size] = part
        found += part.size
    return found


def _encode_span(residual: Array, codes: Array, tau: float, start: int, stop: int, found: int) -> int:
    """Encode one span, whose codes begin at ``codes[found]``; return the end of its codes."""
    lines = start + (stop - start) // 64 * 64 if residual.dtype.char == "f" else start
    if start < lines:
        found = threshold.threshold_encode_lines(residual, codes, tau, start, lines, found)
    return int(threshold.threshold_encode(residual, codes, tau, lines, stop, found)) if lines < stop else int(found)


def threshold_decode(codes: Array, tau: float, target: Array) -> None:
    """See ``Kernels``."""
    check_tau(tau)
    if not threshold.threshold_decode(target, codes, tau):
        raise wrong_codes(target.size)


def rice_encode(codes: Array, size: int) -> Array:
    """See ``Kernels``."""
    codes = np.ascontiguousarray(codes)
    gaps = np.empty_like(codes)
    if not codes.size or not rice.gaps_between(codes, gaps, size):
        return numpy_rice.rice_encode(codes, size)  # which says what is wrong
    k, zeros = numpy_rice.best_k(codes.size, abs(int(codes[-1])) - codes.size, partial(rice.zeros_with, gaps))
    planes = 1 - (-(zeros + codes.size) // 8)  # the byte in which they begin
    payload = np.zeros(planes - (-codes.size * (k + 1) // 8), np.uint8)
    payload[0] = k
    rice.write_gaps(gaps, payload, k, 1)
    rice.write_planes(gaps, codes, payload, k, planes)
    return payload


def rice_decode(payload: Array, count: int, size: int) -> Array:
    """See ``Kernels``."""
    codes = _rice_codes(np.ascontiguousarray(payload), count, size)
    return numpy_rice.rice_decode(payload, count, size) if codes is None else codes  # which says what is wrong


def _rice_codes(payload: Array, count: int, size: int) -> Array | None:
    """Return the codes, or None if the message is invalid for them."""
    k, middle = numpy_rice.sections(payload, count, size)
    planes, filled = 1 + middle, count * (k + 1) % 8
    if filled and payload[-1] & 255 >> filled:
        return None
    gaps, low, codes = np.empty(count, np.int32), np.zeros(count, np.int32), np.zeros(count, np.int32)
    if not rice.read_gaps(payload, gaps, 1, planes, size >> k):
        return None
    rice.read_planes(payload, low, planes, 0, k)
    rice.read_planes(payload, codes, planes, k, k + 1)
    return codes if rice.read_codes(gaps, low, codes, k, size) else None
