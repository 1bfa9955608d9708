"""The worker's role: lease a job, perform it, commit its update; and the lease extension of the heartbeat."""

from __future__ import annotations

import contextlib
import zlib
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import msgspec

from dl4jlegacy.clock import Clock
from dl4jlegacy.errors import WireError
from dl4jlegacy.scaleout.aggregate import JobAggregator
from dl4jlegacy.scaleout.copies import StateCopies
from dl4jlegacy.scaleout.mesh.messages import Messages
from dl4jlegacy.scaleout.phases import NO_PHASES, Phases
from dl4jlegacy.scaleout.plan import Plan, SlotPlan
from dl4jlegacy.scaleout.protocol.events import (
    ABANDONED,
    DROPPED,
    JOB_TOPIC,
    STEP,
    UPDATE_TOPIC,
    Limits,
    Perform,
    Performed,
    Steps,
    Wait,
)
from dl4jlegacy.scaleout.protocol.failures import add_failure
from dl4jlegacy.scaleout.protocol.frames import (
    delete_many,
    increment,
    keys_of,
    parse_record,
    read_frames,
    read_many,
    write_frame,
    write_slices,
)
from dl4jlegacy.scaleout.protocol.inputs import Claim, HeldState, Lost, Ready, WorkerMemory, prepare
from dl4jlegacy.scaleout.protocol.log import SharedModels
from dl4jlegacy.scaleout.protocol.parameter_servers import Server, serve
from dl4jlegacy.scaleout.records import (
    HEAD,
    MODEL_LOST,
    Failure,
    Head,
    JobRecord,
    Keys,
    Manifest,
    encode_record,
)
from dl4jlegacy.scaleout.store import Buffer, Store, is_batch_store
from dl4jlegacy.scaleout.strategies import WorkRouter, router_of, serving

__all__ = ["Worker", "extend_lease", "is_wanted", "worker_steps"]


BLOCK = 16
"""Number of job records read at once when searching for a free job."""
AHEAD_NBYTES = 1 << 20
"""The data of free jobs is fetched together if it has at most this size."""
HINT = 0.01
"""Fraction of a poll interval: commits are announced at most this often while more jobs are free."""
FRESH = 0.1
"""Fraction of a poll interval: how long a head stays recent enough to lease another job without reading it again."""
FEW_BLOCKS = 2
"""Up to this many blocks are searched completely. Of more blocks only the last record of each is read, and all records
once per poll interval."""


Free = tuple[int, JobRecord, Buffer]
"""A job that is ready: its number, its record, and the record's bytes."""


@dataclass(slots=True)
class Worker:
    """The state of a worker; ``name`` is unique to this process and run. ``aggregator`` is that of its masters."""

    name: str
    store: Store
    clock: Clock
    plan: Plan
    router: WorkRouter
    _: KW_ONLY
    aggregator: JobAggregator
    limits: Limits = field(default_factory=Limits)
    phases: Phases = NO_PHASES
    models: SharedModels = field(default_factory=SharedModels)
    """Of this process: its workers, and its master if there is one."""
    messages: Messages | None = None
    copies: StateCopies | None = None
    block: int = BLOCK
    written: int = 0
    raw: Buffer | None = None
    head: Head | None = None
    """The head as last read; ``raw`` has its bytes."""
    cursor: int | None = None
    """The job at which the search begins: of another slot for each worker, then after the last leased job."""
    home: tuple[int, int] | None = None
    """The first job leased in a round, as round and slot: that slot is the first to be tried in the next round, too, so
    that a worker reads the same part of the data."""
    closed: set[int] = field(default_factory=set)
    """Slots of this head that are known to be done."""
    spare: list[Free] = field(default_factory=list)
    """Jobs of this head that were never leased when they were last read."""
    second_hand: list[Free] = field(default_factory=list)
    """Ready jobs of this head that were leased before."""
    fetched: dict[int, Buffer] = field(default_factory=dict)
    """Data of spare jobs, fetched in advance if it is small."""
    overtaken: bool = False
    """Whether another worker took a spare job; then the following jobs are probably taken too."""
    looked: float = float("-inf")
    """When the head was last read."""
    hinted: float = float("-inf")
    """When a commit was last announced."""
    owes_hint: bool = False
    """Whether there was a commit since then."""
    searched: float = float("-inf")
    """When all records of a head were last searched without success."""
    seen: dict[int, float] = field(default_factory=dict)
    """When a job of this head was first seen that is reserved for another worker."""
    memory: WorkerMemory = field(init=False)

    def __post_init__(self) -> None:
        self.memory = WorkerMemory(
            self.name,
            self.store,
            self.plan,
            self.router,
            self.aggregator,
            phases=self.phases,
            models=self.models,
            messages=self.messages,
            copies=self.copies,
        )

    def hint(self) -> None:
        """Announce the commits."""
        self.hinted, self.owes_hint = self.clock.now(), False
        self.store.publish(UPDATE_TOPIC)

    def writer(self) -> str:
        """Return the part of a key that this worker has not used yet."""
        self.written += 1
        return f"{self.name}.{self.written}"

    def update_head(self, raw: Buffer | None) -> None:
        """Take the bytes of the head, which was just read."""
        self.looked = self.clock.now()
        if raw != self.raw:
            self.raw, self.head = raw, parse_record(self.store, HEAD, raw, Head)
            self.closed.clear()
            self.seen.clear()
            self.spare.clear()
            self.fetched.clear()


def worker_steps(me: Worker) -> Steps[Head]:
    """Run a worker's role until the run has ended, or this worker is set aside; return the last head seen."""
    while True:
        searching = me.phases.begin()
        claim = yield from _claim(me)
        if me.head is not None and (me.head.status != "running" or me.name in me.head.set_aside):
            if claim is not None:
                yield from _give_back(me, claim.number, claim.record)
            return me.head
        if claim is None or me.head is None:
            if me.owes_hint:
                me.hint()
            if me.head is not None and (yield from serve(me.memory, me.head, Server(me.clock, me.limits, me.writer))):
                continue
            with me.phases.phase("WorkerWait"):
                yield Wait(me.searched + me.limits.poll)
            continue
        head, (number, record, _, _) = me.head, claim
        searching.end("WorkerGetJob", me.plan.at(number))
        result, begins = (yield from prepare(me.memory, head, claim, me.fetched.pop(number, None))), ""
        if isinstance(result, Ready):
            if result.replayed:
                claim = result.claim._replace(since=me.clock.now())
            begins = result.begins
            plan = me.plan.slot(*me.plan.at(number))
            result = yield Perform(plan, record, head.version, result.model, result.data, result.state)
        if isinstance(result, Lost):
            yield from _cannot_read(me, claim, head, result.text)
            yield Wait(me.clock.now() + me.limits.poll)
        elif result is None:
            yield from _give_back(me, number, record)
            yield Wait(me.clock.now() + me.limits.poll)  # a worker that is stopping ends here, before the next lease
        elif isinstance(result, Failure):
            yield from _report(me, number, record, result)
        elif result is not ABANDONED:
            with me.phases.phase("WorkerSend", me.plan.at(number)):
                yield from _commit(me, claim, result, head, begins)


def is_wanted(router: WorkRouter, plan: Plan, head: Head, number: int, record: JobRecord) -> bool:
    """Return whether a job's update would still count under this head."""
    binds = router_of(router, plan, head).binds_model
    if head.status != "running" or (binds and record.model != head.identity):
        return False
    return number in router.open_slots(plan, head)


def _claim(me: Worker) -> Steps[Claim | None]:
    """Lease a ready job by compare-and-set: jobs that were never leased first, then those that are reissued.

    Reads the head together with every block of records, and starts again if the head has changed. The other free jobs
    of a block are tried first at the next call, until another worker was faster. If there are many blocks, one record
    of each shows where to continue.
    """
    while True:
        claim = yield from _claim_spare(me)
        if claim is not None:
            return claim
        raw, blocks, whole = me.raw, _search_order(me), True
        me.second_hand.clear()
        if len(blocks) <= FEW_BLOCKS:
            claim = yield from _claim_in(me, blocks)
        else:
            claim = yield from _claim_in(me, [] if me.overtaken else blocks[:1])
            if claim is None and me.raw is raw:
                whole = me.clock.now() - me.searched >= me.limits.poll
                free = yield from _look(me, [block[-1] for block in blocks])
                claim = yield from _claim_in(me, _promising(blocks, free) + (blocks if whole else []))
        me.overtaken = False
        me.second_hand.sort(key=lambda free: _own_failures(me, free[1]))  # first what it has not failed at
        while claim is None and me.raw is raw and me.second_hand:
            claim = yield from _lease(me, *me.second_hand.pop(0))
        if claim is not None:
            return claim
        if me.raw is raw:
            if whole:
                me.searched = me.clock.now()
                me.closed.clear()  # the master reopens a slot if its update is lost
            return None
        if me.head is None or me.head.status != "running":
            return None


def _claim_in(me: Worker, blocks: list[list[int]]) -> Steps[Claim | None]:
    """Lease a job that was never leased from one of the blocks; None if there is none or the head has changed."""
    raw = me.raw
    for block in blocks:
        free = yield from _look(me, block)
        if me.raw is not raw:
            return None
        me.second_hand += [item for item in free if item[1].token]
        me.spare = [item for item in free if not item[1].token]
        while me.spare:
            if (claim := (yield from _lease(me, *me.spare.pop(0)))) is not None:
                yield from _fetch_ahead(me, claim)
                return claim
    return None


def _promising(blocks: list[list[int]], free: list[Free]) -> list[list[int]]:
    """Return the blocks whose last job is free, starting in the middle of the longest sequence of such blocks.

    The worker that owns a sequence takes jobs from its front. A newcomer takes the second half, where they do not meet.
    """
    numbers = {number for number, _, _ in free}
    runs: list[list[list[int]]] = [[]]
    for block in blocks:
        if block[-1] in numbers:
            runs[-1].append(block)
        elif runs[-1]:
            runs.append([])
    longest = max(runs, key=len)
    half = len(longest) // 2
    others = [block for run in runs if run is not longest for block in run]
    return [*longest[half:], *longest[:half], *others]


def _look(me: Worker, numbers: list[int]) -> Steps[list[Free]]:
    """Read the head and some job records; return the ready jobs, or none if the head has changed."""
    raw = me.raw
    raws = yield from read_many(me.store, [HEAD, *(Keys.job(*me.plan.at(n)) for n in numbers)])
    me.update_head(raws[0])
    return [] if me.head is None or me.raw is not raw else _free(me, me.head, numbers, raws[1:])


def _claim_spare(me: Worker) -> Steps[Claim | None]:
    """Lease a job that was free when it was last read; None if there is none or the head has changed.

    A job that is still ready belongs to an open round, so the head is not read for each job: only now and then, to see
    whether the run continues, and always if jobs are not bound to a model version.
    """
    if not me.spare:
        return None
    if not _binds_model(me) or me.clock.now() - me.looked > me.limits.poll * FRESH:
        me.update_head((yield from read_many(me.store, [HEAD]))[0])
    claim = (yield from _lease(me, *me.spare.pop(0))) if me.spare else None
    if claim is None:
        me.overtaken = True
        me.spare.clear()
        me.fetched.clear()
    return claim


def _fetch_ahead(me: Worker, claim: Claim) -> Steps[None]:
    """Fetch the data of a claimed job and of the spare jobs, if it is small and the store supports batches."""
    me.fetched.clear()
    records = [(claim.number, claim.record), *((number, record) for number, record, _ in me.spare)]
    wanted = [(number, record.data) for number, record in records if record.data is not None]
    if not is_batch_store(me.store) or sum(manifest.nbytes for _, manifest in wanted) > AHEAD_NBYTES:
        return
    frames = yield from read_frames(me.store, [manifest for _, manifest in wanted])
    me.fetched = {number: frame for (number, _), frame in zip(wanted, frames, strict=True) if frame is not None}


def _search_order(me: Worker) -> list[list[int]]:
    """Return the open slots in blocks, in the order of the search; at least one block, possibly empty."""
    numbers = [] if me.head is None else [n for n in me.router.open_slots(me.plan, me.head) if n not in me.closed]
    if not numbers:
        return [[]]
    if (home := _home(me, numbers)) is not None:
        me.cursor = home
    elif me.cursor is None or not numbers[0] <= me.cursor <= numbers[-1]:
        me.cursor = numbers[zlib.crc32(f"{me.name} {numbers[0]}".encode()) % len(numbers)]
    turn = bisect_left(numbers, me.cursor)
    numbers = [*numbers[turn:], *numbers[:turn]]
    if states := me.memory.states:  # first the slots whose state need not be read
        numbers.sort(key=lambda number: me.plan.at(number)[1] not in states)
    return [numbers[start : start + me.block] for start in range(0, len(numbers), me.block)]


def _home(me: Worker, numbers: list[int]) -> int | None:
    """Return the job at which the search of a new round begins; None: it has begun, or jobs of several are open."""
    round_ = me.plan.at(numbers[0])[0]
    if me.home is None or me.home[0] == round_ or me.plan.at(numbers[-1])[0] != round_:
        return None
    found = me.plan.number(round_, me.home[1])
    return found if numbers[0] <= found <= numbers[-1] else None


def _free(me: Worker, head: Head, block: list[int], raws: list[Buffer | None]) -> list[Free]:
    """Return the ready jobs of a block; add the done jobs to ``me.closed``."""
    model = head.identity if _binds_model(me) else ""
    found: dict[int, JobRecord] = {}
    for number, raw in zip(block, raws, strict=True):
        record = parse_record(me.store, Keys.job(*me.plan.at(number)), raw, JobRecord)
        if record is not None and record.model == model:
            found[number] = record
    me.closed |= {number for number, record in found.items() if record.state == "done"}
    own = {record.home: number for number, record in sorted(found.items(), reverse=True)}
    ready = {number for number, record in found.items() if record.state == "ready"}
    return [
        (number, found[number], raw)
        for number, raw in zip(block, raws, strict=True)
        if raw is not None and number in ready and _may_take(me, number, found[number], own)
    ]


def _may_take(me: Worker, number: int, record: JobRecord, own: Mapping[str, int]) -> bool:
    """Return whether this worker may take a job that is ready: it has not failed too often, and it is not reserved."""
    return _own_failures(me, record) < me.limits.attempts and not _is_reserved(me, number, record, own)


def _is_reserved(me: Worker, number: int, record: JobRecord, own: Mapping[str, int]) -> bool:
    """Return whether a job is left to the worker that has its slot's state, which is sooner done with it.

    If that has the states of several slots, its ``own`` is the first of them; the others are anybody's who finds copies
    of them, or one worker would do the jobs of two slots for as long as another one has nothing to do.
    """
    if record.home in ("", me.name):
        return False
    if own[record.home] != number and me.copies is not None and me.copies.is_near(record.home):
        return False
    now = me.clock.now()
    return now - me.seen.setdefault(number, now) < record.reserved


def _binds_model(me: Worker) -> bool:
    """Return whether the jobs of the head must start from its model version."""
    return me.head is not None and router_of(me.router, me.plan, me.head).binds_model


def _own_failures(me: Worker, record: JobRecord) -> int:
    """Return how often this worker has failed at a job."""
    return sum(failure.worker == me.name for failure in record.failures)


def _lease(me: Worker, number: int, record: JobRecord, raw: Buffer) -> Steps[Claim | None]:
    since = me.clock.now()
    lease = msgspec.structs.replace(
        record, state="leased", token=record.token + 1, worker=me.name, extended=0, progress=0, behind=0
    )
    new = encode_record(lease)
    yield STEP
    if not me.store.replace_if_same(Keys.job(*me.plan.at(number)), raw, new):
        return None
    me.cursor, place = number + 1, me.plan.at(number)
    if me.home is None or me.home[0] != place[0]:
        me.home = place
    return Claim(number, lease, new, since)


def _commit(me: Worker, claim: Claim, result: Buffer | Performed, head: Head, begins: str) -> Steps[None]:
    """Set the slot to done with this update, unless another worker was first or the slot has a new model.

    The commit does not require a valid lease: results are deterministic, so a worker that lost its lease may still be
    the first to finish. It must never change a record of another model. ``head`` is the one that it began with, and
    ``begins`` the key of the state.
    """
    lease, slot, writer = claim.record, me.plan.at(claim.number), me.writer()
    frame, state = result if isinstance(result, Performed) else (result, None)
    manifest, saved = (yield from _write_update(me, Keys.update(*slot, writer), frame, slot[0])), None
    if state is not None and me.plan.is_last_until(claim.number, head.keeps):
        saved = yield from write_frame(me.store, Keys.state(*slot, writer), state)
    if state is not None and saved is None and me.copies is not None:
        me.copies.keep(slot[1], manifest.key, state)  # before the commit, so that whoever sees that finds it
    record: JobRecord | None = lease
    raw: Buffer | None = claim.raw
    while raw is not None and record is not None and record.state != "done" and record.model == lease.model:
        done = msgspec.structs.replace(
            record,
            state="done",
            worker=me.name,
            seconds=me.clock.now() - claim.since,
            version=head.version,
            update=manifest,
            failure=None,
            saved=saved,
            begins=begins,
        )
        yield STEP
        if me.store.replace_if_same(Keys.job(*slot), raw, encode_record(done)):
            me.closed.add(claim.number)
            me.owes_hint = True
            if state is not None:
                me.memory.states[slot[1]] = HeldState(claim.number, manifest.key, saved.key if saved else "", state)
                if me.copies is not None and saved is None:
                    me.copies.remove_others(slot[1])
                if me.messages is not None:
                    me.messages.commit(frame)
            if not me.spare or me.clock.now() - me.hinted > me.limits.poll * HINT:
                me.hint()
            return
        raw = (yield from read_many(me.store, [Keys.job(*slot)]))[0]
        record = parse_record(me.store, Keys.job(*slot), raw, JobRecord)
    yield from delete_many(me.store, [key for written in (manifest, saved) if written for key in keys_of(written)])
    yield from increment(me.store, DROPPED)


def _write_update(me: Worker, key: str, frame: Buffer, round_: int) -> Steps[Manifest]:
    """Write an update: as a whole, or in as many slices as there are parameter servers.

    What cannot be cut is no update; the master refuses it by name.
    """
    if (strategy := serving(me.router, me.plan, round_)) is not None:
        with contextlib.suppress(WireError):
            return (yield from write_slices(me.store, key, frame, strategy.slices))
    return (yield from write_frame(me.store, key, frame))


def _holds(record: JobRecord, lease: JobRecord) -> bool:
    """Return whether a record is still under this lease (its deadline may have been extended)."""
    return (record.state, record.token, record.worker) == ("leased", lease.token, lease.worker)


def _change_lease(me: Worker, number: int, lease: JobRecord, **changes: Any) -> Steps[bool]:
    """Change the record if it is still under this lease; return whether it was changed."""
    key = Keys.job(*me.plan.at(number))
    while True:
        raw = (yield from read_many(me.store, [key]))[0]
        record = parse_record(me.store, key, raw, JobRecord)
        if raw is None or record is None or not _holds(record, lease):
            return False
        yield STEP
        if me.store.replace_if_same(key, raw, encode_record(msgspec.structs.replace(record, **changes))):
            return True


def _give_back(me: Worker, number: int, lease: JobRecord) -> Steps[None]:
    """Return the lease of a job that was not performed."""
    yield from _change_lease(me, number, lease, state="ready", worker="", home="")
    me.store.publish(JOB_TOPIC)
    me.store.publish(UPDATE_TOPIC)


def _cannot_read(me: Worker, claim: Claim, head: Head, lost: str = "") -> Steps[None]:
    """Return a job of which something was lost: what the head refers to is the master's, data is written again.

    Where jobs are not bound to a model, others go on meanwhile: if the head is another one by now, what it referred to
    is deleted, and nothing is lost.
    """
    number, lease = claim.number, claim.record
    if lost and not _binds_model(me):
        me.update_head((yield from read_many(me.store, [HEAD]))[0])
        if me.head is not None and me.head.identity != head.identity:
            yield from _give_back(me, number, lease)
            return
    if lost:
        failure = Failure(MODEL_LOST, f"{lost} could not be read", me.name)
        yield from _change_lease(me, number, lease, state="failed", failure=failure)
    else:
        yield STEP
        me.store.delete(Keys.job(*me.plan.at(number)))
    me.store.publish(UPDATE_TOPIC)


def _report(me: Worker, number: int, lease: JobRecord, failure: Failure) -> Steps[None]:
    """Record that and why the job failed; the master decides whether it is retried."""
    failures = add_failure(lease.failures, failure)
    yield from _change_lease(me, number, lease, state="failed", failure=failure, failures=failures)
    me.store.publish(UPDATE_TOPIC)


def extend_lease(me: Worker, slot: SlotPlan, lease: JobRecord, progress: int = 0) -> Steps[bool]:
    """Extend the lease of a job of which ``progress`` batches are done; return False if it is lost.

    Runs on the heartbeat's thread, not the computation's. The progress is told even if the lease is lost, be it that
    the store lost the record and a master wrote it anew, until another worker takes the job: this one goes on with it,
    and may be the only one there is.
    """
    key = Keys.job(slot.round, slot.slot)
    while True:
        raw = (yield from read_many(me.store, [key]))[0]
        record = parse_record(me.store, key, raw, JobRecord)
        if raw is None or record is None:
            return False
        holds = _holds(record, lease)
        if not holds and (record.state != "ready" or record.model != lease.model):
            return False
        new = msgspec.structs.replace(record, extended=record.extended + holds, progress=progress)
        yield STEP
        if me.store.replace_if_same(key, raw, encode_record(new)):
            return holds
