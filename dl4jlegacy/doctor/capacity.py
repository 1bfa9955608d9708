"""What this machine has for a run: processor, cores, BLAS, memory, threads, open files, memory for files."""

from __future__ import annotations

import os
import resource
import sys

import threadpoolctl

from dl4jlegacy.arrays import devices
from dl4jlegacy.arrays.devices import memory_text
from dl4jlegacy.doctor.check import Check, Finding, Settings, failed, ok, warning
from dl4jlegacy.errors import counted
from dl4jlegacy.kernels.arithmetic import cpu_arithmetic
from dl4jlegacy.scaleout.state import copies
from dl4jlegacy.system import resources as machine

__all__ = ["checks"]

# a run of four workers on the digits takes 175 MiB (its first, which compiles kernels, 270), 13 threads, 4 open files
_LEAST_MEMORY, _SCARCE_MEMORY = 192 << 20, 1 << 30
_LEAST_THREADS, _SCARCE_THREADS = 16, 256
_LEAST_FILES, _SCARCE_FILES = 32, 1024
_SCARCE_SHM = 64 << 20
_SCARCE_SPACE = 4 << 30
_QUOTA = "numerical libraries start a thread for each core that they see: set OPENBLAS_NUM_THREADS to what there is"


def processor(settings: Settings) -> Finding:
    """Say what computes, and which of its vector units NumPy and the kernels use."""
    [cpu] = devices.choose("cpu")
    features = cpu_arithmetic("numpy")["NumPy's vector code"]
    found = f"{cpu.name}, NumPy's vector code: {features}"
    if features == "none":
        return warning(found, "nothing beyond the least is used: a newer processor, or in a virtual machine its model")
    return ok(found)


def cores(settings: Settings) -> Finding:
    """Compare the cores that programs see with those that this process may use."""
    usable, seen, quota = len(os.sched_getaffinity(0)), os.cpu_count() or 1, machine.most_cores()
    found = counted(usable, "core") + (f" of {seen}" if usable < seen else "")
    if quota is not None and quota < usable - 0.01:
        return warning(f"{found}, of which this container may use {quota:g} at a time", f"give it more, or {_QUOTA}")
    return ok(found)


def load(settings: Settings) -> Finding:
    """Look whether others compute on this machine: what is measured then is not what a run could do."""
    busy, usable = os.getloadavg()[0], len(os.sched_getaffinity(0))
    found = f"a load of {busy:.1f} on average of the last minute, on {counted(usable, 'core')}"
    if busy > 1.5 * usable:
        return warning(found, "see who does (top), or expect a slower run")
    return ok(found)


def blas(settings: Settings) -> Finding:
    """Look at what NumPy multiplies matrices with, and in how many threads."""
    name, usable = cpu_arithmetic("numpy")["BLAS"], len(os.sched_getaffinity(0))
    pools = [pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]
    if not pools:
        found = f"{name}, whose threads cannot be set: each worker would multiply in as many as there are cores"
        remedy = f"type: {sys.executable} -m pip install --force-reinstall numpy"
        return warning(found, f"install NumPy's wheel, which brings OpenBLAS; {remedy}")
    threads = max(int(pool["num_threads"]) for pool in pools)
    found = f"{name}, {counted(threads, 'thread')}; workers multiply in one each"
    if threads > usable:
        return warning(f"{found}; there are fewer cores: {usable}", "unset OPENBLAS_NUM_THREADS, or set it to those")
    return ok(found)


def memory(settings: Settings) -> Finding:
    """Look at how much memory there is, and how much of it is free."""
    free, most = machine.free_memory(), machine.most_memory()
    if free is None or most is None:
        return warning("it is not known how much there is", "nothing has to be done; sizes are not checked beforehand")
    found = f"{memory_text(free)} free, of {memory_text(most)} (swap included)"
    if min(free, most) < _LEAST_MEMORY:
        return failed(f"{found}: a small run takes {memory_text(_LEAST_MEMORY)}", "end other programs, or add memory")
    if min(free, most) < _SCARCE_MEMORY:
        return warning(f"{found}: not enough for large networks or many workers", "end other programs, or add memory")
    return ok(found)


def address_space(settings: Settings) -> Finding:
    """Look at the limit of the address space, of which libraries reserve far more than they use."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return ok("not limited")
    found = f"limited to {memory_text(soft)}"
    if soft < _SCARCE_SPACE:
        return warning(f"{found}: each thread reserves 8 MiB and more, used or not", "type: ulimit -v unlimited")
    return ok(found)


def threads(settings: Settings) -> Finding:
    """Look at how many threads can be started: a worker is one."""
    processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    limits = [machine.most_threads(), None if processes == resource.RLIM_INFINITY else processes]
    most = min((limit for limit in limits if limit is not None), default=None)
    if most is None:
        return ok("not limited")
    found, remedy = f"about {most:,} can be started", "type: ulimit -u unlimited; in a container: docker --pids-limit"
    if most < _LEAST_THREADS:
        return failed(f"{found}: a run of four workers starts 13", remedy)
    if most < _SCARCE_THREADS:
        return warning(f"{found}: too few for many workers", remedy)
    return ok(found)


def open_files(settings: Settings) -> Finding:
    """Look at how many files and connections can be open at a time."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return ok("not limited")
    found = f"{soft:,} at a time"
    remedy = f"type: ulimit -n {4096 if hard == resource.RLIM_INFINITY else min(hard, 4096)}"
    if soft < _LEAST_FILES:
        return failed(f"{found}: a run needs {_LEAST_FILES}", remedy)
    if soft < _SCARCE_FILES:
        return warning(f"{found}: a master of many workers, or a Hazelcast member, needs more", remedy)
    return ok(found)


def shared_memory(settings: Settings) -> Finding:
    """Look at the files in memory, where asynchronous strategies keep copies of their slots' states."""
    place = copies.MEMORY
    remedy = "start the container with --shm-size=1g; without it jobs of a killed worker are done again"
    try:
        state = os.statvfs(place)
    except OSError as exc:
        return warning(f"{place} cannot be used: {exc.strerror or exc}", remedy)
    free = state.f_bavail * state.f_frsize
    if not os.access(place, os.W_OK | os.X_OK):
        return warning(f"{place} cannot be written to", remedy)
    found = f"{memory_text(free)} free in {place}"
    return ok(found) if free >= _SCARCE_SHM else warning(f"{found}: too little for large models", remedy)


def _always(settings: Settings) -> bool:
    return True


def checks() -> tuple[Check, ...]:
    """Return the checks of what the machine has."""
    return (
        Check(name="processor", area="Machine", look=processor),
        Check(name="cores", area="Machine", look=cores),
        Check(name="load", area="Machine", look=load),
        Check(name="BLAS", area="Machine", look=blas),
        Check(name="memory", area="Machine", look=memory, is_needed=_always),
        Check(name="address space", area="Machine", look=address_space),
        Check(name="threads", area="Machine", look=threads, is_needed=_always),
        Check(name="open files", area="Machine", look=open_files, is_needed=_always),
        Check(name="shared memory", area="Machine", look=shared_memory),
    )
