"""Wraps the jobs of a user's own program so that every process of a run gets the same encoded work each time."""

from __future__ import annotations

import hashlib
from typing import Any

from dl4jlegacy.datasets import DataSet, MultiDataSet
from dl4jlegacy.errors import ConfError, ContractError, Dl4jError, WireError
from dl4jlegacy.scaleout.plan import Plan, SlotPlan
from dl4jlegacy.scaleout.state.job import CollectionJobIterator, JobIterator, decode_work, encode_work
from dl4jlegacy.scaleout.state.own_parts import check_methods, in_words, is_own, told
from dl4jlegacy.scaleout.state.store import Buffer

__all__ = ["OwnJobs", "checked_jobs"]

_MOST_REMEMBERED = 64
"""Number of jobs for which a digest of the work is remembered."""


class OwnJobs:
    """A ``JobIterator`` that wraps a user's own one, or a user's own values.

    The work it returns was encoded and decoded, so that a performer gets the same work in one process as on a cluster:
    a tuple becomes a list.

    Raises:
        ContractError: the work cannot be encoded in a job, or differs from earlier calls; names class and slot.
        Dl4jError: this package's own errors raised by ``work`` are passed on unchanged.
    """

    def __init__(self, jobs: JobIterator) -> None:
        self.plan, self._jobs = jobs.plan, jobs
        self._digests = dict[tuple[int, int], bytes]()

    def work(self, slot: SlotPlan) -> Any:
        """See ``JobIterator``."""
        work = self._asked(slot)
        if _is_data(work) and not self._is_remembered(slot):
            return work
        frame = self._encoded(slot, work)
        return work if _is_data(work) else decode_work(frame)

    def frame(self, slot: SlotPlan) -> Buffer:
        """Return the frame in which the job of a slot carries its work."""
        return self._encoded(slot, self._asked(slot))

    def _asked(self, slot: SlotPlan) -> Any:
        with told(self._what(slot), passes=(Dl4jError,)):
            work = self._jobs.work(slot)
        if work is None and not isinstance(self._jobs, CollectionJobIterator):
            raise ContractError(f"{self._what(slot)} returned None; it must be {_WORK}")
        return work

    def _encoded(self, slot: SlotPlan, work: Any) -> Buffer:
        try:
            frame = encode_work(work)
        except WireError as exc:
            hint = ": give [data], a list of one" if isinstance(work, DataSet | MultiDataSet) else ""
            raise ContractError(f"{self._what(slot)} returned {in_words(work, exc)}; it must be {_WORK}{hint}") from exc
        if self._is_remembered(slot):
            digest = hashlib.sha256(frame).digest()
            if self._digests.setdefault((slot.round, slot.slot), digest) != digest:
                raise ContractError(
                    f"{self._what(slot)} returned other work than when it was asked before; work must follow from the "
                    "slot alone, since a job that fails is done again"
                )
        return frame

    def _is_remembered(self, slot: SlotPlan) -> bool:
        return (slot.round, slot.slot) in self._digests or len(self._digests) < _MOST_REMEMBERED

    def _what(self, slot: SlotPlan) -> str:
        return f"{type(self._jobs).__name__}.work, for round {slot.round}, slot {slot.slot},"


_WORK = "a list of DataSets, or of MultiDataSets, or a JSON value, at most 1 MB of it"


def checked_jobs(jobs: Any) -> JobIterator:
    """Return a ``JobIterator`` after checking it; the work of a user's own one is also checked on every call.

    Raises:
        ConfError: it is not a ``JobIterator``. ContractError: its methods cannot be called, or its plan is not a
            ``Plan``.
    """
    plan = getattr(jobs, "plan", None)
    if isinstance(jobs, type) or not isinstance(plan, Plan) or not callable(getattr(jobs, "work", None)):
        what = f"the class {jobs.__name__}" if isinstance(jobs, type) else type(jobs).__name__
        has = "" if plan is None or isinstance(plan, Plan) else f", and its plan is {type(plan).__name__}"
        raise ConfError(f"{what} is no JobIterator: that has a Plan, as plan, and a method work(slot){has}")
    if not is_own(jobs) and not isinstance(jobs, CollectionJobIterator):
        return jobs  # type: ignore[no-any-return]
    if type(plan) is not Plan:
        raise ContractError(
            f"{type(jobs).__name__}.plan is {type(plan).__name__}, which other processes do not have: they get the "
            "fields of a Plan; make it with Plan(...)"
        )
    if -(-plan.examples // plan.batch_size) != plan.batches:
        raise ConfError(
            f"{type(jobs).__name__}.plan has {plan.batches} batches of {plan.batch_size}, and {plan.examples} examples "
            f"are {-(-plan.examples // plan.batch_size)}; one of these numbers must change"
        )
    check_methods(jobs, "a JobIterator", JobIterator, ("work",))
    return OwnJobs(jobs)


def _is_data(work: Any) -> bool:
    return isinstance(work, list) and bool(work) and isinstance(work[0], DataSet | MultiDataSet)
