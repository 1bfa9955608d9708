"""The kernels that are being compiled now, for progress displays of a waiting run.

A kernel is compiled at its first use on a machine and cached beside its source file, or if that is not writable, in
the user's cache folder (``NUMBA_CACHE_DIR`` names another).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator

__all__ = ["kernels_being_compiled", "report_compilation", "report_missing", "when_missing"]

logger = logging.getLogger(__name__)

_LOCK = threading.Lock()
_NOW: list[str] = []


class _Missing(threading.local):
    call: Callable[[], None] | None = None


_missing = _Missing()


def kernels_being_compiled() -> tuple[str, ...]:
    """Return the names of the kernels that this process is compiling, waiting for, or reading from the cache."""
    with _LOCK:
        return tuple(_NOW)


@contextlib.contextmanager
def report_compilation(name: str, clock: Callable[[], float] = time.perf_counter) -> Iterator[None]:
    """List ``name`` among the kernels being compiled; log the start and the duration in seconds (level INFO)."""
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


@contextlib.contextmanager
def when_missing(call: Callable[[], None]) -> Iterator[None]:
    """Call ``call`` once, before this thread compiles the first kernel that is not in the cache.

    ``call`` must not wait. Of nested contexts, only the innermost one's ``call`` is used.
    """
    before, _missing.call = _missing.call, call
    try:
        yield
    finally:
        _missing.call = before


def report_missing() -> None:
    """Report that this thread compiles a kernel that is not in the cache: run the call of ``when_missing``."""
    call, _missing.call = _missing.call, None
    if call is not None:
        call()
