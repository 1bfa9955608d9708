"""Steps that add columns to a column of numbers: its place among quantiles, and whether it is a gap."""

from __future__ import annotations

from itertools import chain, pairwise
from typing import ClassVar

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.columns.column_scale import differ
from dl4jlegacy.datasets.columns.step import BaseStep, check_finite, present, tag_of, with_made
from dl4jlegacy.datasets.columns.table import Table
from dl4jlegacy.errors import ConfError

__all__ = ["MOST_BINS", "MarkGaps", "QuantileBins", "bins_for"]

MOST_BINS = 32
"""The number of bins of a column, unless more are given."""
_ROWS_OF_BIN, _FEWEST, _LIMIT = 128, 8, 1000
_HEIGHT = 0.25  # of a bin, so that all of them together do not outweigh the standardized column


class QuantileBins(BaseStep, frozen=True, tag_field="type", tag="quantiles"):
    """Adds columns that tell where a number lies among the quantiles of the training rows, one for each bin.

    Bin i has edges e[i] and e[i+1], and its column ``column[bin i]`` is 0 below them, 0.25 above, and in between
    0.25 (x - e[i]) / (e[i+1] - e[i]): a piecewise linear encoding, see Gorishniy, Rubachev and Babenko, "On embeddings
    for numerical features in tabular deep learning", NeurIPS 2022. The column itself stays. The edges are values of
    the training rows, and exact quantiles for any number of rows in any order.

    Attributes:
        bins: the number of bins; 0: one for each 128 training rows, at least 8 and at most 32.
        edges: of the bins of each column; learned if empty. Equal quantiles are one edge, so there may be fewer bins
            than ``bins``; a column with a single bin, or none, gets no columns.
    """

    adds: ClassVar[bool] = True
    learned: ClassVar[tuple[str, ...]] = ("edges",)
    numbers: ClassVar[bool | None] = True

    bins: int = 0
    edges: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_finite(self, edges=tuple(chain(*self.edges)))
        if self.bins and not 2 <= self.bins <= _LIMIT:
            raise ConfError(
                f"{tag_of(self)} has bins {self.bins}; give 2 to {_LIMIT}, or 0 for as many as suit the rows"
            )
        if not all(low < high for edges in self.edges for low, high in pairwise(edges)):
            raise ConfError(f"{tag_of(self)} has edges that do not increase")

    def learn(self, table: Table, column: str) -> tuple[tuple[float, ...]]:
        """See ``BaseStep``."""
        bins = self.bins or bins_for(len(table))
        values = np.sort(present(table, column, self))
        found = values[np.arange(bins + 1) * (len(values) - 1) // bins]
        edges = found[np.append(True, differ(found[:-1], found[1:]))]
        return (tuple(edges.tolist()) if len(edges) > 2 else (),)

    def made(self) -> dict[str, tuple[str, ...]]:
        """See ``BaseStep``."""
        pairs = zip(self.columns, self.edges, strict=True) if self.is_fitted else ()
        return {made: (name,) for name, edges in pairs for made in _bins(name, edges)}

    def apply(self, table: Table) -> Table:
        """See ``BaseStep``."""
        self.named_in(table)

        def encoded(index: int, values: Array) -> dict[str, Array]:
            edges = np.array(self.edges[index]).reshape(-1, 1)
            with np.errstate(over="ignore"):
                places = np.clip((values - edges[:-1]) / np.diff(edges, axis=0), 0, 1)
            places *= _HEIGHT
            return dict(zip(_bins(self.columns[index], self.edges[index]), places, strict=True))

        return with_made(table, self, encoded)


def _bins(column: str, edges: tuple[float, ...]) -> list[str]:
    return [f"{column}[bin {number}]" for number in range(1, len(edges))]


def bins_for(rows: int) -> int:
    """Return the number of bins that suit so many training rows."""
    return min(max(round(rows / _ROWS_OF_BIN), _FEWEST), MOST_BINS)


class MarkGaps(BaseStep, frozen=True, tag_field="type", tag="mark-gaps"):
    """Adds a column ``column[missing]`` with 1 where a number is missing and 0 elsewhere; goes before ``impute``.

    Attributes:
        gaps: whether each column has gaps in the training rows; learned if empty. Other columns get no new one.
    """

    adds: ClassVar[bool] = True
    learned: ClassVar[tuple[str, ...]] = ("gaps",)
    numbers: ClassVar[bool | None] = True

    gaps: tuple[bool, ...] = ()

    def learn(self, table: Table, column: str) -> tuple[bool]:
        """See ``BaseStep``."""
        return (bool(np.isnan(table.columns[column]).any()),)

    def made(self) -> dict[str, tuple[str, ...]]:
        """See ``BaseStep``."""
        pairs = zip(self.columns, self.gaps, strict=True) if self.is_fitted else ()
        return {f"{name}[missing]": (name,) for name, has_gaps in pairs if has_gaps}

    def apply(self, table: Table) -> Table:
        """See ``BaseStep``."""
        self.named_in(table)

        def marked(index: int, values: Array) -> dict[str, Array]:
            gaps = np.isnan(values).astype(np.float64)
            return {f"{self.columns[index]}[missing]": gaps} if self.gaps[index] else {}

        return with_made(table, self, marked)
