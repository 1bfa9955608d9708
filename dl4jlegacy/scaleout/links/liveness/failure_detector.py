"""The master's failure detector: which worker processes are dead or frozen. Pure logic: no threads, no I/O, no clock.

It combines two signals. A direct connection (``LivenessServer``) reports within a second, but a worker may be unable
to reach the master's port. Heartbeats in the tracker are slower but always available. All times are the caller's own
monotonic seconds. Clocks of different machines are never compared: a heartbeat is only checked for having changed.

Correctness does not depend on the answer. If a live worker is taken for dead, its job is done twice and the first
commit counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

__all__ = [
    "DEAD_SECONDS",
    "Change",
    "ConnectionState",
    "FailureDetector",
    "HeartbeatMonitor",
    "StallDetector",
    "host_of",
    "pid_of",
    "process_of",
]

ConnectionState = Literal["alive", "silent", "closed", "left"]
"""State of a direct connection: "alive", "silent" (no heartbeats), "closed" (it broke), "left" (it said goodbye)."""

_FORGOTTEN_SECONDS = 3600.0
DEAD_SECONDS = 2.5
"""Seconds after which a process with a broken connection counts as dead, unless it reconnects or writes a heartbeat."""


def process_of(worker: str) -> str:
    """Return the process of a worker, whose name is ``<process>-<index>``."""
    return worker.rpartition("-")[0]


def host_of(process: str) -> str:
    """Return the host in a name that ``worker_pool.process_name`` returned; any other text is returned as it is."""
    return re.sub(r"-\d+-[0-9a-f]{8}$", "", process)


def pid_of(process: str) -> int:
    """Return the pid in a name that ``worker_pool.process_name`` returned; 0 for any other text."""
    found = re.search(r"-(\d+)-[0-9a-f]{8}$", process)
    return int(found[1]) if found else 0


CONNECTION_CLOSED = "its connection was closed"


class StallDetector:
    """Detects that its own process was stopped, for example frozen by SIGSTOP or by a suspended machine.

    A process that was stopped has heard nothing meanwhile and must not conclude that the others are silent.

    Args:
        limit_seconds: a longer time between two calls of ``has_stalled`` is a stall.
        grace_seconds: how long a stall counts after it was noticed.
    """

    def __init__(self, limit_seconds: float, grace_seconds: float = 0.0) -> None:
        self._limit, self._grace = limit_seconds, grace_seconds
        self._last: float | None = None
        self._until = float("-inf")

    def has_stalled(self, now: float) -> bool:
        """Return whether the process has just been stopped; call this more often than every ``limit_seconds``."""
        last, self._last = self._last, now
        stalled = last is not None and now - last > self._limit
        if stalled:
            self._until = now + self._grace
        return stalled or now < self._until


class HeartbeatMonitor:
    """Finds the heartbeats that have stopped changing.

    Args:
        silence_seconds: how long a heartbeat may stay the same; several times the interval between heartbeats.
        gap_seconds: if ``update`` was not called for longer than this, the caller was stopped or could not read the
            heartbeats. The silence of all processes is then measured from the start.
    """

    def __init__(self, silence_seconds: float = 5.0, gap_seconds: float = 2.5) -> None:
        self._silence = silence_seconds
        self._stall = StallDetector(gap_seconds)
        self._seen: dict[str, tuple[object, float]] = {}

    def update(self, beats: Mapping[str, object], now: float) -> dict[str, float]:
        """Take the newest heartbeat of each process; return the seconds of silence of each silent process.

        Processes that are not in ``beats`` are forgotten.
        """
        stalled = self._stall.has_stalled(now)
        for name in self._seen.keys() - beats.keys():
            del self._seen[name]
        for name, beat in beats.items():
            if name not in self._seen or self._seen[name][0] != beat or stalled:
                self._seen[name] = (beat, now)
        return {name: now - since for name, (_, since) in self._seen.items() if now - since > self._silence}


@dataclass(frozen=True, slots=True)
class Change:
    """A process has gone or has come back.

    Attributes:
        is_gone: True if it has gone, False if it is back.
        reason: the signal that showed it: "closed", "silent", "left" (connection) or "heartbeat" (tracker).
        silent_seconds: time since the process was last heard of, if known; 0 for a connection that broke.
    """

    process: str
    is_gone: bool
    reason: str
    silent_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Signals:
    """The signals of one process: the state of its connection ("": it never had one) and its heartbeats."""

    connection: ConnectionState | Literal[""] = ""
    since: float = 0.0
    beats: tuple[tuple[str, float], ...] = ()
    changes: int = 0  # changes of the heartbeats seen since the connection ended
    silent_seconds: float | None = None  # None: the heartbeats continue
    is_gone: bool = False

    def reason(self) -> str | None:
        """Return the signal by which the process is known to be gone, None if it is not gone.

        The first change seen after the connection ended may be a heartbeat written before that; the second is not.
        """
        if self.connection == "alive":
            return None
        if self.connection and self.changes < 2:
            return self.connection
        return None if self.silent_seconds is None else "heartbeat"


@dataclass(slots=True)
class FailureDetector:
    """Combines both signals. Updated by one thread; ``is_gone`` may be called on any thread.

    A process with a connection is gone when the connection broke or fell silent, until it reconnects or its heartbeats
    show that only the connection failed. A process without a connection is gone when its heartbeats stop.
    """

    heartbeats: HeartbeatMonitor = field(default_factory=HeartbeatMonitor)
    _known: dict[str, _Signals] = field(default_factory=dict)

    def is_gone(self, worker: str) -> bool:
        """Return whether a worker's process is known to be dead or frozen; False for an unknown worker."""
        signals = self._known.get(process_of(worker))
        return signals is not None and signals.is_gone

    def death_of(self, worker: str, now: float) -> str:
        """Return the evidence that a worker's process has died; "" if it is not known to be dead.

        When a process ends, its kernel closes its connections. The kernel does not do so when the process is frozen,
        and a process whose machine or network is lost falls silent. A connection that broke for another reason is made
        again at once.
        """
        signals = self._known.get(process_of(worker))
        if signals is None or signals.connection != "closed" or signals.changes >= 2:
            return ""
        return CONNECTION_CLOSED if now - signals.since >= DEAD_SECONDS else ""

    def gone(self) -> list[str]:
        """Return the processes that are gone, sorted."""
        return sorted(process for process, signals in self._known.items() if signals.is_gone)

    def update_connection(
        self, process: str, state: ConnectionState, now: float, silent_seconds: float = 0.0
    ) -> list[Change]:
        """Take a change reported by ``LivenessServer``; return the resulting changes of processes."""
        signals = self._known.get(process, _Signals())
        return self._note(process, replace(signals, connection=state, since=now, changes=0), silent_seconds)

    def update_heartbeats(self, beats: Mapping[str, float], now: float) -> list[Change]:
        """Take the newest heartbeat of each worker in the tracker; return the resulting changes of processes."""
        by_process: dict[str, tuple[tuple[str, float], ...]] = {}
        for worker in sorted(beats):
            process = process_of(worker)
            by_process[process] = (*by_process.get(process, ()), (worker, beats[worker]))
        silent = self.heartbeats.update(by_process, now)
        changed: list[Change] = []
        for process in sorted(self._known.keys() | by_process.keys()):
            signals, newest = self._known.get(process, _Signals()), by_process.get(process, ())
            if newest and newest != signals.beats:
                signals = replace(signals, beats=newest, changes=signals.changes + 1)
            signals = replace(signals, silent_seconds=silent.get(process))
            changed += self._note(process, signals, silent.get(process, 0.0))
            is_over = not newest and signals.connection != "alive" and now - signals.since > _FORGOTTEN_SECONDS
            if is_over:  # names are never reused, and a run may see many processes
                del self._known[process]
        return changed

    def _note(self, process: str, signals: _Signals, silent_seconds: float) -> list[Change]:
        before, reason = self._known.get(process, _Signals()), signals.reason()
        self._known[process] = replace(signals, is_gone=reason is not None)
        if before.is_gone == (reason is not None):
            return []
        how = reason or ("link" if signals.connection == "alive" else "heartbeat")
        return [Change(process, reason is not None, how, silent_seconds if reason else 0.0)]
