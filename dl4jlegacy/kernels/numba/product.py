"""The product of two matrices with one order of sums: the same bits on every processor, for any size and thread.

Each element is summed over the inner dimension in order, with one fused multiply-add per step. If that dimension is
cut, the sum continues from the stored value: so vector width, tile shape and number of threads do not change it. The
blocking is Goto and van de Geijn's, "Anatomy of high-performance matrix multiplication" (2008). Panels of one matrix,
the *vectors*, are packed, if possible by the first tile that is multiplied with them. Parts of the other matrix, the
*scalars*, are packed if they are used often, else read in place.

The columns of the result are the vectors' lanes, or, if that is less work, its rows: the result is then transposed as
it is stored. The product of scalars and vectors is commutative, so this choice changes no bit either.

Compiled code works with addresses and steps in bytes, and an array ``like`` for the elements' dtype. It also decides
which matrix has which role, since a decision in Python would take longer than a small product.
"""

# mypy: allow-untyped-calls, allow-untyped-decorators
from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import ShapeError
from dl4jlegacy.kernels import threads
from dl4jlegacy.kernels.numba import team
from dl4jlegacy.kernels.numba.compile import compile_cached, has_wide_registers, helper
from dl4jlegacy.kernels.numba.product_blocks import (
    ALL,
    BESIDE,
    SOME,
    copy_bytes,
    copy_elements,
    copy_rows,
    multiply_tile,
    pack_and_multiply_tile,
    turn,
)
from dl4jlegacy.kernels.numba.scratch import Scratch
from dl4jlegacy.kernels.numba.work_queue import MOST, NUMBERS, call, get, job, put, share_out, typical

__all__ = ["matmul"]


ROWS, VECTORS = (12, 2) if has_wide_registers() else (6, 1)  # of a tile; with AVX2 a vector takes two registers
FEW = 4  # rows of a tile of its own for what is left
LINE = 64
WIDTH = VECTORS * LINE  # bytes of a tile's row
INNER = 512  # steps at most between two stores of a tile
SCALARS = 120  # rows whose scalars are packed at once: a multiple of 12 whose 240 KB stay in the second-level cache
PANELS = 64  # packed at once
TILE, TURNED = ROWS * WIDTH, 1024  # bytes of a tile, and of a vector's lanes times whole vectors that hold its rows
_PART = 1 << 20  # multiply-adds that are worth a thread: some 15 microseconds
FINE = 2  # parts for each thread, so that one that loses its core for a while leaves its parts to the others
_NUMBERS = 32  # elements of scratch memory for what is known of a product
BEST, COLUMNS, LEFT = 0, 1, 2  # what the lanes are: whatever is less work, the result's columns, or its rows
_once = functools.partial(helper, inline="always")  # of what is called in one place: not compiled there and here
_DONE, _EMPTY, _UNFIT, _STRIDED, _RESULT = range(5)  # what came of a product: it is done, or why not


@helper
def _pack_panel(like: Array, v: int, lane: int, step: int, lanes: int, steps: int, end: int, panel: int) -> None:
    """Copy ``lanes`` lanes at ``v`` to a panel, one row for each step; the rest of a row is undefined.

    ``lane`` is the distance from one lane to the next, ``step`` from one step to the next; the matrix ends at ``end``.
    """
    size = like.itemsize
    line = LINE // size
    if lane == size:
        whole = min(steps, max(0, (end - v - WIDTH) // step + 1))  # so many rows can be read in whole vectors
        copy_rows(like, v, step, panel, WIDTH, whole, VECTORS, 0)
        copy_bytes(like, v + whole * step, step, panel + whole * WIDTH, WIDTH, steps - whole, lanes * size)
        return
    turned = lanes
    if steps < line:  # vectors that go beyond the steps, but not beyond the matrix
        turned = min(lanes, max(0, (end - v - LINE) // lane + 1)) if lane > 0 and step == size else 0
    for i in range(0, turned, line):
        for k in range(0, steps, line):
            first = max(0, min(k, steps - line))
            at = v + i * lane + first * step
            turn(like, at, lane, panel + first * WIDTH + i * size, WIDTH, min(line, turned - i), 0)
    for i in range(turned, lanes):
        copy_elements(like, v + i * lane, step, panel + i * size, WIDTH, steps)


@helper
def _pack_scalars(like: Array, s: int, row: int, step: int, steps: int, packed: int) -> None:
    """Copy the scalars of a whole tile's rows, step by step; this may write one vector behind the end."""
    size = like.itemsize
    line, gap = LINE // size, ROWS * size
    if row == size:
        copy_rows(like, s, step, packed, gap, steps, 0, ROWS)
    elif step == size and steps >= line:
        for k in range(0, steps, line):
            first = min(k, steps - line)
            turn(like, s + first * size, row, packed + first * gap, gap, ROWS, ROWS)
    else:
        for i in range(ROWS):
            copy_elements(like, s + i * row, step, packed + i * size, gap, steps)


@helper
def _fetch(like: Array, out: int, row: int, lane: int, rows: int, lanes: int, tile: int) -> None:
    """Read a part of the result into a tile."""
    for i in range(rows):
        copy_elements(like, out + i * row, lane, tile + i * WIDTH, like.itemsize, lanes)


@helper
def _put(like: Array, out: int, row: int, lane: int, rows: int, lanes: int, tile: int) -> None:
    """Write the valid part of a tile to the result."""
    size = like.itemsize
    if lane == size:
        copy_bytes(like, tile, WIDTH, out, row, rows, lanes * size)
        return
    line, spare, columns = LINE // size, tile + TILE, (ROWS * size + LINE - 1) // LINE * LINE
    for j in range(VECTORS):
        here = min(line, lanes - j * line)
        if here > 0:
            turn(like, tile + j * LINE, WIDTH, spare, columns, ROWS, ROWS)
            copy_bytes(like, spare, columns, out + j * line * lane, lane, here, rows * size)


@_once
def _multiply_panel(
    like: Array, v: int, v_step: int, panel: int, lanes: int, s: int, s_row: int, s_step: int, packed: int, rows: int,
    steps: int, out: int, row: int, lane: int, tile: int, goes_on: bool,
) -> None:  # fmt: skip
    """Multiply some rows with some lanes at ``v``; the first tile copies these to ``panel`` unless they are there.

    ``packed`` is the address for the packed scalars of whole tiles; 0: they are not packed.
    """
    size = like.itemsize
    is_whole = lane == size and lanes * size == WIDTH
    first = 0
    while first < rows:
        there, at = min(ROWS, rows - first), s + first * s_row
        if FEW < there <= 2 * FEW < ROWS:
            there = FEW  # two small tiles take less time than a large one that is not full
        here, to, to_row = out + first * row, tile, WIDTH
        if is_whole:
            to, to_row = here, row
        elif goes_on:
            _fetch(like, here, row, lane, there, lanes, tile)
        if v != panel:
            pack_and_multiply_tile(like, v, v_step, at, s_row, s_step, steps, to, to_row, goes_on, panel, ROWS, VECTORS)
            v, v_step = panel, WIDTH
        elif there <= FEW:
            multiply_tile(like, v, v_step, at, s_row, s_step, there, steps, to, to_row, goes_on, FEW, VECTORS, SOME)
        elif there < ROWS:
            multiply_tile(like, v, v_step, at, s_row, s_step, there, steps, to, to_row, goes_on, ROWS, VECTORS, SOME)
        elif packed or s_row == size:
            step = s_step
            if packed:
                at, step = packed + first * INNER * size, ROWS * size
            multiply_tile(like, v, v_step, at, size, step, ROWS, steps, to, to_row, goes_on, ROWS, VECTORS, BESIDE)
        else:
            multiply_tile(like, v, v_step, at, s_row, size, ROWS, steps, to, to_row, goes_on, ROWS, VECTORS, ALL)
        if not is_whole:
            _put(like, here, row, lane, there, lanes, tile)
        first += there


@_once
def _multiply_block(
    like: Array, v: int, v_lane: int, v_step: int, lanes: int, end: int, s: int, s_row: int, s_step: int, rows: int,
    steps: int, out: int, row: int, lane: int, scratch: int, goes_on: bool,
) -> None:  # fmt: skip
    """Multiply all rows with some panels, for some steps of the inner dimension."""
    size = like.itemsize
    width, packed = WIDTH // size, scratch + TILE + TURNED
    panels = packed + SCALARS * INNER * size + LINE
    used = (lanes + width - 1) // width
    is_packed = used > 2 if s_row == size else used > 12 or (used > 1 and s_row % 1024 == 0)
    in_place = v_lane == size and (rows < ROWS or steps <= 16)
    overlaps = lane == size and lanes >= width and not goes_on  # some lanes are then computed, and written, twice
    is_once = rows < SCALARS + ROWS  # what is behind whole tiles is not packed
    r0 = 0
    while r0 < rows:
        r1, at = rows if is_once else min(rows, r0 + SCALARS), s + r0 * s_row
        if is_packed:
            for first in range(0, r1 - r0 - ROWS + 1, ROWS):
                _pack_scalars(like, at + first * s_row, s_row, s_step, steps, packed + first * INNER * size)
        for begin in range(0, lanes, width):
            first = min(begin, lanes - width) if overlaps else begin
            some, there = min(width, lanes - first), v + first * v_lane
            panel = panels + (0 if is_once else begin * INNER * size)  # it is in a cache when it is written again
            at_vectors, step = panel, WIDTH
            if in_place and some == width:
                panel, at_vectors, step = there, there, v_step
            elif r0 == 0 and v_lane == size and some == width:
                at_vectors, step = there, v_step
            elif r0 == 0:
                _pack_panel(like, there, v_lane, v_step, some, steps, end, panel)
            _multiply_panel(like, at_vectors, step, panel, some, at, s_row, s_step, packed if is_packed else 0, r1 - r0,
                            steps, out + r0 * row + first * lane, row, lane, scratch, goes_on)  # fmt: skip
        r0 = r1


@helper
def _clocks(like: Array, lanes: int, rows: int, steps: int, is_across: bool, is_down: bool, store: float) -> float:
    """Return an estimate of the clocks of a product, including packing.

    Vectors are transposed during packing if their lanes lie ``across`` the matrix, not side by side. Scalars are read
    from distant addresses unless their rows lie ``down`` the matrix. ``store``: clocks to store one vector of a tile.
    """
    blocks, width = (rows + ROWS - 1) // ROWS, WIDTH // like.itemsize
    panels, rest = (lanes + width - 1) // width, (rows - 1) % ROWS + 1
    packing = lanes * steps * (0.4 if is_across else 0.1 if blocks > 2 else 0.0)
    if panels > 12 or not is_down:
        packing += rows * steps * 0.4
    used = (blocks - 1) * ROWS + (FEW if rest <= FEW else 2 * FEW if rest <= 2 * FEW < ROWS else ROWS)
    return panels * (used * VECTORS / 2 * steps + blocks * VECTORS * store) + packing


@helper
def _stride(matrix: Array, axis: int) -> int:
    """Return the bytes from one element to the next; a single element counts as contiguous."""
    return matrix.strides[axis] if matrix.shape[axis] > 1 else matrix.itemsize


@helper
def _address(matrix: Array) -> Any:
    """Return the address as a signed integer: mixed with the other integers, an unsigned one would give floats."""
    return np.intp(matrix.ctypes.data)


def _compute(kind: type[np.floating[Any]]) -> Callable[[int, int, int], int]:
    """Return the function that computes a part of a result of a dtype: some panels of some rows.

    The numbers in its area are those of ``_product``.
    """

    def compute(numbers: int, part: int, scratch: int) -> int:
        like = typical(kind)
        v, v_lane, v_step, lanes = get(numbers), get(numbers + 8), get(numbers + 16), get(numbers + 24)
        s, s_row, s_step, rows = get(numbers + 32), get(numbers + 40), get(numbers + 48), get(numbers + 56)
        out, lane, row, steps = get(numbers + 64), get(numbers + 72), get(numbers + 80), get(numbers + 88)
        goes_on, across, down = get(numbers + 96) != 0, get(numbers + 104), get(numbers + 112)
        end = v + (lanes - 1) * v_lane + (steps - 1) * v_step + like.itemsize
        width = WIDTH // like.itemsize
        panels, tiles = (lanes + width - 1) // width, (rows + ROWS - 1) // ROWS
        column, line = part % across, part // across
        last, r0 = min(lanes, panels * (column + 1) // across * width), tiles * line // down * ROWS
        there = min(rows, tiles * (line + 1) // down * ROWS) - r0
        blocks = (steps + INNER - 1) // INNER
        inner = ((steps + blocks - 1) // blocks + 15) // 16 * 16  # about equal, in whole vectors
        for l0 in range(panels * column // across * width, last, PANELS * width):
            for k0 in range(0, steps, inner):
                _multiply_block(
                    like, v + l0 * v_lane + k0 * v_step, v_lane, v_step, min(last - l0, PANELS * width), end,
                    s + r0 * s_row + k0 * s_step, s_row, s_step, there, min(inner, steps - k0),
                    out + l0 * lane + r0 * row, row, lane, scratch, goes_on or k0 > 0,
                )  # fmt: skip
        return 0

    compute.__name__ = f"compute_{kind.__name__}"
    return compute


@helper
def _cut(parts: int, lanes: int, rows: int, size: int, is_along: bool) -> Any:
    """Return the number of columns and rows of parts for a result: at most ``parts`` in total, of whole tiles.

    Contiguous lanes (``is_along``) stay together unless that means much more packing: the parts are then contiguous
    memory, divided as in the updaters.
    """
    panels, tiles = (lanes + WIDTH // size - 1) // (WIDTH // size), (rows + ROWS - 1) // ROWS
    by_rows = 2 * rows >= lanes if is_along else rows > 2 * lanes
    if by_rows:
        down = min(parts, tiles)
        return max(1, min(parts // down, panels)), down
    across = min(parts, panels)
    return across, max(1, min(parts // across, tiles))


def _product(
    a: Array, b: Array, out: Array, scratch: Array, goes_on: bool, choice: int, compute: int, area: int, workers: int
) -> int:  # fmt: skip
    """Write the result; if ``area`` is not 0, divide it among ``workers`` threads, including this one.

    Return the outcome code. ``choice`` selects the lanes, ``compute`` is the address of the function that computes a
    part. ``scratch`` has room for one tile, another one to transpose it, scalars, panels, and the numbers of
    ``_compute``.
    """
    m, steps, n, size = a.shape[0], a.shape[1], b.shape[1], out.itemsize
    if b.shape[0] != steps or out.shape[0] != m or out.shape[1] != n:
        return _UNFIT
    if not m * n * steps:
        return _EMPTY
    v, v_lane, v_step = _address(b), _stride(b, 1), _stride(b, 0)
    s, s_row, s_step = _address(a), _stride(a, 0), _stride(a, 1)
    lanes, rows, lane, row = n, m, _stride(out, 1), _stride(out, 0)
    if lane != size:  # the transposed task
        if row != size:
            return _RESULT
        v, v_lane, v_step, lanes, lane, s, s_row, s_step, rows, row = (
            s, s_row, s_step, rows, row, v, v_lane, v_step, lanes, lane
        )  # fmt: skip
    if (v_lane != size and v_step != size) or (s_row != size and s_step != size):
        return _STRIDED
    is_turned = choice == LEFT or (
        choice == BEST
        and _clocks(out, rows, lanes, steps, s_row != size, v_lane != size, 125.0)
        < _clocks(out, lanes, rows, steps, v_lane != size, s_row != size, 15.0)
    )
    if is_turned:
        v, v_lane, v_step, lanes, lane, s, s_row, s_step, rows, row = (
            s, s_row, s_step, rows, row, v, v_lane, v_step, lanes, lane
        )  # fmt: skip
    across, down = _cut(min(MOST, workers * FINE) if area else 1, lanes, rows, size, lane == size)
    packed = _address(scratch)
    numbers = area + NUMBERS if area else packed + (scratch.size - _NUMBERS) * size // 8 * 8
    for index, number in enumerate((v, v_lane, v_step, lanes, s, s_row, s_step, rows, _address(out), lane, row, steps,
                                    np.intp(goes_on), across, down)):  # fmt: skip
        put(numbers + 8 * index, number)
    if area:
        share_out(area, compute, across * down, workers, packed)
    else:
        call(compute, numbers, 0, packed)
    return _DONE


_scratch = Scratch()


def _scratch_of(char: str) -> Array:
    """Return this thread's memory for packing."""
    size = 4 if char == "f" else 8
    return _scratch(char, (TILE + TURNED + LINE + PANELS * INNER * WIDTH) // size + SCALARS * INNER + _NUMBERS, char)


def _compile(char: str) -> tuple[Callable[..., int], int]:
    """Compile the product once; the returned function does not check the types of its arguments."""
    with _lock:  # the workers of a run come here together
        if char not in _compiled:
            element = types.float32 if char == "f" else types.float64
            read, written = (types.Array(element, 2, "A", readonly=is_read) for is_read in (True, False))
            signature = (read, read, written, types.Array(element, 1, "C"), types.boolean, *[types.intp] * 4)
            compute = job(_compute(np.float32 if char == "f" else np.float64))
            compiled = compile_cached(signature, _product)
            _compiled[char] = next(iter(compiled.overloads.values())).entry_point, compute
        return _compiled[char]


_lock = threading.Lock()
_compiled: dict[str, tuple[Callable[..., int], int]] = {}


def matmul(a: Array, b: Array, out: Array, accumulate: bool = False, choice: int = BEST) -> None:
    """See ``Kernels``; the same bits on every processor, in any number of threads.

    ``choice`` selects the vectors' lanes, and affects only the time.
    """
    dtype = out.dtype
    char = dtype.char
    if ((a.dtype is not dtype or b.dtype is not dtype) and (a.dtype != dtype or b.dtype != dtype)) or char not in "fd":
        raise ShapeError(f"product of {a.dtype} and {b.dtype} into {dtype}; all must be float32, or float64")
    if a.ndim != 2 or b.ndim != 2 or out.ndim != 2:
        raise _unfit(a, b, out)
    (run, compute), parts = _compiled.get(char) or _compile(char), threads.count()
    if parts > 1:
        parts = min(parts, a.shape[0] * a.shape[1] * b.shape[1] // _PART)
    scratch = _scratch.of.get(char)  # the usual case, since a small product takes little longer than a call
    if scratch is None:
        scratch = _scratch_of(char)
    if parts > 1:
        with team.TeamLease(parts) as area:  # none if another thread has it
            found = run(a, b, out, scratch, accumulate, choice, compute, area, parts)
    else:
        found = run(a, b, out, scratch, accumulate, choice, compute, 0, 1)
    if found != _DONE:
        _finish(found, a, b, out, accumulate, choice)


def _finish(found: int, a: Array, b: Array, out: Array, accumulate: bool, choice: int) -> None:
    """Handle the cases left by the compiled code, or raise the error for them."""
    if found == _UNFIT:
        raise _unfit(a, b, out)
    if found == _RESULT:
        raise ShapeError(f"product into strides {list(out.strides)}: neither rows nor columns are contiguous")
    if found == _STRIDED:
        matmul(np.ascontiguousarray(a), np.ascontiguousarray(b), out, accumulate, choice)
    elif not accumulate:  # no step at all
        out[...] = 0


def _unfit(a: Array, b: Array, out: Array) -> ShapeError:
    return ShapeError(f"product of {list(a.shape)} and {list(b.shape)} into {list(out.shape)}")
