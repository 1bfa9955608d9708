"""The steps of a ``TransformProcess``; the base of all, and what they have in common, is in ``step``."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.columns.column_scale import mean_and_std, width
from dl4jlegacy.datasets.columns.dates import DateParts
from dl4jlegacy.datasets.columns.differences import Differences
from dl4jlegacy.datasets.columns.linear import Linear
from dl4jlegacy.datasets.columns.quantiles import MarkGaps, QuantileBins
from dl4jlegacy.datasets.columns.step import (
    BaseStep,
    changed,
    check_finite,
    column_of,
    is_numeric,
    present,
    tag_of,
    with_made,
)
from dl4jlegacy.datasets.columns.table import Table
from dl4jlegacy.datasets.unseen_words import UnseenWords
from dl4jlegacy.errors import ConfError, DataError, counted
from dl4jlegacy.kernels.elementary import log, log1p

__all__ = [
    "CategoricalToInteger",
    "CategoricalToOneHot",
    "Clip",
    "DateParts",
    "Derive",
    "Differences",
    "Filter",
    "Impute",
    "Linear",
    "MarkGaps",
    "MinMax",
    "QuantileBins",
    "RemoveColumns",
    "Standardize",
    "Step",
]

_MOST_WORDS = 1000
_OTHER = "(other)"


class Impute(BaseStep, frozen=True, tag_field="type", tag="impute"):
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
            raise ConfError(f"{tag_of(self)} has strategy {self.strategy!r} and constant {self.constant!r}")

    def named_in(self, table: Table) -> tuple[str, ...]:
        """See ``BaseStep``."""
        numbers = None
        if not self.columns:
            numbers = isinstance(self.constant, float | int) if self.strategy == "constant" else True
        return self.checked(table, numbers=numbers)

    def learn(self, table: Table, column: str) -> tuple[float | str]:
        """See ``BaseStep``."""
        values = table.columns[column]
        if self.constant is not None:
            if isinstance(self.constant, str) is is_numeric(values):
                raise DataError(f"{table.name}: {tag_of(self)} would put {self.constant!r} into column {column!r}")
            return (self.constant,)
        if is_numeric(values):
            there = present(table, column, self)
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
        """See ``BaseStep``."""
        self.checked(table, numbers=None)

        def filled(index: int, values: Array) -> Array:
            gaps = np.isnan(values) if is_numeric(values) else values == ""
            result: Array = np.where(gaps, self.values[index], values).astype(values.dtype)
            return result

        return changed(table, self.columns, filled)


class Standardize(BaseStep, frozen=True, tag_field="type", tag="standardize"):
    """Scales numbers to mean 0 and standard deviation 1 over the training rows; a constant column becomes 0.

    ``mean`` and ``std`` of each column are learned.
    """

    learned: ClassVar[tuple[str, ...]] = ("mean", "std")
    numbers: ClassVar[bool | None] = True

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_finite(self, mean=self.mean, std=self.std)
        if not all(std > 0 for std in self.std):
            raise ConfError(f"{tag_of(self)} has a standard deviation that is not positive")

    def learn(self, table: Table, column: str) -> tuple[float, float]:
        """See ``BaseStep``."""
        return mean_and_std_of(present(table, column, self))

    def apply(self, table: Table) -> Table:
        """See ``BaseStep``."""
        names = self.named_in(table)
        return changed(table, names, lambda i, values: (values - self.mean[i]) / self.std[i])


def mean_and_std_of(values: Array) -> tuple[float, float]:
    """Return mean and standard deviation of the numbers of a column; see ``mean_and_std``."""
    mean, std = mean_and_std([values.reshape(-1, 1)])
    return float(mean[0]), float(std[0])


class MinMax(BaseStep, frozen=True, tag_field="type", tag="min-max"):
    """Scales numbers to ``low .. high``, by the learned minimum and maximum of the training rows."""

    learned: ClassVar[tuple[str, ...]] = ("minimum", "maximum")
    numbers: ClassVar[bool | None] = True

    low: float = 0.0
    high: float = 1.0
    minimum: tuple[float, ...] = ()
    maximum: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_finite(self, minimum=self.minimum, maximum=self.maximum, range=(self.low, self.high))
        if not self.low < self.high:
            raise ConfError(
                f"{tag_of(self)} has the range {self.low} to {self.high}; the first must be the smaller one"
            )

    def learn(self, table: Table, column: str) -> tuple[float, float]:
        """See ``BaseStep``."""
        there = present(table, column, self)
        return float(there.min()), float(there.max())

    def apply(self, table: Table) -> Table:
        """See ``BaseStep``."""

        def scaled(index: int, values: Array) -> Array:
            span = width(self.minimum[index], self.maximum[index])
            result: Array = (values - self.minimum[index]) / span * (self.high - self.low) + self.low
            return result

        return changed(table, self.named_in(table), scaled)


class Clip(BaseStep, frozen=True, tag_field="type", tag="clip"):
    """Clips numbers to the range ``low .. high``; None: no bound. ``columns`` must be given."""

    numbers: ClassVar[bool | None] = True

    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        bounds = [bound for bound in (self.low, self.high) if bound is not None]
        check_finite(self, bounds=bounds)
        if not self.columns or not bounds or (len(bounds) == 2 and bounds[0] > bounds[1]):
            raise ConfError(f"{tag_of(self)} needs columns, and low, high or both, of which low is the smaller one")

    def apply(self, table: Table) -> Table:
        """See ``BaseStep``."""
        names = self.named_in(table)
        low, high = (-np.inf if self.low is None else self.low), (np.inf if self.high is None else self.high)
        return changed(table, names, lambda _, values: np.clip(values, low, high))


class _OfCategories(BaseStep, frozen=True):
    """Base of the steps that encode words.

    Attributes:
        categories: the words of each column, in order; learned if empty: all words of the training rows, sorted, or
            only those that ``min_count`` and ``most`` admit, and then ``(other)``, which stands for all other words.
        unknown: how unknown words and gaps are encoded where there is no ``(other)``: ``"ignore"`` gives zeros, or the
            number after the last word; ``"error"`` raises an error that names the cell.
        min_count: the training rows that a word needs in order to be learned.
        most: the most words of a column that are learned, the most frequent ones; 0: all, if they are at most 1000.
    """

    learned: ClassVar[tuple[str, ...]] = ("categories",)
    numbers: ClassVar[bool | None] = False

    categories: tuple[tuple[str, ...], ...] = ()
    unknown: Literal["ignore", "error"] = "ignore"
    min_count: int = 1
    most: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for words in self.categories:
            if len(set(words)) < len(words) or not words:
                raise ConfError(f"{tag_of(self)} has a list of categories that is empty, or has one twice: {words[:9]}")
        if self.min_count < 1 or not 0 <= self.most <= _MOST_WORDS:
            raise ConfError(
                f"{tag_of(self)} has min_count {self.min_count} and most {self.most}; give at least 1, and at most "
                f"{_MOST_WORDS}"
            )
        if self.unknown == "error" and (self.min_count > 1 or self.most):
            raise ConfError(f"{tag_of(self)} leaves rare words out, which unknown 'error' would refuse; give one")

    def learn(self, table: Table, column: str) -> tuple[tuple[str, ...]]:
        """See ``BaseStep``."""
        counts = Counter(table.columns[column].tolist())
        del counts[""]
        words = sorted(word for word, count in counts.items() if count >= self.min_count)
        if self.most:
            words = sorted(sorted(words, key=lambda word: -counts[word])[: self.most])
        if not words or len(words) > _MOST_WORDS:
            often = f" that {self.min_count} rows or more have" if self.min_count > 1 else ""
            raise DataError(
                f"{table.name}: column {column!r} has {counted(len(words), 'different word')}{often} in the training "
                f"rows; {tag_of(self)} takes 1 to {_MOST_WORDS}: remove the column in the schema"
            )
        if len(words) < len(counts):
            words = [*(word for word in words if word != _OTHER), _OTHER]
        return (tuple(words),)

    def count_unseen(self, table: Table, unseen: UnseenWords) -> None:
        """See ``BaseStep``."""
        for column, words in zip(self.named_in(table), self.categories, strict=False):
            if _OTHER not in words:  # it stands for words that were seen, too
                unseen.add(column, table.columns[column].tolist(), frozenset(words))

    def _codes(self, table: Table, index: int) -> Array:
        """Return the number of each row's word; for an unknown word that of ``(other)``, or after the last one."""
        column, words = self.columns[index], self.categories[index]
        number = {word: code for code, word in enumerate(words)}
        other = number.get(_OTHER, len(words))
        codes = np.array([number.get(word, other) for word in table.columns[column].tolist()], np.int64)
        if self.unknown == "error" and (codes == len(words)).any():
            row = int((codes == len(words)).argmax())
            raise DataError(
                f"{table.place(row, column)}: unknown category {table.columns[column][row]!r}; known: "
                f"{', '.join(words[:20])}{' ...' if len(words) > 20 else ''}"
            )
        return codes


class CategoricalToOneHot(_OfCategories, frozen=True, tag_field="type", tag="one-hot"):
    """Replaces a column of words by a column of 0 and 1 for each word, named ``column[word]``."""

    def made(self) -> dict[str, tuple[str, ...]]:
        """See ``BaseStep``."""
        pairs = zip(self.columns, self.categories, strict=True) if self.is_fitted else ()
        return {f"{name}[{word}]": (name,) for name, words in pairs for word in words}

    def apply(self, table: Table) -> Table:
        """See ``BaseStep``."""
        self.named_in(table)

        def of_words(index: int, _: Array) -> dict[str, Array]:
            codes = self._codes(table, index)
            words = enumerate(self.categories[index])
            return {f"{self.columns[index]}[{word}]": (codes == code).astype(np.float64) for code, word in words}

        return with_made(table, self, of_words)


class CategoricalToInteger(_OfCategories, frozen=True, tag_field="type", tag="index"):
    """Replaces words by their numbers, from 0 in the order of the categories."""

    def apply(self, table: Table) -> Table:
        """See ``BaseStep``."""
        names = self.named_in(table)
        return changed(table, names, lambda index, _: self._codes(table, index).astype(np.float64))


class RemoveColumns(BaseStep, frozen=True, tag_field="type", tag="remove"):
    """Removes columns, which the file then need not have."""

    def __post_init__(self) -> None:
        if not self.columns:
            raise ConfError(f"{tag_of(self)} names no columns")

    def named_in(self, table: Table) -> tuple[str, ...]:
        """See ``BaseStep``; a missing column is no error."""
        return self.columns

    def apply(self, table: Table) -> Table:
        """See ``BaseStep``."""
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


class Filter(BaseStep, frozen=True, tag_field="type", tag="filter"):
    """Removes rows for which ``column condition value`` holds, such as age > 120, in training and evaluation.

    ``condition="missing"`` removes rows with a gap. Rows to predict are never removed: all get an answer.
    """

    on_new_rows: ClassVar[bool] = False

    condition: Literal["<", "<=", ">", ">=", "==", "!=", "missing"]
    value: float | str | None = None

    def __post_init__(self) -> None:
        if len(self.columns) != 1 or (self.condition == "missing") is (self.value is not None):
            raise ConfError(f"{tag_of(self)} needs one column, and a value for each condition but 'missing'")
        if isinstance(self.value, str) and self.condition not in ("==", "!="):
            raise ConfError(f"{tag_of(self)} compares {self.value!r} by {self.condition!r}; words are == or !=")

    def apply(self, table: Table) -> Table:
        """See ``BaseStep``."""
        values = column_of(table, self.columns[0], self)
        gaps = np.isnan(values) if is_numeric(values) else values == ""
        if self.condition == "missing":
            return table.take(~gaps)
        self.checked(table, numbers=not isinstance(self.value, str))
        return table.take(gaps | ~_compared(values, self.condition, self.value))


_PAIRS: Mapping[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
}
_SINGLES: Mapping[str, Callable[[Array], Array]] = {"log": log, "log1p": log1p, "sqrt": np.sqrt, "abs": np.abs}


class Derive(BaseStep, frozen=True, tag_field="type", tag="derive"):
    """Adds a column of numbers: an operation on two columns, or a function of one. A gap stays a gap.

    A result that is not finite (a division by 0, the logarithm of a negative number) becomes a gap.
    """

    adds: ClassVar[bool] = True
    numbers: ClassVar[bool | None] = True

    name: str
    operation: Literal["add", "subtract", "multiply", "divide", "log", "log1p", "sqrt", "abs"]

    def __post_init__(self) -> None:
        needed = 2 if self.operation in _PAIRS else 1
        if len(self.columns) != needed or not self.name:
            raise ConfError(f"{tag_of(self)} {self.operation!r} needs {counted(needed, 'column')}, and a name")

    def made(self) -> dict[str, tuple[str, ...]]:
        """See ``BaseStep``."""
        return {self.name: self.columns}

    def apply(self, table: Table) -> Table:
        """See ``BaseStep``."""
        values = [table.columns[name] for name in self.named_in(table)]
        if self.name in table.columns:
            raise DataError(f"{table.name}: {tag_of(self)} names a column {self.name!r}, which is there already")
        with np.errstate(all="ignore"):
            found = _PAIRS[self.operation](*values) if len(values) == 2 else _SINGLES[self.operation](*values)
        return table.with_columns({**table.columns, self.name: np.where(np.isfinite(found), found, np.nan)})


Step = (
    Impute
    | Standardize
    | MinMax
    | Clip
    | CategoricalToOneHot
    | CategoricalToInteger
    | RemoveColumns
    | Filter
    | Derive
    | QuantileBins
    | MarkGaps
    | DateParts
    | Differences
    | Linear
)
