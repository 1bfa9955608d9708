"""Registration of a run: its name in the grid, its Conf in Zookeeper, whether this process still leads it, its end.

The decisions that follow from the servers' answers are in ``protocol.leading``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property

from dl4jlegacy.cluster.address import ClusterAddress
from dl4jlegacy.cluster.register import ZookeeperRegister, place_of
from dl4jlegacy.cluster.run_names import RunName
from dl4jlegacy.errors import TrackerError
from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.hazelcast.store import HazelcastStore
from dl4jlegacy.scaleout.tracker import StateTracker, drive
from dl4jlegacy.scaleout.zookeeper import (
    MasterElection,
    ZooKeeperConfigurationRegister,
    ZooKeeperSession,
    is_deserted,
    prune_group,
)
from dl4jlegacy.system.clock import Deadline

__all__ = ["MasterRegistration", "destroy", "is_left_behind"]

_FAREWELL_SECONDS, _LOOK_SECONDS = 5.0, 0.05


class MasterRegistration:
    """The registration of a run and of its master, in Zookeeper and in the grid.

    Args:
        conf: the run's, with all defaults resolved.
        address: where the run is registered.
        session: the Zookeeper session.
        election: the election in which this process is a candidate.
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
        self._conf_node = ZooKeeperConfigurationRegister(
            conf, address.id, host, port, session=session, fence=lambda: election.fence
        )
        self.place = place_of(
            conf,
            address,
            tracker,
            ZookeeperRegister(conf, address, session, election, self._conf_node),
            keep_name=lambda: self._name.keep(),
        )

    @cached_property
    def _name(self) -> RunName:
        return RunName(self._conf, self._address, self._session, self._tracker)

    def claim_name(self, *, takes_over: bool) -> None:
        """Claim the run's name, for a new or a continued run; raises ``TrackerError`` if another run has the name."""
        if not takes_over:
            self._name.claim()
        elif not drive(self._name.keep()):
            raise TrackerError(
                f"run {self._conf.run} cannot go on: another run has got its name in the tracker at "
                f"{self._conf.state_tracker_connection_string} meanwhile; stop that one first (dl4j stop)"
            )

    def register(self, *, takes_over: bool) -> None:
        """Take office and register the Conf, so that workers find the run.

        The master of a new run takes office first: a registered run without an office record has been lost by the grid.

        Raises:
            TrackerError: another run has the id by now.
        """
        if takes_over:
            self._conf_node.register(takes_over=True)
        self._tracker.define(protocol.OFFICE.partition("/")[2], self._election.nonce)
        if not takes_over:
            self._conf_node.register(takes_over=False)

    def go_on_again(self) -> None:
        """Remove the record of the run's end, if there is one, because the run is to continue."""
        drive(protocol.go_on_again(self.place))

    def restore(self) -> None:
        """See ``protocol.put_back``."""
        drive(protocol.put_back(self.place))

    def check(self) -> None:
        """See ``protocol.check_master``."""
        drive(protocol.check_master(self.place))

    def may_begin(self) -> protocol.Steps[bool]:
        """See ``protocol.may_begin``."""
        return protocol.may_begin(self.place)

    def may_hand_over(self) -> protocol.Steps[bool]:
        """See ``protocol.may_hand_over``."""
        return protocol.may_hand_over(self.place)

    def clear_up(
        self,
        is_gone: Callable[[str], bool] = lambda worker: False,
        *,
        gather: Callable[[], None] = lambda: None,
        end: protocol.End | None = None,
    ) -> None:
        """Record the run's end, remove its Conf, and delete its grid entries once the workers could see the end.

        The workers get a few seconds to see the end. ``gather`` is called before the deletion: it collects what the
        workers have left in the grid. ``end`` is how the run has ended; None: as its head says.

        Raises:
            TrackerError: another process leads the run, which is then left to that process; or a server cannot be
                reached, and the remaining steps were done.
        """
        self.check()
        head = self._tracker.head()
        is_done = head is not None and head.status == "done"
        drive(protocol.end_run(self.place, end or ("done" if is_done else "stopped")))
        try:
            self._conf_node.remove()
        finally:
            _await(lambda: all(is_gone(record.id) for record in self._tracker.workers()))
            gather()
            self._name.release()  # first: remains of a run without its name block nobody
            destroy(self._tracker)
            self._name.unlist()
        _await(lambda: is_deserted(self._session, self._id))  # sessions of processes that were killed a moment ago
        prune_group(self._session, self._id)

    def take_back(self) -> None:
        """Remove what this process wrote into the grid after others had ended and cleared the run, if anything.

        Called after every writer in this process has stopped.

        Raises:
            TrackerError: the grid does not answer.
        """
        if is_left_behind(self.place):
            destroy(self._tracker)
            self._name.release()
            self._name.unlist()


def is_left_behind(place: protocol.RunPlace) -> bool:
    """Return whether this process must remove the run's grid entries; see ``protocol.is_left_behind``.

    A process that was frozen has lost its Zookeeper session: the function waits some seconds for a new one.
    """
    if drive(protocol.find_end(place)) is not None:
        _await(lambda: place.register.registered().kind != "unknown")
    return drive(protocol.is_left_behind(place))


def _await(condition: Callable[[], bool]) -> None:
    deadline = Deadline(_FAREWELL_SECONDS)
    while not condition() and not deadline.passed():
        time.sleep(_LOOK_SECONDS)


def destroy(tracker: StateTracker) -> None:
    """Remove all entries of a run from the grid."""
    if isinstance(tracker.store, HazelcastStore):
        tracker.store.destroy()
