"""What is in a column of a table: how many gaps, numbers and words, their range, and the commonest ones."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from dl4jlegacy.datasets.tables.label_cells import why_no_classes
from dl4jlegacy.datasets.tables.text_rows import MISSING, is_plain

__all__ = ["EXAMPLES", "GAPS", "KEPT_WORDS", "ColumnSummary"]

GAPS = frozenset(MISSING)
"""Cells that stand for no value, in small letters."""
KEPT_WORDS = 2000
"""Different texts of a column that are counted."""
EXAMPLES = 5
"""Words, or places, that are shown of many."""
_COMMA = re.compile(r"[-+]?[0-9]*,[0-9]+([eE][-+]?[0-9]+)?")


@dataclass(slots=True)
class ColumnSummary:
    """What a column holds.

    Attributes:
        name, number: of the column, the number from 1.
        missing, numbers, words: how many cells are gaps, numbers, and anything else.
        alike: how many of the last are like numbers, infinite or in a spelling that only Python reads.
        low, high, mean: of the numbers.
        counts: how often each text occurs, up to a few thousand different ones; ``is_full`` says that there are more.
        gap_words: how often each word occurs that is a gap, but a name in a label.
        gaps: cells that stand for no value, in small letters.
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

    def as_names(self) -> ColumnSummary:
        """Return it as a label that is a class, where all but empty cells are names, and words no mistakes."""
        named = self.gap_words.total()
        if not self.words + named:
            return self
        names = replace(self, counts=self.counts + self.gap_words, gap_words=Counter(), numbers=0, alike=0)
        names.missing, names.words = self.missing - named, self.words + self.numbers + named
        return names

    @property
    def type(self) -> Literal["number", "category"]:
        """Numbers, if at least half of what is not missing is one: then the others are mistakes."""
        numbers = self.numbers + self.alike
        return "number" if numbers and numbers >= self.words - self.alike else "category"

    @property
    def is_real(self) -> bool:
        """Whether it holds nothing but numbers, and they are no classes: real ones, or very many."""
        return not self.words and bool(self.numbers) and bool(self.is_full or why_no_classes(self.counts))

    @property
    def with_commas(self) -> int:
        """Cells that are numbers with a comma in the place of the point, if most of its words are."""
        found = sum(count for word, count in self.counts.items() if _COMMA.fullmatch(word))
        return found if 2 * found > self.words - self.alike else 0

    @property
    def invalid(self) -> int:
        """Cells of a column of numbers that are none."""
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
            return True
        if not math.isfinite(value) or not is_plain(text):
            self.words, self.alike = self.words + 1, self.alike + 1
            return True
        self.numbers += 1
        self.whole += value.is_integer()
        self.low, self.high, self.total = min(self.low, value), max(self.high, value), self.total + value
        return False

    def add_numbers(self, cells: Sequence[str]) -> bool:
        """Count cells that all are numbers, as ``add`` does one by one, and return True; else do nothing."""
        try:
            values = list(map(float, cells))
        except ValueError:
            return False
        if not all(map(math.isfinite, values)) or not is_plain("".join(cells)):
            return False
        if self.gaps != GAPS and not self.gaps.isdisjoint(map(str.strip, cells)):  # some numbers are gaps
            return False
        for text, count in Counter(map(str.strip, cells)).items():
            if text in self.counts or len(self.counts) < KEPT_WORDS:
                self.counts[text] += count
            else:
                self.is_full = True
        self.numbers += len(values)
        self.whole += sum(map(float.is_integer, values))
        self.low, self.high = min(self.low, *values), max(self.high, *values)
        self.total = sum(values, self.total)
        return True

    def fields(self) -> dict[str, Any]:
        """Return it for JSON."""
        found: dict[str, Any] = {"name": self.name, "type": self.type, "missing": self.missing, "invalid": self.invalid}
        if self.type == "number" and self.numbers:
            return {**found, "min": self.low, "max": self.high, "mean": self.mean}
        words = dict(self.counts.most_common(EXAMPLES))
        return {**found, "categories": len(self.counts), "more_categories": self.is_full, "most_frequent": words}
