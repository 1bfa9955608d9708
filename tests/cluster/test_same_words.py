"""What goes wrong in a run is told in the same words in the terminal, on the dashboard, and as JSON."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from dl4jlegacy.cluster.address import ClusterAddress
from dl4jlegacy.services import ServicesState
from dl4jlegacy.ui.cluster_source import ClusterSource
from tests.support.browser import Browser, shows
from tests.support.cluster_commands import LONG, RUN, SECRET, Cluster, freeze, until
from tests.support.dashboards import link_to, served

pytestmark = [pytest.mark.cluster, pytest.mark.long]

FULL = """
import os, dl4jlegacy.storage.folders as full_folders, pathlib as full_pathlib
unfull = full_folders.LocalFolder.write
def write_when_full(folder, name, content):
    if full_pathlib.Path({flag!r}).exists() and "model-" in name:
        raise OSError(28, os.strerror(28))
    return unfull(folder, name, content)
full_folders.LocalFolder.write = write_when_full
"""
"""A machine whose disk is full, as far as models go, while there is a file."""


def source_of(cluster: Cluster) -> ClusterSource:
    return ClusterSource(ClusterAddress(cluster.zookeeper, SECRET.encode()))


def page(browser: Browser, id: str) -> str:
    """What an element of the page says, without line breaks and the like."""
    return " ".join(str(browser.value(f"document.getElementById('{id}').textContent")).split())


def without_seconds(text: str) -> str:
    """A text without how long somebody has waited for an answer: a page waits less long than a command."""
    return re.sub(r"within [0-9.]+ s", "within N s", " ".join(text.split()))


def logs(cluster: Cluster, event: str) -> tuple[str, dict[str, Any]]:
    """What ``dl4j logs`` says of the last event of a kind, as text and as JSON."""
    (*_, line) = [each for each in cluster.ask("logs").out().splitlines() if event.replace("_", " ") in each]
    entries = json.loads(cluster.ask("logs", "--format", "json").out())["entries"]
    (*_, entry) = [each for each in entries if each["event"] == event]
    return line, entry


def check_event(cluster: Cluster, browser: Browser, client: Any, event: str, *fields: str) -> dict[str, Any]:
    """Assert that terminal, page, interface and JSON say the same of an event; return it."""
    line, entry = logs(cluster, event)
    (*_, told) = client.get(f"/api/v1/events?event={event}").json()["events"]
    assert {name: value for name, value in told.items() if name != "key"} == entry
    assert line in client.get("/api/v1/log").text.splitlines()
    shows(browser, f"document.getElementById('log').textContent.includes({json.dumps(line)})")
    for name in fields:
        assert str(entry[name]) in line and str(entry[name]) in page(browser, "events")
    return entry


def test_of_a_worker_that_was_killed(cluster: Cluster, browser: Browser) -> None:
    master = cluster.master("--epochs", LONG, "--run", "r1")
    cluster.worker()
    killed = cluster.worker()
    cluster.wait_for_round(3)
    until(lambda: len(cluster.status()["workers"]) == 2)
    with served(source_of(cluster)) as (client, panel):
        browser.open(link_to(client, panel))
        killed.process.send_signal(signal.SIGKILL)
        shows(browser, "document.querySelector('#workers tr.gone')")
        until(lambda: client.get("/api/v1/events?event=worker_gone").json()["events"])
        (worker,) = [each for each in client.get("/api/v1/workers").json()["workers"] if each["gone"]]
        words = f"gone ({worker['gone']})"
        (of_json,) = [each["state"] for each in cluster.status()["workers"] if each["id"] == worker["id"]]
        (line,) = [each for each in cluster.ask("status").out().splitlines() if f"worker {worker['id']}: " in each]
        (row,) = browser.value("[...document.querySelectorAll('#workers tr.gone')].map((e) => e.innerText)")
        assert of_json == words and f": {words}" in line and words in row
        entry = check_event(cluster, browser, client, "worker_gone", "process", "reason")
        assert entry["reason"] == worker["gone"]
        said = [each for each in master.err().splitlines() if "worker gone" in each]
        assert any(f"reason {worker['gone']}" in each for each in said), said
    cluster.ask("stop")
    master.wait()


def test_of_a_disk_that_is_full(cluster: Cluster, browser: Browser, tmp_path: Path) -> None:
    folder, flag = tmp_path / "run", tmp_path / "full"
    given = ("--epochs", LONG, "--run", "r1", "--checkpoint-dir", str(folder), "--checkpoint-every", "2")
    master = cluster.start(
        "master", *RUN, *cluster.master_flags, *given, "--format", "json", patch=FULL.format(flag=str(flag))
    )
    cluster.worker()
    cluster.wait_for_round(3)
    with served(source_of(cluster)) as (client, panel):
        browser.open(link_to(client, panel))
        flag.touch()
        until(lambda: client.get("/api/v1/events?event=checkpoint_failed").json()["events"])
        flag.unlink()
        entry = check_event(cluster, browser, client, "checkpoint_failed", "message")
        assert "No space left on device" in entry["message"] and str(folder) in entry["message"]
        assert entry["message"] in master.err()
    cluster.ask("stop")
    master.wait()


def test_of_a_tracker_that_does_not_answer(on_own: Cluster, servers: ServicesState, browser: Browser) -> None:
    on_own.hold(4)
    master = on_own.master("--epochs", LONG, "--run", "r1")
    on_own.worker()
    on_own.wait_for_round(4)
    with served(source_of(on_own)) as (client, panel):
        browser.open(link_to(client, panel))
        freeze(servers.pids["hazelcast-1"])
        until(lambda: client.get("/api/v1/run").json()["away"], 60.0)
        away = client.get("/api/v1/run").json()["away"]
        text, as_json = on_own.ask("status"), on_own.ask("status", "--format", "json")
        said = json.loads(as_json.out())["error"]
        assert said["message"].startswith("run r1 is stalled: ")
        words = without_seconds(said["message"].removeprefix("run r1 is stalled: "))
        assert (
            said["code"] == away["code"] == "DL4J-TRACKER" and "no state tracker could be reached within N s" in words
        )
        assert words in without_seconds(text.err()) and f"[{said['code']}]" in text.err()
        until(lambda: without_seconds(client.get("/api/v1/run").json()["away"]["message"]) == words, 60.0)
        until(lambda: words in without_seconds(page(browser, "alerts")), 60.0)
        assert f"[{said['code']}]" in page(browser, "alerts")
    os.kill(servers.pids["hazelcast-1"], signal.SIGCONT)
    on_own.let_go()
    on_own.ask("stop")
    master.wait()
