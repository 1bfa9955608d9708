"""Evaluations and predictions by a cluster's workers: what one process finds, with a worker killed on the way."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dl4jlegacy.inference import evaluate_model, read_model
from dl4jlegacy.nn import DenseLayer, MultiLayerNetwork, NeuralNetConfiguration, OutputLayer, write_model
from dl4jlegacy.nn.batch_evaluation import ROWS
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration
from tests.support.cluster_commands import Cluster, Command, error, until

pytestmark = [pytest.mark.cluster, pytest.mark.long]

JOBS = 12
HELD = """
import threading
from pathlib import Path
from dl4jlegacy import evaluation_run, prediction_run
for performer in (evaluation_run.EvaluationPerformer, prediction_run.PredictionPerformer):
    def perform(self, job, perform=performer.perform):
        while not Path({gate!r}).exists():
            threading.Event().wait(0.05)
        return perform(self, job)
    performer.perform = perform
"""
"""A worker that keeps its job until a file is there, so that the run cannot end before, whoever gets the job then."""


def save(folder: Path, hidden: int) -> str:
    """Return the path of a model whose batches take a while."""
    layers = (DenseLayer(n_in=6, n_out=hidden), DenseLayer(n_out=hidden), OutputLayer(n_out=3, activation="softmax"))
    conf = MultiLayerConfiguration(conf=NeuralNetConfiguration(seed=2, activation="tanh"), layers=layers)
    write_model(MultiLayerNetwork(conf), folder / "m.zip")
    return str(folder / "m.zip")


@pytest.fixture
def evaluation(cluster: Cluster, tmp_path: Path) -> Command:
    """A master that waits for workers."""
    rng = np.random.default_rng(8)
    count = JOBS * ROWS - 7
    rows = np.column_stack([rng.normal(size=(count, 6)).round(3), rng.integers(0, 3, count)])
    np.savetxt(tmp_path / "d.csv", rows, "%g", ",")
    words = (save(tmp_path, 100), "--dataset", str(tmp_path / "d.csv"), "--split", "all", "--format", "json")
    return cluster.start("evaluate", *words, *cluster.master_flags, "--run", "counts")


def wait_for_a_job(cluster: Cluster, master: Command, run: str) -> None:
    """Wait until a worker has a job of the run."""
    with cluster.tracker(run) as tracker:
        until(
            lambda: master.process.poll() is not None or any(worker.job for worker in tracker.workers()),
            what="the worker has a job",
        )
    assert master.process.poll() is None, master.err()


def replace_worker(cluster: Cluster, master: Command, run: str) -> list[Command]:
    """Kill a worker that has a job, once two others are there; return them."""
    gate = cluster.folder / "gate"
    doomed = cluster.worker(patch=HELD.format(gate=str(gate)))
    wait_for_a_job(cluster, master, run)
    others = [cluster.worker(patch=HELD.format(gate=str(gate))) for _ in range(2)]
    for worker in others:
        worker.says("joined:")
    doomed.process.kill()
    gate.touch()
    return others


def test_a_worker_is_killed_with_a_job_and_the_others_find_what_one_process_does(
    cluster: Cluster, evaluation: Command, tmp_path: Path
) -> None:
    others = replace_worker(cluster, evaluation, "counts")
    assert evaluation.wait(120) == 0, evaluation.err()
    found = json.loads(evaluation.out())
    expected = evaluate_model(read_model(str(tmp_path / "m.zip")), str(tmp_path / "d.csv"), split="all")[1]
    assert found == {**expected, "device": "cpu"}
    assert [worker.wait() for worker in others] == [0, 0], [worker.err() for worker in others]
    assert not cluster.left_over()


def test_an_interrupted_evaluation_leaves_nothing(cluster: Cluster, evaluation: Command, tmp_path: Path) -> None:
    worker = cluster.worker(patch=HELD.format(gate=str(tmp_path / "gate")))
    wait_for_a_job(cluster, evaluation, "counts")
    evaluation.process.terminate()
    error(evaluation, 143, "stopped by SIGTERM")
    (tmp_path / "gate").touch()
    worker.wait()
    assert not cluster.left_over()


def test_rows_are_answered_in_their_order_while_a_worker_is_killed_with_a_job(cluster: Cluster, tmp_path: Path) -> None:
    """In two rounds of jobs."""
    rows = np.random.default_rng(8).normal(size=(70 * ROWS + 5, 6)).round(3)
    np.savetxt(tmp_path / "rows.csv", rows, "%g", ",")
    model = save(tmp_path, 100)
    words = ("predict", model, str(tmp_path / "rows.csv"))
    master = cluster.start(*words, *cluster.master_flags, "--run", "answers", "--probabilities")
    others = replace_worker(cluster, master, "answers")
    assert master.wait(120) == 0, master.err()
    alone = cluster.start(*words, "--probabilities")
    assert alone.wait(120) == 0, alone.err()
    assert master.out() == alone.out()
    assert master.out().count("\n") == len(rows)
    assert [worker.wait() for worker in others] == [0, 0], [worker.err() for worker in others]
    assert not cluster.left_over()
