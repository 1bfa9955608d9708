"""What two ends of the mesh send each other once they have proven themselves: messages, one behind the other. No I/O.

M, length (4 bytes, big endian), BLAKE2b-256 of the message (32 bytes), the message
"""

from __future__ import annotations

import struct

from dl4jlegacy.arrays.wire import Frame, digest
from dl4jlegacy.errors import WireError
from dl4jlegacy.scaleout.links.liveness.handshake import Connection

__all__ = ["HEADER_NBYTES", "MESSAGES", "MessageReader", "header"]

MESSAGES = Connection("messages", 1, "worker that listens", "worker that connects")
"""The connection of two workers' processes."""
_HEADER = struct.Struct(">cI32s")
_KIND = b"M"

HEADER_NBYTES = _HEADER.size


def header(digest: str, nbytes: int) -> bytes:
    """Return what is sent before a message of so many bytes."""
    return _HEADER.pack(_KIND, nbytes, bytes.fromhex(digest))


class MessageReader:
    """Takes the bytes of one connection apart.

    Args:
        longest_nbytes: a message that claims to be longer is refused before any of it is kept.
    """

    def __init__(self, longest_nbytes: int) -> None:
        self._longest, self._said = longest_nbytes, bytearray()

    @property
    def is_amid(self) -> bool:
        """Whether a part of a message has come, and the rest has not."""
        return bool(self._said)

    @property
    def nbytes(self) -> int:
        """The length of that part."""
        return len(self._said)

    def feed(self, said: Frame) -> list[tuple[str, bytes]]:
        """Take more bytes; return the messages that are whole by now, each with its digest, which is checked.

        Raises:
            WireError: these are no messages, or one is too long, or is not what its digest says.
        """
        self._said += said
        whole = []
        while len(self._said) >= HEADER_NBYTES:
            kind, nbytes, raw = _HEADER.unpack_from(self._said)
            if kind != _KIND or not nbytes:
                raise WireError(f"it sends what is no message: {bytes(self._said[:16])!r}")
            if nbytes > self._longest:
                raise WireError(f"it sends a message of {nbytes} bytes, and {self._longest} are the most that is taken")
            if len(self._said) < HEADER_NBYTES + nbytes:
                break
            message = bytes(self._said[HEADER_NBYTES : HEADER_NBYTES + nbytes])
            del self._said[: HEADER_NBYTES + nbytes]
            if digest(message) != raw.hex():
                raise WireError(f"it sends a message of {nbytes} bytes that is not what its digest says")
            whole.append((raw.hex(), message))
        return whole
