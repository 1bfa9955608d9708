"""Ports of this machine: which are free, and whether a Hazelcast member or a Zookeeper server answers on one."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
from collections.abc import Sequence

from dl4jlegacy.errors import TrackerError
from dl4jlegacy.services.settings import HOST

__all__ = ["free_ports", "is_free", "member_serves", "zookeeper_serves"]

_FIRST, _LAST = 20_000, 32_000
"""Below the ports that systems give to outgoing connections, one of which might be taken before a server has it."""

_TRIES = 1000
_ANSWER_SECONDS = 2.0
_ANSWER_BYTES = 65_536


def free_ports(count: int, taken: Sequence[int] = ()) -> list[int]:
    """Return different ports that nobody listens on, none of them among ``taken``.

    Raises:
        TrackerError: there are not as many.
    """
    ports: list[int] = []
    for _ in range(_TRIES):
        port = _FIRST + secrets.randbelow(_LAST - _FIRST)
        if port not in (*ports, *taken) and is_free(port):
            ports.append(port)
        if len(ports) == count:
            return ports
    raise TrackerError(f"no {count} free ports among {_FIRST} to {_LAST} of {HOST}; name some that are")


def is_free(port: int) -> bool:
    """Whether a server could listen there."""
    with contextlib.closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def zookeeper_serves(port: int) -> bool:
    """Whether a Zookeeper server takes requests: ``srvr`` knows, ``ruok`` is answered too early."""
    return b"Mode: " in _ask(port, b"srvr")


def member_serves(port: int, members: int) -> bool:
    """Whether a Hazelcast member takes part in a cluster of at least ``members``."""
    request = f"GET /hazelcast/health HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n"
    answer = _ask(port, request.encode())
    with contextlib.suppress(ValueError, KeyError, TypeError):
        health = json.loads(answer.partition(b"\r\n\r\n")[2])
        return bool(health["nodeState"] == "ACTIVE" and health["clusterSize"] >= members)
    return False


def _ask(port: int, question: bytes) -> bytes:
    """Return what a server answers until it closes the connection, ends a JSON object or says nothing for 2 s."""
    answer = b""
    with (
        contextlib.suppress(OSError),
        socket.create_connection((HOST, port), timeout=_ANSWER_SECONDS) as connection,
    ):
        connection.sendall(question)
        while len(answer) < _ANSWER_BYTES and not answer.endswith(b"}"):
            piece = connection.recv(_ANSWER_BYTES)
            if not piece:
                break
            answer += piece
    return answer
