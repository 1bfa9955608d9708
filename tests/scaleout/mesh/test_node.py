"""Processes of the mesh over real sockets: messages come once to each, whatever is lost, and from strangers none."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from dl4jlegacy.arrays.wire import digest
from dl4jlegacy.errors import ConfError
from dl4jlegacy.scaleout.links.liveness.handshake import (
    CHALLENGE_NBYTES,
    LIVENESS,
    WELCOME_NBYTES,
    ClientHandshake,
    Connection,
    Credentials,
    ServerHandshake,
)
from dl4jlegacy.scaleout.links.mesh import node as mesh_node
from dl4jlegacy.scaleout.links.mesh.configuration import VoidConfiguration
from dl4jlegacy.scaleout.links.mesh.node import Member, MeshNode
from dl4jlegacy.scaleout.links.mesh.organizer import MeshOrganizer
from dl4jlegacy.scaleout.links.mesh.wire import MESSAGES, header
from tests.support.child_process import ChildProcess

SECRET = b"a secret of this test"
PATIENCE = 60.0
"""Seconds after which what should have happened at once never will."""
PLAIN, TREE = VoidConfiguration(), VoidConfiguration(mesh_build_mode="mesh")


class Seen:
    """What a node has reported, which a test can wait for."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self._changed = threading.Condition()

    def __call__(self, event: str, what: str) -> None:
        with self._changed:
            self.counts[event, what] += 1
            self._changed.notify_all()

    def of(self, event: str) -> list[str]:
        with self._changed:
            return [what for (kind, what), count in self.counts.items() if kind == event for _ in range(count)]

    def wait(self, event: str, *whats: str, count: int = 0) -> list[str]:
        """Wait until an event was reported of all of these, or so often; return of what it was."""

        def is_there() -> bool:
            found = [what for kind, what in self.counts if kind == event]
            return set(whats) <= set(found) and len(found) >= count

        with self._changed:
            assert self._changed.wait_for(is_there, PATIENCE), f"{event} {whats}: only {self.counts}"
        return self.of(event)


class Mesh:
    """Some nodes in this process, which know each other, in their order."""

    def __init__(self, configuration: VoidConfiguration = TREE) -> None:
        self.configuration = configuration
        self.nodes: dict[str, MeshNode] = {}
        self.seen: dict[str, Seen] = {}
        self.others: list[Member] = []

    def add(self, name: str, run: str = "run", secret: bytes | None = SECRET) -> MeshNode:
        self.seen[name] = Seen()
        node = MeshNode(
            "127.0.0.1",
            name=name,
            run=run,
            secret=secret,
            configuration=self.configuration,
            on_change=self.seen[name],
        )
        self.nodes[name] = node.start()
        return node

    def members(self) -> list[Member]:
        return [*self.others, *(Member(name, node.address) for name, node in self.nodes.items())]

    def tell(self) -> None:
        for node in self.nodes.values():
            node.set_members(self.members())

    def connected(self) -> None:
        """Wait until all are connected as the tree says."""
        organizer = MeshOrganizer("mesh" if self.configuration.mesh_build_mode == "mesh" else "plain")
        for member in self.members():
            organizer.add_node(member.process)
        for name in self.nodes:
            upstream = organizer.upstream_of(name)
            self.seen[name].wait("open", *organizer.downstreams_of(name), *([] if upstream is None else [upstream]))

    def stop(self, name: str) -> None:
        self.nodes.pop(name).stop()

    def close(self) -> None:
        for node in self.nodes.values():
            node.stop()


@contextlib.contextmanager
def mesh_of(count: int, configuration: VoidConfiguration = TREE) -> Iterator[Mesh]:
    mesh = Mesh(configuration)
    try:
        for number in range(count):
            mesh.add(f"p{number}")
        mesh.tell()
        mesh.connected()
        yield mesh
    finally:
        mesh.close()


@pytest.mark.parametrize(("count", "configuration"), [(2, PLAIN), (6, PLAIN), (6, TREE), (20, TREE)])
def test_a_message_comes_once_to_every_other_process(count: int, configuration: VoidConfiguration) -> None:
    with mesh_of(count, configuration) as mesh:
        sent = {name: f"the message of {name}".encode() * 100 for name in mesh.nodes}
        for name, node in mesh.nodes.items():
            node.commit(sent[name])
        for name, node in mesh.nodes.items():
            others = [digest(message) for other, message in sent.items() if other != name]
            assert sorted(mesh.seen[name].wait("message", *others)) == sorted(others)
            assert all(node.find(digest(message)) == message for message in sent.values())
        assert sum(node.counts["taken"] for node in mesh.nodes.values()) == count * (count - 1)
        assert not any(node.counts["doubled"] or node.counts["refused"] for node in mesh.nodes.values())


def test_messages_of_any_length_come_whole_and_in_order() -> None:
    with mesh_of(3) as mesh:
        messages = [os.urandom(size) for size in (1, 2, 37, 65535, 65536, 65537, 1 << 20, 4 << 20)]
        for message in messages:
            mesh.nodes["p1"].commit(message)
        mesh.seen["p2"].wait("message", *(digest(message) for message in messages))
        assert all(mesh.nodes["p2"].find(digest(message)) == message for message in messages)
        assert mesh.seen["p2"].of("message") == [digest(message) for message in messages]


def test_a_message_that_is_too_long_is_not_pushed() -> None:
    small = VoidConfiguration(chunks_buffer_size=1 << 20)
    with mesh_of(2, small) as mesh:
        long, short = bytes(small.longest_nbytes + 1), b"short"
        mesh.nodes["p0"].commit(long)
        mesh.nodes["p0"].commit(short)
        assert mesh.seen["p1"].wait("message", digest(short)) == [digest(short)]
        assert mesh.nodes["p0"].find(digest(long)) == long


@pytest.mark.parametrize("gone", ["p0", "p1", "p9"])
def test_where_a_process_is_gone_the_others_go_on_as_one_tree(gone: str) -> None:
    """They notice by their connection; that it is no member any more they learn later, or never."""
    with mesh_of(12) as mesh:
        mesh.stop(gone)
        for name in ("p2", "p11"):
            message = f"after the end of {gone}, from {name}".encode()
            others = [other for other in mesh.nodes if other != name]
            _push_until_all_have_it(mesh, name, message, others)


def _push_until_all_have_it(mesh: Mesh, name: str, message: bytes, others: list[str]) -> None:
    """A message that is pushed while the tree is mended may be lost, so others are sent until one has come to all."""
    deadline = time.monotonic() + PATIENCE
    for number in range(1_000_000):
        sent = message + str(number).encode()
        mesh.nodes[name].commit(sent)
        waiting = [other for other in others if not _comes(mesh, other, digest(sent))]
        if not waiting:
            return
        assert time.monotonic() < deadline, f"{waiting} never got a message of {name}"


def _comes(mesh: Mesh, name: str, named: str, seconds: float = 0.5) -> bool:
    seen = mesh.seen[name]
    with seen._changed:
        return seen._changed.wait_for(lambda: seen.counts["message", named] > 0, seconds)


def test_a_process_that_comes_later_gets_what_is_pushed_from_then_on() -> None:
    with mesh_of(3) as mesh:
        mesh.nodes["p0"].commit(b"before")
        mesh.seen["p2"].wait("message", digest(b"before"))
        mesh.add("p3")
        mesh.tell()
        mesh.connected()
        mesh.nodes["p1"].commit(b"after")
        assert mesh.seen["p3"].wait("message", digest(b"after")) == [digest(b"after")]
        assert mesh.nodes["p3"].find(digest(b"before")) is None


def test_a_process_that_is_no_member_any_more_is_disconnected_even_if_its_connection_stands() -> None:
    """As that of a process which is frozen, or whose machine vanished."""
    with mesh_of(12) as mesh:
        left = [member for member in mesh.members() if member.process != "p0"]
        for name in left:
            mesh.nodes[name.process].set_members(left)
        for number in range(2, 9):  # p1 has room for five beside the three that it had
            mesh.seen[f"p{number}"].wait("closed", "p0")
            mesh.seen[f"p{number}"].wait("open", {7: "p2", 8: "p3"}.get(number, "p1"))
        _push_until_all_have_it(mesh, "p11", b"without the first", [f"p{number}" for number in range(1, 11)])
        assert mesh.seen["p0"].of("message") == []


def test_a_downstream_that_is_no_member_any_more_is_disconnected() -> None:
    with mesh_of(3) as mesh:
        mesh.nodes["p0"].set_members([member for member in mesh.members() if member.process != "p2"])
        mesh.seen["p0"].wait("closed", "p2")


def test_an_upstream_that_does_not_answer_is_left_for_another() -> None:
    """The first of the members takes connections and says nothing: as a process does that is frozen."""
    mesh = Mesh()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        try:
            mesh.others = [Member("silent", f"127.0.0.1:{silent.getsockname()[1]}")]
            for name in ("p0", "p1", "p2"):
                mesh.add(name)
            mesh.tell()
            for name in ("p1", "p2"):
                mesh.seen[name].wait("open", "p0")
            mesh.nodes["p2"].commit(b"here")
            mesh.seen["p1"].wait("message", digest(b"here"))
        finally:
            mesh.close()


@pytest.mark.parametrize(
    "address", ["no address", "localhost:1", "127.0.0.1:0", "127.0.0.1:99999", "[::1]:1", "127.0.0.1:1"]
)
def test_a_member_whose_address_leads_nowhere_is_left_out(address: str) -> None:
    mesh = Mesh()
    try:
        mesh.others = [Member("nowhere", address)]
        mesh.add("p0")
        mesh.add("p1")
        mesh.tell()
        mesh.seen["p1"].wait("open", "p0")
    finally:
        mesh.close()


@pytest.mark.parametrize(
    ("run", "secret", "said"),
    [
        ("run", None, "the worker that listens has a secret and the worker that connects has none"),
        ("run", b"another secret", "their secrets differ"),
        ("other", SECRET, "of different runs"),
    ],
)
def test_who_is_not_of_the_run_gets_nothing_and_gives_nothing(
    run: str, secret: bytes | None, said: str, caplog
) -> None:
    with mesh_of(2) as mesh:
        mesh.add("stranger", run, secret)
        members = mesh.members()
        mesh.nodes["stranger"].set_members(members)
        refused = mesh.seen["p0"].wait("refused", count=1)
        assert said in refused[0] and "stranger" in refused[0]
        assert any(
            "stranger" in record.getMessage() and "the run goes on" in record.getMessage() for record in caplog.records
        )
        mesh.seen["stranger"].wait("refused", count=1)
        mesh.nodes["stranger"].commit(b"a forged message")
        mesh.nodes["p1"].commit(b"ours")
        assert mesh.seen["p0"].wait("message", digest(b"ours")) == [digest(b"ours")]
        assert mesh.seen["stranger"].of("message") == []


def connected(mesh: Mesh, name: str = "p0") -> socket.socket:
    host, _, port = mesh.nodes[name].address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE)


def received(line: socket.socket, nbytes: int) -> bytes:
    said = b""
    while len(said) < nbytes and (more := line.recv(nbytes - len(said))):
        said += more
    return said


def introduced(mesh: Mesh, process: str, name: str = "p0") -> socket.socket:
    """Connect as a process that knows the secret, but does as it likes afterwards."""
    line = connected(mesh, name)
    handshake = ClientHandshake(Credentials("run", SECRET, MESSAGES), process)
    line.sendall(handshake.hello(received(line, CHALLENGE_NBYTES)))
    handshake.check_welcome(received(line, WELCOME_NBYTES))
    return line


def is_closed(line: socket.socket) -> bool:
    """Wait for the end of a connection."""
    try:
        while line.recv(4096):
            continue
    except ConnectionResetError:
        pass
    return True


FORGED = b"a message that was forged"


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (header(digest(b"another one"), len(FORGED)) + FORGED, "is not what its digest says"),
        (header(digest(FORGED), TREE.longest_nbytes + 1), f"a message of {TREE.longest_nbytes + 1} bytes"),
        (header(digest(FORGED), 0xFFFFFFFF), "a message of 4294967295 bytes"),
        (b"M" + bytes(36), "what is no message"),
        (b"GET / HTTP/1.1\r\nHost: here\r\nAccept: */*\r\n\r\n", "what is no message"),
    ],
)
def test_a_process_that_sends_what_is_no_message_is_disconnected_by_name_and_the_others_go_on(
    sent: bytes, said: str, caplog
) -> None:
    with mesh_of(3) as mesh, introduced(mesh, "liar") as line:
        mesh.seen["p0"].wait("open", "liar")
        line.sendall(sent)
        assert is_closed(line)
        (refused,) = mesh.seen["p0"].wait("refused", count=1)
        assert said in refused and "process liar at 127.0.0.1:" in refused
        assert any("process liar" in record.getMessage() for record in caplog.records)
        with introduced(mesh, "liar") as again:  # and is not let in again at once
            assert is_closed(again)
        mesh.nodes["p1"].commit(b"ours")
        assert mesh.seen["p2"].wait("message", digest(b"ours")) == [digest(b"ours")]
        assert mesh.nodes["p0"].find(digest(FORGED)) is None


def test_a_message_that_is_torn_off_is_nothing_and_one_in_pieces_is_one() -> None:
    with mesh_of(2) as mesh:
        whole = header(digest(b"in pieces"), 9) + b"in pieces"
        with introduced(mesh, "torn") as line:
            line.sendall(header(digest(FORGED), len(FORGED)) + FORGED[:10])
        mesh.seen["p0"].wait("closed", "torn")
        with introduced(mesh, "slow") as line:
            for index in range(len(whole)):
                line.sendall(whole[index : index + 1])
            assert mesh.seen["p1"].wait("message", digest(b"in pieces")) == [digest(b"in pieces")]
        assert mesh.nodes["p0"].find(digest(FORGED)) is None


def test_a_message_that_stands_still_is_given_up(monkeypatch) -> None:
    monkeypatch.setattr(mesh_node, "MESSAGE_SECONDS", 0.2)
    with mesh_of(2) as mesh, introduced(mesh, "stuck") as line:
        line.sendall(header(digest(FORGED), len(FORGED)) + FORGED[:10])
        assert is_closed(line)
        mesh.seen["p0"].wait("closed", "stuck")


def test_who_does_not_take_messages_is_left_out_and_the_others_get_them(monkeypatch) -> None:
    """What is kept for it is bounded; when it takes none for long it is disconnected."""
    monkeypatch.setattr(mesh_node, "MESSAGE_SECONDS", 0.5)
    with mesh_of(2, VoidConfiguration(chunks_buffer_size=4 << 20)) as mesh, introduced(mesh, "deaf") as line:
        mesh.seen["p0"].wait("open", "deaf")
        node, number = mesh.nodes["p0"], 0
        while not node.counts["dropped"]:
            message = struct.pack(">I", number) + os.urandom(1 << 19)
            node.commit(message)
            mesh.seen["p1"].wait("message", digest(message))
            number += 1
            assert number < 1000
        mesh.seen["p0"].wait("closed", "deaf")
        assert is_closed(line)
        assert node.cache.nbytes <= 4 << 20


def test_a_message_that_comes_twice_goes_on_once() -> None:
    with mesh_of(2) as mesh, introduced(mesh, "twice") as line:
        line.sendall(2 * (header(digest(b"twice"), 5) + b"twice") + header(digest(b"end"), 3) + b"end")
        assert mesh.seen["p1"].wait("message", digest(b"end")) == [digest(b"twice"), digest(b"end")]
        assert (mesh.nodes["p0"].counts["doubled"], mesh.nodes["p1"].counts["doubled"]) == (1, 0)


@pytest.mark.parametrize("theirs", [Connection("messages", 2, "a", "b"), LIVENESS])
def test_a_process_of_another_format_is_refused_by_both_ends(theirs: Connection) -> None:
    with mesh_of(1) as mesh, connected(mesh) as line:
        challenge = received(line, CHALLENGE_NBYTES)
        with pytest.raises(Exception, match=r"version '1' of the messages format|not a challenge"):
            ClientHandshake(Credentials("run", SECRET, theirs), "other").hello(challenge)
        line.sendall(theirs.magic + bytes(200))
        assert is_closed(line)
        (refused,) = mesh.seen["p0"].wait("refused", count=1)
        assert "127.0.0.1:" in refused
        assert ("version '2' of the messages format, and this process has version 1" in refused) == (
            theirs is not LIVENESS
        )


def test_an_upstream_of_another_format_is_left_for_another() -> None:
    mesh, newer = Mesh(), Credentials("run", SECRET, Connection("messages", 2, "a", "b"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        try:
            mesh.others = [Member("newer", f"127.0.0.1:{listener.getsockname()[1]}")]
            for name in ("p0", "p1"):
                mesh.add(name)
            mesh.tell()
            listener.settimeout(PATIENCE)
            for _ in range(2):
                line, _ = listener.accept()
                with line:
                    line.sendall(ServerHandshake(newer).challenge)
                    is_closed(line)
            mesh.seen["p1"].wait("open", "p0")
            (refused,) = mesh.seen["p1"].wait("refused", count=1)
            assert "process newer at 127.0.0.1:" in refused and "version '2' of the messages format" in refused
        finally:
            mesh.close()


def test_a_proof_for_the_master_is_none_for_the_mesh() -> None:
    with mesh_of(1) as mesh, connected(mesh) as line:
        challenge = received(line, CHALLENGE_NBYTES)
        liveness = ClientHandshake(Credentials("run", SECRET), "p")
        hello = liveness.hello(LIVENESS.magic + challenge[len(LIVENESS.magic) :])
        line.sendall(MESSAGES.magic + hello[len(MESSAGES.magic) :])
        assert is_closed(line)
        (refused,) = mesh.seen["p0"].wait("refused", count=1)
        assert "secrets differ" in refused


def test_who_says_nothing_is_disconnected_and_many_of_them_keep_nobody_out(monkeypatch) -> None:
    monkeypatch.setattr(mesh_node, "HANDSHAKE_SECONDS", 0.3)
    with mesh_of(1) as mesh:
        lines = [connected(mesh) for _ in range(mesh_node.MOST_PENDING)]
        try:
            assert all(is_closed(line) for line in lines)
            mesh.add("p1")
            mesh.tell()
            mesh.seen["p1"].wait("open", "p0")
        finally:
            for line in lines:
                line.close()


def test_each_process_of_a_machine_takes_the_next_free_port() -> None:
    with contextlib.ExitStack() as taken:
        servers = (taken.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(64))
        first = next(port for server in servers if (port := server.getsockname()[1]) <= 65536 - 64)
        mesh = Mesh(VoidConfiguration(unicast_port=first))
        try:
            ports = [int(mesh.add(name).address.rpartition(":")[2]) for name in ("p0", "p1")]
            assert first < ports[0] < ports[1] < first + 64
        finally:
            mesh.close()


def test_a_machine_without_a_free_port_is_told(monkeypatch) -> None:
    monkeypatch.setattr("dl4jlegacy.scaleout.links.mesh.configuration.PORTS", 1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = min(taken.getsockname()[1], 65535)
        node = MeshNode(
            "127.0.0.1", name="p", run="run", secret=None, configuration=VoidConfiguration(unicast_port=port)
        )
        with pytest.raises(ConfError, match=f"cannot listen for other workers on 127.0.0.1, ports {port} to {port}"):
            node.start()


def test_an_empty_secret_and_a_name_that_is_none_are_refused() -> None:
    for name, secret in (("p", b""), ("", SECRET)):
        with pytest.raises(ConfError):
            MeshNode("127.0.0.1", name=name, run="run", secret=secret, configuration=PLAIN)


class Child(ChildProcess):
    """A process of its own with a node in it, that says what it gets and takes members and messages."""

    def __init__(self, name: str) -> None:
        super().__init__("mesh_process.py", name)
        self.name = name
        self.address = self.wait("address")[1]

    def wait(self, event: str, what: str = "") -> list[str]:
        deadline = time.monotonic() + PATIENCE
        while True:
            said = self.said.get(timeout=max(0.01, deadline - time.monotonic())).split()
            if said[0] == event and what in ("", said[1]):
                return said

    def say(self, *words: str) -> None:
        self.tell(" ".join(words))


def test_processes_of_their_own_push_to_each_other_and_one_that_is_killed_is_passed_over() -> None:
    with contextlib.ExitStack() as stack:
        children = []
        for number in range(4):
            child = Child(f"c{number}")
            stack.callback(child.end)
            children.append(child)
        members = [f"{child.name}={child.address}" for child in children]
        for child in children:
            child.say("members", *members)
        for child in children[1:]:
            child.wait("open", "c0")
        children[3].say("commit", "first")
        for child in children[:3]:
            child.wait("message", digest(b"first"))
        children[0].process.kill()  # the root
        for child in children[2:]:
            child.wait("open", "c1")
        children[2].say("commit", "second")
        for child in (children[1], children[3]):
            child.wait("message", digest(b"second"))
