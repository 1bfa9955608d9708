"""Runs of one name or id on real servers are told apart: nothing that belonged to an earlier one reaches the next."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest

from dl4jlegacy.cluster.address import ClusterAddress, find_incarnation
from dl4jlegacy.cluster.registration import MasterRegistration, RunName
from dl4jlegacy.errors import NotAuthorisedError, TrackerError
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.hazelcast.store import HazelcastStateTracker
from dl4jlegacy.scaleout.records import HEAD, Head, JobRecord, Keys, Manifest, decode_record, encode_record
from dl4jlegacy.scaleout.zookeeper import MasterElection, ZookeeperConfigurationRetriever, ZooKeeperSession
from dl4jlegacy.services import ServicesState

pytestmark = pytest.mark.cluster

SECRET = b"a secret of this test"


class Place:
    """One grid and one Zookeeper, on which a test's processes are played by objects."""

    def __init__(self, servers: ServicesState, stack: ExitStack) -> None:
        self.servers, self._stack, self.name = servers, stack, f"r{uuid.uuid4().hex[:8]}"

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
        self._stack.callback(tracker.store.destroy)
        return tracker

    def session(self) -> ZooKeeperSession:
        return self._stack.enter_context(closing(ZooKeeperSession(self.servers.zookeeper, secret=SECRET)))

    def address(self, id: str) -> ClusterAddress:
        return ClusterAddress(self.servers.zookeeper, SECRET, f"{self.name}-{id}")

    def master(self, conf: Conf, id: str = "a") -> tuple[MasterRegistration, MasterElection, HazelcastStateTracker]:
        """Return the registration of a process that has been elected."""
        session, tracker, address = self.session(), self.tracker(conf), self.address(id)
        election = MasterElection(session, group=address.id, info={"run": conf.run}).claim(20.0)
        self._stack.callback(election.resign)
        return MasterRegistration(conf, address, session, election, tracker), election, tracker

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


# --- one name ---------------------------------------------------------------------------------------------------------


def test_of_many_masters_that_begin_runs_of_one_name_at_the_same_time_one_gets_it(place: Place) -> None:
    masters = [place.master(place.conf(), id)[0] for id in "abcd"]
    ready = threading.Barrier(len(masters))

    def begin(master: MasterRegistration) -> str:
        ready.wait(30)
        try:
            master.claim_name(takes_over=False)
        except TrackerError as exc:
            return str(exc)
        return ""

    with ThreadPoolExecutor(len(masters)) as pool:
        said = sorted(pool.map(begin, masters))
    assert said[0] == ""
    assert all("has just been begun" in text for text in said[1:]), said


def test_a_name_is_free_again_when_its_run_is_over_and_not_before(place: Place) -> None:
    first, second = place.conf(), place.conf()
    one, _, tracker = place.master(first, "a")
    two, _, _ = place.master(second, "b")
    one.claim_name(takes_over=False)
    tracker.store.put(HEAD, head(3))
    with pytest.raises(TrackerError, match=rf"has a run {place.name} already, in round 3; .*dl4j resume"):
        two.claim_name(takes_over=False)
    tracker.store.put(HEAD, head(3, "done"))
    two.claim_name(takes_over=False)
    assert tracker.store.keys("") == []
    assert find_incarnation(tracker.store, place.name) == second.incarnation
    with pytest.raises(TrackerError, match="another run has got its name"):
        one.claim_name(takes_over=True)
    RunName(first, place.address("a"), place.session(), tracker).release()
    assert find_incarnation(tracker.store, place.name) == second.incarnation


def test_a_name_that_a_master_took_before_it_died_is_taken_from_it(place: Place) -> None:
    dead, _, _ = place.master(place.conf(), "a")
    dead.claim_name(takes_over=False)
    dead._election.resign()
    next_one, _, tracker = place.master(place.conf(), "b")
    next_one.claim_name(takes_over=False)
    assert find_incarnation(tracker.store, place.name) == next_one._conf.incarnation


def test_a_record_that_the_grid_has_lost_or_others_overwrote_is_put_back(place: Place) -> None:
    master, _, tracker = place.master(place.conf())
    names = tracker.store.sibling("runs")
    for spoil in (
        lambda: names.delete(place.name),
        lambda: place.tracker(place.conf(), b"another").store.sibling("runs").put(place.name, b"junk"),
    ):
        master.keep_name()
        spoil()
        master.keep_name()
        assert find_incarnation(tracker.store, place.name) == master._conf.incarnation


# --- one keyspace for each incarnation --------------------------------------------------------------------------------


@pytest.mark.parametrize("secret", [SECRET, None], ids=["signed", "unsigned"])
def test_a_worker_of_an_earlier_run_finds_nothing_of_the_next_one_and_changes_nothing(
    place: Place, secret: bytes
) -> None:
    old, new = place.tracker(place.conf(), secret), place.tracker(place.conf(), secret)
    ready = encode_record(JobRecord(state="ready", model=""))  # as hogwild has it: it names no model
    for tracker in (old, new):
        tracker.store.put(Keys.job(0, 0), ready)
    old.store.destroy()
    done = encode_record(JobRecord(state="done", model="", worker="frozen"))
    assert not old.store.replace_if_same(Keys.job(0, 0), ready, done)
    old.store.put(Keys.job(0, 0), done)
    old.store.put(HEAD, head(9))
    assert decode_record(new.store.get(Keys.job(0, 0)), JobRecord).state == "ready"
    assert new.head() is None


def test_a_value_that_is_copied_from_an_earlier_run_is_refused(place: Place) -> None:
    old, new = place.tracker(place.conf()), place.tracker(place.conf())
    old.store.put(HEAD, head(7))
    copied = bytes(old.store._link.get(HEAD).wait(10))
    new.store._link.set(HEAD, b"", copied).wait(10)
    with pytest.raises(NotAuthorisedError, match="signature does not match"):
        new.store.get(HEAD)


# --- one id -----------------------------------------------------------------------------------------------------------


def test_a_woken_master_of_an_earlier_run_removes_nothing_of_the_next_one(place: Place) -> None:
    old, old_election, _ = place.master(place.conf())
    old.claim_name(takes_over=False)
    old.register(takes_over=False)
    node = old_election.fence
    old_election.resign()  # as when its session has ended while it was frozen
    new, _, tracker = place.master(place.conf())
    old._election = FrozenElection(node, old_election.info)
    old._register._fence = lambda: node
    new.claim_name(takes_over=False)
    new.register(takes_over=False)
    tracker.store.put(HEAD, head(1))
    with pytest.raises(TrackerError):
        old.register(takes_over=False)
    old.clear_up()
    assert place.registered() == new._conf
    assert find_incarnation(tracker.store, place.name) == new._conf.incarnation
    assert tracker.head() is not None
    new.clear_up()
    assert place.registered() is None


class FrozenElection:
    """What a process believes that was frozen just after it had made sure that it led."""

    is_leader = True

    def __init__(self, fence: str | None, info: dict) -> None:
        self.fence, self.info = fence, info


def test_a_master_that_has_its_id_back_leaves_the_conf_of_a_run_that_came_between(place: Place) -> None:
    old, first, _ = place.master(place.conf())
    old.register(takes_over=False)
    first.resign()
    between, second, _ = place.master(place.conf(run="another"))
    between.register(takes_over=False)
    second.resign()
    again, _, _ = place.master(old._conf)
    with pytest.raises(TrackerError, match="has been given to another run, another"):
        again.register(takes_over=True)
    with pytest.raises(TrackerError, match="that of another run, another, by now"):
        again.check_begin()
    again.clear_up()
    assert place.registered() == between._conf
