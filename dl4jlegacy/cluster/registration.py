"""The registration of a run: its name in the grid, its Conf in Zookeeper, whether this process still leads it.

All that is changed for a run is changed only as long as it is this incarnation's: a process that was frozen and wakes
up during the next run of the same name or id finds nothing of it to change.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

from dl4jlegacy.clock import Deadline
from dl4jlegacy.cluster.address import ClusterAddress
from dl4jlegacy.errors import ConfError, NotAuthorisedError, TrackerError, UsageError, VersionError
from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.hazelcast.store import HazelcastStore
from dl4jlegacy.scaleout.liveness.failure_detector import process_of
from dl4jlegacy.scaleout.monitor import GONE
from dl4jlegacy.scaleout.tracker import StateTracker, drive
from dl4jlegacy.scaleout.zookeeper import (
    MasterElection,
    ZooKeeperConfigurationRegister,
    ZookeeperConfigurationRetriever,
    ZooKeeperSession,
    is_deserted,
    prune_group,
)

__all__ = ["DRAIN", "MasterRegistration", "RunName", "drain_worker", "forget", "stop_run", "take_back", "unregister"]

logger = logging.getLogger(__name__)

DRAIN = "drain"
"""Global under which somebody asks a process of workers to leave, ``drain/<process>``: True."""
_FAREWELL_SECONDS, _LOOK_SECONDS = 5.0, 0.05


class RunName:
    """The records in the grid that say which incarnation has a run's name, and that this one is in the grid.

    Args:
        conf: the run's, with all defaults resolved.
        address: where it is registered.
        session: with that Zookeeper.
        tracker: the run's.
    """

    def __init__(self, conf: Conf, address: ClusterAddress, session: ZooKeeperSession, tracker: StateTracker) -> None:
        assert isinstance(tracker.store, HazelcastStore)
        self._conf, self._address, self._session, self._tracker = conf, address, session, tracker
        self._store = tracker.store
        self._names = tracker.store.sibling(protocol.NAMES)
        self._record = protocol.RunRecord(
            incarnation=conf.incarnation,
            conf_digest=conf.digest(),
            id=address.id,
            zookeeper=address.zookeeper,
            host=socket.gethostname(),
            pid=os.getpid(),
            began=time.time(),
        )

    def claim(self) -> None:
        """Take the name for a new run, and remove what is left of one that had it and is over.

        Raises:
            TrackerError: a run that has the name is not over.
            NotAuthorisedError: a run with another secret has the name.
        """
        run, place = self._conf.run, self._conf.state_tracker_connection_string
        over: list[protocol.RunRecord] = []

        def is_over(record: protocol.RunRecord) -> protocol.Steps[bool]:
            needs_no_name = yield from self._is_over(record)
            over.extend([record] if needs_no_name else [])
            return needs_no_name

        owner = drive(protocol.claim_name(self._names, run, self._record, is_over))
        if owner == self._record:
            drive(protocol.list_run(self._names, run, self._record))
            for incarnation in sorted({record.incarnation for record in over} | self._half_cleared_up()):
                self._store.sibling(run, incarnation).destroy()
                drive(protocol.unlist_run(self._names, run, incarnation))
            return
        head = self._tracker_of(owner).head()
        if head is not None:
            raise TrackerError(
                f"the tracker at {place} has a run {run} already, in round {head.round}; `dl4j resume {run}` goes on "
                "with it, or give this one another name with --run"
            )
        raise TrackerError(
            f"a run {run} has just been begun on {owner.host}, pid {owner.pid}, with the id {owner.id} in Zookeeper at "
            f"{owner.zookeeper}; give this one another name with --run"
        )

    def _half_cleared_up(self) -> set[str]:
        """Return the incarnations of runs whose masters gave up this name and died before they had removed the rest."""
        listed = {each for _, each in protocol.listed_runs(self._names.keys(f"{self._conf.run}/"))}
        found = set()
        for incarnation in listed - {self._record.incarnation}:
            with suppress(NotAuthorisedError):
                record = drive(protocol.listing(self._names, self._conf.run, incarnation))
                if record is not None and drive(self._is_over(record)):
                    found.add(incarnation)
        return found

    def keep(self) -> bool:
        """Put the records back if they are lost, or not of this run's writing; return whether the name is ours."""
        drive(protocol.list_run(self._names, self._conf.run, self._record))
        try:
            return drive(protocol.keep_name(self._names, self._conf.run, self._record, self._is_over))
        except NotAuthorisedError:
            drive(protocol.restore_name(self._names, self._conf.run, self._record))
            return True

    def release(self) -> None:
        """Give up the name, unless it is another incarnation's."""
        drive(protocol.release_name(self._names, self._conf.run, self._conf.incarnation))

    def unlist(self) -> None:
        """Note that the run has nothing in the grid any more."""
        drive(protocol.unlist_run(self._names, self._conf.run, self._conf.incarnation))

    def _is_over(self, record: protocol.RunRecord) -> protocol.Steps[bool]:
        """Return whether the run of a record needs its name no longer, or never began and has nobody to begin it.

        One that is done needs it as long as it is registered: its model may still have to be written.
        """
        yield protocol.STEP
        head = self._tracker_of(record).head()
        if head is None:
            return not self._has_master(record)
        return head.status in ("failed", "stopped") or (head.status == "done" and not self._is_registered(record))

    def _tracker_of(self, record: protocol.RunRecord) -> StateTracker:
        return StateTracker(self._store.sibling(self._conf.run, record.incarnation), self._tracker.clock)

    def _is_registered(self, record: protocol.RunRecord) -> bool:
        """Return whether the Conf of a record's run is in Zookeeper; True if it is another Zookeeper's."""
        if record.zookeeper != self._address.zookeeper:
            return True
        host, port = self._address.split()
        try:
            there = ZookeeperConfigurationRetriever(host, port, record.id, session=self._session).find()
        except (ConfError, NotAuthorisedError, VersionError):
            return False  # it is not this run's
        return there is not None and there.incarnation == record.incarnation

    def _has_master(self, record: protocol.RunRecord) -> bool:
        """Return whether a run that has not begun yet may have a master; the one of our own id is this process."""
        if record.zookeeper != self._address.zookeeper:
            return True
        return record.id != self._address.id and MasterElection(self._session, group=record.id).holder() is not None


class MasterRegistration:
    """The registration of a run in Zookeeper and in the grid, and of its master.

    Args:
        conf: the run's, with all defaults resolved.
        address: where it is registered.
        session: with that Zookeeper.
        election: in which this process stands.
        tracker: the run's.

    Raises:
        ConfError: the Conf is too large for Zookeeper.
    """

    def __init__(
        self,
        conf: Conf,
        address: ClusterAddress,
        session: ZooKeeperSession,
        election: MasterElection,
        tracker: StateTracker,
    ) -> None:
        host, port = address.split()
        self._conf, self._id, self._session, self._election = conf, address.id, session, election
        self._address, self._tracker = address, tracker
        self._register = ZooKeeperConfigurationRegister(
            conf, address.id, host, port, session=session, fence=lambda: election.fence
        )
        self._registered = ZookeeperConfigurationRetriever(host, port, address.id, session=session)
        info = election.info  # the machine may have got another name since
        self._me = (info.get("host"), info.get("pid"))

    @cached_property
    def _name(self) -> RunName:
        return RunName(self._conf, self._address, self._session, self._tracker)

    def claim_name(self, *, takes_over: bool) -> None:
        """Take the run's name, for a new run or one that goes on; raises ``TrackerError`` if it is another run's."""
        if not takes_over:
            self._name.claim()
        elif not self._name.keep():
            raise TrackerError(
                f"run {self._conf.run} cannot go on: another run has got its name in the tracker at "
                f"{self._conf.state_tracker_connection_string} meanwhile; stop that one first (dl4j stop)"
            )

    def keep_name(self) -> None:
        """Put the record of the run's name back if the grid has lost it."""
        self._name.keep()

    def register(self, *, takes_over: bool) -> None:
        """Register the Conf, so that workers find it; raises ``TrackerError`` if the id is another run's by now."""
        self._register.register(takes_over=takes_over)

    def restore(self) -> None:
        """Put name and Conf back if the grid lost them or a stranger was there; not if this may not be the master.

        Nor if the run has ended while this process stood still, of which neither server has anything then: it must not
        look as if it were under way. As long as Zookeeper does not say what it has, it may be so. It may also end
        between the question and what follows: then the node is gone by which this process led when it asked.
        """
        fence = self._election.fence
        if fence is None or not self._election.is_leader:
            return
        if self._tracker.head() is None and self._find() in (None, "nothing"):
            return
        try:
            if self._register.restore(fence):
                logger.warning("the Conf of run %s was gone or damaged in Zookeeper; it is there again", self._conf.run)
        except (TrackerError, NotAuthorisedError) as exc:
            logger.debug("the Conf of run %s cannot be put back now: %s", self._conf.run, exc)
        if self._ask(lambda: self._session.exists(fence)) is not False:
            self.keep_name()

    def check(self) -> None:
        """Raise ``TrackerError`` if another process is master; not if Zookeeper does not answer."""
        if self._election.is_leader:
            return
        holder = self._ask(self._election.holder)
        if holder is not None and (holder.get("host"), holder.get("pid")) != self._me:
            raise TrackerError(
                f"run {self._conf.run} has another master, on {holder.get('host')}, pid {holder.get('pid')}: it took "
                "over while this one stood still or was cut off, and goes on with the run"
            )

    def check_begin(self) -> bool:
        """Raise ``TrackerError`` if there is another master, or the run is over, so that nobody begins it again.

        Returns whether Zookeeper answered.
        """
        self.check()
        registered = self._find()
        if registered == "nothing":
            if not self._is_under_way():
                raise TrackerError(
                    f"run {self._conf.run} is not registered any more: it has ended while this master stood still"
                )
            return True  # Zookeeper has lost its data; ``restore`` puts the Conf back
        if registered is not None and registered.incarnation != self._conf.incarnation:
            raise TrackerError(
                f"run {self._conf.run} is over: its id {self._id} is that of another run, {registered.run}, by now"
            )
        return registered is not None

    def clear_up(
        self, is_gone: Callable[[str], bool] = lambda worker: False, *, gather: Callable[[], None] = lambda: None
    ) -> None:
        """Remove the Conf, give the workers a few seconds to see the end, and delete the run's entries in the grid.

        ``gather`` is called in between: it takes what the workers have left there.

        Raises:
            TrackerError: another process leads the run, which is left to that one; or a server cannot be reached, and
                the rest has been done.
        """
        self.check()
        try:
            self._register.remove()
        finally:
            _await(lambda: all(is_gone(record.id) for record in self._tracker.workers()))
            gather()
            self._name.release()  # first: what is left of a run without its name hinders nobody
            _destroy(self._tracker)
            self._name.unlist()
        _await(lambda: is_deserted(self._session, self._id))  # those that were killed a moment ago
        prune_group(self._session, self._id)

    def take_back(self) -> None:
        """Remove what this process wrote into the run after others had ended it and cleared it up, if anything.

        Called when all that writes here has ended.

        Raises:
            TrackerError: the grid does not answer for the run's name.
        """
        if self._ask(lambda: take_back(self._conf, self._tracker, self._registered)):
            self._name.release()
            self._name.unlist()

    def _find(self) -> Any:
        """Return the Conf that Zookeeper has under the id, or "nothing"; None as ``_ask``."""
        return self._ask(lambda: self._registered.find() or "nothing")

    def _is_under_way(self) -> bool:
        """Return whether the tracker has the run: who ends it first says so there."""
        head = self._tracker.head()
        return head is not None and head.status == "running"

    def _ask(self, question: Callable[[], Any]) -> Any:
        """Return Zookeeper's answer; None if there is none, none that can be read, or no connection now."""
        try:
            return question() if self._session.connected else None
        except (TrackerError, NotAuthorisedError, ConfError, VersionError) as exc:
            logger.debug("whether this is still the master cannot be told: %s", exc)
            return None


def _await(condition: Callable[[], bool]) -> None:
    deadline = Deadline(_FAREWELL_SECONDS)
    while not condition() and not deadline.passed():
        time.sleep(_LOOK_SECONDS)


def _destroy(tracker: StateTracker) -> None:
    if isinstance(tracker.store, HazelcastStore):
        tracker.store.destroy()


def take_back(conf: Conf, tracker: StateTracker, registered: ZookeeperConfigurationRetriever) -> bool:
    """Remove what a process wrote into a run that was over and cleared up; return whether the run is that.

    A process may be stopped between its last look at the run and a write, so that it writes when it is woken up. A run
    that either server still knows is left as it is.

    Raises:
        TrackerError: one of the servers does not answer.
    """
    there = registered.find()
    is_over = (there is None or there.incarnation != conf.incarnation) and tracker.head() is None
    if is_over:
        _destroy(tracker)
    return is_over


def stop_run(conf: Conf, address: ClusterAddress, tracker: StateTracker) -> str:
    """Stop a registered run: its master and workers leave, and what a dead master has left behind is cleared up.

    Returns what has happened, in words. Blocks.

    Args:
        conf: the run's.
        address: where it is registered.
        tracker: the run's, which stays open.

    Raises:
        TrackerError: it has a master and has not begun; or a server does not answer.
    """
    head = tracker.finish("stopped")
    with address.session() as session:
        has_master = MasterElection(session, group=address.id).holder() is not None
    if not has_master:
        forget(conf, address, tracker)
    if head is not None:
        return f"run {conf.run}: {head.status} in round {head.round}"
    if has_master:
        raise TrackerError(f"run {conf.run} has not begun; there is nothing to stop")
    return f"run {conf.run}: had no master and had not begun; it is not registered any more"


def drain_worker(conf: Conf, address: ClusterAddress, tracker: StateTracker, worker: str) -> str:
    """Ask the process of a worker to leave: its workers finish and commit their jobs, and lease no other.

    The run does not depend on it: a worker may leave at any time, and a request that is lost changes nothing.

    Returns what was asked, in words. Blocks.

    Args:
        conf: the run's.
        address: where it is registered.
        tracker: the run's, which stays open.
        worker: the name of the worker.

    Raises:
        UsageError: there is no such worker, it is gone, or it works in the process of the master.
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
    if master is not None and (master.get("host"), master.get("pid")) == (found.host, found.pid):
        raise UsageError(
            f"worker {worker} works in the process of the master of run {conf.run}, which stays until the run ends; "
            "`dl4j stop` ends it"
        )
    tracker.define(f"{DRAIN}/{process}", True)
    return f"process {process} on {found.host} was asked to leave; it finishes its jobs first"


def forget(conf: Conf, address: ClusterAddress, tracker: StateTracker) -> None:
    """Remove what is left of a run that has no master to do so; raises ``TrackerError`` if it has one after all."""
    with (
        ZooKeeperSession(address.zookeeper, secret=address.secret) as session,
        _elected(session, address.id, conf.run) as election,
    ):
        MasterRegistration(conf, address, session, election, tracker).clear_up()


def unregister(conf: Conf, address: ClusterAddress) -> None:
    """Remove from Zookeeper a run whose grid is gone for ever, of which nothing is asked or removed.

    Raises:
        TrackerError: it has a master or a standby, who may reach the grid; or Zookeeper does not answer.
        NotAuthorisedError: it has another secret.
    """
    host, port = address.split()
    with (
        ZooKeeperSession(address.zookeeper, secret=address.secret) as session,
        _elected(session, address.id, conf.run) as election,
    ):
        ZooKeeperConfigurationRegister(
            conf, address.id, host, port, session=session, fence=lambda: election.fence
        ).remove()
        prune_group(session, address.id)


@contextmanager
def _elected(session: ZooKeeperSession, id: str, run: str) -> Iterator[MasterElection]:
    """Be the master of an id, so that nobody else becomes it meanwhile."""
    election = MasterElection(session, group=id, info={"run": run}).claim()
    try:
        yield election
    finally:
        election.resign()
