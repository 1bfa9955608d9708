"""SVMLight files from the command line: learned as the same cells in a CSV file are, evaluated, predicted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dl4jlegacy.datasets.tables import stored_tables

pytestmark = pytest.mark.usefixtures("points")
SHORT = ("--epochs", "2", "--pretrain-epochs", "1", "--jobs-per-round", "4", "--batch-size", "8")


@pytest.fixture
def points(here: Path) -> Path:
    """The same cells in both kinds of files, and in parts: ``a`` has classes, ``b`` numbers to predict."""
    random = np.random.default_rng(3)
    x = np.where(random.random((64, 6)) < 0.5, random.normal(size=(64, 6)).round(3), 0)
    x[0, 5] = 1.5
    for name, labels in (("a", (x[:, 0] > 0).astype(int)), ("b", (x[:, 0] + x[:, 3]).round(2))):
        cells = list(zip(labels.tolist(), x.tolist(), strict=True))
        Path(f"{name}.csv").write_text("".join(f"{','.join(map(str, row))},{y}\n" for y, row in cells))
        lines = [f"{y} {' '.join(f'{i}:{v}' for i, v in enumerate(row, 1) if v)}\n" for y, row in cells]
        Path(f"{name}.svm").write_text("".join(lines))
        Path(name).mkdir()
        for part in range(3):
            Path(name, f"{part}.libsvm").write_text("".join(lines[part * 25 : part * 25 + 25]))
    return here


def digest(dl4j: Any, *arguments: str) -> str:
    return str(dl4j.json("train", *arguments, "--model", "dbn", *SHORT)["params_sha256"])


def test_the_same_cells_give_the_same_parameters(dl4j: Any) -> None:
    for name, options in (
        ("a", ()),
        ("a", ("--no-scaling", "--stratify")),
        ("b", ("--regression",)),
    ):
        found = {digest(dl4j, place, *options) for place in (f"{name}.csv", f"{name}.svm", name)}
        assert len(found) == 1, (name, options)


def test_a_model_takes_other_files(dl4j: Any) -> None:
    dl4j("train", "a.svm", "--model", "dbn", *SHORT, "--out", "m.zip")
    Path("few.svm").write_text("1 1:0.5\n0 2:-1\n" * 4)
    Path("full.svm").write_text("1 1:0.5 6:0\n0 2:-1\n" * 4)
    reports = [dl4j.json("evaluate", "m.zip", "--dataset", name) for name in ("few.svm", "full.svm")]
    assert reports[0]["loss"] == reports[1]["loss"] and reports[0]["examples"] == 2
    dl4j("train", "a.csv", "--model", "dbn", *SHORT, "--out", "csv.zip")
    Path("few.csv").write_text("0.5,0,0,0,0,0\n0,-1,0,0,0,0\n" * 4)
    predict = [
        dl4j("predict", model, name, "--probabilities")
        for model, name in (("m.zip", "few.svm"), ("csv.zip", "few.csv"), ("csv.zip", "few.svm"))
    ]
    assert len(predict[0].splitlines()) == 8 and len(set(predict)) == 1
    dl4j("train", "a.csv", *SHORT, "--out", "mlp.zip")
    assert "none called 'column 1', which the schema has" in dl4j("predict", "mlp.zip", "few.svm", fails=3)
    Path("wide.svm").write_text("1 1:0.5\n0 7:1\n")
    for command in (("predict", "m.zip", "wide.svm"), ("evaluate", "m.zip", "--dataset", "wide.svm")):
        said = dl4j(*command, fails=3)
        assert "wide.svm, line 2: index 7 is larger than 6" in said
    Path("bad.svm").write_text("1 1:0.5\n0 2:x\n")
    assert "bad.svm, line 2: index 2: 'x' is not a number" in dl4j("train", "bad.svm", fails=3)


def test_several_labels(dl4j: Any) -> None:
    Path("tags.svm").write_text("1,3 1:0.5 2:1\n3 2:-1\n1 1:2\n1,2,3 1:1\n" * 8)
    dl4j("train", "tags.svm", "--multi-label", *SHORT, "--out", "tags.zip")
    report = dl4j.json("evaluate", "tags.zip", "--dataset", "tags.svm")
    assert list(report["labels"]) == ["label 1", "label 2", "label 3"]
    assert len(dl4j("predict", "tags.zip", "tags.svm").splitlines()) == 32
    said = dl4j("train", "tags.svm", fails=3)
    assert "tags.svm, line 1: 2 labels, 1,3" in said and "--multi-label" in said


def test_a_table_that_lies_in_files(dl4j: Any, points: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = digest(dl4j, "b.svm", "--regression")
    monkeypatch.setenv("DL4J_TABLES_CACHE", str(points / "cache"))
    monkeypatch.setattr(stored_tables, "LARGE", 0)
    assert digest(dl4j, "b.svm", "--regression") == held
    assert digest(dl4j, "a", "--workers", "2") == digest(dl4j, "a.svm")  # standardized, as large tables are


def test_the_data_commands(dl4j: Any) -> None:
    shown = dl4j("data", "inspect", "a.svm", "--out", "schema.json")
    assert "64 rows of 7 columns" in shown and "label, 2 classes" in shown
    assert "64 rows, 0 kinds of problems" in dl4j("data", "validate", "a.svm")
    dl4j("train", "a.svm", "--schema", "schema.json", *SHORT)
