"""The workers of one process: their actors, their heartbeat, their names.

Legacy: the worker pool of ``ActorNetworkRunner``, whose actors all shared one performer.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import socket
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pykka

from dl4jlegacy.errors import ConfError, JobError
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.nn.listeners import TrainingListener
from dl4jlegacy.nn.networks import build_network
from dl4jlegacy.scaleout import actors, protocol
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.contract import fold_of
from dl4jlegacy.scaleout.links.mesh.messages import MessageCache, Messages
from dl4jlegacy.scaleout.monitoring.outcome import Outcome
from dl4jlegacy.scaleout.monitoring.stats import StatsSender
from dl4jlegacy.scaleout.phases import NO_PHASES, EventStats, PhaseRecorder
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.state.job import JobIterator
from dl4jlegacy.scaleout.state.records import Failure
from dl4jlegacy.scaleout.state.state_cache import HostCopies
from dl4jlegacy.scaleout.strategies import RowAveragingWorkRouter, WorkRouter
from dl4jlegacy.scaleout.tracker import StateTracker
from dl4jlegacy.scaleout.workers.device_choice import Compute, OnDevice, host_kernels
from dl4jlegacy.scaleout.workers.measured import MeasuredJobs, MeasuredPerformer
from dl4jlegacy.scaleout.workers.perform import MultiLayerNetworkPerformer, WorkerPerformer
from dl4jlegacy.scaleout.workers.plugins import PerformerFactory, checked, find_performer, find_router
from dl4jlegacy.scaleout.workers.sparse_rows import SparseRowsPerformer
from dl4jlegacy.system.clock import Deadline

__all__ = [
    "Beats",
    "WorkerPool",
    "network_performer",
    "performer_of",
    "process_name",
    "stop_actors",
    "tell",
]

logger = logging.getLogger(__name__)

Beats = list[tuple[float, pykka.ActorRef[Any], Any]]
"""The entries of a ``Ticker``: (interval in seconds, actor, message) of each."""


def process_name() -> str:
    """Return a name that is unique among all processes: ``<host>-<pid>-<random>``."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def performer_of(conf: Conf, listeners: Sequence[TrainingListener] = ()) -> PerformerFactory:
    """Return the factory of a run's performers: the one that the Conf names, else one that trains its network.

    Args:
        conf: of the run.
        listeners: called for each training batch of a network; not used for a user's own performer.

    Raises:
        MissingPartError: this process does not have the performer that the Conf names.
    """
    if conf.performer:
        return checked(find_performer(conf.performer, f"run {conf.run}" if conf.run else "the run"))
    return functools.partial(network_performer, listeners=listeners)


def network_performer(conf: Conf, kernels: Kernels, listeners: Sequence[TrainingListener] = ()) -> WorkerPerformer:
    """Return a performer with its own replica of the Conf's network."""
    if conf.network_conf is None:
        raise ConfError("Conf.multi_layer_conf is missing; there is no network to train")
    router = find_router(conf)
    if isinstance(router, RowAveragingWorkRouter) and conf.multi_layer_conf is not None:
        return SparseRowsPerformer(
            conf.multi_layer_conf,
            kernels,
            seed=conf.seed,
            sends_updater_state=conf.average_updater_state,
            listeners=listeners,
        )
    return MultiLayerNetworkPerformer(
        build_network(conf.network_conf, kernels),
        seed=conf.seed,
        update_kind=router.update_kind,
        sends_updater_state=conf.average_updater_state or router.memory is not None,
        listeners=listeners,
    )


class WorkerPool:
    """``conf.workers`` workers of one run, each with its own performer, and one heartbeat for all of them.

    Args:
        compute: the devices, and the kernels for each worker.
        models: shared models of this process, if it has a master; None: shared by the workers only.
        jobs: source of the data of jobs that refer to it; None if jobs carry their data.
        ends_run: whether the end of the workers sets ``outcome``, as in a process without a master.
        on_job_failed: called for each job that failed here, on the worker's thread.
    """

    def __init__(
        self,
        conf: Conf,
        tracker: StateTracker,
        *,
        plan: Plan,
        router: WorkRouter,
        compute: Compute,
        outcome: Outcome,
        performer: PerformerFactory,
        jobs: JobIterator | None,
        models: protocol.SharedModels | None = None,
        ends_run: bool = False,
        on_job_failed: Callable[[protocol.Perform, Failure], None] = lambda event, failure: None,
    ) -> None:
        self._models = models or protocol.SharedModels()
        self._conf, self._plan, self._tracker, self._router = conf, plan, tracker, router
        self._compute, self._outcome, self._performer = compute, outcome, performer
        self._jobs, self._ends_run, self._on_job_failed = jobs, ends_run, on_job_failed
        self._workers: list[pykka.ActorRef[Any]] = []
        self._performers: list[WorkerPerformer] = []
        self._finishes = False
        self._heartbeat: pykka.ActorRef[Any] | None = None
        self._lock = threading.Lock()
        self.names: tuple[str, ...] = ()
        """The names of the workers that have not been set aside."""
        self.recorder: PhaseRecorder | None = None
        """Phase recorder of this process, if statistics are collected; set before ``start``."""
        self._sender: StatsSender | None = None
        self._copies: HostCopies | None = None

    def send_stats(self, process: str, send: Callable[[Sequence[EventStats]], None]) -> None:
        """Collect statistics of this process from ``start`` on, and pass them to ``send``."""
        self.recorder = PhaseRecorder(process, self._tracker.clock)
        self._sender = StatsSender(self.recorder, send)

    def start(self, name: str, count: int, messages: Messages | None = None) -> Beats:
        """Start ``count`` workers called ``name-0 ...``; return the entries for the process's ticker.

        ``messages`` are the messages in memory if this process is part of the run's mesh; None: only those of its
        workers.
        """
        conf, tracker = self._conf, self._tracker
        heartbeat = actors.HeartbeatActor.start(
            self._outcome,
            tracker,
            stuck_seconds=conf.stuck_seconds,
            kernels=self._compute.name,
            device=lambda worker: self._compute.memory(int(worker.rpartition("-")[2])),
        )
        self._heartbeat, kernels = heartbeat, host_kernels(self._compute.name)
        self.names = tuple(f"{name}-{index}" for index in range(count))
        if messages is None and (void := conf.void_configuration) is not None:
            messages = MessageCache(void.chunks_buffer_size)
        self._copies = self._make_copies(name)
        for index, worker_name in enumerate(self.names):
            self._start_worker(index, worker_name, heartbeat=heartbeat, kernels=kernels, messages=messages)
        if self._sender is not None:
            self._sender.start()
        polls: Beats = [(conf.limits.poll, ref, actors.Poll()) for ref in self._workers]
        return [*polls, (conf.heartbeat_seconds, heartbeat, actors.Beat())]

    def _start_worker(
        self, index: int, name: str, *, heartbeat: pykka.ActorRef[Any], kernels: Kernels, messages: Messages | None
    ) -> None:
        conf, tracker = self._conf, self._tracker
        phases = NO_PHASES if self.recorder is None else self.recorder.thread(f"worker-{index}")
        worker = protocol.Worker(
            name,
            tracker.store,
            tracker.clock,
            self._plan,
            self._router,
            aggregator=fold_of(self._router, kernels),
            limits=conf.limits,
            phases=phases,
            models=self._models,
            messages=messages,
            copies=self._copies,
        )
        performer, jobs = self._make_performer(index), self._jobs
        self._performers.append(performer)
        if self.recorder is not None:
            performer = MeasuredPerformer(performer, phases)
            jobs = None if jobs is None else MeasuredJobs(jobs, phases)
        self._workers.append(
            actors.WorkerActor.start(
                self._outcome,
                tracker,
                worker,
                performer,
                heartbeat=heartbeat,
                jobs=jobs,
                kernels=kernels,
                ends_run=self._ends_run,
                on_job_failed=self._on_job_failed,
                on_set_aside=functools.partial(self._set_aside, name),
            )
        )

    def _set_aside(self, name: str, error: JobError) -> None:
        """Continue without a worker; if it was the last one and the process has no other task, fail with its error."""
        logger.warning("%s", error)
        with self._lock:
            self.names = tuple(other for other in self.names if other != name)
        if self._ends_run and not self.names:
            self._outcome.fail(error)

    def _make_copies(self, name: str) -> HostCopies | None:
        """Return the copies of slot states, if other processes of this host can join the run; else None."""
        shares = self._conf.incarnation and self._router.memory is not None
        return HostCopies(self._conf.keyspace, name) if shares else None

    def _make_performer(self, index: int) -> WorkerPerformer:
        """Return a worker's performer; on a GPU it has its own kernels."""
        compute = self._compute
        kernels = compute.kernels(index)
        make = functools.partial(self._performer, self._conf, kernels)
        return OnDevice(make, kernels, compute.device(index)) if compute.on_gpu else make()

    def finish(self) -> None:
        """Let every worker finish and commit its job, and lease no other. Does not wait; the heartbeat continues."""
        self._finishes = True
        for ref in self._workers:
            if ref.is_alive():
                ref.stop(block=False)

    def has_finished(self) -> bool:
        """Return whether all workers have stopped."""
        return not any(ref.is_alive() for ref in self._workers)

    def progress(self) -> int:
        """Return the number of batches that the workers have done; it grows as long as any worker makes progress."""
        return sum(performer.progress for performer in self._performers)

    def stop(self, timeout: float) -> list[str]:
        """Stop the workers after they finish and commit their job; return the names of actors that did not stop."""
        if self._sender is not None:
            self._sender.close()  # before the master sees that these workers are gone
        late = stop_actors(self._workers, timeout)
        if self._copies is not None:
            self._copies.close()
        late += stop_actors([] if self._heartbeat is None else [self._heartbeat], timeout)
        if self._finishes:  # the heartbeat has registered again workers that had left
            for name in self.names:
                self._tracker.remove_worker(name)
        return late


def stop_actors(refs: Sequence[pykka.ActorRef[Any]], timeout: float) -> list[str]:
    """Stop all actors at once; return the names of those that did not stop within ``timeout`` seconds."""
    futures = [(ref, ref.stop(block=False)) for ref in refs if ref.is_alive()]
    deadline = Deadline(timeout)
    return [
        ref.actor_class.__name__
        for ref, future in futures
        if not deadline.wait(functools.partial(_has_stopped, future))
    ]


def _has_stopped(future: pykka.Future[Any], seconds: float) -> bool:
    """Return whether an actor has stopped, within ``seconds``."""
    try:
        future.get(timeout=max(0.01, seconds))
    except pykka.Timeout:
        return False
    except pykka.ActorDeadError:
        pass
    return True


def tell(ref: pykka.ActorRef[Any], message: Any) -> None:
    """Send a message to an actor; ignored if the actor has stopped. Callable on any thread."""
    with contextlib.suppress(pykka.ActorDeadError):
        ref.tell(message)
