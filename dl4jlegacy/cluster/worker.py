"""A worker process of a cluster run: it joins, works until the run ends, and leaves (layer 5).

Legacy: ``ActorNetworkRunner`` of type ``worker``, which waited for ever for a master that was gone.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

import dl4jlegacy.training.evaluation_run
import dl4jlegacy.training.prediction_run  # noqa: F401  # both register their performers
from dl4jlegacy.cluster.address import (
    ClusterAddress,
    NotDefinedError,
    check_fits,
    closing,
    defined,
    find_conf,
    find_registered,
    open_tracker,
    versions,
    warned_once,
)
from dl4jlegacy.cluster.ending import DRAIN
from dl4jlegacy.cluster.mesh_membership import joined_mesh
from dl4jlegacy.cluster.reached_data import jobs_by_reference
from dl4jlegacy.cluster.register import NothingKept, ZookeeperRegister, place_of
from dl4jlegacy.cluster.registration import destroy, is_left_behind
from dl4jlegacy.cluster.search_trials import TrialShare, is_search
from dl4jlegacy.errors import ConfError, JobError, NotAuthorisedError, TrackerError, VersionError
from dl4jlegacy.kernels.threads import one_thread
from dl4jlegacy.nn.listeners import TrainingListener
from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.actors.ticker import Ticker
from dl4jlegacy.scaleout.actors.worker_pool import WorkerPool, performer_of, process_name
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.hazelcast.store import HazelcastStateTracker
from dl4jlegacy.scaleout.identity import agree_on_performer, shared_code
from dl4jlegacy.scaleout.links.liveness.client import LivenessClient
from dl4jlegacy.scaleout.monitoring.monitor import LIVENESS
from dl4jlegacy.scaleout.monitoring.observers import ObservedRun, RunObserver, RunObservers
from dl4jlegacy.scaleout.monitoring.outcome import Outcome, failure_of
from dl4jlegacy.scaleout.monitoring.stats import sending, to_all
from dl4jlegacy.scaleout.persistence.journal import Journal
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.protocol import Perform
from dl4jlegacy.scaleout.state.job import JobIterator
from dl4jlegacy.scaleout.state.records import WENT_BACK, Failure, Head
from dl4jlegacy.scaleout.strategies import WorkRouter
from dl4jlegacy.scaleout.tracker import StateTracker, drive
from dl4jlegacy.scaleout.workers.device_choice import Compute, check_same_arithmetic, compute_for_worker
from dl4jlegacy.scaleout.workers.plugins import PerformerFactory, checked, find_router
from dl4jlegacy.scaleout.workers.prefetch import prefetched, stop_reading
from dl4jlegacy.scaleout.zookeeper import (
    MasterElection,
    WorkerRegistration,
    ZookeeperConfigurationRetriever,
    ZooKeeperSession,
)
from dl4jlegacy.system.clock import Deadline
from dl4jlegacy.system.decoding import decodable

__all__ = ["run_worker"]

logger = logging.getLogger(__name__)


class _Drained(Exception):  # noqa: N818  # no error
    """Raised when this process was asked to leave and has left."""


UNREADABLE = (ConfError, NotAuthorisedError, VersionError)
"""Errors raised when the registered Conf cannot be read, or is not signed with the run's secret."""
OnEvent = Callable[[str, dict[str, Any]], None]
_LOOK_SECONDS = 1.0
_TRIAL_SECONDS = 1.0
"""Seconds after which a worker leaves a trial that is over or has failed: the search has other work."""


def run_worker(
    address: ClusterAddress,
    *,
    workers: int | None = None,
    wait_seconds: float = 60.0,
    device: str | None = None,
    device_memory_limit: str = "",
    performer: PerformerFactory | None = None,
    listeners: Sequence[TrainingListener] = (),
    data_dir: str = "",
    observers: Sequence[RunObserver] = (),
    on_event: OnEvent = lambda name, fields: None,
    stay: bool = False,
) -> Head | None:
    """Work for the registered run with ``workers`` threads until the run ends.

    Returns the last head of the run. Returns None if the run ended before this process saw the end and no other run
    followed, or if this process was asked to leave (``registration.drain_worker``); it then first finishes and commits
    the jobs that it has begun.

    ``performer`` makes the workers' performers; None: the performer that the Conf names, else one that trains the
    Conf's network and calls ``listeners`` after every batch, on the worker's thread. ``workers`` None: one, or one for
    each GPU.
    ``device`` None: the run's kind of device; on GPUs all of them. ``data_dir`` is the folder with the MNIST files, for
    a run whose workers read their data themselves; "": ``DL4J_DATA_DIR``. ``observers`` follow each run from this
    process.

    If another run replaces the run under the same id, the worker moves to the new run. If the run has failed or has
    nothing in the tracker, the worker waits until somebody resumes or replaces the run. If the id is that of a search,
    the worker works for one trial after the other until the search ends; trials may fail.

    With ``stay`` the worker waits for the first run under the id, and after each run for the next one, whatever the
    outcome, until it is asked to leave (by a signal or ``drain_worker``). ``on_event`` is called for each wait
    (``"waiting"``).

    Raises:
        TrackerError: a server cannot be reached, no run was registered or resumed in time, or the run has had no master
            for too long.
        NotDefinedError: the registered run has had nothing in the tracker for ``wait_seconds``.
        DeviceError: the device is not available, or is not of the run's kind.
        VersionError: the versions of this process do not match. NotAuthorisedError: the secret differs.
        MissingPartError: the run needs a performer or router that this process does not have.
        DataError: this process has to read the run's data itself, and they are missing here or differ.
        TrainingError: the run failed; or it has excluded all workers of this process, and goes on without them.
    """
    work = functools.partial(
        _work_until_over,
        workers=workers,
        device=device,
        device_memory_limit=device_memory_limit,
        performer=performer,
        listeners=listeners,
        data_dir=data_dir,
        observers=observers,
        on_event=on_event,
    )
    try:
        while stay:
            _stay(address, work, wait_seconds, on_event)
        if is_search(address, wait_seconds):
            return _work_for_search(address, work, wait_seconds)
        head = work(address, wait_seconds, is_followed=True)
    except _Drained:
        return None
    if head is not None and head.status == "failed":
        raise failure_of(head)
    return head


def _stay(address: ClusterAddress, work: Callable[..., Head | None], wait_seconds: float, on_event: OnEvent) -> None:
    """Work for one run after the other under an id; return if that fails for a run, so that the caller tries again.

    Raises:
        TrackerError: Zookeeper cannot be reached any more.
    """
    ended = ""
    while True:
        on_event("waiting", {"id": address.id})
        ended = _next_run(address, ended)
        try:
            if is_search(address, wait_seconds):
                _work_for_search(address, work, wait_seconds)
                continue
            head = work(address, wait_seconds, is_followed=True)
        except TrackerError as exc:
            logger.warning("%s; this worker stays, and waits for the next run", exc)
            time.sleep(_LOOK_SECONDS)
            return
        if head is not None and head.status == "failed":
            logger.warning("%s; this worker stays, and waits for it to be resumed, or for another", failure_of(head))
            ended = ""  # a resumed run has the same incarnation


def _next_run(address: ClusterAddress, ended: str) -> str:
    """Wait until a run other than incarnation ``ended`` is registered; return its incarnation. Raises as ``find``."""
    with address.session() as session:
        registered = ZookeeperConfigurationRetriever(*address.split(), address.id, session=session)
        while True:
            conf = registered.find()
            if conf is not None and conf.incarnation != ended:
                return conf.incarnation
            if conf is None:
                ended = ""  # the next one registered is another run, or the same one resumed
            time.sleep(_LOOK_SECONDS / 4)


def _work_for_search(address: ClusterAddress, work: Callable[..., Head | None], wait_seconds: float) -> Head | None:
    """Work for this process's share of a search's trials; return the last head that was seen."""
    last: Head | None = None
    patience: Deadline | None = None  # set at the first of consecutive trials that cannot be worked for
    with warned_once(), TrialShare(address, process_name()) as share:
        while (trial := share.next(wait_seconds)) is not None:
            try:
                last = work(trial, _TRIAL_SECONDS, is_followed=False) or last
            except TrackerError as exc:  # usually the trial has just ended
                patience = patience or Deadline(wait_seconds)
                if patience.passed():
                    raise
                logger.debug("a trial of search %s: %s", address.id, exc)
            else:
                patience = None
    return last


def _work_until_over(
    address: ClusterAddress,
    wait_seconds: float,
    *,
    is_followed: bool,
    workers: int | None,
    device: str | None,
    device_memory_limit: str,
    performer: PerformerFactory | None,
    listeners: Sequence[TrainingListener],
    data_dir: str,
    observers: Sequence[RunObserver],
    on_event: OnEvent,
) -> Head | None:
    """Work for the run under an id and for runs that replace it; return the last head, also that of a failed run."""
    conf: Conf | None = None
    head, patience = None, Deadline(wait_seconds)
    while head is None:
        before, conf = conf, find_conf(address, wait_seconds=wait_seconds)
        if conf != before:
            address.warn_unsigned(conf.run)
        with (
            ZooKeeperSession(address.zookeeper, secret=address.secret, session_seconds=conf.session_seconds) as session,
            closing(open_tracker(conf, address, registered=True, takes_part=True)) as tracker,
        ):
            if not _goes_on(conf, address, tracker, session, wait_seconds):
                continue
            router = find_router(conf)  # a process that lacks the router or performer must fail before it takes part
            make = performer_of(conf, listeners) if performer is None else checked(performer)
            compute = compute_for_worker(conf, device, device_memory_limit)
            try:
                head = _work(
                    conf,
                    address,
                    tracker=tracker,
                    session=session,
                    compute=compute,
                    workers=workers or len(compute.devices),
                    router=router,
                    performer=make,
                    data_dir=data_dir,
                    observers=observers,
                    on_event=on_event,
                )
            except NotDefinedError as exc:
                if patience.passed():
                    raise
                if conf != before:
                    logger.warning("%s; this worker waits for that, or for another run to take its place", exc)
                continue
        if head is None and not is_followed:
            return None
        patience = Deadline(wait_seconds)
        if head is None and find_registered(address) is None:
            logger.warning("run %s was over before this worker saw its end, and no other one has followed", conf.run)
            return None
    return head


def _goes_on(
    conf: Conf, address: ClusterAddress, tracker: StateTracker, session: ZooKeeperSession, wait_seconds: float
) -> bool:
    """Wait until a failed run is resumed; return False if another run is registered instead.

    Raises:
        TrackerError: nobody has resumed the run within ``wait_seconds``.
    """
    host, port = address.split()
    registered = ZookeeperConfigurationRetriever(host, port, address.id, session=session)
    end, failed = tracker.clock.now() + wait_seconds, None
    while True:
        head = tracker.head()
        if head is not None and head.status == "failed":
            failed = head
        elif failed is None or head is not None:
            return failed is None  # the Conf may have changed in between
        if registered.find() != conf:
            return False
        if tracker.clock.now() > end:
            raise TrackerError(
                f"run {conf.run} has failed in round {failed.round}, and nobody has resumed it for {wait_seconds:g} s; "
                f"`dl4j resume {conf.run}` goes on with it, `dl4j stop` removes it"
            )
        time.sleep(_LOOK_SECONDS / 4)


def _work(
    conf: Conf,
    address: ClusterAddress,
    *,
    tracker: HazelcastStateTracker,
    session: ZooKeeperSession,
    compute: Compute,
    workers: int,
    router: WorkRouter,
    performer: PerformerFactory,
    data_dir: str,
    observers: Sequence[RunObserver],
    on_event: OnEvent,
) -> Head | None:
    """Work for one run; return its last head, or None if the run is gone or was replaced."""
    _check_joins(tracker, conf, performer)
    plan = msgspec.convert(defined(tracker, "plan", conf), decodable(Plan))
    reached = jobs_by_reference(conf, plan, data_dir)
    jobs = None if reached is None else prefetched(reached, conf.prefetch_buffer, reads_all=False)
    differs = check_same_arithmetic(tracker, conf, compute)  # last: the first worker decides for all
    outcome, name = Outcome(tracker.clock), process_name()
    journal, followers = Journal(tracker, name), RunObservers(observers, outcome.warn)
    registered = ZookeeperConfigurationRetriever(*address.split(), address.id, session=session)
    place = place_of(conf, address, tracker, ZookeeperRegister(conf, address, session), kept=NothingKept())
    failed = functools.partial(_job_failed, journal, followers)
    pool = _pool(conf, tracker, compute, outcome, failed, plan=plan, jobs=jobs, router=router, performer=performer)
    journal.watch_refusals()
    on_event("joined", {"run": conf.run, "worker": name, "threads": workers})
    for index, text, device in compute.describe(workers):
        on_event("device", {"worker": f"{name}-{index}", "text": text, **device.fields()})
    head, left = None, "stopped"
    with (
        _followed(conf, plan, name, tracker, pool, followers),
        WorkerRegistration(session, name, {"run": conf.run, "threads": workers}, group=address.id),
        LivenessClient(lambda: tracker.get(LIVENESS), name, run=conf.keyspace, secret=address.secret) as link,
        joined_mesh(conf, address, session, name) as mesh,
        one_thread(),
    ):
        master = _MasterWatch(conf, place, tracker, registered, MasterElection(session, group=address.id), link)
        ticker = Ticker(pool.start(name, workers, mesh))
        ticker.start()
        announced = {"differs": differs} if differs else {}
        journal.write("worker_joined", worker=name, threads=workers, kernels=compute.name, **announced)
        try:
            head = _serve(outcome, master, _Drain(tracker, pool, name, conf.stuck_seconds))
            left = head.status if head is not None else master.left
        except TrackerError:
            left = ""  # the tracker is gone, so nothing can be reported
            raise
        except JobError:
            left = "set aside"
            raise
        finally:
            tracker.leave()
            if left in ("stopped", "set aside", "drained") and head is None:
                journal.write("worker_left", worker=name, status=left)  # before Zookeeper removes the registration
            ticker.stop()
            pool.stop(30.0)
            stop_reading(jobs)
    if head is None and left != "drained" and is_left_behind(place):
        destroy(tracker)
    on_event("left", {"run": conf.run, "worker": name, "status": left})
    if left == "drained":
        raise _Drained
    return head


def _check_joins(tracker: StateTracker, conf: Conf, performer: PerformerFactory) -> None:
    """Raise ``VersionError`` if this process has other versions or other code than the rest of the run."""
    check_fits(tracker, conf, versions(conf.kernels) | shared_code(conf))
    agree_on_performer(tracker, conf, performer)


def _pool(
    conf: Conf,
    tracker: HazelcastStateTracker,
    compute: Compute,
    outcome: Outcome,
    on_job_failed: Callable[[Perform, Failure], None],
    *,
    plan: Plan,
    jobs: JobIterator | None,
    router: WorkRouter,
    performer: PerformerFactory,
) -> WorkerPool:
    """Return the pool of this process's workers, once the process is admitted to the run."""
    return WorkerPool(
        conf,
        tracker,
        plan=plan,
        router=router,
        compute=compute,
        outcome=outcome,
        performer=performer,
        jobs=jobs,
        ends_run=True,
        on_job_failed=on_job_failed,
    )


@contextlib.contextmanager
def _followed(
    conf: Conf, plan: Plan, name: str, tracker: StateTracker, pool: WorkerPool, followers: RunObservers
) -> Iterator[None]:
    """Report this process's part of a run to ``followers``, and its statistics to the master if the Conf collects them.

    This context is the outermost one: the workers have stopped when the followers are told of the end.
    """
    follow = followers.phases if followers.follow_phases() else None
    if conf.collect_training_stats or follow is not None:
        pool.send_stats(name, to_all(follow, sending(tracker) if conf.collect_training_stats else None))
    try:
        followers.begin(ObservedRun(conf, plan, name, tracker, is_master=False))
        yield
    finally:
        followers.end()


def _job_failed(journal: Journal, followers: RunObservers, event: Perform, failure: Failure) -> None:
    """Report a failed job to the journal and the followers; called on the worker's thread."""
    journal.job_failed(event, failure)
    followers.job_failed(event.plan[:2], failure)


def _serve(outcome: Outcome, master: _MasterWatch, drain: _Drain) -> Head | None:
    """Wait for the end of the run and return its head; None if there is nothing more to do for the run."""
    while True:
        end = outcome.wait(0.2)
        if end is not None:
            return end[0]
        if drain.is_over():
            master.left = "drained"
            return None
        if not master.look():
            return None


class _Drain:
    """Checks whether this process was asked to leave, and lets its workers finish their jobs first.

    Args:
        tracker: the run's.
        pool: the workers.
        process: the name of this process.
        stuck_seconds: longest time without progress of a job; then the job is left to others.
    """

    def __init__(self, tracker: StateTracker, pool: WorkerPool, process: str, stuck_seconds: float) -> None:
        self._tracker, self._pool, self._process, self._stuck_seconds = tracker, pool, process, stuck_seconds
        self._looked, self._is_asked = tracker.clock.now(), False
        self._progress, self._since = -1, 0.0

    def is_over(self) -> bool:
        """Return whether this process may leave: it was asked to, and its workers have finished."""
        now = self._tracker.clock.now()
        if not self._is_asked:
            if now - self._looked < _LOOK_SECONDS:
                return False
            self._looked = now
            self._is_asked = self._tracker.get(f"{DRAIN}/{self._process}") is True
            if not self._is_asked:
                return False
            logger.info("this process was asked to leave; it finishes its jobs first")
            self._pool.finish()
        progress = self._pool.progress()
        if progress != self._progress:
            self._progress, self._since = progress, now
        if now - self._since > self._stuck_seconds:
            logger.warning("a job has made no progress for %.0f s, and is left to others", now - self._since)
            return True
        return self._pool.has_finished()


class _MasterWatch:
    """Checks for the workers of a process whether the run still exists and has a master."""

    def __init__(
        self,
        conf: Conf,
        place: protocol.RunPlace,
        tracker: StateTracker,
        registered: ZookeeperConfigurationRetriever,
        election: MasterElection,
        link: LivenessClient,
    ) -> None:
        self._conf, self._place, self._tracker, self._registered = conf, place, tracker, registered
        self._election, self._link = election, link
        self._version = -1
        self.left = "replaced"
        """Why the worker left a run whose head is not final: "replaced", "over" or "drained"."""
        self._clock, self._waited = tracker.clock, tracker.waited_seconds()
        self._looked = self._head_seen = self._master_seen = self._clock.now()

    def look(self) -> bool:
        """Return whether to go on; checks about once a second; raises ``TrackerError`` if waiting is useless now."""
        if self._clock.now() - self._looked < _LOOK_SECONDS:
            return True
        conf = self._conf
        head = self._tracker.head()
        self._looked = now = self._clock.now()
        away, self._waited = self._tracker.waited_seconds() - self._waited, self._tracker.waited_seconds()
        # While the tracker did not answer, nothing could be observed: that time does not count.
        self._head_seen, self._master_seen = self._head_seen + away, self._master_seen + away
        if head is not None:
            self._head_seen = now
            self._note_version(head, now)
            if self._link.state == "alive":
                self._master_seen = now
        missing = now - self._head_seen
        try:
            registered = self._registered.find()
            if self._election.holder() is not None:
                self._master_seen = now
        except (TrackerError, *UNREADABLE) as exc:  # no answer, or a foreign record: rely on the tracker
            logger.debug("worker of run %s: %s", conf.run, exc)
            registered = conf
        if (head is None or registered is None) and drive(protocol.is_over(self._place, head)):
            self.left = "over"
            return False
        if registered is not None and registered != conf and self._is_replaced(registered):
            return False
        if missing > conf.worker_wait_seconds:
            raise TrackerError(
                f"run {conf.run} has not been in the tracker at {conf.state_tracker_connection_string} for "
                f"{missing:.0f} s; was the member restarted? `dl4j resume {conf.run}` goes on with the run"
            )
        if now - self._master_seen > conf.worker_wait_seconds:
            raise TrackerError(
                f"run {conf.run} has had no master for {conf.worker_wait_seconds:g} s; `dl4j resume {conf.run}` "
                "resumes it; then start workers again"
            )
        return True

    def _note_version(self, head: Head, now: float) -> None:
        """Count a newer head as a sign of life of the master, and warn of an older one, which a split grid may have."""
        if head.version > self._version:
            self._master_seen = now
        elif head.version < self._version:
            nothing = (
                "if the run goes on elsewhere, this worker's jobs count for nothing until the members are one again"
            )
            logger.warning(WENT_BACK, head.run, self._version, head.version, nothing)
        self._version = head.version

    def _is_replaced(self, registered: Conf) -> bool:
        """Return whether another run is registered, or this run with another Conf."""
        return registered.incarnation != self._conf.incarnation or self._tracker.get("conf") != self._conf.to_json()
