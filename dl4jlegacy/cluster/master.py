"""A run spread over processes and machines: its master, and those who take over from it (layer 5).

The master puts the ``Conf`` into Zookeeper, and the plan into the run's tracker; a worker needs nothing but
Zookeeper's address (``cluster.worker``). Everything that matters is in the tracker, so a master that dies is replaced
by a standby, or by ``dl4j resume``, and goes on in the round where it was.

Legacy: ``ActorNetworkRunnerApp``, ``ZooKeeperConfigurationRegister``, ``ZookeeperConfigurationRetriever``.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from dl4jlegacy import training
from dl4jlegacy.cluster.address import ClusterAddress, closing, find_conf, open_tracker, versions
from dl4jlegacy.cluster.registration import Office, destroy
from dl4jlegacy.cluster.worker import run_worker
from dl4jlegacy.errors import CheckpointError, ConfError, NotAuthorisedError, TrackerError, VersionError
from dl4jlegacy.scaleout.checkpoint import CheckpointStore
from dl4jlegacy.scaleout.compute import host_kernels, resolve_compute
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.hazelcast.store import HazelcastStateTracker
from dl4jlegacy.scaleout.monitor import ClusterMonitor
from dl4jlegacy.scaleout.outcome import RunStatus
from dl4jlegacy.scaleout.worker_pool import process_name
from dl4jlegacy.scaleout.zookeeper import (
    MasterElection,
    ZookeeperConfigurationRetriever,
    ZooKeeperSession,
    registered_workers,
)

__all__ = [
    "ClusterAddress",
    "Lead",
    "find_conf",
    "find_run",
    "forget",
    "open_tracker",
    "resume_run",
    "run_master",
    "run_worker",
    "stand_by",
    "versions",
]

logger = logging.getLogger(__name__)

Tick = Callable[[RunStatus], None]
_EXPIRY_SECONDS = 2.0  # Zookeeper looks for sessions that have ended about so often


def _no_tick(status: RunStatus) -> None:
    """Show nothing."""


@dataclass(frozen=True, slots=True)
class Lead:
    """How a master leads: workers of its own, the model's file, where it listens, who is told how the run stands."""

    local_workers: int = 0
    out: str = ""
    bind: str = "127.0.0.1"
    tick: Tick = field(default=_no_tick)


def run_master(conf: Conf, data: training.Data, address: ClusterAddress, lead: Lead) -> training.Report:
    """Be the master of a new run to its end; return the report. Data travel with the jobs.

    Raises:
        TrackerError: Hazelcast or Zookeeper cannot be reached, or another master holds the id.
        NotEnoughWorkersError: too few workers for too long; the run can be resumed.
    """
    with ZooKeeperSession(address.zookeeper, secret=address.secret) as session:
        election = MasterElection(session, group=address.id, info={"run": conf.run}).claim()
        try:
            return _lead(conf, data, address, session, election, lead, takes_over="")
        finally:
            election.resign()


def stand_by(address: ClusterAddress, lead: Lead) -> training.Report | None:
    """Wait behind the present master, and finish its run if it dies; None if the run ended without that."""
    conf = find_conf(address, wait_seconds=60.0)
    data = training.load_data(conf.dataset, conf.data_dir)
    training.with_data(conf, data)  # with other data it could take nothing over
    host_kernels(conf.kernels)  # takes a second, which is better spent now than when the master is gone
    with ZooKeeperSession(address.zookeeper, secret=address.secret) as session:
        election = MasterElection(session, group=address.id, info={"run": conf.run, "standby": True}).start()
        try:
            with closing(open_tracker(conf, address.secret)) as tracker:
                if not _outlives_master(conf, address, session, election, tracker):
                    return None
                head = tracker.head()
                where = "before its first round" if head is None else f"in round {head.round}"
                logger.warning("the master of run %s is gone; this standby takes over %s", conf.run, where)
                return _lead(conf, data, address, session, election, lead, takes_over="standby", tracker=tracker)
        finally:
            election.resign()


def _outlives_master(
    conf: Conf,
    address: ClusterAddress,
    session: ZooKeeperSession,
    election: MasterElection,
    tracker: HazelcastStateTracker,
) -> bool:
    """Wait until this candidate leads, or the run is over; return whether there is something to be done."""
    host, port = address.split()
    registered = ZookeeperConfigurationRetriever(host, port, address.id, session=session)
    while not election.wait(0.5):
        head = tracker.head()
        if head is not None and head.status != "running":
            return False
    head = tracker.head()
    if head is None:  # over and cleared up, or lost with its member, or not begun
        return registered.find() == conf
    return head.status == "running"


def resume_run(conf: Conf, address: ClusterAddress, lead: Lead, *, workers: int | None = None) -> training.Report:
    """Take over a registered run whose master is gone, and finish it; return what its master would have.

    Args:
        conf: the run's, as it is registered.
        address: where.
        lead: how; its ``local_workers`` do not count.
        workers: in this process; None: none if others are registered, else as many as the Conf says.

    Raises:
        TrackerError: its master lives. CheckpointError: nothing is left of the run, in the tracker or elsewhere.
    """
    data = training.load_data(conf.dataset, conf.data_dir)
    with ZooKeeperSession(address.zookeeper, secret=address.secret) as session:
        election = MasterElection(session, group=address.id, info={"run": conf.run}).claim()
        try:
            with closing(open_tracker(conf, address.secret)) as tracker:
                _check_something_is_left(conf, tracker)
                if workers is None:
                    workers = 0 if _has_workers(session, address, tracker) else conf.workers
            lead = replace(lead, local_workers=workers)
            return _lead(conf, data, address, session, election, lead, takes_over="resume")
        finally:
            election.resign()


def _has_workers(session: ZooKeeperSession, address: ClusterAddress, tracker: HazelcastStateTracker) -> bool:
    """Whether a registered worker lives: one that was killed a moment ago is registered until its session ends."""
    beats, until = tracker.heart_beats(), time.monotonic() + session.session_seconds + _EXPIRY_SECONDS
    while registered_workers(session, address.id):
        if any(beat != beats.get(worker) for worker, beat in tracker.heart_beats().items()):
            return True
        if time.monotonic() > until:
            return True
        time.sleep(0.1)
    return False


def find_run(address: ClusterAddress, name: str, *, id_given: bool) -> tuple[ClusterAddress, Conf]:
    """Return where the run called ``name`` (its name, or its id) is registered, and its Conf.

    Args:
        address: where to look; its id counts only with ``id_given``.
        name: what to look for.
        id_given: whether the run must be the one with the address's id.

    Raises:
        TrackerError: there is no such run; the message says which there are.
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
                continue  # not ours to read, and nobody asked for it
            if conf is not None and name in (id, conf.run):
                return replace(address, id=id), conf
            if conf is not None:
                found[id] = conf
    there = ", ".join(f"{conf.run} (id {id})" for id, conf in found.items()) or "none"
    raise TrackerError(
        f"there is no run {name} registered in Zookeeper at {address.zookeeper}, and no folder of checkpoints of this "
        f"name; registered are: {there}"
    )


def forget(conf: Conf, address: ClusterAddress, tracker: HazelcastStateTracker) -> None:
    """Clear up after a run that has no master to do so."""
    with ZooKeeperSession(address.zookeeper, secret=address.secret) as session:
        Office(conf, address, session).clear_up(tracker)


def _check_something_is_left(conf: Conf, tracker: HazelcastStateTracker) -> None:
    """Raise ``CheckpointError`` if there is nothing to go on from."""
    if tracker.head() is None and not (conf.checkpoint_dir and CheckpointStore(conf.checkpoint_dir).versions()):
        kept = f"and none of its checkpoints in {conf.checkpoint_dir}" if conf.checkpoint_dir else "and it kept none"
        raise CheckpointError(
            f"run {conf.run} cannot go on: the tracker at {conf.state_tracker_connection_string} has nothing of it "
            f"any more, {kept}; start its master again (dl4j master)"
        )


def _check_is_new(conf: Conf, tracker: HazelcastStateTracker) -> None:
    """Raise ``TrackerError`` if the tracker has a run of this name that is not over; remove the rest of one that is."""
    head = tracker.head()
    if head is not None and head.status == "running":
        raise TrackerError(
            f"the tracker at {conf.state_tracker_connection_string} has a run {conf.run} already, in round "
            f"{head.round}; `dl4j resume {conf.run}` goes on with it, or give this one another name with --run"
        )
    destroy(tracker)


def _lead(
    conf: Conf,
    data: training.Data,
    address: ClusterAddress,
    session: ZooKeeperSession,
    election: MasterElection,
    lead: Lead,
    *,
    takes_over: str,
    tracker: HazelcastStateTracker | None = None,
) -> training.Report:
    """Register the Conf, share the plan, train, and clear up.

    ``takes_over`` says who did, "" for a new run; ``tracker`` is the run's, if it is open already: it stays open.
    """
    conf = _settled(conf, data, lead, is_registered=bool(takes_over))
    office = Office(conf, address, session, election)
    with closing(open_tracker(conf, address.secret)) if tracker is None else nullcontext(tracker) as tracker:
        if not takes_over:
            _check_is_new(conf, tracker)
        monitor = ClusterMonitor(
            conf,
            tracker,
            source=process_name(),
            definitions=_definitions(conf, data),
            leadership=office,
            takes_over=bool(takes_over),
            secret=address.secret,
            bind=lead.bind,
        )
        shown = _Shown(lead.tick, monitor)
        try:
            with monitor:
                office.register()
                monitor.journal.write("master_leads", id=address.id, run=conf.run, takes_over=takes_over or "nobody")
                try:
                    return training.train(
                        conf,
                        data,
                        resume=bool(takes_over and conf.checkpoint_dir),
                        out=lead.out,
                        tick=shown.tick,
                        tracker=tracker,
                        local_workers=lead.local_workers,
                        monitor=monitor,
                    )
                finally:
                    monitor.end()
        finally:
            shown.finish()
            with contextlib.suppress(TrackerError):  # what cannot be reached cannot be cleared up
                _end(tracker, office, monitor, began=shown.began or bool(takes_over))


def _settled(conf: Conf, data: training.Data, lead: Lead, *, is_registered: bool) -> Conf:
    """Return the Conf with everything that its workers must know; raises as ``resolve_compute``."""
    checked = training.with_data(conf, data)
    conf = conf if is_registered else checked  # a run that is registered keeps the Conf that its workers have
    conf = resolve_compute(conf, local=lead.local_workers > 0)[0].replace(data_by_reference=False)
    return conf.replace(jobs_per_round=conf.jobs_per_round or conf.workers, run=conf.run or process_name())


def _definitions(conf: Conf, data: training.Data) -> dict[str, Any]:
    """The run's globals, which workers need."""
    plan = msgspec.to_builtins(training.plan_of(conf, data))
    return {"conf": conf.to_json(), "versions": versions(conf.kernels), "plan": plan}


class _Shown:
    """What the caller is shown of the run: its status, with the news of the journal, to the very end."""

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


def _end(tracker: HazelcastStateTracker, office: Office, monitor: ClusterMonitor, *, began: bool) -> None:
    """Clear up after a run that is over, or never began; one that is under way is left for somebody to go on with."""
    head = tracker.head()
    if (head is None and not began) or (head is not None and head.status != "running"):
        office.clear_up(tracker, monitor.is_gone)
