"""The work of jobs, read ahead: the same for every order in which jobs are done, and what is read of the plan."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable
from typing import Any, cast

import numpy as np
import pytest

from dl4jlegacy.datasets import DataSet, ListDataSetIterator
from dl4jlegacy.datasets.read_ahead import ReadAhead
from dl4jlegacy.scaleout.plan import Phase, SlotPlan
from dl4jlegacy.scaleout.state.job import CollectionJobIterator, DataSetJobIterator
from dl4jlegacy.scaleout.workers.prefetch import PrefetchedJobs, prefetched

from ..datasets.test_read_ahead import wait_for_threads

SLOTS = 4


def jobs(*, validates: bool = False) -> DataSetJobIterator:
    numbers = DataSet(np.arange(46, dtype=np.float32)[:, None])
    data = ListDataSetIterator(numbers, 2)
    validation = ListDataSetIterator(numbers, 8, shuffle=False) if validates else None
    return DataSetJobIterator(
        data, jobs_per_round=SLOTS, averaging_frequency=2, validation=validation, phases=(Phase(epochs=3),)
    )


class Noted:
    """Jobs that note whose work is read."""

    def __init__(self, jobs: DataSetJobIterator) -> None:
        self.plan, self._jobs, self.read = jobs.plan, jobs, list[tuple[int, int]]()

    def work(self, slot: SlotPlan) -> Any:
        self.read.append((slot.round, slot.slot))
        return self._jobs.work(slot)


def ahead_of(noted: Noted, *, reads_all: bool) -> PrefetchedJobs:
    """Return jobs that read ahead however quick it is."""
    ahead = ReadAhead[tuple[int, int], Any](
        lambda place: noted.work(noted.plan.slot(*place)),
        lambda work: sum(one.nbytes for one in work),
        most=5,
        worthwhile=0.0,
    )
    return PrefetchedJobs(noted, 10, reads_all=reads_all, ahead=ahead)


@pytest.mark.parametrize("reads_all", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_every_job_is_given_its_own_work_in_whatever_order_jobs_are_done(reads_all: bool, seed: int) -> None:
    plain, chance = jobs(validates=True), random.Random(seed)
    ours = ahead_of(Noted(plain), reads_all=reads_all)
    places = [(round_, slot) for round_ in range(plain.plan.total_rounds) for slot in range(plain.plan.slots(round_))]
    order = sorted(places, key=lambda place: place[0] + chance.random() * 3)  # nearly in order; some are repeated
    order += chance.sample(places, 5)
    wrong: list[tuple[int, int]] = []

    def work(some: list[tuple[int, int]]) -> None:
        for place in some:
            slot = plain.plan.slot(*place)
            if ours.work(slot) != plain.work(slot):
                wrong.append(place)

    workers = [threading.Thread(target=work, args=(order[index::3],)) for index in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    wait_for_threads()
    ours.close()
    assert not wrong


def test_who_does_all_jobs_has_the_next_ones_of_the_plan_read() -> None:
    noted = Noted(jobs())
    ours = ahead_of(noted, reads_all=True)
    ours.work(noted.plan.slot(0, 0))
    ours.work(noted.plan.slot(0, 1))
    wait_for_threads()
    assert sorted(noted.read) == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2)]
    for place in [(0, 3), (0, 2), (1, 0)]:  # the others' order does not matter
        ours.work(noted.plan.slot(*place))
    wait_for_threads()
    assert len(noted.read) == len(set(noted.read))


class Asked:
    """Reads nothing: notes what is said to follow each job."""

    def __init__(self) -> None:
        self.following = list[tuple[int, int]]()

    def get(self, place: tuple[int, int], following: Callable[[], Iterable[tuple[int, int]]]) -> None:
        self.following = list(following())


@pytest.mark.parametrize("slots", [SLOTS, 300])
@pytest.mark.parametrize("seed", range(20))
def test_what_follows_is_what_nobody_has_asked_for_and_costs_no_more_in_long_rounds(seed: int, slots: int) -> None:
    """Jobs of a run that goes on from job ``first``, asked for nearly in order, some twice."""
    chance, asked = random.Random(seed), Asked()
    data = ListDataSetIterator(DataSet(np.zeros((4 * slots, 1), np.float32)), 2)
    some = DataSetJobIterator(data, jobs_per_round=slots, averaging_frequency=2, phases=(Phase(epochs=5),))
    ours, plan = PrefetchedJobs(some, 10, reads_all=True, ahead=cast("ReadAhead[Any, Any]", asked)), some.plan
    first = chance.randrange(plan.total_slots // 2)
    numbers = sorted(range(first, plan.total_slots), key=lambda number: number + chance.random() * 3)[: 2 * slots]
    for at, number in enumerate(numbers):
        for again in [number] * chance.choice([1, 2]):
            ours.work(plan.slot(*plan.at(again)))
        known = set(numbers[: at + 1])
        missing = [other for other in range(min(known), max(known)) if other not in known]
        behind = range(max(known) + 1, min(plan.total_slots, max(known) + 6))
        assert asked.following == [plan.at(other) for other in (*missing, *behind)]
        assert len(ours._gaps) <= 3  # however many jobs a round has


def test_a_worker_beside_others_reads_its_own_slots_of_the_next_round_and_no_others() -> None:
    noted = Noted(jobs())
    ours = ahead_of(noted, reads_all=False)
    for round_ in range(3):
        for slot in (1, 3):
            if slot < noted.plan.slots(round_):
                ours.work(noted.plan.slot(round_, slot))
                wait_for_threads()
    assert {slot for _, slot in noted.read} == {1, 3}
    assert len(noted.read) == len(set(noted.read))
    assert max(noted.read)[0] == 3


def test_nothing_is_read_ahead_without_a_buffer_or_a_data_set() -> None:
    plain, values = jobs(), CollectionJobIterator([1, 2, 3])
    assert prefetched(plain, 0, reads_all=True) is plain
    assert prefetched(values, 16, reads_all=True) is values
    assert prefetched(plain, 16, reads_all=True) is not plain
