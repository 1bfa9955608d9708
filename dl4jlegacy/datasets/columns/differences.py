"""The step that takes one column from others: lags of a series become its changes."""

from __future__ import annotations

import numpy as np

from dl4jlegacy.datasets.columns.step import BaseStep, changed, column_of, is_numeric, tag_of
from dl4jlegacy.datasets.columns.table import Table
from dl4jlegacy.errors import ConfError, DataError

__all__ = ["Differences"]


class Differences(BaseStep, frozen=True, tag_field="type", tag="differences"):
    """Replaces each number by its difference to the column ``base`` in the same row; a gap in either is a gap.

    ``columns`` must be given. ``base`` itself stays as it is.
    """

    base: str

    def __post_init__(self) -> None:
        if not self.base or not self.columns or self.base in self.columns:
            raise ConfError(f"{tag_of(self)} needs columns, and another column as base")

    def named_in(self, table: Table) -> tuple[str, ...]:
        """See ``BaseStep``; raises for the base, too."""
        if not is_numeric(column_of(table, self.base, self)):
            raise DataError(f"{table.name}: {tag_of(self)} takes numbers, and its base {self.base!r} holds words")
        return self.checked(table, numbers=True)

    def made(self) -> dict[str, tuple[str, ...]]:
        """See ``BaseStep``."""
        return {name: (name, self.base) for name in self.columns}

    def apply(self, table: Table) -> Table:
        """See ``BaseStep``."""
        names, base = self.named_in(table), table.columns[self.base]
        with np.errstate(over="ignore"):
            return changed(table, names, lambda _, values: values - base)
