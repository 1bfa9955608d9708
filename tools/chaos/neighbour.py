"""Controls a hostile neighbour beside a run: starts it, ends it, and reports its actions.

The neighbour is a process of its own (``vandals``). It gets the addresses and the cluster's name, as anybody on the
network could find them out, but not the run's secret.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

from dl4jlegacy.errors import Dl4jError
from dl4jlegacy.services import ServicesState
from tools.chaos.network import child_environment
from tools.chaos.watchdog import Watchdog, deferred_signals

__all__ = ["HostileNeighbour"]

_PROGRAM = ("-m", "tools.chaos.vandals")
_STOP_SECONDS = 10.0


class HostileNeighbour:
    """Writes into the grid and into Zookeeper while a run is active. Used by one thread.

    Args:
        folder: for its output, and for the trap that its pickles set.
        services: the servers.
        watchdog: ends the process if this one is killed.
        seed: of what it writes.
    """

    def __init__(self, folder: Path, services: ServicesState, watchdog: Watchdog, seed: int) -> None:
        self._folder, self._services, self._watchdog, self._seed = folder, services, watchdog, seed
        self._popen: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._done = Counter[str]()

    def start(self) -> None:
        """Start the process."""
        self._starts += 1
        services = self._services
        where = (services.hazelcast, services.cluster_name, services.zookeeper, str(self._trap))
        variables = {name: text for name, text in child_environment().items() if not name.startswith("DL4J_")}
        with self._log("out").open("wb") as out, self._log("log").open("wb") as log, deferred_signals():
            self._popen = subprocess.Popen(
                [sys.executable, *_PROGRAM, *where, str(self._seed + self._starts)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                env=variables,
            )
            self._watchdog.send(f"+{self._popen.pid}")

    def stop(self) -> None:
        """End the process.

        Raises:
            Dl4jError: it has ended by itself, or a process of the run has loaded one of its pickles.
        """
        ended = self._popen.poll() if self._popen is not None else None
        self.kill()
        if ended is not None:
            raise Dl4jError(f"the hostile neighbour ended by itself, with {ended}: see {self._log('log')}")
        if self._trap.exists():
            raise Dl4jError(f"a process has read a pickle of the hostile neighbour, which made {self._trap}")

    def kill(self) -> None:
        """Kill the process; nothing happens if it was not started."""
        popen, self._popen = self._popen, None
        if popen is not None:
            popen.kill()
            popen.wait(_STOP_SECONDS)
            self._watchdog.send(f"-{popen.pid}")
            self._done += _last_counts(self._log("out"))

    @property
    def done(self) -> dict[str, int]:
        """Number of actions by kind, in all runs that have ended."""
        return dict(sorted(self._done.items()))

    @property
    def _trap(self) -> Path:
        return self._folder / "pickle-was-read"

    def _log(self, suffix: str) -> Path:
        return self._folder / f"neighbour.{self._starts}.{suffix}"


def _last_counts(path: Path) -> Counter[str]:
    """Return the counts on the last complete line of its output."""
    for line in reversed(path.read_text(encoding="utf-8").splitlines()):
        with contextlib.suppress(ValueError):
            return Counter(json.loads(line))
    return Counter()
