"""The log of model versions that are not stored as a whole, but are computed from the updates of their rounds.

A head names the newest model that is stored as a whole, and the entry that leads to its own version; each entry names
the entries before it. A process that has an earlier version applies the entries after it; a process that has none
starts from the stored model. Masters and workers apply entries in the same way, so all get the same bits.

An entry contains the updates. If workers push updates to each other, it contains their digests and where they are
stored instead. A process that already has the updates then reads only the entry.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from dl4jlegacy.arrays.wire import digest
from dl4jlegacy.scaleout.links.mesh.messages import Messages
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.protocol.events import Steps
from dl4jlegacy.scaleout.protocol.frames import manifest_of, parse_record, read_frame, read_frames, write_frames
from dl4jlegacy.scaleout.state.aggregate import Fold
from dl4jlegacy.scaleout.state.records import (
    Folded,
    Head,
    JobRecord,
    LogEntry,
    Manifest,
    SlotState,
    covered,
    encode_record,
)
from dl4jlegacy.scaleout.state.store import Buffer, Store

__all__ = [
    "PREVIOUS",
    "KnownLog",
    "SharedModels",
    "Spare",
    "folded_jobs",
    "is_model_there",
    "known_log",
    "model_after",
    "numbers_since",
    "read_log",
    "rewound",
    "saved_in",
    "write_entry",
]

_SHARED = 2
"""Number of models shared within a process: the one that workers may still start from, and the next one."""
PREVIOUS = 32
"""Number of earlier entries that an entry names, so that they can be read in one request."""


class _Updates(msgspec.Struct, frozen=True):
    """The updates of a log entry that are stored apart from it, in the order of folding."""

    updates: tuple[bytes, ...]


def write_entry(
    store: Store, key: str, entry: LogEntry, *, apart: bool = False
) -> Steps[tuple[Manifest, Manifest | None]]:
    """Write a log entry in one batch; return its manifest, and that of its updates if they are stored ``apart``."""
    if not apart:
        (manifest,) = yield from write_frames(store, [(key, encode_record(entry))])
        return manifest, None
    updates = encode_record(_Updates(tuple(job.update for job in entry.folded)))
    messages = manifest_of(store, f"{key}/messages", updates)
    folded = tuple(msgspec.structs.replace(job, update=b"", digest=digest(job.update)) for job in entry.folded)
    said = encode_record(msgspec.structs.replace(entry, folded=folded, messages=messages))
    _, manifest = yield from write_frames(store, [(messages.key, updates), (key, said)])
    return manifest, messages


def read_log(
    store: Store, head: Head, known: str = "", at_hand: Messages | None = None
) -> Steps[list[LogEntry] | None]:
    """Return the entries that lead to a head's version, oldest first, with their updates; None if one was lost.

    They start after the version whose identity is ``known``, or else after the model that is stored as a whole: see
    ``before`` of the first entry. Updates that are ``at_hand`` are not read.
    """
    entries = yield from _read_entries(store, head, known)
    return None if entries is None else (yield from _with_updates(store, entries, at_hand))


def _with_updates(store: Store, entries: Sequence[LogEntry], at_hand: Messages | None) -> Steps[list[LogEntry] | None]:
    """Return the entries with their updates filled in, also those stored apart; None if one was lost."""
    whole, lacking = list(entries), []
    for index, entry in enumerate(entries):
        if entry.messages is None:
            continue
        found = [None if at_hand is None else at_hand.find(job.digest) for job in entry.folded]
        updates = [bytes(update) for update in found if update is not None]
        if len(updates) == len(found):
            whole[index] = _filled(entry, updates)
        else:
            lacking.append((index, entry.messages))
    if not lacking:
        return whole
    frames = yield from read_frames(store, [manifest for _, manifest in lacking])
    for (index, manifest), frame in zip(lacking, frames, strict=True):
        said = parse_record(store, manifest.key, frame, _Updates)
        if said is None or [digest(update) for update in said.updates] != [job.digest for job in entries[index].folded]:
            return None
        whole[index] = _filled(entries[index], said.updates)
        if at_hand is not None:
            for update in said.updates:
                at_hand.add(update)
    return whole


def _filled(entry: LogEntry, updates: Sequence[bytes]) -> LogEntry:
    folded = zip(entry.folded, updates, strict=True)
    return msgspec.structs.replace(
        entry, folded=tuple(msgspec.structs.replace(job, update=update) for job, update in folded)
    )


def _read_entries(store: Store, head: Head, known: str) -> Steps[list[LogEntry] | None]:
    """Return the entries for ``read_log`` as they were written, without updates that are stored apart."""
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
    """Return whether the store has everything that a head's model is computed from."""
    if (yield from read_frame(store, head.model)) is None:
        return False
    return not head.logged or (yield from read_log(store, head)) is not None


def model_after(
    fold: Fold, plan: Plan, model: Buffer, entries: Sequence[LogEntry], *, in_place: bool = False
) -> Buffer:
    """Return the model after applying entries to ``model``, which is not changed unless ``in_place``."""
    rounds = [
        ([plan.examples_of(job.number) for job in entry.folded], [job.update for job in entry.folded])
        for entry in entries
    ]
    if not rounds:
        return model
    return fold.follow(model, rounds, version=entries[0].version - 1, in_place=in_place)


class Spare(NamedTuple):
    """A spare frame, which holds the previous model, and the round that leads from it to the newest model."""

    frame: Buffer
    identity: str
    examples: Sequence[int]
    updates: Sequence[Buffer]

    def brought_up(self, fold: Fold, version: int) -> Buffer:
        """Return the frame, updated to the newest model, whose version is ``version``."""
        return fold.follow(self.frame, [(self.examples, self.updates)], version=version - 1, in_place=True)


class SharedModels:
    """The newest models that were computed from a log in this process, by identity; equal identities mean equal bits.

    The workers of a process and its master reach each version at about the same time; one of them computes it.
    Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._frames: dict[str, Buffer] = {}

    def get(self, identity: str, make: Callable[[], Buffer]) -> Buffer:
        """Return the model. The first caller computes it while the others wait."""
        with self._lock:
            if identity not in self._frames:
                self._add(identity, make())
            return self._frames[identity]

    def newest_of(self, identities: Sequence[str]) -> tuple[int, Buffer]:
        """Return (count, frame) of the last known model among these.

        ``count`` is the position of the model, counted from 1; 0: none is known.
        """
        with self._lock:
            found = (n for n in range(len(identities), 0, -1) if identities[n - 1] in self._frames)
            count = next(found, 0)
            return count, self._frames[identities[count - 1]] if count else b""

    def put(self, identity: str, frame: Buffer) -> None:
        """Add a model that was made elsewhere."""
        with self._lock:
            self._add(identity, frame)

    def _add(self, identity: str, frame: Buffer) -> None:
        self._frames[identity] = frame
        for old in list(self._frames)[:-_SHARED]:
            del self._frames[old]


def folded_jobs(
    numbers: Sequence[int], records: Mapping[int, JobRecord], updates: Mapping[int, Buffer]
) -> tuple[Folded, ...]:
    """Return the log entry's records of finished jobs, in the order of folding; ``updates`` may be incomplete."""
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
    """The part of one version's log that a master needs: the entries before it, and the states saved in it."""

    identity: str = ""
    previous: tuple[Manifest, ...] = ()
    saved: Mapping[int, SlotState] = {}

    def following(self, head: Head) -> tuple[Manifest, ...]:
        """Return the earlier entries that an entry after ``head`` must name; ``head`` is the version of this log."""
        if not head.logged or head.entry is None:
            return ()
        assert self.identity == head.identity, "this is the log of another version"
        return (head.entry, *self.previous)[:PREVIOUS]


def known_log(plan: Plan, head: Head, entries: Sequence[LogEntry]) -> KnownLog:
    """Return the known log of a head from the entries that lead to it from the stored model."""
    jobs = [job for entry in entries for job in entry.folded]
    return KnownLog(head.identity, entries[-1].previous, saved_in(plan, jobs))


def saved_in(plan: Plan, jobs: Iterable[Folded]) -> dict[int, SlotState]:
    """Return the states that jobs have saved, by slot; ``jobs`` are in the order of folding."""
    saved = {}
    for job in jobs:
        if job.saved is not None:
            round_, slot = plan.at(job.number)
            saved[slot] = SlotState(job.number, round_, job.saved)
    return saved


def numbers_since(head: Head, plan: Plan) -> range:
    """Return the numbers of the jobs folded since the model that is stored as a whole."""
    return range(plan.number(head.round - head.logged, 0), plan.number(head.round, 0))


def rewound(head: Head, plan: Plan) -> Head:
    """Return the head of the version that is stored as a whole; the run can continue from it.

    The rounds since then are repeated, with the same results.
    """
    numbers = numbers_since(head, plan)
    counted = [number for number in numbers if not covered(head.jobs_set_aside, number)]
    return msgspec.structs.replace(
        head,
        version=head.version - head.logged,
        round=head.round - head.logged,
        folded=((0, numbers.start),) if numbers.start else (),
        batches=head.batches - sum(map(plan.batches_of, counted)),
        examples=head.examples - sum(map(plan.examples_of, counted)),
        entry=None,
        logged=0,
    )
