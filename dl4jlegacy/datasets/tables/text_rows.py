"""Reads the rows of CSV files and JSON lines as texts, cell by cell, each with its line number."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import itertools
import json
import re
import zlib
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, TextIO, cast

import msgspec

from dl4jlegacy.errors import DataError, counted, nearest
from dl4jlegacy.system import files

__all__ = [
    "MISSING",
    "Row",
    "csv_rows",
    "delimiter_of",
    "is_excels",
    "is_number",
    "is_plain",
    "json_rows",
    "open_table",
    "opened_bytes",
    "rows_of",
    "why_no_features",
    "why_ragged",
]

MISSING = ("", "?", "n/a", "na", "nan", "none", "null")
"""Cells that mark a missing value, in lower case."""
_DELIMITERS = ",;\t|"
_JSON_LINES = "JSON is read from .jsonl files with one object a line; of an array: jq -c '.[]' FILE > NEW.jsonl"
_JSON = re.compile(r'\s*(\[\s*)?\{\s*("|$)|\s*\[\s*$')
"""The beginning of a first line that is JSON."""
_LONGEST_LINE = 1 << 24
"""Maximum characters of a line; a file without line breaks is no CSV file, and must not fill the memory."""
_GZIP = b"\x1f\x8b"
_SHOWN = 60  # characters of a value, or columns, in an error message
Row = tuple[int, list[str]]
"""The number of a row, or of its line, from 1, and its cells."""


def open_table(path: Path) -> BinaryIO:
    """Return a table's file, open for reading; raises ``DataError``."""
    with files.errors_as(DataError, f"cannot read {path}"):
        return files.open_to_read(path)


@contextlib.contextmanager
def opened_bytes(file: BinaryIO, name: str, *, close: bool = True) -> Iterator[io.BufferedReader]:
    """Yield the contents of a file, decompressed if it is gzipped; closes the file unless ``close`` is False.

    Raises:
        DataError: the file cannot be read, or is a damaged gzip file; also for read errors inside the context.
    """
    with files.errors_as(DataError, f"cannot read {name}"), contextlib.ExitStack() as opened:
        if close:
            opened.enter_context(file)
        content = file if isinstance(file, io.BufferedReader) else io.BufferedReader(cast(io.RawIOBase, file))
        try:
            if content.peek(2)[:2] == _GZIP:
                content = io.BufferedReader(cast(io.RawIOBase, opened.enter_context(gzip.GzipFile(fileobj=content))))
            yield content
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataError(f"cannot read {name}: it is a damaged gzip file: {error}") from error


@contextlib.contextmanager
def opened_text(file: BinaryIO, name: str) -> Iterator[TextIO]:
    """Yield the UTF-8 text of a file, decompressed; the file is closed at the end. Raises as ``opened_bytes``."""
    with opened_bytes(file, name) as content, io.TextIOWrapper(content, "utf-8-sig", newline="") as text:
        yield text


def csv_rows(file: BinaryIO, name: str) -> Generator[Row, None, None]:
    """Yield the rows of a CSV file that are not empty, each with the number of its (last) line, from 1.

    The first line determines the delimiter; gzipped files are decompressed.

    Args:
        file: open for reading; may be a pipe. It is closed at the end.
        name: the file's name, for messages.

    Raises:
        DataError: the file cannot be read, or is no CSV file in UTF-8; names the line.
    """
    with opened_text(file, name) as text:
        yield from rows_of(text, name)


def delimiter_of(line: str) -> str:
    """Return the delimiter of a line: the most frequent one of the known delimiters."""
    return max(_DELIMITERS, key=line.count)


def is_excels(line: str) -> bool:
    """Return whether the first line of a CSV file is ``sep=;``, which tells Excel the delimiter."""
    return re.fullmatch(r'"?sep=.?"?[\r\n]*', line, re.IGNORECASE) is not None


def why_ragged(row: Sequence[str], width: int) -> str:
    """Return advice about a row whose number of cells is not ``width``, as the end of an error message."""
    if row[0].lstrip().startswith("#"):
        return "; comments are not passed over: delete the line"
    if len(row) == width + 1 and not row[-1].strip():
        return "; the line ends in a delimiter: delete that, in all lines"
    return ""


def why_no_features(row: Sequence[str]) -> str:
    """Return what is wrong with a first row of too few cells, with advice."""
    said = f"only {counted(len(row), 'column')}; expected features and a label"
    if row[0].lstrip().startswith("#"):
        return f"{said}; comments are not passed over: delete the line"
    return f"{said}; cells stand between commas, semicolons, tabs or |"


def rows_of(file: TextIO, name: str, *, delimiter: str = "", before: int = 0) -> Iterator[Row]:
    """Yield the rows of a text that are not empty, each with the number of its line.

    Args:
        file: the text.
        name: the file's name, for messages.
        delimiter: between the cells; "": determined by the first line.
        before: the number of earlier lines of the file that are not in the text.

    Raises:
        DataError: the text is no CSV; names the line.
    """
    line = before
    try:
        lines = _lines(file, name, before=before)
        head = next(lines, "")
        if not before and _JSON.match(head):
            raise DataError(f"{name}, line 1: {_shown(head.strip())} is JSON, and no row of a CSV file; {_JSON_LINES}")
        if not before and is_excels(head):
            delimiter, before, head = head.strip().strip('"')[4:], 1, next(lines, "")
        reader = csv.reader(itertools.chain([head], lines), delimiter=delimiter or delimiter_of(head), strict=True)
        for row in reader:
            line = before + reader.line_num
            if any(map(str.strip, row)):
                yield line, row
    except csv.Error as error:
        raise DataError(f"{name} is not a CSV file in UTF-8: {error} (near line {line + 1})") from error


def _lines(file: TextIO, name: str, kind: str = "a CSV file", *, before: int = 0) -> Iterator[str]:
    """Yield the lines of a file; raises ``DataError`` for invalid UTF-8, or for a line that is too long."""
    for number in itertools.count(before + 1):
        try:
            line = file.readline(_LONGEST_LINE + 1)
        except UnicodeDecodeError as error:  # the error is in text read ahead from this line on
            wrong = number + error.object.count(b"\n", 0, error.start)
            said = f"line {wrong} has {error.object[error.start : error.end]!r}, which is no text in UTF-8"
            raise DataError(f"{name} is not {kind} in UTF-8: {said}; save it in this encoding") from error
        if len(line) > _LONGEST_LINE:
            raise DataError(f"{name}, line {number} has more than {counted(_LONGEST_LINE, 'character')}; is it {kind}?")
        if not line:
            return
        yield line


def is_plain(text: str) -> bool:
    """Return whether ``text`` is ASCII without ``_``; Python also reads ``1_000`` and digits of other scripts."""
    return text.isascii() and "_" not in text


def is_number(cell: str) -> bool:
    """Return whether a cell is a number, including NaN and infinity."""
    if not is_plain(cell):
        return False
    try:
        float(cell)
    except ValueError:
        return False
    return True


# -- JSON lines --------------------------------------------------------------------------------------------------------


def json_rows(file: BinaryIO, name: str) -> Generator[Row, None, None]:
    """Yield the column names as row 0, and then the objects of a file of JSON lines as rows.

    The first object determines the columns; all other objects must have them, in any order. Empty lines are skipped;
    ``null`` is a missing value.

    Args:
        file: open for reading, gzipped or not. It is closed at the end.
        name: the file's name, for messages.

    Raises:
        DataError: names line, column and value.
    """
    names: list[str] | None = None
    with opened_text(file, name) as text:
        for number, line in enumerate(_lines(text, name, "a file of JSON lines"), 1):
            if not line.strip():
                continue
            found = _json_object(line, f"{name}, line {number}")
            if names is None:
                names = list(found)
                yield 0, names
            yield number, _json_cells(found, names, f"{name}, line {number}")


def _json_object(line: str, where: str) -> dict[str, object]:
    try:
        found = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        found = _with_constants(line)
        if found is None:
            remedy = f"; {_JSON_LINES}" if line.lstrip().startswith("[") else ""
            raise DataError(f"{where}: {_shown(line.strip())} is not JSON: {error}{remedy}") from error
    if not isinstance(found, dict):
        raise DataError(f'{where}: {_shown(line.strip())} is no JSON object; each line is one, such as {{"age": 3}}')
    return found


def _with_constants(line: str) -> object:
    """Return the object in a line with NaN or Infinity, which Python writes but JSON does not allow; None if invalid.

    NaN is a missing value, as everywhere.
    """
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(
            line, parse_constant=lambda name: None if name == "NaN" else float(name.replace("inity", ""))
        )
        if isinstance(found, dict):  # half surrogate pairs, which Python reads, are no valid text
            "".join(each for pair in found.items() for each in pair if isinstance(each, str)).encode()
        return found
    return None


def _json_cells(found: dict[str, object], names: Sequence[str], where: str) -> list[str]:
    if len(found) != len(names) or any(name not in found for name in names):
        for name in names:
            if name not in found:
                raise DataError(
                    f"{where}: column {name!r} is not there, which the first object has; write null for no value"
                )
        extra = next(name for name in found if name not in names)
        raise DataError(
            f"{where}: column {extra!r} ({_shown(found[extra])}) is not in the first object"
            f"{nearest(extra, list(names[:_SHOWN]))}; all objects have the same columns, null for no value"
        )
    return [_json_cell(found[name], name, where) for name in names]


def _json_cell(value: object, column: str, where: str) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    what = "a list" if isinstance(value, list) else "an object"
    raise DataError(f"{where}, column {column!r}: {_shown(value)} is {what}; a cell is one number or text")


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ..."
