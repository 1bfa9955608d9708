"""Records of ended runs: the end is recorded by incarnation before anything of the run is removed.

Only such a record means that a run has ended. If the grid and Zookeeper have nothing of a run, they may have lost it,
for example by a restart. A process that has the run's state then puts it back. The record is stored in the grid, in
Zookeeper (either may lose it), and in the run's checkpoint folder. Records of old runs are removed.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from dl4jlegacy.errors import NotAuthorisedError
from dl4jlegacy.scaleout.protocol.events import STEP, Steps
from dl4jlegacy.scaleout.protocol.frames import parse_record
from dl4jlegacy.scaleout.state.records import encode_record
from dl4jlegacy.scaleout.state.store import Store

__all__ = ["END_SECONDS", "End", "EndRecord", "end_in_grid", "withdraw_end", "write_end"]

END_SECONDS = 86400
"""Seconds that the grid keeps the record of an end: longer than any process of a run stays frozen."""
End = Literal["done", "stopped"]


class EndRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How a run has ended: ``done``, and its model has been handled completely; or ``stopped`` by somebody."""

    status: End


def write_end(names: Store, run: str, incarnation: str, status: End) -> Steps[None]:
    """Record that a run has ended, in the store that all runs share."""
    yield STEP
    names.put_for(_key(run, incarnation), encode_record(EndRecord(status=status)), END_SECONDS)


def end_in_grid(names: Store, run: str, incarnation: str) -> Steps[End | None]:
    """Return how a run has ended according to the grid; None if no process of the run has recorded an end there."""
    yield STEP
    key = _key(run, incarnation)
    try:
        record = parse_record(names, key, names.get(key), EndRecord)
    except NotAuthorisedError as exc:
        names.foreign.note(key, str(exc))
        return None
    return None if record is None else record.status


def withdraw_end(names: Store, run: str, incarnation: str) -> Steps[None]:
    """Remove the record, because the run is continued."""
    yield STEP
    names.delete(_key(run, incarnation))


def _key(run: str, incarnation: str) -> str:
    """Return a key that no run's name and no listed run has."""
    return f"end/{run}/{incarnation}"
