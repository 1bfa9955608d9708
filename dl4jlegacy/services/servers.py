"""Hazelcast and Zookeeper on this machine: start them, wait until they answer, find them again, stop them.

Each set of servers has a folder: their configurations, logs and data, and ``services.json``, which says what runs.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from dl4jlegacy.errors import TrackerError, UsageError
from dl4jlegacy.services.jars import cache_folder, fetch_jars, locked, pinned_jars
from dl4jlegacy.services.java import Java, find_java
from dl4jlegacy.services.processes import ServerProcess, spawn, stop
from dl4jlegacy.services.settings import (
    HOST,
    member_command,
    member_settings,
    zookeeper_command,
    zookeeper_settings,
)

__all__ = ["Server", "Services", "ServicesState"]

_STATE = "services.json"
_FORMAT = 1
_ATTEMPTS = 3
_POLL_SECONDS = 0.02
_ANSWER_SECONDS = 2.0
_LOG_LINES = 8


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """One server: ``"hazelcast-1"``, ``"hazelcast-2"``, ... or ``"zookeeper"``, and how it is started."""

    name: str
    port: int
    command: tuple[str, ...]
    process: ServerProcess | None = None

    @property
    def is_running(self) -> bool:
        """Whether its process is alive."""
        return self.process is not None and self.process.is_alive()

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"{HOST}:{self.port}"

    def answers(self, members: int) -> bool:
        """Whether it serves; a Hazelcast member only once it sees all ``members``."""
        return _zookeeper_serves(self.port) if self.name == "zookeeper" else _member_serves(self.port, members)


class ServicesState(msgspec.Struct, frozen=True, kw_only=True):
    """A set of servers, as ``services.json`` keeps it."""

    cluster_name: str
    folder: str
    servers: tuple[Server, ...] = ()
    format: int = _FORMAT

    @property
    def hazelcast(self) -> str:
        """The members' addresses, ``host:port`` each, with commas between them; ``""`` if there are none."""
        return ",".join(s.address for s in self.members)

    @property
    def zookeeper(self) -> str:
        """The Zookeeper server's ``host:port``; ``""`` if there is none."""
        return next((s.address for s in self.servers if s.name == "zookeeper"), "")

    @property
    def members(self) -> tuple[Server, ...]:
        """The Hazelcast members."""
        return tuple(s for s in self.servers if s.name != "zookeeper")

    @property
    def pids(self) -> dict[str, int]:
        """The process ids of the servers that run, by name."""
        return {s.name: s.process.pid for s in self.servers if s.process is not None and s.is_running}

    @property
    def stopped(self) -> tuple[str, ...]:
        """The names of servers that should run and do not."""
        return tuple(s.name for s in self.servers if not s.is_running)

    def to_dict(self) -> dict[str, object]:
        """Return what the command prints as JSON."""
        return {
            "hazelcast": self.hazelcast,
            "zookeeper": self.zookeeper,
            "pids": self.pids,
            "cluster_name": self.cluster_name,
            "folder": self.folder,
            "stopped": list(self.stopped),
        }


class Services:
    """Start, find and stop the servers of a folder. Several processes may call these at the same time."""

    @staticmethod
    def up(
        members: int = 1,
        hazelcast_port: int = 0,
        zookeeper_port: int = 0,
        cluster_name: str | None = None,
        folder: Path | None = None,
        *,
        zookeeper: bool = True,
        heap: str = "1g",
        deadline_seconds: float = 60.0,
    ) -> ServicesState:
        """Start the servers and return once all answer.

        Args:
            members: how many Hazelcast members; with two or more everything is kept twice.
            hazelcast_port: the first member's, the next ones' follow it; 0 for free ones.
            zookeeper_port: Zookeeper's; 0 for a free one.
            cluster_name: what clients must name; a random one by default.
            folder: where configurations, logs, data and state go; ``default_folder()`` if ``None``.
            zookeeper: whether to start Zookeeper too.
            heap: the most memory for the data of one member, as Java writes it (``512m``, ``1g``).
            deadline_seconds: how long to wait for the answers; fetching Java's jars the first time comes on top.

        Raises:
            UsageError: servers of this folder run already, or a number is out of range.
            TrackerError: no Java, no jars, or a server that does not start; nothing is left running.
        """
        _check(members, hazelcast_port, zookeeper_port, zookeeper)
        folder = _absolute(folder)
        java = find_java()
        name = cluster_name or f"dl4j-{secrets.token_hex(8)}"
        with _folder_lock(folder):
            before = _read(folder)
            if before is not None and before.pids:
                raise UsageError(
                    f"the servers of {folder} run already (Hazelcast {before.hazelcast or 'none'}, Zookeeper "
                    f"{before.zookeeper or 'none'}); stop them with 'dl4j services down', or give another folder"
                )
            setup = _Setup(folder, java, name, heap)
            for attempt in range(_ATTEMPTS):
                servers = setup.servers(members, hazelcast_port, zookeeper_port, zookeeper)
                state = ServicesState(cluster_name=name, folder=str(folder), servers=servers)
                try:
                    return _start(state, deadline_seconds)
                except _PortTakenError:
                    fixed = hazelcast_port and zookeeper_port
                    if fixed or attempt == _ATTEMPTS - 1:
                        raise
        raise AssertionError("unreachable")

    @staticmethod
    def down(folder: Path | None = None) -> ServicesState | None:
        """Stop the servers of a folder, those that still run; return what was there, ``None`` if nothing was."""
        folder = _absolute(folder)
        if not (folder / _STATE).exists():
            return None
        with _folder_lock(folder):
            state = _read(folder)
            if state is not None:
                stop([s.process for s in state.servers if s.process is not None])
                (folder / _STATE).unlink(missing_ok=True)
        return state

    @staticmethod
    def status(folder: Path | None = None) -> ServicesState | None:
        """Return what runs in a folder, ``None`` if nothing was started there (or all was stopped)."""
        return _read(_absolute(folder))

    @staticmethod
    def restart(name: str, folder: Path | None = None, *, deadline_seconds: float = 60.0) -> ServicesState:
        """Start one server again, on its port and with its data, stopping it first if it runs.

        Raises:
            UsageError: no such server.
            TrackerError: it does not start; the others keep running.
        """
        folder = _absolute(folder)
        with _folder_lock(folder):
            state = _read(folder)
            server = next((s for s in state.servers if s.name == name), None) if state else None
            if state is None or server is None:
                known = ", ".join(s.name for s in state.servers) if state else "none"
                raise UsageError(f"{folder} has no server {name!r}; there are: {known}")
            if server.process is not None:
                stop([server.process])
            return _start(state, deadline_seconds, only=name)


class _PortTakenError(TrackerError):
    """Somebody else took a port between its choice and its use."""


class _Setup:
    """Writes the servers' configurations and builds their command lines."""

    def __init__(self, folder: Path, java: Java, cluster_name: str, heap: str) -> None:
        self._folder, self._java, self._cluster, self._heap = folder, java, cluster_name, heap

    def servers(self, members: int, member_port: int, zookeeper_port: int, zookeeper: bool) -> tuple[Server, ...]:
        """Return the servers, none of them started; a port of 0 becomes a free one."""
        free = _free_ports(members + 1)
        ports = [member_port + i if member_port else free[i] for i in range(members)]
        servers = [self._member(f"hazelcast-{i + 1}", port, ports) for i, port in enumerate(ports)]
        if zookeeper:
            servers.append(self._zookeeper(zookeeper_port or free[-1]))
        return tuple(servers)

    def _member(self, name: str, port: int, ports: Sequence[int]) -> Server:
        settings = self._folder / f"{name}.yaml"
        settings.write_text(member_settings(port, ports, self._cluster), encoding="utf-8")
        jars = fetch_jars(pinned_jars("hazelcast"))
        return Server(name=name, port=port, command=tuple(member_command(self._java, jars, settings, self._heap)))

    def _zookeeper(self, port: int) -> Server:
        settings, data = self._folder / "zookeeper.cfg", self._folder / "zookeeper"
        data.mkdir(exist_ok=True)
        settings.write_text(zookeeper_settings(port, data), encoding="utf-8")
        jars = fetch_jars(pinned_jars("zookeeper"))
        return Server(name="zookeeper", port=port, command=tuple(zookeeper_command(self._java, jars, settings, "256m")))


def _start(state: ServicesState, deadline_seconds: float, only: str = "") -> ServicesState:
    """Start the servers (or only one) and wait for them; whatever interrupts this, what was started is stopped."""
    folder = Path(state.folder)
    started: list[Server] = []
    try:
        for server in state.servers:
            if only in ("", server.name):
                _check_port(server)
                log = folder / f"{server.name}.log"
                new = msgspec.structs.replace(server, process=spawn(server.command, log))
                started.append(new)
                servers = tuple(new if s.name == new.name else s for s in state.servers)
                state = msgspec.structs.replace(state, servers=servers)
                _write(folder, state)
        _wait(started, len(state.members) if not only else 1, deadline_seconds, folder)
    except BaseException:
        stop([s.process for s in started if s.process is not None], grace_seconds=1.0)
        if not only:
            (folder / _STATE).unlink(missing_ok=True)
        raise
    return state


def _wait(servers: Sequence[Server], members: int, seconds: float, folder: Path) -> None:
    deadline = time.monotonic() + seconds
    waiting = list(servers)
    while waiting:
        for server in waiting:
            if not server.is_running:
                raise TrackerError(f"{server.name} ended while it started; {_end_of(folder / f'{server.name}.log')}")
        waiting = [s for s in waiting if not s.answers(members)]
        if waiting and time.monotonic() >= deadline:
            late = waiting[0]
            raise TrackerError(
                f"{late.name} at {late.address} does not answer {seconds:g} s after its start; "
                f"{_end_of(folder / f'{late.name}.log')}"
            )
        if waiting:
            time.sleep(_POLL_SECONDS)


def _end_of(log: Path) -> str:
    try:
        lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    return f"the end of its log {log}:\n" + "\n".join(lines[-_LOG_LINES:])


def _ask(port: int, question: bytes) -> bytes:
    """Return what a local server answers until it closes the connection or is silent, ``b""`` if it does not."""
    answer = b""
    with (
        contextlib.suppress(OSError),
        socket.create_connection((HOST, port), timeout=_ANSWER_SECONDS) as connection,
    ):
        connection.sendall(question)
        while piece := connection.recv(65536):
            answer += piece
            if b"}" in piece:
                break
    return answer


def _zookeeper_serves(port: int) -> bool:
    return b"Mode: " in _ask(port, b"srvr")  # "ruok" is answered before it serves


def _member_serves(port: int, members: int) -> bool:
    request = f"GET /hazelcast/health HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n"
    answer = _ask(port, request.encode())
    with contextlib.suppress(ValueError):
        health = json.loads(answer.partition(b"\r\n\r\n")[2])
        return bool(health["nodeState"] == "ACTIVE" and int(health["clusterSize"]) >= members)
    return False


def _check(members: int, hazelcast_port: int, zookeeper_port: int, zookeeper: bool) -> None:
    if not 0 <= members <= 16 or members + zookeeper == 0:
        raise UsageError(f"{members} members: 1 to 16 Hazelcast members can run on one machine")
    for name, first, count in (("hazelcast", hazelcast_port, members), ("zookeeper", zookeeper_port, 1)):
        if first and not 1024 <= first <= 65536 - count:
            raise UsageError(f"{name} port {first}: 1024 to {65536 - count}, or 0 for a free one")
    if zookeeper and hazelcast_port and hazelcast_port <= zookeeper_port < hazelcast_port + members:
        raise UsageError(f"port {zookeeper_port} is to be Zookeeper's and a Hazelcast member's; give another one")


def _check_port(server: Server) -> None:
    with contextlib.closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, server.port))
        except OSError as exc:
            raise _PortTakenError(
                f"{server.name} cannot have port {server.port} of {HOST}: {exc.strerror or exc}; give another port, "
                "or 0 for a free one"
            ) from exc


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(contextlib.closing(socket.socket())) for _ in range(count)]
        for probe in probes:
            probe.bind((HOST, 0))
        return [probe.getsockname()[1] for probe in probes]


def _absolute(folder: Path | None) -> Path:
    return (folder or cache_folder() / "services" / "default").absolute()


@contextlib.contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with locked(folder / ".lock", 120.0, "another process starts or stops these servers"):
            yield
    except OSError as exc:
        raise TrackerError(f"the servers' folder {folder} cannot be used: {exc.strerror or exc}") from exc


def _read(folder: Path) -> ServicesState | None:
    path = folder / _STATE
    try:
        return msgspec.json.decode(path.read_bytes(), type=ServicesState)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, OSError) as exc:
        raise TrackerError(f"{path} cannot be read: {exc}; look for servers with ps, stop them, delete it") from exc


def _write(folder: Path, state: ServicesState) -> None:
    part = folder / f"{_STATE}.part"
    part.write_bytes(msgspec.json.format(msgspec.json.encode(state), indent=2))
    part.replace(folder / _STATE)
