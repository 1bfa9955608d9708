"""Tables: the columns of a file by name, numbers and words, with gaps; every cell can be named by where it stands.

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

_SHOWN = 50  # columns that an error may list


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A column of a table: its name, and whether it holds numbers or words (``"category"``)."""

    name: str
    type: Literal["number", "category"] = "number"


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Rows of a file, column by column; never changed.

    Attributes:
        name: the file's, for messages.
        columns: numbers as float64, NaN for a gap; words as objects (``str``), ``""`` for a gap; ``(rows,)`` each.
        lines: the number of each row's line, or of each row, from 1, ``(rows,)``.
        places: the number of each column in the file, from 1; one that was derived has none.
        labels: the column that is to be learned, if it was set apart, ``(rows,)``; several: ``(rows, columns)``.
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
        """Return the table with these columns in the place of its own."""
        return Table(self.name, columns, self.lines, self.places, self.labels, self.unit)

    def labelled(self, chosen: str | tuple[str, ...]) -> Table:
        """Return the table with a column set apart as labels, ``(rows,)``; or some of numbers, ``(rows, columns)``."""
        apart = {chosen} if isinstance(chosen, str) else set(chosen)
        rest = {name: values for name, values in self.columns.items() if name not in apart}
        if isinstance(chosen, str):
            labels = self.columns[chosen]
        else:
            labels = np.stack([self.columns[name] for name in chosen], axis=1)
        return Table(self.name, rest, self.lines, self.places, labels, self.unit)

    def take(self, rows: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> Table:
        """Return these rows."""
        columns = {name: values[rows] for name, values in self.columns.items()}
        labels = None if self.labels is None else self.labels[rows]
        return Table(self.name, columns, self.lines[rows], self.places, labels, self.unit)

    def between(self, start: int, stop: int) -> Table:
        """Return rows ``start`` to ``stop`` (exclusive), as views."""
        columns = {name: values[start:stop] for name, values in self.columns.items()}
        labels = None if self.labels is None else self.labels[start:stop]
        return Table(self.name, columns, self.lines[start:stop], self.places, labels, self.unit)

    def place(self, row: int, column: str) -> str:
        """Return where a cell stands, in words."""
        return cell_place(self.name, self.unit, int(self.lines[row]), column, self.places.get(column))

    @staticmethod
    def merge(tables: Sequence[Table]) -> Table:
        """Return the rows of all tables, which have the same columns; messages name the first file."""
        first = tables[0]
        if len(tables) == 1:
            return first
        columns = {name: np.concatenate([table.columns[name] for table in tables]) for name in first.columns}
        labels = None if first.labels is None else np.concatenate([table.labels for table in tables])
        lines = np.concatenate([table.lines for table in tables])
        return Table(first.name, columns, lines, first.places, labels, first.unit)


def cell_place(name: str, unit: str, line: int, column: str, number: int | None) -> str:
    """Return where a cell stands, in words: file, line or row, the column's name, and its number if it has one."""
    return f"{name}, {unit} {line}, column {column!r}" + (f" ({number})" if number else "")


def column_name(number: int) -> str:
    """Return the name of a column without one, by its number from 1."""
    return f"column {number}"


def find_column(wanted: str, names: Sequence[str], where: str) -> str:
    """Return the name of the column with this name or number; numbers count from 1 (-1: the last).

    Raises:
        DataError: there is none.
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
    """Return the columns in a text that names one, or several with commas between them; each as for ``find_column``.

    Raises:
        DataError: there is none of a name, or it is named twice.
    """
    if "," not in wanted or wanted.strip().lower() in [name.lower() for name in names]:
        return (find_column(wanted, names, where),)
    found = tuple(find_column(part.strip(), names, where) for part in wanted.split(","))
    for name in found:
        if found.count(name) > 1:
            raise DataError(f"{where}: the labels {wanted!r} name column {name!r} twice")
    return found
