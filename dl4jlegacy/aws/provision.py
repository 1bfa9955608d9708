"""Commands and files over SSH, to hosts whose keys are known beforehand.

An unknown or changed host key is refused. Calls return when the command has ended, with its exit status.

Legacy: ``HostProvisioner`` (JSch), which took any host key, lost the exit status and let root log in with a password.
"""

from __future__ import annotations

import base64
import contextlib
import select
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from dl4jlegacy.aws.cluster_spec import check_key_file
from dl4jlegacy.errors import CloudError, ConfError, DeadlineError, NotAuthorisedError
from dl4jlegacy.system import files
from dl4jlegacy.system.clock import Deadline

__all__ = ["HostProvisioner", "RemoteResult", "new_key"]

_CONNECT_SECONDS = 15.0
_CHUNK = 32768


@dataclass(frozen=True, slots=True)
class RemoteResult:
    """The exit status (-1 if a signal ended the command) and the output of a remote command."""

    status: int
    out: str
    err: str


def new_key(path: Path) -> str:
    """Return the public half of the private key at ``path`` (OpenSSH); create the key (Ed25519) if there is none.

    Raises:
        ConfError: the file cannot be used.
    """
    from cryptography.hazmat.primitives import serialization as forms
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        form = (forms.Encoding.PEM, forms.PrivateFormat.OpenSSH, forms.NoEncryption())
        files.write(path, Ed25519PrivateKey.generate().private_bytes(*form), private=True)
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
        host, user, port: address and login name.
        key_file: the private key; only its owner may have access to the file.
        host_keys: lines ``type base64`` of the keys that the host may have.
        seconds: the default deadline of commands.
    """

    def __init__(
        self,
        host: str,
        user: str = "admin",
        *,
        port: int = 22,
        key_file: Path | str,
        host_keys: str,
        seconds: float = 600.0,
    ) -> None:
        self.host, self.user, self.port, self._seconds = host, user, port, seconds
        self._key_file, self._host_keys = Path(key_file).expanduser(), host_keys
        self._client: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        if client is not None:
            transport = client.get_transport()
            client.close()
            if transport is not None:
                transport.join(5.0)

    def connect(self) -> Any:
        """Return the connected client.

        Raises:
            NotAuthorisedError: the host's key is not the pinned one, or our key is not accepted.
            CloudError: the host does not answer. ConfError: the key file cannot be used.
        """
        import paramiko

        if self._client is not None and self._client.get_transport().is_active():
            return self._client
        key = _read_key(self._key_file)
        self._client = client = paramiko.SSHClient()
        client.set_missing_host_key_policy(paramiko.RejectPolicy())
        self._pin(client)
        where = f"{self.user}@{self.host}:{self.port}"
        try:
            client.connect(
                self.host,
                port=self.port,
                username=self.user,
                pkey=key,
                timeout=_CONNECT_SECONDS,
                banner_timeout=_CONNECT_SECONDS,
                auth_timeout=_CONNECT_SECONDS,
                look_for_keys=False,
                allow_agent=False,
            )
            return client
        except paramiko.BadHostKeyException as exc:
            raise NotAuthorisedError(
                f"{where} shows another host key than the one in the cluster's bucket; somebody may be in between"
            ) from exc
        except paramiko.AuthenticationException as exc:
            raise NotAuthorisedError(f"{where} does not accept the key {self._key_file}; give another -kpath") from exc
        except paramiko.SSHException as exc:
            if "not found in known_hosts" in str(exc):
                raise NotAuthorisedError(f"{where} shows a host key of a kind that was not expected") from exc
            raise CloudError(f"{where}: SSH failed: {exc}; repeat") from exc
        except (OSError, EOFError) as exc:
            raise CloudError(f"{where} does not answer: {exc}; is it running, and are you admitted (--allow)?") from exc

    def _pin(self, client: Any) -> None:
        import paramiko

        name = self.host if self.port == 22 else f"[{self.host}]:{self.port}"
        for line in self._host_keys.splitlines():
            kind, encoded, *_ = [*line.split(), "", ""]
            try:
                key = paramiko.PKey.from_type_string(kind, base64.b64decode(encoded, validate=True))
            except (paramiko.SSHException, ValueError, IndexError) as exc:
                raise ConfError(f"{line[:60]!r} is no host key; give lines of type and base64") from exc
            client.get_host_keys().add(name, kind, key)

    def run_remote_command(self, command: str, *, seconds: float | None = None) -> RemoteResult:
        """Run a command in the user's shell to its end; return its exit status and output.

        Args:
            command: for the remote shell.
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
                result = _read_to_end(channel, limit)
                if result.status < 0 and not channel.get_transport().is_active():
                    raise EOFError("the connection was closed before the command's exit status arrived")
                return result
        except TimeoutError as exc:
            self.close()
            raise DeadlineError(f"{self.host}: a command did not end within {limit:g} s: {command[:80]}") from exc
        except (paramiko.SSHException, OSError, EOFError) as exc:
            self.close()
            raise CloudError(f"{self.host}: the connection broke during {command[:80]!r}: {exc}") from exc

    def upload_and_run(self, script: Path | str) -> RemoteResult:
        """Upload a script into the user's home, make it executable, run it; raises as ``run_remote_command`` does."""
        path = Path(script).expanduser()
        try:
            with self.connect().open_sftp() as sftp:
                sftp.get_channel().settimeout(self._seconds)
                sftp.put(str(path), path.name)
                sftp.chmod(path.name, 0o700)
        except (OSError, EOFError) as exc:
            raise CloudError(f"{path} could not be uploaded to {self.host}: {exc}") from exc
        return self.run_remote_command(shlex.quote(f"./{path.name}"))


def _read_to_end(channel: Any, seconds: float) -> RemoteResult:
    """Read both streams of a channel to their end."""
    deadline, out, err = Deadline(seconds), bytearray(), bytearray()
    while True:
        if deadline.passed():
            raise TimeoutError
        select.select([channel], [], [], deadline.slice())
        while channel.recv_ready():
            out += channel.recv(_CHUNK)
        while channel.recv_stderr_ready():
            err += channel.recv_stderr(_CHUNK)
        is_drained = not channel.recv_ready() and not channel.recv_stderr_ready()
        if channel.exit_status_ready() and is_drained and (channel.eof_received or channel.closed):
            return RemoteResult(channel.recv_exit_status(), out.decode(errors="replace"), err.decode(errors="replace"))
