"""Slot states: what the last job of a slot has left for the next job of that slot.

A strategy may let workers remember something between jobs, such as the residual of gradient sharing. The state belongs
to the slot and not to the worker: any worker that takes the slot's next job continues from it, so the result does not
depend on which worker did which job. A state is committed together with the update of its job, in one compare-and-set
of the job's record. When updates are folded, the states of their jobs become part of the new version: its head names a
``Snapshot`` of all states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.protocol.events import SavedState, Steps
from dl4jlegacy.scaleout.protocol.frames import parse_record, read_frame, read_frames, write_frame
from dl4jlegacy.scaleout.state.records import Head, Keys, Manifest, SlotState, Snapshot, encode_record
from dl4jlegacy.scaleout.state.store import Store

__all__ = [
    "lost_states",
    "names_snapshot",
    "read_snapshot",
    "read_states",
    "states_of",
    "with_snapshot",
    "write_snapshot",
    "write_states",
]


def names_snapshot(head: Head, key: str) -> bool:
    """Return whether a head names the snapshot stored under ``key``."""
    return head.snapshot is not None and head.snapshot.key == key


def with_snapshot(head: Head, snapshot: Snapshot, manifest: Manifest) -> Head:
    """Return the head with a snapshot that is stored under ``manifest``."""
    first = min((state.round for state in snapshot.states.values()), default=head.round)
    return msgspec.structs.replace(head, snapshot=manifest, replay_round=first)


def read_snapshot(store: Store, manifest: Manifest) -> Steps[Snapshot | None]:
    """Return a snapshot; None if it was lost."""
    raw = yield from read_frame(store, manifest)
    return parse_record(store, manifest.key, raw, Snapshot)


def read_states(store: Store, snapshot: Snapshot) -> Steps[dict[int, SavedState] | None]:
    """Return the states that a snapshot names, by slot; None if one of them was lost."""
    frames = yield from read_frames(store, [state.state for state in snapshot.states.values()])
    found = {
        slot: SavedState(state.number, frame)
        for (slot, state), frame in zip(snapshot.states.items(), frames, strict=True)
        if frame is not None
    }
    return found if len(found) == len(frames) else None


def lost_states(store: Store, snapshot: Snapshot) -> Steps[list[SlotState]]:
    """Return the records of those states of a snapshot that cannot be read."""
    states = list(snapshot.states.values())
    frames = yield from read_frames(store, [state.state for state in states])
    return [state for state, frame in zip(states, frames, strict=True) if frame is None]


def states_of(store: Store, head: Head) -> Steps[dict[int, SavedState] | None]:
    """Return the states that belong to a head, by slot; None if one of them was lost."""
    if head.snapshot is None:
        return {}
    snapshot = yield from read_snapshot(store, head.snapshot)
    return None if snapshot is None else (yield from read_states(store, snapshot))


def write_states(
    store: Store, plan: Plan, states: Mapping[int, SavedState], writer: Callable[[], str]
) -> Steps[Snapshot]:
    """Write the states of a checkpoint; ``writer()`` returns a key part that this process has not used before."""
    written: dict[int, SlotState] = {}
    for slot, saved in sorted(states.items()):
        round_ = plan.at(saved.number)[0]
        manifest = yield from write_frame(store, Keys.state(round_, slot, writer()), saved.frame)
        written[slot] = SlotState(saved.number, round_, manifest)
    return Snapshot(written)


def write_snapshot(store: Store, key: str, snapshot: Snapshot) -> Steps[Manifest]:
    """Write a snapshot below ``key``, which no other process writes; return its manifest."""
    return (yield from write_frame(store, key, encode_record(snapshot)))
