"""Which kernels are being compiled at this moment, for those who show what a run is waiting for.

A kernel is compiled at its first use on a machine and cached beside its source file, or where that cannot be written in
the user's cache folder (``NUMBA_CACHE_DIR`` names another).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator

__all__ = ["announced", "compiling"]

logger = logging.getLogger(__name__)

_LOCK = threading.Lock()
_NOW: list[str] = []


def compiling() -> tuple[str, ...]:
    """Return the names of the kernels that some thread of this process is compiling, or reading from the cache."""
    with _LOCK:
        return tuple(_NOW)


@contextlib.contextmanager
def announced(name: str, clock: Callable[[], float] = time.perf_counter) -> Iterator[None]:
    """Count ``name`` among those being compiled; log at level INFO that it begins, and how long it took (seconds)."""
    logger.info("kernel %s: compiling it for this processor, or reading it from the cache", name)
    began = clock()
    with _LOCK:
        _NOW.append(name)
    try:
        yield
    finally:
        with _LOCK:
            _NOW.remove(name)
        logger.info("kernel %s: ready after %.1f s", name, clock() - began)
