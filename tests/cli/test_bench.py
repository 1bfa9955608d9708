"""``dl4j bench``: what it runs, and that exit statuses, output and signals go through it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dl4jlegacy.cli.commands import bench
from dl4jlegacy.cli.commands.bench import SUITES, run_suite
from dl4jlegacy.cli.main import main
from dl4jlegacy.errors import UsageError
from tests.support import REPOSITORY


def dl4j(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["bench", *arguments])
    assert isinstance(left.value.code, int)
    return left.value.code


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with scripts of the GPU's and the CPU's names, all of which succeed."""
    for benchmark in (*SUITES["cpu"], *SUITES["gpu"]):
        (tmp_path / f"{benchmark.name}.py").write_text(f"print('{benchmark.name} was here')")
    return tmp_path


@pytest.mark.parametrize("suite", SUITES)
def test_help_lists_what_will_run_and_all_of_it_is_there(suite: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert dl4j(suite, "--help") == 0
    lines = capsys.readouterr().out.splitlines()
    for benchmark in SUITES[suite]:
        assert any(line.split() == [benchmark.name, *benchmark.measures.split()] for line in lines), benchmark.name
        assert (REPOSITORY / "benchmarks" / f"{benchmark.name}.py").is_file()


def test_without_a_checkout_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "_FOLDER", tmp_path / "benchmarks")
    for suite in SUITES:
        assert dl4j(suite) == 2
        said = capsys.readouterr().err
        assert "come with a checkout" in said and f".venv/bin/dl4j bench {suite}" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give a command: bench cpu, bench gpu, bench cluster, bench serving"),
        (("cpu", "nn_cp"), "did you mean 'nn_cpu'"),
    ],
)
def test_unknown_benchmarks_are_refused(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dl4j(*arguments) == 2
    assert words in capsys.readouterr().err


def test_a_missing_library_is_named_before_anything_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"mlp_cpu needs sklearn.*\./install bench"):
        run_suite("cpu", (), folder=folder)
    assert capfd.readouterr().out == ""


def test_all_benchmarks_run_whatever_the_first_ones_say(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "kernels_cpu.py").write_text("import sys; print('a goal is missed'); sys.exit(1)")
    names = [benchmark.name for benchmark in SUITES["cpu"] if not benchmark.needs]
    assert run_suite("cpu", names, folder=folder) == 1
    assert capfd.readouterr().out.splitlines() == [
        "a goal is missed",
        "products was here",
        "nn_cpu was here",
        "runner_cpu was here",
        "evaluation_cpu was here",
    ]
    assert run_suite("cpu", ["runner_cpu"], folder=folder) == 0


def test_a_benchmark_that_a_signal_ends_has_failed(folder: Path) -> None:
    (folder / "kernels_cpu.py").write_text("import os; os.kill(os.getpid(), 9)")
    assert run_suite("cpu", ["kernels_cpu"], folder=folder) == 128 + 9


SLOW = """
import signal
try:
    print("started", flush=True)
    signal.pause()
except KeyboardInterrupt:
    print("cleaned up", flush=True)
    raise SystemExit(130)
"""
DRIVER = """
import sys
from pathlib import Path
from dl4jlegacy.cli import main
from dl4jlegacy.cli.commands import bench
bench._FOLDER = Path(sys.argv[1])
main.main(["bench", "cpu", "kernels_cpu", "nn_cpu"])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_lets_the_benchmark_clean_up_and_runs_no_other(folder: Path, number: signal.Signals) -> None:
    (folder / "kernels_cpu.py").write_text(SLOW)
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(folder)], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "started\n"
        run.send_signal(number)
        out, _ = run.communicate(timeout=60)
    assert (run.returncode, out) == (128 + number, "cleaned up\n")
