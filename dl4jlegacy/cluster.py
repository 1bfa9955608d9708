"""A run spread over processes and machines: a master, standby masters, workers; who finds whom, and how it ends.

The master puts the ``Conf`` into Zookeeper, and the plan into the run's tracker; a worker needs nothing but
Zookeeper's address. Everything that matters is in the tracker, so a master that dies is replaced by a standby, or by
``dl4j resume``, and goes on in the round where it was.

Legacy: ``ActorNetworkRunnerApp``, ``ZooKeeperConfigurationRegister``, ``ZookeeperConfigurationRetriever``.
"""

from __future__ import annotations

import contextlib
import logging
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from threadpoolctl import threadpool_limits

from dl4jlegacy import launch, wire
from dl4jlegacy.errors import TrackerError, UsageError, VersionError
from dl4jlegacy.kernels import load as load_kernels
from dl4jlegacy.runner import RunStatus
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.hazelcast_store import HazelcastStateTracker, HazelcastStore
from dl4jlegacy.scaleout.outcome import Outcome, failure_of
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.records import Head
from dl4jlegacy.scaleout.router import create_router
from dl4jlegacy.scaleout.ticker import Ticker
from dl4jlegacy.scaleout.tracker import StateTracker
from dl4jlegacy.scaleout.zookeeper import (
    MasterElection,
    WorkerRegistration,
    ZooKeeperConfigurationRegister,
    ZookeeperConfigurationRetriever,
    ZooKeeperSession,
)
from dl4jlegacy.version import __version__
from dl4jlegacy.worker_pool import WorkerPool, network_performer, process_name

__all__ = ["ClusterAddress", "find_conf", "open_tracker", "run_master", "run_worker", "stand_by", "versions"]

logger = logging.getLogger(__name__)

MASTER = "master"
_FAREWELL_SECONDS = 5.0
_MISSING_SECONDS = 30.0
_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """Where a cluster's Zookeeper is, and the run's secret (None: none)."""

    zookeeper: str
    secret: bytes | None = None

    def split(self) -> tuple[str, int]:
        """Return host and port of the (first) server; raises ``UsageError``."""
        host, _, port = self.zookeeper.split(",")[0].rpartition(":")
        if not host or not port.isdigit():
            raise UsageError(f"--zookeeper {self.zookeeper}: give it as host:port")
        return host, int(port)


def versions(kernels: str) -> dict[str, str]:
    """Return what all processes of one run must have in common; others round or write differently."""
    return {
        "dl4jlegacy": __version__,
        "wire": str(wire.VERSION),
        "python": ".".join(platform.python_version_tuple()[:2]),
        "numpy": ".".join(np.__version__.split(".")[:2]),
        "kernels": kernels,
    }


def open_tracker(conf: Conf, secret: bytes | None) -> HazelcastStateTracker:
    """Return the tracker that a Conf names; raises ``TrackerError`` if it cannot be reached."""
    return HazelcastStateTracker(
        conf.state_tracker_connection_string, cluster_name=conf.cluster_name or "dev", run=conf.run, secret=secret
    )


def find_conf(address: ClusterAddress, *, wait_seconds: float = 0.0) -> Conf:
    """Return the Conf that a master has registered; raises ``TrackerError`` if there is none in time."""
    host, port = address.split()
    with ZookeeperConfigurationRetriever(host, port, MASTER, secret=address.secret) as retriever:
        return retriever.retrieve(wait_seconds=wait_seconds)


# --- master ----------------------------------------------------------------------------------------------------------


def run_master(
    conf: Conf,
    data: launch.Data,
    address: ClusterAddress,
    *,
    local_workers: int = 0,
    resume: bool = False,
    out: str = "",
    tick: Callable[[RunStatus], None] | None = None,
) -> launch.Report:
    """Be the run's master to its end; return the report. Data travel with the jobs.

    Raises:
        TrackerError: Hazelcast or Zookeeper cannot be reached, or another master holds the id.
    """
    with ZooKeeperSession(address.zookeeper, secret=address.secret) as session:
        election = MasterElection(session, group=MASTER, info={"run": conf.run}).claim()
        try:
            return _lead(conf, data, address, session, local_workers, resume, out, tick)
        finally:
            election.resign()


def stand_by(
    address: ClusterAddress, *, out: str = "", tick: Callable[[RunStatus], None] | None = None
) -> launch.Report | None:
    """Wait behind the present master, and finish its run if it dies; None if the run ended without that."""
    conf = find_conf(address, wait_seconds=60.0)
    data = launch.load_data(conf.dataset, conf.data_dir)
    with ZooKeeperSession(address.zookeeper, secret=address.secret) as session:
        with _closing(open_tracker(conf, address.secret)) as tracker:
            election = MasterElection(session, group=MASTER, info={"run": conf.run, "standby": True}).start()
            try:
                while not election.wait(0.5):
                    head = tracker.head()
                    if head is not None and head.status != "running":
                        return None
                head = tracker.head()
                if head is None or head.status != "running":
                    return None
            except BaseException:
                election.resign()
                raise
        try:
            logger.warning("the master of run %s is gone; this standby takes over in round %s", conf.run, head.round)
            return _lead(conf, data, address, session, 0, True, out, tick)
        finally:
            election.resign()


def _lead(
    conf: Conf,
    data: launch.Data,
    address: ClusterAddress,
    session: ZooKeeperSession,
    local_workers: int,
    resume: bool,
    out: str,
    tick: Callable[[RunStatus], None] | None,
) -> launch.Report:
    """Register the Conf, share the plan, train, and clear up."""
    conf = conf.replace(kernels=load_kernels(conf.kernels or None).name, data_by_reference=False)
    conf = conf.replace(jobs_per_round=conf.jobs_per_round or conf.workers, run=conf.run or process_name())
    host, port = address.split()
    with _closing(open_tracker(conf, address.secret)) as tracker:
        tracker.define("conf", conf.to_json())
        tracker.define("versions", versions(conf.kernels))
        tracker.define("plan", msgspec.to_builtins(launch.plan_of(conf, data)))
        register = ZooKeeperConfigurationRegister(conf, MASTER, host, port, session=session)
        register.register()
        try:
            return launch.train(
                conf,
                data,
                resume=resume and bool(conf.checkpoint_dir),
                out=out,
                tick=tick,
                tracker=tracker,
                local_workers=local_workers,
            )
        finally:
            head = tracker.head()
            if head is not None and head.status != "running":  # over, in whatever way; else somebody may go on with it
                register.remove()
                _clear_up(tracker)


def _clear_up(tracker: HazelcastStateTracker) -> None:
    """Let the workers see the end, then delete what the run has in the grid."""
    end = time.monotonic() + _FAREWELL_SECONDS
    while tracker.num_workers() and time.monotonic() < end:
        time.sleep(0.05)
    store = tracker.store
    if isinstance(store, HazelcastStore):
        store.destroy()


# --- worker ----------------------------------------------------------------------------------------------------------


def run_worker(
    address: ClusterAddress,
    *,
    workers: int = 1,
    wait_seconds: float = 60.0,
    on_event: Callable[[str, dict[str, Any]], None] = lambda name, fields: None,
) -> Head:
    """Work for the run that is registered, with ``workers`` threads, until it ends; return its last head.

    A worker that came to a run whose master is gone goes over to the run of the next master that registers.

    Raises:
        TrackerError: nothing to be reached, or no run registered in time. VersionError: this process does not match.
        NotAuthorisedError: the secret is another one. TrainingError: the run failed.
    """
    head = None
    with ZooKeeperSession(address.zookeeper, secret=address.secret) as session:
        while head is None:
            host, port = address.split()
            registered = ZookeeperConfigurationRetriever(host, port, MASTER, session=session)
            head = _work(
                registered.retrieve(wait_seconds=wait_seconds), address, session, registered, workers, on_event
            )
    if head.status == "failed":
        raise failure_of(head)
    return head


def _work(
    conf: Conf,
    address: ClusterAddress,
    session: ZooKeeperSession,
    registered: ZookeeperConfigurationRetriever,
    workers: int,
    on_event: Callable[[str, dict[str, Any]], None],
) -> Head | None:
    """Work for one run; return its last head, or None when another run has taken its place."""
    kernels = load_kernels(conf.kernels)
    with _closing(open_tracker(conf, address.secret)) as tracker:
        _check_versions(tracker, conf, versions(kernels.name))
        plan = msgspec.convert(_defined(tracker, "plan", conf), Plan)
        outcome, name = Outcome(tracker.clock), process_name()
        pool = WorkerPool(
            *(conf, plan, tracker, create_router(conf.router, conf.window), kernels, outcome, network_performer),
            jobs=None,
            ends_run=True,
        )
        on_event("joined", {"run": conf.run, "worker": name, "threads": workers})
        with (
            WorkerRegistration(session, name, {"run": conf.run, "threads": workers}, group=MASTER),
            threadpool_limits(limits=1, user_api="blas"),
        ):
            ticker = Ticker(pool.start(name, workers))
            ticker.start()
            try:
                head = _serve(outcome, conf, tracker, registered)
            finally:
                ticker.stop()
                pool.stop(30.0)
        on_event("left", {"run": conf.run, "worker": name, "status": "replaced" if head is None else head.status})
        return head


def _serve(
    outcome: Outcome, conf: Conf, tracker: StateTracker, registered: ZookeeperConfigurationRetriever
) -> Head | None:
    """Wait for the end of the run; None when it has given way to another, or is not in the tracker any more."""
    seen = looked = time.monotonic()
    while True:
        end = outcome.wait(0.2)
        if end is not None:
            return end[0]
        now = time.monotonic()
        if tracker.head() is not None:
            seen = now
        elif now - seen > _MISSING_SECONDS:
            raise TrackerError(
                f"run {conf.run} has not been in the tracker at {conf.state_tracker_connection_string} for "
                f"{_MISSING_SECONDS:.0f} s; has it ended, or did its master not begin?"
            )
        if now - looked > _LOOK_SECONDS:
            looked = now
            with contextlib.suppress(TrackerError):  # no Conf, or no answer, just now: the tracker says how it stands
                if registered.retrieve().run != conf.run:
                    return None


def _defined(tracker: StateTracker, key: str, conf: Conf) -> Any:
    """Return a global of the run, which its master defines before it registers."""
    value = tracker.get(key)
    if value is None:
        raise TrackerError(
            f"run {conf.run} has no {key} in the tracker at {conf.state_tracker_connection_string}: it has ended, or "
            "the member was started anew; start its master again"
        )
    return value


def _check_versions(tracker: StateTracker, conf: Conf, ours: dict[str, str]) -> None:
    theirs = _defined(tracker, "versions", conf)
    different = [
        f"{name} {theirs.get(name)} there, {own} here" for name, own in ours.items() if theirs.get(name) != own
    ]
    if different:
        raise VersionError(
            f"this worker cannot join run {conf.run}: {'; '.join(different)}; install what the master has"
        )


@contextmanager
def _closing(tracker: HazelcastStateTracker) -> Iterator[HazelcastStateTracker]:
    """Shut the tracker down at the end, whatever happens."""
    try:
        yield tracker
    finally:
        tracker.shutdown()
