"""One grid and one Zookeeper, on which a test's processes are played by objects of its own."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec
import pytest

from dl4jlegacy.cluster.address import ClusterAddress
from dl4jlegacy.cluster.registration import MasterRegistration
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.hazelcast.store import HazelcastStateTracker
from dl4jlegacy.scaleout.persistence.checkpoint import CheckpointStore
from dl4jlegacy.scaleout.protocol import NAMES, write_frame
from dl4jlegacy.scaleout.state.records import HEAD, Head, Keys, Manifest, encode_record
from dl4jlegacy.scaleout.tracker import drive
from dl4jlegacy.scaleout.zookeeper import MasterElection, ZookeeperConfigurationRetriever, ZooKeeperSession
from dl4jlegacy.services import ServicesState
from dl4jlegacy.training import prepare as training
from tests.support.cluster_commands import nodes_below

__all__ = ["SECRET", "Place", "head", "interrupted", "place", "stopped"]

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


@pytest.fixture
def stopped(place: Place, tmp_path: Path) -> tuple[Conf, training.Report]:
    """Train a small run here; return the Conf in its folder, which is left as if killed early, and its report."""
    folder = tmp_path / "checkpoints"
    given = {"checkpoint_dir": str(folder), "checkpoint_every": 1, "checkpoints_kept": 100, "run": f"{place.name}-r"}
    rounds = {"epochs": 6, "jobs_per_round": 2, "averaging_frequency": 1}  # 24
    run, data = training.prepare(Conf(dataset="iris", workers=2, **rounds, **given), frozenset({"workers", *rounds}))
    report = training.train(run, data, progress=False)
    versions = CheckpointStore(folder).versions()
    for version in versions[: len(versions) // 2]:
        (folder / f"checkpoint-{version:08}.json").unlink()
    return training.read_run(str(folder), (folder / "conf.json").read_bytes()), report


def interrupted(
    place: Place, conf: Conf, *, in_grid: bool, in_folder: bool, wait_seconds: float = 10.0
) -> tuple[Conf, MasterElection]:
    """Play a master that has come to the newest checkpoint; return the registered Conf, and its election."""
    members = {"state_tracker_connection_string": place.servers.hazelcast, "cluster_name": place.servers.cluster_name}
    conf = conf.replace(**members, data_by_reference=False, worker_wait_seconds=wait_seconds)
    master, election, tracker = place.master(conf, "a")
    newest = CheckpointStore(conf.checkpoint_dir).newest()
    assert newest is not None
    at = Manifest("model/1/lost", 1, 10)
    if in_grid:
        at = drive(write_frame(tracker.store, Keys.model(newest[0].version, "x"), newest[1]))
    master.claim_name(takes_over=True)
    master.register(takes_over=True)
    tracker.store.put(HEAD, encode_record(msgspec.structs.replace(newest[0], model=at, status="running")))
    if not in_folder:
        shutil.rmtree(conf.checkpoint_dir)
    return conf, election


def head(round_: int = 0, status: str = "running") -> bytes:
    return encode_record(Head(run="r", version=round_, round=round_, model=Manifest("m", 1, 1), status=status))
