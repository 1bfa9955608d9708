"""Big values as chunks under a manifest, and counters: the store operations that all roles share.

With a ``BatchStore`` all chunks of a frame are on their way at once, in one step; any other store is asked for one
operation a step, which is what the simulator schedules.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from dl4jlegacy import wire
from dl4jlegacy.errors import NotAuthorisedError
from dl4jlegacy.scaleout.protocol.events import STEP, Steps
from dl4jlegacy.scaleout.records import Head, Keys, Manifest
from dl4jlegacy.scaleout.store import BatchStore, Buffer, Store

__all__ = ["delete_frame", "increment", "read_frame", "sweep", "write_frame"]


logger = logging.getLogger(__name__)


def write_frame(store: Store, key: str, frame: Buffer) -> Steps[Manifest]:
    """Write a frame's chunks below ``key``, which nobody else writes, and return their manifest."""
    chunks = wire.chunks(frame, store.chunk_nbytes)
    manifest = Manifest(key, len(chunks), len(frame), wire.digest(frame) if store.checksums else "")
    if isinstance(store, BatchStore):
        yield STEP
        store.put_many(zip(_keys(manifest), chunks, strict=True))
    else:
        for name, chunk in zip(_keys(manifest), chunks, strict=True):
            yield STEP
            store.put(name, chunk)
    return manifest


def read_frame(store: Store, manifest: Manifest) -> Steps[Buffer | None]:
    """Return the frame of a manifest, or None if a chunk is missing or damaged.

    A chunk that is refused, since nobody of the run wrote it, is reported, and counts as missing: what it was part of
    can be done again.
    """
    if manifest.nbytes > manifest.chunks * store.chunk_nbytes:
        return None
    try:
        if isinstance(store, BatchStore):
            yield STEP
            frame: Buffer | None = _joined(store.get_many(_keys(manifest)), manifest.nbytes)
        else:
            frame = yield from _read_one_by_one(store, manifest)
    except NotAuthorisedError as exc:
        logger.warning("%s; it is taken as missing", exc)
        return None
    if frame is None or (manifest.digest and wire.digest(frame) != manifest.digest):
        return None
    return frame


def _read_one_by_one(store: Store, manifest: Manifest) -> Steps[Buffer | None]:
    chunks: list[Buffer] = []
    for key in _keys(manifest):
        yield STEP
        chunk = store.get(key)
        if chunk is None:
            return None
        chunks.append(chunk)
    return _joined(chunks, manifest.nbytes)


def _joined(chunks: Iterable[Buffer | None], nbytes: int) -> memoryview | None:
    """Return the frame of ``nbytes`` made of ``chunks``, each let go of when it is copied; None if it is not whole."""
    frame, start = wire.blank(nbytes), 0
    for chunk in chunks:
        if chunk is None or start + len(chunk) > nbytes:
            return None
        frame[start : start + len(chunk)] = chunk
        start += len(chunk)
    return frame if start == nbytes else None


def delete_frame(store: Store, manifest: Manifest) -> Steps[None]:
    """Remove a frame's chunks."""
    yield from _delete(store, _keys(manifest))


def _delete(store: Store, keys: Iterable[str]) -> Steps[None]:
    if isinstance(store, BatchStore):
        yield STEP
        store.delete_many(keys)
        return
    for key in keys:
        yield STEP
        store.delete(key)


def _keys(manifest: Manifest) -> list[str]:
    return [f"{manifest.key}/{index}" for index in range(manifest.chunks)]


def increment(store: Store, key: str, by: int = 1) -> Steps[None]:
    """Add to a counter by compare-and-set."""
    while True:
        yield STEP
        raw = store.get(key)
        yield STEP
        if raw is None:
            if store.put_if_absent(key, str(by).encode()):
                return
        elif store.replace_if_same(key, raw, str(int(bytes(raw)) + by).encode()):
            return


def sweep(store: Store, head: Head) -> Steps[None]:
    """Delete the keys that no one can need any more, whoever left them behind."""
    yield STEP
    useless = [key for key in store.keys("") if Keys.is_useless(key, head)]
    if useless:
        yield from _delete(store, useless)
