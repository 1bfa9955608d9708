"""A run on a cluster whose checkpoints and journal are in S3: whatever is lost, it goes on from there, exactly."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dl4jlegacy.services import Services, ServicesState
from dl4jlegacy.storage.folders import LOCK
from dl4jlegacy.storage.paths import open_folder
from dl4jlegacy.storage.s3.folder import S3Folder
from tests.support import REPOSITORY
from tests.support.aws_fixtures import Fault, FaultProxy
from tests.support.cluster_commands import LONG, SHORTER, Cluster, Command, error, freeze, same, until

pytestmark = [pytest.mark.cluster, pytest.mark.long]

HOME = os.environ.get("HOME", "/")
PLACE = "s3://run-bucket/runs/one"
KEPT = ("--checkpoint-dir", PLACE, "--checkpoint-every", "10")
HASTY = "import dl4jlegacy.storage.s3.folder as module\nmodule.SILENT_SECONDS = 3.0\n"
"""For who waits for a killed process: 90 seconds are long for a test."""


@pytest.fixture(autouse=True)
def s3(aws_environment: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """S3 for every process, which keep what is theirs where they always do."""
    monkeypatch.setenv("HOME", HOME)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "5")
    yield aws_environment
    assert not (REPOSITORY / "s3:").exists()


def kept() -> dict[str, bytes]:
    """Return what is in S3, but for the lock and the records of each process, which may write its last ones late."""
    folder = open_folder(PLACE)
    assert isinstance(folder, S3Folder)
    own = (LOCK, "journal-", "history-")
    return {name: folder.read(name) for name in folder.names() if not name.startswith(own)}


def checkpoints() -> list[str]:
    return [name for name in open_folder(PLACE).names() if name.startswith("checkpoint-")]


def keep_three(cluster: Cluster) -> None:
    """Let a held run go on, a little every second, until S3 has three checkpoints of it.

    Those that are due while another one is being written are left out: in how many rounds there are three depends on
    how slow S3 is.
    """
    rounds, moved = itertools.count(15, 5), -math.inf

    def are_kept() -> bool:
        nonlocal moved
        if len(checkpoints()) == 3:
            return True
        if time.monotonic() > moved + 1:
            cluster.hold(next(rounds))
            moved = time.monotonic()
        return False

    until(are_kept, what="three checkpoints in S3")


def stand_by(cluster: Cluster) -> Command:
    standby = cluster.start("master", "--standby", "--zookeeper", cluster.zookeeper, "--format", "json")
    standby.says("standing by: takes over run")
    return standby


def began() -> bool:
    folder = open_folder(PLACE)
    return any(name.startswith("journal-") for name in folder.names()) and any(
        b"run_began" in line for line in folder.read_lines("journal.jsonl")
    )


def journal(cluster: Cluster) -> list[dict[str, Any]]:
    """Return what ``dl4j logs`` reads in S3."""
    logs = cluster.start("logs", PLACE, "--format", "json")
    assert logs.wait() == 0, logs.err()
    return list(json.loads(logs.out())["entries"])


@pytest.mark.parametrize(
    "way", ["standby", *(pytest.param(way, marks=pytest.mark.release) for way in ("resume RUN", "resume s3://"))]
)
def test_a_killed_master_whose_grid_is_lost_too_is_replaced_from_s3(
    servers: ServicesState, on_own: Cluster, way: str
) -> None:
    on_own.hold(5)
    master, worker = on_own.master("--epochs", SHORTER, "--run", "r", *KEPT), on_own.worker()
    keep_three(on_own)
    until(began, what="a journal in S3")
    takes_over = stand_by(on_own) if way == "standby" else None
    os.kill(servers.pids["hazelcast-1"], signal.SIGKILL)
    master.process.kill()
    master.wait()
    Services.restart("hazelcast-1", Path(servers.folder))
    on_own.let_go()
    before = max(checkpoints())
    if way == "resume RUN":
        takes_over = on_own.start("resume", "r", "--zookeeper", on_own.zookeeper, "--format", "json")
    elif way == "resume s3://":
        takes_over = on_own.start("resume", PLACE, *on_own.master_flags, "--format", "json", patch=HASTY)
    assert takes_over is not None
    same(takes_over, int(SHORTER))
    assert worker.wait() == 0, worker.err()
    assert max(checkpoints()) > before and len(checkpoints()) == 3
    events = [entry["event"] for entry in journal(on_own)]
    assert (events.count("run_began"), events.count("master_took_over"), events[-1]) == (1, 1, "run_ended")
    if way != "resume s3://":
        assert "from a checkpoint, since the grid does not have it" in takes_over.err()


def test_a_master_that_was_frozen_changes_nothing_in_s3_when_it_wakes_up(cluster: Cluster) -> None:
    """But for one object that was on its way when it was frozen, of a checkpoint that the run has left behind."""
    cluster.hold(5)
    master, worker = cluster.master("--epochs", SHORTER, *KEPT), cluster.worker()
    standby = stand_by(cluster)
    keep_three(cluster)
    cluster.hold(80)  # it is frozen with whatever it has in hand
    freeze(master.pid)
    cluster.let_go()
    same(standby, int(SHORTER))
    assert worker.wait() == 0, worker.err()
    after = kept()
    master.process.send_signal(signal.SIGCONT)
    error(master, 4, "while this master stood still")
    woken = kept()
    assert {name: woken.get(name) for name in after} == after
    assert len(woken) <= len(after) + 1, sorted(woken.keys() - after.keys())
    assert cluster.left_over() == []


def test_another_run_is_refused_the_prefix_of_one_that_is_under_way(cluster: Cluster) -> None:
    master = cluster.master("--epochs", LONG, *KEPT)
    cluster.worker()
    until(checkpoints, what="a checkpoint in S3")
    error(cluster.master("--epochs", "1", "--id", "b", *KEPT), 8, "already holds checkpoints of a run")
    where = (*cluster.master_flags, "--id", "c")
    error(cluster.start("resume", PLACE, *where), 8, "is in use by another run or process on", f"pid {master.pid}")
    error(cluster.start("resume", PLACE), 8, "is in use by another run or process on", f"pid {master.pid}")
    assert master.process.poll() is None


def test_while_s3_is_away_the_run_goes_on_and_says_so(cluster: Cluster, s3: FaultProxy) -> None:
    cluster.hold(25)
    master = cluster.master("--epochs", SHORTER, *KEPT)
    worker = cluster.worker()
    until(checkpoints, what="a checkpoint in S3")
    s3.judge = lambda request: Fault("reset-before")
    cluster.let_go()
    master.says(f"could not be written to {PLACE}")
    same(master, int(SHORTER))
    assert worker.wait() == 0, worker.err()
    told = [line for line in master.err().splitlines() if "could not be written to" in line]
    assert sum(not line.startswith("degraded: ") for line in told) <= 3, told  # warning, journal's entry, the end's
    assert cluster.left_over() == []
