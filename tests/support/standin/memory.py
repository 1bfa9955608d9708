"""Device memory of the stand-in: pools with limits, which hand out again what was freed, as CuPy's do.

Blocks lie between guards, which show whether a kernel wrote outside. What is handed out is filled with ones (NaN, as a
float): a kernel that reads what was never written shows it. What a captured graph uses and its arrays give back may be
handed out again, and the graph then writes into it, as on a device.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tests.support.standin.engine import CudaError, OutOfMemoryError, machine, thread

UNIT = 512
_GUARD = 0xA5
_lock = threading.RLock()


class Memory:
    """A block of device memory; it goes back to its pool when the last array and pointer to it is gone."""

    def __init__(self, block: Any, size: int, device_id: int) -> None:
        block[UNIT : UNIT + size] = 0xFF
        block[:UNIT] = block[UNIT + size :] = _GUARD
        self._block, self.buffer = block, block[UNIT:]
        self.size, self.device_id = size, device_id
        self.ptr = self.buffer.ctypes.data

    def check_guards(self, writer: str) -> None:
        """Raise ``CudaError`` if ``writer`` wrote just before or behind what was asked for."""
        if not (self._block[:UNIT] == _GUARD).all() or not (self.buffer[self.size :] == _GUARD).all():
            raise CudaError(f"{writer} wrote outside an array")


class MemoryPointer:
    """A place in a block of memory; ``ptr`` is a real address."""

    def __init__(self, mem: Memory, offset: int) -> None:
        self.mem, self.offset, self.device_id = mem, offset, mem.device_id
        self.ptr = mem.ptr + offset if mem.size else 0


class MemoryPool:
    """Memory of every device, each with a limit; freed blocks stay for the next allocation of their size."""

    def __init__(self) -> None:
        self._limit: dict[int, int] = {}
        self._used: dict[int, int] = {}
        self._free: dict[tuple[int, int, int], list[Any]] = {}  # (device, stream, size)

    def malloc(self, size: int) -> MemoryPointer:
        """Return a block of ``size`` bytes, rounded up to 512; raises ``OutOfMemoryError`` at the pool's limit."""
        device, rounded = thread.device, -(-size // UNIT) * UNIT
        machine.check(device)
        key = (device, 0 if thread.stream is None else thread.stream.ptr, rounded)
        with _lock:
            free = self._free.get(key)
            block = free.pop() if free else self._reserve(rounded)
            self._used[device] = self._used.get(device, 0) + rounded
        memory = Memory(block, size, device)
        weakref.finalize(memory, self._take_back, key, block).atexit = False
        return MemoryPointer(memory, 0)

    def _reserve(self, size: int) -> Any:
        limit = self.get_limit()
        if limit and self.used_bytes() + size > limit:
            raise OutOfMemoryError(size, self.used_bytes(), limit)
        space = np.empty(size + 3 * UNIT, np.uint8)
        start = -space.ctypes.data % UNIT
        return space[start : start + size + 2 * UNIT]

    def _take_back(self, key: tuple[int, int, int], block: Any) -> None:
        with _lock:
            self._used[key[0]] -= key[2]
            self._free.setdefault(key, []).append(block)

    def used_bytes(self) -> int:
        """Return the bytes in use on the current device."""
        return self._used.get(thread.device, 0)

    def get_limit(self) -> int:
        """Return the limit of the current device, 0 for none."""
        return self._limit.get(thread.device, 0)

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        """Limit the current device to ``size`` bytes, or to a ``fraction`` of its memory; 0 for no limit."""
        if (size is None) == (fraction is None):
            raise ValueError("size or fraction is required, and not both")
        self._limit[thread.device] = size or int(machine.devices[thread.device].memory * (fraction or 0))


_pinned: dict[int, int] = {}  # start of each piece of pinned memory, and its length


def empty_pinned(shape: Any, dtype: Any = float) -> Any:
    """Return a NumPy array of garbage in pinned memory."""
    made = np.empty(shape, dtype)
    made.reshape(-1).view(np.uint8)[:] = 0xFF
    start = made.ctypes.data
    _pinned[start] = made.nbytes
    weakref.finalize(made, _pinned.pop, start, None).atexit = False
    return made


def is_pinned(host: Any) -> bool:
    """Return whether the NumPy array ``host`` lies in pinned memory."""
    start, end = host.ctypes.data, host.ctypes.data + host.nbytes
    return any(at <= start and end <= at + length for at, length in list(_pinned.items()))


_default = [MemoryPool()]


def get_default_memory_pool() -> MemoryPool:
    """Return the pool that arrays come from."""
    return _default[0]


def reset() -> None:
    """Begin with an empty pool without a limit: the next test starts anew."""
    _default[0] = MemoryPool()


@contextmanager
def using_allocator(allocator: Callable[[int], MemoryPointer]) -> Iterator[None]:
    """Let ``allocator`` give memory to this thread's arrays inside the ``with``."""
    thread.allocators.append(allocator)
    try:
        yield
    finally:
        thread.allocators.pop()


def alloc(size: int) -> MemoryPointer:
    """Return ``size`` bytes from the current allocator."""
    return (thread.allocators[-1] if thread.allocators else get_default_memory_pool().malloc)(size)
