"""The state of a run: one function that every view uses, so that all of them show the same.

=========  ==========================================================================================================
running    the run computes, and nothing is missing
degraded   the run computes, but something is missing: a worker is gone or stuck, checkpoints cannot be written
waiting    nothing is computed until there are enough workers, or a standby takes over; no action is needed
stalled    nothing is computed until somebody acts: the run has no master, or its tracker does not answer
ended      the run is done, has failed, or was stopped
=========  ==========================================================================================================

A slow worker does not degrade a run, because other workers do its jobs as well.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec

from dl4jlegacy.errors import counted
from dl4jlegacy.scaleout.links.liveness.failure_detector import process_of
from dl4jlegacy.scaleout.state.records import Head, WorkerRecord
from dl4jlegacy.scaleout.tracker import StateTracker
from dl4jlegacy.system.clock import RUNNING, Clock

__all__ = [
    "AWAY_SECONDS",
    "GOES_ON",
    "GONE",
    "LEADER",
    "NO_ANSWER",
    "STATES",
    "TROUBLES",
    "RunFacts",
    "RunState",
    "StateLog",
    "StateName",
    "ending_of",
    "facts_of",
    "gone_workers",
    "run_state",
    "short_name",
    "shown_workers",
    "state_in_process",
    "troubles_of",
    "who_leads",
]

StateName = Literal["running", "degraded", "waiting", "stalled", "ended"]
STATES: tuple[StateName, ...] = get_args(StateName)
GOES_ON = ("running", "degraded")
"""The states in which a run computes."""
GONE, TROUBLES = "gone", "troubles"
"""Globals of the run: lost processes, and parts of its storage that cannot be written now, each with the reason."""
LEADER = "leader"
"""Global of the run: the process that leads it."""
AWAY_SECONDS = 3.0
"""Seconds without an answer after which the tracker counts as away; a dead member is replaced sooner."""
NO_ANSWER = "its tracker does not answer, and all its processes wait for that"
_NAMED = 3
"""Maximum number of workers named in a message."""
_HOW = {
    "closed": "its connection broke: it was killed, or has died",
    "silent": "silent: it is frozen, or cut off",
    "heartbeat": "no sign of life",
    "left": "it has left",
}
_MOST_TEXT = 300


class RunState(msgspec.Struct, frozen=True):
    """The state of a run, and the reason as text, or "" if there is none."""

    state: StateName = "running"
    reason: str = ""

    def text(self) -> str:
        """Return state and reason as one line."""
        between = " " if self.reason.startswith("for ") else ": "
        return f"{self.state}{between}{self.reason}" if self.reason else self.state

    def fields(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {"state": self.state, "reason": self.reason}


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts from which the state of a run is determined.

    Attributes:
        status: of its head; "": the run has not begun.
        ending: how a finished run has ended, as text.
        is_over: whether the run is over whatever its head says, because it is no longer registered.
        has_master: whether a process leads the run; True also if that is unknown.
        standbys: number of processes that wait to take the run over.
        workers: the registered workers.
        gone: the processes that are gone, and why.
        needed: minimum number of workers; with fewer, nothing is computed.
        troubles: parts of its storage that cannot be used, and why.
        unanswered: why its servers do not answer; "": they do.
        silence: why the run seems to have stopped, if only its folder is known; "": it may be active.
    """

    status: str = ""
    ending: str = ""
    is_over: bool = False
    has_master: bool = True
    standbys: int = 0
    workers: tuple[WorkerRecord, ...] = ()
    gone: Mapping[str, str] = {}
    needed: int = 0
    troubles: Mapping[str, str] = {}
    unanswered: str = ""
    silence: str = ""


def run_state(facts: RunFacts) -> RunState:
    """Return the state of a run; reasons that stop it come before those that only degrade it."""
    if facts.is_over or facts.status not in ("", "running"):
        return RunState("ended", _ending(facts))
    if facts.unanswered:
        return RunState("stalled", facts.unanswered)
    if not facts.has_master:
        return (
            RunState("waiting", "for a standby to take over: it has no master")
            if facts.standbys
            else RunState("stalled", "it has no master, and no standby that takes over")
        )
    if facts.silence:
        return RunState("stalled", facts.silence)
    gone = gone_workers(facts.workers, facts.gone)
    present = sum(process_of(worker.id) not in facts.gone for worker in facts.workers)
    if present < facts.needed:
        lost = f"; {_told(gone, len(facts.workers), 'gone')}" if gone else ""
        return RunState("waiting", f"for workers: {present} of {facts.needed}{lost}")
    if not facts.status:
        return RunState("waiting", "for its first jobs")
    reasons = [*_hindrances(facts, gone)]
    return RunState("degraded", "; ".join(reasons)[:_MOST_TEXT]) if reasons else RunState("running")


def state_in_process(tracker: StateTracker, troubles: Mapping[str, str]) -> RunState:
    """Return the state of a run whose workers are threads of this process, so that none can be missing."""
    head = tracker.head()
    status, ending = ("", "") if head is None else (head.status, ending_of(head))
    return run_state(RunFacts(status=status, ending=ending, workers=tuple(tracker.workers()), troubles=troubles))


def facts_of(tracker: StateTracker, needed: int) -> RunFacts:
    """Return a run's facts from its tracker; ``needed`` is its ``Conf.min_workers``. Raises the tracker's errors."""
    head, gone = tracker.head(), tracker.get(GONE)
    return RunFacts(
        status="" if head is None else head.status,
        ending=ending_of(head),
        workers=tuple(tracker.workers()),
        gone={str(one): str(why) for one, why in gone.items()} if isinstance(gone, dict) else {},
        needed=needed,
        troubles=troubles_of(tracker.get(TROUBLES)),
    )


def who_leads(
    leader: Any, elected: Mapping[str, Any] | None, standbys: Sequence[Mapping[str, Any]]
) -> tuple[Mapping[str, Any] | None, tuple[Mapping[str, Any], ...]]:
    """Return the master and the standbys of a run, from the candidates in Zookeeper.

    An elected process that follows another master is still a standby until the global ``LEADER`` names it.
    """
    if elected is None or leader is None or elected.get("process", leader) == leader:
        return elected, tuple(standbys)
    return None, (elected, *standbys)


def shown_workers(workers: Iterable[WorkerRecord], *, is_here: bool) -> tuple[tuple[str, str], ...]:
    """Return (name, state and job) of each worker; the name is its number if it is a thread here, else a short name."""
    return tuple(
        (one.id.rpartition("-")[2] if is_here else short_name(one.id), f"{one.state} {one.job}".strip())
        for one in workers
    )


def _ending(facts: RunFacts) -> str:
    if facts.status in ("", "running"):
        return facts.ending or "it is not registered any more"
    return facts.status + (f": {facts.ending}" if facts.ending else "")


def ending_of(head: Head | None) -> str:
    """Return why a run has ended early, as text; "" if it has not, or the reason is unknown."""
    if head is None:
        return ""
    return head.failure.message if head.failure is not None and head.status == "failed" else head.stopped_by


def _hindrances(facts: RunFacts, gone: Mapping[str, str]) -> Iterable[str]:
    if gone:
        yield _told(gone, len(facts.workers), "gone")
    stuck = {worker.id: "" for worker in facts.workers if worker.state == "stuck" and worker.id not in gone}
    if stuck:
        yield _told(stuck, len(facts.workers), "stuck")
    for what, why in sorted(facts.troubles.items()):
        yield f"{what} cannot be written: {why}"


def gone_workers(workers: Iterable[WorkerRecord], gone: Mapping[str, str]) -> dict[str, str]:
    """Return the workers whose processes are gone, and why, except those that left in an orderly way."""
    return {one.id: gone[process_of(one.id)] for one in workers if gone.get(process_of(one.id), "left") != "left"}


def _told(workers: Mapping[str, str], all_: int, what: str) -> str:
    named = [f"{short_name(id)}{f' ({_HOW.get(how, how)})' if how else ''}" for id, how in sorted(workers.items())]
    others = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    of = counted(all_, "worker")
    return f"{len(workers)} of {of} {'is' if len(workers) == 1 else 'are'} {what}: {', '.join(named[:_NAMED])}{others}"


def short_name(worker: str) -> str:
    """Return a short form of a worker's name that is unique on its machine: its process and its number."""
    return "-".join(worker.split("-")[-2:])


def troubles_of(found: Any) -> dict[str, str]:
    """Return the global ``TROUBLES``; {} if it is malformed."""
    return {str(what): str(why) for what, why in found.items()} if isinstance(found, dict) else {}


class StateLog:
    """Records how the state of a run changes, starting when the run first computes. Thread-safe.

    Args:
        clock: of running time.
    """

    def __init__(self, clock: Clock = RUNNING) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._now, self._since = RunState("waiting"), clock.now()
        self._has_run, self._counted = False, self._now.state
        self._seconds: dict[StateName, float] = {}
        self._new: deque[tuple[StateName, RunState]] = deque(maxlen=100)
        self.on_change: Callable[[StateName, RunState], None] = lambda before, state: None
        """Called with the states before and after each change, on the thread that noted it; must only enqueue."""

    def note(self, state: RunState) -> RunState:
        """Record the present state of the run, and return it."""
        with self._lock:
            before, self._now = self._now, state
            if before.state == state.state:
                return state
            self._count()
            is_told = self._has_run and state.state != "ended"  # beginning and end have other entries
            self._has_run = self._has_run or state.state in GOES_ON
            if is_told:
                self._new.append((before.state, state))
        if is_told:
            self.on_change(before.state, state)
        return state

    def take(self) -> list[tuple[StateName, RunState]]:
        """Return the changes since the last call, as pairs of the states before and after."""
        with self._lock:
            new = list(self._new)
            self._new.clear()
            return new

    def seconds(self) -> dict[str, float]:
        """Return the seconds that the run has been in each state."""
        with self._lock:
            self._count()
            return {state: round(self._seconds[state], 3) for state in STATES if self._seconds.get(state)}

    def _count(self) -> None:
        """Add the time since the last count to the previous state; called under the lock."""
        now, since = self._clock.now(), self._since
        self._since = now
        self._seconds[self._counted] = self._seconds.get(self._counted, 0.0) + now - since
        self._counted = self._now.state
