"""Compiled layer kernels: bias with activation, activation gradient with bias gradient, softmax, cross-entropy.

Each makes one pass over the array, where NumPy needs three to five. Sums run in row order, so that results are
repeatable.
"""

from __future__ import annotations

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.kernels.numba.compile import helper, kernel
from dl4jlegacy.kernels.numba.elementary import exp_jit, log_jit, tanh_jit
from dl4jlegacy.kernels.numba.product_blocks import turn

__all__ = [
    "backward_identity",
    "backward_leakyrelu",
    "backward_relu",
    "backward_sigmoid",
    "backward_tanh",
    "difference_sums",
    "forward_identity",
    "forward_leakyrelu",
    "forward_relu",
    "forward_sigmoid",
    "forward_tanh",
    "signed_sums",
    "softmax",
    "softmax_cross_entropy",
    "transpose",
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
    """``v = z + b``; ``z`` becomes ``v``, or ``0.01 v`` where ``v < 0``."""
    zero, leak = z.dtype.type(0), z.dtype.type(0.01)
    for i in range(z.shape[0]):
        for j in range(z.shape[1]):
            v = z[i, j] + b[j]
            z[i, j] = leak * v if v < zero else v


@kernel("Mr")
def forward_sigmoid(z: Array, b: Array) -> None:
    """``z = 1 / (1 + exp(-(z + b)))``, one element at a time (for float64; float32 uses lanes)."""
    one = z.dtype.type(1)
    for i in range(z.shape[0]):
        for j in range(z.shape[1]):
            z[i, j] = one / (one + exp_jit(-np.float64(z[i, j] + b[j])))


@kernel("Mr")
def forward_tanh(z: Array, b: Array) -> None:
    """``z = tanh(z + b)``, one element at a time (for float64; float32 uses lanes)."""
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


@kernel("RRMmmf")
def difference_sums(model: Array, data: Array, copy: Array, out: Array, spare: Array, factor: float) -> None:
    """``out = factor (model.sum(0) - data.sum(0))``, ``copy = data``; ``spare`` is as long as ``out``."""
    out[:] = 0
    spare[:] = 0
    for i in range(model.shape[0]):
        for j in range(model.shape[1]):
            out[j] += model[i, j]
        for j in range(model.shape[1]):
            value = data[i, j]
            copy[i, j] = value
            spare[j] += value
    scale = out.dtype.type(factor)
    for j in range(out.size):
        out[j] = (out[j] - spare[j]) * scale


@kernel("Mimf")
def signed_sums(x: Array, half: int, out: Array, factor: float) -> None:
    """``x[:half] *= -factor``, ``x[half:] *= factor``, ``out = x.sum(0)``."""
    out[:] = 0
    for i in range(x.shape[0]):
        scale = out.dtype.type(-factor if i < half else factor)
        for j in range(x.shape[1]):
            value = x[i, j] * scale
            x[i, j] = value
            out[j] += value


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


@kernel("MR")
def transpose(out: Array, x: Array) -> None:
    """``out = x.T``, in squares of whole vectors where possible."""
    size = x.itemsize
    line = 64 // size
    rows, columns = x.shape[0] // line * line, x.shape[1] // line * line
    there, here = np.uint64(x.ctypes.data), np.uint64(out.ctypes.data)
    x_step, out_step = np.uint64(x.strides[0]), np.uint64(out.strides[0])
    for i in range(0, rows, line):
        for j in range(0, columns, line):
            from_, to = there + np.uint64(i) * x_step, here + np.uint64(j) * out_step
            turn(x, from_ + np.uint64(j * size), x_step, to + np.uint64(i * size), out_step, line, 0)
    for i in range(x.shape[0]):
        for j in range(columns if i < rows else 0, x.shape[1]):
            out[j, i] = x[i, j]


@helper
def _totals(x: Array, totals: Array) -> None:
    """Write the sum of every row, in order. Four rows run at a time, since each addition waits for the one before."""
    last, zero = x.shape[0] - 1, x.dtype.type(0)
    for i in range(0, x.shape[0], 4):
        i1, i2, i3 = min(i + 1, last), min(i + 2, last), min(i + 3, last)
        a, b, c, d = zero, zero, zero, zero
        for j in range(x.shape[1]):
            a += x[i, j]
            b += x[i1, j]
            c += x[i2, j]
            d += x[i3, j]
        totals[i], totals[i1], totals[i2], totals[i3] = a, b, c, d


@helper
def _tops(x: Array, tops: Array) -> None:
    """Write the maximum of every row, four rows at a time."""
    last = x.shape[0] - 1
    for i in range(0, x.shape[0], 4):
        i1, i2, i3 = min(i + 1, last), min(i + 2, last), min(i + 3, last)
        a, b, c, d = x[i, 0], x[i1, 0], x[i2, 0], x[i3, 0]
        for j in range(x.shape[1]):
            p, q, r, s = x[i, j], x[i1, j], x[i2, j], x[i3, j]
            a, b, c, d = p if p > a else a, q if q > b else b, r if r > c else c, s if s > d else d
        tops[i], tops[i1], tops[i2], tops[i3] = a, b, c, d


@kernel("Mm")
def softmax(z: Array, of_rows: Array) -> None:
    """Softmax of each row, with the row's maximum subtracted first; ``of_rows`` has one element for each row."""
    _tops(z, of_rows)
    for i in range(z.shape[0]):
        row, top = z[i], of_rows[i]
        for j in range(row.size):
            row[j] = exp_jit(np.float64(row[j] - top))
    _totals(z, of_rows)
    for i in range(z.shape[0]):
        row, total = z[i], of_rows[i]
        for j in range(row.size):
            row[j] /= total


@kernel("MRRm")
def softmax_cross_entropy(dz: Array, p: Array, labels: Array, totals: Array) -> float:
    """Return the summed loss; logarithms only where a label is not 0 (one per row for one-hot labels).

    ``totals`` has one element for each row.
    """
    loss, clip = 0.0, dz.dtype.type(1e-10)
    _totals(labels, totals)
    for i in range(p.shape[0]):
        for j in range(p.shape[1]):
            if labels[i, j] != 0:
                q = p[i, j]
                loss -= labels[i, j] * log_jit(np.float64(clip if q < clip else q))
    for i in range(p.shape[0]):
        line, out, given, total = p[i], dz[i], labels[i], totals[i]
        for j in range(line.size):
            out[j] = total * line[j] - given[j]
    return loss


@kernel("rrW")
def binary_cross_entropy(p: Array, labels: Array, sums: Array) -> None:
    """Add the losses to ``sums (64,)``, in 64 interleaved sums, so that LLVM vectorises the loops.

    If all labels are 0 or 1, only the logarithm that is not multiplied by 0 is computed.
    """
    low, zero, one = p.dtype.type(1e-5), p.dtype.type(0), p.dtype.type(1)
    high = one - low
    for start in range(0, p.size, 64):
        there, given = p[start : start + 64], labels[start : start + 64]
        mixed = False
        for i in range(given.size):
            mixed |= (given[i] != zero) & (given[i] != one)
        for i in range(0 if mixed else there.size):
            q = low if there[i] < low else there[i]
            q = np.float64(high if q > high else q)
            sums[i] -= log_jit(q if given[i] == one else 1.0 - q)
        for i in range(there.size if mixed else 0):
            q = low if there[i] < low else there[i]
            q = np.float64(high if q > high else q)
            label = np.float64(given[i])
            sums[i] -= label * log_jit(q) + (1.0 - label) * log_jit(1.0 - q)
