"""The dashboard of a run on a cluster, through what happens to such runs."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from dl4jlegacy.cluster.address import ClusterAddress
from dl4jlegacy.errors import TrackerError
from dl4jlegacy.services import Services, ServicesState
from dl4jlegacy.ui.cluster_source import ClusterSource
from tests.support.cluster_commands import LONG, SECRET, SHORTER, Cluster, freeze, same, until
from tests.support.dashboards import bearer, served

pytestmark = [pytest.mark.cluster, pytest.mark.long]


def source_of(cluster: Cluster) -> ClusterSource:
    return ClusterSource(ClusterAddress(cluster.zookeeper, SECRET.encode()))


def test_a_killed_worker_and_a_replaced_master_are_seen_and_the_run_is_stopped_from_the_page(
    cluster: Cluster, tmp_path: Path
) -> None:
    folder = str(tmp_path / "run")
    with pytest.raises(TrackerError, match="no run with the id 'master' is registered"):
        source_of(cluster).read()
    master = cluster.master("--epochs", LONG, "--run", "r1", "--checkpoint-dir", folder)
    cluster.worker()
    other = cluster.worker()
    cluster.wait_for_round(3)
    with served(source_of(cluster)) as (client, panel):

        def get(path: str) -> Any:
            return client.get(f"/api/v1/{path}").json()

        run = get("run")["run"]
        assert (run["run"], run["id"], run["state"], run["master"]["pid"]) == ("r1", "master", "running", master.pid)
        assert 3 <= run["round"] < run["rounds"] and run["total_examples"] > run["examples"] > 0
        until(lambda: len(get("workers")["workers"]) == 2)
        until(lambda: get("run")["can"] == ["stop", "drain", "save", "evaluate"] and get("history")["versions"] > 3)
        until(lambda: {"run_began", "worker_joined"} <= {event["event"] for event in get("events")["events"]})

        other.process.send_signal(signal.SIGKILL)
        until(lambda: any(worker["gone"] for worker in get("workers")["workers"]))
        until(lambda: any(event["event"] == "worker_gone" for event in get("events")["events"]))

        master.process.send_signal(signal.SIGKILL)
        until(lambda: get("run")["run"]["master"] is None)
        until(lambda: any("has no master" in notice for notice in get("run")["notices"]))
        before = get("run")["run"]["round"]
        resumed = cluster.start("resume", "r1", "--zookeeper", cluster.zookeeper, "--workers", "1")
        until(lambda: (get("run")["run"]["master"] or {}).get("pid") == resumed.pid)
        until(lambda: get("run")["run"]["round"] > before + 3)
        until(lambda: get("run")["away"] is None and get("run")["notices"] == [])

        own = bearer(panel)
        assert "run r1: stopped in round" in client.post("/api/v1/stop", headers=own).json()["status"]
        until(lambda: get("run")["run"]["status"] == "stopped")
        resumed.wait()
        until(lambda: any("not registered any more" in notice for notice in get("run")["notices"]))
        assert get("run")["run"]["state"] == "ended" and get("history")["versions"] > 3
    assert cluster.left_over() == []


def test_a_run_that_takes_the_id_is_followed_and_the_one_that_ends_stays_in_view(cluster: Cluster) -> None:
    cluster.worker()
    first = cluster.master("--epochs", LONG, "--run", "r1")
    cluster.wait_for_round(2)
    with served(source_of(cluster)) as (client, panel):

        def run() -> Any:
            return client.get("/api/v1/run").json()["run"]

        assert run()["run"] == "r1"
        until(lambda: client.get("/api/v1/history").json()["versions"] > 2)
        assert client.get("/api/v1/history").json()["is_observed"]

        def model() -> Any:
            return client.get("/api/v1/model").json()["model"] or {}

        until(lambda: model().get("before") is not None)  # without checkpoints, from the grid
        assert model()["before"] < model()["version"] and max(model()["ratios"][-1]["ratios"].values()) > 0
        own = bearer(panel)
        refused = client.post("/api/v1/evaluate", headers=own)
        assert refused.status_code == 409 and "it keeps none" in refused.json()["error"]["message"]
        cluster.ask("stop")
        first.wait()
        cluster.worker()
        same(cluster.master("--epochs", SHORTER, "--run", "r2"), int(SHORTER))
        until(lambda: run()["run"] == "r2")
        assert run()["status"] in ("done", "running")
    assert cluster.left_at_end() == []


def test_servers_that_are_away_are_said_to_be_and_found_again(on_own: Cluster, servers: ServicesState) -> None:
    on_own.hold(4)
    master = on_own.master("--epochs", SHORTER, "--run", "r1")
    on_own.worker()
    on_own.wait_for_round(4)
    with served(source_of(on_own)) as (client, _):

        def get() -> Any:
            return client.get("/api/v1/run").json()

        assert get()["away"] is None and get()["run"]["round"] == 4
        freeze(servers.pids["hazelcast-1"])
        away = until(lambda: get()["away"], 60.0)
        assert away < 10.0 and get()["run"]["round"] == 4
        assert get()["away"]["code"] == "DL4J-TRACKER" and servers.hazelcast in get()["away"]["message"]
        os.kill(servers.pids["hazelcast-1"], signal.SIGCONT)
        until(lambda: get()["away"] is None, 60.0)
        os.kill(servers.pids["zookeeper"], signal.SIGKILL)
        until(lambda: any("Zookeeper does not answer" in notice for notice in get()["notices"]), 60.0)
        assert get()["away"] is None and get()["run"]["round"] == 4
        Services.restart("zookeeper", Path(servers.folder))
        until(lambda: get()["notices"] == [], 60.0)
    on_own.let_go()
    same(master, int(SHORTER))


def test_a_master_shows_its_own_run_from_before_it_is_registered(cluster: Cluster) -> None:
    master = cluster.master("--epochs", LONG, "--run", "r1", "--ui", "--log-format", "json")
    master.says('"dashboard"')
    (said,) = [json.loads(line) for line in master.err().splitlines() if '"dashboard"' in line]
    own = {"authorization": f"Bearer {Path(said['token_file']).read_text().strip()}"}
    with httpx.Client(base_url=said["url"], timeout=60, headers=own) as client:
        cluster.worker()
        until(lambda: (client.get("/api/v1/run").json()["run"] or {}).get("round", 0) > 3)
        found = client.get("/api/v1/run").json()
        assert found["away"] is None and found["run"]["master"]["pid"] == master.pid
        cluster.ask("stop")
        assert master.wait() == 1
    assert cluster.left_at_end() == []
