"""A model that cannot be written at the end of a run is kept elsewhere, after the results were printed."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest

from dl4jlegacy.cli import main
from dl4jlegacy.errors import CloudError
from dl4jlegacy.nn import restore_model
from dl4jlegacy.storage import paths as storage
from dl4jlegacy.system import files

IRIS = ("train", "--dataset", "iris", "--epochs", "1")


@pytest.fixture
def folders(tmp_path, monkeypatch):
    for name in ("here", "out", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path


def fill_disk(monkeypatch, *full: Path) -> None:
    """Let every file in these folders fail when it is complete, as on a full disk."""
    fsync = os.fsync

    def refuse(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.parent in full:
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as leave:
        main.main(list(arguments))
    return int(leave.value.code or 0)


@pytest.mark.parametrize(("full", "kept"), [(("out",), "here"), (("out", "here"), "temporary")])
def test_the_model_is_kept_elsewhere_and_the_results_are_printed(full, kept, folders, monkeypatch, capsys):
    fill_disk(monkeypatch, *(folders / name for name in full))
    assert run(*IRIS, "--out", str(folders / "out" / "m.zip"), "--format", "json") == 8
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert report["accuracy"] is not None
    assert report["error"]["exit"] == 8
    path = Path(report["model_path"])
    assert path.parent == folders / kept
    assert str(path) in err
    assert "No space left on device" in err
    assert restore_model(path).num_params
    assert not os.listdir(folders / "out")


def test_people_see_the_results_too_and_what_is_lost(folders, monkeypatch, capsys):
    fill_disk(monkeypatch, *(folders / name for name in ("out", "here", "temporary")))
    assert run(*IRIS, "--out", str(folders / "out" / "m.zip")) == 8
    out, err = capsys.readouterr()
    assert "params    sha256" in out
    assert "it is lost" in err


def test_an_upload_that_fails_keeps_the_model_here(folders, monkeypatch, capsys):
    def upload(file):
        raise CloudError("the bucket is gone")

    monkeypatch.setattr(storage, "open_output", lambda path: storage.Output(path, upload))
    assert run(*IRIS, "--out", "s3://bucket/m.zip", "--format", "json") == 8
    report = json.loads(capsys.readouterr().out)
    assert Path(report["model_path"]).parent == folders / "here"
    assert "the bucket is gone" in report["error"]["message"]


def test_an_evaluation_that_fails_does_not_cost_the_model(folders, monkeypatch, capsys):
    def fail(*args, **options):
        raise CloudError("no evaluation")

    monkeypatch.setattr("dl4jlegacy.training.prepare.evaluate_network", fail)
    assert run(*IRIS, "--out", "m.zip") == 4
    assert restore_model("m.zip").num_params


@pytest.mark.parametrize("name", ["x" * 256, "no/folder.zip", "../here", "\udcff" * 100 + "x" * 200, "/proc/x.zip"])
def test_a_name_that_cannot_be_written_is_found_before_the_training(name, folders, capsys):
    assert run("train", "--dataset", "iris", "--epochs", "1000000", "--out", name) == 8
    assert "choose another --out" in (err := capsys.readouterr().err) or "is a folder" in err


def test_the_longest_name_is_written(folders, capsys):
    assert run(*IRIS, "--out", "x" * 255) == 0
    assert files.is_file("x" * 255)
