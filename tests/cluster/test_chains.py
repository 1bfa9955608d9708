"""Chains of slots without rounds over a real grid: workers killed and frozen, the master killed, the run resumed."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from dl4jlegacy import read_history
from tests.support.cluster_commands import SHORTER, Cluster, Command, embedded, freeze

pytestmark = [pytest.mark.cluster, pytest.mark.long]


def counted_once(master: Command, epochs: str) -> dict:
    """The master ends well, and every batch counts once; the parameters depend on timing."""
    assert master.wait(300.0) == 0, master.err()
    report = json.loads(master.out())
    assert (report["batches_lost"], report["batches_duplicated"]) == (0, 0)
    expected = embedded(int(epochs))
    assert (report["examples"], report["batches"]) == (expected["examples"], expected["batches"])
    return report


@pytest.mark.parametrize("router", [pytest.param("easgd", marks=pytest.mark.release), "gradient-sharing"])
def test_killed_and_frozen_workers_and_a_killed_master_cost_no_batch(
    router: str, cluster: Cluster, tmp_path: Path
) -> None:
    flags = ("--router", router, "--router-args", '{"asynchronous": true}', "--checkpoint-dir", str(tmp_path / "c"))
    cluster.hold(4)  # one more than is waited for: slots are a round ahead of each other
    master = cluster.master("--epochs", SHORTER, *flags)
    doomed, frozen, _ = (cluster.worker() for _ in range(3))
    cluster.wait_for_round(3)
    standby = cluster.start("master", "--standby", "--zookeeper", cluster.zookeeper, "--format", "json")
    standby.says("shows both")
    cluster.hold(21)
    cluster.wait_for_round(10)
    doomed.process.kill()
    freeze(frozen.pid)
    cluster.wait_for_round(20)
    master.process.kill()
    cluster.hold(31)
    cluster.wait_for_round(30)
    frozen.process.send_signal(signal.SIGCONT)
    cluster.let_go()
    report = counted_once(standby, SHORTER)
    assert report["router"] == router
    assert cluster.left_at_end() == []
    stale = [entry.staleness for entry in read_history(tmp_path / "c")]
    assert 0 < max(stale) <= (4 - 1) * 3


def test_a_run_whose_master_is_gone_is_resumed_with_other_workers(cluster: Cluster, tmp_path: Path) -> None:
    flags = ("--router", "easgd", "--router-args", '{"asynchronous": true}', "--checkpoint-every", "5")
    cluster.hold(40)
    master = cluster.master("--epochs", SHORTER, *flags, "--checkpoint-dir", str(tmp_path / "c"))
    workers = [cluster.worker() for _ in range(2)]
    cluster.wait_for_round(20)
    for command in (master, *workers):
        command.process.kill()
    cluster.let_go()
    resumed = cluster.start(
        "resume", cluster.run, "--zookeeper", cluster.zookeeper, "--workers", "3", "--format", "json"
    )
    counted_once(resumed, SHORTER)
    assert cluster.left_over() == []
