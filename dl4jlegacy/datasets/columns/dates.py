"""The step that makes numbers of dates: their parts, and their distance from the first one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Literal, get_args

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.columns.step import BaseStep, tag_of, with_made
from dl4jlegacy.datasets.columns.table import Table
from dl4jlegacy.errors import ConfError, DataError

__all__ = ["DateParts", "Dates", "Part", "read_date"]

Part = Literal["year", "month", "day", "weekday", "hour", "minute", "age"]
_PARTS: Mapping[str, Callable[[datetime], float]] = {
    "year": lambda date: date.year,
    "month": lambda date: date.month,
    "day": lambda date: date.day,
    "weekday": lambda date: date.weekday(),
    "hour": lambda date: date.hour,
    "minute": lambda date: date.minute,
}
_AGE = "age"


def read_date(text: str, form: str = "") -> datetime | None:
    """Return the date that a text is, in UTC if it tells its distance from it; None if it is no date.

    ``form`` is as for ``strptime``; "": ISO 8601, such as 2024-01-31 or 2024-01-31 18:30:00.
    """
    try:
        date = datetime.strptime(text, form) if form else datetime.fromisoformat(text)
        return date if date.tzinfo is None else date.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):  # an offset can lead out of the years 1 to 9999
        return None


@dataclass(slots=True)
class Dates:
    """The dates among words, one after the other; ``parts`` are those in which they differ, if all words are dates.

    Attributes:
        first: the first date.
        are_all: whether all words so far are dates.
        varying: the parts in which later dates differ from the first one.
    """

    first: datetime | None = None
    are_all: bool = True
    varying: set[str] = field(default_factory=set)

    def add(self, word: str) -> None:
        """Note a word."""
        date = read_date(word) if self.are_all else None
        self.first = self.first or date
        if date is None or self.first is None:
            self.are_all = False
        elif date != self.first:
            self.varying |= {_AGE, *(part for part, take in _PARTS.items() if take(date) != take(self.first))}

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts in which the dates differ; () if a word is no date."""
        return tuple(part for part in get_args(Part) if part in self.varying) if self.are_all else ()


class DateParts(BaseStep, frozen=True, tag_field="type", tag="date"):
    """Replaces a column of dates by columns of numbers, ``column[year]`` and so on. A gap stays a gap.

    The parts are ``year``, ``month``, ``day``, ``weekday`` (Monday is 0), ``hour`` and ``minute``, and ``age``: the
    days since the first date.

    Attributes:
        format: of the dates, as for Python's ``strptime``, such as ``%d.%m.%Y``; "": ISO 8601.
        parts: of each column; learned if empty: those in which the training rows differ.
        first: the date of each column from which its age counts; learned if empty: the first of the training rows.
    """

    learned: ClassVar[tuple[str, ...]] = ("parts", "first")
    numbers: ClassVar[bool | None] = False

    format: str = ""
    parts: tuple[tuple[Part, ...], ...] = ()
    first: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.columns:
            raise ConfError(f"{tag_of(self)} names no columns")
        for first in self.first:
            if read_date(first) is None:
                raise ConfError(f"{tag_of(self)} has the first date {first!r}, which is none; write it as 2024-01-31")

    def learn(self, table: Table, column: str) -> tuple[tuple[str, ...], str]:
        """See ``BaseStep``."""
        index, found = self.columns.index(column), self._dates(table, column)
        dates = {date for date in found.values() if date is not None}
        if not dates:
            shown = next(filter(None, found), "")
            raise DataError(
                f"{table.name}: column {column!r} has no date in the training rows"
                + (f", but {shown!r}, which is none {self._form}" if shown else "; remove the column in the schema")
            )
        of_each = {part: {take(date) for date in dates} for part, take in _PARTS.items()}
        varying = (*(part for part, values in of_each.items() if len(values) > 1), *([_AGE] if len(dates) > 1 else []))
        first = self.first[index] if self.first else min(dates).isoformat()
        return self.parts[index] if self.parts else varying, first

    def made(self) -> dict[str, tuple[str, ...]]:
        """See ``BaseStep``."""
        pairs = zip(self.columns, self.parts, strict=True) if self.is_fitted else ()
        return {f"{name}[{part}]": (name,) for name, parts in pairs for part in parts}

    def apply(self, table: Table) -> Table:
        """See ``BaseStep``; raises ``DataError`` for a cell that is no date."""
        self.named_in(table)

        def parts_of(index: int, values: Array) -> dict[str, Array]:
            name, first = self.columns[index], read_date(self.first[index])
            dates, words = self._dates(table, name), values.tolist()
            if any(word and date is None for word, date in dates.items()):
                row = next(row for row, word in enumerate(words) if word and dates[word] is None)
                raise DataError(f"{table.place(row, name)}: {words[row]!r} is no date {self._form}")
            found = {}
            for part in self.parts[index]:
                numbers = {word: _number(part, date, first) for word, date in dates.items()}
                found[f"{name}[{part}]"] = np.array([numbers[word] for word in words], np.float64)
            return found

        return with_made(table, self, parts_of)

    def _dates(self, table: Table, column: str) -> dict[str, datetime | None]:
        """Return the date of each word in a column, None for a gap and for what is no date."""
        return {word: read_date(word, self.format) for word in dict.fromkeys(table.columns[column].tolist())}

    @property
    def _form(self) -> str:
        return f"of the form {self.format}" if self.format else "such as 2024-01-31; give the step its format"


def _number(part: str, date: datetime | None, first: datetime | None) -> float:
    """Return a part of a date, NaN for a gap."""
    if date is None or first is None:
        return math.nan
    return (date - first) / timedelta(days=1) if part == _AGE else _PARTS[part](date)
