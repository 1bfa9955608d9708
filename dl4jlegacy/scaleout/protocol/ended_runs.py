"""That a run has ended is written down, by its incarnation, before anything of it is removed.

Nothing else is an end. Where the grid and Zookeeper have nothing of a run, they may have lost it, be it that somebody
started them anew: then whoever has the run puts it back. The record is in the grid and in Zookeeper, either of which
may lose it, and in the folder of the run's checkpoints. Those of old runs are removed.
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
"""For so long the grid keeps the record of an end: longer than a process of a run stands still."""
End = Literal["done", "stopped"]


class EndRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How a run has ended: it is done, and all is done with its model; or somebody stopped it."""

    status: End


def write_end(names: Store, run: str, incarnation: str, status: End) -> Steps[None]:
    """Write down that a run has ended, in the store that all runs share."""
    yield STEP
    names.put_for(_key(run, incarnation), encode_record(EndRecord(status=status)), END_SECONDS)


def end_in_grid(names: Store, run: str, incarnation: str) -> Steps[End | None]:
    """Return how a run has ended, as the grid has it; None if nobody of the run has written that there."""
    yield STEP
    key = _key(run, incarnation)
    try:
        record = parse_record(names, key, names.get(key), EndRecord)
    except NotAuthorisedError as exc:
        names.foreign.note(key, str(exc))
        return None
    return None if record is None else record.status


def withdraw_end(names: Store, run: str, incarnation: str) -> Steps[None]:
    """Remove the record: somebody goes on with the run."""
    yield STEP
    names.delete(_key(run, incarnation))


def _key(run: str, incarnation: str) -> str:
    """Return a key that no run's name and no listed run has."""
    return f"end/{run}/{incarnation}"
