"""A program of somebody's own on the cluster: its master, standby and workers are processes; its jobs count once."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from dl4jlegacy import ActorNetworkRunner, Conf, DigitsDataSetIterator
from dl4jlegacy.nn import zoo
from dl4jlegacy.training.prepare import params_sha256
from tests.support.cluster_commands import SECRET, Cluster, Command, error, same, until
from tests.support.mistaken_parts import MISTAKES
from tests.support.own_program import lines

pytestmark = pytest.mark.long
PROGRAM = [sys.executable, "-m", "tests.support.own_program"]
USE = ("--use", "tests.support.own_program")


def lead(cluster: Cluster, role: str, count: int, run: str = "words") -> Command:
    where = (cluster.zookeeper, f"hazelcast://{cluster.hazelcast}", cluster.cluster_name)
    return cluster.start(role, *where, "--run", run, str(count), program=PROGRAM)


def counted_once(master: Command, count: int) -> None:
    assert master.wait(240) == 0, master.err()
    expected = dict(sum((Counter(line.split()) for line in lines(count)), Counter()))
    assert json.loads(master.out()) == {"counts": expected, "lost": 0, "twice": 0}


def test_words_are_counted_once_with_workers_and_the_master_killed(cluster: Cluster) -> None:
    """Two workers are ``dl4j`` with ``--use``, two the program itself, one of them with a performer that has no name.

    A standby of the program takes over.
    """
    master = lead(cluster, "master", 800)
    workers = [cluster.worker(*USE) for _ in range(2)]
    workers += [cluster.start(role, cluster.zookeeper, program=PROGRAM) for role in ("unregistered", "worker")]
    cluster.wait_for_round(3)
    standby = lead(cluster, "standby", 800)
    workers[0].process.kill()
    workers[3].process.kill()
    until(lambda: cluster.status()["standbys"], what="the standby is registered")
    assert master.process.poll() is None
    master.process.kill()
    counted_once(standby, 800)
    assert [worker.wait() for worker in workers[1:3]] == [0, 0]
    assert not cluster.left_over()


def test_a_program_that_fails_with_its_result_leaves_the_run_to_the_next_one(cluster: Cluster) -> None:
    """As one whose model cannot be written: all batches are done, but nothing is cleared up before it ends well."""
    master = lead(cluster, "fails", 80)
    worker = cluster.worker(*USE)
    assert master.wait(120) == 1
    assert "the disk is full" in master.err()
    assert worker.wait() == 0
    counted_once(lead(cluster, "resume", 80), 80)
    assert not cluster.left_over()


def test_a_worker_without_the_performer_says_so_and_leaves_the_jobs_to_others(cluster: Cluster) -> None:
    master = lead(cluster, "master", 80)
    error(cluster.worker(), 10, "DL4J-PART", "'word-count'", "--use", "none is registered here")
    able = cluster.worker(env={"DL4J_USE": "tests.support.own_program"})
    counted_once(master, 80)
    assert able.wait() == 0


LEAVING = """
import sys
from tests.support.own_program import WordCountPerformer
WordCountPerformer.perform = lambda self, job: sys.exit("no licence")
"""


def test_a_job_that_exits_is_a_failure_that_the_master_tells(cluster: Cluster) -> None:
    """The only worker exits in every job: its process stays for others to know, and the run ends with the words."""
    master = lead(cluster, "master", 80)
    worker = cluster.worker(*USE, patch=LEAVING)
    assert master.wait(120) == 1
    assert "failed on every attempt" in master.err() and "SystemExit: no licence" in master.err()
    assert "SystemExit: no licence" in worker.err()
    worker.process.terminate()
    worker.wait()


def test_a_master_and_its_workers_take_a_router_by_its_name(cluster: Cluster) -> None:
    master = cluster.master("--epochs", "2", "--router", "in-order", *USE)
    error(cluster.worker(), 10, "DL4J-PART", "router 'in-order'", "--use")
    able = cluster.worker(*USE)
    assert same(master, 2)["router"] == "in-order"
    assert able.wait() == 0
    assert not cluster.left_over()


CHANGED = """
from dl4jlegacy import IterativeReduceWorkRouter, Result, register_performer, register_router

register_router("in-order")(lambda conf: IterativeReduceWorkRouter(weighted_average=False))


@register_performer("word-count")
class WordCountPerformer:
    progress = 0

    def __init__(self, conf, kernels): ...

    def update(self, model): ...

    def perform(self, job):
        return Result({"value": {"words": 1}})
"""


def test_workers_with_other_code_under_the_same_name_are_refused(cluster: Cluster, tmp_path: Path) -> None:
    """The master decides on the router, and the first worker on the performer."""
    (tmp_path / "changed_program.py").write_text(CHANGED)
    changed = {"PYTHONPATH": str(tmp_path), "DL4J_USE": "changed_program"}
    master = cluster.master("--epochs", "2", "--router", "in-order", *USE)
    error(cluster.worker(env=changed), 9, "DL4J-VERSION", "cannot join run", "router in-order")
    assert cluster.worker(*USE).wait() == 0
    assert same(master, 2)["router"] == "in-order"
    words = lead(cluster, "master", 400)
    able = cluster.worker(*USE)
    cluster.wait_for_round(1)
    error(cluster.worker(env=changed), 9, "DL4J-VERSION", "began with other code", "performer")
    counted_once(words, 400)
    assert able.wait() == 0


def network(epochs: int) -> Conf:
    return Conf(multi_layer_conf=zoo.mlp(64, 10, hidden=(20,)), run="own-network", epochs=epochs, jobs_per_round=4)


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DL4J_SECRET", SECRET)


def test_a_network_of_ones_own_ends_in_the_bits_of_a_local_run(cluster: Cluster, secret: None, tmp_path: Path) -> None:
    """The master is this process; two workers, one of which is killed, and the same run without a cluster."""
    cluster._runs.add("own-network")
    where = {"tracker": f"hazelcast://{cluster.hazelcast}", "zookeeper": cluster.zookeeper}
    workers = []
    cluster.hold(1)

    def disturb(status: object) -> None:
        if len(workers) == 2 and getattr(status, "head", None) is not None:
            workers[0].process.kill()
            workers.append(cluster.worker())
        elif len(workers) == 3 and cluster.is_held() and "joined" in workers[2].err():
            cluster.let_go()

    with ActorNetworkRunner("master", DigitsDataSetIterator(32), cluster_name=cluster.cluster_name, **where) as runner:
        conf = runner.setup(network(8))
        assert conf.state_tracker_connection_string == cluster.hazelcast
        workers += [cluster.worker(), cluster.worker()]
        result = runner.train(disturb, deadline=200)
        spread = params_sha256(runner.network(result).params)
    assert len(workers) == 3
    assert not cluster.left_at_end()
    with ActorNetworkRunner("master", DigitsDataSetIterator(32)) as runner:
        runner.setup(network(8))
        alone = params_sha256(runner.network(runner.train(deadline=200)).params)
    assert spread == alone


def test_an_interrupted_program_goes_on_with_its_run(cluster: Cluster, secret: None) -> None:
    where = {"tracker": f"hazelcast://{cluster.hazelcast}", "zookeeper": cluster.zookeeper}
    cluster._runs.add("own-network")
    worker = cluster.worker()

    def runner_of(type: str = "master") -> ActorNetworkRunner:
        return ActorNetworkRunner(type, DigitsDataSetIterator(32), cluster_name=cluster.cluster_name, **where)

    def interrupt(status: object) -> None:
        head = getattr(status, "head", None)
        if head is not None and head.round > 3:
            raise KeyboardInterrupt

    first = runner_of()
    first.setup(network(8))
    with pytest.raises(KeyboardInterrupt) as caught:
        first.train(interrupt)  # without "with", and nobody calls shutdown
    assert "it stays in its tracker: setup(conf, resume=True)" in caught.value.__notes__[0]
    with runner_of() as runner:
        runner.setup(network(8), resume=True)
        result = runner.train(deadline=200)
        assert result is not None
        assert result.batches_lost == result.batches_duplicated == 0
        resumed = params_sha256(runner.network(result).params)
    assert worker.wait() == 0
    with ActorNetworkRunner("master", DigitsDataSetIterator(32)) as runner:
        runner.setup(network(8))
        assert resumed == params_sha256(runner.network(runner.train(deadline=200)).params)


LEGACY = [sys.executable, "-c", "from dl4jlegacy.cli.commands.legacy import main; main()"]


def test_the_legacy_master_and_worker_meet(cluster: Cluster) -> None:
    """With the words of 2014; only Zookeeper's port is another one here."""
    env = {"DL4J_ZOOKEEPER": cluster.zookeeper, "DL4J_CLUSTER_NAME": cluster.cluster_name}
    host, port = cluster.hazelcast.split(":")
    flags = ("-a", "mlp", "-data", "iris", "-hl", "8", "-fte", "3", "-sp", "10")
    start: Callable[..., Command] = lambda *words: cluster.start(*words, env=env, program=LEGACY)  # noqa: E731
    master = start("-t", "master", "-h", host, "-stp", port, *flags)
    error(start("-t", "worker", "-ad", host, "-a", "dbn"), 3, "-a dbn", "trains mlp")
    worker = start("-ad", host, "-t", "worker", "-a", "mlp")
    assert master.wait() == 0, master.err()
    assert "Accuracy" in master.out()
    assert worker.wait() == 0, worker.err()


@pytest.mark.parametrize("name", ["work raises", "work is a set", "no begin", "finish exits", "fold returns nothing"])
def test_a_mistake_in_a_part_is_told_once(cluster: Cluster, name: str) -> None:
    """As in one process; a run that had begun has failed for its worker, too, and of the others nothing is left."""
    where = (cluster.zookeeper, f"hazelcast://{cluster.hazelcast}", cluster.cluster_name)
    cluster._runs.add("mistaken")
    master = cluster.start(name, *where, program=[sys.executable, "-m", "tests.support.mistaken_parts"])
    begins = name in ("finish exits", "fold returns nothing")
    worker = cluster.worker("--use", "tests.support.mistaken_parts") if begins else None
    assert master.wait(60) == 1
    last = master.err().strip().splitlines()[-1]
    assert re.match(rf"dl4jlegacy\.errors\.ContractError: .*{MISTAKES[name].words}", last), master.err()
    assert "Unhandled exception" not in master.err()
    if worker is None:
        assert not cluster.left_over()
    else:
        told = error(worker, 1, "DL4J-CONTRACT")
        assert "Traceback" not in worker.err(), told
