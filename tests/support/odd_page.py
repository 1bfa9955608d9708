"""The cells of docs/odd-files.md, and what shows how a file that is odd has fared."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator
from typing import Any

from tests.support import REPOSITORY

WAYS = ("data validate", "train", "tune", "Python", "evaluate", "predict", "serve")
OTHER = "other answers"
"""What comes of a file that is read as another one than it is meant to be; no cell of the page says so."""


def cells_under(heading: str) -> dict[str, dict[str, str]]:
    """Return the cells of the table below a heading of the page, by what is odd and by way."""
    text = (REPOSITORY / "docs" / "odd-files.md").read_text("utf-8")
    part = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [[each.strip() for each in line.split("|")[1:-1]] for line in part.splitlines() if line.startswith("|")]
    return {row[0]: dict(zip(rows[0][1:], row[1:], strict=True)) for row in rows[2:]}


def of_kind(text: str, kind: str) -> str:
    """Return the text of the page's cell for one kind of files."""
    most, _, others = text.partition(" (")
    named = dict(each.split(": ") for each in others.rstrip(")").split(", ") if each)
    return named.get(kind, most)


@contextlib.contextmanager
def warnings_of() -> Iterator[list[logging.LogRecord]]:
    """Yield what the package logs inside, which the command line has taken for itself before."""
    told: list[logging.LogRecord] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = told.append  # type: ignore[method-assign]
    logger = logging.getLogger("dl4jlegacy")
    logger.addHandler(handler)
    try:
        yield told
    finally:
        logger.removeHandler(handler)


def without_names(text: str) -> Any:
    """Return what a command prints as JSON, without the names of files and data sets."""
    found = json.loads(text)
    return {name: value for name, value in found.items() if name not in ("dataset", "data", "file", "files", "path")}
