"""A short chaos run, as anybody would start it: whatever is broken, the answer is the embedded tracker's."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.support import REPOSITORY
from tools.chaos.network import why_no_lossy_link

COMMAND = [sys.executable, "-m", "tools.chaos"]


def environment(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("DL4J_")} | more


def run_chaos(*arguments: str, timeout: float = 600.0, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end; the deadline is for a run that hangs, so it is far beyond a slow machine's."""
    command, env = [*COMMAND, *arguments], environment(**more)
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=env, cwd=REPOSITORY)


@pytest.mark.long
@pytest.mark.cluster
def test_faults_of_several_kinds_change_nothing(tmp_path: Path) -> None:
    kinds = "worker-kill,worker-drain,session-expiry,corrupt-frame"
    done = run_chaos(
        *("--faults", "4", "--seed", "2", "--workers", "2", "--rounds", "500", "--kinds", kinds),
        *("--keep", str(tmp_path / "kept"), "--format", "json"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["problems"] == []
    assert (report["faults_done"], report["hangs"], report["hash_equal"]) == (4, 0, True)
    assert (report["batches_lost"], report["batches_duplicated"]) == (0, 0)
    assert all(fault["full_seconds"] is not None for fault in report["faults"])
    assert report["replay"] == f"python -m tools.chaos --faults 4 --seed 2 --workers 2 --rounds 500 --kinds {kinds}"
    assert (tmp_path / "kept" / "chaos-1").is_dir()


@pytest.mark.long
@pytest.mark.release
@pytest.mark.cluster
@pytest.mark.skipif(os.geteuid() != 0 or why_no_lossy_link() != "", reason=f"no links here: {why_no_lossy_link()}")
def test_a_member_that_is_cut_off_an_empty_grid_and_stepping_clocks_change_nothing() -> None:
    """With a strategy whose slots remember something: what an empty grid has lost of that comes from checkpoints."""
    kinds = "member-partition,grid-empty,clock-step"
    done = run_chaos(
        *("--faults", "3", "--seed", "1", "--workers", "2", "--rounds", "300", "--kinds", kinds, "--format", "json"),
        *("--router", "gradient-sharing"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert (report["faults_done"], report["hangs"], report["hash_equal"]) == (3, 0, True)
    assert {kind: summary["faults"] for kind, summary in report["by_kind"].items()} == dict.fromkeys(
        kinds.split(","), 1
    )


@pytest.mark.long
def test_what_cannot_be_done_is_said_before_anything_is_started() -> None:
    for arguments, words in (
        (("--kinds", "worker-kil"), "did you mean 'worker-kill'"),
        (("--faults", "0"), "--faults is '0'"),
        (("--faults", "-3"), "--faults is '-3'"),
        (("--format", "yaml"), "--format yaml"),
        (("--fault", "3"), "--fault"),
        (("--router", "hogwildd"), "did you mean 'hogwild'"),
    ):
        done = run_chaos(*arguments)
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr


def test_a_machine_that_allows_no_fault_is_told_why(tmp_path: Path) -> None:
    done = run_chaos("--kinds", "partition", "--keep", str(tmp_path / "kept"), PATH=str(tmp_path))
    assert done.returncode == 2
    assert "none of the faults partition can be had here" in done.stderr
    assert not (tmp_path / "kept").exists()


@pytest.mark.long
def test_logs_are_not_mixed_with_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder, words in ((tmp_path, "is not empty"), (tmp_path / "file", "is no folder for logs")):
        done = run_chaos("--kinds", "worker-kill", "--keep", str(folder))
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def started(folder: Path) -> list[psutil.Process]:
    """Return the processes that were told to keep their temporary files in ``folder``."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("TMPDIR") == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@pytest.mark.long
@pytest.mark.cluster
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.release), signal.SIGKILL]
)
def test_a_run_that_is_interrupted_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        [*COMMAND, "--faults", "3", "--seed", "2", "--workers", "2", "--rounds", "20", "--kinds", "worker-kill"],
        stderr=subprocess.PIPE,
        text=True,
        env=environment(TMPDIR=str(tmp_path)),
        cwd=REPOSITORY,
    ) as run:
        assert run.stderr is not None
        said = run.stderr.readline()  # the servers are up, and the run's processes are being started
        assert "rounds a run" in said
        run.send_signal(number)
        status = run.wait(60)
        more = "" if number is signal.SIGKILL else run.stderr.read()
    assert status == (-number if number is signal.SIGKILL else 128 + number)
    if number is not signal.SIGKILL:
        assert "faults    0 of 3 in 0 runs" in more and "no run has ended" in more
        assert "again     python -m tools.chaos --faults 3 --seed 2" in more
    end = time.monotonic() + (60.0 if number is signal.SIGKILL else 0.0)  # then somebody else has to notice
    while started(tmp_path) and time.monotonic() < end:
        time.sleep(0.05)
    assert started(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
    assert str(tmp_path) not in Path("/proc/mounts").read_text(encoding="utf-8")
