"""Reads table files of any kind as columns, in blocks of rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.columns.table import Column, Table, column_name
from dl4jlegacy.datasets.tables.arrow_files import ArrowFile, opened_arrow
from dl4jlegacy.datasets.tables.csv_chunks import CsvChunk, CsvFile, opened_chunks
from dl4jlegacy.datasets.tables.data_frames import FrameColumns
from dl4jlegacy.datasets.tables.header import warn_of_unknown
from dl4jlegacy.datasets.tables.numpy_files import NumpyFile, opened_numpy
from dl4jlegacy.datasets.tables.pandas_index import header_names
from dl4jlegacy.datasets.tables.svmlight_files import svmlight_tables
from dl4jlegacy.datasets.tables.table_files import is_arrow, is_csv, is_numpy, is_svmlight, opened_rows
from dl4jlegacy.datasets.tables.text_rows import MISSING, Row, is_number, is_plain, why_ragged
from dl4jlegacy.errors import CellError, DataError, counted, nearest

__all__ = ["table_blocks"]

_SHOWN = 50  # columns listed in an error message
_ROWS = 8192  # rows converted to columns at a time


def _whole_rows(rows: Iterator[Row], name: str, header: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of a file; each must have as many cells as the header has columns.

    Args:
        rows: of the file, without its header.
        name: the file's name.
        header: the names of its columns.

    Raises:
        DataError: names the line.
    """
    width = len(header)
    for line, row in rows:
        if len(row) != width:
            why = why_ragged(row, width) or "; is a delimiter missing, or a text with one not in quotes?"
            raise DataError(
                f"{name}, line {line}: {counted(len(row), 'column')}, and the file has {width} ({', '.join(header[:9])}"
                f"{' ...' if width > 9 else ''}){why}"
            )
        yield line, row


def table_blocks(
    file: BinaryIO | FrameColumns,
    name: str,
    columns: Sequence[Column],
    *,
    rows: int = _ROWS,
    missing: Sequence[str] = MISSING,
    gaps_of: Mapping[str, frozenset[str]] = MappingProxyType({}),
    unread: Iterable[str] = (),
    label: str = "",
    warns: bool = False,
) -> Generator[Table, None, None]:
    """Yield the rows of a file as tables with these columns, in blocks of ``rows`` rows.

    Columns are found by name, in any order, and other columns are ignored. A CSV file whose first row has none of the
    names must have all columns in their order, optionally without the label, or without all unread columns.

    Args:
        file: open for reading; a CSV file and JSON lines may be a pipe. It is closed at the end. Or a data frame.
        name: the file's name, for messages.
        columns: the columns of the file.
        rows: rows of a table; the last may have fewer.
        missing: cells that mark a missing value, in lower case.
        gaps_of: other such cells for some columns of words.
        unread: columns that are ignored, and may be missing.
        label: the label column.
        warns: whether to warn of other columns in the file.

    Raises:
        DataError: names file, line, column and value.
    """
    gaps = _Gaps(frozenset(missing), gaps_of)
    kept = [column for column in columns if column.name not in set(unread)]
    possible = _Possible(columns, [column for column in columns if column.name != label], kept, warns)
    is_empty = True
    for table in _tables(file, name, possible, rows, gaps):
        is_empty = False
        yield table
    if is_empty:
        raise DataError(f"{name} holds no examples; expected one per line below the header")


@dataclass(frozen=True, slots=True)
class _Gaps:
    """Cells that mark a missing value, in lower case; some columns may have their own."""

    common: frozenset[str]
    special: Mapping[str, frozenset[str]]

    def of(self, column: Column) -> frozenset[str]:
        return self.special.get(column.name, self.common)


class _Possible(NamedTuple):
    """Possible columns of a file without a header: all, those without the label, and those that are read.

    ``warns``: whether to warn of other columns in a file with names.
    """

    all: Sequence[Column]
    unlabelled: Sequence[Column]
    read: Sequence[Column]
    warns: bool


def _tables(
    file: BinaryIO | FrameColumns, name: str, possible: _Possible, rows: int, gaps: _Gaps
) -> Generator[Table, None, None]:
    """Yield the rows of a file with the reader for its kind."""
    if isinstance(file, FrameColumns):
        yield from _typed_tables(file, possible, rows, gaps)
        return
    if is_arrow(name):
        with opened_arrow(file, name) as source:
            yield from _typed_tables(source, possible, rows, gaps)
        return
    if is_numpy(name):
        with opened_numpy(file, name) as arrays:
            yield from _typed_tables(arrays, possible, rows, gaps)
        return
    if is_svmlight(name):
        yield from _in_blocks(svmlight_tables(file, name, possible.all, possible.read, rows), rows)
        return
    if is_csv(name):
        with opened_chunks(file, name, sorted(gaps.common)) as chunks:
            if chunks is not None:
                yield from _in_blocks(_chunk_tables(chunks, name, possible, gaps), rows)
                return
    with opened_rows(file, name) as found:
        first = next(found.rows, None) if found.names is None else (1, found.names)
        if first is None:
            raise DataError(f"{name} holds no examples; expected one per line")
        places, names, is_header = _located(name, first, possible, is_header=found.names is not None)
        body = _whole_rows(found.rows if is_header else chain([first], found.rows), name, names)
        while chunk := list(islice(body, rows)):
            yield _table(name, chunk, possible.read, places, gaps)


def _chunk_tables(source: CsvFile, name: str, possible: _Possible, gaps: _Gaps) -> Iterator[Table]:
    """Yield the chunks of a CSV file as tables, read by pyarrow or, if it cannot read a chunk, row by row."""
    columns = possible.read
    places, names, is_header = _located(name, source.first, possible)
    chunks = source.chunks if is_header else chain([source.head], source.chunks)
    wanted = {places[column.name] - 1: column.type == "number" for column in columns}
    for chunk in chunks:
        found = chunk.columns(len(names), wanted, gaps.common)
        table = None if found is None else _chunk_table(chunk, columns, places, found, gaps)
        if table is not None:
            yield table
            continue
        for some in _gathered(_whole_rows(chunk.rows(), name, names)):
            try:
                table = _table(name, some, columns, places, gaps)
            except DataError:
                for row in some:  # rows before a wrong one are yielded first, as with small blocks
                    yield _table(name, [row], columns, places, gaps)
                raise
            yield table


def _gathered(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """Yield rows in lists; rows before an error are yielded before the error is raised."""
    some: list[Row] = []
    wrong: DataError | None = None
    while wrong is None:
        try:
            row = next(rows, None)
        except DataError as error:
            row, wrong = None, error
        if row is not None:
            some.append(row)
        if some and (row is None or len(some) == _ROWS):
            yield some
            some = []
        if row is None:
            break
    if wrong is not None:
        raise wrong


def _chunk_table(
    chunk: CsvChunk,
    columns: Sequence[Column],
    places: Mapping[str, int],
    found: Mapping[int, Any],
    gaps: _Gaps,
) -> Table | None:
    """Return a chunk as a table; None if one of its rows may be empty, or no column is read."""
    values = {
        column.name: cells if column.type == "number" else _coded_words(cells[0], cells[1], gaps.of(column))
        for column in columns
        for cells in (found[places[column.name] - 1],)
    }
    blank = [np.isnan(cells) if cells.dtype != object else cells == "" for cells in values.values()]
    if not blank or np.logical_and.reduce(blank).any():
        return None
    lines = np.arange(chunk.first, chunk.first + len(blank[0]), dtype=np.int64)
    return Table(chunk.name, values, lines, places)


def _in_blocks(tables: Iterator[Table], rows: int) -> Iterator[Table]:
    """Yield the rows of tables in blocks of ``rows`` rows."""
    pending: Table | None = None
    for found in tables:
        table = found if pending is None else Table.merge([pending, found])
        whole = len(table) - len(table) % rows
        for start in range(0, whole, rows):
            yield table.between(start, start + rows)
        pending = table.between(whole, len(table)) if whole < len(table) else None
    if pending is not None:
        yield pending


def _numbers_in(missing: frozenset[str]) -> list[float]:
    """Return the numbers, other than NaN, that mark a missing value."""
    return [value for text in missing if is_number(text) and not np.isnan(value := float(text))]


def _typed_tables(
    source: ArrowFile | NumpyFile | FrameColumns, possible: _Possible, rows: int, gaps: _Gaps
) -> Iterator[Table]:
    """Yield the rows of typed columns as tables."""
    names, known = source.names, [column.name for column in possible.all]
    if isinstance(source, NumpyFile) and all(map(is_number, names)) and set(known).isdisjoint(names):
        places = _places_in_order(source.name, (1, list(names)), possible)  # an array's columns are only numbered
    else:
        places = _places_in_header(source.name, header_names(names, known), possible)
    stored = {column.name: names[places[column.name] - 1] for column in possible.read}
    numbers_missing, count = _numbers_in(gaps.common), 0
    for block in source.blocks(rows, list(stored.values())):
        found, length = dict[str, Array](), len(next(iter(block.values()), ()))
        empty = Table(source.name, {}, np.arange(count + 1, count + 1 + length, dtype=np.int64), places, unit="row")
        with np.errstate(all="ignore"):
            for column in possible.read:
                values: Any = block[stored[column.name]]
                if column.type == "category":
                    found[column.name] = _coded_words(*source.coded(values), gaps.of(column))
                elif (numbers := source.numbers(values)) is None:
                    found[column.name] = _numbers(source.texts(values), empty, column.name, gaps.common | source.gaps)
                else:
                    found[column.name] = _checked(numbers, empty, column.name, numbers_missing)
        count += length
        yield empty.with_columns(found)


def _coded_words(codes: Array, words: list[str], missing: frozenset[str]) -> Array:
    kept = np.empty(len(words) + 1, object)
    kept[:] = [*(word if word.lower() not in missing else "" for word in map(str.strip, words)), ""]
    found: Array = kept[codes]
    return found


def _checked(values: Array, table: Table, column: str, missing: Sequence[float]) -> Array:
    """Return numbers with NaN for those that mark a missing value; raises an error for infinite numbers."""
    for value in missing:
        values = np.where(values == value, np.nan, values)
    if math.isfinite(values.sum()):  # a sum shows any infinity; much cheaper than checking each value
        return values
    infinite = np.isinf(values)
    if infinite.any():
        row = int(infinite.argmax())
        raise _no_number(table, row, column, repr(float(values[row])))
    return values


def _located(
    name: str, first: Row, possible: _Possible, *, is_header: bool = False
) -> tuple[dict[str, int], list[str], bool]:
    """Return the number of each column to read, the names of all columns, and whether the first row is the header."""
    known = [column.name for column in possible.all]
    header = header_names(first[1], known)
    if is_header or not set(known).isdisjoint(header):
        return _places_in_header(name, header, possible), header, True
    return _places_in_order(name, first, possible), [column_name(i + 1) for i in range(len(header))], False


def _places_in_header(name: str, header: list[str], possible: _Possible) -> dict[str, int]:
    """Return the number of each column to read, from 1, according to the header."""
    columns, counts = possible.read, Counter(header)
    for column in columns:
        count = counts[column.name]
        if count > 1:
            raise DataError(f"{name}, line 1: column {column.name!r} is there {count} times; name each differently")
        if not count:
            raise DataError(f"{name} has no column {column.name!r}{nearest(column.name, header[:_SHOWN])}")
    if possible.warns:
        known = {column.name for column in possible.all}
        warn_of_unknown((column for column in header if column not in known), name)
    places = {read: place for place, read in enumerate(header, 1)}
    return {column.name: places[column.name] for column in columns}


def _places_in_order(name: str, first: Row, possible: _Possible) -> dict[str, int]:
    """Return the number of each column, from 1, in a file without a header: the first layout that fits."""
    line, row = first
    for columns in (possible.all, possible.unlabelled, possible.read):
        if len(row) == len(columns):
            return {column.name: number for number, column in enumerate(columns, 1)}
    names = [repr(column.name) for column in possible.all]
    raise DataError(
        f"{name}, line {line}: {counted(len(row), 'column')}, and no header with any of the names; expected "
        f"{len(names)}: {', '.join(names[:20])}{' ...' if len(names) > 20 else ''}"
    )


def _table(name: str, chunk: list[Row], columns: Sequence[Column], places: Mapping[str, int], gaps: _Gaps) -> Table:
    lines = np.array([line for line, _ in chunk], np.int64)
    cells = list(zip(*(row for _, row in chunk), strict=True))
    empty = Table(name, {}, lines, places)
    found: dict[str, Array] = {}
    for column in columns:
        texts = cells[places[column.name] - 1]
        if column.type == "number":
            found[column.name] = _numbers(texts, empty, column.name, gaps.common)
        else:
            found[column.name] = _words(texts, gaps.of(column))
    return empty.with_columns(found)


def _numbers(texts: Sequence[str], table: Table, column: str, missing: frozenset[str]) -> Array:
    try:
        values = np.array(list(map(float, texts)), np.float64)
        stands_for_none = missing.intersection(texts)  # a number such as -999, listed in the schema
        if is_plain("".join(texts)) and not np.isinf(values).any() and not stands_for_none:
            return values
    except ValueError:
        pass
    return np.array([_number(text, table, row, column, missing) for row, text in enumerate(texts)], np.float64)


def _number(text: str, table: Table, row: int, column: str, missing: frozenset[str]) -> float:
    if text.strip().lower() in missing:
        return np.nan
    try:
        value = float(text) if is_plain(text) else np.inf
    except ValueError:
        value = np.inf
    if not np.isfinite(value):
        raise _no_number(table, row, column, text)
    return value


def _no_number(table: Table, row: int, column: str, text: str) -> CellError:
    return CellError(
        f"{table.place(row, column)}: {text!r} is not a number; correct it, list it under 'missing' in a "
        "schema, or say there that the column's type is category (dl4j data inspect writes one)"
    )


def _words(texts: Sequence[str], missing: frozenset[str]) -> Array:
    words = np.empty(len(texts), object)
    words[:] = [word if word.lower() not in missing else "" for word in map(str.strip, texts)]
    return words
