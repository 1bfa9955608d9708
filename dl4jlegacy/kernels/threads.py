"""How many threads a kernel may use: one where workers, or a caller's own threads, already use the cores.

There is one pool of threads at a time. Two that do not know of each other take each other's cores away, and what waits
for the slower one is many times slower; a BLAS has a pool of its own, which is limited here as well.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import threadpool_limits

__all__ = ["NAME", "count", "one_thread"]

NAME = "dl4j-kernel"
"""What the names of the threads that help kernels begin with: they wait for work until the process ends."""

_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
_lock = threading.Lock()
_limits = 0


def _cores() -> int:
    """Return the cores of this process, or fewer if a variable that a BLAS obeys, too, says so."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    given = next((value for name in _VARIABLES if (value := os.environ.get(name, "")).isdecimal() and int(value)), "")
    return min(cores, int(given)) if given else cores


_CORES = _cores()


def count() -> int:
    """Return how many threads a kernel may use that is called now."""
    return 1 if _limits else _CORES


@contextmanager
def one_thread() -> Iterator[None]:
    """Let kernels, and the BLAS, compute in the thread that calls them, in this whole process."""
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
    """A forked process has none of its parent's threads, one of which may have held the lock."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget)
