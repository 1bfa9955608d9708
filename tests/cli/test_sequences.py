"""Files of sequences, with classes or numbers, from the command line: trained, evaluated, predicted; their errors."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dl4jlegacy import load_model
from dl4jlegacy.datasets import CsvSequenceDataSetIterator, DataSet, Reading, load
from dl4jlegacy.datasets.sequences.sequence_reader import SequenceRecordReader
from dl4jlegacy.errors import ConfError, DataError, ModelError
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.training.prepare import prepare

pytestmark = pytest.mark.usefixtures("here")
SHORT = ("--sequences", "--epochs", "2", "--jobs-per-round", "3", "--batch-size", "4")
CONSTANT = ("--schedule", "constant", "--learning-rate", "0.005")
NUMBERS = ("--sequences", "--regression", "--epochs", "80", *CONSTANT, "--out", "m.zip")
STEPS = SequenceRecordReader(label="move", align="equal", skip_lines=1, columns=2, names=("a", "b", "move"))
READ = {"label": "move", "align": "equal", "skip_lines": 1, "columns": 2, "names": ["a", "b", "move"]}


def trained(dl4j: Any, *options: str) -> dict[str, Any]:
    found: dict[str, Any] = dl4j.json("train", *options)
    return found


@pytest.fixture
def steps(here: Path) -> Path:
    """40 sequences of 3 to 9 steps, with a class at each step that its first column tells."""
    rng, folder = np.random.default_rng(7), here / "steps"
    folder.mkdir()
    for number in range(40):
        values = rng.normal(size=(3 + number % 7, 2)).round(3)
        values[:, 0] += np.sign(values[:, 0])
        rows = [f"{a},{b},{'up' if a > 0 else 'down'}" for a, b in values]
        (folder / f"{number}.csv").write_text("\n".join(["a,b,move", *rows]))
    return folder


@pytest.fixture
def whole(here: Path) -> Path:
    """30 sequences to learn from and 10 held out that rise or fall, each with one class in a file of its own."""
    rng, folder = np.random.default_rng(8), here / "whole"
    for number in range(40):
        part = folder / ("train" if number < 30 else "test")
        (part / "features").mkdir(parents=True, exist_ok=True)
        (part / "labels").mkdir(exist_ok=True)
        slope, steps = (1, -1)[number % 2], 4 + number % 6 + 5 * (number >= 30)
        values = slope * np.arange(steps) + rng.normal(size=steps) / 9
        (part / "features" / f"{number}.csv").write_text("\n".join(f"{value:.4f}" for value in values))
        (part / "labels" / f"{number}.csv").write_text(("rises", "falls")[number % 2])
    return folder


def test_a_class_at_each_step_is_learned_evaluated_and_predicted(dl4j: Any, steps: Path) -> None:
    long = (
        "--sequences",
        "--label",
        "move",
        "--epochs",
        "120",
        "--jobs-per-round",
        "1",
        "--workers",
        "1",
        "--format",
        "json",
    )
    report = trained(dl4j, "steps", *long, "--out", "m.zip")
    assert report["model"] == "lstm" and report["accuracy"] > 0.9
    assert report["sequences"] == READ
    assert load_model("m.zip").reading.sequences == STEPS and load_model("m.zip").label_names == ("down", "up")
    found = dl4j.json("evaluate", "m.zip", "--dataset", "steps")
    assert (found["accuracy"], found["loss"]) == (report["accuracy"], report["loss"])
    lines = dl4j("predict", "m.zip", "steps").splitlines()
    paths = sorted(steps.iterdir(), key=lambda path: int(path.stem))
    rows = [(path.name, row) for path in paths for row in path.read_text().splitlines()[1:]]
    assert [line.split("\t")[0] for line in lines] == [f"steps/{name}" for name, _ in rows]
    right = [line.endswith(row.split(",")[2]) for line, (_, row) in zip(lines, rows, strict=True)]
    assert np.mean(right) > 0.9
    assert dl4j("predict", "m.zip", "steps", "--workers", "2").splitlines() == lines
    unlabelled = [row.rsplit(",", 1)[0] for row in paths[5].read_text().splitlines()]
    Path("new.csv").write_text("\n".join(unlabelled))
    wanted = [line.split("\t")[1] for line in lines if line.startswith("steps/5.csv")]
    assert [line.split("\t")[1] for line in dl4j("predict", "m.zip", "new.csv").splitlines()] == wanted
    row = json.loads(dl4j("predict", "m.zip", "new.csv", "--format", "jsonl").splitlines()[-1])
    assert (row["row"], row["file"]) == (len(wanted) - 1, "new.csv") and len(row["probabilities"]) == 2


def test_a_class_for_each_whole_sequence_is_told_at_its_end(dl4j: Any, whole: Path) -> None:
    """The parts are those of the folders, and no sequence is as long as the longest one of the other part."""
    report = trained(dl4j, "whole", "--sequences", "--epochs", "40", "--format", "json", "--out", "m.zip")
    assert report["sequences"] == {"align": "end", "skip_lines": 0, "columns": 1}
    assert report["accuracy"] == 1 and report["scaled_features"]
    for split, examples in (("test", 10), ("train", 30), ("all", 40)):
        found = dl4j.json("evaluate", "m.zip", "--dataset", "whole", "--split", split)
        assert (found["examples"], found["accuracy"]) == (examples, 1.0)
    lines = dl4j("predict", "m.zip", "whole/test/features").splitlines()
    files = [f"whole/test/features/{number}.csv" for number in range(30, 40)]
    assert [line.split("\t")[0] for line in lines] == files
    assert [line.split()[2] for line in lines] == ["rises", "falls"] * 5
    scored = trained(dl4j, "whole", *SHORT, "--validation", "whole", "--metric", "accuracy")
    assert scored["validation"]["examples"] == 40


def test_the_examples_are_those_of_the_iterator(steps: Path) -> None:
    fields = {"dataset": str(steps), "sequences": SequenceRecordReader(), "scale_features": False}
    _, data = prepare(Conf(**fields), frozenset(fields))
    paths = sorted(steps.iterdir(), key=lambda path: int(path.stem))
    whole = CsvSequenceDataSetIterator(paths, 40, label="move", skip_lines=1, shuffle=False).batch(0, 0)
    both = DataSet.merge((data.train, data.test))
    order = [next(i for i in range(40) if np.array_equal(whole.features[i], x)) for x in both.features]
    assert sorted(order) == list(range(40)) and both == whole.take(np.array(order))


def test_merged_sequences_of_other_lengths_are_as_long_as_the_longest_and_masked() -> None:
    short = DataSet(np.ones((1, 2, 3)), np.ones((1, 1, 3)))
    long = DataSet(np.ones((2, 2, 5)), np.ones((2, 1, 5)), labels_mask=[[0, 0, 0, 0, 1]] * 2)
    merged = DataSet.merge((short, long))
    assert merged.features.shape == (3, 2, 5) and merged.labels.shape == (3, 1, 5)
    assert merged.features_mask is not None and merged.labels_mask is not None
    assert merged.features_mask.tolist() == [[1, 1, 1, 0, 0], [1] * 5, [1] * 5]
    assert merged.labels_mask.tolist() == [[1, 1, 1, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0, 1]]
    assert not merged.features[0, :, 3:].any() and not merged.labels[0, :, 3:].any()
    assert DataSet.merge((short, short)).features_mask is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--dataset", "iris", "--sequences"), "data set 'iris' is no folder, and sequences"),
        (("--dataset", "iris", "--model", "lstm"), "model lstm learns sequences of time steps"),
        (("steps", "--sequences", "--model", "mlp"), "model mlp does not take sequences"),
        (("steps", "--sequences", "--regression"), "0.csv, line 2, label 1 is '"),
        (("steps", "--sequences", "--stratify"), "leave --stratify out"),
        (("steps", "--sequences", "--label", "move2"), "has no column 'move2'"),
        (("whole", "--sequences", "--label", "kind"), "'kind' (--label) was to be the label: leave it out"),
        (("empty", "--sequences"), "empty has no files of sequences"),
        (("ragged", "--sequences"), "1.csv, line 2 has 2 columns"),
        (("words", "--sequences"), "1.csv, line 2, value 1 is 'x', not a finite number"),
        (("half", "--sequences"), "none called labels beside it"),
        (("gap", "--sequences"), "no file 2.csv"),
        (
            ("word", "--sequences", "--regression"),
            "1.csv, line 2, label 1 is 'b', not a finite number; numbers",
        ),
        (("gaps", "--sequences", "--regression"), "1.csv, line 2, label 1 is '', not a finite number"),
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
@pytest.mark.usefixtures("steps", "whole", "tanks", "sums")
@pytest.mark.everyday(15)
def test_what_is_wrong_is_named(dl4j: Any, here: Path, options: tuple[str, ...], message: str) -> None:
    last = "{type: rnn_output, n_out: 1, activation: softmax}"
    contents = {
        "ragged/1.csv": "1,2,a\n3,4\n",
        "words/1.csv": "1,2,a\nx,4,b\n",
        "half/features/1.csv": "1\n2\n",
        "gap/features/1.csv": "1\n2\n",
        "gap/features/2.csv": "1\n2\n",
        "gap/labels/1.csv": "a\n",
        "empty/readme.md": "",
        "word/1.csv": "1,2\n3,b\n",
        "gaps/1.csv": "1,2\n3,\n",
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


def test_a_model_of_sequences_refuses_files_of_other_columns_and_standard_input(dl4j: Any, steps: Path) -> None:
    trained(dl4j, "steps", *SHORT, "--out", "m.zip")
    Path("other names.csv").write_text("a,c,d\n1,2,3\n")
    assert "other names.csv has no column 'b'" in dl4j("predict", "m.zip", "other names.csv", fails=3)
    Path("nameless.csv").write_text("1,1,1\n1,2,3\n")
    assert "begins with '1, 1, 1', and not with the names" in dl4j("predict", "m.zip", "nameless.csv", fails=3)
    assert "takes sequences in files" in dl4j("predict", "m.zip", "-", fails=3)
    for path in steps.iterdir():
        path.write_text(path.read_text().partition("\n")[2])
    trained(dl4j, "steps", *SHORT, "--out", "m.zip")
    Path("wide.csv").write_text("1,1,1,1\n1,2,3,4\n")
    assert "wide.csv has 4 columns, and the model takes 2 a time step" in dl4j("predict", "m.zip", "wide.csv", fails=3)
    Path("other").mkdir()
    Path("other", "1.csv").write_text("1,1,1,up\n1,2,3,up\n4,5,6,down\n")
    assert "3 columns beside the label, and 2 are learned from" in dl4j(
        "evaluate", "m.zip", "--dataset", "other", fails=3
    )


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
    report = trained(dl4j, "tanks", *NUMBERS, "--label", "level,drop")
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
    report = trained(dl4j, "sums", *NUMBERS)
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


def test_a_scale_that_fits_no_output_makes_a_reader_and_a_model_unusable(dl4j: Any, tanks: Path) -> None:
    for means, stds in (((1.0,), ()), ((1.0,), (0.0,)), ((float("nan"),), (1.0,))):
        with pytest.raises(ConfError, match="label_means and label_stds are"):
            SequenceRecordReader(regression=True, label_means=means, label_stds=stds)
    reader = SequenceRecordReader(label="drop", regression=True, label_means=(1.0, 2.0), label_stds=(1.0, 2.0))
    with pytest.raises(DataError, match="has 1 label, and 2 are learned"):
        load(tanks, reading=Reading(sequences=reader))
    trained(dl4j, "tanks", *SHORT, "--regression", "--out", "m.zip")
    model = load_model("m.zip")
    model = dataclasses.replace(model, reading=model.reading.replace(label_names=("drop", "level")))
    with pytest.raises(ModelError, match=r"2 label names, .* for 1 output"):
        model.output_names(1)
