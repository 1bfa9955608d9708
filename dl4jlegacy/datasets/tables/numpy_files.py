"""NumPy files (.npy, .npz): arrays with one row per example, as table columns, read in blocks of rows.

Nothing is unpickled: arrays of objects are refused because of their header. Files are read as streams, compressed or
not, so that they may be larger than memory.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import zipfile
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, BinaryIO, ClassVar

import numpy as np
from numpy.lib import format as npy

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.tables.header import check_different
from dl4jlegacy.datasets.tables.text_rows import Row
from dl4jlegacy.errors import DataError, counted
from dl4jlegacy.system import files

__all__ = ["ArrayColumns", "NumpyFile", "label_columns", "numpy_rows", "opened_numpy"]

_ROWS = 8192
_MOST_COLUMNS = 1 << 24
_LABELS = ("y", "label", "labels", "target", "targets")
_KINDS = "biufUS"


def label_columns(names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of a label array with several values per row, if there is one."""
    arrays = {name.rpartition(" ")[0] for name in names if name.rpartition(" ")[2].isdecimal()}
    found = [array for array in arrays if array.lower() in _LABELS]
    return tuple(name for name in names if len(found) == 1 and name.rpartition(" ")[0] == found[0])


@dataclass(frozen=True, slots=True)
class _Stored:
    """An array in a file: its name, its columns' names, its header, and the stream of its rows."""

    name: str
    columns: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    source: IO[bytes]
    whole: Array | None = None
    is_one_hot: bool = False

    def rows(self, start: int, count: int, where: str) -> Array:
        """Return the next ``count`` rows, ``(count, values)``; raises ``DataError`` if the file ends too early."""
        width = math.prod(self.shape[1:])
        if self.whole is not None:
            found = self.whole[start : start + count].reshape(count, width)
        else:
            found = _read(self.source, self.dtype, count * width, where).reshape(count, width)
        return found.argmax(axis=1)[:, None] if self.is_one_hot else found


class ArrayColumns:
    """Converts array columns to numbers and texts."""

    gaps: ClassVar[frozenset[str]] = frozenset()
    """Texts that mark a gap in the result of ``texts``, besides those that a schema lists."""

    @staticmethod
    def texts(values: Array) -> list[str]:
        """Return the cells of a column as they would stand in a CSV file: booleans as 1 and 0, NaN as a gap."""
        if values.dtype.kind in "US":
            return [str(text) for text in values.tolist()]
        if values.dtype.kind == "f":
            return [repr(value) if value == value else "" for value in values.astype(np.float64).tolist()]
        return [str(int(value)) for value in values.tolist()]

    @staticmethod
    def coded(values: Array) -> tuple[Array, list[str]]:
        """Return the index of each cell's text in a list of distinct texts, ``(rows,)``; and that list."""
        words, codes = np.unique(values, return_inverse=True)
        return codes, ArrayColumns.texts(words)

    @staticmethod
    def numbers(values: Array) -> Array | None:
        """Return a column as float64, ``(rows,)``; None if it holds texts."""
        return None if values.dtype.kind in "US" else np.ascontiguousarray(values, np.float64)


@dataclass(frozen=True, slots=True)
class NumpyFile(ArrayColumns):
    """An open file: the names of its columns, the number of rows, and the rows.

    A single array with several values per row has the columns ``1``, ``2`` ...; with several arrays, these names begin
    with the array's name. An array with one value per row gives one column with its name. A column called ``label``,
    ``y``, ``labels`` or ``target`` becomes ``label`` and comes last. So does an array of that name with one-hot rows:
    the label is the position of the 1, from 0.
    """

    name: str
    names: tuple[str, ...]
    rows: int
    _arrays: tuple[_Stored, ...]

    def blocks(self, rows: int, columns: Sequence[str] = ()) -> Iterator[dict[str, Array]]:
        """Yield columns (default: all), ``(rows,)`` each, in blocks of ``rows`` rows, once. Raises ``DataError``."""
        with files.damage_as(DataError, f"cannot read {self.name}"):
            for start in range(0, self.rows, rows):
                count, found = min(rows, self.rows - start), dict[str, Array]()
                for array in self._arrays:
                    values = array.rows(start, count, self.name)
                    if array.dtype.names:
                        found |= {field: _texts(values[field][:, 0], self.name) for field in array.dtype.names}
                    else:
                        found |= dict(zip(array.columns, _texts(values, self.name).T, strict=True))
                yield {name: found[name] for name in columns or self.names}


@contextlib.contextmanager
def opened_numpy(file: BinaryIO, name: str) -> Iterator[NumpyFile]:
    """Yield an open NumPy file; it is closed at the end.

    Raises:
        DataError: the file is damaged, has objects or arrays of different lengths, or no rows; names the array.
    """
    with files.errors_as(DataError, f"cannot read {name}"), contextlib.ExitStack() as opened:
        opened.enter_context(file)
        with files.damage_as(DataError, f"cannot read {name}"):
            start = file.read(len(npy.MAGIC_PREFIX))
            nbytes = file.seek(0, os.SEEK_END)
            file.seek(0)
            if not start:
                raise DataError(f"{name} is empty; expected arrays of NumPy's, with a row for each example")
            if start == npy.MAGIC_PREFIX:
                headers: list[_Header] = [("", *_header(file, name, nbytes), file, False)]
            else:
                headers = list(_members(opened.enter_context(zipfile.ZipFile(file)), opened, name))
            found = _file(name, headers)
        yield found


def numpy_rows(file: BinaryIO, name: str) -> Generator[Row, None, None]:
    """Yield the column names as row 0, and then the rows as texts, numbered from 1; raises as ``opened_numpy``."""
    with opened_numpy(file, name) as source:
        yield 0, list(source.names)
        rows = (row for block in source.blocks(_ROWS) for row in zip(*map(source.texts, block.values()), strict=True))
        for number, row in enumerate(rows, 1):
            yield number, list(row)


_Header = tuple[str, tuple[int, ...], bool, np.dtype[Any], IO[bytes], bool]
"""Name, shape, Fortran order, dtype and stream of an array, and whether it has one-hot labels."""


def _members(archive: zipfile.ZipFile, opened: contextlib.ExitStack, name: str) -> Iterator[_Header]:
    for entry in archive.infolist():
        array, source = entry.filename.removesuffix(".npy"), opened.enter_context(archive.open(entry))
        where = f"{name}, array {array!r}"
        shape, fortran, dtype = _header(source, where, entry.file_size)
        is_one_hot = False
        if array.lower() in _LABELS and len(shape) == 2 and shape[1] > 1 and dtype.kind in "biuf":
            with archive.open(entry) as again:
                _header(again, where, entry.file_size)
                is_one_hot = _is_one_hot(again, shape, fortran, dtype, where)
        yield array, shape, fortran, dtype, source, is_one_hot


def _is_one_hot(source: IO[bytes], shape: tuple[int, ...], fortran: bool, dtype: np.dtype[Any], where: str) -> bool:
    """Return whether the rows of an array are one-hot, with the 1 in at least two different columns."""
    rows, width = shape
    ones = np.zeros(width, np.int64)
    if fortran:
        blocks = iter([_read(source, dtype, rows * width, where).reshape(shape, order="F")])
    else:
        counts = (min(_ROWS, rows - start) for start in range(0, rows, _ROWS))
        blocks = (_read(source, dtype, count * width, where).reshape(count, width) for count in counts)
    for block in blocks:
        is_one = block == 1
        if not (is_one | (block == 0)).all() or (is_one.sum(axis=1) != 1).any():
            return False
        ones += is_one.sum(axis=0)
    return rows > 0 and bool(ones.max() < rows)


def _header(source: IO[bytes], where: str, nbytes: int) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, Fortran order and dtype of an array that takes ``nbytes``, including its header.

    Raises ``DataError`` for an array that cannot become columns.
    """
    version = npy.read_magic(source)
    reader = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
    if reader is None:
        raise DataError(f"{where} is in version {version} of NumPy's format; save it anew, with plain names of fields")
    shape, fortran, dtype = reader(source)
    kinds = [dtype[field] for field in dtype.names] if dtype.names else [dtype]
    for kind in kinds:
        if kind.kind not in _KINDS or kind.shape:
            raise DataError(f"{where} has dtype {kind}; expected numbers or texts, one in each place of an array")
    if not shape:
        raise DataError(f"{where} is a single value; expected an array with a row for each example")
    if min(shape) < 0 or math.prod(shape[1:]) > _MOST_COLUMNS:
        raise DataError(
            f"cannot read {where}: its shape is {shape}; expected at most {_MOST_COLUMNS:,} values a row; is it whole?"
        )
    needed = math.prod(shape) * dtype.itemsize
    if needed > nbytes:
        raise DataError(f"{where} ends early: {counted(nbytes, 'byte')} of {needed:,}; is it whole?")
    return shape, fortran, dtype


def _file(name: str, headers: list[_Header]) -> NumpyFile:
    if not headers:
        raise DataError(f"{name} has no arrays")
    sizes = {array: shape[0] for array, shape, *_ in headers}
    if len(set(sizes.values())) > 1:
        found = ", ".join(f"{array!r} {count:,}" for array, count in sizes.items())
        raise DataError(
            f"{name}: arrays have different numbers of rows ({found}); keep those that belong together in a file, and "
            "the parts train.npz and test.npz in a folder"
        )
    rows = headers[0][1][0]
    if not rows:
        raise DataError(f"{name} holds no examples; expected a row for each")
    wide = [array for array, shape, *_, is_one_hot in headers if math.prod(shape[1:]) > 1 and not is_one_hot]
    arrays = tuple(_stored(header, wide, name) for header in headers)
    names = [column for array in arrays for column in array.columns]
    check_different(names, name)
    return NumpyFile(name, tuple(sorted(names, key=lambda column: column == "label")), rows, arrays)


def _stored(header: _Header, wide: list[str], name: str) -> _Stored:
    array, shape, fortran, dtype, source, is_one_hot = header
    width = math.prod(shape[1:])
    if dtype.names:
        if len(shape) > 1:
            raise DataError(f"{name}: an array with fields has shape {shape}; expected a row for each example")
        return _Stored(array, tuple(dtype.names), shape, dtype, source)
    columns: tuple[str, ...]
    if width == 1 or is_one_hot:
        columns = ("label" if array.lower() in _LABELS else array or "1",)
    else:
        is_bare = len(wide) == 1 and array.lower() not in _LABELS
        columns = tuple(str(n) if is_bare else f"{array} {n}" for n in range(1, width + 1))
    whole = None
    if fortran and len(shape) > 1:  # its rows are not contiguous
        whole = _read(source, dtype, math.prod(shape), name).reshape(shape, order="F")
    return _Stored(array, columns, shape, dtype, source, whole, is_one_hot)


def _texts(values: Array, name: str) -> Array:
    """Return values unchanged, but bytes as decoded text; raises ``DataError`` for characters that do not exist."""
    if values.dtype.kind == "S":
        return values.astype("U")
    if values.dtype.kind == "U" and values.dtype.itemsize:
        codes = np.ascontiguousarray(values).view(np.uint32)
        if (codes > sys.maxunicode).any():  # NumPy would make an invalid Python str of it
            raise DataError(f"cannot read {name}: a text has the character {codes.max():#x}; is it whole?")
    return values


def _read(source: IO[bytes], dtype: np.dtype[Any], count: int, name: str) -> Array:
    content = source.read(count * dtype.itemsize)
    if len(content) < count * dtype.itemsize:
        raise DataError(
            f"{name} ends early: {counted(len(content), 'byte')} of {count * dtype.itemsize:,}; is it whole?"
        )
    found: Array = np.frombuffer(content, dtype)
    return found
