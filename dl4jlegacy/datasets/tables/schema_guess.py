"""The schema that fits a table, guessed from its inspection."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dl4jlegacy.datasets.columns.quantiles import bins_for
from dl4jlegacy.datasets.columns.table import Column
from dl4jlegacy.datasets.columns.transforms import (
    CategoricalToOneHot,
    DateParts,
    Differences,
    Impute,
    Linear,
    MarkGaps,
    QuantileBins,
    RemoveColumns,
    Standardize,
    Step,
)
from dl4jlegacy.datasets.tables.column_summary import ColumnSummary
from dl4jlegacy.datasets.tables.inspection import Inspection, check_label
from dl4jlegacy.datasets.tables.transform_process import TransformProcess
from dl4jlegacy.errors import DataError

__all__ = ["guess_schema"]

_MOST_WORDS = 200  # maximum words of a column that become columns
_FEW_WORDS = 20  # up to this number, every row may have another word
_WIDEST = 2000  # maximum columns that bins add to a table
_MOST_PRODUCTS = 2_000_000_000  # of a regression, which takes some 1.5 s for them
_FEWEST_BINS = bins_for(0)
_GAP_WORD = "missing"


def guess_schema(
    found: Inspection,
    *,
    label: str = "",
    regression: bool = False,
    multi_label: bool = False,
    scale: bool = True,
    encode: bool = False,
) -> TransformProcess:
    """Return a schema for a file: gaps imputed, numbers standardized, words one-hot, unusable columns removed.

    Args:
        found: the inspection of the file.
        label: the label column, by name or number; "": the one called label, class or target, else the last. Several,
            separated by commas, are numbers to predict, or ``multi_label``.
        regression: the label is a number to predict.
        multi_label: the labels are 0 or 1 each, and do not exclude each other.
        scale: whether numbers are standardized.
        encode: whether numbers get quantiles besides, and medians and marks for their gaps, dates become numbers, rare
            words of columns with many words become one, and skewed numbers to predict are learned by their logarithm.
            Numbers to predict also get the step ``linear``, unless it would take long, since the rows times the square
            of the columns are more than 2,000 million; with it, lags of the label become differences.

    Raises:
        DataError: there is no such column, or it has no numbers to predict, or the labels are no classes.
    """
    labels = found.label_columns(label)
    regression = regression or (len(labels) > 1 and not multi_label)
    for name in labels:
        check_label(found, found.column(name), regression=regression, multi_label=multi_label)
    features = [column for column in found.columns if column.name not in labels]
    _check_commas(found.name, features)
    reasons = {column.name: reason for column in features if (reason := _why_removed(column, encode=encode))}
    used = [column for column in features if column.name not in reasons]
    if not used:
        why = ", ".join(f"{name!r} {reason}" for name, reason in reasons.items())
        raise DataError(f"{found.name} has nothing to learn from besides its label {', '.join(labels)!r}: {why}")
    steps: list[Step] = [RemoveColumns(columns=tuple(reasons))] if reasons else []
    is_linear = encode and regression and found.rows * _width(used) ** 2 <= _MOST_PRODUCTS
    beside: list[Step] = [Linear()] if is_linear else []
    lags = _lags_in(found, used) if is_linear else ()
    steps += _encoded(used, found.rows, beside, lags) if encode else _plain(used, scale=scale)
    columns = tuple(Column(column.name, column.type) for column in found.columns)
    fields: dict[str, Any] = {"label": labels[0]}
    if len(labels) > 1 or multi_label:
        fields = {"labels": labels, "multi_label": multi_label}
    if encode and regression and not lags:
        fields["label_log"] = tuple(name for name in labels if name in found.labels.skewed)
    return TransformProcess(columns=columns, regression=regression, steps=tuple(steps), missing=found.missing, **fields)


def _plain(used: Sequence[ColumnSummary], *, scale: bool) -> list[Step]:
    """Return the steps that fill gaps, standardize numbers, and make words one-hot."""
    numbers, words = _of_type(used, "number"), _of_type(used, "category")
    scaled: list[Step] = [Standardize(columns=numbers)] if scale else []
    filled: list[Step] = [Impute(columns=numbers), *scaled] if numbers else []
    return filled + _one_hot(words)


def _width(used: Sequence[ColumnSummary]) -> int:
    """Return the number of columns that these columns become without quantiles, at most."""
    of_words = sum(len(c.date_parts) or min(len(c.counts), _MOST_WORDS) for c in used if c.type == "category")
    return of_words + len(used) + sum(c.type == "number" for c in used)


def _lags_in(found: Inspection, used: Sequence[ColumnSummary]) -> tuple[str, ...]:
    """Return the lags of the label, if all of them are columns of numbers; else ()."""
    return lags if set(lags := found.labels.lags) <= set(_of_type(used, "number")) else ()


def _encoded(
    used: Sequence[ColumnSummary], rows: int, beside: Sequence[Step], lags: tuple[str, ...] = ()
) -> list[Step]:
    """Return the steps that encode numbers by quantiles beside their size, dates by their parts, and words one-hot.

    Numbers are filled by their median and standardized. Quantiles are left out where they would make too many columns.
    The steps ``beside`` learn from all columns but these. Lags of the label become differences to the first of them,
    without quantiles, and a regression begins at that one.
    """
    dates = [column for column in used if column.date_parts]
    different = {c.name: math.inf if c.is_full else len(c.counts) for c in used if c.type == "number"}
    gaps = [column.name for column in used if column.missing and column.name in different]
    for column in dates:
        names = [f"{column.name}[{part}]" for part in column.date_parts]
        different |= dict.fromkeys(names, math.inf)
        gaps += names[:1] if column.missing else []
    words = [column for column in used if column.name not in different and column not in dates]
    many = tuple(column.name for column in words if len(column.counts) > _MOST_WORDS)
    numbers = tuple(different)
    steps: list[Step] = []
    if dates:
        parts = tuple(column.date_parts for column in dates)
        steps.append(DateParts(columns=tuple(column.name for column in dates), parts=parts))
    if gaps:
        steps.append(MarkGaps(columns=tuple(gaps)))
    if lags:
        steps.append(Differences(columns=lags[1:], base=lags[0]))
        beside = [Linear(base=lags[0], penalty=0.0)]
    if numbers:
        steps.append(Impute(columns=numbers, strategy="median"))
    steps += _one_hot(tuple(column.name for column in words if column.name not in many))
    steps += [*_one_hot(many, most=_MOST_WORDS), *beside]
    different = {name: count for name, count in different.items() if name not in lags}
    return [*steps, *_quantiles(different, rows), Standardize(columns=numbers)] if numbers else steps


def _quantiles(different: dict[str, float], rows: int) -> list[Step]:
    """Return the step that adds bins to the columns, given how many different numbers each has."""
    columns = {name: count for name, count in different.items() if count > 2}
    usual = bins_for(rows)
    for bins in range(usual, _FEWEST_BINS - 1, -1):
        if columns and sum(min(bins, count - 1) for count in columns.values()) <= _WIDEST:
            return [QuantileBins(columns=tuple(columns), bins=0 if bins == usual else bins)]
    return []


def _one_hot(words: tuple[str, ...], most: int = 0) -> list[Step]:
    filled = Impute(columns=words, strategy="constant", constant=_GAP_WORD)
    return [filled, CategoricalToOneHot(columns=words, most=most)] if words else []


def _of_type(columns: Sequence[ColumnSummary], kind: str) -> tuple[str, ...]:
    return tuple(column.name for column in columns if column.type == kind)


def _check_commas(name: str, features: Sequence[ColumnSummary]) -> None:
    """Raise ``DataError`` for numbers with a decimal comma: they would be read as words."""
    for column in features:
        if column.with_commas:
            raise DataError(
                f"{name}: column {column.name!r} holds numbers with a comma, such as {column.comma_word!r}; write "
                "them with a point (pandas reads such a file by decimal=',')"
            )


def _why_removed(column: ColumnSummary, *, encode: bool) -> str:
    """Return why a guessed schema removes a column; "" if it does not."""
    if not column.numbers and not column.words:
        return "has no value at all"
    different, cells = len(column.counts), column.numbers + column.words
    if column.type != "category" or (encode and column.date_parts):
        return ""
    is_wide = different > _MOST_WORDS
    if encode and is_wide:
        is_wide = sum(count for _, count in column.counts.most_common(_MOST_WORDS)) < cells / 2
    if is_wide or different > max(_FEW_WORDS, cells // 2):
        more = "more than " if column.is_full else ""
        return f"has {more}{different:,} different words in {cells:,} rows, names or texts perhaps"
    return ""
