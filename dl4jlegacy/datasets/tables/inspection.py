"""Inspection of a table file: column types, ranges, gaps, classes, problems.

One pass over the file, which may be larger than memory; only a few words and sums of each column are kept.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.columns.table import Column, cell_place, column_name, find_columns
from dl4jlegacy.datasets.label_scale import suits_log
from dl4jlegacy.datasets.tables.column_summary import EXAMPLES, KEPT_WORDS, ColumnSummary
from dl4jlegacy.datasets.tables.csv_files import LABEL_HEADERS, check_header
from dl4jlegacy.datasets.tables.duplicates import Duplicates
from dl4jlegacy.datasets.tables.label_cells import class_name, label_gaps
from dl4jlegacy.datasets.tables.lags import LAG_ROWS, MOST_LAG_COLUMNS, find_lags
from dl4jlegacy.datasets.tables.numpy_files import label_columns
from dl4jlegacy.datasets.tables.pandas_index import header_names
from dl4jlegacy.datasets.tables.svmlight_files import (
    LABEL,
    MOST_COLUMNS,
    SparseRows,
    label_column,
    numbered_columns,
    survey,
    word_of,
)
from dl4jlegacy.datasets.tables.table_files import index_columns, is_numpy, is_svmlight, opened_rows
from dl4jlegacy.datasets.tables.text_rows import MISSING, Row, is_number, open_table, why_no_features
from dl4jlegacy.datasets.tables.transform_process import no_answer
from dl4jlegacy.errors import ConfError, DataError, counted
from dl4jlegacy.system import files

__all__ = [
    "GUESSED_ROWS",
    "Inspection",
    "LabelCells",
    "Problem",
    "check_label",
    "check_one_kind",
    "default_label",
    "inspect_csv",
    "inspect_svmlight",
]

GUESSED_ROWS = 100_000
"""Maximum rows from which a schema is guessed, the first ones."""
_BLOCK = 4096  # rows counted at a time


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a file: its kind, how often it occurs, and the first places, in words."""

    what: str
    count: int
    examples: tuple[str, ...]
    is_refused: bool = False
    """Whether training would raise an error because of the problem."""


@dataclass(frozen=True, slots=True)
class LabelCells:
    """The contents of the label columns.

    Attributes:
        names: of these columns.
        partly, wholly: rows without a value in at least one label, which are dropped, and rows without any label.
        empty: rows whose cell in the first label names no class: it is empty, or a gap that the user listed.
        strange: for each label with cells that are neither a gap nor 0 or 1, the problem.
        first: the place of the first such cell, in words, and its content; None if there is none.
        skewed: the labels that suit a logarithm, by the first ``GUESSED_ROWS`` rows; see ``suits_log``.
        lags: the columns with the last values of a single label, by the first rows; see ``find_lags``.
    """

    names: tuple[str, ...] = ()
    partly: Problem | None = None
    wholly: Problem | None = None
    empty: Problem | None = None
    strange: Mapping[str, Problem] = field(default_factory=dict)
    first: tuple[str, str] | None = None
    skewed: tuple[str, ...] = ()
    lags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Inspection:
    """The result of an inspection.

    Attributes:
        name: the file's name.
        rows: the number of rows, without the header.
        has_header: whether the first row has the columns' names.
        columns: in their order.
        problems: ragged rows, invalid numbers in a number column, gaps, duplicate rows.
        labels: the contents of the label columns.
        index: columns that are pandas' index and ignored in all of this.
        missing: cells that mark a missing value.
    """

    name: str
    rows: int
    has_header: bool
    columns: tuple[ColumnSummary, ...]
    problems: tuple[Problem, ...]
    labels: LabelCells = LabelCells()
    index: tuple[str, ...] = ()
    missing: tuple[str, ...] = MISSING

    def column(self, name: str) -> ColumnSummary:
        """Return the summary of the named column."""
        return next(column for column in self.columns if column.name == name)

    @property
    def has_own_names(self) -> bool:
        """Whether every column has its own name; columns without a name in the header are named by number."""
        return not self.has_header or all(column.name != column_name(column.number) for column in self.columns)

    def label_columns(self, label: str) -> tuple[str, ...]:
        """Return the columns that ``label`` names, else the one called label, class or target, or the last one.

        Raises:
            DataError: there is none, or it is pandas' index.
        """
        names, numbers = [column.name for column in self.columns], [column.number for column in self.columns]
        return _labels_in(label, names, numbers, self.index, self.name)

    def has_numbers(self, *, regression: bool = False, multi_label: bool = False) -> bool:
        """Return whether the labels are numbers to predict: by request, or because they are several, or real numbers.

        Raises:
            ConfError: both kinds are requested. DataError: the labels are not of the requested kind.
        """
        check_one_kind(regression=regression, multi_label=multi_label)
        labels = [self.column(name) for name in self.labels.names]
        numbers = not multi_label and (regression or len(labels) > 1 or labels[0].is_real)
        for label in labels:
            check_label(self, label, regression=numbers, multi_label=multi_label)
        return numbers

    def check_answers(self) -> None:
        """Raise the ``DataError`` that training would raise for the first label that is neither 0 nor 1."""
        if self.labels.first is not None:
            raise no_answer(*self.labels.first)

    def all_problems(
        self, *, regression: bool = False, multi_label: bool = False, is_whole: bool = True
    ) -> tuple[Problem, ...]:
        """Return all problems, with those of the labels: gaps, neither 0 nor 1, one value only, lone classes.

        Args:
            regression: the labels are numbers to predict (``has_numbers``); multi_label: they are 0 or 1 each.
            is_whole: whether the data set has no other file in which these labels may have other values.
        """
        cells, found = self.labels, list(self.problems)
        if self.index:
            what = "columns that are pandas' index, and left out (--keep-index keeps them)"
            found.append(Problem(what, len(self.index), tuple(map(repr, self.index))))
        for column in self.columns:
            if column.with_commas and column.name not in cells.names:
                what = f"numbers with a comma, not a point, in {column.name!r}"
                found.append(Problem(what, column.with_commas, (repr(column.comma_word),), True))
        if len(cells.names) > 1:
            found += [self._left_out(part, is_whole) for part in (cells.partly, cells.wholly) if part is not None]
        if multi_label:
            known = {f"invalid numbers in {name!r}" for name in cells.strange}  # they are counted in ``strange``
            found = [problem for problem in found if problem.what not in known] + list(cells.strange.values())
        is_refused = is_whole and not multi_label
        found += self._labels_with_one_value(is_refused=is_refused, are_numbers=regression or multi_label)
        if not regression and not multi_label:
            label = cells.names[0]
            counted_as_numbers = (f"invalid numbers in {label!r}", f"missing values in {label!r}")
            found = [problem for problem in found if problem.what not in counted_as_numbers]
            found += [] if cells.empty is None else [cells.empty]
            found += _lone_classes(self.column(label).as_names())
        return tuple(found)

    def _left_out(self, rows: Problem, is_whole: bool) -> Problem:
        """Return the problem of rows with gaps in their labels; it is refused if no other row remains."""
        return replace(rows, is_refused=is_whole and rows.count == self.rows)

    def _labels_with_one_value(self, *, is_refused: bool, are_numbers: bool) -> list[Problem]:
        same = []
        for label in map(self.column, self.labels.names):
            label = label if are_numbers else label.as_names()
            if are_numbers and label.low == label.high:
                same.append(f"{label.name!r} is {label.low:g}")
            elif not are_numbers and not label.is_full and len(set(map(class_name, label.counts))) == 1:
                same.append(f"{label.name!r} is {next(iter(label.counts))!r}")
        return [Problem("labels with one value only", len(same), tuple(same[:EXAMPLES]), is_refused)] if same else []


def _labels_in(
    label: str, names: Sequence[str], numbers: Sequence[int], index: Sequence[str], where: str
) -> tuple[str, ...]:
    """Return the label columns; ``numbers`` are the positions of the columns in the file, from 1."""
    if not label:
        several = label_columns(names) if is_numpy(where) else ()
        return several or (default_label(names),)
    every = list(names)
    if not label.strip().startswith("-"):
        left_out, read = iter(index), dict(zip(numbers, names, strict=True))
        every = [read[n] if n in read else next(left_out) for n in range(1, max(numbers) + 1)]
        every += left_out
    found = find_columns(label, every, where)
    if wrong := [name for name in found if name in index]:
        raise DataError(f"{where}: the label {wrong[0]!r} is pandas' index, and left out; --keep-index keeps it")
    return found


def default_label(names: Sequence[str]) -> str:
    """Return the last column called label, class or target, else the last column."""
    named = [name for name in names if name.lower() in LABEL_HEADERS]
    return named[-1] if named else names[-1]


def _lone_classes(label: ColumnSummary) -> list[Problem]:
    """Return the problem of classes that occur once, if any: they can be trained on or evaluated, but not both."""
    counts = Counter[str]()
    for text, count in label.counts.items():
        counts[class_name(text)] += count
    alone = sorted(text for text in label.counts if counts[class_name(text)] == 1)
    if not alone:
        return []
    examples = tuple(map(repr, alone[:EXAMPLES]))
    return [Problem(f"classes of {label.name!r} that occur once", len(alone), examples, True)]


def check_one_kind(*, regression: bool, multi_label: bool) -> None:
    """Raise ``ConfError`` if labels shall be both numbers to predict and multi-label."""
    if regression and multi_label:
        raise ConfError("--regression predicts numbers, and --multi-label 0 or 1 for each label; give one of them")


class _Seen:
    """Counts occurrences, and keeps the places of the first ones."""

    def __init__(self) -> None:
        self.count, self.examples = 0, list[str]()

    def add(self, where: str) -> None:
        self.count += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(where)

    def problem(self, what: str, *, is_refused: bool = False) -> list[Problem]:
        return [Problem(what, self.count, tuple(self.examples), is_refused)] if self.count else []


class _LabelRows:
    """Collects the problems in the labels of all rows; ``found`` returns them."""

    def __init__(
        self,
        name: str,
        unit: str,
        names: Sequence[str],
        numbers: Sequence[int],
        labels: Sequence[str],
        missing: Sequence[str],
    ) -> None:
        self._name, self._unit, self._labels, self._numbers = name, unit, tuple(labels), numbers
        self._gaps, self._no_class = frozenset(missing), label_gaps(missing)
        self._places = [names.index(label) for label in labels]
        self._partly, self._wholly, self._empty = _Seen(), _Seen(), _Seen()
        self._strange = [_Seen() for _ in labels]
        self._values = [array("d") for _ in labels]
        self._first: tuple[str, str] | None = None
        self._names, self._top = names, list[Sequence[str]]()

    def add(self, line: int, row: Sequence[str]) -> None:
        """Inspect a complete row."""
        if len(self._top) < LAG_ROWS and len(row) <= MOST_LAG_COLUMNS:
            self._top.append(row)
        gaps = 0
        of_each = zip(self._labels, self._places, self._strange, self._values, strict=True)
        for label, place, strange, values in of_each:
            cell = row[place].strip()
            if cell.lower() in self._gaps:
                gaps += 1
                continue
            number = float(cell) if is_number(cell) else None
            if number is not None and math.isfinite(number) and len(values) < GUESSED_ROWS:
                values.append(number)
            if number not in (0.0, 1.0):
                strange.add(f"{self._unit} {line} has {cell!r}")
                if self._first is None:
                    text = repr(cell) if number is None else f"{number:g}"
                    self._first = cell_place(self._name, self._unit, line, label, self._numbers[place]), text
        if row[self._places[0]].strip().lower() in self._no_class:
            self._empty.add(f"{self._unit} {line}")
        if gaps:
            self._partly.add(f"{self._unit} {line}")
        if gaps == len(self._labels):
            self._wholly.add(f"{self._unit} {line}")

    def found(self) -> LabelCells:
        """Return the contents of the labels in all rows so far."""
        partly = self._partly.problem("rows without a value in a label, which are left out")
        wholly = self._wholly.problem("rows without any label")
        strange = {
            label: problem
            for label, seen in zip(self._labels, self._strange, strict=True)
            for problem in seen.problem(f"labels in {label!r} that are neither 0 nor 1", is_refused=True)
        }
        empty = self._empty.problem(f"missing values in {self._labels[0]!r}")
        first = [next(iter(problems), None) for problems in (partly, wholly, empty)]
        of_each = zip(self._labels, self._values, strict=True)
        skewed = tuple(label for label, values in of_each if suits_log(np.array(values)))
        return LabelCells(self._labels, first[0], first[1], first[2], strange, self._first, skewed, self._lags())

    def _lags(self) -> tuple[str, ...]:
        """Return the columns with the last values of a single label."""
        columns = dict(zip(self._names, zip(*self._top, strict=True), strict=False))
        if len(self._labels) > 1 or not columns:
            return ()
        label = self._numbers_in(columns.pop(self._labels[0]))
        if np.isnan(label).all():
            return ()
        return find_lags(label, {name: self._numbers_in(cells) for name, cells in columns.items()})

    def _numbers_in(self, cells: Sequence[str]) -> Array:
        """Return the numbers in cells, float64; NaN for all others."""
        texts = [cell.strip() for cell in cells]
        gaps = self._gaps
        return np.array([float(t) if is_number(t) and t.lower() not in gaps else np.nan for t in texts])


def inspect_csv(
    path: Path,
    label: str = "",
    *,
    rows: int | None = None,
    index: Sequence[str] | None = None,
    allows_nameless: bool = False,
    missing: Sequence[str] = MISSING,
) -> Inspection:
    """Inspect a file: CSV or JSON lines, gzipped or not, Parquet, Arrow or Feather, or SVMLight.

    Args:
        path: the file.
        label: the label column, or several, as for ``guess_schema``. The first row of a CSV file is a header if it has
            such a name, or one like label or class, or no number.
        rows: the number of first rows to inspect; None: all.
        index: columns to ignore; None: pandas' index, as found in this file.
        allows_nameless: whether a header may have columns without a name, which are then named by number.
        missing: cells that mark a missing value, in lower case.

    Raises:
        DataError: the file cannot be read, has only one column, or is empty, or there is no such label.
    """
    if is_svmlight(path.name):
        return inspect_svmlight([path], label)
    left_out = tuple(index_columns([path]) if index is None else index)
    with opened_rows(open_table(path), str(path)) as found:
        named, every = found.names is not None, found.rows
        first = next(every, None) if found.names is None else (1, found.names)
        if first is None:
            raise DataError(f"{path} holds no examples; expected one per line")
        cells = header_names(first[1])
        has_header = named or _is_header(cells, label, allows_nameless=allows_nameless)
        names = cells if has_header else [column_name(number) for number in range(1, len(cells) + 1)]
        if allows_nameless:
            names = [name or column_name(number) for number, name in enumerate(names, 1)]
        places = [place for place, name in enumerate(names) if name not in left_out]
        kept, numbers = [names[place] for place in places], [place + 1 for place in places]
        _check_names(str(path), first[0], kept, is_guess=has_header and not named)
        chosen = _labels_in(label, kept, numbers, left_out, str(path))
        labels = _LabelRows(str(path), found.unit, kept, numbers, chosen, missing)
        body = islice(every if has_header else chain([first], every), rows)
        gaps = frozenset(missing)
        columns = [ColumnSummary(name, number, gaps=gaps) for name, number in zip(kept, numbers, strict=True)]
        count, problems = _count(_Body(body, len(names), places), columns, found.unit, labels)
    if not count:
        raise _no_rows(path, problems)
    index = tuple(name for name in names if name in left_out)
    return Inspection(str(path), count, has_header, tuple(columns), problems, labels.found(), index, tuple(missing))


def _no_rows(path: Path, problems: Sequence[Problem]) -> DataError:
    """Return the error of a file of which no row could be counted."""
    if wrong := next((problem.examples for problem in problems), ()):
        return DataError(f"{path}, {wrong[0]}, as in all rows; if these end in a delimiter, delete it")
    return DataError(f"{path} holds no examples; expected one per line below the header")


class _SparseColumns:
    """Counts the values in rows of SVMLight files, block by block; values that are not listed are 0."""

    def __init__(self, *, multi_label: bool) -> None:
        self._is_several, self.labels = multi_label, Counter[float]()
        self._counts = np.zeros(MOST_COLUMNS + 1, np.int64)
        self._sums = np.zeros(MOST_COLUMNS + 1)
        self._low = np.full(MOST_COLUMNS + 1, np.inf)
        self._high = np.full(MOST_COLUMNS + 1, -np.inf)

    def add(self, block: SparseRows) -> None:
        labels = block.labels if self._is_several else block.single_labels()
        found, counts = np.unique(labels, return_counts=True)
        self.labels.update(dict(zip(found.tolist(), counts.tolist(), strict=True)))
        np.add.at(self._counts, block.indices, 1)
        np.add.at(self._sums, block.indices, block.values)
        np.minimum.at(self._low, block.indices, block.values)
        np.maximum.at(self._high, block.indices, block.values)

    def feature(self, column: Column, number: int, rows: int) -> ColumnSummary:
        index = int(column.name)
        low, high = float(self._low[index]), float(self._high[index])
        if self._counts[index] < rows:
            low, high = min(low, 0.0), max(high, 0.0)
        return ColumnSummary(
            column.name, number, numbers=rows, low=low, high=high, total=float(self._sums[index]), whole=rows
        )

    def label(self, rows: int) -> list[ColumnSummary]:
        """Return the summary of the label column; for several labels one summary each, with 0 and 1."""
        if self._is_several:
            columns = []
            for number, (label, count) in enumerate(sorted(self.labels.items()), 1):
                words = Counter({"1": count, "0": rows - count})
                column = ColumnSummary(label_column(label), number, 0, rows, whole=rows, counts=words)
                column.low, column.high, column.total = float(count == rows), 1.0, float(count)
                columns.append(column)
            return columns
        words = Counter({word_of(label): count for label, count in self.labels.most_common(KEPT_WORDS)})
        whole = sum(count for label, count in self.labels.items() if label.is_integer())
        total = sum(label * count for label, count in self.labels.items())
        bounds = min(self.labels), max(self.labels)
        return [ColumnSummary(LABEL, 1, 0, rows, 0, 0, whole, *bounds, total, words, len(self.labels) > KEPT_WORDS)]


def inspect_svmlight(paths: Sequence[Path], label: str = "", *, multi_label: bool = False) -> Inspection:
    """Inspect the SVMLight files of a data set in one pass; the result has the name of the first file.

    Args:
        paths: the files.
        label: the label column, or columns; "": the label of each line, or all of its labels.
        multi_label: whether a line may have several labels; each becomes a column of 0 and 1.

    Raises:
        DataError: as ``svmlight_files.survey``, or a line has several labels; names file, line and value.
    """
    seen = _SparseColumns(multi_label=multi_label)
    found = survey(paths, seen.add)
    labels = seen.label(found.rows)
    features = enumerate(numbered_columns(found.columns, found.first), len(labels) + 1)
    columns = (*labels, *(seen.feature(column, number, found.rows) for number, column in features))
    names = [column.name for column in columns]
    chosen = find_columns(label, names, str(paths[0])) if label else tuple(names[: len(labels)])
    return Inspection(str(paths[0]), found.rows, False, columns, (), LabelCells(chosen))


def _is_header(cells: Sequence[str], label: str, *, allows_nameless: bool) -> bool:
    lowered = [cell.lower() for cell in cells]
    wanted = {part.strip().lower() for part in (label, *label.split(",")) if part.strip() and not is_number(part)}
    if wanted & set(lowered) or set(LABEL_HEADERS) & set(lowered):
        return True
    return not any(map(is_number, cells)) and (allows_nameless or all(cells))


def _check_names(name: str, line: int, names: Sequence[str], *, is_guess: bool) -> None:
    """Raise ``DataError`` for names that columns cannot have; warn if it is a guess that they are names."""
    if is_guess:
        check_header(name, line, names)
    if len(names) < 2:
        raise DataError(f"{name}, line {line}: {why_no_features(names)}")
    counts = Counter(names)
    for number, column in enumerate(names, 1):
        if not column:
            remedy = "give it one, or delete the delimiter if all lines end in it"
            raise DataError(f"{name}, line {line}, column {number}: the header has no name there; {remedy}")
        if counts[column] > 1:
            raise DataError(
                f"{name}, line {line}: column {column!r} is there twice in the header; name each differently"
            )


class _Body(NamedTuple):
    """The rows below the header, the number of cells of each, and the positions of the inspected columns."""

    rows: Iterator[Row]
    width: int
    places: Sequence[int]


def _count(
    body: _Body, columns: Sequence[ColumnSummary], unit: str, labels: _LabelRows
) -> tuple[int, tuple[Problem, ...]]:
    ragged, gaps, strange = _Seen(), [_Seen() for _ in columns], [_Seen() for _ in columns]
    count = 0
    refused = "rows that are there twice cannot be counted in the temporary folder"
    with files.errors_as(DataError, refused), Duplicates() as known:
        while block := list(islice(body.rows, _BLOCK)):
            whole = _whole(block, body, unit, ragged)
            count += len(whole)
            lines = [line for line, _ in whole]
            for line, row in whole:
                labels.add(line, row)
                known.add(hash(tuple(row)), line)
            for index, cells in enumerate(zip(*(row for _, row in whole), strict=True)):
                _count_cells(columns[index], cells, lines, unit, gaps[index], strange[index])
        duplicated, again = known.found(EXAMPLES)
    problems = ragged.problem("ragged rows", is_refused=True)
    if duplicated:
        problems.append(Problem("duplicated rows", duplicated, tuple(f"{unit} {line}" for line in again)))
    for column, gap, odd in zip(columns, gaps, strange, strict=True):
        problems += gap.problem(f"missing values in {column.name!r}")
        if column.type == "number":
            problems += odd.problem(f"invalid numbers in {column.name!r}", is_refused=True)
    return count, tuple(problems)


def _whole(block: list[Row], body: _Body, unit: str, ragged: _Seen) -> list[Row]:
    """Return the complete rows, reduced to the inspected columns, and record the others as ragged."""
    width = body.width
    whole = [item for item in block if len(item[1]) == width]
    if len(whole) < len(block):
        for line, row in block:
            if len(row) != width:
                ragged.add(f"{unit} {line} has {counted(len(row), 'column')}, not {width}")
    if len(body.places) < width:
        whole = [(line, [row[place] for place in body.places]) for line, row in whole]
    return whole


def _count_cells(
    column: ColumnSummary, cells: Sequence[str], lines: Sequence[int], unit: str, gap: _Seen, odd: _Seen
) -> None:
    """Count the cells of a column, and record the lines of gaps and of invalid numbers."""
    if column.add_numbers(cells):
        return
    for line, cell in zip(lines, cells, strict=True):
        before = column.missing
        if column.add(cell):
            odd.add(f"{unit} {line} has {cell!r}")
        elif column.missing > before:
            gap.add(f"{unit} {line}")


def check_label(found: Inspection, label: ColumnSummary, *, regression: bool, multi_label: bool) -> None:
    """Raise ``DataError`` if a label column does not hold what is to be learned."""
    names = label if regression or multi_label else label.as_names()
    if not names.numbers and not names.words:
        raise DataError(f"{found.name}: the label {label.name!r} has no value in any row")
    if (regression or multi_label) and label.type == "category":
        word = next(iter(label.counts))
        what = "--regression predicts numbers" if regression else "--multi-label learns 0 or 1 for each label"
        raise DataError(
            f"{found.name}: the label {label.name!r} holds words such as {word!r}, and {what}; leave it out, or give "
            "another --label"
        )
    if not regression and not multi_label and label.is_real:
        real = label.numbers > label.whole
        what = "real numbers" if real else f"{len(label.counts)} different numbers{' or more' if label.is_full else ''}"
        raise DataError(
            f"{found.name}: the label {label.name!r} holds {what}, which are no classes; to predict them, give "
            "--regression, or another --label"
        )
