"""A worker that is asked to leave finishes its jobs first, and the run goes on as if it had never been there."""

from __future__ import annotations

import signal

import pytest

from dl4jlegacy.cluster.address import ClusterAddress
from dl4jlegacy.errors import UsageError
from dl4jlegacy.ui.cluster_source import ClusterSource
from tests.support.cluster_commands import LONG, SECRET, SHORTER, Cluster, same, until
from tests.support.dashboards import bearer, served

pytestmark = [pytest.mark.cluster, pytest.mark.long]

HANGS = """
import threading
import dl4jlegacy.scaleout.workers.perform as module
perform = module.MultiLayerNetworkPerformer.perform
def hang(self, job):
    while job.slot.round >= 3:
        threading.Event().wait(0.1)
    return perform(self, job)
module.MultiLayerNetworkPerformer.perform = hang
"""


def source_of(cluster: Cluster) -> ClusterSource:
    return ClusterSource(ClusterAddress(cluster.zookeeper, SECRET.encode()))


def test_a_worker_that_is_drained_finishes_its_job_and_leaves(cluster: Cluster) -> None:
    cluster.hold(10)
    master = cluster.master("--epochs", SHORTER, "--run", "r1")
    stays, leaves = cluster.worker(), cluster.worker("--workers", "2")
    cluster.wait_for_round(10)
    with served(source_of(cluster)) as (client, panel):
        own = bearer(panel)

        def workers(pid: int) -> list[dict]:
            return [each for each in client.get("/api/v1/workers").json()["workers"] if each["pid"] == pid]

        until(lambda: len(workers(leaves.pid)) == 2 and all(each["job"] for each in workers(leaves.pid)))
        asked = workers(leaves.pid)[0]
        answer = client.post(f"/api/v1/workers/{asked['id']}/drain", headers=own)
        assert answer.status_code == 200 and "was asked to leave; it finishes its jobs first" in answer.json()["status"]
        until(lambda: "asked to leave" in leaves.err() or workers(leaves.pid)[0]["beat"] > asked["beat"] + 3)
        assert leaves.process.poll() is None, "it left a job that it had begun"
        assert len(workers(leaves.pid)) == 2
        cluster.let_go()
        assert leaves.wait() == 0, leaves.err()
        assert "status drained" in leaves.err()
        until(lambda: workers(leaves.pid) == [])
        events = client.get("/api/v1/events").json()["events"]
        assert [each["status"] for each in events if each["event"] == "worker_left"] == ["drained"]
        assert not {"lease_broken", "job_failed"} & {each["event"] for each in events}
        same(master, int(SHORTER))
    assert stays.wait() == 0
    assert cluster.left_over() == []


def test_who_cannot_leave_is_named(cluster: Cluster) -> None:
    first, helper = cluster.master("--epochs", LONG, "--run", "r1"), cluster.worker()
    cluster.wait_for_round(3)
    for process in (first.process, helper.process):
        process.send_signal(signal.SIGKILL)
        process.wait()
    master = cluster.start("resume", "r1", "--zookeeper", cluster.zookeeper, "--workers", "1")
    source = source_of(cluster)
    until(lambda: [each for each in source.read().workers if each.pid == master.pid])
    until(lambda: all(each.gone for each in source.read().workers if each.pid == helper.pid))
    ids = {each.pid: each.id for each in source.read().workers}
    with pytest.raises(UsageError, match="works in the process of the master of run r1"):
        source.drain(ids[master.pid])
    with pytest.raises(UsageError, match="run r1 has no worker 'nobody-0' that could leave; it has "):
        source.drain("nobody-0")
    refused = cluster.ask("drain", "nobody-0")
    assert refused.process.returncode == 2 and "has no worker 'nobody-0' that could leave" in refused.err()
    if helper.pid in ids:
        with pytest.raises(UsageError, match="that could leave"):
            source.drain(ids[helper.pid])
    source.close()
    cluster.ask("stop")
    master.wait()


def test_a_job_that_hangs_keeps_nobody_from_leaving(cluster: Cluster) -> None:
    master = cluster.start(
        *("master", "--model", "mlp", "--dataset", "digits", "--epochs", LONG, "--run", "r1", *cluster.master_flags),
        *("--stuck", "2"),
    )
    hangs = cluster.worker(patch=HANGS)
    cluster.wait_for_round(3)
    source = source_of(cluster)
    (worker,) = source.read().workers
    assert "was asked to leave; it finishes its jobs first" in cluster.ask("drain", worker.id).out()
    assert hangs.wait() == 0, hangs.err()
    assert "has made no progress for" in hangs.err() and "is left to others" in hangs.err()
    source.close()
    cluster.ask("stop")
    master.wait()
