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
from typing import Any

import httpx
import pytest

from dl4jlegacy.services import Services, ServicesState
from tests.support.cluster_commands import RUN, Cluster, Command, freeze, until
from tests.support.faults import FAULTS
from tests.support.forked_commands import Forks
from tools.chaos.network import mount_small_disk, unmount

pytestmark = [pytest.mark.cluster]
WITHIN = 10.0
"""Seconds from when a fault can be known until a view says it; the two cores of a test may be busy: see ``SLACK``."""
SLACK = 50.0
EPOCHS = "20"
"""More rounds than the faults take, as long as each job is held up a little; some hundreds, once it is not."""
_PACED = """
import pathlib as paced_pathlib, threading as paced_threading
import dl4jlegacy.scaleout.workers.perform as paced_module
unpaced, pace = paced_module.MultiLayerNetworkPerformer.perform, paced_pathlib.Path({pace!r})
def perform_in_pace(self, job):
    paced_threading.Event().wait(0.3 if pace.exists() else 0.0)
    return unpaced(self, job)
paced_module.MultiLayerNetworkPerformer.perform = perform_in_pace
"""
_HELD = """
import pathlib as held_pathlib, threading as held_threading
import dl4jlegacy.cluster.standby as held_module
unheld, gate = held_module.where_it_continues, held_pathlib.Path({gate!r})
def take_over_when_let(*given):
    while gate.exists():
        held_threading.Event().wait(0.05)
    return unheld(*given)
held_module.where_it_continues = take_over_when_let
"""
"""A standby that is elected, and does not lead yet."""
_SLOW = """
import threading as slow_threading
import dl4jlegacy.scaleout.workers.perform as slow_module
performed_fast = slow_module.MultiLayerNetworkPerformer.perform
def perform_slowly(self, job):
    slow_threading.Event().wait(2.0)
    return performed_fast(self, job)
slow_module.MultiLayerNetworkPerformer.perform = perform_slowly
"""
_DEADLY = """
import os, signal
import dl4jlegacy.scaleout.workers.perform as deadly_module
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
        self.cluster, self.folder, self.pace = cluster, folder, cluster.folder / "pace"
        self.pace.touch()
        flags = ("--run", "r1", "--checkpoint-dir", str(folder), *LEADS)
        self.master = cluster.start("master", *RUN, "--epochs", EPOCHS, *cluster.master_flags, *flags)
        self.workers = [self.worker(patch) for patch in (patches or ("",) * workers)]
        cluster.wait_for_round(2)
        place = ("--zookeeper", cluster.zookeeper)
        self.watch = cluster.start("status", "--watch", "--every", "0.5", *place, "--format", "json")
        shown = cluster.start("dashboard", *place, "--port", "0", "--format", "json")
        until(lambda: shown.out().endswith("\n"))
        said = json.loads(shown.out())
        self.url = said["url"]
        self._headers = {"authorization": f"Bearer {Path(said['token_file']).read_text().strip()}"}
        self.led_by(self.master)
        until(lambda: self._watch() == "running", what="a look")

    def worker(self, patch: str = "") -> Command:
        """Start a worker, each of whose jobs takes a little longer until the run is to come to its end."""
        return self.cluster.worker(patch=_PACED.format(pace=str(self.pace)) + patch)

    def led_by(self, master: Command) -> None:
        """Look at the terminal and at the metrics of this master from now on."""
        self.master = master
        found = lambda: re.findall(r'"url": ?"(http://[^"]+/metrics)"', master.err())  # noqa: E731
        until(found, what="the address of its metrics")
        self._metrics = found()[0]

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
        found = re.findall(r'^dl4j_run_state\{state="(\w+)"\} 1\.0', text, re.MULTILINE)
        return found[0] if found else ""  # it has not begun to lead

    def told(self, state: str, known: float, *names: str) -> dict[str, float]:
        """Wait until the views say a state; return after how many seconds from ``known``, a time of the clock.

        ``dl4j status`` is asked as soon as the first of them says it, since then it can be known; and again, if it was
        too early for the grid.
        """
        views, times, asked = self.views(), dict[str, float](), list[Command]()
        since = lambda: round(max(0.0, time.monotonic() - known), 1)  # noqa: E731

        def all_say() -> bool:
            for name in set(names) - times.keys():
                if views[name]() == state:
                    times[name] = since()
            if asked and "status" not in times and asked[-1].process.poll() is not None and says(asked[-1], state):
                times["status"] = since()
            if times and "status" not in times and (not asked or asked[-1].process.poll() is not None):
                place = ("--zookeeper", self.cluster.zookeeper)
                asked.append(self.cluster.start("status", *place, "--format", "json"))
            return len(times) == len(names) + 1

        try:
            until(all_say, WITHIN + SLACK)
        except AssertionError as exc:
            now = {name: views[name]() for name in set(names) - times.keys()}
            last = asked[-1].out() + asked[-1].err() if asked else ""
            raise AssertionError(f"{state} was told by {times}, not by {now}; status said {last}") from exc
        return times

    def ends(self, *states: str, **counted: int) -> dict[str, Any]:
        """Let the run come to its end, in whose report and history these states are; return the report's."""
        self.pace.unlink()
        assert self.master.wait(400) == 0, self.master.err()
        report = json.loads(self.master.out())["cluster"]
        assert {"running", *states} <= report["states"].keys(), report
        assert {name: report[name] for name in counted} == counted
        history = self.history()
        assert set(states) <= {str(entry.get("state")) for entry in history}, history
        assert (history[-1]["event"], history[-1]["status"]) == ("run_ended", "done")
        assert self.watch.wait() == 0 and self._watch() == "ended"
        until(lambda: self._dashboard() == "ended", WITHIN + SLACK)
        return {state: report["states"][state] for state in states}

    def history(self) -> list[dict[str, Any]]:
        """How the state of the run has changed, as the files of the run have it."""
        shown = self.cluster.start("logs", str(self.folder), "--history", "--format", "json")
        assert shown.wait() == 0, shown.err()
        entries: list[dict[str, Any]] = json.loads(shown.out())["states"]
        return entries

    def listed(self) -> str:
        """The state of the run as ``dl4j runs`` lists it."""
        [found] = json.loads(self.cluster.ask("runs", "--format", "json").out())["runs"]
        return str(found["state"])

    def journal(self) -> list[tuple[str, str]]:
        """The changes of its state as ``dl4j logs`` has them."""
        found = json.loads(self.cluster.ask("logs", "--format", "json").out())["entries"]
        return [(each["event"], str(each.get("state", ""))) for each in found]


def says(status: Command, state: str) -> bool:
    """Whether ``dl4j status``, which has ended, says this state, with the exit code that belongs to it."""
    code, found = status.process.returncode, json.loads(status.out() or "{}").get("state")
    if state == "stalled" and code == 4:  # the servers do not answer
        return "is stalled: " in status.out() + status.err()
    return (found, code) == (state, 13 if state == "stalled" else 0)


LEADS = ("--metrics-port", "0", "--log-format", "json", "--format", "json")
ALL = ("watch", "dashboard", "terminal", "metrics")
OUTSIDE = ("watch", "dashboard")
"""Those that are left without the master."""


def keep(fault: str, times: dict[str, float], **more: Any) -> None:
    if path := os.environ.get("TIMES_TO"):
        with Path(path).open("a") as file:
            file.write(json.dumps({"fault": fault, "state": FAULTS[fault].state, **times, **more}) + "\n")


@pytest.mark.long
def test_a_killed_worker_and_dead_workers(cluster: Cluster, tmp_path: Path) -> None:
    run = Watched(cluster, tmp_path / "run")
    run.told("running", time.monotonic(), *ALL)
    run.workers[0].process.send_signal(signal.SIGKILL)
    keep("a worker is killed", run.told("degraded", time.monotonic(), *ALL))
    run.workers[1].process.send_signal(signal.SIGKILL)
    keep("all workers are dead", run.told("waiting", time.monotonic(), *ALL))
    told = run.journal()
    assert ("state_changed", "degraded") in told and ("state_changed", "waiting") in told
    run.worker()
    keep("nothing", {}, report=run.ends("degraded", "waiting"))


@pytest.mark.release
def test_a_master_that_is_gone_for_good(cluster: Cluster, tmp_path: Path) -> None:
    run = Watched(cluster, tmp_path / "run")
    run.master.process.send_signal(signal.SIGKILL)
    keep("the master is gone for good", run.told("stalled", time.monotonic() + 3.0, *OUTSIDE))
    assert run.listed() == "stalled"
    run.led_by(cluster.start("resume", "r1", "--zookeeper", cluster.zookeeper, *LEADS))
    run.told("running", time.monotonic(), *ALL)
    run.ends(take_overs=1)
    assert "master_took_over" in [entry["event"] for entry in run.history()]


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
        keep("the disk is full", {}, report=run.ends("degraded"))
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
    assert cluster.worker(env=other).wait() == 6  # and changes nothing of the run
    wrong = cluster.start("status", "--zookeeper", cluster.zookeeper, env=other)
    assert wrong.wait() == 6
    keep("a secret is wrong", run.told("running", time.monotonic(), *ALL))
    keep("a worker is frozen", {}, report=run.ends("degraded"))


@pytest.mark.release
def test_a_killed_and_a_frozen_master_with_a_standby(cluster: Cluster, tmp_path: Path) -> None:
    run, gate = Watched(cluster, tmp_path / "run"), tmp_path / "gate"

    def taken_over(fault: str, lose: Callable[[Command], None]) -> None:
        """Lose the master behind a standby that leads when it is let, so that every view has its time."""
        gate.touch()
        patch = _HELD.format(gate=str(gate))
        standby = cluster.start("master", "--standby", "--zookeeper", cluster.zookeeper, *LEADS, patch=patch)
        standby.says("standing_by")
        lose(run.master)
        keep(fault, run.told("waiting", time.monotonic() + 3.0, *OUTSIDE))
        assert run.listed() == "waiting"
        gate.unlink()
        run.led_by(standby)
        run.told("running", time.monotonic(), *ALL)

    taken_over("the master is killed", lambda master: master.process.send_signal(signal.SIGKILL))
    first = run.master
    taken_over("the master is frozen", lambda master: freeze(master.pid))
    os.kill(first.pid, signal.SIGCONT)
    assert first.wait() == 4, first.err()
    run.told("running", time.monotonic(), *ALL)
    run.ends(take_overs=2)
    assert [entry["event"] for entry in run.history()].count("master_took_over") == 2


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
    keep("a server is away", {}, report=run.ends("stalled"))


@pytest.mark.release
def test_a_grid_that_is_full(forks: Forks, own_services: Callable[..., ServicesState], tmp_path: Path) -> None:
    servers = own_services(heap="64m")
    cluster = Cluster(forks, servers.hazelcast, servers.zookeeper, servers.cluster_name, tmp_path)
    try:
        run = Watched(cluster, tmp_path / "run")
        with cluster.grid() as names, contextlib.suppress(Exception):
            names.patience.seconds = 5.0
            for index in range(200):
                names.put(f"filler/{index}", os.urandom(1 << 20))
        keep("the grid is full", run.told("stalled", time.monotonic() + 3.0, *ALL))
        Services.restart("hazelcast-1", Path(servers.folder))
        run.told("running", time.monotonic(), *ALL)
        keep("the grid is full", {}, report=run.ends("stalled"))
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
                replaced[index] = run.worker(_DEADLY)
        return run.master.process.poll() is not None

    until(is_over, 300)
    assert run.master.process.returncode == 12
    keep("a job kills its workers", run.told("ended", time.monotonic(), *OUTSIDE))
    assert run.listed() == "ended"
    report = json.loads(run.master.out())["error"]
    assert (report["code"], report["exit"]) == ("DL4J-POISON", 12) and "round 30, slot 1" in report["message"]
    assert report["message"] in run.master.err()
    history = run.history()
    assert (history[-1]["event"], history[-1]["status"]) == ("run_ended", "failed"), history
