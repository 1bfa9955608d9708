"""The Conf, the workers and the master's election in a real Zookeeper, with processes that are frozen and killed."""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import os
import queue
import shutil
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dl4jlegacy.cluster.address import ClusterAddress
from dl4jlegacy.cluster.registration import MasterRegistration
from dl4jlegacy.errors import ConfError, NotAuthorisedError, TrackerClosedError, TrackerError, VersionError
from dl4jlegacy.scaleout import Conf
from dl4jlegacy.scaleout.tracker import InMemoryStateTracker
from dl4jlegacy.scaleout.zookeeper import (
    MESH,
    MasterElection,
    MeshMembers,
    WorkerRegistration,
    ZooKeeperConfigurationRegister,
    ZookeeperConfigurationRetriever,
    ZooKeeperSession,
    build_path,
    election,
    registered_workers,
)
from dl4jlegacy.scaleout.zookeeper.configuration import FORMAT
from dl4jlegacy.scaleout.zookeeper.membership import Member, group_path
from dl4jlegacy.scaleout.zookeeper.scheduler import StepScheduler
from dl4jlegacy.scaleout.zookeeper.session import CLOSE_SECONDS, CONNECT_SECONDS
from dl4jlegacy.services import Services, ServicesState
from dl4jlegacy.version import __version__
from tests.support.child_process import ChildProcess
from tests.support.cluster_commands import freeze
from tests.support.waiting import AskedSeconds
from tools.chaos.expiry import expire_session

DEADLINE = 60.0
SECRET = b"a secret that nobody may see"


class Child(ChildProcess):
    """A process that says what happens to it, in lines of JSON."""

    def __init__(self, role: str, address: str, group: str, name: str) -> None:
        super().__init__("zookeeper_process.py", role, address, group, name)

    def expect(self, *events: str, seconds: float = DEADLINE) -> dict[str, Any]:
        """The next thing that happens, which must be one of ``events``."""
        event = json.loads(self.said.get(timeout=seconds))
        assert event["event"] in events, event
        return event

    def says_nothing(self) -> bool:
        return self.said.empty()

    def stop(self) -> None:
        """End it the kind way and see that it leaves nothing running inside."""
        self.tell("stop")
        while (event := json.loads(self.said.get(timeout=DEADLINE)))["event"] != "end":
            pass
        assert event["threads"] == []
        assert self.process.wait(DEADLINE) == 0


@pytest.fixture
def child(zookeeper_address: str, group: str) -> Iterator[Callable[..., Child]]:
    children: list[Child] = []

    def start(role: str, name: str, address: str = "") -> Child:
        children.append(Child(role, address or zookeeper_address, group, name))
        return children[-1]

    yield start
    for one in children:
        one.end()


@pytest.fixture
def group() -> str:
    """An id that no other test uses."""
    return f"test-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def session(zookeeper_address: str) -> Iterator[ZooKeeperSession]:
    with ZooKeeperSession(zookeeper_address, session_seconds=1.0) as opened:
        yield opened


def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, f"not within {DEADLINE:g} s: {what}"
        time.sleep(0.02)


def port_of(session: ZooKeeperSession) -> int:
    return int(session.address.partition(":")[2])


def eventually(condition: Callable[[], object], seconds: float = DEADLINE) -> None:
    """Wait for something that nobody announces."""
    deadline, pause = time.monotonic() + seconds, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"did not happen within {seconds:g} s"
        pause.wait(0.01)


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# -- without a server --------------------------------------------------------------------------------------------------


def test_a_path_is_that_of_the_legacy() -> None:
    assert build_path("testhadoop", 2181, "tmp") == "/testhadoop:2181/tmp"
    assert build_path("testhadoop", 2181, "tmp", "master") == "/testhadoop:2181/tmp/master"


@pytest.mark.parametrize("name", ["", "a/b", ".", "..", "a\0b", "line\nbreak"])
def test_a_name_that_zookeeper_would_not_take_is_refused(name: str) -> None:
    with pytest.raises(ConfError, match="cannot be a name"):
        build_path("localhost", 2181, "tmp", name)


def test_a_conf_that_is_too_large_is_refused_before_anybody_is_asked() -> None:
    with pytest.raises(ConfError, match=r"takes 1,00\d,\d{3} bytes as JSON and Zookeeper holds at most 1,000,000"):
        ZooKeeperConfigurationRegister(Conf(model="x" * 1_000_000), "master", "127.0.0.1", 1)


@pytest.mark.parametrize("address", ["", ":2181", "host:port", "host:99999999"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfError, match="is not an address of Zookeeper"):
        ZooKeeperSession(address)


def test_an_empty_secret_is_refused() -> None:
    with pytest.raises(ConfError, match="secret is empty"):
        ZooKeeperSession("127.0.0.1:2181", secret=b"")


def test_a_server_that_is_not_there_is_an_error_within_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    port, asked = unused_port(), AskedSeconds(monkeypatch)
    with pytest.raises(TrackerError, match=rf"127\.0\.0\.1:{port} did not answer within 0\.5 s.*dl4j services up") as e:
        ZookeeperConfigurationRetriever("127.0.0.1", port, deadline_seconds=0.5)
    assert e.value.exit_status == 4
    assert "Connection refused" in str(e.value)
    assert 0.5 <= asked.longest <= CONNECT_SECONDS + CLOSE_SECONDS


def test_a_server_that_takes_connections_and_never_answers_is_an_error_within_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port, asked = silent.getsockname()[1], AskedSeconds(monkeypatch)
        with pytest.raises(TrackerError, match=rf"127\.0\.0\.1:{port} did not answer within 0\.5 s"):
            ZooKeeperConfigurationRegister(Conf(), "master", "127.0.0.1", port, deadline_seconds=0.5)
        assert 0.5 <= asked.longest <= CONNECT_SECONDS + CLOSE_SECONDS


@pytest.mark.cluster
def test_a_connection_that_is_not_answered_is_given_up_long_before_the_session_ends(zookeeper_address: str) -> None:
    host, _, real = zookeeper_address.partition(":")
    with socket.create_server(("127.0.0.1", 0)) as front:

        def serve() -> None:
            silent, _ = front.accept()  # as by a server that is just starting: taken, and never answered
            there, _ = front.accept()
            with silent, there, socket.create_connection((host, int(real))) as behind:
                pipes = [threading.Thread(target=pipe, args=ends) for ends in ((there, behind), (behind, there))]
                for thread in pipes:
                    thread.start()
                for thread in pipes:
                    thread.join()

        server = threading.Thread(target=serve, daemon=True)
        server.start()
        address = f"127.0.0.1:{front.getsockname()[1]}"  # kazoo alone would wait for most of the session
        with ZooKeeperSession(address, session_seconds=20 * DEADLINE, deadline_seconds=DEADLINE):
            pass
        server.join(DEADLINE)
        assert not server.is_alive()


def pipe(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(4096):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def test_a_name_that_nobody_knows_is_an_error_within_the_deadline() -> None:
    with pytest.raises(TrackerError, match=r"nowhere\.invalid:2181 did not answer within 0\.5 s"):
        ZooKeeperSession("nowhere.invalid:2181", deadline_seconds=0.5)


def test_the_scheduler_runs_a_step_once_for_many_wakes_and_again_after_a_failure() -> None:
    scheduler, runs, free, done = StepScheduler("test"), [], threading.Event(), threading.Event()

    def step() -> None:
        runs.append(threading.current_thread().name)
        free.wait(DEADLINE)
        if len(runs) == 2:
            raise TrackerError("not yet")
        if len(runs) == 3:
            done.set()

    scheduler.schedule(step)
    eventually(lambda: runs)
    for _ in range(100):
        scheduler.schedule(step)
    free.set()
    assert done.wait(DEADLINE)
    assert scheduler.run(lambda: None, DEADLINE)
    scheduler.stop(DEADLINE)
    assert runs == ["test"] * 3
    assert not scheduler.run(step, 0.0)


def test_the_scheduler_tells_of_a_trouble_once(caplog: pytest.LogCaptureFixture) -> None:
    scheduler, runs, done = StepScheduler("test"), [], threading.Event()

    def step() -> None:
        runs.append(1)
        if len(runs) < 3:
            raise TrackerError("not yet")
        done.set()

    scheduler.schedule(step)
    assert done.wait(DEADLINE)
    scheduler.stop(DEADLINE)
    assert [r.getMessage() for r in caplog.records] == ["test: not yet; trying again"]


def test_a_callback_that_raises_does_not_end_the_scheduler(caplog: pytest.LogCaptureFixture) -> None:
    scheduler = StepScheduler("test")
    scheduler.run(lambda: {}["missing"], DEADLINE)
    assert scheduler.run(lambda: None, DEADLINE)
    scheduler.stop(DEADLINE)
    assert "a callback failed" in caplog.text


# -- the Conf ----------------------------------------------------------------------------------------------------------


@pytest.mark.cluster
def test_a_conf_that_was_registered_is_retrieved_as_it_was(zookeeper_address: str, group: str) -> None:
    host, _, port = zookeeper_address.partition(":")
    conf = Conf(run="spring", epochs=7)
    with ZooKeeperConfigurationRegister(conf, group, host, int(port)) as register:
        register.register()
    retriever = ZookeeperConfigurationRetriever(host, int(port), group)
    assert retriever.retrieve() == conf
    retriever.close()


@pytest.mark.cluster
def test_a_node_holds_canonical_json_with_its_format_and_version(session: ZooKeeperSession, group: str) -> None:
    conf = Conf(run="spring")
    register = ZooKeeperConfigurationRegister(conf, group, "somewhere", 2181, session=session)
    register.register()
    node = session.get(f"/somewhere:2181/tmp/{group}")
    expected = f'{{"conf":{conf.to_json()},"format":{FORMAT},"package":"{__version__}","signature":""}}'
    assert node is not None and node.data.decode() == expected
    register.register()
    again = session.get(register.path)
    assert again == node


@pytest.mark.cluster
def test_a_conf_takes_the_place_of_another(session: ZooKeeperSession, group: str) -> None:
    port = port_of(session)
    for run in ("first", "second"):
        ZooKeeperConfigurationRegister(Conf(run=run), group, "127.0.0.1", port, session=session).register()
    assert ZookeeperConfigurationRetriever("127.0.0.1", port, group, session=session).retrieve().run == "second"


@pytest.mark.cluster
@pytest.mark.parametrize("registered", ["localhost", "127.0.0.1", socket.gethostname(), "10.1.2.3"])
def test_a_conf_is_found_under_the_names_that_a_machine_has_for_itself(
    session: ZooKeeperSession, group: str, registered: str
) -> None:
    ZooKeeperConfigurationRegister(Conf(run="spring"), group, registered, 2181, session=session).register()
    assert ZookeeperConfigurationRetriever("10.1.2.3", 2181, group, session=session).retrieve().run == "spring"


@pytest.mark.cluster
@pytest.mark.parametrize("registered", ["localhost", "127.0.0.1", socket.gethostname()])
def test_a_conf_is_removed_under_the_names_that_a_machine_has_for_itself(
    session: ZooKeeperSession, group: str, registered: str
) -> None:
    conf, other = (Conf(run="spring", incarnation=digit * 16) for digit in "01")
    ZooKeeperConfigurationRegister(conf, group, registered, 2181, session=session).register()
    ZooKeeperConfigurationRegister(other, group, "10.1.2.3", 2181, session=session).remove()
    assert ZookeeperConfigurationRetriever("10.1.2.3", 2181, group, session=session).find() == conf
    ZooKeeperConfigurationRegister(conf, group, "10.1.2.3", 2181, session=session).remove()
    assert ZookeeperConfigurationRetriever("10.1.2.3", 2181, group, session=session).find() is None


@pytest.mark.cluster
def test_a_conf_that_is_not_there_is_an_error_that_says_what_is(session: ZooKeeperSession, group: str) -> None:
    ZooKeeperConfigurationRegister(Conf(), f"{group}-other", "zk.example", 2181, session=session).register()
    with pytest.raises(TrackerError) as e:
        ZookeeperConfigurationRetriever("127.0.0.1", 2181, group, session=session).retrieve()
    assert f"no run with the id {group!r} is registered in Zookeeper at {session.address}" in str(e.value)
    assert f"{group}-other (master with --zookeeper zk.example:2181)" in str(e.value)
    assert "`dl4j logs DIR`" in str(e.value)


@pytest.mark.cluster
def test_a_worker_that_comes_first_waits_for_the_conf(child: Any, session: ZooKeeperSession, group: str) -> None:
    worker = child("retrieve", "w")
    worker.expect("ready")
    conf = Conf(run="late", batch_size=17)
    ZooKeeperConfigurationRegister(conf, group, "127.0.0.1", port_of(session), session=session).register()
    assert worker.expect("retrieved")["conf"] == conf.to_json()


@pytest.mark.cluster
def test_waiting_for_a_conf_has_an_end(session: ZooKeeperSession, group: str) -> None:
    with pytest.raises(TrackerError, match=r"after 0\.2 s"):
        ZookeeperConfigurationRetriever("a", 2181, group, session=session).retrieve(wait_seconds=0.2)


@pytest.mark.cluster
def test_a_conf_just_below_the_limit_passes(session: ZooKeeperSession, group: str) -> None:
    conf = Conf(model="x" * 995_000)
    ZooKeeperConfigurationRegister(conf, group, "a", 2181, session=session).register()
    assert ZookeeperConfigurationRetriever("a", 2181, group, session=session).retrieve() == conf


@pytest.mark.cluster
@pytest.mark.long
def test_masters_that_register_at_the_same_time_leave_one_whole_conf(
    child: Any, session: ZooKeeperSession, group: str
) -> None:
    masters = [child("register", f"m{i}") for i in range(3)]
    for master in masters:
        master.expect("ready")
    for master in masters:
        master.tell("go")
    for master in masters:
        master.expect("registered")
    conf = ZookeeperConfigurationRetriever("127.0.0.1", port_of(session), group, session=session).retrieve()
    assert conf.run in {f"m{i}-19" for i in range(3)}


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (b"\xac\xed\x00\x05sr\x00", ConfError, "a Java-serialized object"),
        (b"", ConfError, "holds no run of dl4jlegacy but 0 bytes"),
        (b"\xff\xfe{}", ConfError, "holds no run"),
        (b'{"format":1}', VersionError, "an unknown version"),
        (b'{"conf":{},"format":2,"package":"9.9.9"}', VersionError, r"dl4jlegacy 9\.9\.9 \(format 2\)"),
        (b'{"conf":{},"format":1,"package":"9.9.9"}', VersionError, "run the same version everywhere"),
        (f'{{"conf":{{}},"format":1,"package":"{__version__}"}}'.encode(), VersionError, r"\(format 1\)"),
        (
            f'{{"conf":{{}},"format":2,"package":"{__version__}"}}'.encode(),
            VersionError,
            r"\(format 2\) .* \(format 5\)",
        ),
        (f'{{"format":{FORMAT},"package":"{__version__}"}}'.encode(), ConfError, "holds no run"),
        (f'{{"conf":[],"format":{FORMAT},"package":"{__version__}"}}'.encode(), ConfError, "Expected `object`"),
        (f'{{"conf":{{"epoch":1}},"format":{FORMAT},"package":"{__version__}"}}'.encode(), ConfError, "mean 'epochs'"),
    ],
)
def test_a_node_with_something_else_is_refused(
    session: ZooKeeperSession, group: str, data: bytes, error: type[Exception], message: str
) -> None:
    session.ensure("/a:2181/tmp")
    assert session.create(f"/a:2181/tmp/{group}", data)
    with pytest.raises(error, match=message) as e:
        ZookeeperConfigurationRetriever("a", 2181, group, session=session).retrieve()
    assert f"/a:2181/tmp/{group}" in str(e.value)


@pytest.mark.cluster
def test_a_conf_is_taken_back_with_the_folders_that_it_needed(session: ZooKeeperSession, group: str) -> None:
    register = ZooKeeperConfigurationRegister(Conf(), group, group, 2181, session=session)
    register.register()
    assert session.children(f"/{group}:2181/tmp") == [group]
    register.remove()
    register.remove()
    assert session.children(f"/{group}:2181") == []  # at the root of these servers nothing can be removed


@pytest.mark.cluster
def test_with_a_secret_only_those_who_know_it_read_or_write(zookeeper_address: str, group: str) -> None:
    port = int(zookeeper_address.partition(":")[2])
    conf = Conf(run="hidden")
    with ZooKeeperConfigurationRegister(conf, group, "127.0.0.1", port, secret=SECRET) as register:
        register.register()
        assert ZookeeperConfigurationRetriever("127.0.0.1", port, group, session=register._session).retrieve() == conf
    for secret, has in ((None, "has none"), (b"a guess", "has another one")):
        with ZookeeperConfigurationRetriever("127.0.0.1", port, group, secret=secret) as retriever:
            with pytest.raises(NotAuthorisedError, match=has) as e:
                retriever.retrieve()
            assert e.value.exit_status == 6
        other = ZooKeeperConfigurationRegister(Conf(), group, "127.0.0.1", port, secret=secret)
        with other, pytest.raises(NotAuthorisedError, match=has):
            other.register()
    with ZookeeperConfigurationRetriever("127.0.0.1", port, group, secret=SECRET) as retriever:
        assert retriever.retrieve() == conf


def tree(session: ZooKeeperSession, path: str) -> list[str]:
    return [path, *(below for name in session.children(path) or [] for below in tree(session, f"{path}/{name}"))]


@pytest.mark.cluster
@pytest.mark.parametrize("stranger", [None, b"a guess"])
def test_a_stranger_can_delete_and_change_nothing_of_a_run_with_a_secret(
    zookeeper_address: str, group: str, stranger: bytes | None
) -> None:
    port = int(zookeeper_address.partition(":")[2])
    with ZooKeeperSession(zookeeper_address) as before:  # folders that a stranger made for the run to fall into
        for folder in ("workers", "election"):
            before.ensure(group_path(group, folder))
    with (
        ZooKeeperSession(zookeeper_address, secret=SECRET) as session,
        WorkerRegistration(session, "w-1", {}, group=group),
        MasterElection(session, group=group).claim(),
    ):
        register = ZooKeeperConfigurationRegister(Conf(run="mine"), group, "127.0.0.1", port, session=session)
        register.register()
        ours = [*tree(session, register.path), *tree(session, f"/dl4jlegacy/{group}")]
        assert len(ours) == 7
        with ZooKeeperSession(zookeeper_address, secret=stranger) as other:
            for path in reversed(ours):
                with contextlib.suppress(NotAuthorisedError):
                    assert not other.delete(path), path
                with contextlib.suppress(NotAuthorisedError):
                    assert not other.replace(path, b"junk", 0), path
                with pytest.raises(NotAuthorisedError):
                    other.create(f"{path}/theirs", b"")
        assert [*tree(session, register.path), *tree(session, f"/dl4jlegacy/{group}")] == ours
        assert ZookeeperConfigurationRetriever("127.0.0.1", port, group, session=session).retrieve().run == "mine"
        register.remove()
        assert not session.exists(register.path)


@pytest.mark.cluster
@pytest.mark.parametrize("junk", [None, b"", b"junk", b"{}", b"\xff", b'{"format":9,"package":"x"}', b"[" * 5000])
def test_the_master_puts_back_its_conf_but_leaves_one_that_can_be_read(
    session: ZooKeeperSession, group: str, junk: bytes | None
) -> None:
    with ZooKeeperConfigurationRegister(Conf(run="mine"), group, "a", 2181, session=session) as register:
        register.register()
        assert not register.restore("")
        session.delete(register.path)
        if junk is not None:
            session.create(register.path, junk)
        assert register.restore("")
        retriever = ZookeeperConfigurationRetriever("a", 2181, group, session=session)
        assert retriever.retrieve().run == "mine"
        ZooKeeperConfigurationRegister(Conf(run="another"), group, "a", 2181, session=session).register()
        assert not register.restore("")
        assert retriever.retrieve().run == "another"
        register.remove()


@pytest.mark.cluster
@pytest.mark.parametrize("forger", [None, b"a guess"])
def test_a_conf_that_somebody_else_put_there_is_refused(
    zookeeper_address: str, group: str, forger: bytes | None
) -> None:
    port = int(zookeeper_address.partition(":")[2])
    with ZooKeeperSession(zookeeper_address, secret=forger) as session:
        ZooKeeperConfigurationRegister(Conf(), group, "a", port, session=session).register()
        node = session.get(f"/a:{port}/tmp/{group}")
        session.delete(f"/a:{port}/tmp/{group}/guard")
        session.delete(f"/a:{port}/tmp/{group}")
    with ZooKeeperSession(zookeeper_address) as session:  # readable for all, so that only the signature is in the way
        assert node is not None and session.create(f"/a:{port}/tmp/{group}", node.data)
    with ZooKeeperSession(zookeeper_address, secret=SECRET) as session:
        retriever = ZookeeperConfigurationRetriever("a", port, group, session=session)
        with pytest.raises(NotAuthorisedError, match="does not know this run's secret"):
            retriever.retrieve()


@pytest.mark.cluster
def test_a_signed_conf_cannot_be_put_in_the_place_of_another(zookeeper_address: str, group: str) -> None:
    with ZooKeeperSession(zookeeper_address, secret=SECRET) as session:
        ZooKeeperConfigurationRegister(Conf(run="yours"), group, "a", 2181, session=session).register()
        node = session.get(f"/a:2181/tmp/{group}")
        assert node is not None and session.create(f"/a:2181/tmp/{group}-2", node.data)
        with pytest.raises(NotAuthorisedError, match="a wrong signature"):
            ZookeeperConfigurationRetriever("a", 2181, f"{group}-2", session=session).retrieve()


@pytest.mark.cluster
def test_neither_the_secret_nor_the_password_made_of_it_is_shown(
    zookeeper_address: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.NOTSET)
    caplog.set_level(1, logger="dl4jlegacy")
    with ZooKeeperSession(zookeeper_address, secret=SECRET) as session:
        ZooKeeperConfigurationRegister(Conf(), group, "a", 2181, session=session).register()
        node = session.get(f"/a:2181/tmp/{group}")
        shown = caplog.text + repr(session) + repr(node)
        assert "kazoo: " in caplog.text
        assert SECRET.decode() not in shown
        assert session.derived("acl") not in shown


# -- the session -------------------------------------------------------------------------------------------------------


@pytest.mark.cluster
def test_the_session_lasts_as_long_as_the_server_says(zookeeper_address: str) -> None:
    with ZooKeeperSession(zookeeper_address, session_seconds=0.1) as session:
        assert session.session_seconds == 1.0
    with ZooKeeperSession(zookeeper_address, session_seconds=1e5) as session:
        assert session.session_seconds < 1e5


@pytest.mark.cluster
def test_after_close_nothing_is_asked_any_more(zookeeper_address: str) -> None:
    session = ZooKeeperSession(zookeeper_address)
    session.close()
    session.close()
    with pytest.raises(TrackerClosedError):
        session.get("/")


@pytest.mark.cluster
@pytest.mark.long
def test_a_server_that_goes_is_an_error_within_the_deadline_and_its_return_is_noticed(
    own_services: Callable[..., ServicesState], group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = own_services(members=0)
    with ZooKeeperSession(state.zookeeper, session_seconds=1.0, deadline_seconds=DEADLINE) as session:
        register = ZooKeeperConfigurationRegister(Conf(run="spring"), group, "a", 2181, session=session)
        register.register()
        os.kill(state.pids["zookeeper"], signal.SIGKILL)
        session.deadline_seconds = 0.5
        asked = AskedSeconds(monkeypatch)
        with pytest.raises(TrackerError, match=r"did not answer within 0\.5 s"):
            session.get(register.path)
        assert asked.longest <= 0.5
        Services.restart("zookeeper", Path(state.folder))
        session.deadline_seconds = DEADLINE
        assert ZookeeperConfigurationRetriever("a", 2181, group, session=session).retrieve().run == "spring"


@pytest.mark.cluster
@pytest.mark.long
def test_a_frozen_server_does_not_hold_up_close(
    own_services: Callable[..., ServicesState], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = own_services(members=0)
    session = ZooKeeperSession(state.zookeeper, session_seconds=30.0, deadline_seconds=0.5)
    freeze(state.pids["zookeeper"])
    try:
        with pytest.raises(TrackerError, match="did not answer"):
            session.get("/")
        asked = AskedSeconds(monkeypatch)
        session.close()
        assert asked.sum <= 0.5 + CONNECT_SECONDS + 2 * CLOSE_SECONDS  # of a session of 30 s
    finally:
        os.kill(state.pids["zookeeper"], signal.SIGCONT)


# -- workers -----------------------------------------------------------------------------------------------------------


@pytest.mark.cluster
def test_a_worker_is_seen_while_it_is_registered_and_leaves_nothing(session: ZooKeeperSession, group: str) -> None:
    with WorkerRegistration(session, "w1", {"host": "h", "pid": 7}, group=group):
        assert registered_workers(session, group) == {"w1": {"host": "h", "pid": 7}}
    assert registered_workers(session, group) == {}
    assert group not in (session.children("/dl4jlegacy") or [])


@pytest.mark.cluster
@pytest.mark.long
def test_the_registered_workers_are_the_living_ones(child: Any, session: ZooKeeperSession, group: str) -> None:
    def registered() -> set[str]:
        return set(registered_workers(session, group))

    assert registered() == set()
    first, second = child("work", "w1"), child("work", "w2")
    eventually(lambda: registered() == {"w1", "w2"})
    first.expect("registered")
    first.process.kill()
    eventually(lambda: registered() == {"w2"})  # it could not say goodbye; the end of its session did
    second.expect("registered")
    second.stop()
    eventually(lambda: registered() == set())
    third = child("work", "w3")  # the folder went with the last worker and is there again
    eventually(lambda: registered() == {"w3"})
    third.expect("registered")
    third.stop()
    eventually(lambda: registered() == set())


@pytest.mark.cluster
def test_a_worker_that_lost_its_session_registers_again_by_itself(
    zookeeper_address: str, session: ZooKeeperSession, group: str
) -> None:
    with ZooKeeperSession(zookeeper_address, session_seconds=1.0) as own:
        with WorkerRegistration(own, "w1", {}, group=group) as registration:
            node, number = session.get(registration.path), own.session_id
            assert node is not None and node.owner == number
            expire_session(zookeeper_address, own.session_id)
            eventually(lambda: own.session_id not in (0, number) and registration.renewed >= 1)
            node = session.get(registration.path)
            assert node is not None and node.owner == own.session_id
        assert session.get(registration.path) is None


@pytest.mark.cluster
def test_who_is_in_a_mesh_is_told_in_the_order_of_coming_whenever_one_comes_or_goes(
    session: ZooKeeperSession, group: str
) -> None:
    told: queue.Queue[list[tuple[str, dict]]] = queue.Queue()

    def wait_for(*names: str) -> None:
        found = None
        while found != [(name, {"address": name}) for name in names]:
            found = told.get(timeout=60)

    def member(name: str) -> WorkerRegistration:
        return WorkerRegistration(session, name, {"address": name}, group=group, folder=MESH)

    with member("z"), MeshMembers(session, group=group, on_change=lambda found: told.put(list(found))):
        wait_for("z")
        with member("a"):
            wait_for("z", "a")
            with member("m"):
                wait_for("z", "a", "m")
            wait_for("z", "a")
            assert registered_workers(session, group) == {}  # these are other folders
        wait_for("z")
    assert group not in (session.children("/dl4jlegacy") or [])


@pytest.mark.cluster
def test_a_node_that_somebody_deleted_is_written_again(session: ZooKeeperSession, group: str) -> None:
    with WorkerRegistration(session, "w1", {}, group=group) as registration:

        def created() -> int:
            node = session.get(registration.path)
            return 0 if node is None else node.created

        for _ in range(3):
            before = created()
            session.delete(registration.path)
            eventually(lambda before=before: created() > before)


@pytest.mark.cluster
def test_a_frozen_worker_vanishes_and_comes_back_when_it_thaws(
    child: Any, session: ZooKeeperSession, group: str
) -> None:
    worker = child("work", "w1")
    worker.expect("registered")
    freeze(worker.process.pid)
    eventually(lambda: registered_workers(session, group) == {})
    worker.process.send_signal(signal.SIGCONT)
    eventually(lambda: registered_workers(session, group) == {"w1": {"id": "w1"}})
    worker.stop()


@pytest.mark.cluster
def test_two_live_workers_cannot_have_one_id(child: Any, session: ZooKeeperSession, group: str) -> None:
    worker = child("work", "w1")
    worker.expect("registered")
    second = WorkerRegistration(session, "w1", {}, group=group)
    with pytest.raises(TrackerError, match=r"a worker with this id is registered and alive \(id w1\)"):
        second.register(wait_seconds=0.1)
    second.close()
    assert registered_workers(session, group) == {"w1": {"id": "w1"}}


@pytest.mark.cluster
@pytest.mark.long
def test_a_worker_takes_the_place_of_its_killed_predecessor(child: Any, session: ZooKeeperSession, group: str) -> None:
    worker = child("work", "w1")
    worker.expect("registered")
    worker.process.kill()
    with WorkerRegistration(session, "w1", {"again": True}, group=group):
        assert registered_workers(session, group) == {"w1": {"again": True}}


@pytest.mark.cluster
@pytest.mark.long
def test_registrations_outlive_a_restart_of_the_server(own_services: Callable[..., ServicesState], group: str) -> None:
    state = own_services(members=0)
    with (
        ZooKeeperSession(state.zookeeper, session_seconds=1.0) as session,
        WorkerRegistration(session, "w1", {}, group=group),
    ):
        Services.restart("zookeeper", Path(state.folder))
        # a session that ended meanwhile, on a slow machine, is followed by another one that registers again
        eventually(lambda: registered_workers(session, group) == {"w1": {}})


@pytest.mark.cluster
@pytest.mark.long
def test_all_is_there_again_after_the_server_has_lost_its_data(
    own_services: Callable[..., ServicesState], group: str
) -> None:
    """Such a server knows less than its clients have seen, and refuses them for that."""
    state = own_services(members=0)
    with ZooKeeperSession(state.zookeeper, session_seconds=1.0) as session:
        election = MasterElection(session, group=group).claim(DEADLINE)
        register = ZooKeeperConfigurationRegister(
            Conf(run="mine"), group, "a", 2181, session=session, fence=lambda: election.fence
        )
        register.register()
        with election, WorkerRegistration(session, "w1", {}, group=group):
            os.kill(state.pids["zookeeper"], signal.SIGKILL)
            shutil.rmtree(Path(state.folder) / "zookeeper-data")
            Services.restart("zookeeper", Path(state.folder))
            eventually(lambda: session.connected)
            eventually(lambda: registered_workers(session, group) == {"w1": {}} and election.is_leader)
            assert register.restore(election.fence or "")
            assert ZookeeperConfigurationRetriever("a", 2181, group, session=session).retrieve().run == "mine"


# -- the election ------------------------------------------------------------------------------------------------------


@pytest.mark.cluster
def test_of_several_masters_that_start_together_exactly_one_is_elected_and_the_next_follow(
    child: Any, session: ZooKeeperSession, group: str
) -> None:
    masters = {f"m{i}": child("lead", f"m{i}") for i in range(4)}
    for master in masters.values():
        master.expect("ready")
    for master in masters.values():
        master.tell("go")
    observer = MasterElection(session, group=group)
    while masters:
        eventually(lambda: observer.holder() is not None)
        holder = observer.holder()
        assert holder is not None
        leader = masters.pop(holder["id"])
        leader.expect("elected")
        assert holder["pid"] == leader.process.pid
        assert all(master.says_nothing() for master in masters.values())
        leader.stop()
    assert observer.holder() is None
    assert group not in (session.children("/dl4jlegacy") or [])


@pytest.mark.cluster
def test_a_standby_is_master_as_soon_as_the_session_of_a_killed_master_has_ended(
    child: Any, session: ZooKeeperSession, group: str
) -> None:
    """Which takes three seconds by default: nothing but the end of the session, or a watch, is waited for."""
    assert inspect.signature(ZooKeeperSession).parameters["session_seconds"].default <= 3.0
    master, standby = child("lead", "m1"), child("lead", "m2")
    for one in (master, standby):
        one.expect("ready")
    master.tell("go")
    master.expect("elected")
    standby.tell("go")
    eventually(lambda: len(session.children(f"/dl4jlegacy/{group}/election") or []) == 2)
    master.process.kill()
    eventually(lambda: len(session.children(f"/dl4jlegacy/{group}/election") or []) == 1)
    standby.expect("elected")
    standby.stop()


@pytest.mark.cluster
def test_a_frozen_master_is_replaced_and_knows_it_when_it_thaws(child: Any) -> None:
    master, standby = child("lead", "m1"), child("lead", "m2")
    for one in (master, standby):
        one.expect("ready")
    master.tell("go")
    master.expect("elected")
    standby.tell("go")
    freeze(master.process.pid)
    standby.expect("elected")
    master.process.send_signal(signal.SIGCONT)
    lost = master.expect("lost")
    assert lost["reason"] in ("session", "unconfirmed")
    assert not lost["leads"]
    standby.stop()
    master.expect("elected")  # it stood again by itself
    master.stop()


@pytest.mark.cluster
def test_leadership_ends_by_the_clock_when_nobody_confirms_it(own_services: Callable[..., ServicesState]) -> None:
    state = own_services(members=0)
    lost: queue.Queue[str] = queue.Queue()
    with ZooKeeperSession(state.zookeeper, session_seconds=1.0) as session:
        with MasterElection(session, on_lost=lost.put).claim(DEADLINE) as election:
            freeze(state.pids["zookeeper"])
            try:
                assert lost.get(timeout=DEADLINE) == "unconfirmed"
                assert not election.is_leader
            finally:
                os.kill(state.pids["zookeeper"], signal.SIGCONT)
            assert election.wait(DEADLINE)
        assert not election.is_leader
        assert lost.get(timeout=DEADLINE) == "resigned"


@pytest.mark.cluster
def test_a_master_that_lost_its_session_is_not_the_master_and_stands_again(
    zookeeper_address: str, session: ZooKeeperSession, group: str
) -> None:
    told: queue.Queue[str] = queue.Queue()
    with (
        ZooKeeperSession(zookeeper_address, session_seconds=1.0) as own,
        MasterElection(own, group=group, on_elected=lambda: told.put("elected"), on_lost=told.put),
    ):
        assert told.get(timeout=DEADLINE) == "elected"
        with MasterElection(session, group=group) as standby:
            expire_session(zookeeper_address, own.session_id)
            assert standby.wait(DEADLINE)
            assert told.get(timeout=DEADLINE) in ("session", "unconfirmed")
        assert told.get(timeout=DEADLINE) == "elected"


@pytest.mark.cluster
@pytest.mark.long
def test_a_restart_of_the_server_elects_nobody_else(own_services: Callable[..., ServicesState], group: str) -> None:
    state = own_services(members=0)
    with (
        ZooKeeperSession(state.zookeeper, session_seconds=3.0) as session,
        ZooKeeperSession(state.zookeeper, session_seconds=3.0) as other,
        MasterElection(session, group=group).claim(DEADLINE) as master,
        MasterElection(other, group=group) as standby,
    ):
        Services.restart("zookeeper", Path(state.folder))
        assert master.wait(DEADLINE)
        assert not standby.is_leader


@pytest.mark.cluster
def test_when_all_sessions_are_lost_the_master_stays_master(
    zookeeper_address: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are lost one after the other here; so the standby yields for longer, lest a slow machine have it stand."""
    monkeypatch.setattr(election, "YIELD_SECONDS", 5.0)
    elected: list[str] = []
    with (
        ZooKeeperSession(zookeeper_address) as ours,
        ZooKeeperSession(zookeeper_address) as other,
        MasterElection(ours, group=group).claim(DEADLINE) as master,
        MasterElection(other, group=group, on_elected=lambda: elected.append("standby")) as standby,
    ):
        until(lambda: len(other.children(f"/dl4jlegacy/{group}/election") or []) == 2, "both stand")
        assert not standby._led_last, "it has stood behind the master, and would not yield if it never looked again"
        before = other.session_id
        expire_session(
            zookeeper_address, other.session_id
        )  # the standby first, so that it is the first who could stand again
        until(lambda: other.session_id not in (0, before), "the standby has a new session")
        expire_session(zookeeper_address, ours.session_id)
        until(lambda: len(other.children(f"/dl4jlegacy/{group}/election") or []) == 2, "both stand again")
        assert master.wait(DEADLINE)
        assert not standby.is_leader
        assert elected == []


@pytest.mark.cluster
def test_a_master_is_not_taken_for_another_when_its_machine_gets_a_new_name(
    session: ZooKeeperSession, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "before")
    with MasterElection(session, group=group) as election:
        assert election.wait(DEADLINE)
        monkeypatch.setattr(socket, "gethostname", lambda: "after")
        registration = MasterRegistration(
            Conf(run="r"), ClusterAddress(session.address, None, group), session, election, InMemoryStateTracker()
        )
        monkeypatch.setattr(MasterElection, "is_leader", False)  # not confirmed just now: others are asked
        registration.check()
        other = MasterElection(session, group=group, info=election.info)  # in two containers all of that may be equal
        with pytest.raises(TrackerError, match=r"run r has another master, on before"):
            address = ClusterAddress(session.address, None, group)
            MasterRegistration(Conf(run="r"), address, session, other, InMemoryStateTracker()).check()


@pytest.mark.cluster
def test_a_claim_of_an_equal_host_and_process_number_is_another_ones(session: ZooKeeperSession, group: str) -> None:
    """As in two containers; both of these are in one process."""
    with (
        MasterElection(session, group=group).claim(DEADLINE),
        pytest.raises(TrackerError, match=f"another master holds the id '{group}'"),
    ):
        MasterElection(session, group=group).claim(0.1)


@pytest.mark.cluster
@pytest.mark.long
def test_a_second_master_with_the_id_is_told_of_the_first(child: Any, session: ZooKeeperSession, group: str) -> None:
    with MasterElection(session, group=group, info={"id": "first"}).claim(DEADLINE):
        second = child("claim", "m2")
        second.expect("ready")
        second.tell("go")
        failed = second.expect("failed")
        assert failed["error"] == "TrackerError"
        assert f"another master holds the id {group!r}" in failed["message"]
        assert f"id first, pid {os.getpid()}" in failed["message"]
        assert len(session.children(f"/dl4jlegacy/{group}/election") or []) == 1


@pytest.mark.cluster
@pytest.mark.parametrize("is_itself", [False, True], ids=["nobody", "the second itself"])
def test_who_holds_the_id_is_told_though_he_had_lost_his_session_a_moment_before(
    zookeeper_address: str, session: ZooKeeperSession, group: str, is_itself: bool
) -> None:
    before = ["what the second one finds first"]

    class Second(MasterElection):
        def leader(self) -> Member | None:
            if not before:
                return super().leader()
            before.clear()
            return self._member if is_itself else None

    with (
        MasterElection(session, group=group, info={"id": "first"}).claim(DEADLINE),
        ZooKeeperSession(zookeeper_address) as other,
        pytest.raises(TrackerError, match=f"another master holds the id '{group}' .*id first, pid {os.getpid()}"),
    ):
        Second(other, group=group, info={"id": "second"}).claim(0.1)
    assert not before


@pytest.mark.cluster
def test_a_master_that_does_not_get_an_id_that_nobody_is_known_to_hold_accuses_nobody(
    zookeeper_address: str, session: ZooKeeperSession, group: str
) -> None:
    class Second(MasterElection):
        def leader(self) -> Member | None:
            return None

    with (
        MasterElection(session, group=group, info={"id": "first"}).claim(DEADLINE),
        ZooKeeperSession(zookeeper_address) as other,
        pytest.raises(TrackerError, match=f"did not get the id '{group}' .*no other is known to hold it"),
    ):
        Second(other, group=group, info={"id": "second"}).claim(0.1)
    assert not session.children(f"/dl4jlegacy/{group}/election")


@pytest.mark.cluster
def test_a_master_can_be_started_again_right_after_it_was_killed(child: Any) -> None:
    first = child("claim", "m1")
    first.expect("ready")
    first.tell("go")
    first.expect("claimed")
    first.process.kill()
    second = child("claim", "patient")
    second.expect("ready")
    second.tell("go")
    second.expect("claimed")
    second.stop()


@pytest.mark.cluster
def test_an_id_of_a_run_with_another_secret_cannot_be_taken(zookeeper_address: str, group: str) -> None:
    with (
        ZooKeeperSession(zookeeper_address, secret=SECRET) as session,
        MasterElection(session, group=group).claim(DEADLINE),
        ZooKeeperSession(zookeeper_address) as stranger,
    ):
        with pytest.raises(NotAuthorisedError, match="use another id"):
            MasterElection(stranger, group=group).claim(DEADLINE)
        with pytest.raises(NotAuthorisedError, match="use another id"):
            WorkerRegistration(stranger, "w1", {}, group=group).register()


@pytest.mark.cluster
def test_a_callback_that_raises_does_not_end_the_election(
    session: ZooKeeperSession, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    def explode() -> None:
        raise ValueError("on purpose")

    with MasterElection(session, group=group, on_elected=explode).claim(DEADLINE) as election:
        until = time.monotonic() + 2 * session.session_seconds
        eventually(lambda: time.monotonic() > until)
        assert election.is_leader
    assert "on purpose" in caplog.text


@pytest.mark.cluster
def test_a_callback_may_resign(session: ZooKeeperSession, group: str) -> None:
    lost: queue.Queue[str] = queue.Queue()
    election = MasterElection(session, group=group, on_elected=lambda: election.resign(), on_lost=lost.put)
    with election:
        assert lost.get(timeout=DEADLINE) == "resigned"
    assert election.holder() is None


def test_folders_are_made_again_whose_parents_somebody_removes_meanwhile(zookeeper_address, monkeypatch):
    parent = f"/dl4jlegacy/{uuid.uuid4().hex}"
    removals = 2
    with ZooKeeperSession(zookeeper_address) as own, ZooKeeperSession(zookeeper_address, deadline_seconds=0.5) as other:
        original = own._ensure

        def interrupted(folder, guarded):
            nonlocal removals
            made = original(folder, guarded)
            if folder == parent and removals:
                removals -= 1
                other.prune(parent)
            return made

        monkeypatch.setattr(own, "_ensure", interrupted)
        own.ensure(f"{parent}/workers")
        assert (removals, own.exists(f"{parent}/workers")) == (0, True)
        own.prune(f"{parent}/workers")
        monkeypatch.setattr(other, "_ensure", lambda folder, guarded: False)
        with pytest.raises(TrackerError, match=f"{parent}/workers .*: its parents are removed again and again"):
            other.ensure(f"{parent}/workers")
