"""A run over processes: one command each for the master and the workers, and what happens when they are killed."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from dl4jlegacy import read_history
from tests.support.cluster_commands import LONG, RUN, SHORTER, Cluster, error, freeze, same, until

pytestmark = pytest.mark.cluster


@pytest.mark.long
def test_a_master_and_two_workers_in_processes_of_their_own_give_the_embedded_trackers_answer(cluster: Cluster) -> None:
    workers = [cluster.worker() for _ in range(2)]
    same(cluster.master("--epochs", "2"), 2)
    for worker in workers:
        assert worker.wait() == 0, worker.err() + worker.out()
        assert worker.err().splitlines()[-1].endswith("status done")
    assert cluster.status() == {}  # the Conf is taken back, so that nobody joins a run that is over
    assert cluster.left_over() == []


@pytest.mark.long
def test_killed_workers_change_nothing(cluster: Cluster) -> None:
    cluster.hold(5)
    master = cluster.master("--epochs", SHORTER)
    doomed = [cluster.worker(), cluster.worker()]
    cluster.wait_for_round(5)
    doomed[0].process.kill()
    cluster.worker().says("joined")
    cluster.hold_in(20)
    doomed[1].process.send_signal(signal.SIGTERM)
    cluster.let_go()
    same(master, int(SHORTER))
    assert cluster.left_at_end() == []


@pytest.mark.long
def test_parameter_servers_that_are_killed_with_what_they_fold_change_nothing(cluster: Cluster) -> None:
    """The bits are those of the embedded tracker, whose master folds alone."""
    cluster.hold(8)
    master = cluster.master("--epochs", SHORTER, "--router-args", '{"parameter_servers": 3}')
    workers = [cluster.worker() for _ in range(3)]
    for number, doomed in enumerate(workers[:2]):
        cluster.wait_for_round(8 * (number + 1))
        cluster.hold(8 * (number + 2))  # it is killed with whatever it has in hand
        doomed.process.kill()
        cluster.worker().says("joined")
    cluster.let_go()
    same(master, int(SHORTER))
    assert cluster.left_at_end() == []


@pytest.mark.long
def test_a_killed_master_is_replaced_by_its_standby(cluster: Cluster, tmp_path: Path) -> None:
    cluster.hold(3)
    master = cluster.master("--epochs", SHORTER, "--checkpoint-dir", str(tmp_path / "c"))
    for _ in range(2):
        cluster.worker()
    cluster.wait_for_round(3)
    standby = cluster.start("master", "--standby", "--zookeeper", cluster.zookeeper, "--format", "json")
    standby.says(f"`dl4j status --zookeeper {cluster.zookeeper}` shows both")
    shown = cluster.status()
    assert (shown["master"]["pid"], [known["pid"] for known in shown["standbys"]]) == (master.pid, [standby.pid])
    cluster.hold(50)
    cluster.wait_for_round(10)
    master.process.kill()
    cluster.let_go()
    report = same(standby, int(SHORTER))
    assert "this standby takes over" in standby.err()
    assert cluster.left_at_end() == []
    history = read_history(tmp_path / "c")
    versions = [entry.version for entry in history]
    assert versions == sorted(set(versions)) and versions[0] == 1  # a killed master's last moments may be missing
    assert len({entry.began for entry in history}) == 2
    assert history[-1].examples == report["examples"]


@pytest.mark.long
def test_a_master_that_stood_still_until_the_run_was_over_leaves_without_a_trace(cluster: Cluster) -> None:
    master = cluster.master("--epochs", "2")
    cluster.wait_for_round(0)
    standby = cluster.start("master", "--standby", "--zookeeper", cluster.zookeeper, "--format", "json")
    until(lambda: len([node for node in cluster.left_over() if "/election/" in node]) == 2)
    freeze(master.pid)
    cluster.worker()
    same(standby, 2)
    master.process.send_signal(signal.SIGCONT)
    error(master, 4, "while this master stood still")
    assert cluster.left_at_end() == []


STANDS_STILL = """
import os, pathlib, signal
import dl4jlegacy.cluster.register as register
import dl4jlegacy.scaleout.monitoring.monitor as monitor
from dl4jlegacy.scaleout.protocol import Registered
restore, flag = monitor.ClusterMonitor._restore_globals, pathlib.Path({flag!r})
registered, unknown = register.ZookeeperRegister.registered, []
def restore_after_a_stop(self):
    if flag.exists():
        flag.unlink()
        os.kill(os.getpid(), signal.SIGSTOP)
        unknown.extend(9 * [Registered("unknown")])
    restore(self)
monitor.ClusterMonitor._restore_globals = restore_after_a_stop
register.ZookeeperRegister.registered = lambda self: unknown.pop() if unknown else registered(self)
"""
"""A master that stands still between the look at who leads the run and what it does next, once there is a file.

Zookeeper has ended its session by then, and answers only after some questions more.
"""


@pytest.mark.long
def test_a_master_that_writes_into_a_run_that_is_over_takes_it_back(cluster: Cluster, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    flags = ("--epochs", "2", "--run", "r1", "--format", "json")
    master = cluster.start("master", *RUN, *cluster.master_flags, *flags, patch=STANDS_STILL.format(flag=str(flag)))
    cluster.wait_for_round(0)
    standby = cluster.start("master", "--standby", "--zookeeper", cluster.zookeeper, "--format", "json")
    until(lambda: len([node for node in cluster.left_over() if "/election/" in node]) == 2)
    flag.touch()
    until(lambda: psutil.Process(master.pid).status() == psutil.STATUS_STOPPED)
    worker = cluster.worker()
    same(standby, 2)
    assert worker.wait() == 0, worker.err()
    assert cluster.left_over() == []
    master.process.send_signal(signal.SIGCONT)
    error(master, 4, "while this master stood still")
    assert cluster.left_at_end() == []


@pytest.mark.long
def test_a_worker_that_stood_still_until_the_run_was_over_ends_well(cluster: Cluster) -> None:
    cluster.hold(0)
    master = cluster.master("--epochs", "2")
    worker = cluster.worker()
    worker.says("joined:")
    freeze(worker.pid)
    cluster.let_go()
    cluster.worker()
    same(master, 2)
    worker.process.send_signal(signal.SIGCONT)
    assert worker.wait() == 0, worker.err() + worker.out()
    assert "was over before this worker saw its end" in worker.err()
    assert cluster.left_at_end() == []


@pytest.mark.long
def test_a_stopped_run_ends_everybody(cluster: Cluster) -> None:
    master, worker = cluster.master("--epochs", LONG), cluster.worker()
    cluster.wait_for_round(3)
    assert "stopped in round" in cluster.ask("stop").out()
    assert "was stopped in round" in error(master, 1)
    assert worker.wait() == 0
    assert cluster.left_over() == []


@pytest.mark.long
def test_a_train_command_may_keep_its_state_in_the_grid_and_take_helpers(cluster: Cluster) -> None:
    flags = ("--run", "r1", "--workers", "2", "--epochs", "2", "--format", "json")
    master = cluster.start("train", *RUN, *cluster.master_flags, *flags)
    cluster.worker()
    same(master, 2)
    assert cluster.left_at_end() == []
