"""Checks of the machine: processor, memory, threads, open files, memory for files."""

from __future__ import annotations

import os
import resource

from dl4jlegacy.arrays import devices
from dl4jlegacy.arrays.devices import memory_text
from dl4jlegacy.doctor.check import Check, Finding, Settings, always, compared, ok, warning
from dl4jlegacy.errors import counted
from dl4jlegacy.scaleout.state import state_cache as copies
from dl4jlegacy.system import resources

__all__ = ["CHECKS"]

# a run of four workers on the digits takes 175 MiB (its first, which compiles kernels, 270), 13 threads, 4 open files
_LEAST_MEMORY, _SCARCE_MEMORY = 192 << 20, 1 << 30
_LEAST_THREADS, _SCARCE_THREADS = 16, 256
_LEAST_FILES, _SCARCE_FILES = 32, 1024
_SCARCE_SHM = 64 << 20


def cores(settings: Settings) -> Finding:
    """Compare the cores that this process sees with its container's quota."""
    [cpu] = devices.choose("cpu")
    usable, quota = len(os.sched_getaffinity(0)), resources.most_cores()
    found = f"{cpu.name}, {counted(usable, 'core')}"
    if quota is not None and quota < usable - 0.01:
        remedy = "give it more, or set OPENBLAS_NUM_THREADS: numerical libraries start a thread for each core"
        return warning(f"{found}, of which this container may use {quota:g} at a time", remedy)
    return ok(found)


def memory(settings: Settings) -> Finding:
    """Compare the free memory with the memory that runs need."""
    free, most = resources.free_memory(), resources.most_memory()
    if free is None or most is None:
        return warning("the size is unknown", "nothing has to be done; sizes are not checked beforehand")
    found = f"{memory_text(free)} free, of {memory_text(most)} (swap included)"
    return compared(found, min(free, most), _LEAST_MEMORY, _SCARCE_MEMORY, "end other programs, or add memory")


def threads(settings: Settings) -> Finding:
    """Check the limit of threads; a worker is one thread."""
    remedy = "type: ulimit -u unlimited; in a container: docker --pids-limit"
    return _limit(resource.RLIMIT_NPROC, resources.most_threads(), _LEAST_THREADS, _SCARCE_THREADS, remedy)


def open_files(settings: Settings) -> Finding:
    """Check the limit of open files and connections."""
    return _limit(resource.RLIMIT_NOFILE, None, _LEAST_FILES, _SCARCE_FILES, "type: ulimit -n 4096")


def _limit(kind: int, other: int | None, least: int, scarce: int, remedy: str) -> Finding:
    soft, _ = resource.getrlimit(kind)
    limits = [limit for limit in (soft, other) if limit not in (None, resource.RLIM_INFINITY)]
    if not limits:
        return ok("not limited")
    return compared(f"{min(limits):,} at a time", min(limits), least, scarce, remedy)


def shared_memory(settings: Settings) -> Finding:
    """Check ``/dev/shm``, where asynchronous strategies keep copies of their slots' states."""
    remedy = "start the container with --shm-size=1g; without it jobs of a killed worker are done again"
    try:
        state = os.statvfs(copies.MEMORY)
    except OSError as exc:
        return warning(f"{copies.MEMORY} cannot be used: {exc.strerror or exc}", remedy)
    free = state.f_bavail * state.f_frsize
    return compared(f"{memory_text(free)} free in {copies.MEMORY}", free, 0, _SCARCE_SHM, remedy)


CHECKS = (
    Check("cores", "Machine", cores),
    Check("memory", "Machine", memory, is_needed=always),
    Check("threads", "Machine", threads, is_needed=always),
    Check("open files", "Machine", open_files, is_needed=always),
    Check("shared memory", "Machine", shared_memory),
)
