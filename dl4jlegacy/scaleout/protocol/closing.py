"""The end of a round: one compare-and-set of the head makes the round's updates the next model version."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

import msgspec

from dl4jlegacy.scaleout.contract import finished
from dl4jlegacy.scaleout.protocol.events import HEAD_TOPIC, STEP, NewModel, SavedState, Steps
from dl4jlegacy.scaleout.protocol.frames import delete_many, in_slices, keys_of, read_frame, write_frame
from dl4jlegacy.scaleout.protocol.log import KnownLog, Spare, folded_jobs, saved_in, write_entry
from dl4jlegacy.scaleout.protocol.master_state import Master
from dl4jlegacy.scaleout.protocol.parameter_servers import FoldedSlices
from dl4jlegacy.scaleout.protocol.slot_states import names_snapshot, read_states, with_snapshot, write_snapshot
from dl4jlegacy.scaleout.protocol.slot_watch import OpenSlots
from dl4jlegacy.scaleout.state.aggregate import Fold, ValidationAggregation
from dl4jlegacy.scaleout.state.records import (
    HEAD,
    Figures,
    Head,
    Keys,
    LogEntry,
    Manifest,
    SlotState,
    Snapshot,
    advance,
    encode_record,
)
from dl4jlegacy.scaleout.state.store import Buffer
from dl4jlegacy.scaleout.strategies import router_of

__all__ = [
    "LONGEST_REPLAY",
    "as_a_whole",
    "close_round",
    "states_to_save",
    "with_best",
    "with_keeps",
    "with_new_snapshot",
]

LONGEST_REPLAY = 30.0
"""Maximum duration in seconds of replaying the jobs of a slot whose worker is gone."""
RECENT = 4
"""Number of earlier versions that are kept for asynchronous strategies, where jobs start from the newest model.

Making that many versions must take longer than writing a model, and than a worker takes to read a model and a state.
"""


def close_round(me: Master, slots: OpenSlots, served: FoldedSlices | None = None) -> Steps[None]:
    """Write the folded updates as the next model version and make it current; from that moment the updates count.

    Slices from parameter servers are stored already, and may be part of another master's head; they are only read. A
    validation leaves the model unchanged, and so may an aggregation; then the model is not written again. The new head
    also contains the consequences for the best model and the run's end.
    """
    head, now, at = slots.head, me.clock.now(), (slots.head.round, None)
    before = me.snapshot
    new, frame, figures = yield from _next_model(me, slots, _advanced(me, slots, now), served)
    if not new.logged:
        new = with_keeps(me, new)
    with me.phases.phase("MasterScore", at):
        new = me.scoring.closed(me.plan, head, new, figures)
    if new.status != "running":
        new = yield from as_a_whole(me, new, frame)
    yield STEP
    committing = me.phases.begin()
    if not me.store.replace_if_same(HEAD, slots.raw, encode_record(new)):
        theirs = (head.model, head.entry, head.snapshot)
        made = [each for each in (new.model, new.entry, new.snapshot) if each is not None and not each.parts]
        mine = dict.fromkeys(key for each in made if each not in theirs for key in keys_of(each))
        yield from delete_many(me.store, list(mine))
        return
    committing.end("MasterCommit", at)
    whole = frame if served is None else (yield from read_frame(me.store, new.model))
    if whole is None:  # lost since then: the run continues as after any lost model
        me.known = None
        me.store.publish(HEAD_TOPIC)
        return
    me.known, me.counted, me.spare = (new, whole), (new.version, now), _spare(me, slots, new, whole)
    if new.best is not None and not new.best.is_same(head.best):
        me.best = (new.best, whole)
    me.homes |= {me.plan.at(number)[1]: slots.records[number].worker for number in slots.folded}
    me.log = _known_log(me, slots, new)
    me.closed_keys += _keys_without_use(me, slots, new, before, served)
    jobs = {number: slots.records[number] for number in slots.folded}
    states = yield from states_to_save(me, new)
    yield NewModel(new, whole, best=me.best_of(new), jobs=jobs, figures=figures, states=states)


def _next_model(
    me: Master, slots: OpenSlots, new: Head, served: FoldedSlices | None
) -> Steps[tuple[Head, Buffer, Figures | None]]:
    """Return the new head with the result of the folded slots, the model's frame, and the figures of a validation.

    A model from parameter servers is not read: the frame returned is the previous model's.
    """
    head, aggregation, at = slots.head, slots.aggregation, (slots.head.round, None)
    if isinstance(aggregation, ValidationAggregation):
        return new, slots.model, aggregation.figures()
    if served is not None:
        model = in_slices(me.model_key(new.version), served.slices)
        return msgspec.structs.replace(new, score=served.score, model=model), slots.model, None
    assert aggregation is not None
    ends_phase = me.plan.ends_phase(head.round, new.round)
    with me.phases.phase("MasterAggregate", at):
        frame, score = finished(aggregation, slots.model, ends_phase=ends_phase)
    with me.phases.phase("MasterStoreModel", at):
        new = yield from _stored(me, slots, msgspec.structs.replace(new, score=score), frame, ends_phase=ends_phase)
    return new, frame, None


def _advanced(me: Master, slots: OpenSlots, now: float) -> Head:
    """Return the head after the folded slots, before the new model is stored."""
    dropped, recent = max(slots.head.updates_dropped, slots.dropped), 1 if me.router.binds_model else RECENT
    new = advance(slots.head, me.plan, slots.folded, updates_dropped=dropped, recent=recent)
    return msgspec.structs.replace(new, seconds=slots.head.seconds + now - me.counted[1])


def _stored(me: Master, slots: OpenSlots, new: Head, frame: Buffer, *, ends_phase: bool) -> Steps[Head]:
    """Return the new head with its model, which is written as a whole, as a log entry, or as both.

    With an entry, a worker that has the previous model need not read this one.
    """
    head = slots.head
    is_logged = router_of(me.router, me.plan, head.round).log_every > 0 and not ends_phase
    is_whole = not is_logged or head.round >= head.keeps
    entry, begins = None, new.round if ends_phase else head.replay_round
    if is_logged:
        jobs = folded_jobs(slots.folded, slots.records, slots.updates)
        previous = () if is_whole else me.log.following(head)
        said = LogEntry(version=new.version, before=head.identity, folded=jobs, previous=previous)
        key = Keys.entry(new.version, me.writer())
        entry, messages = yield from write_entry(me.store, key, said, apart=me.pushes_messages)
        me.closed_keys += [] if messages is None else keys_of(messages)  # deleted once the log has moved past them
    if not is_whole:
        new = msgspec.structs.replace(new, entry=entry, logged=head.logged + 1)
        if me.shares_models:
            me.models.put(new.identity, frame)  # before any worker can look for it
        return new
    model = head.model
    if head.logged or frame is not slots.model:
        model = yield from write_frame(me.store, me.model_key(new.version), frame)
    new = msgspec.structs.replace(new, model=model, entry=entry, logged=0, replay_round=begins)
    return (yield from _with_states(me, slots, new, ends_phase=ends_phase))


def _spare(me: Master, slots: OpenSlots, new: Head, frame: Buffer) -> Spare | None:
    """Return the previous model's frame as a spare, if only this master has it: it was neither stored nor saved."""
    is_ours = slots.head.logged and new.logged and frame is not slots.model and not me.shares_models
    if not is_ours or not isinstance(me.aggregator, Fold) or not me.aggregator.works_in_place:
        return None
    examples = [me.plan.examples_of(number) for number in slots.folded]
    return Spare(slots.model, new.identity, examples, [slots.updates[number] for number in slots.folded])


def _known_log(me: Master, slots: OpenSlots, new: Head) -> KnownLog:
    """Return the log of the new head."""
    if not new.logged:
        return KnownLog(new.identity)
    before = me.log.saved if slots.head.logged else {}
    return KnownLog(new.identity, me.log.following(slots.head), {**before, **_saved(me, slots)})


def _saved(me: Master, slots: OpenSlots) -> dict[int, SlotState]:
    """Return the states that the folded jobs have saved, by slot."""
    return saved_in(me.plan, folded_jobs(slots.folded, slots.records, {}))


def _replaced_keys(head: Head, new: Head) -> list[str]:
    """Return the keys of those models and entries of a head that the new head has replaced."""
    entry = [] if head.entry is None else keys_of(head.entry)
    return [*entry, *([] if new.model.key == head.model.key else keys_of(head.model))]


def _with_states(me: Master, slots: OpenSlots, new: Head, *, ends_phase: bool) -> Steps[Head]:
    """Return a new head with its snapshot; states end with their phase."""
    head = slots.head
    if router_of(me.router, me.plan, head.round).memory is None:
        return new
    if ends_phase:
        return msgspec.structs.replace(new, snapshot=None)
    before = me.snapshot[1] if me.snapshot is not None and names_snapshot(head, me.snapshot[0]) else Snapshot()
    states = {**before.states, **(me.log.saved if head.logged else {}), **_saved(me, slots)}
    return (yield from with_new_snapshot(me, new, Snapshot(dict(sorted(states.items())))))


def _keys_of_states(head: Head, known: tuple[str, Snapshot] | None) -> list[str]:
    """Return the keys of a head's snapshot and of the states that it names."""
    if head.snapshot is None or known is None or not names_snapshot(head, known[0]):
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


def _keys_without_use(
    me: Master,
    slots: OpenSlots,
    new: Head,
    states: tuple[str, Snapshot] | None,
    served: FoldedSlices | None,
) -> list[str]:
    """Return the keys that can be deleted once ``new`` has replaced the head; ``states`` is the old head's snapshot."""
    head = slots.head
    keys = [*_replaced_keys(head, new), *_keys_of_slots(me, slots)]
    keys += [] if served is None else served.keys
    keys += _keys_of_states(head, states) if new.snapshot != head.snapshot else []
    if head.best is not None and new.best is not None and not new.best.is_same(head.best):
        keys += keys_of(head.best.model)
    return keys


def as_a_whole(me: Master, head: Head, model: Buffer) -> Steps[Head]:
    """Return a head that ends the run, with its model written as a whole: no process follows the log after the end."""
    if not head.logged:
        return head
    manifest = yield from write_frame(me.store, me.model_key(head.version), model)
    return msgspec.structs.replace(head, model=manifest, entry=None, logged=0, snapshot=None)


def with_keeps(me: Master, head: Head) -> Head:
    """Return a head whose model is stored as a whole, with ``keeps``: the next round whose model will be, too.

    Replaying a job may take at most ``LONGEST_REPLAY``: the longer jobs take, the more often states are saved, and
    every round as long as their duration is unknown. Rounds that may produce a score are stored, because a run that
    restarts from an earlier one would score them twice.
    """
    router = router_of(me.router, me.plan, head.round)
    if (not router.log_every and router.memory is None) or head.round >= me.plan.total_rounds:
        return head
    durations = me.durations.get(False, [])
    affordable = int(LONGEST_REPLAY / max(median(durations), 1e-9)) if durations else 1
    most = max(1, min(router.log_every, affordable))
    if me.scoring.stopping is not None:
        most = min(most, me.plan.left_in_epoch(head.round))
    return msgspec.structs.replace(head, keeps=me.plan.unbroken(head.round, most))


def with_new_snapshot(me: Master, head: Head, snapshot: Snapshot) -> Steps[Head]:
    """Write a snapshot, and return the head with it."""
    manifest = yield from write_snapshot(me.store, Keys.snapshot(head.version, me.writer()), snapshot)
    me.snapshot = manifest.key, snapshot
    return with_snapshot(head, snapshot, manifest)


def with_best(head: Head, model: Manifest) -> Head:
    """Return the head with its best model stored under another manifest."""
    assert head.best is not None
    return msgspec.structs.replace(head, best=msgspec.structs.replace(head.best, model=model))


def states_to_save(me: Master, head: Head) -> Steps[Mapping[int, SavedState]]:
    """Return the states that belong to a version, if it will be saved; none if one of them was just lost."""
    if me.snapshot is None or not names_snapshot(head, me.snapshot[0]) or not me.is_to_be_saved(head):
        return {}
    return (yield from read_states(me.store, me.snapshot[1])) or {}
