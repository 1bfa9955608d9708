"""``benchmarks/real_data.py``: its sets, their splits, and what its verdict says of made-up and measured figures."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas
import pytest
from threadpoolctl import threadpool_limits


@pytest.fixture
def real_data(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(repository / "benchmarks")
    return importlib.import_module("real_data")


def row(real_data: ModuleType, name: str, ours: float, error: float = 0.0, seconds: float = 1.0, **peers: float) -> Any:
    """Return a row of the set ``name`` whose peers have a standard error each and took a second."""
    data = next(each for each in real_data.sets.ALL if each.name == name)
    outcomes = {peer: real_data.Outcome(value, error, 1.0) for peer, value in peers.items()}
    return real_data.Row(data, real_data.Outcome(ours, 0.0, seconds), outcomes)


def test_there_are_24_tables_and_more_and_every_peer_of_each_has_a_function(real_data: ModuleType) -> None:
    sets = real_data.sets
    assert sum(data.is_table for data in sets.ALL) == 24
    assert {data.kind for data in sets.ALL} == set(sets.PEERS)
    assert len({data.name for data in sets.ALL}) == len(sets.ALL) >= 30
    assert {peer for peers in sets.PEERS.values() for peer in peers} == set(real_data.LEARNERS)
    assert {data.metric for data in sets.ALL} == {"accuracy", "macro_f1", "mae", "rmse"}


def test_points_of_an_error_are_hundredths_of_the_trivial_answers(real_data: ModuleType) -> None:
    table = row(real_data, "diamonds", 270.0, error=4.0, trivial=1000.0, mlp=300.0)
    assert (table.ahead("mlp"), table.margin("mlp")) == (pytest.approx(0.03), pytest.approx(0.01))
    assert row(real_data, "diamonds", 270.0, error=30.0, trivial=1000.0, mlp=300.0).margin("mlp") == pytest.approx(0.06)
    classes = row(real_data, "wine", 0.90, error=0.02, trivial=0.4, mlp=0.93)
    assert (classes.ahead("mlp"), classes.margin("mlp")) == (pytest.approx(-0.03), pytest.approx(0.04))
    assert (table.best(("trivial", "mlp")), classes.best(("trivial", "mlp"))) == ("mlp", "mlp")
    assert row(real_data, "lending", 0.94, trivial=0.9475, mlp=0.93).best(("trivial", "mlp", "hgb")) == "trivial"


def said(real_data: ModuleType, *rows: object) -> dict[str, tuple[float | None, bool]]:
    """Return each verdict's value and whether it is good, without the numbers of sets in its name."""
    figures = {each.name.partition(", of ")[0]: each for each in real_data.verdicts(rows)}
    return {
        name: (each.value, each.value is not None and (each.value >= each.goal) == each.at_least)
        for name, each in figures.items()
    }


def test_one_set_of_24_may_be_below_by_m_but_none_by_twice_that(real_data: ModuleType) -> None:
    good, poor = (row(real_data, "wine", ours, trivial=0.4, mlp=0.93) for ours in (0.925, 0.915))
    bad = row(real_data, "wine", 0.90, trivial=0.4, mlp=0.93)
    found = said(real_data, *[good] * 23, poor)
    assert found[">= trivial and MLP, less m"] == (23, True)
    assert found["never below them by 2 m"] == (24, True)
    assert said(real_data, *[good] * 22, poor)[">= trivial and MLP, less m"] == (22, False), "of fewer sets, none"
    assert said(real_data, *[good] * 22, poor, poor)[">= trivial and MLP, less m"] == (22, False)
    assert said(real_data, *[good] * 23, bad)["never below them by 2 m"] == (23, False)


def test_tables_are_held_against_boosted_trees_and_realmlp(real_data: ModuleType) -> None:
    classes = row(real_data, "wine", 0.90, trivial=0.4, mlp=0.93, hgb=0.915, realmlp=0.905)
    amounts = row(real_data, "diamonds", 290.0, trivial=1000.0, mlp=300.0, hgb=270.0, realmlp=280.0)
    far = row(real_data, "diamonds", 300.0, trivial=1000.0, mlp=300.0, hgb=270.0, realmlp=280.0)
    found = said(real_data, classes, amounts, far, amounts)
    assert found["accuracy less HGB's, median"] == (pytest.approx(-0.015), False)
    assert found["error over HGB's, median"] == (pytest.approx(290 / 270), False)
    assert found["within 2 points or 1.1 x of HGB"] == (3, True), "three quarters"
    assert found["ahead of RealMLP in m, median"] == (pytest.approx(-1.0), True)
    assert said(real_data, far, far, classes)["within 2 points or 1.1 x of HGB"] == (1, False)


def test_images_words_and_series_have_their_own_peers(real_data: ModuleType) -> None:
    found = said(
        real_data,
        row(real_data, "shapes", 0.95, trivial=0.25, mlp=0.8, lenet=0.95),
        row(real_data, "digits", 0.95, trivial=0.1, mlp=0.8, lenet=0.951),
        row(real_data, "reviews", 0.262, trivial=0.1, trigrams=0.270),
        row(real_data, "sunspots", 20.0, trivial=20.0, mlp=19.0, seconds=3.5),
    )
    assert found["images >= LeNet"] == (1, False)
    assert found["words >= trigrams, less m"] == (1, True)
    assert found["series better than the last value"] == (0, False), "it has to be better"
    assert found["tables in 3 x the MLP's time or 3 s"] == (0, False)
    assert found["ahead of RealMLP in m, median"] == (None, False), "not measured"


def test_words_that_follow_are_counted_in_the_part_that_is_learned(real_data: ModuleType) -> None:
    text = "the fox saw the grapes and the fox saw the hen " * 20
    parts = real_data.sets.tokens(text, "words")
    assert (parts.length, parts.sizes, len(parts.x_test)) == (32, 7, 32)
    assert (parts.x[1:] == parts.y[:-1]).all() and (parts.x_test[1:] == parts.y_test[:-1]).all()
    data = next(each for each in real_data.sets.ALL if each.kind == "words")
    right = [np.mean(learn(data, parts) == parts.y_test) for learn in (real_data.bigrams, real_data.trigrams)]
    assert right[0] < right[1] < 1 and right[1] > 0.8, "'saw the' goes on in two ways"


def test_the_end_of_a_series_is_held_out_and_a_fifth_of_each_class_of_a_table(
    real_data: ModuleType, tmp_path: Path
) -> None:
    frame = pandas.DataFrame({"lag1": range(100), "y": ["a", "b", "b", "b"] * 25})
    data = real_data.RealSet("made", "series", "mae", lambda: frame, "lag1")
    parts = real_data.sets.write(data, frame, tmp_path / "series", 1)
    assert (parts.y.tolist(), parts.y_test.tolist()) == ([*range(80)], [*range(80, 100)])
    data = real_data.RealSet("made", "table", "accuracy", lambda: frame, "y")
    drawn = [real_data.sets.write(data, frame, tmp_path / str(turn), seed) for turn, seed in enumerate((1, 2, 1))]
    assert [(parts.y_test == "a").sum() for parts in drawn] == [5, 5, 5]
    first, second, again = (parts.x_test["lag1"].tolist() for parts in drawn)
    assert first == again != second
    assert pandas.read_csv(tmp_path / "0" / "test.csv")["lag1"].tolist() == first
    assert data.options == ("--label", "y")


def test_a_line_that_fails_counts_as_the_worst_figure(real_data: ModuleType, tmp_path: Path) -> None:
    amounts = real_data.RealSet("made", "table", "rmse", dict, "y")
    outcome, failure = real_data.ours(amounts, tmp_path / "made-files", ["dl4j", "train", "made-files"])
    assert outcome.value == float("inf")
    assert failure.startswith("failed (") and "made-files" in failure


@pytest.mark.long
def test_three_sets_are_measured_and_judged(
    real_data: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    kept = tmp_path / "peers.jsonl"
    importlib.import_module(
        "sklearn.ensemble"
    )  # loads OpenMP, of which more threads than one are slow on a busy machine
    with threadpool_limits(1):
        status = real_data.main(["--quick", "--keep", str(kept), "--format", "json"])
    report = json.loads(capsys.readouterr().out)
    clusters, diabetes, digits = report["sets"]
    assert [each["set"] for each in report["sets"]] == list(real_data.sets.QUICK)
    assert clusters["mlp"]["value"] > 0.6 > 0.2 > clusters["trivial"]["value"] and clusters["hgb"]["error"] < 0.1
    assert diabetes["mlp"]["value"] < diabetes["trivial"]["value"] < 90
    assert digits["mlp"]["value"] > 0.9 > 0.2 > digits["trivial"]["value"]
    for each in report["sets"]:
        peers = {name: each[name]["value"] for name in ("trivial", "mlp")}
        made = row(real_data, each["set"], each["ours"]["value"], error=each["mlp"]["error"], **peers)
        assert made.ahead("mlp") >= -2 * made.margin("mlp"), each
    assert "pytabkit" in report["absent"] or "realmlp" in clusters
    figures = {figure["name"]: figure for figure in report["figures"]}
    assert {"clusters: accuracy", "within 2 points or 1.1 x of HGB, of 2"} <= set(figures)
    assert figures["never below them by 2 m, of 3"]["value"] == 3
    assert status == (0 if all(figure["reached"] for figure in report["figures"]) else 1)
    assert ["clusters", 1, "mlp"] in [json.loads(line)[0] for line in kept.read_text("utf-8").splitlines()]
    real_data.main(["--quick", "--sets", "diabetes", "--keep", str(kept)])
    lines = capsys.readouterr().out.splitlines()
    assert "  dl4j train diabetes-files --label target --regression --seed 1" in lines
    [found] = [line.split() for line in lines if line.startswith("  diabetes ")]
    values = [each["value"] for each in (diabetes["ours"], diabetes["trivial"], diabetes["mlp"], diabetes["hgb"])]
    assert found[:6] == ["diabetes", "rmse", *(f"{value:.4g}" for value in values)]
    [verdict] = [line for line in lines if line.startswith("  never below them by 2 m, of 1")]
    assert verdict.endswith("goal >= 1      reached")
