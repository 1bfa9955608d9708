"""Numbers to predict from files of sequences, on the command line: trained, evaluated, predicted, and what is wrong."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dl4jlegacy import load_model
from dl4jlegacy.datasets import CsvSequenceDataSetIterator, Reading, load
from dl4jlegacy.datasets.sequences.sequence_reader import SequenceRecordReader
from dl4jlegacy.errors import ConfError, DataError, ModelError

pytestmark = pytest.mark.usefixtures("here")
SHORT = ("--sequences", "--regression", "--epochs", "2", "--jobs-per-round", "3", "--batch-size", "4")
LONG = ("--sequences", "--regression", "--epochs", "80", "--jobs-per-round", "1", "--workers", "1", "--out", "m.zip")


def trained(dl4j: Any, *options: str) -> dict[str, Any]:
    found: dict[str, Any] = dl4j.json("train", *options)
    return found


@pytest.fixture
def tanks(here: Path) -> Path:
    """40 sequences of 4 to 10 steps: what flows in, and the level, far from 0, and the drop that follow from it."""
    rng, folder = np.random.default_rng(3), here / "tanks"
    folder.mkdir()
    for number in range(40):
        inflow = rng.normal(size=4 + number % 7).round(3)
        level = 1000 + 50 * np.cumsum(inflow)
        rows = [f"{a},{b:.3f},{-b / 7:.4f}" for a, b in zip(inflow, level, strict=True)]
        (folder / f"{number}.csv").write_text("\n".join(["inflow,level,drop", *rows]))
    return folder


@pytest.fixture
def sums(here: Path) -> Path:
    """40 sequences with one number each, in files of their own: ten times their sum, and 30."""
    rng, folder = np.random.default_rng(8), here / "sums"
    for part in ("features", "labels"):
        (folder / part).mkdir(parents=True)
    for number in range(40):
        values = rng.normal(size=4 + number % 7).round(3)
        (folder / "features" / f"{number}.csv").write_text("\n".join(map(str, values)))
        (folder / "labels" / f"{number}.csv").write_text(f"{30 + 10 * values.sum():.3f}")
    return folder


def test_numbers_at_each_step_are_learned_evaluated_and_predicted(dl4j: Any, tanks: Path) -> None:
    report = trained(dl4j, "tanks", *LONG, "--label", "level,drop")
    assert report["model"] == "lstm" and report["r2"] > 0.9 and report["accuracy"] is None
    kept = report["sequences"]
    assert kept["labels"] == ["level", "drop"] and kept["regression"] and kept["columns"] == 1
    found = dl4j.json("evaluate", "m.zip", "--dataset", "tanks")
    assert {name: found[name] for name in ("loss", "mse", "mae", "r2")} == {
        name: report[name] for name in ("loss", "mse", "mae", "r2")
    }
    assert "level  " in dl4j("evaluate", "m.zip", "--dataset", "tanks") and load_model("m.zip").predicts_numbers
    lines = [line.split("\t") for line in dl4j("predict", "m.zip", "tanks").splitlines()]
    paths = sorted(tanks.iterdir(), key=lambda path: int(path.stem))
    rows = [row.split(",") for path in paths for row in path.read_text().splitlines()[1:]]
    told, actual = (np.array(each, float) for each in ([line[1:] for line in lines], [row[1:] for row in rows]))
    assert told.shape == actual.shape and (((told - actual) ** 2).mean(0) / actual.var(0) < 0.1).all()
    Path("new.csv").write_text("\n".join(line.split(",")[0] for line in paths[5].read_text().splitlines()))
    wanted = [line[1:] for line in lines if line[0] == "tanks/5.csv"]
    assert [line.split("\t")[1:] for line in dl4j("predict", "m.zip", "new.csv").splitlines()] == wanted
    [first, *_] = map(json.loads, dl4j("predict", "m.zip", "new.csv", "--format", "jsonl").splitlines())
    level, drop = map(float, wanted[0])
    assert first == {"row": 0, "file": "new.csv", "values": {"level": level, "drop": drop}}


def test_a_number_for_each_whole_sequence_is_told_at_its_end(dl4j: Any, sums: Path) -> None:
    report = trained(dl4j, "sums", *LONG)
    assert report["sequences"]["align"] == "end" and report["r2"] > 0.8
    lines = [line.split("\t") for line in dl4j("predict", "m.zip", "sums/features").splitlines()]
    assert [line[0] for line in lines] == [f"sums/features/{number}.csv" for number in range(40)]
    actual = [float((sums / "labels" / f"{number}.csv").read_text()) for number in range(40)]
    assert np.corrcoef(actual, [float(line[1]) for line in lines])[0, 1] > 0.9


def test_labels_are_scaled_by_the_steps_that_are_learned_from_and_no_padding(tanks: Path, sums: Path) -> None:
    several, one = SequenceRecordReader(label="level,drop"), SequenceRecordReader(regression=True)
    for folder, reader in ((tanks, several), (sums, one)):
        source = load(folder, rounded=False, reading=Reading(sequences=reader))
        scale, y = source.reading.label_scale, source.train.labels
        mask = source.train.labels_mask
        assert scale is not None and mask is not None and (y * (mask[:, None] == 0) == 0).all()
        rows = y.transpose(0, 2, 1)[mask != 0]
        np.testing.assert_allclose(rows.mean(0), 0, atol=1e-12)
        np.testing.assert_allclose(rows.std(0), 1)
        again = load(
            folder, rounded=False, reading=Reading(sequences=source.reading.sequences, label_names=source.label_names)
        )
        assert again.reading.label_scale == scale and again.train == source.train and again.test == source.test
    named = CsvSequenceDataSetIterator(tanks, 40, label=["level", 2], regression=True, skip_lines=1, shuffle=False)
    paths = sorted(tanks.iterdir(), key=lambda path: int(path.stem))
    rows = [[float(cell) for cell in row.split(",")] for row in paths[3].read_text().splitlines()[1:]]
    batch = named.batch(0, 0)
    np.testing.assert_allclose(batch.labels[3, :, : len(rows)].T, np.array(rows)[:, 1:], rtol=1e-6)
    np.testing.assert_allclose(batch.features[3, 0, : len(rows)], np.array(rows)[:, 0], rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("words", "--sequences", "--regression"),
            "1.csv, line 2, label 1 is 'b', not a finite number; numbers",
        ),
        (("gap", "--sequences", "--regression"), "1.csv, line 2, label 1 is '', not a finite number"),
        (("huge", "--sequences", "--regression"), "1.csv, line 2, label 1 is '1e99', not a finite number"),
        (
            ("flat", "--sequences", "--regression"),
            "flat: the label '2' is 7 in all of the 4 rows of labels",
        ),
        (("tanks", "--sequences"), "if labels are amounts, give regression=True (--regression)"),
        (("tanks", "--sequences", "--label", "level,level"), "name column 'level' twice"),
        (("tanks", "--sequences", "--label", "level,drop,inflow"), "3 columns only, all labels; features need others"),
        (("tanks", "--sequences", "--label", "levle,drop"), "'levle'"),
        (("sums", "--sequences", "--regression", "--label", "x"), "'x' (--label) was to be the label: leave it out"),
        (("tanks", "--sequences", "--multi-label"), "leave --multi-label"),
        (("tanks", "--sequences", "--regression", "--model", "mlp"), "model mlp does not take sequences"),
        (("tanks", "--sequences", "--regression", "--stratify"), "leave --stratify out"),
        (("tanks", "--sequences", "--regression", "--class-weights", "balanced"), "leave class_weights out"),
        (
            ("tanks", "--sequences", "--regression", "--validation", "0.2", "--metric", "f1"),
            "nothing is classified: the labels are numbers to predict",
        ),
        (("classes.yaml",), "last layer has activation 'softmax'"),
        (("both.yaml",), "sequences.labels are ['level'], sequences.label is 'drop'"),
    ],
)
def test_what_is_wrong_is_named(
    dl4j: Any, here: Path, tanks: Path, sums: Path, options: tuple[str, ...], message: str
) -> None:
    last = "{type: rnn_output, n_out: 1, activation: softmax}"
    contents = {
        "words/1.csv": "1,2\n3,b\n",
        "gap/1.csv": "1,2\n3,\n",
        "huge/1.csv": "1,2\n3,1e99\n",
        **{f"flat/{number}.csv": "1,7\n" for number in range(5)},
        "classes.yaml": "dataset: tanks\nsequences: {regression: true}\nmulti_layer_conf:\n  layers:\n"
        f"    - {{type: lstm, n_out: 4}}\n    - {last}\n",
        "both.yaml": "dataset: tanks\nsequences: {regression: true, label: drop, labels: [level]}\n",
    }
    for name, content in contents.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(content)
    assert message in dl4j("train", *options, fails=3)


def test_a_scale_that_fits_no_output_makes_a_reader_and_a_model_unusable(dl4j: Any, tanks: Path) -> None:
    for means, stds in (((1.0,), ()), ((1.0,), (0.0,)), ((float("nan"),), (1.0,))):
        with pytest.raises(ConfError, match="label_means and label_stds are"):
            SequenceRecordReader(regression=True, label_means=means, label_stds=stds)
    reader = SequenceRecordReader(label="drop", regression=True, label_means=(1.0, 2.0), label_stds=(1.0, 2.0))
    with pytest.raises(DataError, match="has 1 label, and 2 are learned"):
        load(tanks, reading=Reading(sequences=reader))
    trained(dl4j, "tanks", *SHORT, "--out", "m.zip")
    model = load_model("m.zip")
    model = dataclasses.replace(model, reading=model.reading.replace(label_names=("drop", "level")))
    with pytest.raises(ModelError, match=r"2 label names, .* for 1 output"):
        model.output_names(1)
