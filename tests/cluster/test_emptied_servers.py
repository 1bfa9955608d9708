"""Both servers are started anew under a run, with and without what they had: nobody takes that for the run's end."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from dl4jlegacy.services import Services, ServicesState
from tests.support import REPOSITORY
from tests.support.cluster_commands import COMMAND, RUN, SHORTER, Cluster, Command, error, freeze, same, until
from tests.support.cluster_fixtures import HEAP

pytestmark = pytest.mark.cluster

STRATEGIES = ["iterative-reduce", "gradient-sharing", "hogwild"]


def start_servers_anew(servers: ServicesState, *, keeps: bool) -> None:
    """Start both servers anew: with ``keeps`` after a power cut, so that Zookeeper has its disk; else by hand."""
    folder = Path(servers.folder)
    if not keeps:
        Services.down(folder)
        Services.up(folder=folder, heap=HEAP)
        return
    names = ("hazelcast-1", "zookeeper")
    running = Services.status(folder)
    assert running is not None
    for name in names:
        os.kill(running.pids[name], signal.SIGKILL)
    for name in names:
        Services.restart(name, folder)


def stand_by(cluster: Cluster) -> Command:
    standby = cluster.start("master", "--standby", "--zookeeper", cluster.zookeeper, "--format", "json")
    standby.says("standing by: takes over run")
    return standby


def looks_of(watch: Command) -> list[dict]:
    """Return what ``status --watch --format json`` has printed in whole lines."""
    return [json.loads(line) for line in watch.out().splitlines(keepends=True) if line.endswith("\n")]


@functools.cache
def in_one_process(router: str) -> dict:
    """Return what a run comes to that nothing happens to."""
    command = [*COMMAND, "train", *RUN, "--router", router, "--epochs", SHORTER, "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, cwd=REPOSITORY)
    return json.loads(done.stdout)


def ends(master: Command, others: list[Command], router: str) -> None:
    """Assert that a run ends as if nothing had happened, for everybody."""
    assert master.wait(300) == 0, master.err()
    report, expected = json.loads(master.out()), in_one_process(router)
    assert (report["batches_lost"], report["batches_duplicated"]) == (0, 0)
    assert report["examples"] == expected["examples"]
    if router != "hogwild":
        assert report["params_sha256"] == expected["params_sha256"]
    for process in others:
        assert process.wait() == 0, process.err()


@pytest.mark.long
@pytest.mark.parametrize("has_standby", [True, False])
def test_a_run_goes_on_when_both_servers_are_started_anew_with_nothing(
    servers: ServicesState, on_own: Cluster, has_standby: bool
) -> None:
    on_own.hold(3)
    master = on_own.master("--epochs", SHORTER, "--run", "r")
    others = [on_own.worker(), on_own.worker(), *([stand_by(on_own)] if has_standby else [])]
    on_own.wait_for_round(3)
    watch = on_own.start("status", "--watch", "--every", "0.2", "--zookeeper", on_own.zookeeper, "--format", "json")
    until(lambda: "\n" in watch.out(), what="a look")
    start_servers_anew(servers, keeps=False)
    on_own.hold_in(7)
    until(lambda: (looks_of(watch)[-1]["round"] or 0) > 6, what="a look at the run as it goes on")
    on_own.let_go()
    ends(master, [*others, watch], "iterative-reduce")
    looks = looks_of(watch)
    assert [look["over"] for look in looks] == [False] * (len(looks) - 1) + [True]
    assert any(look["away"] for look in looks) and looks[-1]["round"] > 6
    assert on_own.left_over() == []


@pytest.mark.long
@pytest.mark.release
@pytest.mark.parametrize("has_standby", [True, False])
@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("router", STRATEGIES)
def test_a_run_goes_on_when_both_servers_are_started_anew_three_times(
    servers: ServicesState, on_own: Cluster, tmp_path: Path, router: str, keeps: bool, has_standby: bool
) -> None:
    on_own.hold(3)
    flags = ("--router", router, "--checkpoint-dir", str(tmp_path / "run"), "--checkpoint-every", "1")
    master = on_own.master("--epochs", SHORTER, "--run", "r", *flags)
    others = [on_own.worker(), on_own.worker(), *([stand_by(on_own)] if has_standby else [])]
    for round_ in (3, 6, 9):
        on_own.hold_in(round_)
        start_servers_anew(servers, keeps=keeps)
    on_own.let_go()
    ends(master, others, router)
    assert on_own.left_over() == []


@pytest.mark.long
def test_a_standby_goes_on_from_the_newest_checkpoint_when_master_and_servers_are_gone(
    servers: ServicesState, on_own: Cluster, tmp_path: Path
) -> None:
    on_own.hold(3)
    folder = tmp_path / "run"
    flags = ("--checkpoint-dir", str(folder), "--checkpoint-every", "1")
    master = on_own.master("--epochs", SHORTER, "--run", "r", *flags)
    worker, standby = on_own.worker(), stand_by(on_own)
    on_own.wait_for_round(3)
    until(lambda: list(folder.glob("checkpoint-*.json")), what="a checkpoint")
    master.process.kill()
    master.wait()
    start_servers_anew(servers, keeps=False)
    standby.says("from a checkpoint, since the grid does not have it")
    on_own.let_go()
    same(standby, int(SHORTER))
    assert worker.wait() == 0, worker.err()


@pytest.mark.long
def test_a_master_that_was_cut_off_hands_what_it_has_to_the_standby_that_went_on_from_a_checkpoint(
    servers: ServicesState, on_own: Cluster, tmp_path: Path
) -> None:
    on_own.hold(9)
    flags = ("--checkpoint-dir", str(tmp_path / "run"), "--checkpoint-every", "4")
    master = on_own.master("--epochs", SHORTER, "--run", "r", *flags)
    worker, standby = on_own.worker(), stand_by(on_own)
    on_own.wait_for_round(9)
    freeze(master.pid)
    worker.process.kill()  # it holds a job of the round that it was held in
    start_servers_anew(servers, keeps=False)
    on_own.hold(6)
    standby.says("round 8, from a checkpoint, since the grid does not have it")
    os.kill(master.pid, signal.SIGCONT)
    error(master, 4, "this master has handed it version 9", "run r has another master")
    on_own.wait_for_round(9)
    on_own.let_go()
    again = on_own.worker()
    same(standby, int(SHORTER))
    assert again.wait() == 0, again.err()


@pytest.mark.long
def test_a_standby_without_model_and_checkpoint_says_why_it_gives_up_and_never_that_the_run_is_done(
    servers: ServicesState, on_own: Cluster
) -> None:
    on_own.hold(3)
    master = on_own.master("--epochs", SHORTER, "--run", "r", "--worker-wait", "20")
    worker, standby, another = on_own.worker(), stand_by(on_own), stand_by(on_own)
    on_own.wait_for_round(3)
    master.process.kill()
    master.wait()
    start_servers_anew(servers, keeps=False)
    another.says("nobody has ended it")
    another.process.terminate()
    why = "run r cannot go on here", "have had no model of it for", "has none either, and no checkpoint"
    for process, words in ((another, "which was asked to stop"), (standby, "nobody has put it back")):
        said = error(process, 4, *why, words)
        assert "nobody has ended it" in said
        assert "done" not in process.out()
    error(worker, 4, "run r has")
