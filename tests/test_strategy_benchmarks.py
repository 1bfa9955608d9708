"""Benchmarks of strategies on a tiny setting, and what others are about: what they print is what happened."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import math
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from unittest import mock
from xml.etree import ElementTree

import numpy as np
import psutil
import pytest

from dl4jlegacy.datasets import load as load_data
from dl4jlegacy.kernels import load as load_kernels
from dl4jlegacy.nn import zoo
from dl4jlegacy.nn.networks import build_network
from dl4jlegacy.nn.optimization.updaters import Sgd
from dl4jlegacy.scaleout.first_model import first_model
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.strategies import STRATEGIES
from dl4jlegacy.scaleout.workers.perform import MultiLayerNetworkPerformer
from tests.support.cluster_commands import until

WORKERS, JOBS, BATCH = 12, 144, 4
EXAMPLES = JOBS * BATCH
SIMULATED = ["--model", "mlp", "--dataset", "digits", "--workers", str(WORKERS), "--batch", str(BATCH)]
SIMULATED += ["--examples", str(EXAMPLES), "--watches", "2", "--format", "json"]


@pytest.fixture
def script(repository: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> ModuleType:
    """The benchmark named by the parameter; scripts of the folder import each other by their names."""
    monkeypatch.syspath_prepend(repository / "benchmarks")
    return importlib.import_module(request.param)


def rows_of(script: ModuleType, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> list[dict]:
    assert script.main(arguments) == 0
    return json.loads(capsys.readouterr().out)["rows"]


@pytest.mark.parametrize("script", ["staleness"], indirect=True)
@pytest.mark.long
def test_simulated_workers_are_as_stale_as_the_paper_says(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = [1, 3, WORKERS]
    rows = rows_of(script, [*SIMULATED, *(word for n in counts for word in ("--n", str(n)))], capsys)
    named = {(row["strategy"], row["rate"]): row for row in rows}
    assert len(named) == len(rows) == 1 + 2 * (len(counts) + 1)
    for row in rows:
        assert (row["updates"], row["examples"], row["diverged"]) == (JOBS, EXAMPLES, "")
        assert [examples for examples, _ in row["curve"]][-1] == EXAMPLES and len(row["curve"]) == 2
        assert row["curve"][-1][1] == row["accuracy"]
    for rate in ("1/tau", "constant"):
        for n in counts:
            row = named[f"softsync n={n}", rate]
            assert 0.75 * n <= row["mean_staleness"] <= n and row["max_staleness"] <= 2 * n
            assert row["versions"] == JOBS * n / WORKERS
        alone, one_by_one = named[f"softsync n={WORKERS}", rate], named["hogwild", rate]
        assert {**alone, "strategy": ""} == {**one_by_one, "strategy": ""}  # two ways to fold each update alone
    together = named["iterative-reduce", "-"]
    assert (together["mean_staleness"], together["max_staleness"], together["versions"]) == (0, 0, JOBS / WORKERS)
    assert named["hogwild", "1/tau"]["accuracy"] > named["hogwild", "constant"]["accuracy"] + 0.1


@pytest.mark.parametrize("script", ["staleness"], indirect=True)
@pytest.mark.long
def test_a_run_whose_numbers_become_infinite_has_no_accuracy_and_all_is_the_same_each_time(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*SIMULATED, "--n", str(WORKERS), "--rate-of-learning", "3"]
    with np.errstate(all="ignore"):
        rows = rows_of(script, [*arguments, "--plot", str(tmp_path / "plot.svg")], capsys)
        assert rows_of(script, arguments, capsys) == rows
    for row in rows:
        if row["rate"] == "constant":
            assert row["accuracy"] is None and "(finetune): layer" in row["diverged"] and 0 < row["examples"] < EXAMPLES
        else:
            assert row["accuracy"] > 0 and row["diverged"] == "" and row["examples"] == EXAMPLES
    svg = ElementTree.parse(tmp_path / "plot.svg")
    names = [text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert names[-5:] == [row["strategy"] + ("" if row["rate"] == "-" else f", {row['rate']}") for row in rows]


@pytest.mark.parametrize("script", ["ddp"], indirect=True)
def test_what_is_raced_against_ddp_is_the_same_network_with_as_many_batches(script: ModuleType) -> None:
    assert [(mode.task.router, mode.task.batches, mode.goal) for mode in script.MODES] == [
        ("iterative-reduce", 1, 2.0),
        ("gradient-sharing", 1, 2.0),
        ("iterative-reduce", 5, 2.6),
    ]
    for mode in (script.rounds_of(mode, 100) for mode in script.MODES):
        task = mode.task
        conf, data = script.conf_of(task), script.invented(task)
        assert [(layer.n_in, layer.n_out) for layer in conf.network_conf.layers] == [(784, 500), (500, 250), (250, 10)]
        assert isinstance(conf.network_conf.conf.updater, Sgd)
        assert (conf.batch_size, conf.jobs_per_round, conf.averaging_frequency) == (128, 4, task.batches)
        assert (task.rounds - script.WARM) * task.batches == 100
        assert data.train.features.shape == (4 * 128 * task.batches, 784) and data.train.labels.shape[1] == 10


@pytest.mark.parametrize("script", ["iteration_length"], indirect=True)
@pytest.mark.cluster
@pytest.mark.long
@pytest.mark.release
def test_iterations_of_a_given_length_are_timed_without_the_first_rounds(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    noted = script.Noted()
    noted.seen = [(10.0, 1), (11.0, 3), (13.0, 4), (15.0, 7)]  # the third is the first that counts
    assert noted.rounds_a_second() == (7 - 3) / (15.0 - 11.0)
    arguments = ["--milliseconds", "50", "--workers", "1,2", "--seconds", "2", "--turns", "1", "--format", "json"]
    assert script.main(arguments) == 0
    report = json.loads(capsys.readouterr().out)
    assert [figure["name"] for figure in report["figures"]] == ["50 ms, 1 worker", "50 ms, 2 workers"]
    alone, both = (figure["value"] for figure in report["figures"])
    assert 0 < alone < 1 and 0 < both < 2  # a batch takes 50 ms at least, on any machine


@contextlib.contextmanager
def overtaken() -> Iterator[None]:
    """Let the first job of a run wait for one of the other worker that has a later version: then it is stale."""
    perform, is_later = MultiLayerNetworkPerformer.perform, threading.Event()

    def wait(self, job):
        if job.slot[:2] == (0, 0):
            assert is_later.wait(60), "nobody overtook the first job"
        elif job.version:
            is_later.set()
        return perform(self, job)

    with mock.patch.object(MultiLayerNetworkPerformer, "perform", wait):
        yield
    assert is_later.is_set()


@pytest.mark.parametrize("script", ["strategies"], indirect=True)
def test_every_strategy_has_its_row_and_bytes_are_those_of_the_frames(
    script: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = script.run

    def overlapping(task, conf, runs) -> float:
        with overtaken() if (conf.router, conf.workers) == ("hogwild", 2) else contextlib.nullcontext():
            return float(run(task, conf, runs))

    monkeypatch.setattr(script, "run", overlapping)
    arguments = ["--model", "mlp", "--dataset", "digits", "--examples", "160", "--batch", "16", "--turns", "1"]
    rows = rows_of(script, [*arguments, "--workers", "1", "--workers", "2", "--format", "json"], capsys)
    assert [(row["strategy"], row["workers"]) for row in rows] == [(name, n) for name in STRATEGIES for n in (1, 2)]
    for row in rows:
        assert row["speed"] > 0 and 0 < row["accuracy"] <= 1 and row["written"]["update"] > 0, row
    first = first_model(build_network(zoo.mlp(64, 10), load_kernels(None)))
    model = len(first.encode())
    update = len(Result({"examples": 16, "score": 2.302585092994046, "version": 10}, first.arrays).encode())
    named = {(row["strategy"], row["workers"]): row for row in rows}
    for workers, rounds in ((1, 10), (2, 5)):
        averaging = named["iterative-reduce", workers]
        assert averaging["written"]["model"] == (rounds + 1) * model / 160  # version 0, too
        assert averaging["written"]["update"] == pytest.approx(10 * update / 160, rel=1e-3)
        assert averaging["read"]["update"] == averaging["written"]["update"]  # by the master, each once
        assert averaging["staleness"] == 0
    assert named["iterative-reduce", 1]["speed"] == 1
    assert 0 < named["hogwild", 2]["staleness"] < 4  # two rounds are open at a time


@pytest.mark.parametrize("script", ["ddp"], indirect=True)
def test_workers_in_processes_read_the_same_network_s_data_themselves(script: ModuleType, tmp_path: Path) -> None:
    mode = script.rounds_of(script.MODES[2], 10)
    task = script.with_files(mode.task, tmp_path / "data")
    source = load_data(task.dataset)
    assert source.train.features.shape == (4 * 128 * 5, 784) and source.train.labels.shape == (4 * 128 * 5, 10)
    conf = script.conf_of(task)
    assert (conf.dataset, conf.data_by_reference) == (str(tmp_path / "data"), True)


@pytest.mark.parametrize("script", ["goodput"], indirect=True)
def test_the_network_whose_workers_are_killed_has_the_size_that_is_said(script: ModuleType) -> None:
    sharing = script.KINDS["sharing"]
    task = sharing.task
    widths = (task.n_in, *task.hidden, task.n_out)
    assert round(sum(n_in * n_out + n_out for n_in, n_out in itertools.pairwise(widths)) / 1e6, 1) == 14.6
    assert sharing.rounds == math.ceil(60_000 / (task.slots * task.batch)) and sharing.goal == 95
    assert (task.router, sharing.every) == ("gradient-sharing", 60)


@pytest.mark.parametrize("script", ["straggler"], indirect=True)
def test_a_slow_worker_may_cost_asynchronous_modes_15_percent_of_what_perfect_balance_leaves(
    script: ModuleType,
) -> None:
    for router in script.ROUTERS[1:]:
        assert script.goal_of(script.Task(1, 16, router=router), 4) == pytest.approx(4 / 3.2 / 0.85)
        assert script.goal_of(script.Task(1, 8, router=router), 2) == pytest.approx(2 / 1.2 / 0.85)
    assert script.goal_of(script.Task(1, 16), 4) == 1.35


@pytest.mark.parametrize("script", ["straggler"], indirect=True)
def test_workers_without_a_core_of_their_own_take_turns_so_that_nobody_gains_from_a_slow_one(
    script: ModuleType,
) -> None:
    for workers, cores in ((4, 2), (8, 2), (4, 3), (3, 1)):
        even, slow = (script.slices(workers, cores, slow=is_slow) for is_slow in (False, True))
        moments = [step / 1000 for step in range(1000)]
        running = [sum(begin <= at + turn < end for begin, end in even for turn in (0, 1)) for at in moments]
        assert max(running) <= cores and sum(running) / 1000 == pytest.approx(0.9 * cores, abs=0.01)
        assert slow[1:] == even[1:] and slow[0][1] == pytest.approx(even[0][1] / 5)
    assert script.slices(4, 4, slow=True) == [(0.0, 0.2), (0.0, 1.0), (0.0, 1.0), (0.0, 1.0)]


@pytest.mark.parametrize("script", ["straggler"], indirect=True)
def test_a_slowed_process_stops_again_and_again_and_runs_on_in_the_end(script: ModuleType) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, text=True) as process:
        watched = psutil.Process(process.pid)
        with script.sliced([process], [(0.0, 0.5)]):
            for _ in range(2):
                until(lambda: watched.status() == psutil.STATUS_STOPPED)
                until(lambda: watched.status() != psutil.STATUS_STOPPED)
        process.communicate("\n", timeout=60)
    assert process.returncode == 0
