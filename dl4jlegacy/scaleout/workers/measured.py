"""Wrappers that measure a worker's performer and its data access, without changing their results."""

from __future__ import annotations

from typing import Any

from dl4jlegacy.scaleout.phases import Phases, Span
from dl4jlegacy.scaleout.plan import VALIDATE, SlotPlan
from dl4jlegacy.scaleout.state.job import Job, JobIterator, Result
from dl4jlegacy.scaleout.workers.perform import WorkerPerformer

__all__ = ["MeasuredJobs", "MeasuredPerformer"]


class MeasuredPerformer:
    """A ``WorkerPerformer`` that measures the time to load a model (``WorkerInit``), and to train or evaluate it.

    Args:
        performer: does the work.
        phases: of the worker's thread.
    """

    def __init__(self, performer: WorkerPerformer, phases: Phases) -> None:
        self._performer, self._phases = performer, phases
        self._loading: Span | None = None

    @property
    def progress(self) -> int:
        """See ``WorkerPerformer``."""
        return self._performer.progress

    def update(self, model: Result) -> None:
        """See ``WorkerPerformer``; the time is assigned to a job by ``perform``."""
        loading = self._phases.begin()
        self._performer.update(model)
        loading.stop()
        self._loading = loading

    def perform(self, job: Job) -> Result | None:
        """See ``WorkerPerformer``."""
        loading, self._loading = self._loading, None
        if loading is not None:
            loading.end("WorkerInit", job.slot[:2])
        with self._phases.phase("WorkerValidate" if job.phase.kind == VALIDATE else "WorkerFit", job.slot[:2]):
            return self._performer.perform(job)


class MeasuredJobs:
    """A ``JobIterator`` that measures how long a worker reads a job's data.

    Args:
        jobs: the source of the data.
        phases: of the worker's thread.
    """

    def __init__(self, jobs: JobIterator, phases: Phases) -> None:
        self.plan = jobs.plan
        self._jobs, self._phases = jobs, phases

    def work(self, slot: SlotPlan) -> Any:
        """See ``JobIterator``."""
        with self._phases.phase("WorkerGetData", slot[:2]):
            return self._jobs.work(slot)
