"""The stage of a chaos run: its servers, and the processes of the run that is on, each in a seat to be taken anew.

Everything is started as a user would start it: ``python -m dl4jlegacy master``, ``worker``. Used from one thread.
"""

from __future__ import annotations

import contextlib
import json
import os
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

from dl4jlegacy.chaos.guard import DISK, SERVICES, Guard, uninterrupted
from dl4jlegacy.chaos.network import HOST, Wire, environment, mount_small_disk, unmount
from dl4jlegacy.errors import DeadlineError, Dl4jError, TrackerError
from dl4jlegacy.scaleout.hazelcast.store import HazelcastStateTracker
from dl4jlegacy.scaleout.journal import JournalFile
from dl4jlegacy.scaleout.zookeeper import ZooKeeperSession, registered_workers
from dl4jlegacy.scaleout.zookeeper.membership import group_path, read_entry
from dl4jlegacy.services import Services

__all__ = ["Seat", "Setting", "Stage", "wait_until"]

GROUP = "master"
_MASTERS = 3  # one leads, two stand by
_STOP_SECONDS = 10.0
_TRACKER_SECONDS = 5.0
_LOG_LINES = 6
_DISK = "8m"
_BATCHES = 90  # of the digits in an epoch


def wait_until(condition: Callable[[], bool], seconds: float, what: str, pause: float = 0.05) -> None:
    """Wait until ``condition()``; raises ``DeadlineError`` saying ``what`` did not happen in ``seconds``."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= end:
            raise DeadlineError(f"not within {seconds:g} s: {what}")
        time.sleep(pause)


@dataclass(frozen=True, slots=True)
class Setting:
    """What is run: by how many workers, for about how many rounds, which seed, and what the machine lets us break."""

    workers: int
    rounds: int
    seed: int
    wires: bool
    small_disk: bool

    @property
    def flags(self) -> list[str]:
        """What ``dl4j train`` and ``dl4j master`` have in common."""
        epochs = str(max(1, self.rounds * self.workers // _BATCHES))
        return [
            *("--model", "mlp", "--dataset", "digits", "--epochs", epochs, "--seed", str(self.seed)),
            *("--workers", str(self.workers), "--jobs-per-round", str(self.workers), "--format", "json"),
        ]


@dataclass(slots=True)
class Seat:
    """A place for a process, and who sits there now."""

    name: str
    folder: Path
    wire: Wire | None = None
    process: subprocess.Popen[bytes] | None = None
    frozen: bool = False
    starts: int = 0
    started: float = 0.0  # by our monotonic clock
    arguments: list[str] = field(default_factory=list)

    @property
    def pid(self) -> int:
        """The process's id, 0 if nobody sits here."""
        return self.process.pid if self.process is not None else 0

    @property
    def ended(self) -> int | None:
        """The process's exit status; None while it runs, or if there is none."""
        return self.process.poll() if self.process is not None else None

    @property
    def log(self) -> Path:
        """Where the newest process writes its standard error."""
        return self.folder / f"{self.name}.{self.starts}.log"

    @property
    def out(self) -> Path:
        """Where the newest process writes its standard output."""
        return self.folder / f"{self.name}.{self.starts}.out"

    def last_lines(self) -> list[str]:
        """Return the end of the log."""
        try:
            return self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:]
        except OSError:
            return []

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens if the process has ended."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            self.frozen = (self.frozen or number is signal.SIGSTOP) and number is not signal.SIGCONT

    def where(self) -> str:
        """Return where the process stands, in one line and the end of its log."""
        if self.process is None:
            return f"{self.name}: nobody"
        state = f"ended with {self.ended}" if self.ended is not None else _state(self.pid)
        return "\n      ".join([f"{self.name}: pid {self.pid}, {state}", *self.last_lines()])


def _state(pid: int) -> str:
    try:
        letter = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return "runs"
    return {"T": "frozen", "Z": "dead"}.get(letter, "runs")


class Stage:
    """Servers and seats. As a context manager: all of it is stopped at the end, whatever happened.

    Args:
        folder: where everything writes.
        setting: what is run.
        temporary: whether the folder may go if this process is killed.
    """

    def __init__(self, folder: Path, setting: Setting, *, temporary: bool = False) -> None:
        self.folder, self.setting, self._temporary = folder, setting, temporary
        self.disk = folder / DISK
        self.run = ""
        self.seats: dict[str, Seat] = {}
        self._secret = secrets.token_hex(16)
        self._closing = contextlib.ExitStack()
        self._session: ZooKeeperSession | None = None
        self._wire: Wire | None = None

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
        setting, host = self.setting, "127.0.0.1"
        if setting.small_disk:
            mount_small_disk(self.disk, _DISK)
            self._closing.callback(unmount, self.disk)
        self.disk.mkdir(parents=True, exist_ok=True)
        if setting.wires:
            host, self._wire = HOST, Wire(0, setting.seed)
            self._closing.callback(self._wire.close)
        self._guard = Guard(self.folder, temporary=self._temporary)
        self._closing.callback(self._guard.close)
        self._closing.callback(Services.down, self.services_folder)
        self.services = Services.up(2, folder=self.services_folder, heap="512m", host=host)
        self._session = ZooKeeperSession(self.services.zookeeper, secret=self._secret.encode(), deadline_seconds=3.0)
        self._closing.callback(self._session.close)
        self._closing.callback(self.clear)

    @property
    def services_folder(self) -> Path:
        """Where the servers' state is."""
        return self.folder / SERVICES

    @property
    def session(self) -> ZooKeeperSession:
        """Our own session with Zookeeper."""
        if self._session is None:
            raise AssertionError("the stage is not built")
        return self._session

    @property
    def wire(self) -> Wire:
        """The wire, behind which the last worker sits."""
        if self._wire is None:
            raise AssertionError("this stage has no wire")
        return self._wire

    # -- a run --------------------------------------------------------------------------------------------------------

    def begin(self, run: str) -> None:
        """Start the processes of a new run, all at once: who comes before the master waits for it."""
        self.run, setting = run, self.setting
        (self.folder / run).mkdir(parents=True)
        where, bind = ["--zookeeper", self.services.zookeeper], ["--bind", HOST if setting.wires else "127.0.0.1"]
        leading = [
            *("master", *setting.flags, *where, *bind, "--tracker", f"hazelcast://{self.services.hazelcast}"),
            *("--cluster-name", self.services.cluster_name, "--run", run),
            *("--checkpoint-dir", str(self.checkpoints), "--checkpoint-every", "20"),
        ]
        self.seats = {}
        for number in range(_MASTERS):
            self._add(f"master-{number}", ["master", "--standby", *where, *bind, "--format", "json"])
        for number in range(setting.workers):
            self._add(f"worker-{number}", ["worker", *where, "--log-format", "json"])
        if setting.wires:
            self.seats[f"worker-{setting.workers - 1}"].wire = self.wire
        self._start(self.seats["master-0"], leading)
        for seat in list(self.seats.values())[1:]:
            self.start(seat)

    def _add(self, name: str, arguments: list[str]) -> None:
        self.seats[name] = Seat(name, self.folder / self.run, arguments=arguments)

    def start(self, seat: Seat) -> None:
        """Put a new process into a seat: a worker, or a standby master."""
        self._start(seat, seat.arguments)

    def _start(self, seat: Seat, arguments: list[str]) -> None:
        command = [sys.executable, "-m", "dl4jlegacy", *arguments]
        if seat.ended is not None:
            self._guard.tell(f"-{seat.pid}")
        if seat.wire is not None:
            command = seat.wire.command(command)
        seat.starts, seat.started, seat.frozen = seat.starts + 1, time.monotonic(), False
        with seat.log.open("ab") as log, seat.out.open("ab") as out, uninterrupted():
            seat.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=log, env=self._environment(), cwd=self.folder
            )
            self._guard.tell(f"+{seat.pid}")

    def _environment(self) -> dict[str, str]:
        ours = environment(DL4J_SECRET=self._secret)
        return {name: text for name, text in ours.items() if not name.startswith("DL4J_") or name == "DL4J_SECRET"}

    @property
    def checkpoints(self) -> Path:
        """The run's checkpoint folder."""
        return self.disk / self.run

    @property
    def workers(self) -> list[Seat]:
        """The workers' seats."""
        return [seat for name, seat in self.seats.items() if name.startswith("worker-")]

    @property
    def masters(self) -> list[Seat]:
        """The masters' seats, whoever leads."""
        return [seat for name, seat in self.seats.items() if name.startswith("master-")]

    def tracker(self) -> HazelcastStateTracker:
        """Return a client of the run's tracker."""
        return HazelcastStateTracker(
            self.services.hazelcast,
            cluster_name=self.services.cluster_name,
            run=self.run,
            secret=self._secret.encode(),
            deadline_seconds=_TRACKER_SECONDS,
        )

    def candidates(self) -> list[tuple[str, dict[str, Any]]]:
        """Return those that lead or stand by, the leader first: the path of the node, and what it says.

        Raises:
            TrackerError: Zookeeper does not answer.
        """
        folder = group_path(GROUP, "election")
        names = sorted(self.session.children(folder) or [], key=lambda name: name[-10:])
        entries = [(f"{folder}/{name}", read_entry(self.session, f"{folder}/{name}")) for name in names]
        return [(path, entry.info) for path, entry in entries if entry is not None]

    def leader(self) -> Seat:
        """Return the seat of the master that leads.

        Raises:
            TrackerError: nobody of ours does just now, or Zookeeper does not answer.
        """
        found = self.candidates()
        pid = found[0][1].get("pid") if found else None
        for seat in self.masters:
            if seat.pid and seat.pid == pid:
                return seat
        raise TrackerError(f"no master of run {self.run} leads at the moment (first in the election: {found[:1]})")

    def was_deposed(self, seat: Seat) -> bool:
        """Whether a master has ended since it saw that another one leads."""
        lost = seat in self.masters and seat.ended == TrackerError.exit_status
        return lost and any("has another master" in line for line in seat.last_lines())

    def registered(self) -> dict[str, str]:
        """Return the workers' names by those of their nodes' paths; raises ``TrackerError``."""
        folder = group_path(GROUP, "workers")
        return {name: f"{folder}/{name}" for name in registered_workers(self.session, GROUP)}

    def registration(self, seat: Seat) -> str:
        """Return the path of a worker's node; raises ``TrackerError`` if it has none."""
        for name, path in self.registered().items():
            if f"-{seat.pid}-" in name:
                return path
        raise TrackerError(f"{seat.name} (pid {seat.pid}) is not registered")

    def reports(self) -> list[dict[str, Any]]:
        """Return what masters said of the run's end: the JSON objects on their standard outputs."""
        found = []
        for path in sorted((self.folder / self.run).glob("master-*.out")):
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                with contextlib.suppress(ValueError):
                    found.append(json.loads(line))
        return [report for report in found if isinstance(report, dict)]

    def where(self) -> str:
        """Return where every process stands."""
        state = Services.status(self.services_folder)
        servers = "no servers" if state is None else f"servers: {state.pids}, stopped {state.stopped}"
        return "\n  ".join([servers, *(seat.where() for seat in self.seats.values())])

    def clear(self) -> None:
        """End all processes of the run, and make room on its disk; the journal's copy stays with the logs."""
        for seat in self.seats.values():
            if seat.process is not None and seat.process.poll() is None:
                seat.process.kill()
        for seat in self.seats.values():
            if seat.process is not None:
                seat.process.wait(_STOP_SECONDS)
                self._guard.tell(f"-{seat.pid}")
        if self.run:
            with contextlib.suppress(OSError):
                shutil.copy(self.checkpoints / JournalFile.NAME, self.folder / self.run)
            shutil.rmtree(self.checkpoints, ignore_errors=True)

    def expected(self) -> Callable[[], dict[str, Any]]:
        """Start the same training with the embedded tracker; return what waits for its report."""
        out = self.folder / "expected.json"
        with out.open("wb") as stdout, (self.folder / "expected.log").open("wb") as stderr, uninterrupted():
            process = subprocess.Popen(
                [sys.executable, "-m", "dl4jlegacy", "train", *self.setting.flags],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=self._environment(),
                cwd=self.folder,
            )
            self._closing.callback(_end, process)
            self._guard.tell(f"+{process.pid}")

        def wait() -> dict[str, Any]:
            try:
                status = process.wait(600)
            except subprocess.TimeoutExpired:
                raise DeadlineError("the embedded tracker's run, to compare with, was not done in 600 s") from None
            self._guard.tell(f"-{process.pid}")
            if status != 0:
                raise Dl4jError(f"the embedded tracker's run, to compare with, failed: {out.read_text()}")
            report: dict[str, Any] = json.loads(out.read_text())
            return report

        return wait


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.kill(process.pid, signal.SIGKILL)
    process.wait(_STOP_SECONDS)
