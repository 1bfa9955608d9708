"""Processes that are made for another run join and take over in every order: none is taken, the bits stay the same."""

from __future__ import annotations

import logging
import os
from collections import Counter

import pytest

from tests.scaleout.protocol.test_protocol import WORKS
from tests.support import simulator
from tests.support.mixed_runs import KINDS, MixedWorld

RELEASE = int(os.environ.get("DL4J_SCHEDULES", "1000"))


def simulate(count: int, router: str, work: str) -> None:
    """Run schedules without losses, which another test has; each ends in the bits of a serial run."""
    logging.disable(logging.WARNING)
    refused: Counter[str] = Counter()
    try:
        end = simulator.serial(WORKS[work](), router)
        for seed in range(1, count + 1):
            world = simulator.run(WORKS[work](), seed, losses=False, router=router, kind=MixedWorld)
            assert isinstance(world, MixedWorld)
            simulator.check_same(world, seed, *end)
            refused += world.refused
    finally:
        logging.disable(logging.NOTSET)
    assert all(refused[kind] > count for kind in KINDS), refused  # or this proves nothing


def test_a_few_schedules_in_which_others_join_and_take_over_end_as_the_serial_run() -> None:
    simulate(6, "iterative-reduce", "stopping")


@pytest.mark.release
@pytest.mark.parametrize("router", ["iterative-reduce", "gradient-sharing", "easgd"])
def test_many_schedules_in_which_others_join_and_take_over_end_as_the_serial_run(router: str) -> None:
    simulate(RELEASE // 3, router, "stopping")
