"""The envelope of each value that leaves the process: it proves who wrote the value and detects damage.

A store that others can write to (Community Hazelcast has neither authentication nor TLS) is not trusted. Each value
carries an HMAC-SHA256 under the run's secret over the run, the key and the value, so that a value that was altered,
written by someone else, or moved to another key or run is refused. Without a secret the envelope carries a CRC-32,
which only detects damage. The envelope cannot detect that an older value of the same key replaced a newer one, or that
a value was deleted.

Equal values under the same key have equal envelopes, so compare-and-set works on them.
"""

from __future__ import annotations

import hmac
import struct
import zlib

from dl4jlegacy.errors import ConfError, NotAuthorisedError
from dl4jlegacy.scaleout.state.store import Buffer

__all__ = ["Envelope"]

_SIGNED, _PLAIN = b"DL4S", b"DL4P"
_MAC_BYTES = 32
_CONTEXT = b"dl4jlegacy store 1"


class Envelope:
    """Seals and opens the values of one run.

    Args:
        run: the run's id; a value of another run is refused.
        secret: the run's secret, or None for unsigned values. Only a keyed hash state is kept of it.

    Raises:
        ConfError: the secret is empty.
    """

    def __init__(self, run: str, secret: bytes | None) -> None:
        if secret is not None and not secret:
            raise ConfError(f"the secret of run {run!r} is empty; give a longer one, or none at all")
        context = b"".join(struct.pack("<I", len(part)) + part for part in (_CONTEXT, run.encode()))
        self._mac = None if secret is None else hmac.new(secret, context, "sha256")
        self._crc = zlib.crc32(context)
        self.nbytes = 4 + (4 if secret is None else _MAC_BYTES)
        """Length of the envelope's head, which precedes each value."""

    def head(self, key: str, value: Buffer) -> bytes:
        """Return the head that goes before ``value`` under ``key``."""
        named = struct.pack("<I", len(key.encode())) + key.encode()
        if self._mac is None:
            return _PLAIN + struct.pack("<I", zlib.crc32(value, zlib.crc32(named, self._crc)))
        mac = self._mac.copy()
        mac.update(named)
        mac.update(value)
        return _SIGNED + mac.digest()

    def open(self, key: str, raw: memoryview) -> memoryview:
        """Return the value in ``raw``, a view.

        Raises:
            NotAuthorisedError: ``raw`` was not written under ``key`` by a process of this run.
        """
        magic, value = bytes(raw[:4]), raw[self.nbytes :]
        expected = _PLAIN if self._mac is None else _SIGNED
        if magic == expected and hmac.compare_digest(bytes(raw[: self.nbytes]), self.head(key, value)):
            return value
        raise NotAuthorisedError(f"the value under {key!r} ({len(raw)} bytes) is refused: {self._reason(magic)}")

    def _reason(self, magic: bytes) -> str:
        if magic == _SIGNED and self._mac is None:
            return "it is signed, and this process has no secret; start it with the run's secret"
        if magic == _PLAIN and self._mac is not None:
            return "it is not signed, and this run has a secret; its writer has none, or is not of this run"
        if magic not in (_SIGNED, _PLAIN):
            return "it is in no envelope; something other than this run writes to the run's part of the grid"
        if self._mac is None:
            return "it was damaged or altered"
        return "its signature does not match; it was altered, or its writer's secret differs from this process's"
