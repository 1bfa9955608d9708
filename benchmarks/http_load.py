"""Load for an HTTP server: keep-alive connections on one thread that send the same request repeatedly.

The work for each request is minimal, because the load takes time of the server's cores.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections import deque
from collections.abc import Sequence
from urllib.parse import urlsplit

_RECEIVE = 1 << 16
_DEADLINE_SECONDS = 120.0


def request_of(url: str, body: bytes, headers: Sequence[tuple[str, str]]) -> bytes:
    """Return the bytes of a POST request."""
    parts = urlsplit(url)
    lines = [f"POST {parts.path} HTTP/1.1", f"host: {parts.netloc}", f"content-length: {len(body)}"]
    return "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers), "", ""]).encode() + body


class Connection:
    """A connection with at most one active request."""

    def __init__(self, url: str, request: bytes) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self.socket = socket.create_connection((parts.hostname, parts.port or 80), timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self._request, self._sent, self._received = request, 0, b""
        self._wanted = 0
        self.due = 0.0
        """When the active request was to be sent."""

    def begin(self, due: float) -> bool:
        """Send the request; return whether it was sent completely."""
        self.due, self._sent, self._received, self._wanted = due, 0, b"", 0
        return self.send()

    def send(self) -> bool:
        """Send the rest; return whether the request was sent completely."""
        while self._sent < len(self._request):
            try:
                self._sent += self.socket.send(memoryview(self._request)[self._sent :])
            except BlockingIOError:
                return False
        return True

    def receive(self) -> bool:
        """Return whether the answer is complete; raises ``RuntimeError`` if its status is not 200."""
        part = self.socket.recv(_RECEIVE)
        if not part:
            raise RuntimeError(f"the server hung up after {self._received[:200]!r}")
        self._received = self._received + part if self._received else part
        if not self._wanted:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return False
            if not self._received.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"the server answered {self._received[:400]!r}")
            head = self._received[:end].lower()
            length = head.index(b"content-length: ") + 16
            self._wanted = end + 4 + int(head[length:].split(b"\r\n", 1)[0])
        return len(self._received) >= self._wanted


class Load:
    """Several connections to one address; a context manager."""

    def __init__(self, url: str, request: bytes, count: int) -> None:
        self.connections: list[Connection] = []
        self._selector = selectors.DefaultSelector()
        self.add([Connection(url, request) for _ in range(count)])

    def add(self, connections: Sequence[Connection]) -> None:
        """Add connections."""
        for each in connections:
            self._selector.register(each.socket, selectors.EVENT_READ, each)
            self.connections.append(each)

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        for each in self.connections:
            each.socket.close()

    def closed_loop(self, seconds: float) -> float:
        """Return the requests per second if each connection sends its next request after the last answer."""
        began, done = time.perf_counter(), 0
        for each in self.connections:
            self._begin(each, 0.0)
        open_now = len(self.connections)
        while open_now:
            for each in self._answered(1.0):
                now = time.perf_counter()
                if now - began < seconds:
                    done += 1
                    self._begin(each, 0.0)
                else:
                    open_now -= 1
            if time.perf_counter() - began > seconds + _DEADLINE_SECONDS:
                raise RuntimeError("the server does not answer")
        return done / seconds

    def all_at_once(self, connections: Sequence[Connection], seconds: float) -> None:
        """Send a request on all of these connections at once, and wait for all answers."""
        began, left = time.perf_counter(), len(connections)
        for each in connections:
            self._begin(each, 0.0)
        while left:
            left -= len(self._answered(1.0))
            if time.perf_counter() - began > seconds:
                raise RuntimeError(f"{left} requests are not answered after {seconds:g} s")

    def open_loop(self, dues: Sequence[float]) -> list[float]:
        """Return, for each request, the seconds from its due time (after the start) until its complete answer.

        If no connection is free for a request, it waits, and that time counts.
        """
        began, free, latencies, waiting = time.perf_counter(), deque(self.connections), list[float](), deque(dues)
        while len(latencies) < len(dues):
            now = time.perf_counter() - began
            while free and waiting and waiting[0] <= now:
                self._begin(free.popleft(), waiting.popleft())
            left = max(0.0, waiting[0] - now) if waiting and free else 1.0
            for each in self._answered(left):
                latencies.append(time.perf_counter() - began - each.due)
                free.append(each)
            if now > dues[-1] + _DEADLINE_SECONDS:
                raise RuntimeError("the server does not answer")
        return latencies

    def _begin(self, connection: Connection, due: float) -> None:
        if not connection.begin(due):
            self._selector.modify(connection.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, connection)

    def _answered(self, seconds: float) -> list[Connection]:
        found = []
        for key, events in self._selector.select(seconds):
            each: Connection = key.data
            if events & selectors.EVENT_WRITE and each.send():
                self._selector.modify(each.socket, selectors.EVENT_READ, each)
            if events & selectors.EVENT_READ and each.receive():
                found.append(each)
        return found
