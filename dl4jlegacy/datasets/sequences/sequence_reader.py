"""Turns folders of CSV files, one sequence each, into the two parts of a data set; the meaning of ``--sequences``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.columns.column_scale import mean_and_std
from dl4jlegacy.datasets.columns.table import find_column, find_columns
from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.datasets.kind import DataKind, DataRequest, LabelChoice, LoadedData, NewData, NewRows
from dl4jlegacy.datasets.label_scale import LabelScale
from dl4jlegacy.datasets.place import Place
from dl4jlegacy.datasets.sequences.sequence_files import (
    CsvSequenceDataSetIterator,
    Rows,
    in_order,
    labels_of,
    names_in,
    numbers_of,
    read_rows,
    sequence_paths,
    without_columns,
)
from dl4jlegacy.datasets.splitting import Split
from dl4jlegacy.datasets.tables.header import are_names
from dl4jlegacy.datasets.tables.text_rows import is_number
from dl4jlegacy.errors import ConfError, DataError, counted, nearest
from dl4jlegacy.storage import paths as storage
from dl4jlegacy.system import files
from dl4jlegacy.system.resources import check_memory

__all__ = ["SequenceData", "SequenceRecordReader"]

_ALIGNMENTS = ("", "equal", "start", "end")


class SequenceRecordReader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How CSV files, one sequence each, become examples ``(sequences, columns, time steps)`` with a label per step.

    All sequences are padded to the longest one and masked. Follows ``CSVSequenceRecordReader`` of DataVec. Empty
    attributes are set from the first files, and fixed from then on.

    Attributes:
        label: the label column, by name or number; "": the last one. For files in a folder ``features``, the labels are
            in files of the same names in a folder ``labels`` beside it, and this is "". Several columns, separated by
            commas, are numbers to predict.
        labels: the columns with numbers to predict, instead of ``label``.
        regression: whether labels are numbers to predict, and no classes.
        label_means, label_stds: of the numbers to predict, which a network learns standardized; learned if empty.
        align: the time steps of the rows in ``labels``, as for ``CsvSequenceDataSetIterator``; "": the last step if
            each file has a single row, which is the label of the whole sequence, else one row per step.
        skip_lines: lines to skip at the beginning of each file; -1: one if none of its cells is a number.
        columns: the number of columns without the labels; 0: as found.
        names: the column names in order, including labels; columns are found by name in every file with names in its
            last skipped line. Those of the first file if empty.
    """

    label: str = ""
    labels: tuple[str, ...] = ()
    regression: bool = False
    label_means: tuple[float, ...] = ()
    label_stds: tuple[float, ...] = ()
    align: Literal["", "equal", "start", "end"] = ""
    skip_lines: int = -1
    columns: int = 0
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.align not in _ALIGNMENTS:
            raise ConfError(f"sequences.align is {self.align!r}{nearest(self.align, _ALIGNMENTS)}")
        if self.skip_lines < -1 or self.columns < 0:
            raise ConfError(
                f"sequences.skip_lines is {self.skip_lines} and sequences.columns {self.columns}; give at least 0, or "
                "leave them out"
            )
        if self.labels and (self.label or not self.regression):
            raise ConfError(
                f"sequences.labels are {list(self.labels)}, sequences.label is {self.label!r} and sequences.regression "
                f"{self.regression}; give one label, or labels, which are numbers to predict (regression)"
            )
        scale = (*self.label_means, *self.label_stds)
        if not all(map(math.isfinite, scale)) or len(self.label_means) != len(self.label_stds) or 0 in self.label_stds:
            raise ConfError(
                f"sequences.label_means and label_stds are {self.label_means} and {self.label_stds}; give a finite "
                "number for each label, or leave them out"
            )

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The label columns beside the features; () if labels have their own files."""
        return self.labels or ((self.label,) if self.label else ())

    @property
    def label_scale(self) -> LabelScale | None:
        """The scale of the predicted numbers; None for classes."""
        return LabelScale(self.label_means, self.label_stds) if self.regression else None

    @property
    def is_of_whole(self) -> bool:
        """Whether a label belongs to a whole sequence, and is placed at its last time step."""
        return self.align == "end"

    def features(self, path: Path, *, warns: bool = True) -> Array:
        """Return the sequence of a file, with or without labels, as float64 features ``(1, columns, time steps)``.

        ``warns``: whether to warn of ignored columns. Raises ``DataError``.
        """
        rows, labels = read_rows(path, max(self.skip_lines, 0)), self.label_columns
        features = [name for name in self.names if name not in labels]
        rows = in_order(path, rows, features, labels=labels, is_new=False if warns else None)
        width = len(rows.cells[0])
        if labels and width == self.columns + len(labels):
            rows = without_columns(rows, _numbers(self, rows, path))
        elif width != self.columns:
            raise DataError(f"{path} has {counted(width, 'column')}, and the model takes {self.columns} a time step")
        return np.ascontiguousarray(numbers_of(path, rows).T[None])


class SequenceData(DataKind[SequenceRecordReader]):
    """Sequences in the files of a folder, one each."""

    name, reader, media_types = "sequences", SequenceRecordReader, {"text/csv": ".csv"}

    def recognises(self, asked: DataRequest, reader: SequenceRecordReader | None) -> bool:
        """See ``DataKind``; without a reader, the files are parts of a table."""
        return reader is not None

    def load(self, asked: DataRequest, reader: SequenceRecordReader) -> LoadedData:
        """See ``DataKind``."""
        place = asked.place
        if place.kind != "folder":
            raise DataError(
                f"data set {place.name!r} is no folder, and sequences (--sequences, sequences in a Conf) are files in "
                "one, a sequence each; leave it out, or name their folder"
            )
        return LoadedData(*_read_parts(place.path, reader, asked.known, asked.split))

    def new_rows(self, new: NewData, reader: SequenceRecordReader) -> NewRows:
        """See ``DataKind``; a file or folder of sequences, with or without labels."""
        if new.file == "-":
            raise DataError(f"model {new.model} takes sequences in files, one each; give a file, or a folder of them")
        with files.errors_as(DataError, f"cannot read {new.file}"):
            place = files.expand(storage.local(new.file))
            paths = sequence_paths(place) if files.is_folder(place) else [place]
        blocks = [reader.features(path, warns=new.warns) for path in paths]
        answers = [1 if reader.is_of_whole else rows.shape[2] for rows in blocks]
        return NewRows(blocks, tuple(path for path, n in zip(paths, answers, strict=True) for _ in range(n)))

    def labelled(self, choice: LabelChoice, reader: SequenceRecordReader, place: Place) -> dict[str, Any]:
        """See ``DataKind``; the reader has the labels."""
        if choice.missing is not None:
            raise ConfError("sequences have no cells that stand for no value; leave --missing out")
        if choice.multi_label or not choice.is_alone:
            raise ConfError(
                "sequences (--sequences) of files have a class, or numbers to predict, at each time step, or once "
                "each: leave --multi-label, --schema, --images and --tokens out"
            )
        if choice.label:
            reader = msgspec.structs.replace(reader, label=choice.label, labels=())
        if choice.regression:
            reader = msgspec.structs.replace(reader, regression=True)
        return {self.name: reader}

    def label_scale(self, reader: SequenceRecordReader) -> LabelScale | None:
        """See ``DataKind``."""
        return reader.label_scale

    def answers_at(self, reader: SequenceRecordReader) -> str:
        """See ``DataKind``."""
        return "last step" if reader.is_of_whole else "each step"

    def network(self, reader: SequenceRecordReader) -> str:
        """See ``DataKind``."""
        return "sequences"


class _Part(NamedTuple):
    """The files of a part of the data; ``labels``: the label files, or None."""

    features: list[Path]
    labels: list[Path] | None


def _read_parts(
    folder: Path, reader: SequenceRecordReader, known: Sequence[str] | None, split: Split
) -> tuple[DataSet, DataSet, tuple[str, ...], SequenceRecordReader]:
    """Return the training sequences, the held-out sequences, the labels, and the reader with all attributes set.

    The labels are the classes, or the names of the numbers to predict, which are standardized.

    Args:
        folder: with CSV files, or with folders ``features`` and ``labels`` of such; or with such folders ``train`` and
            ``test``.
        reader: how they are read.
        known: the labels in order, if they are known.
        split: how a part of a folder without ``train`` and ``test`` is held out.

    Raises:
        DataError: names file, line, column and value. ConfError: there is not enough memory.
    """
    if split.stratify:
        raise DataError(
            f"{folder} has sequences, whose time steps may be of several classes, or numbers; leave --stratify out, or "
            "make folders train and test"
        )
    with files.errors_as(DataError, f"cannot read the folder {folder}"):
        parted = all(files.is_folder(folder / name) for name in ("train", "test"))
    train = _part(folder / "train" if parted else folder)
    reader = _settled(train, reader)
    learned, names = _read(train, reader, known)
    reader = msgspec.structs.replace(reader, columns=learned.features.shape[1])
    if parted:
        held = _read(_part(folder / "test"), reader, names)[0]
    else:
        first, second = split.parts(learned.num_examples)
        learned, held = learned.take(first), learned.take(second)
    if reader.regression:
        reader = _scaled(learned, names, reader, folder)
        learned, held = _standardized(learned, reader), _standardized(held, reader)
    return learned, held, names, reader


def _scaled(learned: DataSet, names: Sequence[str], reader: SequenceRecordReader, folder: Path) -> SequenceRecordReader:
    """Return the reader with mean and standard deviation of the numbers to predict, over unmasked time steps.

    Raises:
        DataError: a number is constant; or its columns differ from the reader's.
    """
    if reader.label_stds:
        if len(reader.label_stds) != len(names):
            raise DataError(f"{folder} has {counted(len(names), 'label')}, and {len(reader.label_stds)} are learned")
        return reader
    rows = learned.labels.transpose(0, 2, 1)
    rows = rows.reshape(-1, rows.shape[2]) if learned.labels_mask is None else rows[learned.labels_mask != 0]
    for name, values in zip(names, rows.T, strict=True):
        if not np.ptp(values):
            raise DataError(
                f"{folder}: the label {name!r} is {values[0]:g} in all of the {counted(len(values), 'row')} of labels "
                "to learn from; there is nothing to learn"
            )
    means, stds = mean_and_std([rows])
    return msgspec.structs.replace(reader, label_means=tuple(means.tolist()), label_stds=tuple(stds.tolist()))


def _standardized(data: DataSet, reader: SequenceRecordReader) -> DataSet:
    """Return sequences with standardized numbers to predict; 0 where masked."""
    assert reader.label_scale is not None
    labels = reader.label_scale.standardized(data.labels)
    if data.labels_mask is not None:
        labels *= data.labels_mask[:, None] != 0
    return DataSet(data.features, labels, data.features_mask, data.labels_mask)


def _part(folder: Path) -> _Part:
    with files.errors_as(DataError, f"cannot read the folder {folder}"):
        own = files.is_folder(folder / "features")
        labelled = files.is_folder(folder / "labels")
    if not own:
        return _Part(sequence_paths(folder), None)
    if not labelled:
        raise DataError(f"{folder} has a folder of features, and none called labels beside it with their labels")
    features = sequence_paths(folder / "features")
    return _Part(features, labels_of(features, folder / "labels"))


def _settled(part: _Part, reader: SequenceRecordReader) -> SequenceRecordReader:
    """Return the reader with the label, its alignment and the lines to skip, as found in a part's files."""
    first = part.features[0]
    skip = reader.skip_lines
    if skip < 0:
        top = read_rows(first, 0).cells[0]
        skip = int(not any(map(is_number, top)))
    rows = read_rows(first, skip)
    reader = msgspec.structs.replace(reader, skip_lines=skip, names=reader.names or names_in(first, rows))
    if part.labels is None and not (reader.columns and reader.label_columns):
        columns = _columns_of(rows)
        names = reader.labels or find_columns(reader.label or "-1", columns, str(first))
        numbers = reader.regression or len(names) > 1
        fields = {"label": "", "labels": names, "regression": True} if numbers else {"label": names[0]}
        return msgspec.structs.replace(reader, **fields, align=reader.align or "equal")
    if part.labels is None:
        return reader
    if reader.label_columns:
        raise DataError(
            f"{part.labels[0].parent} has the labels, and {', '.join(reader.label_columns)!r} (--label) was to be the "
            "label: leave it out"
        )
    if not reader.align:
        lone = all(len(read_rows(path, skip).cells) == 1 for path in part.labels)
        reader = msgspec.structs.replace(reader, align="end" if lone else "equal")
    return reader


def _columns_of(rows: Rows) -> list[str]:
    """Return the names of the columns, or their numbers, from 1, if they have no names."""
    return rows.names or [str(number) for number in range(1, len(rows.cells[0]) + 1)]


def _numbers(reader: SequenceRecordReader, rows: Rows, path: Path) -> list[int]:
    """Return the numbers of the label columns, from 0; raises ``DataError``."""
    columns = reader.names or _columns_of(rows)
    return [columns.index(find_column(label, columns, str(path))) for label in reader.label_columns]


def _check_width(path: Path, found: int, reader: SequenceRecordReader) -> None:
    """Raise ``DataError`` unless a file has as many feature columns as the reader, if that number is known."""
    if reader.columns and found != reader.columns:
        raise DataError(
            f"{path} has {counted(found, 'column')} beside the label, and {reader.columns} are learned from"
        )


def _read(part: _Part, reader: SequenceRecordReader, known: Sequence[str] | None) -> tuple[DataSet, tuple[str, ...]]:
    first, names = part.features[0], reader.labels
    rows, is_known = read_rows(first, reader.skip_lines), reader.columns > 0
    label = None if part.labels else _numbers(reader, rows, first)
    if part.labels and reader.regression:
        names = tuple(known or _columns_of(read_rows(part.labels[0], reader.skip_lines)))
    if is_known and not reader.names:
        _check_width(first, len(rows.cells[0]) - len(label or ()), reader)
    data = CsvSequenceDataSetIterator(
        part.features,
        len(part.features),
        labels=part.labels,
        label=label,
        align=reader.align or "equal",
        regression=reader.regression,
        label_names=None if reader.regression else known,
        skip_lines=reader.skip_lines,
        columns=reader.names if is_known else (),
        label_columns=names if is_known and part.labels and are_names(names) else (),
        shuffle=False,
        rounded=False,
    )
    _check_width(first, data.input_columns, reader)
    cells = len(part.features) * data.longest * (data.input_columns + data.total_outcomes + 2)
    check_memory(
        8 * cells, f"reading {counted(len(part.features), 'sequence')}, each as long as the longest, {data.longest:,},"
    )
    if reader.regression and len(names) != data.total_outcomes:
        raise DataError(f"{first} has {counted(data.total_outcomes, 'label')}, and {', '.join(names)} are learned")
    return data.batch(0, 0), names if reader.regression else data.label_names
