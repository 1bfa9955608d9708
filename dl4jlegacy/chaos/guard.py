"""Ends what a chaos run has started even if the run itself is killed: ``python -m dl4jlegacy.chaos.guard FOLDER``.

It is told the ids of processes on its standard input, ``+12`` for one that begins and ``-12`` for one that was waited
for. When the input ends without ``done``, whoever wrote there is gone, and so is everything soon after; with
``--temporary`` the run's folder too.
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

from dl4jlegacy.chaos.network import environment, unmount
from dl4jlegacy.services import Services

__all__ = ["DISK", "SERVICES", "Guard", "main", "uninterrupted"]

SERVICES, DISK = "services", "disk"
"""What is in a run's folder: the servers' state, and the disk for checkpoints."""
_STOP_SECONDS = 30.0


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let SIGINT and SIGTERM wait: what begins a process must not end before it has written down which.

    The signals are not blocked, since the process would have them blocked too.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {n: signal.signal(n, lambda number, _: came.append(number)) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for ours, handler in before.items():
            signal.signal(ours, handler)
        for number in came:
            signal.raise_signal(number)


class Guard:
    """The guard's other end. Used from one thread; ``close`` it when all is ended.

    Args:
        folder: the run's.
        temporary: whether nobody needs it any more when the run is killed.
    """

    def __init__(self, folder: Path, *, temporary: bool = False) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(folder), *(["--temporary"] if temporary else [])],
            stdin=subprocess.PIPE,
            text=True,
            env=environment(),
            start_new_session=True,
        )

    def tell(self, line: str) -> None:
        """Say that a process begins or has ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def close(self) -> None:
        """Say that nothing is left."""
        self.tell("done")
        self._process.communicate(timeout=_STOP_SECONDS)


def main(folder: Path, told: TextIO, *, temporary: bool = False) -> None:
    """Listen, and clear up if the one who tells is gone."""
    pids: set[int] = set()
    for line in told:
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
