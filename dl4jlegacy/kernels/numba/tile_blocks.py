"""The inner loops of convolution and pooling on tiles, written as LLVM code: sixteen examples are one vector.

Because the examples lie innermost, every multiply-add is a full vector whatever the channels, the kernel and the stride
are; weights are scalars that are broadcast. A block of outputs stays in registers while everything that it sums is read
once. Block sizes are compile-time constants, all other sizes are not: one compilation serves many layers.

Every function works inside ``@njit`` code only; addresses and steps are bytes, ``uint64``, ``LINE`` bytes a vector.
"""

# mypy: allow-untyped-calls, allow-untyped-decorators
from __future__ import annotations

from typing import Any

from llvmlite import ir

from dl4jlegacy.kernels.numba.emission import (
    F32,
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

__all__ = ["LINE", "forward_block", "input_block", "max_window", "spread_window", "sum_window", "weights_block"]

LINE = 4 * LANES


def _codes(value: int) -> Any:
    return ir.Constant(INTS, [value] * LANES)


def _lane_sum(builder: Any, vector: Any) -> Any:
    """Return the sum of all lanes, halves upon halves, the same everywhere."""
    width = LANES
    while width > 1:
        width //= 2
        low, high = (shuffle(builder, vector, vector, range(start, start + width)) for start in (0, width))
        vector = builder.fadd(low, high)
    return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))


def _forward_block(builder: Any, x: Any, w: Any, b: Any, y: Any, channels: Any, kh: Any, kw: Any, x_channel: Any,
                   x_row: Any, x_column: Any, y_filter: Any, relu: Any,
                   filters: int, pixels: int, stride: int) -> None:  # fmt: skip
    """``filters`` outputs of ``pixels`` neighbours in a row: biases plus the sum over channels and kernel places.

    ``x`` is what the first place of the first channel meets, with steps to the next channel, kernel row and column;
    ``w`` holds ``filters`` weights for each place of each channel.
    """
    start = [broadcast(builder, b, 4 * f) for f in range(filters) for _ in range(pixels)]
    sums = variables(builder, filters * pixels, start)
    weights = variables(builder, 1, [w])[0]

    def place(indices: list[Any]) -> None:
        here = at(builder, x, *zip(indices, (x_channel, x_row, x_column), strict=True))
        given = builder.load(weights)
        seen = [load(builder, here, i * stride * LINE) for i in range(pixels)]
        for f in range(filters):
            weight = broadcast(builder, given, 4 * f)
            for i in range(pixels):
                total = sums[f * pixels + i]
                builder.store(fma(builder, seen[i], weight, builder.load(total)), total)
        builder.store(builder.add(given, i64(4 * filters)), weights)

    nested(builder, (channels, kh, kw), place)
    rectify = builder.icmp_unsigned("!=", relu, i64(0))
    floor = spread(builder, builder.select(rectify, ir.Constant(F32, 0.0), ir.Constant(F32, float("-inf"))))
    for f in range(filters):
        line = at(builder, y, (i64(f), y_filter))
        for i in range(pixels):
            value = builder.load(sums[f * pixels + i])
            value = builder.select(builder.fcmp_ordered("<", value, floor), floor, value)  # a NaN stays one
            store(builder, value, line, i * LINE)


def _weights_block(builder: Any, x: Any, dz: Any, g: Any, tiles: Any, rows: Any, columns: Any, x_tile: Any, x_row: Any,
                   x_column: Any, z_tile: Any, z_filter: Any, g_filter: Any,
                   filters: int, places: int, dilation: int) -> None:  # fmt: skip
    """Write to ``g`` the gradient of ``filters`` x ``places`` weights, neighbours in a row of the kernel.

    The sum goes over tiles, output rows and columns, then over lanes.
    """
    sums = variables(builder, filters * places, [vector(0.0)] * (filters * places))

    def pixel(indices: list[Any]) -> None:
        tile, row, column = indices
        here = at(builder, x, (tile, x_tile), (row, x_row), (column, x_column))
        there = at(builder, dz, (tile, z_tile), (builder.add(builder.mul(row, columns), column), i64(LINE)))
        seen = [load(builder, here, k * dilation * LINE) for k in range(places)]
        for f in range(filters):
            slope = load(builder, at(builder, there, (i64(f), z_filter)))
            for k in range(places):
                total = sums[f * places + k]
                builder.store(fma(builder, seen[k], slope, builder.load(total)), total)

    nested(builder, (tiles, rows, columns), pixel)
    for f in range(filters):
        line = at(builder, g, (i64(f), g_filter))
        for k in range(places):
            store(builder, _lane_sum(builder, builder.load(sums[f * places + k])), line, 4 * k)


def _input_block(builder: Any, dz: Any, w: Any, dx: Any, filters: Any, z_filter: Any, x_channel: Any,
                 channels: int, places: int, pixels: int, stride: int, dilation: int) -> None:  # fmt: skip
    """Add to ``dx`` what ``pixels`` neighbouring outputs, all filters, send back along one row of the kernel.

    What several outputs send to one place is added in the order of the kernel's places. ``w`` holds
    ``channels`` x ``places`` weights for each filter.
    """
    count = channels * places * pixels
    sums = variables(builder, count, [vector(0.0)] * count)

    def one(indices: list[Any]) -> None:
        line = at(builder, dz, (indices[0], z_filter))
        given = at(builder, w, (indices[0], i64(4 * channels * places)))
        slopes = [load(builder, line, i * LINE) for i in range(pixels)]
        for which in range(channels * places):
            weight = broadcast(builder, given, 4 * which)
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
                before = met[column] if column in met else load(builder, line, column)
                met[column] = builder.fadd(before, builder.load(sums[(c * places + k) * pixels + i]))
        for column, found in met.items():
            store(builder, found, line, column)


def _max_window(builder: Any, x: Any, y: Any, winner: Any, rows: Any, columns: Any, x_row: Any, code: Any,
                code_row: Any) -> None:  # fmt: skip
    """Write the maximum of a window to ``y``, and to ``winner`` which place it was (the first of equals)."""
    best, which = variables(builder, 2, [vector(float("-inf")), _codes(0)])

    def place(indices: list[Any]) -> None:
        seen = load(builder, at(builder, x, (indices[0], x_row), (indices[1], i64(LINE))))
        here = builder.add(at(builder, code, (indices[0], code_row)), indices[1])
        better = builder.fcmp_ordered(">", seen, builder.load(best))
        builder.store(builder.select(better, seen, builder.load(best)), best)
        number = spread(builder, builder.trunc(here, ir.IntType(32)), INTS)
        builder.store(builder.select(better, number, builder.load(which)), which)

    nested(builder, (rows, columns), place)
    store(builder, builder.load(best), y)
    store(builder, builder.load(which), winner)


def _sum_window(builder: Any, x: Any, y: Any, rows: Any, columns: Any, x_row: Any, count: Any) -> None:
    """Write the sum of a window, divided by ``count``, to ``y``."""
    total = variables(builder, 1, [vector(0.0)])[0]

    def place(indices: list[Any]) -> None:
        seen = load(builder, at(builder, x, (indices[0], x_row), (indices[1], i64(LINE))))
        builder.store(builder.fadd(builder.load(total), seen), total)

    nested(builder, (rows, columns), place)
    store(builder, builder.fdiv(builder.load(total), spread(builder, builder.uitofp(count, F32))), y)


def _spread_window(builder: Any, dy: Any, winner: Any, dx: Any, rows: Any, columns: Any, x_row: Any, code: Any,
                   code_row: Any, count: Any) -> None:  # fmt: skip
    """Add to a window of ``dx``: ``dy / count`` everywhere, or for ``winner`` not 0 ``dy`` at the place that won."""
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

    nested(builder, (rows, columns), one)


def _mask(builder: Any, flag: Any) -> Any:
    return spread(builder, flag, ir.VectorType(ir.IntType(1), LANES))


forward_block: Any = block(12, 3)(_forward_block)
weights_block: Any = block(12, 3)(_weights_block)
input_block: Any = block(6, 5)(_input_block)
max_window: Any = block(8, 0)(_max_window)
sum_window: Any = block(6, 0)(_sum_window)
spread_window: Any = block(9, 0)(_spread_window)
