"""The worker's part: claim a job under a lease, perform it, commit its update; and the heartbeat's lease extension."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from dl4jlegacy.scaleout.plan import Plan, SlotPlan
from dl4jlegacy.scaleout.protocol.events import (
    ABANDONED,
    DROPPED,
    JOB_TOPIC,
    STEP,
    UPDATE_TOPIC,
    Limits,
    Perform,
    Steps,
    Wait,
)
from dl4jlegacy.scaleout.protocol.frames import delete_frame, increment, read_frames, read_many, write_frame
from dl4jlegacy.scaleout.records import HEAD, MODEL_LOST, Failure, Head, JobRecord, Keys, decode_record, encode_record
from dl4jlegacy.scaleout.router import WorkRouter
from dl4jlegacy.scaleout.store import Buffer, Clock, Store, is_batch_store

__all__ = ["Worker", "extend_lease", "is_wanted", "worker_steps"]


BLOCK = 16
"""Records of jobs that are read at once in search of one that is free."""
AHEAD_NBYTES = 1 << 20
"""Data of such jobs that are fetched together."""
HINT = 0.01
"""Of a poll interval: so often others are told of commits, as long as there are more jobs to be had."""
FRESH = 0.1
"""Of a poll interval: for how long what was read of the head is new enough to take another job by."""


@dataclass(slots=True)
class Worker:
    """What a worker works with; ``name`` is unique to this incarnation."""

    name: str
    store: Store
    clock: Clock
    plan: Plan
    router: WorkRouter
    limits: Limits = field(default_factory=Limits)
    written: int = 0
    raw: Buffer | None = None
    head: Head | None = None
    """The head as last seen, and its bytes."""
    cursor: int | None = None
    """The slot to begin the search with: apart from where other workers begin, and behind one's last one."""
    closed: set[int] = field(default_factory=set)
    """Slots under this head that were seen done."""
    spare: list[tuple[int, JobRecord, Buffer]] = field(default_factory=list)
    """Jobs under this head that nobody had when they were last read."""
    fetched: dict[int, Buffer] = field(default_factory=dict)
    """The data of those, where they are small."""
    looked: float = float("-inf")
    """When the head was last read."""
    hinted: float = float("-inf")
    """When others were last told of a commit."""
    owes_hint: bool = False
    """Whether there was a commit since then."""

    def hint(self) -> None:
        """Tell others of what was committed."""
        self.hinted, self.owes_hint = self.clock.now(), False
        self.store.publish(UPDATE_TOPIC)

    def update_key(self, slot: tuple[int, int]) -> str:
        """Return a key below which this worker has not written yet."""
        self.written += 1
        return Keys.update(*slot, f"{self.name}.{self.written}")

    def sees(self, raw: Buffer | None) -> None:
        """Take note of the head's bytes, just read."""
        self.looked = self.clock.now()
        if raw != self.raw:
            self.raw, self.head = raw, None if raw is None else decode_record(raw, Head)
            self.closed.clear()
            self.spare.clear()
            self.fetched.clear()


class Claim(NamedTuple):
    """A job that is leased: its number, its record, and the record's bytes as they were written."""

    number: int
    record: JobRecord
    raw: bytes


def worker_steps(me: Worker) -> Steps[Head]:
    """Run a worker's part until the run has ended; return the last head seen."""
    model_key, model = "", None
    while True:
        claim = yield from _claim(me)
        if me.head is not None and me.head.status != "running":
            return me.head
        if claim is None or me.head is None:
            me.closed.clear()  # the master makes a slot ready again if its update is lost
            if me.owes_hint:
                me.hint()
            yield Wait(me.clock.now() + me.limits.poll)
            continue
        head, (number, record, _) = me.head, claim
        data = me.fetched.pop(number, None)
        wanted = [] if head.model.key == model_key else [head.model]
        lacking = [record.data] if record.data is not None and data is None else []
        frames = (yield from read_frames(me.store, [*wanted, *lacking])) if wanted or lacking else []
        if wanted:
            model_key, model = head.model.key, frames[0]
        data = frames[-1] if lacking else data
        if model is None or (record.data is not None and data is None):
            model_key = model_key if model is not None else ""
            yield from _cannot_read(me, number, record, lacks_model=model is None)
            yield Wait(me.clock.now() + me.limits.poll)
            continue
        result = yield Perform(me.plan.slot(*me.plan.at(number)), record, head.version, model, data)
        if result is None:
            yield from _give_back(me, number, record)
            yield Wait(me.clock.now() + me.limits.poll)  # whoever is stopping ends here, not with the next lease
        elif isinstance(result, Failure):
            yield from _report(me, number, record, result)
        elif result is not ABANDONED:
            yield from _commit(me, claim, result)


def is_wanted(router: WorkRouter, plan: Plan, head: Head, number: int, record: JobRecord) -> bool:
    """Whether a job's update would still count under this head."""
    if head.status != "running" or (router.binds_model and record.model != head.model.key):
        return False
    return number in router.open_slots(plan, head)


def _claim(me: Worker) -> Steps[Claim | None]:
    """Take a job that is ready by compare-and-set: first those that nobody has, then those of somebody slow or gone.

    Reads the head along with every block of records, and begins again if it is another than the last time. What else
    was free in a block is tried first the next time, until somebody else turns out to have been faster.
    """
    while True:
        claim = yield from _claim_spare(me)
        if claim is not None:
            return claim
        numbers = _search_order(me)
        second_hand: list[tuple[int, JobRecord, Buffer]] = []
        for start in range(0, max(1, len(numbers)), BLOCK):
            block = numbers[start : start + BLOCK]
            raws = yield from read_many(me.store, [HEAD, *(Keys.job(*me.plan.at(n)) for n in block)])
            is_same = raws[0] == me.raw
            me.sees(raws[0])
            if not is_same:
                break
            free = [] if me.head is None else _free(me, me.head, block, raws[1:])
            second_hand += [item for item in free if item[1].token]
            me.spare = [item for item in free if not item[1].token]
            while me.spare:
                if (claim := (yield from _lease(me, *me.spare.pop(0)))) is not None:
                    yield from _fetch_ahead(me, claim)
                    return claim
        else:
            for item in second_hand:
                if (claim := (yield from _lease(me, *item))) is not None:
                    return claim
            return None
        if me.head is None or me.head.status != "running":
            return None


def _claim_spare(me: Worker) -> Steps[Claim | None]:
    """Take a job that was free when it was last read; None if there is none, or the head is another.

    A job that is still ready belongs to an open round, so that the head need not be read for each: only now and then,
    for whether the run goes on, and where jobs go with whatever model is the newest.
    """
    if not me.spare:
        return None
    if not me.router.binds_model or me.clock.now() - me.looked > me.limits.poll * FRESH:
        me.sees((yield from read_many(me.store, [HEAD]))[0])
    claim = (yield from _lease(me, *me.spare.pop(0))) if me.spare else None
    if claim is None:
        me.spare.clear()
        me.fetched.clear()
    return claim


def _fetch_ahead(me: Worker, claim: Claim) -> Steps[None]:
    """Fetch the data of a claimed job, and of what else was free, if they are small and the store takes batches."""
    me.fetched.clear()
    records = [(claim.number, claim.record), *((number, record) for number, record, _ in me.spare)]
    wanted = [(number, record.data) for number, record in records if record.data is not None]
    if not is_batch_store(me.store) or sum(manifest.nbytes for _, manifest in wanted) > AHEAD_NBYTES:
        return
    frames = yield from read_frames(me.store, [manifest for _, manifest in wanted])
    me.fetched = {number: frame for (number, _), frame in zip(wanted, frames, strict=True) if frame is not None}


def _search_order(me: Worker) -> list[int]:
    if me.head is None:
        return []
    numbers = [n for n in me.router.open_slots(me.plan, me.head) if n not in me.closed]
    if not numbers:
        return []
    begin = zlib.crc32(me.name.encode()) if me.cursor is None else me.cursor - numbers[0]
    turn = begin % len(numbers)
    return [*numbers[turn:], *numbers[:turn]]


def _free(me: Worker, head: Head, block: list[int], raws: list[Buffer | None]) -> list[tuple[int, JobRecord, Buffer]]:
    """Return the jobs of a block that are ready; take note of those that are done."""
    model = head.model.key if me.router.binds_model else ""
    free = []
    for number, raw in zip(block, raws, strict=True):
        if raw is None:
            continue
        record = decode_record(raw, JobRecord)
        if record.state == "done" and record.model == model:
            me.closed.add(number)
        elif record.state == "ready" and record.model == model:
            free.append((number, record, raw))
    return free


def _lease(me: Worker, number: int, record: JobRecord, raw: Buffer) -> Steps[Claim | None]:
    now = me.clock.now()
    lease = msgspec.structs.replace(
        record, state="leased", token=record.token + 1, worker=me.name, since=now, deadline=now + me.limits.lease
    )
    new = encode_record(lease)
    yield STEP
    if not me.store.replace_if_same(Keys.job(*me.plan.at(number)), raw, new):
        return None
    me.cursor = number + 1
    return Claim(number, lease, new)


def _commit(me: Worker, claim: Claim, frame: Buffer) -> Steps[None]:
    """Make the slot done with this update, unless somebody else was first or the model has moved on.

    The commit goes against whatever the record says now: results are deterministic, so a late or overtaken worker may
    still be the first to finish. It may only never touch another model's record.
    """
    lease, slot = claim.record, me.plan.at(claim.number)
    manifest = yield from write_frame(me.store, me.update_key(slot), frame)
    record: JobRecord | None = lease
    raw: Buffer | None = claim.raw
    while raw is not None and record is not None and record.state != "done" and record.model == lease.model:
        done = msgspec.structs.replace(
            record,
            state="done",
            worker=me.name,
            since=lease.since,
            deadline=me.clock.now(),
            update=manifest,
            failure=None,
        )
        yield STEP
        if me.store.replace_if_same(Keys.job(*slot), raw, encode_record(done)):
            me.closed.add(claim.number)
            me.owes_hint = True
            if not me.spare or me.clock.now() - me.hinted > me.limits.poll * HINT:
                me.hint()
            return
        raw = (yield from read_many(me.store, [Keys.job(*slot)]))[0]
        record = None if raw is None else decode_record(raw, JobRecord)
    yield from delete_frame(me.store, manifest)
    yield from increment(me.store, DROPPED)


def _holds(record: JobRecord, lease: JobRecord) -> bool:
    """Whether a record still is under this very lease (its deadline may have been extended)."""
    return (record.state, record.token, record.worker) == ("leased", lease.token, lease.worker)


def _change_lease(me: Worker, number: int, lease: JobRecord, **changes: Any) -> Steps[bool]:
    """Change the record as long as it is under this lease; return whether it was."""
    key = Keys.job(*me.plan.at(number))
    while True:
        raw = (yield from read_many(me.store, [key]))[0]
        record = None if raw is None else decode_record(raw, JobRecord)
        if raw is None or record is None or not _holds(record, lease):
            return False
        yield STEP
        if me.store.replace_if_same(key, raw, encode_record(msgspec.structs.replace(record, **changes))):
            return True


def _give_back(me: Worker, number: int, lease: JobRecord) -> Steps[None]:
    """Return a job that was not performed."""
    yield from _change_lease(me, number, lease, state="ready", worker="")
    me.store.publish(JOB_TOPIC)
    me.store.publish(UPDATE_TOPIC)


def _cannot_read(me: Worker, number: int, lease: JobRecord, *, lacks_model: bool) -> Steps[None]:
    """Return a job whose model, or data, are not there: the master looks after the model, data are written anew."""
    if lacks_model:
        failure = Failure(MODEL_LOST, f"model {lease.model or 'version'} could not be read", me.name)
        yield from _change_lease(me, number, lease, state="failed", failure=failure)
    else:
        yield STEP
        me.store.delete(Keys.job(*me.plan.at(number)))
    me.store.publish(UPDATE_TOPIC)


def _report(me: Worker, number: int, lease: JobRecord, failure: Failure) -> Steps[None]:
    """Record that the job failed here, and why; the master decides whether it is tried again."""
    attempts = lease.attempts + 1
    yield from _change_lease(me, number, lease, state="failed", failure=failure, attempts=attempts)
    me.store.publish(UPDATE_TOPIC)


def extend_lease(me: Worker, slot: SlotPlan, lease: JobRecord) -> Steps[bool]:
    """Move the lease's deadline; False when the lease is lost. Runs apart from the computation."""
    deadline = me.clock.now() + me.limits.lease
    return (yield from _change_lease(me, me.plan.number(slot.round, slot.slot), lease, deadline=deadline))
