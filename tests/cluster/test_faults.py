"""Faults under a run over processes: servers that die, sessions that expire_session, frames that are not the run's.

Whatever happens, the run ends with the embedded tracker's parameters and every batch counted once.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

from dl4jlegacy.scaleout.hazelcast.link import HazelcastLink
from dl4jlegacy.scaleout.hazelcast.store import HazelcastStateTracker
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.state.records import Keys, Manifest
from dl4jlegacy.scaleout.zookeeper import ZooKeeperSession
from dl4jlegacy.scaleout.zookeeper.membership import group_path
from dl4jlegacy.services import Services, ServicesState
from tests.support.cluster_commands import SECRET, Cluster, Command, error, freeze, same, until
from tests.support.forked_commands import Forks
from tools.chaos.expiry import expire_session
from tools.chaos.junk import VALUES, keys

pytestmark = pytest.mark.cluster

EPOCHS = 5
GARBAGE = b"\x80\x04" + bytes(range(256)) * 4


class Run:
    """A master and two workers in the middle of their run, which goes no further than it has to before its end."""

    def __init__(self, servers: ServicesState, cluster: Cluster, tracker: HazelcastStateTracker, name: str) -> None:
        self.servers, self.cluster, self.tracker = servers, cluster, tracker
        cluster.hold(8)
        self.master = cluster.master("--epochs", str(EPOCHS), "--run", name)
        self.workers = [cluster.worker(), cluster.worker()]
        until(lambda: tracker.head() is not None or self.master.process.poll() is not None, what="the run's beginning")
        assert tracker.head() is not None, f"{self.master.process.poll()}: {self.master.err()}{self.master.out()}"
        self.advances(8)

    def advances(self, rounds: int) -> None:
        """Wait until the run is so many rounds further."""
        head = self.tracker.head()
        assert head is not None
        begin = head.round
        self.cluster.hold(begin + rounds)

        def is_there() -> bool:
            head = self.tracker.head()
            assert head is not None, self.master.err()
            assert head.status == "running", "the run is over before anything could happen to it; make it longer"
            return head.round >= begin + rounds

        until(is_there, what=f"{rounds} rounds after round {begin}")

    def ends(self, *workers: Command) -> None:
        """Assert that the run ends as if nothing had happened, and these workers with it."""
        self.cluster.let_go()
        same(self.master, EPOCHS)
        for worker in workers:
            assert worker.wait() == 0, worker.err()


@pytest.fixture
def run_on(forks: Forks, tmp_path: Path) -> Iterator[Callable[[ServicesState], Run]]:
    """Start a run on given servers; all its processes are ended with the test."""
    with contextlib.ExitStack() as stack:

        def start(servers: ServicesState) -> Run:
            name = f"faults-{time.monotonic_ns()}"
            cluster = Cluster(forks, servers.hazelcast, servers.zookeeper, servers.cluster_name, tmp_path)
            tracker = stack.enter_context(cluster.tracker(name))
            stack.callback(cluster.end)
            return Run(servers, cluster, tracker, name)

        yield start


@contextlib.contextmanager
def frozen(command: Command) -> Iterator[None]:
    freeze(command.pid)
    try:
        yield
    finally:
        command.process.send_signal(signal.SIGCONT)


# --- servers ---------------------------------------------------------------------------------------------------------


def test_a_killed_worker_a_stopped_member_and_a_killed_master_change_nothing(own_services, run_on) -> None:
    """The everyday suite's one run on a real cluster to which everything happens."""
    servers = own_services(members=2)
    run = run_on(servers)
    standby = run.cluster.start("master", "--standby", "--zookeeper", run.cluster.zookeeper, "--format", "json")
    until(lambda: sum("/election/" in node for node in run.cluster.left_over()) == 2, what="the standby's candidacy")
    standby.says("standing by: takes over run")
    run.workers[0].process.kill()
    worker = run.cluster.worker()
    run.advances(5)
    os.kill(servers.pids["hazelcast-1"], signal.SIGKILL)
    run.advances(5)
    run.master.process.kill()
    run.cluster.let_go()
    same(standby, EPOCHS)
    assert "this standby takes over" in standby.err()
    for rest in (run.workers[1], worker):
        assert rest.wait() == 0, rest.err()


@pytest.mark.long
def test_one_of_two_members_is_killed_comes_back_and_the_other_one_is_killed(own_services, run_on) -> None:
    servers = own_services(members=2)
    run = run_on(servers)
    os.kill(servers.pids["hazelcast-1"], signal.SIGKILL)
    run.advances(5)
    Services.restart("hazelcast-1", Path(servers.folder))  # returns once it has joined and holds its share
    run.advances(5)
    os.kill(servers.pids["hazelcast-2"], signal.SIGKILL)
    run.advances(5)
    run.ends(*run.workers)


@pytest.mark.long
def test_zookeeper_is_away_for_a_while_and_the_run_goes_on(own_services, run_on) -> None:
    servers = own_services()
    run = run_on(servers)
    os.kill(servers.pids["zookeeper"], signal.SIGKILL)
    run.advances(10)
    Services.restart("zookeeper", Path(servers.folder))
    late = run.cluster.worker()
    until(lambda: any(f"-{late.pid}-" in worker.id for worker in run.tracker.workers()), what="a worker that joins")
    run.ends(*run.workers, late)


@pytest.mark.long
@pytest.mark.parametrize("frozen_seconds", [0.0, pytest.param(5.0, marks=pytest.mark.release)])
def test_zookeeper_loses_its_data_and_the_master_puts_the_conf_back(
    forks, own_services, tmp_path, frozen_seconds
) -> None:
    """The master may stand still meanwhile, so that it cannot know what happened."""
    servers = own_services()
    cluster = Cluster(forks, servers.hazelcast, servers.zookeeper, servers.cluster_name, tmp_path)
    with contextlib.ExitStack() as stack:
        stack.callback(cluster.end)
        master, worker = cluster.master("--epochs", "500", "--run", "r1"), cluster.worker()
        cluster.wait_for_round(3)
        os.kill(servers.pids["zookeeper"], signal.SIGKILL)
        shutil.rmtree(Path(servers.folder) / "zookeeper-data")
        with frozen(master) if frozen_seconds else contextlib.nullcontext():
            Services.restart("zookeeper", Path(servers.folder))
            began = time.monotonic()
            until(lambda: time.monotonic() - began > frozen_seconds)
        until(lambda: (cluster.status().get("master") or {}).get("pid") == master.pid, what="Conf and election")
        late = cluster.worker()
        until(lambda: any(record["pid"] == late.pid for record in cluster.status()["workers"]), what="a late worker")
        master.process.kill()
        resumed = cluster.start("resume", "r1", "--zookeeper", cluster.zookeeper, "--format", "json")
        resumed.says("round")
        assert "stopped in round" in cluster.ask("stop").out()
        error(resumed, 1, "was stopped")
        assert [worker.wait(), late.wait()] == [0, 0]
        assert cluster.left_over() == []


# --- sessions with Zookeeper -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def expired(address: str, number: int) -> Iterator[None]:
    expire_session(address, number)
    yield


@pytest.mark.long
@pytest.mark.parametrize("how", ["expired", pytest.param("frozen", marks=pytest.mark.release)])
def test_a_worker_and_then_the_master_lose_their_session(how: str, session_services, run_on) -> None:
    run = run_on(session_services)
    address, first = session_services.zookeeper, run.workers[0]
    with ZooKeeperSession(address, secret=SECRET.encode()) as session:

        def lose(command: Command, folder: str, named: str = "") -> None:
            owner = partial(session_of, session, group_path("master", folder), named)
            before = owner()
            assert before
            with frozen(command) if how == "frozen" else expired(address, before):
                until(lambda: owner() != before, what="the end of a session")
            until(lambda: owner() not in (0, before), what="a new session")
            run.advances(3)

        lose(first, "workers", f"-{first.pid}-")
        lose(run.master, "election")
    run.ends(*run.workers)


def session_of(session: ZooKeeperSession, folder: str, named: str) -> int:
    """Return the session that keeps an ephemeral node; 0 if there is no such node."""
    nodes = (session.get(f"{folder}/{name}") for name in session.children(folder) or [] if named in name)
    return next((node.owner for node in nodes if node is not None), 0)


# --- frames ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def vandal(run: Run) -> Iterator[Callable[[Manifest], None]]:
    """Give a writer of garbage over a frame's chunks, which does not know the secret."""
    link = HazelcastLink(run.servers.hazelcast.split(","), run.servers.cluster_name, run.tracker.store.map_name)
    try:
        until(link.connected)

        def write(manifest: Manifest) -> None:
            for index in range(manifest.chunks):
                link.set(f"{manifest.key}/{index}", b"", GARBAGE).wait(60)

        yield write
    finally:
        link.close()


def updates(run: Run, plan: Plan) -> dict[str, Manifest]:
    """Return the updates of the open round, by their keys."""
    records = run.tracker.current_jobs(plan).values()
    manifests = (record.update for record in records if record.state == "done")
    return {manifest.key: manifest for manifest in manifests if manifest is not None}


def unseen_updates(run: Run, plan: Plan) -> list[Manifest]:
    """Wait a second for updates that come while the master is frozen: it has not collected them."""
    seen, found = updates(run, plan).keys(), dict[str, Manifest]()

    def look() -> bool:
        found.update(updates(run, plan))
        return bool(found.keys() - seen) or time.monotonic() > end

    end = time.monotonic() + 1.0
    until(look)
    return [found[key] for key in found.keys() - seen]


@pytest.mark.long
@pytest.mark.release
def test_a_corrupt_frame_over_an_update(session_services, run_on) -> None:
    run = run_on(session_services)
    plan = msgspec.convert(run.tracker.get("plan"), Plan)
    found: list[Manifest] = []
    with vandal(run) as write:
        while not found:
            run.advances(1)
            with frozen(run.master):
                run.cluster.hold(2**31)
                found = unseen_updates(run, plan)
                for manifest in found:
                    write(manifest)
    run.master.says("is refused")
    run.ends(*run.workers)


@pytest.mark.long
def test_a_corrupt_frame_over_the_model(session_services, run_on) -> None:
    run = run_on(session_services)
    for worker in run.workers:
        worker.end()  # who has the model already would not look at it again
    plan = msgspec.convert(run.tracker.get("plan"), Plan)
    until(lambda: len(updates(run, plan)) < plan.slots(0), what="a round with work left")
    with vandal(run) as write:
        head = run.tracker.head()  # of a round that nobody can end
        assert head is not None
        write(head.model)
        late = run.cluster.worker()
        late.says("is refused")
        run.advances(3)
    run.ends(late)


@pytest.mark.long
def test_keys_and_values_of_a_hostile_neighbour_end_nothing(session_services, run_on) -> None:
    """Somebody without the secret writes 10,000 keys, junk over values of the run, and junk into its journal."""
    run, rng = run_on(session_services), random.Random(3)
    link = HazelcastLink(run.servers.hazelcast.split(","), run.servers.cluster_name, run.tracker.store.map_name)
    with contextlib.closing(link):
        until(link.connected)
        for _ in range(5):
            strange = [*keys(rng, 1990), *(f"log/9{rng.randrange(10**19):019}/z" for _ in range(10))]
            genuine = [key for key in run.tracker.store.keys("") if Keys.is_of_run(key)]
            for key in [*strange, *rng.choices(genuine, k=5)]:
                link.set(key, b"", rng.choice(VALUES)).wait(10)
            until(lambda: run.tracker.head() is not None, what="the head that the master wrote again")
            run.advances(2)
    run.ends(*run.workers)
    assert len(run.master.err()) < 200_000
