"""``RunExecution``: the actors of one run in this process (the master and its local workers), from setup to shutdown.

Users call ``runner.ActorNetworkRunner``, which is built on this class. So is a cluster's master, which adds a tracker
and a monitor that are shared with other processes.

Legacy: ``DeepLearning4jDistributed``, whose ``setup`` slept for a minute, and whose ``shutdown`` left threads behind.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Any, Self

import msgspec
import pykka

from dl4jlegacy.errors import ConfError, DeadlineError, Dl4jError, TrackerLostError, TrainingError, UsageError, counted
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.kernels.threads import one_thread
from dl4jlegacy.nn.listeners import TrainingListener
from dl4jlegacy.nn.networks import Network
from dl4jlegacy.scaleout import actors, protocol, saved_run
from dl4jlegacy.scaleout.actors.handover import hand_over
from dl4jlegacy.scaleout.actors.issue import JobIssuer
from dl4jlegacy.scaleout.actors.ticker import Ticker
from dl4jlegacy.scaleout.actors.worker_pool import (
    WorkerPool,
    network_performer,
    performer_of,
    process_name,
    stop_actors,
    tell,
)
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.contract import fold_of
from dl4jlegacy.scaleout.first_model import first_model_of
from dl4jlegacy.scaleout.identity import MadeOf, agree_on_parts, parts_of
from dl4jlegacy.scaleout.monitoring.monitor import ClusterMonitor
from dl4jlegacy.scaleout.monitoring.observers import ModelSaver, ObservedRun, Observers, RunObserver, RunObservers
from dl4jlegacy.scaleout.monitoring.outcome import End, Outcome, RunStatus, TrainingResult, failure_of
from dl4jlegacy.scaleout.monitoring.progress_text import save_known, what_is_kept, where_it_is
from dl4jlegacy.scaleout.monitoring.run_state import TROUBLES, RunState, StateLog, shown_workers, state_in_process
from dl4jlegacy.scaleout.monitoring.run_summary import RunSummary
from dl4jlegacy.scaleout.monitoring.stats import NOT_COLLECTED, MasterStats, TrainingStats
from dl4jlegacy.scaleout.persistence.computing import noted
from dl4jlegacy.scaleout.persistence.history import History
from dl4jlegacy.scaleout.persistence.run_folder import RunFolder
from dl4jlegacy.scaleout.phases import NO_PHASES, Phases
from dl4jlegacy.scaleout.protocol.failures import messages
from dl4jlegacy.scaleout.protocol.slot_watch import ReissueReason
from dl4jlegacy.scaleout.state.aggregate import PARAMS, STATE, JobAggregator
from dl4jlegacy.scaleout.state.job import JobIterator, Result
from dl4jlegacy.scaleout.state.records import Failure, Head, WorkerRecord
from dl4jlegacy.scaleout.strategies import WorkRouter, check_own_aggregator
from dl4jlegacy.scaleout.tracker import InMemoryStateTracker, StateTracker, drive
from dl4jlegacy.scaleout.workers.device_choice import (
    ARITHMETIC,
    MIXED,
    RunArithmetic,
    check_same_arithmetic,
    host_kernels,
)
from dl4jlegacy.scaleout.workers.perform import trained_network
from dl4jlegacy.scaleout.workers.plugins import PerformerFactory, checked, find_router
from dl4jlegacy.scaleout.workers.prefetch import prefetched, stop_reading
from dl4jlegacy.storage.folders import LinesFolder
from dl4jlegacy.training.progress import shown
from dl4jlegacy.training.run import Run, TrainingData, folder_of, job_iterator

__all__ = ["RunExecution", "RunStatus", "TrainingResult"]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Parts:
    """The parts of one run, made by ``setup``."""

    run: Run
    jobs: JobIterator
    tracker: StateTracker
    router: WorkRouter
    aggregator: JobAggregator
    kernels: Kernels  # for aggregation in host memory
    first_model: Callable[[], Result]
    performer: PerformerFactory
    folder: RunFolder
    outcome: Outcome
    pool: ThreadPoolExecutor
    master: protocol.Master | None = None
    started: float = 0.0
    refs: list[pykka.ActorRef[Any]] = field(default_factory=list)
    models: protocol.SharedModels = field(default_factory=protocol.SharedModels)
    workers: WorkerPool | None = None
    ticker: Ticker | None = None
    history: History | None = None
    changed_code: tuple[str, ...] = ()
    aside: tuple[tuple[int, int], ...] = ()

    @property
    def by_reference(self) -> bool:
        """Whether jobs name their data instead of containing them; for a cluster, ``resolve`` has decided this."""
        return self.run.conf.data_by_reference is not False


class RunExecution:
    """Runs a master and its workers in this process.

    Args:
        iterator: the data, or a ``JobIterator`` for jobs that train no network.
        tracker: a state tracker; None: a tracker in this process, which ``shutdown`` closes.
        performer: makes each worker's performer; None: the one named in the Conf, or else one that trains its network.
        aggregator: for jobs that train no network.
        first_model: the initial model (version 0): a ``Result`` for jobs that train no network, or a network whose
            parameters and updater state at ``setup`` are used; None: drawn from the network's configuration.
        monitor: the monitor of a cluster's master, entered by the caller.
        listeners, saver: as for ``Observers``.
        observers: follow the run without being part of it.
        worker_listeners: as for ``MultiLayerNetworkPerformer``, for all workers in this process.
        stop_if: as for ``Scoring``.
        takes_more: as for ``MasterActor``.
    """

    def __init__(
        self,
        iterator: TrainingData,
        *,
        tracker: StateTracker | None = None,
        performer: PerformerFactory | None = None,
        aggregator: JobAggregator | None = None,
        first_model: Result | Network | None = None,
        monitor: ClusterMonitor | None = None,
        listeners: Sequence[TrainingListener] = (),
        saver: ModelSaver | None = None,
        observers: Sequence[RunObserver] = (),
        worker_listeners: Sequence[TrainingListener] = (),
        stop_if: Callable[[int, float], str] | None = None,
        takes_more: Callable[[], bool] = lambda: True,
    ) -> None:
        self._takes_more = takes_more
        self._listeners, self._saver, self._worker_listeners = tuple(listeners), saver, tuple(worker_listeners)
        self._seen: Any = None
        self._followers = RunObservers(observers, self._warn)
        self._iterator, self._tracker, self._performer = iterator, tracker, performer
        self._aggregator, self._first_model = aggregator, first_model
        self._monitor, self._stop_if = monitor, stop_if
        self._parts: _Parts | None = None
        self._stats: MasterStats | None = None
        self._states = StateLog()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shut_down_after(error)

    def _shut_down_after(self, error: BaseException | None) -> None:
        """Shut down; while an ``error`` is being raised, errors of the shutdown only become warnings."""
        try:
            self.shutdown()
        except Dl4jError as exc:
            if error is None:
                raise
            logger.warning("%s", exc)

    def setup(self, run: Run) -> Conf:
        """Assemble all parts of a run, as ``run.resolve`` returned it; return its Conf.

        Errors as for ``ActorNetworkRunner.setup``.
        """
        if self._parts is not None:
            raise UsageError("setup was called twice; make a new runner for another run")
        conf, kernels = run.conf, host_kernels(run.conf.kernels)
        tracker = self._tracker or InMemoryStateTracker()
        made_of = MadeOf(tracker)
        first = first_model_of(
            conf, self._first_model, self._aggregator, kernels, resumes=run.resumes, had_one=made_of.had_a_model
        )
        performer, folder = self._performer_of(run), folder_of(conf, resumes=run.resumes)
        folder.check_unused()
        outcome, router = Outcome(tracker.clock), find_router(conf)
        folder.on_trouble, folder.on_wait, folder.on_change = outcome.warn, outcome.progressed, self._storage_changed
        if run.resumes and (made_with := folder.made_with()):
            tracker.define_once(ARITHMETIC, made_with)
        if run.local_workers:
            check_same_arithmetic(tracker, conf, run.compute)
        reads_all = self._monitor is None or not conf.data_by_reference  # else only the jobs performed here
        jobs = prefetched(job_iterator(conf, self._iterator), conf.prefetch_buffer, reads_all=reads_all)
        own: dict[str, Any] = {"first": self._first_model, "aggregator": self._aggregator, "stop_if": self._stop_if}
        ours = parts_of(conf, jobs, performer=performer if run.local_workers else None, **own)
        changed = agree_on_parts(tracker, conf, ours, folder.made_with("made_of"), changed_code=run.changed_code)
        folder.take(RunArithmetic(tracker), made_of, takes_over=run.resumes and self._monitor is not None)
        aside: tuple[tuple[int, int], ...] = ()
        if self._monitor is None and isinstance(tracker, InMemoryStateTracker):
            run, performer, aside = noted(run, performer, folder.begun() if run.resumes else None)
        if self._aggregator is not None:
            check_own_aggregator(router, conf.router, conf.router_args, weighted_average=conf.weighted_average)
        pool = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="dl4j-aggregate")
        self._parts = _Parts(
            run=run,
            jobs=jobs,
            tracker=tracker,
            router=router,
            aggregator=self._aggregator or fold_of(router, kernels, pool),
            kernels=kernels,
            first_model=first,
            performer=performer,
            folder=folder,
            outcome=outcome,
            pool=pool,
            changed_code=changed,
            aside=aside,
        )
        return conf

    def _performer_of(self, run: Run) -> PerformerFactory:
        """Return the factory of performers for the workers in this process."""
        conf = run.conf
        if conf.network_conf is None and not conf.performer:
            if self._monitor is not None:
                raise ConfError(
                    "jobs that are no network's need Conf.performer on a cluster: the name under which its workers "
                    "have registered what performs them (@register_performer)"
                )
            if self._performer is None:
                raise ConfError("jobs that are no network's need a performer, or its name in Conf.performer")
        if self._performer is not None and conf.validation is not None:
            raise ConfError(
                "Conf.validation is given with a performer of the program's own, which cannot evaluate the model; "
                "leave one of them out"
            )
        if self._performer is not None:
            return checked(self._performer)
        return performer_of(conf, self._worker_listeners) if run.local_workers else network_performer

    def train(
        self, tick: Callable[[RunStatus], None] | None = None, *, deadline: float | None = None, progress: bool = True
    ) -> TrainingResult:
        """Train to the end of the plan and return the result. Blocks.

        Args and errors as for ``ActorNetworkRunner.train``. Ctrl-C shuts the run down; the ``KeyboardInterrupt``
        carries a note that says where the run stopped and what is saved.
        """
        parts = self._ready()
        begun = parts.folder.begun()  # the tracker may not know it yet
        with one_thread():  # no BLAS threads besides the workers' own threads
            parts.started = time.monotonic()
            try:
                self._start(parts)
                with shown(tick, progress) as show:
                    head, frame, best = self._wait(parts, show, deadline)
                    if show is not None and tick is None:  # the last tick may have come before the last round
                        show(replace(self.status(), head=head))
            except KeyboardInterrupt as interrupt:
                self._shut_down_after(interrupt)
                run, in_grid = parts.run, self._monitor is not None
                interrupt.add_note(what_is_kept(run.conf, run.plan, parts.folder, in_grid=in_grid))
                raise
            except TrackerLostError as exc:
                check = (lambda: None) if self._monitor is None else self._monitor.leadership.check
                known = None if parts.master is None else parts.master.known
                saved = save_known(known, partial(_best_known, parts), parts.folder, parts.run.plan, check)
                raise TrackerLostError(f"{exc}. {saved}") from exc
        if head.status != "done" or frame is None:
            raise failure_of(head)
        done = TrainingResult(
            conf=parts.run.conf,
            plan=parts.run.plan,
            head=head,
            model=Result.decode(frame),
            seconds=time.monotonic() - parts.started,
            examples_here=head.examples - (begun.examples if begun is not None else 0),
            warnings=(*((MIXED,) if parts.run.conf.mixed_devices else ()), *parts.outcome.warnings),
            devices=parts.run.compute.devices_of(parts.run.local_workers),
            best_model=None if best is None else Result.decode(best),
            course=None if parts.history is None else parts.history.course(),
        )
        if done.batches_lost or done.batches_duplicated:
            raise TrainingError(
                f"run {head.run}: {counted(done.batches_lost, 'batch', 'batches')} lost, {done.batches_duplicated} "
                "duplicated; this is a bug"
            )
        return done

    def summary(self, result: TrainingResult) -> RunSummary | None:
        """Return the summary of a finished run on a cluster; None if the run was on no cluster."""
        history = self._ready().history
        if self._monitor is None or history is None:
            return None
        return self._monitor.summary(result.head, history, result.seconds)

    def network(self, result: TrainingResult, *, best: bool = False) -> Any:
        """Return the trained network, as for ``ActorNetworkRunner.network``."""
        if best and result.best_model is None:
            raise UsageError("this run has no best model: it had neither Conf.validation nor Conf.early_stopping")
        model = result.best_model if best and result.best_model is not None else result.model
        return self._network(self._ready(), model)

    def _network(self, parts: _Parts, model: Result) -> Any:
        return trained_network(parts.run.conf, model, parts.kernels)

    def _observed(self, parts: _Parts, model: Result) -> Any:
        """Return the model as listeners see it: one network, reused for all versions; called on the master's thread."""
        if parts.run.conf.network_conf is None:
            return model
        if self._seen is None:
            self._seen = self._network(parts, model)
        self._seen.set_params(model.arrays[PARAMS])
        self._seen.set_updater_state(model.arrays[STATE])
        return self._seen

    def _ready(self) -> _Parts:
        if self._parts is None:
            raise UsageError("call setup(conf) first")
        return self._parts

    def _start(self, parts: _Parts) -> None:
        """Start the actors, receivers of messages before senders."""
        conf, tracker, outcome, monitor = parts.run.conf, parts.tracker, parts.outcome, self._monitor
        name = process_name() if monitor is None else monitor.source
        if monitor is None:  # a finished run on a cluster never gets more epochs: its state is removed
            drive(protocol.extend_run(tracker.store, parts.run.plan))
        lines = saved_run.open_lines(conf)
        parts.history = History(lines, parts.run.plan, tracker.clock, conf.network_conf, parts.changed_code)
        known = partial(self._known_workers, parts), True, partial(self._state, parts)
        self._followers.begin(ObservedRun(conf, parts.run.plan, name, tracker, *known))
        self._stats = self._record_phases(parts, name, lines)
        observers = Observers(outcome, self._listeners, self._saver, lambda model: self._observed(parts, model))
        saver = actors.ModelSavingActor.start(outcome, parts.folder, observers.keep, self._phases("saver"))
        phases = self._phases("master" if parts.by_reference else "batch")
        issuer = JobIssuer(tracker, parts.jobs, parts.router, by_reference=parts.by_reference, phases=phases)
        issue, batch = actors.issuing(outcome, issuer)
        parts.master = self._master(parts, name)
        master = actors.MasterActor.start(
            outcome=outcome,
            tracker=tracker,
            master=parts.master,
            issue=issue,
            saver=saver,
            checkpoint_every=conf.checkpoint_every,
            keeps=parts.folder.keeps or self._saver is not None,
            keeps_states=parts.folder.keeps,
            monitor=monitor,
            takes_more=self._takes_more,
            on_version=lambda event: self._new_version(parts, observers, event),
        )
        parts.refs = [master, *batch, saver]
        parts.workers = WorkerPool(
            conf=conf,
            plan=parts.run.plan,
            tracker=tracker,
            router=parts.router,
            compute=parts.run.compute,
            outcome=outcome,
            performer=parts.performer,
            jobs=parts.jobs if parts.by_reference else None,
            models=parts.models,
            on_job_failed=self._job_failed,
        )
        parts.workers.recorder = None if self._stats is None else self._stats.recorder
        beats = parts.workers.start(name, parts.run.local_workers, None if monitor is None else monitor.messages)
        # The master looks for late jobs at each poll.
        parts.ticker = Ticker([(conf.limits.poll / 4, master, actors.Poll()), *beats])
        parts.ticker.start()
        if monitor is not None:
            monitor.begin(lambda: tell(master, actors.Poll()), outcome.fail, self._followers.happened)

    def _record_phases(self, parts: _Parts, name: str, lines: LinesFolder | None) -> MasterStats | None:
        """Return the recorder of this process's phases; None if neither statistics nor observers need it."""
        conf, clock = parts.run.conf, parts.tracker.clock
        follow = self._followers.phases if self._followers.follow_phases() else None
        if not conf.collect_training_stats:
            return None if follow is None else MasterStats(name, clock, None, None, collects=False, follow=follow)
        return MasterStats(name, clock, None if self._monitor is None else self._monitor.stats, lines, follow=follow)

    def _phases(self, thread: str) -> Phases:
        return NO_PHASES if self._stats is None else self._stats.recorder.thread(thread)

    @property
    def stats(self) -> TrainingStats:
        """Durations of the rounds' phases, as far as known in this process; as for ``ActorNetworkRunner.stats``."""
        if self._stats is None or self._stats.collector is None:
            raise UsageError(f"no statistics were collected; {NOT_COLLECTED}")
        return self._stats.collector.stats()

    def _new_version(self, parts: _Parts, observers: Observers, event: protocol.NewModel) -> None:
        """Notify all observers of a new version; called on the master's thread."""
        observers.on_version(event)
        entry = None if parts.history is None else parts.history.add(event)
        if entry is not None:
            self._followers.new_version(entry, event)

    def _master(self, parts: _Parts, name: str) -> protocol.Master:
        """Return the protocol's master with this name."""
        conf, monitor, has_readers = parts.run.conf, self._monitor, self._listeners or self._followers
        return protocol.Master(
            name=name,
            store=parts.tracker.store,
            clock=parts.tracker.clock,
            plan=parts.run.plan,
            router=parts.router,
            aggregator=parts.aggregator,
            start=protocol.RunStart(
                conf.run,
                lambda: parts.first_model().encode(),
                aside=parts.aside,
                **parts.folder.kept(),
                **({} if monitor is None else monitor.rights()),
            ),
            scoring=msgspec.structs.replace(conf.scoring, stop_if=self._stop_if),
            limits=conf.limits,
            phases=self._phases("master"),
            models=parts.models,
            shares_models=bool(parts.run.local_workers or has_readers),
            pushes_messages=conf.void_configuration is not None,
            **({} if monitor is None else monitor.watches()),
            on_progress=parts.outcome.progressed,
            sets_poison_aside=conf.poison_jobs == "set-aside",
            on_job_set_aside=lambda slot, failure: self._job_set_aside(parts, slot, failure),
            on_set_aside=lambda worker, failures: self._set_aside(parts, worker, failures),
            present=lambda: self._present(parts),
            on_reissued=self._reissued,
        )

    def _present(self, parts: _Parts) -> list[str]:
        """Return the names of the run's workers; called on the master's thread."""
        here = [] if parts.workers is None else parts.workers.names
        return [*here, *([] if self._monitor is None else self._monitor.present())]

    def _job_failed(self, event: protocol.Perform, failure: Failure) -> None:
        """Notify observers and the journal of a job that failed here; called on the worker's thread."""
        self._followers.job_failed(event.plan[:2], failure)
        if self._monitor is not None:
            self._monitor.journal.job_failed(event, failure)

    def _reissued(self, slot: tuple[int, int], worker: str, reason: ReissueReason) -> None:
        """Notify observers and the monitor of a reissued job; called on the master's thread."""
        self._followers.job_reissued(reason)
        if self._monitor is not None:
            self._monitor.job_reissued(slot, worker, reason)

    def _job_set_aside(self, parts: _Parts, slot: tuple[int, int], failure: Failure) -> None:
        """Report a job that was set aside; called on the master's thread."""
        parts.outcome.warn(f"round {slot[0]}, slot {slot[1]} was set aside: {failure.message}")
        if self._monitor is not None:
            self._monitor.job_set_aside(slot, failure)

    def _set_aside(self, parts: _Parts, worker: str, failures: tuple[Failure, ...]) -> None:
        """Report a worker that was set aside; called on the master's thread."""
        parts.outcome.warn(
            f"worker {worker} was set aside: {counted(len(failures), 'job')} failed there that other workers did "
            f"({messages(failures)})"
        )
        if self._monitor is not None:
            self._monitor.worker_set_aside(worker, failures)

    def _warn(self, message: str) -> None:
        if self._parts is not None:
            self._parts.outcome.warn(message)

    def _known_workers(self, parts: _Parts) -> Sequence[WorkerRecord]:
        """Return the run's workers as known here; without a cluster they are read from the run's own tracker."""
        return parts.tracker.workers() if self._monitor is None else self._monitor.workers()

    def _state(self, parts: _Parts) -> RunState:
        """Return the state of the run as known here; without a cluster no worker can be missing."""
        if self._monitor is not None:
            return self._monitor.state()
        return self._states.note(state_in_process(parts.tracker, parts.folder.troubles))

    def _storage_changed(self, what: str, why: str) -> None:
        """Notify observers and the monitor why checkpoints cannot be written; "" means that they can again."""
        if why:
            self._followers.checkpoint_failed(why)
        if self._monitor is not None:
            self._monitor.storage_changed(what, why)
        elif self._parts is not None:
            self._parts.tracker.define(TROUBLES, dict(self._parts.folder.troubles))

    def _wait(self, parts: _Parts, tick: Callable[[RunStatus], None] | None, deadline: float | None) -> End:
        """Wait for the end in slices short enough for Ctrl-C; raise ``DeadlineError`` if the run makes no progress."""
        conf = parts.run.conf
        stall, waited = conf.stuck_seconds * (conf.limits.attempts + 1), 0.0
        begun = parts.tracker.clock.now()
        while True:
            try:
                end = parts.outcome.wait(0.2, (lambda: tick(self.status())) if tick else None)
            except BaseException as exc:
                if tick is not None and self._monitor is None and not isinstance(exc, Exception):
                    tick(self.status())  # on a signal: the last tick may have come before the first round
                raise
            if end is not None:
                return end
            elapsed = parts.tracker.clock.now() - begun
            if deadline is not None and elapsed > deadline:
                raise DeadlineError(
                    f"run {conf.run} was not done after {deadline:.0f} s; {where_it_is(parts.tracker, parts.run.plan)}"
                )
            waited, before = parts.tracker.waited_seconds(), waited
            waits = self._monitor is not None and self._monitor.quorum.waiting is not None
            parts.outcome.look(is_excused=waits or waited > before)  # both have their own deadlines
            if parts.outcome.idle_seconds > stall:
                raise DeadlineError(
                    f"run {conf.run} has stood still for {parts.outcome.idle_seconds:.0f} s; "
                    f"{where_it_is(parts.tracker, parts.run.plan)}. No batch was done meanwhile: find out why, or, if "
                    f"one takes so long, give the Conf more stuck_seconds than {conf.stuck_seconds:g}"
                )

    def unfinished(self) -> Any:
        """Return the network of an unfinished run as known in this process; None if there is none."""
        parts = self._ready()
        known = None if parts.master is None else parts.master.known
        return None if known is None else self._network(parts, Result.decode(known[1]))

    def status(self) -> RunStatus:
        """Return a snapshot of the run without waiting. May be called from any thread while the run is active."""
        parts, monitor = self._ready(), self._monitor
        known = None if parts.master is None else parts.master.known
        return RunStatus(
            parts.run.plan,
            parts.tracker.head() if monitor is None else known[0] if known else monitor.head,
            time.monotonic() - parts.started if parts.started else 0.0,
            shown_workers(self._known_workers(parts), is_here=monitor is None),
            None if monitor is None else monitor.quorum.waiting,
            devices=parts.run.compute.describe(parts.run.local_workers),
            state=self._state(parts),
        )

    def shutdown(self, timeout: float = 30.0) -> None:
        """Stop everything and wait for it; workers finish and commit their jobs first. May be called more than once.

        An unfinished run is saved as a checkpoint, if it has a checkpoint folder.

        Raises:
            DeadlineError: an actor did not stop within ``timeout`` seconds.
        """
        parts, self._parts = self._parts, None
        if parts is None:
            return
        parts.tracker.leave()
        workers = [] if parts.workers is None else parts.workers.stop(timeout)
        if parts.ticker is not None:
            parts.ticker.stop()
        others = stop_actors(parts.refs, timeout)
        stop_reading(parts.jobs)
        late = workers + others
        parts.pool.shutdown(wait=not late, cancel_futures=True)
        try:
            if parts.started and not others:  # a hanging worker does not prevent the checkpoint
                hand_over(parts.master)
                _save_unfinished(parts)
        finally:
            if parts.history is not None:
                parts.history.close()
            if self._stats is not None:
                self._stats.close()
            self._followers.end()
            parts.folder.release()
            if self._tracker is None:
                parts.tracker.shutdown()
        if late:
            raise DeadlineError(f"{', '.join(late)} did not stop within {timeout:.0f} s; the process should end now")


def _best_known(parts: _Parts, head: Head) -> Any:
    """Return the best model of a run as known to this process or its tracker; None if there is none."""
    known = None if parts.master is None else parts.master.best_of(head)
    if known is not None or head.best is None:
        return known
    return drive(protocol.read_frame(parts.tracker.store, head.best.model))


def _save_unfinished(parts: _Parts) -> None:
    """Save a checkpoint of a run that was aborted, failed, or was stopped."""
    head = parts.tracker.head()
    if not parts.folder.keeps or head is None or head.status == "done":
        return
    head = protocol.rewound(head, parts.run.plan) if head.logged else head
    if parts.folder.has(head.version):
        return
    frame = drive(protocol.read_frame(parts.tracker.store, head.model))
    states = drive(protocol.states_of(parts.tracker.store, head))
    if frame is not None and states is not None:
        parts.folder.save(head, frame, _best_known(parts, head), states)
