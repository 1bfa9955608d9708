"""Rows that occurred before, counted in memory and in files; and cells counted many at a time."""

from __future__ import annotations

import random

import pytest

from dl4jlegacy.datasets.tables.column_summary import ColumnSummary
from dl4jlegacy.datasets.tables.duplicates import Duplicates


@pytest.mark.parametrize("held", [1, 7, 1000, 100_000])
@pytest.mark.parametrize("different", [1, 50, 5000])
def test_rows_that_occurred_before_are_counted_with_the_first_lines(held: int, different: int) -> None:
    chance, seen, again = random.Random(different), set[int](), list[int]()
    with Duplicates(held) as rows:
        for line in range(2, 3000 if held > 1 else 400):
            key = hash(("row", chance.randrange(different)))
            if key in seen:
                again.append(line)
            seen.add(key)
            rows.add(key, line)
        assert rows.found(5) == (len(again), tuple(again[:5]))


def test_no_rows_have_no_duplicates() -> None:
    with Duplicates() as rows:
        assert rows.found(5) == (0, ())


@pytest.mark.parametrize("last", ["4.25", "", "n/a", "nan", "inf", "1_000", "word", " 7 ", "٣", "None", "-0"])
def test_cells_that_are_counted_together_come_to_what_they_come_to_one_by_one(last: str) -> None:
    cells = ["1", "2.5", "1", " 3", "-1e3", *(f"{number}" for number in range(3000)), last]
    one_by_one, together = ColumnSummary("a", 1), ColumnSummary("a", 1)
    for cell in cells:
        one_by_one.add(cell)
    if not together.add_numbers(cells):
        assert not together.numbers and not together.counts  # nothing was done
        for cell in cells:
            together.add(cell)
    assert together == one_by_one
