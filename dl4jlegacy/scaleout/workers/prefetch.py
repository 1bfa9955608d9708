"""The work of jobs, read before they are leased: a ``JobIterator`` in front of another one.

What is read ahead depends on who asks. A process that does, or issues, all the jobs of a run has the following ones of
the plan read; a worker beside others those of the next round in the slots that it had in this one, so that each process
reads its own part of the data. A guess that is wrong costs the time of a thread, and never changes what a job is given.

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
        jobs: has the work, which is a list of batches.
        batches: that are read ahead, at most.
        reads_all: whether this process asks for all jobs of the run, and not for those of its own slots only.
        ahead: reads; None: one with the usual bounds.
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
        """Numbers from ``_first`` to ``_next`` that nobody has asked for."""
        self._first = self._next = 0
        self._own: dict[int, int] = {}

    def work(self, slot: SlotPlan) -> Any:
        """See ``JobIterator``."""
        following = self._of_all if self._reads_all else self._of_own
        return self._ahead.get((slot.round, slot.slot), lambda: following(slot))

    def close(self) -> None:
        """Forget what was read; nobody asks for more."""
        self._ahead.forget()

    def _read(self, place: _Place) -> Any:
        return self._jobs.work(self.plan.slot(*place))

    def _of_all(self, slot: SlotPlan) -> Iterator[_Place]:
        """Yield the jobs behind those that were asked for, and those among them that others will ask for."""
        number = self.plan.number(slot.round, slot.slot)
        self._note(number, oldest=number - 2 * self.plan.jobs_per_round)
        following = range(self._next, min(self.plan.total_slots, self._next + self._slots))
        return map(self.plan.at, chain(sorted(self._gaps), following))

    def _note(self, number: int, *, oldest: int) -> None:
        """Take note that a job was asked for; of those before ``oldest`` nobody will ask."""
        begins = self._first == self._next
        if begins or number + self._slots < self._next:  # or the run goes on from an earlier version
            self._gaps.clear()
            self._first = self._next = number
        if self._first < oldest:
            self._first = oldest
            self._gaps = {gap for gap in self._gaps if gap >= oldest}
        self._gaps.update(range(number + 1, self._first), range(max(self._next, oldest), number))
        self._gaps.discard(number)
        self._first, self._next = min(self._first, number), max(self._next, number + 1)

    def _of_own(self, slot: SlotPlan) -> Iterator[_Place]:
        """Yield the jobs of the next round in the slots that were asked for here."""
        self._own[slot.slot] = slot.round + 1
        self._own = {own: round_ for own, round_ in self._own.items() if round_ >= slot.round}
        due = sorted((round_, own) for own, round_ in self._own.items())
        rounds = self.plan.total_rounds
        return (place for place in due if place[0] < rounds and place[1] < self.plan.slots(place[0]))


def prefetched(jobs: JobIterator, batches: int, *, reads_all: bool) -> JobIterator:
    """Return ``PrefetchedJobs`` in front of jobs over data sets; the jobs themselves for all others, and 0 batches."""
    if not batches or not isinstance(jobs, DataSetJobIterator):
        return jobs
    return PrefetchedJobs(jobs, batches, reads_all=reads_all)


def stop_reading(jobs: JobIterator | None) -> None:
    """Let nothing more be read ahead of jobs that ``prefetched`` returned; what was is forgotten."""
    if isinstance(jobs, PrefetchedJobs):
        jobs.close()


def _nbytes(work: Any) -> int:
    return sum(batch.nbytes for batch in work)
