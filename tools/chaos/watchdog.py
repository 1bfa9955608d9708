"""Ends all processes of a chaos run even if the run itself is killed: ``python -m tools.chaos.watchdog FOLDER``.

It reads the ids of processes from its standard input, ``+12`` for a started process and ``-12`` for one that has ended.
If the input ends without ``done``, the chaos run was killed: the watchdog then ends all processes and servers, and with
``--temporary`` removes the folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from dl4jlegacy.services import Services
from tools.chaos.network import child_environment, unmount

__all__ = ["DISK", "SERVICES", "Watchdog", "deferred_signals", "main"]

SERVICES, DISK = "services", "disk"
"""Entries of a chaos run's folder: the state of the servers, and the disk for checkpoints."""
_STOP_SECONDS = 30.0


@contextlib.contextmanager
def deferred_signals() -> Iterator[None]:
    """Defer SIGINT and SIGTERM: they must not arrive between the start of a process and the message about it.

    The signals are not blocked, since started processes would inherit that.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    before = {n: signal.signal(n, lambda number, _: received.append(number)) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
        for number in received:
            signal.raise_signal(number)


class Watchdog:
    """The client of the watchdog's process. Used by one thread; ``close`` it when everything has ended.

    Args:
        folder: the chaos run's.
        temporary: True if the watchdog has to remove the folder.
    """

    def __init__(self, folder: Path, *, temporary: bool = False) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(folder), *(["--temporary"] if temporary else [])],
            stdin=subprocess.PIPE,
            text=True,
            env=child_environment(),
            start_new_session=True,
        )

    def send(self, line: str) -> None:
        """Send a line: a process was started (``+12``) or has ended (``-12``)."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def close(self) -> None:
        """Report that nothing is left to clean up, and wait for the watchdog's end."""
        self.send("done")
        self._process.communicate(timeout=_STOP_SECONDS)


def main(folder: Path, messages: TextIO, *, temporary: bool = False) -> None:
    """Read messages, and clean up if they end without ``done``."""
    pids: set[int] = set()
    for line in messages:
        match line[0]:
            case "+":
                pids.add(int(line[1:]))
            case "-":
                pids.discard(int(line[1:]))
            case _:
                return
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    Services.down(folder / SERVICES)
    unmount(folder / DISK)
    if temporary:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.stdin, temporary="--temporary" in sys.argv[2:])
