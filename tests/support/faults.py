"""Twelve things that go wrong with a run on a cluster, and the state that every view of it has to show then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dl4jlegacy.scaleout.monitoring.run_state import GONE, LEADER, TROUBLES
from dl4jlegacy.scaleout.state.records import HEAD, Failure, Head, Manifest, WorkerRecord, encode_record
from dl4jlegacy.scaleout.tracker import InMemoryStateTracker, StateTracker

__all__ = ["FAULTS", "FULL", "MASTER", "Fault", "broken_run"]

MASTER = {"host": "alpha", "pid": 7, "process": "alpha-7-0123"}
STANDBY = {"host": "beta", "pid": 8, "process": "beta-8-4567", "standby": True}
FULL = "the checkpoint of version 3 cannot be written to /runs/r: No space left on device"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault: the answers of a run's tracker and Zookeeper under it, and the expected display.

    Attributes:
        state, words: what every view says.
        gone: of two worker processes, p and q, those that are gone, and why.
        troubles, head: as the tracker has them.
        master, standbys: as Zookeeper has them: who was elected, and who is behind him.
        is_away: whether the tracker does not answer.
    """

    state: str
    words: str = ""
    gone: Mapping[str, str] = field(default_factory=dict)
    troubles: Mapping[str, str] = field(default_factory=dict)
    head: Mapping[str, Any] = field(default_factory=dict)
    master: Mapping[str, Any] | None = field(default_factory=lambda: MASTER)
    standbys: tuple[Mapping[str, Any], ...] = ()
    is_away: bool = False


FAULTS = {
    "nothing": Fault(state="running"),
    "a worker is killed": Fault(
        state="degraded", words="1 of 2 workers is gone: p-0 (its connection", gone={"p": "closed"}
    ),
    "a worker is frozen": Fault(state="degraded", words="gone: q-0 (silent", gone={"q": "silent"}),
    "a worker is slow": Fault(state="running"),
    "all workers are dead": Fault(
        state="waiting", words="for workers: 0 of 1; 2 of 2 workers are gone", gone={"p": "closed", "q": "closed"}
    ),
    "the master is killed": Fault(state="waiting", words="for a standby to take over", master=STANDBY),
    "the master is frozen": Fault(state="waiting", words="for a standby to take over", master=STANDBY),
    "the master is gone for good": Fault(state="stalled", words="it has no master, and no standby", master=None),
    "a server is away": Fault(state="stalled", words="did not answer", is_away=True),
    "the grid is full": Fault(state="stalled", words="did not answer", is_away=True),
    "the disk is full": Fault(state="degraded", words=FULL, troubles={"checkpoints": FULL}),
    "the disk is free again": Fault(state="running"),
    "a secret is wrong": Fault(state="running"),
    "a job kills its workers": Fault(
        state="ended",
        words="the job of round 3, slot 1 kills its workers",
        head={
            "status": "failed",
            "failure": Failure("DL4J-POISON", "the job of round 3, slot 1 kills its workers", ""),
        },
    ),
}


def broken_run(fault: Fault) -> StateTracker:
    """Return the tracker of a run of two worker processes under a fault."""
    tracker = InMemoryStateTracker()
    given = {"run": "r1", "version": 3, "round": 3, "model": Manifest("model/3/m", 1, 1), "examples": 75, "score": 0.5}
    tracker.store.put(HEAD, encode_record(Head(**{**given, **fault.head})))
    for index, process in enumerate(("p", "q")):
        tracker.add_worker(
            WorkerRecord(id=f"{process}-0", host="h", pid=1 + index, state="working", job=f"3/{index}", beat=1.0)
        )
    tracker.define(LEADER, MASTER["process"])
    tracker.define(GONE, dict(fault.gone))
    tracker.define(TROUBLES, dict(fault.troubles))
    return tracker
