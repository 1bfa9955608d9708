"""The registration of a master in Zookeeper: the run's Conf, whether this process still leads, and its removal."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from dl4jlegacy.cluster.address import ClusterAddress
from dl4jlegacy.errors import ConfError, NotAuthorisedError, TrackerError, VersionError
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.hazelcast.store import HazelcastStateTracker, HazelcastStore
from dl4jlegacy.scaleout.zookeeper import (
    MasterElection,
    ZooKeeperConfigurationRegister,
    ZookeeperConfigurationRetriever,
    ZooKeeperSession,
    registered_workers,
)
from dl4jlegacy.scaleout.zookeeper.membership import group_path

__all__ = ["MasterRegistration", "destroy"]

logger = logging.getLogger(__name__)

_FAREWELL_SECONDS = 5.0


class MasterRegistration:
    """The registration of a run in Zookeeper, and of its master.

    Args:
        conf: the run's, with all defaults resolved.
        address: where it is registered.
        session: with that Zookeeper.
        election: in which this process stands; None if it only clears up.

    Raises:
        ConfError: the Conf is too large for Zookeeper.
    """

    def __init__(
        self, conf: Conf, address: ClusterAddress, session: ZooKeeperSession, election: MasterElection | None = None
    ) -> None:
        host, port = address.split()
        self._conf, self._id, self._session, self._election = conf, address.id, session, election
        self._register = ZooKeeperConfigurationRegister(conf, address.id, host, port, session=session)
        self._registered = ZookeeperConfigurationRetriever(host, port, address.id, session=session)
        info = {} if election is None else election.info  # the machine may have got another name since
        self._me = (info.get("host"), info.get("pid"))

    def register(self) -> None:
        """Register the Conf, so that workers find it."""
        self._register.register()

    def restore(self) -> None:
        """Register the Conf again if somebody removed it or wrote something else; not if this may not be the master."""
        if self._election is None or not self._election.is_leader:
            return
        try:
            if self._register.restore():
                logger.warning("the Conf of run %s was gone or damaged in Zookeeper; it is there again", self._conf.run)
        except (TrackerError, NotAuthorisedError) as exc:
            logger.debug("the Conf of run %s cannot be put back now: %s", self._conf.run, exc)

    def check(self) -> None:
        """Raise ``TrackerError`` if another process is master; not if Zookeeper does not answer."""
        if self._election is None or self._election.is_leader:
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
        registered = self._ask(lambda: self._registered.find() or "nothing")
        if registered == "nothing":
            raise TrackerError(
                f"run {self._conf.run} is not registered any more: it has ended while this master stood still"
            )
        return registered is not None

    def clear_up(self, tracker: HazelcastStateTracker, is_gone: Callable[[str], bool] = lambda worker: False) -> None:
        """Remove the Conf, give the workers a few seconds to see the end, and delete the run's entries in the grid.

        Raises:
            TrackerError: a server cannot be reached; the rest has been done.
        """
        try:
            self._register.remove()
        finally:
            _await(lambda: all(is_gone(record.id) for record in tracker.workers()))
            destroy(tracker)
        _await(lambda: not registered_workers(self._session, self._id))  # those that were killed a moment ago
        for folder in ("workers", "election"):
            self._session.prune(group_path(self._id, folder))

    def _ask(self, question: Callable[[], Any]) -> Any:
        """Return Zookeeper's answer; None if there is none, none that can be read, or no connection now."""
        try:
            return question() if self._session.connected else None
        except (TrackerError, NotAuthorisedError, ConfError, VersionError) as exc:
            logger.debug("whether this is still the master cannot be told: %s", exc)
            return None


def _await(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + _FAREWELL_SECONDS
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)


def destroy(tracker: HazelcastStateTracker) -> None:
    """Delete all entries of a run in the grid."""
    if isinstance(tracker.store, HazelcastStore):
        tracker.store.destroy()
