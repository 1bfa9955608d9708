"""``dl4j tune``: its table, its JSON, and that a search goes on which Ctrl-C or a kill has ended."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dl4jlegacy.cli import main
from dl4jlegacy.system.clock import Deadline

CONF = """
model: mlp
dataset: iris
epochs: 2
batch_size: 16
jobs_per_round: 2
validation: {fraction: 0.2, metric: accuracy}
search:
  updater.learning_rate: {low: 1e-4, high: 1e-1, log: true}
  layers[0].n_out: {low: 8, high: 256, step: 8}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf.yaml").write_text(CONF)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as leave:
        main.main(list(words))
    out, err = capsys.readouterr()
    return int(leave.value.code or 0), out, err


def test_the_table_and_the_json_say_the_same(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("tune", "conf.yaml", "--trials", "2", "--storage", "trials.db", "--out-conf", "best.json")
    status, out, err = said(capsys, *command)
    assert status == 0, err
    told = [line.split(":")[0].rsplit(" ", 1)[0] for line in err.splitlines() if line.startswith("trial ")]
    assert told == ["trial 0 complete accuracy", "trial 1 complete accuracy"]
    status, text, err = said(capsys, *command, "--format", "json")
    assert status == 0, err
    found: dict[str, Any] = json.loads(text)
    assert [trial["trial"] for trial in found["trials"]] == [0, 1]
    head, *rows = out.splitlines()
    assert head.split() == ["trial", "state", "accuracy", "seconds", "layers[0].n_out", "updater.learning_rate"]
    for row, trial in zip(rows, found["trials"], strict=False):
        assert row.split()[:2] == [str(trial["trial"]), trial["state"]] and row.split()[2] == f"{trial['score']:.6g}"
    best = found["best"]
    assert f"best      trial {best['trial']}: accuracy {best['score']:.6g}; the Conf as it was given: " in out
    assert f"params    sha256 {best['params_sha256']}" in out and "conf      best.json" in out
    assert found["start_score"] == found["trials"][0]["score"] and found["trials"][0]["is_start"]
    assert json.loads((here / "best.json").read_text())["validation"]["metric"] == "accuracy"


def test_a_zookeeper_without_a_grid_is_a_usage_error_and_nothing_is_searched_here(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = said(capsys, "tune", "conf.yaml", "--zookeeper", "localhost:2181", "--storage", "trials.db")
    assert status == 2 and out == "" and not (here / "trials.db").exists()
    assert "[DL4J-USAGE]: --tracker is missing" in err and "localhost:2181" in err


def test_the_page_of_plots_has_every_trial_and_needs_no_network(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = "<b>digits</b>"
    command = ("tune", "conf.yaml", "--storage", "trials.db", "--study", study, "--plot", "search.html")
    headings = {}
    for count in ("1", "3"):
        status, out, err = said(capsys, *command, "--trials", count)
        assert status == 0, err
        assert "plots     search.html" in out
        page = (here / "search.html").read_text(encoding="utf-8")
        headings[count] = re.findall("<h2>(.*)</h2>", page)
        assert "<h1>Search &lt;b&gt;digits&lt;/b&gt;</h1>" in page and study not in page
        assert "plotly.js" in page and not re.search(r"<(script|link)[^>]*(src|href)=", page)
    assert headings["1"] == ["Best score so far", "Scores while trials were trained"]
    assert headings["3"][:2] == headings["1"] and "Each setting" in headings["3"]
    assert all(path in page for path in ("updater.learning_rate", "layers[0].n_out", "accuracy"))
    found = said(capsys, *command, "--trials", "3", "--format", "json")
    assert json.loads(found[1])["plot_path"] == "search.html"


def test_plots_without_plotly_are_refused_before_anything_is_trained(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    status, out, err = said(capsys, "tune", "conf.yaml", "--plot", "search.html")
    assert (status, out) == (3, "") and "plotly, which is not installed" in err and "install tune" in err
    assert [path.name for path in here.iterdir()] == ["conf.yaml"]


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("conf.yaml", "--plot", "nowhere/search.html"), 1, "the plots cannot be written to nowhere/search.html"),
        (("none.yaml",), 3, "none.yaml cannot be read: No such file"),
        (("plain.yaml",), 3, "plain.yaml: there is no section search"),
        (("conf.yaml", "--trials", "0"), 2, "--trials is '0'; it must be a whole number, at least 1"),
        (("conf.yaml", "--pruner", "mean"), 2, "--pruner is 'mean'; known: median, none"),
        (("conf.yaml", "--storage", ""), 2, "--storage is empty"),
        (("conf.yaml", "--out", "nowhere/best.zip"), 8, "nowhere/best.zip"),
        (("conf.yaml", "--out-conf", "s3:/x"), 1, "it is no path of this machine"),
        (("conf.yaml", "--storage", "s3://bucket/x"), 3, "it is no path of this machine"),
        (("conf.yaml", "--label", "colour"), 3, "--label, --regression, --missing and --schema are for tables"),
        ((), 2, "Missing argument 'CONF'"),
    ],
)
def test_wrong_input_is_named_and_leaves_nothing(
    words: tuple[str, ...], status: int, message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "plain.yaml").write_text("model: mlp")
    code, out, err = said(capsys, "tune", *words)
    assert (code, out) == (status, ""), err
    assert message in err and "Traceback" not in err
    assert sorted(path.name for path in here.iterdir()) == ["conf.yaml", "plain.yaml"]


def start(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dl4jlegacy", "tune", "conf.yaml", "--log-format", "json", *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env={**os.environ, "DL4J_WORKERS": "2"})


def wait_for_trials(process: subprocess.Popen[str], count: int) -> None:
    """Read events until so many trials are done."""
    assert process.stderr is not None
    deadline, seen = Deadline(120), 0
    while seen < count and not deadline.passed():
        line = process.stderr.readline()
        assert line, "the search ended"
        seen += json.loads(line)["event"] == "trial"
    assert seen == count


def finish(*words: str) -> dict[str, Any]:
    with start("--format", "json", *words) as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    found: dict[str, Any] = json.loads(out)
    for trial in [*found["trials"], found["best"]]:
        del trial["seconds"]  # the only thing that differs
    return found


@pytest.mark.long
@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)])
def test_a_search_that_was_ended_goes_on_without_losing_or_repeating_trials(
    number: signal.Signals, status: int, here: Path
) -> None:
    with start(
        "--trials", "1000", "--storage", "cut.db"
    ) as process:  # more than can be done before the signal is there
        wait_for_trials(process, 2)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == status
    if number is signal.SIGINT:
        assert "tune conf.yaml --trials 1000 --workers 2 --storage cut.db` goes on from there" in err
    total = 2 + sum('"event":"trial"' in line.replace(" ", "") for line in err.splitlines()) + 4  # some are left to do
    found = finish("--trials", str(total), "--storage", "cut.db")
    whole = finish("--trials", str(total), "--storage", "whole.db")
    assert {**found, "storage": None} == {**whole, "storage": None}
    assert [trial["trial"] for trial in found["trials"]] == list(range(total))


@pytest.mark.long
def test_without_a_storage_it_says_that_nothing_is_kept(here: Path) -> None:
    with start("--trials", "50") as process:
        wait_for_trials(process, 1)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "stopped by SIGTERM; nothing is kept: with --storage FILE a search can go on later" in err
