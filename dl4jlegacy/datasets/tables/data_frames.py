"""Data frames of pandas, Polars or Arrow: columns by name, read like those of a file.

None of these libraries is imported: any object with named columns and a shape ``(rows, columns)`` is a data frame.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.tables.numpy_files import ArrayColumns
from dl4jlegacy.datasets.tables.pandas_index import header_names

__all__ = ["FrameColumns"]

_NONE = ("NAType", "NaTType")  # pandas' values for a gap, which are equal to nothing


@dataclass(frozen=True, slots=True)
class FrameColumns(ArrayColumns):
    """Columns in memory, read in blocks of rows like those of a file.

    Attributes:
        name: for messages.
        names: of all columns.
        columns: the wanted columns, as numbers or as texts.
    """

    name: str
    names: tuple[str, ...]
    columns: Mapping[str, Array | Sequence[str]]

    @staticmethod
    def of(
        name: str, names: tuple[str, ...], columns: Any, wanted: Collection[str], words: Collection[str]
    ) -> FrameColumns:
        """Return columns of a data frame, or of another object that returns columns by name.

        Args:
            name, names: as above.
            columns: the object with the columns.
            wanted: columns to read.
            words: columns to read as texts; other columns are texts, too, if they hold no numbers.
        """
        shown = header_names(names, wanted)
        counts = Counter(shown)
        given = {each: known for each, known in zip(shown, names, strict=True) if counts[each] == 1}
        read = {each: _cells(columns[known], each in words) for each, known in given.items() if each in wanted}
        return FrameColumns(name, tuple(shown), read)  # duplicate columns raise an error later

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of an array of all wanted columns."""
        kinds = [
            cells.dtype if isinstance(cells, np.ndarray) else np.dtype(np.float64) for cells in self.columns.values()
        ]
        return np.result_type(*kinds)

    def blocks(self, rows: int, columns: Sequence[str] = ()) -> Iterator[dict[str, Array]]:
        """Yield columns (default: all wanted ones), ``(rows,)`` each, in blocks of ``rows`` rows."""
        count = len(next(iter(self.columns.values()), ()))
        for start in range(0, count, rows):
            parts = {name: self.columns[name][start : start + rows] for name in columns or self.columns}
            yield {name: part if isinstance(part, np.ndarray) else np.array(part, "U") for name, part in parts.items()}


def _cells(values: Any, is_of_words: bool) -> Array | list[str]:
    found: Array = np.asarray(values)
    if found.dtype.kind not in "biuf":
        return [_text(value) for value in _listed(values)]
    if not is_of_words:
        return found
    listed = found.tolist()
    if found.dtype.kind == "f":  # integer class names become floats in a column with gaps
        listed = [int(value) if float(value).is_integer() else value for value in listed]
    return [_text(value) for value in listed]


def _listed(values: Any) -> list[Any]:
    take = getattr(values, "to_pylist", None) or getattr(values, "to_list", None) or values.tolist
    found: list[Any] = take()
    return found


def _text(value: Any) -> str:
    """Return a cell as it would stand in a CSV file, "" for a gap."""
    if value is None or type(value).__name__ in _NONE or (isinstance(value, float) and value != value):
        return ""
    return str(value)
