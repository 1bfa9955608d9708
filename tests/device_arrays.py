"""The least of cupy that the kernels themselves need, for their own tests: arrays between guards, and ``RawModule``."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
from standin.raw_module import CudaError, RawModule

GUARD = 256


class _Pointer:
    def __init__(self, memory: np.ndarray, values: np.ndarray) -> None:
        self.memory, self.ptr = memory, values.ctypes.data

    def check_guards(self, who: str) -> None:
        if not ((self.memory[:GUARD] == 0xA5).all() and (self.memory[-GUARD:] == 0xA5).all()):
            raise CudaError(f"{who} wrote outside an array")


class ndarray:
    __array_ufunc__ = None  # numpy's operators refuse it

    def __init__(self, memory: np.ndarray, values: np.ndarray) -> None:
        self.memory, self.values, self.data = memory, values, _Pointer(memory, values)
        self.dtype, self.shape, self.size, self.ndim = values.dtype, values.shape, values.size, values.ndim
        self.flags, self.strides = values.flags, values.strides

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("a device array met NumPy")

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, where: Any) -> ndarray:
        return ndarray(self.memory, np.asarray(self.values[where]))

    def __int__(self) -> int:
        return int(self.values)

    def __float__(self) -> float:
        return float(self.values)

    def __matmul__(self, other: ndarray) -> ndarray:
        return asarray(self.values @ other.values)

    def __iadd__(self, other: ndarray) -> ndarray:
        self.values += other.values
        return self

    @property
    def T(self) -> ndarray:
        return ndarray(self.memory, self.values.T)

    def reshape(self, *shape: Any) -> ndarray:
        return ndarray(self.memory, self.values.reshape(*shape))

    def view(self, dtype: Any) -> ndarray:
        return ndarray(self.memory, self.values.view(dtype))

    def fill(self, value: Any) -> None:
        self.values.fill(value)

    def get(self) -> np.ndarray:
        self.data.check_guards("somebody")
        return self.values.copy()


def empty(shape: Any, dtype: Any = float) -> ndarray:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.full(size + 2 * GUARD, 0xA5, np.uint8)
    memory[GUARD : GUARD + size] = 0xFF  # NaN, or -1: whoever reads it before it is written shall notice
    return ndarray(memory, memory[GUARD : GUARD + size].view(dtype).reshape(shape))


def zeros(shape: Any, dtype: Any = float) -> ndarray:
    made = empty(shape, dtype)
    made.fill(0)
    return made


def asarray(values: Any, dtype: Any = None) -> ndarray:
    given = np.asarray(values, dtype)
    made = empty(given.shape, given.dtype)
    made.values[...] = given
    return made


def module() -> types.ModuleType:
    """Return what stands in for cupy."""
    made = types.ModuleType("cupy")
    made.__dict__.update(ndarray=ndarray, empty=empty, zeros=zeros, asarray=asarray, RawModule=RawModule,
                         matmul=lambda a, b, out: np.matmul(a.values, b.values, out=out.values))  # fmt: skip
    return made
