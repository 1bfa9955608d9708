"""Ends what a chaos run has started even if the run itself is killed: ``python -m dl4jlegacy.chaos.guard FOLDER``.

It is told the ids of processes on its standard input, ``+12`` for one that begins and ``-12`` for one that was waited
for. When the input ends without ``done``, whoever wrote there is gone, and so is everything soon after.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TextIO

from dl4jlegacy.chaos.network import environment
from dl4jlegacy.services import Services

__all__ = ["Guard", "main"]

_STOP_SECONDS = 30.0


class Guard:
    """The guard's other end. Used from one thread; ``close`` it when all is ended."""

    def __init__(self, services_folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(services_folder)],
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


def main(folder: Path, told: TextIO) -> None:
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
    Services.down(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.stdin)
