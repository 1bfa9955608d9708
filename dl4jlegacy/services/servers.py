"""Starts Hazelcast and Zookeeper on this machine, waits until they answer, finds them again, and stops them.

Each set of servers has a folder with their configurations, logs and data, and ``services.json``, which lists them.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from dl4jlegacy import files
from dl4jlegacy.clock import Deadline
from dl4jlegacy.decoding import described
from dl4jlegacy.errors import ConfError, TrackerError, UsageError, counted
from dl4jlegacy.services.ensemble import Ensemble, ensemble_of, shared_cluster_name
from dl4jlegacy.services.jars import cache_folder, fetch_jars, locked, pinned_jars
from dl4jlegacy.services.java import Java, find_java
from dl4jlegacy.services.ports import (
    free_ports,
    is_free,
    listener,
    member_answers,
    zookeeper_answers,
    zookeeper_waits,
)
from dl4jlegacy.services.processes import ServerProcess, spawn, stop
from dl4jlegacy.services.settings import (
    HAZELCAST_PORT,
    HOST,
    MAX_HAZELCAST_PORT,
    ZOOKEEPER_PORT,
    member_command,
    member_ports,
    member_settings,
    zookeeper_command,
    zookeeper_settings,
)

__all__ = ["Server", "Services", "ServicesState"]

logger = logging.getLogger(__name__)

_STATE, _ZOOKEEPER_DATA = "services.json", "zookeeper-data"
_ATTEMPTS = 3
_POLL_SECONDS = 0.05
_LOG_LINES = 8
_PORT_FLAGS = {"h": "--hazelcast-port", "z": "--zookeeper-port"}
_CLUSTER_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_HEAP = re.compile(r"[1-9][0-9]*[mMgG]")


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """One server: ``"hazelcast-1"``, ``"hazelcast-2"``, ... or ``"zookeeper"``, and how it is started."""

    name: str
    port: int
    command: tuple[str, ...]
    process: ServerProcess | None = None
    host: str = HOST

    @property
    def is_running(self) -> bool:
        """True if its process is alive."""
        return self.process is not None and self.process.is_alive()

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"{self.host}:{self.port}"

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports that must be free when it is started: that of its address, and the two that a member has beside."""
        return (self.port,) if self.name == "zookeeper" else member_ports(self.port)

    def answers(self, members: int) -> bool:
        """Return True if it serves; a Hazelcast member only once it sees all ``members``."""
        if self.name == "zookeeper":
            return zookeeper_answers(self.port, self.host)
        return member_answers(self.port, members, self.host)

    def is_up(self, members: int, *, with_others: bool) -> bool:
        """Return True if it serves, or if it is one of several hosts' and does all that it can without the others."""
        waits = with_others and self.name == "zookeeper" and zookeeper_waits(self.port, self.host)
        return waits or self.answers(members)


class ServicesState(msgspec.Struct, frozen=True, kw_only=True):
    """A set of servers, as ``services.json`` keeps it; with an ensemble they are this host's part of a larger set."""

    cluster_name: str
    folder: str
    servers: tuple[Server, ...] = ()
    ensemble: Ensemble | None = None

    @property
    def hazelcast(self) -> str:
        """The members' addresses, ``host:port`` each, with commas between them; ``""`` if there are none."""
        if self.ensemble is not None:
            return ",".join(self.ensemble.hazelcast)
        return ",".join(s.address for s in self.members)

    @property
    def zookeeper(self) -> str:
        """The Zookeeper server's ``host:port``, or those of all with commas between them; ``""`` if there is none."""
        if self.ensemble is not None:
            return ",".join(self.ensemble.zookeeper)
        return next((s.address for s in self.servers if s.name == "zookeeper"), "")

    @property
    def members(self) -> tuple[Server, ...]:
        """The Hazelcast members on this host."""
        return tuple(s for s in self.servers if s.name != "zookeeper")

    @property
    def pids(self) -> dict[str, int]:
        """The process ids of the servers that run, by name."""
        return {s.name: s.process.pid for s in self.servers if s.process is not None and s.is_running}

    @property
    def stopped(self) -> tuple[str, ...]:
        """The names of the servers that should run and do not."""
        return tuple(s.name for s in self.servers if not s.is_running)

    @property
    def silent(self) -> tuple[str, ...]:
        """The names of the servers that run and do not answer; asking each of those takes up to 2 s.

        Of several hosts' also the member that does not see all others, or not all of its entries' backups with them.
        """
        members = 1 if self.ensemble is None else len(self.ensemble.member_hosts)
        return tuple(s.name for s in self.servers if s.is_running and not s.answers(members))

    def to_dict(self) -> dict[str, object]:
        """Return the fields that the command prints as JSON."""
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
    def folder(folder: Path | None = None) -> Path:
        """Return the folder's full path; by default one in the user's cache."""
        with files.errors_as(ConfError, f"folder {folder}", "give another --folder"):
            return files.expand(folder or cache_folder() / "services" / "default").absolute()

    @staticmethod
    def up(
        members: int = 1,
        hazelcast_port: int | None = 0,
        zookeeper_port: int | None = 0,
        cluster_name: str | None = None,
        folder: Path | None = None,
        *,
        zookeeper: bool = True,
        heap: str = "1g",
        host: str = HOST,
        hosts: Sequence[str] = (),
        witnesses: Sequence[str] = (),
        deadline_seconds: float = 60.0,
    ) -> ServicesState:
        """Start the servers and return once all answer; where some of the folder's run, start those that have ended.

        Those of one of several ``hosts`` are not waited for until they see the others', which may start later.

        Args:
            members: how many Hazelcast members; with two or more everything is kept twice.
            hazelcast_port: the first member's, the next ones' follow it; 0 for free ones, None for the usual ones
                (5701 and following) or, on loopback and with a warning, free ones if one of those is taken: on another
                host nobody would look there.
            zookeeper_port: Zookeeper's; 0 for a free one, None for the usual one (2181) or, likewise, a free one.
            cluster_name: what clients must name; by default a random one, which lasts until ``down``; for several
                hosts one that follows from the run's secret.
            folder: where configurations, logs, data and state go; one in the user's cache if ``None``.
            zookeeper: True to start Zookeeper too.
            heap: the most memory for the data of one member, as Java writes it (``512m``, ``1g``).
            host: the numeric address to bind, of this machine; whoever reaches it can read and change everything.
            hosts: three, five or seven addresses of hosts, ``host`` among them, each of which starts its own servers
                with these same arguments; together they are one set. None: this host's are a set by themselves.
            witnesses: those of ``hosts`` that have a Zookeeper server only.
            deadline_seconds: how long to wait for the answers; fetching Java's jars the first time comes on top.

        Raises:
            UsageError: all servers of this folder run already, or those that run have other settings than these, or a
                number is out of range.
            TrackerError: no Java, no jars, or a server that does not start; nothing is left running.
        """
        _check(members, hazelcast_port or 0, zookeeper_port or 0, zookeeper)
        _check_texts(cluster_name, heap, host)
        ensemble = _ensemble(host, hosts, witnesses, hazelcast_port, zookeeper_port, members, zookeeper)
        folder = Services.folder(folder)
        java = find_java()
        with _folder_lock(folder):
            before = _read(folder)
            if before is not None and before.pids:
                _check_incomplete(before)
                _check_same(
                    before,
                    members=members,
                    hazelcast_port=hazelcast_port or 0,
                    zookeeper_port=zookeeper_port or 0,
                    cluster_name=cluster_name or "",
                    host=host,
                    ensemble=ensemble,
                )
                return _start_stopped(before, deadline_seconds)
            kept = before.cluster_name if before is not None else ""  # after a crash clients find them again
            name = cluster_name or (shared_cluster_name(os.environ) if ensemble else kept)
            name = name or f"dl4j-{secrets.token_hex(8)}"
            factory = _ServerFactory(folder, java, cluster_name=name, heap=heap, host=host)
            if before is None or ensemble is None or before.ensemble != ensemble:
                factory.forget_zookeeper()  # one of several hosts' must not forget what it has told the others
            for attempts_left in reversed(range(_ATTEMPTS)):
                if ensemble is not None:
                    servers = factory.servers_of(ensemble)
                else:
                    servers = factory.servers(members, hazelcast_port, zookeeper_port, zookeeper)
                state = ServicesState(cluster_name=name, folder=str(folder), servers=servers, ensemble=ensemble)
                try:
                    return _start(state, deadline_seconds)
                except _PortTakenError:
                    if not attempts_left:
                        raise
        raise AssertionError("the last attempt returns or raises")

    @staticmethod
    def down(folder: Path | None = None) -> tuple[str, ...]:
        """Stop the servers of a folder, those that still run; return their names."""
        folder = Services.folder(folder)
        if not (folder / _STATE).exists():
            return ()
        with _folder_lock(folder):
            state = _read(folder)
            running = [s for s in state.servers if s.is_running] if state else []
            stop([s.process for s in running if s.process is not None])
            (folder / _STATE).unlink(missing_ok=True)
        return tuple(s.name for s in running)

    @staticmethod
    def status(folder: Path | None = None) -> ServicesState | None:
        """Return the servers of a folder, None if none were started there (or all were stopped)."""
        return _read(Services.folder(folder))

    @staticmethod
    def restart(name: str, folder: Path | None = None, *, deadline_seconds: float = 60.0) -> ServicesState:
        """Start one server again, on its port and with its data, stopping it first if it runs.

        Raises:
            UsageError: no such server.
            TrackerError: it does not start; the others keep running.
        """
        folder = Services.folder(folder)
        with _folder_lock(folder):
            state = _read(folder)
            server = next((s for s in state.servers if s.name == name), None) if state else None
            if state is None or server is None:
                known = ", ".join(s.name for s in state.servers) if state else "none"
                raise UsageError(f"{folder} has no server {name!r}; there are: {known}")
            if server.process is not None:
                stop([server.process])
            return _start(state, deadline_seconds, only=name)

    @staticmethod
    def start_stopped(folder: Path | None = None, *, deadline_seconds: float = 60.0) -> ServicesState | None:
        """Start the servers that have ended again, on their ports and with their data, with a warning for each.

        Returns:
            The servers; None if they were stopped by ``down``.

        Raises:
            TrackerError: one does not start; the others keep running.
        """
        folder = Services.folder(folder)
        with _folder_lock(folder):
            state = _read(folder)
            return None if state is None else _start_stopped(state, deadline_seconds)


class _PortTakenError(TrackerError):
    """Another process took a port after it was chosen."""


class _ServerFactory:
    """Writes the servers' configurations and command lines."""

    def __init__(self, folder: Path, java: Java, *, cluster_name: str, heap: str, host: str) -> None:
        self._folder, self._java, self._cluster, self._heap, self._host = folder, java, cluster_name, heap, host

    def servers(
        self, members: int, member_port: int | None, zookeeper_port: int | None, zookeeper: bool
    ) -> tuple[Server, ...]:
        """Return the servers, none of them started; for port 0 a free one, for None the usual one if it is free."""
        if member_port is None:
            usual = _all_member_ports(HAZELCAST_PORT, members)
            member_port = self._usual_or_free("Hazelcast", usual, taken=zookeeper_port)
        if zookeeper_port is None:
            zookeeper_port = self._usual_or_free("Zookeeper", [ZOOKEEPER_PORT] * zookeeper, taken=None)
        _check(members, member_port, zookeeper_port, zookeeper)
        if member_port:
            ports = [member_port + i for i in range(members)]
        else:
            ports = free_ports(members, taken=[zookeeper_port], host=self._host, together=member_ports)
        servers = [self._member(f"hazelcast-{i + 1}", port, ports) for i, port in enumerate(ports)]
        if zookeeper:
            taken = [each for server in servers for each in server.ports]
            servers.append(self._zookeeper(zookeeper_port or free_ports(1, taken=taken, host=self._host)[0]))
        return tuple(servers)

    def servers_of(self, ensemble: Ensemble) -> tuple[Server, ...]:
        """Return this host's servers of an ensemble, none of them started."""
        port = ensemble.hazelcast_port
        others = [each for each in ensemble.member_hosts if each != self._host]
        members = [] if self._host in ensemble.witnesses else [self._member("hazelcast-1", port, [port], others)]
        return (*members, self._zookeeper(ensemble.zookeeper_port, ensemble))

    def forget_zookeeper(self) -> None:
        """Remove what Zookeeper has of an earlier start."""
        shutil.rmtree(self._folder / _ZOOKEEPER_DATA / "version-2", ignore_errors=True)

    def _usual_or_free(self, what: str, usual: Sequence[int], *, taken: int | None) -> int:
        """Return the first of the usual ports; on loopback 0 and a warning if one of them is taken."""
        first = usual[0] if usual else 0
        if not ipaddress.ip_address(self._host).is_loopback:
            return first
        for port in usual:
            if port == taken or not is_free(port, self._host):
                logger.warning("port %d of %s is taken: %s gets a free one instead", port, self._host, what)
                return 0
        return first

    def _member(self, name: str, port: int, ports: Sequence[int], others: Sequence[str] = ()) -> Server:
        settings = self._folder / f"{name}.yaml"
        _write_private(settings, member_settings(port, ports, self._cluster, self._host, others=others).encode())
        jars = fetch_jars(pinned_jars("hazelcast"))
        command = tuple(member_command(self._java, jars, settings, self._heap, self._host))
        return Server(name=name, port=port, command=command, host=self._host)

    def _zookeeper(self, port: int, ensemble: Ensemble | None = None) -> Server:
        settings, data = self._folder / "zookeeper.cfg", self._folder / _ZOOKEEPER_DATA
        hosts = () if ensemble is None else ensemble.hosts
        _write_private(settings, zookeeper_settings(port, data, self._host, hosts=hosts).encode())
        if ensemble is not None:
            data.mkdir(exist_ok=True)
            _write_private(data / "myid", str(ensemble.number_of(self._host)).encode())
        jars = fetch_jars(pinned_jars("zookeeper"))
        command = tuple(zookeeper_command(self._java, jars, settings, "256m"))
        return Server(name="zookeeper", port=port, command=command, host=self._host)


def _write_private(path: Path, content: bytes) -> None:
    """Write a file atomically, for its owner only: the cluster's name in it is all that keeps other users out."""
    files.write(path, content, private=True)


def _start(state: ServicesState, deadline_seconds: float, only: str = "") -> ServicesState:
    """Start the servers (or ``only`` one) and wait for them; if that is interrupted, stop those that were started.

    The other members start when the first one answers: members that start together wait 5 s for each other, and each
    might consider itself the first.
    """
    folder, deadline = Path(state.folder), Deadline(deadline_seconds)
    wanted = [s for s in state.servers if only in ("", s.name)]
    later = [] if only else list(state.members[1:])
    _check_ports(wanted)
    started: list[Server] = []
    try:
        for group in ([s for s in wanted if s not in later], later):
            for server in group:
                log = folder / f"{server.name}.log"
                if not only:
                    log.unlink(missing_ok=True)  # of an earlier start
                new = msgspec.structs.replace(server, process=spawn(server.command, log))
                started.append(new)
                servers = tuple(new if s.name == new.name else s for s in state.servers)
                state = msgspec.structs.replace(state, servers=servers)
                _write_private(folder / _STATE, msgspec.json.format(msgspec.json.encode(state), indent=2))
            running = sum(s.is_running for s in state.members)
            _wait(started, running, deadline, folder, with_others=state.ensemble is not None)
    except BaseException:
        stop([s.process for s in started if s.process is not None], grace_seconds=1.0)
        if not only:
            (folder / _STATE).unlink(missing_ok=True)
        raise
    return state


def _start_stopped(state: ServicesState, deadline_seconds: float) -> ServicesState:
    for name in state.stopped:
        state = _start(state, deadline_seconds, only=name)
        server = next(s for s in state.servers if s.name == name)
        logger.warning("%s had ended; it runs again at %s, pid %d", name, server.address, state.pids.get(name, 0))
    return state


def _wait(servers: Sequence[Server], members: int, deadline: Deadline, folder: Path, *, with_others: bool) -> None:
    waiting = list(servers)
    while waiting:
        for server in waiting:
            if not server.is_running:
                _check_ports([server])
                raise TrackerError(f"{server.name} ended while it started; {_log_tail(folder / f'{server.name}.log')}")
        waiting = [s for s in waiting if not s.is_up(members, with_others=with_others)]
        if waiting and deadline.passed():
            late = waiting[0]
            raise TrackerError(
                f"{late.name} at {late.address} does not answer in time; {_log_tail(folder / f'{late.name}.log')}"
            )
        if waiting:
            time.sleep(_POLL_SECONDS)


def _log_tail(log: Path) -> str:
    try:
        lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    return f"the end of its log {log}:\n" + "\n".join(lines[-_LOG_LINES:])


def _ensemble(
    host: str,
    hosts: Sequence[str],
    witnesses: Sequence[str],
    hazelcast_port: int | None,
    zookeeper_port: int | None,
    members: int,
    zookeeper: bool,
) -> Ensemble | None:
    """Return the set of several hosts that this host's servers are to be of, None for a set of their own."""
    if hosts and (members != 1 or not zookeeper):
        raise UsageError(
            f"--hosts {','.join(hosts)}: each of several hosts has one Hazelcast member and one Zookeeper server, or, "
            "as a --witness, the latter only; leave out --members"
        )
    return ensemble_of(host, hosts, witnesses, hazelcast_port, zookeeper_port)


def _check(members: int, hazelcast_port: int, zookeeper_port: int, zookeeper: bool) -> None:
    if not 0 <= members <= 16 or members + zookeeper == 0:
        raise UsageError(f"{counted(members, 'member')}: 1 to 16 Hazelcast members can run on one machine")
    last = MAX_HAZELCAST_PORT + 1 - members
    for name, first, most in (("hazelcast", hazelcast_port, last), ("zookeeper", zookeeper_port, 65_535)):
        if first and not 1024 <= first <= most:
            raise UsageError(f"{name} port {first}: 1024 to {most}, or 0 for a free one")
    if zookeeper and hazelcast_port and zookeeper_port in _all_member_ports(hazelcast_port, members):
        raise UsageError(f"port {zookeeper_port} is to be Zookeeper's and a Hazelcast member's; give another one")


def _all_member_ports(first: int, members: int) -> list[int]:
    """Return the ports of as many members, of which the first one's clients use ``first``."""
    return [port for i in range(members) for port in member_ports(first + i)]


def _check_texts(cluster_name: str | None, heap: str, host: str) -> None:
    if cluster_name is not None and not _CLUSTER_NAME.fullmatch(cluster_name):
        raise UsageError(f"cluster name {cluster_name!r}: up to 64 letters, digits, dots, dashes and underscores")
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        raise UsageError(f"host {host!r}: the servers bind one numeric address, like 127.0.0.1") from None
    if not _HEAP.fullmatch(heap):
        raise UsageError(f"heap {heap!r}: megabytes or gigabytes as Java writes them, like 512m or 2g")


def _check_incomplete(state: ServicesState) -> None:
    if not state.stopped:
        raise UsageError(
            f"the servers of {state.folder} run already (Hazelcast {state.hazelcast or 'none'}, Zookeeper "
            f"{state.zookeeper or 'none'}); stop them with 'dl4j services down', or give another folder"
        )


def _check_same(
    state: ServicesState,
    *,
    members: int,
    hazelcast_port: int,
    zookeeper_port: int,
    cluster_name: str,
    host: str,
    ensemble: Ensemble | None,
) -> None:
    """Raise ``UsageError`` if something other than the defaults is asked for that the servers do not have."""
    first = state.members[0].port if state.members else 0
    wanted = (
        ("--members", members, (1, len(state.members))),
        ("--hazelcast-port", hazelcast_port, (0, first)),
        ("--zookeeper-port", zookeeper_port, (0, *(s.port for s in state.servers if s.name == "zookeeper"))),
        ("--cluster-name", cluster_name, ("", state.cluster_name)),
        ("--host", host, (HOST, *(s.host for s in state.servers))),
        ("--hosts", _hosts_of(ensemble), ("", _hosts_of(state.ensemble))),
    )
    other = [f"{flag} {asked} (theirs: {has[-1]})" for flag, asked, has in wanted if asked not in has]
    if other:
        raise UsageError(
            f"of the servers of {state.folder} {', '.join(state.stopped)} ended and can be started again, but not with "
            f"{', '.join(other)}; leave that out, or stop all with 'dl4j services down' first"
        )


def _hosts_of(ensemble: Ensemble | None) -> str:
    if ensemble is None:
        return ""
    return ",".join(f"{host} (witness)" if host in ensemble.witnesses else host for host in ensemble.hosts)


def _check_ports(servers: Sequence[Server]) -> None:
    for server in servers:
        for port in server.ports:
            if not is_free(port, server.host):
                beside = "" if port == server.port else f" (beside its {server.port})"
                raise _PortTakenError(
                    f"{server.name} cannot have port {port}{beside} of {server.host}, which is taken by "
                    f"{listener(port)}: stop that, or choose another with {_PORT_FLAGS[server.name[:1]]} (0: a free "
                    "one) and give that to whoever uses these servers"
                )


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
        return msgspec.json.decode(path.read_bytes(), type=described(ServicesState))
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError, OSError) as exc:
        raise TrackerError(f"{path} cannot be read: {exc}; look for servers with ps, stop them, delete it") from exc
