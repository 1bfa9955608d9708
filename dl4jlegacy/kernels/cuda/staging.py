"""Staging buffers: batches reach the device through pinned memory and a copy stream, without waiting.

The host fills a slot's pinned buffer and continues; the copy stream copies it to the device while earlier steps are
still running; a device-side copy then moves the data to the arrays that the step reads. A slot is reused after its
events have passed, which is queried without waiting. Only a host that is ``_SLOTS`` steps ahead waits for the oldest.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from dl4jlegacy.arrays.backend import Array

__all__ = ["Staging"]

_ALIGNMENT = 256  # bytes, as cudaMalloc aligns
_SLOTS = 64
_BYTES = 256 << 20  # pinned memory that all slots together may take; two slots there always are


class _Slot:
    """A pinned buffer and its counterpart on the device."""

    def __init__(self, xp: Any, empty_pinned: Any, nbytes: int) -> None:
        self.pinned: Array = empty_pinned(nbytes, np.uint8)
        self.device: Array = xp.empty(nbytes, np.uint8)
        # events: the pinned buffer may be written again, and the one on the device
        self.copied, self.taken = (xp.cuda.Event(disable_timing=True) for _ in range(2))
        # CuPy's pool gives memory that earlier work of this stream may still use; the copy stream must wait for that
        xp.cuda.get_current_stream().record(self.taken)


class Staging:
    """Uploads for one stream. Used by one thread, within ``CupyKernels.use``."""

    def __init__(self, xp: Any, empty_pinned: Any) -> None:
        self._xp, self._empty_pinned = xp, empty_pinned
        self._copying = xp.cuda.Stream(non_blocking=True)
        self._slots: deque[_Slot] = deque()  # the one that was used longest ago comes first

    def upload(self, sources: Sequence[Array], targets: Sequence[Array]) -> None:
        """Copy host arrays to device arrays of the same shape and dtype, in the order of the current stream.

        The caller may change the sources after this returns.
        """
        offsets, nbytes = _places(targets)
        if not nbytes:
            return
        slot = self._free(nbytes)
        for source, target, start in zip(sources, targets, offsets, strict=True):
            held = slot.pinned[start : start + target.nbytes].view(target.dtype).reshape(target.shape)
            np.copyto(held, source, casting="same_kind")
        here = self._xp.cuda.get_current_stream()
        self._copying.wait_event(slot.taken)
        with self._copying:
            slot.device[:nbytes].set(slot.pinned[:nbytes], stream=self._copying)  # type: ignore[attr-defined]
        self._copying.record(slot.copied)
        here.wait_event(slot.copied)
        for target, start in zip(targets, offsets, strict=True):
            target[...] = slot.device[start : start + target.nbytes].view(target.dtype).reshape(target.shape)
        here.record(slot.taken)
        self._slots.append(slot)

    def _free(self, nbytes: int) -> _Slot:
        """Remove and return a writable slot; make one if there is none; wait for the oldest if there are enough."""
        if self._slots and len(self._slots[0].pinned) < nbytes:  # batches have grown
            self._xp.cuda.get_current_stream().synchronize()
            self._slots.clear()
        many = len(self._slots) >= max(2, min(_SLOTS, _BYTES // nbytes))
        if not self._slots or not (many or self._slots[0].copied.done):
            size = max([nbytes, *(len(slot.pinned) for slot in self._slots)])
            return _Slot(self._xp, self._empty_pinned, size)
        slot = self._slots.popleft()
        if not slot.copied.done:
            slot.copied.synchronize()
        return slot


def _places(arrays: Sequence[Array]) -> tuple[list[int], int]:
    offsets, end = [], 0
    for array in arrays:
        offsets.append(end)
        end += math.ceil(array.nbytes / _ALIGNMENT) * _ALIGNMENT
    return offsets, end
