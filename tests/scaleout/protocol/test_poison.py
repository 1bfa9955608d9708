"""Which jobs are accused of killing their workers, by the counts alone."""

from __future__ import annotations

import math
import random

import pytest

from dl4jlegacy.scaleout.protocol.poison import CHANCE, LEAST_CRASHES, Counts, chance, is_poison
from dl4jlegacy.scaleout.state.records import Crash


def crashes(count: int, seconds: float = 0.0, hosts: int = 2) -> list[Crash]:
    return [Crash(f"h{i % hosts}-{i}-aa", f"h{i % hosts}", "closed", seconds) for i in range(count)]


def needed(finished: int, jobs: int, **more: float) -> int:
    """Return how many crashes it takes, if no other job has any."""
    return next(n for n in range(1, 1000) if is_poison(crashes(n, **more), Counts(finished, n, 1.0), jobs=jobs))


def test_the_chance_is_that_of_drawing_all_crashes_by_the_attempts_of_one_job() -> None:
    assert chance(crashes(3), Counts(finished=12, deaths=3)) == pytest.approx(1 / math.comb(15, 3))
    assert chance(crashes(3), Counts(finished=12, deaths=5)) == pytest.approx(math.comb(5, 3) / math.comb(17, 3))


def test_nobody_is_accused_of_fewer_crashes_than_three_processes_had() -> None:
    twice = [*crashes(2), *crashes(2), *crashes(2)]
    many = Counts(finished=10**7, deaths=6)
    assert not is_poison(crashes(LEAST_CRASHES - 1), many, jobs=10)
    assert not is_poison(twice, many, jobs=10)
    assert is_poison(crashes(LEAST_CRASHES), many, jobs=10)


@pytest.mark.parametrize(("finished", "jobs", "count"), [(10**6, 1000, 3), (1000, 2000, 4), (80, 160, 5), (12, 24, 12)])
def test_the_more_other_jobs_were_finished_the_fewer_crashes_it_takes(finished: int, jobs: int, count: int) -> None:
    assert needed(finished, jobs) == count


def test_where_no_other_job_was_finished_nobody_is_accused() -> None:
    assert not is_poison(crashes(500), Counts(finished=0, deaths=500), jobs=4)


def test_a_job_that_is_longer_than_others_is_likelier_to_be_hit() -> None:
    assert needed(1000, 2000, seconds=10.0) > needed(1000, 2000, seconds=1.0) + 2
    half = Counts(finished=1000, deaths=1000, typical=1.0)  # every other attempt dies
    assert not is_poison(crashes(8, seconds=1.0), half, jobs=2000)


def test_crashes_on_one_host_accuse_no_job_while_there_are_others() -> None:
    at_one, many = crashes(9, hosts=1), Counts(finished=10**6, deaths=9)
    assert is_poison(at_one, many, jobs=10, hosts=["h0"]) and is_poison(at_one, many, jobs=10, hosts=[])
    assert not is_poison(at_one, many, jobs=10, hosts=["h0", "h1"])


def test_two_poison_jobs_are_both_found() -> None:
    count = needed(200, 400)
    both = Counts(finished=200, deaths=2 * (count + 2))
    assert is_poison(crashes(count + 2), both, jobs=400)


@pytest.mark.parametrize("rate", [0.001, 0.02, 0.2, 0.5, 0.8])
@pytest.mark.everyday(2)
def test_random_kills_accuse_no_job(rate: float) -> None:
    """800 runs, in which each attempt of a job is killed with the same probability, until one finishes it."""
    draw, accused = random.Random(f"kills at {rate}"), 0
    for _ in range(800):
        deaths, jobs = 0, draw.choice((4, 24, 200))
        for finished in range(jobs):
            count = 0
            while draw.random() < rate:
                count, deaths = count + 1, deaths + 1
                accused += count >= LEAST_CRASHES and is_poison(crashes(count), Counts(finished, deaths), jobs=jobs)
    assert accused == 0 and CHANCE <= 1e-5


@pytest.mark.parametrize("finished", [24, 200])
def test_the_crashes_of_one_poison_job_do_not_hide_another(finished: int) -> None:
    """Of two that die alike each is found although the other's crashes are as many."""
    count = needed(finished, 400)

    def is_found(suspects: int) -> bool:
        more = [Counts(finished, 2 * n, suspects=n if suspects else 0) for n in range(count, 4 * count)]
        return any(is_poison(crashes(counts.deaths // 2), counts, jobs=400) for counts in more)

    assert is_found(1) and (finished > 100 or not is_found(0))


@pytest.mark.parametrize("rate", [0.02, 0.5, 0.8])
@pytest.mark.parametrize("slots", [2, 8, 64])
def test_random_kills_in_rounds_of_several_jobs_accuse_none_of_them(rate: float, slots: int) -> None:
    """The others that are open are suspected too, so that their crashes may be left out."""
    draw, accused = random.Random(f"kills at {rate} of {slots}"), 0
    for _ in range(800 // slots):
        finished = deaths = 0
        for _ in range(8):
            open_jobs = dict.fromkeys(range(slots), 0)
            while open_jobs:
                job = draw.choice(list(open_jobs))
                if draw.random() >= rate:
                    finished += 1
                    del open_jobs[job]
                    continue
                deaths, open_jobs[job] = deaths + 1, open_jobs[job] + 1
                others = max((count for other, count in open_jobs.items() if other != job), default=0)
                counts = Counts(finished, deaths, suspects=others)
                accused += is_poison(crashes(open_jobs[job]), counts, jobs=8 * slots)
    assert accused == 0
