"""``WorkerActor``: leases jobs, performs them and commits their updates."""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable
from typing import Any

import pykka

from dl4jlegacy.errors import Dl4jError, JobError, NotFiniteError
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.actors.actor import ProtocolActor
from dl4jlegacy.scaleout.actors.heartbeat import HeartbeatActor
from dl4jlegacy.scaleout.actors.messages import Joining, Leaving, Working
from dl4jlegacy.scaleout.monitoring.outcome import Outcome
from dl4jlegacy.scaleout.plan import SlotPlan
from dl4jlegacy.scaleout.protocol.failures import messages
from dl4jlegacy.scaleout.state.job import Job, JobIterator, Result, decode_work
from dl4jlegacy.scaleout.state.records import Failure, Head, JobRecord
from dl4jlegacy.scaleout.strategies import router_of
from dl4jlegacy.scaleout.tracker import StateTracker
from dl4jlegacy.scaleout.workers.perform import WorkerPerformer, perform_in_slot
from dl4jlegacy.system.exits import error_name, error_text, exits_as_errors

__all__ = ["LOOK_SECONDS", "WorkerActor"]

logger = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
"""Maximum seconds between checks, during a job, whether the job is still wanted if no hint arrives."""


class WorkerActor(ProtocolActor):
    """Leases jobs, performs them and commits their updates: one job per message, so it can stop between jobs."""

    def __init__(
        self,
        outcome: Outcome,
        tracker: StateTracker,
        worker: protocol.Worker,
        performer: WorkerPerformer,
        *,
        heartbeat: pykka.ActorRef[HeartbeatActor],
        jobs: JobIterator | None,
        kernels: Kernels,
        ends_run: bool = False,
        on_job_failed: Callable[[protocol.Perform, Failure], None] = lambda event, failure: None,
        on_set_aside: Callable[[JobError], None] = lambda error: None,
    ) -> None:
        super().__init__(outcome, tracker, (protocol.JOB_TOPIC, protocol.HEAD_TOPIC))
        self._kernels = kernels
        self._ends_run, self._on_job_failed, self._on_set_aside = ends_run, on_job_failed, on_set_aside
        self._failures: tuple[Failure, ...] = ()
        self._worker, self._performer, self._heartbeat, self._jobs = worker, performer, heartbeat, jobs
        self._steps = protocol.worker_steps(worker)
        self._answer: Any = None
        self._ended = False
        self._done = 0
        self._working: Working | None = None
        """The worker's current activity; replaced by its own thread, read by the heartbeat's thread."""
        self._lease: tuple[SlotPlan | None, int | None] = (None, None)
        self._begun = 0
        """The performer's progress when the current lease began."""
        self._head_changed = threading.Event()
        self._looked = 0.0
        """When the head was last checked during a job."""

    def begin(self) -> None:
        """Listen for hints, and separately for changes of the head, which may make a job useless."""
        super().begin()
        self._stops.append(self._tracker.store.listen(protocol.HEAD_TOPIC, self._head_changed.set))

    def _drive(self) -> None:
        while not self._ended:
            try:
                event = self._steps.send(self._take_answer())
            except StopIteration as stop:
                self._ended = True
                self._leave(stop.value)
                return
            if isinstance(event, protocol.Perform):
                self._tell(event.job, event.record)
                self._answer = self._perform(event)
                self._hint()  # commit with the next message, so that a stop in between is noticed
                return
            if isinstance(event, protocol.Wait):
                self._tell(None, None)
                return

    def _leave(self, head: Head) -> None:
        """End the role: the run is over, or continues without this worker, whose failed jobs succeeded elsewhere."""
        self._tell(None, None)
        if head.status != "running":
            if self._ends_run:
                self._outcome.end(head, None)
            return
        self._heartbeat.tell(Leaving(self._worker.name))
        trace = self._failures[-1].traceback if self._failures else ""
        self._on_set_aside(
            JobError(
                f"worker {self._worker.name} gets no more jobs of run {head.run}: they failed here, and other workers "
                f"did them ({messages(self._failures)}); mend this and start it again. The run goes on without it",
                trace,
            )
        )

    def _take_answer(self) -> Any:
        answer, self._answer = self._answer, None
        return answer

    def _tell(self, slot: SlotPlan | None, record: JobRecord | None) -> None:
        """Publish the current activity for the heartbeat; replayed jobs count for the job they are replayed for.

        No message is sent per job, since that would wake the heartbeat's thread needlessly: it reads the activity when
        due.
        """
        lease = (slot, None if record is None else record.token)
        if lease != self._lease:
            self._lease, self._begun = lease, self._performer.progress
        begun, joins = self._begun, self._working is None
        working = Working(self._worker, slot, record, lambda: self._performer.progress - begun, self._done)
        self._working = working
        if joins:
            try:
                self._heartbeat.tell(Joining(self._worker.name, lambda: self._working or working))
            except pykka.ActorDeadError:
                logger.debug("worker %s outlives the heartbeat", self._worker.name)

    def _perform(self, event: protocol.Perform) -> Any:
        """Perform a job; return the update's frame, or a ``Failure``: an error in a job does not stop the actor."""
        if event.leased is not None and not self._is_wanted(event):
            return protocol.ABANDONED  # a replayed job, whose target job is already done elsewhere
        try:
            with exits_as_errors():
                answer = self._answer_of(event)
        except Exception as exc:  # noqa: BLE001  # becomes a Failure that reaches the master
            code = exc.code if isinstance(exc, Dl4jError) else error_name(exc)
            text = f"{exc}" if isinstance(exc, Dl4jError) else error_text(exc)
            fatal = isinstance(exc, NotFiniteError)
            trace = "".join(traceback.format_exception(exc))
            level = logging.DEBUG if fatal else logging.WARNING  # a fatal error ends the run with the same text
            logger.log(level, "worker %s failed in round %s, slot %s: %s", self._worker.name, *event.plan[:2], text)
            failure = Failure(code, text, self._worker.name, trace, fatal)
            self._failures = (*self._failures[-9:], failure)
            self._on_job_failed(event, failure)
            return failure
        self._done += answer is not protocol.ABANDONED and event.leased is None
        return answer

    def _answer_of(self, event: protocol.Perform) -> Any:
        """Return the update's frame; raises any error of the job."""
        plan = self._worker.plan
        job = Job(
            event.plan,
            plan.work_of(event.plan.round),
            self._work(event),
            worker_id=self._worker.name,
            version=event.version,
            classifies=plan.validation is None or plan.validation.classifies,
            label_scale=None if plan.validation is None else plan.validation.label_scale,
            is_wanted=lambda: self._is_wanted(event),
        )
        router = router_of(self._worker.router, plan, event.plan.round)
        model, state = Result.decode(event.model), None if event.state is None else Result.decode(event.state)
        phases = self._worker.phases
        results = perform_in_slot(self._performer, router, job, model, state, self._kernels, phases)
        if results is None:
            return protocol.ABANDONED
        with phases.phase("WorkerEncode", event.plan[:2]):
            frames = [result.encode() for result in results]
        return frames[0] if router.memory is None else protocol.Performed(*frames)

    def _is_wanted(self, event: protocol.Perform) -> bool:
        """Return whether the job is still wanted.

        The head is checked after a hint that it has changed, and periodically, since a hint may be lost.
        """
        now = self._tracker.clock.now()
        if not self._head_changed.is_set() and now - self._looked < LOOK_SECONDS:
            return True
        self._looked = now
        self._head_changed.clear()
        try:
            head, worker = self._tracker.head(), self._worker
        except Dl4jError:  # the store is unreachable: continue, the commit decides
            return True
        number = worker.plan.number(event.job.round, event.job.slot)
        return head is None or protocol.is_wanted(worker.router, worker.plan, head, number, event.record)

    def _work(self, event: protocol.Perform) -> Any:
        if event.data is not None:
            return decode_work(event.data)
        if self._jobs is None:
            raise Dl4jError(
                f"round {event.plan.round}, slot {event.plan.slot} refers to its data, but this process has none"
            )
        return self._jobs.work(event.plan)

    def end(self) -> None:
        """Commit a finished job, return an unfinished one, and deregister the worker."""
        super().end()
        while not self._ended:
            try:
                event = self._steps.send(self._take_answer())
            except StopIteration:
                break
            if isinstance(event, protocol.Wait):
                break
        if self._working is not None:
            self._tell(None, None)  # the heartbeat may continue for other workers of this process
        self._tracker.remove_worker(self._worker.name)
