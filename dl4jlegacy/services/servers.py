"""Starts Hazelcast and Zookeeper on this machine, waits until they answer, finds them again, and stops them.

Each set of servers has a folder with its configurations, logs and data, and ``services.json``, which lists them.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from dl4jlegacy.errors import ConfError, TrackerError, UsageError
from dl4jlegacy.scaleout.zookeeper import guard_roots
from dl4jlegacy.services.ensemble import Ensemble, ensemble_of, shared_cluster_name
from dl4jlegacy.services.jars import cache_folder, fetch_jars, pinned_jars
from dl4jlegacy.services.java import Java, find_java
from dl4jlegacy.services.port_choice import MEMBER, ZOOKEEPER, PortChoice, check_numbers
from dl4jlegacy.services.ports import is_free, is_of_this_machine, listener
from dl4jlegacy.services.processes import spawn, stop
from dl4jlegacy.services.settings import HOST, member_command, member_settings, zookeeper_command, zookeeper_settings
from dl4jlegacy.services.state import (
    Server,
    ServicesState,
    folder_lock,
    forget_state,
    read_state,
    write_private,
    write_state,
)
from dl4jlegacy.system import files
from dl4jlegacy.system.clock import Deadline
from dl4jlegacy.system.secret import read_secret

__all__ = ["Server", "Services", "ServicesState"]

logger = logging.getLogger(__name__)

_ZOOKEEPER_DATA = "zookeeper-data"
_ATTEMPTS = 3
_POLL_SECONDS = 0.05
_LOG_LINES = 8
_PORT_FLAGS = {"h": "--hazelcast-port", "z": "--zookeeper-port"}
_CLUSTER_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_HEAP = re.compile(r"[1-9][0-9]*[mMgG]")


class Services:
    """Starts, finds and stops the servers of a folder. Several processes may call these functions at the same time."""

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
        """Start the servers and return when all answer; if some servers of the folder run, start only the others.

        With several ``hosts``, servers need not see those of other hosts yet, which may start later.

        Args:
            members: number of Hazelcast members; with two or more, all data have a backup.
            hazelcast_port: the first member's; the following ports are those of the next members. 0 and None: the ports
                that the folder's servers had at this address, for processes that still use them; otherwise 0 means free
                ports, and None the default ones (5701 and following). On loopback, taken ports are replaced by free
                ones with a warning; on another address they are not, because other hosts would not find them.
            zookeeper_port: Zookeeper's, likewise; the default is 2181.
            cluster_name: the name that clients must use. By default the folder's own, a random name that the folder
                keeps; for several hosts, a name derived from the run's secret.
            folder: for configurations, logs, data and state; None: a folder in the user's cache.
            zookeeper: whether to start Zookeeper, too.
            heap: maximum memory for the data of one member, in Java's notation (``512m``, ``1g``).
            host: the numeric address of this machine to bind; anybody who reaches it can read and change all data.
            hosts: three, five or seven addresses of hosts, including ``host``, each of which starts its own servers
                with the same arguments; together they form one set. Empty: this host is a set of its own.
            witnesses: those of ``hosts`` that have only a Zookeeper server.
            deadline_seconds: how long to wait for the answers; the first download of the jars is not included.

        Raises:
            UsageError: all servers of this folder run already, or the running ones have other settings, or a number is
                out of range.
            TrackerError: no Java, no jars, or a server does not start; no server is left running.
        """
        check_numbers(members, hazelcast_port or 0, zookeeper_port or 0, zookeeper)
        _check_texts(cluster_name, heap, host)
        ensemble = _ensemble(host, hosts, witnesses, hazelcast_port, zookeeper_port, members, zookeeper)
        folder = Services.folder(folder)
        java = find_java()
        with folder_lock(folder):
            before = read_state(folder)
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
            kept = before.cluster_name if before is not None else ""  # so that clients find them again after a crash
            name = cluster_name or (shared_cluster_name(os.environ) if ensemble else kept)
            name = name or f"dl4j-{secrets.token_hex(8)}"
            if not is_of_this_machine(host):
                raise UsageError(f"host {host} is no address of this machine; `ip -4 addr` lists those that it has")
            factory = _ServerFactory(folder, java, cluster_name=name, heap=heap, host=host)
            if before is None or before.is_down or ensemble is None or before.ensemble != ensemble:
                factory.forget_zookeeper()  # a server of an ensemble must not forget what it has told the others
            had = {s.name: s.port for s in before.servers if s.host == host} if before is not None else {}
            for attempts_left in reversed(range(_ATTEMPTS)):
                if ensemble is not None:
                    servers = factory.servers_of(ensemble)
                else:
                    servers = factory.servers(members, hazelcast_port, zookeeper_port, zookeeper, had)
                state = ServicesState(cluster_name=name, folder=str(folder), servers=servers, ensemble=ensemble)
                try:
                    return _start(state, deadline_seconds, before=before)
                except _PortTakenError:
                    if not attempts_left:
                        raise
        raise AssertionError("the last attempt returns or raises")

    @staticmethod
    def down(folder: Path | None = None) -> tuple[str, ...]:
        """Stop the running servers of a folder; return their names.

        Their data are lost. The folder keeps the cluster's name and the ports for the next servers.
        """
        folder = Services.folder(folder)
        if read_state(folder) is None:
            return ()
        with folder_lock(folder):
            state = read_state(folder)
            if state is None:
                return ()
            running = [s for s in state.servers if s.is_running]
            stop([s.process for s in running if s.process is not None])
            write_state(state.down())
        return tuple(s.name for s in running)

    @staticmethod
    def status(folder: Path | None = None) -> ServicesState | None:
        """Return the servers of a folder, None if none were started there (or all were stopped)."""
        state = Services.last(folder)
        return None if state is None or state.is_down else state

    @staticmethod
    def last(folder: Path | None = None) -> ServicesState | None:
        """Return the servers of a folder even if all were stopped; None if none were ever started there."""
        return read_state(Services.folder(folder))

    @staticmethod
    def restart(name: str, folder: Path | None = None, *, deadline_seconds: float = 60.0) -> ServicesState:
        """Restart one server, on its port and with its data; it is stopped first if it runs.

        Raises:
            UsageError: no such server.
            TrackerError: the server does not start; the others keep running.
        """
        folder = Services.folder(folder)
        with folder_lock(folder):
            state = read_state(folder)
            state = None if state is None or state.is_down else state
            server = next((s for s in state.servers if s.name == name), None) if state else None
            if state is None or server is None:
                known = ", ".join(s.name for s in state.servers) if state else "none"
                raise UsageError(f"{folder} has no server {name!r}; there are: {known}")
            if server.process is not None:
                stop([server.process])
            return _start(state, deadline_seconds, only=name)

    @staticmethod
    def start_stopped(folder: Path | None = None, *, deadline_seconds: float = 60.0) -> ServicesState | None:
        """Restart the servers that have ended, on their ports and with their data, with a warning for each.

        Returns:
            the servers; None if they were stopped by ``down``.

        Raises:
            TrackerError: a server does not start; the others keep running.
        """
        folder = Services.folder(folder)
        with folder_lock(folder):
            state = read_state(folder)
            return None if state is None or state.is_down else _start_stopped(state, deadline_seconds)


class _PortTakenError(TrackerError):
    """Another process took a port after it was chosen."""


class _ServerFactory:
    """Writes the servers' configurations and command lines."""

    def __init__(self, folder: Path, java: Java, *, cluster_name: str, heap: str, host: str) -> None:
        self._folder, self._java, self._cluster, self._heap, self._host = folder, java, cluster_name, heap, host

    def servers(
        self,
        members: int,
        member_port: int | None,
        zookeeper_port: int | None,
        zookeeper: bool,
        had: Mapping[str, int],
    ) -> tuple[Server, ...]:
        """Return the servers, not started yet, with ports chosen by ``PortChoice``."""
        ports, of_zookeeper = PortChoice(self._host, had).choose(members, member_port, zookeeper_port, zookeeper)
        servers = [self._member(MEMBER.format(i + 1), port, ports) for i, port in enumerate(ports)]
        return (*servers, self._zookeeper(of_zookeeper)) if zookeeper else tuple(servers)

    def servers_of(self, ensemble: Ensemble) -> tuple[Server, ...]:
        """Return this host's servers of an ensemble, not started yet."""
        port = ensemble.hazelcast_port
        others = [each for each in ensemble.member_hosts if each != self._host]
        members = [] if self._host in ensemble.witnesses else [self._member(MEMBER.format(1), port, [port], others)]
        return (*members, self._zookeeper(ensemble.zookeeper_port, ensemble))

    def forget_zookeeper(self) -> None:
        """Remove Zookeeper's data from an earlier start."""
        shutil.rmtree(self._folder / _ZOOKEEPER_DATA / "version-2", ignore_errors=True)

    def _member(self, name: str, port: int, ports: Sequence[int], others: Sequence[str] = ()) -> Server:
        settings = self._folder / f"{name}.yaml"
        text = member_settings(port, ports, self._cluster, self._host, others=others, heap=self._heap)
        write_private(settings, text.encode())
        jars = fetch_jars(pinned_jars("hazelcast"))
        command = tuple(member_command(self._java, jars, settings, self._heap, self._host))
        return Server(name=name, port=port, command=command, host=self._host)

    def _zookeeper(self, port: int, ensemble: Ensemble | None = None) -> Server:
        settings, data = self._folder / "zookeeper.cfg", self._folder / _ZOOKEEPER_DATA
        hosts = () if ensemble is None else ensemble.hosts
        write_private(settings, zookeeper_settings(port, data, self._host, hosts=hosts).encode())
        if ensemble is not None:
            data.mkdir(exist_ok=True)
            write_private(data / "myid", str(ensemble.number_of(self._host)).encode())
        jars = fetch_jars(pinned_jars("zookeeper"))
        command = tuple(zookeeper_command(self._java, jars, settings, "256m"))
        return Server(name=ZOOKEEPER, port=port, command=command, host=self._host)


def _start(
    state: ServicesState, deadline_seconds: float, only: str = "", *, before: ServicesState | None = None
) -> ServicesState:
    """Start the servers (or ``only`` one) and wait for them; after an error or interrupt, stop the started servers.

    Unless it is for ``only`` one, the folder then gets back the state ``before``.

    The other members start after the first one answers: members that start together wait 5 s for each other, and each
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
                    log.unlink(missing_ok=True)  # log of an earlier start
                new = msgspec.structs.replace(server, process=spawn(server.command, log))
                started.append(new)
                servers = tuple(new if s.name == new.name else s for s in state.servers)
                state = msgspec.structs.replace(state, servers=servers)
                write_state(state)
            running = sum(s.is_running for s in state.members)
            _wait(started, running, deadline, folder, with_others=state.ensemble is not None)
        if not only:
            _guard(state, deadline)
    except BaseException:
        stop([s.process for s in started if s.process is not None], grace_seconds=1.0)
        if not only and before is None:
            forget_state(folder)
        elif not only and before is not None:
            write_state(before)
        raise
    return state


def _start_stopped(state: ServicesState, deadline_seconds: float) -> ServicesState:
    for name in state.stopped:
        state = _start(state, deadline_seconds, only=name)
        server = next(s for s in state.servers if s.name == name)
        logger.warning("%s had ended; it runs again at %s, pid %d", name, server.address, state.pids.get(name, 0))
    return state


def _guard(state: ServicesState, deadline: Deadline) -> None:
    """Prevent anybody from locking others out of Zookeeper; with a secret, only its owners may add data.

    In an ensemble, a host whose start finds the servers serving does this for all.
    """
    ensemble = state.ensemble
    for server in state.servers:
        if server.name == ZOOKEEPER and (ensemble is None or server.answers(1)):
            names = () if ensemble is None else ensemble.hosts
            guard_roots(server.address, names=names, secret=read_secret(os.environ), seconds=max(5.0, deadline.left()))


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
    """Return the ensemble of several hosts for this host's servers, None if this host is alone."""
    if hosts and (members != 1 or not zookeeper):
        raise UsageError(
            f"--hosts {','.join(hosts)}: each of several hosts has one Hazelcast member and one Zookeeper server, or, "
            "as a --witness, the latter only; leave out --members"
        )
    return ensemble_of(host, hosts, witnesses, hazelcast_port, zookeeper_port)


def _check_texts(cluster_name: str | None, heap: str, host: str) -> None:
    if cluster_name is not None and not _CLUSTER_NAME.fullmatch(cluster_name):
        raise UsageError(f"cluster name {cluster_name!r}: up to 64 letters, digits, dots, dashes and underscores")
    try:
        address = ipaddress.IPv4Address(host)
    except ValueError:
        raise UsageError(f"host {host!r}: the servers bind one numeric address, like 127.0.0.1") from None
    if address.is_unspecified:
        raise UsageError(
            f"host {host} is every address of this machine, to which nobody can connect; give the one by which others "
            "reach it (`ip -4 addr` lists them)"
        )
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
    """Raise ``UsageError`` if non-default settings are requested that the servers do not have."""
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
