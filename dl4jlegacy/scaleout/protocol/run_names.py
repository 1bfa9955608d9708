"""Ownership of run names: one record per name, in a store that all runs share.

A run keeps everything else in a store of its own. The name of that store contains the run's *incarnation*, a random
number that is new at every start. A process of another incarnation therefore cannot read or write the run's records: a
frozen process of an earlier run wakes up in the store of the earlier run. The name record ensures that no two runs of
the same name are active at the same time, and says where to find the active one. A second kind of record lists each
incarnation that may have records in the grid, so that they can be found whichever run owns the name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import msgspec

from dl4jlegacy.errors import NotAuthorisedError
from dl4jlegacy.scaleout.protocol.events import STEP, Steps
from dl4jlegacy.scaleout.protocol.frames import parse_record
from dl4jlegacy.scaleout.state.records import encode_record
from dl4jlegacy.scaleout.state.store import Store

__all__ = [
    "NAMES",
    "RunRecord",
    "claim_name",
    "keep_name",
    "list_run",
    "listed_runs",
    "listing",
    "release_name",
    "restore_name",
    "unlist_run",
]

NAMES = "runs"
"""Name of the store of these records."""
_LISTED = re.compile(r"(?P<run>[A-Za-z0-9_.-]{1,100})/(?P<incarnation>[0-9a-f]{1,64})")


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The start of a run: its incarnation, Conf digest, id and Zookeeper; host, process and time of the start."""

    incarnation: str
    conf_digest: str = ""
    id: str = ""
    zookeeper: str = ""
    host: str = ""
    pid: int = 0
    began: float = 0.0


def claim_name(
    names: Store, run: str, mine: RunRecord, is_over: Callable[[RunRecord], Steps[bool]]
) -> Steps[RunRecord]:
    """Claim a run's name for a new incarnation; return the owner's record, which is another run's if that is not over.

    Args:
        names: the store of the records.
        run: the name.
        mine: the new incarnation's record.
        is_over: returns whether the run that owns the name no longer needs it.
    """
    ours = encode_record(mine)
    while True:
        yield STEP
        raw = names.get(run)
        if raw is None:
            yield STEP
            if names.put_if_absent(run, ours):
                return mine
            continue
        there = parse_record(names, run, raw, RunRecord)
        if there is not None and (there == mine or not (yield from is_over(there))):
            return there
        yield STEP
        if names.replace_if_same(run, raw, ours):
            return mine


def keep_name(names: Store, run: str, mine: RunRecord, is_over: Callable[[RunRecord], Steps[bool]]) -> Steps[bool]:
    """Put a run's name record back if it is lost; return whether this incarnation still owns the name.

    A process that was frozen while it claimed the name, for a run that never began, leaves a useless record.
    ``is_over``, as for ``claim_name``, detects that.
    """
    yield STEP
    if names.put_if_absent(run, encode_record(mine)):
        return True
    yield STEP
    raw = names.get(run)
    there = parse_record(names, run, raw, RunRecord)
    if there is not None and there.incarnation == mine.incarnation:
        return True
    if raw is not None and (there is None or (yield from is_over(there))):  # None: a foreign value
        yield STEP
        return names.replace_if_same(run, raw, encode_record(mine))
    return False


def restore_name(names: Store, run: str, mine: RunRecord) -> Steps[None]:
    """Write a run's name record, whatever foreign value is there."""
    yield STEP
    names.put(run, encode_record(mine))


def release_name(names: Store, run: str, incarnation: str) -> Steps[None]:
    """Release a run's name, unless another incarnation owns it by now."""
    yield STEP
    raw = names.get(run)
    there = parse_record(names, run, raw, RunRecord)
    if raw is not None and there is not None and there.incarnation == incarnation:
        yield STEP
        names.delete_if_same(run, raw)


def list_run(names: Store, run: str, mine: RunRecord) -> Steps[None]:
    """Record that an incarnation may have records in the grid, and where it is registered."""
    there = None
    try:
        there = yield from listing(names, run, mine.incarnation)
    except NotAuthorisedError:
        names.foreign.note(_listed(run, mine.incarnation), f"what lists run {run} is not of its writing")
    if there is None or (there.id, there.zookeeper) != (mine.id, mine.zookeeper):
        began = mine.began if there is None else there.began
        yield STEP
        names.put(_listed(run, mine.incarnation), encode_record(msgspec.structs.replace(mine, began=began)))


def unlist_run(names: Store, run: str, incarnation: str) -> Steps[None]:
    """Remove the record of ``list_run``: the incarnation has no records in the grid any more."""
    yield STEP
    names.delete(_listed(run, incarnation))


def listed_runs(keys: Iterable[str]) -> list[tuple[str, str]]:
    """Return (run, incarnation) of every listed run, from the keys of the store."""
    found = (_LISTED.fullmatch(key) for key in keys)
    return sorted((match["run"], match["incarnation"]) for match in found if match)


def listing(names: Store, run: str, incarnation: str) -> Steps[RunRecord | None]:
    """Return the record that ``list_run`` wrote for an incarnation; raises ``NotAuthorisedError`` if it is foreign."""
    yield STEP
    key = _listed(run, incarnation)
    return parse_record(names, key, names.get(key), RunRecord)


def _listed(run: str, incarnation: str) -> str:
    """Return a key that cannot be a run's name."""
    return f"{run}/{incarnation}"
