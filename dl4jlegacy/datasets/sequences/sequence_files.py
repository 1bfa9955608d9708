"""CsvSequenceDataSetIterator: sequences of time steps from CSV files, one per file, padded and masked in each batch.

Follows ``CSVSequenceRecordReader`` and ``SequenceRecordReaderDataSetIterator`` of DataVec and Deeplearning4j.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.dataset import DataSet, one_hot
from dl4jlegacy.datasets.iterator import NumberedDataSetIterator
from dl4jlegacy.datasets.precision import far_columns
from dl4jlegacy.datasets.tables.header import check_names, warn_of_unknown
from dl4jlegacy.datasets.tables.label_cells import class_name, classes_of, why_no_classes
from dl4jlegacy.datasets.tables.pandas_index import header_names
from dl4jlegacy.datasets.tables.text_rows import csv_rows, is_number
from dl4jlegacy.errors import DataError, counted, nearest
from dl4jlegacy.system import files
from dl4jlegacy.system.files import PathLike

__all__ = [
    "Align",
    "CsvSequenceDataSetIterator",
    "Rows",
    "in_order",
    "labels_of",
    "names_in",
    "numbers_of",
    "read_rows",
    "sequence_paths",
    "without_columns",
]

Align = Literal["equal", "start", "end"]
"""Alignment of labels with their sequence, as DL4J's ``AlignmentMode``."""
_SUFFIXES = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz")
_SHOWN = 60


class _File(NamedTuple):
    """A file and its digest when it was first read; later reads must find the same content."""

    path: Path
    sha256: bytes


class _Sequence(NamedTuple):
    features: _File
    labels: _File | None
    steps: int


class Rows(NamedTuple):
    """The rows of a file after the skipped lines, with their line numbers, and the names in the last skipped line."""

    lines: list[int]
    cells: list[list[str]]
    names: list[str]


@dataclass(slots=True, kw_only=True)
class _Layout:
    """How the files of an iterator are read, from its arguments and its first file."""

    align: Align
    skip_lines: int
    n_in: int = 0
    label: tuple[int, ...] = ()
    """The label columns in the feature files; (): labels have their own files, or there are none."""
    n_labels: int = 0
    names: tuple[str, ...] = ()
    """The names of the classes; (): labels are numbers to predict, or there are none."""
    columns: tuple[str, ...] = ()
    """The column names of the feature files, in the order of reading; (): they have no names."""
    label_columns: tuple[str, ...] = ()
    """The column names of the label files."""
    is_new: bool = True
    """Whether the columns are those of the first file, and not those of a model."""


class CsvSequenceDataSetIterator(NumberedDataSetIterator):
    """Batches of sequences in CSV files: one file per sequence, one row per time step, in a new order every epoch.

    All files are read once at first, to check them and to find the classes. No data are kept in memory; a batch reads
    its files again. Files may be gzipped. Sequences of a batch are padded with zeros to the longest one, and the masks
    are 0 there. Batches are float32, or float64 if a feature column lies so far from 0 that float32 would lose
    differences.

    Args:
        features: a folder with the files, sorted by the numbers in their names, or the files in order.
        batch_size: sequences per batch.
        labels: a folder with a label file for each feature file, of the same name, or the label files in order. They
            have one row per time step, or fewer rows if ``align`` says to which time steps these belong.
        label: instead of ``labels``, the label column of the feature files: its number from 0 (-1 is the last one), or
            its name in the last line of ``skip_lines``; with ``regression`` also a list of several.
        align: "equal": as many rows of labels as of features; "start" and "end": the numbers may differ, and both begin
            at the first time step or end at the last one. "end" with a single row is a label of the whole sequence.
        regression: labels are numbers to predict, else one class per row: a word, or a number.
        label_names: the classes, if known, for instance those of the training data when test data are read.
        skip_lines: lines to skip at the beginning of each file, such as its header; empty lines do not count. If the
            last of them has a name for each column, columns are found by name in every file, in the order of the first
            file.
        columns: these names in order, if known, for instance those of the training data, including labels; other
            columns are then ignored. ``label_columns``: the same for the label files.
        seed, shuffle, drop_last: as for ``ListDataSetIterator``, with the same order.
        pre_processor: applied to every batch, for instance ``normalizer.transform``.
        rounded: False: batches are always float64.

    Attributes:
        label_names: the classes in order; empty with ``regression`` or without labels.
        longest: the time steps of the longest sequence.

    Raises:
        DataError: no file, no rows, different columns or lengths, a cell that is no finite number, an unknown class;
            names file, line, column and value.
    """

    def __init__(
        self,
        features: PathLike | Sequence[PathLike],
        batch_size: int,
        *,
        labels: PathLike | Sequence[PathLike] | None = None,
        label: int | str | Sequence[int | str] | None = None,
        align: Align = "equal",
        regression: bool = False,
        label_names: Sequence[str] | None = None,
        skip_lines: int = 0,
        columns: Sequence[str] = (),
        label_columns: Sequence[str] = (),
        seed: int = 123,
        shuffle: bool = True,
        drop_last: bool = False,
        pre_processor: Callable[[DataSet], DataSet] | None = None,
        rounded: bool = True,
    ) -> None:
        wanted = [] if label is None else [label] if isinstance(label, int | str) else list(label)
        _check_arguments(labels, wanted, align, skip_lines, regression=regression)
        _check_classes(label_names, regression)
        paths = _found(features)
        of_labels = [] if labels is None else labels_of(paths, labels)
        self._layout, self._bounds = _Layout(align=align, skip_lines=skip_lines, is_new=not columns), _Bounds()
        self._layout.columns, self._layout.label_columns = tuple(columns), tuple(label_columns)
        self._sequences, classes = self._looked_at(paths, of_labels, wanted, regression)
        self._far = self._bounds.far() if rounded else None
        labelled = labels is not None or bool(wanted)
        self._layout.names = _class_names(classes, label_names) if labelled and not regression else ()
        self.label_names, self._pre_processor = self._layout.names, pre_processor
        self.longest = max(sequence.steps for sequence in self._sequences)
        super().__init__(len(paths), batch_size, seed=seed, shuffle=shuffle, drop_last=drop_last)
        first = self._read([0])
        self.input_columns, self.total_outcomes = first.features.shape[1], first.n_out

    def _looked_at(
        self, paths: Sequence[Path], of_labels: Sequence[Path], wanted: Sequence[int | str], regression: bool
    ) -> tuple[list[_Sequence], set[str]]:
        """Read all files once; return them with their digests, and the labels of all rows as texts."""
        sequences: list[_Sequence] = []
        classes: set[str] = set()
        for number, path in enumerate(paths):
            file, rows = self._first_look(path)
            if not number and not self._layout.columns:
                self._layout.columns = names_in(path, rows)
            rows = in_order(path, rows, self._layout.columns, is_new=self._layout.is_new)
            if not number:
                self._layout.label = found = _columns(path, wanted, rows)
                self._layout.n_in, self._layout.n_labels = len(rows.cells[0]) - len(found), len(found)
            features, labels = self._parted(path, rows)
            self._bounds.add(numbers_of(path, features))
            where, of_labels_file = path, None
            if of_labels:
                where = of_labels[number]
                of_labels_file, labels = self._first_look(where)
                if not number and not self._layout.label_columns:
                    self._layout.label_columns = names_in(where, labels)
                labels = in_order(where, labels, self._layout.label_columns, is_new=self._layout.is_new)
                self._check_labels(where, labels, path, len(rows.cells))
            if labels is not None and regression:
                numbers_of(where, labels, what="label")
            elif labels is not None:
                classes.update(name for _, name in _named(where, labels))
            steps = len(rows.cells) if labels is None else max(len(rows.cells), len(labels.cells))
            sequences.append(_Sequence(file, of_labels_file, steps))
        return sequences, classes

    def _first_look(self, path: Path) -> tuple[_File, Rows]:
        content = _content(path)
        return _File(path, hashlib.sha256(content).digest()), _rows_of(path, content, self._layout.skip_lines)

    def _parted(self, path: Path, rows: Rows) -> tuple[Rows, Rows | None]:
        """Return the features of a file, and the labels, if they are in its columns."""
        label, wanted = self._layout.label, self._layout.n_in + len(self._layout.label)
        for line, row in zip(rows.lines, rows.cells, strict=True):
            if len(row) != wanted:
                raise DataError(
                    f"{path}, line {line} has {counted(len(row), 'column')}, and the first file {wanted}; all time "
                    "steps of all sequences have the same columns"
                )
        if not label:
            return rows, None
        return without_columns(rows, label), rows._replace(cells=[[row[i] for i in label] for row in rows.cells])

    def _check_labels(self, path: Path, labels: Rows, features: Path, steps: int) -> None:
        """Raise ``DataError`` unless labels have the columns of the first label file, and the required length."""
        if not self._layout.n_labels:
            self._layout.n_labels = len(labels.cells[0])
        for line, row in zip(labels.lines, labels.cells, strict=True):
            if len(row) != self._layout.n_labels:
                raise DataError(
                    f"{path}, line {line} has {counted(len(row), 'column')}, and the first file of labels "
                    f"{self._layout.n_labels}"
                )
        if self._layout.align == "equal" and len(labels.cells) != steps:
            raise DataError(
                f"{path} has {counted(len(labels.cells), 'row')} of labels, and {features} has "
                f"{counted(steps, 'time step')}"
                '; with align="end" the last label belongs to the last time step, with align="start" the first to the '
                "first"
            )

    def _read(self, numbers: list[int]) -> DataSet:
        read = [self._sequence(self._sequences[number]) for number in numbers]
        steps = [max(len(x), 0 if y is None else len(y)) for x, y in read]
        ends = self._layout.align == "end"
        starts_x = [whole - len(x) if ends else 0 for (x, _), whole in zip(read, steps, strict=True)]
        features, features_mask = _padded([x for x, _ in read], starts_x, max(steps))
        labels = [y for _, y in read if y is not None]
        if not labels:
            batch = DataSet(features, features_mask=features_mask)
        else:
            starts_y = [whole - len(y) if ends else 0 for y, whole in zip(labels, steps, strict=True)]
            y, labels_mask = _padded(labels, starts_y, max(steps))
            batch = DataSet(features, y, features_mask, labels_mask)
        batch = batch if self._far is None else batch.rounded(self._far)
        return batch if self._pre_processor is None else self._pre_processor(batch)

    def _sequence(self, sequence: _Sequence) -> tuple[Array, Array | None]:
        """Return features and labels of a sequence, ``(time steps, columns)``."""
        path = sequence.features.path
        layout = self._layout
        rows = _rows_of(path, _unchanged(sequence.features), layout.skip_lines)
        features, labels = self._parted(path, in_order(path, rows, layout.columns))
        where = path
        if sequence.labels is not None:
            where = sequence.labels.path
            found = _rows_of(where, _unchanged(sequence.labels), layout.skip_lines)
            labels = in_order(where, found, layout.label_columns)
        x = numbers_of(path, features)
        if labels is None:
            return x, None
        if not self._layout.names:
            return x, numbers_of(where, labels, what="label")
        known = {name: number for number, name in enumerate(self._layout.names)}
        classes = [_class_number(where, line, name, known) for line, name in _named(where, labels)]
        return x, one_hot(np.array(classes), len(known))


def _check_arguments(
    labels: object, wanted: Sequence[int | str], align: Align, skip_lines: int, *, regression: bool
) -> None:
    if labels is not None and wanted:
        raise DataError(f"labels are files of their own, or column {wanted[0]!r} of the features: give one of the two")
    if len(wanted) > 1 and not regression:
        raise DataError(f"columns {list(wanted)} are several labels, which are amounts: give regression=True, or one")
    if align not in get_args(Align):
        raise DataError(f"align is {align!r}; expected {', '.join(get_args(Align))}{nearest(align, get_args(Align))}")
    if skip_lines < 0:
        raise DataError(f"skip_lines is {skip_lines}; expected at least 0")
    named = [label for label in wanted if isinstance(label, str)]
    if named and not skip_lines:
        raise DataError(
            f"label is {named[0]!r}, a name, and no line of names is skipped: give skip_lines=1, or a number"
        )


def _check_classes(label_names: Sequence[str] | None, regression: bool) -> None:
    if label_names is None:
        return
    if regression:
        raise DataError(f"label_names are {tuple(label_names)}, and regression=True says that labels are amounts")
    if not label_names or len(set(label_names)) < len(label_names):
        raise DataError(f"label_names are {tuple(label_names)}; expected the names of all classes, each once")


def _found(given: PathLike | Sequence[PathLike]) -> list[Path]:
    """Return the given files, or those of a folder sorted by the numbers in their names."""
    if not isinstance(given, str | Path) and isinstance(given, Sequence):
        paths = [files.expand(path) for path in given]
        if not paths:
            raise DataError("there are no files of sequences")
        return paths
    return sequence_paths(files.expand(given))


def sequence_paths(folder: Path) -> list[Path]:
    """Return the CSV files in a folder, sorted by the numbers in their names; ``DataError`` if there are none."""
    with files.errors_as(DataError, f"cannot read the folder {folder}"):
        names = [name for name in files.names_in(folder) if name.lower().endswith(_SUFFIXES) and name[0] not in "._"]
    if not names:
        raise DataError(f"{folder} has no files of sequences ({', '.join(_SUFFIXES)})")
    return [folder / name for name in sorted(names, key=_by_numbers)]


def _by_numbers(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts ``9.csv`` before ``10.csv``."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", name)]


def labels_of(paths: Sequence[Path], labels: PathLike | Sequence[PathLike]) -> list[Path]:
    """Return the label file for each feature file."""
    found = _found(labels)
    if isinstance(labels, str | Path) or not isinstance(labels, Sequence):
        by_name = {path.name: path for path in found}
        for path in paths:
            if path.name not in by_name:
                raise DataError(f"{files.expand(labels)} has no labels for {path}: no file {path.name}")
        return [by_name[path.name] for path in paths]
    if len(found) != len(paths):
        raise DataError(
            f"there are {counted(len(paths), 'file')} of features and {len(found)} of labels; each needs its own"
        )
    return found


def read_rows(path: Path, skip_lines: int) -> Rows:
    """Return the time steps of a file as texts, after the skipped lines.

    Raises:
        DataError: the file cannot be read, has no rows, or rows of different lengths; names file and line.
    """
    rows = _rows_of(path, _content(path), skip_lines)
    for line, row in zip(rows.lines, rows.cells, strict=True):
        if len(row) != len(rows.cells[0]):
            raise DataError(
                f"{path}, line {line} has {counted(len(row), 'column')}, and the first row {len(rows.cells[0])}; all "
                "time steps have the same columns"
            )
    return rows


def _rows_of(path: Path, content: bytes, skip_lines: int) -> Rows:
    rows = list(csv_rows(io.BytesIO(content), str(path)))
    skipped, found = rows[:skip_lines], rows[skip_lines:]
    if not found:
        raise DataError(
            f"{path} has no time steps: {counted(len(rows), 'row')}, of which {skip_lines} are skipped; remove the "
            "file, or write its time steps into it"
        )
    for (before, _), (line, row) in itertools.pairwise(found):
        if line > before + 1 and not any("\n" in cell or "\r" in cell for cell in row):
            raise DataError(f"{path}, line {before + 1} is empty, and rows follow; each row is one time step")
    cells = [[cell.strip() for cell in row] for _, row in found]
    return Rows([line for line, _ in found], cells, header_names(skipped[-1][1]) if skipped else [])


def names_in(path: Path, rows: Rows) -> tuple[str, ...]:
    """Return the names of the columns, if the line above the rows has usable names.

    Raises:
        DataError: there are names, but not one for each column, or duplicates.
    """
    if not rows.names:
        return ()
    names = rows.names
    is_comment = len(names) != len(rows.cells[0]) and (len(names) == 1 or names[0].startswith("#"))
    if is_comment or not all(names) or any(map(is_number, names)):
        return ()
    _check_width(path, rows)
    check_names(names, names, str(path))
    return tuple(names)


def in_order(
    path: Path, rows: Rows, names: Sequence[str], *, labels: Sequence[str] = (), is_new: bool | None = None
) -> Rows:
    """Return rows with the named columns in this order; unchanged if no names are wanted, or there is no line above.

    Args:
        path: of the file.
        rows: the rows of the file.
        names: of the wanted columns.
        labels: columns that may exist, and are dropped.
        is_new: how other columns are treated; True: an error; False: a warning; None: ignored.

    Raises:
        DataError: a column is missing or duplicated; a column is not in the first file; or the line above the rows has
            no names.
    """
    found = rows.names
    if not names or not found:
        return rows
    if not set(names).intersection(found) and any(map(is_number, found)):
        raise DataError(
            f"{path} begins with {', '.join(found)[:_SHOWN]!r}, and not with the names of its columns; write a line of "
            f"names above its time steps: {', '.join(names)[:_SHOWN]}"
        )
    known = {*names, *labels}
    others = [name for name in found if name not in known]
    check_names(found, names, str(path), whose="which the first file has" if is_new else "")
    _check_width(path, rows)
    if others and is_new:
        raise DataError(f"{path} has a column {others[0]!r}, which the first file has not; all have the same columns")
    if is_new is False:
        warn_of_unknown(others, str(path))
    if found == list(names):
        return rows
    for line, row in zip(rows.lines, rows.cells, strict=True):
        if len(row) != len(found):
            raise DataError(f"{path}, line {line} has {counted(len(row), 'column')}, and {len(found)} names above them")
    places = [found.index(name) for name in names]
    return Rows(rows.lines, [[row[place] for place in places] for row in rows.cells], list(names))


def _check_width(path: Path, rows: Rows) -> None:
    """Raise ``DataError`` unless the first row has a cell for each name above it."""
    found, width = len(rows.names), len(rows.cells[0])
    if found != width:
        raise DataError(
            f"{path}, line {rows.lines[0]} has {counted(width, 'column')}, and {counted(found, 'name')} above them; "
            "give each column one"
        )


def without_columns(rows: Rows, columns: Sequence[int]) -> Rows:
    """Return rows without some of their columns, numbered from 0."""
    return rows._replace(cells=[[cell for i, cell in enumerate(row) if i not in columns] for row in rows.cells])


def _columns(path: Path, labels: Sequence[int | str], rows: Rows) -> tuple[int, ...]:
    """Return the numbers of the label columns, from 0; ``DataError`` if one is missing or double, or none remains."""
    found = tuple(_column(path, label, rows) for label in labels)
    if len(set(found)) < len(found):
        raise DataError(f"{path}: labels {list(labels)} name a column twice")
    width = len(rows.cells[0])
    if found and len(found) == width:
        lone = "one column only, the label" if width == 1 else f"{counted(width, 'column')} only, all labels"
        raise DataError(f"{path} has {lone}; features need others")
    return found


def _column(path: Path, label: int | str, rows: Rows) -> int:
    width = len(rows.cells[0])
    if isinstance(label, str):
        if label not in rows.names:
            raise DataError(f"{path} has no column {label!r}{nearest(label, rows.names)}")
        column = rows.names.index(label)
    else:
        column = label + width if label < 0 else label
    if not 0 <= column < width:
        raise DataError(f"{path} has {counted(width, 'column')}, and the label was to be column {label}, from 0")
    return column


def numbers_of(path: Path, rows: Rows, *, what: Literal["value", "label"] = "value") -> Array:
    """Return rows as float64 ``(time steps, columns)``; ``DataError`` names a cell not finite in float32."""
    try:
        numbers = np.array(rows.cells, dtype=np.float64)
        with np.errstate(over="ignore"):
            is_finite = np.isfinite(numbers.astype(np.float32)).all()
        if is_finite and all(is_number(cell) for row in rows.cells for cell in row):
            return numbers
    except ValueError:
        pass
    for line, row in zip(rows.lines, rows.cells, strict=True):
        for column, cell in enumerate(row, start=1):
            with np.errstate(over="ignore"):
                if not is_number(cell) or not np.isfinite(np.float32(float(cell))):
                    remedy = "a line of names is left out by skip_lines"
                    if is_number(cell.replace(",", ".", 1)):
                        remedy = "write numbers with a decimal point"
                    elif what == "label":
                        remedy = "numbers are to be predicted (regression); leave that out for classes"
                    raise DataError(
                        f"{path}, line {line}, {what} {column} is {cell[:_SHOWN]!r}, not a finite number; {remedy}"
                    )
    raise AssertionError(f"{path} has numbers that are none, and no cell of them")


def _named(path: Path, labels: Rows) -> Iterator[tuple[int, str]]:
    """Yield the line and the class of each row; class numbers in their plain form (``2.0`` is ``2``)."""
    for line, row in zip(labels.lines, labels.cells, strict=True):
        if len(row) != 1:
            raise DataError(
                f"{path}, line {line} has {counted(len(row), 'column')} of labels; a class has one, and amounts need "
                "regression=True (--regression)"
            )
        if not row[0]:
            raise DataError(f"{path}, line {line} has no label")
        yield line, class_name(row[0])


def _class_names(found: set[str], known: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of all classes in order: the known ones, else those that were found."""
    if known is not None:
        return tuple(known)
    if why := why_no_classes(found):
        part = next((name for name in sorted(found) if not re.fullmatch(r"-?[0-9]+", name)), None)
        what = f"labels are {why}, which are no classes" if part is None else f"class {part!r} is no whole number"
        raise DataError(f"{what}; if labels are amounts, give regression=True (--regression)")
    return classes_of(found)


def _class_number(path: Path, line: int, name: str, known: dict[str, int]) -> int:
    if name not in known:
        raise DataError(f"{path}, line {line}: class {name[:_SHOWN]!r} is none of {', '.join(list(known)[:8])}")
    return known[name]


def _content(path: Path) -> bytes:
    with files.errors_as(DataError, f"cannot read {path}"):
        return files.read(path)


def _unchanged(file: _File) -> bytes:
    """Return a file's bytes; raises ``DataError`` if they have changed since the first reading."""
    content = _content(file.path)
    if hashlib.sha256(content).digest() != file.sha256:
        raise DataError(
            f"{file.path} has changed since it was looked at first; training needs the same data throughout"
        )
    return content


class _Bounds:
    """The minimum and maximum of each column over all sequences."""

    def __init__(self) -> None:
        self._low = self._high = np.zeros(0)
        self._inexact: npt.NDArray[np.bool_] = np.zeros(0, bool)

    def add(self, rows: Array) -> None:
        """Add the time steps of a sequence, ``(time steps, columns)``."""
        low, high, inexact = rows.min(axis=0), rows.max(axis=0), (rows != rows.astype(np.float32)).any(axis=0)
        if self._low.size:
            low, high = np.minimum(low, self._low), np.maximum(high, self._high)
            inexact |= self._inexact
        self._low, self._high, self._inexact = low, high, inexact

    def far(self) -> npt.NDArray[np.bool_]:
        """Return a mask of columns in which float32 would lose differences, as ``DataSet.far`` for all sequences."""
        return far_columns(self._low, self._high) & self._inexact


def _padded(arrays: Sequence[Array], starts: Sequence[int], steps: int) -> tuple[Array, npt.NDArray[np.float32] | None]:
    """Return sequences ``(time steps, columns)`` padded to ``(sequences, columns, steps)``, and a mask if needed."""
    padded = np.zeros((len(arrays), arrays[0].shape[1], steps), arrays[0].dtype)
    mask = np.zeros((len(arrays), steps), np.float32)
    for number, (array, start) in enumerate(zip(arrays, starts, strict=True)):
        padded[number, :, start : start + len(array)] = array.T
        mask[number, start : start + len(array)] = 1
    return padded, None if mask.all() else mask
