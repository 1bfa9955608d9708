"""CSV files as people have them, from the command line: words, gaps, numbers to predict; beside scikit-learn."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import datasets as sklearn_datasets
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from dl4jlegacy import load_model
from dl4jlegacy.datasets import Reading, load
from dl4jlegacy.datasets.dataset import split_order
from dl4jlegacy.nn.evaluation.regression import RegressionEvaluation
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.training.prepare import prepare

pytestmark = pytest.mark.usefixtures("here")
SHORT = ("--epochs", "2", "--jobs-per-round", "4", "--batch-size", "8")
Rows = list[list[Any]]


def table(rows: int = 240) -> Rows:
    """Cars: words, numbers, gaps, and a price that follows from them."""
    rng = np.random.default_rng(7)
    found: Rows = [["colour", "power, kW", "age", "fuel", "price", "sold"]]
    for _ in range(rows):
        colour, fuel = rng.choice(["red", "blue", "dark green"]), rng.choice(["gas", "oil"])
        power, age = rng.uniform(40, 200), rng.integers(0, 20)
        price = 5000 + 120 * power - 700 * age + (4000 if fuel == "gas" else 0) + rng.normal(0, 500)
        power_cell = "NA" if rng.random() < 0.05 else f"{power:.1f}"
        colour_cell = "" if rng.random() < 0.1 else colour
        found.append([colour_cell, power_cell, age, fuel, f"{price:.2f}", "yes" if price > 15000 else "no"])
    return found


def write(path: Path, rows: Rows) -> str:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return path.name


def write_scikit_learns(folder: Path, name: str) -> str:
    data = getattr(sklearn_datasets, f"load_{name}")()
    labels = data.target if name == "diabetes" else [data.target_names[number] for number in data.target]
    rows = [[label, *values] for label, values in zip(labels, data.data.tolist(), strict=True)]
    return write(folder / f"{name}.csv", [["outcome", *data.feature_names], *rows])


def test_numbers_are_learned_reported_evaluated_and_predicted_in_their_own_units(dl4j: Any, here: Path) -> None:
    write(here / "cars.csv", table())
    train = ("train", "cars.csv", "--label", "price", "--regression", *SHORT, "--out", "m.zip", "--format", "json")
    report = dl4j.json(*train)
    assert report["accuracy"] is None and report["f1"] is None and report["label"] == "price"
    model = load_model("m.zip")
    assert model.reading.transform is not None and model.label_names == ("price",)
    test = load("cars.csv", reading=Reading(transform=model.reading.transform)).test
    predicted, actual = model.output(test.features), model.reading.transform.in_units(test.labels)
    evaluation = RegressionEvaluation()
    evaluation.eval(actual, predicted)
    for name in ("mse", "mae", "r2"):
        assert report[name] == pytest.approx(evaluation.average(name), rel=1e-4)
    assert report["rmse"] > 100, "in the units of the price"
    evaluate = ("evaluate", "m.zip", "--dataset", "cars.csv", "--format", "json")
    found = dl4j.json(*evaluate)
    assert {name: found[name] for name in ("loss", "mse", "mae", "r2", "rmse")} == {
        name: report[name] for name in ("loss", "mse", "mae", "r2", "rmse")
    }
    assert dl4j.json(*evaluate, "--workers", "2") == found
    assert "R^2" in dl4j("evaluate", "m.zip", "--dataset", "cars.csv")
    whole = model.reading.transform.features(model.reading.transform.read(here / "cars.csv"), new_rows=True)
    numbers = [float(line) for line in dl4j("predict", "m.zip", "cars.csv").split()]
    assert numbers == pytest.approx(model.output(whole)[:, 0].tolist(), rel=1e-6)
    body = dl4j.json("predict", "m.zip", "cars.csv")
    assert body["predictions"] == numbers and body["column"] == "price"
    assert dl4j("predict", "m.zip", "cars.csv", "--workers", "2").split() == [repr(number) for number in numbers]
    first = json.loads(dl4j("predict", "m.zip", "cars.csv", "--format", "jsonl").splitlines()[0])
    assert first == {"row": 0, "column": "price", "value": numbers[0]}


def test_words_and_gaps_are_learned_without_a_word(dl4j: Any, here: Path) -> None:
    write(here / "cars.csv", table())
    report = dl4j.json("train", "cars.csv", *SHORT, "--out", "m.zip")
    assert report["label"] == "sold" and 0 <= report["accuracy"] <= 1
    found = dl4j.json("evaluate", "m.zip", "--dataset", "cars.csv")
    assert (found["accuracy"], found["f1"]) == (report["accuracy"], report["f1"])
    assert set(dl4j("predict", "m.zip", "cars.csv").splitlines()) <= {"0 no", "1 yes"}


def test_a_prediction_finds_its_columns_and_says_what_it_does_not_find(dl4j: Any, here: Path) -> None:
    rows = table()
    write(here / "cars.csv", rows)
    dl4j("train", "cars.csv", *SHORT, "--out", "m.zip")
    other = [[row[3], row[1], row[0], row[2], row[4]] for row in rows]  # another order, no label
    write(here / "other.csv", other)
    probabilities = ("predict", "--probabilities", "m.zip")
    assert dl4j(*probabilities, "other.csv") == dl4j(*probabilities, "cars.csv")
    write(here / "bare.csv", [row[:5] for row in rows[1:]])  # no header, no label
    assert dl4j(*probabilities, "bare.csv") == dl4j(*probabilities, "cars.csv")
    write(here / "unseen.csv", [rows[0], ["pink", "", 3, "steam", 9000, ""]])  # words never seen, and gaps
    assert len(dl4j("predict", "m.zip", "unseen.csv").splitlines()) == 1
    write(here / "less.csv", [row[1:] for row in rows])
    assert "less.csv has no column 'colour'" in dl4j("predict", "m.zip", "less.csv", fails=3)
    write(here / "bad.csv", [rows[0], ["red", "a lot", 3, "gas", 9000, "no"]])
    said = dl4j("predict", "m.zip", "bad.csv", fails=3)
    assert "bad.csv, line 2, column 'power, kW' (2): 'a lot' is not a number" in said


def test_a_schema_of_ones_own_is_used(dl4j: Any, here: Path) -> None:
    write(here / "cars.csv", table())
    Path("schema.yaml").write_text(
        """
columns:
- {name: fuel, type: category}
- {name: age}
- {name: price}
label: price
regression: true
steps:
- {type: filter, columns: [age], condition: '>', value: 18}
- {type: clip, columns: [age], high: 15}
- {type: min-max, columns: [age]}
- {type: index, columns: [fuel], categories: [[oil, gas]]}
""",
        encoding="utf-8",
    )
    dl4j("train", "cars.csv", "--schema", "schema.yaml", *SHORT, "--out", "m.zip")
    transform = load_model("m.zip").reading.transform
    assert transform is not None and len(load("cars.csv", reading=Reading(transform=transform)).train) < 192
    assert transform.features(transform.read(Path("cars.csv")))[:, 1].max() == 1
    Path("schema.yaml").write_text("columns: [{name: a}]\nsteps: [{type: cilp, columns: [a]}]\n", encoding="utf-8")
    assert "schema.yaml" in (said := dl4j("train", "cars.csv", "--schema", "schema.yaml", fails=3)) and "clip" in said


@pytest.mark.parametrize(
    ("rows", "arguments", "message"),
    [
        ([["a", "y"], [1, 2.5], [2, 3.5]], ("--label", "y"), "the label 'y' holds real numbers, which are no classes"),
        ([["a", "y"], [1, "x"], [2, "z"]], ("--regression",), "the label 'y' holds words such as 'x'"),
        ([["a", "y"], [1, 2], [2, 3]], ("--label", "z"), "d.csv has no column 'z'"),
        (
            [["a", "y"], *[[1, 2], [2, 1]] * 9, [1, 7]],
            ("--label", "y"),
            "line 20, column 'y' (2): label '7' occurs once",
        ),
        ([["a", "y"], *[[i, 2] for i in range(9)]], ("--regression",), "the label 'y' is 2 in all of its 7 training"),
        ([["a", "y"]], ("--label", "y"), "d.csv holds no examples"),
        ([], ("--label", "y"), "d.csv holds no examples"),
        ([["a", "y"], [1, "p"], [2, "q", 3]], (), "line 3: 3 columns"),
        ([["y"], [1]], ("--label", "y"), "only 1 column"),
        ([["a", "a", "y"], [1, 1, 1]], ("--label", "y"), "column 'a' is there twice"),
        ([["a", "y"], ["", "p"], ["", "q"]], ("--label", "y"), "nothing to learn from besides its label 'y'"),
        ([["a", "y"], [1, 1.5], [2, 2], ["x", 3]], ("--regression",), "line 4, column 'a' (1): 'x' is not a number"),
    ],
)
def test_what_is_wrong_with_a_table_is_said(
    dl4j: Any, here: Path, rows: Rows, arguments: tuple[str, ...], message: str
) -> None:
    write(here / "d.csv", rows)
    assert message in dl4j("train", "d.csv", *arguments, fails=3)


def test_options_for_tables_are_refused_for_what_is_none(dl4j: Any) -> None:
    assert "data set 'digits' has no columns" in dl4j("train", "--dataset", "digits", "--label", "x", fails=3)
    assert "two data sets" in dl4j("train", "a.csv", "--dataset", "digits", fails=2)
    assert "no such file" in dl4j("train", "absent.csv", "--label", "x", fails=3)


def test_a_run_that_predicts_numbers_is_validated_and_stopped_by_its_loss(dl4j: Any, here: Path) -> None:
    rows = table()
    write(here / "cars.csv", rows)
    write(here / "others.csv", [rows[0], *rows[-40:]])
    train = ("train", "cars.csv", "--label", "price", "--regression", "--workers", "2", "--format", "json")
    for part in ("0.2", "others.csv"):
        report = dl4j.json(*train, "--epochs", "3", "--validation", part, "--stop-at-score", "100")
        assert report["stopped_by"].startswith("BestScore: loss") and report["best"]["metric"] == "loss"
        assert report["validation"]["accuracy"] is None and report["r2"] < 1
    said = dl4j(*train, "--validation", "0.2", "--metric", "accuracy", fails=3)
    assert "validation.metric is 'accuracy', and nothing is classified" in said and "numbers to predict" in said
    said = dl4j("train", "cars.csv", "--label", "sold", "--validation", "0.2", "--metric", "r2", fails=3)
    assert "validation.metric is 'r2', and no number is predicted: the labels are classes" in said


@pytest.mark.parametrize("metric", ["r2", "rmse"])
def test_a_run_is_scored_in_the_units_of_the_label(dl4j: Any, here: Path, metric: str) -> None:
    rows = table()
    write(here / "cars.csv", rows)
    write(here / "others.csv", [rows[0], *rows[-40:]])
    train = ("train", "cars.csv", "--label", "price", "--regression", *SHORT, "--format", "json")
    scored = ("--validation", "others.csv", "--metric", metric, "--patience", "9", "--out", "m.zip")
    reports = [dl4j.json(*train, *scored, "--workers", workers) for workers in ("1", "3")]
    best = reports[0]["best"]
    assert best == reports[1]["best"] and best["metric"] == metric and best["score"] == best["figures"][metric]
    others = load("others.csv", reading=Reading(transform=(model := load_model("m.zip")).reading.transform))
    evaluation = RegressionEvaluation(("price",))
    for part in (others.train, others.test):
        units = model.reading.transform
        labels = part.labels.astype(np.float64) * units.label_std + units.label_mean
        evaluation.eval(labels, model.output(part.features).astype(np.float64))
    assert best["score"] == pytest.approx(getattr(evaluation, metric)(0), rel=1e-4)


def test_where_the_logarithm_of_a_label_is_learned_scores_and_reports_are_in_its_units(dl4j: Any, here: Path) -> None:
    rows = table()
    write(here / "cars.csv", rows)
    write(here / "others.csv", [rows[0], *rows[-40:]])
    dl4j("data", "inspect", "cars.csv", "--label", "price", "--regression", "--out", "s.json")
    Path("s.json").write_text(json.dumps({**json.loads(Path("s.json").read_text()), "label_log": ["price"]}))
    train = ("train", "cars.csv", "--schema", "s.json", *SHORT, "--validation", "others.csv", "--metric", "mae")
    reports = [dl4j.json(*train, "--out", "m.zip", "--format", "json", "--workers", workers) for workers in ("1", "3")]
    model, best = load_model("m.zip"), reports[0]["best"]
    schema = model.reading.transform
    others = schema.read(Path("others.csv"))
    predicted = model.output(schema.features(others)).ravel()
    low, high = schema.label_limits[0]
    assert low <= predicted.min() and predicted.max() <= high * (1 + 1e-6)
    mae = np.abs(predicted - others.labels).mean()
    assert best == reports[1]["best"] and best["score"] == pytest.approx(mae, rel=1e-4) and mae > 100
    evaluate = ("evaluate", "m.zip", "--dataset", "others.csv", "--split", "all", "--format", "json")
    found = dl4j.json(*evaluate)
    assert found["mae"] == pytest.approx(mae, rel=1e-4)
    again = dl4j.json(*evaluate, "--workers", "2")
    assert {**again, "device": found["device"]} == found


def test_a_network_of_classes_is_refused_for_numbers(dl4j: Any, here: Path) -> None:
    write(here / "cars.csv", table(40))
    regression = ("--label", "price", "--regression")
    assert "predicts no numbers" in dl4j("train", "cars.csv", "--model", "vae", *regression, fails=3)
    Path("c.yaml").write_text(
        "dataset: cars.csv\nmulti_layer_conf: {layers: [{type: output, activation: softmax}]}\n", encoding="utf-8"
    )
    assert "activation 'softmax'" in dl4j("train", "c.yaml", *regression, fails=3)


def scikit_learns_features(rows: Rows, numbers: list[int], words: list[int]) -> Any:
    cells = [[None if cell in ("NA", "") else cell for cell in row] for row in rows]
    steps = ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(), StandardScaler()), numbers),
            (
                "words",
                make_pipeline(
                    SimpleImputer(missing_values=None, strategy="constant", fill_value="missing"),
                    OneHotEncoder(handle_unknown="ignore", sparse_output=False),
                ),
                words,
            ),
        ]
    )
    return steps, np.array(cells, object)


def test_the_guessed_schema_makes_what_scikit_learns_steps_make(here: Path) -> None:
    rows = table()
    write(here / "cars.csv", rows)
    fields = {"dataset": str(here / "cars.csv"), "model": "dbn", "epochs": 1}
    source = prepare(Conf(**fields), frozenset(fields), label="price", regression=True)[1]
    train, test = split_order(len(rows) - 1, 0.8, 123)
    steps, cells = scikit_learns_features(rows[1:], [1, 2], [0, 3, 5])
    for cell in cells:
        cell[1] = np.nan if cell[1] is None else float(cell[1])
    theirs = steps.fit(cells[train])
    for part, ours in ((train, source.train), (test, source.test)):
        expected = theirs.transform(cells[part]).astype(float)
        # ours are in the order of the columns: colour's four, power, age, fuel's two, sold's two
        order = [2, 3, 4, 5, 0, 1, 6, 7, 8, 9]
        np.testing.assert_allclose(ours.features, expected[:, order], atol=1e-5)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    ("name", "flags", "floor", "behind"),
    [
        pytest.param("diabetes", ("--regression",), 0.35, 0.03, marks=pytest.mark.release),
        pytest.param("wine", (), 0.97, 0.03, marks=pytest.mark.release),
        ("breast_cancer", (), 0.94, 0.03),
        ("cars", ("--regression",), 0.95, 0.02),
    ],
)
def test_tables_are_learned_as_well_as_by_scikit_learns_network(
    dl4j: Any, here: Path, name: str, flags: tuple[str, ...], floor: float, behind: float
) -> None:
    if name == "cars":
        file, label = write(here / "cars.csv", table(600)), "price"
    else:
        file, label = write_scikit_learns(here, name), "outcome"
    report = dl4j.json("train", file, "--label", label, *flags, "--out", "m.zip")
    transform = load_model("m.zip").reading.transform
    source = load(file, reading=Reading(transform=transform))
    x, test = source.train.features, source.test.features
    if flags:
        model = MLPRegressor(hidden_layer_sizes=(128, 64), max_iter=300, early_stopping=True, random_state=1)
        theirs = model.fit(x, source.train.labels[:, 0]).score(test, source.test.labels[:, 0])
        ours = report["r2"]
    else:
        classifier = MLPClassifier((128, 64), max_iter=200, random_state=1)
        theirs = classifier.fit(x, source.train.classes).score(test, source.test.classes)
        ours = report["accuracy"]
    print(f"{name}: {ours:.4f}, scikit-learn's {theirs:.4f}")
    assert ours >= floor
    assert ours >= theirs - behind
