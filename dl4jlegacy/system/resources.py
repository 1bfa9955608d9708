"""Limits of this machine: memory and threads, checked before use, so that an excessive size gives a clear error.

An allocation that fails, or that succeeds and is killed when used, would interrupt the work at any point.
"""

from __future__ import annotations

import contextlib
import ctypes
import resource
from pathlib import Path

from dl4jlegacy.errors import ConfError

__all__ = [
    "allow_open_files",
    "check_memory",
    "check_threads",
    "free_memory",
    "give_back_memory",
    "most_cores",
    "most_memory",
    "most_threads",
]

_CGROUP, _MEMINFO = Path("/sys/fs/cgroup"), Path("/proc/meminfo")
_THREAD_NBYTES = 1 << 20  # resident: stack, actor and buffers
_STACK_NBYTES = 8 << 20  # reserved, which counts if the address space is limited


def most_memory() -> int | None:
    """Return the maximum bytes of memory of this process, including swap; None if unknown."""
    swap = _named(_MEMINFO, "SwapTotal:") or 0
    total = _named(_MEMINFO, "MemTotal:")
    limits = [None if total is None else total + swap, _number(_CGROUP / "memory.max"), _rlimit(resource.RLIMIT_AS)]
    return min((limit for limit in limits if limit is not None), default=None)


def free_memory() -> int | None:
    """Return available memory in bytes, or None if unknown."""
    free = [_named(_MEMINFO, "MemAvailable:")]
    if (most := _number(_CGROUP / "memory.max")) is not None and (used := _number(_CGROUP / "memory.current")):
        reclaimed = _named(_CGROUP / "memory.stat", "inactive_file") or 0  # the page cache counts as used
        free.append(most - used + reclaimed)
    return min((nbytes for nbytes in free if nbytes is not None), default=None)


def most_cores() -> float | None:
    """Return the CPU quota of this process's control group in cores, 1.5 for instance; None if there is none."""
    try:
        quota, period = (_CGROUP / "cpu.max").read_text(encoding="ascii").split()
        return int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # "max", or no such file
        return None


def most_threads(nbytes: int = 0) -> int | None:
    """Return the maximum threads of this process if each needs ``nbytes``; None if unknown."""
    limits = [_number(_CGROUP / "pids.max"), _number(Path("/proc/sys/kernel/threads-max"))]
    if (memory := most_memory()) is not None:
        limits.append(memory // (nbytes + _THREAD_NBYTES))
    if (space := _rlimit(resource.RLIMIT_AS)) is not None:
        limits.append(space // (nbytes + _THREAD_NBYTES + _STACK_NBYTES))
    return min((limit for limit in limits if limit is not None), default=None)


def allow_open_files(count: int) -> int:
    """Raise the limit of open files and sockets to ``count``, or as far as allowed; return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return count if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def give_back_memory() -> None:
    """Return freed memory that the C library keeps to the system: tens of megabytes after much reading."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def check_memory(nbytes: int, what: str) -> None:
    """Raise ``ConfError`` if ``what`` needs more memory than there is."""
    most = most_memory()
    if most is not None and nbytes > most:
        raise ConfError(
            f"{what} needs {nbytes / 2**30:,.1f} GiB of memory, this machine gives at most {most / 2**30:,.1f}; "
            "make it smaller"
        )


def check_threads(count: int, nbytes: int) -> None:
    """Raise ``ConfError`` if ``count`` workers cannot be started here; each needs ``nbytes`` for its network."""
    most = most_threads(nbytes)
    if most is not None and count > most:
        raise ConfError(
            f"{count} workers are more than this machine can start, which is about {most} (of memory, address space, "
            "processes and threads): give fewer --workers"
        )


def _named(path: Path, name: str) -> int | None:
    """Return the number after a name at the beginning of a line, in bytes."""
    try:
        fields = [line.split() for line in path.read_text(encoding="ascii").splitlines()]
        return next(int(found[1]) * (1024 if found[-1] == "kB" else 1) for found in fields if found[0] == name)
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # "max", or no Linux
        return None


def _rlimit(kind: int) -> int | None:
    soft, _ = resource.getrlimit(kind)
    return None if soft == resource.RLIM_INFINITY else soft
