"""Whether enough workers are there: a countdown that begins, ends, and comes to an end."""

from __future__ import annotations

import pytest

from dl4jlegacy.errors import NotEnoughWorkersError
from dl4jlegacy.scaleout.links.liveness.quorum import Quorum, Waiting


class World:
    """A clock and a number of workers, set by hand."""

    def __init__(self, needed: int = 2, seconds: float = 60.0) -> None:
        self.now, self.present, self.told = 0.0, 0, []
        self.quorum = Quorum(
            "r",
            needed=needed,
            wait_seconds=seconds,
            present=lambda: self.present,
            clock=lambda: self.now,
            on_change=self.told.append,
        )


def test_enough_workers_are_enough():
    world = World()
    world.present = 2
    assert world.quorum.is_met()
    assert world.quorum.waiting is None
    assert world.told == []


def test_too_few_count_down_until_more_are_there():
    world = World()
    world.present = 1
    assert not world.quorum.is_met()
    world.now = 3.0
    assert not world.quorum.is_met()
    assert world.quorum.waiting == Waiting(1, 2, 57.0)
    assert world.quorum.waiting.text() == "waiting for workers: 1 of 2, giving up in 57 s"
    world.present = 2
    assert world.quorum.is_met()
    assert world.quorum.waiting is None
    assert world.told == [True, False]


@pytest.mark.parametrize(("finished", "stays", "left"), [(1, 1.0, 60.0), (0, 60.0, 60.0), (0, 1.0, 1.0)])
def test_the_countdown_begins_anew_after_work_or_a_while_and_else_goes_on(finished, stays, left):
    """Or workers that one job kills one after the other would keep a run waiting for ever."""
    world = World()
    world.quorum.is_met()
    world.now, world.present = 59.0, 2
    world.quorum.is_met()
    world.now, world.present = 59.0 + stays, 1
    assert not world.quorum.is_met(finished)
    assert world.quorum.waiting == Waiting(1, 2, left)


def test_at_its_end_the_numbers_and_the_remedy_are_named():
    world = World()
    world.present = 1
    world.quorum.is_met()
    world.now = 60.0
    with pytest.raises(NotEnoughWorkersError, match=r"60 s for workers: 1 of the 2 .*dl4j worker.*--min-workers"):
        world.quorum.is_met()


def test_a_run_that_needs_none_never_waits():
    assert World(needed=0).quorum.is_met()


def test_what_is_known_of_the_workers_that_are_gone_is_said_at_the_end():
    world = World()
    world.quorum.is_met()
    world.now, world.quorum.known = 60.0, ". 2 processes died computing the job of round 3, slot 1"
    with pytest.raises(NotEnoughWorkersError, match=r"then resume the run\. 2 processes died computing the job of"):
        world.quorum.is_met()
