"""How a master watches the slots that are open: who is late, what failed, which updates can be folded already.

All times are the master's own: a lease ends when its record has not changed for so long, whatever the clocks of other
machines say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Literal

import msgspec

from dl4jlegacy.scaleout.aggregate import Aggregation
from dl4jlegacy.scaleout.protocol.events import DROPPED, JOB_TOPIC, STEP, MoreWork, Steps, Wait
from dl4jlegacy.scaleout.protocol.frames import read_frames, read_many
from dl4jlegacy.scaleout.records import (
    HEAD,
    MODEL_LOST,
    Failure,
    Head,
    JobRecord,
    Keys,
    Manifest,
    decode_record,
    encode_record,
)
from dl4jlegacy.scaleout.store import Buffer

if TYPE_CHECKING:
    from dl4jlegacy.scaleout.protocol.master import Master

__all__ = ["OpenSlots", "ReissueReason", "watch"]

ReissueReason = Literal["gone", "expired", "slow"]
"""Why a job is given to somebody else: its worker is gone, its lease has ended, or it takes longer than others do."""

WINDOW = 4
"""Slots that are looked at whenever something happens; twice as many as long as all of them are done. Those behind
them are looked at once a poll interval."""
GROUP_NBYTES = 8 << 20
"""Updates that are fetched together."""
NOTHING = Manifest("", 0, 1)
"""Stands for an update that is not there; it can never be read."""
REMEMBERED = 64
"""Durations of jobs by which the next ones are judged."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease as the master saw it: since when, and when it was last extended."""

    token: int
    raw: Buffer
    since: float
    changed: float


@dataclass(slots=True)
class OpenSlots:
    """What a master knows of the slots that are open under one head."""

    head: Head
    raw: Buffer
    model: Buffer
    numbers: Sequence[int]
    records: dict[int, JobRecord] = field(default_factory=dict)
    leases: dict[int, Lease] = field(default_factory=dict)
    missing: list[int] = field(default_factory=list)
    folded: list[int] = field(default_factory=list)
    aggregation: Aggregation | None = None
    failure: Failure | None = None
    dropped: int = 0
    asked: float = float("-inf")
    looked: float = float("-inf")

    def done(self) -> set[int]:
        """Return the slots that have an update."""
        return {number for number, record in self.records.items() if record.state == "done"}


def watch(me: Master, slots: OpenSlots) -> Steps[bool]:
    """Wait until the router has updates to fold, and fold them; False when the head has changed, or must be.

    Updates of a model that does not fit into one value of the store are fetched and folded as they come, so that the
    master never holds more than one of them.
    """
    streams = slots.head.model.chunks > 1
    while (yield from _look(me, slots)):
        done = slots.done()
        chosen = me.router.send_work(slots.numbers, done)
        ready = chosen or (me.router.fold_ahead(slots.numbers, done) if streams else [])
        if len(ready) > len(slots.folded) and not (yield from _fold(me, slots, ready, announced=chosen)):
            continue
        if chosen:
            return True
        now = me.clock.now()
        if slots.missing and now - slots.asked >= me.limits.poll:
            slots.asked = now
            yield MoreWork(slots.head, tuple(slots.missing))
        yield Wait(now + me.limits.poll)
    return False


def _look(me: Master, slots: OpenSlots) -> Steps[bool]:
    """Read the records of the open slots again, put right what is wrong with them; False if the head is another."""
    window = WINDOW
    while True:
        undone = [n for n in slots.numbers if n not in slots.records or slots.records[n].state != "done"]
        now = me.clock.now()
        if len(undone) > window and now - slots.looked < me.limits.poll:
            numbers, window = undone[:window], 2 * window
        else:
            numbers, slots.looked = undone, now
        found = yield from read_many(
            me.store, [HEAD, DROPPED, *(Keys.job(*me.plan.at(n)) for n in numbers)], clears=True
        )
        if found[0] != slots.raw:
            return False
        slots.dropped = int(bytes(found[1])) if found[1] else 0
        slots.missing = []
        for number, raw in zip(numbers, found[2:], strict=True):
            yield from _judge(me, slots, number, raw)
        if slots.failure is not None or me.doubts:
            return False
        done = slots.done()
        if len(numbers) == len(undone) or not all(number in done for number in numbers):
            return True


def _judge(me: Master, slots: OpenSlots, number: int, raw: Buffer | None) -> Steps[None]:
    """Take note of a slot's record; give its job out again if need be."""
    slots.records.pop(number, None)
    if raw is None:
        slots.missing.append(number)
        return
    record = decode_record(raw, JobRecord)
    again = _reissued(me, slots, number, record, raw)
    if again is not None:
        yield STEP
        if not me.store.replace_if_same(Keys.job(*me.plan.at(number)), raw, encode_record(again)):
            return  # somebody else was there; look again the next time round
        me.store.publish(JOB_TOPIC)
        if record.state == "leased" and record.model == again.model:
            me.on_reissued(
                me.plan.at(number), record.worker, _reissue_reason(me, slots.leases[number], record) or "slow"
            )
        record = again
    elif record.state == "done":
        me.durations = [*me.durations[1 - REMEMBERED :], record.deadline - record.since]
    elif record.state == "failed":
        slots.failure = record.failure
    slots.records[number] = record


def _reissued(me: Master, slots: OpenSlots, number: int, record: JobRecord, raw: Buffer) -> JobRecord | None:
    """Return the record made ready again, if nobody works on it, or not fast enough, or it may be tried again."""
    model = slots.head.model.key if me.router.binds_model else ""
    if record.model != model:  # left over from a history that a loss undid
        return JobRecord(state="ready", model=model, token=record.token, data=record.data)
    ready = msgspec.structs.replace(record, state="ready", worker="", failure=None)
    if record.state == "leased":
        return ready if _is_late(me, slots, number, record, raw) else None
    if record.state != "failed" or record.failure is None:
        return None
    if record.failure.code == MODEL_LOST:
        me.doubts = True
        return ready
    return ready if not record.failure.fatal and record.attempts < me.limits.attempts else None


def _is_late(me: Master, slots: OpenSlots, number: int, record: JobRecord, raw: Buffer) -> bool:
    """Whether a lease has ended, its worker is gone, or the job takes much longer than others did."""
    now, lease = me.clock.now(), slots.leases.get(number)
    if lease is None or lease.token != record.token:
        lease = Lease(record.token, raw, now, now)
    elif lease.raw != raw:
        lease = Lease(record.token, raw, lease.since, now)
    slots.leases[number] = lease
    return _reissue_reason(me, lease, record) is not None


def _reissue_reason(me: Master, lease: Lease, record: JobRecord) -> ReissueReason | None:
    """Return why somebody else should have a job that is leased, None if nobody should."""
    now = me.clock.now()
    if me.is_gone(record.worker):
        return "gone"
    if now - lease.changed > me.limits.lease:
        return "expired"
    return "slow" if now - lease.since > _patience(me) else None


def _patience(me: Master) -> float:
    """Seconds after which a slot is handed to a second worker as well, from what recent jobs took."""
    if len(me.durations) < 8:
        return float("inf")
    middle = median(me.durations)
    spread = median(abs(duration - middle) for duration in me.durations)
    return max(me.limits.straggler_factor * middle, middle + 6 * spread, me.limits.straggler_least)


def _fold(me: Master, slots: OpenSlots, ready: Sequence[int], *, announced: Sequence[int]) -> Steps[bool]:
    """Fetch and fold what is ready, in slot order; False if an update was lost, and its slot made ready again.

    ``announced`` are all that will be folded under this head; empty: all that are open.
    """
    if slots.aggregation is None:
        examples = [me.plan.examples_of(number) for number in announced or slots.numbers]
        slots.aggregation = me.aggregator.begin(slots.model, version=slots.head.version, examples=examples)
    for group in _groups(slots, ready[len(slots.folded) :]):
        manifests = [slots.records[number].update or NOTHING for number in group]
        frames = yield from read_frames(me.store, manifests)
        whole = [frame for frame in frames if frame is not None]
        if len(whole) < len(group):
            yield from _do_again(me, slots, [n for n, f in zip(group, frames, strict=True) if f is None])
            return False
        slots.aggregation.add(whole)
        slots.folded += group
        del frames, whole  # before the next are fetched
    return True


def _groups(slots: OpenSlots, numbers: Sequence[int]) -> list[list[int]]:
    """Cut into groups whose updates together have at most ``GROUP_NBYTES``, or are one."""
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


def _do_again(me: Master, slots: OpenSlots, numbers: Sequence[int]) -> Steps[None]:
    """Make the slots ready again whose updates cannot be read."""
    for number in numbers:
        record = slots.records.pop(number)
        again = msgspec.structs.replace(record, state="ready", worker="", update=None)
        yield STEP
        me.store.replace_if_same(Keys.job(*me.plan.at(number)), encode_record(record), encode_record(again))
    me.store.publish(JOB_TOPIC)
