"""Looking at a run on a cluster and steering it: status, logs, stop, resume, ids, and waiting for enough workers."""

from __future__ import annotations

import json
import re
import shlex
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dl4jlegacy.cluster.address import find_incarnation
from dl4jlegacy.scaleout.persistence.journal import Journal
from dl4jlegacy.services import Services, ServicesState
from tests.support.cluster_commands import LONG, SHORTER, Cluster, error, same, until
from tests.support.forked_commands import Forks

pytestmark = [pytest.mark.cluster, pytest.mark.long]

FAILS_ONCE = """
import dl4jlegacy.scaleout.workers.perform as module
perform, failed = module.MultiLayerNetworkPerformer.perform, []
def fail_once(self, job):
    if not failed:
        failed.append(job)
        raise RuntimeError("the disk is on fire")
    return perform(self, job)
module.MultiLayerNetworkPerformer.perform = fail_once
"""
FAILS_ALWAYS = FAILS_ONCE.replace("if not failed:", "if True:")


def test_status_shows_the_run_its_master_and_its_workers(cluster: Cluster) -> None:
    master, worker = cluster.master("--epochs", LONG, "--run", "r1"), cluster.worker("--workers", "2")
    cluster.wait_for_round(3)
    left = cluster.left_over()
    assert (
        any(re.fullmatch(r"r1\.[0-9a-f]{16}: head", key) for key in left) and "/dl4jlegacy/master/election" in left
    )  # what is looked for elsewhere is seen
    shown = cluster.status()
    assert (shown["run"], shown["id"], shown["state"]) == ("r1", "master", "running")
    assert 3 <= shown["round"] < shown["rounds"]
    assert shown["examples"] > 0 and shown["score"] is not None
    assert shown["master"]["pid"] == master.pid
    assert [w["pid"] for w in shown["workers"]] == [worker.pid] * 2
    for record in shown["workers"]:
        assert record["host"] and record["state"] in ("idle", "working")
        assert abs(time.time() - record["beat"]) < 10
    assert shown["failures"] == []
    lines = cluster.ask("status").out().splitlines()
    assert re.fullmatch(r"run r1: running, round \d+ of \d+, [\d,]+ examples, score [\d.]+", lines[0])
    assert f"pid {master.pid}" in lines[1]
    assert sum(f"pid {worker.pid}" in line and "jobs done, last beat at 20" in line for line in lines) == 2


def test_a_failed_job_reaches_the_masters_terminal_and_status_with_its_traceback_at_once(
    cluster: Cluster, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    cluster.hold(1)
    master = cluster.master("--epochs", SHORTER, "--run", "r1", "--checkpoint-dir", str(folder))
    cluster.worker()
    bad = cluster.worker(patch=FAILS_ONCE)
    bad.says("joined")
    cluster.hold(60)
    bad.says("failed in round")
    master.says("RuntimeError: the disk is on fire")
    assert master.process.poll() is None, "it was said only at the end"
    shown = cluster.status()
    (failure,) = shown["failures"]
    assert (failure["pid"], failure["attempt"], failure["message"]) == (bad.pid, 1, "RuntimeError: the disk is on fire")
    assert "in fail_once" in failure["traceback"]
    said = master.err()
    line = next(line for line in said.splitlines() if line.startswith("job failed"))
    assert f"pid {bad.pid}" in line and "round" in line and "slot" in line and "host" in line
    assert said.index(line) < said.index("Traceback") < said.index("in fail_once")
    cluster.let_go()
    same(master, int(SHORTER))
    events = [entry["event"] for entry in journal_of(cluster, folder)]
    assert events[0] == "master_leads" and events[-1] == "run_ended"
    assert {"run_began", "worker_joined", "job_failed"} <= set(events)
    assert cluster.left_at_end() == []


def journal_of(cluster: Cluster, folder: Path) -> list[dict]:
    shown = cluster.start("logs", str(folder), "--format", "json")
    assert shown.wait() == 0, shown.err()
    return json.loads(shown.out())["entries"]


def test_a_job_that_fails_on_every_attempt_ends_the_run_which_is_resumed_when_that_is_mended(
    cluster: Cluster, tmp_path: Path
) -> None:
    flags = ("--checkpoint-dir", str(tmp_path / "c"), "--log-format", "json")
    master = cluster.master("--epochs", SHORTER, "--run", "r1", *flags)
    failing = cluster.worker(patch=FAILS_ALWAYS)
    assert master.wait() == 1
    assert failing.wait() == 1
    assert "failed on every attempt" in failing.err()
    events = [json.loads(line) for line in master.err().splitlines() if line.startswith("{")]
    failed = [event for event in events if event["event"] == "job_failed"]
    assert [event["attempt"] for event in failed if event["slot"] == failed[-1]["slot"]][-1] == 3
    assert all("the disk is on fire" in event["traceback"] for event in failed)
    resume = re.search(r"failed on every attempt.*`dl4j (resume r1 --zookeeper \S+)` resumes", events[-1]["message"])
    assert resume, events[-1]
    assert journal_of(cluster, tmp_path / "c")[-1]["status"] == "failed"
    assert (cluster.status()["state"], cluster.status()["status"]) == ("ended", "failed")
    error(cluster.worker("--wait", "1"), 4, "r1 has failed in round 0", "dl4j resume r1", "dl4j stop")
    waiting = cluster.worker("--workers", "2")
    resumed = cluster.start(*shlex.split(resume[1]), "--workers", "1", "--min-workers", "3", "--format", "json")
    same(resumed, int(SHORTER))
    assert waiting.wait() == 0, waiting.err()
    until(lambda: cluster.left_over() == [])


@pytest.mark.parametrize("how", ["stop", "another run of the name", "another run of the id"])
def test_what_a_failed_run_leaves_makes_room(how: str, cluster: Cluster) -> None:
    master = cluster.master("--epochs", SHORTER, "--run", "r1")
    failing = cluster.worker(patch=FAILS_ALWAYS)
    assert (master.wait(), failing.wait()) == (1, 1)
    if how == "stop":
        assert "r1: failed in round 0" in cluster.ask("stop").out()
    else:
        name = "r1" if how == "another run of the name" else "r2"
        waiting = cluster.worker()
        same(cluster.master("--epochs", "2", "--run", name), 2)
        assert waiting.wait() == 0, waiting.err()
        if how == "another run of the id":
            cluster.start("runs", "--clean", "--zookeeper", cluster.zookeeper, *cluster.master_flags[:4]).wait()
    assert cluster.left_over() == []


def test_a_worker_that_meets_a_run_which_is_just_replaced_works_for_the_next(cluster: Cluster) -> None:
    """It finds the Conf of the old one, whose entries the next master has taken away already."""
    master, failing = cluster.master("--epochs", SHORTER, "--run", "r1"), cluster.worker(patch=FAILS_ALWAYS)
    assert (master.wait(), failing.wait()) == (1, 1)
    with cluster.grid() as names:
        names.sibling("r1", find_incarnation(names, "r1")).destroy()
    error(cluster.worker("--wait", "1"), 4, "run r1 has no versions in the tracker", "dl4j resume r1")
    waiting = cluster.worker()
    waiting.says("this worker waits for that, or for another run to take its place")
    same(cluster.master("--epochs", "2", "--run", "r1"), 2)
    assert waiting.wait() == 0, waiting.err()
    assert cluster.left_over() == []


def test_a_worker_that_fails_in_every_job_is_set_aside_and_says_why(cluster: Cluster) -> None:
    """With any of its threads; the run takes no harm."""
    cluster.hold(1)
    master, healthy = cluster.master("--epochs", "10", "--run", "r1"), cluster.worker()
    cluster.wait_for_round(1)
    sick = cluster.worker("--workers", "2", patch=FAILS_ALWAYS.replace("RuntimeError", "MemoryError"))
    with cluster.tracker("r1") as tracker:
        until(lambda: sum(known.pid == sick.pid for known in tracker.workers()) == 2, what="both threads have joined")
    cluster.let_go()
    assert sick.wait() == 1
    said = re.search(r"error \[DL4J-JOB\]: worker \S+ gets no more jobs of run r1: .*\n", sick.err())
    assert said and "MemoryError: the disk is on fire" in said[0] and "goes on without it" in said[0], sick.err()
    same(master, 10)
    told = [line for line in master.err().splitlines() if line.startswith("worker set aside: ")]
    assert len(told) == 2
    assert all(f"-{sick.pid}-" in line and "MemoryError: the disk is on fire" in line for line in told)
    assert master.err().count("was set aside") == 2
    assert healthy.wait() == 0
    assert cluster.left_over() == []


def test_the_journal_can_be_read_and_followed(cluster: Cluster) -> None:
    master, worker = cluster.master("--epochs", LONG), cluster.worker()
    cluster.wait_for_round(1)
    follower = cluster.start("logs", "--follow", "--zookeeper", cluster.zookeeper, "--format", "json")
    until(lambda: "worker_joined" in follower.out())
    worker.process.send_signal(signal.SIGTERM)
    until(lambda: "worker_left" in follower.out())
    assert worker.wait() == 143
    lines = cluster.ask("logs").out().splitlines()
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \S+ \d+ master leads: ", lines[0])
    assert any("worker joined" in line and str(worker.pid) in line for line in lines)
    cluster.ask("stop")
    assert follower.wait() == 0
    assert all(json.loads(line)["event"] for line in follower.out().splitlines())
    master.wait()


def test_several_runs_share_one_zookeeper_and_one_grid(cluster: Cluster) -> None:
    masters = {id: cluster.master("--id", id, "--run", id, "--epochs", n) for id, n in (("a", "500"), ("b", "2"))}
    workers = {id: cluster.worker("--id", id) for id in masters}
    cluster.wait_for_round(1, "a")
    same(masters["b"], 2)
    assert "stopped in round" in cluster.ask("stop", "--id", "a").out()
    error(masters["a"], 1, "was stopped")
    assert [worker.wait() for worker in workers.values()] == [0, 0]
    assert cluster.left_over() == []


def test_a_run_whose_name_is_taken_is_refused(cluster: Cluster) -> None:
    cluster.master("--epochs", LONG, "--run", "r1")
    cluster.worker()
    cluster.wait_for_round(1)
    second = cluster.master("--epochs", "2", "--run", "r1", "--id", "other")
    error(second, 4, "a run r1 already", "dl4j resume r1", "--run")
    assert cluster.status()["state"] == "running"
    assert not any("other" in path for path in cluster.left_over())


# --- resume -----------------------------------------------------------------------------------------------------------


def test_a_run_whose_master_was_killed_is_resumed_by_name_with_the_workers_it_has(cluster: Cluster) -> None:
    cluster.hold(5)
    master = cluster.master("--epochs", SHORTER, "--run", "r1")
    worker = cluster.worker()
    cluster.wait_for_round(5)
    error(cluster.start("resume", "r1", "--zookeeper", cluster.zookeeper), 4, "another master holds the id")
    master.process.kill()
    cluster.let_go()
    resumed = cluster.start("resume", "r1", "--zookeeper", cluster.zookeeper, "--format", "json")
    report = same(resumed, int(SHORTER))
    assert report["run"] == "r1"
    assert worker.wait() == 0
    assert cluster.left_over() == []


def test_a_master_that_is_interrupted_says_how_to_go_on_and_so_it_does(cluster: Cluster) -> None:
    cluster.hold(3)
    master, worker = cluster.master("--epochs", SHORTER, "--run", "r1", "--id", "mine"), cluster.worker("--id", "mine")
    cluster.wait_for_round(3)
    master.process.send_signal(signal.SIGTERM)
    assert master.wait() == 143
    cluster.let_go()
    last = master.err().splitlines()[-1]
    command = re.search(r"`dl4j (resume r1 --zookeeper \S+ --id mine)` goes on from there", last)
    assert command, last
    worker.process.send_signal(signal.SIGTERM)
    assert worker.wait() == 143
    same(cluster.start(*shlex.split(command[1]), "--workers", "2", "--format", "json"), int(SHORTER))
    assert cluster.left_over() == []


def test_a_run_is_resumed_from_its_checkpoints_if_the_member_was_started_anew_too(
    forks: Forks, own_services: Callable[..., ServicesState], tmp_path: Path
) -> None:
    state = own_services()
    cluster = Cluster(forks, state.hazelcast, state.zookeeper, state.cluster_name, tmp_path / "commands")
    cluster.folder.mkdir()
    try:
        folder = tmp_path / "checkpoints"
        flags = ("--checkpoint-dir", str(folder), "--checkpoint-every", "2")
        cluster.hold(6)
        master, worker = cluster.master("--epochs", SHORTER, "--run", "r1", *flags), cluster.worker()
        cluster.wait_for_round(6)
        master.process.kill()
        worker.process.kill()
        cluster.let_go()
        Services.restart("hazelcast-1", Path(state.folder))
        same(cluster.start("resume", "master", "--zookeeper", cluster.zookeeper, "--format", "json"), int(SHORTER))
    finally:
        cluster.end()


def test_what_cannot_be_resumed_is_explained(cluster: Cluster) -> None:
    error(cluster.ask("resume", "nothing"), 4, "no run nothing", "registered are: none")
    error(cluster.start("resume", "nothing"), 8, "nothing holds no run", "--zookeeper")
    master = cluster.master("--epochs", LONG, "--run", "r1")
    cluster.worker()
    cluster.wait_for_round(1)
    error(cluster.ask("resume", "r2"), 4, "no run r2", "r1 (id master)")
    master.process.kill()
    master.wait()
    with cluster.tracker("r1") as tracker:
        for key in tracker.store.keys(""):
            tracker.store.delete(key)
    error(cluster.ask("resume", "r1"), 8, "r1 cannot go on", "nothing of it any more", "dl4j master")


def test_what_a_dead_master_left_is_cleared_up_by_stop(cluster: Cluster) -> None:
    master, worker = cluster.master("--epochs", LONG, "--run", "r1"), cluster.worker()
    cluster.wait_for_round(1)
    master.process.kill()
    until(lambda: cluster.status().get("master") is None)
    assert "resume r1" in cluster.ask("status").out()
    assert "r1: stopped in round" in cluster.ask("stop").out()
    assert worker.wait() == 0
    assert cluster.left_over() == []


# --- enough workers ---------------------------------------------------------------------------------------------------


def test_below_min_workers_the_run_waits_and_counts_down_until_they_are_there(cluster: Cluster) -> None:
    master = cluster.master("--epochs", "2", "--min-workers", "2")
    cluster.worker()
    master.says("waiting for workers: 1 of 2, giving up in 2")
    shown = cluster.status()
    assert shown["round"] == 0
    assert re.fullmatch(r"waiting for workers: 1 of 2, giving up in \d+ s", shown["waiting"])
    cluster.worker()
    same(master, 2)


def test_a_run_that_has_too_few_workers_for_too_long_ends_with_the_numbers_and_can_be_resumed(cluster: Cluster) -> None:
    cluster.hold(2)
    workers = [cluster.worker(), cluster.worker()]  # they wait for the run, which waits for them no longer than this
    master = cluster.master("--epochs", SHORTER, "--min-workers", "2", "--worker-wait", "15", "--run", "r1")
    cluster.wait_for_round(2)
    workers[0].process.kill()
    error(master, 7, "r1 has waited 15 s", "1 of the 2", "dl4j worker", "--min-workers", "resume")
    cluster.let_go()
    resumed = cluster.start("resume", "r1", "--zookeeper", cluster.zookeeper, "--min-workers", "1", "--format", "json")
    same(resumed, int(SHORTER))
    assert cluster.left_at_end() == []


def test_a_worker_whose_master_is_gone_for_long_leaves(cluster: Cluster) -> None:
    worker = cluster.worker()
    master = cluster.master("--epochs", LONG, "--worker-wait", "15", "--run", "r1")
    cluster.wait_for_round(2)
    master.process.kill()
    error(worker, 4, "r1 has had no master for 15 s", "dl4j resume r1")


# --- who is gone ------------------------------------------------------------------------------------------------------

BLOCKS = """
import pathlib, time
import dl4jlegacy.scaleout.workers.perform as module
perform, marker = module.MultiLayerNetworkPerformer.perform, pathlib.Path({marker!r})
def block(self, job):
    marker.touch()
    time.sleep(300)
module.MultiLayerNetworkPerformer.perform = block
"""


@pytest.mark.parametrize(("number", "reason"), [(signal.SIGKILL, "closed"), (signal.SIGSTOP, "silent")])
def test_the_job_of_a_worker_that_dies_or_freezes_is_given_out_again_soon(
    cluster: Cluster, tmp_path: Path, number: signal.Signals, reason: str
) -> None:
    """Nothing else helps here: a lease does not end, and in the first round nobody knows what a job takes."""
    marker, conf = tmp_path / "marker", tmp_path / "conf.json"
    conf.write_text(json.dumps({"limits": {"lease": 3600.0}}), encoding="utf-8")
    master = cluster.master(str(conf), "--epochs", "2", "--run", "r1")
    doomed = cluster.worker(patch=BLOCKS.format(marker=str(marker)))
    until(marker.exists)
    other = cluster.worker()
    with cluster.tracker("r1") as tracker:
        until(lambda: others_done(tracker, other.pid) == 3, what="the other three jobs")
        until(lambda: all(worker.beat for worker in tracker.workers()))
        doomed.process.send_signal(number)
        until(lambda: (tracker.head() or master).round > 0, what="the end of the round")
        until(lambda: {"worker_gone", "lease_broken"} <= {entry.event for entry in Journal.read(tracker)})
        (gone,) = [entry for entry in Journal.read(tracker) if entry.event == "worker_gone"]
        (broken,) = [entry for entry in Journal.read(tracker) if entry.event == "lease_broken"]
    assert gone.fields["reason"] == reason
    assert f"-{doomed.pid}-" in gone.fields["process"]
    assert (broken.fields["round"], broken.fields["reason"]) == (0, "gone")
    same(master, 2)
    doomed.process.kill()


def others_done(tracker: object, pid: int) -> int:
    return sum(worker.jobs_done for worker in tracker.workers() if worker.pid == pid)
