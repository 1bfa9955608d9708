"""One grid and one Zookeeper, on which a test's processes are played by objects of its own."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from dl4jlegacy.cluster.address import ClusterAddress
from dl4jlegacy.cluster.registration import MasterRegistration
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.hazelcast.store import HazelcastStateTracker
from dl4jlegacy.scaleout.protocol import NAMES
from dl4jlegacy.scaleout.records import Head, Manifest, encode_record
from dl4jlegacy.scaleout.zookeeper import MasterElection, ZookeeperConfigurationRetriever, ZooKeeperSession
from dl4jlegacy.services import ServicesState
from tests.support.cluster_commands import nodes_below

__all__ = ["SECRET", "Place", "head", "place"]

SECRET = b"a secret of this test"


class Place:
    """One grid and one Zookeeper, on which a test's processes are played by objects."""

    def __init__(self, servers: ServicesState, stack: ExitStack) -> None:
        self.servers, self._stack, self.name = servers, stack, f"r{uuid.uuid4().hex[:8]}"
        self.masters: dict[str, MasterRegistration] = {}
        """The registration of each incarnation."""

    def conf(self, incarnation: str = "", **changes: object) -> Conf:
        fields = {"run": self.name, "state_tracker_connection_string": self.servers.hazelcast, **changes}
        return Conf(incarnation=incarnation or uuid.uuid4().hex[:16], cluster_name=self.servers.cluster_name, **fields)

    def tracker(self, conf: Conf, secret: bytes = SECRET) -> HazelcastStateTracker:
        tracker = HazelcastStateTracker(
            self.servers.hazelcast,
            cluster_name=self.servers.cluster_name,
            run=conf.run,
            incarnation=conf.incarnation,
            secret=secret,
        )
        self._stack.callback(tracker.shutdown)
        self._stack.callback(self._forget, tracker, conf)
        return tracker

    def _forget(self, tracker: HazelcastStateTracker, conf: Conf) -> None:
        names = tracker.store.sibling(NAMES)
        tracker.store.destroy()
        names.delete_many([conf.run, f"{conf.run}/{conf.incarnation}"])

    def callback(self, function: Callable[..., object], *arguments: object) -> None:
        """Call something at the end of the test."""
        self._stack.callback(function, *arguments)

    def session(self) -> ZooKeeperSession:
        return self._stack.enter_context(closing(ZooKeeperSession(self.servers.zookeeper, secret=SECRET)))

    def address(self, id: str) -> ClusterAddress:
        return ClusterAddress(self.servers.zookeeper, SECRET, f"{self.name}-{id}")

    def master(self, conf: Conf, id: str = "a") -> tuple[MasterRegistration, MasterElection, HazelcastStateTracker]:
        """Return the registration of a process that has been elected."""
        session, tracker, address = self.session(), self.tracker(conf), self.address(id)
        election = MasterElection(session, group=address.id, info={"run": conf.run}).claim(20.0)
        self._stack.callback(election.resign)
        self._stack.callback(self._unregister, address)
        self.masters[conf.incarnation] = MasterRegistration(conf, address, session, election, tracker)
        return self.masters[conf.incarnation], election, tracker

    def _unregister(self, address: ClusterAddress) -> None:
        with closing(ZooKeeperSession(self.servers.zookeeper, secret=SECRET)) as session:
            node = f"/{self.servers.zookeeper}/tmp/{address.id}"
            session.delete(f"{node}/guard")
            session.prune(node)

    def exists(self, path: str) -> bool:
        with closing(ZooKeeperSession(self.servers.zookeeper, secret=SECRET)) as session:
            return session.exists(path)

    def wipe(self, id: str) -> None:
        """Remove all that an id has in Zookeeper, as if that had lost its data."""
        with closing(ZooKeeperSession(self.servers.zookeeper, secret=SECRET)) as session:
            for root in (f"/{self.servers.zookeeper}/tmp/{self.address(id).id}", f"/dl4jlegacy/{self.address(id).id}"):
                for path in reversed([root, *nodes_below(session, root)]):
                    session.delete(path)

    def registered(self, id: str = "a") -> Conf | None:
        host, port = self.servers.zookeeper.split(":")
        with closing(ZooKeeperSession(self.servers.zookeeper, secret=SECRET)) as session:
            return ZookeeperConfigurationRetriever(host, int(port), self.address(id).id, session=session).find()


@pytest.fixture
def place(session_services: ServicesState) -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(session_services, stack)


def head(round_: int = 0, status: str = "running") -> bytes:
    return encode_record(Head(run="r", version=round_, round=round_, model=Manifest("m", 1, 1), status=status))
