"""Entries of files from other programs, whose size and content are not trusted."""

from __future__ import annotations

import json
from typing import IO, Any, Protocol

from dl4jlegacy.errors import ModelError

__all__ = ["MAX_JSON_BYTES", "json_object", "read_entry"]

MAX_JSON_BYTES = 16 << 20


class _Archive(Protocol):
    def open(self, name: str) -> IO[bytes]: ...


def read_entry(archive: _Archive, name: str, limit: int) -> bytes:
    """Return the content of an entry of at most ``limit`` bytes; raises ``ModelError`` for a longer one."""
    with archive.open(name) as entry:
        data = entry.read(limit + 1)
    if len(data) > limit:
        raise ModelError(f"entry {name} is larger than {limit} bytes")
    return data


def json_object(text: Any, name: str) -> dict[str, Any]:
    """Return the object in a JSON text; raises ``ModelError`` if ``name`` holds something else."""
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise ModelError(f"{name} is not JSON: {exc}") from exc
    if not isinstance(tree, dict):
        raise ModelError(f"{name} holds a JSON {type(tree).__name__} instead of an object")
    return tree
