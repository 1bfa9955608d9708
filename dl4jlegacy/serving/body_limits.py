"""How much is in a body of text, counted before anything is made of it: small things cost far more than their bytes."""

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
    """A body has more than is allowed; its text says of what."""


def check_json(body: bytes, rows: int, values: int) -> None:
    """Check an object of JSON with a list of rows; it need not be one.

    Args:
        body: the JSON; lists and objects in it are the rows, but for two around them.
        rows: so many at most.
        values: so many at most of each row.

    Raises:
        TooMuchError: there are more rows, or more values than so many rows have.
    """
    _check(body, _TEXTS, [((b"[", b"{"), rows + 2, rows, "row"), ((b",",), rows * values, rows * values, "value")])


def check_lines(body: bytes, rows: int, values: int, *, is_json: bool = False) -> None:
    """Check lines of CSV, or of JSON, in the same way. A number may have a comma of its own, and a table a header."""
    lines = 2 * (rows + _HEADER + 1)  # \r\n counts as two
    ends, commas = (b"\n", b"\r"), (b",", b";", b"\t")
    limits = [(ends, lines, rows, "row"), (commas, lines * values, rows * values, "value")]
    _check(body, _TEXTS if is_json else _QUOTED, limits)


def _check(body: bytes, texts: re.Pattern[bytes], limits: Sequence[tuple[Sequence[bytes], int, int, str]]) -> None:
    """Raise ``TooMuchError`` if more of some marks are outside of texts than there may be; told is the next number."""
    if all(sum(body.count(mark) for mark in marks) <= most for marks, most, _, _ in limits):
        return
    found, at = [0] * len(limits), 0
    for start, end in itertools.chain((text.span() for text in texts.finditer(body)), [(len(body), 0)]):
        for index, (marks, most, told, what) in enumerate(limits):
            found[index] += sum(body.count(mark, at, start) for mark in marks)
            if found[index] > most:
                raise TooMuchError(f"the body has more than {counted(told, what)}; send it in parts")
        at = end
