"""Commands of ``dl4j`` as processes that are forked from one that has imported everything.

A fresh interpreter spends a second on imports, most of a short command's time, and the long suite starts some thousand
commands. The forked process has its own environment, folder, streams and signals, and ends as a fresh one does. How a
fresh one begins is tested where ``python -m dl4jlegacy`` is started as such.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import pkgutil
import select
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import IO, Any

import pytest

from tests.support import REPOSITORY

__all__ = ["ForkedProcess", "Forks", "forks"]

FLAGS = ("PYTHON", "OPENBLAS_", "OMP_", "NUMBA_", "MALLOC_", "LD_")
"""Beginnings of variables that are read before or while modules are imported."""
_LONGEST = 1 << 20
_PATIENCE = 120.0
"""For its imports, on a busy machine."""


class ForkedProcess:
    """One command, with the methods of ``subprocess.Popen`` that tests use.

    Args:
        pid: its number.
        ended: the pipe to which its exit status comes.
    """

    def __init__(self, pid: int, ended: int) -> None:
        self.pid, self._ended = pid, ended
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None while it runs."""
        return self._wait(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, at most ``timeout`` seconds; return the exit status."""
        status = self._wait(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return status

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], timeout)[0]:
            status = os.read(self._ended, 16)
            os.close(self._ended)
            assert status, f"the process that forked {self.pid} has ended"
            self.returncode = int(status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it is known to have ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)


class Forks:
    """The process that forks: it is started once for all tests of this process."""

    def __init__(self) -> None:
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            command = [sys.executable, "-m", "tests.support.forked_commands", str(its.fileno())]
            self.process = subprocess.Popen(command, cwd=REPOSITORY, pass_fds=[its.fileno()])
        self._connection = mine
        mine.settimeout(_PATIENCE)
        self._environment = {name: value for name, value in os.environ.items() if name.startswith(FLAGS)}

    def can(self, environment: Mapping[str, str]) -> bool:
        """Return whether an environment takes effect, although the modules are imported already."""
        return {name: value for name, value in environment.items() if name.startswith(FLAGS)} == self._environment

    def start(
        self, arguments: list[str], env: Mapping[str, str], out: IO[Any], err: IO[Any], patch: str = ""
    ) -> ForkedProcess:
        """Start ``dl4j`` in the repository's folder, without standard input.

        ``patch`` is Python that it runs first. Names that modules have imported from each other stay as they were.
        """
        reads, writes = os.pipe()
        asked = json.dumps({"arguments": arguments, "env": dict(env), "patch": patch}).encode()
        assert len(asked) <= _LONGEST
        sent = array.array("i", [out.fileno(), err.fileno(), writes])
        self._connection.sendmsg([asked], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, sent)])
        os.close(writes)
        return ForkedProcess(int(self._connection.recv(16) or b"0"), reads)

    def close(self) -> None:
        """End the process that forks."""
        self._connection.close()
        self.process.wait(60)


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """Fork commands, for all tests of this process."""
    forking = Forks()
    yield forking
    forking.close()


def _serve(connection: socket.socket) -> dict[str, Any] | None:
    """Fork for each request; return the request in the forked process, None in this one when the other side is gone."""
    watched, running = selectors.DefaultSelector(), dict[int, tuple[int, int]]()
    watched.register(connection, selectors.EVENT_READ)
    while True:
        for key, _ in watched.select():
            if key.fileobj is not connection:
                pid, status = running.pop(key.fd)
                watched.unregister(key.fd)
                os.close(key.fd)
                with contextlib.suppress(BrokenPipeError):
                    os.write(status, str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
                os.close(status)
                continue
            asked, given, _, _ = socket.recv_fds(connection, _LONGEST, 3)
            if not asked:
                return None
            pid = os.fork()
            if pid == 0:
                watched.close()
                connection.close()
                for pidfd, (_, status) in running.items():
                    os.close(pidfd)
                    os.close(status)
                return {**json.loads(asked), "streams": given}
            out, err, status = given
            os.close(out)
            os.close(err)
            pidfd = os.pidfd_open(pid)
            running[pidfd] = (pid, status)
            watched.register(pidfd, selectors.EVENT_READ)
            connection.send(str(pid).encode())


def _become(asked: dict[str, Any]) -> None:
    """Make this forked process what a fresh one would be."""
    out, err, status = asked["streams"]
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    for descriptor in (out, err, status):
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.argv[:] = [f"{REPOSITORY}/dl4jlegacy/__main__.py", *asked["arguments"]]
    if asked["patch"]:
        exec(asked["patch"], {"__name__": "patch"})  # noqa: S102  # what a test has written


def _import_everything() -> None:
    """Import what the commands of a run import, some of it when it is first used."""
    from numba.core.registry import cpu_target

    import dl4jlegacy.kernels.numba
    import dl4jlegacy.scaleout
    import dl4jlegacy.training
    from dl4jlegacy.cli.main import declared

    declared()
    for name in ("cli.start", "cli.options.mesh", "cli.options.scoring", "cli.terminal.progress", "observing.events"):
        import_module(f"dl4jlegacy.{name}")
    for name in ("typer._adapters", "pydantic.type_adapter", "numpy.ma", "zoneinfo"):
        import_module(name)
    for room in (dl4jlegacy.kernels.numba, dl4jlegacy.scaleout, dl4jlegacy.training):
        for found in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
            import_module(found.name)
    cpu_target.typing_context.refresh()  # as when the first kernel is loaded: it imports half of numba
    cpu_target.target_context.refresh()


def _main() -> None:
    _import_everything()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which close the connection
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        asked = _serve(connection)
    if asked is None:
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _become(asked)
    from dl4jlegacy.cli.start import dl4j

    dl4j()


if __name__ == "__main__":
    _main()
