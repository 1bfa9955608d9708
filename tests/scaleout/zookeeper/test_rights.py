"""Who may do what in Zookeeper: a stranger locks nobody out, and learns nothing of one run that helps at another."""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import make_acl, make_digest_acl

from dl4jlegacy.errors import NotAuthorisedError, TrackerError, VersionError
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.zookeeper import (
    MasterElection,
    WorkerRegistration,
    ZooKeeperConfigurationRegister,
    ZookeeperConfigurationRetriever,
    ZooKeeperSession,
    guard_roots,
)
from dl4jlegacy.scaleout.zookeeper.permissions import CLOCK, ENDED, OPEN, ROOT, Rights, owner_of, shown
from dl4jlegacy.services import Services, ServicesState

DEADLINE = 60.0
SECRET = b"a secret that nobody else knows, of this run"
THEIRS = [make_digest_acl("stranger", "password", all=True), make_acl("world", "anyone", read=True)]


@pytest.fixture
def group() -> str:
    return f"test-{uuid.uuid4().hex[:8]}"


@contextlib.contextmanager
def strangers(address: str) -> Iterator[KazooClient]:
    """A client of Zookeeper that is none of this package's."""
    client = KazooClient(address, timeout=5.0)
    client.start(timeout=DEADLINE)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def take(address: str, *paths: str) -> None:
    """Take the rights to nodes, which are made if there are none."""
    with strangers(address) as stranger:
        for path in paths:
            stranger.ensure_path(path)
            stranger.set_acls(path, THEIRS)


def unguarded(own_services: Callable[..., ServicesState], monkeypatch: pytest.MonkeyPatch) -> ServicesState:
    """Servers that somebody else has started: to the root everybody has all rights."""
    monkeypatch.setattr("dl4jlegacy.services.servers.guard_roots", lambda *where, **how: True)
    return own_services(members=0)


# -- without a server --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "owner"),
    [
        ("/", ""),
        ("/dl4jlegacy", ""),
        ("/dl4jlegacy/master", "run master"),
        ("/dl4jlegacy/master/election/x", "run master"),
        ("/dl4jlegacy-ended", ""),
        ("/dl4jlegacy-ended/4f", "end 4f"),
        ("/dl4jlegacy-clock/x", ""),
        ("/127.0.0.1:2181", ""),
        ("/127.0.0.1:2181/tmp", ""),
        ("/127.0.0.1:2181/tmp/master", "run master"),
        ("/127.0.0.1:2181/tmp/master/guard", "run master"),
        ("/other/tmp/master", ""),
    ],
)
def test_what_a_node_belongs_to_follows_from_its_path(path: str, owner: str) -> None:
    assert owner_of(path) == owner


def test_every_id_and_the_folders_above_have_keys_of_their_own_and_none_shows_the_secret() -> None:
    rights = Rights(SECRET)
    paths = ("/dl4jlegacy/one", "/dl4jlegacy/other", "/dl4jlegacy", "/dl4jlegacy-ended/one")
    keys = {rights.credential(path) for path in paths}
    assert len(keys) == 4 and not any(SECRET.decode() in str(key) for key in keys)
    assert rights.credential("/a:1/tmp/one") == rights.credential("/dl4jlegacy/one/workers/w")
    assert Rights(b"another").credential("/dl4jlegacy/one") not in keys
    assert Rights(None).credential("/dl4jlegacy/one") is None and Rights(None).of_node("/dl4jlegacy/one") is None


def test_rights_are_shown_without_a_passwords_digest() -> None:
    assert shown(THEIRS) == "digest:stranger:rwcda, world:anyone:r"


# -- at servers that somebody else has started -------------------------------------------------------------------------


@pytest.mark.cluster
@pytest.mark.parametrize("secret", [None, SECRET])
def test_nobody_can_take_the_folders_above_a_run(zookeeper_address: str, group: str, secret: bytes | None) -> None:
    port = int(zookeeper_address.rpartition(":")[2])
    with (
        ZooKeeperSession(zookeeper_address, secret=secret) as session,
        MasterElection(session, group=group).claim(DEADLINE),
        ZooKeeperConfigurationRegister(Conf(run="r"), group, "elsewhere", port, session=session) as register,
        strangers(zookeeper_address) as stranger,
    ):
        register.register()
        for path in ("/", "/dl4jlegacy", "/elsewhere:{}", "/elsewhere:{}/tmp", "/127.0.0.1:{}", "/localhost:{}/tmp"):
            with pytest.raises(NoAuthError):
                stranger.set_acls(path.format(port), THEIRS)
        register.remove()


@pytest.mark.cluster
def test_a_run_under_way_goes_on_where_a_stranger_has_taken_what_is_above_it(
    own_services: Callable[..., ServicesState], group: str, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """Its standby takes over, changes the Conf and ends the run; new workers come. Nothing of that was possible."""
    address = unguarded(own_services, monkeypatch).zookeeper
    host, port = address.split(":")
    where = (group, host, int(port))
    folders = ("/", "/dl4jlegacy", f"/{address}", f"/{address}/tmp")
    monkeypatch.setattr(Rights, "of_folder", lambda self: list(OPEN))  # the master is one of another version
    with ZooKeeperSession(address, secret=SECRET) as first:
        election = MasterElection(first, group=group).claim(DEADLINE)
        ZooKeeperConfigurationRegister(Conf(run="r", incarnation="i"), *where, session=first).register()
        take(address, *folders)
        with ZooKeeperSession(address, secret=SECRET) as second:
            standby = MasterElection(second, group=group).start()
            election.resign()
            assert standby.wait(DEADLINE)
            conf = Conf(run="r", incarnation="i", seed=5)
            register = ZooKeeperConfigurationRegister(conf, *where, session=second, fence=lambda: standby.fence)
            register.register(takes_over=True)
            assert f"/{address}/tmp is refused. The rights to /{address}/tmp are digest:stranger:rwcda, " in caplog.text
            assert "world:anyone:cdrwa" in caplog.text and "dl4j services down, and up" in caplog.text
            with ZooKeeperSession(address, secret=SECRET) as third, WorkerRegistration(third, "w", {}, group=group):
                assert ZookeeperConfigurationRetriever(host, int(port), group, session=third).retrieve() == conf
            register.remove()
            assert ZookeeperConfigurationRetriever(host, int(port), group, session=second).find() is None
            register.register()  # the id's next run
            assert ZookeeperConfigurationRetriever(host, int(port), group, session=second).retrieve() == conf
            standby.resign()


@pytest.mark.cluster
def test_who_cannot_begin_is_told_which_node_is_taken_and_what_to_do(
    own_services: Callable[..., ServicesState], group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = unguarded(own_services, monkeypatch).zookeeper
    take(address, "/dl4jlegacy", f"/{address}/tmp")
    words = (
        r"The rights to /dl4jlegacy are digest:stranger:rwcda, world:anyone:r: .*set world:anyone:cdrwa there, or empty"
    )
    with ZooKeeperSession(address, secret=SECRET) as session:
        with pytest.raises(NotAuthorisedError, match=words):
            MasterElection(session, group=group).claim(DEADLINE)
        register = ZooKeeperConfigurationRegister(Conf(), group, *split(address), session=session)
        with pytest.raises(NotAuthorisedError, match=rf"The rights to /{address}/tmp are digest:stranger"):
            register.register()


def split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


@pytest.mark.cluster
@pytest.mark.parametrize("junk", [b"junk", b'{"format":9,"package":"x"}', b""])
def test_a_node_under_another_name_of_the_machine_stands_in_nobodys_way(
    zookeeper_address: str, group: str, junk: bytes
) -> None:
    _, port = split(zookeeper_address)
    with (
        ZooKeeperSession(zookeeper_address, secret=SECRET) as session,
        strangers(zookeeper_address) as stranger,
        ZookeeperConfigurationRetriever("elsewhere", port, group, session=session) as retriever,
    ):
        for name, acl in (("127.0.0.1", None), ("localhost", THEIRS)):
            stranger.create(f"/{name}:{port}/tmp/{group}", junk, acl=acl)
        assert retriever.find() is None
        with pytest.raises((NotAuthorisedError, VersionError, TrackerError, Exception), match=f"{group}"):
            retriever.retrieve()  # nobody has begun: what was found instead is told
        with ZooKeeperConfigurationRegister(Conf(run="r"), group, "elsewhere", port, session=session) as register:
            register.register()
            assert retriever.retrieve().run == "r"
            register.remove()
        for name in ("127.0.0.1", "localhost"):
            stranger.delete(f"/{name}:{port}/tmp/{group}")


@pytest.mark.cluster
def test_a_false_server_learns_only_the_keys_of_the_ids_that_it_is_asked_for(
    zookeeper_address: str, group: str
) -> None:
    """What a session has sent is all that the server can use elsewhere."""
    with ZooKeeperSession(zookeeper_address, secret=SECRET) as session:
        session.exists(f"/dl4jlegacy/{group}/election")
        sent = {credential for _, credential in session._client.auth_data}
    with strangers(zookeeper_address) as stranger, ZooKeeperSession(zookeeper_address, secret=SECRET) as session:
        for credential in sent:
            stranger.add_auth("digest", credential)
        with WorkerRegistration(session, "w", {}, group=f"{group}-other") as worker:
            for use in (lambda: stranger.get(worker.path), lambda: stranger.delete(worker.path)):
                with pytest.raises(NoAuthError):
                    use()
            with pytest.raises(NoAuthError):
                stranger.set_acls("/dl4jlegacy", THEIRS)


# -- at servers of `dl4j services` -------------------------------------------------------------------------------------


@pytest.mark.cluster
def test_with_a_secret_nobody_else_adds_anything_to_servers_or_fills_them(
    own_services: Callable[..., ServicesState], group: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """125 nodes of 1 MB end a Zookeeper server of the usual heap."""
    monkeypatch.setenv("DL4J_SECRET", SECRET.decode())
    state = own_services(members=0)
    address = state.zookeeper
    port = split(address)[1]
    with strangers(address) as stranger:
        for folder in ("", ROOT, ENDED, CLOCK, f"/{address}", f"/{address}/tmp", f"/localhost:{port}/tmp"):
            with pytest.raises(NoAuthError):
                stranger.create(f"{folder}/theirs", bytes(1_000_000))
            with pytest.raises(NoAuthError):
                stranger.set_acls(folder or "/", THEIRS)
            if folder:
                with pytest.raises(NoAuthError):
                    stranger.delete(folder)
    with (
        ZooKeeperSession(address, secret=SECRET) as session,
        MasterElection(session, group=group).claim(DEADLINE),
        ZooKeeperConfigurationRegister(Conf(run="r"), group, "first.example", port, session=session) as register,
    ):
        register.register()
        assert abs(session.seconds_ahead()) < DEADLINE
        register.remove()
    for other in (None, b"another secret, of another run"):
        words = "these servers were started with a run's secret, which this"
        with ZooKeeperSession(address, secret=other) as session, pytest.raises(NotAuthorisedError, match=words):
            MasterElection(session, group="other").claim(DEADLINE)
    assert Services.restart("zookeeper", Path(state.folder)).silent == ()
    assert guard_roots(address, secret=SECRET), "what was set stays"


@pytest.mark.cluster
def test_what_was_taken_before_servers_are_guarded_is_said(
    own_services: Callable[..., ServicesState], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    address = unguarded(own_services, monkeypatch).zookeeper
    take(address, "/dl4jlegacy")
    with caplog.at_level(logging.WARNING):
        assert not guard_roots(address, secret=SECRET)
    [said] = caplog.messages
    assert said.startswith(f"the rights to /dl4jlegacy in Zookeeper at {address} are digest:stranger:rwcda, world")
    with strangers(address) as stranger, pytest.raises(NoAuthError):
        stranger.create("/theirs", b"")


def test_a_key_that_is_told_while_requests_are_under_way_spoils_no_answer(session_services: ServicesState) -> None:
    """Zookeeper answers a key at once, so before requests that were sent earlier."""
    with ZooKeeperSession(session_services.zookeeper) as session:
        client: Any = session._client
        for turn in range(20):
            before = [client.get_children_async("/") for _ in range(50)]
            told = client.add_auth_async("digest", f"guest{turn}:{turn}")
            after = [client.exists_async("/") for _ in range(50)]
            assert all(isinstance(answer.get(timeout=DEADLINE), list) for answer in before)
            assert told.get(timeout=DEADLINE) is True
            assert all(answer.get(timeout=DEADLINE).version is not None for answer in after)
