"""Schedules in which the folder of checkpoints is away, deleted or another run's, and masters die meanwhile."""

from __future__ import annotations

import logging
import os

import pytest

from tests.scaleout.protocol.test_protocol import SCHEDULES, WORKS
from tests.support import scenarios, simulator

RELEASE = int(os.environ.get("DL4J_SCHEDULES", "1000"))
LOST_RUNS = 19, 123
"""Schedules in which a run that its store has lost waits for its checkpoints."""


def simulate(count: int, router: str, work: str) -> None:
    """Run schedules; each ends as the serial run, and what it keeps is told apart from another run's."""
    logging.disable(logging.WARNING)
    try:
        worlds = simulator.simulate(WORKS[work](), count, 1, router, scenarios.STORAGE)
    finally:
        logging.disable(logging.NOTSET)
    storages = [world.storage for world in worlds if world.storage is not None]
    assert sum(storage.taken_over for storage in storages) > count  # or this proves nothing
    assert sum(storage.refused for storage in storages) > count
    assert count < 60 or sum(storage.waited for storage in storages) > 0


@pytest.mark.parametrize(("router", "work"), [("iterative-reduce", "stopping"), ("hogwild", "scored")])
@pytest.mark.everyday(1)
def test_a_few_schedules_in_which_the_folder_goes_away_end_as_the_serial_run(router: str, work: str) -> None:
    simulate(10, router, work)


@pytest.mark.parametrize("seed", LOST_RUNS)
def test_a_run_that_its_store_loses_while_the_folder_is_away_waits_for_it_and_ends_as_the_serial_run(seed: int) -> None:
    logging.disable(logging.WARNING)
    try:
        (world,) = simulator.simulate(WORKS["stopping"](), 1, seed, "iterative-reduce", scenarios.STORAGE)
    finally:
        logging.disable(logging.NOTSET)
    assert world.storage is not None and world.storage.waited > 0  # or this proves nothing


@pytest.mark.long
@pytest.mark.parametrize("router", ["iterative-reduce", "hogwild", "gradient-sharing", "easgd"])
def test_schedules_in_which_the_folder_goes_away_end_as_the_serial_run(router: str) -> None:
    simulate(SCHEDULES, router, "scored")


@pytest.mark.release
@pytest.mark.parametrize("router", ["iterative-reduce", "gradient-sharing"])
def test_many_schedules_in_which_the_folder_goes_away_end_as_the_serial_run(router: str) -> None:
    simulate(RELEASE // 2, router, "stopping")
