"""``cupy.RawModule`` for tests without a GPU: CUDA C compiled for the CPU and run there, every argument checked.

CuPy checks nothing of what a kernel is given: a Python ``int`` arrives as 64 bits, a ``float`` as a double, an array
as its address, whatever the signature says. Here each argument is held against the C signature. Threads of a block run
one after the other; in kernels with barriers they are fibres that take turns, and a barrier that only some threads
reach is an error, as is an atomic operation (there is none here). ``turn`` says in which order they begin.
"""

from __future__ import annotations

import ctypes
import math
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.standin import engine
from tests.support.standin.arrays import ndarray
from tests.support.standin.compiler import CompileError, cached, compile_library, preprocess
from tests.support.standin.engine import CudaError, Raw

SHIM = Path(__file__).with_name("cuda_shim.h")
TYPES = {
    "unsigned char": "B",
    "int": "i",
    "unsigned": "I",
    "unsigned int": "I",
    "long long": "q",
    "unsigned long long": "Q",
    "float": "f",
    "double": "d",
}
"""Types of parameters, and the characters of NumPy's dtypes that are passed as such."""
IGNORED = ("--std=c++17", "--fmad=false")
MOST = {"grid": (2**31 - 1, 65535, 65535), "block": (1024, 1024, 64)}
turn = 0
"""Whether the first threads of a block begin (0) or the last ones (1); no result may depend on it."""

_lock = threading.Lock()
_libraries: dict[str, tuple[ctypes.CDLL, dict[str, Signature]]] = {}


class Signature:
    """The parameters of a kernel: ``(type, is a pointer, name)`` each."""

    def __init__(self, name: str, parameters: str, barriers: bool) -> None:
        self.name, self.barriers = name, barriers
        self.parameters = [_parameter(name, text) for text in parameters.split(",") if text.strip()]

    def pack(self, args: tuple[Any, ...]) -> Raw:
        """Return the arguments as words of 8 bytes, or raise ``CudaError``."""
        if len(args) != len(self.parameters):
            wanted = ", ".join(p[2] for p in self.parameters)
            raise CudaError(f"kernel {self.name} takes {len(self.parameters)} arguments ({wanted}), got {len(args)}")
        words = np.zeros(len(args), np.uint64)
        for index, (arg, (kind, pointer, name)) in enumerate(zip(args, self.parameters, strict=True)):
            where, char = f"kernel {self.name}, argument {name}", "Q" if pointer else TYPES[kind]
            words[index : index + 1].view(char)[0] = (
                _address(where, arg, kind) if pointer else _number(where, arg, kind)
            )
        return words


def _address(where: str, arg: Any, kind: str) -> int:
    if type(arg) in (int, np.uint64):
        return int(arg)
    if not isinstance(arg, ndarray):
        raise CudaError(f"{where}: {type(arg).__name__} is no device array")
    if arg.dtype != np.dtype(TYPES[kind]):
        raise CudaError(f"{where}: {kind}* given an array of {arg.dtype}")
    engine.raw(arg)  # it must be on the current device
    return int(arg.data.ptr)


def _number(where: str, arg: Any, kind: str) -> Any:
    known: dict[type, str] = {int: "q", float: "d"}
    given = known.get(type(arg)) or (arg.dtype.char if isinstance(arg, np.generic) else "")
    if {"l": "q", "L": "Q"}.get(given, given) != TYPES[kind]:
        raise CudaError(f"{where}: {kind} given {type(arg).__name__}; CuPy would pass other bits")
    return arg


def _parameter(kernel: str, text: str) -> tuple[str, bool, str]:
    words = re.findall(r"\w+|\*", text.replace("__restrict__", " "))
    name, words = words[-1], [w for w in words[:-1] if w not in ("const", "volatile")]
    pointers, kind = words.count("*"), " ".join(w for w in words if w != "*")
    if kind not in TYPES or pointers > 1:
        raise CudaError(f"kernel {kernel}: parameter {text.strip()!r} has a type that this stand-in does not know")
    return kind, pointers == 1, name


def _functions(code: str) -> list[tuple[str, str]]:
    """Return ``(head, body)`` of every function and structure at the top level of preprocessed ``code``."""
    found, depth, head, text = [], 0, "", ""
    for part in re.findall(r"[{};]|[^{};]+", code):
        depth += (part == "{") - (part == "}")
        if part == "{" and depth == 1:
            head, text = text, ""
        text += part
        if depth == 0 and part in "};":
            found.append((head, text))
            head = text = ""
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
    name, barriers = signature.name, "true" if signature.barriers else "false"
    values = ", ".join(
        f"*({kind}{'*' * pointer}*)((char*)a + {8 * i})" for i, (kind, pointer, _) in enumerate(signature.parameters)
    )
    return f"""
static void shim_call_{name}(void* a) {{ {name}({values}); }}
extern "C" int shim_run_{name}(const ShimLaunch* launch, void* a) {{
    return shim_launch(launch, shim_call_{name}, a, {barriers});
}}
"""


def _build(code: str, options: tuple[str, ...]) -> tuple[ctypes.CDLL, dict[str, Signature]]:
    definitions, key = [option for option in options if option.startswith("-D")], "\0".join((code, *options))
    if unknown := set(options) - {*definitions, *IGNORED}:
        raise CudaError(f"compiler options {sorted(unknown)} are not known here")
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


class Kernel:
    """A kernel of a ``RawModule``: ``kernel(grid, block, args, shared_mem=0)``."""

    def __init__(self, library: ctypes.CDLL, signature: Signature) -> None:
        self.name, self.signature = signature.name, signature
        self._run = getattr(library, f"shim_run_{signature.name}")

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], *, shared_mem: int = 0
    ) -> None:
        if math.prod(block) > 1024 or not 0 <= shared_mem <= 48 << 10:
            raise CudaError(f"kernel {self.name}: a block of {block} threads, {shared_mem} bytes of shared memory")
        sizes, packed = (*_sizes("grid", grid), *_sizes("block", block), shared_mem), self.signature.pack(args)

        def work() -> None:
            launch = np.array([*sizes, turn], np.uint32)
            wrong = self._run(*(ctypes.c_void_p(array.ctypes.data) for array in (launch, packed)))
            if wrong:
                raise CudaError(
                    f"kernel {self.name} wrote past its {shared_mem} bytes of shared memory"
                    if wrong < 0
                    else f"kernel {self.name}: only some threads of a block came to the same barrier"
                )
            for arg in args:
                if isinstance(arg, ndarray):
                    arg._memory.mem.check_guards(f"kernel {self.name}")

        engine.launch(work)


def _sizes(what: str, given: tuple[int, ...]) -> tuple[int, ...]:
    full = (*given, 1, 1)[:3]
    if not 1 <= len(given) <= 3 or not all(1 <= size <= most for size, most in zip(full, MOST[what], strict=True)):
        raise CudaError(f"{what} {given}: one to three whole numbers, at most {MOST[what]}")
    return full


class RawModule:
    """``cupy.RawModule`` as far as this package uses it."""

    def __init__(self, *, code: str, options: tuple[str, ...] = ()) -> None:
        self.code, self.options = code, options

    def compile(self) -> None:
        """Compile now instead of when the first function is asked for."""
        _build(self.code, self.options)

    def get_function(self, name: str) -> Kernel:
        """Return the kernel called ``name``."""
        library, signatures = _build(self.code, self.options)
        return Kernel(library, signatures[name])
