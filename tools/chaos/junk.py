"""Keys, values and pickles as strangers might write them into a run's store, drawn at random."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

__all__ = ["KINDS", "PARTS", "VALUES", "Trap", "keys", "pickles"]

KINDS = ("head", "job", "data", "update", "model", "worker", "counter", "global", "log")
"""Prefixes of the keys of a run."""
PARTS = (
    *("", "0", "1", "-1", "+1", " 1", "1_0", "01", "1.0", "1e9", "x", "None", "\u0663", "\uff11", "\u00b2", "0x1"),
    *("9" * 19, "9" * 5000, "a" * 2000, "\0", "\n", "\x1b[2J", "%s", "{}", "..", "/", "//", "\ud7ff", "\U0001f600"),
)
VALUES = (
    *(b"", b"\0", b"junk", b"\xc1", b"\x80", b"\x81\xa1x\x01", b"null", b"{}", b"-1", b"\xff" * 300),
    *(b"[" * 2000, b"\x91" * 2000, b"\x81\xa6fields\x81\xa1a" + b"\x91" * 2000),
)
"""Values that strangers might write; some are MessagePack or JSON of types that a run does not have."""


def keys(rng: random.Random, count: int) -> Iterator[str]:
    """Yield keys that strangers might write: of known and unknown kinds, with text in the place of numbers."""
    for _ in range(count):
        kind = rng.choice((*KINDS, rng.choice(PARTS)))
        parts = [rng.choice((*PARTS, str(rng.randrange(40)))) for _ in range(rng.randrange(5))]
        yield "/".join((kind, *parts))


class Trap:
    """An object for clients that pickle their values.

    Its pickle creates a folder when it is loaded: if the folder exists, a process has loaded the pickle.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __reduce__(self) -> tuple[object, ...]:
        return os.makedirs, (self._folder, 0o700, True)


def pickles(rng: random.Random, folder: str) -> bytes:
    """Return a pickle that creates ``folder`` when loaded; sometimes one with a changed byte or without its end."""
    name = folder.encode("unicode_escape")
    old = b"cos\nmakedirs\n(S'" + name + b"'\nI448\nI01\ntR."
    new = b"\x80\x04\x8c\x02os\x8c\x08makedirs\x93(X" + len(name).to_bytes(4, "little") + name + b"K\xff\x88tR."
    whole = rng.choice((old, new))
    place = rng.randrange(len(whole))
    return rng.choice((whole, whole, whole[:place], whole[:place] + bytes([rng.randrange(256)]) + whole[place + 1 :]))
