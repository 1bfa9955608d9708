"""A machine that is not as it should be: too little of everything, kernels that are damaged, disks that are full."""

from __future__ import annotations

import resource
from types import SimpleNamespace
from typing import Any

import numpy as np

from dl4jlegacy.doctor import Settings
from dl4jlegacy.kernels import load
from dl4jlegacy.scaleout.state import copies
from dl4jlegacy.system import resources as machine
from tests.doctor.broken_things import Thing, breaks

# -- the machine -------------------------------------------------------------------------------------------------------


@breaks("processor", "warning", "none", "newer processor")
def a_processor_without_vector_code(thing: Thing) -> Settings:
    thing.returns("dl4jlegacy.doctor.capacity.cpu_arithmetic", {"NumPy's vector code": "none", "BLAS": "x"})
    return thing.settings()


@breaks("cores", "warning", "may use 0.5 at a time", "OPENBLAS_NUM_THREADS")
def a_container_with_half_a_core(thing: Thing) -> Settings:
    (thing.folder / "cpu.max").write_text("50000 100000\n")
    thing.patch.setattr(machine, "_CGROUP", thing.folder)
    return thing.settings()


@breaks("load", "warning", "a load of 500.0")
def a_busy_machine(thing: Thing) -> Settings:
    thing.returns("os.getloadavg", (500.0, 0.0, 0.0))
    return thing.settings()


@breaks("BLAS", "warning", "cannot be set", "pip install")
def a_blas_that_nobody_knows(thing: Thing) -> Settings:
    thing.returns("threadpoolctl.threadpool_info", [])
    return thing.settings()


@breaks("BLAS", "warning", "4,000 threads", "OPENBLAS_NUM_THREADS")
def more_threads_than_cores(thing: Thing) -> Settings:
    thing.returns("threadpoolctl.threadpool_info", [{"user_api": "blas", "num_threads": 4000}])
    thing.returns("dl4jlegacy.doctor.capacity.cpu_arithmetic", {"BLAS": "openblas"})
    return thing.settings()


def memory(thing: Thing, nbytes: int) -> Settings:
    """A container with so much memory."""
    (thing.folder / "memory.max").write_text(f"{nbytes}\n")
    (thing.folder / "memory.current").write_text("1000\n")
    thing.patch.setattr(machine, "_CGROUP", thing.folder)
    return thing.settings()


@breaks("memory", "failed", "100.0 MiB", "add memory")
def hardly_any_memory(thing: Thing) -> Settings:
    return memory(thing, 100 << 20)


@breaks("memory", "warning", "500.0 MiB", "not enough for large networks")
def little_memory(thing: Thing) -> Settings:
    return memory(thing, 500 << 20)


@breaks("memory", "warning", "not known")
def a_system_that_does_not_say_its_memory(thing: Thing) -> Settings:
    for name in ("_CGROUP", "_MEMINFO"):
        thing.patch.setattr(machine, name, thing.folder / "nothing")
    return thing.settings()


def limit(thing: Thing, kind: int, soft: int) -> Settings:
    """A limit of the system, of what is not limited here."""
    before = resource.getrlimit
    thing.patch.setattr(resource, "getrlimit", lambda which: (soft, soft) if which == kind else before(which))
    return thing.settings()


@breaks("address space", "warning", "2.0 GiB", "ulimit -v unlimited")
def a_limited_address_space(thing: Thing) -> Settings:
    return limit(thing, resource.RLIMIT_AS, 2 << 30)


@breaks("threads", "failed", "about 8 can be started", "ulimit -u")
def hardly_any_threads(thing: Thing) -> Settings:
    return limit(thing, resource.RLIMIT_NPROC, 8)


@breaks("threads", "warning", "about 100 can be started")
def few_threads(thing: Thing) -> Settings:
    (thing.folder / "pids.max").write_text("100\n")
    thing.patch.setattr(machine, "_CGROUP", thing.folder)
    return thing.settings()


@breaks("open files", "failed", "16 at a time", "ulimit -n 16")
def hardly_any_open_files(thing: Thing) -> Settings:
    return limit(thing, resource.RLIMIT_NOFILE, 16)


@breaks("open files", "warning", "256 at a time")
def few_open_files(thing: Thing) -> Settings:
    return limit(thing, resource.RLIMIT_NOFILE, 256)


@breaks("shared memory", "warning", "No such file", "--shm-size")
def no_shared_memory(thing: Thing) -> Settings:
    thing.patch.setattr(copies, "MEMORY", thing.folder / "shm")
    return thing.settings()


def space(thing: Thing, nbytes: int, names: int = 10**6) -> None:
    """Every disk has so much room."""
    state = SimpleNamespace(f_bavail=nbytes // 4096, f_frsize=4096, f_files=10**6, f_favail=names)
    thing.returns("os.statvfs", state)


@breaks("shared memory", "warning", "1.0 MiB free", "--shm-size")
def little_shared_memory(thing: Thing) -> Settings:
    space(thing, 1 << 20)
    return thing.settings()


# -- kernels -----------------------------------------------------------------------------------------------------------


@breaks("kernels", "warning", "DL4J_KERNELS", "unset")
def kernels_that_were_asked_for(thing: Thing) -> Settings:
    thing.patch.setenv("DL4J_KERNELS", "numpy")
    return thing.settings()


@breaks("kernels", "failed", "nunba", "did you mean 'numba'")
def kernels_that_there_are_not(thing: Thing) -> Settings:
    thing.patch.setenv("DL4J_KERNELS", "nunba")
    return thing.settings()


@breaks("kernels", "warning", "Numba cannot be imported", "./install")
def no_numba(thing: Thing) -> Settings:
    thing.returns("dl4jlegacy.doctor.computation.load_for_host", load("numpy"))
    return thing.settings()


@breaks("kernel cache folder", "warning", "none that can be written to", "NUMBA_CACHE_DIR")
def no_folder_for_compiled_kernels(thing: Thing) -> Settings:
    thing.returns("dl4jlegacy.kernels.numba.compile.cache_folder", None)
    return thing.settings()


@breaks("kernel cache folder", "warning", "NUMBA_CACHE_DIR is /proc/nothing, which cannot be used")
def a_folder_for_compiled_kernels_that_cannot_be_made(thing: Thing) -> Settings:
    thing.patch.setenv("NUMBA_CACHE_DIR", "/proc/nothing")
    return thing.settings()


@breaks("kernel cache folder", "warning", "disk is full", "NUMBA_CACHE_DIR")
def a_full_disk_under_the_compiled_kernels(thing: Thing) -> Settings:
    space(thing, 1 << 20)
    return thing.settings()


def cached(thing: Thing, name: str, content: bytes) -> Settings:
    """A cache of compiled kernels with a file of this content beside a whole one."""
    (thing.folder / "whole.nbi").write_bytes(b"\x80\x04K\x01.\x80\x04K\x02.")
    (thing.folder / name).write_bytes(content)
    thing.returns("dl4jlegacy.kernels.numba.compile.cache_folder", thing.folder)
    return thing.settings()


@breaks("kernel cache", "ok", "2 files")
def a_whole_cache(thing: Thing) -> Settings:
    return cached(thing, "other.nbc", b"\x80\x04K\x01.")


@breaks("kernel cache", "warning", "1 file of 2", "empty.nbi", "--fix")
def an_empty_file_in_the_cache(thing: Thing) -> Settings:
    return cached(thing, "empty.nbi", b"")


@breaks("kernel cache", "warning", "half.nbc", "--fix")
def a_file_in_the_cache_that_is_cut_short(thing: Thing) -> Settings:
    return cached(thing, "half.nbc", b"\x80\x04\x8c\x99cut short")


@breaks("kernel cache", "warning", "garbage.nbi", "--fix")
def garbage_in_the_cache(thing: Thing) -> Settings:
    return cached(thing, "garbage.nbi", b"garbage of a damaged disk")


@breaks("kernel cache", "warning", "underflow.nbc", "--fix")
def a_file_in_the_cache_that_makes_nothing(thing: Thing) -> Settings:
    return cached(thing, "underflow.nbc", b"\x80\x04.")


@breaks("compiled kernels", "failed", "softmax computes something else", "DL4J_KERNELS=numpy")
def a_kernel_that_computes_wrongly(thing: Thing) -> Settings:
    right = load("numba").softmax

    def wrong(z: Any) -> None:
        right(z)
        z[3, 5] += 0.01

    thing.patch.setattr(load("numba"), "softmax", wrong)
    return thing.settings()


@breaks("compiled kernels", "failed", "differs by nan")
def a_kernel_that_computes_no_number(thing: Thing) -> Settings:
    thing.patch.setattr(load("numba"), "column_sums", lambda x, out: out.fill(np.nan))
    return thing.settings()


# -- files -------------------------------------------------------------------------------------------------------------


@breaks("current folder", "failed", "has been removed", "cd")
def a_current_folder_that_was_removed(thing: Thing) -> Settings:
    gone = thing.folder / "gone"
    gone.mkdir()
    thing.patch.chdir(gone)
    gone.rmdir()
    return thing.settings()


@breaks("current folder", "failed", "the disk is full", "make room")
def a_full_disk(thing: Thing) -> Settings:
    space(thing, 1 << 20)
    return thing.settings()


@breaks("current folder", "warning", "500.0 MiB free")
def a_disk_that_is_nearly_full(thing: Thing) -> Settings:
    space(thing, 500 << 20)
    return thing.settings()


@breaks("current folder", "failed", "no more than 7 files")
def a_disk_with_too_many_files(thing: Thing) -> Settings:
    space(thing, 1 << 40, names=7)
    return thing.settings()


def forbidden(thing: Thing) -> Settings:
    """No folder may be written to."""
    thing.returns("dl4jlegacy.system.files.check_replaceable", PermissionError(13, "Permission denied"))
    return thing.settings()


@breaks("current folder", "failed", "Permission denied", "chown")
def a_folder_of_somebody_else(thing: Thing) -> Settings:
    return forbidden(thing)


@breaks("home folder", "failed", "no home folder", "HOME")
def a_user_without_a_home(thing: Thing) -> Settings:
    thing.returns("pathlib.Path.expanduser", RuntimeError("Could not determine home directory."))
    return thing.settings()


@breaks("home folder", "failed", "nowhere", "HOME")
def a_home_that_cannot_be_made(thing: Thing) -> Settings:
    (thing.folder / "file").write_text("")
    thing.patch.setenv("HOME", str(thing.folder / "file/nowhere"))
    return thing.settings()


@breaks("cache folder", "warning", "does not exist", "--fix")
def no_cache_yet(thing: Thing) -> Settings:
    return thing.settings()


@breaks("cache folder", "failed", "is a file", "XDG_CACHE_HOME")
def a_file_where_the_cache_should_be(thing: Thing) -> Settings:
    (thing.folder / "dl4jlegacy").write_text("")
    thing.patch.setenv("XDG_CACHE_HOME", str(thing.folder))
    return thing.settings()


@breaks("cache folder", "failed", "no folder for caches", "HOME")
def a_cache_without_a_home(thing: Thing) -> Settings:
    thing.returns("pathlib.Path.home", RuntimeError("Could not determine home directory."))
    return thing.settings()


@breaks("temporary folder", "failed", "none that can be written to", "TMPDIR")
def no_temporary_folder(thing: Thing) -> Settings:
    thing.returns("tempfile.gettempdir", FileNotFoundError(2, "No usable temporary directory"))
    return thing.settings()


@breaks("temporary folder", "warning", "TMPDIR is /nowhere")
def a_temporary_folder_that_is_not_there(thing: Thing) -> Settings:
    thing.patch.setenv("TMPDIR", "/nowhere")
    return thing.settings()


@breaks("file locks", "warning", "No locks available", "local disk")
def a_disk_without_locks(thing: Thing) -> Settings:
    thing.returns("fcntl.flock", OSError(37, "No locks available"))
    return thing.settings()


@breaks("data folder", "warning", "data does not exist", "--fix")
def a_data_folder_that_is_missing(thing: Thing) -> Settings:
    return thing.settings(data_dir=str(thing.folder / "data"))


@breaks("data folder", "failed", "data is a file", "--data-dir")
def a_file_as_the_data_folder(thing: Thing) -> Settings:
    (thing.folder / "data").write_text("")
    return thing.settings(data_dir=str(thing.folder / "data"))


@breaks("data folder", "failed", "no path of this machine")
def a_data_folder_elsewhere(thing: Thing) -> Settings:
    return thing.settings(data_dir="s3:/bucket")


@breaks("MNIST", "skipped", "12 MB")
def no_mnist(thing: Thing) -> Settings:
    return thing.settings(data_dir=str(thing.folder))


@breaks("MNIST", "warning", "train-images-idx3-ubyte", "delete")
def a_file_of_mnist_that_is_damaged(thing: Thing) -> Settings:
    header = bytes([0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 2])
    (thing.folder / "train-images-idx3-ubyte").write_bytes(header + b"1234")
    return thing.settings(data_dir=str(thing.folder))


@breaks("MNIST", "warning", "train-labels-idx1-ubyte: not in", "downloaded")
def a_file_of_mnist_that_is_missing(thing: Thing) -> Settings:
    thing.returns("dl4jlegacy.doctor.folders.missing_mnist_files", ["train-labels-idx1-ubyte"])
    return thing.settings(data_dir=str(thing.folder))
