"""Several columns to learn at once, from the command line: numbers, and labels that do not exclude each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import f1_score, mean_squared_error, r2_score

from dl4jlegacy import load_model
from dl4jlegacy.datasets import Reading, load
from dl4jlegacy.errors import ConfError
from dl4jlegacy.nn import DenseLayer, MultiLayerConfiguration, OutputLayer
from dl4jlegacy.nn.batch_evaluation import is_classified
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.training.prepare import prepare
from dl4jlegacy.training.run_data import load_new

pytestmark = pytest.mark.usefixtures("here")
SHORT = ("--epochs", "8", "--jobs-per-round", "4", "--batch-size", "8")
NUMBERS = ("train", "plants.csv", "--label", "height, weight", *SHORT)
ANSWERS = ("train", "plants.csv", "--label", "edible,tall", "--multi-label", *SHORT)


@pytest.fixture(autouse=True)
def plants(here: Path) -> np.ndarray:
    """A table with two numbers and two answers that follow from two others; returns its columns."""
    rng = np.random.default_rng(4)
    light, water = rng.uniform(-1, 1, (2, 200))
    height, weight = 100 + 30 * light + rng.normal(0, 2, 200), 2 + water + rng.normal(0, 0.1, 200)
    columns = [light, water, height, weight, (light + water > 0.3).astype(int), (light > 0).astype(int)]
    lines = [",".join(f"{value:.6g}" for value in row) for row in zip(*columns, strict=True)]
    (here / "plants.csv").write_text("\n".join(["light,water,height,weight,edible,tall", *lines]) + "\n")
    return np.array(columns).T


def test_several_numbers_are_learned_reported_and_predicted_each_in_its_units(dl4j: Any, plants: np.ndarray) -> None:
    report = dl4j.json(*NUMBERS, "--out", "m.zip")
    assert report["label"] == ["height", "weight"] and report["accuracy"] is None
    model = load_model("m.zip")
    assert model.label_names == ("height", "weight") and model.predicts_numbers
    predicted = dl4j.json("predict", "m.zip", "plants.csv")
    found = np.array(predicted["predictions"])
    assert predicted["columns"] == ["height", "weight"] and found.shape == (200, 2)
    whole = dl4j.json("evaluate", "m.zip", "--dataset", "plants.csv", "--split", "all")
    labels = plants[:, 2:4]
    assert whole["mse"] == pytest.approx(mean_squared_error(labels, found), rel=1e-3)
    assert whole["r2"] == pytest.approx(r2_score(labels, found), rel=1e-3) and whole["r2"] > 0.5
    text = dl4j("evaluate", "m.zip", "--dataset", "plants.csv")
    assert "\nheight " in text and "\nweight " in text
    lines = dl4j("predict", "m.zip", "plants.csv").splitlines()
    assert [float(cell) for cell in lines[7].split("\t")] == predicted["predictions"][7]
    row = json.loads(dl4j("predict", "m.zip", "plants.csv", "--format", "jsonl").splitlines()[7])
    assert row == {"row": 7, "values": dict(zip(["height", "weight"], predicted["predictions"][7], strict=True))}


def test_answers_are_learned_and_evaluated_label_by_label(dl4j: Any, plants: np.ndarray) -> None:
    report = dl4j.json(*ANSWERS, "--out", "m.zip")
    assert report["label"] == ["edible", "tall"] and list(report["labels"]) == ["edible", "tall"]
    model = load_model("m.zip")
    last = model.network.layers[-1]
    assert (last.activation, last.loss) == ("sigmoid", "xent")
    assert model.reading.is_multi_label and model.label_names == ("edible", "tall")
    found = dl4j.json("predict", "m.zip", "plants.csv")
    answers, probabilities = np.array(found["predictions"]), np.array(found["probabilities"])
    assert (answers == (probabilities > 0.5)).all() and found["label_names"] == ["edible", "tall"]
    whole = dl4j.json("evaluate", "m.zip", "--dataset", "plants.csv", "--split", "all")
    labels = plants[:, 4:]
    assert whole["f1"] == pytest.approx(f1_score(labels, answers, average="macro"))
    assert whole["accuracy"] == pytest.approx((labels == answers).mean()) and whole["accuracy"] > 0.8
    each = whole["labels"]["tall"]
    assert each["f1"] == pytest.approx(f1_score(labels[:, 1], answers[:, 1]))
    assert each["true_positives"] + each["false_negatives"] == labels[:, 1].sum()
    evaluate = ("evaluate", "m.zip", "--dataset", "plants.csv", "--split", "all", "--format", "json")
    assert dl4j.json(*evaluate, "--workers", "2") == whole
    assert "\nedible" in dl4j("evaluate", "m.zip", "--dataset", "plants.csv")


def test_predictions_name_the_labels_that_are_there(dl4j: Any) -> None:
    dl4j(*ANSWERS, "--out", "m.zip")
    lines = dl4j("predict", "m.zip", "plants.csv", "--probabilities").splitlines()
    rows = [json.loads(line) for line in dl4j("predict", "m.zip", "plants.csv", "--format", "jsonl").splitlines()]
    for line, row in zip(lines, rows, strict=True):
        words, *values = line.split("\t")
        assert words == (",".join(row["labels"]) or "-")
        assert dict(zip(["edible", "tall"], map(float, values), strict=True)) == row["probabilities"]
    assert {len(row["labels"]) for row in rows} == {0, 1, 2}
    features = [[0.5, 0.5, 115.0, 2.5], [-0.5, -0.5, 85.0, 1.5]]
    assert load_model("m.zip").predict(features).tolist() == [[1, 1], [0, 0]]


def test_a_schema_may_be_given_another_label() -> None:
    conf, data = load_new(Conf(dataset="plants.csv"), label="edible,tall", multi_label=True)
    assert data.train.labels.shape == (160, 2)
    again, _ = load_new(conf, label="tall")
    assert again.reading.transform is not None and again.reading.transform.labels == ("tall",)
    with pytest.raises(ConfError, match="names the label 'height'; steps are for features"):
        load_new(conf, label="height", regression=True)


def test_what_cannot_be_learned_is_said(dl4j: Any, here: Path) -> None:
    wrong = ("train", "plants.csv", "--label", "height,tall", "--multi-label", *SHORT)
    assert "column 'height' (3): the label is" in dl4j(*wrong, fails=3)
    assert "no column 'wieght'; did you mean 'weight'" in dl4j("train", "plants.csv", "--label", "tall,wieght", fails=3)
    assert "name column 'tall' twice" in dl4j("train", "plants.csv", "--label", "tall,tall", fails=3)
    both = dl4j(*ANSWERS, "--regression", fails=3)
    assert "--regression predicts numbers, and --multi-label 0 or 1" in both
    assert "is several, and no class" in dl4j(*ANSWERS, "--stratify", fails=3)
    assert "validation.metric is 'accuracy', and nothing is classified" in dl4j(
        *NUMBERS, "--validation", "0.2", "--metric", "accuracy", fails=3
    )
    layers = (DenseLayer(n_out=4), OutputLayer(n_out=2, activation="softmax"))
    with pytest.raises(ConfError, match="give it activation 'sigmoid' and loss 'xent'"):
        prepare(
            Conf(dataset="plants.csv", multi_layer_conf=MultiLayerConfiguration(layers=layers)),
            frozenset(),
            label="edible,tall",
            multi_label=True,
        )


def test_a_row_with_a_gap_in_a_label_is_left_out(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    (here / "gap.csv").write_text("x,a,b\n" + "1,0,1\n2,1,\n3,1,1\n" * 4)
    conf, data = load_new(Conf(dataset="gap.csv"), label="a,b", multi_label=True)
    assert data.train.num_examples + data.test.num_examples == 8
    assert "4 rows without a value in the label 'a, b' left out; the first is line 3" in caplog.text
    assert "labels that are the same in all training rows: b" in caplog.text
    assert conf.transform is not None and load("gap.csv", reading=Reading(transform=conf.transform)).label_names == (
        "a",
        "b",
    )


def test_classes_with_sigmoids_are_still_classes() -> None:
    """Deeplearning4j's default activation is the sigmoid: one 1 in every row is a class, as it always was."""
    conf = MultiLayerConfiguration(layers=(OutputLayer(n_in=4, n_out=3, activation="sigmoid", loss="xent"),))
    assert is_classified(conf, load("iris").train)
