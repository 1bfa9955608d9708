"""How compiled kernels come to LLVM code of their own: what writes loads, stores, loops and multiply-adds of vectors.

``block`` makes a function that writes such code an intrinsic, to be called inside ``@njit``; where there are many sizes
of it, each is compiled for itself (``compile.address_of``), and ``call_block`` calls it, so that what is around is
compiled once for all. Addresses, steps and offsets are bytes, ``uint64``; vectors have 64 bytes, and LLVM splits them
into what the machine has (AVX-512, AVX2, NEON, or single elements). ``fma`` is one rounding everywhere: where the
processor has no such instruction, LLVM calls the C library, which computes the same bits slowly.
"""

# mypy: allow-untyped-calls, allow-untyped-decorators
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from inspect import Parameter, Signature
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from dl4jlegacy.kernels.philox import LANES

__all__ = [
    "F32",
    "FLOATS",
    "I64",
    "INTS",
    "at",
    "block",
    "broadcast",
    "call_block",
    "fma",
    "i64",
    "load",
    "nested",
    "prefetch",
    "shuffle",
    "spread",
    "store",
    "variables",
    "vector",
]

F32 = ir.FloatType()
I64 = ir.IntType(64)
FLOATS = ir.VectorType(F32, LANES)
INTS = ir.VectorType(ir.IntType(32), LANES)


def vector(value: float, kind: Any = FLOATS) -> Any:
    """Return a constant with one value in all lanes."""
    return ir.Constant(kind, [value] * kind.count)


def i64(value: int) -> Any:
    """Return a 64-bit constant."""
    return ir.Constant(I64, value)


def _aligned(kind: Any) -> int:
    """Return the bytes of one element, all that memory is aligned to."""
    element = getattr(kind, "element", kind)
    return (
        int(element.width) // 8 if isinstance(element, ir.IntType) else 8 if isinstance(element, ir.DoubleType) else 4
    )


def load(builder: Any, address: Any, offset: int = 0, kind: Any = FLOATS) -> Any:
    """Return what lies at ``address + offset``."""
    loaded = builder.load(builder.inttoptr(builder.add(address, i64(offset)), kind.as_pointer()))
    loaded.align = _aligned(kind)
    return loaded


def store(builder: Any, value: Any, address: Any, offset: int = 0) -> None:
    """Write ``value`` to ``address + offset``."""
    pointer = builder.inttoptr(builder.add(address, i64(offset)), value.type.as_pointer())
    builder.store(value, pointer).align = _aligned(value.type)


def prefetch(builder: Any, address: Any, offset: int = 0) -> None:
    """Bring the line at ``address + offset`` into the caches; it may lie anywhere, also where no memory is."""
    byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    place = builder.inttoptr(builder.add(address, i64(offset)), byte)
    builder.call(function, (place, ir.Constant(number, 0), ir.Constant(number, 3), ir.Constant(number, 1)))


def shuffle(builder: Any, a: Any, b: Any, picks: Iterable[int]) -> Any:
    """Return lanes of ``a`` and, numbered on, of ``b``."""
    chosen = list(picks)
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), len(chosen)), chosen))


def spread(builder: Any, scalar: Any, kind: Any = FLOATS) -> Any:
    """Return a scalar in all lanes."""
    nothing = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(nothing, scalar, ir.Constant(ir.IntType(32), 0))
    return shuffle(builder, first, nothing, [0] * kind.count)


def broadcast(builder: Any, address: Any, offset: int = 0, kind: Any = FLOATS) -> Any:
    """Return the element at ``address + offset`` in all lanes."""
    return spread(builder, load(builder, address, offset, kind.element), kind)


def fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """Return ``a * b + c``, rounded once."""
    kind = a.type
    name = f"llvm.fma.v{kind.count}f{8 * _aligned(kind)}"
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind] * 3), name)
    return builder.call(function, (a, b, c))


def variables(builder: Any, count: int, start: Sequence[Any]) -> list[Any]:
    """Return ``count`` vectors in memory that LLVM keeps in registers."""
    result = []
    for index in range(count):
        place = cgutils.alloca_once(builder, start[index].type)
        builder.store(start[index], place)
        result.append(place)
    return result


def nested(builder: Any, counts: Sequence[Any], body: Callable[[list[Any]], None]) -> None:
    """Emit loops in loops; ``body`` gets the indices, outermost first."""

    def level(depth: int, indices: list[Any]) -> None:
        if depth == len(counts):
            body(indices)
            return
        with cgutils.for_range(builder, counts[depth], intp=I64) as loop:
            level(depth + 1, [*indices, loop.index])

    level(0, [])


def at(builder: Any, address: Any, *terms: tuple[Any, Any]) -> Any:
    """Return ``address + index * step + ...``."""
    for index, step in terms:
        address = builder.add(address, builder.mul(index, step))
    return address


def block(
    arguments: int, constants: int, *, is_typed: bool = False, apart: bool = False
) -> Callable[[Callable[..., None]], Any]:
    """Make ``emit(builder, *arguments, *constants)`` an intrinsic: so many ``uint64``, then so many constants.

    A typed one takes an array first, and ``emit`` the type of 64-byte vectors of its elements in its place; its
    arguments are ``int64``, as Python's integers are in compiled code. One that is ``apart`` becomes a function that is
    called, not a part of each place that names it: LLVM then has less to do, and a few nanoseconds go to each call.
    """

    def declare(emit: Callable[..., None]) -> Any:
        def typed(context: Any, *given: Any) -> Any:
            like, literals = given[:is_typed], given[is_typed + arguments :]
            if not all(isinstance(kind, types.Literal) for kind in literals):
                return None

            def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
                kinds = [_lanes_of(array.dtype) for array in like]
                values = args[is_typed : is_typed + arguments]
                constants = [kind.literal_value for kind in literals]
                if apart:
                    _call_once(builder, emit, kinds, values, constants)
                else:
                    emit(builder, *kinds, *values, *constants)
                return target.get_dummy_value()

            return types.void(*like, *[types.int64 if is_typed else types.uint64] * arguments, *literals), generate

        _show_arguments(typed, is_typed + arguments + constants)
        typed.__doc__, typed.__name__ = emit.__doc__, emit.__name__.lstrip("_")
        return intrinsic(prefer_literal=True)(typed)

    return declare


def _call_once(builder: Any, emit: Callable[..., None], kinds: list[Any], values: Any, constants: list[Any]) -> None:
    """Call a function that ``emit`` writes, once for all places of a module that call it."""
    name = ".".join(map(str, (emit.__module__, emit.__name__, *(kind.element for kind in kinds), *constants)))
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(ir.VoidType(), [I64] * len(values)), name)
        function.linkage = "linkonce_odr"  # modules that are linked may all have it
        function.attributes.add("noinline")
        own = ir.IRBuilder(function.append_basic_block())
        emit(own, *kinds, *function.args, *constants)
        own.ret_void()
    builder.call(function, values)


def call_block(arguments: int) -> Any:
    """Return an intrinsic that calls the compiled code at an address with so many ``uint64``.

    The code is what Numba makes of a function of that many ``uint64`` that returns and raises nothing.
    """

    def call(context: Any, *given: Any) -> Any:
        def generate(target: Any, builder: Any, signature: Any, args: Any) -> Any:
            result = cgutils.alloca_once(builder, cgutils.voidptr_t)  # where Numba's code writes None, or an exception
            places = [result.type, result.type]
            kind = ir.FunctionType(ir.IntType(32), [*places, *[I64] * arguments])
            builder.call(builder.inttoptr(args[0], kind.as_pointer()), (result, result, *args[1:]))
            return target.get_dummy_value()

        return types.void(*[types.uint64] * (1 + arguments)), generate

    _show_arguments(call, 1 + arguments)
    return intrinsic(call)


def _show_arguments(function: Any, count: int) -> None:
    """Let a function of ``*arguments`` seem to have so many: Numba reads their number from the signature."""
    names = ["context", *(f"a{index}" for index in range(count))]
    function.__signature__ = Signature([Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names])


def _lanes_of(dtype: Any) -> Any:
    return FLOATS if dtype == types.float32 else ir.VectorType(ir.DoubleType(), LANES // 2)
