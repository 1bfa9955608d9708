"""Columns of a large table in a temporary file, with only a block of rows, or one column, in memory at a time.

Blocks are stored one after the other. In a block each column is contiguous, as float64; words are stored as numbers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.columns.table import Table

__all__ = ["ColumnStore"]

_LABEL, _LINE = "\0label", "\0line"  # no file has columns with these names
_NBYTES = 8


@dataclass(frozen=True, slots=True)
class _Block:
    """A stored block: its first row, its number of rows, its offset in the file, and the table from which it came."""

    first: int
    rows: int
    offset: int
    name: str
    places: Mapping[str, int]
    unit: str


class ColumnStore:
    """Stored rows of tables with the same columns, with labels, in order; used by one thread.

    Args:
        file: open for reading and writing, empty.
        tables: the tables to store, in this order.

    Attributes:
        rows: the number of rows.
        rows_of: the number of rows of each file, by its name.
        words: the distinct words of each column of words; their positions are the stored numbers.

    Raises:
        OSError: the file cannot be written. Errors of the tables are raised, too.
    """

    def __init__(self, file: BinaryIO, tables: Iterable[Table]) -> None:
        self._file, self._blocks, self._columns = file, list[_Block](), dict[str, int]()
        self.rows, self.rows_of, self.words = 0, dict[str, int](), dict[str, dict[str, int]]()
        offset = 0
        for table in tables:
            self.rows_of.setdefault(table.name, 0)
            if not len(table):
                continue
            values = self._as_numbers(table)
            file.write(np.ascontiguousarray(values).data)
            self._blocks.append(_Block(self.rows, len(table), offset, table.name, table.places, table.unit))
            self.rows, offset = self.rows + len(table), offset + values.nbytes
            self.rows_of[table.name] += len(table)
        file.flush()

    def _as_numbers(self, table: Table) -> Array:
        assert table.labels is not None
        several = table.labels.ndim > 1
        labels = {f"{_LABEL}{i}": y for i, y in enumerate(table.labels.T)} if several else {_LABEL: table.labels}
        columns = {**table.columns, **labels, _LINE: table.lines}
        self._columns = self._columns or {name: index for index, name in enumerate(columns)}
        values = np.empty((len(columns), len(table)))
        for name, index in self._columns.items():
            column = columns[name]
            if column.dtype == object:
                known = self.words.setdefault(name, {})
                values[index] = [known.setdefault(word, len(known)) for word in column.tolist()]
            else:
                values[index] = column
        return values

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, without the label."""
        return tuple(name for name in self._columns if not name.startswith((_LABEL, _LINE)))

    def empty(self) -> Table:
        """Return a table with these columns, and no rows."""
        return self._table(self._blocks[0], np.empty((len(self._columns), 0)))

    def column(self, name: str) -> Array:
        """Return a whole column, numbers or words, ``(rows,)``; raises ``OSError``."""
        return self._decoded(name, self._whole(name))

    def labels(self) -> Array:
        """Return the labels of all rows, ``(rows,)``, or ``(rows, columns)``; raises ``OSError``."""
        return self._labels_in({name: self._decoded(name, self._whole(name)) for name in self._label_names})

    def label_counts(self) -> dict[str, int]:
        """Return the number of occurrences of each word in the label; raises ``OSError``."""
        counts = np.bincount(self._whole(_LABEL).astype(np.int64), minlength=len(self.words[_LABEL]))
        return dict(zip(self.words[_LABEL], counts.tolist(), strict=True))

    def row(self, number: int) -> Table:
        """Return one row, for messages; raises ``OSError``."""
        block = next(block for block in self._blocks if number < block.first + block.rows)
        return self._read(block).take(np.array([number - block.first]))

    def tables(self) -> Iterator[tuple[int, Table]]:
        """Yield the blocks as tables, each with the number of its first row; raises ``OSError``."""
        for block in self._blocks:
            yield block.first, self._read(block)

    def _whole(self, name: str) -> Array:
        found, index = np.empty(self.rows), self._columns[name]
        for block in self._blocks:
            offset = block.offset + index * block.rows * _NBYTES
            found[block.first : block.first + block.rows] = self._values(offset, block.rows)
        return found

    def _read(self, block: _Block) -> Table:
        values = self._values(block.offset, len(self._columns) * block.rows)
        return self._table(block, values.reshape(len(self._columns), block.rows))

    def _table(self, block: _Block, values: Array) -> Table:
        columns = {name: self._decoded(name, values[index]) for name, index in self._columns.items()}
        labels, lines = self._labels_in(columns), columns.pop(_LINE)
        return Table(block.name, columns, lines.astype(np.int64), block.places, labels, block.unit)

    @property
    def _label_names(self) -> list[str]:
        return [name for name in self._columns if name.startswith(_LABEL)]

    def _labels_in(self, columns: dict[str, Array]) -> Array:
        """Remove the labels from the columns and return them."""
        labels = [columns.pop(name) for name in self._label_names]
        return labels[0] if _LABEL in self._columns else np.stack(labels, axis=1)

    def _decoded(self, name: str, values: Array) -> Array:
        if name not in self.words:
            return values
        words = np.empty(len(self.words[name]), object)
        words[:] = list(self.words[name])
        found: Array = words[values.astype(np.int64)]
        return found

    def _values(self, offset: int, count: int) -> Array:
        content = os.pread(self._file.fileno(), count * _NBYTES, offset)
        while len(content) < count * _NBYTES:  # the system reads at most 2 GB per call
            more = os.pread(self._file.fileno(), count * _NBYTES - len(content), offset + len(content))
            if not more:
                raise OSError(f"{self._file.name} ends early")
            content += more
        return np.frombuffer(content, np.float64)
