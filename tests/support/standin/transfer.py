"""Copies between the host and the device, and when they are done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tests.support.standin import memory
from tests.support.standin.engine import Raw, _null, _on, counters, launch, raw, synchronise, upload

if TYPE_CHECKING:
    from tests.support.standin.arrays import ndarray

__all__ = ["download", "upload_into"]


def download(array: ndarray, stream: Any, order: str, out: Any, blocking: bool) -> Raw:
    """Return a copy of ``array``; see ``cupy.ndarray.get``.

    Without ``blocking``, the copy into pinned memory is delivered when the stream, or an event after it, is waited for,
    and holds garbage until then; while capturing it is recorded.
    """
    with _on(stream):
        source = raw(array)
        if out is None:
            if order not in "CFA":
                raise ValueError(f"unsupported order: {order}")
            out = np.empty(array.shape, array.dtype, "F" if order == "F" else "C")
        else:
            _check_out(array, out)
        if blocking or not memory.is_pinned(out):  # CUDA waits for a copy into ordinary memory anyway
            synchronise()
            counters.add("downloads")
            array.data.check_guards("somebody")
            np.copyto(out, source)
        else:
            counters.add("staged")
            target = _null()
            launch(lambda: target._deliver_later(out, source.copy()))
        return out


def _check_out(array: ndarray, out: Any) -> None:
    if not isinstance(out, np.ndarray):
        raise TypeError(f"Only numpy.ndarray can be obtained from cupy.ndarray, not {type(out)}")
    if array.dtype != out.dtype:
        raise TypeError(f"{out.dtype} array cannot be obtained from {array.dtype} array")
    if array.shape != out.shape:
        raise ValueError(f"Shape mismatch. Expected shape: {array.shape}, actual shape: {out.shape}")
    if not (out.flags.c_contiguous or out.flags.f_contiguous):
        raise RuntimeError("`out` must be contiguous")


def upload_into(array: ndarray, arr: Raw, stream: Any) -> None:
    """Copy ``arr`` into ``array``; see ``cupy.ndarray.set``. From pinned memory, a capture records it."""
    if not isinstance(arr, np.ndarray):
        raise TypeError("Only numpy.ndarray can be set to cupy.ndarray")
    if array.dtype != arr.dtype:
        raise TypeError(f"{arr.dtype} array cannot be set to {array.dtype} array")
    if array.shape != arr.shape:
        raise ValueError(f"Shape mismatch. Old shape: {array.shape}, new shape: {arr.shape}")
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        raise RuntimeError("Cannot set to non-contiguous array")
    with _on(stream):
        target = raw(array)
        if memory.is_pinned(arr) and arr.flags.c_contiguous:
            counters.add("staged")
            launch(lambda: np.copyto(target, arr))
            return
        upload()
        launch(lambda: np.copyto(target, arr))
