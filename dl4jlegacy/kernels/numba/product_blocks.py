"""The inner loops of the matrix product as LLVM code: a tile of the result in registers, and the loads that feed it.

A tile is some rows of some vectors. In each step of the inner dimension every row adds ``vector x scalar``, rounded
once: so an element of the result is summed in order, for any tiles, vectors and processors.

All functions work only inside ``@njit`` code; their first argument is an array of the elements' dtype.
"""

# mypy: allow-untyped-calls, allow-untyped-decorators
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from dl4jlegacy.kernels.numba.emission import (
    I64,
    at,
    block,
    broadcast,
    fma,
    i64,
    load,
    nested,
    prefetch,
    shuffle,
    store,
    variables,
    vector,
)

__all__ = [
    "ALL",
    "BESIDE",
    "SOME",
    "copy_bytes",
    "copy_elements",
    "copy_rows",
    "multiply_tile",
    "pack_and_multiply_tile",
    "turn",
]

LINE = 64
AHEAD = 24  # steps before it is used, a vector is fetched from a matrix: no processor guesses so far from row to row
SHORT = 128  # steps: so few are over before what they write to is there, unless the tile before has fetched it
SOME, BESIDE, ALL = range(3)  # how the scalars of a tile's rows lie


def _multiply_tile(
    builder: Any, kind: Any, v: Any, v_step: Any, s: Any, s_row: Any, s_step: Any, there: Any, count: Any, out: Any,
    out_step: Any, goes_on: Any, rows: int, vectors: int, lie: int, panel: Any = None,
) -> None:  # fmt: skip
    """Set ``out (rows, vectors)`` to the sum of ``count`` products of vectors and scalars; add to it if ``goes_on``.

    ``v_step`` and ``s_step`` are the distances from one step's vectors and scalars to the next one's, ``s_row`` from
    one row's scalar to the next row's. ``lie`` describes the scalars: ``BESIDE`` each other, an element's size apart;
    ``ALL`` of them exist; or only ``SOME``: the last of the ``there`` rows replaces the missing ones, and is computed
    and written several times. The vectors are also copied to ``panel``, if given, one row for each step.
    """
    places = [(row, j) for row in range(rows) for j in range(vectors)]
    indices = [_at_most(builder, row, there) if lie == SOME else i64(row) for row in range(rows)]
    lines = [at(builder, out, (index, out_step)) for index in indices]
    sums = variables(builder, len(places), [vector(0.0, kind)] * len(places))
    with builder.if_then(builder.icmp_unsigned("!=", goes_on, i64(0))):
        for total, (row, j) in zip(sums, places, strict=True):
            builder.store(load(builder, lines[row], j * LINE, kind), total)
    with builder.if_then(builder.icmp_signed("<=", count, i64(SHORT))):
        for line in lines:
            for j in range(vectors):
                prefetch(builder, at(builder, line, (i64(rows), out_step)), j * LINE)
    scalar = _scalars(builder, kind, s, s_row, s_step, indices, lie)

    def one(step: list[Any]) -> None:
        seen = [load(builder, at(builder, v, (step[0], v_step)), j * LINE, kind) for j in range(vectors)]
        for j, found in enumerate(seen if panel is not None else ()):
            prefetch(builder, at(builder, v, (builder.add(step[0], i64(AHEAD)), v_step)), j * LINE)
            store(builder, found, at(builder, panel, (step[0], i64(vectors * LINE))), j * LINE)
        for row in range(rows):
            factor = broadcast(builder, *scalar(row, step[0]), kind)
            for j in range(vectors):
                total = sums[row * vectors + j]
                builder.store(fma(builder, seen[j], factor, builder.load(total)), total)

    nested(builder, (count,), one)
    for total, (row, j) in zip(sums, places, strict=True):
        store(builder, builder.load(total), lines[row], j * LINE)


def _pack_and_multiply_tile(
    builder: Any, kind: Any, v: Any, v_step: Any, s: Any, s_row: Any, s_step: Any, count: Any, out: Any, out_step: Any,
    goes_on: Any, panel: Any, rows: int, vectors: int,
) -> None:  # fmt: skip
    """Multiply a tile with a complete set of rows, and copy its vectors to a panel.

    A separate copy would wait for memory; here the multiply-adds continue meanwhile.
    """
    all_rows = i64(rows)
    _multiply_tile(
        builder, kind, v, v_step, s, s_row, s_step, all_rows, count, out, out_step, goes_on, rows, vectors, ALL, panel
    )


def _scalars(
    builder: Any, kind: Any, s: Any, s_row: Any, s_step: Any, indices: list[Any], lie: int
) -> Callable[[int, Any], tuple[Any, int]]:
    """Return a function from row and step to the place of the scalar: an address, and an offset."""
    if lie == BESIDE:
        return lambda row, step: (at(builder, s, (step, s_step)), row * LINE // kind.count)
    if lie == SOME:
        firsts = [at(builder, s, (index, s_row)) for index in indices]
        return lambda row, step: (at(builder, firsts[row], (step, s_step)), 0)
    odd = {row: _kept(builder, builder.mul(s_row, i64(row))) for row in range(1, len(indices), 2)}

    def one_of_all(row: int, step: Any) -> tuple[Any, int]:
        here, twos = at(builder, s, (step, s_step)), row & -row  # the largest power of two that divides the row
        return (at(builder, here, (i64(twos), odd[row // twos])), 0) if row else (here, 0)

    return one_of_all


def _kept(builder: Any, value: Any) -> Any:
    """Return a value that is opaque to LLVM, so that it stays in a register.

    With some registers, and the factors 2, 4 and 8 of x86's addresses, no row needs its own addition in each step. LLVM
    alone would emit a chain of additions, which take the place of multiply-adds.
    """
    return builder.asm(ir.FunctionType(I64, [I64]), "", "=r,0", [value], side_effect=False)


def _at_most(builder: Any, row: int, count: Any) -> Any:
    """Return ``row``, or the last of ``count`` rows if that is less."""
    return builder.select(builder.icmp_signed("<", i64(row), count), i64(row), builder.sub(count, i64(1)))


def _turn(builder: Any, kind: Any, x: Any, x_step: Any, y: Any, y_step: Any, there: Any, rows: int) -> None:
    """Transpose: write ``rows`` vectors at ``x`` (0: as many as a vector has lanes) as columns to ``y``.

    Rows of ``y`` are written in order, in whole vectors: elements after the last column are undefined. If only
    ``there`` of the vectors exist, the last of them replaces the missing ones.
    """
    size = kind.count
    lines = [at(builder, x, (_at_most(builder, row, there), x_step)) for row in range(rows or size)]
    parts = [_turned(builder, kind, lines[first : first + size]) for first in range(0, rows or size, size)]
    for lane in range(size):
        for number, turned in enumerate(parts):
            store(builder, turned[lane], at(builder, y, (i64(lane), y_step)), number * LINE)


def _turned(builder: Any, kind: Any, places: list[Any]) -> list[Any]:
    """Return the vectors at ``places``, at most as many as their lanes, transposed."""
    size = kind.count
    lines = [load(builder, place, 0, kind) for place in places]
    lines += [ir.Constant(kind, ir.Undefined)] * (size - len(lines))
    gap = 1
    while gap < size:  # swap blocks beside the diagonal, of one element, two, four ...
        for row in range(size):
            if not row & gap:
                upper, lower = lines[row], lines[row + gap]
                lines[row] = shuffle(builder, upper, lower, [i - gap + size if i & gap else i for i in range(size)])
                lines[row + gap] = shuffle(
                    builder, upper, lower, [i + size if i & gap else i + gap for i in range(size)]
                )
        gap *= 2
    return lines


def _copy_rows(builder: Any, kind: Any, x: Any, x_step: Any, y: Any, y_step: Any, rows: Any, vectors: int,
               elements: int) -> None:  # fmt: skip
    """Copy ``rows`` rows of some vectors and elements."""
    _copy(builder, x, x_step, y, y_step, rows, i64(vectors * LINE + elements * LINE // kind.count))


def _copy_bytes(builder: Any, kind: Any, x: Any, x_step: Any, y: Any, y_step: Any, rows: Any, size: Any) -> None:
    """Copy ``rows`` rows of ``size`` bytes, any number; a separate call for each row would take longer."""
    half = ir.VectorType(kind.element, kind.count // 2)
    last = builder.sub(size, i64(LINE // 2))

    def by_halves(row: list[Any]) -> None:
        there, here = at(builder, x, (row[0], x_step)), at(builder, y, (row[0], y_step))
        with cgutils.for_range_slice(builder, i64(0), last, i64(LINE // 2), intp=I64) as (offset, _):
            store(builder, load(builder, builder.add(there, offset), 0, half), builder.add(here, offset))
        store(builder, load(builder, builder.add(there, last), 0, half), builder.add(here, last))

    with builder.if_else(builder.icmp_signed(">=", last, i64(0))) as (is_long, is_short):
        with is_long:
            nested(builder, (rows,), by_halves)
        with is_short:
            _copy(builder, x, x_step, y, y_step, rows, size)


def _copy(builder: Any, x: Any, x_step: Any, y: Any, y_step: Any, rows: Any, size: Any) -> None:
    byte = ir.IntType(8).as_pointer()

    def one(row: list[Any]) -> None:
        there, here = at(builder, x, (row[0], x_step)), at(builder, y, (row[0], y_step))
        cgutils.raw_memcpy(builder, builder.inttoptr(here, byte), builder.inttoptr(there, byte), size, 1)

    nested(builder, (rows,), one)


def _copy_elements(builder: Any, kind: Any, x: Any, x_step: Any, y: Any, y_step: Any, count: Any) -> None:
    """Copy ``count`` elements."""

    def one(index: list[Any]) -> None:
        found = load(builder, at(builder, x, (index[0], x_step)), 0, kind.element)
        store(builder, found, at(builder, y, (index[0], y_step)))

    nested(builder, (count,), one)


pack_and_multiply_tile: Any = block(10, 2, is_typed=True)(_pack_and_multiply_tile)
multiply_tile: Any = block(10, 3, is_typed=True)(_multiply_tile)
turn: Any = block(5, 1, is_typed=True)(_turn)
copy_rows: Any = block(5, 2, is_typed=True, apart=True)(_copy_rows)
copy_bytes: Any = block(6, 0, is_typed=True, apart=True)(_copy_bytes)
copy_elements: Any = block(5, 0, is_typed=True, apart=True)(_copy_elements)
