"""Runs commands to completion, with deadlines that count only time in which this process ran."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from dl4jlegacy.system.clock import Deadline

__all__ = ["run_command"]


def run_command(
    command: Sequence[str | Path], seconds: float, *, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command without input; return its exit status and output.

    If this process is stopped (Ctrl-Z, or a suspended machine), the command is stopped as well, and still gets its
    remaining time afterwards, unlike with ``subprocess.run``.

    Args:
        command: the program and its arguments.
        seconds: deadline.
        cwd: the working folder; None: the current one.

    Raises:
        TimeoutError: the command did not finish in time, and was killed.
        OSError: the command cannot be run.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, cwd=cwd) as process:
        deadline = Deadline(seconds)
        try:
            while True:
                try:
                    out, err = process.communicate(timeout=deadline.slice())
                    return subprocess.CompletedProcess(command, process.returncode, out, err)
                except subprocess.TimeoutExpired:
                    if deadline.passed():
                        raise TimeoutError(f"{command[0]} was not done after {seconds:g} s") from None
        except BaseException:
            process.kill()
            raise
