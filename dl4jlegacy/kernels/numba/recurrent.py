"""Compiled LSTMs: one call computes all time steps of some examples, including products, mostly within the caches.

The weights are packed once, in a panel for each group of units that fills a vector, and stay in the caches. A tile of
some examples is multiplied with a panel, as in ``product``. In the forward pass this gives the four gates of a group,
which a cell turns into its output at once; in the backward pass it gives the gradient of a group's output from later
time steps. Examples are independent, so that threads can divide them. The weights' gradients are summed after every few
time steps, the last steps first, while ``dz`` is still cached. Inputs that are mostly zeros, such as one-hot
characters, are summed only over the non-zero values: a product with zero changes no bit of a sum.

For float32, cells are computed sixteen units at a time in lanes; the remaining units (and float64) one at a time. A
tanh reaches 1 in both. Every unit of every example is computed separately, so the bits depend only on its inputs. See
``numpy.recurrent`` for the formulas.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.kernels import threads
from dl4jlegacy.kernels.numba import lanes, team
from dl4jlegacy.kernels.numba.compile import has_wide_registers, helper, kernel
from dl4jlegacy.kernels.numba.elementary import exp_jit, tanh_jit
from dl4jlegacy.kernels.numba.product import matmul
from dl4jlegacy.kernels.numba.product_blocks import ALL, SOME, multiply_tile
from dl4jlegacy.kernels.numba.scratch import Scratch
from dl4jlegacy.kernels.numpy.recurrent import check_backward, check_forward

__all__ = ["lstm_backward", "lstm_forward"]

ROWS, VECTORS = (8, 2) if has_wide_registers() else (6, 1)  # of a tile; with AVX2 a vector takes two registers
FEW = 4  # rows of the tile for what is left
LINE = 64
_PART = 1 << 21  # multiply-adds that are worth a thread
_STAY = 1 << 20  # bytes of weights that stay in the second-level cache from one time step to the next
_SUMMED = 512  # rows of ``dz`` after which the weights' gradients are summed; the order of sums depends on it

_U = np.uint64


def _sixteen_forward(
    x: int, x_gap: int, r: int, z: int, b: int, p: int, before: int, c: int, a: int, h: int, mask: float, gap: int
) -> None:
    """Compute sixteen units; addresses are those of their first gate, ``gap`` is the bytes from one gate to the next.

    ``x`` has the sums over the inputs, and ``r`` the sums over the previous outputs, in consecutive vectors.
    """
    two, three = np.uint64(2) * gap, np.uint64(3) * gap
    m, old = lanes.splat(np.float32(mask)), lanes.load(before)
    i = lanes.tanh(lanes.add(lanes.add(lanes.load(x), lanes.load(r)), lanes.load(b)))
    f = lanes.add(lanes.add(lanes.load(x + x_gap), lanes.load(r + _U(LINE))), lanes.load(b + gap))
    f = lanes.sigmoid(lanes.add(f, lanes.mul(lanes.load(p), old)))
    g = lanes.add(lanes.add(lanes.load(x + _U(3) * x_gap), lanes.load(r + _U(3 * LINE))), lanes.load(b + three))
    g = lanes.sigmoid(lanes.add(g, lanes.mul(lanes.load(p + two), old)))
    new = lanes.add(lanes.mul(f, old), lanes.mul(g, i))
    o = lanes.add(lanes.add(lanes.load(x + _U(2) * x_gap), lanes.load(r + _U(2 * LINE))), lanes.load(b + two))
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
    m, one, minus = lanes.splat(np.float32(mask)), lanes.splat(np.float32(1)), lanes.splat(np.float32(-1))
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


@helper
def _forward_one(
    x: Array, x_at: int, x_step: int, r: Array, at: int, z: Array, b: Array, p: Array, before: Array, c: Array,
    a: Array, h: Array, on: float, j: int,
) -> None:  # fmt: skip
    """Compute unit ``j`` of one example; the sums of its gates are ``x_step`` apart in ``x``, and a vector in ``r``."""
    n, line = c.size, LINE // z.itemsize
    kind = z.dtype.type
    k, last, old = 2 * n + j, 3 * n + j, before[j]
    i = kind(tanh_jit(np.float64(x[x_at] + r[at] + b[j])))
    f = x[x_at + x_step] + r[at + line] + b[n + j] + p[j] * old
    f = kind(1.0 / (1.0 + exp_jit(-np.float64(f))))
    g = x[x_at + 3 * x_step] + r[at + 3 * line] + b[last] + p[2 * n + j] * old
    g = kind(1.0 / (1.0 + exp_jit(-np.float64(g))))
    new = f * old + g * i
    o = x[x_at + 2 * x_step] + r[at + 2 * line] + b[k] + p[n + j] * new
    o = kind(1.0 / (1.0 + exp_jit(-np.float64(o))))
    squashed = kind(tanh_jit(np.float64(new)))
    z[j], z[n + j], z[k], z[last] = i, f, o, g
    c[j], a[j], h[j] = on * new, squashed, on * (o * squashed)


@helper
def _backward_one(
    z: Array, dy: Array, carried: float, dc: Array, at: int, p: Array, before: Array, a: Array, on: float, j: int,
) -> None:  # fmt: skip
    """Compute unit ``j`` of one example backward; the gradient of its cell is ``dc[at]``."""
    n = a.size
    one = z.dtype.type(1)
    i, f, o, g = z[j], z[n + j], z[2 * n + j], z[3 * n + j]
    out = a[j]
    dh = on * (dy[j] + carried)
    do = dh * out * (o * (one - o))
    cell = on * dc[at] + (dh * o * (one - out * out) + do * p[n + j])
    df = cell * before[j] * (f * (one - f))
    dg = cell * i * (g * (one - g))
    dc[at] = cell * f + (df * p[j] + dg * p[2 * n + j])
    z[j], z[n + j] = cell * g * (one - i * i), df
    z[2 * n + j], z[3 * n + j] = do, dg


@helper
def _tile_rows(left: int, all_rows: int) -> int:
    """Return the number of rows of the next tile if ``left`` rows remain."""
    if left >= ROWS and not (ROWS == 6 and 6 < left < 9):
        return ROWS
    return FEW if all_rows >= FEW else 1


@helper
def _multiply(
    like: Array, panel: int, s: int, s_step: int, count: int, to: int, step: int, goes_on: int, rows: int
) -> None:  # fmt: skip
    """Write the product of ``rows`` rows of ``s`` with a panel to ``to``, or add it if ``goes_on``."""
    gap, size = _U(VECTORS * LINE), like.itemsize
    if rows == ROWS:
        multiply_tile(like, panel, gap, s, s_step, size, ROWS, count, to, step, goes_on, ROWS, VECTORS, ALL)
    elif rows == FEW:
        multiply_tile(like, panel, gap, s, s_step, size, FEW, count, to, step, goes_on, FEW, VECTORS, SOME)
    else:
        multiply_tile(like, panel, gap, s, s_step, size, 1, count, to, step, goes_on, 1, VECTORS, SOME)


@helper
def _pack_gates(weights: Array, packed: Array, steps: int, to: int) -> None:
    """Write ``weights (4n, k)`` to panels of ``steps`` rows, from row ``to`` on: some gates of a group of units.

    The panels of all gates of a group are consecutive. Lanes without a unit are undefined.
    """
    gates, count = weights.shape
    n, line = gates // 4, LINE // weights.itemsize
    for row in range(gates):
        gate, unit = row // n, row % n
        at = (unit // line * 4 + gate) // VECTORS * steps + to
        place = at * VECTORS * line + gate % VECTORS * line + unit % line
        for k in range(count):
            packed[place] = weights[row, k]
            place += VECTORS * line


@helper
def _pack_backward(recurrent: Array, packed: Array) -> None:
    """Write ``recurrent (4n, n)`` as panels of some vectors of units, a row for each of the ``4n`` steps.

    Lanes without a unit are undefined.
    """
    gates, n = recurrent.shape
    width, to = VECTORS * LINE // recurrent.itemsize, 0
    for first in range(0, n, width):
        for k in range(gates):
            for lane in range(min(width, n - first)):
                packed[to + lane] = recurrent[k, first + lane]
            to += width


@helper
def _forward_some(
    z: Array, is_given: bool, b: Array, p: Array, h: Array, c: Array, a: Array, on: float, scratch: Array, own: int,
    here: int, rows: int, first: int,
) -> None:  # fmt: skip
    """Turn the sums of a group of units of an example into its output, one unit at a time from unit ``first``."""
    line, n = LINE // z.itemsize, c.shape[1]
    fed_back = own + ROWS * 4 * line - first
    x, at, step = (scratch, own - first, line) if is_given else (z[here], 0, n)
    for j in range(first, min(n, first + line)):
        _forward_one(x, at + j, step, scratch, fed_back + j, z[here], b, p, c[here], c[here + rows], a[here],
                     h[here + rows], on, j)  # fmt: skip


@kernel("cCCi")
def _find(words: Array, starts: Array, places: Array, columns: int) -> bool:
    """List the non-zero places in ``words``, the bits of float32 rows of ``columns`` columns.

    Return False if ``places`` is too small. Row ``i`` has its columns in ``places`` from ``starts[i]`` to
    ``starts[i + 1]``. ``words.size`` is a multiple of 16.
    """
    count, row, end = 0, 0, 0
    for low in range(0, words.size, 16):
        whole = words[low]
        for k in range(1, 16):
            whole |= words[_U(low + k)]
        if whole != 0:
            for at in range(low, low + 16):
                if words[at] != 0:
                    if count == places.size:
                        return False
                    while at >= end:
                        starts[row] = count
                        row += 1
                        end += columns
                    places[count] = at - (end - columns)
                    count += 1
    for rest in range(row, starts.size):
        starts[rest] = count
    return True


@helper
def _multiply_found(
    like: Array, starts: Array, places: Array, first: int, panel: int, s: int, s_step: int, to: int, rows: int
) -> None:  # fmt: skip
    """Write the products of rows of ``s``, from row ``first`` on, with a panel to ``to``, summed over ``places``."""
    gap, line, size = _U(VECTORS * LINE), _U(4 * LINE), _U(like.itemsize)
    for row in range(rows):
        here, there = s + _U(row) * s_step, to + _U(row) * line
        low, high = starts[first + row], starts[first + row + 1]
        for at in range(low, max(high, low + 1)):  # once, with no step, where all are zero
            k = _U(places[at] if low < high else 0)
            _multiply(like, panel + k * gap, here + k * size, line, _U(low < high), there, line, _U(at > low), 1)


@helper
def _over_time(
    z: Array, x: Array, W: Array, recurrent: Array, b: Array, p: Array, h: Array, c: Array, a: Array, mask: Array,
    starts: Array, places: Array, scratch: Array, first: int, last: int, has_others: bool | None,
) -> None:  # fmt: skip
    """Compute all time steps of the examples from ``first`` to ``last``; arrays have a row per step and example.

    If ``x`` has no columns, ``z`` holds the products of the inputs. ``starts`` and ``places`` list the non-zero places
    of ``x``, unless they are empty. ``scratch`` holds the packed weights, and then two tiles: products of the inputs,
    and of the previous outputs. ``has_others`` is None if the units fill whole vectors.
    """
    size, n, m, rows = z.itemsize, recurrent.shape[1], W.shape[1], mask.shape[1]
    line, steps = LINE // size, m + n
    groups = (n + line - 1) // line
    tile, tile_row = groups * line * 4 * steps, 4 * line
    _pack_gates(W, scratch, steps, np.int64(0))  # a literal would be compiled for itself
    _pack_gates(recurrent, scratch, steps, m)
    base, gap, xa, ha = _U(scratch.ctypes.data), _U(size * n), _U(x.ctypes.data), _U(h.ctypes.data)
    za, ba, pa, ca, aa = (
        _U(z.ctypes.data), _U(b.ctypes.data), _U(p.ctypes.data), _U(c.ctypes.data), _U(a.ctypes.data),
    )  # fmt: skip
    own, to = base + _U(tile * size), base + _U((tile + ROWS * tile_row) * size)
    later, tile_step, panel_size = _U(rows) * gap, _U(4 * LINE), _U(steps * VECTORS * LINE)
    for t in range(mask.shape[0]):
        for group in range(groups):
            low, unit = group * line, _U(group * LINE)
            row = first
            while row < last:
                count = _tile_rows(last - row, last - first)
                start = min(row, last - count)
                at, x_step = _U(t * rows + start), _U(m * size)
                for number in range(8 // VECTORS):  # panels with the inputs, then with the outputs before
                    part, is_late = number % (4 // VECTORS), number >= 4 // VECTORS
                    panel, to_part = base + _U(group * 4 // VECTORS + part) * panel_size, _U(part * VECTORS * LINE)
                    if is_late:
                        panel += _U(m * VECTORS * LINE)
                    elif starts.size:
                        _multiply_found(z, starts, places, t * rows + start, panel, xa + at * x_step, x_step,
                                        own + to_part, count)  # fmt: skip
                    if is_late or (m and not starts.size):
                        s, s_step, to_tile = (ha + at * gap, gap, to) if is_late else (xa + at * x_step, x_step, own)
                        _multiply(z, panel, s, s_step, _U(n if is_late else m), to_tile + to_part, tile_step, _U(0),
                                  count)  # fmt: skip
                for done in range(row, start + count):
                    here, r = t * rows + done, _U(done - start) * tile_step
                    if has_others is None or (size == 4 and low + line <= n):
                        at = _U(here) * gap + unit
                        wide = za + _U(4 * here) * gap + unit
                        sums, sums_gap = (own + r, _U(LINE)) if m else (wide, gap)
                        _sixteen_forward_jit(
                            sums, sums_gap, to + r, wide, ba + unit, pa + unit, ca + at, ca + at + later, aa + at,
                            ha + at + later, mask[t, done], gap,
                        )  # fmt: skip
                    elif has_others is not None:  # Numba leaves out what None excludes
                        _forward_some(z, m > 0, b, p, h, c, a, mask[t, done], scratch, tile + (done - start) * tile_row,
                                      here, rows, low)  # fmt: skip
                row = start + count


@kernel("MRRRrrMMMRccmii")
def _forward(
    z: Array, x: Array, W: Array, recurrent: Array, b: Array, p: Array, h: Array, c: Array, a: Array, mask: Array,
    starts: Array, places: Array, scratch: Array, first: int, last: int,
) -> None:  # fmt: skip
    """For float32, with units in whole vectors."""
    _over_time(z, x, W, recurrent, b, p, h, c, a, mask, starts, places, scratch, first, last, None)


@kernel("MRRRrrMMMRccmii")
def _forward_any(
    z: Array, x: Array, W: Array, recurrent: Array, b: Array, p: Array, h: Array, c: Array, a: Array, mask: Array,
    starts: Array, places: Array, scratch: Array, first: int, last: int,
) -> None:  # fmt: skip
    """For any number of units: compiling the remainder code takes as long as the rest."""
    _over_time(z, x, W, recurrent, b, p, h, c, a, mask, starts, places, scratch, first, last, True)


@helper
def _backward_some(
    z: Array, dh: Array, p: Array, c: Array, a: Array, on: float, scratch: Array, dc: int, carried: int, here: int,
    first: int, last: int,
) -> None:  # fmt: skip
    """Turn the gates of units of an example into gradients, one unit at a time."""
    for j in range(first, last):
        _backward_one(z[here], dh[here], scratch[carried + j], scratch, dc + j, p, c[here], a[here], on, j)


@kernel("MRRrRRRmiiii")
def _backward(
    z: Array, dh: Array, recurrent: Array, p: Array, c: Array, a: Array, mask: Array, scratch: Array, since: int,
    until: int, first: int, last: int,
) -> None:  # fmt: skip
    """Compute time steps from before ``until`` down to ``since`` of the examples from ``first`` to ``last``.

    Arrays as in ``_forward``. ``scratch`` holds the packed weights, the gradients of the cells, and a tile; it has the
    content left by the call for the steps from ``until`` on.
    """
    size, n, rows, steps = z.itemsize, recurrent.shape[1], mask.shape[1], mask.shape[0]
    line = LINE // size
    width = VECTORS * line
    panels = (n + width - 1) // width
    cells = panels * width * 4 * n
    tile = cells + (last - first) * n
    base, gap, panel_size = _U(scratch.ctypes.data), _U(size * n), _U(4 * n * VECTORS * LINE)
    za, ya, pa, ca, aa = (
        _U(z.ctypes.data), _U(dh.ctypes.data), _U(p.ctypes.data), _U(c.ctypes.data), _U(a.ctypes.data),
    )  # fmt: skip
    to, wide, tile_step = base + _U(tile * size), _U(4) * gap, _U(VECTORS * LINE)
    if until == steps:
        _pack_backward(recurrent, scratch)
        scratch[cells : tile + ROWS * width] = 0
    for t in range(until - 1, since - 1, -1):
        for panel in range(panels):
            row, low, high = first, panel * width, min(n, panel * width + width)
            whole = (high - low) // line if size == 4 else 0
            while row < last:
                count = _tile_rows(last - row, last - first)
                start = min(row, last - count)
                if t < steps - 1:
                    later = za + _U((t + 1) * rows + start) * wide
                    _multiply(z, base + _U(panel) * panel_size, later, wide, _U(4 * n), to, tile_step, _U(0), count)
                for done in range(row, start + count):
                    here, dc, carried = t * rows + done, cells + (done - first) * n, tile + (done - start) * width - low
                    for vector in range(whole):
                        j = low + vector * line
                        unit = _U(j * size)
                        at = _U(here) * gap + unit
                        _sixteen_backward_jit(
                            za + _U(here) * wide + unit, ya + at, base + _U((carried + j) * size),
                            base + _U((dc + j) * size), pa + unit, ca + at, aa + at, mask[t, done], gap,
                        )  # fmt: skip
                    if whole * line < high - low:
                        _backward_some(z, dh, p, c, a, mask[t, done], scratch, dc, carried, here, low + whole * line,
                                       high)  # fmt: skip
                row = start + count


@kernel("MRRcci")
def _add_found(sums: Array, dz: Array, x: Array, starts: Array, places: Array, first: int) -> None:
    """Add ``x^T dz`` to ``sums (m, 4n)``, rows in whole vectors, over the non-zero values of ``x``.

    The rows are those of ``starts`` from ``first`` on.
    """
    size, gates, columns = dz.itemsize, dz.shape[1], x.shape[1]
    rows, sa, xa = _U(dz.ctypes.data), _U(sums.ctypes.data), _U(x.ctypes.data)
    step, none = VECTORS * LINE, _U(0)
    for row in range(dz.shape[0]):
        for at in range(starts[first + row], starts[first + row + 1]):
            k = places[at]
            line, to = rows + _U(row * gates * size), sa + _U(k * gates * size)
            for part in range(0, gates * size, step):
                _multiply(dz, line + _U(part), xa + _U((row * columns + k) * size), none, _U(1), to + _U(part), none,
                          _U(1), 1)  # fmt: skip


@kernel("Rmi")
def _add_columns(x: Array, sums: Array, goes_on: int) -> None:
    """Add the rows of ``x`` to ``sums``, in order."""
    if not goes_on:
        sums[:] = 0
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            sums[j] += x[i, j]


_scratch = Scratch()  # by dtype and part of a call

Part = tuple[Array, int, int]
"""Scratch memory, and the first and end of the examples that are computed with it."""


def _parts(char: str, rows: int, work: int, size: int) -> list[Part]:
    """Divide the examples among as many threads as ``work`` (multiply-adds) pays for, each with ``size`` of scratch."""
    count = max(1, min(threads.count(), work // _PART, rows // FEW))
    ends = [rows * number // count // FEW * FEW for number in range(count)] + [rows]
    return [(_scratch((char, part), size, char), *pair) for part, pair in enumerate(itertools.pairwise(ends))]


_NOWHERE = np.empty(0, np.int32), np.empty(0, np.int32)


def _where(x: Array, n: int) -> tuple[Array, Array]:
    """Return the non-zero places of ``x`` (``_find``); empty arrays if sums over them do not pay.

    They pay if at most a 16th of the values is not zero, for ``n`` units in whole vectors.
    """
    if x.dtype.char != "f" or n % 16 or x.size % 16 or x.size < 1024:
        return _NOWHERE
    starts, places = np.empty(len(x) + 1, np.int32), np.empty(x.size // 16, np.int32)
    return (starts, places) if _find(x.reshape(-1).view(np.int32), starts, places, x.shape[1]) else _NOWHERE


def lstm_forward(
    x: Array, W: Array, z: Array, recurrent: Array, b: Array, peepholes: Array, h: Array, c: Array, a: Array,
    mask: Array,
) -> None:  # fmt: skip
    """See ``Kernels``."""
    check_forward(x, W, z, recurrent, b, peepholes, h, c, a, mask)
    (gates, n), (steps, rows), line = recurrent.shape, mask.shape, LINE // z.itemsize
    inputs, flat = x.reshape(steps * rows, -1), z.reshape(steps * rows, gates)
    where = _where(inputs, n)
    if not where[0].size and (W.size + recurrent.size) * z.itemsize > _STAY:
        matmul(inputs, W.T, flat)  # which stays in the caches where panels of all weights do not
        inputs, W = inputs[:, :0], W[:, :0]
    size = -(-n // line) * line * 4 * (W.shape[1] + n) + 2 * ROWS * 4 * line
    given = (
        flat, np.ascontiguousarray(inputs), np.ascontiguousarray(W), np.ascontiguousarray(recurrent), b, peepholes,
        h.reshape(-1, n), c.reshape(-1, n), a.reshape(-1, n), mask, *where,
    )  # fmt: skip
    parts = _parts(z.dtype.char, rows, steps * rows * gates * n, size)
    run = _forward if n % 16 == 0 and line == 16 else _forward_any
    team.run_all([functools.partial(run, *given, *part) for part in parts])


def lstm_backward(
    dh: Array, x: Array, z: Array, recurrent: Array, peepholes: Array, h: Array, c: Array, a: Array, mask: Array,
    first: int, gW: Array, gR: Array, gb: Array,
) -> None:  # fmt: skip
    """See ``Kernels``."""
    check_backward(dh, x, z, recurrent, peepholes, h, c, a, mask, gW, gR, gb)
    (gates, n), (steps, rows), width = recurrent.shape, mask.shape, VECTORS * LINE // z.itemsize
    flat, inputs, before = z.reshape(-1, gates), x.reshape(steps * rows, -1), h.reshape(-1, n)
    given = (
        flat, dh.reshape(-1, n), np.ascontiguousarray(recurrent), peepholes, c.reshape(-1, n), a.reshape(-1, n), mask,
    )  # fmt: skip
    size = -(-n // width) * width * gates + rows * n + ROWS * width
    parts = _parts(z.dtype.char, rows, (steps - first) * rows * gates * n, size)
    where = _where(inputs, n)
    found = np.zeros((x.shape[2], gates), z.dtype) if where[0].size else None
    length = max(1, _SUMMED // rows)
    for until in range(steps, first, -length):
        since, goes_on = max(first, until - length), until < steps
        team.run_all([
            functools.partial(_backward, *given, scratch, since, until, *part) for scratch, *part in parts
        ])  # fmt: skip
        here = slice(since * rows, until * rows)
        matmul(flat[here].T, before[here], gR, goes_on)
        _add_columns(flat[here], gb, goes_on)
        if found is None:
            matmul(flat[here].T, inputs[here], gW, goes_on)
        else:
            _add_found(found, flat[here], inputs[here], *where, here.start)
    if found is not None:
        gW[...] = found.T
