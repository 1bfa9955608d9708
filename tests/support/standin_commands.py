"""The command line on a machine with a GPU: this one, or a stand-in (``tests.support.standin.command``)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tests.support import REPOSITORY

__all__ = ["REAL", "STANDIN", "Place"]


@dataclass(frozen=True)
class Place:
    """A machine with a GPU: this one, or a stand-in."""

    command: Sequence[str]
    environment: dict[str, str]

    def run(self, *arguments: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        """Run ``dl4j ...`` to its end, whichever it is."""
        return subprocess.run(
            [*self.command, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def dl4j(self, *arguments: str, timeout: float = 240) -> dict[str, Any]:
        """Run ``dl4j ... --format json``; return its one JSON object."""
        done = self.run(*arguments, "--format", "json", timeout=timeout)
        assert done.returncode == 0, done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        return report

    def side_by_side(self, *commands: Sequence[str]) -> list[dict[str, Any]]:
        """Run several ``dl4j ... --format json`` at once on a stand-in, and one after the other on a real GPU."""
        with ThreadPoolExecutor(1 if self is REAL else len(commands)) as threads:
            return list(threads.map(lambda arguments: self.dl4j(*arguments), commands))


def _environment() -> dict[str, str]:
    path = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("DL4J_")}
    return {**inherited, "PYTHONPATH": os.pathsep.join(filter(None, path))}


REAL = Place((sys.executable, "-m", "dl4jlegacy"), _environment())
STANDIN = Place((sys.executable, "-m", "tests.support.standin.command", "1"), _environment())
