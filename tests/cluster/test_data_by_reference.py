"""Runs whose workers read their data themselves, over real servers: the answer and the memory of the master."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from dl4jlegacy import ActorNetworkRunner, Conf, DigitsDataSetIterator
from dl4jlegacy.datasets import ExportedDataSetIterator
from dl4jlegacy.nn import zoo
from dl4jlegacy.training.prepare import params_sha256
from tests.nn.test_given_batches import SEVERAL, iterator, two_of_each
from tests.nn.test_given_batches import parts as given
from tests.support.cluster_commands import SECRET, Cluster, error, same

pytestmark = [pytest.mark.cluster, pytest.mark.long]

GENERATED = [sys.executable, "-m", "tests.support.generated_batches"]
BATCHES, ROWS = 100, 1250
"""500 MB."""
MOST = 220
"""MiB that the master of these may have beyond that of a few hundred examples.

The batches that are read ahead are 20, what the C library keeps for the threads that read some 70, and compiling the
kernels that only larger batches use 50, where no process has done so before.
"""


def led(cluster: Cluster, *how: str, batches: int = BATCHES, rows: int = ROWS) -> dict[str, Any]:
    """Return what a master says at its end; with two worker processes, unless it is alone."""
    where = (cluster.zookeeper, f"hazelcast://{cluster.hazelcast}", cluster.cluster_name)
    alone = how == ("alone",)
    arguments = how if alone else (*where, "--run", *how)
    master = cluster.start(str(batches), str(rows), *arguments, program=GENERATED)
    workers = [] if alone else [cluster.worker(), cluster.worker()]
    assert master.wait(240) == 0, master.err()
    assert [worker.wait() for worker in workers] == [0] * len(workers), [worker.err() for worker in workers]
    report: dict[str, Any] = json.loads(master.out())
    assert (report["lost"], report["twice"], report["batches"]) == (0, 0, batches)
    return report


def test_the_master_holds_no_more_of_the_data_than_it_is_sending(cluster: Cluster, tmp_path: Path) -> None:
    """By value, by reference and without a cluster the parameters are the same."""
    least = led(cluster, "tiny", batches=8, rows=10)["peak"]
    alone = led(cluster, "alone")
    by_value = led(cluster, "by-value")
    by_reference = led(cluster, "by-reference", str(tmp_path / "batches"))
    assert (by_value["by_reference"], by_reference["by_reference"]) == (False, True)
    assert by_value["params_sha256"] == by_reference["params_sha256"] == alone["params_sha256"]
    assert ROWS * BATCHES * 4000 / 2**20 > 2 * MOST
    assert max(by_value["peak"], by_reference["peak"], alone["peak"]) - least < MOST


def test_the_workers_of_dl4j_read_a_data_set_themselves(cluster: Cluster) -> None:
    """A worker that has other data of that name ends, and says both fingerprints; the jobs carry no data."""
    master = cluster.master("--epochs", "4", "--data-by-reference")
    other = "import dl4jlegacy.datasets.sources as m; m.read_digits, m.DIGITS_NAMES = m.read_iris, m.IRIS_NAMES"
    words = (f"digits on {socket.gethostname()} has data of fingerprint", "and those of run")
    error(cluster.worker(patch=other), 3, "DL4J-DATA", *words)
    cluster.hold(3)
    workers = [cluster.worker(), cluster.worker()]
    cluster.wait_for_round(3)
    with cluster.tracker(cluster.run) as tracker:
        assert not [key for key in tracker.store.keys("") if key.startswith("data/")]
    workers[0].process.kill()
    cluster.let_go()
    same(master, 4)
    assert workers[1].wait() == 0
    assert not cluster.left_over()


def test_workers_read_exported_multi_data_sets_themselves(cluster: Cluster, secret: None, tmp_path: Path) -> None:
    """Inputs and outputs of several ranks, with masks; the model is that of the same batches in memory."""
    cluster._runs.add("several")
    conf = Conf(computation_graph_conf=two_of_each(), run="several", epochs=3, jobs_per_round=2)
    where = {"tracker": f"hazelcast://{cluster.hazelcast}", "zookeeper": cluster.zookeeper}
    batches = (part for part in given(SEVERAL))
    with ActorNetworkRunner("master", batches, cluster_name=cluster.cluster_name, **where) as runner:
        assert runner.setup(conf.replace(export_directory=str(tmp_path / "batches"))).data_by_reference
        workers = [cluster.worker(), cluster.worker()]
        result = runner.train(deadline=200)
        spread = params_sha256(runner.network(result).params)
    assert [worker.wait() for worker in workers] == [0, 0], [worker.err() for worker in workers]
    with ActorNetworkRunner("master", iterator(SEVERAL)) as runner:
        runner.setup(conf)
        assert spread == params_sha256(runner.network(runner.train(deadline=200)).params)


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DL4J_SECRET", SECRET)


def test_a_worker_whose_files_were_changed_leaves_their_jobs_to_others(
    cluster: Cluster, secret: None, tmp_path: Path
) -> None:
    """One of two workers has a copy of its own where the other has what was exported, every other batch changed."""
    cluster._runs.add("own-copies")
    folder, kept = tmp_path / "batches", DigitsDataSetIterator(32, shuffle=False)
    conf = Conf(multi_layer_conf=zoo.mlp(64, 10, hidden=(20,)), run="own-copies", epochs=8, jobs_per_round=4)
    where = {"tracker": f"hazelcast://{cluster.hazelcast}", "zookeeper": cluster.zookeeper}
    with ActorNetworkRunner("master", kept, cluster_name=cluster.cluster_name, **where) as runner:
        runner.setup(conf.replace(export_directory=str(folder)))
        copy = shutil.copytree(folder, tmp_path / "copy")
        for index in range(0, ExportedDataSetIterator.open(copy).total_batches, 2):
            file = copy / f"batch-{index:08d}"
            file.write_bytes(file.read_bytes()[:-1] + b"\x01")
        mounted = (
            f"import dl4jlegacy.storage.paths as m; own = m.open_folder; m.open_folder = lambda path: own('{copy}')"
        )
        changed = cluster.worker(patch=mounted)
        good = cluster.worker()
        for worker in (changed, good):  # alone, the one with changed files makes the run fail
            worker.says("joined:")
        result = runner.train(deadline=200)
        assert result is not None
        assert (result.batches_lost, result.batches_duplicated) == (0, 0)
        spread = params_sha256(runner.network(result).params)
    assert good.wait() == 0, good.err()
    assert changed.wait() in (0, 1)  # set aside, or the run was over before that
    assert "is not what was exported" in changed.err() and str(copy) in changed.err()
    assert not cluster.left_over()
    with ActorNetworkRunner("master", kept) as runner:
        runner.setup(conf)
        assert spread == params_sha256(runner.network(runner.train(deadline=200)).params)
