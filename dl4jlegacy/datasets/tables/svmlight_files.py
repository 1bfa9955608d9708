"""SVMLight and LIBSVM files: a label and ``index:value`` pairs on each line; missing values are 0.

They become tables with a column ``label``, or ``label 3`` for each of several labels (``1,3``), and feature columns
named by index: ``1``, ``2`` ... Indices count from 1, or from 0 if an index is 0. numpy converts the text to numbers in
chunks of whole lines; ``qid:`` and comments are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.columns.table import Column, Table
from dl4jlegacy.datasets.tables.text_rows import open_table, opened_bytes
from dl4jlegacy.errors import DataError, counted

__all__ = [
    "LABEL",
    "MOST_COLUMNS",
    "SparseRows",
    "Survey",
    "TooWideError",
    "count_lines",
    "label_column",
    "numbered_columns",
    "sparse_blocks",
    "survey",
    "svmlight_tables",
    "word_of",
]

LABEL = "label"
"""The name of the label column, if each line has one label."""
MOST_COLUMNS = 100_000
"""Maximum columns of a dense table; a schema names each of them."""
_CHUNK = 4 << 20
_LONGEST = 1 << 28  # bytes of a line
_MOST_INDEX = 1 << 53  # float64 has all whole numbers up to this
_SHOWN = 60  # characters of a value in an error message

_NUMBER = rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_WRONG_LABEL = re.compile(rb"(?m)^(?!" + _NUMBER + rb"(?:," + _NUMBER + rb")*[ \n])[^\n]")
_WRONG_PAIR = re.compile(rb" (?![0-9]+:" + _NUMBER + rb"[ \n])[^ \n]")
_COMMENT = re.compile(rb"#[^\n]*")
_LEADING = re.compile(rb"(?m)^ +")
_QUERY = re.compile(rb"(?m)^([^ \n]+ +)qid:[0-9]+(?=[ \n])")
_SPACES = bytes.maketrans(b"\r\t\v\f", b"    ")
_APART = bytes.maketrans(b":,", b"  ")


@dataclass(frozen=True, slots=True, eq=False)
class SparseRows:
    """Some lines of a file that are not empty.

    Attributes:
        name: the file's name.
        lines: the number of each line, from 1, ``(rows,)``.
        labels: all labels of all lines, float64.
        label_counts: the number of labels of each line, ``(rows,)``.
        indices: of all pairs, in the order of the file.
        values: of all pairs, float64.
        pair_counts: the number of pairs of each line, ``(rows,)``.
    """

    name: str
    lines: npt.NDArray[np.int64]
    labels: npt.NDArray[np.float64]
    label_counts: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]
    pair_counts: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.lines)

    def between(self, start: int, stop: int) -> SparseRows:
        """Return rows ``start`` to ``stop`` (exclusive), as views."""
        labels = slice(int(self.label_counts[:start].sum()), int(self.label_counts[:stop].sum()))
        pairs = slice(int(self.pair_counts[:start].sum()), int(self.pair_counts[:stop].sum()))
        rows = slice(start, stop)
        return SparseRows(
            self.name,
            self.lines[rows],
            self.labels[labels],
            self.label_counts[rows],
            self.indices[pairs],
            self.values[pairs],
            self.pair_counts[rows],
        )

    def line_of_pair(self, pair: int) -> int:
        """Return the line number of a pair."""
        return int(self.lines[np.searchsorted(np.cumsum(self.pair_counts), pair, side="right")])

    def single_labels(self) -> npt.NDArray[np.float64]:
        """Return the label of each row, ``(rows,)``; raises ``DataError`` for a line with several labels."""
        if len(self.labels) != len(self.lines):
            row = int((self.label_counts != 1).argmax())
            several = self.between(row, row + 1).labels
            raise DataError(
                f"{self.name}, line {self.lines[row]}: {len(several)} labels, {','.join(map(word_of, several))}, and a "
                "class, or a number to predict, is one; if they do not exclude each other, train with --multi-label"
            )
        return self.labels


def word_of(label: float) -> str:
    """Return a label as a word: ``1`` for ``1``, ``+1`` and ``1.0``."""
    return str(int(label)) if float(label).is_integer() else repr(float(label))


def label_column(label: float) -> str:
    """Return the name of the column for one of several labels."""
    return f"{LABEL} {word_of(label)}"


def numbered_columns(count: int, first: int = 1) -> tuple[Column, ...]:
    """Return ``count`` feature columns, named by index."""
    return tuple(Column(str(index)) for index in range(first, first + count))


# -- reading -----------------------------------------------------------------------------------------------------------


def sparse_blocks(file: BinaryIO, name: str, *, chunk: int = _CHUNK) -> Iterator[SparseRows]:
    """Yield the lines of a file in blocks of about ``chunk`` bytes.

    Args:
        file: open for reading, gzipped or not; may be a pipe. It is closed at the end.
        name: the file's name, for messages.
        chunk: bytes read at a time.

    Raises:
        DataError: the file cannot be read, has no line with a label, or a line is wrong: names file, line and value.
    """
    is_empty = True
    with opened_bytes(file, name) as content:
        for first, text in _whole_lines(content, name, chunk):
            found = _parsed(text, name, first)
            if len(found):
                is_empty = False
                yield found
    if is_empty:
        raise DataError(f"{name} holds no examples; expected a label and index:value pairs on each line")


def _whole_lines(content: BinaryIO, name: str, chunk: int) -> Iterator[tuple[int, bytes]]:
    """Yield chunks of whole lines, each with the number of its first line; all end with a line break."""
    line, pending, is_first = 1, b"", True
    while data := content.read(chunk):
        if is_first:
            data, is_first = data.removeprefix(b"\xef\xbb\xbf"), False
        cut = data.rfind(b"\n") + 1
        if not cut:
            pending += data
            if len(pending) > _LONGEST:
                raise DataError(
                    f"{name}, line {line} has more than {counted(_LONGEST, 'byte')}; is it an SVMLight file?"
                )
            continue
        text = pending + data[:cut]
        yield line, text
        line, pending = line + text.count(b"\n"), data[cut:]
    if pending:
        yield line, pending + b"\n"


def _parsed(text: bytes, name: str, first: int) -> SparseRows:
    """Return whole lines as numbers; ``first`` is the number of the first line."""
    text = text.translate(_SPACES)
    if b"#" in text:
        text = _COMMENT.sub(b"", text)
    text = _LEADING.sub(b"", text)
    if b"qid:" in text:
        text = _QUERY.sub(rb"\1", text)
    wrong_label, wrong_pair = _WRONG_LABEL.search(text), _WRONG_PAIR.search(text)
    if wrong_label or wrong_pair:
        raise _wrong(text, name, first, wrong_label, wrong_pair)
    return _numbers(text, name, first)


def _numbers(text: bytes, name: str, first: int) -> SparseRows:
    """Return well-formed lines as numbers."""
    codes = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(codes == ord("\n"))
    starts = np.concatenate([[0], ends[:-1] + 1])
    there = ends > starts
    starts, ends = starts[there], ends[there]
    lines = first + np.flatnonzero(there)
    pair_counts = _counted_between(codes, ":", starts, ends)
    label_counts = _counted_between(codes, ",", starts, ends) + 1
    numbers = np.fromstring(text.translate(_APART), np.float64, sep=" ") if there.any() else np.zeros(0)
    sizes = label_counts + 2 * pair_counts
    if len(numbers) != sizes.sum():
        raise DataError(f"{name}, lines {first} to {first + len(there) - 1}: the numbers there cannot be told apart")
    within = np.arange(len(numbers)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    is_label = within < np.repeat(label_counts, sizes)
    pairs = numbers[~is_label].reshape(-1, 2)
    found = SparseRows(
        name,
        lines.astype(np.int64),
        numbers[is_label],
        label_counts,
        np.minimum(pairs[:, 0], _MOST_INDEX).astype(np.int64),
        pairs[:, 1],
        pair_counts,
    )
    _check(found)
    return found


def _counted_between(codes: Array, mark: str, starts: Array, ends: Array) -> npt.NDArray[np.int64]:
    """Return the number of occurrences of a character in each line."""
    places = np.flatnonzero(codes == ord(mark))
    return np.asarray(np.searchsorted(places, ends) - np.searchsorted(places, starts), np.int64)


def _check(found: SparseRows) -> None:
    """Raise ``DataError`` if the indices of a line do not ascend, or a number overflows."""
    ascends = np.diff(found.indices) > 0
    ends = np.cumsum(found.pair_counts)
    ascends[ends[(ends > 0) & (ends < len(found.indices))] - 1] = True  # between two lines
    if not ascends.all():
        pair = int((~ascends).argmax()) + 1
        before, index = found.indices[pair - 1], found.indices[pair]
        what = f"index {index} is there twice" if before == index else f"index {index} stands behind index {before}"
        raise DataError(
            f"{found.name}, line {found.line_of_pair(pair)}: {what}; the indices of a line ascend, and each is there "
            "once: sort them, or correct the index"
        )
    if not np.isfinite(found.values).all():
        pair = int((~np.isfinite(found.values)).argmax())
        raise DataError(
            f"{found.name}, line {found.line_of_pair(pair)}, index {found.indices[pair]}: the value is not a finite "
            "number in float64; correct it, or leave the line out"
        )
    if not np.isfinite(found.labels).all():
        label = int((~np.isfinite(found.labels)).argmax())
        line = found.lines[np.searchsorted(np.cumsum(found.label_counts), label, side="right")]
        raise DataError(f"{found.name}, line {line}: the label is not a finite number in float64; correct it")


def _wrong(
    text: bytes, name: str, first: int, label: re.Match[bytes] | None, pair: re.Match[bytes] | None
) -> DataError:
    """Return the error for the first malformed line."""
    is_label = label is not None and (pair is None or label.start() <= pair.start())
    found = label if is_label else pair
    assert found is not None
    start = found.start() if is_label else found.start() + 1
    line = first + text.count(b"\n", 0, start)
    stop = min(place for mark in (b" ", b"\n") if (place := text.find(mark, start)) >= 0)
    token = text[start:stop].decode("utf-8", "backslashreplace")
    token = token if len(token) <= _SHOWN else f"{token[:_SHOWN]} ..."
    return DataError(f"{name}, line {line}: {_about_label(token) if is_label else _about_pair(token)}")


def _about_label(token: str) -> str:
    if ":" in token:
        return f"the line begins with {token!r}, and its label is absent; write one in front (0 in rows to predict)"
    if _is_not_finite(token):
        return f"the label {token!r} is not a finite number; correct it, or leave the line out"
    return (
        f"the label {token!r} is not a number; write a class as a whole number, a number to predict, or several labels "
        "with commas between them"
    )


def _about_pair(token: str) -> str:
    index, colon, value = token.partition(":")
    if not colon:
        return f"{token!r} is no index:value pair; separate pairs by spaces, and begin a comment with #"
    if index == "qid":
        return f"{token!r} is no number of a query behind the label; write qid:1, or leave it out"
    if re.fullmatch(r"-[0-9]+", index):
        return f"index {index} in {token!r} is negative; indices are whole numbers from 1, or from 0"
    if re.fullmatch(r"[0-9]+", index) is None:
        return f"index {index!r} in {token!r} is not a whole number; indices count from 1, or from 0"
    if _is_not_finite(value):
        return f"index {index}: {value!r} is not a finite number; correct it, or leave the line out"
    return f"index {index}: {value!r} is not a number; correct it, or leave the pair out if the value is 0"


def _is_not_finite(text: str) -> bool:
    return re.fullmatch(r"[+-]?(nan|inf|infinity)", text, re.IGNORECASE) is not None


class TooWideError(DataError):
    """A file has more columns than a dense table may have."""


# -- totals over files -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Survey:
    """The totals over the files of a data set.

    Attributes:
        rows: the number of rows.
        first: the index of the first feature, 0 or 1.
        last: the largest index.
    """

    rows: int
    first: int
    last: int

    @property
    def columns(self) -> int:
        """The number of features."""
        return self.last - self.first + 1


def survey(paths: Sequence[Path], look: Callable[[SparseRows], None] = lambda rows: None) -> Survey:
    """Return the totals over the files. Each file is read once; ``look`` is called with every block.

    Raises:
        DataError: as ``sparse_blocks``; or there is no pair in any line, or an index that is too large for a table.
    """
    rows, first, last = 0, 1, 0
    for path in paths:
        for block in sparse_blocks(open_table(path), str(path)):
            rows += len(block)
            if len(block.indices):
                largest = int(block.indices.argmax())
                first, last = min(first, int(block.indices.min())), max(last, int(block.indices[largest]))
                if last - first >= MOST_COLUMNS:
                    raise TooWideError(
                        f"{path}, line {block.line_of_pair(largest)}: index {last:,} makes a dense table of "
                        f"{counted(last - first + 1, 'column')}, and {MOST_COLUMNS:,} fit at most; correct the index, "
                        "or number the features anew, without those that are rare"
                    )
            look(block)
    if last < first:
        raise DataError(f"{paths[0]} has no index:value pair with an index from 1 on; there is nothing to learn from")
    return Survey(rows, first, last)


def count_lines(path: Path) -> int:
    """Return the number of lines of a file, including empty ones; raises ``DataError``."""
    with opened_bytes(open_table(path), str(path)) as content:
        count, last = 0, b"\n"
        while data := content.read(_CHUNK):
            count, last = count + data.count(b"\n"), data[-1:]
        return count + (last != b"\n")


# -- dense tables ------------------------------------------------------------------------------------------------------


def svmlight_tables(
    file: BinaryIO, name: str, known: Sequence[Column], wanted: Sequence[Column], rows: int
) -> Iterator[Table]:
    """Yield the rows of a file as tables of at most ``rows`` rows.

    Args:
        file: open for reading, gzipped or not; may be a pipe. It is closed at the end.
        name: the file's name, for messages.
        known: all columns of the schema: an index beyond the largest of them is an error.
        wanted: the columns to read; other indices are ignored.
        rows: of a table.

    Raises:
        DataError: as ``sparse_blocks``; or the file does not fit the columns; names line and index.
    """
    try:
        features = _feature_indices(name, known)
    except DataError:
        file.close()
        raise
    first, last = min(features.values()), max(features.values())
    slots = np.full(last + 1, -1)
    kept = [column.name for column in wanted if column.name in features]
    slots[[features[column] for column in kept]] = np.arange(len(kept))
    for block in sparse_blocks(file, name):
        _check_indices(block, first, last)
        for start in range(0, len(block), rows):
            part = block.between(start, start + rows)
            yield _table(part, wanted, {column: slot for slot, column in enumerate(kept)}, slots)


def _feature_indices(name: str, known: Sequence[Column]) -> dict[str, int]:
    """Return the index of each feature column."""
    features: dict[str, int] = {}
    for column in known:
        if re.fullmatch(r"[0-9]{1,16}", column.name):
            features[column.name] = int(column.name)
        elif column.name != LABEL and not column.name.startswith(f"{LABEL} "):
            raise DataError(
                f"{name} has columns called {LABEL}, 1, 2 and so on, by their indices, and none called "
                f"{column.name!r}, which the schema has; is it the right file, or the right model?"
            )
    if not features:
        raise DataError(f"{name}: the schema has no column called by an index, such as 1; there is nothing to read")
    return features


def _check_indices(block: SparseRows, first: int, last: int) -> None:
    wrong = (block.indices > last) | (block.indices < min(first, 1))
    if not wrong.any():
        return
    pair = int(wrong.argmax())
    index, where = block.indices[pair], f"{block.name}, line {block.line_of_pair(pair)}"
    if index == 0:
        raise DataError(
            f"{where}: index 0, and the data that the schema was made of count from 1; count these from 1, too"
        )
    raise DataError(
        f"{where}: index {index} is larger than {last}, the largest in the data that the schema was made of, or that "
        "the model learned from; leave it out, or train anew with these data"
    )


def _table(part: SparseRows, wanted: Sequence[Column], places: Mapping[str, int], slots: Array) -> Table:
    dense = np.zeros((len(places), len(part)))
    rows, columns = np.repeat(np.arange(len(part)), part.pair_counts), slots[part.indices]
    there = columns >= 0
    dense[columns[there], rows[there]] = part.values[there]
    found: dict[str, Array] = {}
    for column in wanted:
        if column.name in places:
            found[column.name] = _cells(dense[places[column.name]], column)
        elif column.name == LABEL:
            found[column.name] = _cells(part.single_labels(), column)
        else:
            found[column.name] = _is_labelled(part, column.name)
    return Table(part.name, found, part.lines, {})


def _cells(values: Array, column: Column) -> Array:
    """Return the values of a number column unchanged, of a category column as words."""
    if column.type == "number":
        return values
    different, numbers = np.unique(values, return_inverse=True)
    words = np.empty(len(different), object)
    words[:] = [word_of(value) for value in different.tolist()]
    found: Array = words[numbers]
    return found


def _is_labelled(part: SparseRows, column: str) -> Array:
    """Return 1 for each row with the label in the column's name, 0 for other rows."""
    is_it = np.array([label_column(label) == column for label in np.unique(part.labels).tolist()])
    found = np.zeros(len(part))
    rows = np.repeat(np.arange(len(part)), part.label_counts)
    found[rows[is_it[np.unique(part.labels, return_inverse=True)[1]]]] = 1.0
    return found
