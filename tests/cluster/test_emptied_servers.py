"""Both servers are started anew under a run, with and without what they had: nobody takes that for the run's end."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from dl4jlegacy.services import Services, ServicesState
from tests.support.cluster_commands import SHORTER, Cluster, Command, same

pytestmark = pytest.mark.cluster


def end_servers(servers: ServicesState, *, keeps: bool) -> None:
    """End both servers, as a power cut does; with ``keeps`` Zookeeper has what is on its disk when it is started."""
    for name in ("hazelcast-1", "zookeeper"):
        os.kill(servers.pids[name], signal.SIGKILL)
    if not keeps:
        shutil.rmtree(Path(servers.folder) / "zookeeper-data")


def start_servers(servers: ServicesState) -> ServicesState:
    """Start both servers again under their names and ports."""
    for name in ("zookeeper", "hazelcast-1"):
        servers = Services.restart(name, Path(servers.folder))
    return servers


def empty_servers(servers: ServicesState, *, keeps: bool = False) -> ServicesState:
    end_servers(servers, keeps=keeps)
    return start_servers(servers)


def stand_by(cluster: Cluster) -> Command:
    standby = cluster.start("master", "--standby", "--zookeeper", cluster.zookeeper, "--format", "json")
    standby.says("standing by: takes over run")
    return standby


def test_a_run_goes_on_when_both_servers_are_started_anew_with_nothing(servers: ServicesState, on_own: Cluster) -> None:
    on_own.hold(3)
    master = on_own.master("--epochs", SHORTER, "--run", "r")
    workers = [on_own.worker(), on_own.worker()]
    standby = stand_by(on_own)
    on_own.wait_for_round(3)
    empty_servers(servers)
    on_own.hold_in(6)
    on_own.let_go()
    same(master, int(SHORTER))
    for process in (*workers, standby):
        assert process.wait() == 0, process.err()
    assert on_own.left_over() == []
