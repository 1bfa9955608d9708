"""Where vectors begin, that large ones ask for large pages, give them back, and do without where there are none."""

from __future__ import annotations

import mmap
import re
from pathlib import Path

import numpy as np
import pytest

from dl4jlegacy.kernels import host_memory
from dl4jlegacy.kernels.host_memory import host_vector

LARGE, ITEM = 2 << 20, 4
HAS_LARGE_PAGES = mmap.PAGESIZE == 4096 and Path("/sys/kernel/mm/transparent_hugepage").exists()
needs_large_pages = pytest.mark.skipif(not HAS_LARGE_PAGES, reason="a system without large pages of 2 MiB")


def flags_at(address: int) -> set[str]:
    """Return the flags of the area of this process's memory in which an address lies."""
    found: set[str] = set()
    here = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        area = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if area:
            here = int(area[1], 16) <= address < int(area[2], 16)
        elif here and line.startswith("VmFlags:"):
            found = set(line.split()[1:])
    return found


@pytest.mark.parametrize("size", [1, 7, 1000, (1 << 20) // ITEM, (5 << 20) // ITEM + 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8])
def test_a_vector_has_its_size_zeros_and_begins_at_a_cache_line(size: int, dtype: type) -> None:
    vector = host_vector(size, dtype)
    assert vector.shape == (size,)
    assert vector.dtype == dtype
    assert vector.flags.writeable
    assert vector.ctypes.data % 64 == 0
    assert not vector.any()
    vector[-1:] = 1  # the last is there, too
    assert vector.sum() == 1


def test_a_network_without_updater_state_has_a_vector_without_elements() -> None:
    assert host_vector(0, np.float32).shape == (0,)


@needs_large_pages
def test_large_vectors_ask_for_large_pages_of_their_own() -> None:
    one, another = host_vector(LARGE // ITEM, "f"), host_vector(LARGE // ITEM + 1, "f")
    assert one.ctypes.data % LARGE == another.ctypes.data % LARGE == 0
    assert "hg" in flags_at(one.ctypes.data)
    assert "hg" in flags_at(another.ctypes.data + another.nbytes - 1)
    another.fill(1)
    assert not one.any()


def test_small_vectors_ask_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """They lie wherever there is room, perhaps where a large array of NumPy's has asked for large pages before."""
    system = _NoPages(has_room=True)
    monkeypatch.setattr(host_memory, "mmap", system)
    assert host_vector(1000, "f").shape == (1000,) and system.asked == 0


@needs_large_pages
def test_pages_are_given_back_with_the_last_view_only() -> None:
    vector = host_vector(4 * LARGE // ITEM, "f")
    address, view = vector.ctypes.data, vector[3:5]
    view[0] = 7
    del vector
    assert view[0] == 7
    assert "hg" in flags_at(address)
    del view
    assert "hg" not in flags_at(address)


class _NoPages:
    """``mmap``, of a process that may have no more areas of memory, or of a kernel that knows no large pages."""

    MAP_PRIVATE, MAP_ANONYMOUS, MADV_HUGEPAGE = mmap.MAP_PRIVATE, mmap.MAP_ANONYMOUS, 14

    def __init__(self, *, has_room: bool) -> None:
        self.has_room, self.asked = has_room, 0

    def mmap(self, *args: int, **more: int) -> mmap.mmap:
        self.asked += 1
        if not self.has_room:
            raise OSError(12, "Cannot allocate memory")
        return _Refusing(*args, **more)


class _Refusing(mmap.mmap):
    def madvise(self, *_: int) -> None:
        raise OSError(22, "Invalid argument")


@needs_large_pages
@pytest.mark.parametrize("has_room", [True, False])
def test_a_system_that_refuses_large_pages_costs_nothing_but_them(
    monkeypatch: pytest.MonkeyPatch, has_room: bool
) -> None:
    system = _NoPages(has_room=has_room)
    monkeypatch.setattr(host_memory, "mmap", system)
    vector = host_vector(LARGE // ITEM, "f")
    assert system.asked == 1
    assert vector.size == LARGE // ITEM
    assert vector.ctypes.data % 64 == 0
    vector.fill(2)
    assert vector[-1] == 2


def test_more_memory_than_there_is_raises_memory_error() -> None:
    with pytest.raises(MemoryError):
        host_vector(1 << 58, np.uint8)
