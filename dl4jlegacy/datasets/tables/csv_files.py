"""Reader of tables as plain numbers: numeric features and one label column of class numbers or names.

Errors name file, line and column, counted from 1 as in a text editor. Follows
``org.deeplearning4j.datasets.iterator.CSVDataSetIterator``, which had no header, no names and no messages.
"""

from __future__ import annotations

import logging
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.columns.table import column_name
from dl4jlegacy.datasets.dataset import DataSet, one_hot
from dl4jlegacy.datasets.iterator import ListDataSetIterator
from dl4jlegacy.datasets.tables.header import Header
from dl4jlegacy.datasets.tables.label_cells import class_name, classes_of, numbers_in, why_no_classes
from dl4jlegacy.datasets.tables.numpy_files import label_columns, opened_numpy
from dl4jlegacy.datasets.tables.pandas_index import header_names, warn_of_index
from dl4jlegacy.datasets.tables.table_files import TextRows, index_columns, is_numpy, opened_rows
from dl4jlegacy.datasets.tables.text_rows import MISSING, is_number, is_plain, open_table, why_no_features, why_ragged
from dl4jlegacy.errors import CellError, DataError, counted

__all__ = [
    "LABEL_HEADERS",
    "CsvData",
    "CsvDataSetIterator",
    "check_header",
    "read_csv",
    "read_csv_blocks",
    "read_csv_files",
]

logger = logging.getLogger(__name__)

LABEL_HEADERS = ("label", "class", "target")
_BLOCK = 8192  # rows of arrays read at a time
_SHOWN = 20  # classes listed in an error message


class CsvDataSetIterator(ListDataSetIterator):
    """Batches of one CSV file.

    Args:
        batch: examples per batch.
        path: the file.
        n_classes: number of classes, if labels are numbers from 0; by default the number found.
        seed: of the shuffling.
        shuffle: a new order every epoch.
    """

    def __init__(
        self, batch: int, path: str | Path, *, n_classes: int | None = None, seed: int = 123, shuffle: bool = True
    ) -> None:
        dataset, names = read_csv(path, n_classes=n_classes)
        super().__init__(dataset, batch, seed=seed, shuffle=shuffle, label_names=names)


@dataclass(slots=True)
class _Table:
    """A file that was read; ``lines`` are the line numbers of the rows.

    ``known`` are the expected columns, or those of ``alike``, the first file of its data set. ``order`` holds the
    places of the features if the file has their names; ``warns`` says whether to warn of other columns. ``index`` are
    columns that are dropped.
    """

    name: str
    known: Header | None = None
    alike: _Table | None = None
    warns: bool = True
    index: tuple[str, ...] = ()
    unit: str = "line"
    width: int = 0
    header: list[str] | None = None
    label_column: int | None = None
    order: list[int] | None = None
    values: array[float] = field(default_factory=lambda: array("d"))
    labels: list[str] = field(default_factory=list)
    lines: array[int] = field(default_factory=lambda: array("q"))

    @property
    def features(self) -> int:
        """The number of feature columns."""
        return self.width - (self.label_column is not None) if self.order is None else len(self.order)

    def feature_names(self) -> tuple[str, ...]:
        """Return the names of the feature columns in the header; () without a header."""
        if self.order is not None:
            return tuple((self.header or [])[column] for column in self.order)
        return tuple(name for column, name in enumerate(self.header or ()) if column != self.label_column)

    def found_header(self) -> Header | None:
        """Return the names by which these columns are found in other files; None if they have no names."""
        names = [name for name in self.header or () if name not in self.index]
        if is_numpy(self.name) and any(map(is_number, names)):  # such names are only the positions of the columns
            return None
        if self.header is None or self.label_column is None:
            return Header.of(names, None)
        return Header.of(names, names.index(self.header[self.label_column]))

    def clear(self) -> None:
        """Remove the rows, but keep the columns."""
        self.values, self.lines = array("d"), array("q")
        self.labels.clear()


class CsvData(NamedTuple):
    """The contents of files: float64 parts, one per file, the names of the classes, and of the feature columns.

    ``header`` has the names by which these columns are found in other files; None if they have no names. ``left_out``
    are columns that were not read, such as pandas' index.
    """

    parts: list[DataSet]
    label_names: tuple[str, ...]
    columns: tuple[str, ...]
    header: Header | None = None
    left_out: tuple[str, ...] = ()


def read_csv(
    path: str | Path,
    *,
    n_classes: int | None = None,
    label_names: Sequence[str] | None = None,
    labelled: bool = True,
) -> tuple[DataSet, tuple[str, ...]]:
    """Return the examples in ``path`` and the names of their classes.

    The delimiter is a comma, semicolon, tab or ``|``. The first row is a header if none of its cells is a number, or
    one is called label, class or target. The label is the column of that name, else the last one. Its cells are names
    of classes, in sorted order, numbers by value; a row with an empty label is dropped.

    Features are float32. If a column lies so far from 0 that float32 would lose differences (times in milliseconds,
    long numbers), they are float64: scale such columns, because the network computes in float32 and would lose the
    differences.

    Args:
        path: the file, UTF-8.
        n_classes: the number of classes, for class numbers; by default from the file.
        label_names: the known class names in order; by default from the file.
        labelled: False reads every column as a feature (a column with a label's name is dropped).

    Raises:
        DataError: names file, line, column and value.
    """
    found = read_csv_files([Path(path)], n_classes=n_classes, label_names=label_names, labelled=labelled)
    return found.parts[0].rounded(), found.label_names


def read_csv_files(
    paths: Sequence[Path],
    *,
    n_classes: int | None = None,
    label_names: Sequence[str] | None = None,
    labelled: bool = True,
    is_split: bool = False,
    header: Header | None = None,
    index: Sequence[str] | None = None,
) -> CsvData:
    """Return one float64 DataSet per file, all with the same columns and the same classes; see ``read_csv``.

    With ``is_split``, for examples that are split afterwards, a class that occurs once is an error, too. Named columns
    are found by the names in ``header``, for instance a model's, in its order; None: by the header of the first file.
    ``index`` are columns to drop; None: pandas' index, unless ``header`` names the columns to read.
    """
    left_out = tuple(index_columns(paths) if index is None and header is None else index or ())
    tables = [_read(paths[0], labelled, header, left_out)]
    known = header or tables[0].found_header()
    tables += [_read(path, labelled, known, left_out, tables[0] if header is None else None) for path in paths[1:]]
    features = [_features(table, "the file") for table in tables]
    for table, x in zip(tables, features, strict=True):
        if x.shape[1] != features[0].shape[1]:
            raise DataError(
                f"{table.name} has {counted(x.shape[1], 'feature column')}, "
                f"{tables[0].name} has {features[0].shape[1]}; "
                "files of one data set must have the same columns"
            )
    columns = tables[0].feature_names()
    if index is None:
        warn_of_index(left_out, tables[0].name)
    if not labelled:
        return CsvData([DataSet(x) for x in features], (), columns, known, left_out)
    classes, names = _classes(tables, n_classes, label_names)
    if is_split:
        _check_lone(tables, classes)
    parts = [DataSet(x, one_hot(y, len(names))) for x, y in zip(features, classes, strict=True)]
    return CsvData(parts, names, columns, known, left_out)


def _check_alike(first: _Table, table: _Table) -> None:
    """Raise ``DataError`` if two files with headers have different columns."""
    if first.header is None or table.header is None or first.header == table.header:
        return
    for mine, other in ((first, table), (table, first)):
        others = set(other.header or ())
        for name in mine.header or ():
            if name not in others:
                raise DataError(
                    f"{other.name} has no column {name!r}, which {mine.name} has; files of one data set must have "
                    "the same columns"
                )
    if first.known is None and Header.of(first.header, None) is None:
        raise DataError(
            f"{table.name} has its columns in another order than {first.name}, and names by which they cannot be told "
            "apart; name each column differently, and not by a number"
        )


def read_csv_blocks(
    file: BinaryIO, name: str, *, rows: int, header: Header | None = None, warns: bool = True
) -> Iterator[Array]:
    """Yield the features of a CSV file in blocks of ``rows`` rows, read as by ``read_csv`` without labels.

    Args:
        file: open for reading; may be a pipe. It is closed at the end.
        name: the file's name, for messages.
        rows: rows of a block; the last may have fewer. One block is in memory at a time.
        header: the header of the model for which they are read; named columns are found by it, and its label is
            dropped.
        warns: whether to warn of columns that the model does not know.

    Yields:
        ``(rows, columns)`` float64, finite in float32.

    Raises:
        DataError: names file, line, column and value, after the blocks before it were yielded.
    """
    table, is_empty = _Table(name, header, warns=warns), True
    with opened_rows(file, name) as found:
        for line, row in _examples(table, found, labelled=False):
            _append(table, line, row)
            if len(table.lines) == rows:
                yield _features(table, f"{table.unit}s {table.lines[0]} to {line}")
                table.clear()
                is_empty = False
    if table.lines:
        yield _features(table, f"{table.unit}s {table.lines[0]} to {table.lines[-1]}")
    elif is_empty:
        raise _no_examples(name)


def _read(
    path: Path, labelled: bool, known: Header | None, index: tuple[str, ...], first: _Table | None = None
) -> _Table:
    """Return a file with the known columns, or those of the ``first`` file of its data set, without the index."""
    table = _Table(str(path), known, alike=first, index=index)
    file = open_table(path)
    if is_numpy(path.name):
        _append_arrays(table, file, labelled=labelled)
        return _with_labels(table)
    with opened_rows(file, str(path)) as found:
        for line, row in _examples(table, found, labelled=labelled):
            _append(table, line, row)
    if not table.lines:
        raise _no_examples(str(path))
    return _with_labels(table)


def _with_labels(table: _Table) -> _Table:
    """Return the table without the rows that have no label."""
    if "" not in table.labels:
        return table
    there = [bool(label) for label in table.labels]
    if not any(there):
        remedy = "name another column 'label', or give --label; if all lines end in a delimiter, delete that"
        raise DataError(f"{table.name}: the label {_label_name(table)!r} has no value in any row; {remedy}")
    logger.warning(
        "%s: %s without a value in the label %r left out; the first is %s %s",
        table.name,
        "1 row" if there.count(False) == 1 else f"{there.count(False):,} rows",
        _label_name(table),
        table.unit,
        table.lines[there.index(False)],
    )
    values = np.frombuffer(table.values, np.float64).reshape(len(there), -1)[there]
    table.values = array("d", values.tobytes())
    table.lines = array("q", compress(table.lines, there))
    table.labels = list(filter(None, table.labels))
    return table


def _label_name(table: _Table) -> str:
    column = table.label_column or 0
    return table.header[column] if table.header else column_name(column + 1)


def _append_arrays(table: _Table, file: BinaryIO, *, labelled: bool) -> None:
    """Append the rows of NumPy arrays, with the same result as from their texts."""
    table.unit = "row"
    with opened_numpy(file, table.name) as source:
        if labelled and table.known is None and len(several := label_columns(source.names)) > 1:
            raise DataError(
                f"{table.name}: the labels have {counted(len(several), 'column')}, {several[0]!r} to {several[-1]!r}, "
                f"and are not one-hot, with a 1 in each row; give --label '{','.join(several[:20])}' with --regression "
                "for numbers to predict, or with --multi-label for 0 or 1 each"
            )
        _take_names(table, 1, list(source.names), labelled=labelled)
        for block in source.blocks(_BLOCK):
            columns, first = list(block.values()), len(table.lines) + 1
            label = None if table.label_column is None else columns[table.label_column]
            columns = _in_order(table, columns)
            if any(column.dtype.kind in "US" or np.isnan(column).any() for column in columns):  # rows show which cell
                for line, row in enumerate(zip(*map(source.texts, block.values()), strict=True), first):
                    _append(table, line, list(row))
                continue
            table.labels += [] if label is None else source.texts(label)
            table.values.frombytes(np.stack(columns, axis=1, dtype=np.float64).tobytes())
            table.lines.extend(range(first, first + len(columns[0])))


def _no_examples(name: str) -> DataError:
    return DataError(f"{name} holds no examples; expected one per line, features first and the label last")


def _examples(table: _Table, found: TextRows, *, labelled: bool) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows after the header; read the label's column from the header."""
    table.unit = found.unit
    if found.names is not None:
        known = () if table.known is None else table.known.names
        _take_names(table, 1, header_names(found.names, known), labelled=labelled)
    for line, row in found.rows:
        if not table.width and _is_header(table, line, row, labelled=labelled):
            continue
        yield line, row


def _is_header(table: _Table, line: int, row: list[str], *, labelled: bool) -> bool:
    """Return whether the first row is the header; set the number of columns and the label column."""
    cells = header_names(row, () if table.known is None else table.known.names)
    is_known = table.known is not None and table.known.is_in(cells)
    is_named = _find_label(table, line, cells, labelled=labelled)
    if not is_known and not is_named and any(map(is_number, row)):
        return False
    check_header(table.name, line, cells)
    _take_names(table, line, cells, labelled=labelled)
    return True


def _take_names(table: _Table, line: int, names: list[str], *, labelled: bool) -> None:
    """Store the names of the columns, and the places of the known features and the known label."""
    _find_label(table, line, names, labelled=labelled)
    counts = Counter(names)
    if (twice := next((name for name in names if counts[name] > 1), None)) is not None:
        raise DataError(
            f"{table.name}, {table.unit} {line}: column {twice!r} is there twice in the header; name each differently, "
            "or write a header above it if it is an example"
        )
    table.header, known = names, table.known
    if table.alike is not None:
        _check_alike(table.alike, table)
    if known is None or (labelled and not known.label):
        if left_out := [column for column, name in enumerate(names) if name in table.index]:
            table.order = [c for c in range(len(names)) if c not in left_out and c != table.label_column]
            if not table.order:
                shown = ", ".join(map(repr, table.index))
                raise DataError(f"{table.name} has no features beside pandas' index, {shown}; --keep-index keeps that")
        return
    if _are_names(table, known, names):
        table.order, table.label_column = known.places(
            names, table.name, labelled=labelled, warns=table.warns, index=table.index
        )


def _are_names(table: _Table, known: Header, names: Sequence[str]) -> bool:
    """Return whether columns are found by these names, and not by their positions, as in arrays."""
    if known.is_in(names) or not any(map(is_number, names)):
        return True
    return not is_numpy(table.name) and set(names) >= set(known.features)


def _find_label(table: _Table, line: int, row: list[str], *, labelled: bool) -> bool:
    """Set the number of columns and the label column; return whether a cell has the name of a label."""
    table.width = len(row)
    header = [cell.strip().lower() for cell in row]
    named = [column for column, cell in enumerate(header) if cell in LABEL_HEADERS]
    others = [column for column, cell in enumerate(row) if cell not in table.index]
    table.label_column = named[-1] if named else others[-1] if labelled else None
    if not named and table.known is not None and table.known.label and len(row) == len(table.known.names):
        table.label_column = table.known.names.index(table.known.label)
    if len(row) - (table.label_column is not None) < 1:
        raise DataError(f"{table.name}, {table.unit} {line}: {why_no_features(row)}")
    return bool(named)


def _append(table: _Table, line: int, row: list[str]) -> None:
    """Append an example row."""
    if len(row) != table.width:
        raise DataError(
            f"{table.name}, {table.unit} {line}: {counted(len(row), 'column')}, "
            f"the first {table.unit} has {table.width}{why_ragged(row, table.width)}"
        )
    if table.label_column is not None:
        table.labels.append(row[table.label_column].strip())
    row = _in_order(table, row)
    try:
        table.values.extend(map(float, row))
        if not is_plain("".join(row)):
            raise ValueError
    except ValueError:
        raise CellError(_not_a_number(table, line, row)) from None
    table.lines.append(line)


def _in_order(table: _Table, row: list[Any]) -> list[Any]:
    """Return the features of a row, or the feature columns, in order and without the label."""
    if table.order is not None:
        return [row[column] for column in table.order]
    return row if table.label_column is None else row[: table.label_column] + row[table.label_column + 1 :]


def check_header(name: str, line: int, header: Sequence[str]) -> None:
    """Warn if a header row may be an example, because it has numbers or gaps."""
    if any(cell.lower() in MISSING or is_number(cell) for cell in header):
        logger.warning(
            "%s, line %s is taken for a header, not for an example: %s; write a header above it if it is one",
            name,
            line,
            ", ".join(map(repr, header[:9])),
        )


def _not_a_number(table: _Table, line: int, row: list[str]) -> str:
    index = next(index for index, cell in enumerate(row) if not is_number(cell))
    what = f"{row[index]!r} is not a number" if row[index].strip() else "the cell is empty"
    return f"{_place(table, line, index)}: {what}; features must be numbers"


def _place(table: _Table, line: int, feature: int) -> str:
    """Return the place of feature ``feature`` of the row in ``line``, in words."""
    if table.order is not None:
        return f"{table.name}, {table.unit} {line}, column {table.order[feature] + 1}"
    shifted = table.label_column is not None and table.label_column <= feature
    return f"{table.name}, {table.unit} {line}, column {feature + 1 + shifted}"


def _features(table: _Table, whole: str) -> Array:
    """Return the features of the rows as float64; ``whole`` names the data in messages."""
    columns = table.features
    values = np.frombuffer(table.values, np.float64).reshape(len(table.lines), columns)
    with np.errstate(over="ignore"):
        wrong = ~np.isfinite(values.astype(np.float32))
    if wrong.any():
        row, column = divmod(int(np.argmax(wrong)), columns)
        value = float(values[row, column])
        raise CellError(
            f"{_place(table, table.lines[row], column)}: {value} is not a finite number in float32; "
            f"{int(wrong.sum())} values of {whole} are not: remove or impute them"
        )
    return values


def _classes(
    tables: Sequence[_Table], n_classes: int | None, label_names: Sequence[str] | None
) -> tuple[list[list[int]], tuple[str, ...]]:
    """Return the class number of every row of every table, and the names of the classes."""
    found = {label for table in tables for label in table.labels}
    if label_names is None:
        _check_no_numbers(tables, found)
    known = tuple(label_names or classes_of(found))
    if label_names is None and n_classes is not None:
        if numbers_in(found):
            known = tuple(map(str, range(n_classes)))
        elif len(known) > n_classes:
            raise DataError(
                f"{tables[0].name} has {counted(len(known), 'class', 'classes')} ({', '.join(known[:9])}); "
                f"expected {n_classes}"
            )
    number = {class_name(name): index for index, name in enumerate(known)}
    for table in tables:
        for line, label in zip(table.lines, table.labels, strict=True):
            if class_name(label) not in number:
                what = f"unknown; known: {', '.join(known[:_SHOWN])}{' ...' if len(known) > _SHOWN else ''}"
                if label_names is None:
                    what = f"out of range: classes are whole numbers from 0 to {len(known) - 1}"
                raise DataError(f"{_label_place(table, line)}: label {label!r} is {what}")
    return [[number[class_name(label)] for label in table.labels] for table in tables], known


def _check_no_numbers(tables: Sequence[_Table], found: set[str]) -> None:
    """Raise ``DataError`` if the labels are numbers to predict; names the first cell that shows it."""
    why = why_no_classes(found)
    what = "a real number" if why == "real numbers" else f"one of {why}"
    if not why:
        return
    for table in tables:
        for line, label in zip(table.lines, table.labels, strict=True):
            if (why != "real numbers" and label) or not (is_number(label) and float(label).is_integer()):
                raise DataError(
                    f"{_label_place(table, line)}: label {label!r} is {what}, and labels of CSV files are "
                    "classes, names or whole numbers. Is another column the label (call it label in the header, or "
                    "give --label)? To predict numbers, give dl4j train --regression; from Python, give DataSet the "
                    "numbers, and the network an OutputLayer with activation 'identity' and loss 'mse'"
                )


def _check_lone(tables: Sequence[_Table], classes: Sequence[Sequence[int]]) -> None:
    """Raise ``DataError`` if a class occurs once in all tables."""
    counts = Counter(number for part in classes for number in part)
    if 1 not in counts.values():
        return
    for table, part in zip(tables, classes, strict=True):
        for line, label, number in zip(table.lines, table.labels, part, strict=True):
            if counts[number] == 1:
                raise DataError(
                    f"{_label_place(table, line)}: label {label!r} occurs once, and a class needs two rows at least, "
                    "one to learn from and one to be judged by: correct it, or leave the row out"
                )


def _label_place(table: _Table, line: int) -> str:
    return f"{table.name}, {table.unit} {line}, column {(table.label_column or 0) + 1}"
