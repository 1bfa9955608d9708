"""How folders of CSV files, a sequence each, become the two parts of a data set: the meaning of ``--sequences``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from dl4jlegacy import files
from dl4jlegacy.backend import Array
from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.datasets.sequence_files import CsvSequenceDataSetIterator, Rows, numbers_of, read_rows, sequence_paths
from dl4jlegacy.datasets.splitting import Split
from dl4jlegacy.datasets.table import find_column
from dl4jlegacy.datasets.text_files import is_number
from dl4jlegacy.errors import ConfError, DataError, counted, nearest
from dl4jlegacy.machine import check_memory

__all__ = ["SequenceRecordReader", "read_sequence_parts"]

_ALIGNMENTS = ("", "equal", "start", "end")


class SequenceRecordReader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How CSV files, a sequence each, become examples ``(sequences, columns, time steps)`` with a class each step.

    All are as long as the longest one; what is behind the end of the others is masked. As ``CSVSequenceRecordReader``
    of DataVec. What is left open is found in the first files, and known from then on.

    Attributes:
        label: the column with the classes, by name or number; "": the last one. Of files in a folder ``features`` the
            classes are in those of the same names in a folder ``labels`` beside it, and this is "".
        align: to which time steps the rows in ``labels`` belong, as for ``CsvSequenceDataSetIterator``; "": to the last
            one if each file has a single row, which is the class of the whole sequence, else one to each.
        skip_lines: at the beginning of each file; -1: one if no cell in it is a number.
        columns: that a time step has, without the label; 0: as many as there are.
    """

    label: str = ""
    align: Literal["", "equal", "start", "end"] = ""
    skip_lines: int = -1
    columns: int = 0

    def __post_init__(self) -> None:
        if self.align not in _ALIGNMENTS:
            raise ConfError(f"sequences.align is {self.align!r}{nearest(self.align, _ALIGNMENTS)}")
        if self.skip_lines < -1 or self.columns < 0:
            raise ConfError(
                f"sequences.skip_lines is {self.skip_lines} and sequences.columns {self.columns}; give at least 0, or "
                "leave them out"
            )

    @property
    def is_of_whole(self) -> bool:
        """Whether a class is that of a whole sequence, told at its last time step."""
        return self.align == "end"

    def features(self, path: Path) -> Array:
        """Return a sequence ``(1, columns, time steps)`` of a file as float64, with its label or without.

        Raises ``DataError``.
        """
        rows = read_rows(path, max(self.skip_lines, 0))
        width = len(rows.cells[0])
        if width == self.columns + 1 and self.label:
            label = _number(self.label, rows, path)
            rows = rows._replace(cells=[[*row[:label], *row[label + 1 :]] for row in rows.cells])
        elif width != self.columns:
            raise DataError(f"{path} has {counted(width, 'column')}, and the model takes {self.columns} a time step")
        return np.ascontiguousarray(numbers_of(path, rows).T[None])


class _Part(NamedTuple):
    """The files of a part of the data; ``labels``: their own, or None."""

    features: list[Path]
    labels: list[Path] | None


def read_sequence_parts(
    folder: Path, reader: SequenceRecordReader, known: Sequence[str] | None, split: Split
) -> tuple[DataSet, DataSet, tuple[str, ...], SequenceRecordReader]:
    """Return the sequences to learn from, those held out, the classes, and the reader with all that was left open.

    Args:
        folder: with CSV files, or with folders ``features`` and ``labels`` of such; or with such folders ``train`` and
            ``test``.
        reader: how they are read.
        known: the classes in their order, if they are known.
        split: how a part is held out of a folder without ``train`` and ``test``.

    Raises:
        DataError: names file, line, column and value. ConfError: the memory does not suffice.
    """
    if split.stratify:
        raise DataError(
            f"{folder} has sequences, whose time steps may be of several classes; leave --stratify out, or make "
            "folders train and test"
        )
    with files.errors_as(DataError, f"cannot read the folder {folder}"):
        parted = all(files.is_folder(folder / name) for name in ("train", "test"))
    train = _part(folder / "train" if parted else folder)
    reader = _settled(train, reader)
    learned, names = _read(train, reader, known)
    reader = msgspec.structs.replace(reader, columns=learned.features.shape[1])
    if parted:
        return learned, _read(_part(folder / "test"), reader, names)[0], names, reader
    first, second = split.parts(learned.num_examples)
    return learned.take(first), learned.take(second), names, reader


def _part(folder: Path) -> _Part:
    with files.errors_as(DataError, f"cannot read the folder {folder}"):
        own = files.is_folder(folder / "features")
        labelled = files.is_folder(folder / "labels")
    if not own:
        return _Part(sequence_paths(folder), None)
    if not labelled:
        raise DataError(f"{folder} has a folder of features, and none called labels beside it with their classes")
    features = sequence_paths(folder / "features")
    by_name = {path.name: path for path in sequence_paths(folder / "labels")}
    for path in features:
        if path.name not in by_name:
            raise DataError(f"{folder / 'labels'} has no labels for {path}: no file {path.name}")
    return _Part(features, [by_name[path.name] for path in features])


def _settled(part: _Part, reader: SequenceRecordReader) -> SequenceRecordReader:
    """Return the reader with the label, its place and the lines to skip as they are in a part's files."""
    first = part.features[0]
    skip = reader.skip_lines
    if skip < 0:
        top = read_rows(first, 0).cells[0]
        skip = int(not any(map(is_number, top)))
    reader = msgspec.structs.replace(reader, skip_lines=skip)
    if part.labels is None:
        rows = read_rows(first, skip)
        number = _number(reader.label, rows, first)
        label = rows.names[number] if rows.names else str(number + 1)
        return msgspec.structs.replace(reader, label=label, align=reader.align or "equal")
    if reader.label:
        raise DataError(
            f"{part.labels[0].parent} has the labels, and {reader.label!r} (--label) was to be the label: leave it out"
        )
    if not reader.align:
        lone = all(len(read_rows(path, skip).cells) == 1 for path in part.labels)
        reader = msgspec.structs.replace(reader, align="end" if lone else "equal")
    return reader


def _number(label: str, rows: Rows, path: Path) -> int:
    """Return the number, from 0, of the label's column; raises ``DataError``."""
    columns = rows.names or [str(number) for number in range(1, len(rows.cells[0]) + 1)]
    return columns.index(find_column(label or "-1", columns, str(path)))


def _read(part: _Part, reader: SequenceRecordReader, known: Sequence[str] | None) -> tuple[DataSet, tuple[str, ...]]:
    label: int | None = None
    if part.labels is None:
        label = _number(reader.label, read_rows(part.features[0], reader.skip_lines), part.features[0])
    data = CsvSequenceDataSetIterator(
        part.features,
        len(part.features),
        labels=part.labels,
        label=label,
        align=reader.align or "equal",
        label_names=known,
        skip_lines=reader.skip_lines,
        shuffle=False,
        rounded=False,
    )
    if reader.columns and data.input_columns != reader.columns:
        raise DataError(
            f"{part.features[0]} has {counted(data.input_columns, 'column')} beside the label, and {reader.columns} "
            "are learned from"
        )
    cells = len(part.features) * data.longest * (data.input_columns + data.total_outcomes + 2)
    check_memory(
        8 * cells, f"reading {counted(len(part.features), 'sequence')}, each as long as the longest, {data.longest:,},"
    )
    return data.batch(0, 0), data.label_names
