"""A run over processes: one command each for the master and the workers, and what happens when they are killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from progress_lines import without_progress

from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.zookeeper import ZooKeeperConfigurationRegister

COMMAND = [sys.executable, "-m", "dl4jlegacy"]
RUN = ["--model", "dbn", "--dataset", "digits", "--jobs-per-round", "4", "--seed", "7", "--pretrain-epochs", "2"]

SECRET = "a secret of this test"

pytestmark = pytest.mark.cluster


class Cluster:
    """Starts the project's commands against one set of servers, and ends them all."""

    def __init__(self, hazelcast: str, zookeeper: str, cluster_name: str) -> None:
        self.zookeeper = zookeeper
        self.master_flags = [
            *("--tracker", f"hazelcast://{hazelcast}", "--cluster-name", cluster_name, "--zookeeper", zookeeper)
        ]
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "DL4J_SECRET": SECRET},
        )
        self._started.append(process)
        return process

    def master(self, *flags: str) -> subprocess.Popen[str]:
        return self.start("master", *RUN, *self.master_flags, *flags, "--format", "json")

    def worker(self) -> subprocess.Popen[str]:
        return self.start("worker", "--zookeeper", self.zookeeper)

    def head(self) -> dict | None:
        """Return the head as ``dl4j status`` shows it, None if there is no run."""
        shown = self.start("status", "--zookeeper", self.zookeeper, "--format", "json")
        out, _ = shown.communicate(timeout=60)
        return json.loads(out).get("head") if shown.returncode == 0 else None

    def wait_for_round(self, round_: int, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while ((self.head() or {}).get("round") or 0) < round_:
            assert time.monotonic() < end, f"round {round_} was not reached in {seconds} s"

    def end(self) -> None:
        """Kill what still runs, and take its Conf back, so that the next test finds no run."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
            with contextlib.suppress(ValueError):
                process.communicate(timeout=30)
        host, port = self.zookeeper.split(":")
        with ZooKeeperConfigurationRegister(Conf(), "master", host, int(port), secret=SECRET.encode()) as register:
            register.remove()


@pytest.fixture
def cluster(hazelcast_address: str, hazelcast_cluster_name: str, zookeeper_address: str) -> Iterator[Cluster]:
    cluster = Cluster(hazelcast_address, zookeeper_address, hazelcast_cluster_name)
    yield cluster
    cluster.end()


@pytest.fixture(scope="module")
def embedded() -> dict[int, dict]:
    """What the embedded tracker says, by epochs."""
    reports = {}
    for epochs in (2, 10):
        done = subprocess.run(
            [*COMMAND, "train", *RUN, "--epochs", str(epochs), "--format", "json"],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        reports[epochs] = json.loads(done.stdout)
    return reports


def same(process: subprocess.Popen[str], expected: dict, timeout: float = 120) -> None:
    """Assert that a master ends well, with the same answer as the embedded tracker and every batch counted once."""
    out, err = process.communicate(timeout=timeout)
    assert process.returncode == 0, err
    report = json.loads(out)
    assert report["params_sha256"] == expected["params_sha256"]
    assert (report["batches_lost"], report["batches_duplicated"]) == (0, 0)
    assert report["examples"] == expected["examples"]


def test_a_master_and_two_workers_in_processes_of_their_own_give_the_embedded_trackers_answer(cluster, embedded):
    workers = [cluster.worker() for _ in range(2)]
    same(cluster.master("--epochs", "2"), embedded[2])
    for worker in workers:
        _, err = worker.communicate(timeout=30)
        assert worker.returncode == 0, err
        assert err.splitlines()[-1].endswith("status done")
    assert cluster.head() is None  # the Conf is taken back, so that nobody joins a run that is over


def test_killed_workers_change_nothing(cluster, embedded):
    master = cluster.master("--epochs", "10")
    doomed = [cluster.worker(), cluster.worker()]
    cluster.wait_for_round(5)
    doomed[0].kill()
    cluster.worker()
    cluster.wait_for_round(20)
    doomed[1].send_signal(signal.SIGTERM)
    same(master, embedded[10])


def test_a_killed_master_is_replaced_by_its_standby(cluster, embedded):
    master = cluster.master("--epochs", "10")
    for _ in range(2):
        cluster.worker()
    cluster.wait_for_round(3)
    standby = cluster.start("master", "--standby", "--zookeeper", cluster.zookeeper, "--format", "json")
    cluster.wait_for_round(10)
    master.kill()
    same(standby, embedded[10])


def test_a_stopped_run_ends_everybody(cluster):
    master, worker = cluster.master("--epochs", "10"), cluster.worker()
    cluster.wait_for_round(3)
    stopped = cluster.start("stop", "--zookeeper", cluster.zookeeper)
    assert "stopped in round" in stopped.communicate(timeout=30)[0]
    _, err = master.communicate(timeout=30)
    assert master.returncode == 1
    assert "was stopped in round" in err
    worker.communicate(timeout=60)
    assert worker.returncode == 0


def error(process: subprocess.Popen[str], status: int, *words: str) -> None:
    _, err = process.communicate(timeout=60)
    assert process.returncode == status, err
    message = without_progress(err)
    assert "Traceback" not in message
    assert all(word in message for word in words), message


def test_what_cannot_be_reached_is_named(cluster):
    error(cluster.start("worker", "--zookeeper", "127.0.0.1:1"), 4, "DL4J-TRACKER", "127.0.0.1:1")
    error(cluster.start("worker"), 2, "--zookeeper is missing")
    error(cluster.start("worker", "--zookeeper", "nowhere"), 2, "host:port")
    error(cluster.start("worker", "--zookeeper", cluster.zookeeper, "--wait", "1"), 4, "DL4J-TRACKER")
    unreachable = ["--tracker", "hazelcast://127.0.0.1:1", "--zookeeper", cluster.zookeeper]
    error(cluster.start("master", *RUN, *unreachable), 4, "DL4J-TRACKER", "127.0.0.1:1")
    error(cluster.start("master", *RUN), 2, "--tracker hazelcast://host:port")


def test_a_second_master_is_refused(cluster):
    first = cluster.master("--epochs", "10")
    cluster.worker()
    cluster.wait_for_round(1)
    error(cluster.master("--epochs", "2"), 4, "another master holds the id", f"pid {first.pid}")


def test_a_worker_with_another_secret_is_refused(cluster):
    cluster.master("--epochs", "10")
    cluster.worker()
    cluster.wait_for_round(1)
    stranger = subprocess.Popen(
        [*COMMAND, "worker", "--zookeeper", cluster.zookeeper],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "DL4J_SECRET": "another secret"},
    )
    error(stranger, 6, "DL4J-AUTH")


def test_a_worker_of_another_version_is_refused(cluster, tmp_path: Path):
    cluster.master("--epochs", "10")
    cluster.worker()
    cluster.wait_for_round(1)
    patch = tmp_path / "sitecustomize.py"
    patch.write_text("import dl4jlegacy.wire\ndl4jlegacy.wire.VERSION = 99\n")
    other = subprocess.Popen(
        [*COMMAND, "worker", "--zookeeper", cluster.zookeeper],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "DL4J_SECRET": SECRET, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parent.parent}"},
    )
    error(other, 9, "DL4J-VERSION", "wire 1 there, 99 here")
