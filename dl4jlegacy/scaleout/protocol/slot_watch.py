"""How a master watches the open slots: overdue leases, failed jobs, and updates that are ready to be folded.

All times are the master's own: a lease has expired when its record has not changed for long enough by the master's
clock, whatever the clocks of other machines say.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal, Protocol

import msgspec

from dl4jlegacy.errors import WireError
from dl4jlegacy.scaleout.contract import added, begun, open_slots, slots_to_fold, slots_to_fold_ahead
from dl4jlegacy.scaleout.phases import Phases
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.protocol.crashes import CRASHES, MOST_EXCUSED, Attempts, accusation, is_held_back, note_crashes
from dl4jlegacy.scaleout.protocol.events import DROPPED, JOB_TOPIC, STEP, Limits, MoreWork, Steps, Wait
from dl4jlegacy.scaleout.protocol.failures import Suspects, add_failure, is_hopeless
from dl4jlegacy.scaleout.protocol.frames import (
    delete_many,
    increment,
    parse_count,
    parse_record,
    read_frames,
    read_many,
)
from dl4jlegacy.scaleout.protocol.log import Spare
from dl4jlegacy.scaleout.state.aggregate import (
    Aggregation,
    Fold,
    JobAggregator,
    ValidationAggregation,
    check_update,
)
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.state.own_parts import is_own
from dl4jlegacy.scaleout.state.records import (
    HEAD,
    MODEL_LOST,
    Crash,
    Failure,
    Head,
    JobRecord,
    Keys,
    Manifest,
    Snapshot,
    encode_record,
    fold_number,
)
from dl4jlegacy.scaleout.state.store import Buffer, Store
from dl4jlegacy.scaleout.strategies import WorkRouter, router_of, serving
from dl4jlegacy.system.clock import Clock

__all__ = [
    "GROUP_NBYTES",
    "NOTHING",
    "REMEMBERED",
    "Lease",
    "OpenSlots",
    "ReissueReason",
    "check_fits",
    "refuse_update",
    "reissue_reason",
    "reopen_slots",
    "seen_lease",
    "straggler_seconds",
    "watch",
]

logger = logging.getLogger(__name__)

ReissueReason = Literal["gone", "expired", "slow"]
"""Why a job is given to another worker: its worker is gone, its lease has expired, or it is a straggler."""

WINDOW = 4
"""Number of undone slots that are read after each hint, doubled while all of them are done.

The slots after them are read once per poll interval.
"""
GROUP_NBYTES = 8 << 20
"""Updates are fetched together up to this total size."""
NOTHING = Manifest("", 0, 1)
"""Manifest used in place of a missing update; reading it always fails."""
REMEMBERED = 64
"""Number of recent job durations from which stragglers are determined."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease as seen by the master: when it was first seen, and when its record last changed."""

    token: int
    raw: Buffer
    since: float
    changed: float


@dataclass(slots=True)
class OpenSlots:
    """A master's knowledge about the open slots of one head."""

    head: Head
    raw: Buffer
    model: Buffer
    numbers: Sequence[int]
    records: dict[int, JobRecord] = field(default_factory=dict)
    leases: dict[int, Lease] = field(default_factory=dict)
    progress: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The token and the progress of each slot's record, as last read."""
    missing: list[int] = field(default_factory=list)
    announced: list[int] = field(default_factory=list)
    """The slots that the current aggregation was begun for, in the order of folding."""
    folded: list[int] = field(default_factory=list)
    """The first of the announced slots, which have been folded; or all slots that parameter servers fold."""
    updates: dict[int, Buffer] = field(default_factory=dict)
    """The updates of the folded slots, if the next version is a log entry."""
    aggregation: Aggregation | None = None
    failure: Failure | None = None
    poison: tuple[int, Failure] | None = None
    """The number of a job that must be set aside, and why."""
    accused: int = 0
    """Number of crashes of the job that ends the run or is set aside; they no longer count against other jobs."""
    sick: str = ""
    """The name of a worker that must be set aside."""
    dropped: int = 0
    requested: float = float("-inf")
    """When missing jobs were last requested."""
    searched: float = float("-inf")
    """When the records of all open slots were last read."""

    def done(self) -> set[int]:
        """Return the slots that have an update."""
        return {number for number, record in self.records.items() if record.state == "done"}


class Watcher(Protocol):
    """The members of ``Master`` that ``watch`` uses."""

    store: Store
    clock: Clock
    plan: Plan
    router: WorkRouter
    aggregator: JobAggregator
    limits: Limits
    phases: Phases
    durations: dict[bool, list[float]]
    must_reread_model: bool
    spare: Spare | None
    snapshot: tuple[str, Snapshot] | None
    suspects: Suspects
    attempts: Attempts
    sets_poison_aside: bool

    def present(self) -> Collection[str]:
        """Return the names of the workers that are present and not known to be dead or frozen."""
        ...

    def is_gone(self, worker: str, /) -> bool:
        """Return whether a worker's process is known to be dead or frozen."""
        ...

    def on_progress(self) -> None:
        """Take note that batches were done."""
        ...

    def death_of(self, worker: str, /) -> str:
        """Return the evidence that a worker's process has died; "" if it is not known to be dead."""
        ...

    def on_crashed(self, slot: tuple[int, int], crash: Crash, count: int, /) -> None:
        """Take note of a crash of a job."""
        ...

    def on_reissued(self, slot: tuple[int, int], worker: str, reason: ReissueReason, /) -> None:
        """Take note that a worker's job is given to another worker as well."""
        ...


def watch(me: Watcher, slots: OpenSlots) -> Steps[bool]:
    """Wait until the router has updates to fold, and fold them; return False if the head has changed or must change.

    Updates that parameter servers fold are only listed in ``slots.folded``. If a model does not fit into one value of
    the store, its updates are fetched and folded as they arrive, so that the master never holds more than one of them.
    """
    router = router_of(me.router, me.plan, slots.head.round)
    is_served = serving(me.router, me.plan, slots.head.round) is not None
    streams = slots.head.model.chunks > 1 and not is_served
    while (yield from _read_slots(me, slots)):
        done = slots.done()
        chosen = slots_to_fold(router, slots.numbers, done)
        if not slots.numbers:  # all open jobs are set aside: there is nothing to wait for
            slots.aggregation = _aggregation(me, slots)
            return True
        if is_served and chosen:
            slots.folded = list(chosen)
            return True
        ready = chosen or (slots_to_fold_ahead(router, slots.numbers, done) if streams else [])
        announced = list(chosen or slots.numbers)
        is_more = ready and (announced != slots.announced or len(ready) > len(slots.folded))
        if is_more and not (yield from _fold(me, slots, ready, announced=announced)):
            continue
        if chosen:
            return True
        now = me.clock.now()
        if slots.missing and now - slots.requested >= me.limits.poll:
            slots.requested = now
            yield MoreWork(slots.head, tuple(slots.missing))
        with me.phases.phase("MasterWait", (slots.head.round, None)):
            yield Wait(now + me.limits.poll)
    return False


def _read_slots(me: Watcher, slots: OpenSlots) -> Steps[bool]:
    """Read the records of the open slots and reissue jobs where needed; return False if the head has changed."""
    window = WINDOW
    while True:
        undone = [n for n in slots.numbers if n not in slots.records or slots.records[n].state != "done"]
        now = me.clock.now()
        if len(undone) > window and now - slots.searched < me.limits.poll:
            numbers, window = undone[:window], 2 * window
        else:
            numbers, slots.searched = undone, now
        with me.phases.phase("MasterWatch", (slots.head.round, None)):
            found = yield from read_many(
                me.store, [HEAD, DROPPED, *(Keys.job(*me.plan.at(n)) for n in numbers)], clears=True
            )
        if found[0] != slots.raw:
            return False
        slots.dropped = parse_count(me.store, DROPPED, found[1])
        for _ in me.attempts.take_dead(me.death_of):
            yield from increment(me.store, CRASHES)
        slots.missing = []
        for number, raw in zip(numbers, found[2:], strict=True):
            yield from _check_slot(me, slots, number, raw)
        if slots.failure is not None or slots.poison is not None or slots.sick or me.must_reread_model:
            return False
        done = slots.done()
        if len(numbers) == len(undone) or not all(number in done for number in numbers):
            return True


def _check_slot(me: Watcher, slots: OpenSlots, number: int, raw: Buffer | None) -> Steps[None]:
    """Store a slot's record in ``slots``; reissue its job if necessary."""
    slots.records.pop(number, None)
    attempts = me.limits.attempts
    record = parse_record(me.store, Keys.job(*me.plan.at(number)), raw, JobRecord)
    if raw is None or record is None:
        slots.missing.append(number)
        if raw is not None:
            yield from delete_many(me.store, [Keys.job(*me.plan.at(number))])
        return
    _note_progress(me, slots, number, record)
    noted = yield from note_crashes(me, number, record, raw, me.clock.now())
    if noted is None:
        return  # another process changed it; read it again next time
    record, raw = noted
    if record.crashes and (yield from _accuse(me, slots, number, record)):
        return
    again = _reissued(me, slots, number, record, raw)
    if again is not None:
        yield STEP
        if not me.store.replace_if_same(Keys.job(*me.plan.at(number)), raw, encode_record(again)):
            return  # another process changed it; read it again next time
        me.store.publish(JOB_TOPIC)
        me.attempts.lose_lease(record)
        if record.state == "leased" and record.model == again.model:
            me.on_reissued(
                me.plan.at(number), record.worker, _reissue_reason(me, slots, slots.leases[number], record) or "slow"
            )
        record = again
    elif record.state == "done":
        durations = _durations(me, slots)
        durations[:] = [*durations[1 - REMEMBERED :], record.seconds]
        router = _router_of(me, slots)
        is_checked = not router.log_every and router.memory is None
        if sick := me.suspects.add(number, record, is_checked=is_checked):
            able = _able(me, slots)
            slots.sick = next((worker for worker in sick if worker in able and len(able) > 1), "")
    elif record.state == "failed":
        slots.failure = record.failure
    elif record.state == "ready" and record.failures and is_hopeless(record.failures, _able(me, slots), attempts):
        slots.failure = record.failures[-1]
    slots.records[number] = record


def _accuse(me: Watcher, slots: OpenSlots, number: int, record: JobRecord) -> Steps[bool]:
    """End the run if a job is known to kill its workers, or set the job aside; return whether the job is accused."""
    records, durations = slots.records, _durations(me, slots)
    failure = yield from accusation(me, slots.head, number, record, records=records, durations=durations)
    slots.accused = 0 if failure is None else len(record.crashes)
    if failure is not None and me.sets_poison_aside and _can_do_without(me, slots.head, number):
        slots.poison = number, failure
    else:
        slots.failure = failure or slots.failure
    return failure is not None


def _can_do_without(me: Watcher, head: Head, number: int) -> bool:
    """Return whether a job can be set aside: the round has other updates, or needs none.

    A validation of no examples has no score, and a user's aggregator may need at least one update.
    """
    without = msgspec.structs.replace(head, jobs_set_aside=fold_number(head.jobs_set_aside, number))
    is_ours = not me.plan.is_validation(head.round) and not is_own(me.aggregator)
    return is_ours or bool(open_slots(me.router, me.plan, without))


def _note_progress(me: Watcher, slots: OpenSlots, number: int, record: JobRecord) -> None:
    """Tell the master if batches of a slot were done since its record was last read."""
    token, progress = slots.progress.get(number, (record.token, 0))
    slots.progress[number] = (record.token, record.progress)
    goes_on = len(record.crashes) < MOST_EXCUSED and record.progress > (progress if record.token == token else 0)
    if record.state == "done" or goes_on:
        me.on_progress()


def _reissued(me: Watcher, slots: OpenSlots, number: int, record: JobRecord, raw: Buffer) -> JobRecord | None:
    """Return the record in state ready if its job must be reissued or retried; else None."""
    model = slots.head.identity if _router_of(me, slots).binds_model else ""
    if record.model != model:  # a record from before the run was restored
        return JobRecord(state="ready", model=model, token=record.token, data=record.data, crashes=record.crashes)
    ready = msgspec.structs.replace(record, state="ready", worker="", failure=None, update=None, saved=None, home="")
    keeps, aside = slots.head.keeps, slots.head.jobs_set_aside
    saves = _router_of(me, slots).memory is not None and me.plan.is_last_until(number, keeps, aside)
    if record.state == "done" and saves and (record.saved is None or not _goes_on(me, slots, number, record)):
        return ready  # otherwise the slot would restart, or continue from a state that is not its last job's
    if record.state == "ready" and record.home and (me.is_gone(record.home) or record.home not in me.present()):
        return ready  # no other worker has the state of its slot
    if record.state == "leased":
        is_late = _is_late(me, slots, number, record, raw)
        is_held = is_late and is_held_back(me, number, record, slots.records, me.clock.now())
        return ready if is_late and not is_held else None
    if record.state != "failed" or record.failure is None:
        return None
    if record.failure.code == MODEL_LOST:
        me.must_reread_model = True
        return ready
    able = _able(me, slots, record.failure.worker)
    return None if record.failure.fatal or is_hopeless(record.failures, able, me.limits.attempts) else ready


def _goes_on(me: Watcher, slots: OpenSlots, number: int, record: JobRecord) -> bool:
    """Return whether a finished job started from the state that the slot's last folded job has left.

    Jobs that are bound to a model always did. An unbound job may have started from the state of a job that was folded
    into a head which is now lost. That earlier job is then done again, and leaves a different state.
    """
    if _router_of(me, slots).binds_model:
        return True
    states = {} if me.snapshot is None or slots.head.snapshot is None else me.snapshot[1].states
    before = states.get(me.plan.at(number)[1])
    return record.begins == ("" if before is None else before.state.key)


def _able(me: Watcher, slots: OpenSlots, *others: str) -> set[str]:
    """Return the present workers and ``others``, except those that are set aside."""
    return {*me.present(), *others} - set(slots.head.set_aside)


def _is_late(me: Watcher, slots: OpenSlots, number: int, record: JobRecord, raw: Buffer) -> bool:
    """Update the master's view of the lease; return whether the job must be reissued."""
    lease = slots.leases[number] = seen_lease(slots.leases.get(number), record.token, raw, me.clock.now())
    return _reissue_reason(me, slots, lease, record) is not None


def _reissue_reason(me: Watcher, slots: OpenSlots, lease: Lease, record: JobRecord) -> ReissueReason | None:
    """Return why a leased job must be given to another worker, or None."""
    if me.clock.now() - lease.since <= me.limits.straggler_least * (1 + record.behind):
        return reissue_reason(me, lease, record.worker, float("inf"))  # too early for any job to be a straggler
    patience = straggler_seconds(me.limits, _durations(me, slots)) * (1 + record.behind)
    return reissue_reason(me, lease, record.worker, patience)


def seen_lease(lease: Lease | None, token: int, raw: Buffer, now: float) -> Lease:
    """Return the master's view of a lease after reading its record; ``lease`` is the earlier view, if any."""
    if lease is None or lease.token != token:
        return Lease(token, raw, now, now)
    return lease if lease.raw == raw else Lease(token, raw, lease.since, now)


def reissue_reason(me: Watcher, lease: Lease, worker: str, patience: float) -> ReissueReason | None:
    """Return why a leased job must go to another worker, or None; after ``patience`` seconds the worker is slow."""
    now = me.clock.now()
    if me.is_gone(worker):
        return "gone"
    if now - lease.changed > me.limits.lease:
        return "expired"
    return "slow" if now - lease.since > patience else None


def _durations(me: Watcher, slots: OpenSlots) -> list[float]:
    """Return the durations of recent jobs of this kind; those of training and of validation are kept apart."""
    return me.durations.setdefault(me.plan.is_validation(slots.head.round), [])


def straggler_seconds(limits: Limits, durations: Sequence[float]) -> float:
    """Return the time after which a job is a straggler, computed from recent durations."""
    if len(durations) < 8:
        return float("inf")
    middle = median(durations)
    spread = median(abs(duration - middle) for duration in durations)
    return max(limits.straggler_factor * middle, middle + 6 * spread, limits.straggler_least)


def _fold(me: Watcher, slots: OpenSlots, ready: Sequence[int], *, announced: list[int]) -> Steps[bool]:
    """Fetch and fold the updates of ``ready``, in slot order; return False if one was lost and its slot reopened.

    ``announced`` are all slots that will be folded under this head; ``ready`` are the first of them. If ``announced``
    differs from the last call, because an update was lost and the router did not wait for it, folding starts over.
    """
    if slots.aggregation is None or announced != slots.announced:
        slots.announced, slots.folded = announced, []
        slots.updates.clear()
        slots.aggregation = _aggregation(me, slots)
    at = slots.head.round, None
    for group in _groups(slots, ready[len(slots.folded) :]):
        manifests = [slots.records[number].update or NOTHING for number in group]
        with me.phases.phase("MasterReadUpdates", at):
            frames = yield from read_frames(me.store, manifests)
        whole = [frame for frame in frames if frame is not None]
        if len(whole) < len(group):
            yield from reopen_slots(me, slots, [n for n, f in zip(group, frames, strict=True) if f is None])
            return False
        if (yield from _refuse_unfit(me, slots, group, whole)):
            return False
        with me.phases.phase("MasterAggregate", at):
            added(slots.aggregation, whole)
        slots.folded += group
        if _router_of(me, slots).log_every:
            slots.updates |= zip(group, whole, strict=True)
        del frames, whole  # frees memory before the next updates are fetched
    return True


def _router_of(me: Watcher, slots: OpenSlots) -> WorkRouter:
    """Return the router of the head's round."""
    return router_of(me.router, me.plan, slots.head.round)


def _refuse_unfit(me: Watcher, slots: OpenSlots, numbers: Sequence[int], updates: Sequence[Buffer]) -> Steps[bool]:
    """Count updates that do not fit the model as failures of their workers' jobs; return whether there were any."""
    refused = False
    for number, update in zip(numbers, updates, strict=True):
        try:
            if me.plan.is_validation(slots.head.round):
                Result.decode(update)
            else:
                check_fits(me, update, slots.model)
            me.suspects.clear(slots.records[number].worker)
        except WireError as exc:
            yield from refuse_update(me, slots, number, exc)
            refused = True
    return refused


def check_fits(me: Watcher, update: Buffer, model: Buffer) -> None:
    """Raise ``WireError`` if an update cannot be folded into a model."""
    check = me.aggregator.check if isinstance(me.aggregator, Fold) else check_update
    check(update, model)


def refuse_update(me: Watcher, slots: OpenSlots, number: int, error: WireError) -> Steps[None]:
    """Count a slot's update, which does not fit the model, as a failure of its worker's job."""
    record, (round_, slot) = slots.records.pop(number), me.plan.at(number)
    text = f"the update of worker {record.worker} for round {round_}, slot {slot} was refused: {error}"
    failure = Failure(error.code, text, record.worker)
    failed = msgspec.structs.replace(
        record, state="failed", failure=failure, failures=add_failure(record.failures, failure), update=None
    )
    logger.warning("%s", failure.message)
    me.suspects.refuse(record.worker)
    yield STEP
    me.store.replace_if_same(Keys.job(round_, slot), encode_record(record), encode_record(failed))


def _aggregation(me: Watcher, slots: OpenSlots) -> Aggregation:
    """Begin to fold the announced slots."""
    if me.plan.is_validation(slots.head.round):
        return ValidationAggregation(None if me.plan.validation is None else me.plan.validation.label_scale)
    examples = [me.plan.examples_of(number) for number in slots.announced]
    spare, me.spare = me.spare, None
    version = slots.head.version
    if spare is not None and spare.identity == slots.head.identity and isinstance(me.aggregator, Fold):
        frame = spare.brought_up(me.aggregator, version)
        return begun(me.aggregator, frame, version=version, examples=examples, in_place=True)
    return begun(me.aggregator, slots.model, version=version, examples=examples)


def _groups(slots: OpenSlots, numbers: Sequence[int]) -> list[list[int]]:
    """Split slots into groups whose updates have at most ``GROUP_NBYTES`` in total, or consist of one."""
    groups: list[list[int]] = []
    room = 0
    for number in numbers:
        update = slots.records[number].update
        nbytes = 0 if update is None else update.nbytes
        if not groups or nbytes > room:
            groups.append([])
            room = GROUP_NBYTES
        groups[-1].append(number)
        room -= nbytes
    return groups


def reopen_slots(me: Watcher, slots: OpenSlots, numbers: Sequence[int]) -> Steps[None]:
    """Make slots ready again because their updates cannot be read."""
    for number in numbers:
        record = slots.records.pop(number)
        again = msgspec.structs.replace(record, state="ready", worker="", update=None, saved=None)
        yield STEP
        me.store.replace_if_same(Keys.job(*me.plan.at(number)), encode_record(record), encode_record(again))
    me.store.publish(JOB_TOPIC)
