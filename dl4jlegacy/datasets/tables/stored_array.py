"""Arrays in a file, with only the rows in use in memory, for a ``DataSet`` larger than memory."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import DataError
from dl4jlegacy.system import files

__all__ = ["ShuffleBuckets", "StoredArray", "new_file", "scatter"]

_HELD = 64 << 20
"""Maximum bytes of rows taken into memory; more rows are written to a file."""
_TOUCHED = 64 << 20  # bytes of the file that may stay mapped; the system's page cache holds them anyway
_ROWS = 8192
_BUCKET = 8 << 20  # bytes of a bucket, which is sorted in memory at the end
_MOST_BUCKETS = 256  # each is an open file


class _Descriptor:
    """An open file, closed with the last array that uses it."""

    def __init__(self, path: str | Path) -> None:
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # the file could not be opened
            os.close(self.number)


class StoredArray(np.memmap[Any, Any]):
    """Float32 rows in a file, mapped into memory, read-only; safe on any thread.

    Rows taken from it are an ordinary array, or another stored one if they are large. Scattered rows are read from the
    file instead of the mapping, because the system may map megabytes around each. Mapped pages are released again, so
    that the process does not seem to grow to the size of the file.
    """

    _touched: int = 0
    _file: _Descriptor | None = None

    @classmethod
    def open(cls, path: str | Path, shape: tuple[int, int]) -> Self:
        """Return the array of this shape in a file; raises ``OSError``, or ``ValueError`` if the file is too short."""
        array = cls(os.fspath(path), np.float32, "r", 0, shape)
        array._file = _Descriptor(path)
        return array

    def __array_finalize__(self, obj: Any) -> None:
        super().__array_finalize__(obj)
        self._touched = 0
        self._file = None if self._mapped is None else getattr(obj, "_file", None)

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        """Return a result computed from the array as an ordinary array, or scalar."""
        plain = np.asarray(array)
        return plain[()] if return_scalar else plain

    def __getitem__(self, key: Any) -> Any:
        """Return rows; a few rows are an ordinary array that is a view of the file."""
        found = super().__getitem__(key)
        if isinstance(found, StoredArray) and (not isinstance(key, slice) or found.nbytes <= _HELD):
            self._forget(found.nbytes)
            return np.asarray(found)
        return found

    def take(self, indices: Any, axis: Any = None, out: Any = None, mode: Any = "raise") -> Any:
        """Return rows as ``numpy.ndarray.take`` does; raises ``DataError`` if many are taken and the disk is full."""
        wanted = np.asarray(indices)
        is_rows = axis == 0 and out is None and mode == "raise" and wanted.ndim == 1 and self.flags.c_contiguous
        if self._file is None or not is_rows:
            return np.asarray(self).take(wanted, axis=axis, out=out, mode=mode)
        if wanted.size * self.strides[0] > _HELD:
            return _taken(self, self._file, wanted)
        return self.read(self._file, wanted)

    def read(self, file: _Descriptor, rows: npt.NDArray[np.integer[Any]]) -> Array:
        """Return rows by number, reading adjacent ones together; raises ``IndexError``, ``OSError``."""
        rows = np.where(rows < 0, rows + len(self), rows)
        if rows.size and not (rows.min() >= 0 and rows.max() < len(self)):
            raise IndexError(f"rows {rows.min()} to {rows.max()} of an array of {len(self)}")
        found, width = np.empty((len(rows), *self.shape[1:]), self.dtype), self.strides[0]
        content, begin = found.reshape(-1).view(np.uint8).data, self._place()
        starts = np.flatnonzero(np.diff(rows, prepend=rows[:1] - 2) != 1).tolist()
        for start, end in itertools.pairwise([*starts, len(rows)]):
            left, at = content[start * width : end * width], begin + int(rows[start]) * width
            while left:
                size = os.preadv(file.number, [left], at)
                if not size:
                    raise OSError(f"{self.filename} ends before row {rows[start]} of {len(self)}")
                left, at = left[size:], at + size
        return found

    def _place(self) -> int:
        """Return the offset of the first row in the file."""
        whole = np.frombuffer(self._mapped or b"", np.uint8)
        return int(self.ctypes.data - whole.ctypes.data)

    @property
    def _mapped(self) -> mmap.mmap | None:
        return getattr(self, "_mmap", None)

    def _forget(self, nbytes: int) -> None:
        """Count the bytes read, and release the file's mapped pages when they are many."""
        self._touched += nbytes
        if self._touched > _TOUCHED and self._mapped is not None:
            self._touched = 0
            self._mapped.madvise(mmap.MADV_DONTNEED)


def _taken(array: StoredArray, file: _Descriptor, indices: Array) -> StoredArray:
    """Return these rows in a temporary file, which is deleted with the array."""
    folder = Path(str(array.filename)).parent if array.filename else Path(tempfile.gettempdir())
    with files.errors_as(DataError, f"{len(indices):,} rows of a large table cannot be kept in {folder}", "make room"):
        descriptor, name = tempfile.mkstemp(prefix=".rows-", dir=folder)
        os.close(descriptor)
        try:
            shape = (len(indices), array.shape[1])
            written = new_file(Path(name), shape)
            rows = min(_ROWS, max(1, _HELD // array.strides[0]))
            for start in range(0, len(indices), rows):
                part = indices[start : start + rows]
                scatter(written, np.arange(start, start + len(part)), array.read(file, part))
            written.flush()
            return StoredArray.open(name, shape)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(name)


def new_file(path: Path, shape: tuple[int, int]) -> np.memmap[Any, Any]:
    """Return a new float32 array in a file with reserved disk space; raises ``OSError`` if there is not enough."""
    with path.open("wb") as file:
        # Without reserved space, writing to the mapping could end the process with a signal.
        os.posix_fallocate(file.fileno(), 0, max(1, 4 * shape[0] * shape[1]))
    return np.memmap(path, np.float32, "r+", 0, shape)


def scatter(array: np.memmap[Any, Any], places: Array, rows: Array) -> None:
    """Write rows to their positions in a new file, a few at a time, and release its mapped pages."""
    for start in range(0, len(places), _ROWS):
        array[places[start : start + _ROWS]] = rows[start : start + _ROWS]
        array._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]


class ShuffleBuckets:
    """Rows that arrive in one order and are read in another: temporary files, one for each range of positions.

    Args:
        opened: closes the files.
        folder: the folder for the files.
        rows: the number of rows, with positions 0 to ``rows - 1``.
        width: float32 numbers per row.

    Raises:
        OSError: a file cannot be written.
    """

    def __init__(self, opened: contextlib.ExitStack, folder: Path, rows: int, width: int) -> None:
        self._rows, self._width = rows, width
        self._each = max(1, _BUCKET // (4 * width), -(-rows // _MOST_BUCKETS))
        count = -(-rows // self._each)
        self._files = [opened.enter_context(tempfile.TemporaryFile(dir=folder)) for _ in range(count)]  # noqa: SIM115  # opened closes them
        self._type = np.dtype([("place", np.int64), ("row", np.float32, (width,))])

    def add(self, places: npt.NDArray[np.intp], rows: Array) -> None:
        """Add rows, ``(rows, width)`` float32, for these positions; raises ``OSError``."""
        order = np.argsort(places, kind="stable")
        records = np.empty(len(places), self._type)
        records["place"], records["row"] = places[order], rows[order]
        bounds = np.searchsorted(records["place"], np.arange(len(self._files) + 1) * self._each)
        for file, start, stop in zip(self._files, bounds[:-1], bounds[1:], strict=True):
            if stop > start:
                file.write(records[start:stop].tobytes())

    def in_order(self) -> Iterator[Array]:
        """Yield all rows in the order of their positions, one bucket at a time; raises ``OSError``."""
        for index, file in enumerate(self._files):
            file.flush()
            file.seek(0)
            records = np.frombuffer(file.read(), self._type)
            found = np.empty((min(self._each, self._rows - index * self._each), self._width), np.float32)
            found[records["place"] - index * self._each] = records["row"]
            file.close()  # this frees its disk space
            yield found
