"""How a process becomes the master of a run on a cluster, leads the run, and leaves it.

The run may be new or taken over from another master. Each way is a context manager that yields a ``MasterRun``: a run
whose ``Conf`` is registered in Zookeeper, so that workers find it, and whose tracker and monitor are ready for a
``RunExecution``. At the end a finished run is cleared up, and any other run can be continued. All state that matters is
in the tracker, so a standby or a resumed master can continue a dead master's run in the same round.
Legacy: ``ZooKeeperConfigurationRegister``, ``ZookeeperConfigurationRetriever``, and the master's half of
``DeepLearning4jDistributed``, which nobody could take over.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from dl4jlegacy.cluster.address import ClusterAddress, check_versions, closing, open_tracker, versions
from dl4jlegacy.cluster.continuation import check_something_is_left, say_where_it_continues
from dl4jlegacy.cluster.grid_memory import check_grid_memory
from dl4jlegacy.cluster.mesh_membership import joined_mesh
from dl4jlegacy.cluster.registration import MasterRegistration
from dl4jlegacy.errors import ConfError, Dl4jError, NotAuthorisedError, StorageError, TrackerError, VersionError
from dl4jlegacy.scaleout import protocol, saved_run
from dl4jlegacy.scaleout.actors.worker_pool import process_name
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.hazelcast.store import HazelcastStateTracker, HazelcastStore
from dl4jlegacy.scaleout.identity import shared_code
from dl4jlegacy.scaleout.monitoring.monitor import ClusterMonitor
from dl4jlegacy.scaleout.monitoring.observers import RunObserver
from dl4jlegacy.scaleout.monitoring.outcome import RunStatus
from dl4jlegacy.scaleout.state.records import Head
from dl4jlegacy.scaleout.tracker import drive
from dl4jlegacy.scaleout.workers.device_choice import ARITHMETIC
from dl4jlegacy.scaleout.workers.plugins import find_router
from dl4jlegacy.scaleout.zookeeper import (
    MasterElection,
    ZookeeperConfigurationRetriever,
    ZooKeeperSession,
    registered_workers,
)
from dl4jlegacy.storage import paths as storage
from dl4jlegacy.system.clock import Deadline
from dl4jlegacy.training.run import Run, TrainingData, folder_of, resolve

__all__ = [
    "Candidate",
    "MasterOptions",
    "MasterRun",
    "check_may_take_over",
    "check_takes_over",
    "elect_new",
    "find_run",
    "leading",
    "resolve_registered",
    "resume_registered",
    "resume_saved",
    "standing",
]

logger = logging.getLogger(__name__)

Tick = Callable[[RunStatus], None]
_RESUMED = "by dl4j resume"
_OUT = "out"
"""The global that names the model file of the run."""
_EXPIRY_SECONDS = 2.0  # Zookeeper looks for expired sessions about this often


def _no_tick(status: RunStatus) -> None:
    """Show nothing."""


@dataclass(frozen=True, slots=True)
class MasterOptions:
    """What a master's process does beside leading the run.

    Attributes:
        out: the file to save the model to; "": none, or the file given to the run's first master.
        bind: the host on which to listen for the workers' heartbeats.
        tick: called with the run's status a few times a second.
        observers: follow the run without influencing it.
        changed_code: as for ``Run``; for a resumed run.

    Raises:
        ConfError: ``out`` is not a valid path.
    """

    out: str = ""
    bind: str = "127.0.0.1"
    tick: Tick = field(default=_no_tick)
    observers: Sequence[RunObserver] = ()
    changed_code: bool = False

    def __post_init__(self) -> None:
        storage.absolute(self.out)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate for the mastership of a run: the run's address, and its own session, election and process name."""

    address: ClusterAddress
    session: ZooKeeperSession
    election: MasterElection
    process: str


@contextlib.contextmanager
def standing(address: ClusterAddress, conf: Conf, *, standby: bool = False) -> Iterator[Candidate]:
    """Stand for election, as the only candidate or as a standby; resign at the end.

    Raises:
        TrackerError: Zookeeper cannot be reached; or another master holds the id, and this is no standby.
    """
    address.warn_unsigned(conf.run)
    with ZooKeeperSession(address.zookeeper, secret=address.secret, session_seconds=conf.session_seconds) as session:
        process = process_name()
        info = {"run": conf.run, "process": process, **({"standby": True} if standby else {})}
        election = MasterElection(session, group=address.id, info=info)
        if standby:
            election.start()
        else:
            election.claim()
        try:
            yield Candidate(address, session, election, process)
        finally:
            election.resign()


@dataclass(slots=True)
class MasterRun:
    """A run that this process leads; changed by one thread.

    Attributes:
        run, tracker, monitor: for a ``RunExecution``.
        tick: to be called with the run's status; passes the status and the news from the run's journal to
            ``MasterOptions.tick``.
        out: the file for the model; "": none.
        is_finished: whether the model needs no more work, so that the run may be cleared up at the end; set by the code
            that uses the model.
    """

    run: Run
    tracker: HazelcastStateTracker
    monitor: ClusterMonitor
    tick: Tick
    out: str = ""
    is_finished: bool = False


@contextlib.contextmanager
def elect_new(run: Run, address: ClusterAddress, options: MasterOptions) -> Iterator[MasterRun]:
    """Lead a new run as its master.

    Args:
        run: as ``training.prepare`` or ``run.resolve`` returned it with ``on_cluster``.
        address: where to register the run.
        options: of this process.

    Raises:
        TrackerError: Hazelcast or Zookeeper cannot be reached, or another master holds the id.
    """
    run = replace(run, conf=run.conf.replace(checkpoint_dir=storage.absolute(run.conf.checkpoint_dir)))
    address.access.check("the tracker", run.conf.state_tracker_connection_string)
    with (
        standing(address, run.conf) as candidate,
        closing(open_tracker(run.conf, address, takes_part=True)) as tracker,
        leading(run, candidate, tracker, options) as led,
    ):
        yield led


def check_may_take_over(conf: Conf, address: ClusterAddress) -> None:
    """Refuse to take over an unsigned run beyond loopback: its Conf names files that this process would open.

    Raises:
        NotAuthorisedError: the run is unsigned and beyond loopback.
    """
    address.access.check("the tracker", conf.state_tracker_connection_string)


@contextlib.contextmanager
def resume_registered(
    conf: Conf, data: TrainingData, address: ClusterAddress, options: MasterOptions, *, workers: int | None = None
) -> Iterator[MasterRun]:
    """Take over a registered run that has failed or lost its master.

    Args:
        conf: the run's, as it is registered.
        data: the run's training data.
        address: where the run is registered.
        options: of the new master.
        workers: worker threads in this process; None: none if other workers are registered, else as many as the Conf
            says.

    Raises:
        TrackerError: the run's master lives. CheckpointError: nothing is left of the run, in the tracker or elsewhere.
        VersionError: this process has other versions than the run's master, or its workers would round differently.
    """
    check_may_take_over(conf, address)
    with (
        standing(address, conf) as candidate,
        closing(open_tracker(conf, address, registered=True, takes_part=True)) as tracker,
    ):
        check_something_is_left(conf, tracker)
        check_takes_over(conf, tracker, changed_code=options.changed_code)
        say_where_it_continues(conf, tracker)
        if workers is None:
            workers = 0 if _has_workers(candidate, tracker) else conf.workers
        run = resolve_registered(conf, data, local_workers=workers)
        with leading(run, candidate, tracker, options, takes_over=_RESUMED) as led:
            yield led


@contextlib.contextmanager
def resume_saved(
    conf: Conf, data: TrainingData, address: ClusterAddress, options: MasterOptions, *, workers: int | None = None
) -> Iterator[MasterRun]:
    """Continue a run from its checkpoint folder; the grid and Zookeeper may have lost it.

    If the grid still has this very run, the grid's state is used: it is newer than the checkpoints.

    Args:
        conf: the Conf from the folder, with the grid to use.
        data: the run's training data.
        address: where to register the run.
        options: of the new master.
        workers: as for ``resume_registered``.

    Raises:
        TrackerError: the run has a master, or another run has the name or the id. CheckpointError: the folder is in
            use, or has no usable checkpoint.
    """
    check_may_take_over(conf, address)
    conf = conf.replace(incarnation=conf.incarnation or uuid.uuid4().hex[:16])  # older versions had none
    with contextlib.suppress(StorageError):  # the folder is read below, and written once that is possible
        saved_run.open_checkpoints(conf.checkpoint_dir).check_unused()
    with standing(address, conf) as candidate, closing(open_tracker(conf, address, takes_part=True)) as tracker:
        _check_not_led_elsewhere(conf, candidate, tracker)
        check_takes_over(conf, tracker, changed_code=options.changed_code)
        if workers is None:
            workers = 0 if _has_workers(candidate, tracker) else conf.workers
        run = resolve(conf, data, local_workers=workers, on_cluster=True, resume=True)
        say_where_it_continues(run.conf, tracker)
        with leading(run, candidate, tracker, options, takes_over=_RESUMED) as led:
            yield led


@contextlib.contextmanager
def leading(
    run: Run,
    candidate: Candidate,
    tracker: HazelcastStateTracker,
    options: MasterOptions,
    *,
    takes_over: str = "",
) -> Iterator[MasterRun]:
    """Register the Conf, share the plan, clear up at the end; ``takes_over``: how the run is taken over, "": new."""
    conf, address, run = run.conf, candidate.address, replace(run, changed_code=options.changed_code)
    check_grid_memory(run, tracker, takes_over=bool(takes_over))
    out = _place_of_model(conf, options.out, tracker) if takes_over else storage.absolute(options.out)
    registration = MasterRegistration(conf, address, candidate.session, candidate.election, tracker)
    if takes_over == _RESUMED:  # whatever has ended the run before
        registration.go_on_again()
    registration.claim_name(takes_over=bool(takes_over))
    monitor = ClusterMonitor(
        conf,
        tracker,
        source=candidate.process,
        definitions={**_definitions(run), _OUT: out},
        leadership=registration,
        takes_over=bool(takes_over),
        secret=address.secret,
        bind=options.bind,
        folder=saved_run.open_lines(conf),
    )
    display = _Display(options.tick, monitor)
    led = MasterRun(run, tracker, monitor, display.tick, out)
    try:
        mesh = joined_mesh(conf, address, candidate.session, monitor.source, workers=run.local_workers)
        with monitor, mesh as monitor.messages:
            registration.register(takes_over=bool(takes_over))
            how = {"takes_over": takes_over} if takes_over else {}
            monitor.journal.write("master_leads", id=address.id, run=conf.run, **how)
            # Last, so that waiting workers find the Conf with which the run goes on.
            if drive(protocol.reopen(tracker.store, run.plan, find_router(conf))):
                logger.warning("run %s had failed; it goes on where it was", conf.run)
            try:
                yield led
            finally:
                monitor.end()
    finally:
        display.finish()
        with contextlib.suppress(TrackerError):  # unreachable servers cannot be cleared up
            head = tracker.head()
            if _is_over(head, began=display.began or bool(takes_over), is_finished=led.is_finished):
                registration.clear_up(monitor.is_gone, gather=monitor.gather_stats)
            else:
                registration.take_back()
        if monitor.stats is not None:
            monitor.stats.close()


def _place_of_model(conf: Conf, own: str, tracker: HazelcastStateTracker) -> str:
    """Return the model file of a run that is taken over: the file given here, else that of the run's first master.

    If the first master's file cannot be written on this machine, a file in the current folder replaces it.
    """
    theirs = tracker.get(_OUT)
    if own or not isinstance(theirs, str) or not theirs:
        return storage.absolute(own)
    try:
        storage.open_model_output(theirs)
    except Dl4jError as exc:
        kept = storage.absolute(f"dl4j-model-{conf.incarnation[:8]}.zip")
        logger.warning("the model of run %s will go to %s: %s", conf.run, kept, exc)
        return kept
    return theirs


def resolve_registered(conf: Conf, data: TrainingData, *, local_workers: int) -> Run:
    """Resolve a registered run's Conf, for a process that takes it over; the Conf stays as the workers know it."""
    run = resolve(conf, data, local_workers=local_workers, on_cluster=True)
    conf = run.conf.replace(data_fingerprint=conf.data_fingerprint, incarnation=conf.incarnation)
    return replace(run, conf=conf, resumes=bool(conf.checkpoint_dir))


def _check_not_led_elsewhere(conf: Conf, candidate: Candidate, tracker: HazelcastStateTracker) -> None:
    """Raise ``TrackerError`` if the run has a master under another id in the same grid and Zookeeper."""
    assert isinstance(tracker.store, HazelcastStore)
    names = tracker.store.sibling(protocol.NAMES)
    record = drive(protocol.listing(names, conf.run, conf.incarnation))
    here = candidate.address
    if record is None or record.zookeeper != here.zookeeper or record.id == here.id:
        return
    master = MasterElection(candidate.session, group=record.id).holder()
    if master is not None and master.get("run") == conf.run:
        raise TrackerError(
            f"run {conf.run} has a master already, on {master.get('host')}, pid {master.get('pid')}, with the id "
            f"{record.id} in Zookeeper at {record.zookeeper}; it goes on by itself"
        )


def _has_workers(candidate: Candidate, tracker: HazelcastStateTracker) -> bool:
    """Return whether a registered worker is alive: a killed worker stays registered until its session expires."""
    session, address = candidate.session, candidate.address
    beats, deadline = tracker.heart_beats(), Deadline(session.session_seconds + _EXPIRY_SECONDS)
    while registered_workers(session, address.id):
        if any(beat != beats.get(worker) for worker, beat in tracker.heart_beats().items()):
            return True
        if deadline.passed():
            return True
        time.sleep(0.1)
    return False


def find_run(address: ClusterAddress, name: str, *, id_given: bool) -> tuple[ClusterAddress, Conf]:
    """Return the address and the Conf of the registered run with the name or id ``name``.

    Args:
        address: where to look; its id counts only with ``id_given``.
        name: the name or id to look for.
        id_given: whether the run must have the id of the address.

    Raises:
        TrackerError: there is no such run; the message lists the registered ones.
    """
    host, port = address.split()
    with ZooKeeperSession(address.zookeeper, secret=address.secret) as session:
        ids = ZookeeperConfigurationRetriever(host, port, address.id, session=session).ids()
        found: dict[str, Conf] = {}
        for id in [address.id] if id_given else sorted(ids, key=lambda id: id != name):
            try:
                conf = ZookeeperConfigurationRetriever(host, port, id, session=session).find()
            except (NotAuthorisedError, ConfError, VersionError):
                if id_given or id == name:
                    raise
                continue  # it has another secret, and was not asked for
            if conf is not None and name in (id, conf.run):
                return replace(address, id=id), conf
            if conf is not None:
                found[id] = conf
    there = ", ".join(f"{conf.run} (id {id})" for id, conf in found.items()) or "none"
    raise TrackerError(
        f"there is no run {name} registered in Zookeeper at {address.zookeeper}, and no folder of checkpoints of this "
        f"name; registered are: {there}"
    )


def check_takes_over(conf: Conf, tracker: HazelcastStateTracker, *, changed_code: bool = False) -> None:
    """Raise ``VersionError`` if this process has other versions or other code than the run's master had."""
    theirs, ours = tracker.get("versions"), versions(conf.kernels) | ({} if changed_code else shared_code(conf))
    if isinstance(theirs, dict):
        check_versions(theirs, ours, f"this process cannot take run {conf.run} over")


def _definitions(run: Run) -> dict[str, Any]:
    """Return the globals of the run that its workers need."""
    plan = msgspec.to_builtins(run.plan)
    in_common = versions(run.conf.kernels) | shared_code(run.conf)
    defined = {"conf": run.conf.to_json(), "versions": in_common, "plan": plan}
    made_with = folder_of(run.conf, resumes=True).made_with() if run.resumes else {}
    return {**defined, ARITHMETIC: made_with} if made_with else defined  # before any worker decides on it


class _Display:
    """Passes on the run's status with the news from its journal, until the very end."""

    def __init__(self, tick: Tick, monitor: ClusterMonitor) -> None:
        self._tick, self._monitor = tick, monitor
        self._last: RunStatus | None = None
        self.began = False

    def tick(self, status: RunStatus) -> None:
        self.began = self.began or status.head is not None
        self._last = status
        self._tick(replace(status, news=self._monitor.news()))

    def finish(self) -> None:
        if self._last is not None:
            self.tick(self._last)


def _is_over(head: Head | None, *, began: bool, is_finished: bool) -> bool:
    """Return whether a run is to be cleared up; a run that can go on is kept for its continuation.

    Args:
        head: the run's last head.
        began: whether the run has had a head before.
        is_finished: whether the model is evaluated and saved; if not, the process that takes over does that.
    """
    if head is None:
        return not began
    return head.status == "stopped" or (head.status == "done" and is_finished)
