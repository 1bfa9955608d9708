"""The inputs of a job, and how a worker gets them: the model, the state of the slot, the data.

A worker's memory is a cache. Its entries are valid by the keys of the stored values that they came from, never by a
version or slot number. If the state of a slot was not saved and its worker is gone, a copy may exist on this host. If
not, the slot's jobs since the last saved state are replayed, each from its original model; they must produce the
updates that were folded.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from dl4jlegacy.arrays.wire import digest
from dl4jlegacy.scaleout.links.mesh.messages import Messages
from dl4jlegacy.scaleout.phases import NO_PHASES, Phases
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.protocol.events import ABANDONED, STEP, Perform, Performed, Steps
from dl4jlegacy.scaleout.protocol.frames import parse_record, read_frame, read_frames, read_many
from dl4jlegacy.scaleout.protocol.log import SharedModels, model_after, read_log
from dl4jlegacy.scaleout.protocol.slot_states import read_snapshot
from dl4jlegacy.scaleout.state.aggregate import Fold
from dl4jlegacy.scaleout.state.records import (
    HEAD,
    Failure,
    Folded,
    Head,
    JobRecord,
    Keys,
    LogEntry,
    Manifest,
    SlotState,
    Snapshot,
    encode_record,
)
from dl4jlegacy.scaleout.state.state_cache import StateCopies
from dl4jlegacy.scaleout.state.store import Buffer, Store
from dl4jlegacy.scaleout.strategies import WorkRouter, router_of

__all__ = ["REPLAY_DIFFERS", "Claim", "HeldState", "Lost", "Ready", "WorkerMemory", "prepare"]

REPLAY_DIFFERS = "DL4J-REPLAY"
"""Failure code of a replayed job that produced a different update."""


class Claim(NamedTuple):
    """A leased job: its number, its record, the record's bytes as written, and the worker's clock time of the lease."""

    number: int
    record: JobRecord
    raw: bytes
    since: float


class HeldState(NamedTuple):
    """A state in a worker's memory, with the number of its job, the key of that job's update, and the state's own key.

    ``saved`` is "" if the state was not written. No key is written twice.
    """

    number: int
    update: str
    saved: str
    frame: Buffer


@dataclass(slots=True)
class WorkerMemory:
    """The memory of a worker. ``aggregator`` is the one its masters use. Used by the worker's thread only."""

    name: str
    store: Store
    plan: Plan
    router: WorkRouter
    aggregator: Fold
    phases: Phases = NO_PHASES
    models: SharedModels = field(default_factory=SharedModels)
    messages: Messages | None = None
    """Committed messages in memory, of all workers of this process; None: every message is read from the store."""
    copies: StateCopies | None = None
    """Copies of the states of workers on this host."""
    model: tuple[str, Buffer] | None = None
    """The identity and frame of the newest model that was read from the store or computed from the log."""
    owns_model: bool = False
    """Whether this worker is the only owner of that frame: it was assembled from several chunks here."""
    snapshot: tuple[str, Snapshot] | None = None
    """The key and content of the snapshot that was read last."""
    states: dict[int, HeldState] = field(default_factory=dict)
    """By slot, the state that this worker's last job in the slot has left."""
    latest: dict[int, tuple[int, str]] = field(default_factory=dict)
    """By slot: the version that the last logged job of the slot led to, and the key of that job's update."""


class Ready(NamedTuple):
    """A job with its inputs; ``replayed`` is the number of jobs replayed for it, under the lease of ``claim``.

    ``begins`` is the key of ``state``, if it was saved.
    """

    claim: Claim
    model: Buffer
    state: Buffer | None
    data: Buffer | None
    replayed: int = 0
    begins: str = ""


class Lost(NamedTuple):
    """An input that cannot be read: ``text`` names a value of the head, or is "" for the data of the job itself."""

    text: str


class UpdateKey(NamedTuple):
    """The key of the update of a slot's last job, whose state was not saved."""

    key: str


class Earlier(NamedTuple):
    """The inputs of a job that is replayed: the version, its model, and the state of the slot."""

    version: int
    model: Buffer
    state: Buffer | None


Begins = SlotState | UpdateKey | None
"""How the state that a job starts from is identified; None if the slot has no state."""


def prepare(me: WorkerMemory, head: Head, claim: Claim, data: Buffer | None = None) -> Steps[Any]:
    """Return a claimed job as ``Ready``; reads the inputs that are not in memory.

    Otherwise returns ``Lost``; or, if other jobs must be replayed for it, ``ABANDONED`` if the round is over by now, or
    the driver's answer to the ``Perform`` of a replayed job if that is not ``Performed``.

    Args:
        data: data of the job, if it was fetched in advance.
    """
    record, reading = claim.record, me.phases.begin()
    had_model = me.model is not None and me.model[0] == head.identity
    lost = yield from _follow(me, head)
    begins = lost or (yield from _begins_with(me, head, me.plan.at(claim.number)[1]))
    if isinstance(begins, Lost):
        return begins
    model = me.model if me.model and me.model[0] == head.identity else None
    state = _held(me, claim.number, begins)
    wanted: dict[str, Manifest] = {}
    if model is None:
        wanted["model"] = head.model
    if record.data is not None and data is None:
        wanted["data"] = record.data
    if isinstance(begins, SlotState) and state is None:
        wanted["state"] = begins.state
    frames = dict(zip(wanted, (yield from read_frames(me.store, list(wanted.values()))), strict=True)) if wanted else {}
    if wanted or not had_model:  # one request reads all missing inputs
        reading.end("WorkerGetData" if had_model else "WorkerGetModel", me.plan.at(claim.number))
    if model is None and (frame := frames["model"]) is not None:
        model = me.model = head.identity, frame
        me.owns_model = head.model.chunks > 1
        me.latest.clear()
    state, data = frames.get("state", state), frames.get("data", data)
    if model is None:
        return Lost(f"model {record.model or 'version'}")
    if isinstance(begins, SlotState) and state is None:
        return Lost(f"state {begins.state.key}")
    if record.data is not None and data is None:
        return Lost("")
    if isinstance(begins, UpdateKey) and state is None:
        return (yield from _replayed(me, head, claim, data))
    return Ready(claim, model[1], state, data, begins=begins.state.key if isinstance(begins, SlotState) else "")


def _begins_with(me: WorkerMemory, head: Head, slot: int) -> Steps[Begins | Lost]:
    """Return the identification of the state that the slot's next job starts from."""
    if router_of(me.router, me.plan, head.round).memory is None:
        return None
    if head.logged and (latest := me.latest.get(slot)) is not None and latest[0] > head.version - head.logged:
        return UpdateKey(latest[1])
    if head.snapshot is None:
        return None
    if me.snapshot is None or me.snapshot[0] != head.snapshot.key:
        found = yield from read_snapshot(me.store, head.snapshot)
        if found is None:
            return Lost(f"snapshot {head.snapshot.key}")
        me.snapshot = head.snapshot.key, found
        first = {slot: saved.number for slot, saved in found.states.items()}
        me.states = {slot: held for slot, held in me.states.items() if held.number >= first.get(slot, 0)}
    return me.snapshot[1].states.get(slot)


def _held(me: WorkerMemory, number: int, begins: Begins) -> Buffer | None:
    """Return the state that a job starts from, if this worker has it in memory or a copy exists."""
    slot = me.plan.at(number)[1]
    held = me.states.get(slot)
    if isinstance(begins, UpdateKey):
        return _furthest(me, slot, [begins.key])[1]
    return held.frame if held is not None and begins is not None and held.saved == begins.state.key else None


def _follow(me: WorkerMemory, head: Head) -> Steps[Lost | None]:
    """Bring the model in memory to the version of a head that has a log.

    The model that is stored as a whole is only read if no log entry continues from the model in memory.
    """
    known = "" if me.model is None else me.model[0]
    if head.entry is None or known == head.identity:
        return None
    entries = yield from read_log(me.store, head, known, me.messages)
    if entries is None or entries[0].before != known:
        if not head.logged:
            return None  # the model of this very version is stored
        frame = None if entries is None else (yield from read_frame(me.store, head.model))
        if entries is None or frame is None:
            return Lost(f"what version {head.version} follows from")
        me.latest.clear()
        me.model, me.owns_model = (entries[0].before, frame), head.model.chunks > 1
    identities = [*(entry.before for entry in entries[1:]), head.identity]
    skipped, frame = me.models.newest_of(identities)
    assert me.model is not None
    before = frame if skipped else me.model[1]
    if not skipped and me.owns_model and me.aggregator.works_in_place:
        me.model = None  # until the in-place change is complete
        me.model = head.identity, model_after(me.aggregator, me.plan, before, entries, in_place=True)
    else:
        make = functools.partial(model_after, me.aggregator, me.plan, before, entries[skipped:])
        me.model, me.owns_model = (head.identity, me.models.get(head.identity, make)), False
    for entry in entries:
        me.latest |= {me.plan.at(job.number)[1]: (entry.version, job.key) for job in entry.folded}
    return None


def _replayed(me: WorkerMemory, head: Head, claim: Claim, data: Buffer | None) -> Steps[Any]:
    """Replay the jobs of a slot since its last saved or cached state; return the same kinds of value as ``prepare``."""
    if not (yield from _is_newest(me, head)):
        return ABANDONED
    slot = me.plan.at(claim.number)[1]
    entries = yield from read_log(me.store, head, at_hand=me.messages)
    model = yield from read_frame(me.store, head.model)
    if entries is None or model is None:
        return Lost(f"what version {head.version} follows from")
    jobs = {entry.version: job for entry in entries for job in entry.folded if me.plan.at(job.number)[1] == slot}
    done, state = _furthest(me, slot, [job.key for job in jobs.values()])
    if not done:
        saved = yield from _saved_state(me, head, slot)
        if isinstance(saved, Lost):
            return Lost(f"what version {head.version} follows from")
        state = saved
    jobs = dict(list(jobs.items())[done:])
    claim = yield from _with_patience(me, claim, len(jobs))
    since: list[LogEntry] = []
    for entry in entries:
        if (job := jobs.get(entry.version)) is not None:
            model, since = model_after(me.aggregator, me.plan, model, since), []
            again = yield from _done_again(me, claim, job, Earlier(entry.version - 1, model, state))
            if not isinstance(again, Performed):
                return again
            state = again.state
        since.append(entry)
    model = model_after(me.aggregator, me.plan, model, since)
    me.model, me.owns_model = (head.identity, model), False
    return Ready(claim, model, state, data, replayed=len(jobs))


def _furthest(me: WorkerMemory, slot: int, updates: Sequence[str]) -> tuple[int, Buffer | None]:
    """Return the number of the slot's updates up to the latest state that is in memory or copied, and that state."""
    held, count, frame = me.states.get(slot), 0, None
    if held is not None and held.update in updates:
        count, frame = updates.index(held.update) + 1, held.frame
    later = updates[count:]
    copied = None if me.copies is None or not later else me.copies.find(slot, later)
    return (count, frame) if copied is None else (count + copied.done, copied.frame)


def _saved_state(me: WorkerMemory, head: Head, slot: int) -> Steps[Buffer | Lost | None]:
    """Return the slot's state at the model that is stored as a whole; None if the slot had no state there."""
    if head.snapshot is None:
        return None
    snapshot = yield from read_snapshot(me.store, head.snapshot)
    if snapshot is None:
        return Lost(f"snapshot {head.snapshot.key}")
    saved = snapshot.states.get(slot)
    frame = None if saved is None else (yield from read_frame(me.store, saved.state))
    return Lost(f"state {saved.state.key}") if saved is not None and frame is None else frame


def _done_again(me: WorkerMemory, claim: Claim, job: Folded, begun: Earlier) -> Steps[Any]:
    """Replay a folded job; return ``Performed``, or the answer that ``prepare`` returns instead of ``Ready``."""
    round_, slot = me.plan.at(job.number)
    data = None if job.data is None else (yield from read_frame(me.store, job.data))
    if job.data is not None and data is None:
        return Lost(f"the data of round {round_}, slot {slot}")
    plan, leased = me.plan.slot(round_, slot), me.plan.slot(*me.plan.at(claim.number))
    done = yield Perform(plan, claim.record, begun.version, begun.model, data, begun.state, leased=leased)
    if not isinstance(done, Performed | Failure) and done is not ABANDONED:
        return None  # no state to continue from
    if isinstance(done, Performed) and bytes(done.update) != job.update:
        text = (
            f"the job of round {round_}, slot {slot} came to another update when worker {me.name} did it again "
            f"(digest {digest(done.update)[:16]}) than when worker {job.worker} did it ({digest(job.update)[:16]}), "
            "which is part of the model: they do not compute alike. If that is meant, give the router state_every=1, "
            "so that nothing has to be done again"
        )
        return Failure(REPLAY_DIFFERS, text, me.name)
    return done


def _is_newest(me: WorkerMemory, head: Head) -> Steps[bool]:
    """Return whether ``head`` is still current: computing the model may have taken longer than its round."""
    raw = (yield from read_many(me.store, [HEAD]))[0]
    newest = parse_record(me.store, HEAD, raw, Head)
    return newest is not None and newest.identity == head.identity


def _with_patience(me: WorkerMemory, claim: Claim, behind: int) -> Steps[Claim]:
    """Tell the master how many jobs are replayed for a claim, so that its worker does not count as a straggler."""
    record = msgspec.structs.replace(claim.record, behind=behind)
    new = encode_record(record)
    yield STEP
    if not me.store.replace_if_same(Keys.job(*me.plan.at(claim.number)), claim.raw, new):
        return claim  # extended meanwhile, or lost: the commit decides
    return claim._replace(record=record, raw=new)
