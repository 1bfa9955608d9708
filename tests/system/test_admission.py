"""Places at a port: how many, whose a newcomer gets, and how a server of HTTP keeps to that."""

from __future__ import annotations

import contextlib
import random
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dl4jlegacy.system import http_connections
from dl4jlegacy.system.admission import PORTS, Places, Seldom, most_connections
from dl4jlegacy.ui.api import _MOST_STREAMS
from tests.support.cluster_commands import until
from tests.support.dashboards import TrackedRun, served

PATIENCE = 30.0


def test_a_newcomer_takes_the_place_of_who_was_waited_for_longest() -> None:
    places = Places[str](3)
    assert [places.enter(who) for who in "abc"] == [None, None, None]
    places.serve("a")
    assert places.enter("d") == "b"
    places.leave("b")
    places.serve("d")
    places.wait("a")  # it has its answer: from now on it is waited for
    assert places.enter("e") == "c" and places.enter("f") == "a"
    places.serve("e")
    places.serve("f")
    assert places.enter("g") == "g", "all others are served"
    assert len(places) == 6
    for who in "cag":
        places.leave(who)
    assert len(places) == 3 and places.has_room()


@pytest.mark.parametrize("seed", range(20))
def test_whatever_clients_do_there_are_never_more_than_places_and_nobody_leaves_who_is_served(seed: int) -> None:
    rng, places, most = random.Random(seed), Places[int](5), 0
    inside, serving, leaving = set[int](), set[int](), set[int]()
    for number in range(2000):
        if places.has_room():
            leaves = places.enter(number)
            inside.add(number)
            if leaves is not None:
                assert leaves not in serving and leaves in inside - leaving
                leaving.add(leaves)
            assert leaves is not None or len(inside - leaving) <= 5
        for who in rng.sample(sorted(inside), min(len(inside), rng.randrange(4))):
            action = rng.choice(("serve", "wait", "leave"))
            getattr(places, action)(who)
            serving = serving | {who} if action == "serve" and who not in leaving else serving - {who}
            if action == "leave":
                inside.discard(who)
                leaving.discard(who)
        if rng.random() < 0.3:
            for who in list(leaving):
                places.leave(who)
                inside.discard(who)
                serving.discard(who)
            leaving.clear()
        assert len(inside - leaving) <= 5 and len(inside) == len(places) <= 5 + 8
        most = max(most, len(inside))
    assert most > 5


@pytest.mark.parametrize("files", [64, 256, 1024, 4096, 1 << 20, resource.RLIM_INFINITY])
def test_all_ports_together_leave_a_quarter_of_the_files_to_the_run(
    files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (files, files))
    taken = {port: most_connections(port) for port in PORTS}
    assert all(8 <= count <= PORTS[port][0] for port, count in taken.items())
    assert files in (64, resource.RLIM_INFINITY) or sum(taken.values()) + 8 * len(PORTS) <= 0.78 * files + 32
    assert taken["dashboard"] == {64: 8, 256: 16, 1024: 64}.get(files, 256)


def test_what_repeats_is_told_at_first_and_then_seldom() -> None:
    class Clock:
        time = 0.0

        def now(self) -> float:
            return self.time

    clock = Clock()
    seldom = Seldom(60.0, clock)
    told = []
    for second in range(200):
        clock.time = float(second)
        told += [(second, seldom.count)] if seldom.happens() else []
    assert [second for second, _ in told] == [0, 60, 120, 180] and seldom.count == 200


# -- over HTTP ---------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["httptools", "h11"])
def few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    """Where a dashboard of four connections is, read by either library."""
    if request.param == "httptools":
        pytest.importorskip("httptools")
        fast = http_connections.connection_type
        monkeypatch.setattr("dl4jlegacy.ui.server.connection_type", lambda is_fast: fast())
    monkeypatch.setattr("dl4jlegacy.ui.server.most_connections", lambda port: 4)
    monkeypatch.setattr(http_connections, "HEADER_SECONDS", 0.3)
    with served(TrackedRun()) as (client, _):
        yield client.base_url.host, client.base_url.port or 80


def said(line: socket.socket) -> bytes:
    """All that comes until the connection is closed."""
    line.settimeout(PATIENCE)
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while part := line.recv(65536):
            found += part
    return found


GET = b"GET /api/v1/run HTTP/1.1\r\nhost: localhost\r\n\r\n"
POST = b"POST /api/v1/stop HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n"


@pytest.mark.parametrize("begun", [b"", b"GET / HT", GET[:-2], POST, POST + b"x"])
def test_who_does_not_say_all_in_time_is_closed(few: tuple[str, int], begun: bytes) -> None:
    with socket.create_connection(few, timeout=PATIENCE) as line:
        line.sendall(begun)
        answer = said(line)
    wanted = b"HTTP/1.1 401" if begun.startswith(b"POST") else b""
    assert answer[: len(b"HTTP/1.1 401")] == wanted


def test_the_oldest_that_says_nothing_gives_its_place_to_a_newcomer(
    few: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connections, "HEADER_SECONDS", PATIENCE)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(few, timeout=PATIENCE)) for _ in range(10)]
        silent[9].sendall(b"GET /api/v1")
        with socket.create_connection(few, timeout=PATIENCE) as line:
            line.sendall(GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
            assert said(line).startswith(b"HTTP/1.1 200")
        assert all(said(each) == b"" for each in silent[:7])
        silent[9].sendall(b"/run HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        assert said(silent[9]).startswith(b"HTTP/1.1 200"), "it was not among the oldest"


def test_where_all_are_served_a_newcomer_is_told_so(few: tuple[str, int]) -> None:
    stream = GET.replace(b"/run", b"/stream")
    with contextlib.ExitStack() as stack:
        following = [stack.enter_context(socket.create_connection(few, timeout=PATIENCE)) for _ in range(4)]
        for line in following:
            line.sendall(stream)
            assert line.recv(100).startswith(b"HTTP/1.1 200")
        with socket.create_connection(few, timeout=PATIENCE) as line:
            assert said(line).startswith(b"HTTP/1.1 503")
        following[0].close()

        def is_answered() -> bool:
            with socket.create_connection(few, timeout=PATIENCE) as line:
                line.sendall(GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
                return said(line).startswith(b"HTTP/1.1 200")

        until(is_answered, PATIENCE)
    assert most_connections("dashboard") // 2 >= _MOST_STREAMS


def test_who_does_not_read_is_closed(few: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "UNREAD_SECONDS", (0.1, 0.2))
    with socket.create_connection(few, timeout=PATIENCE) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        asked = b"GET /dashboard.js HTTP/1.1\r\nhost: localhost\r\n\r\n" * 2000
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            while True:
                line.sendall(asked)


def test_a_client_is_not_late_while_the_server_does_not_read() -> None:
    """A server that has many requests reads no others until it has answered some: then comes the rest of one."""

    class Connection:
        is_paused, closed = True, False

        def __init__(self) -> None:
            self.later: list[Callable[[], None]] = []

        def call_later(self, seconds: float, call: Callable[[], None]) -> None:
            self.later.append(call)

        def is_reading(self) -> bool:
            return not self.is_paused

        def close(self) -> None:
            self.closed = True

        is_closing = set_write_buffer_limits = lambda self, **limits: False

    connection: Any = Connection()
    http_connections._Client(http_connections._Clients(1, 1), connection, connection)
    for _ in range(3):
        connection.later.pop()()
        assert not connection.closed and len(connection.later) == 1
    connection.is_paused = False
    connection.later.pop()()
    assert connection.closed


def test_who_asks_many_things_at_once_fills_no_memory(few: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """However many requests there are, as few wait in the server as come in one piece, and all are answered."""
    count, waiting, completed = 800, list[int](), http_connections._Bounded.on_response_complete

    def on_response_complete(self: Any) -> None:
        completed(self)
        is_fast = hasattr(self, "pipeline")
        waiting.append(len(self.pipeline) if is_fast else len(self.conn.trailing_data[0]) // len(request))

    monkeypatch.setattr(http_connections._Bounded, "on_response_complete", on_response_complete)
    request = GET.replace(b"\r\n\r\n", b"\r\nx: " + b"x" * 4000 + b"\r\n\r\n")
    last = GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    with socket.create_connection(few, timeout=PATIENCE) as line:
        sender = threading.Thread(target=line.sendall, args=(request * (count - 1) + last,))
        sender.start()
        answers = said(line)
        sender.join(PATIENCE)
    assert answers.count(b"HTTP/1.1 200") == count == len(waiting)
    assert max(waiting) < 200
