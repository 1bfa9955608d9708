"""Twelve faults, provoked for real: every view of the run says the same state within seconds of when it can be known.

``TIMES_TO=FILE`` has the measured seconds appended there, a line of JSON for each fault.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from dl4jlegacy.services import Services, ServicesState
from tests.support.cluster_commands import LONG, RUN, Cluster, Command, freeze, until
from tests.support.faults import FAULTS
from tools.chaos.network import mount_small_disk, unmount

pytestmark = [pytest.mark.cluster]
WITHIN = 10.0
"""Seconds from when a fault can be known until a view says it; the two cores of a test may be busy: see ``SLACK``."""
SLACK = 20.0
_SLOW = """
import threading as slow_threading
import dl4jlegacy.scaleout.perform as slow_module
performed_fast = slow_module.MultiLayerNetworkPerformer.perform
def perform_slowly(self, job):
    slow_threading.Event().wait(2.0)
    return performed_fast(self, job)
slow_module.MultiLayerNetworkPerformer.perform = perform_slowly
"""
_DEADLY = """
import os, signal
import dl4jlegacy.scaleout.perform as deadly_module
performed_well = deadly_module.MultiLayerNetworkPerformer.perform
def perform_and_die(self, job):
    if tuple(job.slot[:2]) == (30, 1):
        os.kill(os.getpid(), signal.SIGKILL)
    return performed_well(self, job)
deadly_module.MultiLayerNetworkPerformer.perform = perform_and_die
"""


class Watched:
    """A run with all its views open: what each of them says now."""

    def __init__(self, cluster: Cluster, folder: Path, *, workers: int = 2, patches: tuple[str, ...] = ()) -> None:
        self.cluster, self.folder = cluster, folder
        flags = ("--run", "r1", "--checkpoint-dir", str(folder), "--metrics-port", "0", "--log-format", "json")
        self.master = cluster.start("master", *RUN, "--epochs", LONG, *cluster.master_flags, *flags, "--format", "json")
        self.workers = [cluster.worker(patch=patch) for patch in (patches or ("",) * workers)]
        cluster.wait_for_round(2)
        place = ("--zookeeper", cluster.zookeeper)
        self.watch = cluster.start("status", "--watch", "--every", "0.5", *place, "--format", "json")
        shown = cluster.start("dashboard", *place, "--port", "0", "--format", "json")
        until(lambda: shown.out().endswith("\n"))
        said = json.loads(shown.out())
        self.url = said["url"]
        self._headers = {"authorization": f"Bearer {Path(said['token_file']).read_text().strip()}"}
        self._metrics = re.findall(r'"url": ?"(http://[^"]+/metrics)"', self.master.err())[0]

        until(lambda: self._watch() == "running", what="a look")

    def views(self) -> dict[str, Callable[[], str]]:
        """The views that are open all the time, by name."""
        return {"watch": self._watch, "dashboard": self._dashboard, "terminal": self._terminal, "metrics": self._metric}

    def _watch(self) -> str:
        lines = [line for line in self.watch.out().splitlines(keepends=True) if line.endswith("\n")]
        found = json.loads(lines[-1]) if lines else {}
        return str(found.get("state"))

    def _dashboard(self) -> str:
        run = httpx.get(f"{self.url}api/v1/run", headers=self._headers, timeout=30).json()["run"]
        return "" if run is None else str(run["state"])

    def _terminal(self) -> str:
        lines = [json.loads(line) for line in self.master.err().splitlines() if line.startswith("{")]
        told = [line["state"] for line in lines if line["event"] in ("progress", "state_changed")]
        return str(told[-1]) if told else ""

    def _metric(self) -> str:
        text = httpx.get(self._metrics, timeout=30).text
        return re.findall(r'^dl4j_run_state\{state="(\w+)"\} 1\.0', text, re.MULTILINE)[0]

    def told(self, state: str, known: float, *names: str) -> dict[str, float]:
        """Wait until the views say a state; return after how many seconds from ``known``, a time of the clock."""
        views, times = self.views(), dict[str, float]()

        def all_say() -> bool:
            for name in set(names) - times.keys():
                if views[name]() == state:
                    times[name] = round(max(0.0, time.monotonic() - known), 1)
            return len(times) == len(names)

        try:
            until(all_say, WITHIN + SLACK)
        except AssertionError as exc:
            now = {name: views[name]() for name in set(names) - times.keys()}
            raise AssertionError(f"{state} was told by {times}, not by {now}") from exc
        shown = self.cluster.ask("status", "--format", "json")
        answer = json.loads(shown.out() or "{}")
        times["status"] = round(time.monotonic() - known, 1)
        assert (answer.get("state"), shown.process.returncode) == (state, 13 if state == "stalled" else 0) or (
            state == "stalled" and shown.process.returncode == 4 and "is stalled: " in shown.out() + shown.err()
        ), (answer, shown.err())
        return times

    def journal(self) -> list[tuple[str, str]]:
        """The changes of its state as ``dl4j logs`` has them."""
        found = json.loads(self.cluster.ask("logs", "--format", "json").out())["entries"]
        return [(each["event"], str(each.get("state", ""))) for each in found]


ALL = ("watch", "dashboard", "terminal", "metrics")
OUTSIDE = ("watch", "dashboard")
"""Those that are left without the master."""


def keep(fault: str, times: dict[str, float]) -> None:
    if path := os.environ.get("TIMES_TO"):
        with Path(path).open("a") as file:
            file.write(json.dumps({"fault": fault, "state": FAULTS[fault].state, **times}) + "\n")


@pytest.mark.long
def test_a_killed_worker_dead_workers_and_a_master_that_is_gone(cluster: Cluster, tmp_path: Path) -> None:
    run = Watched(cluster, tmp_path / "run")
    run.told("running", time.monotonic(), *ALL)
    run.workers[0].process.send_signal(signal.SIGKILL)
    keep("a worker is killed", run.told("degraded", time.monotonic(), *ALL))
    run.workers[1].process.send_signal(signal.SIGKILL)
    keep("all workers are dead", run.told("waiting", time.monotonic(), *ALL))
    told = run.journal()
    assert ("state_changed", "degraded") in told and ("state_changed", "waiting") in told
    run.master.process.send_signal(signal.SIGKILL)
    keep("the master is gone for good", run.told("stalled", time.monotonic() + 3.0, *OUTSIDE))


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    mount_small_disk(folder, "4m")
    try:
        yield folder
    finally:
        unmount(folder)


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a disk")
def test_a_full_disk_and_its_end(cluster: Cluster, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        run = Watched(cluster, disk / "run")
        filler = disk / "filler"
        with contextlib.suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(bytes(1 << 12))
                file.flush()
        keep("the disk is full", run.told("degraded", time.monotonic(), *ALL))
        assert ("checkpoint_failed", "") in run.journal()
        filler.unlink()
        keep("the disk is free again", run.told("running", time.monotonic(), *ALL))
        assert ("checkpoints_back", "") in run.journal()
        assert cluster.ask("stop").process.returncode == 0
        run.master.wait()
        for command in (run.watch, *run.workers):
            command.wait()
        cluster.end()


@pytest.mark.release
def test_frozen_and_slow_workers_and_a_wrong_secret(cluster: Cluster, tmp_path: Path) -> None:
    run = Watched(cluster, tmp_path / "run", patches=("", "", _SLOW))
    until(lambda: ("backup_issued", "") in run.journal(), what="a slow worker")
    keep("a worker is slow", run.told("running", time.monotonic(), *ALL))
    freeze(run.workers[0].pid)
    keep("a worker is frozen", run.told("degraded", time.monotonic() + 2.0, *ALL))
    os.kill(run.workers[0].pid, signal.SIGCONT)
    run.told("running", time.monotonic(), *ALL)
    other = {"DL4J_SECRET": "another one"}
    assert cluster.worker(env=other).wait() == 6
    wrong = cluster.start("status", "--zookeeper", cluster.zookeeper, env=other)
    assert wrong.wait() == 6
    keep("a secret is wrong", run.told("running", time.monotonic(), *ALL))


@pytest.mark.release
def test_a_killed_and_a_frozen_master_with_a_standby(cluster: Cluster, tmp_path: Path) -> None:
    run = Watched(cluster, tmp_path / "run")
    flags = ("--standby", "--zookeeper", cluster.zookeeper)

    def stand_by() -> Command:
        standby = cluster.start("master", *flags)
        standby.says("standing by")
        return standby

    first = stand_by()
    run.master.process.send_signal(signal.SIGKILL)
    passed(run, "the master is killed", first)
    second = stand_by()
    freeze(first.pid)
    passed(run, "the master is frozen", second)
    psutil.Process(first.pid).kill()


def passed(run: Watched, fault: str, by: Command) -> None:
    """Wait until the run was seen to wait, and goes on under a standby."""
    began, seen = time.monotonic(), len(run.watch.out().splitlines())
    looks = lambda: [json.loads(line) for line in run.watch.out().splitlines()[seen:-1]]  # noqa: E731
    until(lambda: any((look["master"] or {}).get("pid") == by.pid for look in looks()), 60)
    told = [look["state"] for look in looks()]
    assert set(told) <= {"running", "waiting", "degraded"} and "stalled" not in told, told
    keep(fault, {"watch, until it goes on": round(time.monotonic() - began, 1)})
    run.told("running", time.monotonic(), *OUTSIDE)


@pytest.mark.release
def test_a_server_that_is_away(on_own: Cluster, servers: ServicesState, tmp_path: Path) -> None:
    run = Watched(on_own, tmp_path / "run")
    member = servers.pids["hazelcast-1"]
    freeze(member)
    try:
        keep("a server is away", run.told("stalled", time.monotonic() + 3.0, *ALL))
    finally:
        os.kill(member, signal.SIGCONT)
    run.told("running", time.monotonic(), *ALL)
    assert ("state_changed", "stalled") in run.journal()


@pytest.mark.release
def test_a_grid_that_is_full(own_services: Callable[..., ServicesState], tmp_path: Path) -> None:
    servers = own_services(heap="64m")
    cluster = Cluster(servers.hazelcast, servers.zookeeper, servers.cluster_name, tmp_path)
    try:
        run = Watched(cluster, tmp_path / "run")
        with cluster.grid() as names, contextlib.suppress(Exception):
            names.patience.seconds = 5.0
            for index in range(200):
                names.put(f"filler/{index}", os.urandom(1 << 20))
        keep("the grid is full", run.told("stalled", time.monotonic() + 3.0, *ALL))
    finally:
        Services.restart("hazelcast-1", Path(servers.folder))
        cluster.end()


@pytest.mark.release
def test_a_job_that_kills_its_workers(cluster: Cluster, tmp_path: Path) -> None:
    cluster.hold(25)
    run = Watched(cluster, tmp_path / "run", patches=(_DEADLY,) * 3)
    replaced = list(run.workers)
    cluster.let_go()

    def is_over() -> bool:
        for index, worker in enumerate(replaced):
            if worker.process.poll() not in (None, 0, 12):
                replaced[index] = cluster.worker(patch=_DEADLY)
        return run.master.process.poll() is not None

    until(is_over, 300)
    assert run.master.process.returncode == 12
    keep("a job kills its workers", run.told("ended", time.monotonic(), *OUTSIDE))
