"""``benchmarks/traffic.py`` on a tiny setting: what it counts is what the run wrote."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

from dl4jlegacy.scaleout.protocol import frames

TINY = ["--dataset", "digits", "--slots", "2", "--hidden", "16", "--batch", "16", "--rounds", "6"]
TINY += ["--averaging-rounds", "3", "--workers", "1", "--format", "json"]
MODEL_NBYTES = 4 * (64 * 16 + 16 + 16 * 10 + 10)


@pytest.fixture
def script(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark; scripts of its folder import each other by their names."""
    monkeypatch.syspath_prepend(repository / "benchmarks")
    return importlib.import_module("traffic")


def counted(script: ModuleType, capsys: pytest.CaptureFixture[str], every: int) -> tuple[dict, dict]:
    """Return the whole report, and its figures by their names."""
    script.main([*TINY, "--args", json.dumps({"tau": 1e-3, "state_every": every})])
    report = json.loads(capsys.readouterr().out)
    return report, {figure["name"]: figure["value"] for figure in report["figures"]}


def test_every_byte_of_a_run_is_counted_once(
    script: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "SMALL_NBYTES", 0)  # messages are so small here that they would count as jobs
    (often, _), (seldom, figures) = (counted(script, capsys, every) for every in (1, 64))
    whole = seldom["iterative-reduce"]
    frame = whole["model written"] / 4  # versions 0 to 3
    assert MODEL_NBYTES < frame < 1.2 * MODEL_NBYTES
    assert whole["update written"] == whole["update read"] > 2 * 3 * MODEL_NBYTES
    assert whole["model read"] == 3 * frame  # all but the last, by the worker
    assert often["gradient-sharing"]["model written"] == 7 * frame
    assert seldom["gradient-sharing"]["model written"] == 3 * frame  # versions 0, 1 and 6
    assert seldom["gradient-sharing"]["state written"] == 2 / 6 * often["gradient-sharing"]["state written"]
    shared = sum(seldom["gradient-sharing"].values()) / 6
    assert figures["gradient-sharing: MB a round"] == pytest.approx(shared / 1e6)
    mesh = seldom["gradient-sharing with a mesh"]
    for kind in ("model written", "state written", "update written", "update read"):
        assert mesh[kind] == seldom["gradient-sharing"][kind]
    assert figures["without a mesh / with one"] == pytest.approx(shared / (sum(mesh.values()) / 6))
    for name in ("gradient-sharing", "gradient-sharing with a mesh"):
        assert seldom[name]["entry read"] > 0
    assert figures["averaging / gradient sharing"] == pytest.approx(sum(whole.values()) / 3 / shared)
