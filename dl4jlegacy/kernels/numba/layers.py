"""Compiled layer kernels: bias with activation, activation gradient with bias gradient, softmax, cross-entropy.

One pass over the array each, where NumPy needs three to five. Sums run in row order, so that results repeat exactly.
"""

from __future__ import annotations

import numpy as np

from dl4jlegacy.backend import Array
from dl4jlegacy.kernels.numba.compile import kernel
from dl4jlegacy.kernels.numba.elementary import exp_jit, log_jit, tanh_jit

__all__ = [
    "backward_identity",
    "backward_leakyrelu",
    "backward_relu",
    "backward_sigmoid",
    "backward_tanh",
    "forward_identity",
    "forward_leakyrelu",
    "forward_relu",
    "forward_sigmoid",
    "forward_tanh",
    "softmax",
    "softmax_cross_entropy",
]


@kernel("Mr")
def forward_identity(z: Array, b: Array) -> None:
    """``z += b``."""
    for i in range(z.shape[0]):
        for j in range(z.shape[1]):
            z[i, j] += b[j]


@kernel("Mr")
def forward_relu(z: Array, b: Array) -> None:
    """``z = max(z + b, 0)``; a NaN stays a NaN."""
    zero = z.dtype.type(0)
    for i in range(z.shape[0]):
        for j in range(z.shape[1]):
            v = z[i, j] + b[j]
            z[i, j] = zero if v < zero else v


@kernel("Mr")
def forward_leakyrelu(z: Array, b: Array) -> None:
    """``v = z + b``, then 0.01 v where v < 0."""
    zero, leak = z.dtype.type(0), z.dtype.type(0.01)
    for i in range(z.shape[0]):
        for j in range(z.shape[1]):
            v = z[i, j] + b[j]
            z[i, j] = leak * v if v < zero else v


@kernel("Mr")
def forward_sigmoid(z: Array, b: Array) -> None:
    """``z = 1 / (1 + exp(-(z + b)))``, an element at a time (float64; float32 has lanes)."""
    one = z.dtype.type(1)
    for i in range(z.shape[0]):
        for j in range(z.shape[1]):
            z[i, j] = one / (one + exp_jit(-np.float64(z[i, j] + b[j])))


@kernel("Mr")
def forward_tanh(z: Array, b: Array) -> None:
    """``z = tanh(z + b)``, an element at a time (float64; float32 has lanes)."""
    for i in range(z.shape[0]):
        for j in range(z.shape[1]):
            z[i, j] = tanh_jit(np.float64(z[i, j] + b[j]))


@kernel("MRm")
def backward_identity(dy: Array, y: Array, gb: Array) -> None:
    """``gb = dy.sum(0)``."""
    gb[:] = 0
    for i in range(dy.shape[0]):
        for j in range(dy.shape[1]):
            gb[j] += dy[i, j]


@kernel("MRm")
def backward_relu(dy: Array, y: Array, gb: Array) -> None:
    """``dy = 0`` where ``y <= 0``; ``gb = dy.sum(0)``."""
    gb[:] = 0
    zero = dy.dtype.type(0)
    for i in range(dy.shape[0]):
        for j in range(dy.shape[1]):
            v = dy[i, j]
            v = v if y[i, j] > zero else zero
            dy[i, j] = v
            gb[j] += v


@kernel("MRm")
def backward_leakyrelu(dy: Array, y: Array, gb: Array) -> None:
    """``dy *= 0.01`` where ``y <= 0``; ``gb = dy.sum(0)``."""
    gb[:] = 0
    zero, one, leak = dy.dtype.type(0), dy.dtype.type(1), dy.dtype.type(0.01)
    for i in range(dy.shape[0]):
        for j in range(dy.shape[1]):
            v = dy[i, j] * (one if y[i, j] > zero else leak)
            dy[i, j] = v
            gb[j] += v


@kernel("MRm")
def backward_sigmoid(dy: Array, y: Array, gb: Array) -> None:
    """``dy *= y (1 - y)``; ``gb = dy.sum(0)``."""
    gb[:] = 0
    one = dy.dtype.type(1)
    for i in range(dy.shape[0]):
        for j in range(dy.shape[1]):
            v = dy[i, j] * (y[i, j] * (one - y[i, j]))
            dy[i, j] = v
            gb[j] += v


@kernel("MRm")
def backward_tanh(dy: Array, y: Array, gb: Array) -> None:
    """``dy *= 1 - y^2``; ``gb = dy.sum(0)``."""
    gb[:] = 0
    one = dy.dtype.type(1)
    for i in range(dy.shape[0]):
        for j in range(dy.shape[1]):
            v = dy[i, j] * (one - y[i, j] * y[i, j])
            dy[i, j] = v
            gb[j] += v


@kernel("M")
def softmax(z: Array) -> None:
    """Row-wise, with the row's maximum subtracted first."""
    for i in range(z.shape[0]):
        row = z[i]
        top = row[0]
        for j in range(row.size):
            if row[j] > top:
                top = row[j]
        for j in range(row.size):
            row[j] = exp_jit(np.float64(row[j] - top))
        total = z.dtype.type(0)
        for j in range(row.size):
            total += row[j]
        for j in range(row.size):
            row[j] /= total


@kernel("MRR")
def softmax_cross_entropy(dz: Array, p: Array, labels: Array) -> float:
    """Return the summed loss; logarithms only where a label is not 0 (one a row for one-hot labels)."""
    loss, clip = 0.0, dz.dtype.type(1e-10)
    for i in range(p.shape[0]):
        total = dz.dtype.type(0)
        for j in range(p.shape[1]):
            total += labels[i, j]
        for j in range(p.shape[1]):
            q, label = p[i, j], labels[i, j]
            if label != 0:
                loss -= label * log_jit(np.float64(clip if q < clip else q))
            dz[i, j] = total * q - label
    return loss
