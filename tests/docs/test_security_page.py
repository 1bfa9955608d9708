"""docs/security.md: each row of its tables names the tests that hold it, and these exist."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.support import REPOSITORY

PAGE = REPOSITORY / "docs" / "security.md"
NAMED = re.compile(r"`(?:tests/)?([\w/]+\.py)(?:::(\w+))?`")


def rows(text: str) -> list[str]:
    """Return the rows of all tables of a page, without their headings."""
    found, inside = [], False
    for line in text.splitlines():
        if not line.startswith("|"):
            inside = False
        elif re.fullmatch(r"[|\s:-]+", line):
            inside = True
        elif inside:
            found.append(line)
    return found


@cache
def names_of(path: str) -> frozenset[str]:
    """Return the functions of a test file; none if there is no such file."""
    file = REPOSITORY / "tests" / path
    if not file.is_file():
        return frozenset()
    return frozenset(node.name for node in ast.walk(ast.parse(file.read_text("utf-8"))) if hasattr(node, "name"))


def without_a_test(text: str) -> list[str]:
    """Return the rows whose last cell names no test, or one that is not there."""
    wrong = []
    for row in rows(text):
        named = NAMED.findall(row.rstrip("| ").rpartition("|")[2])
        if not named or not all(names_of(path) and (not test or test in names_of(path)) for path, test in named):
            wrong.append(row)
    return wrong


def test_each_row_names_tests_that_exist() -> None:
    text = PAGE.read_text("utf-8")
    assert len(rows(text)) > 30
    assert not without_a_test(text)


@pytest.mark.parametrize("cell", ["", "none", "`gone.py`", "`docs/test_security_page.py::test_that_is_not_there`"])
def test_a_row_without_a_test_is_found(cell: str) -> None:
    table = (
        f"| who | test |\n| --- | --- |\n| somebody | `docs/test_security_page.py::rows` |\n| a stranger | {cell} |\n"
    )
    assert without_a_test(table) == [f"| a stranger | {cell} |"]
