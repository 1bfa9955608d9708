"""An SSH server for tests, in a process of its own: on a free loopback port, with its own keys, for one user."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = ["SshServer", "make_key", "ssh_server"]


@dataclass(frozen=True)
class SshServer:
    """Where it listens, and who may log in with which key."""

    host: str
    port: int
    user: str
    key_file: Path
    host_keys: str
    home: Path


def make_key(path: Path) -> str:
    """Make a private key at ``path``; return its public half."""
    import asyncssh

    key = asyncssh.generate_private_key("ssh-ed25519")
    key.write_private_key(path)
    path.chmod(0o600)
    return " ".join(key.export_public_key().decode().split()[:2])


@pytest.fixture(scope="session")
def ssh_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    """A server that is running; ended after the tests."""
    folder, user = tmp_path_factory.mktemp("sshd"), "admin"
    home, key = folder / "home", folder / "client_key"
    home.mkdir()
    (folder / "authorized_keys").write_text(f"{make_key(key)} test\n", encoding="ascii")
    host_keys = make_key(folder / "host_key")
    command = [sys.executable, "-m", "tests.support.ssh_server_process", str(folder), user]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    ) as server:
        assert server.stdin is not None and server.stdout is not None
        try:
            port = server.stdout.readline()  # nothing if the server ends
            assert port, "the SSH server did not start; its reason is on standard error"
            yield SshServer("127.0.0.1", int(port), user, key, host_keys, home)
        finally:
            server.stdin.close()  # that ends it
            server.wait(timeout=60)
