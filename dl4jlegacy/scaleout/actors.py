"""The actors: ``MasterActor``, ``BatchActor``, ``WorkerActor``, ``ModelSavingActor``, ``HeartbeatActor``.

Every actor owns its state and works on its own thread; actors communicate only by ``tell`` with frozen messages. The
protocol's roles are generators (``protocol``): their actors run them from one ``Wait`` to the next, and are woken by
hints from the store or, at the latest, by the ``Poll`` of the ``ticker``. Actors never wait and have no timers of their
own. A bug in an actor ends the run with its traceback; an error in a job is data.

Legacy: ``org.deeplearning4j.scaleout.actor.core.actor.*`` on Akka. There the heartbeat stopped while a worker trained,
one performer served all workers, and a failed job was cleared and never issued again.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import pykka

from dl4jlegacy.errors import Dl4jError, JobError, NotFiniteError
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.checkpoint import CheckpointStore
from dl4jlegacy.scaleout.issue import JobIssuer
from dl4jlegacy.scaleout.job import Job, JobIterator, Result, decode_work
from dl4jlegacy.scaleout.liveness.quorum import WORKER_TOPIC
from dl4jlegacy.scaleout.monitor import ClusterMonitor
from dl4jlegacy.scaleout.outcome import Outcome
from dl4jlegacy.scaleout.perform import WorkerPerformer, perform_in_slot
from dl4jlegacy.scaleout.phases import NO_PHASES, Phases
from dl4jlegacy.scaleout.plan import SlotPlan
from dl4jlegacy.scaleout.protocol.failures import messages
from dl4jlegacy.scaleout.records import Failure, Head, JobRecord, WorkerRecord
from dl4jlegacy.scaleout.store import Buffer
from dl4jlegacy.scaleout.strategies import slot_strategy
from dl4jlegacy.scaleout.tracker import StateTracker, drive

__all__ = [
    "BatchActor",
    "Beat",
    "HeartbeatActor",
    "MasterActor",
    "ModelSavingActor",
    "Poll",
    "SaveModel",
    "WorkerActor",
    "Working",
    "issuing",
]

logger = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
"""So often a worker that performs a job looks whether it is still wanted, though no hint came."""


@dataclass(frozen=True, slots=True)
class Poll:
    """Check again, because something may have changed. Sent by hints of the store and by the ticker."""


@dataclass(frozen=True, slots=True)
class Beat:
    """Send a heartbeat now."""


@dataclass(frozen=True, slots=True)
class SaveModel:
    """Save this model version and reply ``Saved``; after the last one the run is over."""

    event: protocol.NewModel
    reply_to: pykka.ActorRef[Any]


@dataclass(frozen=True, slots=True)
class Saved:
    """The saving actor is free again."""


@dataclass(frozen=True, slots=True)
class Working:
    """What a worker does: a job, or nothing (``record`` is None).

    ``progress`` returns the number of batches that are done of the job.
    """

    worker: protocol.Worker
    slot: SlotPlan | None
    record: JobRecord | None
    progress: Callable[[], int]
    jobs_done: int


@dataclass(frozen=True, slots=True)
class Joining:
    """A worker is there. ``working`` returns what it does now; callable on any thread."""

    worker: str
    working: Callable[[], Working]


@dataclass(frozen=True, slots=True)
class Leaving:
    """A worker was set aside: it needs no heartbeat any more."""

    worker: str


class _Actor(pykka.ThreadingActor):
    """An actor that ends the run, with its traceback, if one of its messages raises."""

    use_daemon_thread = True  # a forgotten actor must not keep the process alive

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self._outcome = outcome

    def on_failure(
        self,
        exception_type: type[BaseException] | None,
        exception_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Report the exception that a message raised; runs on the actor's thread."""
        if exception_value is not None:
            self._outcome.fail(exception_value)


class _ProtocolActor(_Actor):
    """An actor that runs a role of the protocol, woken by ``Poll``; hints that arrive together wake it once."""

    def __init__(self, outcome: Outcome, tracker: StateTracker, topics: tuple[str, ...]) -> None:
        super().__init__(outcome)
        self._tracker, self._topics = tracker, topics
        self._stops: list[Callable[[], None]] = []
        self._is_hinted = False

    def on_start(self) -> None:
        """Listen for hints, and run the role for the first time."""
        self._stops = [self._tracker.store.listen(topic, self._hint) for topic in self._topics]
        self._hint()

    def _hint(self) -> None:
        """Runs on whichever thread changed something: only enqueues."""
        if not self._is_hinted:
            self._is_hinted = True
            try:
                self.actor_ref.tell(Poll())
            except pykka.ActorDeadError:
                logger.debug("a hint came after %s had stopped", type(self).__name__)

    def on_receive(self, message: Any) -> None:
        """Run the role until it waits."""
        if not isinstance(message, Poll):
            raise TypeError(f"{type(self).__name__} does not know the message {message!r}")
        self._is_hinted = False
        self._drive()

    def _drive(self) -> None:
        raise NotImplementedError

    def on_stop(self) -> None:
        """Stop listening for hints."""
        for stop in self._stops:
            stop()


class MasterActor(_ProtocolActor):
    """Runs the master's role: watches a round, folds it and closes it; has others issue jobs and save models.

    Args:
        outcome: of the run.
        tracker: of the run.
        master: of the run.
        issue: issues jobs; called on the master's thread.
        saver: gets the versions that are to be saved.
        checkpoint_every: of them every so many, and the last one.
        keeps: whether the saver does anything with others than the last.
        keeps_states: whether it saves checkpoints.
        monitor: of a cluster's master.
        on_version: called with every version, on the master's thread: when the next jobs are issued, or the run ends.
    """

    def __init__(
        self,
        outcome: Outcome,
        tracker: StateTracker,
        master: protocol.Master,
        issue: Callable[[protocol.MoreWork], None],
        saver: pykka.ActorRef[ModelSavingActor],
        *,
        checkpoint_every: int = 1,
        keeps: bool = True,
        keeps_states: bool = True,
        monitor: ClusterMonitor | None = None,
        on_version: Callable[[protocol.NewModel], None] = lambda event: None,
    ) -> None:
        super().__init__(outcome, tracker, (protocol.UPDATE_TOPIC, protocol.HEAD_TOPIC))
        self._on_version = on_version
        self._issue_now, self._saver, self._every, self._monitor = issue, saver, checkpoint_every, monitor
        self._keeps = keeps
        self._held: protocol.MoreWork | None = None
        self._untold: list[protocol.NewModel] = []
        self._steps = protocol.master_steps(master)
        self._ended = self._due = self._saving = False
        master.is_to_be_saved = self._is_to_be_saved if keeps_states else lambda head: False  # without checkpoints

    def _drive(self) -> None:
        if self._monitor is not None and not self._monitor.check_in():
            return  # until it is known whether the run is over, it must not be begun again
        while not self._ended:
            try:
                event = next(self._steps)
            except StopIteration as stop:
                self._ended = True
                self._tell_versions()
                if stop.value.status != "done":  # a finished run is reported by the saver, after its last checkpoint
                    self._outcome.end(stop.value, None)
                return
            match event:
                case protocol.Wait():
                    self._issue(self._held)  # also counts down while there are too few workers
                    return
                case protocol.MoreWork():
                    self._issue(event)
                case protocol.NewModel():
                    self._new_model(event)
                case _:
                    continue

    def _issue(self, work: protocol.MoreWork | None) -> None:
        """Ask for jobs to be issued; hold them back while there are too few workers."""
        if self._monitor is not None and not self._monitor.quorum.is_met():
            self._held = work
        elif work is not None:
            self._issue_now(work)
            self._held = None

    def on_receive(self, message: Any) -> None:
        """Run the role; or note that the saving actor is free."""
        if isinstance(message, Saved):
            self._saving = False
            return
        try:
            super().on_receive(message)
        finally:
            self._tell_versions()

    def _new_model(self, event: protocol.NewModel) -> None:
        """Send every k-th version to the saving actor; if it is busy, or that one is not stored, the next that is."""
        self._outcome.progressed()
        self._untold.append(event)
        if event.last:
            self._tell_versions()  # when it is saved the run is over
        is_to_be_saved = event.last or self._is_to_be_saved(event.head)
        self._due = self._due or event.head.version % self._every == 0
        if is_to_be_saved:
            self._saver.tell(SaveModel(event, self.actor_ref))
            self._due, self._saving = False, True

    def _tell_versions(self) -> None:
        """Tell of new versions: when the next jobs are issued, so that no worker waits for those who are told."""
        while self._untold:
            self._on_version(self._untold.pop(0))

    def _is_to_be_saved(self, head: Head) -> bool:
        is_due = self._keeps and (self._due or head.version % self._every == 0)
        return head.status == "done" or (is_due and not head.logged and not self._saving)


class BatchActor(_Actor):
    """Issues jobs that carry their data, which takes longer than the master may be away; see ``JobIssuer``."""

    def __init__(self, outcome: Outcome, issuer: JobIssuer) -> None:
        super().__init__(outcome)
        self._issuer = issuer

    def on_receive(self, message: Any) -> None:
        """Issue the jobs that the master asks for."""
        if not isinstance(message, protocol.MoreWork):
            raise TypeError(f"BatchActor does not know the message {message!r}")
        self._issuer.issue(message)


def issuing(
    outcome: Outcome, issuer: JobIssuer
) -> tuple[Callable[[protocol.MoreWork], None], list[pykka.ActorRef[Any]]]:
    """Return what issues a master's jobs, and the actor that does so if they carry their data."""
    if issuer.by_reference:
        return issuer.issue, []
    batch = BatchActor.start(outcome, issuer)
    return batch.tell, [batch]


class ModelSavingActor(_Actor):
    """Saves model versions while training continues; a version that cannot be saved is only a warning.

    Args:
        outcome: of the run.
        saver: the run's checkpoints; None: it keeps none.
        on_failed: called when a checkpoint cannot be written.
        keep: gets the versions too: a saver of the program's own.
        phases: where this thread says what it does.
    """

    def __init__(
        self,
        outcome: Outcome,
        saver: CheckpointStore | None,
        on_failed: Callable[[str], None] = lambda message: None,
        keep: Callable[[Head, Buffer], None] | None = None,
        phases: Phases = NO_PHASES,
    ) -> None:
        super().__init__(outcome)
        self._saver, self._on_failed, self._keep, self._phases = saver, on_failed, keep, phases
        self._failed = 0

    def on_receive(self, message: Any) -> None:
        """Save a version; after the last one, end the run."""
        if not isinstance(message, SaveModel):
            raise TypeError(f"ModelSavingActor does not know the message {message!r}")
        event = message.event
        if self._saver is not None:
            self._save(self._saver, event)
        if self._keep is not None:
            self._keep(event.head, event.frame)
        if message.reply_to.is_alive():
            message.reply_to.tell(Saved())
        if event.last:
            if self._failed > 1:
                self._outcome.warn(f"{self._failed} checkpoints in a row, up to the last, could not be written")
            self._outcome.end(event.head, event.frame, event.best)

    def _save(self, saver: CheckpointStore, event: protocol.NewModel) -> None:
        """Save a version; say once that it fails, not at every version until somebody looks."""
        if event.head.snapshot is not None and not event.states:
            logger.warning("no checkpoint is made of version %s, of which a state was lost", event.head.version)
            return
        try:
            with self._phases.phase("MasterCheckpoint", (event.head.round - 1, None)):
                saver.save(event.head, event.frame, event.best, event.states)
        except Dl4jError as exc:
            self._failed += 1
            if self._failed == 1:
                logger.warning("%s", str(exc))
                self._outcome.warn(str(exc))
                self._on_failed(str(exc))
            return
        if self._failed:
            logger.warning("checkpoints are written again, after %s that could not be", self._failed)
        self._failed = 0


class WorkerActor(_ProtocolActor):
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
        """What this worker does; replaced by its thread, read by the heartbeat's."""
        self._lease: tuple[SlotPlan | None, int | None] = (None, None)
        self._begun = 0
        """The performer's progress when it took this lease."""
        self._head_changed = threading.Event()
        self._looked = 0.0
        """When the head was last looked at during a job."""

    def on_start(self) -> None:
        """Listen for hints, and separately for changes of the head, which may make a job useless."""
        super().on_start()
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
        """End: the run is over, or goes on without this worker, whose jobs failed here and not elsewhere."""
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
        """Show the heartbeat what is done now. Jobs that are done again count for the one that they are done for.

        A message for each job would wake the heartbeat's thread in vain: it looks when it has to.
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
        """Return the update's frame, or a ``Failure``: errors in a job are data and do not stop the actor."""
        if event.leased is not None and not self._is_wanted(event):
            return protocol.ABANDONED  # one of many jobs that are done again: the one they are for is done elsewhere
        try:
            plan = self._worker.plan
            job = Job(
                event.plan,
                plan.work_of(event.plan.round),
                self._work(event),
                worker_id=self._worker.name,
                version=event.version,
                classifies=plan.validation is None or plan.validation.classifies,
                is_wanted=lambda: self._is_wanted(event),
            )
            strategy = slot_strategy(self._worker.router, plan, event.plan.round)
            model, state = Result.decode(event.model), None if event.state is None else Result.decode(event.state)
            phases = self._worker.phases
            results = perform_in_slot(self._performer, strategy, job, model, state, self._kernels, phases)
            if results is None:
                return protocol.ABANDONED
            with phases.phase("WorkerEncode", event.plan[:2]):
                frames = [result.encode() for result in results]
        except Exception as exc:  # noqa: BLE001  # becomes a Failure that reaches the master
            code = exc.code if isinstance(exc, Dl4jError) else type(exc).__name__
            text = f"{exc}" if isinstance(exc, Dl4jError) else f"{type(exc).__name__}: {exc}"
            fatal = isinstance(exc, NotFiniteError)
            trace = "".join(traceback.format_exception(exc))
            level = logging.DEBUG if fatal else logging.WARNING  # a fatal one ends the run with the same words
            logger.log(level, "worker %s failed in round %s, slot %s: %s", self._worker.name, *event.plan[:2], text)
            failure = Failure(code, text, self._worker.name, trace, fatal)
            self._failures = (*self._failures[-9:], failure)
            self._on_job_failed(event, failure)
            return failure
        self._done += event.leased is None
        return frames[0] if strategy is None else protocol.Performed(*frames)

    def _is_wanted(self, event: protocol.Perform) -> bool:
        """Check the head after a hint that it has changed, and now and then, since a hint may be lost."""
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

    def on_stop(self) -> None:
        """Commit a finished job, return an unfinished one, and deregister the worker."""
        super().on_stop()
        while not self._ended:
            try:
                event = self._steps.send(self._take_answer())
            except StopIteration:
                break
            if isinstance(event, protocol.Wait):
                break
        if self._working is not None:
            self._tell(None, None)  # the heartbeat may go on, for others of this process
        self._tracker.remove_worker(self._worker.name)


class HeartbeatActor(_Actor):
    """Extends the leases of this process's workers and renews their registration, independently of the computation.

    A worker whose performer makes no progress for ``stuck_seconds`` is reported, and its lease is left to expire.
    ``device`` returns a description of the GPU that the named worker uses.
    """

    def __init__(
        self,
        outcome: Outcome,
        tracker: StateTracker,
        *,
        stuck_seconds: float,
        kernels: str,
        device: Callable[[str], str] = lambda worker: "",
    ) -> None:
        super().__init__(outcome)
        self._tracker, self._stuck_seconds, self._kernels, self._device = tracker, stuck_seconds, kernels, device
        self._host, self._pid = socket.gethostname(), os.getpid()
        self._workers: dict[str, Callable[[], Working]] = {}
        self._seen: dict[str, tuple[Working, int, float]] = {}
        """What each worker did when it was last looked at, its progress, and since when both are the same."""

    def on_receive(self, message: Any) -> None:
        """Send a heartbeat of every worker at every ``Beat``, and immediately of a new one."""
        match message:
            case Joining():
                self._workers[message.worker] = message.working
                self._beat(message.worker)
                self._tracker.store.publish(WORKER_TOPIC)
            case Beat():
                for name in list(self._workers):
                    self._beat(name)
            case Leaving():
                self._workers.pop(message.worker, None)
                self._seen.pop(message.worker, None)
                self._tracker.remove_worker(message.worker)
                self._tracker.store.publish(WORKER_TOPIC)
            case _:
                raise TypeError(f"HeartbeatActor does not know the message {message!r}")

    def _beat(self, name: str) -> None:
        working, now = self._workers[name](), self._tracker.clock.now()
        progress = working.progress()
        before, done, since = self._seen.get(name, (None, 0, now))
        if working is not before or progress != done:
            since = now
        self._seen[name] = (working, progress, since)
        stuck = working.record is not None and (silent := now - since) > self._stuck_seconds
        state = "stuck" if stuck else ("idle" if working.record is None else "working")
        job = "" if working.slot is None else f"{working.slot.round}/{working.slot.slot}"
        if stuck:
            logger.warning(
                "worker %s has made no progress on job %s for %.0f s; its lease is left to expire", name, job, silent
            )
        elif working.slot is not None and working.record is not None:
            drive(protocol.extend_lease(working.worker, working.slot, working.record, working.progress()))
        self._tracker.add_worker(
            WorkerRecord(
                id=name,
                host=self._host,
                pid=self._pid,
                state=state,
                job=job,
                jobs_done=working.jobs_done,
                beat=time.time(),
                kernels=self._kernels,
                device=self._device(name),
            )
        )
