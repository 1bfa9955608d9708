"""An SSH server for one user, as tests need it: ``python -m tests.support.ssh_server_process FOLDER USER``.

FOLDER holds ``host_key``, ``authorized_keys`` and the user's ``home``. The port is printed; the server ends when its
standard input does. As with sshd each connection has a process of its own, the parent of the commands that it runs:
commands go to ``/bin/sh``, files to SFTP, tunnels wherever they want. Unlike with sshd, what still runs when a
connection ends is hung up, so that no test leaves anything behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import asyncssh

CHUNK = 1 << 16
LOGIN_SECONDS = 30


class Server(asyncssh.SSHServer):
    """Who may log in, and that tunnels are allowed."""

    def __init__(self, folder: Path, user: str) -> None:
        self._folder, self._user = folder, user

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        """Remember the connection."""
        self._connection = conn

    def begin_auth(self, username: str) -> bool:
        """Demand a key; only the user's is accepted."""
        if username == self._user:
            self._connection.set_authorized_keys(str(self._folder / "authorized_keys"))
        return True

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        """Let every tunnel through."""
        return True


async def run_command(process: asyncssh.SSHServerProcess[bytes]) -> None:
    """Run a command in the user's shell; tell its output, and its exit status or the signal that ended it."""
    shell = await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", process.command or "true"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        given = asyncio.create_task(_hand_over(process.stdin, shell.stdin))
        await asyncio.gather(_copy(shell.stdout, process.stdout), _copy(shell.stderr, process.stderr))
        status = await shell.wait()
        given.cancel()
        if status < 0:
            process.exit_with_signal(signal.Signals(-status).name.removeprefix("SIG"))
        else:
            process.exit(status)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGHUP)


async def _copy(source: Any, target: Any) -> None:
    """Copy one stream to its end."""
    while data := await source.read(CHUNK):
        target.write(data)
        await target.drain()


async def _hand_over(source: Any, target: asyncio.StreamWriter) -> None:
    """Give a command its input to the end, or for as long as it takes any."""
    with contextlib.suppress(OSError):
        await _copy(source, target)
    target.close()


async def serve(connection: socket.socket, folder: Path, user: str) -> None:
    """Serve one connection to its end."""
    commands: set[asyncio.Task[None]] = set()

    def start(process: asyncssh.SSHServerProcess[bytes]) -> None:
        task = asyncio.create_task(run_command(process))
        commands.add(task)
        task.add_done_callback(commands.discard)

    with contextlib.suppress(asyncssh.Error, OSError):  # the client has read, or broken off
        served = await asyncssh.run_server(
            connection,
            server_factory=lambda: Server(folder, user),
            server_host_keys=[str(folder / "host_key")],
            process_factory=start,
            sftp_factory=asyncssh.SFTPServer,
            encoding=None,
            login_timeout=LOGIN_SECONDS,
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, served.abort)
        await served.wait_closed()
    for task in tuple(commands):
        task.cancel()
    await asyncio.gather(*commands, return_exceptions=True)


def main(folder: Path, user: str) -> None:
    """Listen, one child for each connection, until standard input ends; then end the children that are left."""
    children: dict[int, int] = {}  # process by the descriptor that tells of its end
    home = folder / "home"
    os.chdir(home)
    os.environ.update(HOME=str(home), USER=user, LOGNAME=user, SHELL="/bin/sh")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while 0 not in (ready := select.select([0, listener, *children], [], [])[0]):
            for ended in children.keys() & ready:
                _bury(ended, children.pop(ended))
            if listener in ready:
                connection, _ = listener.accept()
                child = os.fork()
                if not child:
                    listener.close()
                    asyncio.run(serve(connection, folder, user))
                    os._exit(0)
                connection.close()
                children[os.pidfd_open(child)] = child
    for ended, child in children.items():
        os.kill(child, signal.SIGTERM)
        _bury(ended, child)


def _bury(descriptor: int, child: int) -> None:
    os.close(descriptor)
    os.waitpid(child, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
