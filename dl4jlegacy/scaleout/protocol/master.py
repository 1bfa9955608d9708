"""The master's role: start or restore the run, issue jobs, watch them, fold their updates, close the round."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass, field

import msgspec

from dl4jlegacy.clock import Clock
from dl4jlegacy.scaleout.aggregate import JobAggregator, ValidationAggregation
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.protocol.events import (
    HEAD_TOPIC,
    STEP,
    Limits,
    MoreWork,
    NewModel,
    SavedState,
    Steps,
    Wait,
)
from dl4jlegacy.scaleout.protocol.failures import Suspects
from dl4jlegacy.scaleout.protocol.frames import (
    delete_many,
    keys_of,
    parse_record,
    read_frame,
    read_many,
    sweep,
    write_frame,
)
from dl4jlegacy.scaleout.protocol.states import (
    following_snapshot,
    read_snapshot,
    read_states,
    states_of,
    with_snapshot,
    write_snapshot,
    write_states,
)
from dl4jlegacy.scaleout.protocol.watch import OpenSlots, ReissueReason, watch
from dl4jlegacy.scaleout.records import (
    HEAD,
    WENT_BACK,
    Best,
    Failure,
    Head,
    JobRecord,
    Keys,
    Manifest,
    Snapshot,
    advance,
    encode_record,
)
from dl4jlegacy.scaleout.scoring import Scoring
from dl4jlegacy.scaleout.store import Buffer, Store
from dl4jlegacy.scaleout.strategies import WorkRouter, router_of, slot_strategy

__all__ = ["Master", "RunStart", "master_steps", "reopen"]

logger = logging.getLogger(__name__)

MOST_SET_ASIDE = 64
"""So many of the workers that were set aside are remembered: they leave when they read of it."""
SWEEP_VERSIONS = 16
"""After this many versions the whole store is searched for keys that other processes left behind."""


@dataclass(slots=True)
class RunStart:
    """How a run starts, or restarts after the store has lost its head or model.

    ``first_model()`` returns version 0, a pure function of the Conf. ``restore()`` returns the newest good checkpoint,
    or None if there is none; ``best_model(best)`` the frame of a best model, if the checkpoints have it, and
    ``states(head)`` the states of the slots that belong to a restored head. ``may_begin()`` returns whether this
    process is the run's master, False if that is unknown now; it raises if it is not, or the run is over.
    """

    run: str
    first_model: Callable[[], Buffer]
    restore: Callable[[], tuple[Head, Buffer] | None]
    best_model: Callable[[Best], Buffer | None] = lambda best: None
    states: Callable[[Head], Mapping[int, SavedState] | None] = lambda head: None
    may_begin: Callable[[], bool] = lambda: True


@dataclass(slots=True)
class Master:
    """The state of a master; ``name`` is unique to this process and run.

    ``is_gone(worker)`` returns whether a worker's process is known to be dead or frozen; its jobs are then given to
    other workers immediately. A wrong answer only means that a job is done twice. ``on_reissued(slot, worker, reason)``
    is called for each job that is also given to another worker, ``on_progress()`` whenever batches were done, be it of
    a job that is not done yet, ``on_set_aside(worker, failures)`` for a worker that gets no more jobs; they must only
    enqueue. ``present()`` returns the names of the workers that are there, as far as that is known.
    ``is_to_be_saved(head)`` returns whether a checkpoint of a new version will be written, which needs its states.
    """

    name: str
    store: Store
    clock: Clock
    plan: Plan
    router: WorkRouter
    _: KW_ONLY
    aggregator: JobAggregator
    start: RunStart
    limits: Limits = field(default_factory=Limits)
    is_gone: Callable[[str], bool] = lambda worker: False
    on_progress: Callable[[], None] = lambda: None
    on_reissued: Callable[[tuple[int, int], str, ReissueReason], None] = lambda slot, worker, reason: None
    on_set_aside: Callable[[str, tuple[Failure, ...]], None] = lambda worker, failures: None
    present: Callable[[], Collection[str]] = lambda: ()
    is_to_be_saved: Callable[[Head], bool] = lambda head: True
    scoring: Scoring = field(default_factory=Scoring)
    written: int = 0
    durations: dict[bool, list[float]] = field(default_factory=dict)
    """How long recent jobs took: those of training, and (True) those of validations."""
    known: tuple[Head, Buffer] | None = None
    """The newest head that this master has read or written, and its model: used if the store loses them."""
    best: tuple[Best, Buffer] | None = None
    """The best model of the run as this master knows it, likewise."""
    counted: tuple[int, float] = (-1, 0.0)
    """The version of the head to which the run's seconds are counted, and when that was."""
    snapshot: tuple[str, Snapshot] | None = None
    """The key of the snapshot that this master has read or written last, and what it says."""
    must_reread_model: bool = False
    """Whether a worker could not read the model, or the state of a slot."""
    must_check_states: bool = False
    """Whether it may have been a state."""
    closed_keys: list[str] = field(default_factory=list)
    """Keys of closed rounds; each is deleted once the head has moved far enough."""
    swept: int = -SWEEP_VERSIONS
    suspects: Suspects = field(init=False)

    def __post_init__(self) -> None:
        self.suspects = Suspects(self.limits.attempts)

    def best_of(self, head: Head) -> Buffer | None:
        """Return the frame of a head's best model; None if it has none, or this master does not know it."""
        known = self.best is not None and head.best is not None and head.best.is_same(self.best[0])
        return self.best[1] if self.best is not None and known else None

    def writer(self) -> str:
        """Return the part of a key that this master has not used yet."""
        self.written += 1
        return f"{self.name}.{self.written}"

    def model_key(self, version: int) -> str:
        """Return a key prefix that this master has not used yet."""
        return Keys.model(version, self.writer())


def master_steps(me: Master) -> Steps[Head]:
    """Run the master's role until the run has ended; return the last head. Models are yielded as ``NewModel``."""
    plan = me.plan
    while True:
        raw = (yield from read_many(me.store, [HEAD], clears=True))[0]
        head = parse_record(me.store, HEAD, raw, Head)
        if raw is None or head is None:
            yield from _begin(me, raw)
            continue
        if head.status in ("failed", "stopped"):
            return head
        if head.status == "running" and me.known is not None and head.version < me.known[0].version:
            logger.warning(
                WENT_BACK, head.run, me.known[0].version, head.version, "this master writes the newer one again"
            )
            yield from _begin(me, raw)
            continue
        is_mine = me.known is not None and me.known[0].model.key == head.model.key
        model = yield from _model(me, head, raw)
        if model is None or not (yield from _has_best(me, head, raw, model)):
            continue
        if not (yield from _has_states(me, head, raw)):
            continue
        if me.counted[0] != head.version:
            me.counted = (head.version, me.clock.now())
        if head.round >= plan.total_rounds or head.stopped_by:
            head = yield from _finish(me, head, raw)
            if head.status == "running":
                continue
            yield NewModel(head, model, last=True, best=me.best_of(head), states=(yield from _states(me, head)))
            return head
        yield from _work(me, OpenSlots(head, raw, model, me.router.open_slots(plan, head)), is_new=is_mine)


def _work(me: Master, slots: OpenSlots, *, is_new: bool) -> Steps[None]:
    """Issue the open slots and watch them until updates were folded or the head has changed."""
    head = slots.head
    yield MoreWork(head, tuple(slots.numbers), _ahead(me, head))
    slots.requested = me.clock.now()
    yield from _tidy(me, head, knows_all=is_new)
    if is_new and router_of(me.router, me.plan, head).binds_model:  # no job can be done yet; the first commit is a hint
        yield Wait(me.clock.now() + me.limits.poll)
    if (yield from watch(me, slots)):
        yield from _close(me, slots)
    elif slots.failure is not None:
        yield from _fail(me, head, slots.raw, slots.failure)
    elif slots.sick:
        yield from _set_aside(me, slots)


def _ahead(me: Master, head: Head) -> tuple[int, ...]:
    """Return the slots of the next round, whose data can be written in advance; none for a router with a window."""
    following = head.round + 1
    if not me.router.binds_model or following >= me.plan.total_rounds:
        return ()
    first = me.plan.number(following, 0)
    return tuple(range(first, first + me.plan.slots(following)))


def _model(me: Master, head: Head, raw: Buffer) -> Steps[Buffer | None]:
    """Return the head's model, or None if it was lost and the head has been rewritten."""
    known = me.known[1] if me.known is not None and me.known[0].model.key == head.model.key else None
    if known is not None and not me.must_reread_model:
        me.known = (head, known)
        return known
    me.must_check_states, me.must_reread_model = me.must_reread_model, False
    model = yield from read_frame(me.store, head.model)
    if model is not None:
        me.known = (head, model)
        return model
    if known is None:  # restart from a checkpoint or the first model; later rounds are done again
        yield from _begin(me, raw)
        return None
    logger.warning("model version %s was lost from the store; it is written again", head.version)
    manifest = yield from write_frame(me.store, me.model_key(head.version), known)
    mended = msgspec.structs.replace(head, model=manifest)
    if head.best is not None and head.best.model.key == head.model.key:
        mended = _with_best(mended, manifest)
    yield STEP
    if me.store.replace_if_same(HEAD, raw, encode_record(mended)):
        me.known = (mended, known)
    me.store.publish(HEAD_TOPIC)
    return None


def _with_best(head: Head, model: Manifest) -> Head:
    """Return the head with its best model stored elsewhere."""
    assert head.best is not None
    return msgspec.structs.replace(head, best=msgspec.structs.replace(head.best, model=model))


def _has_best(me: Master, head: Head, raw: Buffer, model: Buffer) -> Steps[bool]:
    """Make this master know the head's best model; return False if it was lost and the head has been rewritten."""
    best = head.best
    if best is None or me.best_of(head) is not None:
        return True
    if best.model.key == head.model.key:
        me.best = (best, model)
        return True
    frame = yield from read_frame(me.store, best.model)
    if frame is not None:
        me.best = (best, frame)
        return True
    frame = me.start.best_model(best)
    if frame is None:  # restart from a checkpoint or the first model; later rounds are done again
        logger.warning("the best model, of round %s, was lost; run %s goes on from before it", best.round, head.run)
        me.known = None
        yield from _begin(me, raw)
        return False
    manifest = yield from write_frame(me.store, me.model_key(best.version), frame)
    mended = _with_best(head, manifest)
    yield STEP
    if me.store.replace_if_same(HEAD, raw, encode_record(mended)):
        me.known, me.best = (mended, model), (best, frame)
    me.store.publish(HEAD_TOPIC)
    return False


def _has_states(me: Master, head: Head, raw: Buffer) -> Steps[bool]:
    """Make this master know the head's snapshot; return False if states were lost and the head has been rewritten."""
    snapshot = me.snapshot[1] if me.snapshot is not None and _names(head, me.snapshot[0]) else None
    if head.snapshot is None or (snapshot is not None and not me.must_check_states):
        return True
    snapshot = yield from read_snapshot(me.store, head.snapshot)
    is_whole = snapshot is not None
    if snapshot is not None and me.must_check_states:
        is_whole = (yield from read_states(me.store, snapshot)) is not None
    me.must_check_states = False
    if snapshot is not None and is_whole:
        me.snapshot = head.snapshot.key, snapshot
        return True
    logger.warning(
        "a state of version %s was lost; run %s goes on from its newest checkpoint, or begins anew",
        head.version,
        head.run,
    )
    me.known = None
    yield from _begin(me, raw)
    return False


def _names(head: Head, snapshot: str) -> bool:
    return head.snapshot is not None and head.snapshot.key == snapshot


def _states(me: Master, head: Head) -> Steps[Mapping[int, SavedState]]:
    """Return the states that belong to a version, if it is to be saved; none if one of them has just been lost."""
    if me.snapshot is None or not _names(head, me.snapshot[0]) or not me.is_to_be_saved(head):
        return {}
    return (yield from read_states(me.store, me.snapshot[1])) or {}


def _begin(me: Master, expected: Buffer | None) -> Steps[None]:
    """Write the head from the known model, the newest checkpoint or version 0, if the head still is ``expected``.

    A master that was frozen until its run had ended, and was cleared up, finds no head either: it must not write one.
    """
    if not me.start.may_begin():
        yield Wait(me.clock.now() + me.limits.poll)
        return
    if me.known is not None and (yield from states_of(me.store, me.known[0])) is None:
        me.known = None
    head, frame, best, states = _beginning(me)
    manifest = yield from write_frame(me.store, me.model_key(head.version), frame)
    new = msgspec.structs.replace(head, model=manifest, status="running")
    if best is not None:
        new = _with_best(new, (yield from write_frame(me.store, me.model_key(head.version), best)))
    if states:
        new = yield from _with_snapshot(me, new, (yield from write_states(me.store, me.plan, states, me.writer)))
    yield STEP
    if expected is None:
        written = me.store.put_if_absent(HEAD, encode_record(new))
    else:
        written = me.store.replace_if_same(HEAD, expected, encode_record(new))
    if written:
        me.known = (new, frame)
        me.best = None if new.best is None or best is None else (new.best, best)
    me.store.publish(HEAD_TOPIC)


def _with_snapshot(me: Master, head: Head, snapshot: Snapshot) -> Steps[Head]:
    """Write a snapshot, and return the head with it."""
    manifest = yield from write_snapshot(me.store, Keys.snapshot(head.version, me.writer()), snapshot)
    me.snapshot = manifest.key, snapshot
    return with_snapshot(head, snapshot, manifest)


Beginning = tuple[Head, Buffer, Buffer | None, Mapping[int, SavedState]]
"""A head, its model, its best one, and the states of its slots that are not in the store."""


def _beginning(me: Master) -> Beginning:
    """Return from what the run begins, here or again."""
    if me.known is not None:
        head, frame = me.known
        best = None if head.best is None else me.best_of(head) or me.start.best_model(head.best)
        if head.best is None or best is not None:
            return head, frame, best, {}
    if (restored := me.start.restore()) is not None:
        head, frame = restored
        best = None if head.best is None else me.best_of(head) or me.start.best_model(head.best)
        states = {} if head.snapshot is None else me.start.states(head)
        if (head.best is None or best is not None) and states is not None:
            return head, frame, best, states
    return Head(run=me.start.run, version=0, round=0, model=Manifest("", 0, 0)), me.start.first_model(), None, {}


def _finish(me: Master, head: Head, raw: Buffer) -> Steps[Head]:
    """Set the status to done; return the resulting head."""
    if head.status == "done":
        return head
    done = msgspec.structs.replace(head, status="done")
    yield STEP
    if not me.store.replace_if_same(HEAD, raw, encode_record(done)):
        return head
    me.store.publish(HEAD_TOPIC)
    return done


def _tidy(me: Master, head: Head, *, knows_all: bool) -> Steps[None]:
    """Delete keys that are no longer needed; sweep the store now and then, and after another master's work."""
    useless = [key for key in me.closed_keys if Keys.is_useless(key, head)]
    if useless:
        me.closed_keys = [key for key in me.closed_keys if not Keys.is_useless(key, head)]
        yield from delete_many(me.store, useless)
    if not knows_all or not 0 <= head.version - me.swept < SWEEP_VERSIONS:
        me.swept = head.version
        keys = yield from sweep(me.store, head)
        best = me.best_of(head)
        if head.best is not None and best is not None and not set(keys_of(head.best.model)) <= set(keys):
            yield from write_frame(me.store, head.best.model.key, best)  # the same bytes as before


def _close(me: Master, slots: OpenSlots) -> Steps[None]:
    """Write the folded updates as the next model version and make it current; from that moment the updates count.

    A validation leaves the model as it is, and so may an aggregation; then it is not written again. What either means
    for the best model and the run's end is in the new head.
    """
    head, aggregation, now = slots.head, slots.aggregation, me.clock.now()
    assert aggregation is not None
    new = advance(head, me.plan, slots.folded, updates_dropped=max(head.updates_dropped, slots.dropped))
    if me.scoring.counts_seconds:
        new = msgspec.structs.replace(new, seconds=head.seconds + now - me.counted[1])
    figures, frame, written, before = None, slots.model, None, me.snapshot
    if isinstance(aggregation, ValidationAggregation):
        figures = aggregation.figures()
    else:
        ends_phase = me.plan.ends_phase(head.round, new.round)
        frame, score = aggregation.finish(ends_phase=ends_phase)
        if frame is not slots.model:
            written = yield from write_frame(me.store, me.model_key(new.version), frame)
        new = msgspec.structs.replace(new, model=written or head.model, score=score)
        new = yield from _with_states(me, slots, new, ends_phase=ends_phase)
    new = me.scoring.closed(me.plan, head, new, figures)
    yield STEP
    if me.store.replace_if_same(HEAD, slots.raw, encode_record(new)):
        me.store.publish(HEAD_TOPIC)
        me.known, me.counted = (new, frame), (new.version, now)
        me.closed_keys += [*([] if written is None else keys_of(head.model)), *_keys_of_slots(me, slots)]
        me.closed_keys += _keys_of_states(head, before)
        if new.best is not None and not new.best.is_same(head.best):
            me.closed_keys += [] if head.best is None else keys_of(head.best.model)
            me.best = (new.best, frame)
        jobs = {number: slots.records[number] for number in slots.folded}
        states = yield from _states(me, new)
        yield NewModel(new, frame, best=me.best_of(new), jobs=jobs, figures=figures, states=states)
    else:
        mine = [frame for frame in (written, new.snapshot) if frame not in (None, head.snapshot)]
        yield from delete_many(me.store, [key for frame in mine if frame is not None for key in keys_of(frame)])


def _with_states(me: Master, slots: OpenSlots, new: Head, *, ends_phase: bool) -> Steps[Head]:
    """Return a new head with the snapshot that belongs to it; states end with their phase."""
    head = slots.head
    if slot_strategy(me.router, me.plan, head.round) is None:
        return new
    if ends_phase:
        return msgspec.structs.replace(new, snapshot=None)
    before = me.snapshot[1] if me.snapshot is not None and _names(head, me.snapshot[0]) else Snapshot()
    folded = {number: slots.records[number] for number in slots.folded}
    return (yield from _with_snapshot(me, new, following_snapshot(before, me.plan, folded)))


def _keys_of_states(head: Head, known: tuple[str, Snapshot] | None) -> list[str]:
    """Return the keys of a head's snapshot and of the states that it names."""
    if head.snapshot is None or known is None or not _names(head, known[0]):
        return []
    states = [key for state in known[1].states.values() for key in keys_of(state.state)]
    return [*keys_of(head.snapshot), *states]


def _keys_of_slots(me: Master, slots: OpenSlots) -> list[str]:
    """Return the keys of the folded slots' records, data and updates."""
    keys = []
    for number in slots.folded:
        record = slots.records[number]
        keys.append(Keys.job(*me.plan.at(number)))
        for manifest in (record.data, record.update):
            keys += [] if manifest is None else keys_of(manifest)
    return keys


def _fail(me: Master, head: Head, raw: Buffer, failure: Failure) -> Steps[None]:
    """End the run with a job's failure."""
    failed = msgspec.structs.replace(head, status="failed", failure=failure)
    yield STEP
    me.store.replace_if_same(HEAD, raw, encode_record(me.scoring.failed(head, failure) or failed))
    me.store.publish(HEAD_TOPIC)


def _set_aside(me: Master, slots: OpenSlots) -> Steps[None]:
    """Give a worker no more jobs that failed at jobs which others did."""
    workers = (*slots.head.set_aside, slots.sick)[-MOST_SET_ASIDE:]
    head = msgspec.structs.replace(slots.head, set_aside=workers)
    yield STEP
    if me.store.replace_if_same(HEAD, slots.raw, encode_record(head)):
        me.known = (head, slots.model)
        me.on_set_aside(slots.sick, me.suspects.pop(slots.sick))
    me.store.publish(HEAD_TOPIC)


def reopen(store: Store, plan: Plan, router: WorkRouter) -> Steps[bool]:
    """Let a run that has failed go on where it was, with no attempt counted; return whether it had failed.

    For who leads the run, before ``master_steps``. What made it fail must have been mended.
    """
    raw = (yield from read_many(store, [HEAD], clears=True))[0]
    head = parse_record(store, HEAD, raw, Head)
    if raw is None or head is None or head.status != "failed":
        return False
    going_on = msgspec.structs.replace(head, status="running", failure=None, set_aside=())
    keys = [Keys.job(*plan.at(number)) for number in router.open_slots(plan, going_on)]
    found = yield from read_many(store, keys, clears=True)
    for key, job in zip(keys, found, strict=True):
        record = parse_record(store, key, job, JobRecord)
        if job is not None and record is not None and record.failures and record.state != "done":
            again = msgspec.structs.replace(record, state="ready", worker="", failure=None, failures=())
            yield STEP
            store.replace_if_same(key, job, encode_record(again))
    yield STEP
    return store.replace_if_same(HEAD, raw, encode_record(going_on))
