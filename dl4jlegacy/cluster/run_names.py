"""Ownership of run names in the grid: which incarnation has a name, and which incarnations have entries (layer 5).

Every change for a run is made only while the name belongs to this incarnation: a process that was frozen and wakes up
during the next run of the same name or id finds nothing of that run to change.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress

from dl4jlegacy.cluster.address import ClusterAddress
from dl4jlegacy.errors import ConfError, NotAuthorisedError, TrackerError, VersionError
from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.hazelcast.store import HazelcastStore
from dl4jlegacy.scaleout.tracker import StateTracker, drive
from dl4jlegacy.scaleout.zookeeper import MasterElection, ZookeeperConfigurationRetriever, ZooKeeperSession

__all__ = ["RunName"]


class RunName:
    """The records in the grid that name the incarnation owning a run's name, and list this incarnation as present.

    Args:
        conf: the run's, with all defaults resolved.
        address: where the run is registered.
        session: the Zookeeper session.
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
        """Claim the name for a new run, and remove the remains of finished runs that had it.

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
        """Return incarnations whose masters gave up this name and died before they had removed the rest."""
        listed = {each for _, each in protocol.listed_runs(self._names.keys(f"{self._conf.run}/"))}
        found = set()
        for incarnation in listed - {self._record.incarnation}:
            with suppress(NotAuthorisedError):
                record = drive(protocol.listing(self._names, self._conf.run, incarnation))
                if record is not None and drive(self._is_over(record)):
                    found.add(incarnation)
        return found

    def keep(self) -> protocol.Steps[bool]:
        """Restore the records if they are lost or were written by a stranger; return whether this run has the name."""
        yield from protocol.list_run(self._names, self._conf.run, self._record)
        try:
            return (yield from protocol.keep_name(self._names, self._conf.run, self._record, self._is_over))
        except NotAuthorisedError:
            yield from protocol.restore_name(self._names, self._conf.run, self._record)
            return True

    def release(self) -> None:
        """Give up the name, unless another incarnation has it."""
        drive(protocol.release_name(self._names, self._conf.run, self._conf.incarnation))

    def unlist(self) -> None:
        """Record that the run has no entries in the grid any more."""
        drive(protocol.unlist_run(self._names, self._conf.run, self._conf.incarnation))

    def _is_over(self, record: protocol.RunRecord) -> protocol.Steps[bool]:
        """Return whether a record's run no longer needs its name, or never began and has no master to begin it.

        A run that is done needs its name until its end is recorded, or until no process is left to record it: its model
        may still have to be written.
        """
        yield protocol.STEP
        head = self._tracker_of(record).head()
        if head is None:
            return not self._has_master(record)
        if head.status != "done":
            return head.status in ("failed", "stopped")
        if (yield from protocol.end_in_grid(self._names, self._conf.run, record.incarnation)) is not None:
            return True
        return not self._is_registered(record) and not self._has_master(record)

    def _tracker_of(self, record: protocol.RunRecord) -> StateTracker:
        return StateTracker(self._store.sibling(self._conf.run, record.incarnation), self._tracker.clock)

    def _is_registered(self, record: protocol.RunRecord) -> bool:
        """Return whether the Conf of a record's run is in Zookeeper; True if the record names another Zookeeper."""
        if record.zookeeper != self._address.zookeeper:
            return True
        host, port = self._address.split()
        try:
            there = ZookeeperConfigurationRetriever(host, port, record.id, session=self._session).find()
        except (ConfError, NotAuthorisedError, VersionError):
            return False  # it is not this run's
        return there is not None and there.incarnation == record.incarnation

    def _has_master(self, record: protocol.RunRecord) -> bool:
        """Return whether a run that has not begun may have a master; for our own id the master is this process."""
        if record.zookeeper != self._address.zookeeper:
            return True
        return record.id != self._address.id and MasterElection(self._session, group=record.id).holder() is not None
