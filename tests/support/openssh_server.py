"""A real OpenSSH server for tests: on a free loopback port, with its own keys, found here or unpacked from Debian."""

from __future__ import annotations

import getpass
import os
import pwd
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.debian_packages import unpack

__all__ = ["OpenSshServer", "make_key", "openssh_server", "sshd_program"]

_AS_ROOT = """
set -e
mount --bind "$1" /etc/passwd
mount -t tmpfs tmpfs /run
mkdir -p -m 755 /run/sshd
shift
exec "$@"
"""
"""sshd that root starts wants a user and a folder of its own; it gets them in a mount namespace of its own."""


@dataclass(frozen=True)
class OpenSshServer:
    """Where it listens, and who may log in with which key."""

    host: str
    port: int
    user: str
    key_file: Path
    host_keys: str
    home: Path


def make_key(path: Path) -> str:
    """Make a private key at ``path``; return its public half."""
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
    subprocess.run(command, check=True, timeout=60)
    kind, key = path.with_name(f"{path.name}.pub").read_text(encoding="ascii").split()[:2]
    return f"{kind} {key}"


@pytest.fixture(scope="session")
def sshd_program(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, str]]:
    """The server's path and the environment that it needs."""
    found = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if found:
        return found, {}
    root = unpack(["openssh-server", "libwrap0"], tmp_path_factory.mktemp("sshd"))
    libraries = ":".join(str(path.parent) for path in root.rglob("libwrap.so.0"))
    return str(root / "usr/sbin/sshd"), {"LD_LIBRARY_PATH": libraries}


@pytest.fixture
def openssh_server(sshd_program: tuple[str, dict[str, str]], tmp_path: Path) -> Iterator[OpenSshServer]:
    """A server that is running; ended after the test."""
    folder, (program, environment) = tmp_path / "sshd", sshd_program
    folder.mkdir()
    me, key = pwd.getpwuid(os.getuid()), folder / "client_key"
    user, home = getpass.getuser(), Path(me.pw_dir)
    (folder / "authorized_keys").write_text(f"{make_key(key)} test\n", encoding="ascii")
    host_keys = make_key(folder / "host_key")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    settings = (
        *(f"Port {port}", "ListenAddress 127.0.0.1", f"HostKey {folder / 'host_key'}", "StrictModes no"),
        *(f"AuthorizedKeysFile {folder / 'authorized_keys'}", "UsePAM no", "PasswordAuthentication no"),
        *("Subsystem sftp internal-sftp", f"PidFile {folder / 'pid'}", "AllowTcpForwarding yes", "PrintMotd no"),
    )
    (folder / "config").write_text("\n".join(settings) + "\n", encoding="utf-8")
    command = [program, "-D", "-e", "-f", str(folder / "config")]
    if os.geteuid() == 0:
        user, home = "admin", folder / "home"
        home.mkdir()
        users = f"root:x:0:0::/root:/bin/sh\nadmin:x:0:0::{home}:/bin/sh\nsshd:x:65533:65534::/run/sshd:/bin/false\n"
        (folder / "passwd").write_text(users, encoding="utf-8")
        command = ["unshare", "--mount", "sh", "-c", _AS_ROOT, "sh", str(folder / "passwd"), *command]
    with subprocess.Popen(command, env={**os.environ, **environment}, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        said = []
        for line in server.stderr:  # ends when the server does
            said.append(line)
            if "Server listening" in line:
                break
        else:
            pytest.fail(f"sshd did not start: {''.join(said)}")
        thread = threading.Thread(target=server.stderr.read, daemon=True)
        thread.start()
        try:
            yield OpenSshServer("127.0.0.1", port, user, key, host_keys, home)
        finally:
            server.terminate()
            server.wait(timeout=20)
            thread.join(20)
