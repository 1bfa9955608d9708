"""The master's role: start or restore the run, issue jobs, watch them, fold their updates, close the round."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping
from statistics import median

import msgspec

from dl4jlegacy.errors import ContractError, NotFiniteError, StorageError
from dl4jlegacy.scaleout.contract import open_slots
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.protocol.closing import (
    as_a_whole,
    close_round,
    states_to_save,
    with_best,
    with_keeps,
    with_new_snapshot,
)
from dl4jlegacy.scaleout.protocol.crashes import CRASHES
from dl4jlegacy.scaleout.protocol.events import HEAD_TOPIC, STEP, MoreWork, NewModel, SavedState, Steps, Wait
from dl4jlegacy.scaleout.protocol.frames import (
    delete_many,
    increment,
    keys_of,
    parse_record,
    read_frame,
    read_many,
    rewrite_frame,
    sweep,
    write_frame,
)
from dl4jlegacy.scaleout.protocol.log import is_model_there, known_log, model_after, numbers_since, read_log, rewound
from dl4jlegacy.scaleout.protocol.master_state import SWEEP_VERSIONS, Master, RunStart
from dl4jlegacy.scaleout.protocol.parameter_servers import fold_by_workers
from dl4jlegacy.scaleout.protocol.slot_states import lost_states, names_snapshot, read_snapshot, states_of, write_states
from dl4jlegacy.scaleout.protocol.slot_watch import OpenSlots, watch
from dl4jlegacy.scaleout.state.aggregate import Fold
from dl4jlegacy.scaleout.state.records import (
    HEAD,
    WENT_BACK,
    Failure,
    Head,
    JobRecord,
    Keys,
    Manifest,
    SlotState,
    covered,
    encode_record,
    fold_number,
)
from dl4jlegacy.scaleout.state.store import Buffer, Store
from dl4jlegacy.scaleout.strategies import WorkRouter, router_of, serving

__all__ = ["Master", "RunStart", "extend_run", "hand_over", "master_steps", "reopen", "restore_end"]

logger = logging.getLogger(__name__)

Beginning = tuple[Head, Buffer, Buffer | None, Mapping[int, SavedState]]
"""A head, its model, its best model, and those states of its slots that are not in the store."""
MOST_SET_ASIDE = 64
"""Number of workers that were set aside and are remembered in the head. Such a worker leaves when it reads its name."""


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
        is_mine = me.known is not None and me.known[0].identity == head.identity
        model = yield from _model(me, head, raw)
        if model is None or not (yield from _has_best(me, head, raw, model)):
            continue
        if not (yield from _has_states(me, head, raw)):
            continue
        if me.counted[0] != head.version:
            me.counted = (head.version, me.clock.now())
        if head.round >= plan.total_rounds or head.stopped_by:
            head = yield from _finish(me, head, raw, model)
            if head.status == "running":
                continue
            yield NewModel(head, model, last=True, best=me.best_of(head), states=(yield from states_to_save(me, head)))
            return head
        try:
            yield from _work(me, OpenSlots(head, raw, model, open_slots(me.router, plan, head)), is_new=is_mine)
        except (ContractError, NotFiniteError) as exc:  # another master would fail in the same way
            trace = "" if exc.__cause__ is None else "".join(traceback.format_exception(exc.__cause__))
            yield from _fail(me, head, raw, Failure(exc.code, str(exc), "", trace, fatal=True))


def _work(me: Master, slots: OpenSlots, *, is_new: bool) -> Steps[None]:
    """Issue the open slots and watch them until updates were folded or the head has changed."""
    head = slots.head
    yield MoreWork(head, tuple(slots.numbers), _ahead(me, head), homes=_homes(me, slots))
    slots.requested = me.clock.now()
    if is_new:  # only now that there are jobs: before, workers would search in vain
        me.store.publish(HEAD_TOPIC)
    yield from _tidy(me, head, knows_all=is_new)
    if is_new and router_of(me.router, me.plan, head.round).binds_model:  # only a hint: no job is done yet
        with me.phases.phase("MasterWait", (head.round, None)):
            yield Wait(me.clock.now() + me.limits.poll)
    if (yield from watch(me, slots)):
        is_served = bool(slots.folded) and serving(me.router, me.plan, head.round) is not None
        folded = (yield from fold_by_workers(me, slots)) if is_served else None
        if folded is not None or not is_served:
            yield from close_round(me, slots, folded)
    if slots.failure is not None:
        yield from _fail(me, head, slots.raw, slots.failure, accused=slots.accused)
    elif slots.poison is not None:
        yield from _set_job_aside(me, slots, *slots.poison)
    elif slots.sick:
        yield from _set_aside(me, slots)


def _homes(me: Master, slots: OpenSlots) -> dict[int, tuple[str, float]]:
    """Return the worker that each open slot is reserved for, and for how many seconds: the time to replay its jobs.

    A slot whose worker is not present is not reserved.
    """
    head, durations = slots.head, me.durations.get(False, [])
    if not head.logged or not durations or router_of(me.router, me.plan, head.round).memory is None:
        return {}
    present, seconds = set(me.present()), head.logged * median(durations)
    homes = {number: me.homes.get(me.plan.at(number)[1], "") for number in slots.numbers}
    return {number: (home, seconds) for number, home in homes.items() if home in present and not me.is_gone(home)}


def _ahead(me: Master, head: Head) -> tuple[int, ...]:
    """Return the slots of the next round, whose data can be written in advance; none for asynchronous strategies."""
    following = head.round + 1
    if not me.router.binds_model or following >= me.plan.total_rounds:
        return ()
    first = me.plan.number(following, 0)
    return tuple(range(first, first + me.plan.slots(following)))


def _model(me: Master, head: Head, raw: Buffer) -> Steps[Buffer | None]:
    """Return the head's model, or None if it was lost and the head has been rewritten."""
    known = me.known[1] if me.known is not None and me.known[0].identity == head.identity else None
    if known is not None and not me.must_reread_model:
        me.known = (head, known)
        return known
    rereads, me.must_reread_model = me.must_reread_model, False
    me.must_check_states = rereads
    model = (yield from _logged_model(me, head)) if head.logged else (yield from read_frame(me.store, head.model))
    if model is not None:
        me.known = (head, model)
        if head.logged and rereads:  # the lost value may be job data that a replay needs
            yield MoreWork(head, (), again=tuple(numbers_since(head, me.plan)))
        return model
    if known is None or head.logged:  # restart from a checkpoint or the first model; later rounds are done again
        yield from _begin(me, raw)
        return None
    logger.warning("model version %s was lost from the store; it is written again", head.version)
    manifest = yield from write_frame(me.store, me.model_key(head.version), known)
    mended = msgspec.structs.replace(head, model=manifest)
    if head.best is not None and head.best.model.key == head.model.key:
        mended = with_best(mended, manifest)
    yield STEP
    if me.store.replace_if_same(HEAD, raw, encode_record(mended)):
        me.known = (mended, known)
    me.store.publish(HEAD_TOPIC)
    return None


def _logged_model(me: Master, head: Head) -> Steps[Buffer | None]:
    """Return the model of a logged version by applying its log entries; None if the base model or an entry was lost."""
    entries = yield from read_log(me.store, head)
    model = yield from read_frame(me.store, head.model)
    if not entries or model is None:
        return None
    me.log = known_log(me.plan, head, entries)
    for entry in entries:
        me.homes |= {me.plan.at(job.number)[1]: job.worker for job in entry.folded}
    assert isinstance(me.aggregator, Fold), "a run with an aggregator of its own has no log"
    return model_after(me.aggregator, me.plan, model, entries)


def _has_best(me: Master, head: Head, raw: Buffer, model: Buffer) -> Steps[bool]:
    """Make this master know the head's best model; return False if it was lost and the head has been rewritten."""
    best = head.best
    if best is None or me.best_of(head) is not None:
        return True
    if best.model.key == head.model.key and not head.logged:
        me.best = (best, model)
        return True
    frame = yield from read_frame(me.store, best.model)
    if frame is not None:
        me.best = (best, frame)
        return True
    try:
        frame = me.start.best_model(best)
    except StorageError as exc:
        logger.debug("run %s waits for its best model: %s", head.run, exc)
        yield Wait(me.clock.now() + me.limits.poll)
        return False
    if frame is None:  # restart from a checkpoint or the first model; later rounds are done again
        logger.warning("the best model, of round %s, was lost; run %s goes on from before it", best.round, head.run)
        me.known = None
        yield from _begin(me, raw)
        return False
    manifest = yield from write_frame(me.store, me.model_key(best.version), frame)
    mended = with_best(head, manifest)
    yield STEP
    if me.store.replace_if_same(HEAD, raw, encode_record(mended)):
        me.known, me.best = (mended, model), (best, frame)
    me.store.publish(HEAD_TOPIC)
    return False


def _has_states(me: Master, head: Head, raw: Buffer) -> Steps[bool]:
    """Make this master know the head's snapshot; return False if states were lost and the head has been rewritten."""
    snapshot = me.snapshot[1] if me.snapshot is not None and names_snapshot(head, me.snapshot[0]) else None
    if head.snapshot is None or (snapshot is not None and not me.must_check_states):
        return True
    snapshot = yield from read_snapshot(me.store, head.snapshot)
    lost: list[SlotState] = []
    if snapshot is not None and me.must_check_states:
        lost = yield from lost_states(me.store, snapshot)
    if snapshot is not None and not lost:
        me.must_check_states = False
        me.snapshot = head.snapshot.key, snapshot
        return True
    logger.warning(
        "a state of version %s was lost; run %s goes on from its newest checkpoint, or begins anew",
        head.version,
        head.run,
    )
    me.known = None
    # Unbound jobs stay done after the run has gone back, and would lose the same state again: delete them.
    yield from delete_many(me.store, [Keys.job(*me.plan.at(state.number)) for state in lost])
    yield from _begin(me, raw)
    return False


def _begin(me: Master, expected: Buffer | None) -> Steps[None]:
    """Write the head from the known model, the newest checkpoint or version 0, if the head still is ``expected``.

    A master that was frozen until its run had ended and was cleared up finds no head either. It must not write one.
    """
    if not (yield from me.start.may_begin()):
        yield Wait(me.clock.now() + me.limits.poll)
        return
    if me.known is not None and not (yield from _can_go_on(me, me.known[0])):
        me.known = None
    try:
        head, frame, best, states = _beginning(me)
    except StorageError as exc:  # checkpoints may be readable later; do not start from version 0 meanwhile
        logger.debug("run %s waits for its checkpoints: %s", me.start.run, exc)
        yield Wait(me.clock.now() + me.limits.poll)
        return
    yield from _write_head(me, expected, (head, frame, best, states))


def _write_head(me: Master, expected: Buffer | None, beginning: Beginning) -> Steps[bool]:
    """Write a head and its values, if the stored head still is ``expected``; return whether it was written."""
    head, frame, best, states = beginning
    aside = head.jobs_set_aside
    for number in (n for first, last in me.start.aside for n in range(first, last) if not covered(head.folded, n)):
        aside = fold_number(aside, number)
    new = msgspec.structs.replace(head, status="running", jobs_set_aside=aside)
    if not head.logged:
        manifest = yield from write_frame(me.store, me.model_key(head.version), frame)
        new = msgspec.structs.replace(new, model=manifest)
    if best is not None:
        new = with_best(new, (yield from write_frame(me.store, me.model_key(head.version), best)))
    if not new.logged:
        new = with_keeps(me, new)
    if states:
        new = yield from with_new_snapshot(me, new, (yield from write_states(me.store, me.plan, states, me.writer)))
    yield STEP
    if expected is None:
        written = me.store.put_if_absent(HEAD, encode_record(new))
    else:
        written = me.store.replace_if_same(HEAD, expected, encode_record(new))
    if written:
        me.known = (new, frame)
        me.best = None if new.best is None or best is None else (new.best, best)
    me.store.publish(HEAD_TOPIC)
    return written


def hand_over(me: Master) -> Steps[bool]:
    """Replace an older head by the newest one that this master knows; return whether that was done.

    Called by a master that leaves because a standby took over while this master was cut off or frozen, and the standby
    continued from an older version. A version is not written if its slot states or its log are lost.
    """
    while me.known is not None and (yield from me.start.may_hand_over()):
        head, frame = me.known
        raw = (yield from read_many(me.store, [HEAD], clears=True))[0]
        there = parse_record(me.store, HEAD, raw, Head)
        if there is not None and (there.status != "running" or there.version >= head.version):
            return False
        best = me.best_of(head)
        if (head.best is not None and best is None) or not (yield from _can_go_on(me, head)):
            return False
        if (yield from _write_head(me, raw, (head, frame, best, {}))):
            return True
    return False


def _can_go_on(me: Master, head: Head) -> Steps[bool]:
    """Return whether the store has the log and the slot states of a head. This master knows its model."""
    if head.logged and not (yield from is_model_there(me.store, head)):
        return False
    return (yield from states_of(me.store, head)) is not None


def _beginning(me: Master) -> Beginning:
    """Return the head, model, best model and slot states that the run starts or restarts from."""
    if me.known is not None:
        head, frame = me.known
        best = None if head.best is None else me.best_of(head) or me.start.best_model(head.best)
        if head.best is None or best is not None:
            return head, frame, best, {}
    if (restored := me.start.restore()) is not None:
        head, frame = msgspec.structs.replace(restored[0], entry=None), restored[1]
        best = None if head.best is None else me.best_of(head) or me.start.best_model(head.best)
        states = {} if head.snapshot is None else me.start.states(head)
        if (head.best is None or best is not None) and states is not None:
            return head, frame, best, states
    return Head(run=me.start.run, version=0, round=0, model=Manifest("", 0, 0)), me.start.first_model(), None, {}


def _finish(me: Master, head: Head, raw: Buffer, model: Buffer) -> Steps[Head]:
    """Set the status to done and publish it; return the resulting head."""
    if head.status == "done":
        me.store.publish(HEAD_TOPIC)
        return head
    done = msgspec.structs.replace((yield from as_a_whole(me, head, model)), status="done")
    yield STEP
    if not me.store.replace_if_same(HEAD, raw, encode_record(done)):
        return head
    me.store.publish(HEAD_TOPIC)
    return done


def _tidy(me: Master, head: Head, *, knows_all: bool) -> Steps[None]:
    """Delete keys that are no longer needed. Sweep the whole store periodically, and after another master's work."""
    useless = [key for key in me.closed_keys if Keys.is_useless(key, head)]
    if useless:
        me.closed_keys = [key for key in me.closed_keys if not Keys.is_useless(key, head)]
        yield from delete_many(me.store, useless)
    if not knows_all or not 0 <= head.version - me.swept < SWEEP_VERSIONS:
        me.swept = head.version
        keys = yield from sweep(me.store, head)
        best = me.best_of(head)
        if head.best is not None and best is not None and not set(keys_of(head.best.model)) <= set(keys):
            yield from rewrite_frame(me.store, head.best.model, best)


def _fail(me: Master, head: Head, raw: Buffer, failure: Failure, *, accused: int = 0) -> Steps[None]:
    """End the run with a job's failure; ``accused`` crashes were that job's, and no longer count against other jobs."""
    failed = msgspec.structs.replace(head, status="failed", failure=failure)
    stopped = me.scoring.failed(head, failure)
    if stopped is not None and me.known is not None:
        failed = yield from as_a_whole(me, stopped, me.known[1])
    yield STEP
    if me.store.replace_if_same(HEAD, raw, encode_record(failed)) and accused:
        yield from increment(me.store, CRASHES, -accused, least=0)
    me.store.publish(HEAD_TOPIC)


def _set_aside(me: Master, slots: OpenSlots) -> Steps[None]:
    """Set a worker aside: it gets no more jobs, since it failed at jobs that other workers completed."""
    workers = (*slots.head.set_aside, slots.sick)[-MOST_SET_ASIDE:]
    head = msgspec.structs.replace(slots.head, set_aside=workers)
    yield STEP
    if me.store.replace_if_same(HEAD, slots.raw, encode_record(head)):
        me.known = (head, slots.model)
        me.on_set_aside(slots.sick, me.suspects.pop(slots.sick))
    me.store.publish(HEAD_TOPIC)


def _set_job_aside(me: Master, slots: OpenSlots, number: int, failure: Failure) -> Steps[None]:
    """Continue the run without the job of a slot. The slot keeps the state after its previous job.

    If that state is not saved, and no later job will save it before the next model and states are stored, the run goes
    back to the last stored model and states. The rounds since then are repeated with the same results, and the states
    are saved with the last one. The version number still increases, so that no process takes the new head for an older
    one.
    """
    aside = fold_number(slots.head.jobs_set_aside, number)
    head = msgspec.structs.replace(slots.head, jobs_set_aside=aside)
    goes_back = _leaves_unsaved(me, head, number)
    if goes_back:
        back = rewound(head, me.plan)
        head = msgspec.structs.replace(back, version=head.version + 1, keeps=head.round - 1)
    yield STEP
    if me.store.replace_if_same(HEAD, slots.raw, encode_record(head)):
        me.known = None if goes_back else (head, slots.model)
        me.on_job_set_aside(me.plan.at(number), failure)
        yield from increment(me.store, CRASHES, -slots.accused, least=0)
    me.store.publish(HEAD_TOPIC)


def _leaves_unsaved(me: Master, head: Head, number: int) -> bool:
    """Return whether the state of a slot whose job is set aside would not be saved by any job."""
    if router_of(me.router, me.plan, head.round).memory is None:
        return False
    aside, slot = head.jobs_set_aside, me.plan.at(number)[1]
    since = (n for n in numbers_since(head, me.plan) if me.plan.at(n)[1] == slot and not covered(aside, n))
    return any(since) and me.plan.is_last_until(number, head.keeps, aside)


def reopen(store: Store, plan: Plan, router: WorkRouter) -> Steps[bool]:
    """Let a failed run continue where it was, without counting earlier attempts; return whether it had failed.

    For the process that leads the run, before ``master_steps``. The cause of the failure must have been fixed.
    """
    raw = (yield from read_many(store, [HEAD], clears=True))[0]
    head = parse_record(store, HEAD, raw, Head)
    if raw is None or head is None or head.status != "failed":
        return False
    going_on = msgspec.structs.replace(head, status="running", failure=None, set_aside=())
    keys = [Keys.job(*plan.at(number)) for number in open_slots(router, plan, going_on)]
    found = yield from read_many(store, keys, clears=True)
    for key, job in zip(keys, found, strict=True):
        record = parse_record(store, key, job, JobRecord)
        has_failed = record is not None and (record.failures or record.crashes) and record.state != "done"
        if job is not None and record is not None and has_failed:
            fresh = {"failure": None, "failures": (), "begun": (), "crashes": ()}
            again = msgspec.structs.replace(record, state="ready", worker="", **fresh)
            yield STEP
            store.replace_if_same(key, job, encode_record(again))
    yield STEP
    return store.replace_if_same(HEAD, raw, encode_record(going_on))


def extend_run(store: Store, plan: Plan) -> Steps[bool]:
    """Let a finished run continue if its plan has more rounds now; return whether it does.

    For the process that leads the run, before ``master_steps`` and before workers start: they leave when they see the
    end of the run.
    """
    raw = (yield from read_many(store, [HEAD], clears=True))[0]
    head = parse_record(store, HEAD, raw, Head)
    if raw is None or head is None or head.status != "done" or head.stopped_by or head.round >= plan.total_rounds:
        return False
    yield STEP
    return store.replace_if_same(HEAD, raw, encode_record(msgspec.structs.replace(head, status="running")))


def restore_end(store: Store, seen: Head) -> Steps[bool]:
    """Write the lost head of a finished run again, as this process last saw it; return whether it was written.

    For the process that takes the run over, before ``master_steps``. The workers left when they saw this head, so
    nobody could repeat the rounds after the last checkpoint. This head was the last one, so no newer head can be
    overwritten.
    """
    raw = (yield from read_many(store, [HEAD], clears=True))[0]
    if seen.status != "done" or parse_record(store, HEAD, raw, Head) is not None:
        return False
    if not (yield from is_model_there(store, seen)):
        return False
    yield STEP
    if raw is None:
        return store.put_if_absent(HEAD, encode_record(seen))
    return store.replace_if_same(HEAD, raw, encode_record(seen))
