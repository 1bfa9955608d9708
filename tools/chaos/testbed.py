"""The test bed of a chaos run: its servers, and the masters and workers of the current run, which can be restarted.

Everything is started as a user would start it: ``python -m dl4jlegacy master``, ``worker``. Used by one thread.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import msgspec

from dl4jlegacy.cluster.address import find_incarnation
from dl4jlegacy.errors import DeadlineError, Dl4jError, TrackerError
from dl4jlegacy.scaleout.hazelcast.store import HazelcastStateTracker, HazelcastStore
from dl4jlegacy.scaleout.persistence.journal import JournalFile
from dl4jlegacy.scaleout.zookeeper import ZooKeeperSession, registered_workers
from dl4jlegacy.scaleout.zookeeper.membership import group_path, read_member
from dl4jlegacy.services import Services, ServicesState
from dl4jlegacy.services.settings import member_ports
from tools.chaos.neighbour import HostileNeighbour
from tools.chaos.network import HOST, MEMBER_HOST, LossyLink, child_environment, mount_small_disk, unmount
from tools.chaos.watchdog import DISK, SERVICES, Watchdog, deferred_signals

__all__ = ["Process", "TestBed", "TestBedOptions", "wait_until"]

_ID, _ID_BESIDE = "master", "beside"  # ids in Zookeeper of the run and of a second one beside it
_MASTERS = 3  # one leads, two stand by
_STOP_SECONDS = 10.0
_SERVERS_SECONDS = 180.0
_TRACKER_SECONDS = 5.0
_NAMED_SECONDS = 30.0
_EMBEDDED_SECONDS = 600.0
_LOG_LINES = 6
_TAKES_PART = ('"event": "joined"', "standing by")
_CLOCK = Path(__file__).with_name("clock")  # the folder that lets the clocks of processes be stepped
_DISK_SIZE = "8m"
_BATCHES_PER_EPOCH = 90  # of the digits


def wait_until(condition: Callable[[], bool], seconds: float, what: str, pause: float = 0.05) -> None:
    """Wait until ``condition()``; raises ``DeadlineError`` saying that ``what`` did not happen within ``seconds``."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= end:
            raise DeadlineError(f"not within {seconds:g} s: {what}")
        time.sleep(pause)


@dataclass(frozen=True, slots=True)
class TestBedOptions:
    """The setup: number of workers, approximate rounds, seed, the faults that this machine allows, and neighbours.

    ``hostile_neighbour`` says whether a process without the secret writes to the servers meanwhile, ``beside`` whether
    a second run with processes of its own is active at the same time on the same servers. ``members`` is the number of
    Hazelcast members, ``divisible`` says whether the last one can be cut off from the others, which needs
    ``lossy_link``'s namespace.
    """

    workers: int
    rounds: int
    seed: int
    lossy_link: bool
    small_disk: bool
    router: str = "iterative-reduce"
    router_args: str = "{}"
    hostile_neighbour: bool = False
    beside: bool = False
    members: int = 2
    divisible: bool = False

    @property
    def flags(self) -> list[str]:
        """The flags common to ``dl4j train`` and ``dl4j master``."""
        epochs = str(max(1, self.rounds * self.workers // _BATCHES_PER_EPOCH))
        return [
            *("--model", "mlp", "--dataset", "digits", "--epochs", epochs, "--seed", str(self.seed)),
            *("--workers", str(self.workers), "--jobs-per-round", str(self.workers), "--format", "json"),
            *("--router", self.router, "--router-args", self.router_args),
        ]


@dataclass(slots=True)
class Process:
    """A named master or worker (``worker-2``), which is started again after it was killed."""

    name: str
    folder: Path
    arguments: list[str] = field(default_factory=list)
    link: LossyLink | None = None
    popen: subprocess.Popen[bytes] | None = None
    starts: int = 0
    started: float = 0.0  # by our monotonic clock
    frozen_start: int = 0  # the number of the last start that was frozen

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

    @property
    def takes_part(self) -> bool:
        """Return whether its newest start has reported that it found the run: it has joined it, or stands by for it."""
        try:
            log = self.log.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        return any(word in log for word in _TAKES_PART)

    @property
    def clock(self) -> Path:
        """The file with the error of its wall clock in seconds; see ``clock/sitecustomize``."""
        return self.folder / f"{self.name}.clock"

    def set_clock(self, seconds: float) -> None:
        """Set its wall clock forward by ``seconds``, or back if they are negative; 0 corrects it."""
        with self.clock.open("r+b" if self.clock.exists() else "wb") as file:
            file.write(struct.pack("<d", seconds))

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens if the process has ended."""
        if self.popen is not None and self.popen.poll() is None:
            self.popen.send_signal(number)
            if number == signal.SIGSTOP:
                self.frozen_start = self.starts

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
        folder: for all output.
        options: the setup.
        temporary: True if the folder may be removed when this process is killed.
        servers_of: the test bed whose servers this one shares; it starts its own by default.
    """

    def __init__(
        self, folder: Path, options: TestBedOptions, *, temporary: bool = False, servers_of: TestBed | None = None
    ) -> None:
        self.folder, self.options, self._temporary, self._servers_of = folder, options, temporary, servers_of
        self._id = _ID if servers_of is None else _ID_BESIDE
        self.disk = folder / DISK
        self.run_name = ""
        self.neighbour: HostileNeighbour | None = None
        self.processes: dict[str, Process] = {}
        self._secret = secrets.token_hex(16)
        self._closing = contextlib.ExitStack()
        self._session: ZooKeeperSession | None = None
        self._link: LossyLink | None = None
        self._host = "127.0.0.1"
        self.beside: TestBed | None = None
        """The test bed of the run that is active at the same time, if there is one."""

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
        options = self.options
        if options.small_disk:
            mount_small_disk(self.disk, _DISK_SIZE)
            self._closing.callback(unmount, self.disk)
        self.disk.mkdir(parents=True, exist_ok=True)
        if options.lossy_link:
            self._host, self._link = HOST, LossyLink(0, options.seed)
            self._closing.callback(self._link.close)
        self._watchdog = Watchdog(self.folder, temporary=self._temporary)
        self._closing.callback(self._watchdog.close)
        self.services = self._find_servers()
        self._session = ZooKeeperSession(self.services.zookeeper, secret=self._secret.encode(), deadline_seconds=3.0)
        self._closing.callback(self._session.close)
        self._closing.callback(self.clear)
        if options.hostile_neighbour:
            self.neighbour = HostileNeighbour(self.folder, self.services, self._watchdog, options.seed)
        if options.beside:
            alone = replace(options, lossy_link=False, small_disk=False, hostile_neighbour=False, beside=False)
            self.beside = self._closing.enter_context(TestBed(self.folder / "beside", alone, servers_of=self))

    def _find_servers(self) -> ServicesState:
        """Start the servers, unless they belong to another test bed."""
        if self._servers_of is not None:
            self._host = self._servers_of._host
            return self._servers_of.services
        self._closing.callback(Services.down, self.services_folder)
        state = Services.up(
            self.options.members,
            folder=self.services_folder,
            heap="512m",
            host=self._host,
            deadline_seconds=_SERVERS_SECONDS,
        )
        return _move_last_member(state) if self.options.divisible else state

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
        """Start the processes of a new run, all at once; processes that are ready before the master wait for it."""
        self.run_name, options = run, self.options
        (self.folder / run).mkdir(parents=True)
        zookeeper = ["--zookeeper", self.services.zookeeper]
        bind = ["--bind", self._host]
        leader = [
            *("master", *options.flags, *zookeeper, *bind, "--tracker", f"hazelcast://{self.services.hazelcast}"),
            *("--cluster-name", self.services.cluster_name, "--run", run),
            *("--checkpoint-dir", str(self.checkpoints), "--checkpoint-every", "20"),
            *("--id", self._id, "--out", str(self.model)),
        ]
        name, out = ["--id", self._id], ["--format", "json", "--out", str(self.model)]
        self.processes = {}
        for number in range(_MASTERS):
            self._add(f"master-{number}", ["master", "--standby", *zookeeper, *bind, *name, *out])
        for number in range(options.workers):
            self._add(f"worker-{number}", ["worker", *zookeeper, *name, "--log-format", "json"])
        if options.lossy_link:
            self.processes[f"worker-{options.workers - 1}"].link = self.link
        self._start(self.processes["master-0"], leader)
        for process in list(self.processes.values())[1:]:
            self.start(process)

    def _add(self, name: str, arguments: list[str]) -> None:
        self.processes[name] = Process(name, self.folder / self.run_name, arguments=arguments)

    def start(self, process: Process) -> None:
        """Start a process, or restart it if it has ended: a worker, or a standby master."""
        self._start(process, process.arguments)

    def _start(self, process: Process, arguments: list[str]) -> None:
        command = [sys.executable, "-m", "dl4jlegacy", *arguments]
        if process.exit_status is not None:
            self._watchdog.send(f"-{process.pid}")
        if process.link is not None:
            command = process.link.command(command)
        process.set_clock(0.0)
        process.starts, process.started = process.starts + 1, time.monotonic()
        with process.log.open("ab") as log, process.out.open("ab") as out, deferred_signals():
            process.popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                env=self._environment(process.clock),
                cwd=self.folder,
            )
            self._watchdog.send(f"+{process.pid}")

    def _environment(self, clock: Path | None = None) -> dict[str, str]:
        """Return the environment of a run's process; ``clock`` is the file that controls its clock."""
        variables = child_environment(DL4J_SECRET=self._secret)
        if clock is not None:
            variables |= {"CHAOS_CLOCK": str(clock), "PYTHONPATH": f"{_CLOCK}:{variables['PYTHONPATH']}"}
        return {name: text for name, text in variables.items() if not name.startswith("DL4J_") or name == "DL4J_SECRET"}

    @property
    def checkpoints(self) -> Path:
        """The run's checkpoint folder."""
        return self.disk / self.run_name

    @property
    def model(self) -> Path:
        """The file to which the run writes its model."""
        return self.folder / self.run_name / "model.zip"

    @property
    def workers(self) -> list[Process]:
        """All workers."""
        return [process for name, process in self.processes.items() if name.startswith("worker-")]

    @property
    def masters(self) -> list[Process]:
        """All masters, leading or not."""
        return [process for name, process in self.processes.items() if name.startswith("master-")]

    def map_name(self) -> str:
        """Return the name of the run's map in the grid.

        Raises:
            DeadlineError: the grid does not name the run's incarnation, because the record was damaged.
        """
        names: list[str] = []

        def is_known() -> bool:
            with contextlib.closing(self._store()) as store:
                incarnation = find_incarnation(store, self.run_name)
                names.append(store.sibling(self.run_name, incarnation).map_name)
            return incarnation != ""

        wait_until(is_known, _NAMED_SECONDS, f"the record of the run {self.run_name} in the grid")
        return names[-1]

    def tracker(self) -> HazelcastStateTracker:
        """Return a client of the run's tracker; if the run has not begun, its tracker is empty."""
        with contextlib.closing(self._store()) as store:
            incarnation = find_incarnation(store, self.run_name)
        return HazelcastStateTracker(self.services.hazelcast, incarnation=incarnation, **self._tracker_options())

    def _store(self) -> HazelcastStore:
        return HazelcastStore(self.services.hazelcast, **self._tracker_options())

    def _tracker_options(self) -> dict[str, Any]:
        return {
            "cluster_name": self.services.cluster_name,
            "run": self.run_name,
            "secret": self._secret.encode(),
            "deadline_seconds": _TRACKER_SECONDS,
        }

    def server_names(self) -> list[str]:
        """Return the names of all servers, whether they run or not."""
        return [server.name for server in self.services.servers]

    def candidates(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the masters in the election, the leader first: the path of each node, and its contents.

        Raises:
            TrackerError: Zookeeper does not answer.
        """
        folder = group_path(self._id, "election")
        names = sorted(self.session.children(folder) or [], key=lambda name: name[-10:])
        entries = [(f"{folder}/{name}", read_member(self.session, f"{folder}/{name}")) for name in names]
        return [(path, entry.info) for path, entry in entries if entry is not None]

    def leader(self) -> Process:
        """Return the leading master.

        Raises:
            TrackerError: no master of this run leads at the moment, or Zookeeper does not answer.
        """
        found = self.candidates()
        pid = found[0][1].get("pid") if found else None
        for process in self.masters:
            if process.pid and process.pid == pid:
                return process
        raise TrackerError(f"no master of run {self.run_name} leads at the moment (first in the election: {found[:1]})")

    def was_deposed(self, process: Process) -> bool:
        """Return whether a master has ended because another one leads."""
        return self._has_given_up(process, "has another master")

    def slept_through_end(self, process: Process) -> bool:
        """Return whether a master was frozen, and has ended because the run ended meanwhile."""
        was_frozen = process.frozen_start == process.starts
        return was_frozen and self._has_given_up(process, "it has ended while this master stood still")

    def _has_given_up(self, process: Process, words: str) -> bool:
        lost = process in self.masters and process.exit_status == TrackerError.exit_status
        return lost and any(words in line for line in process.last_lines())

    def registered(self) -> dict[str, str]:
        """Return the paths of the registered workers' nodes, by name; raises ``TrackerError``."""
        folder = group_path(self._id, "workers")
        return {name: f"{folder}/{name}" for name in registered_workers(self.session, self._id)}

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

    def lengthen(self) -> None:
        """Double the number of rounds of the next runs."""
        for bed in (self, *([self.beside] if self.beside is not None else [])):
            bed.options = replace(bed.options, rounds=2 * bed.options.rounds)

    def wait_for_end(self, seconds: float) -> None:
        """Wait until all processes of the run have ended.

        Raises:
            DeadlineError: this did not happen within ``seconds``. Dl4jError: a process that was not replaced ended
                badly.
        """
        processes = self.processes.values()
        wait_until(
            lambda: all(process.exit_status is not None for process in processes),
            seconds,
            f"the end of all processes of {self.run_name}",
        )
        failed = [p.name for p in processes if p.exit_status and not self.was_deposed(p)]
        if failed:
            raise Dl4jError(f"beside the other run {', '.join(failed)} of {self.run_name} ended badly")

    def clear(self) -> None:
        """Kill all processes of the run and empty its disk; a copy of the journal stays with the logs."""
        if self.neighbour is not None:
            self.neighbour.kill()
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


def _move_last_member(state: ServicesState) -> ServicesState:
    """Restart all members, the last one at ``MEMBER_HOST``; return the resulting servers."""
    folder, last = Path(state.folder), state.members[-1]
    command = tuple(part.replace(f"={last.host}", f"={MEMBER_HOST}") for part in last.command)  # its public address
    moved = msgspec.structs.replace(last, host=MEMBER_HOST, command=command)
    members = [*state.members[:-1], moved]
    for member in members:
        path = folder / f"{member.name}.yaml"
        settings = json.loads(path.read_bytes())  # which is YAML too
        network = settings["hazelcast"]["advanced-network"]
        for end in (name for name in network if name.endswith("-socket-endpoint-config")):
            network[end]["interfaces"]["interfaces"] = [member.host]
        network["join"]["tcp-ip"]["member-list"] = [f"{one.host}:{member_ports(one.port)[1]}" for one in members]
        path.write_text(json.dumps(settings), encoding="utf-8")
    servers = tuple(moved if server.name == last.name else server for server in state.servers)
    (folder / "services.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(state, servers=servers)))
    for member in reversed(members):
        state = Services.restart(member.name, folder, deadline_seconds=_SERVERS_SECONDS)
    return state


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait(_STOP_SECONDS)
