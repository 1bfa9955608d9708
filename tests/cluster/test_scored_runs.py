"""Runs that are validated by the processes of a cluster: what their workers and their master die of changes nothing."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from dl4jlegacy import load_model
from dl4jlegacy.scaleout.state.records import Head
from dl4jlegacy.training.prepare import params_sha256
from tests.support import REPOSITORY
from tests.support.cluster_commands import COMMAND, Cluster, until

pytestmark = [pytest.mark.cluster, pytest.mark.long]
RUN = ["--model", "mlp", "--dataset", "digits", "--jobs-per-round", "4", "--seed", "7", "--epochs", "60"]
SCORED = ["--learning-rate", "0.5", "--validation", "0.3", "--validate-every", "2", "--patience", "40"]


def is_past(head: Head | None, best: int) -> bool:
    """Return whether a run has gone on for some validations after the round of its best one."""
    return head is not None and head.best is not None and head.best.round == best and head.round > best + 6


def test_a_worker_and_the_master_killed_past_the_best_model_change_neither_it_nor_the_end(
    cluster: Cluster, tmp_path: Path
) -> None:
    alone = subprocess.run(
        [*COMMAND, "train", *RUN, *SCORED, "--workers", "1", "--format", "json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        cwd=REPOSITORY,
    )
    expected = json.loads(alone.stdout)
    out = str(tmp_path / "best.zip")
    cluster.hold(2)
    master = cluster.master(*SCORED, run=RUN)
    doomed, other = cluster.worker(), cluster.worker()
    cluster.wait_for_round(2)
    standby = cluster.start("master", "--standby", "--zookeeper", cluster.zookeeper, "--out", out, "--format", "json")
    standby.says("standing by")
    doomed.process.kill()
    cluster.worker().says("joined")
    cluster.hold(expected["best"]["round"] + 20)
    with cluster.tracker(cluster.run) as tracker:
        until(lambda: is_past(tracker.head(), expected["best"]["round"]), what="the best model")
        master.process.kill()
        cluster.let_go()
        killed = tracker.head()
    assert killed is not None and not killed.stopped_by
    assert standby.wait(120) == 0, standby.err()
    report = json.loads(standby.out())
    for name in ("best", "validation", "stopped_by", "rounds", "examples", "params_sha256", "accuracy", "loss"):
        assert report[name] == expected[name], name
    assert expected["stopped_by"] and killed.round < expected["rounds"]
    assert (report["batches_lost"], report["batches_duplicated"]) == (0, 0)
    assert params_sha256(load_model(out).network.params) == expected["best"]["params_sha256"]
    assert other.wait() == 0, other.err()
    assert not cluster.left_at_end()
