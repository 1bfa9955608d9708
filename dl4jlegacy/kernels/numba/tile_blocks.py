"""The inner loops of convolution and pooling on tiles, written as LLVM code: sixteen examples are one vector.

Because the examples lie innermost, every multiply-add is a full vector whatever the channels, the kernel and the stride
are; weights are scalars that are broadcast. A block of outputs stays in registers while everything that it sums is read
once. Block sizes are compile-time constants, all other sizes are not: one compilation serves many layers.

Every function works inside ``@njit`` code only; addresses and steps are bytes, ``uint64``, ``LINE`` bytes a vector.
"""

# mypy: allow-untyped-calls, allow-untyped-decorators
from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from dl4jlegacy.kernels.philox import LANES

__all__ = ["LINE", "forward_block", "input_block", "max_window", "spread_window", "sum_window", "weights_block"]

LINE = 4 * LANES

_F32 = ir.FloatType()
_I64 = ir.IntType(64)
_FLOATS = ir.VectorType(_F32, LANES)
_INTS = ir.VectorType(ir.IntType(32), LANES)


def _vector(value: float) -> Any:
    return ir.Constant(_FLOATS, [value] * LANES)


def _codes(value: int) -> Any:
    return ir.Constant(_INTS, [value] * LANES)


def _i64(value: int) -> Any:
    return ir.Constant(_I64, value)


def _load(builder: Any, address: Any, offset: int = 0, kind: Any = _FLOATS) -> Any:
    loaded = builder.load(builder.inttoptr(builder.add(address, _i64(offset)), kind.as_pointer()))
    loaded.align = 4
    return loaded


def _store(builder: Any, value: Any, address: Any, offset: int = 0) -> None:
    pointer = builder.inttoptr(builder.add(address, _i64(offset)), value.type.as_pointer())
    builder.store(value, pointer).align = 4


def _spread(builder: Any, scalar: Any, kind: Any = _FLOATS) -> Any:
    """Return a scalar in all lanes."""
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), _codes(0))


def _broadcast(builder: Any, address: Any, offset: int) -> Any:
    return _spread(builder, _load(builder, address, offset, _F32))


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    kind = ir.FunctionType(_FLOATS, [_FLOATS] * 3)
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32"), (a, b, c))


def _lane_sum(builder: Any, vector: Any) -> Any:
    """Return the sum of all lanes, halves upon halves, the same everywhere."""
    width = LANES
    while width > 1:
        width //= 2
        picks = [ir.Constant(ir.VectorType(ir.IntType(32), width), list(range(s, s + width))) for s in (0, width)]
        nothing = ir.Constant(vector.type, ir.Undefined)
        low, high = (builder.shuffle_vector(vector, nothing, pick) for pick in picks)
        vector = builder.fadd(low, high)
    return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))


def _variables(builder: Any, count: int, start: Sequence[Any]) -> list[Any]:
    """Return ``count`` vectors in memory that LLVM keeps in registers."""
    result = []
    for index in range(count):
        place = cgutils.alloca_once(builder, start[index].type)
        builder.store(start[index], place)
        result.append(place)
    return result


def _nested(builder: Any, counts: Sequence[Any], body: Callable[[list[Any]], None]) -> None:
    """Emit loops in loops; ``body`` gets the indices, outermost first."""

    def level(depth: int, indices: list[Any]) -> None:
        if depth == len(counts):
            body(indices)
            return
        with cgutils.for_range(builder, counts[depth], intp=_I64) as loop:
            level(depth + 1, [*indices, loop.index])

    level(0, [])


def _at(builder: Any, address: Any, *terms: tuple[Any, Any]) -> Any:
    """Return ``address + index * step + ...``."""
    for index, step in terms:
        address = builder.add(address, builder.mul(index, step))
    return address


def _block(arguments: int, constants: int) -> Callable[[Callable[..., None]], Any]:
    """Make ``emit(builder, *arguments, *constants)`` an intrinsic: so many ``uint64``, then so many constants."""

    def declare(emit: Callable[..., None]) -> Any:
        def typed(context: Any, *given: Any) -> Any:
            literals = given[arguments:]
            if not all(isinstance(kind, types.Literal) for kind in literals):
                return None

            def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
                emit(builder, *args[:arguments], *(kind.literal_value for kind in literals))
                return target.get_dummy_value()

            return types.void(*[types.uint64] * arguments, *literals), generate

        names = ["context", *(f"a{index}" for index in range(arguments + constants))]
        shown = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names]
        typed.__signature__ = Signature(shown)  # type: ignore[attr-defined]  # Numba reads the number of arguments there
        typed.__doc__, typed.__name__ = emit.__doc__, emit.__name__.lstrip("_")
        return intrinsic(prefer_literal=True)(typed)

    return declare


def _forward_block(builder: Any, x: Any, w: Any, b: Any, y: Any, channels: Any, kh: Any, kw: Any, x_channel: Any,
                   x_row: Any, x_column: Any, y_filter: Any, relu: Any,
                   filters: int, pixels: int, stride: int) -> None:  # fmt: skip
    """``filters`` outputs of ``pixels`` neighbours in a row: biases plus the sum over channels and kernel places.

    ``x`` is what the first place of the first channel meets, with steps to the next channel, kernel row and column;
    ``w`` holds ``filters`` weights for each place of each channel.
    """
    start = [_broadcast(builder, b, 4 * f) for f in range(filters) for _ in range(pixels)]
    sums = _variables(builder, filters * pixels, start)
    weights = _variables(builder, 1, [w])[0]

    def place(indices: list[Any]) -> None:
        here = _at(builder, x, *zip(indices, (x_channel, x_row, x_column), strict=True))
        given = builder.load(weights)
        seen = [_load(builder, here, i * stride * LINE) for i in range(pixels)]
        for f in range(filters):
            weight = _broadcast(builder, given, 4 * f)
            for i in range(pixels):
                total = sums[f * pixels + i]
                builder.store(_fma(builder, seen[i], weight, builder.load(total)), total)
        builder.store(builder.add(given, _i64(4 * filters)), weights)

    _nested(builder, (channels, kh, kw), place)
    rectify = builder.icmp_unsigned("!=", relu, _i64(0))
    floor = _spread(builder, builder.select(rectify, ir.Constant(_F32, 0.0), ir.Constant(_F32, float("-inf"))))
    for f in range(filters):
        line = _at(builder, y, (_i64(f), y_filter))
        for i in range(pixels):
            value = builder.load(sums[f * pixels + i])
            value = builder.select(builder.fcmp_ordered("<", value, floor), floor, value)  # a NaN stays one
            _store(builder, value, line, i * LINE)


def _weights_block(builder: Any, x: Any, dz: Any, g: Any, tiles: Any, rows: Any, columns: Any, x_tile: Any, x_row: Any,
                   x_column: Any, z_tile: Any, z_filter: Any, g_filter: Any,
                   filters: int, places: int, dilation: int) -> None:  # fmt: skip
    """Write to ``g`` the gradient of ``filters`` x ``places`` weights, neighbours in a row of the kernel.

    The sum goes over tiles, output rows and columns, then over lanes.
    """
    sums = _variables(builder, filters * places, [_vector(0.0)] * (filters * places))

    def pixel(indices: list[Any]) -> None:
        tile, row, column = indices
        here = _at(builder, x, (tile, x_tile), (row, x_row), (column, x_column))
        there = _at(builder, dz, (tile, z_tile), (builder.add(builder.mul(row, columns), column), _i64(LINE)))
        seen = [_load(builder, here, k * dilation * LINE) for k in range(places)]
        for f in range(filters):
            slope = _load(builder, _at(builder, there, (_i64(f), z_filter)))
            for k in range(places):
                total = sums[f * places + k]
                builder.store(_fma(builder, seen[k], slope, builder.load(total)), total)

    _nested(builder, (tiles, rows, columns), pixel)
    for f in range(filters):
        line = _at(builder, g, (_i64(f), g_filter))
        for k in range(places):
            _store(builder, _lane_sum(builder, builder.load(sums[f * places + k])), line, 4 * k)


def _input_block(builder: Any, dz: Any, w: Any, dx: Any, filters: Any, z_filter: Any, x_channel: Any,
                 channels: int, places: int, pixels: int, stride: int, dilation: int) -> None:  # fmt: skip
    """Add to ``dx`` what ``pixels`` neighbouring outputs, all filters, send back along one row of the kernel.

    ``w`` holds ``channels`` x ``places`` weights for each filter.
    """
    count = channels * places * pixels
    sums = _variables(builder, count, [_vector(0.0)] * count)

    def one(indices: list[Any]) -> None:
        line = _at(builder, dz, (indices[0], z_filter))
        given = _at(builder, w, (indices[0], _i64(4 * channels * places)))
        slopes = [_load(builder, line, i * LINE) for i in range(pixels)]
        for which in range(channels * places):
            weight = _broadcast(builder, given, 4 * which)
            for i in range(pixels):
                total = sums[which * pixels + i]
                builder.store(_fma(builder, slopes[i], weight, builder.load(total)), total)

    _nested(builder, (filters,), one)
    for c in range(channels):
        line = _at(builder, dx, (_i64(c), x_channel))
        met: dict[int, Any] = {}
        for k in range(places):
            for i in range(pixels):
                found = builder.load(sums[(c * places + k) * pixels + i])
                at = i * stride + k * dilation
                met[at] = builder.fadd(met[at], found) if at in met else found
        for at, found in met.items():
            _store(builder, builder.fadd(_load(builder, line, at * LINE), found), line, at * LINE)


def _max_window(builder: Any, x: Any, y: Any, winner: Any, rows: Any, columns: Any, x_row: Any, code: Any,
                code_row: Any) -> None:  # fmt: skip
    """Write the maximum of a window to ``y``, and to ``winner`` which place it was (the first of equals)."""
    best, which = _variables(builder, 2, [_vector(float("-inf")), _codes(0)])

    def place(indices: list[Any]) -> None:
        seen = _load(builder, _at(builder, x, (indices[0], x_row), (indices[1], _i64(LINE))))
        here = builder.add(_at(builder, code, (indices[0], code_row)), indices[1])
        better = builder.fcmp_ordered(">", seen, builder.load(best))
        builder.store(builder.select(better, seen, builder.load(best)), best)
        number = _spread(builder, builder.trunc(here, ir.IntType(32)), _INTS)
        builder.store(builder.select(better, number, builder.load(which)), which)

    _nested(builder, (rows, columns), place)
    _store(builder, builder.load(best), y)
    _store(builder, builder.load(which), winner)


def _sum_window(builder: Any, x: Any, y: Any, rows: Any, columns: Any, x_row: Any, count: Any) -> None:
    """Write the sum of a window, divided by ``count``, to ``y``."""
    total = _variables(builder, 1, [_vector(0.0)])[0]

    def place(indices: list[Any]) -> None:
        seen = _load(builder, _at(builder, x, (indices[0], x_row), (indices[1], _i64(LINE))))
        builder.store(builder.fadd(builder.load(total), seen), total)

    _nested(builder, (rows, columns), place)
    _store(builder, builder.fdiv(builder.load(total), _spread(builder, builder.uitofp(count, _F32))), y)


def _spread_window(builder: Any, dy: Any, winner: Any, dx: Any, rows: Any, columns: Any, x_row: Any, code: Any,
                   code_row: Any, count: Any) -> None:  # fmt: skip
    """Add to a window of ``dx``: ``dy / count`` everywhere, or for ``winner`` not 0 ``dy`` at the place that won."""
    slope = builder.fdiv(_load(builder, dy), _spread(builder, builder.uitofp(count, _F32)))
    chosen = builder.icmp_unsigned("!=", winner, _i64(0))
    readable = builder.select(chosen, winner, dy)
    won = _load(builder, readable, 0, _INTS)

    def place(indices: list[Any]) -> None:
        at = _at(builder, dx, (indices[0], x_row), (indices[1], _i64(LINE)))
        here = builder.add(_at(builder, code, (indices[0], code_row)), indices[1])
        number = _spread(builder, builder.trunc(here, ir.IntType(32)), _INTS)
        is_it = builder.or_(builder.icmp_signed("==", won, number), _mask(builder, builder.not_(chosen)))
        found = builder.select(is_it, slope, _vector(0.0))
        _store(builder, builder.fadd(_load(builder, at), found), at)

    _nested(builder, (rows, columns), place)


def _mask(builder: Any, flag: Any) -> Any:
    return _spread(builder, flag, ir.VectorType(ir.IntType(1), LANES))


forward_block: Any = _block(12, 3)(_forward_block)
weights_block: Any = _block(12, 3)(_weights_block)
input_block: Any = _block(6, 5)(_input_block)
max_window: Any = _block(8, 0)(_max_window)
sum_window: Any = _block(6, 0)(_sum_window)
spread_window: Any = _block(9, 0)(_spread_window)
