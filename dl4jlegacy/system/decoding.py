"""Types that several threads decode: msgspec describes each to itself at its first use, and that by one thread only."""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

__all__ = ["decodable"]

T = TypeVar("T")

_LOCK = threading.Lock()
_DESCRIBED: set[Any] = set()


def decodable(kind: type[T]) -> type[T]:
    """Return ``kind`` itself, ready to be decoded by any thread.

    msgspec (0.22) keeps what it has found out about a struct on the struct, and does so before it has found out all of
    it, since structs may contain themselves. A second thread that decodes the struct at that moment reads what is not
    there yet, and the process dies of a segmentation fault.
    """
    if kind not in _DESCRIBED:
        with _LOCK:
            msgspec.json.Decoder(kind)
            _DESCRIBED.add(kind)
    return kind
