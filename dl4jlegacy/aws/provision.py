"""Commands and files over SSH, to hosts whose keys are known beforehand.

An unknown or changed host key is refused. Calls return when the command has ended, with its exit status.

Legacy: ``HostProvisioner`` (JSch), which took any host key, lost the exit status and let root log in with a password.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import posixpath
import select
import shlex
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from dl4jlegacy.aws.cluster_spec import check_key_file
from dl4jlegacy.errors import CloudError, ConfError, DeadlineError, NotAuthorisedError
from dl4jlegacy.system import files
from dl4jlegacy.system.clock import Deadline
from dl4jlegacy.system.service_threads import ServiceThread

__all__ = ["HostProvisioner", "RemoteResult", "new_key"]

logger = logging.getLogger(__name__)

_CONNECT_SECONDS = 15.0
_TRIES = 3
_CHUNK = 32768


@dataclass(frozen=True, slots=True)
class RemoteResult:
    """The exit status (-1 if a signal ended the command) and the output of a remote command."""

    status: int
    out: str
    err: str


def new_key(path: Path) -> str:
    """Return the public half of the private key at ``path`` (OpenSSH), made now (Ed25519) if there is none."""
    from cryptography.hazmat.primitives import serialization as forms
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        form = (forms.Encoding.PEM, forms.PrivateFormat.OpenSSH, forms.NoEncryption())
        files.write(path, Ed25519PrivateKey.generate().private_bytes(*form), private=True)
    return public_key(path)


def public_key(path: Path) -> str:
    """Return the public half of a private key file; raises ``ConfError``."""
    key = _read_key(path)
    return f"{key.get_name()} {key.get_base64()}"


def _read_key(path: Path) -> Any:
    import paramiko

    check_key_file(path)
    try:
        return paramiko.PKey.from_path(path)
    except (paramiko.SSHException, ValueError, OSError, TypeError) as exc:
        raise ConfError(f"{path} holds no private key that can be used (without a passphrase): {exc}") from exc


class HostProvisioner:
    """One SSH connection, made when first needed; used by one thread at a time, closed by ``close``.

    Args:
        host, user, port: where to log in as whom.
        key_file: the private key; its file must be its owner's alone.
        host_keys: lines ``type base64`` of the keys that the host may show; none: those of ``~/.ssh/known_hosts``.
        seconds: the deadline of connecting and of every command that has none of its own.
    """

    def __init__(
        self,
        host: str,
        user: str = "admin",
        *,
        port: int = 22,
        key_file: Path | str = "",
        host_keys: str = "",
        seconds: float = 600.0,
    ) -> None:
        self.host, self.user, self.port, self._seconds = host, user, port, seconds
        self._key_file, self._host_keys = str(key_file), host_keys
        self._client: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def add_key_file(self, path: Path | str) -> None:
        """Log in with this private key."""
        self._key_file = str(path)

    def close(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        if client is not None:
            transport = client.get_transport()
            client.close()
            if transport is not None:
                transport.join(5.0)

    # --- connecting ---------------------------------------------------------------------------------------------------

    def connect(self) -> Any:
        """Return the connected client.

        Raises:
            NotAuthorisedError: the host's key is not the one that was pinned, or ours is not accepted.
            CloudError: nobody answers there. ConfError: the key file cannot be used.
        """
        if self._client is not None:
            return self._client
        for left in reversed(range(_TRIES)):
            try:
                self._client = self._open_client()
                return self._client
            except CloudError:
                if not left:
                    raise
        raise AssertionError("unreachable")

    def _open_client(self) -> Any:
        import paramiko

        key = _read_key(Path(self._key_file).expanduser()) if self._key_file else None
        client = paramiko.SSHClient()
        client.set_missing_host_key_policy(paramiko.RejectPolicy())
        where = f"{self.user}@{self.host}:{self.port}"
        try:
            self._pin(client)
            client.connect(
                self.host,
                port=self.port,
                username=self.user,
                pkey=key,
                timeout=_CONNECT_SECONDS,
                banner_timeout=_CONNECT_SECONDS,
                auth_timeout=_CONNECT_SECONDS,
                look_for_keys=False,
                allow_agent=key is None,
            )
        except paramiko.BadHostKeyException as exc:
            client.close()
            raise NotAuthorisedError(
                f"{where} shows another host key ({_fingerprint(exc.key)}) than it should; somebody may be in between"
            ) from exc
        except paramiko.AuthenticationException as exc:
            client.close()
            raise NotAuthorisedError(f"{where} does not accept the key {self._key_file or 'of the SSH agent'}") from exc
        except paramiko.SSHException as exc:
            client.close()
            if "not found in known_hosts" in str(exc):
                raise NotAuthorisedError(
                    f"{where}: its host key is not known, so it is not trusted; give host_keys, or add it to "
                    "known_hosts after comparing it"
                ) from exc
            raise CloudError(f"{where}: SSH failed: {exc}") from exc
        except (OSError, EOFError) as exc:
            client.close()
            raise CloudError(f"{where} does not answer: {exc}; is it running, and are you admitted (--allow)?") from exc
        return client

    def _pin(self, client: Any) -> None:
        import paramiko

        if not self._host_keys:
            client.load_system_host_keys()
            return
        name = self.host if self.port == 22 else f"[{self.host}]:{self.port}"
        for line in self._host_keys.splitlines():
            kind, _, rest = line.strip().partition(" ")
            encoded = rest.split(" ")[0]
            try:
                key = paramiko.PKey.from_type_string(kind, base64.b64decode(encoded, validate=True))
            except (paramiko.SSHException, ValueError, IndexError) as exc:
                raise ConfError(f"{line[:60]!r} is no host key; give lines of type and base64") from exc
            client.get_host_keys().add(name, kind, key)

    # --- running ------------------------------------------------------------------------------------------------------

    def run_remote_command(
        self, command: str, *, on_line: Callable[[str], None] = lambda line: None, seconds: float | None = None
    ) -> RemoteResult:
        """Run a command in the user's shell to its end; return its exit status and output.

        Args:
            command: for the remote shell.
            on_line: called with every line of its output, on this thread.
            seconds: deadline.

        Raises:
            DeadlineError: it did not end in time (the connection is closed, so that it receives SIGHUP).
            CloudError: the connection broke.
        """
        import paramiko

        limit = self._seconds if seconds is None else seconds
        try:
            channel = self.connect().get_transport().open_session(timeout=_CONNECT_SECONDS)
            with contextlib.closing(channel):
                channel.exec_command(command)
                channel.shutdown_write()
                result = _read_to_end(channel, limit, on_line)
                if result.status < 0 and not channel.get_transport().is_active():
                    raise EOFError("the connection was closed before the command's exit status arrived")
                return result
        except TimeoutError as exc:
            self.close()
            raise DeadlineError(f"{self.host}: a command did not end within {limit:g} s: {command[:80]}") from exc
        except (paramiko.SSHException, OSError, EOFError) as exc:
            self.close()
            raise CloudError(f"{self.host}: the connection broke during {command[:80]!r}: {exc}") from exc

    def upload_and_run(self, script: Path | str, root_dir: str = "", **options: Any) -> RemoteResult:
        """Upload a script into ``root_dir`` (of the user's home, if relative), make it executable, run it."""
        path = Path(script).expanduser()
        target = posixpath.join(root_dir, path.name) if root_dir else path.name
        self._put(path, target, executable=True)
        word = target if target.startswith("/") else f"./{target}"
        return self.run_remote_command(shlex.quote(word), **options)

    def upload_for_deployment(self, source: Path | str, target: str) -> None:
        """Upload a file, the files of a folder, or a ``.tar``/``.tar.gz``, which is then unpacked beside itself."""
        path = Path(source).expanduser()
        if path.is_dir():
            self._make_folder(target)
            for file in sorted(p for p in path.iterdir() if p.is_file()):
                self._put(file, posixpath.join(target, file.name))
            return
        self._put(path, target)
        if path.name.endswith((".tar", ".tar.gz", ".tgz")):
            folder, name = posixpath.split(target)
            done = self.run_remote_command(f"cd {shlex.quote(folder or '.')} && tar xf {shlex.quote(name)}")
            if done.status != 0:
                raise CloudError(f"{self.host}: {target} could not be unpacked: {done.err.strip()}")

    def _make_folder(self, folder: str) -> None:
        done = self.run_remote_command(f"mkdir -p {shlex.quote(folder)}")
        if done.status != 0:
            raise CloudError(f"{self.host}: folder {folder} could not be made: {done.err.strip()}")

    def _put(self, path: Path, target: str, *, executable: bool = False) -> None:
        """Upload a file, aside first, so that nobody sees half of it."""
        if not path.is_file():
            raise ConfError(f"{path} is no file that could be uploaded to {self.host}")
        if posixpath.dirname(target):
            self._make_folder(posixpath.dirname(target))
        aside = f"{target}.{os.getpid()}.part"
        try:
            with self.connect().open_sftp() as sftp:
                sftp.get_channel().settimeout(self._seconds)
                sftp.put(str(path), aside)
                sftp.chmod(aside, 0o700 if executable else stat.S_IMODE(path.stat().st_mode) & 0o755)
                sftp.posix_rename(aside, target)
        except (OSError, EOFError) as exc:
            raise CloudError(f"{self.host}: {path} could not be uploaded to {target}: {exc}") from exc

    # --- tunnel -------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def tunnel(self, host: str, port: int) -> Iterator[int]:
        """Forward a port of this machine, whose number is yielded, to ``host:port`` beyond the SSH host."""
        transport = self.connect().get_transport()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            stop = threading.Event()
            listener.settimeout(0.2)
            thread = ServiceThread(
                target=_forward, args=(listener, stop, transport, (host, port)), name=f"tunnel-{host}"
            )
            thread.start()
            try:
                yield int(listener.getsockname()[1])
            finally:
                stop.set()
                thread.join(10.0)


def _fingerprint(key: Any) -> str:
    return str(getattr(key, "fingerprint", key.get_name()))


def _read_to_end(channel: Any, seconds: float, on_line: Callable[[str], None]) -> RemoteResult:
    """Read both streams of a channel to their end."""
    deadline = Deadline(seconds)
    texts = {"out": bytearray(), "err": bytearray()}
    reported = 0
    while True:
        if deadline.passed():
            raise TimeoutError
        select.select([channel], [], [], deadline.slice())
        while channel.recv_ready():
            texts["out"] += channel.recv(_CHUNK)
        while channel.recv_stderr_ready():
            texts["err"] += channel.recv_stderr(_CHUNK)
        while (line_end := texts["out"].find(b"\n", reported)) >= 0:
            on_line(texts["out"][reported:line_end].decode(errors="replace"))
            reported = line_end + 1
        is_drained = not channel.recv_ready() and not channel.recv_stderr_ready()
        if channel.exit_status_ready() and is_drained and (channel.eof_received or channel.closed):
            out, err = (bytes(text).decode(errors="replace") for text in texts.values())
            return RemoteResult(channel.recv_exit_status(), out, err)


def _forward(listener: socket.socket, stop: threading.Event, transport: Any, target: tuple[str, int]) -> None:
    """Accept connections until ``stop`` is set, and serve each on its own thread."""
    threads: list[ServiceThread] = []
    while not stop.is_set():
        try:
            connection, peer = listener.accept()
        except TimeoutError:
            continue
        except OSError:
            break
        thread = ServiceThread(target=_pump, name=f"pump-{peer[1]}", args=(connection, peer, stop, transport, target))
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join(5.0)


def _pump(
    connection: socket.socket, peer: tuple[str, int], stop: threading.Event, transport: Any, target: tuple[str, int]
) -> None:
    import paramiko

    with connection:
        try:
            channel = transport.open_channel("direct-tcpip", target, peer, timeout=_CONNECT_SECONDS)
        except (paramiko.SSHException, EOFError, OSError) as exc:
            logger.debug("no tunnel to %s: %s", target, str(exc))
            return
        with contextlib.closing(channel), contextlib.suppress(OSError, EOFError):
            while not stop.is_set():
                ready, _, _ = select.select([connection, channel], [], [], 0.2)
                for source, sink in ((connection, channel), (channel, connection)):
                    if source in ready:
                        data = source.recv(_CHUNK)
                        if not data:
                            return
                        sink.sendall(data)
