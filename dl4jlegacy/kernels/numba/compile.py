"""Compilation of kernels: at the first call, once per dtype, with the signature given by the argument roles.

Read-only inputs are declared read-only, and Numba accepts writable arrays there too: one compilation serves both, and a
batch decoded from a frame needs no second compilation. Compiled code goes to Numba's cache beside the source file,
under a name with a digest of all sources of this folder. Numba itself checks only the kernel's own file, and would use
old code after a change of a function that the kernel calls in another file. If several processes need the same kernel
at the same time, as the workers of a new cluster do, one of them compiles it and the others read the cache. There may
be further processes that only compile: see ``compile_for_others``.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import gc
import hashlib
import logging
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba.core import caching
from numba.core.registry import cpu_target
from numba.core.runtime.nrt import rtsys

from dl4jlegacy.errors import ConfError
from dl4jlegacy.kernels.compilation import report_compilation, report_missing
from dl4jlegacy.system import files, ownership
from dl4jlegacy.system.clock import Deadline

__all__ = [
    "OPTIONS",
    "Kernel",
    "address_of",
    "cache_folder",
    "compile_cached",
    "compile_for_others",
    "has_wide_registers",
    "helper",
    "kernel",
    "register_file",
    "sole_compiler",
    "sources_digest",
]

logger = logging.getLogger(__name__)

LOCK_FILE = "compiling.lock"  # in the folder of the cache; each kernel locks a byte of it
PATIENCE_SECONDS = 60.0
"""Maximum wait for another process that compiles a kernel; after that, this process compiles it too."""
_LOOK_SECONDS = 0.05


def sources_digest(folder: Path) -> str:
    """Return a digest of the names and contents of all Python files in a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        digest.update(f"{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


_SOURCES = sources_digest(Path(__file__).parent)
_njit: Any = numba.njit
_FunctionCache: Any = caching.FunctionCache
_compiling = threading.RLock()
_Order = tuple[tuple[Any, ...], Callable[..., Any], dict[str, Any]]  # signature, function, options
_needed: list[_Order] | None = None  # of a process that compiles for others
_FLAT = {"A": numba.types.uint64, "F": numba.types.float32, "W": numba.types.float64}
_SCALARS = {"f": numba.types.float64, "i": numba.types.int64, "u": numba.types.uint64}


def cache_folder() -> Path | None:
    """Return the folder of Numba's cache for this package's kernels; None if no folder is writable."""
    try:
        return Path(_FunctionCache(cache_folder).cache_path)
    except RuntimeError:  # "no locator available": neither beside the sources nor in the user's cache
        return None


@functools.cache
def _check_cache_folder() -> None:
    """Raise ``ConfError`` if other users may write to Numba's cache, whose code is executed without a check."""
    folder = cache_folder()
    with files.errors_as(ConfError, f"the folder of compiled kernels, {folder}", "or set NUMBA_CACHE_DIR to another"):
        if folder is not None:
            ownership.check_code(folder, Path(__file__).parent)


def has_wide_registers() -> bool:
    """Return whether Numba compiles for 32 registers of 64 bytes (AVX-512); depends also on ``NUMBA_CPU_FEATURES``."""
    return "+avx512f" in cpu_target.target_context.codegen().magic_tuple()[2].split(",")


@functools.cache
def register_file() -> tuple[int, int]:
    """Return the number of float32 in a vector register of Numba's target processor, and the number of registers.

    Both depend also on ``NUMBA_CPU_NAME`` and ``NUMBA_CPU_FEATURES``.
    """
    triple, _, features = cpu_target.target_context.codegen().magic_tuple()
    if has_wide_registers():
        return 16, 32
    if triple.startswith(("aarch64", "arm64")):
        return 4, 32
    return (8, 16) if "+avx" in features.split(",") else (4, 16)


def _argument(role: str, char: str) -> Any:
    """Return Numba's type of a role: m, M flat and 2-d array written to, r, R only read; A, F, W flat uint64, float32,
    float64; C, c flat int32 written to, only read; B, b likewise of uint8; f i u.
    """
    if role in _SCALARS:
        return _SCALARS[role]
    if role in "CcBb":
        whole = {"c": numba.types.int32, "b": numba.types.uint8}[role.lower()]
        return numba.types.Array(whole, 1, "C", readonly=role.islower())
    if role in _FLAT:
        return numba.types.Array(_FLAT[role], 1, "C")
    element = {"f": numba.types.float32, "d": numba.types.float64}[char]
    return numba.types.Array(element, 1 if role.islower() else 2, "C", readonly=role in "rR")


OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
"""Operations are neither fused nor reordered: IEEE arithmetic as written, the same bits on every processor."""
_WITHOUT: dict[str, dict[str, Any]] = {
    "Python": {"no_cfunc_wrapper": True},
    "C": {"no_cpython_wrapper": True},
    "kernels": {"no_cpython_wrapper": True, "no_cfunc_wrapper": True},
}
"""For each kind of caller: the wrappers that need not be compiled."""


def helper(function: Callable[..., Any], **more: Any) -> Any:
    """Return a function for calls by compiled kernels only, which saves the compilation of its wrappers."""
    return _njit(**OPTIONS, **_WITHOUT["kernels"], **more)(function)


def compile_cached(signature: tuple[Any, ...], function: Callable[..., Any], callers: str = "Python") -> Any:
    """Return ``function`` compiled for ``signature``, from the cache if possible; it releases the GIL.

    Its ``callers``: "Python"; "C", at an address that its ``library`` knows; or "kernels", see ``address_of``.
    """
    _check_cache_folder()
    options = OPTIONS | _WITHOUT[callers]
    function.__qualname__ = f"{function.__name__}_{_SOURCES}"  # names the files in the cache
    if _needed is not None:
        _needed.append((signature, function, options))
        return _Uncomputed(function)
    with _compiling, _no_collection(), report_compilation(_shown(function)):  # who comes second finds it in the cache
        try:
            dispatcher = _njit(cache=True, **options)(function)
            with contextlib.ExitStack() as alone:
                _load_first(dispatcher, alone)
                dispatcher.compile(signature)
            dispatcher.disable_compile()
            return dispatcher
        except Exception:  # noqa: BLE001  # a damaged file of the cache may raise anything
            # its folder cannot be written, or its disk is full; what is wrong with the kernel itself is raised again
            return _njit(signature, **options)(function)


def compile_for_others(step: Callable[[], object]) -> None:
    """Compile into the cache the kernels of ``step`` that no other process compiles; for a process that only compiles.

    From then on, this process never computes anything. The kernels are compiled in reverse order, since the processes
    that need them start with the first.
    """
    global _needed
    _needed = []
    try:
        step()
    finally:
        for signature, function, options in reversed(_needed):
            _compile_unless_others(signature, function, options)


def _compile_unless_others(signature: tuple[Any, ...], function: Callable[..., Any], options: dict[str, Any]) -> None:
    with _compiling, _no_collection():
        dispatcher = _njit(cache=True, **options)(function)
        with _lock_file(Path(dispatcher._cache.cache_path)) as handle:
            if handle is not None and _locked(handle, _shown(function)):
                dispatcher.compile(signature)


class _Uncomputed:
    """A stand-in for a compiled function, for its only overload and the overload's library; it computes zeros.

    It returns that all is finite and done, and fills writable arrays with 0: the previous content of their memory, NaN
    for example, could otherwise change which kernels the caller needs next.
    """

    llvm_func_name = llvm_cfunc_wrapper_name = ""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._result = {"bool": True, "float": 0.0}.get(function.__annotations__.get("return", ""), 0)
        self.overloads = {(): self}

    def _itself(self) -> _Uncomputed:
        return self

    entry_point = library = fndesc = property(_itself)

    def __call__(self, *args: Any) -> Any:
        for array in args:
            if isinstance(array, np.ndarray) and array.flags.writeable:
                array.fill(0)
        return self._result

    def get_pointer_to_function(self, name: str) -> int:
        """Return 0 as the address."""
        return 0


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Disable garbage collection: Numba creates millions of objects, most of which live until the end of compilation.

    Collection would take a tenth of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def address_of(compiled: Any) -> int:
    """Return the code address for ``emission.call_block`` of a ``compile_cached`` result; keep ``compiled`` alive."""
    [overload] = compiled.overloads.values()
    code, descriptor = attrgetter("library", "fndesc")(overload)
    return int(code.get_pointer_to_function(descriptor.llvm_func_name))


def _shown(function: Callable[..., Any]) -> str:
    """Return a kernel's name for people."""
    return function.__name__.strip("_")


def _load_first(dispatcher: Any, alone: contextlib.ExitStack) -> None:
    """Make a dispatcher read its cache without importing Numba's compiler, and exclude compilation by others.

    That import takes longer than everything else that a process does before its first batch, and it imports SciPy too
    if that is installed. Code from the cache needs only the runtime. Without cached code the compiler is set up, unless
    another process has filled the cache in the meantime.
    """
    cache = dispatcher._cache
    load = getattr(cache, "_load_overload", None)
    if load is None:  # a version of Numba that looks otherwise: it does what it always does
        return

    def load_or_wait(signature: Any, context: Any) -> Any:
        found = load(signature, context)
        if found is None:
            report_missing()
            alone.enter_context(sole_compiler(Path(cache.cache_path), _shown(dispatcher.py_func)))
            found = load(signature, context)
        return found

    rtsys.initialize(dispatcher.targetctx)
    cache.load_overload = load_or_wait


@contextlib.contextmanager
def sole_compiler(folder: Path, name: str, seconds: float = PATIENCE_SECONDS) -> Iterator[None]:
    """Exclude other processes from compiling a kernel into the same cache; wait for one that is compiling it.

    The lock ends with its process, in whatever way that ends. If a lock is impossible, or not free in ``seconds``, both
    processes compile: that costs time, and changes no result. Threads of one process do not exclude each other, and the
    first of them that finishes releases the lock for all; so ``compile_cached`` admits one thread at a time.
    """
    with _lock_file(folder) as handle:
        if handle is not None:
            _lock(handle, name, Deadline(seconds))
        yield


@contextlib.contextmanager
def _lock_file(folder: Path) -> Iterator[int | None]:
    """Open the file whose bytes are locked; closing it releases the locks. None if the file cannot be written."""
    try:
        handle = files.open_lock(folder / LOCK_FILE)
    except OSError:  # or its disk is full: the cache's files will fail likewise
        yield None
        return
    try:
        yield handle
    finally:
        os.close(handle)


def _lock(handle: int, name: str, deadline: Deadline) -> None:
    waits = False
    while _locked(handle, name) is False:
        if not waits:
            logger.info("kernel %s: another process compiles it, which this one waits for", name)
        if deadline.passed():
            logger.info("kernel %s: the other process is not done after %g s; compiling it", name, deadline.seconds)
            return
        waits = True
        time.sleep(min(_LOOK_SECONDS, deadline.left()))


def _locked(handle: int, name: str) -> bool | None:
    """Lock the byte of a kernel; return whether it succeeded, None if this file system has no locks."""
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, zlib.crc32(name.encode()))
    except OSError as exc:
        return False if exc.errno in (errno.EACCES, errno.EAGAIN) else None
    return True


class Kernel:
    """A function that compiles itself for the dtype of its first argument, which all its float arguments share."""

    __slots__ = ("_compiled", "_function", "_lock", "_roles")

    def __init__(self, function: Callable[..., Any], roles: str) -> None:
        self._function = function
        self._roles = roles
        self._lock = threading.Lock()
        self._compiled: dict[str, Callable[..., Any]] = {}

    def __call__(self, *args: Any) -> Any:
        """Run on ``args``; raises ``ConfError`` if they do not match the roles."""
        char = args[0].dtype.char
        compiled = self._compiled.get(char) or self._compile(char)
        try:
            return compiled(*args)
        except TypeError as refused:
            raise self._misused(args) from refused

    def _compile(self, char: str) -> Callable[..., Any]:
        if char not in "fd" and not set(self._roles).isdisjoint("mMrR"):
            raise ConfError(f"kernel {self._function.__name__} works on float32 and float64, not on dtype {char!r}")
        signature = tuple(_argument(role, char) for role in self._roles)
        with self._lock:  # threads that share out the same work come here together
            result: Callable[..., Any] | None = self._compiled.get(char)
            if result is None:
                result = self._compiled[char] = compile_cached(signature, self._function)
        return result

    def _misused(self, args: tuple[Any, ...]) -> ConfError:
        got = ", ".join(
            f"{a.dtype}{list(a.shape)}{'' if a.flags.c_contiguous else ' not contiguous'}"
            f"{'' if a.flags.writeable else ' read-only'}"
            if hasattr(a, "dtype")
            else type(a).__name__
            for a in args
        )
        return ConfError(
            f"kernel {self._function.__name__} got ({got}), wants roles {self._roles!r}: C-contiguous arrays of one "
            "dtype, writable where it writes"
        )


def kernel(roles: str) -> Callable[[Callable[..., Any]], Kernel]:
    """Declare a function as a kernel; ``roles`` has one letter per argument (see ``_argument``)."""
    return lambda function: Kernel(function, roles)
