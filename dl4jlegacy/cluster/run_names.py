"""Who has a run's name in the grid: which incarnation, and that it has something there (layer 5).

All that is changed for a run is changed only as long as it is this incarnation's: a process that was frozen and wakes
up during the next run of the same name or id finds nothing of it to change.
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

    def keep(self) -> protocol.Steps[bool]:
        """Put the records back if they are lost, or not of this run's writing; return whether the name is ours."""
        yield from protocol.list_run(self._names, self._conf.run, self._record)
        try:
            return (yield from protocol.keep_name(self._names, self._conf.run, self._record, self._is_over))
        except NotAuthorisedError:
            yield from protocol.restore_name(self._names, self._conf.run, self._record)
            return True

    def release(self) -> None:
        """Give up the name, unless it is another incarnation's."""
        drive(protocol.release_name(self._names, self._conf.run, self._conf.incarnation))

    def unlist(self) -> None:
        """Note that the run has nothing in the grid any more."""
        drive(protocol.unlist_run(self._names, self._conf.run, self._conf.incarnation))

    def _is_over(self, record: protocol.RunRecord) -> protocol.Steps[bool]:
        """Return whether the run of a record needs its name no longer, or never began and has nobody to begin it.

        One that is done needs it until its end is written down, or nobody is there to do so any more: its model may
        still have to be written.
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
