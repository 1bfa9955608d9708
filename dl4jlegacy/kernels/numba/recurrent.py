"""Compiled LSTM cells: all four gates, the cell and its output in one pass, and the same back.

Sixteen units at a time on lanes for float32, the units that are left (and float64) one at a time; a tanh reaches 1 in
both. Every unit of every example is computed alone, so the bits depend on nothing but its inputs. See
``numpy.recurrent`` for the formulas.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray  # type: ignore[attr-defined,unused-ignore]

from dl4jlegacy.backend import Array
from dl4jlegacy.kernels.numba import lanes
from dl4jlegacy.kernels.numba.compile import helper, kernel
from dl4jlegacy.kernels.numba.elementary import exp_jit, tanh_jit
from dl4jlegacy.kernels.numba.product import matmul
from dl4jlegacy.kernels.numpy.recurrent import Step, over_time, over_time_back

__all__ = ["lstm_backward", "lstm_forward"]


def _sixteen_forward(
    z: int, r: int, b: int, p: int, before: int, c: int, a: int, h: int, mask: float, gap: int
) -> None:
    """Sixteen units; the addresses are those of their first gate, ``gap`` the bytes from one gate to the next."""
    two, three = np.uint64(2) * gap, np.uint64(3) * gap
    m, old = lanes.splat(mask), lanes.load(before)
    i = lanes.tanh(lanes.add(lanes.add(lanes.load(z), lanes.load(r)), lanes.load(b)))
    f = lanes.add(lanes.add(lanes.load(z + gap), lanes.load(r + gap)), lanes.load(b + gap))
    f = lanes.sigmoid(lanes.add(f, lanes.mul(lanes.load(p), old)))
    g = lanes.add(lanes.add(lanes.load(z + three), lanes.load(r + three)), lanes.load(b + three))
    g = lanes.sigmoid(lanes.add(g, lanes.mul(lanes.load(p + two), old)))
    new = lanes.add(lanes.mul(f, old), lanes.mul(g, i))
    o = lanes.add(lanes.add(lanes.load(z + two), lanes.load(r + two)), lanes.load(b + two))
    o = lanes.sigmoid(lanes.add(o, lanes.mul(lanes.load(p + gap), new)))
    squashed = lanes.tanh(new)
    lanes.store(z, i)
    lanes.store(z + gap, f)
    lanes.store(z + two, o)
    lanes.store(z + three, g)
    lanes.store(c, lanes.mul(m, new))
    lanes.store(a, squashed)
    lanes.store(h, lanes.mul(m, lanes.mul(o, squashed)))


def _sixteen_backward(
    z: int, dy: int, carried: int, dc: int, p: int, before: int, a: int, mask: float, gap: int
) -> None:
    two, three = np.uint64(2) * gap, np.uint64(3) * gap
    m, one, minus = lanes.splat(mask), lanes.splat(np.float32(1)), lanes.splat(np.float32(-1))
    i, f, o, g = lanes.load(z), lanes.load(z + gap), lanes.load(z + two), lanes.load(z + three)
    out = lanes.load(a)
    dh = lanes.mul(m, lanes.add(lanes.load(dy), lanes.load(carried)))
    do = lanes.mul(lanes.mul(dh, out), lanes.mul(o, lanes.add(one, lanes.mul(minus, o))))
    through = lanes.mul(lanes.mul(dh, o), lanes.add(one, lanes.mul(minus, lanes.mul(out, out))))
    cell = lanes.add(lanes.mul(m, lanes.load(dc)), lanes.add(through, lanes.mul(do, lanes.load(p + gap))))
    di = lanes.mul(lanes.mul(cell, g), lanes.add(one, lanes.mul(minus, lanes.mul(i, i))))
    df = lanes.mul(lanes.mul(cell, lanes.load(before)), lanes.mul(f, lanes.add(one, lanes.mul(minus, f))))
    dg = lanes.mul(lanes.mul(cell, i), lanes.mul(g, lanes.add(one, lanes.mul(minus, g))))
    peeped = lanes.add(lanes.mul(df, lanes.load(p)), lanes.mul(dg, lanes.load(p + two)))
    lanes.store(dc, lanes.add(lanes.mul(cell, f), peeped))
    lanes.store(z, di)
    lanes.store(z + gap, df)
    lanes.store(z + two, do)
    lanes.store(z + three, dg)


_sixteen_forward_jit: Any = helper(_sixteen_forward)
_sixteen_backward_jit: Any = helper(_sixteen_backward)


@kernel("ruuuuuuuuii")
def _forward_lanes(
    b: Array, z: int, r: int, p: int, before: int, c: int, a: int, h: int, mask: int, rows: int, n: int
) -> None:
    """All whole groups of sixteen units of a time step; all but ``b`` are addresses: quick to hand over."""
    ba, gap = np.uint64(b.ctypes.data), np.uint64(4 * n)
    on = carray(lanes.pointer(mask, b), rows)
    for row in range(rows):
        for group in range(n // 16):
            at = np.uint64(64 * group)
            wide, narrow = np.uint64(16 * n * row) + at, np.uint64(4 * n * row) + at
            _sixteen_forward_jit(
                z + wide, r + wide, ba + at, p + at, before + narrow, c + narrow, a + narrow, h + narrow, on[row], gap
            )


@kernel("ruuuuuuuii")
def _backward_lanes(
    p: Array, z: int, dy: int, carried: int, dc: int, before: int, a: int, mask: int, rows: int, n: int
) -> None:
    """All whole groups of sixteen units of a time step; all but ``p`` are addresses."""
    pa, gap = np.uint64(p.ctypes.data), np.uint64(4 * n)
    on = carray(lanes.pointer(mask, p), rows)
    for row in range(rows):
        for group in range(n // 16):
            at = np.uint64(64 * group)
            wide, narrow = np.uint64(16 * n * row) + at, np.uint64(4 * n * row) + at
            _sixteen_backward_jit(
                z + wide, dy + narrow, carried + narrow, dc + narrow, pa + at, before + narrow, a + narrow, on[row], gap
            )


@kernel("MRrrRMMMri")
def _forward_scalar(
    z: Array, r: Array, b: Array, p: Array, before: Array, c: Array, a: Array, h: Array, mask: Array, start: int
) -> None:
    """Units from ``start``, one at a time."""
    n = c.shape[1]
    kind = z.dtype.type
    for row in range(c.shape[0]):
        for j in range(start, n):
            old = before[row, j]
            i = kind(tanh_jit(np.float64(z[row, j] + r[row, j] + b[j])))
            f = kind(1.0 / (1.0 + exp_jit(-np.float64(z[row, n + j] + r[row, n + j] + b[n + j] + p[j] * old))))
            last = 3 * n + j
            g = kind(1.0 / (1.0 + exp_jit(-np.float64(z[row, last] + r[row, last] + b[last] + p[2 * n + j] * old))))
            new = f * old + g * i
            k = 2 * n + j
            o = kind(1.0 / (1.0 + exp_jit(-np.float64(z[row, k] + r[row, k] + b[k] + p[n + j] * new))))
            squashed = kind(tanh_jit(np.float64(new)))
            z[row, j], z[row, n + j], z[row, k], z[row, last] = i, f, o, g
            c[row, j], a[row, j], h[row, j] = mask[row] * new, squashed, mask[row] * (o * squashed)


@kernel("MRRMrRRri")
def _backward_scalar(
    z: Array, dy: Array, carried: Array, dc: Array, p: Array, before: Array, a: Array, mask: Array, start: int
) -> None:
    """Units from ``start``, one at a time."""
    n = dc.shape[1]
    one = z.dtype.type(1)
    for row in range(dc.shape[0]):
        for j in range(start, n):
            i, f, o, g = z[row, j], z[row, n + j], z[row, 2 * n + j], z[row, 3 * n + j]
            out = a[row, j]
            dh = mask[row] * (dy[row, j] + carried[row, j])
            do = dh * out * (o * (one - o))
            cell = mask[row] * dc[row, j] + (dh * o * (one - out * out) + do * p[n + j])
            df = cell * before[row, j] * (f * (one - f))
            dg = cell * i * (g * (one - g))
            dc[row, j] = cell * f + (df * p[j] + dg * p[2 * n + j])
            z[row, j], z[row, n + j] = cell * g * (one - i * i), df
            z[row, 2 * n + j], z[row, 3 * n + j] = do, dg


def _ahead(b: Array, p: Array, z: Array, fed_back: Array, h: Array, c: Array, a: Array, mask: Array) -> Step:
    """Return what does step ``t``, once the state before it has been multiplied by the recurrent weights."""
    (rows, n), lined = a.shape[1:], z.dtype.char == "f"
    start = n // 16 * 16 if lined else 0
    r, pa = fed_back.ctypes.data, p.ctypes.data
    firsts = [(array.ctypes.data, array.strides[0]) for array in (z, c, a, h, mask)]

    def step(t: int) -> None:
        if start:
            za, ca, aa, ha, ma = (first + t * stride for first, stride in firsts)
            _forward_lanes(b, za, r, pa, ca, ca + firsts[1][1], aa, ha + firsts[3][1], ma, rows, n)
        if start < n:
            _forward_scalar(z[t], fed_back, b, p, c[t], c[t + 1], a[t], h[t + 1], mask[t], start)

    return step


def _back(p: Array, z: Array, dh: Array, carried: Array, dc: Array, c: Array, a: Array, mask: Array) -> Step:
    (rows, n), lined = a.shape[1:], z.dtype.char == "f"
    start = n // 16 * 16 if lined else 0
    r, d = carried.ctypes.data, dc.ctypes.data
    firsts = [(array.ctypes.data, array.strides[0]) for array in (z, dh, c, a, mask)]

    def step(t: int) -> None:
        if start:
            za, ya, ca, aa, ma = (first + t * stride for first, stride in firsts)
            _backward_lanes(p, za, ya, r, d, ca, aa, ma, rows, n)
        if start < n:
            _backward_scalar(z[t], dh[t], carried, dc, p, c[t], a[t], mask[t], start)

    return step


def lstm_forward(
    z: Array, recurrent: Array, b: Array, peepholes: Array, h: Array, c: Array, a: Array, mask: Array
) -> None:
    """See ``Kernels``."""
    over_time(_ahead, z, recurrent, b, peepholes, h, c, a, mask, matmul)


def lstm_backward(
    dh: Array, z: Array, recurrent: Array, peepholes: Array, c: Array, a: Array, mask: Array, first: int
) -> None:
    """See ``Kernels``."""
    over_time_back(_back, dh, z, recurrent, peepholes, c, a, mask, first, matmul)
