"""``benchmarks/reading.py`` on tiny tables: it reads what was written, and measures both sides."""

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
    return importlib.import_module("reading")


def test_both_readers_read_the_table(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    status = script.main(["--part", "speed", "--speed-megabytes", "0.05", "--turns", "1", "--format", "json"])
    figures = {figure["name"]: figure for figure in json.loads(capsys.readouterr().out)["figures"]}
    assert list(figures) == [
        f"{kind}: {name}" for kind in ("csv", "parquet") for name in ("ours", "pyarrow's", "ours against pyarrow's")
    ]
    assert all(figure["value"] > 0 for figure in figures.values())
    assert status == (0 if all(figure["reached"] for figure in figures.values()) else 1)


def test_both_sides_read_the_same_images(
    script: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script.os, "sched_setaffinity", lambda process, cores: None)  # of this process of the tests
    script.main(["--part", "images", "--images", "30", "--turns", "1", "--format", "json"])
    figures = {figure["name"]: figure["value"] for figure in json.loads(capsys.readouterr().out)["figures"]}
    assert list(figures) == ["png: ours", "png: Pillow's in a loop", "png: ours against the loop"]
    assert all(value > 0 for value in figures.values())


@pytest.mark.long
@pytest.mark.release
def test_a_table_in_files_needs_little_memory(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--part", "memory", "--megabytes", "8", "--batches", "5", "--format", "json"]) == 0
    figures = {figure["name"]: figure["value"] for figure in json.loads(capsys.readouterr().out)["figures"]}
    for kind in ("csv", "parquet"):
        assert 6 < figures[f"{kind}: size of the file"] < 12
        assert figures[f"{kind}: peak memory above that of the network"] < 300
