"""Precision of float32, in which networks compute: which columns must be scaled before they are rounded.

float32 has 24 binary digits. Times in milliseconds are rounded to hours, for example, and coordinates in metres to the
size of a house. Differences between rows are lost if such values are rounded before they are scaled. So a column that
lies far from 0 compared to its width stays float64 until it is scaled; all others are rounded when they are read.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import counted

__all__ = ["Mask", "equal_columns", "far_columns", "far_in", "float_type_of", "kept_where_far", "warn_of_equal"]

logger = logging.getLogger(__name__)

_FAR = 8
"""A column is far from 0 from this ratio of distance to width: float32 then has at most 21 digits for its values."""
_WHOLE = 2**24
"""float32 distinguishes whole numbers up to this limit, float64 those up to 32 times its square."""
_EXACT = 2**53
_NOTABLE = 100
"""Some numbers that are not whole become equal by chance; one in this many is worth a warning."""
_SHOWN = 5

Mask = npt.NDArray[np.bool_]


def far_columns(low: Array, high: Array) -> Mask:
    """Return a mask of the columns that are far from 0 compared to their width, from bounds of shape ``(columns,)``."""
    width = high - low
    far: Mask = (width > 0) & (np.maximum(np.abs(low), np.abs(high)) >= _FAR * width)
    return far


def far_in(x: Array, mask: Array | None = None) -> Mask:
    """Return a mask ``(columns,)`` of feature columns that are far from 0 and that float32 would change.

    ``mask (examples, time steps)`` marks the time steps of sequences that count.
    """
    rows = _rows(x, mask)
    if x.dtype == np.float32 or not rows.size:
        return np.zeros(rows.shape[1], bool)
    far = far_columns(rows.min(axis=0), rows.max(axis=0))
    for column in np.flatnonzero(far).tolist():
        far[column] = bool((rows[:, column] != _rounded(rows[:, column])).any())
    return far


def kept_where_far(x: Array, far: Mask | None) -> Array:
    """Return features as float32, or, if some columns are ``far``, as float64 with the other columns rounded."""
    rounded = _rounded(x)
    if far is None or not far.any() or x.dtype == np.float32:
        return rounded
    columns = far.reshape(1, -1, *[1] * (x.ndim - 2)) if x.ndim == 3 else far.reshape(1, *x.shape[1:])
    kept: Array = np.where(columns, x, rounded)
    return kept


def equal_columns(x: Array, mask: Array | None = None) -> list[tuple[int, int, int]]:
    """Return the columns in which float32 makes different values equal: (column, distinct values before, and after).

    A column of whole numbers is returned if any two values become equal, another column if it is far from 0 and at
    least one value in a hundred is lost.
    """
    if x.dtype == np.float32 or not isinstance(x, np.ndarray):  # sparse features are not checked
        return []
    rows = _rows(x, mask)
    if not rows.size:
        return []
    low, high = rows.min(axis=0), rows.max(axis=0)
    most = np.maximum(np.abs(low), np.abs(high)).astype(np.float64)
    far = far_columns(low.astype(np.float64), high.astype(np.float64))
    found: list[tuple[int, int, int]] = []
    for column in np.flatnonzero(far | ((most > _WHOLE) & (most <= _EXACT))).tolist():
        different = np.unique(rows[:, column])
        left = len(np.unique(_rounded(different)))
        is_whole = most[column] <= _EXACT and bool((different == np.floor(different)).all())
        lost = len(different) - left
        if lost and (is_whole or lost * _NOTABLE >= len(different)):
            found.append((column, len(different), left))
    return found


def warn_of_equal(x: Array, what: str, names: Sequence[str] = (), mask: Array | None = None) -> bool:
    """Warn if float32 makes different values of a column equal; return whether it does.

    Args:
        x: the features, or labels, ``(examples, columns)``, or as in ``DataSet``.
        what: the name of the data in the warning.
        names: the names of the columns; none: the warning numbers them from 0.
        mask: the time steps of sequences that count.
    """
    found = equal_columns(x, mask)
    if found:
        said = [
            f"column {_name(column, names)} has {counted(different, 'different value')}, of which {left} remain"
            for column, different, left in found[:_SHOWN]
        ]
        more = f", and {counted(len(found) - _SHOWN, 'column')} more" if len(found) > _SHOWN else ""
        logger.warning(
            "%s: float32, in which networks compute, makes different values equal: %s%s; scale them first, in float64 "
            "(NormalizerStandardize, a standardize step, StandardScaler), or take off what all values have in common",
            what,
            "; ".join(said),
            more,
        )
    return bool(found)


def _name(column: int, names: Sequence[str]) -> str:
    return repr(names[column]) if column < len(names) else f"{column} (from 0)"


def _rows(x: Array, mask: Array | None) -> Array:
    """Return features as rows of columns; a sequence has one row per time step that counts."""
    if x.ndim != 3:
        return x.reshape(len(x), -1)
    steps = np.moveaxis(x, 1, 2)
    return steps.reshape(-1, x.shape[1]) if mask is None else steps[mask > 0]


def _rounded(x: Array) -> Array:
    with np.errstate(over="ignore"):  # values beyond float32 become infinite, and are then reported
        return np.ascontiguousarray(x, np.float32)


def float_type_of(array: Array) -> npt.DTypeLike:
    """Return the dtype in which to store numbers: float32, or float64 if they have that type or need it.

    Warns of whole numbers that even float64 cannot distinguish.
    """
    kind, nbytes = array.dtype.kind, array.dtype.itemsize
    if kind == "f":
        return np.float64 if nbytes >= np.dtype(np.float64).itemsize else np.float32
    if nbytes <= 2 or not array.size:  # 16 binary digits
        return np.float32
    most = max(abs(int(array.min())), abs(int(array.max())))
    if most <= _WHOLE:
        return np.float32
    exact = array.astype(np.float64)
    if most > _EXACT:
        _warn_of_whole(array, exact)
    return np.float32 if bool((_rounded(exact) == exact).all()) else np.float64


def _warn_of_whole(array: Array, exact: Array) -> None:
    """Warn of columns of whole numbers in which float64 makes different values equal."""
    before, after = _rows(array, None), _rows(exact, None)
    for column in np.flatnonzero(np.abs(after).max(axis=0) > _EXACT).tolist():
        different, left = len(np.unique(before[:, column])), len(np.unique(after[:, column]))
        if left < different:
            logger.warning(
                "column %d (from 0) has whole numbers up to %.3g, which float64 does not keep apart: of %s %d remain; "
                "take off what all values have in common",
                column,
                float(np.abs(after[:, column]).max()),
                counted(different, "different value"),
                left,
            )
