"""The grid, Zookeeper, or both lose everything at any step of a run: it goes on, and nobody takes that for its end.

``DL4J_SCHEDULES`` says how many schedules the release's test runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.protocol import leading
from tests.scaleout.protocol.test_protocol import network_work
from tests.support import emptied_servers
from tests.support.emptied_servers import EmptiedWorld

SCHEDULES = int(os.environ.get("DL4J_SCHEDULES", "2000"))
ROUTERS = ["iterative-reduce", "gradient-sharing", "hogwild", "easgd-asynchronous"]


HANDED_OVER, LOST_WITH_CONF = 130, 7
"""Seeds of schedules in which a master comes back to a standby that has less, and in which only the Conf is left."""


def check_all(worlds: list[EmptiedWorld]) -> None:
    """Assert that all that can be emptied was, that standbys took over, and that hardly any run was lost for good."""
    assert {"grid", "zookeeper", "both"} <= {which for world in worlds for which in world.emptied}
    assert sum(world.took_over for world in worlds) > 0
    assert sum(world.is_lost for world in worlds) <= len(worlds) / 4


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.everyday(1)
def test_a_run_goes_on_whichever_servers_are_emptied_at_whatever_step(router: str) -> None:
    check_all(emptied_servers.simulate(network_work(), 20, 1, router))


def test_a_master_that_comes_back_hands_what_it_has_to_the_standby_that_has_less() -> None:
    assert emptied_servers.simulate(network_work(), 1, HANDED_OVER)[0].handed_over == 1


@pytest.mark.long
@pytest.mark.release
@pytest.mark.parametrize("router", ROUTERS)
def test_in_every_schedule_a_run_goes_on_whichever_servers_are_emptied(router: str) -> None:
    worlds = emptied_servers.simulate(network_work(), SCHEDULES // len(ROUTERS), 1000, router)
    check_all(worlds)
    emptied, seen = sum(len(world.emptied) for world in worlds), ("took_over", "handed_over", "gave_up", "is_lost")
    told = ", ".join(f"{name} {sum(getattr(world, name) for world in worlds)}" for name in seen)
    print(f"{router}: {len(worlds)} schedules, emptied {emptied}, {told}")


def notices(
    monkeypatch: pytest.MonkeyPatch, name: str, broken: Callable[..., Any], schedules: int = 60, first: int = 1
) -> str:
    """Return what is said of the first schedule that a broken step function does not come through."""
    monkeypatch.setattr(leading, name, broken)
    monkeypatch.setattr(protocol, name, broken, raising=False)
    monkeypatch.setattr(emptied_servers, "STEP_LIMIT", 30_000)
    with pytest.raises(AssertionError) as caught:
        emptied_servers.simulate(network_work(), schedules, first)
    return str(caught.value)


def test_a_standby_that_takes_empty_servers_for_the_end_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def behind(me: protocol.StandBy, head: Any) -> protocol.Steps[Any]:
        yield protocol.STEP
        is_lost = head is None and me.place.register.registered().kind == "nothing"
        return protocol.TakeOver("ended") if is_lost and me.seen is not None else None

    assert "nobody has ended it" in notices(monkeypatch, "_behind", behind)


def test_a_standby_that_begins_a_run_anew_which_its_grid_has_lost_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def has_begun(me: protocol.StandBy) -> protocol.Steps[bool]:
        yield protocol.STEP
        return False

    assert "begins anew" in notices(monkeypatch, "_has_begun", has_begun, 1, LOST_WITH_CONF)


def test_a_master_that_leaves_with_what_nobody_else_has_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def may_hand_over(place: protocol.RunPlace) -> protocol.Steps[bool]:
        yield protocol.STEP
        return False

    assert "which nobody else has" in notices(monkeypatch, "may_hand_over", may_hand_over, 1, HANDED_OVER)


def test_a_worker_that_takes_empty_servers_for_the_end_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_over(place: protocol.RunPlace, head: Any) -> protocol.Steps[bool]:
        yield protocol.STEP
        return head is None and place.register.registered().kind == "nothing"

    assert "leaves a run that nobody has ended" in notices(monkeypatch, "is_over", is_over)


def test_a_master_that_begins_a_run_again_which_has_ended_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_end(place: protocol.RunPlace) -> protocol.Steps[Any]:
        yield protocol.STEP
        return None

    assert notices(monkeypatch, "find_end", find_end)
