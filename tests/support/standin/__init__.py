"""A stand-in for CuPy that runs on the CPU, so that all that is written for CuPy can be tested without a GPU.

It serves what this project uses of CuPy, under CuPy's names and with CuPy's parameters (``test_cupy_names.py`` compares
them with the real one), refuses what CuPy refuses and more: NumPy arrays among device arrays, NumPy's functions on
them, waits and uploads while a stream is capturing. Work is done at once; streams only matter while capturing.

``installed()`` is ``import cupy`` for the code inside its ``with``; tests use the fixture ``device_arrays``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from dl4jlegacy.kernels.cuda import cublas as binding
from tests.support.standin import calculations, cuda, engine, errors, functions, memory, ufuncs
from tests.support.standin.arrays import ndarray
from tests.support.standin.cublas import FakeCublas
from tests.support.standin.engine import DeviceConf, counters, launch, machine

__all__ = ["DeviceConf", "counters", "cupy", "cupyx", "device_arrays", "installed", "launch", "machine"]

_NAMES = """bool_ int8 int16 int32 int64 intp uint8 uint16 uint32 uint64 uintp float16 float32 float64 complex64
complex128 integer floating number generic dtype newaxis inf nan pi e finfo iinfo result_type promote_types
issubdtype broadcast_shapes"""


def _modules() -> dict[str, ModuleType]:
    """Build the modules that ``import`` then finds."""
    top, cuda_module, runtime = ModuleType("cupy"), ModuleType("cupy.cuda"), ModuleType("cupy.cuda.runtime")
    memory_module, extra = ModuleType("cupy.cuda.memory"), ModuleType("cupyx")
    _fill(top, {name: getattr(np, name) for name in _NAMES.split()})
    _fill(top, {name: getattr(module, name) for module in (functions, calculations) for name in module.__all__})
    _fill(top, ufuncs.UFUNCS | {"ndarray": ndarray, "ufunc": ufuncs.ufunc, "cuda": cuda_module})
    _fill(top, {"__version__": "14.2.0", "__getattr__": _late, "__path__": []})
    _fill(runtime, {name: getattr(cuda, name) for name in cuda.RUNTIME})
    _fill(memory_module, {name: getattr(memory, name) for name in ("MemoryPointer", "MemoryPool", "alloc")})
    _fill(memory_module, {"OutOfMemoryError": errors.OutOfMemoryError})
    _fill(cuda_module, {name: getattr(cuda, name) for name in cuda.__all__})
    names = ("MemoryPointer", "MemoryPool", "PinnedMemoryPool", "alloc", "alloc_pinned_memory",
             "get_allocator", "set_allocator", "using_allocator")  # fmt: skip
    _fill(cuda_module, {name: getattr(memory, name) for name in names})
    _fill(cuda_module, {"runtime": runtime, "memory": memory_module, "is_available": functions.is_available})
    _fill(cuda_module, {"__path__": [], "__getattr__": _library})
    pinned = ("empty_pinned", "zeros_pinned", "empty_like_pinned", "zeros_like_pinned")
    _fill(extra, {name: getattr(memory, name) for name in pinned})
    return {m.__name__: m for m in (top, cuda_module, runtime, memory_module, extra)}


def _fill(module: ModuleType, names: dict[str, Any]) -> None:
    for name, value in names.items():
        setattr(module, name, value)


def _late(name: str) -> Any:
    """Import what few tests need: kernels in CUDA C."""
    if name not in ("RawKernel", "RawModule"):
        raise AttributeError(f"module 'cupy' has no attribute {name!r} (in the stand-in)")
    from tests.support.standin import raw_module

    return getattr(raw_module, name)


def _library(name: str) -> Any:
    """Say what CuPy says where a library of CUDA is missing; it looks for them when they are first asked for."""
    if name == "cublas":
        raise ImportError('Failure finding "libcublasLt.so.13 or libcublasLt.so.12": No such file')
    raise AttributeError(f"module 'cupy.cuda' has no attribute {name!r} (in the stand-in)")


MODULES = _modules()
cupy, cupyx = MODULES["cupy"], MODULES["cupyx"]


@contextmanager
def installed(*devices: DeviceConf) -> Iterator[ModuleType]:
    """Be what ``import cupy`` finds, with ``devices`` (default: one); the real one, or none, is back afterwards."""
    ours = [name for name in sys.modules if name.partition(".")[0] in ("cupy", "cupyx", "cupy_backends")]
    before = {name: sys.modules.pop(name) for name in ours}
    _reset(devices or (DeviceConf(),))
    sys.modules.update(MODULES)
    library = binding.load_library
    binding.load_library = lambda xp: FakeCublas(engine.launch)
    hides_cudnn = "cudnn" not in sys.modules
    if hides_cudnn:  # the real one would take addresses of the host for those of a GPU
        sys.modules["cudnn"] = None  # type: ignore[assignment]
    try:
        yield cupy
    finally:
        binding.load_library = library
        if hides_cudnn:
            sys.modules.pop("cudnn", None)
        for name in [n for n in sys.modules if n.partition(".")[0] in ("cupy", "cupyx", "cupy_backends")]:
            del sys.modules[name]
        sys.modules.update(before)
        _reset((DeviceConf(),))


def _reset(devices: tuple[DeviceConf, ...]) -> None:
    machine.__init__(devices)
    engine.forget()
    memory.reset()


@pytest.fixture
def device_arrays() -> Iterator[ModuleType]:
    """``cupy``, as far as the test and what it calls can see: the stand-in, with one device and empty counters."""
    with installed() as module:
        yield module
