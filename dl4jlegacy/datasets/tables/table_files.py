"""Recognises tables by the endings of their names, and reads rows as texts: one interface for all kinds."""

from __future__ import annotations

import contextlib
import glob
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from dl4jlegacy.datasets.tables.arrow_files import arrow_rows, opened_arrow
from dl4jlegacy.datasets.tables.numpy_files import numpy_rows
from dl4jlegacy.datasets.tables.pandas_index import counts_rows, header_names, is_index_name
from dl4jlegacy.datasets.tables.text_rows import Row, csv_rows, json_rows, open_table
from dl4jlegacy.errors import DataError
from dl4jlegacy.system import files

__all__ = [
    "KINDS",
    "TextRows",
    "check_one_kind",
    "column_names",
    "counting_columns",
    "index_columns",
    "is_arrow",
    "is_csv",
    "is_numpy",
    "is_pattern",
    "is_svmlight",
    "is_table",
    "kind_of_table",
    "opened_rows",
    "tables_like",
]

_CSV, _JSON, _ARROW, _SVMLIGHT, _NUMPY = "CSV", "JSON lines", "Parquet or Arrow", "SVMLight", "NumPy"
KINDS = "CSV, JSON lines, Parquet, Arrow, Feather, NumPy or SVMLight"
"""The kinds of tables, for messages."""
_ENDINGS = {
    **dict.fromkeys((".csv", ".csv.gz", ".tsv", ".tsv.gz"), _CSV),
    **dict.fromkeys((".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz"), _JSON),
    **dict.fromkeys((".parquet", ".pq", ".arrow", ".feather", ".ipc"), _ARROW),
    **dict.fromkeys((".svm", ".svmlight", ".libsvm"), _SVMLIGHT),
    **dict.fromkeys((".npy", ".npz"), _NUMPY),
    **dict.fromkeys((".svm.gz", ".svmlight.gz", ".libsvm.gz"), _SVMLIGHT),
}


@dataclass(frozen=True, slots=True)
class TextRows:
    """The rows of a file as texts.

    Attributes:
        names: of the columns; None: a CSV file, whose first row may contain them.
        rows: the rows, without the names if these are known.
        unit: what the row numbers count: ``line`` or ``row``, from 1.
    """

    names: list[str] | None
    rows: Iterator[Row]
    unit: str

    def first_row(self) -> list[str]:
        """Return the names of the columns, or the first row instead."""
        return next(self.rows, (0, [""]))[1] if self.names is None else self.names


def kind_of_table(name: str) -> str | None:
    """Return the kind of a table file by its name; None if the name does not show it."""
    lowered = name.lower()
    return next((kind for ending, kind in _ENDINGS.items() if lowered.endswith(ending)), None)


def is_table(name: str) -> bool:
    """Return whether a file's name is that of a table."""
    return kind_of_table(name) is not None


def is_arrow(name: str) -> bool:
    """Return whether a file has typed columns, read by pyarrow."""
    return kind_of_table(name) == _ARROW


def is_numpy(name: str) -> bool:
    """Return whether a file's columns are NumPy arrays."""
    return kind_of_table(name) == _NUMPY


def is_svmlight(name: str) -> bool:
    """Return whether a file has a label and ``index:value`` pairs on each line."""
    return kind_of_table(name) == _SVMLIGHT


def is_csv(name: str) -> bool:
    """Return whether a file is read as CSV: by its name, or because its name shows no kind."""
    return kind_of_table(name) in (_CSV, None)


@contextlib.contextmanager
def opened_rows(file: BinaryIO, name: str) -> Iterator[TextRows]:
    """Yield the rows of a table of any kind; a file with an unknown ending is read as CSV. Closes the file.

    Args:
        file: open for reading; a CSV file and JSON lines may be a pipe.
        name: the file's name, for its kind and for messages.

    Raises:
        DataError: the file cannot be read, or is of another kind; names file, row and value, also while rows are read.
    """
    kind = kind_of_table(name)
    if kind == _SVMLIGHT:
        file.close()
        raise DataError(
            f"{name} is an SVMLight file, whose rows are no lists of cells; read it with dl4jlegacy.datasets.load"
        )
    readers = {_JSON: json_rows, _ARROW: arrow_rows, _NUMPY: numpy_rows}
    if kind not in readers:
        with contextlib.closing(csv_rows(file, name)) as lines:
            yield TextRows(None, lines, "line")
        return
    with contextlib.closing(readers[kind](file, name)) as rows:
        first = next(rows, None)
        if first is None:
            raise DataError(f"{name} holds no examples; expected an object on each line")
        yield TextRows([column.strip() for column in first[1]], rows, "line" if kind == _JSON else "row")


def column_names(path: Path, known: Iterable[str]) -> list[str]:
    """Return the names of a table's columns: the first row of a CSV file; [] for SVMLight files.

    Args:
        path: of the table.
        known: names of columns, as for ``header_names``.

    Raises:
        DataError: the table cannot be read.
    """
    if is_svmlight(path.name):
        return []
    with opened_rows(open_table(path), str(path)) as found:
        return header_names(found.first_row(), known)


def index_columns(paths: Sequence[Path]) -> tuple[str, ...]:
    """Return the columns of a data set's files that are pandas' index.

    Raises:
        DataError: a file cannot be read.
    """
    if is_arrow(paths[0].name):
        with opened_arrow(open_table(paths[0]), str(paths[0])) as source:
            if source.index:
                return source.index
    return () if is_svmlight(paths[0].name) else counting_columns(paths)


def counting_columns(paths: Sequence[Path]) -> tuple[str, ...]:
    """Return the columns with a name of pandas' index that count the rows; errors as for ``index_columns``."""
    numbers: dict[str, list[array[int]]] | None = None
    for path in paths:
        with opened_rows(open_table(path), str(path)) as found:
            names = header_names(found.first_row())
            places = {name: names.index(name) for name in names if is_index_name(name) and names.count(name) == 1}
            part = _whole_numbers(found.rows, places)
        known = part if numbers is None else numbers
        numbers = {name: [*(numbers or {}).get(name, []), part[name]] for name in known if name in part}
        if not numbers:
            return ()
    return tuple(name for name, parts in (numbers or {}).items() if counts_rows(name, parts))


def _whole_numbers(rows: Iterator[Row], places: dict[str, int]) -> dict[str, array[int]]:
    """Return the cells of the columns that hold only whole numbers from 0 up."""
    found: dict[str, array[int]] = {name: array("q") for name in places}
    for _, row in rows if places else ():
        for name in list(found):
            cell = row[places[name]].strip() if places[name] < len(row) else ""
            if cell.isascii() and cell.isdecimal() and len(cell) < 16:
                found[name].append(int(cell))
            else:
                del found[name]
        if not found:
            break
    return found


def is_pattern(name: str) -> bool:
    """Return whether a name is a pattern for several files, such as ``part-*.csv``."""
    return glob.has_magic(name)


def tables_like(pattern: str) -> list[Path]:
    """Return the files that match a pattern, sorted by name.

    Raises:
        DataError: there is none, or one of them is no table, or they are of several kinds.
    """
    with files.errors_as(DataError, f"data set {pattern!r} cannot be read"):
        found = [Path(path) for path in sorted(glob.glob(str(files.expand(pattern))))]
        found = [path for path in found if files.is_file(path)]
    if not found:
        raise DataError(f"data set {pattern!r}: there is no file of such a name; is the pattern spelt right?")
    for path in found:
        if not is_table(path.name):
            raise DataError(f"data set {pattern!r}: {path} is no table; expected {KINDS} files by their endings")
    check_one_kind(found, f"data set {pattern!r}")
    return found


def check_one_kind(tables: list[Path], where: str) -> None:
    """Raise ``DataError`` if the files of a data set are of several kinds: they may hold the same rows."""
    other = next((path for path in tables if kind_of_table(path.name) != kind_of_table(tables[0].name)), None)
    if other is not None:
        raise DataError(
            f"{where} has tables of several kinds, {tables[0].name} and {other.name}; keep one kind of files in a "
            f"folder, or name those to read by a pattern, such as '*{''.join(tables[0].suffixes[-2:])}'"
        )
