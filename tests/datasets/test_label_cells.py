"""The cells of a label that is a class: the same names and gaps in every kind of file, with --label and without."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dl4jlegacy.cli import main
from dl4jlegacy.datasets.tables.label_cells import class_name, classes_of, label_gaps, why_no_classes
from dl4jlegacy.datasets.tables.text_rows import MISSING
from dl4jlegacy.datasets.tables.transform_process import TransformProcess
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.training.run_data import load_new
from tests.support.table_files import write_table

FEATURES = np.random.default_rng(2).normal(size=(60, 2)).round(3)
LABELS: dict[str, tuple[list[Any], tuple[str, ...]]] = {
    "words that are gaps elsewhere": (["None", "NA", "EU"], ("EU", "NA", "None")),
    "signs": ([-1, 1], ("-1", "1")),
    "from 1": ([1, 2], ("1", "2")),
    "from 0": ([0, 1, 2], ("0", "1", "2")),
    "far apart": ([10, 9, 300], ("9", "10", "300")),
    "numbers and words": (["0", "nan", "ham"], ("0", "ham", "nan")),
    "gaps": (["yes", None, "no"], ("no", "yes")),
    "gaps among numbers": ([3, None, 5], ("3", "5")),
}


def rows(cells: list[Any]) -> dict[str, list[Any]]:
    a, b = FEATURES.T.tolist()
    return {"a": a, "b": b, "kind": [cells[row % len(cells)] for row in range(60)]}


KINDS = ("t.csv", "t.jsonl", "t.npz", "t.parquet", "t.feather")


def ended(*arguments: str) -> int:
    with pytest.raises(SystemExit) as leave:
        main.main(list(arguments))
    return int(leave.value.code or 0)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("cells", LABELS)
def test_a_label_has_the_same_classes_in_every_file_with_its_name_given_and_without(
    cells: str, name: str, tmp_path: Path
) -> None:
    words, classes = LABELS[cells]
    path = write_table(tmp_path / name, rows(words))
    per_class = Counter(class_name(str(word)) for word in rows(words)["kind"] if word is not None)
    for label in ("", "kind"):
        _, data = load_new(Conf(dataset=str(path)), label=label)
        assert data.label_names == classes, f"with --label {label!r}"
        found = data.train.labels.sum(axis=0) + data.test.labels.sum(axis=0)
        assert found.tolist() == [per_class[each] for each in classes]


@pytest.mark.parametrize("cells", LABELS)
def test_a_model_is_evaluated_and_predicts_by_these_names_and_the_data_are_valid(
    cells: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words, classes = LABELS[cells]
    write_table(Path("t.csv"), rows(words))
    for label in ([], ["--label", "kind"]):
        assert ended("data", "validate", "t.csv", *label) == 0
        assert ended("train", "t.csv", *label, "--model", "mlp", "--epochs", "1", "--out", "m.zip") == 0
        assert ended("evaluate", "m.zip", "--dataset", "t.csv", "--split", "all") == 0
        capsys.readouterr()
        assert ended("predict", "m.zip", "t.csv") == 0
        assert {line.split()[-1] for line in capsys.readouterr().out.splitlines()} <= set(classes)


def test_only_what_a_schema_lists_is_a_gap_besides_empty_cells(tmp_path: Path) -> None:
    write_table(tmp_path / "t.csv", rows(["None", "red", "blue"]))
    columns = '[{"name": "a"}, {"name": "b"}, {"name": "kind", "type": "category"}]'
    for missing, classes in (("", ("None", "blue", "red")), (', "missing": ["", "none"]', ("blue", "red"))):
        schema = TransformProcess.from_json(f'{{"columns": {columns}, "label": "kind"{missing}}}')
        _, data = load_new(Conf(dataset=str(tmp_path / "t.csv"), transform=schema))
        assert data.label_names == classes
    assert label_gaps(MISSING) == {""} and label_gaps(("-",)) == {"", "-"}


def test_names_are_in_order_and_numbers_to_predict_are_told_from_them() -> None:
    assert classes_of(["10", "9", "b", "01", "1.0", "a", "-2"]) == ("-2", "1", "9", "10", "a", "b")
    assert class_name("1_0") == "1_0" and class_name("1e3") == "1000" and class_name("0.5") == "0.5"
    assert why_no_classes(["1", "0.5", "na"]) == "real numbers" and not why_no_classes(["0.5", "b"])
    assert not why_no_classes([str(number) for number in range(1000)])
    assert why_no_classes([str(number) for number in range(1, 1001)]) == "1000 different numbers"
