"""The inner loops of convolution and pooling on tiles as LLVM code: sixteen examples are one vector.

Because the examples are innermost, every multiply-add is a full vector for any number of channels, kernel and stride;
weights are broadcast scalars. A block of outputs stays in registers while all of its inputs are read once. Block sizes
are compile-time constants, all other sizes are not: one compilation serves many layers. The kernels around the blocks
are compiled once for all block sizes (``tiles``).

All functions work only inside ``@njit`` code; addresses and steps are bytes, ``uint64``, ``LINE`` bytes a vector.
"""

# mypy: allow-untyped-calls, allow-untyped-decorators
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from dl4jlegacy.kernels.numba.emission import (
    F32,
    I64,
    INTS,
    at,
    block,
    broadcast,
    fma,
    i64,
    load,
    nested,
    shuffle,
    spread,
    store,
    variables,
    vector,
)
from dl4jlegacy.kernels.philox import LANES
from dl4jlegacy.kernels.protocol import MOST_PLACES

__all__ = [
    "LINE",
    "clear",
    "expand_window",
    "forward_block",
    "input_block",
    "max_window",
    "plane_sums",
    "spread_window",
    "sum_window",
    "weights_block",
]

LINE = 4 * LANES
NO_PLACE = MOST_PLACES


def _codes(value: int) -> Any:
    return ir.Constant(INTS, [value] * LANES)


def _whole(width: int) -> Any:
    return ir.VectorType(ir.IntType(width), LANES)


def _floats(lanes: int) -> Any:
    return ir.VectorType(F32, lanes)


def _lane_sums(builder: Any, vectors: list[Any]) -> list[Any]:
    """Return vectors that hold the sum of all lanes of each of ``vectors``, in order.

    The order of additions (halves to halves) is the same for every vector, on every machine; two vectors share an
    addition.
    """
    lanes = width = vectors[0].type.count
    while width > 1:
        vectors = vectors + vectors[-1:] * (len(vectors) % 2)
        groups = range(0, 2 * lanes, width)
        low, high = ([at for first in groups for at in range(first + skip, first + skip + width // 2)]
                     for skip in (0, width // 2))  # fmt: skip
        vectors = [
            builder.fadd(shuffle(builder, a, b, low), shuffle(builder, a, b, high))
            for a, b in zip(vectors[::2], vectors[1::2], strict=True)
        ]
        width //= 2
    return vectors


def _forward_block(builder: Any, x: Any, w: Any, b: Any, y: Any, places: Any, offsets: Any, x_pixel: Any,
                   y_filter: Any, relu: Any, filters: int, pixels: int, lanes: int) -> None:  # fmt: skip
    """Compute ``filters`` outputs of ``pixels`` neighbours in a row: bias plus the sum over channels and kernel places.

    ``x`` is the input under the first place of the first channel. ``offsets`` lead from there to the inputs under all
    ``places``, and ``x_pixel`` to the input of the next pixel; ``w`` holds ``filters`` weights for each place.
    """
    kind = _floats(lanes)
    start = [broadcast(builder, b, 4 * f, kind) for f in range(filters) for _ in range(pixels)]
    sums = variables(builder, filters * pixels, start)
    skips = [builder.mul(i64(i), x_pixel) for i in range(pixels)]

    def place(indices: list[Any]) -> None:
        here = builder.add(x, load(builder, at(builder, offsets, (indices[0], i64(8))), 0, I64))
        given = at(builder, w, (indices[0], i64(4 * filters)))
        seen = [load(builder, builder.add(here, skip), 0, kind) for skip in skips]
        for f in range(filters):
            weight = broadcast(builder, given, 4 * f, kind)
            for i in range(pixels):
                total = sums[f * pixels + i]
                builder.store(fma(builder, seen[i], weight, builder.load(total)), total)

    nested(builder, (places,), place)
    rectify = builder.icmp_unsigned("!=", relu, i64(0))
    floor = spread(builder, builder.select(rectify, ir.Constant(F32, 0.0), ir.Constant(F32, float("-inf"))), kind)
    for f in range(filters):
        line = at(builder, y, (i64(f), y_filter))
        for i in range(pixels):
            value = builder.load(sums[f * pixels + i])
            value = builder.select(builder.fcmp_ordered("<", value, floor), floor, value)  # a NaN stays one
            store(builder, value, line, i * LINE)


def _weights_block(builder: Any, x: Any, dz: Any, g: Any, kept: Any, tiles: Any, pixels: Any, offsets: Any,
                   x_tile: Any, x_down: Any, x_across: Any, z_tile: Any, z_filter: Any, goes_on: Any, ends: Any,
                   filters: int, down: int, across: int, lanes: int) -> None:  # fmt: skip
    """Sum the gradients of ``filters`` x ``down`` x ``across`` weights over tiles and output pixels.

    The sums start with the values in ``kept`` if ``goes_on``, else with 0. If ``ends``, the sums over lanes, halves
    upon halves, are written to ``g``, one weight after the other in vectors; else the sums go to ``kept``. ``offsets``
    lead from ``x`` to the inputs under all pixels, ``x_down`` and ``x_across`` to the next row and column of the
    kernel.
    """
    kind, places = _floats(lanes), [(row, column) for row in range(down) for column in range(across)]
    count, parts = filters * len(places), LANES // lanes
    sums = variables(builder, count, [vector(0.0, kind)] * count)
    skips = [at(builder, i64(0), (i64(row), x_down), (i64(column), x_across)) for row, column in places]
    begins = builder.icmp_unsigned("!=", goes_on, i64(0))

    def run(x: Any, dz: Any, kept: Any) -> None:
        with builder.if_then(begins):
            for number, total in enumerate(sums):
                builder.store(load(builder, kept, 4 * lanes * number, kind), total)

        def pixel(indices: list[Any]) -> None:
            here = at(builder, x, (indices[0], x_tile))
            here = builder.add(here, load(builder, at(builder, offsets, (indices[1], i64(8))), 0, I64))
            there = at(builder, dz, (indices[0], z_tile), (indices[1], i64(LINE)))
            slopes = [load(builder, at(builder, there, (i64(f), z_filter)), 0, kind) for f in range(filters)]
            for k, skip in enumerate(skips):
                seen = load(builder, builder.add(here, skip), 0, kind)
                for f in range(filters):
                    total = sums[f * len(places) + k]
                    builder.store(fma(builder, seen, slopes[f], builder.load(total)), total)

        nested(builder, (tiles, pixels), pixel)

    def part(indices: list[Any]) -> None:
        skip = builder.mul(indices[0], i64(4 * lanes))
        own = builder.add(kept, builder.mul(indices[0], i64(4 * lanes * count)))
        run(builder.add(x, skip), builder.add(dz, skip), own)
        _store_all(builder, sums, own)
        for total in sums:
            builder.store(vector(0.0, kind), total)

    def end(found: list[Any]) -> None:
        for number, total in enumerate(_lane_sums(builder, found)):
            store(builder, total, g, number * 4 * lanes)

    is_last = builder.icmp_unsigned("!=", ends, i64(0))
    if parts == 1:
        run(x, dz, kept)
        with builder.if_else(is_last) as (then, otherwise):
            with then:
                end([builder.load(total) for total in sums])
            with otherwise:
                _store_all(builder, sums, kept)
        return
    nested(builder, (i64(parts),), part)
    with builder.if_then(is_last):
        end([_whole_sum(builder, [load(builder, kept, 4 * lanes * (number + part * count), kind)
                                  for part in range(parts)]) for number in range(count)])  # fmt: skip


def _store_all(builder: Any, sums: list[Any], address: Any) -> None:
    for number, total in enumerate(sums):
        found = builder.load(total)
        store(builder, found, address, 4 * found.type.count * number)


def _whole_sum(builder: Any, parts: list[Any]) -> Any:
    """Return the sum of the parts of one vector, halves upon halves."""
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [builder.fadd(a, b) for a, b in zip(parts[:half], parts[half:], strict=True)]
    return parts[0]


def _input_block(builder: Any, dz: Any, w: Any, dx: Any, filters: Any, z_filter: Any, x_channel: Any,
                 channels: int, places: int, pixels: int, stride: int, dilation: int, lanes: int) -> None:  # fmt: skip
    """Add to ``dx`` the gradients from ``pixels`` neighbouring outputs, all filters, along one row of the kernel.

    Gradients of several outputs for one place are added in the order of the kernel's places. ``w`` holds
    ``channels`` x ``places`` weights for each filter.
    """
    count, kind = channels * places * pixels, _floats(lanes)
    sums = variables(builder, count, [vector(0.0, kind)] * count)

    def one(indices: list[Any]) -> None:
        line = at(builder, dz, (indices[0], z_filter))
        given = at(builder, w, (indices[0], i64(4 * channels * places)))
        slopes = [load(builder, line, i * LINE, kind) for i in range(pixels)]
        for which in range(channels * places):
            weight = broadcast(builder, given, 4 * which, kind)
            for i in range(pixels):
                total = sums[which * pixels + i]
                builder.store(fma(builder, slopes[i], weight, builder.load(total)), total)

    nested(builder, (filters,), one)
    for c in range(channels):
        line = at(builder, dx, (i64(c), x_channel))
        met: dict[int, Any] = {}
        for k in range(places):  # one after the other, so that blocks of any size add in one order
            for i in range(pixels):
                column = (i * stride + k * dilation) * LINE
                before = met[column] if column in met else load(builder, line, column, kind)
                met[column] = builder.fadd(before, builder.load(sums[(c * places + k) * pixels + i]))
        for column, found in met.items():
            store(builder, found, line, column)


def _each_place(builder: Any, rows: Any, columns: Any, body: Callable[[list[Any]], None]) -> None:
    """Emit ``body`` for every place of a window; without loops for 2 x 2, the usual size."""
    is_small = [builder.icmp_unsigned("==", size, i64(2)) for size in (rows, columns)]
    with builder.if_else(builder.and_(*is_small)) as (then, otherwise):
        with then:
            for row, column in ((0, 0), (0, 1), (1, 0), (1, 1)):
                body([i64(row), i64(column)])
        with otherwise:
            nested(builder, (rows, columns), body)


def _max_window(builder: Any, x: Any, y: Any, winner: Any, rows: Any, columns: Any, x_row: Any, code: Any,
                code_row: Any, relu: Any, width: int) -> None:  # fmt: skip
    """Write a window's maximum to ``y``, and its place (the first of equals) in ``width`` bits per lane.

    With ``relu`` the place is ``NO_PLACE`` if the maximum is not positive.
    """
    best, which = variables(builder, 2, [vector(float("-inf")), _codes(0)])

    def place(indices: list[Any]) -> None:
        seen = load(builder, at(builder, x, (indices[0], x_row), (indices[1], i64(LINE))))
        here = builder.add(at(builder, code, (indices[0], code_row)), indices[1])
        better = builder.fcmp_ordered(">", seen, builder.load(best))
        builder.store(builder.select(better, seen, builder.load(best)), best)
        number = spread(builder, builder.trunc(here, ir.IntType(32)), INTS)
        builder.store(builder.select(better, number, builder.load(which)), which)

    _each_place(builder, rows, columns, place)
    store(builder, builder.load(best), y)
    found = builder.load(which)
    if width == 8:
        passes = builder.fcmp_ordered(">", builder.load(best), vector(0.0))
        passes = builder.or_(passes, _mask(builder, builder.icmp_unsigned("==", relu, i64(0))))
        found = builder.trunc(builder.select(passes, found, _codes(NO_PLACE)), _whole(8))
    store(builder, found, winner)


def _sum_window(builder: Any, x: Any, y: Any, rows: Any, columns: Any, x_row: Any, count: Any) -> None:
    """Write the sum of a window, divided by ``count``, to ``y``."""
    total = variables(builder, 1, [vector(0.0)])[0]

    def place(indices: list[Any]) -> None:
        seen = load(builder, at(builder, x, (indices[0], x_row), (indices[1], i64(LINE))))
        builder.store(builder.fadd(builder.load(total), seen), total)

    _each_place(builder, rows, columns, place)
    store(builder, builder.fdiv(builder.load(total), spread(builder, builder.uitofp(count, F32))), y)


def _spread_window(builder: Any, dy: Any, winner: Any, dx: Any, rows: Any, columns: Any, x_row: Any, code: Any,
                   code_row: Any, count: Any) -> None:  # fmt: skip
    """Add to a window of ``dx``: ``dy / count`` everywhere, or if ``winner`` is not 0, ``dy`` at the winning place."""
    slope = builder.fdiv(load(builder, dy), spread(builder, builder.uitofp(count, F32)))
    chosen = builder.icmp_unsigned("!=", winner, i64(0))
    readable = builder.select(chosen, winner, dy)
    won = load(builder, readable, 0, INTS)

    def one(indices: list[Any]) -> None:
        place = at(builder, dx, (indices[0], x_row), (indices[1], i64(LINE)))
        here = builder.add(at(builder, code, (indices[0], code_row)), indices[1])
        number = spread(builder, builder.trunc(here, ir.IntType(32)), INTS)
        is_it = builder.or_(builder.icmp_signed("==", won, number), _mask(builder, builder.not_(chosen)))
        found = builder.select(is_it, slope, vector(0.0))
        store(builder, builder.fadd(load(builder, place), found), place)

    _each_place(builder, rows, columns, one)


def _expand_window(builder: Any, dy: Any, winner: Any, dx: Any, rows: Any, columns: Any, x_row: Any, code: Any,
                   code_row: Any, adds: Any) -> None:  # fmt: skip
    """Write to a window of ``dx``, or add if ``adds``: ``dy`` at the winning place, 0 elsewhere.

    ``winner`` has one byte per lane.
    """
    slope = load(builder, dy)
    won = builder.zext(load(builder, winner, 0, _whole(8)), INTS)

    def one(indices: list[Any], *, is_added: bool) -> None:
        place = at(builder, dx, (indices[0], x_row), (indices[1], i64(LINE)))
        here = builder.add(at(builder, code, (indices[0], code_row)), indices[1])
        is_it = builder.icmp_signed("==", won, spread(builder, builder.trunc(here, ir.IntType(32)), INTS))
        found = builder.select(is_it, slope, vector(0.0))
        store(builder, builder.fadd(load(builder, place), found) if is_added else found, place)

    with builder.if_else(builder.icmp_unsigned("!=", adds, i64(0))) as (then, otherwise):
        with then:
            nested(builder, (rows, columns), functools.partial(one, is_added=True))
        with otherwise:
            _each_place(builder, rows, columns, functools.partial(one, is_added=False))


def _clear(builder: Any, x: Any, count: Any) -> None:
    """Write zeros to ``count`` vectors."""
    nested(builder, (count,), lambda indices: store(builder, vector(0.0), at(builder, x, (indices[0], i64(LINE)))))


def _plane_sums(builder: Any, x: Any, x_plane: Any, count: Any, out: Any, goes_on: Any, planes: int) -> None:
    """Write to ``out`` the sums of ``count`` vectors of some planes, in order; add to ``out`` if ``goes_on``."""
    sums = variables(builder, planes, [vector(0.0)] * planes)
    with builder.if_then(builder.icmp_unsigned("!=", goes_on, i64(0))):
        for number, total in enumerate(sums):
            builder.store(load(builder, out, number * LINE), total)

    def one(indices: list[Any]) -> None:
        here = at(builder, x, (indices[0], i64(LINE)))
        for number, total in enumerate(sums):
            seen = load(builder, at(builder, here, (i64(number), x_plane)))
            builder.store(builder.fadd(builder.load(total), seen), total)

    nested(builder, (count,), one)
    for number, total in enumerate(sums):
        store(builder, builder.load(total), out, number * LINE)


def _mask(builder: Any, flag: Any) -> Any:
    return spread(builder, flag, ir.VectorType(ir.IntType(1), LANES))


forward_block: Any = block(9, 3)(_forward_block)
weights_block: Any = block(14, 4)(_weights_block)
input_block: Any = block(6, 6)(_input_block)
max_window: Any = block(9, 1)(_max_window)
sum_window: Any = block(6, 0)(_sum_window)
spread_window: Any = block(9, 0)(_spread_window)
clear: Any = block(2, 0)(_clear)
expand_window: Any = block(9, 0)(_expand_window)
plane_sums: Any = block(5, 1)(_plane_sums)
