"""A short chaos run, as anybody would start it: whatever is broken, the answer is the embedded tracker's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "dl4jlegacy", "bench"]


def bench(*arguments: str, timeout: float = 180.0) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DL4J_")}
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=timeout, env=environment)


@pytest.mark.cluster
def test_faults_of_several_kinds_change_nothing(tmp_path: Path) -> None:
    kinds = "worker-kill,worker-drain,session-expiry,corrupt-frame"
    done = bench(
        *("chaos", "--faults", "4", "--seed", "2", "--workers", "2", "--kinds", kinds),
        *("--keep", str(tmp_path / "kept"), "--format", "json"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["problems"] == []
    assert (report["faults_done"], report["hangs"], report["hash_equal"]) == (4, 0, True)
    assert (report["batches_lost"], report["batches_duplicated"]) == (0, 0)
    assert all(fault["full_seconds"] is not None for fault in report["faults"])
    assert report["replay"] == f"dl4j bench chaos --faults 4 --seed 2 --workers 2 --kinds {kinds}"
    assert (tmp_path / "kept" / "chaos-1").is_dir()


def test_what_cannot_be_done_is_said_before_anything_is_started() -> None:
    for arguments, words in (
        (("chaos", "--kinds", "worker-kil"), "did you mean 'worker-kill'"),
        (("chaos", "--faults", "0"), "--faults is '0'"),
        (("chaos", "--format", "yaml"), "--format yaml"),
        ((), "give a command"),
    ):
        done = bench(*arguments)
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr
