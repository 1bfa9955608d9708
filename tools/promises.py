"""The promises of this project, the tests that verify them, and one way to break each promise.

The list is ``promises.yaml``; ``tools/break_promises.py`` uses it, and the site's page of promises shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

__all__ = ["PROMISES", "Promise"]


class Promise(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A promise, and how to break it: in ``file``, ``before`` is replaced by ``after``.

    Attributes:
        name: the promise's name on the command line.
        text: the promise.
        tests: the tests that then fail, by path and name.
        how: how it is broken, in a phrase.
        file: relative to the checkout.
        before: text that occurs exactly once in the file.
        seconds: the time limit of each test.
        may_hang: whether a test over the time limit counts as failed, because it waits for something that never comes.
    """

    name: str
    text: str
    tests: tuple[str, ...]
    how: str
    file: str
    before: str
    after: str
    seconds: float = 300.0
    may_hang: bool = False


_LIST = Path(__file__).with_suffix(".yaml")
PROMISES: Mapping[str, tuple[Promise, ...]] = msgspec.yaml.decode(
    _LIST.read_bytes(), type=dict[str, tuple[Promise, ...]]
)
"""The promises, by the titles of their groups."""
