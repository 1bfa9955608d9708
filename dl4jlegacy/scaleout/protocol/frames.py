"""Store operations that all roles share: large values as chunks under a manifest, counters, deletions.

A ``BatchStore`` transfers all chunks of a frame in one step. Any other store takes one operation per step; the
simulator schedules these steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import msgspec

from dl4jlegacy.arrays import wire
from dl4jlegacy.errors import NotAuthorisedError, TrackerError, WireError
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.protocol.events import STEP, Steps
from dl4jlegacy.scaleout.state.records import Head, Keys, Manifest, decode_record
from dl4jlegacy.scaleout.state.slices import cut, joined
from dl4jlegacy.scaleout.state.store import BatchStore, Buffer, Store, is_batch_store
from dl4jlegacy.scaleout.state.untrusted import shortened
from dl4jlegacy.system.resources import give_back_memory

__all__ = [
    "delete_frame",
    "delete_many",
    "in_slices",
    "increment",
    "keys_of",
    "manifest_of",
    "next_number",
    "parse_count",
    "parse_record",
    "put_many_if_absent",
    "read_frame",
    "read_frames",
    "read_many",
    "replace_many_if_same",
    "rewrite_frame",
    "small_nbytes",
    "sweep",
    "write_frame",
    "write_frames",
    "write_slices",
]

R = TypeVar("R", bound=msgspec.Struct)

COUNTS = range(-(2**63), 2**63)
"""The range of a counter's value."""
_COUNT_DIGITS = len(str(COUNTS.start))
_COUNT = re.compile(rb"0|-?[1-9][0-9]*")
_GIVEN_BACK = 16 << 20
"""Chunk memory is released each time this many bytes of a frame were read; it would reach a tenth of a model."""
SMALL_NBYTES = 1 << 10
"""Frames up to this size are stored in their manifests: separate writes, reads and deletions would cost more."""
TOGETHER_NBYTES = 4 << 20
"""Upper bound on the total size of a round's small data and updates: the leading process holds all their records."""


def write_frame(store: Store, key: str, frame: Buffer) -> Steps[Manifest]:
    """Write a frame as chunks below ``key``, which no other process writes; return the manifest."""
    manifest, items = _cut(store, key, frame)
    yield from _put(store, items)
    return manifest


def write_frames(store: Store, frames: Iterable[tuple[str, Buffer]], *, small: int = 0) -> Steps[list[Manifest]]:
    """Write several frames, each below its key; they are consumed one by one, so not all need to be in memory.

    Frames of at most ``small`` bytes are not written, but put into their manifests.
    """
    manifests: list[Manifest] = []

    def chunks() -> Iterator[tuple[str, Buffer]]:
        for key, frame in frames:
            if 0 < len(frame) <= small:
                manifests.append(Manifest(key, 0, len(frame), frame=bytes(frame)))
                continue
            manifest, items = _cut(store, key, frame)
            manifests.append(manifest)
            yield from items

    yield from _put(store, chunks())
    return manifests


def small_nbytes(plan: Plan, round_: int) -> int:
    """Return the size up to which data and updates of the round's jobs are stored in their manifests."""
    return min(SMALL_NBYTES, TOGETHER_NBYTES // (2 * max(1, plan.slots(round_))))


def write_slices(store: Store, key: str, frame: Buffer, count: int) -> Steps[Manifest]:
    """Write a frame in ``count`` slices (``state.slices``) below ``key``, which no other process writes."""
    slices = ((f"{key}/{index}", cut(frame, index, count)) for index in range(count))
    return in_slices(key, (yield from write_frames(store, slices)))


def in_slices(key: str, parts: Sequence[Manifest]) -> Manifest:
    """Return the manifest of a frame that is stored as these slices."""
    return Manifest(key, 0, sum(part.nbytes for part in parts), parts=tuple(parts))


def rewrite_frame(store: Store, manifest: Manifest, frame: Buffer) -> Steps[None]:
    """Write a frame again under its old keys; the bytes are the same."""
    count = len(manifest.parts)
    slices = [(part.key, cut(frame, index, count)) for index, part in enumerate(manifest.parts)]
    yield from write_frames(store, slices or [(manifest.key, frame)])


def manifest_of(store: Store, key: str, frame: Buffer) -> Manifest:
    """Return the manifest of a frame that will be written below ``key``."""
    chunks = -(-len(frame) // store.chunk_nbytes)
    return Manifest(key, chunks, len(frame), wire.digest(frame) if store.checksums else "")


def _cut(store: Store, key: str, frame: Buffer) -> tuple[Manifest, Iterable[tuple[str, Buffer]]]:
    manifest = manifest_of(store, key, frame)
    return manifest, zip(keys_of(manifest), wire.chunks(frame, store.chunk_nbytes), strict=True)


def _put(store: Store, items: Iterable[tuple[str, Buffer]]) -> Steps[None]:
    if is_batch_store(store):
        yield STEP
        store.put_many(items)
        return
    for name, chunk in items:
        yield STEP
        store.put(name, chunk)


def read_frame(store: Store, manifest: Manifest) -> Steps[Buffer | None]:
    """Return the frame of a manifest, or None if a chunk is missing or damaged.

    A chunk that is refused, because no process of the run wrote it, is logged and counts as missing. The affected work
    can be repeated.
    """
    return (yield from read_frames(store, [manifest]))[0]


def read_frames(store: Store, manifests: Sequence[Manifest]) -> Steps[list[Buffer | None]]:
    """Return the frames of several manifests like ``read_frame``, fetched together if possible; slices are joined."""
    pieces = [part for manifest in manifests for part in manifest.parts or (manifest,)]
    stored, frames = [piece for piece in pieces if not piece.frame], list[Buffer | None]()
    if stored and is_batch_store(store):
        yield STEP
        frames = _read_at_once(store, stored)
    else:
        for manifest in stored:
            frames.append((yield from _read_one_by_one(store, manifest)))
    read = iter(frames)
    taken = iter([_carried(piece) if piece.frame else next(read) for piece in pieces])
    return [
        _whole(store, manifest, list(islice(taken, len(manifest.parts)))) if manifest.parts else next(taken)
        for manifest in manifests
    ]


def _carried(manifest: Manifest) -> Buffer | None:
    """Return an aligned copy of the frame stored in its manifest; None if it is incomplete."""
    return _joined(iter((manifest.frame,)), manifest) if len(manifest.frame) == manifest.nbytes else None


def _whole(store: Store, manifest: Manifest, slices: Sequence[Buffer | None]) -> Buffer | None:
    """Return the frame joined from these slices; None if one is missing, or they do not belong together."""
    there = [each for each in slices if each is not None]
    if len(there) < len(slices):
        return None
    try:
        return joined(there)
    except WireError as exc:
        store.foreign.note(manifest.key, f"the slices of {shortened(manifest.key)} are foreign: {exc}")
        return None


def _read_at_once(store: BatchStore, manifests: Sequence[Manifest]) -> list[Buffer | None]:
    readable = [manifest for manifest in manifests if _is_possible(store, manifest)]
    keys = [key for manifest in readable for key in keys_of(manifest)]
    chunks = (_accepted(store, key, value) for key, value in zip(keys, store.get_many(keys), strict=True))
    frames = {manifest.key: _joined(islice(chunks, manifest.chunks), manifest) for manifest in readable}
    return [frames.get(manifest.key) for manifest in manifests]


def _read_one_by_one(store: Store, manifest: Manifest) -> Steps[Buffer | None]:
    if not _is_possible(store, manifest):
        return None
    chunks = []
    for key in keys_of(manifest):
        yield STEP
        chunk = _get(store, key)
        if chunk is None:
            return None
        chunks.append(chunk)
    return _joined(iter(chunks), manifest)


def _is_possible(store: Store, manifest: Manifest) -> bool:
    """Return whether the number of chunks matches the size, so that a forged manifest causes no allocation."""
    return manifest.nbytes >= 0 and manifest.chunks == -(-manifest.nbytes // store.chunk_nbytes)


def _joined(chunks: Iterator[Buffer | None], manifest: Manifest) -> Buffer | None:
    """Return the frame joined from ``chunks``, each released once copied; None if it is incomplete or damaged.

    A single aligned chunk is used without a copy, since values never change.
    """
    if manifest.chunks == 1:
        chunk = next(chunks)
        if chunk is not None and wire.is_aligned(chunk):
            return _checked(chunk, manifest)
        chunks = iter((chunk,))
    frame, start, whole = wire.empty_bytes(manifest.nbytes), 0, True
    for chunk in chunks:
        whole = whole and chunk is not None and start + len(chunk) <= manifest.nbytes
        if whole and chunk is not None:
            frame[start : start + len(chunk)] = chunk
            start += len(chunk)
            if start // _GIVEN_BACK > (start - len(chunk)) // _GIVEN_BACK:
                give_back_memory()
    return _checked(frame, manifest) if whole and start == manifest.nbytes else None


def _checked(frame: Buffer, manifest: Manifest) -> Buffer | None:
    is_whole = len(frame) == manifest.nbytes and (not manifest.digest or wire.digest(frame) == manifest.digest)
    return frame if is_whole else None


def read_many(store: Store, keys: Sequence[str], *, clears: bool = False) -> Steps[list[Buffer | None]]:
    """Return the values of some records. A foreign value counts as missing; ``clears`` deletes it."""
    values: list[Buffer | None] = []
    foreign: list[str] = []
    if is_batch_store(store):
        yield STEP
        for key, value in zip(keys, store.get_many(keys), strict=True):
            values.append(_accepted(store, key, value))
            if isinstance(value, NotAuthorisedError):
                foreign.append(key)
    else:
        for key in keys:
            yield STEP
            try:
                values.append(store.get(key))
            except NotAuthorisedError as exc:
                values.append(_accepted(store, key, exc))
                foreign.append(key)
    if foreign and clears:
        yield from delete_many(store, foreign)
    return values


def parse_record(store: Store, key: str, raw: Buffer | None, kind: type[R]) -> R | None:
    """Return the record that was read from ``key``; None if there is none, or if the bytes are foreign."""
    if raw is None:
        return None
    try:
        return decode_record(raw, kind)
    except WireError as exc:
        store.foreign.note(key, f"the value under {shortened(key)} is foreign: {exc}")
        return None


def parse_count(store: Store, key: str, raw: Buffer | None) -> int:
    """Return the counter that was read from ``key``; 0 if there is none, or if the bytes are not a 64-bit count."""
    if raw is None:
        return 0
    found = int(bytes(raw)) if len(raw) <= _COUNT_DIGITS and _COUNT.fullmatch(raw) else None
    if found is not None and found in COUNTS:
        return found
    store.foreign.note(key, f"the value under {shortened(key)} is foreign: it is no count")
    return 0


def _get(store: Store, key: str) -> Buffer | None:
    try:
        return store.get(key)
    except NotAuthorisedError as exc:
        return _accepted(store, key, exc)


def _accepted(store: Store, key: str, value: Buffer | NotAuthorisedError | None) -> Buffer | None:
    """Return a value; a refused value is noted and None returned."""
    if isinstance(value, NotAuthorisedError):
        store.foreign.note(key, str(value))
        return None
    return value


def put_many_if_absent(store: Store, items: Sequence[tuple[str, Buffer]]) -> Steps[None]:
    """Write each value whose key does not exist yet."""
    if is_batch_store(store):
        yield STEP
        store.put_many_if_absent(items)
        return
    for key, value in items:
        yield STEP
        store.put_if_absent(key, value)


def replace_many_if_same(store: Store, items: Sequence[tuple[str, Buffer, Buffer]]) -> Steps[list[bool]]:
    """Replace each (key, expected, value) whose stored value is still ``expected``; return which were replaced."""
    if len(items) > 1 and is_batch_store(store):
        yield STEP
        return store.replace_many_if_same(items)
    replaced = []
    for key, expected, value in items:
        yield STEP
        replaced.append(store.replace_if_same(key, expected, value))
    return replaced


def delete_frame(store: Store, manifest: Manifest) -> Steps[None]:
    """Remove a frame's chunks."""
    yield from delete_many(store, keys_of(manifest))


def delete_many(store: Store, keys: Iterable[str]) -> Steps[None]:
    """Remove keys."""
    if is_batch_store(store):
        yield STEP
        store.delete_many(keys)
        return
    for key in keys:
        yield STEP
        store.delete(key)


def keys_of(manifest: Manifest) -> list[str]:
    """Return the keys of a frame's chunks."""
    if manifest.parts:
        return [key for part in manifest.parts for key in keys_of(part)]
    return [f"{manifest.key}/{index}" for index in range(manifest.chunks)]


def increment(store: Store, key: str, by: int = 1, *, least: int | None = None) -> Steps[None]:
    """Add to a counter by compare-and-set; it never falls below ``least``, if that is given.

    Raises:
        TrackerError: the sum does not fit into 64 bits; the counter is left unchanged.
    """
    while True:
        raw = (yield from read_many(store, [key], clears=True))[0]
        found = parse_count(store, key, raw)
        count = found + by if least is None else max(least, found + by)
        if count not in COUNTS:
            raise TrackerError(f"{found} + {by} in {shortened(key)} does not fit into 64 bits, so it was not added")
        yield STEP
        written = str(count).encode()
        if store.put_if_absent(key, written) if raw is None else store.replace_if_same(key, raw, written):
            return


def next_number(store: Store, key: str, after: int) -> Steps[int]:
    """Return a number from a counter that no process has got before, and that is greater than ``after``.

    Each process passes the greatest number that it knows, so numbers keep rising if the store loses the counter.
    """
    while True:
        raw = (yield from read_many(store, [key], clears=True))[0]
        number = max(after, parse_count(store, key, raw)) + 1
        if number not in COUNTS:  # a foreign value
            number = after + 1
        yield STEP
        written = str(number).encode()
        if store.put_if_absent(key, written) if raw is None else store.replace_if_same(key, raw, written):
            return number


def sweep(store: Store, head: Head) -> Steps[list[str]]:
    """Delete all keys that are no longer needed, whichever process wrote them; return the keys that existed.

    Foreign keys are left to the monitor.
    """
    yield STEP
    keys = store.keys("")
    useless = [key for key in keys if Keys.is_useless(key, head)]
    if useless:
        yield from delete_many(store, useless)
    return keys
