"""Compilation and launches of the CUDA C in ``kernels/cuda`` on CuPy arrays: the base of all kernel classes.

A family is one file ``cuda/<family>.cu`` after ``cuda/prelude.cuh``; it is compiled once for each dtype and device of
a process (CuPy also caches the result on disk). Parameters of kernels are only arrays, ``long long`` (a Python ``int``)
and ``double`` (a Python ``float``): CuPy passes numbers as they are and checks nothing.

CuPy compiles with ``-ftz=true``: float32 numbers below 1.2e-38 count as 0. Apart from these, updaters, sums of vectors
and the threshold codec compute NumPy's bits (no fused multiply-add; division and root are rounded correctly).
"""

from __future__ import annotations

import threading
from importlib.resources import files
from types import ModuleType
from typing import Any

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.arrays.devices import PRECISIONS
from dl4jlegacy.errors import ConfError, ShapeError, nearest
from dl4jlegacy.kernels.compilation import report_compilation
from dl4jlegacy.kernels.cuda.cublas import Cublas
from dl4jlegacy.kernels.cuda.graph_parameters import GraphParameters
from dl4jlegacy.kernels.cuda.scratch import Scratch

__all__ = ["BLOCK", "Launcher", "options", "source"]

BLOCK = 256
"""Threads of a block, unless a kernel has its own number; the sources rely on it."""

_MOST_BLOCKS = 1 << 16  # of a kernel whose threads stride over the grid: more than any device runs at once
_REALS = {"f": "float", "d": "double"}
_AS_ON_THE_CPU = frozenset({"threshold", "updaters", "vectors"})  # product and sum rounded apart, as NumPy does
_LOCK = threading.Lock()
_MODULES: dict[tuple[ModuleType, str, str, int], Any] = {}  # compiled modules, for the whole process


def source(family: str) -> str:
    """Return the CUDA C of a family, preceded by the prelude."""
    folder = files("dl4jlegacy.kernels").joinpath("cuda")
    prelude, own = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("prelude.cuh", f"{family}.cu"))
    return f'{prelude}\n#line 1 "{family}.cu"\n{own}'


def options(family: str, char: str) -> tuple[str, ...]:
    """Return the compiler options of a family for arrays of dtype ``char``, ``"f"`` or ``"d"``."""
    exact = ("--fmad=false",) if family in _AS_ON_THE_CPU else ()
    return ("--std=c++17", f"-DREAL={_REALS[char]}", *exact)


class Launcher:
    """One worker thread's kernels on one GPU.

    Args:
        device: number of the GPU; it must be the current device of the thread whenever a method is called.
        precision: of matrix products and convolutions, one of ``PRECISIONS``; arrays remain float32.
    """

    name = "cupy"

    def __init__(self, device: int = 0, precision: str = "float32") -> None:
        import cupy

        if precision not in PRECISIONS:
            raise ConfError(f"unknown precision {precision!r}{nearest(precision, PRECISIONS)}")
        self.xp: Any = cupy
        self.device, self.precision = device, precision
        self._scratch = Scratch(cupy)
        self._cublas: Cublas | None = None
        self._ready: dict[tuple[str, str, str], Any] = {}
        self._parameters: GraphParameters | None = None  # of the step that is being captured
        self._collected: list[float] | None = None  # scalars that ``_scalars`` was given while nothing is launched

    # -- numbers that change from step to step: a captured graph reads them from memory, ``_key``, ``_scalars`` -------
    def _key(self, key: int) -> tuple[Any, Any]:
        """Return a random kernel's arguments for ``key``: the value, and the address to read instead (0: none)."""
        return (np.uint64(key), 0) if self._parameters is None else (np.uint64(0), self._parameters.key(key))

    def _scalars(self, *values: float) -> tuple[Any, ...]:
        """Return an updater's arguments for up to four numbers: doubles, and the address to read instead."""
        numbers = (*map(float, values), *(0.0,) * (4 - len(values)))
        if self._collected is not None:
            self._collected.extend(numbers)
        return (*numbers, 0) if self._parameters is None else (0.0, 0.0, 0.0, 0.0, self._parameters.scalars(4))

    # -- checks: kernels trust what they are given --------------------------------------------------------------------
    def _on_device(self, what: str, *arrays: Array) -> str:
        """Return the common dtype's character, ``"f"`` or ``"d"``, or raise for an array that a kernel cannot take."""
        char = arrays[0].dtype.char
        for array in arrays:
            self._contiguous(what, array)
            if array.dtype.char != char or char not in _REALS:
                raise ConfError(
                    f"{what}: arrays of {arrays[0].dtype} and {array.dtype}; kernels take float32 and float64, "
                    "all arrays of one call of one dtype"
                )
        return char

    def _contiguous(self, what: str, array: Array, dtype: str | None = None) -> None:
        if not isinstance(array, self.xp.ndarray):
            raise ConfError(
                f"{what}: NumPy and CuPy arrays met in one operation; move the data with backend.asarray first"
            )
        if not array.flags.c_contiguous:
            raise ShapeError(
                f"{what}: kernels need C-contiguous arrays; strides {list(array.strides)}, "
                f"{list(array.shape)} {array.dtype}"
            )
        if dtype is not None and array.dtype != dtype:
            raise ConfError(f"{what}: an array of {array.dtype} where {dtype} is needed")

    def _alike(self, what: str, first: Array, *others: Array) -> str:
        """Like ``_on_device``; all arrays must also have the first one's shape."""
        for other in others:
            if other.shape != first.shape:
                raise ShapeError(
                    f"{what}: arrays of shapes {list(first.shape)} and {list(other.shape)} met where equal ones are "
                    "needed"
                )
        return self._on_device(what, first, *others)

    # -- products -----------------------------------------------------------------------------------------------------
    def matmul(self, a: Array, b: Array, out: Array, accumulate: bool = False) -> None:
        """See ``Kernels``."""
        if self._collected is not None:
            return
        if self._cublas is None:
            self._cublas = Cublas(self.xp, self.precision)
        self._cublas.matmul(a, b, out, accumulate)

    # -- launches -----------------------------------------------------------------------------------------------------
    def launch(self, family: str, name: str, char: str, threads: int, *args: Any) -> None:
        """Run a kernel whose threads stride over the grid; without threads nothing happens.

        Args:
            family: the file in ``cuda``.
            name: the kernel.
            char: the type of REAL, ``"f"`` or ``"d"``.
            threads: the number of work items.
            args: arrays, addresses (``int``, 0 for none), ``int`` for ``long long``, ``float`` for ``double``.
        """
        if threads > 0 and self._collected is None:
            blocks = min(-(-threads // BLOCK), _MOST_BLOCKS)
            self._function(family, name, char)((blocks,), (BLOCK,), args)

    def launch_blocks(
        self, family: str, name: str, char: str, grid: tuple[int, ...], block: tuple[int, ...], *args: Any,
        shared: int = 0,
    ) -> None:  # fmt: skip
        """Run a kernel on a grid of blocks, with ``shared`` bytes of dynamic shared memory."""
        if all(grid) and self._collected is None:
            self._function(family, name, char)(grid, block, args, shared_mem=shared)

    def _function(self, family: str, name: str, char: str) -> Any:
        key = (family, name, char)
        function = self._ready.get(key)
        if function is None:
            function = self._ready[key] = self._module(family, char).get_function(name)
        return function

    def _module(self, family: str, char: str) -> Any:
        key = (self.xp, family, char, self.device)
        with _LOCK:  # two workers of one device want the same module at the same time
            if key not in _MODULES:
                with report_compilation(f"{family} ({_REALS[char]}, GPU {self.device})"):
                    module = self.xp.RawModule(code=source(family), options=options(family, char))
                    module.compile()
                _MODULES[key] = module
            return _MODULES[key]
