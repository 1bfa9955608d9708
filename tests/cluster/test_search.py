"""``dl4j tune`` on a cluster: the search ends as on one machine, whoever is killed, and leaves nothing."""

from __future__ import annotations

import functools
import json
import logging
import signal
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dl4jlegacy.cluster.address import ClusterAddress, warned_once
from dl4jlegacy.cluster.search_trials import TrialShare, shared_out
from tests.support import REPOSITORY
from tests.support.cluster_commands import COMMAND, RUN, SECRET, Cluster, Command, error

CONF = """
model: mlp
dataset: digits
epochs: 4
batch_size: 16
jobs_per_round: 2
validation: {fraction: 0.2, metric: accuracy, every_rounds: 10}
search:
  updater.learning_rate: {low: 1e-4, high: 1e-1, log: true}
  layers[0].n_out: {low: 8, high: 64, step: 8}
"""
TRIALS, AT_ONCE = "6", "2"


def test_trials_are_dealt_out_in_turn_and_by_everybody_alike() -> None:
    for workers in range(1, 9):
        for trials in range(1, 9):
            names, listed = [f"w{n}" for n in range(workers)], [f"{n:06d}" for n in range(trials)]
            dealt = Counter(shared_out(name, names[::-1], listed[::-1]) for name in names)
            assert sum(dealt.values()) == workers and len(dealt) == min(workers, trials)
            assert max(dealt.values()) - min(dealt.values()) <= 1
    assert shared_out("w", ["w"], []) is None
    assert shared_out("new", ["w0", "w1"], ["t1", "t0"]) == "t0"


def test_an_unsigned_search_is_warned_of_once_and_other_runs_before_and_after(caplog: pytest.LogCaptureFixture) -> None:
    address = ClusterAddress("127.0.0.1:1")
    with warned_once():
        for number in range(3):
            address.warn_unsigned(f"search-{number}")
        logging.getLogger("dl4jlegacy.cluster.address").warning("something else")
    address.warn_unsigned("afterwards")
    told = [record.getMessage().split(" is not signed")[0] for record in caplog.records]
    assert told == ["run search-0", "something else", "run afterwards"]


@pytest.mark.cluster
def test_a_worker_that_leaves_a_dead_search_leaves_it_to_those_that_wait_for_it(cluster: Cluster) -> None:
    address = ClusterAddress(cluster.zookeeper, SECRET.encode(), "dead")
    with address.session() as session:
        folder = "/dl4jlegacy/dead/election"
        with TrialShare(address, "waits") as waits:
            session.ensure(folder, guarded="/dl4jlegacy/dead")  # as a search leaves it that was killed
            with TrialShare(address, "leaves"):
                pass
            assert session.exists(folder)
            assert waits.next(0.0) is None  # nobody has gone on with it in that time
        assert not session.exists("/dl4jlegacy/dead")


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    path = tmp_path / "conf.yaml"
    path.write_text(CONF)
    return path


@functools.cache
def on_this_machine() -> dict[str, Any]:
    """What the search comes to without a cluster."""
    flags = ["--trials", TRIALS, "--at-once", AT_ONCE, "--workers", "1", "--format", "json"]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as conf:
        conf.write(CONF)
        conf.flush()
        command = [*COMMAND, "tune", conf.name, *flags]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, cwd=REPOSITORY)
    return comparable(json.loads(done.stdout))


def comparable(found: dict[str, Any]) -> dict[str, Any]:
    for trial in [*found["trials"], found["best"]]:
        del trial["seconds"]
    return {name: found[name] for name in ("trials", "best", "evaluation", "start_score")}


def search(cluster: Cluster, conf: Path, *flags: str) -> Command:
    given = ("--trials", TRIALS, "--at-once", AT_ONCE, *cluster.master_flags, "--format", "json")
    return cluster.start("tune", str(conf), *given, *flags)


def same(command: Command) -> None:
    assert command.wait(300) == 0, command.err()
    assert comparable(json.loads(command.out())) == on_this_machine()


def left(cluster: Cluster) -> list[str]:
    """What of any run is in the grid or in Zookeeper."""
    with cluster.grid() as names:
        return [*names.keys("master-"), *cluster.left_over()]


@pytest.mark.cluster
@pytest.mark.long
def test_a_killed_worker_changes_no_trial_and_the_others_work_to_the_end(cluster: Cluster, conf: Path) -> None:
    doomed, others = cluster.worker(), [cluster.worker() for _ in range(2)]
    found = search(cluster, conf, "--workers", "0", "--study", "my study/1")
    doomed.says("joined: run master-")
    doomed.process.kill()
    same(found)
    for worker in others:
        assert worker.wait(60) == 0, worker.err()
        assert worker.err().count("is not signed") == 0
    joined = [line.split(",")[0] for worker in others for line in worker.err().splitlines() if "joined: " in line]
    assert len(set(joined)) >= int(TRIALS) - 1  # the killed one may have been the only worker of its first trial
    assert left(cluster) == []


@pytest.mark.cluster
@pytest.mark.long
def test_a_killed_search_goes_on_with_the_workers_that_wait_for_it(cluster: Cluster, conf: Path) -> None:
    flags = ("--workers", "0", "--storage", str(conf.parent / "trials.db"))
    workers = [cluster.worker(), cluster.worker()]
    killed = search(cluster, conf, *flags)
    killed.says("trial 1 complete")
    killed.says("trial 0 ")
    workers[0].says("joined: run master-2")
    killed.process.kill()
    killed.wait()
    same(search(cluster, conf, *flags))
    for worker in workers:
        assert worker.wait(60) == 0, worker.err()
    assert left(cluster) == []


@pytest.mark.cluster
@pytest.mark.long
def test_an_interrupted_search_leaves_nothing_and_says_how_to_go_on(cluster: Cluster, conf: Path) -> None:
    storage = str(conf.parent / "trials.db")
    found = search(cluster, conf, "--workers", "2", "--storage", storage)
    found.says("trial 0 ")
    found.process.send_signal(signal.SIGINT)
    assert found.wait(60) == 130
    assert f"--storage {storage} --tracker hazelcast://{cluster.hazelcast} " in found.err()
    assert left(cluster) == []
    same(search(cluster, conf, "--workers", "2", "--storage", storage))
    assert left(cluster) == []


@pytest.mark.cluster
@pytest.mark.long
def test_a_search_and_a_run_cannot_have_one_id(cluster: Cluster, conf: Path) -> None:
    first = search(cluster, conf, "--workers", "0")
    first.says("waiting for workers")
    error(search(cluster, conf), 4, "another master holds the id 'master'", "search search")
    error(cluster.master(run=RUN), 4, "another master holds the id 'master'")
    first.process.send_signal(signal.SIGINT)
    assert first.wait(60) == 130
    master, worker = cluster.master(run=RUN), cluster.worker()
    cluster.wait_for_round(1)
    master.process.kill()
    error(search(cluster, conf), 4, "is that of run run-", "dl4j resume", "dl4j stop")
    worker.process.kill()


@pytest.mark.parametrize(
    ("flags", "status", "words"),
    [
        (("--tracker", "hazelcast://127.0.0.1:5701"), 2, "--zookeeper is missing: a search with --tracker"),
        (("--tracker", "memory", "--zookeeper", "127.0.0.1:1"), 2, "memory: give hazelcast://host:port"),
        (("--tracker", "hazelcast://127.0.0.1:1", "--zookeeper", "nowhere"), 2, "give it as host:port"),
        (
            ("--tracker", "hazelcast://127.0.0.1:1", "--zookeeper", "127.0.0.1:1", "--id", "x" * 91),
            2,
            "at most 90 of them",
        ),
        (("--workers", "0"), 3, "at least 1 trial and 1 worker"),
    ],
)
@pytest.mark.everyday(1)
def test_wrong_places_are_named(flags: tuple[str, ...], status: int, words: str, conf: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "tune", str(conf), *flags], capture_output=True, text=True, timeout=120, check=False, cwd=REPOSITORY
    )
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    assert words in done.stderr and "Traceback" not in done.stderr
