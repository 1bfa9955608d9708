"""Big values as chunks under a manifest, and counters: the store operations that all roles share."""

from __future__ import annotations

from dl4jlegacy import wire
from dl4jlegacy.scaleout.protocol.events import STEP, Steps
from dl4jlegacy.scaleout.records import Head, Keys, Manifest
from dl4jlegacy.scaleout.store import Buffer, Store

__all__ = ["delete_frame", "increment", "read_frame", "sweep", "write_frame"]


def write_frame(store: Store, key: str, frame: Buffer) -> Steps[Manifest]:
    """Write a frame's chunks below ``key``, which nobody else writes, and return their manifest."""
    chunks = wire.chunks(frame, store.chunk_nbytes)
    for index, chunk in enumerate(chunks):
        yield STEP
        store.put(f"{key}/{index}", chunk)
    return Manifest(key, len(chunks), len(frame), wire.digest(frame) if store.checksums else "")


def read_frame(store: Store, manifest: Manifest) -> Steps[Buffer | None]:
    """Return the frame of a manifest, or None if a chunk is missing or damaged."""
    chunks: list[Buffer] = []
    for index in range(manifest.chunks):
        yield STEP
        chunk = store.get(f"{manifest.key}/{index}")
        if chunk is None:
            return None
        chunks.append(chunk)
    frame = wire.join(chunks)
    if len(frame) != manifest.nbytes or (manifest.digest and wire.digest(frame) != manifest.digest):
        return None
    return frame


def delete_frame(store: Store, manifest: Manifest) -> Steps[None]:
    """Remove a frame's chunks."""
    for index in range(manifest.chunks):
        yield STEP
        store.delete(f"{manifest.key}/{index}")


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
    for kind in ("job/", "data/", "update/", "model/"):
        yield STEP
        for key in store.keys(kind):
            if Keys.is_useless(key, head):
                yield STEP
                store.delete(key)
