"""The main job as a user runs it: the real command in a process of its own, its accuracies, its answer, its resume."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "dl4jlegacy"]

LONG = pytest.mark.long


def dl4j(*arguments: str, timeout: float = 240) -> dict:
    """Run ``dl4j ... --format json``; return its one JSON object."""
    done = subprocess.run(
        [*COMMAND, *arguments, "--format", "json"], capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def exact(report: dict, examples: int) -> None:
    assert (report["batches_lost"], report["batches_duplicated"]) == (0, 0)
    assert report["examples"] == examples


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "accuracy"), [("mlp", 0.97), ("dbn", 0.96), pytest.param("sda", 0.96, marks=pytest.mark.release)]
)
def test_digits_are_learned_by_four_workers(model, accuracy, tmp_path):
    out = tmp_path / "model.zip"
    report = dl4j("train", "--model", model, "--dataset", "digits", "--workers", "4", "--seed", "42", "--out", str(out))
    assert report["accuracy"] >= accuracy
    assert report["kernels"] == "numba"
    trained = 1438 - 94  # which validate
    exact(report, trained * (report["examples"] // trained))
    evaluated = dl4j("evaluate", str(out), "--dataset", "digits")
    assert (evaluated["accuracy"], evaluated["examples"]) == (report["accuracy"], 359)


@pytest.mark.mnist
@pytest.mark.long
@pytest.mark.release
def test_the_whole_mnist_is_learned_by_four_workers(mnist_dir):
    """By what no page trains on it: tests/docs/test_pages.py has a dbn and a lenet."""
    arguments = ["--dataset", "mnist", "--workers", "4", "--epochs", "10", "--no-validation"]
    report = dl4j("train", "--model", "sda", *arguments, *(["--data-dir", mnist_dir] if mnist_dir else []), timeout=900)
    assert report["accuracy"] >= 0.97
    exact(report, 60_000 * (10 + 3 * 3))


@pytest.mark.long
@pytest.mark.parametrize("model", [pytest.param("mlp", marks=pytest.mark.release), "dbn"])
def test_the_answer_is_the_same_for_one_to_four_workers(model):
    same = ["train", "--model", model, "--dataset", "digits", "--jobs-per-round", "4", "--seed", "7", "--epochs", "4"]
    same += ["--no-validation"]
    with ThreadPoolExecutor(2) as side_by_side:
        reports = list(side_by_side.map(lambda n: dl4j(*same, "--pretrain-epochs", "2", "--workers", n), "1423"))
    assert len({report["params_sha256"] for report in reports}) == 1
    for report in reports:
        exact(report, 1438 * (4 if model == "mlp" else 4 + 2 * 2))


@LONG
@pytest.mark.parametrize("model", [pytest.param("mlp", marks=pytest.mark.release), "dbn"])
def test_a_run_killed_in_the_middle_resumes_to_the_same_answer(model, tmp_path):
    """SIGKILL as soon as a checkpoint is there, three times over; then ``resume`` with another number of workers."""
    folder = tmp_path / "run"
    same = ["--model", model, "--dataset", "digits", "--jobs-per-round", "4", "--seed", "7", "--epochs", "40"]
    same += ["--pretrain-epochs", "3"]
    undisturbed = dl4j("train", *same, "--workers", "4")
    kept = ["--checkpoint-dir", str(folder), "--checkpoint-every", "3"]
    kill_after_a_checkpoint(["train", *same, "--workers", "4", *kept], folder)
    kill_after_a_checkpoint(["resume", str(folder)], folder)
    report = dl4j("resume", str(folder), "--workers", "2")
    assert report["params_sha256"] == undisturbed["params_sha256"]
    assert report["run"] == json.loads((folder / "conf.json").read_text())["run"]
    exact(report, undisturbed["examples"])


def kill_after_a_checkpoint(
    arguments: list[str], folder: Path, command: Sequence[str] = COMMAND, environment: dict[str, str] | None = None
) -> None:
    """Start the command, and kill it when it has written a checkpoint that was not there before."""
    before = checkpoints(folder)
    process = subprocess.Popen(
        [*command, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    try:
        while process.poll() is None and not checkpoints(folder) - before:
            try:
                process.wait(timeout=0.01)
            except subprocess.TimeoutExpired:
                continue
        assert process.poll() is None, "the run was over before it could be killed"
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=60)


def checkpoints(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("checkpoint-*.json")}
