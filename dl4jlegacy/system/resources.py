"""What this machine can hold: memory and threads, asked before they are taken, so that a size too large is an answer.

An allocation that fails, or succeeds and is killed when it is used, would come in the middle of something.
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
_THREAD_NBYTES = 1 << 20  # resident: its stack, actor and buffers
_STACK_NBYTES = 8 << 20  # reserved, which counts where the address space is limited


def most_memory() -> int | None:
    """Return the bytes of memory that this process may take at most, swap included; None if that is unknown."""
    swap = _named(_MEMINFO, "SwapTotal:") or 0
    total = _named(_MEMINFO, "MemTotal:")
    limits = [None if total is None else total + swap, _number(_CGROUP / "memory.max"), _rlimit(resource.RLIMIT_AS)]
    return min((limit for limit in limits if limit is not None), default=None)


def free_memory() -> int | None:
    """Return how many bytes of memory can be taken now without taking anybody's; None if that is unknown."""
    free = [_named(_MEMINFO, "MemAvailable:")]
    if (most := _number(_CGROUP / "memory.max")) is not None and (used := _number(_CGROUP / "memory.current")):
        reclaimed = _named(_CGROUP / "memory.stat", "inactive_file") or 0  # files that were read count as used
        free.append(most - used + reclaimed)
    return min((nbytes for nbytes in free if nbytes is not None), default=None)


def most_cores() -> float | None:
    """Return how many cores' time this process's control group may take, 1.5 for instance; None: it has no quota."""
    try:
        quota, period = (_CGROUP / "cpu.max").read_text(encoding="ascii").split()
        return int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # "max", or no such file
        return None


def most_threads(nbytes: int = 0) -> int | None:
    """Return how many threads this process can start at most, each of which needs ``nbytes``; None if unknown."""
    limits = [_number(_CGROUP / "pids.max"), _number(Path("/proc/sys/kernel/threads-max"))]
    if (memory := most_memory()) is not None:
        limits.append(memory // (nbytes + _THREAD_NBYTES))
    if (space := _rlimit(resource.RLIMIT_AS)) is not None:
        limits.append(space // (nbytes + _THREAD_NBYTES + _STACK_NBYTES))
    return min((limit for limit in limits if limit is not None), default=None)


def allow_open_files(count: int) -> int:
    """Let this process have so many files and sockets open, or as many as it may; return how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return count if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def give_back_memory() -> None:
    """Give the system what this process has freed and the C library keeps: after much was read, tens of megabytes."""
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
    """Raise ``ConfError`` if so many workers cannot be started here; each needs ``nbytes`` for its network."""
    most = most_threads(nbytes)
    if most is not None and count > most:
        raise ConfError(
            f"{count} workers are more than this machine can start, which is about {most} (of memory, address space, "
            "processes and threads): give fewer --workers"
        )


def _named(path: Path, name: str) -> int | None:
    """Return the number behind a name at the beginning of a line, in bytes."""
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
