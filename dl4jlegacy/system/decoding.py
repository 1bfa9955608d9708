"""Types that several threads decode: msgspec analyses each type at its first use, and only one thread may do so."""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

__all__ = ["decodable"]

T = TypeVar("T")

_LOCK = threading.Lock()
_DESCRIBED: set[Any] = set()


def decodable(kind: type[T]) -> type[T]:
    """Return ``kind`` itself, prepared so that any thread can decode it.

    msgspec (0.22) stores its analysis of a struct on the struct before the analysis is complete, since structs may
    contain themselves. A second thread that decodes the struct at that moment reads incomplete data, and the process
    crashes with a segmentation fault.
    """
    if kind not in _DESCRIBED:
        with _LOCK:
            msgspec.json.Decoder(kind)
            _DESCRIBED.add(kind)
    return kind
