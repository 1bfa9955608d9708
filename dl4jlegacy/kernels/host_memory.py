"""Memory of the host that kernels work in: it begins at a cache line, and what is large lies on large pages.

A step of training goes through megabytes of parameters, gradients and packed panels. On pages of 4 KiB a processor
looks up more addresses than it can remember, which a virtual machine makes twice as dear: a step takes up to 6 %
longer (``docs/performance-cpu.md``). Linux has pages of 2 MiB for memory that asks for them ("transparent huge pages");
NumPy asks for arrays of 4 MiB and more only.
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

    Meant for what is kept: one of 1 MiB or more has pages of its own, which are given back with its last view.

    Raises:
        MemoryError: there is not so much memory.
    """
    nbytes = size * np.dtype(dtype).itemsize
    raw, line = _on_large_pages(nbytes), _LARGE_PAGE
    if raw is None:
        raw, line = np.zeros(nbytes + _CACHE_LINE, np.uint8), _CACHE_LINE
    start = -raw.ctypes.data % line
    return raw[start : start + nbytes].view(dtype)


def _on_large_pages(nbytes: int) -> Array | None:
    """Return bytes with room for so many from the start of a large page on; None where such pages are of no use."""
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
