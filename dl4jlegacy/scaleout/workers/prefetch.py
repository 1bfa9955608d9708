"""Prefetching of job data before the jobs are leased: a ``JobIterator`` that wraps another one.

The jobs that are read ahead depend on the process. A process that performs or issues all jobs of a run reads the next
jobs of the plan. A worker among others reads the next round's jobs of the slots that it had in this round, so that each
process reads its own part of the data. A wrong guess costs some time of a thread, and never changes the data of a job.

Legacy: ``prefetchBuffer`` of ``ParallelWrapper``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from dl4jlegacy.datasets.read_ahead import ReadAhead
from dl4jlegacy.scaleout.plan import SlotPlan
from dl4jlegacy.scaleout.state.job import DataSetJobIterator, JobIterator

__all__ = ["PrefetchedJobs", "prefetched", "stop_reading"]

_Place = tuple[int, int]


class PrefetchedJobs:
    """A ``JobIterator`` that reads the batches of jobs ahead; safe on any thread.

    Args:
        jobs: the source of the work, which is a list of batches.
        batches: maximum number of batches that are read ahead.
        reads_all: whether this process asks for all jobs of the run, and not only for those of its own slots.
        ahead: the reader; None: one with the default bounds.
    """

    def __init__(
        self,
        jobs: JobIterator,
        batches: int,
        *,
        reads_all: bool,
        ahead: ReadAhead[_Place, Any] | None = None,
    ) -> None:
        self.plan, self._jobs, self._reads_all = jobs.plan, jobs, reads_all
        self._slots = -(-batches // self.plan.averaging_frequency)
        self._ahead = ahead or ReadAhead(self._read, _nbytes, most=self._slots)
        self._gaps = set[int]()
        """Numbers from ``_first`` to ``_next`` that were not asked for."""
        self._first = self._next = 0
        self._own: dict[int, int] = {}

    def work(self, slot: SlotPlan) -> Any:
        """See ``JobIterator``."""
        following = self._of_all if self._reads_all else self._of_own
        return self._ahead.get((slot.round, slot.slot), lambda: following(slot))

    def close(self) -> None:
        """Drop the data that was read ahead; called when no more work is needed."""
        self._ahead.forget()

    def _read(self, place: _Place) -> Any:
        return self._jobs.work(self.plan.slot(*place))

    def _of_all(self, slot: SlotPlan) -> Iterator[_Place]:
        """Yield the jobs after those that were asked for, preceded by the gaps among them."""
        number = self.plan.number(slot.round, slot.slot)
        self._note(number, oldest=number - 2 * self.plan.jobs_per_round)
        following = range(self._next, min(self.plan.total_slots, self._next + self._slots))
        return map(self.plan.at, chain(sorted(self._gaps), following))

    def _note(self, number: int, *, oldest: int) -> None:
        """Note that a job was asked for; jobs before ``oldest`` will not be asked for any more."""
        begins = self._first == self._next
        if begins or number + self._slots < self._next:  # or the run was restarted from an earlier version
            self._gaps.clear()
            self._first = self._next = number
        if self._first < oldest:
            self._first = oldest
            self._gaps = {gap for gap in self._gaps if gap >= oldest}
        self._gaps.update(range(number + 1, self._first), range(max(self._next, oldest), number))
        self._gaps.discard(number)
        self._first, self._next = min(self._first, number), max(self._next, number + 1)

    def _of_own(self, slot: SlotPlan) -> Iterator[_Place]:
        """Yield the jobs of the next round in the slots that this process asked for."""
        self._own[slot.slot] = slot.round + 1
        self._own = {own: round_ for own, round_ in self._own.items() if round_ >= slot.round}
        due = sorted((round_, own) for own, round_ in self._own.items())
        rounds = self.plan.total_rounds
        return (place for place in due if place[0] < rounds and place[1] < self.plan.slots(place[0]))


def prefetched(jobs: JobIterator, batches: int, *, reads_all: bool) -> JobIterator:
    """Return ``PrefetchedJobs`` around jobs over data sets; returns other jobs, or any with 0 batches, unchanged."""
    if not batches or not isinstance(jobs, DataSetJobIterator):
        return jobs
    return PrefetchedJobs(jobs, batches, reads_all=reads_all)


def stop_reading(jobs: JobIterator | None) -> None:
    """Stop reading ahead for jobs that ``prefetched`` returned, and drop the data that was read ahead."""
    if isinstance(jobs, PrefetchedJobs):
        jobs.close()


def _nbytes(work: Any) -> int:
    return sum(batch.nbytes for batch in work)
