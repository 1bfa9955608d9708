"""Jobs that kill their workers' processes, over Hazelcast and Zookeeper: they are found and named, and no others."""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.support.cluster_commands import RUN, SHORTER, Cluster, Command, embedded, error, same, until

pytestmark = pytest.mark.long
DIES = """
import os, signal
import dl4jlegacy.scaleout.workers.perform as poison_module
performed_well = poison_module.MultiLayerNetworkPerformer.perform
def die(job):
    {how}
def perform_poison(self, job):
    if tuple(job.slot[:2]) in {places!r}:
        die(job)
    return performed_well(self, job)
poison_module.MultiLayerNetworkPerformer.perform = perform_poison
"""
WAYS = {
    "exit": "os._exit(3)",
    "segmentation fault": "signal.raise_signal(signal.SIGSEGV)",
    "out of memory": "os.kill(os.getpid(), signal.SIGKILL)",
}


def poisoned(how: str, *places: tuple[int, int]) -> str:
    return DIES.format(how=WAYS[how], places=places)


class Pool:
    """Workers that are started again whenever one has died, as systemd would."""

    def __init__(self, cluster: Cluster, count: int, patch: str = "", flags: tuple[str, ...] = ()) -> None:
        self._cluster, self._patch, self._flags = cluster, patch, flags
        self.workers = [self._start() for _ in range(count)]
        self.died = 0

    def _start(self) -> Command:
        return self._cluster.worker(*self._flags, patch=self._patch)

    def tend(self) -> None:
        """Start those again that were killed."""
        for place, worker in enumerate(self.workers):
            if worker.process.poll() not in (None, 0, 12):
                self.died += 1
                self.workers[place] = self._start()

    def until_over(self, master: Command, seconds: float = 240.0) -> None:
        def is_over() -> bool:
            self.tend()
            return master.process.poll() is not None

        until(is_over, seconds, "the master has ended")


@pytest.mark.parametrize("how", list(WAYS))
def test_a_job_that_kills_its_workers_ends_the_run_and_is_named(cluster: Cluster, how: str) -> None:
    master = cluster.master("--epochs", SHORTER)
    threads = ("--workers", "2") if how == "segmentation fault" else ()
    pool = Pool(cluster, 2, poisoned(how, (30, 2)), threads)
    pool.until_over(master)
    assert "round 30, slot 2 is suspected" in master.err()
    error(master, 12, "DL4J-POISON", "round 30, slot 2", "kills its workers", "none has finished it")
    assert 3 <= pool.died <= 12
    assert "job suspected: round 30, slot 2" in cluster.ask("logs").out()
    (last,) = cluster.status()["failures"][-1:]
    assert (last["round"], last["slot"]) == (30, 2) and 3 <= last["attempt"] <= pool.died
    assert "died while it computed the job (its connection was closed), which is suspected" in last["message"]


def test_two_such_jobs_are_set_aside_and_can_be_performed_alone(cluster: Cluster, tmp_path: Path) -> None:
    """The bits are those of a run without them; where they are mended, the command finds nothing wrong."""
    folder = str(tmp_path / "checkpoints")
    master = cluster.master("--epochs", SHORTER, "--poison-jobs", "set-aside", "--checkpoint-dir", folder)
    pool = Pool(cluster, 2, poisoned("exit", (30, 2), (50, 0)))
    pool.until_over(master)
    assert master.wait() == 0, master.err()
    report = json.loads(master.out())
    assert (report["batches_set_aside"], report["batches_lost"], report["batches_duplicated"]) == (2, 0, 0)
    assert report["batches"] == embedded(int(SHORTER))["batches"] - 2
    program = [sys.executable, "-m", "dl4jlegacy.cli.one_job"]
    alone = cluster.start(folder, "30/2", program=program)
    assert alone.wait() == 0 and "it is done: 16 examples" in alone.out()
    dying = cluster.start(folder, "30/2", program=program, patch=poisoned("segmentation fault", (30, 2)))
    assert dying.wait() == -signal.SIGSEGV and "Segmentation fault" in dying.err()


def test_a_master_that_dies_of_its_own_job_is_counted_by_the_next(cluster: Cluster) -> None:
    """The master works too; so does whoever resumes the run, and dies likewise, until it is certain."""
    patch, died = poisoned("out of memory", (30, 2)), 0
    where = [*cluster.master_flags, "--run", "own-job", "--epochs", SHORTER, "--format", "json", "--workers", "1"]
    led = cluster.start("train", *RUN, *where, patch=patch)
    while led.wait() == -signal.SIGKILL and died < 12:
        died += 1
        led = cluster.start("resume", "own-job", "--zookeeper", cluster.zookeeper, "--workers", "1", patch=patch)
    error(led, 12, "DL4J-POISON", "round 30, slot 2", "nobody listens at its port any more")
    assert 3 <= died < 12


LONGER = "10"
"""Epochs of a run in which there is time to kill many."""


def test_workers_that_are_killed_at_random_accuse_no_job(cluster: Cluster) -> None:
    """Twice a second one of three is killed, whatever it does: the run ends in the same bits."""
    draw, master, killed = random.Random(5), cluster.master("--epochs", LONGER), 0
    pool = Pool(cluster, 3)
    due = time.monotonic()

    def is_over() -> bool:
        nonlocal due, killed
        pool.tend()
        if time.monotonic() > due and killed < 12:
            due, worker = time.monotonic() + draw.uniform(0.2, 0.8), draw.choice(pool.workers)
            killed += "joined" in worker.err()
            if "joined" in worker.err():
                worker.process.kill()
        return master.process.poll() is not None

    until(is_over, 240.0, "the master has ended")
    same(master, int(LONGER))
    assert killed > 3
