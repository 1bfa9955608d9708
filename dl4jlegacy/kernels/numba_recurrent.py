"""Compiled LSTM cells: all four gates, the cell and its output in one pass, and the same back.

Sixteen units at a time on lanes for float32, the units that are left (and float64) one at a time. Every unit of every
example is computed alone, so the bits depend on nothing but its inputs. See ``numpy_recurrent`` for the formulas.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from dl4jlegacy.backend import Array
from dl4jlegacy.kernels import lanes
from dl4jlegacy.kernels.numba_compile import ROUNDED, kernel
from dl4jlegacy.kernels.numpy_recurrent import over_time, over_time_back

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


_sixteen_forward_jit: Any = numba.njit(_sixteen_forward)
_sixteen_backward_jit: Any = numba.njit(_sixteen_backward)


@kernel("MRrrRMMMr")
def _forward_lanes(
    z: Array, r: Array, b: Array, p: Array, before: Array, c: Array, a: Array, h: Array, mask: Array
) -> None:
    """All whole groups of sixteen units."""
    n = c.shape[1]
    gap = np.uint64(4 * n)
    za, ra, ba, pa = np.uint64(z.ctypes.data), np.uint64(r.ctypes.data), np.uint64(b.ctypes.data), p.ctypes.data
    oa, ca, aa, ha = before.ctypes.data, c.ctypes.data, a.ctypes.data, h.ctypes.data
    for row in range(c.shape[0]):
        for group in range(n // 16):
            at = np.uint64(64 * group)
            wide, narrow = np.uint64(16 * n * row) + at, np.uint64(4 * n * row) + at
            _sixteen_forward_jit(
                za + wide, ra + wide, ba + at, np.uint64(pa) + at, np.uint64(oa) + narrow, np.uint64(ca) + narrow,
                np.uint64(aa) + narrow, np.uint64(ha) + narrow, mask[row], gap,
            )  # fmt: skip


@kernel("MRRMrRRr")
def _backward_lanes(
    z: Array, dy: Array, carried: Array, dc: Array, p: Array, before: Array, a: Array, mask: Array
) -> None:
    """All whole groups of sixteen units."""
    n = dc.shape[1]
    gap = np.uint64(4 * n)
    za, ya, ra, da = z.ctypes.data, dy.ctypes.data, carried.ctypes.data, dc.ctypes.data
    pa, oa, aa = p.ctypes.data, before.ctypes.data, a.ctypes.data
    for row in range(dc.shape[0]):
        for group in range(n // 16):
            at = np.uint64(64 * group)
            wide, narrow = np.uint64(16 * n * row) + at, np.uint64(4 * n * row) + at
            _sixteen_backward_jit(
                np.uint64(za) + wide, np.uint64(ya) + narrow, np.uint64(ra) + narrow, np.uint64(da) + narrow,
                np.uint64(pa) + at, np.uint64(oa) + narrow, np.uint64(aa) + narrow, mask[row], gap,
            )  # fmt: skip


@kernel("MRrrRMMMri", ROUNDED)
def _forward_scalar(
    z: Array, r: Array, b: Array, p: Array, before: Array, c: Array, a: Array, h: Array, mask: Array, start: int
) -> None:
    """Units from ``start``, one at a time."""
    n = c.shape[1]
    one = z.dtype.type(1)
    for row in range(c.shape[0]):
        for j in range(start, n):
            old = before[row, j]
            i = np.tanh(z[row, j] + r[row, j] + b[j])
            f = one / (one + np.exp(-(z[row, n + j] + r[row, n + j] + b[n + j] + p[j] * old)))
            last = 3 * n + j
            g = one / (one + np.exp(-(z[row, last] + r[row, last] + b[last] + p[2 * n + j] * old)))
            new = f * old + g * i
            k = 2 * n + j
            o = one / (one + np.exp(-(z[row, k] + r[row, k] + b[k] + p[n + j] * new)))
            squashed = np.tanh(new)
            z[row, j], z[row, n + j], z[row, k], z[row, last] = i, f, o, g
            c[row, j], a[row, j], h[row, j] = mask[row] * new, squashed, mask[row] * (o * squashed)


@kernel("MRRMrRRri", ROUNDED)
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


def _cell(
    z: Array, r: Array, b: Array, p: Array, before: Array, c: Array, a: Array, h: Array, mask: Array
) -> None:  # fmt: skip
    n = c.shape[1]
    start = n // 16 * 16 if z.dtype.char == "f" else 0
    if start:
        _forward_lanes(z, r, b, p, before, c, a, h, mask)
    if start < n:
        _forward_scalar(z, r, b, p, before, c, a, h, mask, start)


def _cell_back(
    z: Array, dy: Array, carried: Array, dc: Array, p: Array, before: Array, c: Array, a: Array, mask: Array
) -> None:  # fmt: skip
    n = dc.shape[1]
    start = n // 16 * 16 if z.dtype.char == "f" else 0
    if start:
        _backward_lanes(z, dy, carried, dc, p, before, a, mask)
    if start < n:
        _backward_scalar(z, dy, carried, dc, p, before, a, mask, start)


def lstm_forward(
    z: Array, recurrent: Array, b: Array, peepholes: Array, h: Array, c: Array, a: Array, mask: Array
) -> None:
    """See ``Kernels``."""
    over_time(_cell, z, recurrent, b, peepholes, h, c, a, mask)


def lstm_backward(
    dh: Array, z: Array, recurrent: Array, peepholes: Array, c: Array, a: Array, mask: Array, first: int
) -> None:
    """See ``Kernels``."""
    over_time_back(_cell_back, dh, z, recurrent, peepholes, c, a, mask, first)
