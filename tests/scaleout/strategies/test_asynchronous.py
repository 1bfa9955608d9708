"""The asynchronous strategies: what is open, what is folded, and how."""

from __future__ import annotations

import heapq
import random

import numpy as np
import pytest

from dl4jlegacy.errors import ConfError
from dl4jlegacy.kernels import load as load_kernels
from dl4jlegacy.scaleout.plan import Phase, Plan
from dl4jlegacy.scaleout.state.aggregate import DeltaAggregator, aggregate
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.state.records import Head, account, advance
from dl4jlegacy.scaleout.strategies import BoundedStalenessWorkRouter, SoftSyncWorkRouter, create_router
from tests.support.strategy_runs import BEGINNING, PLAN, SLOTS

KERNELS = load_kernels("numpy")


def update(start: int, delta: list[float], state: list[float]) -> bytes:
    arrays = {"delta": np.float32(delta), "updater_state": np.float32(state)}
    return bytes(Result({"version": start, "examples": 1, "score": 1.0}, arrays).encode())


def folded(strategy, version: int, updates: list[bytes], *, ends_phase: bool = False) -> tuple[list, list]:
    model = Result({}, {"params": np.float32([10, 20]), "updater_state": np.float32([1, 1])}).encode()
    frame, _ = aggregate(strategy.fold(KERNELS), model, updates, version=version, ends_phase=ends_phase)
    arrays = Result.decode(frame).arrays
    return arrays["params"].tolist(), arrays["updater_state"].tolist()


def test_softsync_adds_the_mean_of_updates_by_their_rates() -> None:
    """theta + 1/c (d1 / tau1 + d2 / tau2), with tau 2 and 4; the state goes as far towards the workers'."""
    updates = [update(6, [8, 0], [5, 1]), update(4, [0, 16], [1, 9])]
    by_staleness = create_router("softsync", {"n": 2}, jobs_per_round=SLOTS)
    assert folded(by_staleness, 8, updates) == ([12, 22], [2, 2])
    constant = create_router("softsync", {"n": 2, "rate": "constant"}, jobs_per_round=SLOTS)
    assert folded(constant, 8, updates) == ([14, 28], [3, 5])
    assert folded(constant, 8, updates, ends_phase=True)[1] == [0, 0]
    assert folded(by_staleness, 6, updates[:1]) == ([18, 20], [5, 1])  # nothing is divided by a staleness of 0


def test_downpour_adds_each_update_as_it_is() -> None:
    downpour = create_router("hogwild", {"rate": "constant"})
    assert folded(downpour, 8, [update(1, [8, 0], [5, 1]), update(2, [0, 4], [3, 3])])[0] == [18, 24]


def test_softsync_folds_so_many_as_soon_as_they_are_there() -> None:
    strategy = SoftSyncWorkRouter(n=2, jobs_per_round=5)
    assert strategy.send_work([0, 1, 2, 3], {3}) == []
    assert strategy.send_work([0, 1, 2, 3], {3, 1, 2}) == [1, 2]
    assert strategy.send_work([9], {9}) == [9]  # no others are to come in this phase
    assert SoftSyncWorkRouter(n=1, jobs_per_round=4).send_work(range(8), {0, 2, 7}) == []


def schedule(strategy, seed: int) -> tuple[Head, list[int]]:
    """Finish open jobs in an order of the seed; return the last head, and how many others came before each one's fold.

    A job that is open at a fold is begun with one chance in two.
    """
    rng, head, begun, between = random.Random(seed), BEGINNING, {}, []
    count = 0
    while head.round < PLAN.total_rounds:
        opened = strategy.open_slots(PLAN, head)
        rounds = {PLAN.at(number)[0] for number in opened}
        assert opened == sorted(set(opened)) and len({PLAN.phase_of(round_) for round_ in rounds}) == 1
        if PLAN.is_validation(head.round):
            now = opened
        else:
            assert not any(map(PLAN.is_validation, rounds))
            begun |= {number: count for number in opened if number not in begun and rng.random() < 0.5}
            done = [number for number in opened if number in begun and rng.random() < 0.5]
            now = strategy.send_work(opened, set(done))
            between += [count - begun[number] + place for place, number in enumerate(now)]
            count += len(now)
        if now:
            head = advance(head, PLAN, now)
    return head, between


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_no_slot_runs_further_ahead_than_the_bound_and_none_has_two_jobs(bound: int) -> None:
    strategy, most = BoundedStalenessWorkRouter(bound=bound), 0
    for seed in range(30):
        head, between = schedule(strategy, seed)
        assert account(head, PLAN) == (0, 0)
        most = max(most, *between)
    assert 0 < most <= (SLOTS - 1) * (2 * bound + 1)


def test_a_slots_next_job_opens_when_its_last_one_is_folded() -> None:
    strategy = BoundedStalenessWorkRouter(bound=1)
    first = advance(BEGINNING, PLAN, [1])
    assert [PLAN.at(number) for number in strategy.open_slots(PLAN, first)] == [(0, 0), (0, 2), (0, 3), (1, 1)]
    second = advance(first, PLAN, [PLAN.number(1, 1)])
    assert [PLAN.at(number) for number in strategy.open_slots(PLAN, second)] == [(0, 0), (0, 2), (0, 3)]


@pytest.mark.parametrize("name", ["hogwild", "softsync", "ssp"])
def test_any_order_counts_every_batch_once(name: str) -> None:
    for seed in range(20):
        head, _ = schedule(create_router(name, jobs_per_round=SLOTS), seed)
        assert account(head, PLAN) == (0, 0) and head.examples == PLAN.total_examples


def throughput(name: str, args: dict, slots: int, seed: int) -> float:
    """Return the jobs of a second of four workers, one five times slower, by the sum of what each could do alone.

    A job takes an ordinary worker 1 s of simulated time, or up to a quarter more or less. Whoever is free takes the
    first open job; nothing is given to a second worker, and nothing but jobs takes time.
    """
    count = 24 * slots
    plan = Plan(phases=(Phase(),), batches=count, examples=count, batch_size=1, jobs_per_round=slots)
    strategy, head = create_router(name, args, jobs_per_round=slots), BEGINNING
    rng, idle, now = random.Random(seed), [1.0, 1.0, 1.0, 5.0], 0.0
    busy: list[tuple[float, int, float]] = []  # when a job will be done, its number, and its worker's seconds
    begun, done = set(), set()
    while head.round < plan.total_rounds:
        opened = strategy.open_slots(plan, head)
        if ready := strategy.send_work(opened, done):
            head = advance(head, plan, ready)
            done -= set(ready)
            continue
        for number in [number for number in opened if number not in begun][: len(idle)]:
            seconds = idle.pop(rng.randrange(len(idle)))
            heapq.heappush(busy, (now + seconds * rng.uniform(0.75, 1.25), number, seconds))
            begun.add(number)
        now, number, seconds = heapq.heappop(busy)
        idle.append(seconds)
        done.add(number)
    assert account(head, plan) == (0, 0)
    return count / now / 3.2


@pytest.mark.parametrize(
    ("name", "args", "slots"),
    [
        ("hogwild", {}, 8),
        ("hogwild", {}, 16),
        ("softsync", {}, 8),
        ("softsync", {"n": 8}, 8),
        ("softsync", {}, 16),
        ("ssp", {}, 16),
        ("ssp", {"bound": 2}, 16),
    ],
)
def test_a_worker_five_times_slower_keeps_nobody_waiting(name: str, args: dict, slots: int) -> None:
    """The goal is 0.85; what is lost comes of the end of the run, when the others have nothing left to do."""
    assert min(throughput(name, args, slots, seed) for seed in range(5)) >= 0.95


def test_whoever_waits_for_the_slowest_loses_what_it_takes_longer() -> None:
    """A round of four takes 5 s, not 1.25 s; with as many slots as workers those of ``ssp`` wait for the slow one's."""
    assert max(throughput("iterative-reduce", {}, 4, seed) for seed in range(5)) < 0.3
    assert max(throughput("ssp", {}, 4, seed) for seed in range(5)) < 0.5
    assert 0.7 < min(throughput("ssp", {}, 8, seed) for seed in range(5)) < 0.85


@pytest.mark.parametrize(
    ("name", "args", "words"),
    [
        ("ssp", {"bound": -1}, "bound is -1; it must not be negative"),
        ("ssp", {"bound": 1.5}, "Expected `int`, got `float` - at `\\$.bound`"),
        ("softsync", {"n": 0}, "n is 0; it must be from 1 to jobs_per_round, 4"),
        ("softsync", {"n": 5}, "n is 5; it must be from 1 to jobs_per_round, 4"),
        ("hogwild", {"rate": "constent"}, "rate is 'constent'; did you mean 'constant'"),
        ("hogwild", {"bound": 1}, "'bound'"),
        ("hogwild", {"window": 1}, "'window'"),
        ("iterative-reduce", {"n": 1}, "'n'; known: aggregation_depth, parameter_servers"),
        ("bmuf", {"block_momentum": 1.0}, "block_momentum is 1.0; it must be 0 or more and less than 1"),
        ("bmuf", {"block_rate": 0}, "block_rate is 0.0; it must be more than 0"),
    ],
)
def test_options_that_mean_nothing_are_refused(name: str, args: dict, words: str) -> None:
    with pytest.raises(ConfError, match=f"Conf.router_args of {name}.*{words}"):
        create_router(name, args, jobs_per_round=SLOTS)


def test_the_mean_does_not_depend_on_how_updates_are_grouped() -> None:
    rng = np.random.default_rng(3)
    updates = [update(int(rng.integers(9)), rng.normal(size=2).tolist(), rng.normal(size=2).tolist()) for _ in range(5)]
    model = Result({}, {"params": np.float32([1, 2]), "updater_state": np.float32([0, 0])}).encode()
    frames = set()
    for cuts in ([5], [1, 4], [2, 2, 1]):
        begun = DeltaAggregator(KERNELS, together=True).begin(model, version=9, examples=[1] * 5)
        left = list(updates)
        for cut in cuts:
            begun.add(left[:cut])
            del left[:cut]
        frames.add(bytes(begun.finish(ends_phase=False)[0]))
    assert len(frames) == 1
