"""The product of two matrices with one order of sums: the same bits on every processor, for any size and thread.

Each element is summed over the inner dimension in order, one fused multiply-add a step, and goes on from what is stored
where that dimension is cut: so no width of vectors, shape of tiles or number of threads changes it. The blocking is
Goto and van de Geijn's, "Anatomy of high-performance matrix multiplication" (2008): panels of one matrix, the
*vectors*, are packed; of the other, the *scalars*, what is used often, else it is read where it lies.

The columns of the result are the vectors' lanes, or, if that is less work, its rows: the result is then turned as it is
stored. Scalars times vectors is vectors times scalars, so that this choice changes no bit either.
"""

# mypy: allow-untyped-calls, allow-untyped-decorators
from __future__ import annotations

import functools
import itertools
import threading
from typing import Any

import numpy as np
from numba import types

from dl4jlegacy.backend import Array
from dl4jlegacy.errors import ShapeError
from dl4jlegacy.kernels import threads
from dl4jlegacy.kernels.numba.compile import compile_cached, has_wide_registers, helper
from dl4jlegacy.kernels.numba.product_blocks import copy_bytes, copy_vectors, multiply_tile, turn

__all__ = ["matmul"]


ROWS, VECTORS = (12, 2) if has_wide_registers() else (6, 1)  # of a tile; with AVX2 a vector takes two registers
FEW = 4  # rows of a tile of its own for what is left
LINE = 64
INNER = 512  # steps at most between two stores of a tile
SCALARS = 120  # rows whose scalars are packed at once: a multiple of 12 whose 240 KB stay in the second-level cache
PANELS = 64  # packed at once
_PART = 1 << 22  # multiply-adds that are worth a thread: about 50 microseconds
TURNED = 256  # elements of a turned tile: a vector's lanes times whole vectors that hold its rows

_U = np.uint64


@helper
def _pack_panel(
    v: Array, scratch: Array, to: int, lane: int, lanes: int, k0: int, steps: int, along: bool
) -> None:  # fmt: skip
    """Copy lanes of ``v`` to a panel at ``to``, a row for each step; what is behind them in a row is anything."""
    size = v.itemsize
    line, width, row = LINE // size, VECTORS * LINE // size, _U(VECTORS * LINE)
    base, step, panel = _U(v.ctypes.data), _U(v.strides[0]), _U(scratch.ctypes.data) + _U(to * size)
    if not along:
        start = base + _U(k0) * step + _U(lane * size)
        if lanes == width:
            copy_vectors(v, start, step, panel, row, _U(steps), VECTORS)
        else:
            copy_bytes(v, start, step, panel, row, _U(steps), _U(lanes * size))
        return
    whole, turned = steps // line * line, lanes // line * line
    for first in range(0, turned, line):
        start = base + _U(lane + first) * step + _U(k0 * size)
        for k in range(0, whole, line):
            turn(v, start + _U(k * size), step, panel + _U((k * width + first) * size), row, 0)
        for k in range(whole, steps):
            for i in range(first, first + line):
                scratch[to + k * width + i] = v[lane + i, k0 + k]
    for i in range(turned, lanes):
        for k in range(steps):
            scratch[to + k * width + i] = v[lane + i, k0 + k]


@helper
def _pack_scalars(
    s: Array, scratch: Array, to: int, row: int, rows: int, k0: int, steps: int, along: bool
) -> None:  # fmt: skip
    """Copy scalars of ``rows`` rows of ``s``, at most a tile's, to ``to``, one step's after the other's.

    What stands for rows that there are not is anything. One vector behind the end is written to.
    """
    size = s.itemsize
    line, gap = LINE // size, _U(ROWS * size)
    base, step, packed = _U(s.ctypes.data), _U(s.strides[0]), _U(scratch.ctypes.data) + _U(to * size)
    if not along:
        copy_bytes(s, base + _U(k0) * step + _U(row * size), step, packed, gap, _U(steps), _U(rows * size))
        return
    whole = steps // line * line if rows == ROWS else 0
    start = base + _U(row) * step + _U(k0 * size)
    for k in range(0, whole, line):
        turn(s, start + _U(k * size), step, packed + _U(k * ROWS * size), gap, ROWS)
    for k in range(whole, steps):
        for i in range(rows):
            scratch[to + k * ROWS + i] = s[row + i, k0 + k]


@helper
def _fetch(out: Array, scratch: Array, row: int, rows: int, lane: int, lanes: int, turned: bool) -> None:
    """Read a part of the result into the tile in ``scratch``."""
    width = VECTORS * LINE // out.itemsize
    for i in range(rows):
        for j in range(lanes):
            scratch[i * width + j] = out[lane + j, row + i] if turned else out[row + i, lane + j]


@helper
def _put(out: Array, scratch: Array, row: int, rows: int, lane: int, lanes: int, turned: bool) -> None:
    """Write the tile in ``scratch``, or that part of it which the result has, to the result."""
    size = out.itemsize
    base, step, tile = _U(out.ctypes.data), _U(out.strides[0]), _U(scratch.ctypes.data)
    if not turned:
        to = base + _U(row) * step + _U(lane * size)
        copy_bytes(out, tile, _U(VECTORS * LINE), to, step, _U(rows), _U(lanes * size))
        return
    line, columns = LINE // size, _U(((ROWS * size + LINE - 1) // LINE) * LINE)
    to, spare = base + _U(lane) * step + _U(row * size), tile + _U(ROWS * VECTORS * LINE)
    for j in range(VECTORS):
        here = min(line, lanes - j * line)
        if here > 0:
            turn(out, tile + _U(j * LINE), _U(VECTORS * LINE), spare, columns, ROWS)
            copy_bytes(out, spare, columns, to + _U(j * line) * step, step, _U(here), _U(rows * size))


@helper
def _multiply_panel(
    panel: int, panel_step: int, s: Array, scratch: Array, packed: int, out: Array, lane: int, lanes: int, row: int,
    end: int, k0: int, steps: int, along: bool, is_packed: bool, turned: bool, goes_on: bool,
) -> None:  # fmt: skip
    """Multiply the rows from ``row`` to ``end`` with one panel."""
    size, count, on = out.itemsize, _U(steps), _U(goes_on)
    is_whole, out_step, s_step = lanes * size == VECTORS * LINE and not turned, _U(out.strides[0]), _U(s.strides[0])
    for first in range(row, end, ROWS):
        rows = min(ROWS, end - first)
        to, step = _U(scratch.ctypes.data), _U(VECTORS * LINE)
        is_direct = is_whole and rows == ROWS
        if is_direct:
            to, step = _U(out.ctypes.data) + _U(first) * out_step + _U(lane * size), out_step
        elif goes_on:
            _fetch(out, scratch, first, rows, lane, lanes, turned)
        is_here = is_packed or rows < ROWS
        if along and not is_here:
            at = _U(s.ctypes.data) + _U(first) * s_step + _U(k0 * size)
            multiply_tile(out, panel, panel_step, at, s_step, count, to, step, on, ROWS, VECTORS, 1)
        else:
            at, at_step = _U(s.ctypes.data) + _U(k0) * s_step + _U(first * size), s_step
            if is_here:
                at, at_step = _U(scratch.ctypes.data) + _U((packed + (first - row) * INNER) * size), _U(ROWS * size)
            if rows <= FEW:
                multiply_tile(out, panel, panel_step, at, at_step, count, to, step, on, FEW, VECTORS, 0)
            else:
                multiply_tile(out, panel, panel_step, at, at_step, count, to, step, on, ROWS, VECTORS, 0)
        if not is_direct:
            _put(out, scratch, first, rows, lane, lanes, turned)


@helper
def _multiply_panels(
    v: Array, s: Array, out: Array, scratch: Array, l0: int, l1: int, k0: int, steps: int, v_along: bool, s_along: bool,
    turned: bool, goes_on: bool,
) -> None:  # fmt: skip
    """Multiply all rows with the lanes from ``l0`` to ``l1``, for some steps of the inner dimension."""
    size = out.itemsize
    rows = s.shape[0] if s_along else s.shape[1]
    width, v_step = VECTORS * LINE // size, _U(v.strides[0])
    packed = ROWS * width + TURNED
    panels = packed + SCALARS * INNER + LINE
    used = (l1 - l0 + width - 1) // width
    is_packed = (used > 12 or (used > 1 and s.strides[0] % 1024 == 0)) if s_along else used > 2
    in_place = not v_along and rows <= 2 * ROWS
    for r0 in range(0, rows, SCALARS):
        r1 = min(rows, r0 + SCALARS)
        for first in range(r0, r1, ROWS):
            if is_packed or r1 - first < ROWS:
                to = packed + (first - r0) * INNER
                _pack_scalars(s, scratch, to, first, min(ROWS, r1 - first), k0, steps, s_along)
        for lane in range(l0, l1, width):
            lanes = min(width, l1 - lane)
            to = panels + (lane - l0) * INNER
            if r0 == 0 and not (in_place and lanes == width):
                _pack_panel(v, scratch, to, lane, lanes, k0, steps, v_along)
            panel, panel_step = _U(scratch.ctypes.data) + _U(to * size), _U(width * size)
            if in_place and lanes == width:
                panel, panel_step = _U(v.ctypes.data) + _U(k0) * v_step + _U(lane * size), v_step
            _multiply_panel(panel, panel_step, s, scratch, packed, out, lane, lanes, r0, r1, k0, steps, s_along,
                            is_packed, turned, goes_on)  # fmt: skip


def _product(
    v: Array, s: Array, out: Array, scratch: Array, v_along: bool, s_along: bool, turned: bool, goes_on: bool
) -> None:
    """``out (rows, lanes)``, or ``(lanes, rows)`` if ``turned``, is the product of scalars and vectors.

    ``v (steps, lanes)``, or ``(lanes, steps)`` if they lie ``v_along`` the steps; ``s (steps, rows)``, or the other
    way. ``scratch`` holds one tile, another to turn it in, scalars and panels.
    """
    lanes, steps = (v.shape[0], v.shape[1]) if v_along else (v.shape[1], v.shape[0])
    most = PANELS * (VECTORS * LINE // out.itemsize)
    blocks = (steps + INNER - 1) // INNER
    inner = ((steps + blocks - 1) // blocks + 15) // 16 * 16  # about equal, in whole vectors
    for l0 in range(0, lanes, most):
        for k0 in range(0, steps, inner):
            _multiply_panels(v, s, out, scratch, l0, min(lanes, l0 + most), k0, min(inner, steps - k0), v_along,
                             s_along, turned, goes_on or k0 > 0)  # fmt: skip


class _Scratch(threading.local):
    """What a thread packs into: pages that it never writes to take no memory."""

    def __init__(self) -> None:
        self.of: dict[str, Array] = {}

    def __call__(self, char: str) -> Array:
        found = self.of.get(char)
        if found is None:
            width = VECTORS * LINE // (4 if char == "f" else 8)
            size = ROWS * width + TURNED + SCALARS * INNER + LINE + PANELS * INNER * width
            whole = np.zeros(size + LINE, char)
            skip = -whole.ctypes.data % LINE // whole.itemsize
            found = self.of[char] = whole[skip : skip + size]
        return found


_scratch = _Scratch()


@functools.cache
def _compiled(char: str) -> Any:
    element = types.float32 if char == "f" else types.float64
    read, written = (types.Array(element, 2, "A", readonly=is_read) for is_read in (True, False))
    signature = (read, read, written, types.Array(element, 1, "C"), *[types.boolean] * 4)
    return compile_cached(signature, _product)


def _is_turned(m: int, n: int, k: int, a_along: bool, b_along: bool, size: int) -> bool:
    """Return whether the rows of the result are to be the lanes: an estimate of clocks, packing included."""
    width = VECTORS * LINE // size

    def clocks(lanes: int, rows: int, is_across: bool, is_turned: bool) -> float:
        panels, blocks = -(-lanes // width), -(-rows // ROWS)
        packing = lanes * k * (0.4 if is_across else 0.1 if blocks > 2 else 0)
        used = (blocks - 1) * ROWS + (FEW if (rows - 1) % ROWS < FEW else ROWS)
        return panels * (used * VECTORS / 2 * k + blocks * (150 if is_turned else 30)) + packing

    return clocks(m, n, a_along, True) < clocks(n, m, b_along, False)


def _lies_along(shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> bool | None:
    """Return whether the rows of a matrix are contiguous (True), its columns (False), or neither (None)."""
    if strides[1] == size or shape[1] <= 1:
        return True
    return False if strides[0] == size or shape[0] <= 1 else None


_Plan = tuple[bool, bool, bool, bool, int]


@functools.lru_cache(maxsize=4096)
def _plan(a: tuple[int, ...], a_strides: tuple[int, ...], b: tuple[int, ...], b_strides: tuple[int, ...],
          out: tuple[int, ...], out_strides: tuple[int, ...], size: int) -> _Plan | None:  # fmt: skip
    """Return (whether to turn the task itself, the rows of ``a`` and of ``b`` are contiguous, the result is turned, in
    how many parts it is worth to be done).

    None: a matrix is to be copied first. Raises ``ShapeError``.
    """
    if len(a) != 2 or len(b) != 2 or b[0] != a[1] or out != (a[0], b[1]):
        raise ShapeError(f"product of {list(a)} and {list(b)} into {list(out)}")
    lies = _lies_along(out, out_strides, size)
    if lies is None:
        raise ShapeError(f"product into strides {list(out_strides)}: neither rows nor columns are contiguous")
    a_rows, b_rows = _lies_along(a, a_strides, size), _lies_along(b, b_strides, size)
    if a_rows is None or b_rows is None:
        return None
    if not lies:  # the transposed task: b.T times a.T
        a, b, a_rows, b_rows = b[::-1], a[::-1], not b_rows, not a_rows
    turned = _is_turned(a[0], b[1], a[1], a_rows, not b_rows, size)
    panels = -(-(a[0] if turned else b[1]) // (VECTORS * LINE // size))
    return not lies, a_rows, b_rows, turned, min(panels, a[0] * a[1] * b[1] // _PART)


def matmul(a: Array, b: Array, out: Array, accumulate: bool = False) -> None:
    """See ``Kernels``; the same bits on every processor, in any number of threads."""
    dtype = out.dtype
    if a.dtype != dtype or b.dtype != dtype or dtype.char not in "fd":
        raise ShapeError(f"product of {a.dtype} and {b.dtype} into {dtype}; all must be float32, or float64")
    plan = _plan(a.shape, a.strides, b.shape, b.strides, out.shape, out.strides, dtype.itemsize)
    if plan is None:
        matmul(np.ascontiguousarray(a), np.ascontiguousarray(b), out, accumulate)
        return
    if not out.size or not a.shape[1]:
        if not accumulate:
            out[...] = 0
        return
    is_other, a_rows, b_rows, turned, parts = plan
    if is_other:
        a, b, out = b.T, a.T, out.T
    a, b = a if a_rows else a.T, b if b_rows else b.T
    v, s, v_along, s_along = (a, b, a_rows, not b_rows) if turned else (b, a, not b_rows, a_rows)
    if parts > 1 and (parts := min(parts, threads.count())) > 1:
        _in_parts(parts, v, s, out, v_along, s_along, turned, accumulate)
    else:
        _compiled(dtype.char)(v, s, out, _scratch(dtype.char), v_along, s_along, turned, accumulate)


def _in_parts(
    parts: int, v: Array, s: Array, out: Array, v_along: bool, s_along: bool, turned: bool, goes_on: bool
) -> None:
    """Compute in so many threads, each with some of the lanes."""
    char, width = out.dtype.char, VECTORS * LINE // out.itemsize
    run, lanes = _compiled(char), v.shape[0] if v_along else v.shape[1]

    def part(first: int, last: int) -> None:
        some = v[first:last] if v_along else v[:, first:last]
        to = out[first:last] if turned else out[:, first:last]
        run(some, s, to, _scratch(char), v_along, s_along, turned, goes_on)

    panels = -(-lanes // width)
    ends = [min(lanes, -(-panels * number // parts) * width) for number in range(parts + 1)]
    threads.run_all([functools.partial(part, *pair) for pair in itertools.pairwise(ends)])
