"""HostProvisioner, against an SSH server on loopback: hosts are known, commands end, files arrive whole."""

from __future__ import annotations

import os
import socket
import stat
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dl4jlegacy.aws.provision import HostProvisioner, new_key
from dl4jlegacy.errors import CloudError, ConfError, DeadlineError, NotAuthorisedError
from tests.support.ssh_server import SshServer, make_key

Connect = Callable[..., HostProvisioner]


@pytest.fixture
def connect(ssh_server: SshServer) -> Iterator[Connect]:
    with ExitStack() as stack:

        def made(**other: object) -> HostProvisioner:
            server = ssh_server
            options = {"port": server.port, "key_file": server.key_file, "host_keys": server.host_keys, **other}
            return stack.enter_context(HostProvisioner(server.host, server.user, **options))

        yield made


def test_a_command_returns_its_exit_status_and_what_it_said(connect: Connect) -> None:
    host, lines = connect(), []
    done = host.run_remote_command("echo one; echo two >&2; echo three; exit 7", on_line=lines.append)
    assert (done.status, done.out, done.err) == (7, "one\nthree\n", "two\n")
    assert lines == ["one", "three"]
    assert host.run_remote_command("true").status == 0
    assert host.run_remote_command("no-such-command-at-all").status == 127
    assert host.run_remote_command("kill -9 $$").status == -1  # ended by a signal: no status, and not 0


def test_output_of_megabytes_arrives_whole(connect: Connect) -> None:
    done = connect().run_remote_command("seq 200000; seq 200000 >&2")
    expected = "".join(f"{number}\n" for number in range(1, 200_001))
    assert (done.status, done.out == expected, done.err == expected) == (0, True, True)


def test_a_script_is_uploaded_and_run(connect: Connect, ssh_server: SshServer, tmp_path: Path) -> None:
    script = tmp_path / "a script.sh"
    script.write_text('#!/bin/sh\necho "I am $0"; exit 3\n', encoding="utf-8")
    script.chmod(0o600)
    folder = os.path.relpath(tmp_path / "new folder", ssh_server.home)
    done = connect().upload_and_run(script, folder)
    assert (done.status, done.out) == (3, f"I am ./{folder}/a script.sh\n")
    assert stat.S_IMODE((tmp_path / "new folder" / "a script.sh").stat().st_mode) == 0o700
    assert list((tmp_path / "new folder").glob("*.part")) == []


def test_files_folders_and_archives_are_deployed(connect: Connect, tmp_path: Path) -> None:
    source, target, host = tmp_path / "source", tmp_path / "target", connect()
    source.mkdir()
    (source / "a").write_bytes(os.urandom(3 << 20))
    (source / "b").write_text("b", encoding="utf-8")
    (source / "folder").mkdir()
    host.upload_for_deployment(source, str(target))
    assert sorted(path.name for path in target.iterdir()) == ["a", "b"]
    assert (target / "a").read_bytes() == (source / "a").read_bytes()
    with tarfile.open(tmp_path / "all.tar.gz", "w:gz") as archive:
        archive.add(source / "b", "inside/b")
    host.upload_for_deployment(tmp_path / "all.tar.gz", str(target / "all.tar.gz"))
    assert (target / "inside" / "b").read_text(encoding="utf-8") == "b"
    (source / "b").write_text("newer", encoding="utf-8")
    host.upload_for_deployment(source / "b", str(target / "b"))
    assert (target / "b").read_text(encoding="utf-8") == "newer"
    with pytest.raises(CloudError, match=r"could not be uploaded to /proc/b"):
        host.upload_for_deployment(source / "b", "/proc/b")
    with pytest.raises(ConfError, match="is no file"):
        host.upload_for_deployment(tmp_path / "nothing", "there")
    (tmp_path / "bad.tar").write_text("no archive", encoding="utf-8")
    with pytest.raises(CloudError, match="could not be unpacked"):
        host.upload_for_deployment(tmp_path / "bad.tar", str(target / "bad.tar"))


def test_an_unknown_host_key_is_refused(connect: Connect, tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(NotAuthorisedError, match=r"host key is not known.*known_hosts after comparing it"):
        monkeypatch.setenv("HOME", str(tmp_path))
        connect(host_keys="").connect()
    with pytest.raises(NotAuthorisedError, match=r"another host key .* somebody may be in between"):
        connect(host_keys=make_key(tmp_path / "another")).run_remote_command("true")
    with pytest.raises(ConfError, match="is no host key"):
        connect(host_keys="ssh-ed25519 nonsense").connect()


def test_known_hosts_is_used_where_no_key_is_given(
    connect: Connect, ssh_server: SshServer, tmp_path: Path, monkeypatch
) -> None:
    known = tmp_path / ".ssh" / "known_hosts"
    known.parent.mkdir()
    line = f"[{ssh_server.host}]:{ssh_server.port} {ssh_server.host_keys}\n"
    known.write_text(line, encoding="ascii")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert connect(host_keys="").run_remote_command("exit 5").status == 5


def test_a_key_that_is_not_accepted_or_not_private_is_refused(connect: Connect, tmp_path: Path) -> None:
    new_key(tmp_path / "mine")
    assert stat.S_IMODE((tmp_path / "mine").stat().st_mode) == 0o600
    with pytest.raises(NotAuthorisedError, match="does not accept the key"):
        connect(key_file=tmp_path / "mine").connect()
    (tmp_path / "mine").chmod(0o644)
    with pytest.raises(ConfError, match="chmod 600"):
        connect(key_file=tmp_path / "mine").connect()
    (tmp_path / "none").write_text("no key", encoding="ascii")
    (tmp_path / "none").chmod(0o600)
    with pytest.raises(ConfError, match="holds no private key"):
        connect(key_file=tmp_path / "none").connect()


def test_a_command_that_does_not_end_is_given_up(connect: Connect) -> None:
    host = connect()
    with pytest.raises(DeadlineError, match=r"did not end within 0\.5 s: sleep 600"):
        host.run_remote_command("sleep 600", seconds=0.5)
    assert host.run_remote_command("echo again").out == "again\n"  # over a new connection


def test_nobody_there_is_said_after_three_tries(tmp_path: Path) -> None:
    new_key(tmp_path / "key")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    host = HostProvisioner("127.0.0.1", "admin", port=port, key_file=tmp_path / "key")
    with pytest.raises(CloudError, match=r"does not answer.*--allow"):
        host.connect()


def test_a_server_that_hangs_up_is_an_error_and_no_exit_status(connect: Connect) -> None:
    with pytest.raises(CloudError, match="the connection broke"):
        connect().run_remote_command("kill -9 $PPID")


def test_a_tunnel_carries_what_goes_through_it(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as beyond:

        def answer() -> None:
            connection, _ = beyond.accept()
            with connection:
                connection.sendall(connection.recv(100).upper())

        thread = threading.Thread(target=answer)
        thread.start()
        with (
            connect().tunnel("127.0.0.1", beyond.getsockname()[1]) as port,
            socket.create_connection(("127.0.0.1", port), timeout=60) as near,
        ):
            near.sendall(b"through")
            assert near.recv(100) == b"THROUGH"
        thread.join(60)
