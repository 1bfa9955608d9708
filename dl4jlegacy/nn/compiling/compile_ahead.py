"""Helper processes that compile a network's kernels in parallel to this process, if there are spare cores.

Numba compiles one kernel at a time, mostly in Python, so threads would not help. A compiler process goes through one
training step without computing anything, and then compiles the kernels of that step, the last first, except for those
that another process is compiling. The main process runs as it would alone, and finds compiled kernels in the cache.
Compilers can only save time: if one fails, or is killed, other processes compile its kernel.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dl4jlegacy.kernels import load, threads
from dl4jlegacy.kernels.compilation import when_missing
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.nn.compiling.self_check import training_digest
from dl4jlegacy.nn.conf.network import ComputationGraphConfiguration, MultiLayerConfiguration
from dl4jlegacy.nn.networks import NetworkConfiguration
from dl4jlegacy.system import files
from dl4jlegacy.system.resources import free_memory, most_cores

__all__ = ["compilers", "compiling_ahead"]

logger = logging.getLogger(__name__)

LOCK_FILE = "compilers.lock"  # in the cache folder; locked by the process that has compilers
_MOST = 3  # with more, all would wait for the largest kernel
_MEMORY = 512 << 20  # maximum bytes of one compiler; the same amount stays free
_KINDS: dict[str, type[MultiLayerConfiguration] | type[ComputationGraphConfiguration]] = {
    "layers": MultiLayerConfiguration,
    "graph": ComputationGraphConfiguration,
}
_END_SECONDS = 5.0


def compilers() -> int:
    """Return the number of compilers for which this machine has cores and memory, besides this process."""
    cores, memory = threads.count(), free_memory()
    if (quota := most_cores()) is not None:
        cores = min(cores, int(quota))
    room = _MOST if memory is None else memory // _MEMORY - 1
    return max(0, min(_MOST, cores - 1, room))


@contextlib.contextmanager
def compiling_ahead(conf: NetworkConfiguration, kernels: Kernels) -> Iterator[None]:
    """Let other processes compile the kernels for a network's ``training_digest``, after the first cache miss.

    The processes have ended when the context ends. On one machine, only one process at a time has compilers for the
    same cache.

    Args:
        conf: resolved.
        kernels: the kernels in use meanwhile; only those of ``numba`` are compiled.
    """
    if kernels.name != "numba":
        yield
        return
    with contextlib.ExitStack() as ended, when_missing(lambda: _start(conf, ended)):
        yield


def _start(conf: NetworkConfiguration, ended: contextlib.ExitStack) -> None:
    from dl4jlegacy.kernels.numba.compile import cache_folder

    folder, count = cache_folder(), compilers()
    if folder is None or not count or not ended.enter_context(_held(folder / LOCK_FILE)):
        return
    kind, text = "graph" if isinstance(conf, ComputationGraphConfiguration) else "layers", conf.to_json().encode()
    try:
        for _ in range(count):
            ended.callback(_end, _compiler(kind, text))
    except OSError as exc:  # no more processes are possible, or the disk is full: the kernels are compiled here
        logger.info("no process that compiles ahead: %s", exc)


def _compiler(kind: str, text: bytes) -> subprocess.Popen[bytes]:
    with tempfile.TemporaryFile(prefix="dl4j-conf-") as given:  # a pipe would need concurrent writing
        given.write(text)
        given.seek(0)
        return subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, kind],
            stdin=given,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )


def _end(compiler: subprocess.Popen[bytes]) -> None:
    """Kill a compiler: its result is no longer needed."""
    compiler.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        compiler.wait(_END_SECONDS)


@contextlib.contextmanager
def _held(path: Path) -> Iterator[bool]:
    """Try to take an exclusive lock; yield whether this process has it."""
    try:
        handle = files.open_lock(path)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # another process has it, or this file system has no locks
            yield False
            return
        yield True
    finally:
        os.close(handle)


def _be_compiler(arguments: list[str]) -> None:
    """Run as a compiler: the argument is ``KIND``, and stdin has the network's configuration as JSON."""
    from dl4jlegacy.kernels.numba.compile import compile_for_others

    conf, kernels = _KINDS[arguments[0]].from_json(sys.stdin.buffer.read()), load("numba")
    compile_for_others(lambda: training_digest(conf, kernels))


if __name__ == "__main__":
    _be_compiler(sys.argv[1:])
