"""A run over processes whose workers push their messages to each other: the answer is the one without, whoever dies."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import socket
import subprocess
from collections.abc import Iterator

import pytest

from dl4jlegacy.arrays.wire import digest
from dl4jlegacy.scaleout.links.liveness.handshake import CHALLENGE_NBYTES, WELCOME_NBYTES, ClientHandshake, Credentials
from dl4jlegacy.scaleout.links.mesh.wire import MESSAGES, header
from dl4jlegacy.scaleout.zookeeper import ZooKeeperSession
from tests.support import REPOSITORY
from tests.support.cluster_commands import COMMAND, RUN, SECRET, Cluster, Command, error, until

pytestmark = [pytest.mark.cluster, pytest.mark.long]

SHARING = [*RUN, "--router", "gradient-sharing", "--epochs", "2"]
COUNTS = """
from dl4jlegacy.scaleout.links.mesh.node import MeshNode
stop = MeshNode.stop
def say(self, *seconds):
    stop(self, *seconds)
    print("AT HAND", self.cache.found, "READ", self.cache.missed, "TAKEN", self.counts["taken"], flush=True)
MeshNode.stop = say
"""


@functools.cache
def without_a_mesh() -> dict:
    """What the embedded tracker says, and no mesh."""
    done = subprocess.run(
        [*COMMAND, "train", *SHARING, "--format", "json"],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
        cwd=REPOSITORY,
    )
    return json.loads(done.stdout)


def same(master: Command) -> None:
    assert master.wait(300) == 0, master.err()
    report = json.loads(master.out())
    for name in ("params_sha256", "examples", "batches_lost", "batches_duplicated"):
        assert report[name] == without_a_mesh()[name], name


def counts(worker: Command) -> tuple[int, int, int]:
    """How many messages a worker had at hand, how many it had to read, and how many came from others."""
    assert worker.wait() == 0, worker.err()
    found = re.search(r"AT HAND (\d+) READ (\d+) TAKEN (\d+)", worker.out())
    assert found, worker.out()
    return int(found[1]), int(found[2]), int(found[3])


def test_workers_that_push_give_the_answer_without_a_mesh_and_read_few_messages(cluster: Cluster) -> None:
    workers = [cluster.worker(patch=COUNTS) for _ in range(3)]
    same(cluster.master("--mesh", "mesh", "--min-workers", "3", run=SHARING))
    for worker in workers:
        at_hand, read, taken = counts(worker)
        assert at_hand > read and taken > at_hand // 4, (at_hand, read, taken)
    assert cluster.left_over() == []


def test_a_killed_worker_leaves_the_others_one_mesh_and_the_same_answer(cluster: Cluster) -> None:
    cluster.hold(3)
    master = cluster.master("--mesh", "mesh", run=SHARING)
    doomed = cluster.worker()  # it comes first, so it is the root
    cluster.wait_for_round(3)
    others = [cluster.worker(patch=COUNTS), cluster.worker(patch=COUNTS)]
    until(lambda: len(members(cluster)) == 3, what="three members")
    cluster.hold_in(8)
    doomed.process.kill()
    cluster.hold_in(12)
    others.append(cluster.worker(patch=COUNTS))
    until(lambda: any(f"-{others[2].pid}-" in name for name in members(cluster)), what="a member that comes late")
    cluster.let_go()
    same(master)
    for worker in others[:2]:
        at_hand, _, taken = counts(worker)
        assert at_hand and taken
    assert others[2].wait() == 0, others[2].err()
    assert cluster.left_over() == []


def test_a_killed_master_with_workers_of_its_own_is_replaced(cluster: Cluster) -> None:
    flags = ("train", *SHARING, "--workers", "2", *cluster.master_flags, "--mesh", "plain", "--format", "json")
    cluster.hold(6)
    master = cluster.start(*flags, "--run", "with-workers")
    worker = cluster.worker(patch=COUNTS)
    until(lambda: len(members(cluster)) == 2, what="the master's process and the worker's are members")
    cluster.wait_for_round(6)
    master.process.kill()
    cluster.let_go()
    same(cluster.start("resume", "with-workers", "--zookeeper", cluster.zookeeper, "--format", "json"))
    at_hand, _, _ = counts(worker)
    assert at_hand
    assert cluster.left_over() == []


def members(cluster: Cluster) -> dict[str, str]:
    """The processes of the mesh that Zookeeper has, and their addresses."""
    with ZooKeeperSession(cluster.zookeeper, secret=SECRET.encode()) as session:
        folder = "/dl4jlegacy/master/mesh"
        nodes = {name: session.get(f"{folder}/{name}") for name in session.children(folder) or []}
        return {name: json.loads(node.data)["info"]["address"] for name, node in nodes.items() if node is not None}


@contextlib.contextmanager
def connected(address: str) -> Iterator[socket.socket]:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as line:
        yield line


def received(line: socket.socket, nbytes: int) -> bytes:
    said = b""
    while len(said) < nbytes and (more := line.recv(nbytes - len(said))):
        said += more
    return said


def is_closed(line: socket.socket) -> bool:
    with contextlib.suppress(ConnectionResetError):
        while line.recv(4096):
            continue
    return True


def test_strangers_other_formats_and_messages_too_long_are_refused_by_name_and_the_run_goes_on(
    cluster: Cluster,
) -> None:
    cluster.hold(2)
    master = cluster.master("--mesh", "mesh", run=SHARING)
    worker = cluster.worker()
    cluster.wait_for_round(2)
    until(lambda: members(cluster), what="a member")
    ((_, address),) = members(cluster).items()
    with cluster.tracker(cluster.run) as tracker:
        keyspace = f"{cluster.run}.{json.loads(tracker.get('conf'))['incarnation']}"
    with connected(address) as line:
        line.sendall(b"DL4J messages 9\n" + bytes(100))
        assert is_closed(line)
    worker.says("of version '9' of the messages format, and this process has version 1")
    for secret in (None, b"a guess"):
        with connected(address) as line:
            stranger = ClientHandshake(Credentials(keyspace, secret, MESSAGES), "stranger")
            line.sendall(stranger.hello(received(line, CHALLENGE_NBYTES)))
            assert received(line, WELCOME_NBYTES)[:1] == b"X"
    with connected(address) as line:
        insider = ClientHandshake(Credentials(keyspace, SECRET.encode(), MESSAGES), "insider")
        line.sendall(insider.hello(received(line, CHALLENGE_NBYTES)))
        insider.check_welcome(received(line, WELCOME_NBYTES))
        line.sendall(header(digest(b""), 1 << 31))
        assert is_closed(line)
    cluster.let_go()
    same(master)
    assert worker.wait() == 0, worker.err()


def test_a_network_that_a_machine_is_not_in_is_told_and_the_run_goes_on(cluster: Cluster) -> None:
    master = cluster.master("--mesh", "mesh", "--network-mask", "203.0.113.0/24", run=SHARING)
    worker = cluster.worker()
    same(master)
    assert worker.wait() == 0
    assert "no address in 203.0.113.0/24" in worker.err()


def test_a_mesh_for_a_router_without_messages_is_refused(cluster: Cluster) -> None:
    master = cluster.master("--mesh", "mesh", run=RUN)
    error(master, 3, "Conf.void_configuration", "iterative-reduce", "gradient-sharing")
