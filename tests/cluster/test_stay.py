"""A pool that stays: one process works for run after run, as a program trains epochs; the exercise of 2014."""

from __future__ import annotations

import re
import sys

import pytest

from dl4jlegacy import ActorNetworkRunner, Conf, IrisDataSetIterator
from dl4jlegacy.cli.commands import legacy
from dl4jlegacy.errors import UsageError
from dl4jlegacy.nn import zoo
from dl4jlegacy.services import ServicesState
from tests.support.cluster_commands import SECRET, Cluster, until


@pytest.mark.long
def test_one_pool_works_for_every_epoch_of_a_program(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DL4J_SECRET", SECRET)
    pool = cluster.worker("--stay", "--log-format", "json")

    def told(event: str) -> int:
        return pool.err().count(f'"event": "{event}"')

    until(lambda: told("waiting"), what="the pool waits before there is any run")
    conf = Conf(multi_layer_conf=zoo.mlp(4, 3), jobs_per_round=2)
    grid = {"tracker": f"hazelcast://{cluster.hazelcast}", "cluster_name": cluster.cluster_name}
    network, examples = None, 0
    for _ in range(3):  # for epoch: net.fit(...)
        with ActorNetworkRunner(
            "master", IrisDataSetIterator(50), zookeeper=cluster.zookeeper, first_model=network, **grid
        ) as runner:
            runner.setup(conf)
            result = runner.train(deadline=120)
            network, examples = runner.network(result), examples + result.head.examples
    until(lambda: told("waiting") == 4, what="the pool waits for a fourth run")
    assert (told("joined"), told("left"), examples) == (3, 3, 450)
    pool.process.terminate()
    assert pool.wait() == 143


@pytest.mark.long
def test_the_exercise_is_two_commands(cluster: Cluster, session_services: ServicesState) -> None:
    """``ActorNetworkRunnerApp -ad 127.0.0.1 -t worker -a dbn`` and ``MnistMultiThreadedExample``, in their order."""
    runner = [sys.executable, "-c", "from dl4jlegacy.cli.commands.legacy import main; main()"]
    here = {"DL4J_ZOOKEEPER": cluster.zookeeper, "DL4J_SERVICES": session_services.folder}
    worker = cluster.start("-ad", "127.0.0.1", "-t", "worker", "-a", "dbn", env=here, program=runner)
    servers = ("--tracker", f"hazelcast://{cluster.hazelcast}", "--zookeeper", cluster.zookeeper)
    example = [sys.executable, "examples/mnist_multi_threaded.py"]
    no_mnist = {
        "DL4J_DATA_DIR": str(cluster.folder),
        "http_proxy": "http://127.0.0.1:9",
        "https_proxy": "http://127.0.0.1:9",
    }
    master = cluster.start("--examples", "320", "--epochs", "2", *servers, env={**here, **no_mnist}, program=example)
    assert master.wait(240) == 0, master.err()
    assert re.search(r"^1280 examples in .* 0 batches lost$", master.out(), flags=re.M), master.out()
    assert worker.wait() == 0, worker.err()


def test_only_a_worker_stays(capsys: pytest.CaptureFixture[str]) -> None:
    for role in ("master", "standby"):
        with pytest.raises(UsageError, match=f"of type '{role}' takes no stay"):
            ActorNetworkRunner(role, IrisDataSetIterator(50), zookeeper="127.0.0.1:1", stay=True)
    assert ActorNetworkRunner("worker", zookeeper="127.0.0.1:1", stay=True).setup() == Conf()
    with pytest.raises(SystemExit):
        legacy.main(["-a", "mlp", "-data", "iris", "--stay"])
    assert "--stay without -t worker" in capsys.readouterr().err
