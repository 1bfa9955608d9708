"""Makes Zookeeper expire a session that belongs to another process.

A client that knows the number and the password of a session can take it over and close it. The server computes the
password from the number (``ZooKeeperServer.generatePasswd``): sixteen bytes of ``java.util.Random``, seeded with the
number and a constant.
"""

from __future__ import annotations

import socket
import struct

from dl4jlegacy.errors import TrackerError
from dl4jlegacy.system.clock import Deadline

__all__ = ["expire_session", "session_password"]

_SERVER_SECRET = 0xB3415C00
_MULTIPLIER, _ADDEND, _MASK = 0x5DEECE66D, 0xB, (1 << 48) - 1
_CLOSE = -11
_MOST_NBYTES = 4096
_CONNECT = struct.Struct(">iqiqi16s?")  # protocol, last zxid, timeout in ms, session, length, password, read-only


def session_password(session: int) -> bytes:
    """Return the password of a session on a Zookeeper server."""
    state = (session ^ _SERVER_SECRET ^ _MULTIPLIER) & _MASK
    words = []
    for _ in range(4):
        state = (state * _MULTIPLIER + _ADDEND) & _MASK
        words.append(state >> 16)
    return struct.pack("<4I", *words)


def expire_session(address: str, session: int, *, deadline_seconds: float = 5.0) -> None:
    """End ``session`` at the server ``address`` (``host:port``); its owner is notified that it has expired.

    The owner may take the session back before it is closed, or before the take-over is confirmed to us; then it is
    taken over once more.

    Raises:
        TrackerError: the server does not answer, or knows no such session; or the session is taken back repeatedly.
    """
    deadline, was_taken_back = Deadline(deadline_seconds), False
    try:
        while (outcome := _take_over_and_close(address, session, deadline_seconds)) == "taken back":
            was_taken_back = True
            if deadline.passed():
                raise TrackerError(
                    f"the session {session:#x} at Zookeeper {address} was not ended in {deadline_seconds:g} s: its "
                    "owner takes it back every time"
                )
    except (OSError, struct.error) as exc:
        raise TrackerError(f"the session {session:#x} at Zookeeper {address} could not be ended: {exc}") from exc
    if outcome == "unknown" and not was_taken_back:
        raise TrackerError(f"Zookeeper at {address} knows no session {session:#x}")


def _take_over_and_close(address: str, session: int, seconds: float) -> str:
    """Return whether the session was "closed", was "taken back" before that, or is "unknown" there."""
    host, _, port = address.rpartition(":")
    request = _CONNECT.pack(0, 0, 10_000, session, 16, session_password(session), False)
    with socket.create_connection((host, int(port)), timeout=seconds) as connection:
        try:
            connection.sendall(struct.pack(">i", len(request)) + request)
            if struct.unpack_from(">i", _frame(connection), 4)[0] <= 0:  # the granted timeout
                return "unknown"
            connection.sendall(struct.pack(">iii", 8, 1, _CLOSE))
            _frame(connection)
        except ConnectionError:  # a server drops a session's earlier owners at a take-over
            return "taken back"
    return "closed"


def _frame(connection: socket.socket) -> bytes:
    (length,) = struct.unpack(">i", _exactly(connection, 4))
    if not 0 <= length <= _MOST_NBYTES:
        raise OSError(f"an answer of {length} bytes")
    return _exactly(connection, length)


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise ConnectionError(f"the connection ended after {len(data)} of {count} bytes")
        data += piece
    return data
