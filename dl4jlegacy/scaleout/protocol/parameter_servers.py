"""Parameter servers: the workers fold the updates of a round, one slice of the parameter vector per fold job.

When all slots of a round are done, the master writes a fold job for each slice. Its result is a pure function of the
model that the round started from and of the updates' slices; the job's record names both. So it does not matter which
worker does it, how often or how late, and all slices are folded from the same update of each slot. The sums equal those
over the whole vector, element by element in slot order: the bits are the same for any number of slices. When all slices
are done, the compare-and-set of the head makes them the next model.

With an aggregation depth above 1, other fold jobs come first. They compute the means of groups of updates, and of
groups of these means; the last job of each slice folds the remaining ones. The groups follow from the number of slots
and the depth.

Legacy: the shards of ``VoidConfiguration.numberOfShards``, whose loss was not detected, and the ``treeAggregate`` of
``ParameterAveragingTrainingMaster``.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from dl4jlegacy.errors import Dl4jError, NotFiniteError, WireError
from dl4jlegacy.scaleout.contract import finished, open_slots
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.protocol.events import JOB_TOPIC, STEP, UPDATE_TOPIC, Limits, Steps, Wait
from dl4jlegacy.scaleout.protocol.failures import add_failure, is_hopeless
from dl4jlegacy.scaleout.protocol.frames import (
    delete_frame,
    delete_many,
    keys_of,
    parse_record,
    put_many_if_absent,
    read_frame,
    read_frames,
    read_many,
    write_frame,
)
from dl4jlegacy.scaleout.protocol.inputs import WorkerMemory
from dl4jlegacy.scaleout.protocol.master_state import Master
from dl4jlegacy.scaleout.protocol.slot_watch import (
    GROUP_NBYTES,
    NOTHING,
    REMEMBERED,
    Lease,
    OpenSlots,
    check_fits,
    refuse_update,
    reissue_reason,
    reopen_slots,
    seen_lease,
    straggler_seconds,
)
from dl4jlegacy.scaleout.state.aggregate import Aggregation, aggregation_tree
from dl4jlegacy.scaleout.state.records import (
    HEAD,
    MODEL_LOST,
    Failure,
    FoldRecord,
    Head,
    Keys,
    Manifest,
    advance,
    encode_record,
)
from dl4jlegacy.scaleout.state.slices import cut
from dl4jlegacy.scaleout.state.store import Buffer
from dl4jlegacy.scaleout.strategies import IterativeReduceWorkRouter, serving
from dl4jlegacy.system.clock import Clock

__all__ = ["FoldedSlices", "Server", "fold_by_workers", "serve"]

logger = logging.getLogger(__name__)

UPDATE_LOST, UPDATE_UNFIT = "DL4J-UPDATE-LOST", "DL4J-UPDATE-UNFIT"
"""Failure codes for a fold job that is not itself at fault: an update could not be read, or does not fit the model."""


class FoldedSlices(NamedTuple):
    """The slices of the next model, the mean score of the updates, and the keys that can be deleted afterwards."""

    slices: tuple[Manifest, ...]
    score: float | None
    keys: tuple[str, ...]


# -- the master's side -------------------------------------------------------------------------------------------------


class _Update(NamedTuple):
    """A slice of a slot's update, and its weight as a number of examples."""

    number: int
    made: Manifest
    examples: int


@dataclass(slots=True)
class _FoldJob:
    """A fold job: its sources, which are updates or results of other fold jobs, and its record as last seen."""

    key: str
    place: int
    sources: Sequence[_Update | _FoldJob]
    makes_model: bool
    lease: Lease | None = None
    done: FoldRecord | None = None

    @property
    def made(self) -> Manifest | None:
        """The result of the job, if it is done."""
        return None if self.done is None else self.done.made

    @property
    def examples(self) -> int:
        """The weight of the job's result, as a number of examples."""
        return sum(source.examples for source in self.sources)

    def first(self, model: str) -> FoldRecord | None:
        """Return the job's record before its first lease; None if a source is not available yet."""
        updates = tuple(source.made for source in self.sources if source.made is not None)
        if len(updates) < len(self.sources):
            return None
        examples = tuple(source.examples for source in self.sources)
        return FoldRecord(
            model=model, updates=updates, examples=examples, place=self.place, makes_model=self.makes_model
        )


def fold_by_workers(me: Master, slots: OpenSlots) -> Steps[FoldedSlices | None]:
    """Have the workers fold the updates of ``slots.folded``, which are all done.

    Returns None if that was not possible: the head has changed or must change, or a slot was made ready again.
    """
    strategy = serving(me.router, me.plan, slots.head.round)
    assert strategy is not None
    parts = {number: (slots.records[number].update or NOTHING).parts for number in slots.folded}
    for number, each in parts.items():
        if len(each) != strategy.slices:
            text = f"it has {len(each)} slices, and {strategy.slices} belong there"
            yield from refuse_update(me, slots, number, WireError(text))
            return None
    jobs = _fold_jobs(strategy, me.plan, slots.head, parts)
    last = [job for job in jobs if job.makes_model]
    while True:
        with me.phases.phase("MasterWatch", (slots.head.round, None)):
            found = yield from read_many(me.store, [HEAD, *(job.key for job in jobs)], clears=True)
        if found[0] != slots.raw:
            return None
        for job, raw in zip(jobs, found[1:], strict=True):  # those whose results others need come first
            if not (yield from _check_fold(me, slots, job, raw)):
                return None
        if all(job.done is not None for job in last):
            me.fold_seconds[:] = [*me.fold_seconds, *(job.done.seconds for job in jobs if job.done)][-REMEMBERED:]
            for number in slots.folded:
                me.suspects.clear(slots.records[number].worker)
            groups = [key for job in jobs if job.made and not job.makes_model for key in keys_of(job.made)]
            slices, score = tuple(job.made or NOTHING for job in last), last[0].done.score if last[0].done else None
            return FoldedSlices(slices, score, (*(job.key for job in jobs), *groups))
        with me.phases.phase("MasterWait", (slots.head.round, None)):
            yield Wait(me.clock.now() + me.limits.poll)


def _fold_jobs(
    strategy: IterativeReduceWorkRouter, plan: Plan, head: Head, parts: Mapping[int, Sequence[Manifest]]
) -> list[_FoldJob]:
    """Return the fold jobs for the updates of some slots; ``parts`` has the slices of each update."""
    jobs: list[_FoldJob] = []
    for place in range(strategy.slices):
        sources: list[_Update | _FoldJob] = [
            _Update(number, each[place], strategy.weight(plan.examples_of(number))) for number, each in parts.items()
        ]
        *groups, last = aggregation_tree(len(parts), strategy.aggregation_depth)
        for level in (*groups, last):
            first = len(jobs)
            for index, group in enumerate(level, first):
                key = Keys.fold(head.version + 1, index)
                jobs.append(_FoldJob(key, place, [sources[source] for source in group], makes_model=level is last))
            sources = [*jobs[first:]]
    return jobs


def _check_fold(me: Master, slots: OpenSlots, job: _FoldJob, raw: Buffer | None) -> Steps[bool]:
    """Write or reissue a fold job if necessary; return False if the master must start again."""
    record, first = parse_record(me.store, job.key, raw, FoldRecord), job.first(slots.head.identity)
    before, job.done = job.done, None
    if first is None:
        return True
    if raw is None or record is None:
        if raw is not None:
            yield from delete_many(me.store, [job.key])
        yield from put_many_if_absent(me.store, [(job.key, encode_record(first))])
        me.store.publish(JOB_TOPIC)
        return True
    again: FoldRecord | None = None
    if not first.is_same_job(record):
        again = first
    elif record.state == "done":
        job.done = record
        if before is None:
            me.on_progress()
    elif record.state == "failed":
        if not (yield from _is_worth_trying(me, slots, job, record)):
            return False
        again = msgspec.structs.replace(record, state="ready", worker="", failure=None, bad=())
    elif record.state == "leased":
        job.lease = seen_lease(job.lease, record.token, raw, me.clock.now())
        if reissue_reason(me, job.lease, record.worker, straggler_seconds(me.limits, me.fold_seconds)) is not None:
            again = msgspec.structs.replace(record, state="ready", worker="")
    if again is not None:
        yield STEP
        if me.store.replace_if_same(job.key, raw, encode_record(again)):
            me.store.publish(JOB_TOPIC)
    return not me.must_reread_model


def _is_worth_trying(me: Master, slots: OpenSlots, job: _FoldJob, record: FoldRecord) -> Steps[bool]:
    """Return whether a failed fold job may be tried again.

    It may not if all workers have failed at it, or if an update is lost or does not fit; then the slot of that update
    is made ready again.
    """
    failure = record.failure
    if failure is None:
        return True
    if failure.code in (UPDATE_LOST, UPDATE_UNFIT) and (yield from _has_bad(me, slots, job, record)):
        return False
    if failure.code == MODEL_LOST:
        me.must_reread_model = True
    able = {*me.present(), failure.worker} - set(slots.head.set_aside)
    if failure.fatal or is_hopeless(record.failures, able, me.limits.attempts):
        slots.failure = failure
    return slots.failure is None


def _has_bad(me: Master, slots: OpenSlots, job: _FoldJob, record: FoldRecord) -> Steps[bool]:
    """Check the sources that a worker could not fold; have lost or unfit ones made again; return whether any were.

    An update that does not fit counts as a failure of the worker that sent it.
    """
    strategy = serving(me.router, me.plan, slots.head.round)
    assert strategy is not None
    places = [place for place in record.bad if place < len(record.updates)]
    frames = yield from read_frames(me.store, [record.updates[place] for place in places])
    found, model = False, cut(slots.model, job.place, strategy.slices)
    for source, frame in zip([job.sources[place] for place in places], frames, strict=True):
        if frame is None:
            found = True
            yield from _made_again(me, slots, source)
        elif isinstance(source, _Update):
            try:
                check_fits(me, frame, model)
            except WireError as exc:
                found = True
                yield from refuse_update(me, slots, source.number, exc)
    return found


def _made_again(me: Master, slots: OpenSlots, source: _Update | _FoldJob) -> Steps[None]:
    """Make the slot or fold job whose result is lost ready again."""
    if isinstance(source, _Update):
        yield from reopen_slots(me, slots, [source.number])
        return
    again = source.first(slots.head.identity)
    if source.done is not None and again is not None:
        yield STEP
        me.store.replace_if_same(source.key, encode_record(source.done), encode_record(again))


# -- the worker's side -------------------------------------------------------------------------------------------------


class Server(NamedTuple):
    """The clock and limits of a worker that folds slices; ``writer()`` returns a key part not used before."""

    clock: Clock
    limits: Limits
    writer: Callable[[], str]


class _Fold(NamedTuple):
    """A leased fold job: its key, the number of slices, its record, the record's bytes, and its start time."""

    key: str
    slices: int
    record: FoldRecord
    raw: bytes
    since: float

    def __str__(self) -> str:
        what = "slice" if self.record.makes_model else "a group of slice"
        return f"{what} {self.record.place} of {self.slices}"


def serve(me: WorkerMemory, head: Head, server: Server) -> Steps[bool]:
    """Do a fold job of the head's round if one is ready; return whether there was one."""
    strategy = serving(me.router, me.plan, head.round) if head.round < me.plan.total_rounds else None
    if strategy is None:
        return False
    tree = aggregation_tree(me.plan.slots(head.round), strategy.aggregation_depth)
    keys = [Keys.fold(head.version + 1, index) for index in range(strategy.slices * sum(map(len, tree)))]
    found = yield from read_many(me.store, keys)
    first = zlib.crc32(me.name.encode()) % len(keys)  # two workers seldom want the same one
    for index in (*range(first, len(keys)), *range(first)):
        raw = found[index]
        record = parse_record(me.store, keys[index], raw, FoldRecord)
        if raw is None or record is None or record.state != "ready" or record.model != head.identity:
            continue
        if sum(failure.worker == me.name for failure in record.failures) >= server.limits.attempts:
            continue
        since, token = server.clock.now(), record.token + 1
        lease = msgspec.structs.replace(record, state="leased", token=token, worker=me.name, extended=0)
        new = encode_record(lease)
        yield STEP
        if me.store.replace_if_same(keys[index], raw, new):
            with me.phases.phase("WorkerFold", (head.round, None)):
                yield from _fold(me, head, _Fold(keys[index], strategy.slices, lease, new, since), server)
            return True
    return False


def _fold(me: WorkerMemory, head: Head, fold: _Fold, server: Server) -> Steps[None]:
    """Do a leased fold job and commit its result, or write the failure into its record."""
    try:
        made = yield from _folded(me, head, fold, server)
    except (Dl4jError, ValueError, TypeError, KeyError) as exc:
        code = exc.code if isinstance(exc, Dl4jError) else type(exc).__name__
        text = f"{fold} of round {head.round} could not be folded: {exc}"
        yield from _report(me, fold, Failure(code, text, me.name, fatal=isinstance(exc, NotFiniteError)))
        return
    if made is None:
        return
    frame, score = made
    key = Keys.model(head.version + 1, server.writer())
    if not fold.record.makes_model:
        key = Keys.update(head.round, fold.record.place, server.writer())
    manifest = yield from write_frame(me.store, key, frame)
    seconds = server.clock.now() - fold.since
    changes = {"state": "done", "worker": me.name, "made": manifest, "score": score, "seconds": seconds}
    if not (yield from _change(me, fold, **changes)):
        yield from delete_frame(me.store, manifest)


def _begun(me: WorkerMemory, head: Head, fold: _Fold, model: Buffer) -> Aggregation:
    """Return the aggregation of a fold job."""
    examples = fold.record.examples
    if fold.record.makes_model:
        return me.aggregator.begin(model, version=head.version, examples=examples)
    return me.aggregator.begin_group(examples=examples)


def _folded(me: WorkerMemory, head: Head, fold: _Fold, server: Server) -> Steps[tuple[Buffer, float | None] | None]:
    """Return the result of a fold job and its score; None if a value is lost or unfit, which is then in its record."""
    model = yield from _slice_of(me, head, fold)
    if model is None:
        yield from _report(me, fold, Failure(MODEL_LOST, f"model {head.model.key} could not be read", me.name))
        return None
    aggregation, updates, extended = _begun(me, head, fold, model), fold.record.updates, server.clock.now()
    for places in _groups(updates):
        frames = yield from read_frames(me.store, [updates[place] for place in places])
        lost = tuple(place for place, frame in zip(places, frames, strict=True) if frame is None)
        if lost:
            text = f"{len(lost)} of {len(updates)} updates of round {head.round} could not be read"
            yield from _report(me, fold, Failure(UPDATE_LOST, text, me.name), lost)
            return None
        whole = [frame for frame in frames if frame is not None]
        for place, frame in zip(places, whole, strict=True):
            try:
                me.aggregator.check(frame, model)
            except WireError as exc:
                text = f"an update of round {head.round} does not fit {fold}: {exc}"
                yield from _report(me, fold, Failure(UPDATE_UNFIT, text, me.name), (place,))
                return None
        aggregation.add(whole)
        if server.clock.now() - extended > server.limits.lease / 4:
            extended = server.clock.now()
            fold = yield from _extended(me, fold)
    following = advance(head, me.plan, open_slots(me.router, me.plan, head)).round
    return finished(aggregation, model, ends_phase=me.plan.ends_phase(head.round, following))


def _slice_of(me: WorkerMemory, head: Head, fold: _Fold) -> Steps[Buffer | None]:
    """Return the fold job's slice of the head's model, reading only that slice if possible; None if it is lost."""
    known = me.model is not None and me.model[0] == head.identity
    if not known and len(head.model.parts) == fold.slices:
        return (yield from read_frame(me.store, head.model.parts[fold.record.place]))
    if not known:
        frame = yield from read_frame(me.store, head.model)
        if frame is None:
            return None
        me.model = head.identity, frame
        me.latest.clear()
    assert me.model is not None
    return cut(me.model[1], fold.record.place, fold.slices)


def _groups(updates: Sequence[Manifest]) -> Iterator[list[int]]:
    """Yield the indices of updates to read together: at most ``GROUP_NBYTES`` in total, or a single update."""
    group: list[int] = []
    for place, update in enumerate(updates):
        if group and sum(updates[other].nbytes for other in group) + update.nbytes > GROUP_NBYTES:
            yield group
            group = []
        group.append(place)
    if group:
        yield group


def _report(me: WorkerMemory, fold: _Fold, failure: Failure, bad: tuple[int, ...] = ()) -> Steps[None]:
    """Record why a fold job failed; the master decides how to continue."""
    failures = add_failure(fold.record.failures, failure)
    logger.debug("worker %s: %s", me.name, failure.message)
    yield from _change(me, fold, state="failed", failure=failure, failures=failures, bad=bad)


def _extended(me: WorkerMemory, fold: _Fold) -> Steps[_Fold]:
    """Extend the lease, which expires if folding makes no progress. Another worker may have the job already."""
    record = msgspec.structs.replace(fold.record, extended=fold.record.extended + 1)
    new = encode_record(record)
    yield STEP
    return fold._replace(record=record, raw=new) if me.store.replace_if_same(fold.key, fold.raw, new) else fold


def _change(me: WorkerMemory, fold: _Fold, **changes: object) -> Steps[bool]:
    """Change the record unless the job is done or has been replaced by another job; return whether it was changed.

    Marking the job done needs no valid lease, since all workers get the same result. Marking it failed does.
    """
    raw, record = fold.raw, fold.record
    while True:
        yield STEP
        if me.store.replace_if_same(fold.key, raw, encode_record(msgspec.structs.replace(record, **changes))):
            me.store.publish(UPDATE_TOPIC)
            return True
        read = (yield from read_many(me.store, [fold.key]))[0]
        found = parse_record(me.store, fold.key, read, FoldRecord)
        if read is None or found is None or found.state == "done" or not found.is_same_job(fold.record):
            return False
        if changes["state"] == "failed" and (found.token, found.state) != (fold.record.token, "leased"):
            return False
        raw, record = bytes(read), found
