"""Evaluations and predictions by a cluster's workers: what one process finds, with a worker killed on the way."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dl4jlegacy import ClusterInference, DataSet, load_model
from dl4jlegacy.datasets import Reading
from dl4jlegacy.datasets.text.texts import TextReader
from dl4jlegacy.kernels.threads import one_thread
from dl4jlegacy.models.model import evaluate_model, evaluate_network, read_model, score_examples
from dl4jlegacy.models.prediction import predict_blocks
from dl4jlegacy.nn import (
    LSTM,
    DenseLayer,
    Evaluation,
    EvaluationCalibration,
    MultiLayerNetwork,
    NeuralNetConfiguration,
    OutputLayer,
    RegressionEvaluation,
    RnnOutputLayer,
    ROCMultiClass,
    write_model,
)
from dl4jlegacy.nn.batch_evaluation import ROWS
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration
from tests.support.cluster_commands import COMMAND, SECRET, Cluster, Command, error, until

pytestmark = [pytest.mark.cluster, pytest.mark.long]

JOBS = 12
HELD = """
import threading
from pathlib import Path
from dl4jlegacy.training import evaluation_run, prediction_run
for performer in (evaluation_run.EvaluationPerformer, prediction_run.PredictionPerformer):
    def perform(self, job, perform=performer.perform):
        Path({gate!r} + "-held").touch()
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


def trained_text(folder: Path) -> tuple[str, str]:
    """Return a model of the characters of texts, and a text whose lines go on."""
    layers = (LSTM(n_in=4, n_out=6), RnnOutputLayer(n_out=4, activation="softmax"))
    network = MultiLayerNetwork(MultiLayerConfiguration(conf=NeuralNetConfiguration(seed=2), layers=layers))
    write_model(network, folder / "text.zip", label_names=tuple("abc "), reading=Reading(text=TextReader()))
    draw = np.random.default_rng(4).choice
    (folder / "lines.txt").write_text("\n".join("".join(draw(list("abc "), 1 + row % 40)) + "a" for row in range(300)))
    return str(folder / "text.zip"), str(folder / "lines.txt")


def evaluations() -> list[Any]:
    return [ROCMultiClass(), Evaluation(top_n=2), EvaluationCalibration(), ROCMultiClass(20), RegressionEvaluation()]


def test_a_program_evaluates_in_one_pass_and_predicts_with_a_pool_of_which_a_worker_is_killed(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run finds the bits of one process; the command predicts texts, as it does by itself."""
    monkeypatch.setenv("DL4J_SECRET", SECRET)
    model, rng = load_model(save(tmp_path, 20)), np.random.default_rng(8)
    count = JOBS * ROWS - 7
    data = DataSet.of_classes(rng.normal(size=(count, 6)), rng.integers(0, 3, count), 3)
    grid = {"tracker": f"hazelcast://{cluster.hazelcast}", "cluster_name": cluster.cluster_name}
    ours, gate = ClusterInference(model, zookeeper=cluster.zookeeper, progress=False, **grid), tmp_path / "gate"
    doomed, found, expected = cluster.worker(patch=HELD.format(gate=str(gate))), evaluations(), evaluations()
    with ThreadPoolExecutor(1) as pool:
        evaluating = pool.submit(ours.evaluate, data, *found)
        until(lambda: Path(f"{gate}-held").exists() or evaluating.done(), what="the worker has a job")
        stay = [cluster.worker("--stay", patch=HELD.format(gate=str(gate))) for _ in range(2)]
        for worker in stay:
            worker.says("joined:")
        doomed.process.kill()
        gate.touch()
        whole = evaluating.result(120)
    alone = evaluate_network(model.network, data, ())
    assert (whole.loss.hex(), whole.classification.to_dict()) == (alone.loss.hex(), alone.classification.to_dict())
    with one_thread():
        for evaluation in expected:
            model.network.evaluate(list(data.batch_by(ROWS)), evaluation)
    assert [one.to_dict() for one in found] == [one.to_dict() for one in expected]
    blocks = [batch.features for batch in data.batch_by(ROWS)]
    outputs = np.concatenate([rows.outputs for rows in predict_blocks([model.answer], blocks)])
    assert ours.output(data.features).tobytes() == outputs.tobytes()
    assert ours.predict(iter(blocks)).tolist() == outputs.argmax(axis=1).tolist()
    losses = np.concatenate(list(score_examples(model.network, data)))
    assert ours.score_examples(list(data.batch_by(ROWS))).tobytes() == losses.tobytes()
    words = ("predict", *trained_text(tmp_path), "--probabilities")
    shared, alone_too = cluster.start(*words, *cluster.master_flags), cluster.start(*words)
    assert (shared.wait(120), alone_too.wait(120)) == (0, 0), shared.err() + alone_too.err()
    assert shared.out() == alone_too.out() and shared.out().count("\n") == 300
    for worker in stay:
        worker.process.terminate()
        assert worker.wait() == 143
    assert not cluster.left_over()


READS_ON = """
import pathlib, subprocess, sys, threading
with subprocess.Popen(sys.argv[2:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as command:
    print(command.stdout.readline().decode(), end="", flush=True)
    while not pathlib.Path(sys.argv[1]).exists():
        threading.Event().wait(0.05)
    sys.stdout.buffer.write(command.stdout.read())
sys.exit(command.returncode)
"""
"""A reader of stdout and stderr, as ``2>&1 | less``: it pauses after the first line, until there is a file."""
PIPE_NBYTES = 1 << 16
TALKS = """
import logging
import msgspec
from dl4jlegacy.training import prediction_run
def perform(self, job, perform=prediction_run.PredictionPerformer.perform):
    for _ in range(2):
        logging.getLogger("dl4jlegacy.talks").warning("TALKS %s %s", job.slot, "x" * 3000)
    return perform(self, job)
def resolve(self, conf, *arguments, resolve=prediction_run.PredictionRun.resolve, **more):
    return resolve(self, msgspec.structs.replace(conf, stuck_seconds=0.5), *arguments, **more)
prediction_run.PredictionPerformer.perform = perform
prediction_run.PredictionRun.resolve = resolve
"""
"""Workers whose lines a pipe takes whole, but not all of them, in a run that stands still for 2 s at most."""


def test_a_reader_of_all_that_is_said_may_pause_for_longer_than_a_run_may_stand_still(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Neither answers nor log lines that nobody reads hold up an actor; all of them come when they are read."""
    count = 70 * ROWS + 5
    np.savetxt(tmp_path / "rows.csv", np.random.default_rng(8).normal(size=(count, 6)).round(3), "%g", ",")
    words = ("predict", save(tmp_path, 3), str(tmp_path / "rows.csv"), "--workers", "2")
    gate = tmp_path / "gate"
    reads = [sys.executable, "-c", READS_ON, str(gate), *COMMAND]
    run = cluster.start(*words, *cluster.master_flags, "--run", "paused", patch=TALKS, program=reads)
    until(lambda: run.out(), what="a first line")
    paused = time.monotonic()
    until(lambda: time.monotonic() - paused > 5.0, what="it has paused for longer than the run may stand still")
    gate.touch()
    assert run.wait() == 0, run.out()[-2000:]
    found = Counter("talk" if " TALKS " in line else line for line in run.out().splitlines())
    assert found.pop("talk") * 3000 > 2 * PIPE_NBYTES, "not more than there is room for"
    assert sum(found.values()) == count and set(found) == {"0", "1", "2"}
