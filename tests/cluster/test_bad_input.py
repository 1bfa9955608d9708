"""What does not fit or does not answer, on a cluster: one clear message each, in time, and nothing is left behind."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from dl4jlegacy.cluster.address import ClusterAddress, find_conf
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.zookeeper import ZooKeeperConfigurationRegister
from tests.support.cluster_commands import RUN, SECRET, Cluster, Command, error

pytestmark = [pytest.mark.cluster, pytest.mark.long]

ENDLESS = ("--epochs", "500", "--run", "r1")
ANOTHER = {"DL4J_SECRET": "another secret"}


@contextlib.contextmanager
def mute() -> Iterator[str]:
    """Take connections and never say a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@contextlib.contextmanager
def black_hole() -> Iterator[str]:
    """Swallow every attempt to connect, as a firewall that drops packets does: the queue for connections is full."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(server.getsockname())
        probe = stack.enter_context(socket.socket())
        probe.settimeout(0.5)
        with pytest.raises(TimeoutError):
            probe.connect(server.getsockname())
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_what_cannot_be_reached_is_named(cluster: Cluster) -> None:
    early = cluster.worker("--wait", "1")
    unreachable = ("--tracker", "hazelcast://127.0.0.1:1", "--zookeeper", cluster.zookeeper, "--id", "other")
    started = [cluster.start("worker", "--zookeeper", "127.0.0.1:1"), cluster.start("master", *RUN, *unreachable)]
    error(early, 4, "DL4J-TRACKER", "no run with the id 'master'", "Start the master first", "dl4j logs DIR")
    for command in started:
        error(command, 4, "DL4J-TRACKER", "127.0.0.1:1", "dl4j services up")
    assert cluster.left_over() == []


def test_what_is_missing_is_a_usage_error(cluster: Cluster) -> None:
    wrong = {
        cluster.start("worker"): "--zookeeper is missing",
        cluster.start("worker", "--zookeeper", "nowhere"): "host:port",
        cluster.start("worker", "--zookeeper", "h:1", "--id", "a/b"): "--id 'a/b'",
        cluster.start("master", *RUN): "--tracker hazelcast://host:port",
        cluster.start("train", *RUN, "--tracker", "hazelcast://127.0.0.1:1"): "--zookeeper is missing",
        cluster.master("--worker-wait", "soon"): "--worker-wait soon",
        cluster.start("logs", "--follow", "folder"): "--follow",
    }
    for command, words in wrong.items():
        error(command, 2, words)


def test_addresses_that_do_not_answer_are_given_up_within_the_deadline(cluster: Cluster) -> None:
    with mute() as silent, black_hole() as far:
        started: list[tuple[Command, str]] = []
        for id, nowhere in (("silent", silent), ("far", far)):
            hazelcast = ("--tracker", f"hazelcast://{nowhere}", "--zookeeper", cluster.zookeeper, "--id", id)
            for command in (
                ("worker", "--zookeeper", nowhere),
                ("status", "--zookeeper", nowhere),
                ("master", *RUN, *cluster.master_flags[:-1], nowhere),
                ("master", *RUN, *hazelcast),
            ):
                started.append((cluster.start(*command), nowhere))
        for process, nowhere in started:
            error(process, 4, "DL4J-TRACKER", nowhere, "dl4j services up")
    assert cluster.left_over() == []


def test_a_second_master_with_the_same_id_is_refused(cluster: Cluster) -> None:
    first = cluster.master(*ENDLESS)
    cluster.worker()
    cluster.wait_for_round(1)
    error(cluster.master("--epochs", "2"), 4, "another master holds the id", f"pid {first.pid}")
    assert cluster.status()["run"] == "r1"


def test_another_secret_is_refused_wherever_it_is_used(cluster: Cluster) -> None:
    cluster.master(*ENDLESS)
    cluster.worker()
    cluster.wait_for_round(1)
    where = ("--zookeeper", cluster.zookeeper)
    named = (("worker",), ("status",), ("stop",), ("logs",), ("master", "--standby"), ("resume", "master"))
    started = [cluster.start(*command, *where, env=ANOTHER) for command in named]
    for command in (*started, cluster.start("master", *RUN, *cluster.master_flags, env=ANOTHER)):
        error(command, 6, "DL4J-AUTH", "secret")
    assert cluster.status()["state"] == "running"


def test_a_worker_of_another_version_is_refused(cluster: Cluster) -> None:
    cluster.master(*ENDLESS)
    cluster.worker()
    cluster.wait_for_round(1)
    stranger = cluster.worker(patch="import dl4jlegacy.arrays.wire\ndl4jlegacy.arrays.wire.VERSION = 99\n")
    error(stranger, 9, "DL4J-VERSION", "wire 1 there, 99 here")


def test_who_takes_over_with_other_data_is_refused_and_the_run_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    file, rows = tmp_path / "data.csv", [f"{i},{i % 7},{i % 3}" for i in range(60)]
    file.write_text("\n".join(rows))
    run = ["--model", "mlp", "--dataset", str(file), "--jobs-per-round", "2", "--seed", "7"]
    cluster.hold(1)
    master = cluster.master("--epochs", "20", "--run", "r1", run=run)
    cluster.worker()
    cluster.wait_for_round(1)
    file.write_text("\n".join([*rows[:7], "7,0,2", *rows[8:]]))  # it was 7,0,1
    where = ("--zookeeper", cluster.zookeeper)
    error(
        cluster.start("master", "--standby", *where), 8, "DL4J-CHECKPOINT", "data.csv of fingerprint", "give it the da"
    )
    master.process.kill()
    error(cluster.start("resume", "r1", *where), 8, "DL4J-CHECKPOINT", "data.csv of fingerprint")
    file.write_text("\n".join(rows))
    cluster.let_go()
    resumed = cluster.start("resume", "r1", *where, "--format", "json")
    assert resumed.wait() == 0, resumed.err()
    assert json.loads(resumed.out())["batches_lost"] == 0
    assert cluster.left_at_end() == []


def test_a_conf_that_is_too_large_for_zookeeper_is_refused_before_anything_is_written(
    cluster: Cluster, tmp_path: Path
) -> None:
    conf = tmp_path / "conf.json"
    conf.write_text(json.dumps({"data_dir": "/" + "x" * 1_100_000}))
    flags = (str(conf), *cluster.master_flags, "--run", "r1", "--dataset", "digits")
    refused = cluster.start("master", *flags, env={"DL4J_DATA_DIR": ""})  # it comes before the file's
    error(refused, 3, "DL4J-CONF", "1,000,000", "bytes")
    assert cluster.left_over() == []


def test_a_master_that_cannot_begin_leaves_nothing_behind(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (folder / "checkpoint-00000001.json").write_text("{}")
    flags = ("--run", "r1", "--checkpoint-dir", str(folder))
    error(cluster.master(*flags), 8, "already holds checkpoints")
    error(cluster.master("--run", "r1", "--bind", "192.0.2.1"), 3, "192.0.2.1", "choose an address of this machine")
    error(cluster.master("--run", "r1", "--out", str(tmp_path / "nowhere" / "model.zip")), 8, "no folder")
    assert cluster.left_over() == []
    assert not (folder / "journal.jsonl").exists()


def test_a_conf_that_was_changed_in_mid_run_keeps_new_workers_out_and_harms_nobody(cluster: Cluster) -> None:
    cluster.master(*ENDLESS)
    worker = cluster.worker()
    cluster.wait_for_round(1)
    conf = find_conf(ClusterAddress(cluster.zookeeper, SECRET.encode()))
    register_in_its_place(cluster, conf.replace(seed=conf.seed + 1))
    error(cluster.worker(), 9, "DL4J-VERSION", "the Conf in Zookeeper is not the one that the run began with")
    with cluster.tracker("r1") as tracker:
        before = tracker.head().round
    cluster.wait_for_round(before + 50)
    assert worker.process.poll() is None


def register_in_its_place(cluster: Cluster, conf: Conf) -> None:
    host, port = cluster.zookeeper.split(":")
    with ZooKeeperConfigurationRegister(conf, "master", host, int(port), secret=SECRET.encode()) as register:
        register.register()


def test_a_worker_whose_network_does_not_fit_the_model_says_so_and_the_run_ends_with_its_words(
    cluster: Cluster,
) -> None:
    """As if a worker had been started with a Conf of its own: it gets another network into its hands."""
    master = cluster.master(*ENDLESS)
    patch = """
import dl4jlegacy.scaleout.actors.worker_pool as pool
from dl4jlegacy.nn import zoo
make = pool.network_performer
def network_performer(conf, kernels, **more):
    return make(conf.replace(multi_layer_conf=zoo.select("mlp").build(64, 10, seed=1)), kernels, **more)
pool.network_performer = network_performer
"""
    cluster.worker(patch=patch)
    said = master.wait(), master.err()
    assert said[0] == 1
    assert "failed on every attempt" in said[1] and "was the Conf changed during the run?" in said[1]
