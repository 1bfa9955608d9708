"""The steps of a ``TransformProcess``, which change the columns of a table one after the other.

A step is a frozen struct. Values that are learned from the training data (means, words) are fields, empty until ``fit``
returns a fitted step; values that were given stay unchanged. Names follow DataVec's transforms
(``org.datavec.api.transform``), which are fitted by hand there, from an ``AnalyzeLocal`` of the whole data.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any, ClassVar, Literal

import msgspec
import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.tables.column_scale import mean_and_std, width
from dl4jlegacy.datasets.tables.table import Table
from dl4jlegacy.datasets.unseen_words import UnseenWords
from dl4jlegacy.errors import ConfError, DataError, counted, nearest
from dl4jlegacy.kernels.elementary import log, log1p

__all__ = [
    "CategoricalToInteger",
    "CategoricalToOneHot",
    "Clip",
    "Derive",
    "Filter",
    "Impute",
    "MinMax",
    "RemoveColumns",
    "Standardize",
    "Step",
]

_MOST_WORDS = 1000


class _Step(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of all steps. ``columns``: the columns to change; (): all columns of the fitting type."""

    on_new_rows: ClassVar[bool] = True
    """Whether the step also changes rows to predict."""
    learned: ClassVar[tuple[str, ...]] = ()
    """The fields that are learned from training rows: each is a list with a value for each column."""
    numbers: ClassVar[bool | None] = None
    """Whether the step's columns hold numbers (True) or words (False); None: either."""

    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.learned:
            values = getattr(self, name)
            if values and len(values) != len(self.columns):
                raise ConfError(
                    f"{_tag(self)} has {counted(len(self.columns), 'column')} and {counted(len(values), 'value')} in "
                    f"{name}"
                )

    @property
    def is_fitted(self) -> bool:
        """Whether nothing is left to learn."""
        return bool(self.columns) and all(len(getattr(self, name)) == len(self.columns) for name in self.learned)

    def named_in(self, table: Table) -> tuple[str, ...]:
        """Return the table's columns that the step changes; raises ``DataError`` for a column of another type."""
        return self._named(table, numbers=self.numbers)

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

    def apply(self, table: Table) -> Table:
        """Return the table after the step; raises ``DataError``, which names the cell."""
        raise NotImplementedError

    def count_unseen(self, table: Table, unseen: UnseenWords) -> None:
        """Count the words that the step has not learned; raises like ``apply``."""

    def _named(self, table: Table, *, numbers: bool | None) -> tuple[str, ...]:
        """Return the step's columns; raises ``DataError`` if one is missing or of another type."""
        if self.columns:
            for column in self.columns:
                values = _column(table, column, self)
                if numbers is not None and is_numeric(values) is not numbers:
                    holds, takes = ("words", "numbers") if numbers else ("numbers", "words")
                    raise DataError(f"{table.name}: {_tag(self)} takes {takes}, and column {column!r} holds {holds}")
            return self.columns
        return tuple(name for name, values in table.columns.items() if numbers in (None, is_numeric(values)))


def is_numeric(values: Array) -> bool:
    """Return whether a column holds numbers, not words."""
    return values.dtype != object


def _tag(step: _Step) -> str:
    return f"the step {step.__struct_config__.tag!r}"


def _column(table: Table, name: str, step: _Step) -> Array:
    if name not in table.columns:
        known = list(table.columns)
        raise DataError(f"{table.name}: {_tag(step)} names column {name!r}, which is not there{nearest(name, known)}")
    return table.columns[name]


def _changed(table: Table, names: Sequence[str], change: Callable[[int, Array], Array]) -> Table:
    """Return the table with the named columns replaced, each by ``change(its index, its values)``."""
    columns = dict(table.columns)
    for index, name in enumerate(names):
        columns[name] = change(index, columns[name])
    return table.with_columns(columns)


def _present(table: Table, column: str, step: _Step) -> Array:
    """Return the numbers of a column without gaps; raises ``DataError`` if there are only gaps."""
    values = table.columns[column]
    there: Array = values[~np.isnan(values)]
    if not len(there):
        raise DataError(
            f"{table.name}: column {column!r} has no value at all in {counted(len(values), 'training row')}, and "
            f"{_tag(step)} learns from it; remove the column in the schema"
        )
    return there


def _check_finite(step: _Step, **lists: Sequence[float]) -> None:
    for name, values in lists.items():
        if not all(map(math.isfinite, values)):
            raise ConfError(f"{_tag(step)} has a number in {name} that is not finite")


class Impute(_Step, frozen=True, tag_field="type", tag="impute"):
    """Fills gaps: with the ``mean`` or ``median`` of the column, its ``most-frequent`` value, or a ``constant``.

    Attributes:
        strategy: one of these; ``mean`` and ``median`` are for numbers only.
        constant: the value for the strategy ``constant``.
        values: the fill value of each column; learned if empty.
    """

    learned: ClassVar[tuple[str, ...]] = ("values",)

    strategy: Literal["mean", "median", "most-frequent", "constant"] = "mean"
    constant: float | str | None = None
    values: tuple[float | str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.strategy == "constant") is not (self.constant is not None):
            raise ConfError(f"{_tag(self)} has strategy {self.strategy!r} and constant {self.constant!r}")

    def named_in(self, table: Table) -> tuple[str, ...]:
        """See ``_Step``."""
        numbers = None
        if not self.columns:
            numbers = isinstance(self.constant, float | int) if self.strategy == "constant" else True
        return self._named(table, numbers=numbers)

    def learn(self, table: Table, column: str) -> tuple[float | str]:
        """See ``_Step``."""
        values = table.columns[column]
        if self.constant is not None:
            if isinstance(self.constant, str) is is_numeric(values):
                raise DataError(f"{table.name}: {_tag(self)} would put {self.constant!r} into column {column!r}")
            return (self.constant,)
        if is_numeric(values):
            there = _present(table, column, self)
            if self.strategy == "most-frequent":
                found, counts = np.unique(there, return_counts=True)
                return (float(found[counts.argmax()]),)
            return (float(np.median(there) if self.strategy == "median" else there.mean()),)
        if self.strategy != "most-frequent":
            raise DataError(
                f"{table.name}: column {column!r} holds words, which have no {self.strategy}; impute most-frequent"
            )
        words, counts = np.unique(values[values != ""].astype(str), return_counts=True)
        return (str(words[counts.argmax()]) if len(words) else "",)

    def apply(self, table: Table) -> Table:
        """See ``_Step``."""
        self._named(table, numbers=None)

        def filled(index: int, values: Array) -> Array:
            gaps = np.isnan(values) if is_numeric(values) else values == ""
            result: Array = np.where(gaps, self.values[index], values).astype(values.dtype)
            return result

        return _changed(table, self.columns, filled)


class Standardize(_Step, frozen=True, tag_field="type", tag="standardize"):
    """Scales numbers to mean 0 and standard deviation 1 over the training rows; a constant column becomes 0.

    ``mean`` and ``std`` of each column are learned.
    """

    learned: ClassVar[tuple[str, ...]] = ("mean", "std")
    numbers: ClassVar[bool | None] = True

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_finite(self, mean=self.mean, std=self.std)
        if not all(std > 0 for std in self.std):
            raise ConfError(f"{_tag(self)} has a standard deviation that is not positive")

    def learn(self, table: Table, column: str) -> tuple[float, float]:
        """See ``_Step``."""
        return mean_and_std_of(_present(table, column, self))

    def apply(self, table: Table) -> Table:
        """See ``_Step``."""
        names = self.named_in(table)
        return _changed(table, names, lambda i, values: (values - self.mean[i]) / self.std[i])


def mean_and_std_of(values: Array) -> tuple[float, float]:
    """Return mean and standard deviation of the numbers of a column; see ``mean_and_std``."""
    mean, std = mean_and_std([values.reshape(-1, 1)])
    return float(mean[0]), float(std[0])


class MinMax(_Step, frozen=True, tag_field="type", tag="min-max"):
    """Scales numbers to ``low .. high``, by the learned minimum and maximum of the training rows."""

    learned: ClassVar[tuple[str, ...]] = ("minimum", "maximum")
    numbers: ClassVar[bool | None] = True

    low: float = 0.0
    high: float = 1.0
    minimum: tuple[float, ...] = ()
    maximum: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_finite(self, minimum=self.minimum, maximum=self.maximum, range=(self.low, self.high))
        if not self.low < self.high:
            raise ConfError(f"{_tag(self)} has the range {self.low} to {self.high}; the first must be the smaller one")

    def learn(self, table: Table, column: str) -> tuple[float, float]:
        """See ``_Step``."""
        there = _present(table, column, self)
        return float(there.min()), float(there.max())

    def apply(self, table: Table) -> Table:
        """See ``_Step``."""

        def scaled(index: int, values: Array) -> Array:
            span = width(self.minimum[index], self.maximum[index])
            result: Array = (values - self.minimum[index]) / span * (self.high - self.low) + self.low
            return result

        return _changed(table, self.named_in(table), scaled)


class Clip(_Step, frozen=True, tag_field="type", tag="clip"):
    """Clips numbers to the range ``low .. high``; None: no bound. ``columns`` must be given."""

    numbers: ClassVar[bool | None] = True

    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        bounds = [bound for bound in (self.low, self.high) if bound is not None]
        _check_finite(self, bounds=bounds)
        if not self.columns or not bounds or (len(bounds) == 2 and bounds[0] > bounds[1]):
            raise ConfError(f"{_tag(self)} needs columns, and low, high or both, of which low is the smaller one")

    def apply(self, table: Table) -> Table:
        """See ``_Step``."""
        names = self.named_in(table)
        low, high = (-np.inf if self.low is None else self.low), (np.inf if self.high is None else self.high)
        return _changed(table, names, lambda _, values: np.clip(values, low, high))


class _OfCategories(_Step, frozen=True):
    """Base of the steps that encode words.

    Attributes:
        categories: the words of each column, in order; learned if empty: all words of the training rows, sorted.
        unknown: how unknown words and gaps are encoded: ``"ignore"`` gives zeros, or the number after the last word;
            ``"error"`` raises an error that names the cell.
    """

    learned: ClassVar[tuple[str, ...]] = ("categories",)
    numbers: ClassVar[bool | None] = False

    categories: tuple[tuple[str, ...], ...] = ()
    unknown: Literal["ignore", "error"] = "ignore"

    def __post_init__(self) -> None:
        super().__post_init__()
        for words in self.categories:
            if len(set(words)) < len(words) or not words:
                raise ConfError(f"{_tag(self)} has a list of categories that is empty, or has one twice: {words[:9]}")

    def learn(self, table: Table, column: str) -> tuple[tuple[str, ...]]:
        """See ``_Step``."""
        words = tuple(sorted(set(table.columns[column].tolist()) - {""}))
        if not words or len(words) > _MOST_WORDS:
            raise DataError(
                f"{table.name}: column {column!r} has {counted(len(words), 'different word')} in the training rows; "
                f"{_tag(self)} takes 1 to {_MOST_WORDS}: remove the column in the schema"
            )
        return (words,)

    def count_unseen(self, table: Table, unseen: UnseenWords) -> None:
        """See ``_Step``."""
        for column, words in zip(self.named_in(table), self.categories, strict=False):
            unseen.add(column, table.columns[column].tolist(), frozenset(words))

    def _codes(self, table: Table, index: int) -> Array:
        """Return the number of each row's word; for an unknown word, the number after the last one."""
        column, words = self.columns[index], self.categories[index]
        number = {word: code for code, word in enumerate(words)}
        codes = np.array([number.get(word, len(words)) for word in table.columns[column].tolist()], np.int64)
        if self.unknown == "error" and (codes == len(words)).any():
            row = int((codes == len(words)).argmax())
            raise DataError(
                f"{table.place(row, column)}: unknown category {table.columns[column][row]!r}; known: "
                f"{', '.join(words[:20])}{' ...' if len(words) > 20 else ''}"
            )
        return codes


class CategoricalToOneHot(_OfCategories, frozen=True, tag_field="type", tag="one-hot"):
    """Replaces a column of words by a column of 0 and 1 for each word, named ``column[word]``."""

    def made(self) -> tuple[str, ...]:
        """Return the names of the new columns; () if the step is not fitted."""
        if not self.is_fitted:
            return ()
        pairs = zip(self.columns, self.categories, strict=True)
        return tuple(f"{name}[{word}]" for name, words in pairs for word in words)

    def apply(self, table: Table) -> Table:
        """See ``_Step``."""
        self.named_in(table)
        columns: dict[str, Array] = {}
        for name, values in table.columns.items():
            if name not in self.columns:
                columns[name] = values
                continue
            index = self.columns.index(name)
            codes = self._codes(table, index)
            for code, word in enumerate(self.categories[index]):
                columns[f"{name}[{word}]"] = (codes == code).astype(np.float64)
        return table.with_columns(columns)


class CategoricalToInteger(_OfCategories, frozen=True, tag_field="type", tag="index"):
    """Replaces words by their numbers, from 0 in the order of the categories."""

    def apply(self, table: Table) -> Table:
        """See ``_Step``."""
        names = self.named_in(table)
        return _changed(table, names, lambda index, _: self._codes(table, index).astype(np.float64))


class RemoveColumns(_Step, frozen=True, tag_field="type", tag="remove"):
    """Removes columns, which the file then need not have."""

    def __post_init__(self) -> None:
        if not self.columns:
            raise ConfError(f"{_tag(self)} names no columns")

    def named_in(self, table: Table) -> tuple[str, ...]:
        """See ``_Step``; a missing column is no error."""
        return self.columns

    def apply(self, table: Table) -> Table:
        """See ``_Step``."""
        return table.with_columns({name: x for name, x in table.columns.items() if name not in self.columns})


def _compared(values: Array, condition: str, value: object) -> Array:
    """Return a mask of the values for which a comparison holds."""
    comparisons: dict[str, Callable[[Array, Any], Array]] = {
        "<": operator.lt,
        "<=": operator.le,
        ">": operator.gt,
        ">=": operator.ge,
        "==": operator.eq,
        "!=": operator.ne,
    }
    return comparisons[condition](values, value).astype(bool)


class Filter(_Step, frozen=True, tag_field="type", tag="filter"):
    """Removes rows for which ``column condition value`` holds, such as age > 120, in training and evaluation.

    ``condition="missing"`` removes rows with a gap. Rows to predict are never removed: all get an answer.
    """

    on_new_rows: ClassVar[bool] = False

    condition: Literal["<", "<=", ">", ">=", "==", "!=", "missing"]
    value: float | str | None = None

    def __post_init__(self) -> None:
        if len(self.columns) != 1 or (self.condition == "missing") is (self.value is not None):
            raise ConfError(f"{_tag(self)} needs one column, and a value for each condition but 'missing'")
        if isinstance(self.value, str) and self.condition not in ("==", "!="):
            raise ConfError(f"{_tag(self)} compares {self.value!r} by {self.condition!r}; words are == or !=")

    def apply(self, table: Table) -> Table:
        """See ``_Step``."""
        values = _column(table, self.columns[0], self)
        gaps = np.isnan(values) if is_numeric(values) else values == ""
        if self.condition == "missing":
            return table.take(~gaps)
        self._named(table, numbers=not isinstance(self.value, str))
        return table.take(gaps | ~_compared(values, self.condition, self.value))


_PAIRS: Mapping[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
}
_SINGLES: Mapping[str, Callable[[Array], Array]] = {"log": log, "log1p": log1p, "sqrt": np.sqrt, "abs": np.abs}


class Derive(_Step, frozen=True, tag_field="type", tag="derive"):
    """Adds a column of numbers: an operation on two columns, or a function of one. A gap stays a gap.

    A result that is not finite (a division by 0, the logarithm of a negative number) becomes a gap.
    """

    numbers: ClassVar[bool | None] = True

    name: str
    operation: Literal["add", "subtract", "multiply", "divide", "log", "log1p", "sqrt", "abs"]

    def __post_init__(self) -> None:
        needed = 2 if self.operation in _PAIRS else 1
        if len(self.columns) != needed or not self.name:
            raise ConfError(f"{_tag(self)} {self.operation!r} needs {counted(needed, 'column')}, and a name")

    def apply(self, table: Table) -> Table:
        """See ``_Step``."""
        values = [table.columns[name] for name in self.named_in(table)]
        if self.name in table.columns:
            raise DataError(f"{table.name}: {_tag(self)} names a column {self.name!r}, which is there already")
        with np.errstate(all="ignore"):
            found = _PAIRS[self.operation](*values) if len(values) == 2 else _SINGLES[self.operation](*values)
        return table.with_columns({**table.columns, self.name: np.where(np.isfinite(found), found, np.nan)})


Step = (
    Impute | Standardize | MinMax | Clip | CategoricalToOneHot | CategoricalToInteger | RemoveColumns | Filter | Derive
)
