"""Simulated runs in which jobs kill their workers: those are accused and no others, and the run ends as ever."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator

import pytest

from dl4jlegacy.datasets import ListDataSetIterator
from dl4jlegacy.scaleout.plan import Phase
from dl4jlegacy.scaleout.protocol import crashes, master, poison
from dl4jlegacy.scaleout.state.job import DataSetJobIterator
from dl4jlegacy.scaleout.strategies import STRATEGIES
from tests.scaleout.protocol.test_protocol import CHAINS, examples, network_work, work_of
from tests.support.poisoned_runs import SCENARIOS, PoisonedWorld, simulate

POISONED = [name for name, (jobs, *_) in SCENARIOS.items() if jobs]
KILLED = [name for name, (jobs, *_) in SCENARIOS.items() if not jobs]
ROUTERS = [*sorted(STRATEGIES), *CHAINS]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Without a word of what the schedules lose."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(("scenario", "count"), [("one-poison-job", 20), ("two-poison-jobs", 12), ("one-set-aside", 8)])
@pytest.mark.everyday(1)
def test_a_few_schedules_accuse_every_job_that_kills_its_workers_and_no_other(scenario: str, count: int) -> None:
    worlds = simulate(network_work(), count, 1, scenario)
    died = [world.died_of_poison / len(world.planned) for world in worlds]
    assert sum(died) / len(died) < 24, "so many workers it costs to find one"


@pytest.mark.parametrize(("scenario", "count"), [("some-kills", 20), ("many-kills", 12), ("long-jobs", 8)])
@pytest.mark.everyday(1)
def test_a_few_schedules_with_workers_killed_at_random_accuse_no_job(scenario: str, count: int) -> None:
    worlds = simulate(network_work(), count, 1, scenario)
    assert sum(world.born for world in worlds) > 10 * count


@pytest.mark.parametrize("seed", [7, 10])
def test_many_kills_neither_stop_a_run_with_a_log_nor_leave_its_keys(seed: int) -> None:
    """Where models are stored every second version, and where many masters die while they write one."""
    simulate(network_work(), 1, seed, "many-kills", "gradient-sharing")


@pytest.mark.parametrize("router", ["hogwild", "gradient-sharing", *CHAINS])
@pytest.mark.everyday(2)
def test_a_job_that_kills_its_workers_is_accused_whatever_the_strategy(router: str) -> None:
    simulate(network_work(), 3, 1, "one-poison-job", router)


@pytest.mark.release
@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("scenario", POISONED)
def test_1000_schedules_accuse_every_job_that_kills_its_workers_and_no_other(router: str, scenario: str) -> None:
    simulate(network_work(), math.ceil(1000 / len(POISONED) / len(ROUTERS)), 1001, scenario, router)


@pytest.mark.release
@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("scenario", KILLED)
def test_1000_schedules_with_workers_killed_at_random_accuse_no_job(router: str, scenario: str) -> None:
    simulate(network_work(), math.ceil(1000 / len(KILLED) / len(ROUTERS)), 1001, scenario, router)


@pytest.mark.parametrize(("router", "seed"), [("gradient-sharing", 8), ("easgd", 2), ("easgd-asynchronous", 3)])
def test_a_slot_whose_job_is_set_aside_keeps_its_state(router: str, seed: int) -> None:
    simulate(network_work(), 1, seed, "two-set-aside", router)


@pytest.mark.parametrize("router", ["bmuf", "gradient-sharing", "easgd-asynchronous"])
def test_a_round_whose_only_job_is_set_aside_is_closed_without_updates(router: str) -> None:
    """In seed 3 it is the last of its phase; in the others it is not."""
    phases = (Phase(kind="pretrain", layer=0, epochs=2), Phase(kind="finetune", epochs=2))
    jobs = DataSetJobIterator(ListDataSetIterator(examples(9, 3), 2, seed=5), jobs_per_round=1, phases=phases)
    simulate(work_of(jobs), 3, 2, "one-set-aside", router)


# --- each breaks one rule, and the simulator must notice ---


def test_that_three_crashes_are_enough_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poison, "CHANCE", 1e9)
    with pytest.raises(AssertionError, match=r"seed \d+: .* is accused, which is innocent"):
        simulate(network_work(), 40, 1, "many-kills")


def test_a_state_that_nobody_has_saved_of_a_slot_whose_job_is_set_aside_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(master, "_leaves_unsaved", lambda me, head, number: False)
    with pytest.raises(AssertionError, match="seed 8: parameters differ"):
        simulate(network_work(), 1, 8, "two-set-aside", "gradient-sharing")


def test_a_job_that_nobody_accuses_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PoisonedWorld, "death_of", lambda self, worker: "")
    monkeypatch.setattr("tests.support.simulator.STEP_LIMIT", 20_000)
    with pytest.raises(AssertionError, match="seed 1: no progress"):
        simulate(network_work(), 1, 1, "one-poison-job")


def test_a_crash_that_only_the_master_of_then_knows_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store must have it: here each master forgets what it has written."""
    encode = crashes.encode_record

    def without_crashes(record):
        return encode(crashes.msgspec.structs.replace(record, crashes=()))

    monkeypatch.setattr(crashes, "encode_record", without_crashes)
    monkeypatch.setattr("tests.support.simulator.STEP_LIMIT", 20_000)
    with pytest.raises(AssertionError, match="seed 1: no progress"):
        simulate(network_work(), 1, 1, "one-poison-job")
