"""``JobIssuer``: writes the job records of a round's slots, and the jobs' data if jobs carry it.

Jobs that refer to their data are a few small records: the master issues them itself, so that no other thread has to be
woken before workers can continue. If jobs carry data, the ``BatchActor`` reads, encodes and writes it.
"""

from __future__ import annotations

from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.own_jobs import OwnJobs
from dl4jlegacy.scaleout.phases import NO_PHASES, Phases
from dl4jlegacy.scaleout.plan import SlotPlan
from dl4jlegacy.scaleout.state.job import JobIterator, encode_work
from dl4jlegacy.scaleout.state.records import Manifest
from dl4jlegacy.scaleout.state.store import Buffer
from dl4jlegacy.scaleout.strategies import WorkRouter
from dl4jlegacy.scaleout.tracker import StateTracker, drive

__all__ = ["JobIssuer"]


class JobIssuer:
    """Issues the jobs of a run. Used by one thread.

    Args:
        tracker: of the run.
        jobs: the source of the data.
        router: of the run.
        by_reference: whether jobs refer to their data instead of carrying it.
        phases: of the thread that uses this object.
    """

    def __init__(
        self,
        tracker: StateTracker,
        jobs: JobIterator,
        router: WorkRouter,
        *,
        by_reference: bool,
        phases: Phases = NO_PHASES,
    ) -> None:
        self._tracker, self._jobs, self._phases = tracker, jobs, phases
        self._router, self.by_reference = router, by_reference
        self._put_ahead: dict[int, Manifest] = {}

    def issue(self, work: protocol.MoreWork) -> None:
        """Write the records of the jobs that the master asks for, and notify the workers."""
        steps = protocol.issue_jobs(
            self._tracker.store,
            self._jobs.plan,
            work,
            binds_model=self._router.binds_model,
            load=None if self.by_reference else self._load,
            put_ahead=self._put_ahead,
        )
        with self._phases.phase("MasterIssue", (work.head.round, None)):
            drive(steps)

    def _load(self, slot: SlotPlan) -> Buffer:
        return self._jobs.frame(slot) if isinstance(self._jobs, OwnJobs) else encode_work(self._jobs.work(slot))
