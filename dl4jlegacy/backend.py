"""Where arrays live: numpy on the host, cupy on a GPU. The only module that knows that cupy exists.

A numeric function starts with ``xp = get_array_module(x)`` and then writes its formula once: the array says where it
lives, there is no global "current backend". Random numbers are always drawn from counters (``seeding``), so they do
not depend on the device.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from dl4jlegacy.errors import ConfError

__all__ = ["Array", "asarray", "get_array_module", "import_cupy", "to_host"]

Array = npt.NDArray[Any]


def import_cupy() -> Any:
    """Return the module cupy; raises what importing it raises (``devices`` says what that means)."""
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
        raise ConfError("numpy and cupy arrays met in one operation; move the data with backend.asarray first")
    return cupy


def asarray(x: Any, like: Array, dtype: npt.DTypeLike | None = None) -> Array:
    """Return ``x`` as an array on the device of ``like`` with ``dtype`` (default: that of ``like``)."""
    result: Array = get_array_module(like).asarray(x, dtype=dtype or like.dtype)
    return result


def to_host(x: Array) -> Array:
    """Return ``x`` as a numpy array; a copy only if it lives on a GPU."""
    if get_array_module(x) is np:
        return x
    host: Array = x.get()  # type: ignore[attr-defined]
    return host
