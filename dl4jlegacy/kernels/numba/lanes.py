"""Vectors of sixteen float32 lanes inside compiled kernels: explicit LLVM vectors where loops do not vectorise.

Numba has no vectorised ``exp`` without Intel's SVML, and it widens 32-bit integer arithmetic to 64 bits, so sigmoid
and Philox would run one element at a time. Here they are written on ``<16 x float>`` and ``<8 x i64>``; LLVM splits
these into the machine's vectors (AVX-512, AVX2, NEON).

All functions work only inside ``@njit`` code; addresses are integers (``array.ctypes.data``), four bytes a lane.
"""

# mypy: allow-subclassing-any, allow-untyped-calls, allow-untyped-decorators
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, models, register_model

from dl4jlegacy.kernels.philox import LANES, MULTIPLIERS, ROUNDS, WEYL

__all__ = [
    "add",
    "below",
    "bits",
    "exp",
    "fence",
    "highest",
    "load",
    "lowest",
    "mul",
    "number",
    "pick",
    "pointer",
    "reach",
    "sigmoid",
    "splat",
    "store",
    "stream",
    "sub",
    "tanh",
    "uniform_block",
]

_FLOATS = ir.VectorType(ir.FloatType(), LANES)
_INTS = ir.VectorType(ir.IntType(32), LANES)
_WIDE = ir.VectorType(ir.IntType(64), LANES // 2)  # every second counter, in the low half of a 64-bit lane
_LOW = 0xFFFFFFFF


class _Lanes(types.Type):
    def __init__(self) -> None:
        super().__init__(name="Lanes")


_lanes = _Lanes()


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, fe_type: Any) -> None:
        super().__init__(manager, fe_type, _FLOATS)


def _operation(arity: int, emit: Callable[..., Any]) -> Any:
    """Return an intrinsic of ``arity`` lane arguments with the LLVM code emitted by ``emit(builder, *lanes)``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return emit(builder, *args)

    def one(typingctx: Any, a: Any) -> Any:
        return _lanes(_lanes), generate

    def two(typingctx: Any, a: Any, b: Any) -> Any:
        return _lanes(_lanes, _lanes), generate

    def three(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
        return _lanes(_lanes, _lanes, _lanes), generate

    return intrinsic((one, two, three)[arity - 1])


def _constant(value: float) -> Any:
    return ir.Constant(_FLOATS, [value] * LANES)


def _call(builder: Any, name: str, *args: Any) -> Any:
    kind = ir.FunctionType(_FLOATS, [_FLOATS] * len(args))
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{LANES}f32"), args)


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return _call(builder, "fma", a, b, c)


def _polynomial(builder: Any, x: Any, *coefficients: float) -> Any:
    """Horner's rule, highest power first, with one fused multiply-add per step."""
    total = _constant(coefficients[0])
    for coefficient in coefficients[1:]:
        total = _fma(builder, total, x, _constant(coefficient))
    return total


def _clamp(builder: Any, x: Any, bound: float) -> Any:
    """Limit to [-bound, bound]; a NaN fails both comparisons and stays a NaN."""
    for sign, comparison in ((-1.0, "<"), (1.0, ">")):
        limit = _constant(sign * bound)
        x = builder.select(builder.fcmp_ordered(comparison, x, limit), limit, x)
    return x


def _emit_exp(builder: Any, x: Any) -> Any:
    """``2^n exp(r)`` with ``n = round(x / ln 2)``; the polynomial is Cephes' expf, relative error below 2e-7."""
    x = _clamp(builder, x, 87.0)
    n = _call(builder, "rint", builder.fmul(x, _constant(1.44269504088896341)))
    r = _fma(builder, n, _constant(-0.693359375), x)
    r = _fma(builder, n, _constant(2.12194440e-4), r)
    p = _polynomial(builder, r, 1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2,
                    1.6666665459e-1, 5.0000001201e-1)  # fmt: skip
    p = _fma(builder, p, builder.fmul(r, r), builder.fadd(r, _constant(1.0)))
    exponent = builder.add(builder.fptosi(n, _INTS), ir.Constant(_INTS, [127] * LANES))
    power = builder.bitcast(builder.shl(exponent, ir.Constant(_INTS, [23] * LANES)), _FLOATS)
    return builder.fmul(p, power)


def _emit_sigmoid(builder: Any, x: Any) -> Any:
    e = _emit_exp(builder, builder.fsub(_constant(-0.0), x))
    return builder.fdiv(_constant(1.0), builder.fadd(e, _constant(1.0)))


def _emit_tanh(builder: Any, x: Any) -> Any:
    """Eigen's rational approximation (odd degree 13 over even degree 6), accurate to a few units in the last place.

    The approximation stays below 1; from 9.011 on, where the nearest float32 is 1, the result is 1.
    """
    given = x
    x = _clamp(builder, x, 7.90531110763549805)
    square = builder.fmul(x, x)
    above = _polynomial(builder, square, -2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11,
                        5.12229709037114e-08, 1.48572235717979e-05, 6.37261928875436e-04,
                        4.89352455891786e-03)  # fmt: skip
    under = _polynomial(builder, square, 1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03,
                        4.89352518554385e-03)  # fmt: skip
    result = builder.fdiv(builder.fmul(x, above), under)
    for sign, comparison in ((-1.0, "<="), (1.0, ">=")):
        is_end = builder.fcmp_ordered(comparison, given, _constant(sign * 9.011))
        result = builder.select(is_end, _constant(sign), result)
    return result


def _emit_below(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered("<", a, b), _constant(1.0), _constant(0.0))


def _emit_pick(builder: Any, condition: Any, a: Any, b: Any) -> Any:
    """``a`` where ``condition`` is positive, else ``b``."""
    return builder.select(builder.fcmp_ordered(">", condition, _constant(0.0)), a, b)


mul: Any = _operation(2, lambda builder, a, b: builder.fmul(a, b))
sub: Any = _operation(2, lambda builder, a, b: builder.fsub(a, b))
pick: Any = _operation(3, _emit_pick)
add: Any = _operation(2, lambda builder, a, b: builder.fadd(a, b))
below: Any = _operation(2, _emit_below)
exp: Any = _operation(1, _emit_exp)
sigmoid: Any = _operation(1, _emit_sigmoid)
tanh: Any = _operation(1, _emit_tanh)


def _at(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def _load(typingctx: Any, address: Any) -> Any:
    """Return the sixteen floats at ``address`` (aligned to a float)."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        loaded = builder.load(_at(builder, args[0], _FLOATS))
        loaded.align = 4
        return loaded

    return _lanes(types.uintp), generate


def _store(typingctx: Any, address: Any, value: Any) -> Any:
    """Write sixteen floats to ``address``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[1], _at(builder, args[0], _FLOATS)).align = 4
        return context.get_dummy_value()

    return types.void(types.uintp, _lanes), generate


def _stream(typingctx: Any, address: Any, value: Any) -> Any:
    """Write sixteen floats to ``address``, a multiple of 64, bypassing the caches; ``fence`` orders these writes."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        stored = builder.store(args[1], _at(builder, args[0], _FLOATS))
        stored.align = 4 * LANES
        stored.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))
        return context.get_dummy_value()

    return types.void(types.uintp, _lanes), generate


def _fence(typingctx: Any) -> Any:
    """Wait until streamed writes are visible to the other threads."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


def _splat_float(typingctx: Any, scalar: Any) -> Any:
    """Return sixteen copies of one float32."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        first = builder.insert_element(ir.Constant(_FLOATS, ir.Undefined), args[0], ir.Constant(ir.IntType(32), 0))
        return builder.shuffle_vector(first, ir.Constant(_FLOATS, ir.Undefined), ir.Constant(_INTS, [0] * LANES))

    return _lanes(types.float32), generate


def _reach(typingctx: Any, x: Any, bound: Any) -> Any:
    """Return a bit for each lane, lowest first: whether ``|x|`` is at least ``bound``. For a NaN it is zero."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        reaches = builder.fcmp_ordered(">=", _call(builder, "fabs", args[0]), args[1])
        return builder.zext(builder.bitcast(reaches, ir.IntType(LANES)), ir.IntType(64))

    return types.uint64(_lanes, _lanes), generate


def _lowest(typingctx: Any, bits: Any) -> Any:
    """Return the index of the lowest bit set; ``bits`` must not be zero."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


def _highest(typingctx: Any, bits: Any) -> Any:
    """Return the number of zero bits above the highest bit set; ``bits`` must not be zero."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctlz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


def _bits(typingctx: Any, x: Any) -> Any:
    """Return the 64 bits of a float64."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(64))

    return types.int64(types.float64), generate


def _number(typingctx: Any, bits: Any) -> Any:
    """Return the float64 with these 64 bits."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), generate


def _pointer(typingctx: Any, address: Any, like: Any) -> Any:
    """Return ``address`` as a pointer to elements of the dtype of the array ``like`` (for ``numba.carray``)."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(like.dtype)(types.uintp, like), generate


def _splat(builder: Any, scalar: Any) -> Any:
    first = builder.insert_element(ir.Constant(_WIDE, ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES // 2), [0] * (LANES // 2))
    return builder.shuffle_vector(first, ir.Constant(_WIDE, ir.Undefined), zeros)


def _wide(value: int) -> Any:
    return ir.Constant(_WIDE, [value] * (LANES // 2))


def _emit_philox(builder: Any, counters: Any, key: Any) -> list[Any]:
    """Return the four words of eight blocks, each in the low half of its lane; the upper halves are undefined.

    A 32 x 32 -> 64 bit product reads only low halves, so the upper halves never have to be cleared (LLVM folds the
    ``and`` below into the multiply instruction).
    """
    x = [counters, builder.lshr(counters, _wide(32)), _wide(0), _wide(0)]
    keys = [key, builder.lshr(key, ir.Constant(ir.IntType(64), 32))]
    for _ in range(ROUNDS):
        p = [builder.mul(builder.and_(x[2 * i], _wide(_LOW)), _wide(MULTIPLIERS[i])) for i in (0, 1)]
        upper = [builder.lshr(product, _wide(32)) for product in p]
        x = [
            builder.xor(builder.xor(upper[1], x[1]), _splat(builder, keys[0])),
            p[1],
            builder.xor(builder.xor(upper[0], x[3]), _splat(builder, keys[1])),
            p[0],
        ]
        keys = [builder.add(keys[i], ir.Constant(ir.IntType(64), WEYL[i])) for i in (0, 1)]
    return x


def _uniform_block(typingctx: Any, block: Any, key: Any, address: Any) -> Any:
    """Write the 64 uniforms of ``block`` of the stream ``key`` to ``address``: see ``philox`` for the order."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        block, key, address = args
        first = _splat(builder, builder.mul(block, ir.Constant(ir.IntType(64), LANES)))
        words = [
            _emit_philox(builder, builder.add(first, ir.Constant(_WIDE, list(range(odd, LANES, 2)))), key)
            for odd in (0, 1)
        ]
        for index, (even, odd) in enumerate(zip(*words, strict=True)):
            pair = builder.or_(builder.and_(even, _wide(_LOW)), builder.shl(odd, _wide(32)))
            top = builder.lshr(builder.bitcast(pair, _INTS), ir.Constant(_INTS, [8] * LANES))
            value = builder.fmul(builder.sitofp(top, _FLOATS), _constant(2.0**-24))
            to = builder.add(address, ir.Constant(ir.IntType(64), 4 * LANES * index))
            builder.store(value, _at(builder, to, _FLOATS)).align = 4
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.uintp), generate


bits: Any = intrinsic(_bits)
fence: Any = intrinsic(_fence)
load: Any = intrinsic(_load)
lowest: Any = intrinsic(_lowest)
highest: Any = intrinsic(_highest)
number: Any = intrinsic(_number)
reach: Any = intrinsic(_reach)
splat: Any = intrinsic(_splat_float)
stream: Any = intrinsic(_stream)
store: Any = intrinsic(_store)
pointer: Any = intrinsic(_pointer)
uniform_block: Any = intrinsic(_uniform_block)
