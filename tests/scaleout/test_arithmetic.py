"""Whoever rounds differently does not compute for a run unasked: when it joins, when it resumes, when it takes over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from dl4jlegacy.cluster.address import versions
from dl4jlegacy.cluster.leadership import _definitions, check_takes_over
from dl4jlegacy.cluster.runner import ActorNetworkRunner
from dl4jlegacy.datasets import DataSet, ListDataSetIterator
from dl4jlegacy.errors import TrackerError, VersionError
from dl4jlegacy.kernels.arithmetic import cpu_arithmetic
from dl4jlegacy.kernels.compilation import report_missing
from dl4jlegacy.nn import zoo
from dl4jlegacy.nn.compiling import compile_ahead
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.persistence.checkpoint import CheckpointStore
from dl4jlegacy.scaleout.tracker import InMemoryStateTracker
from dl4jlegacy.scaleout.workers import device_choice as compute
from dl4jlegacy.scaleout.workers.device_choice import (
    ARITHMETIC,
    RunArithmetic,
    check_same_arithmetic,
    compute_for_worker,
)
from dl4jlegacy.training.run import resolve
from tests.kernels.test_arithmetic import OTHER_CORE
from tests.support import REPOSITORY

PARTS = list(cpu_arithmetic("numba"))
X = np.random.default_rng(1).random((40, 6), dtype=np.float32)
Y = np.eye(3, dtype=np.float32)[np.arange(40) % 3]


def elsewhere(monkeypatch: pytest.MonkeyPatch, *parts: str) -> None:
    """Let this process be one in which these parts of the arithmetic are others."""
    ours = cpu_arithmetic("numba")
    monkeypatch.setattr(compute, "cpu_arithmetic", lambda kernels: {**ours, **dict.fromkeys(parts, "another")})


def test_the_first_worker_decides_and_its_likes_are_admitted() -> None:
    tracker, conf = InMemoryStateTracker(), Conf(run="r", kernels="numba")
    for _ in range(2):
        assert check_same_arithmetic(tracker, conf, compute_for_worker(conf, None)) == ""
    assert tracker.get(ARITHMETIC) == cpu_arithmetic("numba") == RunArithmetic(tracker)()


@pytest.mark.parametrize("part", PARTS)
def test_a_worker_that_differs_in_any_part_is_refused_or_announced(
    part: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tracker, conf = InMemoryStateTracker(), Conf(run="r", kernels="numba")
    check_same_arithmetic(tracker, conf, compute_for_worker(conf, None))
    elsewhere(monkeypatch, part)
    worker = compute_for_worker(conf, None)
    with pytest.raises(VersionError) as refused:
        check_same_arithmetic(tracker, conf, worker)
    difference = f"{part} is {cpu_arithmetic('numba')[part]} in the run and another here"
    for words in ("run r cannot be computed on here", difference, "CPUs and libraries of one kind", "--mixed-devices"):
        assert words in str(refused.value)
    assert str(refused.value).count(" in the run and ") == 1
    assert check_same_arithmetic(tracker, conf.replace(mixed_devices=True), worker) == difference
    assert difference in caplog.text


def test_a_worker_that_finds_a_kernel_missing_lets_other_processes_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    conf = Conf(run="r", kernels="numba", multi_layer_conf=zoo.mlp(6, 3, hidden=(5,)))
    found: list[Any] = []
    monkeypatch.setattr(compile_ahead, "_start", lambda network, ended: found.append(network))
    monkeypatch.setattr(compute, "training_digest", lambda *_: report_missing())
    check_same_arithmetic(InMemoryStateTracker(), conf, compute_for_worker(conf, None))
    assert found == [conf.network_conf]
    report_missing()
    assert len(found) == 1


def test_a_worker_whose_kernel_computes_otherwise_is_refused_in_a_run_that_uses_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from dl4jlegacy.kernels.numba import kernels

    nets = {"lenet": zoo.lenet(324, 10), "mlp": zoo.mlp(6, 3, hidden=(5,))}
    confs = {name: Conf(run=name, kernels="numba", multi_layer_conf=net) for name, net in nets.items()}
    trackers = {name: InMemoryStateTracker() for name in confs}
    for name, conf in confs.items():
        check_same_arithmetic(trackers[name], conf, compute_for_worker(conf, None))
        assert trackers[name].get(ARITHMETIC).keys() == {*PARTS, "training"}
    real = kernels.conv_pool_forward

    def another(x: Any, W: Any, b: Any, y: Any, *rest: Any) -> None:
        real(x, W, b, y, *rest)
        y.flat[0] = np.nextafter(y.flat[0], np.float32(9))

    monkeypatch.setattr(kernels, "conv_pool_forward", another)
    check_same_arithmetic(trackers["mlp"], confs["mlp"], compute_for_worker(confs["mlp"], None))
    with pytest.raises(VersionError, match=r"run lenet cannot be computed on here: training is \w{16} in the run and"):
        check_same_arithmetic(trackers["lenet"], confs["lenet"], compute_for_worker(confs["lenet"], None))


@pytest.mark.parametrize("foreign", ["text", ["a", "list"], 7, {}, {"BLAS": None}])
def test_what_a_stranger_writes_in_its_place_is_refused_with_a_message(foreign: Any) -> None:
    tracker, conf = InMemoryStateTracker(), Conf(run="r", kernels="numba")
    tracker.define(ARITHMETIC, foreign)
    with pytest.raises(VersionError, match="run r cannot be computed on here"):
        check_same_arithmetic(tracker, conf, compute_for_worker(conf, None))


def test_what_a_run_was_made_with_is_remembered_when_the_tracker_is_gone() -> None:
    answers: list[Any] = [TrackerError("away"), None, {"BLAS": "x"}]

    def get(key: str) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, TrackerError):
            raise answer
        return answer

    known = RunArithmetic(SimpleNamespace(get=get))  # type: ignore[arg-type]
    assert [known() for _ in range(4)] == [{}, {}, {"BLAS": "x"}, {"BLAS": "x"}]


# -- a run that resumes, or is taken over --------------------------------------------------------------------------


def train(folder: Path, *, resume: bool = False, **changes: Any) -> Any:
    fields = {"seed": 7, "epochs": 2, "workers": 1, "jobs_per_round": 2, "run": "r1", "checkpoint_dir": str(folder)}
    conf = Conf(**{"multi_layer_conf": zoo.mlp(6, 3, hidden=(5,), seed=7), **fields, **changes})
    with ActorNetworkRunner("master", ListDataSetIterator(DataSet(X, Y), 5, seed=7)) as runner:
        runner.setup(conf, resume=resume)
        return runner.train(deadline=60)


@pytest.mark.parametrize("part", ["dl4jlegacy", "products", "functions"])
def test_a_checkpoint_of_another_arithmetic_is_resumed_in_a_mixed_run_only(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path)
    ours = CheckpointStore(tmp_path).made_with()
    assert ours.keys() >= {"products", "functions", "sums"}
    assert train(tmp_path, resume=True, epochs=3).head.status == "done"
    elsewhere(monkeypatch, part)
    with pytest.raises(VersionError, match=f"run r1 cannot be computed on here: {part} is .* and another here"):
        train(tmp_path, resume=True, epochs=4)
    done = train(tmp_path, resume=True, epochs=4, mixed_devices=True)
    assert (done.head.status, done.head.examples) == ("done", 160)
    assert "need not give the same bits" in done.warnings[0] and f"{part} is " in caplog.text
    assert CheckpointStore(tmp_path).made_with() == ours


def test_an_older_checkpoint_that_does_not_say_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CheckpointStore, "made_with", lambda store, field="arithmetic": {})
    train(tmp_path)
    elsewhere(monkeypatch, "products")
    assert train(tmp_path, resume=True, epochs=3).head.status == "done"


def test_a_master_without_workers_of_its_own_computes_nothing_and_needs_no_arithmetic(tmp_path: Path) -> None:
    tracker, data = InMemoryStateTracker(), ListDataSetIterator(DataSet(X, Y), 5, seed=7)
    conf = Conf(multi_layer_conf=zoo.mlp(6, 3, hidden=(5,), seed=7))
    with ActorNetworkRunner("master", data, tracker=tracker) as runner:
        runner.setup(resolve(conf, data, local_workers=0))
        assert tracker.get(ARITHMETIC) is None


def test_a_master_that_goes_on_from_checkpoints_tells_what_they_were_made_with_before_a_worker_can(
    tmp_path: Path,
) -> None:
    train(tmp_path)
    data, conf = ListDataSetIterator(DataSet(X, Y), 5, seed=7), Conf.read(tmp_path / "conf.json")
    assert ARITHMETIC not in _definitions(resolve(conf, data, local_workers=0))
    resumed = replace(resolve(conf, data, local_workers=0, resume=True), resumes=True)
    assert _definitions(resumed)[ARITHMETIC] == CheckpointStore(tmp_path).made_with() != {}


@pytest.mark.parametrize("name", list(versions("numba")))
def test_a_process_of_another_version_does_not_take_a_run_over(name: str) -> None:
    tracker: Any = InMemoryStateTracker()
    conf = Conf(run="r", kernels="numba")
    check_takes_over(conf, tracker)  # an older run, or one whose grid is empty: nothing is known
    tracker.define("versions", versions("numba"))
    check_takes_over(conf, tracker)
    tracker.define("versions", {**versions("numba"), name: "another"})
    with pytest.raises(VersionError, match=rf"cannot take run r over: {name} another there, .* here; install"):
        check_takes_over(conf, tracker)


def test_a_run_that_becomes_mixed_is_still_the_same_run() -> None:
    conf = Conf(run="r", kernels="numba")
    assert conf.replace(mixed_devices=True).digest() == conf.digest()
    assert "mixed_devices" in msgspec.to_builtins(conf)


@pytest.mark.long
def test_the_command_refuses_to_resume_on_another_blas_and_says_what_to_do(tmp_path: Path) -> None:
    def dl4j(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "dl4jlegacy", *arguments, "--format", "json"],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=REPOSITORY,
            env={**os.environ, "DL4J_KERNELS": "numpy", **env},
        )

    folder = str(tmp_path / "run")
    began = dl4j("train", "--dataset", "iris", "--epochs", "1", "--checkpoint-dir", folder)
    assert began.returncode == 0, began.stderr
    other = dl4j("resume", folder, OPENBLAS_CORETYPE=OTHER_CORE)
    assert other.returncode == 9 and "Traceback" not in other.stderr
    for words in ("BLAS is ", f"{OTHER_CORE} here", "products is ", "--mixed-devices", "OPENBLAS_CORETYPE"):
        assert words in other.stderr
    mixed = dl4j("resume", folder, "--mixed-devices", OPENBLAS_CORETYPE=OTHER_CORE)
    assert mixed.returncode == 0, mixed.stderr
    assert json.loads(mixed.stdout)["mixed_devices"] is True
    assert "is computed on devices of several kinds: BLAS is " in mixed.stderr
