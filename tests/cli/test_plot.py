"""``dl4j plot``: it draws what a run's history says, names what cannot be drawn, and replaces a file in one step."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from dl4jlegacy import read_history
from dl4jlegacy.scaleout.persistence.history import HistoryFile
from tests.scaleout.test_curves import entry, lines


@pytest.fixture
def two_runs(here: Path) -> tuple[Path, Path]:
    """Two folders with histories."""
    for name, score in (("first", 2.0), ("second", 3.0)):
        (here / name).mkdir()
        history = [entry(version, score / version) for version in (1, 2, 3)]
        (here / name / HistoryFile.NAME).write_bytes(b"\n".join(map(msgspec.json.encode, history)))
    return here / "first", here / "second"


def test_a_run_that_was_just_trained_is_drawn(here: Path, dl4j) -> None:
    dl4j(
        *("train", "--dataset", "iris", "--workers", "2", "--epochs", "2", "--learning-rate", "0.05"),
        *("--schedule", "constant", "--validation", "0.2", "--checkpoint-dir", "runs/iris"),
    )
    found = dl4j.json("plot", "runs/iris", "--out", "curves.svg")
    (run,) = found["runs"]
    history = read_history("runs/iris")
    assert (found["svg"], run["name"], run["versions"]) == ("curves.svg", "iris", len(history))
    assert set(run["curves"]) == {"training score", "validation loss", "validation accuracy", "learning rate"}
    assert run["curves"]["training score"]["last"] == [each for each in history if each.workers][-1].score
    assert run["curves"]["learning rate"]["least"] == run["curves"]["learning rate"]["most"] == 0.05
    svg = (here / "curves.svg").read_text()
    assert len(lines(svg)) == 4 and "training score" in svg


def test_several_runs_are_in_one_drawing(two_runs: tuple[Path, Path], dl4j) -> None:
    said = dl4j("plot", "first", "second", "first", "--out", "curves.svg", "--over", "rounds", "--log").splitlines()
    assert said[0].startswith("first: 3 versions, 48 examples; training score 2 to 0.6667")
    assert said[1].startswith("second: ") and said[2:] == ["drawn in curves.svg"]
    svg = Path("curves.svg").read_text()
    assert len(lines(svg)) == 2 and "Training curves of first, second" in svg


def test_runs_whose_folders_are_called_the_same_are_told_apart(two_runs: tuple[Path, Path], dl4j) -> None:
    Path("other").mkdir()
    two_runs[1].rename("other/first")
    found = dl4j.json("plot", "first", "other/first/", "--out", "curves.svg")
    assert [run["name"] for run in found["runs"]] == ["first", "other/first/"]


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("--out", "c.svg"), 2, "name the checkpoint folder of a run"),
        (("nowhere", "--out", "c.svg"), 8, "nowhere/history.jsonl cannot be read: No such file"),
        (("first/history.jsonl", "--out", "c.svg"), 8, "history.jsonl/history.jsonl cannot be read: Not a directory"),
        (("empty", "--out", "c.svg"), 8, "the history of the run in empty is empty"),
        (("first", "", "--out", "c.svg"), 2, "RUN is empty"),
        (("first", "--out", ""), 2, "--out is empty"),
        (("first",), 2, "Missing option '--out'"),
        (("first", "--out", "no/c.svg"), 1, "no/c.svg cannot be written: No such file or directory; choose another"),
        (("first", "--out", "second"), 1, "second cannot be written: it is a folder"),
        (("first", "--out", "c.svg", "--over", "epochs"), 2, "--over is 'epochs'; "),
        ((*(f"run{number}" for number in range(33)), "--out", "c.svg"), 2, "33 runs are too many"),
        (("--out", "c.svg", "--zookeeper", "nowhere"), 2, "--zookeeper nowhere: give it as host:port"),
    ],
)
def test_what_cannot_be_drawn_is_named(
    arguments: tuple[str, ...], status: int, words: str, two_runs: tuple[Path, Path], dl4j
) -> None:
    Path("empty").mkdir()
    Path("empty", HistoryFile.NAME).write_bytes(b"{}\nno line\n")
    assert words in dl4j("plot", *arguments, fails=status)
    assert not Path("c.svg").exists()


def test_a_drawing_that_cannot_be_finished_leaves_the_one_before(
    two_runs: tuple[Path, Path], dl4j, monkeypatch: pytest.MonkeyPatch
) -> None:
    dl4j("plot", "first", "--out", "curves.svg")
    before = Path("curves.svg").read_bytes()
    monkeypatch.setattr("os.fsync", lambda descriptor: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    assert "No space left on device" in dl4j("plot", "second", "--out", "curves.svg", fails=1)
    assert Path("curves.svg").read_bytes() == before and not list(Path().glob(".*tmp"))
    ElementTree.fromstring(before)
