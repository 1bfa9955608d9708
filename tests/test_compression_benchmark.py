"""``benchmarks/compression.py`` on a tiny setting: its runs are the runner's, and what it counts is what was sent."""

from __future__ import annotations

import importlib
import json
import statistics
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from dl4jlegacy import ActorNetworkRunner
from dl4jlegacy.datasets import ListDataSetIterator, load
from dl4jlegacy.kernels import load as load_kernels
from dl4jlegacy.nn.networks import build_network
from dl4jlegacy.scaleout.first_model import first_model
from dl4jlegacy.scaleout.state.codec import entropy_bits

TINY = ["--dataset", "digits", "--slots", "2", "--hidden", "16", "--batch", "16", "--rounds", "3", "--seeds", "2"]
TINY += ["--small-hidden", "16", "--small-batch", "8", "--examples", "70", "--epochs", "2"]
TINY += ["--elements", "5000", "--sparsity", "0.01", "--turns", "1"]
ELEMENTS = 64 * 16 + 16 + 16 * 10 + 10


@pytest.fixture
def script(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark; scripts of its folder import each other by their names."""
    monkeypatch.syspath_prepend(repository / "benchmarks")
    return importlib.import_module("compression")


def measured(script: ModuleType, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[dict, dict]:
    """Return the whole report, and its figures by their names."""
    status = script.main([*TINY, "--format", "json", *arguments])
    report = json.loads(capsys.readouterr().out)
    figures = {figure["name"]: figure for figure in report["figures"]}
    assert status == (0 if all(figure["reached"] for figure in report["figures"]) else 1)
    assert len(figures) == len(report["figures"])
    return report, figures


@pytest.mark.long
def test_messages_are_counted_as_they_are(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    exact = [
        "--args",
        "some",
        '{"threshold": "fixed", "tau": 0.002}',
        "--args",
        "none",
        '{"threshold": "fixed", "tau": 99}',
    ]
    report, figures = measured(script, capsys, "--part", "messages", *exact)
    some, none = report["messages"]
    assert [some["setting"], none["setting"]] == ["some", "none"] and some["elements"] == ELEMENTS
    messages = some["messages"]
    assert len(messages) == 2 * 3 and all(0 < message["count"] < ELEMENTS for message in messages)
    assert all(message["payload"] < message["frame"] < 4 * ELEMENTS for message in messages)
    frames, payloads = ([message[kind] for message in messages] for kind in ("frame", "payload"))
    bits = [entropy_bits(message["count"], ELEMENTS) for message in messages]
    expected = {
        "model / update, in the mean": 4 * ELEMENTS * len(frames) / sum(frames),
        "model / largest update": 4 * ELEMENTS / max(frames),
        "payload / bound": 8 * sum(payloads) / sum(bits),
        "payload / bound, at worst": max(8 * payload / least for payload, least in zip(payloads, bits, strict=True)),
    }
    assert {name: figures[f"some: {name}"]["value"] for name in expected} == pytest.approx(expected)
    assert all(figures[f"some: {name}"]["value"] >= 1 for name in expected)
    assert [(message["count"], message["payload"]) for message in none["messages"]] == [(0, 1)] * 6
    assert np.isnan(figures["none: payload / bound"]["value"])
    assert figures["none: model / update, in the mean"]["goal"] == 600


@pytest.mark.long
def test_accuracies_are_compared_seed_by_seed(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    report, figures = measured(script, capsys, "--part", "accuracy")
    rows = report["accuracy"]
    assert [(row["setting"], row["seed"]) for row in rows] == [
        (name, seed) for seed in (1, 2) for name in script.SETTINGS
    ]
    assert rows[0]["whole"] == rows[1]["whole"] != rows[2]["whole"]
    for row in rows:
        difference = figures[f"{row['setting']}: accuracy, seed {row['seed']}"]
        assert (
            difference["value"] == pytest.approx(100 * (row["messages"] - row["whole"])) and difference["goal"] is None
        )
    for name in script.SETTINGS:
        mean = statistics.mean(100 * (row["messages"] - row["whole"]) for row in rows if row["setting"] == name)
        figure = figures[f"{name}: accuracy, mean difference"]
        assert figure["value"] == pytest.approx(abs(mean)) and figure["goal"] == 0.2


@pytest.mark.long
@pytest.mark.parametrize("router", ["gradient-sharing", "iterative-reduce"])
def test_its_runs_are_the_runners_bit_for_bit(script: ModuleType, router: str) -> None:
    arguments = script.parse([*TINY])
    source = script.cut(load("digits"), 70, 8, 2)
    assert source.train.num_examples == 64  # whole rounds
    conf = script.conf_of(source, [16], arguments, router=router, seed=5).replace(batch_size=8, epochs=2)
    with threadpool_limits(limits=1, user_api="blas"):
        trained = script.run(source, conf)
    with ActorNetworkRunner("master", ListDataSetIterator(source.train, 8, seed=5)) as runner:
        runner.setup(conf)
        result = runner.train(deadline=60)
    assert result is not None
    params = trained.model.arrays["params"]
    assert params.tobytes() == result.model.arrays["params"].tobytes()
    began = first_model(build_network(conf.network_conf, load_kernels(None))).arrays["params"]
    assert len(trained.frames) == 2 * 4 * 2 and not np.array_equal(params, began)


@pytest.mark.parametrize("cores", [2, 4])
def test_encoding_on_four_threads_has_a_goal_where_there_are_four_cores(
    script: ModuleType, cores: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script.measured, "cores", lambda: cores)
    _, figures = measured(script, capsys, "--part", "encoding")
    goals = {name: figure["goal"] for name, figure in figures.items() if "topk" not in name}
    assert goals == {
        "1.00% sent, one thread": 1.3,
        "1.00% sent, 4 threads": 0.45 if cores == 4 else None,
        "1.00% decoded and added": None,
    }
    assert all(figure["value"] > 0 and figure["unit"] == "additions" for figure in figures.values())
