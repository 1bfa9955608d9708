"""The number of threads of a kernel: one if workers, or the caller's own threads, already use the cores.

There is one thread pool at a time. Two independent pools compete for the same cores, and code that waits for the slower
one is many times slower; a BLAS has its own pool, which is limited here as well.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import threadpool_limits

__all__ = ["NAME", "count", "one_thread"]

NAME = "dl4j-kernel"
"""Prefix of the names of kernel threads, which wait for work until the process ends."""

_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
_lock = threading.Lock()
_limits = 0


def _cores() -> int:
    """Return the number of cores of this process, or fewer if an environment variable for BLAS threads says so."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    given = next((value for name in _VARIABLES if (value := os.environ.get(name, "")).isdecimal() and int(value)), "")
    return min(cores, int(given)) if given else cores


_CORES = _cores()


def count() -> int:
    """Return the number of threads that a kernel may use now."""
    return 1 if _limits else _CORES


@contextmanager
def one_thread() -> Iterator[None]:
    """Make kernels and the BLAS compute in the calling thread, in this whole process."""
    global _limits
    with _lock:
        _limits += 1
    try:
        with threadpool_limits(limits=1, user_api="blas"):
            yield
    finally:
        with _lock:
            _limits -= 1


def _forget() -> None:
    """Reset the lock in a forked process, which has none of its parent's threads; one of them may have held it."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget)
