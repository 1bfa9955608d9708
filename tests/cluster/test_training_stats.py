"""Training statistics of a run over processes: they come together at its master, whoever dies, and leave no trace."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from dl4jlegacy import read_stats
from dl4jlegacy.errors import CheckpointError
from tests.support.cluster_commands import SHORTER, Cluster, Command, same, until

pytestmark = [pytest.mark.cluster, pytest.mark.long]


def test_the_statistics_of_all_processes_come_together_and_the_answer_stays_the_same(
    cluster: Cluster, tmp_path: Path
) -> None:
    flags = ("--checkpoint-dir", str(tmp_path / "c"), "--collect-training-stats")
    cluster.hold(20)
    master = cluster.master("--epochs", SHORTER, *flags)
    doomed = cluster.worker()
    until(lambda: has_said(tmp_path / "c", doomed), what="statistics of the worker that will be killed")
    doomed.process.kill()
    other = cluster.worker()
    cluster.let_go()
    same(master, int(SHORTER))
    assert other.wait() == 0, other.err()
    assert cluster.left_over() == []
    found = read_stats(tmp_path / "c")
    threads = {event.process: Counter[str]() for event in found.events}
    for event in found.events:
        threads[event.process][event.thread] += 1
    leaders = [process for process, counts in threads.items() if "master" in counts]
    assert len(threads) == 3 and leaders and set(threads[leaders[0]]) == {"master", "batch", "saver"}
    assert [set(counts) for process, counts in threads.items() if process not in leaders] == [{"worker-0"}] * 2
    assert found.lost == {} and found.damaged == 0  # before the last that came: its last half second is not counted
    survivor = f"-{other.pid}-"
    fits = {(e.round, e.slot) for e in found.events if e.phase == "WorkerFit" and survivor in e.process}
    sent = {(e.round, e.slot) for e in found.events if e.phase == "WorkerSend" and survivor in e.process}
    assert sent and fits >= sent
    rounds = {event.round for event in found.events if event.phase == "MasterCommit"}
    assert rounds == set(range(len(rounds)))
    assert max(round_ for round_, _ in sent) == max(rounds)  # to the very end


def has_said(folder: Path, worker: Command) -> bool:
    """Whether statistics of a worker have come to the master's file."""
    try:
        return any(f"-{worker.pid}-" in event.process for event in read_stats(folder).events)
    except CheckpointError:
        return False  # there is no file yet


def test_a_master_that_takes_over_collects_on(cluster: Cluster, tmp_path: Path) -> None:
    flags = ("--checkpoint-dir", str(tmp_path / "c"), "--collect-training-stats")
    cluster.hold(3)
    master, worker = cluster.master("--epochs", SHORTER, *flags), cluster.worker()
    cluster.wait_for_round(3)
    standby = cluster.start("master", "--standby", "--zookeeper", cluster.zookeeper, "--format", "json")
    standby.says("shows both")
    master.process.kill()
    cluster.let_go()
    same(standby, int(SHORTER))
    assert worker.wait() == 0, worker.err()
    found = read_stats(tmp_path / "c")
    leaders = {event.process for event in found.events if event.thread == "master"}
    assert any(f"-{standby.pid}-" in leader for leader in leaders)
    assert sum(found.lost.values()) == 0
    assert cluster.left_over() == []
