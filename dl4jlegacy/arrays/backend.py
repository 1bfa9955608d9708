"""Where arrays live: numpy on the host, cupy on a GPU. The only module that knows that cupy exists.

A numeric function starts with ``xp = get_array_module(x)`` and then writes its formula once: the array says where it
lives, there is no global "current backend". Random numbers are always drawn from counters (``seeding``), so they do
not depend on the device. Data go to a device in ``asarray`` and ``as_contiguous``, and come back in ``to_host``,
nowhere else; between, nothing waits for the device: a number that it computes stays there (``scalar``).
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
"""A number: a float on the host; on a device a 0-d array of float64, which ``float()`` waits for."""


def import_cupy() -> Any:
    """Return the module cupy; raises what importing it raises (``devices`` explains those errors)."""
    import cupy

    return cupy


def get_array_module(*arrays: Any) -> ModuleType:
    """Return cupy if every array is a cupy array, numpy if none is; a mixture raises ``ConfError``."""
    cupy = sys.modules.get("cupy")  # an array can only be cupy's if somebody has imported cupy
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
        x = np.asarray(x, dtype=kind)  # cast before it travels
    result: Array = xp.asarray(x, dtype=kind)
    return result


def as_contiguous(x: Array, xp: ModuleType, dtype: npt.DTypeLike) -> Array:
    """Return ``x`` C-contiguous, of ``dtype``, in the memory that ``xp`` works on: a host array is uploaded for cupy.

    Raises:
        ConfError: ``x`` is on a GPU and ``xp`` is numpy: a network on the host takes no arrays from elsewhere.
    """
    if is_on_device(x):
        if xp is np:
            raise ConfError(
                f"an array {_shape(x)} on the GPU came to a network on the host; give NumPy arrays (backend.to_host), "
                "or make the network with load('cupy')"
            )
    elif xp is not np:
        x = xp.asarray(np.ascontiguousarray(x, dtype=dtype))  # cast before it travels
    result: Array = xp.ascontiguousarray(x, dtype=dtype)
    return result


def to_host(x: Array) -> Array:
    """Return ``x`` as a numpy array; a copy only if it lives on a GPU, and then it waits for what computes it."""
    if get_array_module(x) is np:
        return x
    host: Array = x.get()  # type: ignore[attr-defined]
    return host


def scalar(x: Any) -> Scalar:
    """Return a number that was computed: a float from the host, a 0-d float64 array where it stays on a device."""
    if isinstance(x, np.generic) or not is_on_device(x):
        return float(x)
    return x.reshape(()).astype(np.float64)


def out_of_memory() -> tuple[type[BaseException], ...]:
    """Return the exceptions that a full GPU raises, for ``except``; none without cupy."""
    cupy = sys.modules.get("cupy")
    return () if cupy is None else (cupy.cuda.memory.OutOfMemoryError,)
