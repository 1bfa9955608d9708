"""SparseFeatures: rows of features stored without their zeros, for millions of columns.

The layout is compressed sparse rows (CSR), as in scipy.sparse and in SVMLight files. A network whose first layer is
dense takes sparse features directly (``nn.network.sparse_input``); code that needs all values of a row refuses them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import DataError, counted

__all__ = ["SparseFeatures"]

_MOST_COLUMNS = 1 << 31


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SparseFeatures:
    """Rows of ``columns`` features each. Checked once, and read-only afterwards.

    Attributes:
        offsets: the start of each row's values, and finally the number of all values, ``(rows + 1,)``, int64.
        indices: the column of each value, from 0, int32; ascending in each row.
        values: float32 or float64; cells without an entry are 0.
        columns: the number of columns.

    Raises:
        DataError: the arrays do not fit each other, or a value is NaN or infinite (named).
    """

    offsets: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int32]
    values: Array
    columns: int

    def __init__(self, offsets: npt.ArrayLike, indices: npt.ArrayLike, values: npt.ArrayLike, columns: int) -> None:
        starts, places, given = np.asarray(offsets), np.asarray(indices), np.asarray(values)
        if not 0 < columns <= _MOST_COLUMNS:
            raise DataError(
                f"sparse features have {counted(columns, 'column')}; from 1 to {_MOST_COLUMNS} are possible"
            )
        if not (starts.ndim == places.ndim == given.ndim == 1 and len(starts) and len(places) == len(given)):
            raise DataError(
                f"sparse features have offsets {starts.shape}, indices {places.shape} and values {given.shape}; "
                "expected (rows + 1,), and an index for each value"
            )
        if starts.dtype.kind not in "iu" or places.dtype.kind not in "iu" or given.dtype.kind not in "biuf":
            raise DataError(
                f"sparse features have offsets of {starts.dtype}, indices of {places.dtype} and values of "
                f"{given.dtype}; expected whole numbers, whole numbers and numbers"
            )
        if starts[0] != 0 or starts[-1] != len(given) or (np.diff(starts.astype(np.int64)) < 0).any():
            raise DataError(f"offsets of sparse features must ascend from 0 to {len(given)}, the number of values")
        if len(places) and not 0 <= int(places.min()) <= int(places.max()) < columns:
            raise DataError(f"indices of sparse features must be from 0 to {columns - 1}; there is {int(places.max())}")
        kept = given.dtype if given.dtype in (np.float32, np.float64) else np.dtype(np.float32)
        with np.errstate(over="ignore"):
            numbers = np.ascontiguousarray(given, kept)
        self._set(starts.astype(np.int64), places.astype(np.int32), numbers, columns)
        ascends = np.diff(self.indices) > 0
        ends = self.offsets[1:-1]
        ascends[ends[(ends > 0) & (ends < len(ascends) + 1)] - 1] = True  # between two rows
        if not ascends.all():
            row = self._row_of(int((~ascends).argmax()) + 1)
            raise DataError(f"the indices of sparse features of example {row} do not ascend; sort them, each once")
        if not np.isfinite(self.values).all():
            wrong = int((~np.isfinite(self.values)).argmax())
            raise DataError(
                f"features of example {self._row_of(wrong)}, column {self.indices[wrong]} (from 0) are "
                f"{self.values[wrong]}; remove or impute them"
            )

    @classmethod
    def of(cls, matrix: Any) -> SparseFeatures:
        """Return a scipy.sparse matrix, or an array, as sparse features; raises ``DataError``."""
        if hasattr(matrix, "tocsr"):
            rows = matrix.tocsr(copy=True)
            rows.sum_duplicates()
            return cls(rows.indptr, rows.indices, rows.data, rows.shape[1])
        dense = np.asarray(matrix)
        if dense.ndim != 2:
            raise DataError(f"features have shape {dense.shape}; expected (examples, columns)")
        rows, places = np.nonzero(dense)
        counts = np.bincount(rows, minlength=len(dense))
        return cls(np.concatenate([[0], np.cumsum(counts)]), places, dense[rows, places], dense.shape[1])

    def _set(self, offsets: Array, indices: Array, values: Array, columns: int) -> None:
        for name, array in (("offsets", offsets), ("indices", indices), ("values", values)):
            view = array.view()
            view.flags.writeable = False
            object.__setattr__(self, name, view)  # the class is frozen
        object.__setattr__(self, "columns", columns)

    def _row_of(self, value: int) -> int:
        return int(np.searchsorted(self.offsets, value, side="right")) - 1

    # -- as an array ---------------------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self), self.columns

    @property
    def ndim(self) -> int:
        """Always 2."""
        return 2

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the values."""
        return self.values.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the three arrays."""
        return self.offsets.nbytes + self.indices.nbytes + self.values.nbytes

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, rows: slice) -> SparseFeatures:
        """Return consecutive rows as views."""
        start, stop, step = rows.indices(len(self))
        if step != 1:
            raise DataError(f"sparse features were asked for every {step}th row; take(indices) returns any rows")
        stop = max(start, stop)
        first, last = int(self.offsets[start]), int(self.offsets[stop])
        return _trusted(
            self.offsets[start : stop + 1] - first, self.indices[first:last], self.values[first:last], self.columns
        )

    def take(self, indices: npt.NDArray[np.intp], axis: int = 0) -> SparseFeatures:
        """Return the rows at ``indices`` in that order, copied."""
        starts, counts = self.offsets[:-1][indices], np.diff(self.offsets)[indices]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        places = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], counts)
        return _trusted(offsets, self.indices[places], self.values[places], self.columns)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        """Raise ``DataError``: a dense array would need the memory that sparse features save."""
        raise DataError(
            f"features are sparse, {len(self):,} rows of {counted(self.columns, 'column')}, and an array of all values "
            "was asked for: only a network whose first layer is dense takes them; leave normalizers, transforms and "
            "other layers in front of it out, or give fewer columns as an array"
        )

    def __repr__(self) -> str:
        return f"SparseFeatures({self.shape} {self.dtype}, {counted(len(self.values), 'value')})"

    # -- conversion for networks ---------------------------------------------------------------------------------------

    def touched(self) -> npt.NDArray[np.int32]:
        """Return the columns with a value in some row, ascending."""
        columns: npt.NDArray[np.int32] = np.unique(self.indices)
        return columns

    def dense(self, columns: npt.NDArray[np.int32], width: int = 0) -> Array:
        """Return these columns of all rows, ``(rows, columns)``, padded with zero columns up to ``width``."""
        out = np.zeros((len(self), max(width, len(columns))), self.dtype)
        rows = np.repeat(np.arange(len(self)), np.diff(self.offsets))
        out[rows, np.searchsorted(columns, self.indices)] = self.values
        return out

    # -- on the wire ---------------------------------------------------------------------------------------------------

    def arrays(self) -> dict[str, Array]:
        """Return the arrays by name, for ``from_arrays``."""
        columns = np.array([self.columns], np.int64)
        return {"offsets": self.offsets, "indices": self.indices, "values": self.values, "columns": columns}

    @classmethod
    def from_arrays(cls, offsets: Array, indices: Array, values: Array, columns: Array) -> SparseFeatures:
        """Return the features whose ``arrays`` are given; raises ``DataError`` as the constructor."""
        if columns.shape != (1,):
            raise DataError(f"sparse features name their columns by an array of shape {columns.shape}; expected (1,)")
        return cls(offsets, indices, values, int(columns[0]))

    @staticmethod
    def concatenated(parts: Sequence[SparseFeatures]) -> SparseFeatures:
        """Return the rows of all parts, which must have equally many columns."""
        sizes = np.cumsum([0, *(len(part.values) for part in parts)])
        offsets = [part.offsets[:-1] + size for part, size in zip(parts, sizes, strict=False)]
        return _trusted(
            np.concatenate([*offsets, sizes[-1:]]),
            np.concatenate([part.indices for part in parts]),
            np.concatenate([part.values for part in parts]),
            parts[0].columns,
        )


def _trusted(offsets: Array, indices: Array, values: Array, columns: int) -> SparseFeatures:
    """Return features of arrays that come from checked features, without checks."""
    features = object.__new__(SparseFeatures)
    features._set(offsets, indices, values, columns)
    return features
