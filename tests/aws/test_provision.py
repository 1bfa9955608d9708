"""HostProvisioner, against an SSH server on loopback: hosts are known, commands end, scripts are run."""

from __future__ import annotations

import socket
import stat
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


def test_a_command_returns_its_exit_status_and_all_that_it_said(connect: Connect) -> None:
    host = connect()
    done = host.run_remote_command("echo one; seq 200000 >&2; seq 200000; exit 7")
    numbers = "".join(f"{number}\n" for number in range(1, 200_001))
    assert (done.status, done.out == f"one\n{numbers}", done.err == numbers) == (7, True, True)
    assert host.run_remote_command("no-such-command-at-all").status == 127
    assert host.run_remote_command("kill -9 $$").status == -1  # ended by a signal: no status, and not 0
    with pytest.raises(CloudError, match="the connection broke"):
        host.run_remote_command("kill -9 $PPID")


def test_a_script_is_uploaded_and_run(connect: Connect, ssh_server: SshServer, tmp_path: Path) -> None:
    script = tmp_path / "a script.sh"
    script.write_text('#!/bin/sh\necho "I am $0"; exit 3\n', encoding="utf-8")
    done = connect().upload_and_run(script)
    assert (done.status, done.out) == (3, "I am ./a script.sh\n")
    assert stat.S_IMODE((ssh_server.home / "a script.sh").stat().st_mode) == 0o700
    with pytest.raises(CloudError, match="nothing could not be uploaded"):
        connect().upload_and_run(tmp_path / "nothing")


def test_an_unknown_host_key_is_refused(connect: Connect, tmp_path: Path) -> None:
    with pytest.raises(NotAuthorisedError, match="host key of a kind that was not expected"):
        connect(host_keys="").connect()
    with pytest.raises(NotAuthorisedError, match=r"another host key .* somebody may be in between"):
        connect(host_keys=make_key(tmp_path / "another")).run_remote_command("true")
    with pytest.raises(ConfError, match="is no host key"):
        connect(host_keys="ssh-ed25519 nonsense").connect()


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


def test_a_host_that_does_not_answer_is_named_with_what_to_look_at(tmp_path: Path) -> None:
    new_key(tmp_path / "key")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(CloudError, match=r"does not answer.*--allow"):
        HostProvisioner("127.0.0.1", port=port, key_file=tmp_path / "key", host_keys="").connect()
