"""Which versions a master saves."""

from __future__ import annotations

import msgspec
import pytest

from dl4jlegacy.scaleout.protocol import DueCheckpoints, NewModel, SavedState
from dl4jlegacy.scaleout.state.records import Head, Manifest

HEAD = Head(run="r", version=0, round=0, model=Manifest("m", 1, 1))


def event(version: int, *, logged: int = 0, lost: bool = False, status: str = "running") -> NewModel:
    """A version of a strategy whose slots remember something."""
    head = msgspec.structs.replace(HEAD, version=version, logged=logged, snapshot=Manifest("s", 1, 1), status=status)
    return NewModel(head, b"", states={} if lost else {0: SavedState(0, b"")}, last=status == "done")


def saved(checkpoints: DueCheckpoints, *events: NewModel) -> list[int]:
    return [each.head.version for each in events if checkpoints.take(each)]


@pytest.mark.parametrize("every", [1, 2, 3, 10])
def test_versions_that_are_never_stored_where_one_is_due_are_saved_as_soon_as_they_are(every: int) -> None:
    """Every third version is stored as a whole here, and none of them is a multiple of three."""
    versions = [event(version, logged=(version - 1) % 3) for version in range(1, 32)]
    found = saved(DueCheckpoints(every), *versions)
    assert found == [v for v in range(1, 32, 3) if any(due % every == 0 for due in range(v - 2, v + 1) if due > 0)]


def test_a_version_that_has_lost_a_state_leaves_its_checkpoint_due() -> None:
    assert saved(DueCheckpoints(3), *(event(version, lost=version == 3) for version in range(1, 8))) == [3, 4, 6]
    without = DueCheckpoints(3, needs_states=False)
    assert saved(without, *(event(version, lost=version == 3) for version in range(1, 8))) == [3, 6]


def test_what_is_due_while_another_version_is_written_is_saved_after_it() -> None:
    checkpoints = DueCheckpoints(2, is_saving=True)
    assert saved(checkpoints, event(1), event(2), event(3)) == []
    checkpoints.is_saving = False
    assert saved(checkpoints, event(5), event(7), event(8)) == [5, 8]


def test_the_last_version_is_always_saved() -> None:
    busy, ends = DueCheckpoints(0, is_saving=True), [event(3), event(4), event(5, status="done")]
    assert saved(busy, *ends) == [5]
    assert not busy.is_to_be_saved(ends[1].head) and busy.is_to_be_saved(ends[2].head)
