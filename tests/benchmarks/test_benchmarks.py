"""The scripts in ``benchmarks/`` run on tiny settings, have help, and say how to install a missing contender."""

from __future__ import annotations

import configparser
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EVERY_SCRIPT = """
import contextlib, importlib.abc, io, json, runpy, sys

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

folder, MODULES, runs = json.loads(sys.argv[1])
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name.partition(".")[0] in MODULES else find(name, *more)
sys.meta_path.insert(0, Hidden())
sys.path.insert(0, folder)
answers = []
for name, *arguments in runs:
    sys.argv = [name, *arguments]
    out, err, status = io.StringIO(), io.StringIO(), "returned"
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            runpy.run_path(f"{folder}/{name}", run_name="__main__")
        except SystemExit as left:
            status = left.code
        except BaseException as wrong:
            status = repr(wrong)
    answers.append([status, out.getvalue(), err.getvalue()])
print(json.dumps(answers))
"""


RUN = ["--dataset", "digits", "--slots", "2", "--hidden", "16", "--batch", "16", "--rounds", "3"]
STEPS = ["--model", "mlp", "--dataset", "digits", "--examples", "160", "--batch", "16"]
TINY = {
    "compression": [*RUN, "--part", "messages", "--seeds", "1", "--turns", "1"],
    "reading": ["--part", "speed", "--speed-megabytes", "0.05", "--turns", "1"],
    "staleness": [*STEPS, "--workers", "4", "--n", "4", "--watches", "2"],
    "strategies": [*STEPS, "--turns", "1", "--workers", "1"],
    "traffic": [*RUN, "--averaging-rounds", "3", "--workers", "1"],
}  # fmt: skip
"""Settings of a few seconds for the scripts that need no cluster of their own."""


def is_script(path: Path) -> bool:
    return '__name__ == "__main__"' in path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def scripts() -> list[str]:
    return sorted(path.name for path in (Path(__file__).parents[2] / "benchmarks").glob("*.py") if is_script(path))


def optional(repository: Path) -> set[str]:
    """The modules that only an extra brings."""
    setup = configparser.ConfigParser()
    setup.read(repository / "setup.cfg", encoding="utf-8")
    extras = " ".join(setup["options.extras_require"].values())
    names = set(re.findall(r"^[\w-]+", extras.replace(" ", "\n"), flags=re.MULTILINE)) - {"setuptools"}
    return {{"scikit-learn": "sklearn", "cupy-cuda12x": "cupy"}.get(name, name) for name in names}


def run_all(repository: Path, runs: list[list[str]]) -> list[Any]:
    """Return exit status, stdout and stderr of every script, run where nothing is installed that only extras bring."""
    what = json.dumps([str(repository / "benchmarks"), sorted(optional(repository)), runs])
    command = [sys.executable, "-c", EVERY_SCRIPT, what]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def test_every_script_has_help_that_needs_no_contender(repository: Path, scripts: list[str]) -> None:
    assert {"torch", "jax", "sklearn", "psutil", "jgo", "cupy"} <= optional(repository) and len(scripts) > 12
    answers = run_all(repository, [[name, "--help"] for name in scripts])
    for name, (status, out, err) in zip(scripts, answers, strict=True):
        assert (status, err) == (0, ""), f"{name}: {status} {err}"
        assert out.startswith(f"usage: {name}") and len(out.splitlines()) > 4, out


def test_a_missing_contender_is_named_with_what_to_type(repository: Path) -> None:
    needs = {"mlp_cpu.py": "sklearn", "rbm_cpu.py": "sklearn", "round.py": "psutil", "soak.py": "psutil"}
    needs |= {"ddp.py": "torch"}
    runs = [[name] for name in needs] + [["nn_losses_torch.py", "vae", "given.npz"]]
    for run, (status, out, err) in zip(runs, run_all(repository, runs), strict=True):
        module = needs.get(run[0], "torch")
        said = f"this benchmark needs {module}, which is not installed: type './install bench'\n"
        assert (status, out, err) == (2, "", said), f"{run[0]}: {status} {out} {err}"


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n == "reading" else pytest.mark.long) for n in TINY])
def test_a_script_measures_a_tiny_setting_and_its_status_says_whether_goals_are_reached(
    name: str, repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(repository / "benchmarks")
    status = importlib.import_module(name).main([*TINY[name], "--format", "json"])
    report = json.loads(capsys.readouterr().out)
    measured = report.get("figures") or report["rows"]
    assert len(measured) > 2
    assert status == (0 if all(figure.get("reached", True) for figure in measured) else 1)
