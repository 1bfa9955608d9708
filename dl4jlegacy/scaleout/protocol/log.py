"""The log of a run's model versions: those that are not stored as a whole, but follow from the updates of their rounds.

A head names the newest model that is stored as a whole, and the entry that leads to its own version; every entry names
those before it. Whoever holds an earlier version applies the entries after it, and whoever holds none begins with the
stored model. Masters and workers apply them alike, so all come to the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from dl4jlegacy.scaleout.aggregate import JobAggregator
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.protocol.events import Steps
from dl4jlegacy.scaleout.protocol.frames import parse_record, read_frame, read_frames
from dl4jlegacy.scaleout.records import Folded, Head, JobRecord, LogEntry, Manifest, SlotState
from dl4jlegacy.scaleout.store import Buffer, Store

__all__ = [
    "PREVIOUS",
    "KnownLog",
    "folded_jobs",
    "is_model_there",
    "known_log",
    "model_after",
    "numbers_since",
    "read_log",
    "rewound",
    "saved_in",
]

PREVIOUS = 32
"""So many entries before it an entry names, so that they can be read at once."""


def read_log(store: Store, head: Head, known: str = "") -> Steps[list[LogEntry] | None]:
    """Return the entries that lead to a head's version, oldest first; None if one of them was lost.

    They begin at the version whose identity is ``known``, or else at the model that is stored as a whole: that is what
    ``before`` of the first one says.
    """
    wanted = [] if head.entry is None else [head.entry]
    entries: list[LogEntry] = []
    while wanted:
        for manifest, frame in zip(wanted, (yield from read_frames(store, wanted)), strict=True):
            entry = parse_record(store, manifest.key, frame, LogEntry)
            if entry is None:
                return None
            entries.append(entry)
        oldest = entries[-1]
        keys = [manifest.key for manifest in oldest.previous]
        if oldest.before == known:
            break
        wanted = list(oldest.previous[: keys.index(known) if known in keys else None])
    return entries[::-1]


def is_model_there(store: Store, head: Head) -> Steps[bool]:
    """Return whether the store has what a head's version follows from."""
    if (yield from read_frame(store, head.model)) is None:
        return False
    return not head.logged or (yield from read_log(store, head)) is not None


def model_after(aggregator: JobAggregator, plan: Plan, model: Buffer, entry: LogEntry) -> Buffer:
    """Return the model after an entry; ``model`` is the one before it and stays as it is."""
    examples = [plan.examples_of(job.number) for job in entry.folded]
    begun = aggregator.begin(model, version=entry.version - 1, examples=examples)
    begun.add([job.update for job in entry.folded])
    return begun.finish(ends_phase=False)[0]


def folded_jobs(
    numbers: Sequence[int], records: Mapping[int, JobRecord], updates: Mapping[int, Buffer]
) -> tuple[Folded, ...]:
    """Return what a log entry says of jobs that are done, in their order of folding; updates need not be known."""
    return tuple(
        Folded(
            number=number,
            worker=records[number].worker,
            key="" if (update := records[number].update) is None else update.key,
            update=bytes(updates.get(number, b"")),
            data=records[number].data,
            saved=records[number].saved,
        )
        for number in numbers
    )


class KnownLog(NamedTuple):
    """What a master knows of the log of a version of this identity: what its entry names, and the states in it."""

    identity: str = ""
    previous: tuple[Manifest, ...] = ()
    saved: Mapping[int, SlotState] = {}

    def following(self, head: Head) -> tuple[Manifest, ...]:
        """Return what an entry after a head names, whose log this is."""
        if not head.logged or head.entry is None:
            return ()
        assert self.identity == head.identity, "this is the log of another version"
        return (head.entry, *self.previous)[:PREVIOUS]


def known_log(plan: Plan, head: Head, entries: Sequence[LogEntry]) -> KnownLog:
    """Return what the entries say that lead to a head from the model which is stored as a whole."""
    jobs = [job for entry in entries for job in entry.folded]
    return KnownLog(head.identity, entries[-1].previous, saved_in(plan, jobs))


def saved_in(plan: Plan, jobs: Iterable[Folded]) -> dict[int, SlotState]:
    """Return the states that some jobs have saved, in their order of folding, by slot."""
    saved = {}
    for job in jobs:
        if job.saved is not None:
            round_, slot = plan.at(job.number)
            saved[slot] = SlotState(job.number, round_, job.saved)
    return saved


def numbers_since(head: Head, plan: Plan) -> range:
    """Return the numbers of the jobs that were folded since the model that is stored as a whole."""
    return range(plan.number(head.round - head.logged, 0), plan.number(head.round, 0))


def rewound(head: Head, plan: Plan) -> Head:
    """Return the head of the version that is stored as a whole, from which the run can go on like from any other.

    The rounds since then are done again if it does, and come to the same.
    """
    numbers = numbers_since(head, plan)
    return msgspec.structs.replace(
        head,
        version=head.version - head.logged,
        round=head.round - head.logged,
        folded=((0, numbers.start),) if numbers.start else (),
        batches=head.batches - sum(map(plan.batches_of, numbers)),
        examples=head.examples - sum(map(plan.examples_of, numbers)),
        entry=None,
        logged=0,
    )
