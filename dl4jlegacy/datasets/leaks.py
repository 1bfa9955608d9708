"""Detection of label leakage: features that determine the label by themselves.

Such a feature is often a copy of the label, or was known only after the label.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.label_scale import LabelScale

__all__ = ["scaled_labels", "telling_columns", "warn_of_telling"]

logger = logging.getLogger(__name__)

_ROWS = 4000
_CELLS = 1 << 22  # maximum number of values to look at
_FEWEST = 40  # minimum rows, half of which are held out
_TOLD = 0.99  # minimum share of held-out rows predicted correctly
_SCALED = 1 - 1e-9  # minimum correlation with a number to predict
_SHOWN = 9


def telling_columns(
    features: Array,
    classes: npt.NDArray[np.intp],
    groups: Sequence[Sequence[int]] = (),
    left_out: Collection[int] = (),
) -> list[int]:
    """Return the columns that alone determine the class of nearly every row, by one split or by their values.

    The rule is learned on one half of the rows and judged on the other half. It must be right for at least 99 % of the
    rows, and for at least half of the rows that are not of the commonest class.

    Args:
        features: ``(rows, columns)``; from many rows a sample is used.
        classes: ``(rows,)``.
        groups: one-hot columns that belong together, one for each word. Only the first column of a group is returned.
        left_out: columns that are not looked at.
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
    others = set(left_out) | {column for group in groups for column in group[1:]}
    every = (c for c in range(x.shape[1]) if c not in others)
    return [c for c in every if _told(words.get(c, x[:, c]), y, half, outcomes) >= least]


def scaled_labels(features: Array, labels: Array, scale: LabelScale) -> list[int]:
    """Return the columns that equal a number to predict except for scale and offset.

    ``labels``, ``(rows, outputs)``, are as the network learns them.
    """
    rows = _sample(len(features), features.shape[1])
    if len(rows) < _FEWEST:
        return []
    x, y = np.asarray(features[rows], np.float64), scale.in_units(np.asarray(labels[rows], np.float64), limited=False)
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    with np.errstate(all="ignore"):
        found = np.abs(x.T @ y) / np.outer(np.linalg.norm(x, axis=0), np.linalg.norm(y, axis=0))
    return np.flatnonzero((np.nan_to_num(found) > _SCALED).any(axis=1)).tolist()


def warn_of_telling(columns: Sequence[int], names: Sequence[str], where: str) -> None:
    """Warn of columns that determine the label, by name; do nothing if there are none."""
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
    """Return the share of held-out rows whose class the column predicts, by the better of the two rules."""
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
