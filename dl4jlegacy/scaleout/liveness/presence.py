"""Which worker processes are known to be gone or frozen: what the master makes of all signs of life (layer 3). Pure.

Two signs: a direct connection (``liveness``), which is quick but may not exist, since a worker may be unable to reach
the master's port; and the heartbeats in the tracker, which are slower and always there. Times are the caller's own
monotonic seconds; the clocks of two machines are never compared, a heartbeat's value only ever with its last one.

Nothing here decides about correctness: a worker taken for gone that is not costs a job done twice, of which the first
commit counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

__all__ = ["Change", "HeartbeatWatch", "LinkState", "Presence", "process_of"]

LinkState = Literal["alive", "silent", "closed", "left"]
"""Of a direct connection: it beats; it has stopped beating; it broke; its other end said good-bye."""

_FORGOTTEN_SECONDS = 3600.0


def process_of(worker: str) -> str:
    """Return the process of a worker, whose name is ``<process>-<index>``."""
    return worker.rpartition("-")[0]


class HeartbeatWatch:
    """Says whose heartbeat has stopped changing.

    Args:
        silence_seconds: how long a value may stay the same; several intervals between heartbeats.
        gap_seconds: if nothing was fed for so long, this process stood still or could not read the heartbeats, and
            then nobody's silence counts: all begin anew.
    """

    def __init__(self, silence_seconds: float = 5.0, gap_seconds: float = 2.5) -> None:
        self._silence, self._gap = silence_seconds, gap_seconds
        self._seen: dict[str, tuple[object, float]] = {}
        self._fed = float("-inf")

    def feed(self, beats: Mapping[str, object], now: float) -> dict[str, float]:
        """Take everybody's newest heartbeat; return the silent ones and for how many seconds they have been so.

        Whoever is not in ``beats`` any more is forgotten.
        """
        gap, self._fed = now - self._fed, now
        for name in self._seen.keys() - beats.keys():
            del self._seen[name]
        for name, beat in beats.items():
            if name not in self._seen or self._seen[name][0] != beat or gap > self._gap:
                self._seen[name] = (beat, now)
        return {name: now - since for name, (_, since) in self._seen.items() if now - since > self._silence}


@dataclass(frozen=True, slots=True)
class Change:
    """A process is gone, or it is back.

    Attributes:
        is_gone: whether it is gone now; False: it is back.
        reason: what it was noticed by: "closed", "silent", "left" (the connection's) or "heartbeat" (the tracker's).
        silent_seconds: how long nothing had been heard of it, as far as known; 0 for a connection that broke.
    """

    process: str
    is_gone: bool
    reason: str
    silent_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Signs:
    """What is known of one process: its connection ("": it never had one), and its heartbeats."""

    link: LinkState | Literal[""] = ""
    since: float = 0.0
    beats: tuple[tuple[str, float], ...] = ()
    changes: int = 0  # heartbeats that were seen to have changed since the connection ended
    silent_seconds: float | None = None  # None: the heartbeats go on
    is_gone: bool = False

    def reason(self) -> str | None:
        """Return by what the process is known to be gone, None if it is not.

        The first change seen after the connection's end may be a heartbeat written before it; the second is not.
        """
        if self.link == "alive":
            return None
        if self.link and self.changes < 2:
            return self.link
        return None if self.silent_seconds is None else "heartbeat"


@dataclass(slots=True)
class Presence:
    """Puts both signs of life together. Owned by one thread; ``is_gone`` may be called on any.

    A process is gone when its connection broke or fell silent, until it is back or its heartbeats in the tracker show
    that only the connection is gone; one without a connection is gone when its heartbeats stop.
    """

    watch: HeartbeatWatch = field(default_factory=HeartbeatWatch)
    _known: dict[str, _Signs] = field(default_factory=dict)

    def is_gone(self, worker: str) -> bool:
        """Whether a worker's process is known to be gone or frozen. A worker never heard of is not."""
        signs = self._known.get(process_of(worker))
        return signs is not None and signs.is_gone

    def gone(self) -> list[str]:
        """Return the processes that are gone, sorted."""
        return sorted(process for process, signs in self._known.items() if signs.is_gone)

    def link_changed(self, process: str, state: LinkState, now: float, silent_seconds: float = 0.0) -> list[Change]:
        """Note what ``LivenessServer`` says of a process; return what that changes."""
        signs = self._known.get(process, _Signs())
        return self._note(process, replace(signs, link=state, since=now, changes=0), silent_seconds)

    def feed(self, beats: Mapping[str, float], now: float) -> list[Change]:
        """Note the newest heartbeats in the tracker, by worker; return what that changes."""
        by_process: dict[str, tuple[tuple[str, float], ...]] = {}
        for worker in sorted(beats):
            process = process_of(worker)
            by_process[process] = (*by_process.get(process, ()), (worker, beats[worker]))
        silent = self.watch.feed(by_process, now)
        changed: list[Change] = []
        for process in sorted(self._known.keys() | by_process.keys()):
            signs, newest = self._known.get(process, _Signs()), by_process.get(process, ())
            if newest and newest != signs.beats:
                signs = replace(signs, beats=newest, changes=signs.changes + 1)
            signs = replace(signs, silent_seconds=silent.get(process))
            changed += self._note(process, signs, silent.get(process, 0.0))
            is_over = not newest and signs.link != "alive" and now - signs.since > _FORGOTTEN_SECONDS
            if is_over:  # names are never used again, and a run may see many processes
                del self._known[process]
        return changed

    def _note(self, process: str, signs: _Signs, silent_seconds: float) -> list[Change]:
        before, reason = self._known.get(process, _Signs()), signs.reason()
        self._known[process] = replace(signs, is_gone=reason is not None)
        if before.is_gone == (reason is not None):
            return []
        how = reason or ("link" if signs.link == "alive" else "heartbeat")
        return [Change(process, reason is not None, how, silent_seconds if reason else 0.0)]
