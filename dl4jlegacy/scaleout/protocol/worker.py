"""The worker's part: claim a job under a lease, perform it, commit its update; and the heartbeat's lease extension."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from dl4jlegacy.scaleout.plan import Plan, SlotPlan
from dl4jlegacy.scaleout.protocol.events import DROPPED, JOB_TOPIC, STEP, UPDATE_TOPIC, Limits, Perform, Steps, Wait
from dl4jlegacy.scaleout.protocol.frames import delete_frame, increment, read_frame, write_frame
from dl4jlegacy.scaleout.records import HEAD, Failure, Head, JobRecord, Keys, decode_record, encode_record
from dl4jlegacy.scaleout.router import WorkRouter
from dl4jlegacy.scaleout.store import Buffer, Clock, Store

__all__ = ["Worker", "extend_lease", "worker_steps"]


@dataclass(slots=True)
class Worker:
    """What a worker works with; ``name`` is unique to this incarnation."""

    name: str
    store: Store
    clock: Clock
    plan: Plan
    router: WorkRouter
    limits: Limits = field(default_factory=Limits)
    offset: int = 0
    written: int = 0

    def update_key(self, slot: tuple[int, int]) -> str:
        """Return a key below which this worker has not written yet."""
        self.written += 1
        return Keys.update(*slot, f"{self.name}.{self.written}")


def worker_steps(me: Worker) -> Steps[Head]:
    """Run a worker's part until the run has ended; return the last head seen."""
    model_key, model = "", None
    while True:
        yield STEP
        raw = me.store.get(HEAD)
        if raw is None:
            yield Wait(me.clock.now() + me.limits.poll)
            continue
        head = decode_record(raw, Head)
        if head.status != "running":
            return head
        claim = yield from _claim(me, head)
        if claim is None:
            yield Wait(me.clock.now() + me.limits.poll)
            continue
        number, record = claim
        if head.model.key != model_key or model is None:
            model_key, model = head.model.key, (yield from read_frame(me.store, head.model))
        data = None
        if record.data is not None:
            data = yield from read_frame(me.store, record.data)
        if model is None or (record.data is not None and data is None):
            yield from _give_back(me, number, record, drop_data=data is None)
            yield Wait(me.clock.now() + me.limits.poll)
            continue
        slot = me.plan.slot(*me.plan.at(number))
        result = yield Perform(slot, record, head.version, model, data)
        if result is None:
            yield from _give_back(me, number, record)
            yield Wait(me.clock.now() + me.limits.poll)  # whoever is stopping ends here, not with the next lease
        elif isinstance(result, Failure):
            yield from _report(me, number, record, result)
        else:
            yield from _commit(me, number, record, result)


def _claim(me: Worker, head: Head) -> Steps[tuple[int, JobRecord] | None]:
    """Take a job that is ready, or whose lease ran out, by compare-and-set."""
    numbers = me.router.open_slots(me.plan, head)
    model = head.model.key if me.router.binds_model else ""
    turn = me.offset % len(numbers) if numbers else 0
    for number in [*numbers[turn:], *numbers[:turn]]:
        key = Keys.job(*me.plan.at(number))
        yield STEP
        raw = me.store.get(key)
        if raw is None:
            continue
        record = decode_record(raw, JobRecord)
        now = me.clock.now()
        free = record.state == "ready" or (record.state == "leased" and record.deadline < now)
        if not free or record.model != model:
            continue
        lease = msgspec.structs.replace(
            record, state="leased", token=record.token + 1, worker=me.name, since=now, deadline=now + me.limits.lease
        )
        yield STEP
        if me.store.replace_if_same(key, raw, encode_record(lease)):
            return number, lease
    return None


def _commit(me: Worker, number: int, lease: JobRecord, frame: Buffer) -> Steps[None]:
    """Make the slot done with this update, unless somebody else was first or the model has moved on.

    The commit goes against whatever the record says now: results are deterministic, so a late or overtaken worker may
    still be the first to finish. It may only never touch another model's record.
    """
    slot = me.plan.at(number)
    manifest = yield from write_frame(me.store, me.update_key(slot), frame)
    while True:
        yield STEP
        raw = me.store.get(Keys.job(*slot))
        record = None if raw is None else decode_record(raw, JobRecord)
        if raw is None or record is None or record.state == "done" or record.model != lease.model:
            break
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
            me.store.publish(UPDATE_TOPIC)
            return
    yield from delete_frame(me.store, manifest)
    yield from increment(me.store, DROPPED)


def _holds(record: JobRecord, lease: JobRecord) -> bool:
    """Whether a record still is under this very lease (its deadline may have been extended)."""
    return (record.state, record.token, record.worker) == ("leased", lease.token, lease.worker)


def _change_lease(me: Worker, number: int, lease: JobRecord, **changes: Any) -> Steps[bool]:
    """Change the record as long as it is under this lease; return whether it was."""
    key = Keys.job(*me.plan.at(number))
    while True:
        yield STEP
        raw = me.store.get(key)
        record = None if raw is None else decode_record(raw, JobRecord)
        if raw is None or record is None or not _holds(record, lease):
            return False
        yield STEP
        if me.store.replace_if_same(key, raw, encode_record(msgspec.structs.replace(record, **changes))):
            return True


def _give_back(me: Worker, number: int, lease: JobRecord, *, drop_data: bool = False) -> Steps[None]:
    """Return a job that was not performed. With ``drop_data`` the record goes too, and the data are written anew."""
    if drop_data and lease.data is not None:
        yield STEP
        me.store.delete(Keys.job(*me.plan.at(number)))
    else:
        yield from _change_lease(me, number, lease, state="ready", worker="")
    me.store.publish(JOB_TOPIC)
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
