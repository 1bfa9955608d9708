"""``dl4j status --watch`` of real runs: it outlives their masters and their trackers, and ends with them."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from dl4jlegacy.services import ServicesState
from tests.support.cluster_commands import LONG, Cluster, Command, freeze, until

pytestmark = [pytest.mark.cluster, pytest.mark.long]


def looks(command: Command) -> list[dict[str, Any]]:
    """The whole lines that it has printed so far."""
    return [json.loads(line) for line in command.out().splitlines(keepends=True) if line.endswith("\n")]


def test_it_outlives_a_master_and_ends_with_the_run(cluster: Cluster) -> None:
    master, worker = cluster.master("--epochs", LONG, "--run", "r1"), cluster.worker("--workers", "2")
    cluster.wait_for_round(3)
    place = ("--zookeeper", cluster.zookeeper)
    watch = cluster.start("status", "--watch", "--every", "0.2", *place, "--format", "json")
    lines = cluster.start("status", "-w", "--every", "0.2", *place)
    until(lambda: len(looks(watch)) > 3, what="some looks")
    seen = looks(watch)[-1]
    assert (seen["run"], seen["state"], seen["master"]["pid"]) == ("r1", "running", master.pid)
    assert [each["pid"] for each in seen["workers"]] == [worker.pid] * 2
    assert 3 <= seen["round"] < seen["rounds"] and 0 < seen["examples"] < seen["total_examples"]
    until(lambda: looks(watch)[-1]["examples_per_second"] > 0, what="a speed")
    master.process.kill()
    until(lambda: looks(watch)[-1]["master"] is None, what="the master is missed")
    again = cluster.start("resume", "r1", *place)
    until(lambda: (looks(watch)[-1]["master"] or {}).get("pid") == again.pid, what="the new master")
    before = looks(watch)[-1]["round"]
    until(lambda: looks(watch)[-1]["round"] > before, what="the run goes on")
    assert watch.process.poll() is None and lines.process.poll() is None
    assert cluster.ask("stop").process.returncode == 0
    assert watch.wait() == 0 and lines.wait() == 0
    last = looks(watch)[-1]
    assert last["over"] and not any(each["over"] for each in looks(watch)[:-1])
    said = lines.out()
    assert ", no master" in said and f"master {seen['master']['host']} {again.pid}" in said
    assert said.splitlines()[-1].partition(" ")[2].startswith("run r1")
    assert watch.err() == lines.err() == ""


def test_it_outlives_a_tracker_that_is_away_and_ends_by_ctrl_c(on_own: Cluster, servers: ServicesState) -> None:
    on_own.master("--epochs", LONG, "--run", "r1")
    on_own.worker("--workers", "2")
    on_own.wait_for_round(3)
    place = ("--zookeeper", on_own.zookeeper)
    watch = on_own.start("status", "--watch", "--every", "0.2", *place, "--format", "json")
    until(lambda: len(looks(watch)) > 3, what="some looks")
    member = servers.pids["hazelcast-1"]
    freeze(member)
    until(lambda: looks(watch)[-1]["away"], what="that there is no answer")
    away = looks(watch)[-1]
    assert away["away"]["code"] == "DL4J-TRACKER" and away["run"] == "r1" and away["round"] >= 3
    os.kill(member, signal.SIGCONT)
    until(lambda: not looks(watch)[-1]["away"] and looks(watch)[-1]["round"] > away["round"], what="the run goes on")
    watch.process.send_signal(signal.SIGINT)
    assert watch.wait() == 130
    assert looks(watch)[-1]["error"]["exit"] == 130
