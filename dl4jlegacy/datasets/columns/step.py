"""The base of the steps of a ``TransformProcess``, which change the columns of a table one after the other.

A step is a frozen struct. Values that are learned from the training data (means, words) are fields, empty until ``fit``
returns a fitted step; values that were given stay unchanged. Names follow DataVec's transforms
(``org.datavec.api.transform``), which are fitted by hand there, from an ``AnalyzeLocal`` of the whole data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any, ClassVar

import msgspec
import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.columns.table import Table
from dl4jlegacy.datasets.unseen_words import UnseenWords
from dl4jlegacy.errors import ConfError, DataError, counted, nearest

__all__ = ["BaseStep", "changed", "check_finite", "column_of", "is_numeric", "present", "tag_of", "with_made"]


class BaseStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of all steps. ``columns``: the columns to change; (): all columns of the fitting type."""

    on_new_rows: ClassVar[bool] = True
    """Whether the step also changes rows to predict."""
    learned: ClassVar[tuple[str, ...]] = ()
    """The fields that are learned from training rows: each is a list with a value for each column."""
    adds: ClassVar[bool] = False
    """Whether the step only makes new columns, and leaves its own as they are."""
    numbers: ClassVar[bool | None] = None
    """Whether the step's columns hold numbers (True) or words (False); None: either."""

    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.learned:
            values = getattr(self, name)
            if values and len(values) != len(self.columns):
                raise ConfError(
                    f"{tag_of(self)} has {counted(len(self.columns), 'column')} and {counted(len(values), 'value')} in "
                    f"{name}"
                )

    @property
    def is_fitted(self) -> bool:
        """Whether nothing is left to learn."""
        return bool(self.columns) and all(len(getattr(self, name)) == len(self.columns) for name in self.learned)

    def named_in(self, table: Table) -> tuple[str, ...]:
        """Return the table's columns that the step changes; raises ``DataError`` for a column of another type."""
        return self.checked(table, numbers=self.numbers)

    def fit(self, table: Table) -> Any:
        """Return the step fitted to the training rows."""
        names = self.named_in(table)
        found = [self.learn(table, name) for name in names]
        return msgspec.structs.replace(self, columns=names, **self.lists(found))

    def learn(self, table: Table, column: str) -> tuple[Any, ...]:
        """Return the values learned from a column of the training rows, one for each field of ``learned``."""
        return ()

    def lists(self, found: Sequence[tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
        """Return the learned fields, from the values learned from each column."""
        return dict(zip(self.learned, zip(*found, strict=True) if found else repeat(()), strict=False))

    def made(self) -> dict[str, tuple[str, ...]]:
        """Return the names of the new columns, each with the columns that it is made of; {} if not fitted."""
        return {}

    def apply(self, table: Table) -> Table:
        """Return the table after the step; raises ``DataError``, which names the cell."""
        raise NotImplementedError

    def count_unseen(self, table: Table, unseen: UnseenWords) -> None:
        """Count the words that the step has not learned; raises like ``apply``."""

    def checked(self, table: Table, *, numbers: bool | None) -> tuple[str, ...]:
        """Return the step's columns; raises ``DataError`` if one is missing or of another type."""
        if self.columns:
            for column in self.columns:
                values = column_of(table, column, self)
                if numbers is not None and is_numeric(values) is not numbers:
                    holds, takes = ("words", "numbers") if numbers else ("numbers", "words")
                    raise DataError(f"{table.name}: {tag_of(self)} takes {takes}, and column {column!r} holds {holds}")
            return self.columns
        return tuple(name for name, values in table.columns.items() if numbers in (None, is_numeric(values)))


def is_numeric(values: Array) -> bool:
    """Return whether a column holds numbers, not words."""
    return values.dtype != object


def tag_of(step: BaseStep) -> str:
    """Return the step's name in messages."""
    return f"the step {step.__struct_config__.tag!r}"


def column_of(table: Table, name: str, step: BaseStep) -> Array:
    """Return a column; raises ``DataError`` if the table does not have it."""
    if name not in table.columns:
        known = list(table.columns)
        raise DataError(f"{table.name}: {tag_of(step)} names column {name!r}, which is not there{nearest(name, known)}")
    return table.columns[name]


def changed(table: Table, names: Sequence[str], change: Callable[[int, Array], Array]) -> Table:
    """Return the table with the named columns replaced, each by ``change(its index, its values)``."""
    columns = dict(table.columns)
    for index, name in enumerate(names):
        columns[name] = change(index, columns[name])
    return table.with_columns(columns)


def with_made(table: Table, step: BaseStep, make: Callable[[int, Array], Mapping[str, Array]]) -> Table:
    """Return the table with the columns that ``make(its index, its values)`` returns after each column of the step.

    The column itself stays only if the step ``adds``.
    """
    columns: dict[str, Array] = {}
    for name, values in table.columns.items():
        if name not in step.columns or step.adds:
            columns[name] = values
        if name in step.columns:
            columns |= make(step.columns.index(name), values)
    return table.with_columns(columns)


def present(table: Table, column: str, step: BaseStep) -> Array:
    """Return the numbers of a column without gaps; raises ``DataError`` if there are only gaps."""
    values = table.columns[column]
    there: Array = values[~np.isnan(values)]
    if not len(there):
        raise DataError(
            f"{table.name}: column {column!r} has no value at all in {counted(len(values), 'training row')}, and "
            f"{tag_of(step)} learns from it; remove the column in the schema"
        )
    return there


def check_finite(step: BaseStep, **lists: Sequence[float]) -> None:
    """Raise ``ConfError`` if a number in one of the step's lists is not finite."""
    for name, values in lists.items():
        if not all(map(math.isfinite, values)):
            raise ConfError(f"{tag_of(step)} has a number in {name} that is not finite")
