"""Host memory for kernels: it begins at a cache line, and large arrays lie on large pages.

A training step goes through megabytes of parameters, gradients and packed panels. With pages of 4 KiB, these have more
addresses than a processor's TLB can hold, and a virtual machine doubles the cost of a miss: a step takes up to 6 %
longer (``docs/performance-cpu.md``). Linux has pages of 2 MiB for memory that requests them ("transparent huge
pages"); NumPy requests them only for arrays of 4 MiB and more.
"""

from __future__ import annotations

import contextlib
import mmap

import numpy as np
import numpy.typing as npt

from dl4jlegacy.arrays.backend import Array

__all__ = ["host_vector"]

_CACHE_LINE = 64
_LARGE_PAGE = 2 << 20
_LEAST = _LARGE_PAGE // 2  # what is smaller would leave most of such a page unused
_HAS_LARGE_PAGES = hasattr(mmap, "MADV_HUGEPAGE") and mmap.PAGESIZE == 4096  # beside pages of 64 KiB they have 512 MiB


def host_vector(size: int, dtype: npt.DTypeLike) -> Array:
    """Return a flat array of ``size`` zeros that begins at a cache line.

    For long-lived arrays: an array of 1 MiB or more has its own pages, which are freed with its last view.

    Raises:
        MemoryError: there is not enough memory.
    """
    nbytes = size * np.dtype(dtype).itemsize
    raw, line = _on_large_pages(nbytes), _LARGE_PAGE
    if raw is None:
        raw, line = np.zeros(nbytes + _CACHE_LINE, np.uint8), _CACHE_LINE
    start = -raw.ctypes.data % line
    return raw[start : start + nbytes].view(dtype)


def _on_large_pages(nbytes: int) -> Array | None:
    """Return bytes with room for ``nbytes`` from the start of a large page; None if large pages are of no use."""
    if nbytes < _LEAST or not _HAS_LARGE_PAGES:
        return None
    whole = (nbytes // _LARGE_PAGE + 2) * _LARGE_PAGE  # a page that is never touched takes no memory
    try:
        pages = mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:  # no memory, which NumPy has an error for, or as many areas as a process may have
        return None
    with contextlib.suppress(OSError):  # a kernel without them
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8)
