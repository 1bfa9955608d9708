"""The words of the messages: a number and its noun agree, and nothing of the source's words stands in them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dl4jlegacy.errors import counted
from dl4jlegacy.scaleout.persistence.journal import JournalEntry
from tests.support import REPOSITORY

NOUNS = ("worker", "round", "example", "feature", "column", "character", "instance", "job", "output", "member", "pixel")
COUNTED = re.compile(rf" (feature |registered )?({'|'.join(NOUNS)}|class(?=es)|batch(?=es)|process(?=es))e?s\b(?!/)")
ROOMS = ("cli", "aws", "storage", "doctor", "services", "cluster", "datasets", "training", "models", "nn/zoo")


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 workers"), (1, "1 worker"), (2, "2 workers"), (12_000, "12,000 workers")]
)
def test_a_number_and_its_noun_agree(count: int, text: str) -> None:
    assert counted(count, "worker") == text
    assert counted(count, "class", "classes") == text.replace("workers", "classes").replace("worker", "class")


def sources() -> Iterator[Path]:
    for room in ROOMS:
        path = REPOSITORY / "dl4jlegacy" / room
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def test_no_message_says_1_workers() -> None:
    """A number that stands before a plural in a message may be 1, so that it is written with ``counted``."""
    found = []
    for path in sources():
        for text in ast.walk(ast.parse(path.read_text())):
            if not isinstance(text, ast.JoinedStr):
                continue
            for value, after in zip(text.values, text.values[1:], strict=False):
                words = after.value if isinstance(after, ast.Constant) else ""
                if isinstance(value, ast.FormattedValue) and COUNTED.match(str(words)):
                    found.append(f"{path.relative_to(REPOSITORY)}: {ast.unparse(text)}")
    assert found == []


def test_an_entry_of_the_journal_is_in_plain_words() -> None:
    fields = {"id": "master", "run": "r1", "takes_over": "as a standby"}
    entry = JournalEntry(key="k", time=0.0, source="s", host="h", pid=1, event="master_leads", fields=fields)
    assert entry.line() == "master leads: id master, run r1, takes over as a standby"
