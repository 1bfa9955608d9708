"""Features that tell the label by themselves: often it is the label once more, or was known only after it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dl4jlegacy.arrays.backend import Array

__all__ = ["scaled_labels", "telling_columns", "warn_of_telling"]

logger = logging.getLogger(__name__)

_ROWS = 4000
_CELLS = 1 << 22  # that are looked at, at most
_FEWEST = 40  # rows, of which half are held out
_TOLD = 0.99  # of the rows that are held out
_SCALED = 1 - 1e-9  # correlation with a number to predict
_SHOWN = 9


def telling_columns(features: Array, classes: npt.NDArray[np.intp], groups: Sequence[Sequence[int]] = ()) -> list[int]:
    """Return the columns by which alone, by one split or by their values, the class of nearly every row is known.

    They are learned on one half of the rows, and judged by the other. At least 99 % of these must be right, and of
    those that are not of the commonest class half at least.

    Args:
        features: ``(rows, columns)``; of many rows a sample is looked at.
        classes: ``(rows,)``.
        groups: columns that are one together, of 0 and 1 for each of its words. The first of a group is returned for
            it, and the others are not.
    """
    rows = _sample(len(features), features.shape[1])
    if len(rows) < _FEWEST:
        return []
    x, y = features[rows], classes[rows]
    half, outcomes = len(rows) // 2, int(classes.max()) + 1
    commonest = np.bincount(y[:half], minlength=outcomes).argmax()
    base = float((y[half:] == commonest).mean())
    least = max(_TOLD, 1 - (1 - base) / 2)
    if base == 1.0:
        return []
    words = {group[0]: x[:, list(group)].argmax(axis=1) for group in groups if group}
    others = {column for group in groups for column in group[1:]}
    every = (c for c in range(x.shape[1]) if c not in others)
    return [c for c in every if _told(words.get(c, x[:, c]), y, half, outcomes) >= least]


def scaled_labels(features: Array, labels: Array) -> list[int]:
    """Return the columns that are a number to predict, ``(rows, outputs)``, on another scale."""
    rows = _sample(len(features), features.shape[1])
    if len(rows) < _FEWEST:
        return []
    x, y = np.asarray(features[rows], np.float64), np.asarray(labels[rows], np.float64)
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    with np.errstate(all="ignore"):
        found = np.abs(x.T @ y) / np.outer(np.linalg.norm(x, axis=0), np.linalg.norm(y, axis=0))
    return np.flatnonzero((np.nan_to_num(found) > _SCALED).any(axis=1)).tolist()


def warn_of_telling(columns: Sequence[int], names: Sequence[str], where: str) -> None:
    """Name columns that tell the label in a warning; nothing if there are none."""
    if columns:
        shown = ", ".join(repr(names[c]) if names else str(c + 1) for c in columns[:_SHOWN])
        more = " ..." if len(columns) > _SHOWN else ""
        logger.warning(
            "%s: the label can be told by one column alone, nearly always right: %s%s; is it the label once more, or "
            "known only after it? Leave it out (remove in a schema), unless that is meant",
            where,
            shown,
            more,
        )


def _sample(rows: int, columns: int) -> npt.NDArray[np.intp]:
    count = min(rows, _ROWS, max(_FEWEST, _CELLS // max(columns, 1)))
    return np.random.default_rng(0).permutation(rows)[:count]


def _told(x: Array, y: npt.NDArray[np.intp], half: int, outcomes: int) -> float:
    """Return the share of the held-out rows whose class a column tells, by the better of two ways."""
    values, codes = np.unique(x, return_inverse=True)
    counts = np.zeros((len(values), outcomes), np.int64)
    np.add.at(counts, (codes[:half], y[:half]), 1)
    seen: npt.NDArray[np.bool_] = np.atleast_1d(counts.any(axis=1))
    by_value = float((seen[codes[half:]] & (counts.argmax(axis=1)[codes[half:]] == y[half:])).mean())
    if outcomes > 2 and len(values) > 2 and by_value < _TOLD:
        return by_value
    below = np.cumsum(counts, axis=0)
    above = below[-1] - below
    cut = int((below.max(axis=1) + above.max(axis=1)).argmax())
    told = np.where(codes[half:] <= cut, below[cut].argmax(), above[cut].argmax())
    return max(by_value, float((told == y[half:]).mean()))
