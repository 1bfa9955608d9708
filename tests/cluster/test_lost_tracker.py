"""A tracker that is away, on real servers: everybody waits and says so; who gives up saves what it has."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from dl4jlegacy.services import Services, ServicesState
from tests.support.cluster_commands import LONG, SHORTER, Cluster, Command, error, freeze, same, until

pytestmark = [pytest.mark.cluster, pytest.mark.long]

HASTY = """
import dl4jlegacy.scaleout.hazelcast.store as module
for tracker in (module.HazelcastStore, module.HazelcastStateTracker):
    tracker.__init__.__kwdefaults__["deadline_seconds"] = 3.0
"""
"""For who asks a member that is gone for ever: 20 seconds are long for a test."""


def stand_by(cluster: Cluster) -> Command:
    standby = cluster.start("master", "--standby", "--zookeeper", cluster.zookeeper, "--format", "json")
    standby.says("standing by: takes over run")
    return standby


def test_everybody_waits_for_a_frozen_member_says_so_and_goes_on(servers: ServicesState, on_own: Cluster) -> None:
    on_own.hold(3)
    master, worker = on_own.master("--epochs", SHORTER, "--run", "r"), on_own.worker()
    standby = stand_by(on_own)
    on_own.wait_for_round(3)
    freeze(servers.pids["hazelcast-1"])
    for process in (master, worker, standby):
        process.says("does not answer")
        process.says("this process waits for it, up to 29")  # of 300 seconds
    on_own.let_go()
    os.kill(servers.pids["hazelcast-1"], signal.SIGCONT)
    for process in (master, worker):
        process.says("answers again, after ")
    same(master, int(SHORTER))
    assert worker.wait() == 0, worker.err()
    assert standby.wait() == 0, standby.err()


def test_a_run_whose_member_is_gone_for_ever_is_removed_once_it_has_no_master(
    servers: ServicesState, on_own: Cluster
) -> None:
    master = on_own.master("--epochs", LONG, "--run", "r")
    worker = on_own.worker()
    on_own.wait_for_round(3)
    os.kill(servers.pids["hazelcast-1"], signal.SIGKILL)
    master.says("does not answer")
    error(on_own.ask("stop", "--lost-grid", patch=HASTY), 4, "another master holds the id", f"pid {master.pid}")
    master.process.kill()
    master.wait()
    error(
        on_own.ask("stop", patch=HASTY),
        4,
        "no state tracker could be reached",
        "--lost-grid` removes the run from Zookeeper",
    )
    listed = on_own.ask("runs", "--clean", patch=HASTY).out()
    assert "r (" in listed and "--lost-grid` removes it" in listed
    assert "it is not registered any more" in on_own.ask("stop", "--lost-grid", patch=HASTY).out()
    worker.process.kill()
    worker.wait()
    assert on_own.ask("runs").out() == "there are no runs\n"
    Services.restart("hazelcast-1", Path(servers.folder))
    next_one = on_own.master("--epochs", "2", "--run", "r", "--workers", "1", "--min-workers", "0")
    on_own.worker()
    assert next_one.wait() == 0, next_one.err()


def test_who_gives_up_a_killed_member_leaves_and_the_master_has_saved_its_run(
    servers: ServicesState, on_own: Cluster, tmp_path: Path
) -> None:
    folder = tmp_path / "kept"
    flags = ("--tracker-wait", "5", "--checkpoint-dir", str(folder), "--checkpoint-every", "1000000")
    on_own.hold(3)
    master, worker = on_own.master("--epochs", SHORTER, "--run", "r", *flags), on_own.worker()
    standby = stand_by(on_own)
    on_own.wait_for_round(3)
    os.kill(servers.pids["hazelcast-1"], signal.SIGKILL)
    on_own.let_go()
    said = error(master, 4, "within 5 s", f"a checkpoint of that is in {folder}", "the model of then is in ")
    Path(said.rpartition("the model of then is in ")[2].split()[0]).unlink()
    for process in (worker, standby):
        error(process, 4, "the state tracker at", "within 5 s")
    until(lambda: list(folder.glob("checkpoint-*.json")), what="the checkpoint")
    same(on_own.start("resume", str(folder), "--format", "json"), int(SHORTER))
    Services.restart("hazelcast-1", Path(servers.folder))  # for what clears up
