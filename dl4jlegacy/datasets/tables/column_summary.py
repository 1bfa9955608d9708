"""Summary of a table column: the numbers of gaps, numbers and words, the range, and the commonest words."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from dl4jlegacy.datasets.columns.dates import Dates, Part
from dl4jlegacy.datasets.tables.label_cells import why_no_classes
from dl4jlegacy.datasets.tables.text_rows import MISSING, is_plain

__all__ = ["EXAMPLES", "GAPS", "KEPT_WORDS", "ColumnSummary"]

GAPS = frozenset(MISSING)
"""Cells that mark a missing value, in lower case."""
KEPT_WORDS = 2000
"""Maximum distinct texts of a column that are counted."""
EXAMPLES = 5
"""Maximum examples of words, or places, that are shown."""
_COMMA = re.compile(r"[-+]?[0-9]*,[0-9]+([eE][-+]?[0-9]+)?")


@dataclass(slots=True)
class ColumnSummary:
    """The contents of a column.

    Attributes:
        name, number: of the column; the number counts from 1.
        missing, numbers, words: the number of cells that are gaps, numbers, and anything else.
        alike: the number of those words that resemble numbers: infinite, or in a spelling that only Python reads.
        low, high, mean: of the numbers.
        counts: the count of each text, for up to a few thousand distinct texts; ``is_full`` says that there are more.
        gap_words: the count of each word that is a gap in features, but a name in a label.
        gaps: cells that mark a missing value, in lower case.
        dates: the dates among the words.
    """

    name: str
    number: int
    missing: int = 0
    numbers: int = 0
    words: int = 0
    alike: int = 0
    whole: int = 0
    low: float = math.inf
    high: float = -math.inf
    total: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    is_full: bool = False
    gap_words: Counter[str] = field(default_factory=Counter)
    gaps: frozenset[str] = GAPS
    dates: Dates = field(default_factory=Dates)

    def as_names(self) -> ColumnSummary:
        """Return the summary for a class label: if one cell is a word, all cells but empty ones count as names."""
        named = self.gap_words.total()
        if not self.words + named:
            return self
        names = replace(self, counts=self.counts + self.gap_words, gap_words=Counter(), numbers=0, alike=0)
        names.missing, names.words = self.missing - named, self.words + self.numbers + named
        return names

    @property
    def type(self) -> Literal["number", "category"]:
        """``number`` if at least half of the existing values are numbers (others are errors), else ``category``."""
        numbers = self.numbers + self.alike
        return "number" if numbers and numbers >= self.words - self.alike else "category"

    @property
    def is_real(self) -> bool:
        """Whether the column has only numbers that are no classes: real numbers, or very many different ones."""
        return not self.words and bool(self.numbers) and bool(self.is_full or why_no_classes(self.counts))

    @property
    def date_parts(self) -> tuple[Part, ...]:
        """The parts in which the cells differ, if all are dates."""
        return () if self.numbers or self.alike else self.dates.parts

    @property
    def with_commas(self) -> int:
        """Cells that are numbers with a decimal comma, if most of the words are; else 0."""
        found = sum(count for word, count in self.counts.items() if _COMMA.fullmatch(word))
        return found if 2 * found > self.words - self.alike else 0

    @property
    def invalid(self) -> int:
        """Cells of a number column that are no numbers."""
        return self.words if self.type == "number" else 0

    @property
    def mean(self) -> float:
        """The mean of the numbers."""
        return self.total / self.numbers if self.numbers else 0.0

    def add(self, cell: str) -> bool:
        """Count a cell; return whether it is neither a gap nor a number."""
        text = cell.strip()
        if text.lower() in self.gaps:
            self.missing += 1
            if text and self.gaps == GAPS:
                self.gap_words[text] += 1
            return False
        if text in self.counts or len(self.counts) < KEPT_WORDS:
            self.counts[text] += 1
        else:
            self.is_full = True
        try:
            value = float(text)
        except ValueError:
            self.words += 1
            self.dates.add(text)
            return True
        if not math.isfinite(value) or not is_plain(text):
            self.words, self.alike = self.words + 1, self.alike + 1
            return True
        self.numbers += 1
        self.whole += value.is_integer()
        self.low, self.high, self.total = min(self.low, value), max(self.high, value), self.total + value
        return False

    def add_numbers(self, cells: Sequence[str]) -> bool:
        """If all cells are numbers, count them as ``add`` does and return True; else do nothing."""
        try:
            values = list(map(float, cells))
        except ValueError:
            return False
        if not all(map(math.isfinite, values)) or not is_plain("".join(cells)):
            return False
        if self.gaps != GAPS and not self.gaps.isdisjoint(map(str.strip, cells)):  # some numbers are gaps
            return False
        found: dict[str, int] = Counter(map(str.strip, cells))
        if self.is_full:
            found = {text: found[text] for text in found.keys() & self.counts.keys()}
        for text, count in found.items():
            if text in self.counts or len(self.counts) < KEPT_WORDS:
                self.counts[text] += count
            else:
                self.is_full = True
        self.numbers += len(values)
        self.whole += sum(map(float.is_integer, values))
        self.low, self.high = min(self.low, *values), max(self.high, *values)
        self.total = sum(values, self.total)
        return True

    @property
    def comma_word(self) -> str:
        """The first number with a decimal comma."""
        return next(word for word in self.counts if "," in word)

    def fields(self) -> dict[str, Any]:
        """Return the summary as JSON fields."""
        found: dict[str, Any] = {"name": self.name, "type": self.type, "missing": self.missing, "invalid": self.invalid}
        if self.type == "number" and self.numbers:
            return {**found, "min": self.low, "max": self.high, "mean": self.mean}
        words = dict(self.counts.most_common(EXAMPLES))
        return {**found, "categories": len(self.counts), "more_categories": self.is_full, "most_frequent": words}
