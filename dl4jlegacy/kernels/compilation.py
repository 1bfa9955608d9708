"""The kernels that are being compiled at this moment, so that progress displays can say what a run waits for.

A kernel is compiled at its first use on a machine and cached beside its source file, or where that cannot be written in
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
    """List ``name`` among the kernels being compiled; log when it begins and how many seconds it took (level INFO)."""
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
    """Let ``call`` be called, once, before this thread compiles the first kernel meanwhile that is in no cache.

    It must not wait. Of several, one in the other, the innermost is called.
    """
    before, _missing.call = _missing.call, call
    try:
        yield
    finally:
        _missing.call = before


def report_missing() -> None:
    """Say that a kernel is in no cache, and that this thread compiles it: calls what ``when_missing`` was told."""
    call, _missing.call = _missing.call, None
    if call is not None:
        call()
