"""Files of sequences from the command line: trained, evaluated, predicted, and what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dl4jlegacy import load_model
from dl4jlegacy.datasets import CsvSequenceDataSetIterator, DataSet
from dl4jlegacy.datasets.sequences.sequence_reader import SequenceRecordReader
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.training.prepare import prepare

pytestmark = pytest.mark.usefixtures("here")
SHORT = ("--sequences", "--epochs", "2", "--jobs-per-round", "3", "--batch-size", "4")
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
    ("options", "code", "message"),
    [
        (("--dataset", "iris", "--sequences"), 3, "data set 'iris' is no folder, and sequences"),
        (("--dataset", "iris", "--model", "lstm"), 3, "model lstm learns sequences of time steps"),
        (("steps", "--sequences", "--model", "mlp"), 3, "model mlp does not take sequences"),
        (("steps", "--sequences", "--regression"), 3, "0.csv, line 2, label 1 is '"),
        (("steps", "--sequences", "--stratify"), 3, "leave --stratify out"),
        (("steps", "--sequences", "--label", "move2"), 3, "has no column 'move2'"),
        (("whole", "--sequences", "--label", "kind"), 3, "'kind' (--label) was to be the label: leave it out"),
        (("empty", "--sequences"), 3, "empty has no files of sequences"),
        (("ragged", "--sequences"), 3, "1.csv, line 2 has 2 columns"),
        (("words", "--sequences"), 3, "1.csv, line 2, value 1 is 'x', not a finite number"),
        (("half", "--sequences"), 3, "none called labels beside it"),
        (("gap", "--sequences"), 3, "no file 2.csv"),
    ],
)
def test_what_is_wrong_is_named(
    dl4j: Any, here: Path, steps: Path, whole: Path, options: tuple[str, ...], code: int, message: str
) -> None:
    contents = {
        "ragged/1.csv": "1,2,a\n3,4\n",
        "words/1.csv": "1,2,a\nx,4,b\n",
        "half/features/1.csv": "1\n2\n",
        "gap/features/1.csv": "1\n2\n",
        "gap/features/2.csv": "1\n2\n",
        "gap/labels/1.csv": "a\n",
        "empty/readme.md": "",
    }
    for name, content in contents.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(content)
    assert message in dl4j("train", *options, fails=code)


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
