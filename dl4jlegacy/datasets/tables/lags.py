"""Finds the columns of a table that are the last values of its label: lags of a series."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from dl4jlegacy.arrays.backend import Array

__all__ = ["LAG_ROWS", "MOST_LAG_COLUMNS", "find_lags"]

LAG_ROWS = 1024
"""First rows in which lags are looked for."""
MOST_LAG_COLUMNS = 300
"""A wider table is not searched, because each lag is held against all columns."""
_FEWEST_LAGS, _FEWEST_CHANGES, _ALIKE = 2, 10, 0.9


def find_lags(label: Array, columns: Mapping[str, Array]) -> tuple[str, ...]:
    """Return the columns with the last value of the label, the value before, and so on; () if there are not two.

    Each has the last one's value of the row above, in at least nine of ten rows where the series changes.

    Args:
        label: in the order of the rows, float64; NaN: a gap.
        columns: the other columns, alike.
    """
    if not columns:
        return ()
    values, names = np.stack(list(columns.values()), axis=1), list(columns)
    found: list[str] = []
    last = label
    while (place := _shifted(last, values)) is not None and names[place] not in found:
        found.append(names[place])
        last = values[:, place]
    return tuple(found) if len(found) >= _FEWEST_LAGS else ()


def _shifted(last: Array, values: Array) -> int | None:
    """Return the number of the first column that has the values of another one, each a row later; None: there is none.

    Only rows where the other one changes count: where it does not, a copy of it would do as well.
    """
    before, now = last[:-1], last[1:]
    rows: npt.NDArray[np.intp] = np.flatnonzero((before != now) & ~np.isnan(before) & ~np.isnan(now))
    own = values[1:][rows]
    there, alike = (~np.isnan(own)).sum(axis=0), (own == before[rows, None]).sum(axis=0)
    fits = np.flatnonzero((there >= _FEWEST_CHANGES) & (alike >= _ALIKE * there))
    return int(fits[0]) if len(fits) else None
