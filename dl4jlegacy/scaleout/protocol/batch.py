"""The batch role: writes the jobs of a round into the store, and the data of the next round in advance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from dl4jlegacy.scaleout.plan import Plan, SlotPlan
from dl4jlegacy.scaleout.protocol.events import JOB_TOPIC, MoreWork, Steps
from dl4jlegacy.scaleout.protocol.frames import put_many_if_absent, read_many, small_nbytes, write_frames
from dl4jlegacy.scaleout.state.records import JobRecord, Keys, Manifest, encode_record
from dl4jlegacy.scaleout.state.store import Buffer, Store

__all__ = ["issue_jobs"]


def issue_jobs(
    store: Store,
    plan: Plan,
    work: MoreWork,
    *,
    binds_model: bool,
    load: Callable[[SlotPlan], Buffer] | None,
    put_ahead: dict[int, Manifest],
) -> Steps[None]:
    """Write a job record for each slot of ``work`` that has none.

    If jobs carry data, or are requested again, existing records are read first, and foreign values are deleted.

    Args:
        binds_model: whether the jobs must start from the head's model version; validation jobs always do.
        load: returns the data of a slot; None if jobs refer to their data instead of carrying them.
        put_ahead: manifests of data written in advance, by slot number; updated here. Each is used once: when a job is
            issued again, its data is written again, since the data may be the value that was lost.
    """
    if load is not None and work.again:
        yield from _write(store, plan, work.again, load)
    model = work.head.identity if binds_model or plan.is_validation(work.head.round) else ""
    numbers = list(work.numbers)
    if load is not None or not work.ahead:  # else the round is new, and none of its jobs exists
        found = yield from read_many(store, [Keys.job(*plan.at(number)) for number in numbers], clears=True)
        numbers = [number for number, raw in zip(numbers, found, strict=True) if raw is None]
    data: dict[int, Manifest | None] = dict.fromkeys(numbers)
    if load is not None:
        lacking = [number for number in numbers if number not in put_ahead]
        written = yield from _write(store, plan, lacking, load)
        data |= dict(zip(lacking, written, strict=True))
        data |= {number: put_ahead.pop(number) for number in numbers if number in put_ahead}
    records = []
    for number in numbers:
        home, reserved = work.homes.get(number, ("", 0.0))
        record = JobRecord(state="ready", model=model, data=data[number], home=home, reserved=reserved)
        records.append((Keys.job(*plan.at(number)), encode_record(record)))
    yield from put_many_if_absent(store, records)
    store.publish(JOB_TOPIC)
    if load is not None:
        for number in [n for n in put_ahead if n not in work.ahead]:
            del put_ahead[number]
        ahead = [number for number in work.ahead if number not in put_ahead]
        written = yield from _write(store, plan, ahead, load)
        put_ahead |= dict(zip(ahead, written, strict=True))


def _write(
    store: Store, plan: Plan, numbers: Sequence[int], load: Callable[[SlotPlan], Buffer]
) -> Steps[list[Manifest]]:
    """Write the data of some slots; small data goes into the job record."""
    written = []
    for round_, slots in groupby(numbers, key=lambda number: plan.at(number)[0]):
        written += yield from write_frames(store, _frames(plan, slots, load), small=small_nbytes(plan, round_))
    return written


def _frames(plan: Plan, numbers: Iterable[int], load: Callable[[SlotPlan], Buffer]) -> Iterator[tuple[str, Buffer]]:
    """Yield the key and frame of each slot's data, loading one at a time."""
    for number in numbers:
        slot = plan.slot(*plan.at(number))
        yield Keys.data(slot.round, slot.slot), load(slot)
