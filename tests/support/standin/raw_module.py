"""``cupy.RawModule`` for tests without a GPU: CUDA C compiled for the CPU and run there, every argument checked.

CuPy checks nothing of what a kernel is given: a Python ``int`` arrives as 64 bits, a ``float`` as a double, an array
as its address, whatever the signature says. Here each argument is held against the C signature. Threads of a block run
one after the other; in kernels with barriers they are fibres that take turns, and a barrier that only some threads
reach is an error, as is an atomic operation (there is none here). ``turn`` says in which order they begin.
"""

from __future__ import annotations

import ctypes
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.standin import engine
from tests.support.standin.arrays import ndarray
from tests.support.standin.compiler import CompileError, cached, compile_library, preprocess

__all__ = ["CudaError", "Kernel", "RawKernel", "RawModule"]

SHIM = Path(__file__).with_name("cuda_shim.h")
TYPES: dict[str, tuple[Any, str]] = {
    "bool": (ctypes.c_bool, "?"),
    "char": (ctypes.c_char, "b"),
    "signed char": (ctypes.c_byte, "b"),
    "unsigned char": (ctypes.c_ubyte, "B"),
    "short": (ctypes.c_short, "h"),
    "unsigned short": (ctypes.c_ushort, "H"),
    "int": (ctypes.c_int, "i"),
    "unsigned": (ctypes.c_uint, "I"),
    "unsigned int": (ctypes.c_uint, "I"),
    "long long": (ctypes.c_longlong, "q"),
    "unsigned long long": (ctypes.c_ulonglong, "Q"),
    "float": (ctypes.c_float, "f"),
    "double": (ctypes.c_double, "d"),
}
IGNORED = ("--std=c++17", "-std=c++17", "--fmad=", "-fmad=", "--prec-", "-lineinfo", "--restrict")
turn = 0
"""Whether the first threads of a block begin (0) or the last ones (1); no result may depend on it."""

_lock = threading.Lock()
_libraries: dict[str, tuple[ctypes.CDLL, dict[str, Signature]]] = {}


class CudaError(Exception):
    """What a GPU would not have forgiven, or would have computed nonsense from."""


class Signature:
    """The parameters of a kernel: ``(type, is a pointer, name)`` each."""

    def __init__(self, name: str, parameters: str, barriers: bool) -> None:
        self.name, self.barriers = name, barriers
        self.parameters = [_parameter(name, text) for text in parameters.split(",") if text.strip()]
        fields = [
            (f"a{index}", ctypes.c_void_p if pointer else TYPES[kind][0])
            for index, (kind, pointer, _) in enumerate(self.parameters)
        ]
        self.structure = type(f"Arguments_{name}", (ctypes.Structure,), {"_fields_": fields})

    def pack(self, args: tuple[Any, ...]) -> Any:
        """Return the arguments as the C structure, or raise ``CudaError``."""
        if not isinstance(args, tuple) or len(args) != len(self.parameters):
            wanted = ", ".join(p[2] for p in self.parameters)
            raise CudaError(f"kernel {self.name} takes {len(self.parameters)} arguments ({wanted}), got {len(args)}")
        packed = self.structure()
        for index, (arg, parameter) in enumerate(zip(args, self.parameters, strict=True)):
            setattr(packed, f"a{index}", self._convert(arg, *parameter))
        return packed

    def _convert(self, arg: Any, kind: str, pointer: bool, name: str) -> Any:
        where = f"kernel {self.name}, argument {name}"
        if pointer:
            if isinstance(arg, (int, np.uint64, np.uintp)) and not isinstance(arg, bool):
                return int(arg)
            if not isinstance(arg, ndarray):
                raise CudaError(f"{where}: {type(arg).__name__} is no device array")
            if arg.dtype != np.dtype(TYPES[kind][1]):
                raise CudaError(f"{where}: {kind}* given an array of {arg.dtype}")
            engine.raw(arg)  # it must live on the current device
            return int(arg.data.ptr)
        if type(arg) is int:
            given = "q"
            if not -(2**63) <= arg < 2**63:
                raise CudaError(f"{where}: {arg} does not fit 64 bits")
        elif type(arg) is float:
            given = "d"
        elif type(arg) is bool:
            given = "?"
        elif isinstance(arg, np.generic):
            given = arg.dtype.char
            given = {"l": "q", "L": "Q"}.get(given, given)
        else:
            raise CudaError(f"{where}: {kind} given a {type(arg).__name__}")
        if given != TYPES[kind][1]:
            raise CudaError(f"{where}: {kind} given {type(arg).__name__}; CuPy would pass other bits")
        return arg if type(arg) in (int, float, bool) else arg.item()


def _parameter(kernel: str, text: str) -> tuple[str, bool, str]:
    words = re.findall(r"\w+|\*", text.replace("__restrict__", " "))
    name, words = words[-1], [w for w in words[:-1] if w not in ("const", "volatile")]
    pointers, kind = words.count("*"), " ".join(w for w in words if w != "*")
    if kind not in TYPES or pointers > 1:
        raise CudaError(f"kernel {kernel}: parameter {text.strip()!r} has a type that this stand-in does not know")
    return kind, pointers == 1, name


def _functions(code: str) -> list[tuple[str, str]]:
    """Return ``(head, body)`` of every function and structure at the top level of preprocessed ``code``."""
    found, depth, start, opened = [], 0, 0, 0
    for index, letter in enumerate(code):
        if letter == "{":
            if depth == 0:
                opened = index
            depth += 1
        elif letter == "}":
            depth -= 1
            if depth == 0:
                found.append((code[start:opened], code[opened : index + 1]))
                start = index + 1
        elif letter == ";" and depth == 0:
            start = index + 1
    return found


def _signatures(code: str) -> dict[str, Signature]:
    """Return the kernels of preprocessed ``code``; a kernel has barriers if a function that it calls has."""
    named = []
    for head, body in _functions(code):
        plain = re.sub(r"template\s*<[^>]*>|__launch_bounds__\s*\([^)]*\)|alignas\s*\([^)]*\)", " ", head)
        match = re.search(r"(\w+)\s*\(([^)]*)\)", plain)
        if match:
            named.append((match[1], match[2], "__global__" in head, set(re.findall(r"\w+", body))))
            if "__global__" in head and 'extern "C"' not in head:
                raise CudaError(f'kernel {match[1]} is not extern "C"')
    waiting = {"__syncthreads"}
    while more := {name for name, _, _, words in named if words & waiting} - waiting:
        waiting |= more
    return {name: Signature(name, p, name in waiting) for name, p, is_kernel, _ in named if is_kernel}


def _wrapper(signature: Signature) -> str:
    name, n = signature.name, len(signature.parameters)
    members = " ".join(
        f"{'void*' if pointer else kind} a{i};" for i, (kind, pointer, _) in enumerate(signature.parameters)
    )
    values = ", ".join(
        f"({kind}*)a->a{i}" if pointer else f"a->a{i}" for i, (kind, pointer, _) in enumerate(signature.parameters)
    )
    assert n, f"kernel {name} has no parameters"
    return f"""
struct ShimArguments_{name} {{ {members} }};
static void shim_call_{name}(void* raw) {{ auto* a = (ShimArguments_{name}*)raw; {name}({values}); }}
extern "C" int shim_run_{name}(const ShimLaunch* l, void* raw) {{
    return shim_launch(l, shim_call_{name}, raw, {"true" if signature.barriers else "false"});
}}
"""


def _definitions(options: tuple[str, ...]) -> list[str]:
    if not isinstance(options, tuple):
        raise CudaError("RawModule wants its options as a tuple")
    for option in options:
        if not option.startswith(("-D", *IGNORED)):
            raise CudaError(f"option {option!r} is not known here")
    return [option for option in options if option.startswith("-D")]


def _build(code: str, options: tuple[str, ...]) -> tuple[ctypes.CDLL, dict[str, Signature]]:
    definitions, key = _definitions(options), "\0".join((code, *options))
    with _lock:
        if key not in _libraries:
            sources = (code, *definitions, SHIM.read_text(encoding="utf-8"), Path(__file__).read_text(encoding="utf-8"))
            try:
                folder = cached(sources, lambda folder: _compile(code, definitions, folder))
            except CompileError as exc:
                raise CudaError(f"these kernels cannot be compiled: {exc}") from exc
            signatures = _signatures((folder / "kernels.cu").read_text(encoding="utf-8"))
            _libraries[key] = ctypes.CDLL(str(folder / "kernels.so")), signatures
        return _libraries[key]


def _compile(code: str, definitions: list[str], folder: Path) -> None:
    """Write the preprocessed kernels and their library for the CPU into ``folder``."""
    text = preprocess(code, definitions)
    body = re.sub(r'extern\s+"C"\s+(?=__global__)', "", text)
    body = re.sub(
        r"extern\s+__shared__\s+(?:__align__\s*\(\d+\)\s*)?([\w ]+?)\s+(\w+)\s*\[\s*\]\s*;",
        r"\1* const \2 = (\1*)shim_dynamic;",
        body,
    )
    wrappers = "".join(map(_wrapper, _signatures(text).values()))
    compile_library(f'#include "{SHIM}"\n{body}\n{wrappers}', folder / "kernels.so")
    (folder / "kernels.cu").write_text(text, encoding="utf-8")


class _Launch(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("turn", ctypes.c_int),
    )


class Kernel:
    """A kernel of a ``RawModule``: ``kernel(grid, block, args, shared_mem=0)``."""

    def __init__(self, library: ctypes.CDLL, signature: Signature) -> None:
        self.name, self.signature = signature.name, signature
        self._run = getattr(library, f"shim_run_{signature.name}")

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], *, shared_mem: int = 0
    ) -> None:
        launch = _Launch(_sizes("grid", grid, (2**31 - 1, 65535, 65535)), _sizes("block", block, (1024, 1024, 64)))
        if launch.block[0] * launch.block[1] * launch.block[2] > 1024:
            raise CudaError(f"kernel {self.name}: a block of {block} has more than 1024 threads")
        if not 0 <= shared_mem <= 48 << 10:
            raise CudaError(f"kernel {self.name}: {shared_mem} bytes of shared memory")
        launch.shared = shared_mem
        packed = self.signature.pack(args)

        def work() -> None:
            launch.turn = turn
            wrong = self._run(ctypes.byref(launch), ctypes.byref(packed))
            if wrong:
                raise CudaError(
                    f"kernel {self.name} wrote past its {shared_mem} bytes of shared memory"
                    if wrong < 0
                    else f"kernel {self.name}: only some threads of a block came to the same barrier"
                )
            for arg in args:
                if isinstance(arg, ndarray):
                    arg.data.check_guards(f"kernel {self.name}")

        engine.launch(work)


def _sizes(what: str, given: tuple[int, ...], most: tuple[int, int, int]) -> Any:
    if not isinstance(given, tuple) or not 1 <= len(given) <= 3:
        raise CudaError(f"{what} must be a tuple of one to three sizes, got {given!r}")
    full = (*given, 1, 1)[:3]
    for size, limit in zip(full, most, strict=True):
        if not isinstance(size, (int, np.integer)) or not 1 <= size <= limit:
            raise CudaError(f"{what} {given}: every size must be a whole number from 1 to {limit}")
    return (ctypes.c_uint * 3)(*map(int, full))


class RawModule:
    """``cupy.RawModule`` as far as this package uses it."""

    def __init__(
        self, *, code: str, options: tuple[str, ...] = (), backend: str = "nvrtc", name_expressions: None = None
    ) -> None:
        if backend != "nvrtc" or name_expressions is not None:
            raise CudaError('this stand-in compiles what NVRTC would, and extern "C" kernels only')
        self.code, self.options = code, options

    def compile(self) -> None:
        """Compile now instead of when the first function is asked for."""
        _build(self.code, self.options)

    def get_function(self, name: str) -> Kernel:
        """Return the kernel called ``name``."""
        library, signatures = _build(self.code, self.options)
        if name not in signatures:
            raise CudaError(f"no kernel {name!r}; there are {sorted(signatures)}")
        return Kernel(library, signatures[name])


def RawKernel(code: str, name: str, options: tuple[str, ...] = (), backend: str = "nvrtc") -> Kernel:
    """``cupy.RawKernel``: one kernel of a module of its own."""
    return RawModule(code=code, options=options, backend=backend).get_function(name)
