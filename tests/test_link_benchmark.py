"""``benchmarks/link.py`` on a tiny setting: the link is as slow as it says, and both kinds of runs go through it."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from dl4jlegacy.datasets import load

MBITS = 20
TINY = ["--dataset", "digits", "--hidden", "64", "--batch", "64", "--workers", "2"]
TINY += ["--rounds", "6", "--averaging-rounds", "3", "--turns", "1", "--format", "json"]


@pytest.fixture
def script(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark; scripts of its folder import each other by their names."""
    monkeypatch.syspath_prepend(repository / "benchmarks")
    return importlib.import_module("link")


def test_enough_epochs_are_trained_for_the_rounds_that_are_measured(script: ModuleType) -> None:
    source = load("digits")
    examples = source.train.num_examples
    tasks = script.tasks_of(script.parse(["--batch", "100", "--workers", "2", "--rounds", "20"]), source)
    assert set(tasks) == {"averaging", *script.SETTINGS}
    for name, (task, rounds) in tasks.items():
        assert (task.n_in, task.n_out) == (64, 10) and task.rounds * examples >= (script.WARM + rounds) * 2 * 100
        assert (task.router == "iterative-reduce") == (name == "averaging")


@pytest.mark.long
@pytest.mark.release
def test_runs_go_through_a_link_of_the_speed_that_is_asked_for(script: ModuleType, repository: Path) -> None:
    if why := script.why_not():
        pytest.skip(why)
    command = [sys.executable, str(repository / "benchmarks" / "link.py"), *TINY, "--mbits", str(MBITS), "--goal", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    figures = {figure["name"]: figure["value"] for figure in json.loads(done.stdout)["figures"]}
    for way in ("to", "from"):
        assert 0.3 * MBITS < figures[f"the link, {way} the workers"] < 1.3 * MBITS
    parameters = 64 * 64 + 64 + 64 * 10 + 10
    most = 1e6 * MBITS / 8 / (4 * parameters) * 64  # a job's model, at least, comes through the link
    assert 0 < figures["averaging"] < 1.3 * most
    for setting in script.SETTINGS:
        assert figures[f"gradient sharing, {setting}, by averaging"] == pytest.approx(
            figures[setting] / figures["averaging"]
        )
