"""A stand-in for CuPy that runs on the CPU, so that all that is written for CuPy can be tested without a GPU.

It has what this project uses of CuPy, under CuPy's names (``test_cupy_names.py`` compares them with the real one),
and refuses what CuPy refuses and more: NumPy arrays among device arrays, NumPy's functions on them, waits and uploads
while a stream is capturing. Work is done at once; streams only matter while capturing.

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
from tests.support.standin import arrays, engine, memory, streams
from tests.support.standin.cublas import FakeCublas
from tests.support.standin.engine import DeviceConf, counters

__all__ = ["DeviceConf", "counters", "cupy", "device_arrays", "installed"]

_OF_NUMPY = ("float32", "float64", "int32", "int64", "uint8", "uint64", "finfo", "inf", "nan")


def _module(name: str, *members: Any, **named: Any) -> ModuleType:
    """Return a module that ``import`` then finds, with members by their own names or by others."""
    module = ModuleType(name)
    vars(module).update({member.__name__: member for member in members}, **named)
    return module


def _raw_module(name: str) -> Any:
    """Import the compiler of kernels when it is first needed."""
    if name != "RawModule":
        raise AttributeError(f"module 'cupy' has no attribute {name!r} (in the stand-in)")
    from tests.support.standin.raw_module import RawModule

    return RawModule


def _library(name: str) -> Any:
    """Raise what CuPy raises where a library of CUDA is missing; it looks for them at first use."""
    if name == "cublas":
        raise ImportError('Failure finding "libcublasLt.so.13 or libcublasLt.so.12": No such file')
    raise AttributeError(f"module 'cupy.cuda' has no attribute {name!r} (in the stand-in)")


def _modules() -> dict[str, ModuleType]:
    runtime = _module("cupy.cuda.runtime", *streams.RUNTIME)
    memory_module = _module("cupy.cuda.memory", engine.OutOfMemoryError)
    cuda = _module(
        "cupy.cuda", streams.Device, streams.Event, streams.Stream, streams.get_current_stream, memory.MemoryPool,
        memory.using_allocator, runtime=runtime, memory=memory_module, __path__=[], __getattr__=_library,
    )  # fmt: skip
    numbers = {name: getattr(np, name) for name in _OF_NUMPY}
    cupy = _module(
        "cupy", memory.get_default_memory_pool, **numbers, **arrays.FUNCTIONS, cuda=cuda, __version__="14.2.0",
        __path__=[], __getattr__=_raw_module,
    )  # fmt: skip
    return {m.__name__: m for m in (cupy, cuda, runtime, memory_module, _module("cupyx", memory.empty_pinned))}


MODULES = _modules()
cupy = MODULES["cupy"]


@contextmanager
def installed(*devices: DeviceConf) -> Iterator[ModuleType]:
    """Be what ``import cupy`` finds, with ``devices`` (default: one); the real one, or none, is back afterwards."""
    ours = [name for name in sys.modules if name.partition(".")[0] in ("cupy", "cupyx", "cupy_backends")]
    before = {name: sys.modules.pop(name) for name in ours}
    _reset(devices or (DeviceConf(),))
    sys.modules.update(MODULES)
    library = binding.load_library
    binding.load_library = lambda xp: FakeCublas()
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
    engine.reset(devices)
    memory.reset()


@pytest.fixture
def device_arrays() -> Iterator[ModuleType]:
    """``cupy``, as far as the test and what it calls can see: the stand-in, with one device and empty counters."""
    with installed() as module:
        yield module
