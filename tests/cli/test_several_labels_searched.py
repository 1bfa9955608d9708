"""``dl4j tune`` on tables with several labels: what its trials are scored by, and which of them is best."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dl4jlegacy import load_model
from dl4jlegacy.cli.commands.tune import TuneOptions, _how_to_go_on

pytestmark = pytest.mark.usefixtures("here")
NUMBERS = ("--label", "height, weight", "--regression")
ANSWERS = ("--label", "edible,tall", "--multi-label")


@pytest.fixture(autouse=True)
def plants(here: Path) -> None:
    """A table with two numbers and two answers that follow from two others."""
    rng = np.random.default_rng(4)
    light, water = rng.uniform(-1, 1, (2, 80))
    columns = [light, water, 100 + 30 * light, 2 + water, (light + water > 0.3).astype(int), (light > 0).astype(int)]
    lines = [",".join(f"{value:.6g}" for value in row) for row in zip(*columns, strict=True)]
    (here / "plants.csv").write_text("\n".join(["light,water,height,weight,edible,tall", *lines]) + "\n")


def search(here: Path, metric: str = "") -> None:
    """Write the Conf of a search between one that learns and one that does not."""
    conf: dict[str, Any] = {"dataset": "plants.csv", "epochs": 4, "batch_size": 8, "jobs_per_round": 2}
    if metric:
        conf["validation"] = {"fraction": 0.2, "metric": metric}
    space = {"updater.learning_rate": {"low": 1e-5, "high": 0.1, "log": True}}
    (here / "conf.json").write_text(json.dumps({**conf, "search": space}))


@pytest.mark.parametrize(
    ("words", "metric", "is_larger_better"),
    [
        (NUMBERS, "", False),
        (NUMBERS, "rmse", False),
        (NUMBERS[:2], "r2", True),  # several columns are numbers, also if nobody says so
        (ANSWERS, "", False),
        (ANSWERS, "f1", True),
    ],
)
def test_the_best_trial_has_the_best_score_in_the_metrics_direction(
    dl4j: Any, here: Path, words: tuple[str, ...], metric: str, is_larger_better: bool
) -> None:
    search(here, metric)
    out = dl4j("tune", "conf.json", *words, "--trials", "3", "--out", "best.zip", "--format", "json")
    found = json.loads(out)
    scores = [trial["score"] for trial in found["trials"]]
    assert found["metric"] == (metric or "loss") and len(set(scores)) > 1
    assert found["best"]["score"] == (max if is_larger_better else min)(scores)
    model, evaluation = load_model("best.zip"), found["evaluation"]
    if words is ANSWERS:
        assert model.reading.is_multi_label and list(evaluation["labels"]) == ["edible", "tall"] and "f1" in evaluation
    else:
        assert model.label_names == ("height", "weight") and {"mse", "rmse", "mae", "r2"} <= set(evaluation)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--label", "tall,tall", "--multi-label"), "name column 'tall' twice"),
        (("--label", "tall,wieght"), "no column 'wieght'; did you mean 'weight'"),
        (("--label", "height,tall", "--multi-label"), "column 'height' (3): the label is"),
        ((*ANSWERS, "--regression"), "--regression predicts numbers, and --multi-label 0 or 1"),
    ],
)
def test_wrong_labels_are_the_errors_of_train(dl4j: Any, here: Path, words: tuple[str, ...], message: str) -> None:
    search(here)
    said = dl4j("tune", "conf.json", *words, fails=3)
    assert message in said and said == dl4j("train", "plants.csv", *words, fails=3)


def test_a_search_that_goes_on_has_the_same_labels() -> None:
    options = TuneOptions(conf=Path("conf.json"), storage="trials.db", label="a,b", multi_label=True)
    assert "--label a,b --multi-label`" in _how_to_go_on(options)
