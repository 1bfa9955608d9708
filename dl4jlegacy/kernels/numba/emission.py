"""LLVM code inside compiled kernels: functions that emit loads, stores, loops and multiply-adds of vectors.

``block`` turns a function that emits such code into an intrinsic for ``@njit`` code. If a block exists in many sizes,
each size is compiled separately (``compile.address_of``) and called by ``call_block``, so that the surrounding code is
compiled only once. Addresses, steps and offsets are bytes, ``uint64``; vectors have 64 bytes, and LLVM splits them into
the machine's vectors (AVX-512, AVX2, NEON, or single elements). ``fma`` rounds once everywhere: on a processor without
such an instruction, LLVM calls the C library, which computes the same bits slowly.
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
    """Return a constant vector with one value in all lanes."""
    return ir.Constant(kind, [value] * kind.count)


def i64(value: int) -> Any:
    """Return a 64-bit constant."""
    return ir.Constant(I64, value)


def _aligned(kind: Any) -> int:
    """Return the bytes of one element: the only alignment that is assumed."""
    element = getattr(kind, "element", kind)
    return (
        int(element.width) // 8 if isinstance(element, ir.IntType) else 8 if isinstance(element, ir.DoubleType) else 4
    )


def load(builder: Any, address: Any, offset: int = 0, kind: Any = FLOATS) -> Any:
    """Return the vector at ``address + offset``."""
    loaded = builder.load(builder.inttoptr(builder.add(address, i64(offset)), kind.as_pointer()))
    loaded.align = _aligned(kind)
    return loaded


def store(builder: Any, value: Any, address: Any, offset: int = 0) -> None:
    """Write ``value`` to ``address + offset``."""
    pointer = builder.inttoptr(builder.add(address, i64(offset)), value.type.as_pointer())
    builder.store(value, pointer).align = _aligned(value.type)


def prefetch(builder: Any, address: Any, offset: int = 0) -> None:
    """Prefetch the cache line at ``address + offset``, which may be any address, even an invalid one."""
    byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    place = builder.inttoptr(builder.add(address, i64(offset)), byte)
    builder.call(function, (place, ir.Constant(number, 0), ir.Constant(number, 3), ir.Constant(number, 1)))


def shuffle(builder: Any, a: Any, b: Any, picks: Iterable[int]) -> Any:
    """Return the lanes ``picks`` of ``a`` and ``b``, numbered consecutively."""
    chosen = list(picks)
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), len(chosen)), chosen))


def spread(builder: Any, scalar: Any, kind: Any = FLOATS) -> Any:
    """Return a vector with a scalar in all lanes."""
    nothing = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(nothing, scalar, ir.Constant(ir.IntType(32), 0))
    return shuffle(builder, first, nothing, [0] * kind.count)


def broadcast(builder: Any, address: Any, offset: int = 0, kind: Any = FLOATS) -> Any:
    """Return a vector with the element at ``address + offset`` in all lanes."""
    return spread(builder, load(builder, address, offset, kind.element), kind)


def fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """Return ``a * b + c``, rounded once."""
    kind = a.type
    name = f"llvm.fma.v{kind.count}f{8 * _aligned(kind)}"
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind] * 3), name)
    return builder.call(function, (a, b, c))


def variables(builder: Any, count: int, start: Sequence[Any]) -> list[Any]:
    """Return ``count`` vector variables in memory, which LLVM keeps in registers."""
    result = []
    for index in range(count):
        place = cgutils.alloca_once(builder, start[index].type)
        builder.store(start[index], place)
        result.append(place)
    return result


def nested(builder: Any, counts: Sequence[Any], body: Callable[[list[Any]], None]) -> None:
    """Emit nested loops; ``body`` gets the indices, outermost first."""

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
    """Turn ``emit(builder, *arguments, *constants)`` into an intrinsic of ``uint64`` arguments and then constants.

    ``is_typed``: the first argument is an array, ``emit`` gets the type of 64-byte vectors of its elements in its
    place, and the arguments are ``int64``, as Python's integers are in compiled code. ``apart``: the code becomes a
    function instead of being inlined: LLVM then has less to do, and each call costs a few nanoseconds.
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
    """Call a function emitted by ``emit``, which exists once per module for all its calls."""
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
    """Return an intrinsic that calls the compiled code at an address with ``arguments`` ``uint64`` arguments.

    The code is that of a Numba function with this number of ``uint64`` arguments that returns and raises nothing.
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
    """Give a function of ``*arguments`` a signature with ``count`` of them, from which Numba reads the number."""
    names = ["context", *(f"a{index}" for index in range(count))]
    function.__signature__ = Signature([Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names])


def _lanes_of(dtype: Any) -> Any:
    return FLOATS if dtype == types.float32 else ir.VectorType(ir.DoubleType(), LANES // 2)
