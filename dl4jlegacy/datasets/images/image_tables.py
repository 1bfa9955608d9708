"""Images listed in a table: one column names their files, other columns are the labels.

The labels are read, and stored with the model, like those of any other table: by a ``TransformProcess`` without steps,
with only the image column and the labels. The files are in the table's folder, or in folders below it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import msgspec
import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.columns.table import Column, Table, find_column, find_columns
from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.datasets.images.image_files import (
    ImageError,
    ImageRecordReader,
    check_alike,
    check_learned,
    features_of,
)
from dl4jlegacy.datasets.images.image_kinds import is_image
from dl4jlegacy.datasets.splitting import Split, stratified
from dl4jlegacy.datasets.tables.inspection import default_label, inspect_csv
from dl4jlegacy.datasets.tables.table_files import is_svmlight
from dl4jlegacy.datasets.tables.text_rows import open_table
from dl4jlegacy.datasets.tables.transform_process import TransformProcess
from dl4jlegacy.errors import ConfError, DataError, nearest
from dl4jlegacy.system import files

__all__ = ["image_at", "image_columns", "image_schema", "listed_files", "read_listed"]

logger = logging.getLogger(__name__)

_ROWS = 8192
_KNOWN = 50  # maximum file names among which an error looks for a similar name


def image_schema(
    path: Path, column: str, *, label: str = "", regression: bool = False, multi_label: bool = False
) -> TransformProcess:
    """Return the schema of a table of images, with only the image column and the labels.

    Args:
        path: of the table.
        column: the column with the image files, by its name or its number from 1.
        label: the label column, or several separated by commas, as for ``guess_schema``; "": the one called label,
            class or target, else the last one besides ``column``.
        regression, multi_label: as for ``guess_schema``.

    Raises:
        DataError: there is no such column, or no header, or the table cannot be read.
    """
    images, labels, left_out = image_columns(path, column, label)
    if left_out:
        logger.warning("%s: ignored columns, since images are learned: %s", path, ", ".join(left_out))
    is_one = len(labels) == 1 and not multi_label
    numbers = regression or (len(labels) > 1 and not multi_label)
    kept = (Column(images, "category"), *(Column(name, "number" if numbers else "category") for name in labels))
    return TransformProcess(
        columns=kept,
        label=labels[0] if is_one else "",
        labels=() if is_one else labels,
        regression=numbers,
        multi_label=multi_label,
    )


def image_columns(path: Path, column: str, label: str = "") -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Return the image column, the label columns, and the others; args and errors as for ``image_schema``."""
    if is_svmlight(path.name):
        raise DataError(f"{path} is an SVMLight file, which has numbers only, and no column that names images")
    names = [found.name for found in inspect_csv(path, label, rows=1).columns]
    bare = [name for name in names if is_image(name)]
    if bare:
        raise DataError(
            f"{path} has no header: its first row has {bare[0]!r}, which is an image; write the names of the columns "
            "above it, such as file,label"
        )
    images = find_column(column, names, str(path))
    others = [name for name in names if name != images]
    if not label:
        label = default_label(others)
    labels = find_columns(label, names, str(path))
    if images in labels:
        raise DataError(f"{path}: column {images!r} names the images, and cannot be their label; give another --label")
    return images, labels, tuple(name for name in others if name not in labels)


@dataclass(frozen=True, slots=True, eq=False)
class _Listed:
    """The concatenated rows of some tables, with the files of their images."""

    tables: list[Table]
    column: str
    paths: list[Path]

    @classmethod
    def of(cls, found: Sequence[Path], column: str, tables: list[Table]) -> _Listed:
        paths = [p for file, table in zip(found, tables, strict=True) for p in _paths(file, table, column)]
        return cls(tables, column, paths)

    def place(self, row: int) -> str:
        """Return the place of a row's image name, in words."""
        for table in self.tables:
            if row < len(table):
                return table.place(row, self.column)
            row -= len(table)
        raise IndexError(row)

    def check_once(self) -> None:
        """Raise ``DataError`` if an image is listed twice: it could be in both the training and the test part."""
        first: dict[Path, int] = {}
        for row, path in enumerate(self.paths):
            before = first.setdefault(path, row)
            if before != row:
                raise DataError(
                    f"{self.place(row)}: image {str(path)!r} is listed already in {self.place(before)}; leave one of "
                    "the rows out (several labels of an image stand in columns of one row: --multi-label)"
                )

    def read(self, reader: ImageRecordReader, rows: slice = slice(None)) -> Array:
        """Return the pixels of consecutive rows; an error of a file names its row, too."""
        paths = self.paths[rows]
        try:
            return reader.read(paths)
        except ImageError as exc:
            raise DataError(f"{self.place((rows.start or 0) + paths.index(exc.path))}: {exc}") from exc


def _paths(file: Path, table: Table, column: str) -> Iterator[Path]:
    """Yield the image file of each row; raises ``DataError``, which names the cell."""
    for row, value in enumerate(table.columns[column].tolist()):
        yield image_at(file.parent, value.strip(), table.place(row, column))


def image_at(folder: Path, named: str, where: str) -> Path:
    """Return the image that a table cell names, relative to a folder; raises ``DataError`` with ``where``."""
    if not named:
        raise DataError(f"{where}: the cell has no value; name the row's image there, or leave the row out")
    if "\0" in named:
        raise DataError(f"{where}: {named!r} is no name of a file; correct it")
    relative = PurePosixPath(os.path.normpath(named))
    if relative.is_absolute() or ".." in relative.parts:
        raise DataError(
            f"{where}: image {named!r} is not in the table's folder, {folder}, or below it, where alone images are "
            "looked for, so that both can go to another machine together; put the table above its images, and write "
            "their paths as seen from there"
        )
    path = folder / relative
    with files.errors_as(DataError, f"{where}: image {named!r} cannot be read"):
        there = files.is_file(path)
    if not there:
        raise DataError(f"{where}: there is no image {named!r} ({path}){_meant(path)}")
    return path


def _meant(path: Path) -> str:
    """Return a hint at the file that a missing name may have meant."""
    try:
        there = [name for name in files.names_in(path.parent) if is_image(name)]
    except OSError:
        return f"; there is no folder {path.parent}"
    if not there:
        return f"; there are no images in {path.parent}"
    same = [name for name in there if name.lower().startswith(f"{path.name.lower()}.")]
    if same:
        return f"; did you mean {same[0]!r}?"
    return nearest(path.name, there) if len(there) <= _KNOWN else "; is its name spelt right?"


def read_listed(
    found: Sequence[Path], reader: ImageRecordReader, process: TransformProcess, split: Split, *, parted: bool
) -> tuple[DataSet, DataSet, TransformProcess, ImageRecordReader]:
    """Return training and test part of the images in tables, the fitted schema, and the fitted reader.

    Args:
        found: the tables; if ``parted``, a training table and a held-out table.
        reader: of the images; its ``column`` names their files.
        process: as ``image_schema`` returns it, fitted or not.
        split: holds out a part of the rows, unless they are ``parted``.
        parted: whether the tables are two parts.

    Raises:
        DataError: names table, row, column and value.
    """
    _check_schema(process, reader.column)
    is_known = process.is_fitted
    tables = [process.read(path) for path in found]
    listed = _Listed.of(found, _column_of(process, reader.column), tables)
    listed.check_once()
    if parted:
        process = process.with_classes_learned(tables[0])
        _check_known(process, tables[1])
    process = process.with_classes_of(tables)
    whole = Table.merge(tables)
    if parted:
        cut = len(tables[0])
        train, test = np.arange(cut), np.arange(cut, len(whole))
        first = listed.read(reader, slice(0, cut))
        same = msgspec.structs.replace(reader, channels=first.shape[1])
        pixels = [first, listed.read(same, slice(cut, None))]
        check_alike(found, pixels)
    else:
        classes = process.class_numbers(whole) if split.stratify else None
        train, test = split.parts(len(whole))
        if classes is not None:
            train, test = stratified(classes, (train, test))
        every = listed.read(reader)
        pixels = [every[train], every[test]]
    if process.classes and not is_known:
        check_learned(process.class_numbers(whole), train, process.classes, str(found[0]))
    if not process.is_fitted:
        process = process.fit(whole.take(train))
    parts = [
        DataSet(features_of(images), process.targets(whole.take(rows)))
        for images, rows in zip(pixels, (train, test), strict=True)
    ]
    return parts[0], parts[1], process, reader.of(pixels[0])


def _check_known(process: TransformProcess, test: Table) -> None:
    """Raise ``DataError`` if a row has a class that the training part lacks; names it."""
    if process.classes:
        process.class_numbers(test)


def listed_files(file: Path, reader: ImageRecordReader, process: TransformProcess) -> list[Path]:
    """Return the images in a table in the order of its rows; labels are optional; raises as ``read_listed``."""
    _check_schema(process, reader.column)
    tables = list(process.blocks(open_table(file), str(file), rows=_ROWS))
    return _Listed.of([file] * len(tables), _column_of(process, reader.column), tables).paths


def _column_of(process: TransformProcess, column: str) -> str:
    return find_column(column, [one.name for one in process.columns], "the schema")


def _check_schema(process: TransformProcess, column: str) -> None:
    """Raise ``ConfError`` unless a schema only describes the labels of images."""
    name = _column_of(process, column)
    kinds = {one.name: one.type for one in process.columns}
    if process.steps or kinds[name] != "category" or name in process.label_columns:
        raise ConfError(
            f"the schema is none of images: its column {name!r} names them, and is to be of type category and no "
            "label, and steps are for columns of numbers and words; leave --schema out, or its steps"
        )
