"""CSV files in chunks of whole lines, which pyarrow reads many times faster than Python, where that is safe.

pyarrow is used only if a chunk has no quote, no empty line and no cell that the two could read differently. Python
reads all other chunks cell by cell, and also reports errors. So the numbers are always those that Python reads.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.tables.arrow_files import ArrowFile, in_arrow_memory
from dl4jlegacy.datasets.tables.text_rows import Row, delimiter_of, is_excels, is_number, opened_bytes, rows_of

__all__ = ["CsvChunk", "CsvFile", "opened_chunks"]

_CHUNK = 8 << 20
_LONGEST = 1 << 24  # bytes of a first line, or of a chunk without a line break


@dataclass(frozen=True, slots=True)
class CsvChunk:
    """Whole lines of a file, or all its remaining lines.

    Attributes:
        name: the file's name.
        text: the lines.
        first: the number of the first line.
        delimiter: between the cells.
        rest: the file after the text to its end, if cells may extend over several lines.
    """

    name: str
    text: bytes
    first: int
    delimiter: str
    rest: io.BufferedReader | None = None

    def rows(self) -> Iterator[Row]:
        """Yield the rows as read by Python; raises ``DataError``."""
        content = io.BytesIO(self.text) if self.rest is None else io.BufferedReader(_Chained(self.text, self.rest))
        text = io.TextIOWrapper(content, "utf-8", newline="")
        return rows_of(text, self.name, delimiter=self.delimiter, before=self.first - 1)

    def columns(self, width: int, wanted: Mapping[int, bool], missing: frozenset[str]) -> dict[int, Any] | None:
        """Return some columns as read by pyarrow; None if Python must read the chunk.

        Args:
            width: the number of all columns.
            wanted: the columns to read, from 0, and whether each holds numbers.
            missing: cells that mark a missing value, in lower case.

        Returns:
            numbers as float64, NaN for a gap; words as indices into a list of distinct texts, and that list.
        """
        text = self.text
        lines = text.count(b"\n") + (not text.endswith(b"\n"))
        if self.rest is not None or b"\n\n" in text or b"\n\r\n" in text or text[:1] in (b"\n", b"\r"):
            return None
        if text.count(b"\r") != text.count(b"\r\n"):
            return None
        import pyarrow
        import pyarrow.csv

        names = [str(index) for index in range(width)]
        words = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
        try:
            found = pyarrow.csv.read_csv(
                in_arrow_memory(text),
                pyarrow.csv.ReadOptions(column_names=names, use_threads=False),
                pyarrow.csv.ParseOptions(delimiter=self.delimiter, quote_char=False, double_quote=False),
                pyarrow.csv.ConvertOptions(
                    column_types={str(i): pyarrow.float64() if number else words for i, number in wanted.items()},
                    include_columns=[str(i) for i in wanted],
                    null_values=_spellings(missing),
                    strings_can_be_null=False,
                ),
            )
        except pyarrow.ArrowException:
            return None
        if len(found) != lines:
            return None
        columns = {i: _numbers(found[str(i)]) if n else ArrowFile.coded(found[str(i)]) for i, n in wanted.items()}
        return None if any(column is None for column in columns.values()) else columns


def _spellings(missing: frozenset[str]) -> list[str]:
    found = {word for text in missing for word in (text, text.upper(), text.capitalize(), text.title())}
    return sorted(found | ({"NaN"} if "nan" in missing else set()))


def _numbers(column: Any) -> Array | None:
    """Return a numeric column; None if a cell was read as infinite, or as NaN without being a gap."""
    values: Array = column.to_numpy()
    return None if np.isinf(values).any() or np.isnan(values).sum() != column.null_count else values


class _Chained(io.RawIOBase):
    """Some bytes, followed by a file."""

    def __init__(self, first: bytes, rest: io.BufferedReader) -> None:
        self._first, self._rest = memoryview(first), rest

    def readable(self) -> bool:
        """See ``io.RawIOBase``."""
        return True

    def readinto(self, buffer: Any) -> int:
        """See ``io.RawIOBase``."""
        if not self._first:
            return self._rest.readinto(buffer)
        count = min(len(buffer), len(self._first))
        buffer[:count], self._first = self._first[:count], self._first[count:]
        return count


@dataclass(frozen=True, slots=True)
class CsvFile:
    """An open CSV file: its first row, the chunks after it, and a chunk with only that row."""

    first: Row
    head: CsvChunk
    chunks: Iterator[CsvChunk]


@contextlib.contextmanager
def opened_chunks(file: BinaryIO, name: str, missing: Sequence[str]) -> Iterator[CsvFile | None]:
    """Yield a CSV file in chunks; None, and the file untouched, if it must be read row by row, for instance a pipe.

    Raises:
        DataError: the file cannot be read.
    """
    if not _is_regular(file) or any(is_number(text) and text != "nan" for text in missing):
        yield None
        return
    start = file.tell()
    with contextlib.ExitStack() as owned:
        owned.enter_context(file)
        with opened_bytes(file, name, close=False) as content:
            found = _opened(content, name)
            if found is not None:
                yield found
                return
        file.seek(start)
        owned.pop_all()  # the row reader closes the file
    yield None


def _opened(content: io.BufferedReader, name: str) -> CsvFile | None:
    """Return the file in chunks, if its first line is an ASCII row without quotes, and not ``sep=;``; else None."""
    head = content.readline(_LONGEST)
    text = head.removeprefix(b"\xef\xbb\xbf")
    if not head.endswith(b"\n") or not text.isascii() or any(mark in text.rstrip(b"\r\n") for mark in (b'"', b"\r")):
        return None
    if is_excels(text.decode()):
        return None
    delimiter = delimiter_of(text.decode())
    cells = next(csv.reader([text.decode()], delimiter=delimiter))
    if not any(map(str.strip, cells)):
        return None
    return CsvFile((1, cells), CsvChunk(name, text, 1, delimiter), _chunks(content, name, delimiter))


def _is_regular(file: BinaryIO) -> bool:
    try:
        return stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    except (OSError, AttributeError):
        return False


def _chunks(content: io.BufferedReader, name: str, delimiter: str) -> Iterator[CsvChunk]:
    """Yield the lines after the first one; from the first quote on as one chunk, since cells may then span lines."""
    line, pending = 2, b""
    while data := content.read(_CHUNK):
        data = pending + data
        cut = data.rfind(b"\n") + 1
        if b'"' in data or (not cut and len(data) > _LONGEST):
            yield CsvChunk(name, data, line, delimiter, content)
            return
        yield CsvChunk(name, data[:cut], line, delimiter)
        line += data.count(b"\n", 0, cut)
        pending = data[cut:]
    if pending:
        yield CsvChunk(name, pending, line, delimiter)
