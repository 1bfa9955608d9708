"""The inner loops of the matrix product, written as LLVM code: a tile of the result in registers, and what feeds it.

A tile is some rows of some vectors. In each step of the inner dimension every row adds ``vector x scalar``, rounded
once: so an element of the result is summed in order, whatever tiles, vectors and processors there are.

Every function works inside ``@njit`` code only; its first argument is an array of the elements' dtype.
"""

# mypy: allow-untyped-calls, allow-untyped-decorators
from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils

from dl4jlegacy.kernels.numba.emission import (
    at,
    block,
    broadcast,
    fma,
    i64,
    load,
    nested,
    shuffle,
    store,
    variables,
    vector,
)

__all__ = ["copy_bytes", "copy_vectors", "multiply_tile", "turn"]

LINE = 64


def _multiply_tile(builder: Any, kind: Any, v: Any, v_step: Any, s: Any, s_step: Any, count: Any, out: Any,
                   out_step: Any, goes_on: Any, rows: int, vectors: int, along: int) -> None:  # fmt: skip
    """``out (rows, vectors)``, plus what it holds if ``goes_on``, is the sum of ``count`` vectors times scalars.

    ``v_step`` leads from one step's vectors to the next one's. ``s_step`` leads from one row's scalars, one for each
    step in order, to the next row's if ``along``; else from one step's scalars, one for each row, to the next one's.
    """
    places = [(row, j) for row in range(rows) for j in range(vectors)]
    lines = [at(builder, out, (i64(row), out_step)) for row in range(rows)]
    sums = variables(builder, len(places), [vector(0.0, kind)] * len(places))
    with builder.if_then(builder.icmp_unsigned("!=", goes_on, i64(0))):
        for total, (row, j) in zip(sums, places, strict=True):
            builder.store(load(builder, lines[row], j * LINE, kind), total)
    firsts = [at(builder, s, (i64(row), s_step)) for row in range(rows)] if along else []
    step = i64(LINE // kind.count)

    def one(indices: list[Any]) -> None:
        k = indices[0]
        seen = [load(builder, at(builder, v, (k, v_step)), j * LINE, kind) for j in range(vectors)]
        here = None if along else at(builder, s, (k, s_step))
        for row in range(rows):
            place = at(builder, firsts[row], (k, step)) if along else here
            factor = broadcast(builder, place, 0 if along else row * LINE // kind.count, kind)
            for j in range(vectors):
                total = sums[row * vectors + j]
                builder.store(fma(builder, seen[j], factor, builder.load(total)), total)

    nested(builder, (count,), one)
    for total, (row, j) in zip(sums, places, strict=True):
        store(builder, builder.load(total), lines[row], j * LINE)


def _turn(builder: Any, kind: Any, x: Any, x_step: Any, y: Any, y_step: Any, rows: int) -> None:
    """Write ``rows`` vectors at ``x`` (0: as many as a vector has lanes) as columns to ``y``.

    Rows of ``y`` are written in order, in whole vectors: what follows the last column is anything.
    """
    size = kind.count
    parts = [_turned(builder, kind, x, x_step, range(first, min(first + size, rows or size)))
             for first in range(0, rows or size, size)]  # fmt: skip
    for lane in range(size):
        for number, lines in enumerate(parts):
            store(builder, lines[lane], at(builder, y, (i64(lane), y_step)), number * LINE)


def _turned(builder: Any, kind: Any, x: Any, x_step: Any, rows: range) -> list[Any]:
    """Return the vectors ``rows``, at most as many as they have lanes, turned."""
    size = kind.count
    lines = [load(builder, at(builder, x, (i64(row), x_step)), 0, kind) for row in rows]
    lines += [ir.Constant(kind, ir.Undefined)] * (size - len(rows))
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


def _copy_vectors(builder: Any, kind: Any, x: Any, x_step: Any, y: Any, y_step: Any, rows: Any, vectors: int) -> None:
    """Copy ``rows`` rows of some vectors."""

    def one(indices: list[Any]) -> None:
        there, here = at(builder, x, (indices[0], x_step)), at(builder, y, (indices[0], y_step))
        for j in range(vectors):
            store(builder, load(builder, there, j * LINE, kind), here, j * LINE)

    nested(builder, (rows,), one)


def _copy_bytes(builder: Any, kind: Any, x: Any, x_step: Any, y: Any, y_step: Any, rows: Any, size: Any) -> None:
    """Copy ``rows`` rows of ``size`` bytes, any number."""
    byte = ir.IntType(8).as_pointer()

    def one(indices: list[Any]) -> None:
        there, here = at(builder, x, (indices[0], x_step)), at(builder, y, (indices[0], y_step))
        cgutils.raw_memcpy(builder, builder.inttoptr(here, byte), builder.inttoptr(there, byte), size, 1)

    nested(builder, (rows,), one)


multiply_tile: Any = block(8, 3, is_typed=True)(_multiply_tile)
turn: Any = block(4, 1, is_typed=True)(_turn)
copy_vectors: Any = block(5, 1, is_typed=True)(_copy_vectors)
copy_bytes: Any = block(6, 0, is_typed=True)(_copy_bytes)
