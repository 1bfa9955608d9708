"""Tables: the columns of a file by name, numbers and words, with gaps; every cell has a place for messages.

Follows DataVec's ``Schema`` and ``CSVRecordReader``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import DataError, nearest

__all__ = ["Column", "Table", "cell_place", "column_name", "find_column", "find_columns"]

_SHOWN = 50  # columns listed in an error message


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A column of a table: its name, and whether it holds numbers or words (``"category"``)."""

    name: str
    type: Literal["number", "category"] = "number"


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Rows of a file, stored by column; immutable.

    Attributes:
        name: the file's name, for messages.
        columns: numbers as float64, NaN for a gap; words as objects (``str``), ``""`` for a gap; ``(rows,)`` each.
        lines: the line number of each row, or its row number, from 1, ``(rows,)``.
        places: the number of each column in the file, from 1; derived columns have none.
        labels: the label column, if it was separated, ``(rows,)``; several: ``(rows, columns)``.
        unit: what ``lines`` counts: ``line`` or ``row``.
    """

    name: str
    columns: Mapping[str, Array]
    lines: npt.NDArray[np.int64]
    places: Mapping[str, int]
    labels: Array | None = None
    unit: str = "line"

    def __len__(self) -> int:
        return len(self.lines)

    def with_columns(self, columns: Mapping[str, Array]) -> Table:
        """Return a copy of the table with these columns instead."""
        return Table(self.name, columns, self.lines, self.places, self.labels, self.unit)

    def labelled(self, chosen: str | tuple[str, ...]) -> Table:
        """Return a copy with a column as labels, ``(rows,)``, or several number columns, ``(rows, columns)``."""
        apart = {chosen} if isinstance(chosen, str) else set(chosen)
        rest = {name: values for name, values in self.columns.items() if name not in apart}
        if isinstance(chosen, str):
            labels = self.columns[chosen]
        else:
            labels = np.stack([self.columns[name] for name in chosen], axis=1)
        return Table(self.name, rest, self.lines, self.places, labels, self.unit)

    def take(self, rows: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> Table:
        """Return the table with only these rows."""
        columns = {name: values[rows] for name, values in self.columns.items()}
        labels = None if self.labels is None else self.labels[rows]
        return Table(self.name, columns, self.lines[rows], self.places, labels, self.unit)

    def between(self, start: int, stop: int) -> Table:
        """Return rows ``start`` to ``stop`` (exclusive), as views."""
        columns = {name: values[start:stop] for name, values in self.columns.items()}
        labels = None if self.labels is None else self.labels[start:stop]
        return Table(self.name, columns, self.lines[start:stop], self.places, labels, self.unit)

    def place(self, row: int, column: str) -> str:
        """Return the place of a cell in words."""
        return cell_place(self.name, self.unit, int(self.lines[row]), column, self.places.get(column))

    @staticmethod
    def merge(tables: Sequence[Table]) -> Table:
        """Return the rows of all tables, which must have the same columns; messages name the first file."""
        first = tables[0]
        if len(tables) == 1:
            return first
        columns = {name: np.concatenate([table.columns[name] for table in tables]) for name in first.columns}
        labels = None if first.labels is None else np.concatenate([table.labels for table in tables])
        lines = np.concatenate([table.lines for table in tables])
        return Table(first.name, columns, lines, first.places, labels, first.unit)


def cell_place(name: str, unit: str, line: int, column: str, number: int | None) -> str:
    """Return the place of a cell in words: file, line or row, the column's name, and its number if it has one."""
    if number and column == column_name(number):
        return f"{name}, {unit} {line}, {column}"
    return f"{name}, {unit} {line}, column {column!r}" + (f" ({number})" if number else "")


def column_name(number: int) -> str:
    """Return the name of an unnamed column, from its number, which counts from 1."""
    return f"column {number}"


def find_column(wanted: str, names: Sequence[str], where: str) -> str:
    """Return the name of the column with this name or number; numbers count from 1 (-1: the last).

    Raises:
        DataError: there is no such column.
    """
    if wanted in names:
        return wanted
    alike = [name for name in names if name.lower() == wanted.strip().lower()]
    if len(alike) == 1:
        return alike[0]
    try:
        number = int(wanted)
    except ValueError:
        number = 0
    if 1 <= abs(number) <= len(names):
        return names[number - 1 if number > 0 else number]
    raise DataError(f"{where} has no column {wanted!r}{nearest(wanted, list(names[:_SHOWN]))}")


def find_columns(wanted: str, names: Sequence[str], where: str) -> tuple[str, ...]:
    """Return the columns that a text names, separated by commas; each as for ``find_column``.

    Raises:
        DataError: a column does not exist, or is named twice.
    """
    if "," not in wanted or wanted.strip().lower() in [name.lower() for name in names]:
        return (find_column(wanted, names, where),)
    found = tuple(find_column(part.strip(), names, where) for part in wanted.split(","))
    for name in found:
        if found.count(name) > 1:
            raise DataError(f"{where}: the labels {wanted!r} name column {name!r} twice")
    return found
