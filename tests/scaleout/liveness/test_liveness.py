"""The direct connection between workers and master: who is killed, frozen or a stranger is noticed, and in time."""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from dl4jlegacy.errors import ConfError
from dl4jlegacy.scaleout.links.liveness import client as liveness_client
from dl4jlegacy.scaleout.links.liveness import server as liveness_server
from dl4jlegacy.scaleout.links.liveness.client import LivenessClient
from dl4jlegacy.scaleout.links.liveness.failure_detector import StallDetector
from dl4jlegacy.scaleout.links.liveness.handshake import (
    CHALLENGE_NBYTES,
    WELCOME_NBYTES,
    ClientHandshake,
    Credentials,
    ServerHandshake,
)
from dl4jlegacy.scaleout.links.liveness.server import AWAY, BEAT, BYE, LivenessServer, parsed_address
from tests.support.child_process import ChildProcess
from tests.support.waiting import AskedSeconds

SECRET = b"a secret of this test"
PATIENCE = 60.0
"""Seconds after which what should have happened at once never will."""


class Seen:
    """What was reported, in order, with the time."""

    def __init__(self) -> None:
        self._queue: queue.Queue[tuple[str, str, float]] = queue.Queue()

    def __call__(self, who: str, state: str) -> None:
        self._queue.put((who, state, time.monotonic()))

    def next(self, state: str, seconds: float = PATIENCE) -> tuple[str, float]:
        """Assert that the next report is of ``state``; return whom it is of and when it came."""
        who, found, when = self._queue.get(timeout=seconds)
        assert found == state, f"{who} is {found}, not {state}"
        return who, when

    def nothing(self, seconds: float) -> None:
        with pytest.raises(queue.Empty):
            unexpected = self._queue.get(timeout=seconds)
            pytest.fail(f"{unexpected} was reported")


class Child(ChildProcess):
    """A process with one end of the connection in it."""

    def __init__(self, *arguments: str) -> None:
        super().__init__("liveness_process.py", *arguments)

    def next(self, event: str, seconds: float = PATIENCE) -> dict:
        said = json.loads(self.said.get(timeout=seconds))
        assert said["event"] == event, said
        return said

    def send(self, number: signal.Signals) -> float:
        """Send a signal; return when."""
        now = time.monotonic()
        self.process.send_signal(number)
        return now


@pytest.fixture
def child() -> Iterator[Callable[..., Child]]:
    with contextlib.ExitStack() as stack:

        def start(*arguments: str) -> Child:
            started = Child(*arguments)
            stack.callback(started.end)
            return started

        yield start


@contextlib.contextmanager
def serving(
    seen: Callable[[str, str], None], *, secret: bytes | None = SECRET, **more: object
) -> Iterator[LivenessServer]:
    with LivenessServer("127.0.0.1", run="run", secret=secret, on_change=seen, **more) as server:
        yield server


def linked(address: str, seen: Callable[[str, str], None], process: str = "host-1-a", **more: object) -> LivenessClient:
    return LivenessClient(lambda: address, process, on_change=seen, **{"run": "run", "secret": SECRET, **more})


def until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    end, pause = time.monotonic() + seconds, threading.Event()
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s"
        pause.wait(0.01)


# --- both ends are well ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("secret", [SECRET, None])
def test_both_ends_see_each_other_come_and_leave(secret: bytes | None) -> None:
    at_master, at_worker = Seen(), Seen()
    with serving(at_master, secret=secret) as server:
        with linked(server.address, at_worker, secret=secret) as link:
            assert at_master.next("alive")[0] == "host-1-a"
            assert at_worker.next("alive")[0] == server.address
            assert link.state == "alive"
            peer = server.peers()["host-1-a"]
            assert (peer.state, peer.host) == ("alive", "127.0.0.1")
        at_master.next("left")
        assert server.peers()["host-1-a"].state == "left"
        with linked(server.address, at_worker, secret=secret):
            at_worker.next("alive")
            at_master.next("alive")
            server.stop()
            at_worker.next("left")
    at_master.nothing(0.1)


def test_who_leaves_while_the_masters_welcome_is_on_its_way_has_left_and_was_not_killed() -> None:
    seen, last = Seen(), threading.Event()

    class Leaving(LivenessClient):
        def _receive(self, line: socket.socket, nbytes: int, deadline: float) -> bytes:
            if nbytes == WELCOME_NBYTES:
                assert last.wait(PATIENCE)
                self._stopping.set()
            return super()._receive(line, nbytes, deadline)

    with serving(seen) as server, Leaving(lambda: server.address, "worker", run="run", secret=SECRET):
        seen.next("alive")
        last.set()
        seen.next("left")


def test_a_connection_that_is_well_stays_for_longer_than_a_silence() -> None:
    at_master, at_worker = Seen(), Seen()
    with (
        serving(at_master, silence_seconds=0.9) as server,
        linked(server.address, at_worker, silence_seconds=0.9),
    ):
        at_master.next("alive")
        at_worker.next("alive")
        at_master.nothing(2.5)
        at_worker.nothing(0.1)


def test_many_processes_at_once() -> None:
    at_master, at_workers = Seen(), Seen()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serving(at_master))
        for number in range(100):
            stack.enter_context(linked(server.address, at_workers, f"host-{number}-a"))
        assert {at_master.next("alive")[0] for _ in range(100)} == {f"host-{n}-a" for n in range(100)}
        for _ in range(100):
            at_workers.next("alive")


# --- processes that are killed or frozen -----------------------------------------------------------------------------


def test_a_silence_is_noticed_half_a_second_after_it_has_become_one() -> None:
    assert inspect.signature(LivenessServer).parameters["silence_seconds"].default == 2.0
    assert inspect.signature(LivenessClient).parameters["silence_seconds"].default == 2.0
    assert max(liveness_server._LOOK_SECONDS, liveness_client._LOOK_SECONDS) <= 0.5
    seen: list[tuple[str, str]] = []
    ours, theirs = socket.socketpair()
    with serving(lambda who, state: seen.append((who, state))) as server:
        assert server._pause() <= 0.5
        server.stop()
        peer = liveness_server._Connection(ours, "h", 0.0, ServerHandshake(Credentials("run", None)), "p", heard=100.0)
        server._connected["p"] = peer
        server._find_silent(101.99)
        assert seen == []
        server._find_silent(102.01)
        assert seen == [("p", "silent")]
    ours.close()
    theirs.close()


def test_a_killed_worker_is_noticed_at_once(child: Callable[..., Child], record_property: Callable[..., None]) -> None:
    """By the end of its connection: whoever waited for a silence would report that instead."""
    seen = Seen()
    with serving(seen) as server:
        worker = child("link", server.address, "host-1-a", SECRET.decode())
        seen.next("alive")
        killed = worker.send(signal.SIGKILL)
        process, when = seen.next("closed")
        assert process == "host-1-a"
        record_property("seconds", when - killed)


@pytest.mark.long
def test_a_frozen_worker_is_noticed_and_seen_back(
    child: Callable[..., Child], record_property: Callable[..., None]
) -> None:
    seen = Seen()
    with serving(seen) as server:
        worker = child("link", server.address, "host-1-a", SECRET.decode())
        worker.next("alive")
        seen.next("alive")
        for _ in range(2):
            frozen = worker.send(signal.SIGSTOP)
            when = seen.next("silent")[1]
            record_property("seconds", when - frozen)
            peer = server.peers()["host-1-a"]
            assert peer.since - peer.heard >= 2.0
            worker.send(signal.SIGCONT)
            seen.next("alive")
        assert worker.said.empty(), "a process that was frozen itself must not take its master for silent"


def test_a_killed_master_is_noticed_at_once_and_its_successor_found(
    child: Callable[..., Child], record_property: Callable[..., None]
) -> None:
    seen, masters = Seen(), [child("serve", SECRET.decode()) for _ in range(2)]
    addresses = [master.next("ready")["address"] for master in masters]
    where = list(addresses)
    with LivenessClient(lambda: where[0], "host-1-a", run="run", secret=SECRET, on_change=seen):
        assert seen.next("alive")[0] == addresses[0]
        where.pop(0)
        killed = masters[0].send(signal.SIGKILL)
        when = seen.next("closed")[1]
        record_property("seconds", when - killed)
        assert seen.next("alive")[0] == addresses[1]
        masters[1].next("alive")


@pytest.mark.long
def test_a_frozen_master_is_noticed_and_takes_nobody_for_gone_when_it_is_back(
    child: Callable[..., Child], record_property: Callable[..., None]
) -> None:
    seen, master = Seen(), child("serve", SECRET.decode())
    with linked(master.next("ready")["address"], seen):
        seen.next("alive")
        master.next("alive")
        frozen = master.send(signal.SIGSTOP)
        when = seen.next("silent")[1]
        record_property("seconds", when - frozen)
        seen.nothing(2.5)  # the kernel goes on accepting for a frozen process; that is no sign of life
        master.send(signal.SIGCONT)
        seen.next("alive")
        seen.nothing(1.0)
    assert master.next("left")["process"] == "host-1-a", "nothing else, between its coming and its leaving"


def test_a_process_that_stood_still_judges_nobody_for_a_while() -> None:
    detector = StallDetector(1.0, grace_seconds=1.0)
    assert not detector.has_stalled(0.0)
    assert [not detector.has_stalled(now) for now in (0.2, 0.4, 30.0, 30.5, 30.9, 31.1)] == [
        True,
        True,
        False,
        False,
        False,
        True,
    ]


# --- strangers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("here", "there", "words"),
    [
        ({"secret": b"another"}, SECRET, "secrets differ"),
        ({"secret": None}, SECRET, "the worker has none"),
        ({}, None, "the master has none"),
        ({"run": "another"}, SECRET, "different runs"),
    ],
)
def test_a_wrong_secret_is_refused_and_both_sides_say_so(
    here: dict, there: bytes | None, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen()
    caplog.set_level(logging.WARNING)
    with serving(seen, secret=there) as server, linked(server.address, seen, **here) as link:
        until(lambda: len(caplog.records) >= 2)
        assert server.peers() == {}
        assert link.state is None
    seen.nothing(0.05)
    assert sorted({r.name.rpartition(".")[2] for r in caplog.records}) == ["client", "server"]
    assert all(words in r.getMessage() for r in caplog.records)
    assert not any("another" in r.getMessage() or SECRET.decode() in r.getMessage() for r in caplog.records)


def test_a_server_that_does_not_prove_itself_is_not_the_master(caplog: pytest.LogCaptureFixture) -> None:
    seen = Seen()
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        linked(f"127.0.0.1:{listener.getsockname()[1]}", seen) as link,
    ):
        listener.settimeout(PATIENCE)
        accepted, _ = listener.accept()
        with accepted:
            accepted.sendall(ServerHandshake(Credentials("run", None)).challenge)
            assert accepted.recv(1024)
            accepted.sendall(b"W".ljust(WELCOME_NBYTES, b"w") + bytes((BEAT,)))
            accepted.settimeout(PATIENCE)
            with contextlib.suppress(ConnectionResetError):
                assert accepted.recv(1024) == b"", "the worker hangs up"
        until(lambda: bool(caplog.records))
        assert "does not prove" in caplog.text
        assert link.state is None
    seen.nothing(0.05)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(100_000), b"DL4J liveness 1\n"])
def test_a_worker_goes_on_without_when_something_else_listens_there(answer: bytes) -> None:
    seen = Seen()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with linked(f"127.0.0.1:{listener.getsockname()[1]}", seen) as link:
            listener.settimeout(PATIENCE)
            accepted, _ = listener.accept()
            with accepted, contextlib.suppress(OSError):
                accepted.sendall(answer)
            again, _ = listener.accept()
            again.close()
            assert link.state is None
        seen.nothing(0.05)


@pytest.mark.parametrize(
    "said",
    [
        b"\0",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        b"DL4J liveness 1\n" + bytes(1000),
        b"DL4J liveness 1\n" + b"\xff" * 1000,
        bytes(5_000_000),
    ],
    ids=["zero", "http", "tls", "zeros", "ones", "much"],
)
def test_garbage_is_cut_off_and_hurts_nobody(said: bytes) -> None:
    seen = Seen()
    with serving(seen) as server, linked(server.address, seen):
        seen.next("alive")
        seen.next("alive")
        with socket.create_connection(parsed_address(server.address), timeout=PATIENCE) as stranger:
            with contextlib.suppress(OSError):
                stranger.sendall(said)
            with contextlib.suppress(ConnectionResetError):
                heard = b"".join(iter(lambda: stranger.recv(1024), b""))
                assert len(heard) in (CHALLENGE_NBYTES, CHALLENGE_NBYTES + WELCOME_NBYTES)
        seen.nothing(0.3)
        assert list(server.peers()) == ["host-1-a"]


def test_a_stranger_that_says_nothing_or_one_byte_at_a_time_is_cut_off_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness_server, "HANDSHAKE_SECONDS", 0.5)
    said = b"DL4J liveness 1\n" + bytes(32) + b"\1"
    with (
        serving(Seen()) as server,
        socket.create_connection(parsed_address(server.address), timeout=PATIENCE) as mute,
        socket.create_connection(parsed_address(server.address), timeout=PATIENCE) as slow,
    ):
        pause = threading.Event()
        with pytest.raises(OSError):  # reset or broken pipe, whichever comes first
            for byte in said * 100:
                slow.send(bytes((byte,)))
                pause.wait(0.02)
        with contextlib.suppress(ConnectionResetError):
            assert len(mute.recv(1024)) == CHALLENGE_NBYTES
            assert mute.recv(1024) == b""


def test_there_is_a_bound_on_strangers_and_workers_still_get_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness_server, "MOST_PENDING", 8)
    at_master, at_worker = Seen(), Seen()
    process = psutil.Process()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serving(at_master))
        strangers = [
            stack.enter_context(socket.create_connection(parsed_address(server.address), timeout=PATIENCE))
            for _ in range(60)
        ]
        stack.enter_context(linked(server.address, at_worker))
        port = parsed_address(server.address)[1]

        def held() -> int:
            found = process.net_connections(kind="tcp")
            return sum(c.laddr.port == port and c.status == "ESTABLISHED" and c.fd >= 0 for c in found)

        most = 0
        while True:
            most = max(most, held())
            with contextlib.suppress(queue.Empty, AssertionError):
                at_worker.next("alive", 0.02)
                break
            assert len(strangers) == 60
        assert most <= 8 + 1
        at_master.next("alive")


# --- the protocol, spoken by hand ------------------------------------------------------------------------------------


def by_hand(server: LivenessServer, process: str = "host-1-a") -> socket.socket:
    """Return a connection after its handshake."""
    line = socket.create_connection(parsed_address(server.address), timeout=PATIENCE)
    handshake = ClientHandshake(Credentials("run", SECRET), process)
    line.sendall(handshake.hello(line.recv(CHALLENGE_NBYTES, socket.MSG_WAITALL)))
    handshake.check_welcome(line.recv(WELCOME_NBYTES, socket.MSG_WAITALL))
    return line


def test_silence_a_beat_after_it_and_what_is_no_beat() -> None:
    seen = Seen()
    with serving(seen, silence_seconds=0.4) as server, by_hand(server) as line:
        seen.next("alive")
        seen.next("silent")
        line.sendall(bytes((BEAT,)) * 900)
        seen.next("alive")
        line.sendall(b"BBBZ")
        seen.next("closed")


def test_who_says_that_it_connects_anew_has_a_silence_to_do_so() -> None:
    seen = Seen()
    with serving(seen, silence_seconds=1.0) as server:
        with by_hand(server) as line:
            seen.next("alive")
            line.sendall(bytes((AWAY,)))
        with by_hand(server):
            seen.nothing(0.3)
            assert server.peers()["host-1-a"].state == "alive"
        seen.next("closed")
        with by_hand(server) as line:
            seen.next("alive")
            line.sendall(bytes((BEAT, AWAY)))
        seen.next("silent")


def test_a_newer_connection_of_a_process_takes_the_place_of_its_old_one() -> None:
    seen = Seen()
    with serving(seen) as server, by_hand(server) as old, by_hand(server) as new:
        seen.next("alive")
        assert set(b"".join(iter(lambda: old.recv(64), b""))) <= {BEAT}
        seen.nothing(0.2)
        new.sendall(bytes((BYE,)))
        seen.next("left")


def test_a_silent_connection_is_given_up_in_the_end_and_only_the_newest_that_are_gone_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(liveness_server, "_SILENT_KEPT_SECONDS", 0.6)
    monkeypatch.setattr(liveness_server, "MOST_GONE", 3)
    seen = Seen()
    with serving(seen, silence_seconds=0.3) as server:
        with by_hand(server, "frozen") as line:
            seen.next("alive")
            seen.next("silent")
            assert set(b"".join(iter(lambda: line.recv(64), b""))) <= {BEAT}
        assert server.peers()["frozen"].state == "silent"
        for number in range(5):
            by_hand(server, f"host-{number}-a").close()
            seen.next("alive")
            seen.next("closed")
        assert sorted(server.peers()) == [f"host-{number}-a" for number in (2, 3, 4)]


# --- what goes wrong around it ---------------------------------------------------------------------------------------


def test_a_listener_that_fails_is_logged_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    seen = Seen()

    def fail(who: str, state: str) -> None:
        seen(who, state)
        raise RuntimeError("a listener's own bug")

    with serving(fail) as server, linked(server.address, fail):
        seen.next("alive")
        seen.next("alive")
        until(lambda: caplog.text.count("a listener failed") == 2)
        seen.nothing(0.3)
        server.stop()
        seen.next("left")


@pytest.mark.long
def test_an_address_that_is_not_there_yet_cannot_be_found_or_is_none(caplog: pytest.LogCaptureFixture) -> None:
    seen, asked = Seen(), threading.Event()
    with serving(seen) as server:
        bugs = [ValueError("a bug")] * 3
        answers = iter([None, OSError("no Zookeeper"), ConfError("no"), *bugs, "none", "127.0.0.1:1"])

        def find() -> str | None:
            answer = next(answers, server.address)
            if isinstance(answer, Exception):
                raise answer
            asked.set()
            return answer

        with LivenessClient(find, "host-1-a", run="run", secret=SECRET, on_change=seen):
            seen.next("alive")
            seen.next("alive")
    assert asked.is_set()
    assert [record.levelname for record in caplog.records if "a bug" in record.getMessage()] == ["ERROR"]


def test_closing_is_quick_whatever_the_link_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, asked = threading.Event(), threading.Event()

    def hangs() -> None:
        asked.set()
        goes_on.wait(PATIENCE)

    link = LivenessClient(hangs, "host-1-a", run="run", secret=SECRET).start()
    asked.wait(PATIENCE)
    seconds = AskedSeconds(monkeypatch)
    link.close(0.2)
    assert seconds.sum <= 0.2
    goes_on.set()
    monkeypatch.setattr(liveness_client, "HANDSHAKE_SECONDS", 10 * PATIENCE)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        mute.settimeout(PATIENCE)
        link = linked(f"127.0.0.1:{mute.getsockname()[1]}", Seen()).start()
        with mute.accept()[0]:
            link.close(PATIENCE)
            assert not link._thread.is_alive(), "it went on waiting for the handshake"
    never_started = linked("127.0.0.1:1", Seen())
    never_started.close()
    LivenessServer("127.0.0.1", run="run", secret=None, on_change=Seen()).stop()


def test_a_master_that_cannot_listen_says_where_and_what_to_do() -> None:
    with serving(Seen()) as server:
        port = parsed_address(server.address)[1]
        second = LivenessServer("127.0.0.1", port, run="run", secret=SECRET, on_change=Seen())
        with pytest.raises(ConfError, match=rf"127\.0\.0\.1:{port}.*choose"):
            second.start()
    with pytest.raises(ConfError, match="cannot listen"):
        LivenessServer("192.0.2.1", run="run", secret=SECRET, on_change=Seen()).start()


def test_the_address_is_one_that_others_can_use() -> None:
    def address(host: str, **more: str) -> str:
        with LivenessServer(host, run="run", secret=None, on_change=Seen(), **more) as server:
            return server.address.rpartition(":")[0]

    assert address("127.0.0.1") == "127.0.0.1"
    assert address("0.0.0.0") == socket.gethostname()
    assert address("127.0.0.1", advertise="10.1.2.3") == "10.1.2.3"
    assert address("127.0.0.1", advertise="fd00::1") == "[fd00::1]"
    assert parsed_address("[fd00::1]:5") == ("fd00::1", 5)
    with pytest.raises(ConfError, match="before it is started"):
        _ = LivenessServer("127.0.0.1", run="run", secret=None, on_change=Seen()).address


def test_reconnecting_takes_less_than_a_silence() -> None:
    assert liveness_client._PAUSES[1] < 2.0
