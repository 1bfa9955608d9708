"""How a master, a standby and a worker react to the state of their run in the grid and in Zookeeper.

Either server may lose all its data, and both may, if they are restarted on fresh disks. So if neither knows a run,
nothing follows from that; a run has ended only if its end is recorded (``ended_runs``). The process that has the run's
state puts it back: the active master from memory, a standby from the newest checkpoint. The higher version wins, even
if the master returns only after a standby has taken over (``master``). A standby that has neither lets the others go
first, waits for them, and gives up in the end.

``dl4jlegacy.cluster`` drives these steps against Hazelcast and Zookeeper; the simulator of the tests drives them too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import msgspec

from dl4jlegacy.errors import TrackerError
from dl4jlegacy.scaleout.protocol.ended_runs import End, end_in_grid, withdraw_end, write_end
from dl4jlegacy.scaleout.protocol.events import STEP, Steps, Wait
from dl4jlegacy.scaleout.protocol.frames import parse_record, read_many
from dl4jlegacy.scaleout.protocol.master import restore_end
from dl4jlegacy.scaleout.state.records import HEAD, Head
from dl4jlegacy.scaleout.state.store import Store
from dl4jlegacy.system.clock import Clock

__all__ = [
    "OFFICE",
    "Holder",
    "KeptEnd",
    "Register",
    "Registered",
    "RunPlace",
    "StandBy",
    "TakeOver",
    "asked_to_stop",
    "check_master",
    "end_run",
    "find_end",
    "go_on_again",
    "is_left_behind",
    "is_over",
    "may_begin",
    "may_hand_over",
    "office",
    "outlive_master",
    "put_back",
]

OFFICE = "global/master"
"""Key that names the master's process: an elected standby becomes the master only when it has written this key."""
_LOOK_SECONDS = 0.5


class Holder(NamedTuple):
    """The elected process: its name, its run and its address."""

    process: str
    run: str
    where: str
    is_standby: bool = False


class Registered(NamedTuple):
    """The owner of the Conf registered under a run's id: this run, another run (``run``), nobody, or unknown."""

    kind: Literal["this", "another", "nothing", "unknown"]
    run: str = ""


class Register(Protocol):
    """The records of a run in Zookeeper, as seen by one process.

    Each call sends one query; without an answer it says so, or waits. ``process`` is the name of this process.
    """

    process: str

    def fence(self) -> str | None:
        """Return the node by which this process leads, as far as it knows itself; None if it does not lead."""
        ...

    def stands(self, fence: str) -> bool:
        """Return whether the node by which this process led still exists; True if that is unknown."""
        ...

    def holder(self) -> Holder | None:
        """Return the elected process; None if there is none, or if that is unknown."""
        ...

    def registered(self) -> Registered:
        """Return whose Conf is registered."""
        ...

    def restore(self, fence: str) -> None:
        """Register the Conf if none is registered or it cannot be read, provided that ``fence`` still exists."""
        ...

    def end(self) -> End | Literal["unknown"] | None:
        """Return how the run has ended; None if no end is recorded."""
        ...

    def write_end(self, status: End) -> bool:
        """Record that the run has ended; return False if this process no longer leads the run."""
        ...

    def withdraw_end(self) -> None:
        """Remove the record of ``write_end``."""
        ...

    def step_back(self, seconds: float) -> None:
        """Let the other candidates go first for so many seconds."""
        ...


class KeptEnd(Protocol):
    """The record of a run's end in its checkpoint folder; without a folder nothing is recorded."""

    def read(self) -> End | None:
        """Return how the run has ended, if the folder exists here and says so."""
        ...

    def write(self, status: End) -> None:
        """Record the end, if the folder exists here and is writable."""
        ...

    def remove(self) -> None:
        """Remove the record."""
        ...


@dataclass(frozen=True, slots=True)
class RunPlace:
    """The locations of a run: its store in the grid, the store that all runs share, Zookeeper, and its folder.

    ``keep_name()`` puts the run's name record back if it is lost; ``servers`` describes the servers in words.
    """

    run: str
    incarnation: str
    store: Store
    names: Store
    register: Register
    kept: KeptEnd
    keep_name: Callable[[], Steps[object]]
    servers: str = ""


def find_end(place: RunPlace) -> Steps[End | Literal["unknown"] | None]:
    """Return how a run has ended; None if no end is recorded, "unknown" if that cannot be determined now."""
    found = yield from end_in_grid(place.names, place.run, place.incarnation)
    if found is None:
        yield STEP
        found = place.kept.read()
    if found is not None:
        return found
    yield STEP
    return place.register.end()


def end_run(place: RunPlace, status: End) -> Steps[None]:
    """Record that a run has ended, before anything of it is removed.

    Raises ``TrackerError`` unless this process leads the run: a process that was frozen until another one continued the
    run must not end it.
    """
    yield STEP
    if not place.register.write_end(status):
        raise TrackerError(f"run {place.run} is not led by this process any more, and is left to whoever leads it")
    yield from write_end(place.names, place.run, place.incarnation, status)
    yield STEP
    place.kept.write(status)


def go_on_again(place: RunPlace) -> Steps[None]:
    """Remove the record of an end, because the run is continued."""
    yield from withdraw_end(place.names, place.run, place.incarnation)
    yield STEP
    place.register.withdraw_end()
    yield STEP
    place.kept.remove()


def is_left_behind(place: RunPlace) -> Steps[bool]:
    """Return whether a run's records in the grid were written by a process that was frozen until the run had ended.

    A process may freeze between its last check of the run and a write, and write when it wakes up. A run that is not
    ended, is being cleared up, or is continued, is left as it is.
    """
    if (yield from find_end(place)) not in ("done", "stopped"):
        return False
    yield STEP
    if place.register.registered().kind not in ("nothing", "another"):
        return False
    head = yield from _head(place)
    return head is None or head.status == "running"


def is_over(place: RunPlace, head: Head | None) -> Steps[bool]:
    """Return whether a run has ended for a worker that sees ``head`` or none; False if the head itself says so."""
    if head is not None and head.status != "running":
        return False
    if head is not None:
        yield STEP
        if place.register.registered().kind != "nothing":
            return False
    return (yield from find_end(place)) in ("done", "stopped")


# --- the master ------------------------------------------------------------------------------------------------------


def check_master(place: RunPlace) -> Steps[None]:
    """Raise ``TrackerError`` if another process is the master; not if Zookeeper does not answer.

    A standby that was elected while the servers had no data steps back, unless it has taken office.
    """
    if place.register.fence() is not None:
        return
    yield STEP
    holder = place.register.holder()
    if holder is None or holder.process == place.register.process:
        return
    if holder.is_standby and holder.run == place.run and (yield from office(place)) != holder.process:
        return
    raise TrackerError(
        f"run {place.run} has another master, {holder.where}: it took over while this one stood still or was cut off, "
        "and goes on with the run"
    )


def may_begin(place: RunPlace) -> Steps[bool]:
    """Return whether a master that finds no head, or an older one, may write its own; False if unknown at the moment.

    Raises:
        TrackerError: another process is the master, the run has ended, or its id now belongs to another run.
    """
    yield from check_master(place)
    end = yield from find_end(place)
    if end in ("done", "stopped"):
        how = "it is done" if end == "done" else "it was stopped"
        raise TrackerError(f"run {place.run} has ended while this master stood still: {how}")
    yield STEP
    there = place.register.registered()
    if there.kind == "another":
        raise TrackerError(f"run {place.run} is over: its id is that of another run, {there.run}, by now")
    return end is None and there.kind != "unknown"


def may_hand_over(place: RunPlace) -> Steps[bool]:
    """Return whether a leaving master may write its state into the run, because a standby leads it.

    It may not if somebody has resumed the run, since the run is to continue from the resumed state; nor if the answer
    is unknown at the moment.
    """
    register = place.register
    if register.fence() is not None:
        return False
    yield STEP
    holder = register.holder()
    if holder is None or holder.process == register.process or not holder.is_standby or holder.run != place.run:
        return False
    if (yield from office(place)) != holder.process or (yield from find_end(place)) is not None:
        return False
    yield STEP
    return register.registered().kind == "this"


def put_back(place: RunPlace) -> Steps[None]:
    """Register a run again if its registration is lost, or was damaged by a stranger, and this process leads the run.

    A run that has ended while this process was frozen is not registered, so that it does not look active. The run may
    also end between the query and the writes below; then the node by which this process led at the query is gone.
    """
    fence = place.register.fence()
    if fence is None:
        return
    head = yield from _head(place)
    yield STEP
    there = place.register.registered()
    if (head is None or there.kind != "this") and (yield from find_end(place)) is not None:
        return
    yield STEP
    place.register.restore(fence)
    yield STEP
    if not place.register.stands(fence):
        return
    yield from place.keep_name()
    if (yield from office(place)) != place.register.process:
        yield STEP
        place.store.put(OFFICE, msgspec.json.encode(place.register.process))


# --- a standby -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class StandBy:
    """A process that waits behind the master of a run.

    Attributes:
        place: locations of the run.
        clock: of this process.
        patience: seconds to wait for another process to put back a run that neither server has.
        yields: seconds for which the previous leader may go first, since it has more than a checkpoint.
        has_checkpoint: returns whether there is a checkpoint to continue from.
        folder: where checkpoints would be; "": nowhere.
        tell: receives a message that says what this process waits for.
        seen: the newest head of the run that this process has seen.
    """

    place: RunPlace
    clock: Clock
    patience: float
    yields: float
    has_checkpoint: Callable[[], bool]
    folder: str = ""
    tell: Callable[[str], None] = lambda text: None
    seen: Head | None = None
    _lost_since: float | None = None

    def is_lost(self) -> bool:
        """Return whether the servers had no model of the run at the last query."""
        return self._lost_since is not None

    def lost_seconds(self) -> float:
        """Return for how many seconds the servers have had no model of the run."""
        if self._lost_since is None:
            self._lost_since = self.clock.now()
            self.tell(
                f"{self.place.servers} have no model of run {self.place.run}, and nobody has ended it; this standby, "
                f"which has none either, waits up to {self.patience:g} s for who has"
            )
        return self.clock.now() - self._lost_since

    def found(self, head: Head | None) -> None:
        """Note that the servers have something of the run, and its head if there is one."""
        self._lost_since = None
        if head is not None and (self.seen is None or head.version >= self.seen.version):
            self.seen = head


class TakeOver(NamedTuple):
    """The remaining task of a standby.

    ``what``: lead the run, from the newest known ``version``; clear up the remains of a run that has ended under a dead
    master (``end``); or nothing, since the run has ended, or failed. ``error`` says why that is a failure for this
    process, if it is.
    """

    what: Literal["lead", "clear up", "ended", "failed"]
    version: int = 0
    end: End = "done"
    error: str = ""


def outlive_master(me: StandBy) -> Steps[TakeOver]:
    """Wait until this process is the master, or the run has ended.

    A run has ended when its end is recorded, not when its last batch is done: until then its model may not be written.

    Raises:
        TrackerError: the run's id now belongs to another run; or the servers have no model of the run, no process has
            put it back, and this process has no state to do so.
    """
    place = me.place
    while True:
        head = yield from _head(place)
        leads = place.register.fence() is not None
        if head is not None:
            me.found(head)
            if head.status == "failed":  # a failed run is kept for `dl4j resume`
                return TakeOver("failed")
        end = None if head is not None and head.status == "running" else (yield from find_end(place))
        if end in ("done", "stopped") or (head is not None and head.status == "stopped"):
            found = yield from _ended(me, head, leads=leads, end="stopped" if end is None else end)
        elif leads:
            found = yield from _elected(me, head)
        else:
            found = yield from _behind(me, head)
        if found is not None:
            return found
        yield Wait(me.clock.now() + _LOOK_SECONDS)


def asked_to_stop(me: StandBy) -> TrackerError | None:
    """Return the error for a standby that is asked to stop while the run is lost from the servers; None otherwise."""
    if not me.is_lost() or me.has_checkpoint():
        return None
    return _cannot_go_on(me, "this standby, which was asked to stop,")


def _ended(me: StandBy, head: Head | None, *, leads: bool, end: str) -> Steps[TakeOver | None]:
    """Return the remaining task for a run that has ended; None while its master clears it up."""
    how: End = "done" if end == "done" else "stopped"
    is_given_up = how == "stopped" and head is None and me.is_lost()
    error = f"run {me.place.run} was stopped while {me.place.servers} had no model of it" if is_given_up else ""
    if leads:
        return TakeOver("clear up", end=how, error=error)
    yield STEP
    is_there = head is not None or me.place.register.registered().kind in ("this", "unknown")
    return None if is_there else TakeOver("ended", end=how, error=error)


def _behind(me: StandBy, head: Head | None) -> Steps[TakeOver | None]:
    """Check that the run still exists while another process is to lead it; raises ``TrackerError`` if not."""
    if head is not None:
        return None
    yield STEP
    there = me.place.register.registered()
    if there.kind == "another":
        raise _replaced(me.place, there)
    if there.kind == "unknown":
        return None
    if there.kind == "this" and (yield from _is_somebodys(me)):
        me.found(None)
    else:
        _check_patience(me)
    return None


def _is_somebodys(me: StandBy) -> Steps[bool]:
    """Return whether a run without a head has a master that will write one, or has not begun."""
    yield STEP
    holder = me.place.register.holder()
    if holder is not None and not holder.is_standby:
        return True
    return not (yield from _has_begun(me))


def _has_begun(me: StandBy) -> Steps[bool]:
    """Return whether a run had a head: one was seen, or the office, which is written before any head, is lost."""
    return me.seen is not None or (yield from office(me.place)) is None


def _elected(me: StandBy, head: Head | None) -> Steps[TakeOver | None]:
    """Return how this elected process continues as the master; None if it lets others go first."""
    place, version = me.place, 0 if me.seen is None else me.seen.version
    yield STEP
    there = place.register.registered()
    if there.kind == "another":
        raise _replaced(place, there)
    if head is not None:
        return TakeOver("lead", head.version)
    if there.kind == "unknown":
        return None
    if there.kind == "this":
        if me.seen is not None and (yield from restore_end(place.store, me.seen)):
            me.tell(f"the head of run {place.run}, which is done, was lost with its master; it is there again")
            return TakeOver("lead", version)
        if not (yield from _has_begun(me)) or me.has_checkpoint():
            return TakeOver("lead", version)
    elif me.lost_seconds() >= me.yields and me.has_checkpoint():
        return TakeOver("lead", version)
    _check_patience(me)
    yield STEP
    place.register.step_back(me.yields)
    return None


def _check_patience(me: StandBy) -> None:
    if me.lost_seconds() > me.patience and not me.has_checkpoint():
        raise _cannot_go_on(me, "nobody has put it back; this standby")


def _cannot_go_on(me: StandBy, who: str) -> TrackerError:
    where = f" in {me.folder}" if me.folder else ""
    return TrackerError(
        f"run {me.place.run} cannot go on here: {me.place.servers} have had no model of it for "
        f"{me.lost_seconds():.0f} s, and {who} has none either, and no checkpoint{where}. Whoever has its folder of "
        "checkpoints goes on with it (dl4j resume FOLDER); or begin it anew"
    )


def _replaced(place: RunPlace, there: Registered) -> TrackerError:
    return TrackerError(
        f"the id of run {place.run} is that of another run, {there.run}, by now; this standby was none of its"
    )


def _head(place: RunPlace) -> Steps[Head | None]:
    raw = (yield from read_many(place.store, [HEAD]))[0]
    return parse_record(place.store, HEAD, raw, Head)


def office(place: RunPlace) -> Steps[str | None]:
    """Return the name of the process that has taken office, according to the run's store."""
    raw = (yield from read_many(place.store, [OFFICE]))[0]
    try:
        found = None if raw is None else msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if isinstance(found, str) else None
