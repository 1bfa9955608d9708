"""``benchmarks/real_data.py`` on small data: both sides learn what was written, from one line of the command."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def script(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark; scripts of its folder import each other by their names."""
    monkeypatch.syspath_prepend(repository / "benchmarks")
    return importlib.import_module("real_data")


def test_tables_with_words_and_gaps_are_learned_as_well_as_by_scikit_learn(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main(["--only", "iris", "--only", "words", "--format", "json"]) == 0
    figures = {figure["name"]: figure["value"] for figure in json.loads(capsys.readouterr().out)["figures"]}
    for name in ("iris", "words"):
        assert figures[f"{name}: accuracy"] > 0.9 and figures[f"{name}: scikit-learn's"] > 0.9
        difference = figures[f"{name}: accuracy"] - figures[f"{name}: scikit-learn's"]
        assert figures[f"{name}: difference"] == pytest.approx(difference)


def test_the_table_of_words_has_words_and_gaps(script: ModuleType, tmp_path: Path) -> None:
    script.table("breast_cancer", as_words=True)(tmp_path, 0)
    head, *rows = (tmp_path / "train.csv").read_text().splitlines()
    cells = [row.split(",") for row in rows]
    assert len(head.split(",")) == 31 and {len(row) for row in cells} == {31}
    assert {row[0] for row in cells} == {"small", "medium", "large", ""}
    gaps = sum(cell == "" for row in cells for cell in row) / (30 * len(cells))
    assert 0.08 < gaps < 0.12 and all(row[-1] in ("malignant", "benign") for row in cells)


@pytest.mark.long
@pytest.mark.release
def test_images_and_numbers_to_predict_are_learned(
    script: ModuleType, capsys: pytest.CaptureFixture[str], mnist_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DL4J_DATA_DIR", mnist_dir)
    options = ["--only", "diabetes", "--only", "mnist", "--examples", "2000", "--format", "json"]
    assert script.main(options) == 0
    figures = {figure["name"]: figure["value"] for figure in json.loads(capsys.readouterr().out)["figures"]}
    assert figures["diabetes: r2"] > 0.2 and figures["mnist: accuracy"] > 0.8


def test_a_line_that_fails_ends_the_benchmark_with_its_message(script: ModuleType) -> None:
    with pytest.raises(SystemExit, match=r"dl4j train iris-files --label target --epochs 0 failed: .*epochs"):
        script.main(["--only", "iris", "--train", "--epochs 0"])
