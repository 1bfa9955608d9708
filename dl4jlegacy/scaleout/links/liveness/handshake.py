"""The handshake by which both ends of a connection between processes prove that they belong to one run. No I/O.

    server  CHALLENGE   magic, 32 random bytes
    client  HELLO       magic, 32 random bytes, whether it signs, proof, name of its process
    server  WELCOME     its own proof -- or REFUSAL and a reason

A proof is an HMAC-SHA256 under the run's secret over the purpose of the connection, the prover's role, the run, the
process and both random numbers, so that it cannot be replayed, reflected, or used by another process or on another kind
of connection. Without a secret the key is empty: a proof then only distinguishes runs.
"""

from __future__ import annotations

import enum
import hmac
import os
import struct
from dataclasses import dataclass

from dl4jlegacy.errors import ConfError, NotAuthorisedError, WireError

__all__ = [
    "CHALLENGE_NBYTES",
    "HELLO_NBYTES",
    "LIVENESS",
    "WELCOME_NBYTES",
    "ClientHandshake",
    "Connection",
    "Credentials",
    "Refusal",
    "RefusedError",
    "ServerHandshake",
]

_MAGIC_NBYTES = 16
_NONCE_NBYTES = 32
_PROOF_NBYTES = 32
_HELLO = struct.Struct(f">{_MAGIC_NBYTES}s{_NONCE_NBYTES}sB{_PROOF_NBYTES}sB")
_WELCOME, _REFUSAL = b"W", b"X"
_NAME_NBYTES = 255

CHALLENGE_NBYTES = _MAGIC_NBYTES + _NONCE_NBYTES
HELLO_NBYTES = _HELLO.size + _NAME_NBYTES
"""Longest hello; a client that sends more does not speak this protocol."""
WELCOME_NBYTES = 1 + _PROOF_NBYTES
"""Length of the server's answer, welcome or refusal."""


@dataclass(frozen=True, slots=True)
class Connection:
    """The purpose of a connection: a word of eight letters, the version of its format, and the names of its ends.

    An end that uses another word, or another version, is refused.
    """

    word: str
    version: int
    server: str
    client: str

    @property
    def magic(self) -> bytes:
        """The 16 bytes with which both ends begin."""
        return f"DL4J {self.word} {self.version}\n".encode()

    def check(self, said: bytes, what: str) -> None:
        """Raise ``WireError`` unless the first bytes of ``what`` can be those of this kind of connection."""
        if said.startswith(self.magic[: len(said)]):
            return
        stem = f"DL4J {self.word} ".encode()
        if said.startswith(stem):
            theirs = said[len(stem) : _MAGIC_NBYTES].decode("latin-1").strip()
            raise WireError(
                f"{what} of version {theirs!r} of the {self.word} format, and this process has version {self.version}: "
                "install one version of dl4jlegacy everywhere"
            )
        raise WireError(f"not {what} of dl4jlegacy: {said[:_MAGIC_NBYTES]!r}")


LIVENESS = Connection("liveness", 1, "master", "worker")
"""The connection of a worker's process to its master. After the handshake every message is a single byte."""


class Refusal(enum.IntEnum):
    """Why one end refuses the other."""

    UNSIGNED = 1
    SIGNED = 2
    PROOF = 3

    def text(self, connection: Connection) -> str:
        """Return the reason in words, for both ends."""
        server, client = connection.server, connection.client
        what = {
            Refusal.UNSIGNED: f"the {server} has a secret and the {client} has none",
            Refusal.SIGNED: f"the {client} has a secret and the {server} has none",
            Refusal.PROOF: "their secrets differ, or they are of different runs",
        }
        return f"{what[self]}; give all processes of a run the same secret"


class RefusedError(NotAuthorisedError):
    """The other end does not belong to this run; ``answer`` is the message to send to it, empty for none."""

    def __init__(self, message: str, answer: bytes = b"") -> None:
        super().__init__(message)
        self.answer = answer


class Credentials:
    """The run and the secret with which a process authenticates.

    Args:
        run: the run's id.
        secret: the run's secret, or None. Only a keyed hash state is kept of it.
        connection: purpose of the connections.

    Raises:
        ConfError: the secret is empty.
    """

    def __init__(self, run: str, secret: bytes | None, connection: Connection = LIVENESS) -> None:
        if secret is not None and not secret:
            raise ConfError(f"the secret of run {run!r} is empty; give a longer one, or none at all")
        self.is_signed, self.connection = secret is not None, connection
        self._mac = hmac.new(secret or b"", _counted(connection.magic, run.encode()), "sha256")

    def proof(self, role: bytes, process: str, challenge: bytes, nonce: bytes) -> bytes:
        """Return the proof of ``role`` (``b"client"`` or ``b"server"``) for one connection of one process."""
        mac = self._mac.copy()
        mac.update(_counted(role, process.encode(), challenge, nonce))
        return mac.digest()


class ServerHandshake:
    """The server's side of one handshake."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._nonce = os.urandom(_NONCE_NBYTES)
        self.challenge = credentials.connection.magic + self._nonce
        """The first message to send."""

    def receive_hello(self, received: bytes) -> tuple[str, bytes] | None:
        """Return (client's process, welcome to send) once ``received``, all bytes so far, is a whole hello; else None.

        Raises:
            WireError: the bytes are not a hello. RefusedError: the client's proof is wrong.
        """
        connection = self._credentials.connection
        connection.check(received, "a hello")
        if len(received) < _HELLO.size:
            return None
        _, nonce, signs, proof, length = _HELLO.unpack_from(received)
        if len(received) < _HELLO.size + length:
            return None
        process = _name(received[_HELLO.size :], length)
        if signs != self._credentials.is_signed:
            raise _refused(Refusal.SIGNED if signs else Refusal.UNSIGNED, process, connection)
        expected = self._credentials.proof(b"client", process, self._nonce, nonce)
        if not hmac.compare_digest(proof, expected):
            raise _refused(Refusal.PROOF, process, connection)
        return process, _WELCOME + self._credentials.proof(b"server", process, self._nonce, nonce)


class ClientHandshake:
    """The client's side of one handshake.

    Raises:
        ConfError: ``process`` is not a valid name.
    """

    def __init__(self, credentials: Credentials, process: str) -> None:
        raw = process.encode()
        if not process.isprintable() or not 0 < len(raw) <= _NAME_NBYTES:
            raise ConfError(f"a process cannot be named {process!r}: printable, at most {_NAME_NBYTES} bytes")
        self._credentials, self._process = credentials, process
        self._nonce = os.urandom(_NONCE_NBYTES)
        self._challenge = b""

    def hello(self, challenge: bytes) -> bytes:
        """Return the hello for a challenge of ``CHALLENGE_NBYTES`` bytes; raises ``WireError`` for other bytes."""
        connection = self._credentials.connection
        connection.check(challenge, "a challenge")
        if len(challenge) != CHALLENGE_NBYTES:
            raise WireError(f"not a challenge of dl4jlegacy: {challenge[:16]!r}")
        self._challenge = challenge[_MAGIC_NBYTES:]
        raw = self._process.encode()
        proof = self._credentials.proof(b"client", self._process, self._challenge, self._nonce)
        return _HELLO.pack(connection.magic, self._nonce, self._credentials.is_signed, proof, len(raw)) + raw

    def check_welcome(self, answer: bytes) -> None:
        """Check the server's answer of ``WELCOME_NBYTES`` bytes.

        Raises:
            RefusedError: the server refuses this process, or its proof is wrong.
            WireError: the bytes are not an answer.
        """
        kind, proof, connection = answer[:1], answer[1:], self._credentials.connection
        if kind == _REFUSAL:
            reason = Refusal(proof[0]) if proof[:1] and proof[0] in set(Refusal) else Refusal.PROOF
            raise RefusedError(f"the {connection.server} refuses this process: {reason.text(connection)}")
        if kind != _WELCOME or len(answer) != WELCOME_NBYTES:
            raise WireError(f"not an answer of dl4jlegacy: {answer[:16]!r}")
        expected = self._credentials.proof(b"server", self._process, self._challenge, self._nonce)
        if not hmac.compare_digest(proof, expected):
            raise RefusedError(
                f"the server does not prove that it is the run's {connection.server}: {Refusal.PROOF.text(connection)}"
            )


def _refused(reason: Refusal, process: str, connection: Connection) -> RefusedError:
    answer = (_REFUSAL + bytes([reason])).ljust(WELCOME_NBYTES, b"\0")
    return RefusedError(f"process {process!r} is refused: {reason.text(connection)}", answer)


def _name(raw: bytes, length: int) -> str:
    """Return the process name at the end of a hello, which must have exactly ``length`` bytes."""
    try:
        name = raw.decode() if len(raw) == length else ""
    except UnicodeDecodeError:
        name = ""
    if not name or not name.isprintable():
        raise WireError(f"a hello with {len(raw)} bytes where a name of {length} should be")
    return name


def _counted(*parts: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(part)) + part for part in parts)
