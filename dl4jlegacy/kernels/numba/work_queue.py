"""A queue of parts inside compiled code: a call hands parts to waiting threads and takes parts itself, without the GIL
and without system calls.

An *area* is a few words of memory that the calling thread and the workers of a ``Team`` share. The first word is the
state of the job: its generation, and a bit for each part that is not taken. A thread takes a part by an atomic exchange
of the whole word, so that a part of an earlier job can never be taken. The caller then waits only for parts that were
taken, not for a worker that sleeps or has lost its core. Each thread begins at its own place, the same in every job, so
that a part's output is still in the caches of the core that continues with it.

The functions work only inside ``@njit`` code. A job is the address of a compiled ``share(numbers, part, scratch)``, see
``job``: the first and the last of its three integers are addresses; its result is an unused integer.
"""

# mypy: allow-untyped-calls, allow-untyped-decorators
from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from dl4jlegacy.kernels.numba.compile import compile_cached, helper
from dl4jlegacy.kernels.numba.emission import I64, i64

__all__ = ["ASLEEP", "CORES", "MOST", "MOVE", "NUMBERS", "SLEEP", "TASK", "TASKS", "WORDS", "call",
           "get",
           "job", "put", "serve", "share_out", "typical", "vector_at"]  # fmt: skip

_JOB, _DONE, _SHARE, _PARTS, _THREADS, NUMBERS, TASKS, CORES, ASLEEP = 0, 64, 128, 136, 144, 192, 512, 576, 896
"""Offsets in the area, in bytes: words written by different threads are in different cache lines."""
MOST = 32  # parts of a job, and threads that share it out, at most: the bits that the word has for them
WORDS = (ASLEEP + 8 * MOST) // 8
SLEEP, TASK, MOVE = range(3)  # why a worker comes back from ``serve``
_SETTLE = 16  # turns after which a worker that found nothing looks where it is
_FREE = (1 << MOST) - 1
_SPINS = 1 << 10  # looks at what others have not done yet, before each further one gives up the core
_FLAG = ir.IntType(32)


def _intrinsic(function: Any) -> Any:
    return intrinsic(function)


def _pause(builder: Any) -> None:
    """Tell the processor that this thread waits in a loop, so that the core's other hardware thread gets more of it."""
    triple = cpu_target.target_context.codegen().magic_tuple()[0]
    if triple.startswith(("x86", "i386", "i686")):
        kind = ir.FunctionType(ir.VoidType(), [])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])
    elif triple.startswith(("aarch64", "arm64")):
        kind = ir.FunctionType(ir.VoidType(), [_FLAG])
        hint = cgutils.get_or_insert_function(builder.module, kind, "llvm.aarch64.hint")
        builder.call(hint, [ir.Constant(_FLAG, 1)])


def _word(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, I64.as_pointer())


@_intrinsic
def typical(typingctx: Any, kind: Any) -> Any:
    """Return an array of a dtype without memory, for blocks that get the elements' type from an array."""
    array_type = types.Array(kind.dtype, 1, "C")

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = cgutils.create_struct_proxy(array_type)(context, builder)
        array.itemsize = context.get_constant(types.intp, kind.dtype.bitwidth // 8)
        return array._getvalue()

    return array_type(kind), generate


@_intrinsic
def vector_at(typingctx: Any, kind: Any, address: Any, size: Any) -> Any:
    """Return the flat array of ``size`` elements of a dtype at an address."""
    array_type = types.Array(kind.dtype, 1, "C")

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = cgutils.create_struct_proxy(array_type)(context, builder)
        array.itemsize = context.get_constant(types.intp, kind.dtype.bitwidth // 8)
        array.data = builder.inttoptr(args[1], array.data.type)
        array.nitems = args[2]
        array.shape = cgutils.pack_array(builder, [args[2]])
        array.strides = cgutils.pack_array(builder, [array.itemsize])
        return array._getvalue()

    return array_type(kind, types.int64, types.int64), generate


@_intrinsic
def get(typingctx: Any, address: Any) -> Any:
    """Return a word (load-acquire): writes before the corresponding ``put`` are visible."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_word(builder, args[0]), "acquire", 8)

    return types.int64(types.int64), generate


@_intrinsic
def put(typingctx: Any, address: Any, value: Any) -> Any:
    """Write a word (store-release): a thread that sees it sees all earlier writes."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], _word(builder, args[0]), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@_intrinsic
def _add(typingctx: Any, address: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.atomic_rmw("add", _word(builder, args[0]), args[1], "acq_rel")
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@_intrinsic
def _exchange(typingctx: Any, address: Any, old: Any, new: Any) -> Any:
    """Write ``new`` if the word is ``old`` (compare-and-swap); return whether it was."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        found = builder.cmpxchg(_word(builder, args[0]), args[1], args[2], "acq_rel", "acquire")
        return builder.extract_value(found, 1)

    return types.boolean(types.int64, types.int64, types.int64), generate


@_intrinsic
def _wait(typingctx: Any, gives_up: Any) -> Any:
    """Wait some clocks; ``gives_up``: yield the core to other threads."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        with builder.if_else(args[0]) as (gives_up, spins):
            with gives_up:
                kind = ir.FunctionType(_FLAG, [])
                builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
            with spins:
                _pause(builder)
        return context.get_dummy_value()

    return types.void(types.boolean), generate


@_intrinsic
def _core(typingctx: Any) -> Any:
    """Return the number of this thread's core, from 1 on; 0: unknown."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if not sys.platform.startswith("linux"):
            return i64(0)
        kind = ir.FunctionType(_FLAG, [])
        found = builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_getcpu"), [])
        return builder.add(builder.sext(found, I64), i64(1))

    return types.int64(), generate


@_intrinsic
def call(typingctx: Any, address: Any, numbers: Any, part: Any, scratch: Any) -> Any:
    """Call the job's function at ``address``, which raises nothing."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(I64, [I64] * 3)
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


def job(share: Callable[[int, int, int], int]) -> int:
    """Compile the function that computes a part; return its address, which is valid until the process ends."""
    compiled = compile_cached((types.int64,) * 3, share, "C")
    _kept.append(compiled)
    (result,) = compiled.overloads.values()
    return int(result.library.get_pointer_to_function(result.fndesc.llvm_cfunc_wrapper_name))


_kept: list[Any] = []


@_intrinsic
def _lowest(typingctx: Any, word: Any) -> Any:
    """Return the index of the lowest bit set in a word that is not 0."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), generate


@helper
def _take(area: int, number: int) -> int:
    """Take a free part, if possible one preassigned to the thread with this number; return -1 if there is none."""
    while True:
        job = get(area + _JOB)
        free, threads = job & _FREE, get(area + _THREADS)
        if free == 0 or number >= threads:
            return -1
        first = number * get(area + _PARTS) // max(1, threads)  # may be another job's: any part will do
        own = free >> (first & (MOST - 1)) << (first & (MOST - 1))
        part: int = _lowest(own if own != 0 else free)
        if _exchange(area + _JOB, job, job & ~(1 << part)):
            return part


@helper
def _note_core(area: int, number: int) -> bool:
    """Record the core of the thread with this number; return whether a thread with a lower number is on it, too."""
    core = _core()
    if get(area + CORES + 8 * number) != core:
        put(area + CORES + 8 * number, core)
    is_shared = False
    for other in range(number):
        is_shared = is_shared or (core != 0 and get(area + CORES + 8 * other) == core)
    return is_shared


@helper
def share_out(area: int, share: int, parts: int, threads: int, scratch: int) -> None:
    """Let workers take parts of the job whose numbers are in the area, take the others, and wait for all.

    Only one thread at a time may call this.
    """
    _note_core(area, 0)
    put(area + _SHARE, share)
    put(area + _PARTS, parts)
    put(area + _THREADS, threads)
    put(area + _DONE, 0)
    generation = (get(area + _JOB) >> MOST) + 1
    put(area + _JOB, generation << MOST | ((1 << parts) - 1))
    part = _take(area, 0)
    while part >= 0:
        call(share, area + NUMBERS, part, scratch)
        _add(area + _DONE, 1)
        part = _take(area, 0)
    turns = 0
    while get(area + _DONE) < parts:
        turns += 1
        _wait(turns > _SPINS)


def serve(area: int, scratch: int, number: int, turns: int, is_mobile: bool) -> int:
    """Take parts in an area until there was none for ``turns`` turns; return why the loop ends.

    ``number`` is the thread's, from 1 on. On the result ``SLEEP`` the worker's word in ``ASLEEP`` is 1; on ``MOVE`` the
    worker shares its core with another thread of the team, which Linux notices late.
    """
    left = turns
    while left > 0:
        part = _take(area, number)
        if part >= 0:
            call(get(area + _SHARE), area + NUMBERS, part, scratch)
            _add(area + _DONE, 1)
            left = turns
            continue
        tasks = get(area + TASKS)
        if tasks > 0:
            if _exchange(area + TASKS, tasks, tasks - 1):
                return TASK
            continue
        if left == turns - _SETTLE and _note_core(area, number) and is_mobile:
            return MOVE
        _wait(False)
        left -= 1
    put(area + CORES + 8 * number, 0)
    put(area + ASLEEP + 8 * number, 1)
    return SLEEP
