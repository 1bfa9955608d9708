"""Several runs of one name, at the same time and one after another, under hostile schedules; and that the simulator
would notice if one of the things that tell them apart were missing.

``DL4J_SCHEDULES`` says how many schedules the long tests run.
"""

from __future__ import annotations

import os
import re

import pytest

from tests.support import several_runs

SCHEDULES = int(os.environ.get("DL4J_SCHEDULES", "50"))
ROUTERS = ["iterative-reduce", "hogwild"]


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.everyday(1)
def test_every_run_ends_in_its_own_updates(router: str) -> None:
    worlds = several_runs.simulate(router, 20)
    assert sum(world.written_again for world in worlds) > 0  # two have finished one run, and wrote the same


@pytest.mark.long
@pytest.mark.parametrize("router", ROUTERS)
def test_in_every_schedule_every_run_ends_in_its_own_updates(router: str) -> None:
    several_runs.simulate(router, SCHEDULES)


def notices(router: str, schedules: int, **missing: bool) -> str:
    with pytest.raises(AssertionError, match=r"ended in|is under way|has no model|no progress") as caught:
        several_runs.simulate(router, schedules, design=several_runs.Design(**missing))
    return str(caught.value)


@pytest.mark.parametrize("router", ROUTERS)
def test_a_run_that_is_known_by_its_name_only_mixes_with_others(router: str) -> None:
    assert "ended in" in notices(router, 10, keyspaces=False, names=False, fences=False)


@pytest.mark.parametrize("router", ROUTERS)
def test_a_run_whose_end_is_left_to_a_master_that_was_killed_has_no_model(router: str) -> None:
    assert "has no model" in notices(router, 10, ends=False)


@pytest.mark.long
@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize(
    ("missing", "words"),
    [("keyspaces", "ended in"), ("fences", "is under way|no progress")],
    ids=["keyspaces", "fences"],
)
def test_each_thing_that_tells_runs_apart_is_missed(router: str, missing: str, words: str) -> None:
    assert re.search(words, notices(router, 60, **{missing: False}))
