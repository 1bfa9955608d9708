"""Limits of rows and values in a text body, checked before decoding: small values take far more memory than text."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from dl4jlegacy.errors import counted

__all__ = ["TooMuchError", "check_json", "check_lines"]

_TEXTS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_QUOTED = re.compile(rb'"[^"]*+"?')
_HEADER = 1


class TooMuchError(ValueError):
    """A body has more rows or values than allowed; the text says which."""


def check_json(body: bytes, rows: int, values: int) -> None:
    """Check the size of a JSON object with a list of rows; the body need not be valid JSON.

    Args:
        body: the JSON; lists and objects in it count as rows, except the two outer ones.
        rows: the maximum number of rows.
        values: the maximum number of values in a row.

    Raises:
        TooMuchError: there are more rows, or more values than that number of rows can have.
    """
    _check(body, _TEXTS, [((b"[", b"{"), rows + 2, rows, "row"), ((b",",), rows * values, rows * values, "value")])


def check_lines(body: bytes, rows: int, values: int, *, is_json: bool = False) -> None:
    """Check lines of CSV or JSON in the same way. A number may contain a comma, and a table may have a header."""
    lines = 2 * (rows + _HEADER + 1)  # \r\n counts as two
    ends, commas = (b"\n", b"\r"), (b",", b";", b"\t")
    limits = [(ends, lines, rows, "row"), (commas, lines * values, rows * values, "value")]
    _check(body, _TEXTS if is_json else _QUOTED, limits)


def _check(body: bytes, texts: re.Pattern[bytes], limits: Sequence[tuple[Sequence[bytes], int, int, str]]) -> None:
    """Raise ``TooMuchError`` if too many marks are outside of quoted texts.

    A limit has the marks, how many of them are allowed, and the number and the noun for the error message.
    """
    if all(sum(body.count(mark) for mark in marks) <= most for marks, most, _, _ in limits):
        return
    found, at = [0] * len(limits), 0
    for start, end in itertools.chain((text.span() for text in texts.finditer(body)), [(len(body), 0)]):
        for index, (marks, most, told, what) in enumerate(limits):
            found[index] += sum(body.count(mark, at, start) for mark in marks)
            if found[index] > most:
                raise TooMuchError(f"the body has more than {counted(told, what)}; send it in parts")
        at = end
