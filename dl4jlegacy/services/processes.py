"""Server processes that outlive the command that started them, identified by pid and start time.

A pid alone may be reused by another process; pid and start time together are unique.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dl4jlegacy.errors import TrackerError
from dl4jlegacy.system.clock import Deadline
from dl4jlegacy.system.subprocesses import run_command

__all__ = ["ServerProcess", "spawn", "stop"]

_GRACE_SECONDS = 10.0
_POLL_SECONDS = 0.02
_INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "JAVA_HOME", "JAVA_TOOL_OPTIONS")
"""The environment variables of servers: no secrets, and no ``HZ_...``, which would change their settings."""


class ServerProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that leads its group; ``mark``, its start time, tells it from a later process with the same pid."""

    pid: int
    mark: str

    def is_alive(self) -> bool:
        """Return whether the process runs. A child of this process that has ended is reaped."""
        mark = _start_mark(self.pid)
        if not mark:
            with contextlib.suppress(OSError):
                os.waitpid(self.pid, os.WNOHANG)
        return mark != "" and mark == self.mark


def spawn(command: Sequence[str], log: Path) -> ServerProcess:
    """Start a process in its own session, so that no terminal signal reaches it; its output goes to ``log``.

    Not with ``subprocess.Popen``, which warns about a process without a waiting parent.
    """
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    try:
        pid = os.posix_spawn(command[0], list(command), environment, file_actions=actions, setsid=True)
    except OSError as exc:
        raise TrackerError(f"{command[0]} cannot be started: {exc.strerror or exc}") from exc
    return ServerProcess(pid=pid, mark=_start_mark(pid))


def stop(processes: Sequence[ServerProcess], grace_seconds: float = _GRACE_SECONDS) -> None:
    """End processes and their children: SIGTERM, after ``grace_seconds`` SIGKILL; return when all have ended."""
    for process in processes:
        _signal(process, signal.SIGTERM)
        _signal(process, signal.SIGCONT)  # a stopped process would not react to SIGTERM
    if not _wait_for_end(processes, grace_seconds):
        for process in processes:
            _signal(process, signal.SIGKILL)
        if not _wait_for_end(processes, _GRACE_SECONDS):
            left = [p.pid for p in processes if p.is_alive()]
            raise TrackerError(f"processes {left} do not end even when killed; look at them with ps")


def _signal(process: ServerProcess, number: signal.Signals) -> None:
    if process.is_alive():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def _wait_for_end(processes: Sequence[ServerProcess], seconds: float) -> bool:
    deadline = Deadline(seconds)
    while any(p.is_alive() for p in processes):
        if deadline.passed():
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _start_mark(pid: int) -> str:
    """Return the start time of a running process as text, ``""`` if there is none (or only a zombie).

    While threads of a killed process are still ending, it looks like a zombie (state Z) but holds its ports.
    """
    if Path("/proc/self/stat").exists():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
            boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        except (FileNotFoundError, ProcessLookupError):
            return ""
        state, threads, started = fields[0], int(fields[17]), fields[19]
        return "" if state in "ZX" and threads <= 1 else f"{boot}:{started}"
    done = run_command(["ps", "-o", "stat=,lstart=", "-p", str(pid)], 10.0)
    state, _, started = done.stdout.strip().partition(" ")
    return "" if state.startswith("Z") else " ".join(started.split())
