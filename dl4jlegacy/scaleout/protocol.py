"""The run protocol as step functions over a store and a clock: no threads, no sleeps, no input or output of its own.

A role is a generator. ``yield STEP`` stands before every store operation: a point where the process may be killed,
frozen or overtaken. What a role needs from its surroundings it yields as an event (``Wait``, ``MoreWork``, ``NewModel``,
``Perform``). Actors drive these generators in earnest; the tests' simulator drives the same ones under a seeded
scheduler with a virtual clock.

The safety of a run rests on one thing: the head changes only by compare-and-set, each head computed from the one
before. Whoever wins that step has closed the round; everything else is immutable or can be derived again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from dl4jlegacy import wire
from dl4jlegacy.scaleout.aggregate import JobAggregator
from dl4jlegacy.scaleout.plan import Plan, SlotPlan
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

__all__ = [
    "DROPPED",
    "HEAD_TOPIC",
    "JOB_TOPIC",
    "STEP",
    "UPDATE_TOPIC",
    "Event",
    "Limits",
    "MoreWork",
    "NewModel",
    "Perform",
    "Steps",
    "Wait",
    "extend_lease",
    "issue_jobs",
    "master",
    "read_frame",
    "worker",
    "write_frame",
]

STEP = None
HEAD_TOPIC, JOB_TOPIC, UPDATE_TOPIC = "head", "job", "update"
DROPPED = "counter/updates_dropped"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until ``until`` (clock seconds), unless a hint comes first."""

    until: float


@dataclass(frozen=True, slots=True)
class MoreWork:
    """The jobs with these numbers belong to ``head`` and want to be issued."""

    head: Head
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NewModel:
    """``head`` is current and its model is ``frame``; the moment to save a checkpoint. ``last`` ends the run."""

    head: Head
    frame: Buffer
    last: bool = False


@dataclass(frozen=True, slots=True)
class Perform:
    """A job to perform; send back the update's frame, a ``Failure``, or None to give the lease back."""

    plan: SlotPlan
    record: JobRecord
    version: int
    model: Buffer
    data: Buffer | None


Event = Wait | MoreWork | NewModel | Perform | None
Steps = Generator[Event, Any, T]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The deadlines of a run, in seconds, and how often things are tried."""

    lease: float = 30.0
    poll: float = 0.5
    attempts: int = 3
    straggler_factor: float = 6.0
    straggler_least: float = 5.0


# --- frames: big values as chunks under a manifest ------------------------------------------------------------------


def write_frame(store: Store, key: str, frame: Buffer) -> Steps[Manifest]:
    """Write a frame's chunks below ``key``, which nobody else writes, and return their manifest."""
    chunks = wire.chunks(frame, store.chunk_nbytes)
    for index, chunk in enumerate(chunks):
        yield STEP
        store.put(f"{key}/{index}", chunk)
    return Manifest(key, len(chunks), len(frame), wire.digest(frame) if store.checksums else "")


def read_frame(store: Store, manifest: Manifest) -> Steps[Buffer | None]:
    """Return the frame of a manifest, or None if a chunk is missing or damaged."""
    chunks: list[Buffer] = []
    for index in range(manifest.chunks):
        yield STEP
        chunk = store.get(f"{manifest.key}/{index}")
        if chunk is None:
            return None
        chunks.append(chunk)
    frame = wire.join(chunks)
    if len(frame) != manifest.nbytes or (manifest.digest and wire.digest(frame) != manifest.digest):
        return None
    return frame


def delete_frame(store: Store, manifest: Manifest) -> Steps[None]:
    """Remove a frame's chunks."""
    for index in range(manifest.chunks):
        yield STEP
        store.delete(f"{manifest.key}/{index}")


def increment(store: Store, key: str, by: int = 1) -> Steps[None]:
    """Add to a counter by compare-and-set."""
    while True:
        yield STEP
        raw = store.get(key)
        yield STEP
        if raw is None:
            if store.put_if_absent(key, str(by).encode()):
                return
        elif store.replace_if_same(key, raw, str(int(bytes(raw)) + by).encode()):
            return


# --- the head --------------------------------------------------------------------------------------------------------


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


def master(me: Master) -> Steps[Head]:
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
    """Return the record made ready again if its lease ran out, its model is not the head's, or it failed but may not."""
    model = head.model.key if me.router.binds_model else ""
    now = me.clock.now()
    if record.model != model:  # left over from a history that a loss undid
        return JobRecord(state="ready", model=model, token=record.token, data=record.data)
    if record.state == "leased" and (record.deadline < now or record.since + _patience(me) < now):
        return msgspec.structs.replace(record, state="ready", worker="")
    if record.state == "failed" and record.failure is not None:
        if not record.failure.fatal and record.attempts < me.limits.attempts:
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


def sweep(store: Store, head: Head) -> Steps[None]:
    """Delete the keys that no one can need any more, whoever left them behind."""
    for kind in ("job/", "data/", "update/", "model/"):
        yield STEP
        for key in store.keys(kind):
            if Keys.is_useless(key, head):
                yield STEP
                store.delete(key)


# --- the batch side --------------------------------------------------------------------------------------------------


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


# --- the worker ------------------------------------------------------------------------------------------------------


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


def worker(me: Worker) -> Steps[Head]:
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
            record, state="done", worker=me.name, since=lease.since, deadline=me.clock.now(), update=manifest, failure=None
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
    """Return a job that was not performed. With ``drop_data`` the record goes too, so that the data are written anew."""
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
