"""Requests of one map as the bytes that Hazelcast's members understand, and what their answers say (layer 3).

The same bytes as the client's own codecs make, at a fraction of their cost, and without copying a long value; nothing
is ever deserialized. Frames are ``length (with this), flags, body``; a value is ``partition hash, type id, length`` and
its bytes.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from dl4jlegacy.scaleout.hazelcast.connection import Frames, Pieces, frames_of
from dl4jlegacy.scaleout.store import Buffer

with warnings.catch_warnings():  # Python 3.11 warns of its own asyncore, which the client imports
    warnings.simplefilter("ignore", DeprecationWarning)
    from hazelcast.protocol.client_message import RESPONSE_HEADER_SIZE
    from hazelcast.protocol.codec import (
        map_delete_codec,
        map_get_codec,
        map_put_if_absent_codec,
        map_replace_if_same_codec,
        map_set_codec,
    )

__all__ = [
    "DELETE",
    "GET",
    "PUT_IF_ABSENT",
    "REPLACE",
    "SET",
    "Call",
    "Operation",
    "Request",
    "frame_of",
    "partition_hash",
    "text_of",
]

_STRING, _BYTES = -11, -12  # Hazelcast's type ids
_DATA_HEAD = struct.Struct(">iii")  # partition hash (0: of the bytes), type id, length
_FRAME_HEAD = struct.Struct("<iH")  # length with this head, flags
_START = struct.Struct("<iHiqiq")  # head; kind of request, its number, partition, thread
_LIFE = struct.Struct("<q")  # milliseconds until the value goes
_NUMBER, _PARTITION, _LE_UINT = struct.Struct("<q"), struct.Struct("<i"), struct.Struct("<I")
_NUMBER_AT, _PARTITION_AT, _ANSWER_AT = 10, 18, RESPONSE_HEADER_SIZE
_WHOLE, _FINAL, _NULL, _BACKUP_AWARE = 0xC000, 1 << 13, 1 << 10, 1 << 8
_MASK = 0xFFFFFFFF
_NO_LOCK = 1  # any thread's number: no locks are taken
_FOREVER = -1
_COPIED = 1 << 13  # bytes up to which a value is cheaper to copy than to send as a piece of its own
_PAST = 1.0  # a request's time limit, in the past: it is never repeated by the client


class Request:
    """A request in the client's eyes; what it consists of is not copied together if it is long."""

    __slots__ = ("_head", "_number", "buf")
    retryable, contains_data = False, True

    def __init__(self, head: bytearray, value: Sequence[Buffer] = ()) -> None:
        self._head, self._number = head, 0
        self.buf: Pieces = (head, *value) if value else head

    def set_correlation_id(self, number: int) -> None:
        """Called by the client."""
        self._number = number
        _NUMBER.pack_into(self._head, _NUMBER_AT, number)

    def get_correlation_id(self) -> int:
        """Called by the client."""
        return self._number

    def set_partition_id(self, partition: int) -> None:
        """Called by the client."""
        _PARTITION.pack_into(self._head, _PARTITION_AT, partition)

    def set_backup_aware_flag(self) -> None:
        """Called by the client; the flag is there from the start."""


class Call:
    """An invocation in the client's eyes, without what makes one costly."""

    __slots__ = (
        "_decode",
        "backup_acks_expected",
        "backup_acks_received",
        "future",
        "partition_id",
        "pending_response",
        "pending_response_received_time",
        "request",
        "sent_connection",
    )
    uuid = connection = event_handler = None
    urgent = False
    timeout = _PAST

    def __init__(self, request: Any, future: Any, partition: int, decode: Callable[[Frames], Any]) -> None:
        self.request, self.future, self.partition_id, self._decode = request, future, partition, decode
        self.sent_connection: Any = None
        self.backup_acks_received, self.backup_acks_expected = 0, -1
        self.pending_response: Any = None
        self.pending_response_received_time = -1.0

    def answer(self, frames: Frames) -> None:
        """Set the future to what an answer says."""
        try:
            value = self._decode(frames)
        except Exception as exc:  # noqa: BLE001  # as the client does: it is the asker's, and not the reactor's, to see
            self.future.set_exception(exc)
        else:
            self.future.set_result(value)

    def response_handler(self, message: Any) -> Any:
        """Return what an answer says. Called by the client where backups have to report first."""
        return self._decode(frames_of(message))


class Operation:
    """One kind of request for an entry of a map."""

    def __init__(
        self, codec: Any, decode: Callable[[Frames], Any], *, lives: bool = False, has_value: bool = True
    ) -> None:
        size = _START.size + (_LIFE.size if lives else 0)
        start = _START.pack(size, _WHOLE | _BACKUP_AWARE, codec._REQUEST_MESSAGE_TYPE, 0, -1, _NO_LOCK)
        self._start = start + (_LIFE.pack(_FOREVER) if lives else b"")
        self._has_value = has_value
        self.decode = decode
        """Returns what an answer says."""

    def request(
        self, map_frame: bytes, key: str, value: Sequence[Buffer] = (), expected: bytes | None = None
    ) -> Request:
        """Return the request; ``value``, in pieces, must not change until the answer is there."""
        if not self._has_value:
            return Request(bytearray().join((self._start, map_frame, frame_of(text_of(key), _FINAL))))
        nbytes = sum(len(piece) for piece in value)
        parts = (
            self._start,
            map_frame,
            frame_of(text_of(key)),
            b"" if expected is None else frame_of(_DATA_HEAD.pack(0, _BYTES, len(expected)) + expected),
            _FRAME_HEAD.pack(_FRAME_HEAD.size + _DATA_HEAD.size + nbytes, _FINAL),
            _DATA_HEAD.pack(0, _BYTES, nbytes),
        )
        if nbytes <= _COPIED:
            return Request(bytearray().join((*parts, *value)))
        return Request(bytearray().join(parts), value)


def frame_of(body: bytes, flags: int = 0) -> bytes:
    """Return a frame."""
    return _FRAME_HEAD.pack(_FRAME_HEAD.size + len(body), flags) + body


def text_of(text: str) -> bytes:
    """Return text in its serialized form."""
    raw = text.encode()
    return _DATA_HEAD.pack(0, _STRING, len(raw)) + raw


@lru_cache(maxsize=4096)
def partition_hash(key: str) -> int:
    """Return what decides on the partition of a key: the MurmurHash3 (x86, 32 bits) of its serialized form.

    Source: Appleby, MurmurHash3; seed and sign as in Hazelcast. Half the time of the client's own, and remembered.
    """
    data = text_of(key)[8:]
    h = 0x01000193
    for (k,) in _LE_UINT.iter_unpack(data[: len(data) & ~3]):
        h = _mixed(h, k)
        h = ((h << 13 | h >> 19) & _MASK) * 5 + 0xE6546B64 & _MASK
    if tail := data[len(data) & ~3 :]:
        h = _mixed(h, int.from_bytes(tail, "little"))
    h ^= len(data)
    h = (h ^ h >> 16) * 0x85EBCA6B & _MASK
    h = (h ^ h >> 13) * 0xC2B2AE35 & _MASK
    h ^= h >> 16
    return 0 if h == 1 << 31 else h - (h >> 31 << 32)


def _mixed(h: int, k: int) -> int:
    k = k * 0xCC9E2D51 & _MASK
    return h ^ ((k << 15 | k >> 17) & _MASK) * 0x1B873593 & _MASK


def _value(frames: Frames) -> memoryview | None:
    """The value in an answer, a view; empty for anything but plain bytes."""
    body, flags = frames[1]
    if flags & _NULL:
        return None
    view = memoryview(body)
    if len(view) < _DATA_HEAD.size:
        return view[:0]
    _, kind, length = _DATA_HEAD.unpack_from(view)
    return view[_DATA_HEAD.size :] if kind == _BYTES and length == len(view) - _DATA_HEAD.size else view[:0]


def _nothing(frames: Frames) -> None:
    """The answer says nothing."""


def _was_absent(frames: Frames) -> bool:
    return bool(frames[1][1] & _NULL)


def _was_replaced(frames: Frames) -> bool:
    return bool(frames[0][0][_ANSWER_AT])


GET = Operation(map_get_codec, _value, has_value=False)
SET = Operation(map_set_codec, _nothing, lives=True)
PUT_IF_ABSENT = Operation(map_put_if_absent_codec, _was_absent, lives=True)
REPLACE = Operation(map_replace_if_same_codec, _was_replaced)
DELETE = Operation(map_delete_codec, _nothing, has_value=False)
