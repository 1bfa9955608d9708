"""Server processes that outlive the command that started them, known by pid and start time.

A pid alone may by then belong to somebody else's process; together with the moment of its start it cannot.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dl4jlegacy.errors import TrackerError

__all__ = ["ServerProcess", "spawn", "stop"]

_GRACE_SECONDS = 10.0
_POLL_SECONDS = 0.02
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "JAVA_HOME", "JAVA_TOOL_OPTIONS")
"""What servers see of the environment: no secret of ours, and no ``HZ_...``, which would change their settings."""


class ServerProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process and the leader of its group: ``pid``, and ``mark``, which tells it from a later owner of the pid."""

    pid: int
    mark: str

    def is_alive(self) -> bool:
        """Whether it runs; if it was our own child and has ended, it is collected on the way."""
        mark = _mark_of(self.pid)
        if not mark:
            with contextlib.suppress(OSError):
                os.waitpid(self.pid, os.WNOHANG)
        return mark != "" and mark == self.mark


def spawn(command: Sequence[str], log: Path) -> ServerProcess:
    """Start a process in a session of its own, so that no terminal's signal reaches it; its output goes to ``log``.

    Not ``subprocess.Popen``: nobody here waits for it, and a forgotten ``Popen`` complains.
    """
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    try:
        pid = os.posix_spawn(command[0], list(command), environment, file_actions=actions, setsid=True)
    except OSError as exc:
        raise TrackerError(f"{command[0]} cannot be started: {exc.strerror or exc}") from exc
    return ServerProcess(pid=pid, mark=_mark_of(pid))


def stop(processes: Sequence[ServerProcess], grace_seconds: float = _GRACE_SECONDS) -> None:
    """End processes and their children: asked first, killed after ``grace_seconds``; return when all are gone."""
    for process in processes:
        _signal(process, signal.SIGTERM)
        _signal(process, signal.SIGCONT)  # a frozen one would not see the request
    if not _gone(processes, grace_seconds):
        for process in processes:
            _signal(process, signal.SIGKILL)
        if not _gone(processes, _GRACE_SECONDS):
            left = [p.pid for p in processes if p.is_alive()]
            raise TrackerError(f"processes {left} do not end even when killed; look at them with ps")


def _signal(process: ServerProcess, number: signal.Signals) -> None:
    if process.is_alive():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def _gone(processes: Sequence[ServerProcess], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while any(p.is_alive() for p in processes):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _mark_of(pid: int) -> str:
    """Return the start of a running process as text, ``""`` if there is none (or only its corpse).

    While threads of a killed process still end, it looks dead (state Z) but holds its ports.
    """
    if Path("/proc/self/stat").exists():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
            boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        except (FileNotFoundError, ProcessLookupError):
            return ""
        state, threads, started = fields[0], int(fields[17]), fields[19]
        return "" if state in "ZX" and threads <= 1 else f"{boot}:{started}"
    done = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, timeout=10)
    state, _, started = done.stdout.strip().partition(" ")
    return "" if state.startswith("Z") else " ".join(started.split())
