"""Device memory of the stand-in: pools with limits, which hand out again what was freed, as CuPy's do.

Blocks lie between guards, which tell who wrote outside. What is handed out is filled with ones (NaN, as a float): who
reads what was never written sees it. What a captured graph uses and its arrays give back may be handed out again, and
the graph then writes into it, as on a device; a pool of its own (``using_allocator``) keeps the two apart.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tests.support.standin.engine import counters, launch, machine, thread, upload
from tests.support.standin.errors import OutOfMemoryError

__all__ = ["Memory", "MemoryPointer", "MemoryPool", "PinnedMemoryPointer", "PinnedMemoryPool", "alloc",
           "alloc_pinned_memory", "get_allocator", "is_pinned", "set_allocator", "using_allocator"]  # fmt: skip

UNIT = 512
_GUARD = 0xA5  # what lies around every block, and in what it is rounded up by
_lock = threading.RLock()
_reserved: dict[int, int] = {}  # bytes that all pools have taken from a device


class Memory:
    """A block of device memory; it goes back to its pool when the last array and pointer to it is gone."""

    def __init__(self, block: Any, size: int, device_id: int, give_back: Callable[[], None]) -> None:
        block[UNIT : UNIT + size] = 0xFF
        block[:UNIT] = block[UNIT + size :] = _GUARD
        self._block, self.buffer = block, block[UNIT:]
        self.size, self.device_id = size, device_id
        self.ptr = self.buffer.ctypes.data
        weakref.finalize(self, give_back).atexit = False

    def check_guards(self, who: str) -> None:
        """Raise ``CudaError`` if somebody wrote just before or behind what was asked for."""
        if not (self._block[:UNIT] == _GUARD).all() or not (self.buffer[self.size :] == _GUARD).all():
            from tests.support.standin.raw_module import CudaError

            raise CudaError(f"{who} wrote outside an array")


class MemoryPointer:
    """A place in a block of memory; ``ptr`` is a real address."""

    def __init__(self, mem: Any, offset: int) -> None:
        self.mem, self._offset = mem, offset
        self.ptr = mem.ptr + offset if mem.size else 0
        self.device_id = mem.device_id

    @property
    def device(self) -> Any:
        """The device that the memory is on."""
        from tests.support.standin.cuda import Device

        return Device(self.device_id)

    def check_guards(self, who: str) -> None:
        """See ``Memory.check_guards``."""
        self.mem.check_guards(who)

    def __int__(self) -> int:
        return int(self.ptr)

    def __add__(self, offset: int) -> MemoryPointer:
        return MemoryPointer(self.mem, self._offset + offset)

    def __sub__(self, offset: int) -> MemoryPointer:
        return MemoryPointer(self.mem, self._offset - offset)

    def copy_from_device(self, src: MemoryPointer, size: int) -> None:
        """Copy ``size`` bytes from ``src`` on the same device."""
        to, start = self.ptr, src.ptr
        keep = (self.mem, src.mem)
        launch(lambda: (ctypes.memmove(to, start, size), keep))

    def copy_from_device_async(self, src: MemoryPointer, size: int, stream: Any = None) -> None:
        """Copy ``size`` bytes from ``src`` on the same device, in the order of ``stream``."""
        with _stream(stream):
            self.copy_from_device(src, size)

    def copy_from_host_async(self, mem: Any, size: int, stream: Any = None) -> None:
        """Copy ``size`` bytes from the pinned host memory at ``mem``; recorded while capturing."""
        to, start = self.ptr, _address(mem)
        with _stream(stream):
            if _pinned_at(start, size):
                counters.add("staged")
            else:
                upload()
            launch(lambda: ctypes.memmove(to, start, size))

    def copy_to_host_async(self, mem: Any, size: int, stream: Any = None) -> None:
        """Copy ``size`` bytes to the pinned host memory at ``mem``; recorded while capturing."""
        to, start = _address(mem), self.ptr
        with _stream(stream):
            if _pinned_at(to, size):
                counters.add("staged")
            elif thread.capture is not None:
                raise thread.capture.refuse()
            else:
                counters.add("downloads")
            launch(lambda: ctypes.memmove(to, start, size))

    def memset_async(self, value: int, size: int, stream: Any = None) -> None:
        """Set ``size`` bytes to ``value``."""
        to = self.ptr
        with _stream(stream):
            launch(lambda: ctypes.memset(to, value, size))

    def memset(self, value: int, size: int) -> None:
        """Set ``size`` bytes to ``value``."""
        self.memset_async(value, size)


def _stream(stream: Any) -> Any:
    from tests.support.standin.engine import _on

    return _on(stream)


def _address(mem: Any) -> int:
    return int(mem.ptr if hasattr(mem, "ptr") else getattr(mem, "value", mem))


class MemoryPool:
    """Memory of every device, each with a limit; freed blocks are kept for the next allocation of their size."""

    def __init__(self, allocator: Any = None) -> None:
        if allocator is not None:
            raise NotImplementedError("the stand-in's pools have no other allocator")
        self._limit: dict[int, int] = {}
        self._used: dict[int, int] = {}
        self._free: dict[tuple[int, int, int], list[Any]] = {}  # (device, stream, size)
        weakref.finalize(self, _release, self._free).atexit = False

    def malloc(self, size: int) -> MemoryPointer:
        """Return a block of ``size`` bytes, rounded up to 512.

        Raises:
            OutOfMemoryError: the pool's limit or the device's memory does not hold that much.
        """
        device = thread.device
        machine.check(device)
        wanted = size
        if wanted == 0:
            return MemoryPointer(Memory(np.empty(2 * UNIT, np.uint8), 0, device, lambda: None), 0)
        size = -(-size // UNIT) * UNIT
        key = (device, 0 if thread.stream is None else thread.stream.ptr, size)
        with _lock:
            kept = self._free.get(key)
            block = kept.pop() if kept else self._reserve(device, size)
            self._used[device] = self._used.get(device, 0) + size
        return MemoryPointer(Memory(block, wanted, device, _Return(self, key, block)), 0)

    def _reserve(self, device: int, size: int) -> Any:
        limit, total = self._limit.get(device, 0), machine.devices[device].memory
        if self._over(device, size):
            self.free_all_blocks()
        if self._over(device, size):
            raise OutOfMemoryError(size, self.total_bytes(), limit if limit and limit < total else 0)
        _reserved[device] = _reserved.get(device, 0) + size
        space = np.empty(size + 3 * UNIT, np.uint8)
        start = -space.ctypes.data % UNIT
        return space[start : start + size + 2 * UNIT]

    def _over(self, device: int, size: int) -> bool:
        limit = self._limit.get(device, 0)
        kept = sum(k[2] * len(v) for k, v in self._free.items() if k[0] == device)
        if limit and self._used.get(device, 0) + kept + size > limit:
            return True
        return _reserved.get(device, 0) + size > machine.devices[device].memory

    def _take_back(self, key: tuple[int, int, int], block: Any) -> None:
        with _lock:
            self._used[key[0]] -= key[2]
            self._free.setdefault(key, []).append(block)

    def free_all_blocks(self, stream: Any = None) -> None:
        """Give the blocks that nobody uses back to the device."""
        with _lock:
            for key in [k for k in self._free if k[0] == thread.device and (stream is None or k[1] == stream.ptr)]:
                _reserved[key[0]] -= key[2] * len(self._free.pop(key))

    def used_bytes(self) -> int:
        """Bytes in use on the current device."""
        return self._used.get(thread.device, 0)

    def free_bytes(self) -> int:
        """Bytes kept for later on the current device."""
        return sum(key[2] * len(blocks) for key, blocks in self._free.items() if key[0] == thread.device)

    def total_bytes(self) -> int:
        """Bytes taken from the current device."""
        return self.used_bytes() + self.free_bytes()

    def n_free_blocks(self) -> int:
        """Number of blocks kept for later on the current device."""
        return sum(len(blocks) for key, blocks in self._free.items() if key[0] == thread.device)

    def get_limit(self) -> int:
        """The limit of the current device, 0 for none."""
        return self._limit.get(thread.device, 0)

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        """Limit the current device to ``size`` bytes, or to a ``fraction`` of its memory; 0 for no limit."""
        if (size is None) == (fraction is None):
            raise ValueError("size or fraction is required, and not both")
        if fraction is not None:
            if not 0 <= fraction <= 1:
                raise ValueError(f"memory limit fraction out of range: {fraction}")
            size = int(machine.devices[thread.device].memory * fraction)
        if size is None or size < 0:
            raise ValueError(f"memory limit size out of range: {size}")
        self._limit[thread.device] = size


class _Return:
    """Gives a block back to its pool, or to the device if the pool is gone; holds neither pool nor block's owner."""

    def __init__(self, pool: MemoryPool, key: tuple[int, int, int], block: Any) -> None:
        self._pool, self._key, self._block = weakref.ref(pool), key, block

    def __call__(self) -> None:
        pool = self._pool()
        if pool is not None:
            pool._take_back(self._key, self._block)
        else:
            with _lock:
                _reserved[self._key[0]] -= self._key[2]


def _release(free: dict[tuple[int, int, int], list[Any]]) -> None:
    with _lock:
        for key, blocks in free.items():
            _reserved[key[0]] -= key[2] * len(blocks)
        free.clear()


def reserved(device: int) -> int:
    """Bytes that all pools have taken from ``device``."""
    return _reserved.get(device, 0)


class PinnedMemoryPointer(bytearray):
    """Page-locked host memory (of the stand-in: any); NumPy arrays can be made of it."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.ptr = ctypes.addressof(ctypes.c_char.from_buffer(self)) if size else 0
        self.mem = self
        _pinned[id(self)] = (self.ptr, size)
        weakref.finalize(self, _pinned.pop, id(self), None).atexit = False

    def size(self) -> int:
        """The number of bytes."""
        return len(self)


_pinned: dict[int, tuple[int, int]] = {}


def _pinned_at(address: int, size: int) -> bool:
    return any(start <= address and address + size <= start + length for start, length in list(_pinned.values()))


def is_pinned(host: Any) -> bool:
    """Return whether the NumPy array ``host`` lies in pinned memory."""
    return bool(_pinned_at(host.ctypes.data, host.nbytes))


class PinnedMemoryPool:
    """Pinned memory; nothing is kept for later here."""

    def malloc(self, size: int) -> PinnedMemoryPointer:
        """Return ``size`` bytes of pinned memory."""
        return PinnedMemoryPointer(size)

    def free_all_blocks(self) -> None:
        """Give the blocks that nobody uses back: there are none."""

    def n_free_blocks(self) -> int:
        """Number of blocks kept for later."""
        return 0


default_pool, default_pinned_pool = MemoryPool(), PinnedMemoryPool()
_allocator: list[Callable[[int], MemoryPointer]] = []


def reset() -> None:
    """Begin with empty pools of no limit: the next test starts anew."""
    global default_pool, default_pinned_pool
    default_pool, default_pinned_pool = MemoryPool(), PinnedMemoryPool()
    _allocator.clear()


def copy_at(dst: int, src: int, size: int, host: int | None) -> None:
    """Copy ``size`` bytes between addresses; ``host``: the one that lies in memory of the host."""
    if host is not None and not _pinned_at(host, size) and thread.capture is not None:
        raise thread.capture.refuse()
    if host is not None:
        counters.add("staged" if _pinned_at(host, size) else "uploads" if host == src else "downloads")
    launch(lambda: ctypes.memmove(dst, src, size))


def set_at(ptr: int, value: int, size: int) -> None:
    """Set ``size`` bytes at an address."""
    launch(lambda: ctypes.memset(ptr, value, size))


def empty_pinned(shape: Any, dtype: Any = float, order: str = "C") -> Any:
    """Return a NumPy array of garbage in pinned memory."""
    shape = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    kind, count = np.dtype(dtype), int(np.prod(shape, dtype=np.int64))
    if not count:
        return np.empty(shape, kind)
    flat = np.frombuffer(alloc_pinned_memory(count * kind.itemsize), kind, count)
    flat.view(np.uint8)[:] = 0xFF
    return flat.reshape(shape, order=order)


def zeros_pinned(shape: Any, dtype: Any = float, order: str = "C") -> Any:
    """Return a NumPy array of zeros in pinned memory."""
    made = empty_pinned(shape, dtype, order)
    made[...] = 0
    return made


def empty_like_pinned(a: Any, dtype: Any = None, order: str = "K", subok: None = None, shape: Any = None) -> Any:
    """Return a NumPy array of garbage in pinned memory that looks like another array."""
    fortran = order == "F" or (order in "KA" and a.flags.f_contiguous and not a.flags.c_contiguous)
    return empty_pinned(a.shape if shape is None else shape, dtype or a.dtype, "F" if fortran else "C")


def zeros_like_pinned(a: Any, dtype: Any = None, order: str = "K", subok: None = None, shape: Any = None) -> Any:
    """Return a NumPy array of zeros in pinned memory that looks like another array."""
    made = empty_like_pinned(a, dtype, order, subok, shape)
    made[...] = 0
    return made


def get_allocator() -> Callable[[int], MemoryPointer]:
    """Return what gives memory to arrays in this thread."""
    if thread.allocators and thread.allocators[-1] is not None:
        found: Callable[[int], MemoryPointer] = thread.allocators[-1]
        return found
    return _allocator[-1] if _allocator else default_pool.malloc


def set_allocator(allocator: Callable[[int], MemoryPointer] | None = None) -> None:
    """Let ``allocator`` give memory to all arrays; None: the plain device memory, which is a new pool here."""
    if thread.allocators:
        raise ValueError("Can't change the global allocator inside `using_allocator` context manager")
    _allocator[:] = [allocator or MemoryPool().malloc]


@contextmanager
def using_allocator(allocator: Callable[[int], MemoryPointer] | None = None) -> Iterator[None]:
    """Let ``allocator`` give memory to this thread's arrays inside the ``with``."""
    thread.allocators.append(allocator or MemoryPool().malloc)
    try:
        yield
    finally:
        thread.allocators.pop()


def alloc(size: int) -> MemoryPointer:
    """Return ``size`` bytes from the current allocator."""
    return get_allocator()(size)


def alloc_pinned_memory(size: int) -> PinnedMemoryPointer:
    """Return ``size`` bytes of pinned host memory."""
    machine.check(thread.device)
    return default_pinned_pool.malloc(size)
