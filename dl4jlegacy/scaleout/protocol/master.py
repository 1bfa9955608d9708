"""The master's part: begin or restore, issue, watch, fold, close; and the batch side, which puts the jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from dl4jlegacy.scaleout.aggregate import JobAggregator
from dl4jlegacy.scaleout.plan import Plan, SlotPlan
from dl4jlegacy.scaleout.protocol.events import (
    DROPPED,
    HEAD_TOPIC,
    JOB_TOPIC,
    STEP,
    Limits,
    MoreWork,
    NewModel,
    Steps,
    Wait,
)
from dl4jlegacy.scaleout.protocol.frames import delete_frame, read_frame, sweep, write_frame
from dl4jlegacy.scaleout.records import (
    HEAD,
    Failure,
    Head,
    JobRecord,
    Keys,
    Manifest,
    advance,
    decode_record,
    encode_record,
)
from dl4jlegacy.scaleout.router import WorkRouter
from dl4jlegacy.scaleout.store import Buffer, Clock, Store

__all__ = ["Begin", "Master", "issue_jobs", "master_steps"]


@dataclass(slots=True)
class Begin:
    """How a run starts, or starts again when the store lost its head or model.

    ``first_model()`` is version 0, a pure function of the Conf; ``restore()`` the newest good checkpoint or None.
    """

    run: str
    first_model: Callable[[], Buffer]
    restore: Callable[[], tuple[Head, Buffer] | None]


@dataclass(slots=True)
class Master:
    """What a master works with; ``name`` is unique to this incarnation."""

    name: str
    store: Store
    clock: Clock
    plan: Plan
    router: WorkRouter
    aggregator: JobAggregator
    begin: Begin
    limits: Limits = field(default_factory=Limits)
    written: int = 0
    durations: list[float] = field(default_factory=list)

    def model_key(self, version: int) -> str:
        """Return a key below which this master has not written yet."""
        self.written += 1
        return Keys.model(version, f"{self.name}.{self.written}")


def master_steps(me: Master) -> Steps[Head]:
    """Run the master's part until the run has ended; return the last head. The frame goes out with ``NewModel``."""
    store, plan = me.store, me.plan
    while True:
        yield STEP
        raw = store.get(HEAD)
        if raw is None:
            yield from _begin(me, None)
            continue
        head = decode_record(raw, Head)
        if head.status in ("failed", "stopped"):
            return head
        model = yield from read_frame(store, head.model)
        if model is None:  # lost; a checkpoint, or the first model, is as good: the rounds since are done again
            yield from _begin(me, raw)
            continue
        if head.round >= plan.total_rounds:
            head = yield from _finish(me, head, raw)
            if head.status == "running":
                continue
            yield NewModel(head, model, last=True)
            return head
        yield from sweep(store, head)
        numbers = me.router.open_slots(plan, head)
        yield MoreWork(head, tuple(numbers))
        done = yield from _watch(me, head, raw, numbers)
        if done is not None:
            yield from _close(me, head, raw, model, done)


def _begin(me: Master, expected: Buffer | None) -> Steps[None]:
    """Write the head: from the newest checkpoint, else version 0. Only if it is still absent, or as ``expected``."""
    restored = me.begin.restore()
    if restored is None:
        head = Head(run=me.begin.run, version=0, round=0, model=Manifest("", 0, 0))
        frame = me.begin.first_model()
    else:
        head, frame = restored
    manifest = yield from write_frame(me.store, me.model_key(head.version), frame)
    new = encode_record(msgspec.structs.replace(head, model=manifest, status="running"))
    yield STEP
    if expected is None:
        me.store.put_if_absent(HEAD, new)
    else:
        me.store.replace_if_same(HEAD, expected, new)
    me.store.publish(HEAD_TOPIC)


def _finish(me: Master, head: Head, raw: Buffer) -> Steps[Head]:
    """Set the status to done; return the head as it is then."""
    if head.status == "done":
        return head
    done = msgspec.structs.replace(head, status="done")
    yield STEP
    if not me.store.replace_if_same(HEAD, raw, encode_record(done)):
        return head
    me.store.publish(HEAD_TOPIC)
    return done


def _watch(me: Master, head: Head, raw: Buffer, numbers: Sequence[int]) -> Steps[list[tuple[int, Buffer]] | None]:
    """Wait until the router has updates to fold; return them in slot order, or None when the head has changed."""
    records: dict[int, JobRecord] = {}
    while True:
        yield STEP
        if me.store.get(HEAD) != raw:
            return None
        missing = yield from _look(me, head, numbers, records)
        failed = next((r for r in records.values() if r.state == "failed"), None)
        if failed is not None and failed.failure is not None:
            yield from _fail(me, head, raw, failed.failure)
            return None
        done = {n: r for n, r in records.items() if r.state == "done"}
        chosen = me.router.send_work(numbers, done)
        if chosen:
            updates = yield from _collect(me, chosen, records)
            if updates is not None:
                return updates
        elif missing:
            yield MoreWork(head, tuple(missing))
            yield Wait(me.clock.now() + me.limits.poll)
        else:
            yield Wait(_next_deadline(me, records))


def _look(me: Master, head: Head, numbers: Sequence[int], records: dict[int, JobRecord]) -> Steps[list[int]]:
    """Read the records of the open slots again, put right what is wrong with them; return the missing ones."""
    missing = []
    for number in numbers:
        if number in records and records[number].state == "done":
            continue
        key = Keys.job(*me.plan.at(number))
        yield STEP
        raw = me.store.get(key)
        if raw is None:
            missing.append(number)
            records.pop(number, None)
            continue
        record = decode_record(raw, JobRecord)
        again = _reissued(me, head, record)
        if again is not None:
            yield STEP
            if not me.store.replace_if_same(key, raw, encode_record(again)):
                records.pop(number, None)  # somebody else was there; look again the next time round
                continue
            me.store.publish(JOB_TOPIC)
            record = again
        elif record.state == "done":
            me.durations = [*me.durations[-63:], record.deadline - record.since]
        records[number] = record
    return missing


def _reissued(me: Master, head: Head, record: JobRecord) -> JobRecord | None:
    """Return the record made ready again if its lease ran out, its model is not the head's, or it may be retried."""
    model = head.model.key if me.router.binds_model else ""
    now = me.clock.now()
    if record.model != model:  # left over from a history that a loss undid
        return JobRecord(state="ready", model=model, token=record.token, data=record.data)
    if record.state == "leased" and (record.deadline < now or record.since + _patience(me) < now):
        return msgspec.structs.replace(record, state="ready", worker="")
    is_retried = record.failure is not None and not record.failure.fatal and record.attempts < me.limits.attempts
    if record.state == "failed" and is_retried:
        return msgspec.structs.replace(record, state="ready", worker="", failure=None)
    return None


def _patience(me: Master) -> float:
    """Seconds after which a slot is handed to a second worker: median + k x MAD of recent ones."""
    if len(me.durations) < 8:
        return float("inf")
    middle = sorted(me.durations)[len(me.durations) // 2]
    spread = sorted(abs(d - middle) for d in me.durations)[len(me.durations) // 2]
    return max(middle + me.limits.straggler_factor * spread, me.limits.straggler_least)


def _next_deadline(me: Master, records: dict[int, JobRecord]) -> float:
    leases = [r.deadline for r in records.values() if r.state == "leased"]
    return min([me.clock.now() + me.limits.poll, *leases])


def _collect(
    me: Master, numbers: Sequence[int], records: dict[int, JobRecord]
) -> Steps[list[tuple[int, Buffer]] | None]:
    """Load the updates in slot order; one that is not there any more makes its slot ready again."""
    updates: list[tuple[int, Buffer]] = []
    for number in numbers:
        record = records[number]
        frame = None if record.update is None else (yield from read_frame(me.store, record.update))
        if frame is None:
            again = msgspec.structs.replace(record, state="ready", worker="", update=None)
            yield STEP
            me.store.replace_if_same(Keys.job(*me.plan.at(number)), encode_record(record), encode_record(again))
            me.store.publish(JOB_TOPIC)
            del records[number]
            return None
        updates.append((number, frame))
    return updates


def _close(me: Master, head: Head, raw: Buffer, model: Buffer, updates: list[tuple[int, Buffer]]) -> Steps[None]:
    """Fold the updates into the next model version and make it current: the one moment at which they count."""
    yield STEP
    dropped = me.store.get(DROPPED)
    late = max(head.updates_dropped, int(bytes(dropped)) if dropped else 0)
    new = advance(head, me.plan, [number for number, _ in updates], updates_dropped=late)
    ends_phase = new.round < me.plan.total_rounds and me.plan.phase_of(new.round) != me.plan.phase_of(head.round)
    frame, score = me.aggregator.aggregate(
        model, [update for _, update in updates], version=head.version, ends_phase=ends_phase
    )
    manifest = yield from write_frame(me.store, me.model_key(new.version), frame)
    new = msgspec.structs.replace(new, model=manifest, score=score)
    yield STEP
    if me.store.replace_if_same(HEAD, raw, encode_record(new)):
        me.store.publish(HEAD_TOPIC)
        yield NewModel(new, frame)
    else:
        yield from delete_frame(me.store, manifest)


def _fail(me: Master, head: Head, raw: Buffer, failure: Failure) -> Steps[None]:
    """End the run with a job's failure."""
    yield STEP
    me.store.replace_if_same(HEAD, raw, encode_record(msgspec.structs.replace(head, status="failed", failure=failure)))
    me.store.publish(HEAD_TOPIC)


def issue_jobs(
    store: Store, plan: Plan, work: MoreWork, *, binds_model: bool, load: Callable[[SlotPlan], Buffer] | None
) -> Steps[None]:
    """Put the records of the slots in ``work`` that have none; ``load`` gives a slot's data when they go by value."""
    model = work.head.model.key if binds_model else ""
    for number in work.numbers:
        slot = plan.slot(*plan.at(number))
        key = Keys.job(slot.round, slot.slot)
        yield STEP
        if store.get(key) is not None:
            continue
        data = None
        if load is not None:
            data = yield from write_frame(store, Keys.data(slot.round, slot.slot), load(slot))
        yield STEP
        store.put_if_absent(key, encode_record(JobRecord(state="ready", model=model, data=data)))
    store.publish(JOB_TOPIC)
