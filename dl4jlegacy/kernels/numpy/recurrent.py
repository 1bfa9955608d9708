"""An LSTM over time in plain NumPy: the reference for ``numba.recurrent``, and the fallback without Numba.

The formulas are in ``Kernels``. Source: Hochreiter and Schmidhuber 1997 with Gers' forget gates, peepholes as in
Graves 2012, "Supervised sequence labelling with recurrent neural networks", chapter 4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dl4jlegacy.arrays.backend import Array, get_array_module
from dl4jlegacy.errors import ShapeError

__all__ = [
    "Step",
    "check_backward",
    "check_forward",
    "lstm_backward",
    "lstm_forward",
    "over_time",
    "over_time_back",
    "stepping",
    "stepping_back",
    "write_gradients",
]

Step = Callable[[int], None]
"""Function that computes one time step, given its number."""

Matmul = Callable[[Array, Array, Array], Any]
"""``matmul(a, b, out)``: NumPy's, or that of the kernels."""


def check_forward(
    x: Array, W: Array, z: Array, recurrent: Array, b: Array, peepholes: Array, h: Array, c: Array, a: Array,
    mask: Array,
) -> None:  # fmt: skip
    """Raise ``ShapeError`` unless the arguments of ``lstm_forward`` fit each other."""
    steps, rows, units = _sizes(z, recurrent)
    _check(z, {"W": (W, (4 * units, x.shape[-1]))}, is_contiguous=False)
    _check(z, {
        "x": (x, (steps, rows, W.shape[1])), "z": (z, z.shape), "b": (b, (4 * units,)),
        "peepholes": (peepholes, (3 * units,)), "h": (h, (steps + 1, rows, units)), "c": (c, (steps + 1, rows, units)),
        "a": (a, (steps, rows, units)), "mask": (mask, (steps, rows)),
    })  # fmt: skip


def check_backward(
    dh: Array, x: Array, z: Array, recurrent: Array, peepholes: Array, h: Array, c: Array, a: Array, mask: Array,
    gW: Array, gR: Array, gb: Array,
) -> None:  # fmt: skip
    """Raise ``ShapeError`` unless the arguments of ``lstm_backward`` fit each other."""
    steps, rows, units = _sizes(z, recurrent)
    _check(z, {"gW": (gW, (4 * units, x.shape[-1])), "gR": (gR, (4 * units, units))}, is_contiguous=False)
    _check(z, {
        "dh": (dh, (steps, rows, units)), "x": (x, (steps, rows, gW.shape[1])), "z": (z, z.shape),
        "peepholes": (peepholes, (3 * units,)), "h": (h, (steps + 1, rows, units)), "c": (c, (steps + 1, rows, units)),
        "a": (a, (steps, rows, units)), "mask": (mask, (steps, rows)), "gb": (gb, (4 * units,)),
    })  # fmt: skip


def _sizes(z: Array, recurrent: Array) -> tuple[int, int, int]:
    """Return time steps, examples and units; ``z (T, N, 4n)`` and ``recurrent (4n, n)`` must fit each other."""
    gates, units = recurrent.shape
    if z.ndim != 3 or gates != 4 * units or z.shape[2] != gates:
        raise ShapeError(f"lstm: gates of shape {list(z.shape)} and recurrent weights of {list(recurrent.shape)}")
    return z.shape[0], z.shape[1], units


def _check(z: Array, arrays: dict[str, tuple[Array, tuple[int, ...]]], is_contiguous: bool = True) -> None:
    for name, (array, shape) in arrays.items():
        if array.shape != shape:
            raise ShapeError(f"lstm: {name} has shape {list(array.shape)}, needs {list(shape)}")
        if array.dtype != z.dtype or (is_contiguous and not array.flags.c_contiguous):  # compiled loops go by addresses
            raise ShapeError(f"lstm: {name} is {array.dtype} {array.strides}; it must be contiguous {z.dtype}")


def lstm_forward(
    x: Array, W: Array, z: Array, recurrent: Array, b: Array, peepholes: Array, h: Array, c: Array, a: Array,
    mask: Array,
) -> None:  # fmt: skip
    """See ``Kernels``."""
    over_time(stepping(_cell), x, W, z, recurrent, b, peepholes, h, c, a, mask)


def lstm_backward(
    dh: Array, x: Array, z: Array, recurrent: Array, peepholes: Array, h: Array, c: Array, a: Array, mask: Array,
    first: int, gW: Array, gR: Array, gb: Array,
) -> None:  # fmt: skip
    """See ``Kernels``."""
    over_time_back(stepping_back(_cell_back), dh, x, z, recurrent, peepholes, h, c, a, mask, first, gW, gR, gb)


def stepping(cell: Callable[..., None]) -> Callable[..., Step]:
    """Return the argument ``begin`` of ``over_time``, for a ``cell`` that does one time step on ``(N, ...)``."""

    def begin(b: Array, p: Array, z: Array, fed_back: Array, h: Array, c: Array, a: Array, mask: Array) -> Step:
        return lambda t: cell(z[t], fed_back, b, p, c[t], c[t + 1], a[t], h[t + 1], mask[t])

    return begin


def stepping_back(cell: Callable[..., None]) -> Callable[..., Step]:
    """Return the argument ``begin`` of ``over_time_back`` for a ``cell`` that computes one time step backward."""

    def begin(p: Array, z: Array, dh: Array, carried: Array, dc: Array, c: Array, a: Array, mask: Array) -> Step:
        return lambda t: cell(z[t], dh[t], carried, dc, p, c[t], c[t + 1], a[t], mask[t])

    return begin


def over_time(
    begin: Callable[..., Step], x: Array, W: Array, z: Array, recurrent: Array, b: Array, peepholes: Array, h: Array,
    c: Array, a: Array, mask: Array, matmul: Matmul = np.matmul,
) -> None:  # fmt: skip
    """Go forward in time, on any device: for each step one matrix product and one call of the result of ``begin``."""
    xp = get_array_module(z)
    check_forward(x, W, z, recurrent, b, peepholes, h, c, a, mask)
    steps, rows, gates = z.shape
    matmul(x.reshape(steps * rows, -1), W.T, z.reshape(steps * rows, gates))
    fed_back = xp.empty((rows, gates), z.dtype)
    weights = xp.ascontiguousarray(recurrent.T)  # BLAS would copy it at every step
    step = begin(b, peepholes, z, fed_back, h, c, a, mask)
    for t in range(steps):
        matmul(h[t], weights, fed_back)
        step(t)


def over_time_back(
    begin: Callable[..., Step], dh: Array, x: Array, z: Array, recurrent: Array, peepholes: Array, h: Array, c: Array,
    a: Array, mask: Array, first: int, gW: Array, gR: Array, gb: Array, matmul: Matmul = np.matmul,
    column_sums: Callable[[Array, Array], Any] = lambda x, out: np.add.reduce(x, axis=0, out=out),
) -> None:  # fmt: skip
    """Go backward in time, down to step ``first``, then write the gradients; on any device."""
    xp = get_array_module(z)
    check_backward(dh, x, z, recurrent, peepholes, h, c, a, mask, gW, gR, gb)
    steps, rows, units = a.shape
    carried, dc = xp.zeros((rows, units), z.dtype), xp.zeros((rows, units), z.dtype)
    step = begin(peepholes, z, dh, carried, dc, c, a, mask)
    for t in range(steps - 1, first - 1, -1):
        if t < steps - 1:
            matmul(z[t + 1], recurrent, carried)
        step(t)
    write_gradients(z, x, h, first, gW, gR, gb, matmul, column_sums)


def write_gradients(
    dz: Array, x: Array, h: Array, first: int, gW: Array, gR: Array, gb: Array, matmul: Matmul,
    column_sums: Callable[[Array, Array], Any],
) -> None:  # fmt: skip
    """Write the gradients of the weights and of the bias: one product each over all time steps from ``first``."""
    flat = dz[first:].reshape(-1, dz.shape[2])
    matmul(flat.T, x[first:].reshape(len(flat), -1), gW)
    matmul(flat.T, h[first:-1].reshape(len(flat), -1), gR)
    column_sums(flat, gb)


def _parts(z: Array) -> tuple[Array, Array, Array, Array]:
    n = z.shape[1] // 4
    return z[:, :n], z[:, n : 2 * n], z[:, 2 * n : 3 * n], z[:, 3 * n :]


def _sigmoid(z: Array) -> None:
    z *= -1  # np.negative in place is wrong on float32 columns four apart (NumPy 2.4, AVX-512): gates of a single unit
    with np.errstate(over="ignore"):  # exp(-z) = inf is right: 1 / inf = 0
        np.exp(z, out=z)
    z += 1
    np.reciprocal(z, out=z)


def _cell(
    z: Array, fed_back: Array, b: Array, peepholes: Array, before: Array, c: Array, a: Array, h: Array, mask: Array
) -> None:
    z += fed_back
    z += b
    i, f, o, g = _parts(z)
    to_f, to_o, to_g = peepholes.reshape(3, -1)
    f += to_f * before
    g += to_g * before
    np.tanh(i, out=i)
    _sigmoid(f)
    _sigmoid(g)
    np.multiply(f, before, out=c)
    c += g * i
    o += to_o * c
    _sigmoid(o)
    np.tanh(c, out=a)
    np.multiply(o, a, out=h)
    c *= mask[:, None]
    h *= mask[:, None]


def _cell_back(
    z: Array, dy: Array, carried: Array, dc: Array, peepholes: Array, before: Array, c: Array, a: Array, mask: Array
) -> None:
    i, f, o, g = (part.copy() for part in _parts(z))
    di, df, do, dg = _parts(z)
    to_f, to_o, to_g = peepholes.reshape(3, -1)
    dh = (dy + carried) * mask[:, None]
    do[...] = dh * a * (o * (1 - o))
    dc *= mask[:, None]
    dc += dh * o * (1 - a * a) + do * to_o
    di[...] = dc * g * (1 - i * i)
    df[...] = dc * before * (f * (1 - f))
    dg[...] = dc * i * (g * (1 - g))
    dc *= f
    dc += df * to_f + dg * to_g
