"""What every way into the package does with what is odd in files of sequences: docs/odd-files.md shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dl4jlegacy.datasets.sequences.sequence_reader import SequenceRecordReader
from tests.support.odd_folders import FolderBench
from tests.support.odd_page import WAYS, cells_under

Rows = list[list[str]]
FILES = 10
COLUMNS = ["a", "b", "move"]


def steps(number: int) -> Rows:
    """Return the time steps of a file, with a class for each."""
    values = np.random.default_rng(number).normal(size=(4 + number % 3, 2)).round(3)
    return [[str(a), str(b), "up" if a > 0 else "down"] for a, b in values]


def csv_of(rows: Sequence[Sequence[str]], between: str = ",") -> str:
    return "".join(f"{between.join(row)}\n" for row in rows)


def chosen(*places: int) -> Callable[[Rows], str]:
    """Return what writes some columns, in this order."""
    return lambda rows: csv_of([[row[place] for place in places] for row in [COLUMNS, *rows]])


def headed(*names: str, rows: Callable[[list[str]], list[str]] = list) -> Callable[[Rows], str]:
    """Return what writes these names above the time steps, each of which ``rows`` may change."""
    return lambda found: csv_of([names, *map(rows, found)])


def with_comma(row: list[str]) -> list[str]:
    return [row[0].replace(".", ","), *row[1:]]


ODD: dict[str, tuple[Callable[[Rows], str], ...]] = {
    "columns in another order": (chosen(1, 2, 0), chosen(2, 1, 0)),
    "a column that the model does not know": (
        headed("more", *COLUMNS, rows=lambda row: ["5", *row]),
        headed("", *COLUMNS, rows=lambda row: ["5", *row]),
    ),
    "a column is missing": (chosen(1, 2), chosen(2, 0)),
    "no line of names": (csv_of,),
    "an empty file": (lambda _: "", lambda _: "\n"),
    "a file with a line of names only": (lambda _: csv_of([COLUMNS]),),
    "numbers with a decimal comma": (
        lambda rows: csv_of([COLUMNS, *map(with_comma, rows)], ";"),
        headed(*COLUMNS, rows=with_comma),
        headed(*COLUMNS, rows=lambda row: [f'"{with_comma(row)[0]}"', *row[1:]]),
    ),
    "two columns of one name": (headed("b", "b", "move"), headed("a", "move", "move"), headed("move", "b", "b")),
    "rows of other width": (
        lambda rows: csv_of([COLUMNS, *rows[:2], rows[2][:2], *rows[3:]]),
        headed(*COLUMNS, rows=lambda row: row[:2]),
        headed(*COLUMNS, rows=lambda row: [*row, "7"]),
        headed("b", "a"),
        headed("b", "a", "move", "more"),
        headed("a", rows=lambda row: row[:2]),
    ),
}
"""What may be odd: how the files are written, in the first way or in a sibling of it."""
OF_A_MODEL = tuple(ODD)[:4]
PLACES = {"another file": [3], "the first file": [0], "all files": range(FILES)}


def is_asked(odd: str, way: str, where: str) -> bool:
    """Return whether the question arises: what the first file has is right where files are learned from."""
    if way in WAYS[4:] or where == "another file" or odd not in OF_A_MODEL:
        return True
    return where == "the first file" and odd != OF_A_MODEL[0]


def written(folder: Path, where: str = "", odd: Callable[[Rows], str] | None = None) -> Path:
    folder.mkdir(parents=True)
    for number in range(FILES):
        write = odd if odd is not None and number in PLACES[where] else headed(*COLUMNS)
        (folder / f"{number}.csv").write_text(write(steps(number)))
    return folder


def wrong_cells(folder: Path, capsys: Any, where: str, ways: Iterable[str], *, is_long: bool = False) -> list[str]:
    """Return where the page says something else than what is so, with one file that is odd, or all of them."""
    page, reader, wrong = cells_under("Sequences"), SequenceRecordReader(label="move"), []
    assert list(page) == list(ODD) and not any(cells["data validate"] for cells in page.values())
    options = ("--sequences", "--label", "move", "--model", "lstm")
    bench = FolderBench(written(folder / "plain"), capsys, options=options, sequences=reader, model="lstm")
    for odd, siblings in ODD.items():
        for number, write in enumerate(siblings if is_long else siblings[:1]):
            changed = written(folder / f"{odd} {number}", where, write)
            asked = [way for way in ways if is_asked(odd, way, where)]
            one = changed / f"{PLACES[where][0]}.csv"
            wrong += [
                f"{odd} ({number}, {where}), {way}: {found!r}; the page says {page[odd][way]!r}"
                for way, found in bench.outcomes(changed, asked, one, "text/csv")
                if found != page[odd][way]
            ]
    return wrong


def test_the_page_says_what_becomes_of_odd_sequences(tmp_path: Path, capsys: Any) -> None:
    ways = [way for way in WAYS[1:] if way != "tune"]
    wrong = wrong_cells(tmp_path, capsys, "another file", ways)
    assert not wrong, "\n".join(wrong)


@pytest.mark.long
@pytest.mark.parametrize("where", PLACES)
def test_the_page_says_what_becomes_of_odd_sequences_wherever_they_are(where: str, tmp_path: Path, capsys: Any) -> None:
    wrong = wrong_cells(tmp_path, capsys, where, WAYS[1:], is_long=True)
    assert not wrong, "\n".join(wrong)
