"""Metrics and event files of a run over processes: each serves its own, and a master that takes over goes on."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.cluster_commands import SHORTER, Cluster, Command, same, until
from tests.support.event_files import read_events

pytestmark = [pytest.mark.cluster, pytest.mark.long]

SERVES = ("--metrics-port", "0")


def metrics(command: Command) -> dict[str, float]:
    """What a process serves, of the samples without labels."""
    command.says("/metrics")
    [url] = re.findall(r"http://127\.0\.0\.1:\d+/metrics", command.err())
    with urllib.request.urlopen(url, timeout=60) as answer:
        text = answer.read().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {sample.name: sample.value for sample in samples if not sample.labels}


def test_the_processes_of_a_run_serve_their_own_metrics(cluster: Cluster) -> None:
    cluster.hold(6)
    master = cluster.master("--epochs", SHORTER, *SERVES)
    workers = [cluster.worker(*SERVES) for _ in range(2)]
    cluster.wait_for_round(5)
    until(lambda: metrics(master).get("dl4j_rounds_total", 0) >= 5)
    led = metrics(master)
    assert led["dl4j_run_active"] == 1 and led["dl4j_examples_total"] > 0 and led["dl4j_jobs_done_total"] >= 5
    assert led["dl4j_tracker_sent_bytes_total"] > 10_000 and led["dl4j_tracker_received_bytes_total"] > 10_000
    assert led["dl4j_heartbeat_age_seconds"] < 30
    for worker in workers:  # one alone may have done the first rounds
        until(lambda worker=worker: metrics(worker).get("dl4j_tracker_received_bytes_total", 0) > 10_000)
        own = metrics(worker)
        assert own["dl4j_run_active"] == 1 and "dl4j_rounds_total" not in own
        assert own["dl4j_tracker_sent_bytes_total"] > 0
    cluster.let_go()
    same(master, int(SHORTER))
    for worker in workers:
        assert worker.wait() == 0, worker.err()
    assert cluster.left_over() == []


def test_a_master_that_takes_over_continues_the_curves(cluster: Cluster, tmp_path: Path) -> None:
    events = ("--tensorboard", str(tmp_path / "events"))
    cluster.hold(3)
    master, worker = cluster.master("--epochs", SHORTER, *events), cluster.worker()
    cluster.wait_for_round(3)
    standby = cluster.start("master", "--standby", "--zookeeper", cluster.zookeeper, "--format", "json", *events)
    standby.says("shows both")
    master.process.kill()
    cluster.let_go()
    same(standby, int(SHORTER))
    assert worker.wait() == 0, worker.err()
    steps = [step for step, _ in read_events(tmp_path / "events")[0]["score"]]
    assert steps == sorted(set(steps)) and steps[-1] > 3
    assert cluster.left_over() == []
