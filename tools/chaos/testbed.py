"""The test bed of a chaos run: its servers, and the masters and workers of the current run, which can be restarted.

Everything is started as a user would start it: ``python -m dl4jlegacy master``, ``worker``. Used from one thread.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from dl4jlegacy.cluster.address import find_incarnation
from dl4jlegacy.errors import DeadlineError, Dl4jError, TrackerError
from dl4jlegacy.scaleout.hazelcast.store import HazelcastStateTracker, HazelcastStore
from dl4jlegacy.scaleout.journal import JournalFile
from dl4jlegacy.scaleout.zookeeper import ZooKeeperSession, registered_workers
from dl4jlegacy.scaleout.zookeeper.membership import group_path, read_member
from dl4jlegacy.services import Services
from tools.chaos.network import HOST, LossyLink, child_environment, mount_small_disk, unmount
from tools.chaos.watchdog import DISK, SERVICES, Watchdog, deferred_signals

__all__ = ["Process", "TestBed", "TestBedOptions", "wait_until"]

GROUP = "master"
_MASTERS = 3  # one leads, two stand by
_STOP_SECONDS = 10.0
_TRACKER_SECONDS = 5.0
_EMBEDDED_SECONDS = 600.0
_LOG_LINES = 6
_DISK_SIZE = "8m"
_BATCHES_PER_EPOCH = 90  # of the digits


def wait_until(condition: Callable[[], bool], seconds: float, what: str, pause: float = 0.05) -> None:
    """Wait until ``condition()``; raises ``DeadlineError`` saying ``what`` did not happen in ``seconds``."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= end:
            raise DeadlineError(f"not within {seconds:g} s: {what}")
        time.sleep(pause)


@dataclass(frozen=True, slots=True)
class TestBedOptions:
    """What is run: how many workers, about how many rounds, which seed; and what this machine allows to break."""

    workers: int
    rounds: int
    seed: int
    lossy_link: bool
    small_disk: bool

    @property
    def flags(self) -> list[str]:
        """The flags that ``dl4j train`` and ``dl4j master`` have in common."""
        epochs = str(max(1, self.rounds * self.workers // _BATCHES_PER_EPOCH))
        return [
            *("--model", "mlp", "--dataset", "digits", "--epochs", epochs, "--seed", str(self.seed)),
            *("--workers", str(self.workers), "--jobs-per-round", str(self.workers), "--format", "json"),
        ]


@dataclass(slots=True)
class Process:
    """A master or worker by name (``worker-2``), which is started again after it was killed."""

    name: str
    folder: Path
    arguments: list[str] = field(default_factory=list)
    link: LossyLink | None = None
    popen: subprocess.Popen[bytes] | None = None
    starts: int = 0
    started: float = 0.0  # by our monotonic clock

    @property
    def pid(self) -> int:
        """The process id, 0 if it was never started."""
        return self.popen.pid if self.popen is not None else 0

    @property
    def exit_status(self) -> int | None:
        """The exit status; None while it runs, or if it was never started."""
        return self.popen.poll() if self.popen is not None else None

    @property
    def log(self) -> Path:
        """The file with the standard error of the newest start."""
        return self.folder / f"{self.name}.{self.starts}.log"

    @property
    def out(self) -> Path:
        """The file with the standard output of the newest start."""
        return self.folder / f"{self.name}.{self.starts}.out"

    def last_lines(self) -> list[str]:
        """Return the last lines of the log."""
        try:
            return self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:]
        except OSError:
            return []

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens if the process has ended."""
        if self.popen is not None and self.popen.poll() is None:
            self.popen.send_signal(number)

    def describe(self) -> str:
        """Return the state of the process in one line, and the last lines of its log."""
        if self.popen is None:
            return f"{self.name}: not started"
        state = f"ended with {self.exit_status}" if self.exit_status is not None else _state(self.pid)
        return "\n      ".join([f"{self.name}: pid {self.pid}, {state}", *self.last_lines()])


def _state(pid: int) -> str:
    try:
        letter = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return "runs"
    return {"T": "frozen", "Z": "dead"}.get(letter, "runs")


class TestBed:
    """Servers, and the processes of one run after the other. A context manager: it stops everything at its end.

    Args:
        folder: where everything writes.
        options: what is run.
        temporary: True if the folder may be removed when this process is killed.
    """

    def __init__(self, folder: Path, options: TestBedOptions, *, temporary: bool = False) -> None:
        self.folder, self.options, self._temporary = folder, options, temporary
        self.disk = folder / DISK
        self.run_name = ""
        self.processes: dict[str, Process] = {}
        self._secret = secrets.token_hex(16)
        self._closing = contextlib.ExitStack()
        self._session: ZooKeeperSession | None = None
        self._link: LossyLink | None = None

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self._closing.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._closing.close()

    def _build(self) -> None:
        options, host = self.options, "127.0.0.1"
        if options.small_disk:
            mount_small_disk(self.disk, _DISK_SIZE)
            self._closing.callback(unmount, self.disk)
        self.disk.mkdir(parents=True, exist_ok=True)
        if options.lossy_link:
            host, self._link = HOST, LossyLink(0, options.seed)
            self._closing.callback(self._link.close)
        self._watchdog = Watchdog(self.folder, temporary=self._temporary)
        self._closing.callback(self._watchdog.close)
        self._closing.callback(Services.down, self.services_folder)
        self.services = Services.up(2, folder=self.services_folder, heap="512m", host=host)
        self._session = ZooKeeperSession(self.services.zookeeper, secret=self._secret.encode(), deadline_seconds=3.0)
        self._closing.callback(self._session.close)
        self._closing.callback(self.clear)

    @property
    def services_folder(self) -> Path:
        """The folder with the state of the servers."""
        return self.folder / SERVICES

    @property
    def session(self) -> ZooKeeperSession:
        """The chaos run's own session with Zookeeper."""
        if self._session is None:
            raise AssertionError("the test bed is not built")
        return self._session

    @property
    def link(self) -> LossyLink:
        """The link over which the last worker reaches the others."""
        if self._link is None:
            raise AssertionError("this test bed has no lossy link")
        return self._link

    # -- a run --------------------------------------------------------------------------------------------------------

    def start_run(self, run: str) -> None:
        """Start the processes of a new run, all at once; those that are ready before the master wait for it."""
        self.run_name, options = run, self.options
        (self.folder / run).mkdir(parents=True)
        zookeeper = ["--zookeeper", self.services.zookeeper]
        bind = ["--bind", HOST if options.lossy_link else "127.0.0.1"]
        leader = [
            *("master", *options.flags, *zookeeper, *bind, "--tracker", f"hazelcast://{self.services.hazelcast}"),
            *("--cluster-name", self.services.cluster_name, "--run", run),
            *("--checkpoint-dir", str(self.checkpoints), "--checkpoint-every", "20"),
        ]
        self.processes = {}
        for number in range(_MASTERS):
            self._add(f"master-{number}", ["master", "--standby", *zookeeper, *bind, "--format", "json"])
        for number in range(options.workers):
            self._add(f"worker-{number}", ["worker", *zookeeper, "--log-format", "json"])
        if options.lossy_link:
            self.processes[f"worker-{options.workers - 1}"].link = self.link
        self._start(self.processes["master-0"], leader)
        for process in list(self.processes.values())[1:]:
            self.start(process)

    def _add(self, name: str, arguments: list[str]) -> None:
        self.processes[name] = Process(name, self.folder / self.run_name, arguments=arguments)

    def start(self, process: Process) -> None:
        """Start a process, again if it has ended: a worker, or a standby master."""
        self._start(process, process.arguments)

    def _start(self, process: Process, arguments: list[str]) -> None:
        command = [sys.executable, "-m", "dl4jlegacy", *arguments]
        if process.exit_status is not None:
            self._watchdog.send(f"-{process.pid}")
        if process.link is not None:
            command = process.link.command(command)
        process.starts, process.started = process.starts + 1, time.monotonic()
        with process.log.open("ab") as log, process.out.open("ab") as out, deferred_signals():
            process.popen = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=log, env=self._environment(), cwd=self.folder
            )
            self._watchdog.send(f"+{process.pid}")

    def _environment(self) -> dict[str, str]:
        variables = child_environment(DL4J_SECRET=self._secret)
        return {name: text for name, text in variables.items() if not name.startswith("DL4J_") or name == "DL4J_SECRET"}

    @property
    def checkpoints(self) -> Path:
        """The run's checkpoint folder."""
        return self.disk / self.run_name

    @property
    def workers(self) -> list[Process]:
        """All workers."""
        return [process for name, process in self.processes.items() if name.startswith("worker-")]

    @property
    def masters(self) -> list[Process]:
        """All masters, whichever leads."""
        return [process for name, process in self.processes.items() if name.startswith("master-")]

    def map_name(self) -> str:
        """Return the name of the map in which the grid keeps the run."""
        tracker = self.tracker()
        try:
            return tracker.store.map_name if isinstance(tracker.store, HazelcastStore) else ""
        finally:
            tracker.shutdown()

    def tracker(self) -> HazelcastStateTracker:
        """Return a client of the tracker of the run, or of an empty one if it has not begun."""
        given: dict[str, Any] = {
            "cluster_name": self.services.cluster_name,
            "run": self.run_name,
            "secret": self._secret.encode(),
            "deadline_seconds": _TRACKER_SECONDS,
        }
        with contextlib.closing(HazelcastStore(self.services.hazelcast, **given)) as store:
            incarnation = find_incarnation(store, self.run_name)
        return HazelcastStateTracker(self.services.hazelcast, incarnation=incarnation, **given)

    def candidates(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the masters in the election, the leader first: the path of each node, and its contents.

        Raises:
            TrackerError: Zookeeper does not answer.
        """
        folder = group_path(GROUP, "election")
        names = sorted(self.session.children(folder) or [], key=lambda name: name[-10:])
        entries = [(f"{folder}/{name}", read_member(self.session, f"{folder}/{name}")) for name in names]
        return [(path, entry.info) for path, entry in entries if entry is not None]

    def leader(self) -> Process:
        """Return the master that leads.

        Raises:
            TrackerError: none of this run leads at the moment, or Zookeeper does not answer.
        """
        found = self.candidates()
        pid = found[0][1].get("pid") if found else None
        for process in self.masters:
            if process.pid and process.pid == pid:
                return process
        raise TrackerError(f"no master of run {self.run_name} leads at the moment (first in the election: {found[:1]})")

    def was_deposed(self, process: Process) -> bool:
        """Return True if a master has ended because another one leads."""
        lost = process in self.masters and process.exit_status == TrackerError.exit_status
        return lost and any("has another master" in line for line in process.last_lines())

    def registered(self) -> dict[str, str]:
        """Return the paths of the registered workers' nodes, by name; raises ``TrackerError``."""
        folder = group_path(GROUP, "workers")
        return {name: f"{folder}/{name}" for name in registered_workers(self.session, GROUP)}

    def registration(self, process: Process) -> str:
        """Return the path of a worker's node; raises ``TrackerError`` if it has none."""
        for name, path in self.registered().items():
            if f"-{process.pid}-" in name:
                return path
        raise TrackerError(f"{process.name} (pid {process.pid}) is not registered")

    def reports(self) -> list[dict[str, Any]]:
        """Return the masters' reports of the run: the JSON objects on their standard outputs."""
        found = []
        for path in sorted((self.folder / self.run_name).glob("master-*.out")):
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                with contextlib.suppress(ValueError):
                    found.append(json.loads(line))
        return [report for report in found if isinstance(report, dict)]

    def describe(self) -> str:
        """Return the state of every process."""
        state = Services.status(self.services_folder)
        servers = "no servers" if state is None else f"servers: {state.pids}, stopped {state.stopped}"
        return "\n  ".join([servers, *(process.describe() for process in self.processes.values())])

    def clear(self) -> None:
        """Kill all processes of the run and empty its disk; a copy of the journal stays with the logs."""
        for process in self.processes.values():
            if process.popen is not None and process.popen.poll() is None:
                process.popen.kill()
        for process in self.processes.values():
            if process.popen is not None:
                process.popen.wait(_STOP_SECONDS)
                self._watchdog.send(f"-{process.pid}")
        if self.run_name:
            with contextlib.suppress(OSError):
                shutil.copy(self.checkpoints / JournalFile.NAME, self.folder / self.run_name)
            shutil.rmtree(self.checkpoints, ignore_errors=True)

    def train_embedded(self) -> dict[str, Any]:
        """Do the same training with the embedded tracker; return its report.

        Raises:
            DeadlineError: it takes too long. Dl4jError: it fails.
        """
        out = self.folder / "expected.json"
        with out.open("wb") as stdout, (self.folder / "expected.log").open("wb") as stderr, deferred_signals():
            process = subprocess.Popen(
                [sys.executable, "-m", "dl4jlegacy", "train", *self.options.flags],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=self._environment(),
                cwd=self.folder,
            )
            self._closing.callback(_kill, process)
            self._watchdog.send(f"+{process.pid}")
        try:
            status = process.wait(_EMBEDDED_SECONDS)
        except subprocess.TimeoutExpired:
            raise DeadlineError(
                f"the embedded tracker's run, to compare with, was not done in {_EMBEDDED_SECONDS:g} s"
            ) from None
        self._watchdog.send(f"-{process.pid}")
        if status != 0:
            raise Dl4jError(f"the embedded tracker's run, to compare with, failed: {out.read_text()}")
        report: dict[str, Any] = json.loads(out.read_text())
        return report


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait(_STOP_SECONDS)
