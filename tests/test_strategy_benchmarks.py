"""``benchmarks/staleness.py`` and ``benchmarks/strategies.py`` on a tiny setting: what they print is what happened."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import numpy as np
import pytest

from dl4jlegacy.kernels import load as load_kernels
from dl4jlegacy.nn import zoo
from dl4jlegacy.nn.networks import build_network
from dl4jlegacy.nn.updaters import Sgd
from dl4jlegacy.scaleout.job import Result
from dl4jlegacy.scaleout.perform import first_model
from dl4jlegacy.scaleout.strategies import STRATEGIES

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


@pytest.mark.parametrize("script", ["strategies"], indirect=True)
def test_every_strategy_has_its_row_and_bytes_are_those_of_the_frames(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
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
