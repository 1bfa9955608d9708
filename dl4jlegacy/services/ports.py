"""Ports of this machine: which are free, and whether a Hazelcast member or a Zookeeper server answers on one."""

from __future__ import annotations

import contextlib
import errno
import http
import http.client
import json
import os
import re
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dl4jlegacy.errors import TrackerError
from dl4jlegacy.services.settings import HOST, health_port

__all__ = [
    "free_ports",
    "is_free",
    "is_of_this_machine",
    "listener",
    "member_answers",
    "zookeeper_answers",
    "zookeeper_version",
    "zookeeper_waits",
]

_FIRST, _LAST = 20_000, 32_000
"""Range of chosen ports, below the ports of outgoing connections, which might occupy one before the server starts."""

_TRIES = 1000
_ANSWER_SECONDS = 2.0
_ANSWER_BYTES = 65_536
_VERSION = re.compile(rb"Zookeeper version: *([0-9]+(?:\.[0-9]+)*)")
_LISTENING = "0A"
"""The state of a listening socket in ``/proc/net/tcp``."""


def free_ports(
    count: int,
    taken: Sequence[int] = (),
    host: str = HOST,
    *,
    together: Callable[[int], Sequence[int]] = lambda port: (port,),
) -> list[int]:
    """Return ``count`` different ports on which no process listens, none of them in ``taken``.

    Args:
        count: the number of ports.
        taken: ports not to use.
        host: the address.
        together: all ports used by a server that gets this port; no two servers share any of them.

    Raises:
        TrackerError: there are not enough free ports.
    """
    ports: list[int] = []
    used = set(taken)
    for _ in range(_TRIES):
        if len(ports) == count:
            return ports
        port = _FIRST + secrets.randbelow(_LAST - _FIRST)
        wanted = together(port)
        if max(wanted) < _LAST and used.isdisjoint(wanted) and all(is_free(each, host) for each in wanted):
            ports.append(port)
            used.update(wanted)
    raise TrackerError(f"no {count} free ports among {_FIRST} to {_LAST} of {host}; name some that are")


def is_of_this_machine(host: str) -> bool:
    """Return whether servers of this machine could listen on an address, at any port."""
    with contextlib.closing(socket.socket()) as probe:
        try:
            probe.bind((host, 0))
        except OSError as exc:
            return exc.errno != errno.EADDRNOTAVAIL
        return True


def is_free(port: int, host: str = HOST) -> bool:
    """Return whether a server could listen on the port."""
    with contextlib.closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def listener(port: int) -> str:
    """Return the process that listens on a port, in words; processes of other users are known to root only."""
    sockets = {f"socket:[{inode}]" for inode in _listening(port)}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(_link(file) in sockets for file in (process / "fd").iterdir()):
                return f"{(process / 'comm').read_text().strip()}, pid {process.name}"
    return "a process of another user"


def _listening(port: int) -> Iterator[str]:
    """Yield the inodes of the sockets that listen on a port, at any address."""
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]


def _link(file: Path) -> str:
    """Return the target of a process's open file; "" if it was closed meanwhile."""
    try:
        return os.readlink(file)
    except OSError:
        return ""


def zookeeper_answers(port: int, host: str = HOST) -> bool:
    """Return whether a Zookeeper server accepts requests, according to ``srvr``; ``ruok`` is answered too early."""
    return b"Mode: " in _srvr(port, host)


def zookeeper_waits(port: int, host: str = HOST) -> bool:
    """Return whether a Zookeeper server runs but does not serve, because it sees no majority of its ensemble."""
    return b"not currently serving" in _srvr(port, host)


def zookeeper_version(port: int, host: str = HOST) -> str:
    """Return the version that a Zookeeper server reports, such as ``3.9.5``; "" if it reports none."""
    found = _VERSION.search(_srvr(port, host))
    return found[1].decode() if found else ""


def _srvr(port: int, host: str) -> bytes:
    """Return the status that a Zookeeper server reports; b"" if nothing answers."""
    answer = b""
    with (
        contextlib.suppress(OSError),
        socket.create_connection((host, port), timeout=_ANSWER_SECONDS) as connection,
    ):
        connection.sendall(b"srvr")
        while len(answer) < _ANSWER_BYTES and (piece := connection.recv(_ANSWER_BYTES)):
            answer += piece
    return answer


def member_answers(port: int, members: int, host: str = HOST) -> bool:
    """Return whether a member with client port ``port`` has started and joined a cluster of at least ``members``.

    ``health`` alone calls a member active before it has joined the others. With several members, every entry must also
    have its backup, so that any one member may be lost from then on.
    """
    with contextlib.closing(http.client.HTTPConnection(host, health_port(port), timeout=_ANSWER_SECONDS)) as connection:
        try:
            if _get(connection, "/hazelcast/health/ready") is None:
                return False
            health = json.loads(_get(connection, "/hazelcast/health") or b"{}")
            backed_up = members == 1 or (health["clusterSafe"] is True and health["migrationQueueSize"] == 0)
            return bool(health["nodeState"] == "ACTIVE" and health["clusterSize"] >= members and backed_up)
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, RecursionError):
            return False


def _get(connection: http.client.HTTPConnection, path: str) -> bytes | None:
    """Return the body of a member's answer, None if its status is not 200."""
    connection.request("GET", path)
    with connection.getresponse() as response:
        body = response.read(_ANSWER_BYTES)
        return body if response.status == http.HTTPStatus.OK else None
