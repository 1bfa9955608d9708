"""The memory of arrays: numpy on the host, cupy on a GPU. The only module that refers to cupy.

A numeric function starts with ``xp = get_array_module(x)`` and then contains its formula once: the array determines the
device, there is no global "current backend". Random numbers are always drawn from counters (``seeding``), so they do
not depend on the device. Only ``asarray`` and ``as_contiguous`` copy data to a device, and only ``to_host`` copies them
back. Otherwise nothing waits for the device: a number computed there stays there (``scalar``).
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from dl4jlegacy.errors import ConfError

__all__ = [
    "Array",
    "Scalar",
    "as_contiguous",
    "asarray",
    "get_array_module",
    "import_cupy",
    "is_on_device",
    "out_of_memory",
    "scalar",
    "to_host",
]

Array = npt.NDArray[Any]

Scalar = Any
"""A number: a float on the host; on a device a 0-d float64 array, for which ``float()`` waits."""


def import_cupy() -> Any:
    """Return the module cupy; raises the exceptions of its import (``devices`` explains those errors)."""
    import cupy

    return cupy


def get_array_module(*arrays: Any) -> ModuleType:
    """Return cupy if all arrays are cupy arrays, numpy if none is; raises ``ConfError`` for a mixture."""
    cupy = sys.modules.get("cupy")  # there can be no cupy array if cupy was never imported
    if cupy is None:
        return np
    on_device = [isinstance(a, cupy.ndarray) for a in arrays]
    if not any(on_device):
        return np
    if not all(on_device):
        raise ConfError(_mixed(arrays, on_device))
    return cupy


def _mixed(arrays: tuple[Any, ...], on_device: list[bool]) -> str:
    def places(wanted: bool) -> str:
        found = [f"argument {i} {_shape(a)}" for i, a in enumerate(arrays) if on_device[i] is wanted]
        return " and ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)

    return (
        f"NumPy and CuPy arrays met in one operation: {places(False)} on the host, {places(True)} on the GPU; move the "
        "data with backend.asarray first, or make the network with the kernels of the place where its data are"
    )


def _shape(array: Any) -> str:
    return str(getattr(array, "shape", type(array).__name__))


def is_on_device(x: Any) -> bool:
    """Return whether ``x`` is an array on a GPU."""
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(x, cupy.ndarray)


def asarray(x: Any, like: Array, dtype: npt.DTypeLike | None = None) -> Array:
    """Return ``x``, anything array-like, on the device of ``like`` with ``dtype`` (default: that of ``like``)."""
    xp, kind = get_array_module(like), np.dtype(dtype or like.dtype)
    if is_on_device(x):
        x = x if xp is not np else to_host(x)
    elif xp is not np:
        x = np.asarray(x, dtype=kind)  # cast before the copy
    result: Array = xp.asarray(x, dtype=kind)
    return result


def as_contiguous(x: Array, xp: ModuleType, dtype: npt.DTypeLike) -> Array:
    """Return ``x`` C-contiguous, of ``dtype``, in the memory of ``xp``: a host array is uploaded for cupy.

    Raises:
        ConfError: ``x`` is on a GPU and ``xp`` is numpy: a network on the host takes only host arrays.
    """
    if is_on_device(x):
        if xp is np:
            raise ConfError(
                f"an array {_shape(x)} on the GPU came to a network on the host; give NumPy arrays (backend.to_host), "
                "or make the network with load('cupy')"
            )
    elif xp is not np:
        x = xp.asarray(np.ascontiguousarray(x, dtype=dtype))  # cast before the copy
    result: Array = xp.ascontiguousarray(x, dtype=dtype)
    return result


def to_host(x: Array) -> Array:
    """Return ``x`` as a numpy array. It is copied only from a GPU, after a wait for its computation."""
    if get_array_module(x) is np:
        return x
    host: Array = x.get()  # type: ignore[attr-defined]
    return host


def scalar(x: Any) -> Scalar:
    """Return a computed number: a float on the host, a 0-d float64 array on a device, where it stays."""
    if isinstance(x, np.generic) or not is_on_device(x):
        return float(x)
    return x.reshape(()).astype(np.float64)


def out_of_memory() -> tuple[type[BaseException], ...]:
    """Return the exceptions for full GPU memory, for ``except``; empty without cupy."""
    cupy = sys.modules.get("cupy")
    return () if cupy is None else (cupy.cuda.memory.OutOfMemoryError,)
