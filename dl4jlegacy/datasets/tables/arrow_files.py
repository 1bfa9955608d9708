"""Reads Parquet, Arrow and Feather files with pyarrow: columns as numbers and words, in blocks of rows.

A cell is read as it would stand in a CSV file: null and NaN are gaps (missing values), booleans are the words true and
false, times are the words that Arrow writes, and decimal numbers become the nearest float64.

Arrow trusts offsets and lengths in a file. So every batch is validated before it is read; otherwise a damaged file
could expose other memory of this process, or crash it.

Arrow's threads must never hold a Python object: a thread that releases one while Python exits is stopped there, and the
process ends with status 134. So Arrow reads operating system files, or its own memory.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.tables.header import check_different
from dl4jlegacy.datasets.tables.pandas_index import listed_columns
from dl4jlegacy.datasets.tables.text_rows import Row
from dl4jlegacy.errors import DataError
from dl4jlegacy.system import files

__all__ = ["ArrowFile", "arrow_rows", "in_arrow_memory", "opened_arrow"]

_ROWS = 8192
_BUFFER = 1 << 20  # bytes of a column read at a time, instead of a whole row group
_SHOWN = 60  # characters of a value in an error message
_ARROW, _STREAM, _FEATHER_1 = b"ARROW1", b"\xff\xff\xff\xff", b"FEA1"


@dataclass(frozen=True, slots=True)
class ArrowFile:
    """An open file: the names of its columns, the columns that are pandas' index, and its batches of rows."""

    name: str
    names: tuple[str, ...]
    index: tuple[str, ...]
    _schema: Any
    _read: Any
    gaps: ClassVar[frozenset[str]] = frozenset(("",))
    """Texts that mark a gap in the result of ``texts``."""

    def blocks(self, rows: int, columns: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
        """Yield columns of the file (default: all) in blocks of ``rows`` rows; only the last block may have fewer.

        Raises:
            DataError: the file is damaged, or one of the columns holds lists, objects or bytes; names a cell of it.
        """
        for index, batch in enumerate(self._batches(list(columns or self.names), rows)):
            if not index:
                self._check_flat(batch)
            yield dict(zip(batch.column_names, batch.columns, strict=True))

    def _batches(self, columns: list[str], rows: int) -> Iterator[Any]:
        import pyarrow

        pending: list[Any] = []
        waiting = 0
        with files.damage_as(DataError, f"cannot read {self.name}"):
            for batch in self._read(columns, rows):
                batch.validate(full=True)
                pending.append(batch)
                waiting += len(batch)
                if waiting >= rows:
                    whole = pyarrow.Table.from_batches(pending)
                    used = waiting - waiting % rows
                    for start in range(0, used, rows):
                        yield whole.slice(start, rows)
                    waiting -= used
                    pending = whole.slice(used).to_batches() if waiting else []
            if waiting:
                yield pyarrow.Table.from_batches(pending)

    def _check_flat(self, batch: Any) -> None:
        """Raise ``DataError`` if a column of the file's first batch has cells that are neither numbers nor words."""
        from pyarrow import types

        for field in batch.schema:
            if types.is_nested(field.type) or _is_binary(types, field.type):
                values = batch.column(field.name)
                row = next((i for i in range(len(values)) if values[i].is_valid), 0)
                shown = repr(values[row].as_py())
                raise DataError(
                    f"{self.name}, row {1 + row}, column {field.name!r}: "
                    f"{shown if len(shown) <= _SHOWN else shown[:_SHOWN] + ' ...'} ({field.type}); a cell is one "
                    "number or text: write each part into a column of its own, or leave the column out"
                )

    @staticmethod
    def numbers(values: Any) -> Array | None:
        """Return a column as float64, NaN for a gap, ``(rows,)``; None if it holds texts, booleans, times or decimals.

        Infinite values are not changed.
        """
        import pyarrow
        from pyarrow import types

        kind = values.type
        if types.is_null(kind):
            return np.full(len(values), np.nan)
        if not (types.is_integer(kind) or types.is_floating(kind)):
            return None
        if not types.is_float64(kind):
            values = values.cast(pyarrow.float64(), safe=False)
        if values.num_chunks == 1 and not values.null_count:
            values = values.chunk(0)  # a single chunk, which to_numpy does not copy
        found: Array = values.to_numpy()
        return found

    @staticmethod
    def texts(values: Any) -> list[str]:
        """Return the cells of a column as they would stand in a CSV file, "" for a gap."""
        codes, words = ArrowFile.coded(values)
        with_gap = [*words, ""]
        return [with_gap[code] for code in codes.tolist()]

    @staticmethod
    def coded(values: Any) -> tuple[Array, list[str]]:
        """Return each cell's index in a list of distinct texts, ``(rows,)``, or -1 for a gap; and the list."""
        import pyarrow
        from pyarrow import types

        if types.is_null(values.type):
            return np.full(len(values), -1), []
        if not types.is_dictionary(values.type):
            values = values.dictionary_encode()
        whole = values.unify_dictionaries()
        numbers = [chunk.indices.cast(pyarrow.int64()) for chunk in whole.chunks]  # some are unsigned
        codes = [each.fill_null(-1).to_numpy(zero_copy_only=False) for each in numbers]
        return np.concatenate(codes), _words(whole.chunk(0).dictionary)


def _words(values: Any) -> list[str]:
    import pyarrow

    if pyarrow.types.is_floating(values.type):
        return ["" if value is None or math.isnan(value) else repr(float(value)) for value in values.to_pylist()]
    return [text or "" for text in values.cast(pyarrow.string()).to_pylist()]


def _is_binary(types: Any, kind: Any) -> bool:
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))


@contextlib.contextmanager
def opened_arrow(file: BinaryIO, name: str) -> Iterator[ArrowFile]:
    """Yield an open Parquet, Arrow or Feather file, distinguished by its first bytes; it is closed at the end.

    Raises:
        DataError: the file is none of these or damaged, or has two columns of one name, or no rows.
    """
    with files.errors_as(DataError, f"cannot read {name}"), contextlib.ExitStack() as opened:
        opened.enter_context(file)
        with files.damage_as(DataError, f"cannot read {name}"):
            start = file.read(6)
            file.seek(0)
            if not start:
                raise DataError(f"{name} is empty; expected a table of rows")
            if start[:4] == _FEATHER_1:
                raise DataError(f"{name} is a Feather file of version 1; write it anew, by version 2 or as Parquet")
            is_arrow = start == _ARROW or start[:4] == _STREAM
            native = opened.enter_context(_native(file))
            schema, read = _arrow(native, start) if is_arrow else _parquet(native)
            names = tuple(schema.names)
        check_different(names, name)
        yield ArrowFile(name, names, listed_columns(names, schema.metadata), schema, read)


def _native(file: BinaryIO) -> Any:
    """Return the file as a pyarrow file; if it is no operating system file, its contents in memory.

    It is opened by its descriptor, because another file may have its name meanwhile.
    """
    import pyarrow

    with contextlib.suppress(OSError):
        path = Path("/proc/self/fd", str(file.fileno()))
        if path.is_file():
            return pyarrow.OSFile(str(path))
    return in_arrow_memory(file.read())


def in_arrow_memory(content: bytes) -> Any:
    """Return a pyarrow file with a copy of ``content`` that is no Python object."""
    import pyarrow

    buffer = pyarrow.allocate_buffer(len(content))
    memoryview(buffer).cast("B")[:] = content
    return pyarrow.BufferReader(buffer)


def _parquet(file: Any) -> tuple[Any, Any]:
    import pyarrow.parquet

    source = pyarrow.parquet.ParquetFile(file, buffer_size=_BUFFER, pre_buffer=False)

    def read(columns: list[str], rows: int) -> Iterator[Any]:
        batches: Iterator[Any] = source.iter_batches(batch_size=rows, columns=columns, use_threads=False)
        return batches

    return source.schema_arrow, read


def _arrow(file: Any, start: bytes) -> tuple[Any, Any]:
    from pyarrow import ipc

    if start == _ARROW:
        source = ipc.open_file(file)
        count = source.num_record_batches
    else:
        source, count = ipc.open_stream(file), None

    def read(columns: list[str], rows: int) -> Iterator[Any]:
        found = source if count is None else map(source.get_batch, range(count))
        for batch in found:
            yield batch.select(columns)

    return source.schema, read


def arrow_rows(file: BinaryIO, name: str) -> Generator[Row, None, None]:
    """Yield the column names as row 0, and then the rows of a file as texts, numbered from 1.

    Raises:
        DataError: the file cannot be read, or a cell is neither number nor text; names the cell.
    """
    with opened_arrow(file, name) as source:
        yield 0, list(source.names)
        rows = (row for block in source.blocks(_ROWS) for row in zip(*map(source.texts, block.values()), strict=True))
        for number, row in enumerate(rows, 1):
            yield number, list(row)
