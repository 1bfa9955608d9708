"""Ending a run from outside, and asking a worker process to leave (layer 5)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from dl4jlegacy.cluster.address import ClusterAddress
from dl4jlegacy.cluster.register import ZookeeperRegister, place_of
from dl4jlegacy.cluster.registration import MasterRegistration
from dl4jlegacy.errors import TrackerError, UsageError
from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.links.liveness.failure_detector import process_of
from dl4jlegacy.scaleout.monitoring.monitor import GONE
from dl4jlegacy.scaleout.tracker import StateTracker, drive
from dl4jlegacy.scaleout.zookeeper import (
    MasterElection,
    ZooKeeperConfigurationRegister,
    ZooKeeperSession,
    prune_group,
    write_end,
)

__all__ = ["DRAIN", "drain_worker", "forget", "stop_run", "unregister"]

logger = logging.getLogger(__name__)

DRAIN = "drain"
"""Key prefix of drain requests: ``drain/<process>`` is True if that worker process was asked to leave."""


def stop_run(conf: Conf, address: ClusterAddress, tracker: StateTracker) -> str:
    """Stop a registered run: its master and workers leave, and what a dead master has left behind is removed.

    Returns the outcome in words. Blocks.

    Args:
        conf: the run's.
        address: where the run is registered.
        tracker: the run's; it stays open.

    Raises:
        TrackerError: the run has a master and has not begun; or a server does not answer.
    """
    head = tracker.finish("stopped")
    with address.session() as session:
        register = ZookeeperRegister(conf, address, session)
        place, leader = place_of(conf, address, tracker, register), register.holder()
        # A standby may be elected for a moment, and step back: it is no master until it has taken office.
        has_master = leader is not None and not (leader.is_standby and drive(protocol.office(place)) != leader.process)
        if head is not None and head.status == "stopped":  # its master may be away, and the grid may lose this
            drive(protocol.end_run(place, "stopped"))
    if not has_master:
        forget(conf, address, tracker)
    if head is not None:
        return f"run {conf.run}: {head.status} in round {head.round}"
    if has_master:
        raise TrackerError(f"run {conf.run} has not begun; there is nothing to stop")
    return f"run {conf.run}: had no master and had not begun; it is not registered any more"


def drain_worker(conf: Conf, address: ClusterAddress, tracker: StateTracker, worker: str) -> str:
    """Ask a worker's process to leave: its workers finish and commit their jobs, and lease no others.

    The run does not depend on this: a worker may leave at any time, and a lost request changes nothing.
    Returns the request in words. Blocks.

    Args:
        conf: the run's.
        address: where the run is registered.
        tracker: the run's; it stays open.
        worker: the name of the worker.

    Raises:
        UsageError: there is no such worker, it is gone, or it works in the master's process.
        TrackerError: a server does not answer.
    """
    records = {record.id: record for record in tracker.workers()}
    found, process = records.get(worker), process_of(worker)
    gone = tracker.get(GONE)
    if found is None or (isinstance(gone, dict) and process in gone):
        known = ", ".join(sorted(records)) or "none"
        raise UsageError(f"run {conf.run} has no worker {worker[:200]!r} that could leave; it has {known}")
    with address.session() as session:
        master = MasterElection(session, group=address.id).holder()
    if master is not None and master.get("process") == process:
        raise UsageError(
            f"worker {worker} works in the process of the master of run {conf.run}, which stays until the run ends; "
            "`dl4j stop` ends it"
        )
    tracker.define(f"{DRAIN}/{process}", True)
    return f"process {process} on {found.host} was asked to leave; it finishes its jobs first"


def forget(conf: Conf, address: ClusterAddress, tracker: StateTracker) -> None:
    """Remove what is left of a run without a master; raises ``TrackerError`` if the run has a master after all."""
    with (
        ZooKeeperSession(address.zookeeper, secret=address.secret) as session,
        _elected(session, address.id, conf.run) as election,
    ):
        MasterRegistration(conf, address, session, election, tracker).clear_up()


def unregister(conf: Conf, address: ClusterAddress) -> None:
    """Remove a run from Zookeeper whose grid is lost for good; the grid is not contacted.

    Raises:
        TrackerError: the run has a master or a standby, which may reach the grid; or Zookeeper does not answer.
        NotAuthorisedError: the run has another secret.
    """
    host, port = address.split()
    with (
        ZooKeeperSession(address.zookeeper, secret=address.secret) as session,
        _elected(session, address.id, conf.run) as election,
    ):
        write_end(session, conf.incarnation, "stopped", fence=election.fence or "")
        ZooKeeperConfigurationRegister(
            conf, address.id, host, port, session=session, fence=lambda: election.fence
        ).remove()
        prune_group(session, address.id)


@contextmanager
def _elected(session: ZooKeeperSession, id: str, run: str) -> Iterator[MasterElection]:
    """Hold the mastership of an id, so that no other process gets it meanwhile."""
    election = MasterElection(session, group=id, info={"run": run}).claim()
    try:
        yield election
    finally:
        election.resign()
