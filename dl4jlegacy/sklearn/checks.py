"""Checks of the estimators' inputs: their arguments, and features and targets with missing values or strings.

scikit-learn's own messages are kept if they name the problem and its remedy.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np
from sklearn.utils.validation import validate_data

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import ConfError

__all__ = ["check_arguments", "units_of", "validated"]

_WHOLE = ("batch_size", "epochs", "epochs_without_improvement", "workers")
_NUMBERS = ("learning_rate", "l2", "drop_out", "corruption_level")
_SWITCHES = ("early_stopping", "warm_start")
_GAPS = ("NAType", "NaTType")  # pandas' representations of a missing value


def check_arguments(estimator: Any) -> None:
    """Raise ``ConfError`` for an argument of an estimator with a wrong type."""
    given: dict[str, Any] = estimator.get_params(deep=False)

    def refuse(name: str, wanted: str) -> NoReturn:
        raise ConfError(f"{type(estimator).__name__}: {name} is {given[name]!r}; it must be {wanted}")

    for name in _SWITCHES:
        if not isinstance(given.get(name, False), bool | np.bool_):
            refuse(name, "True or False")
    for name in _WHOLE:
        if not _is_whole(given[name]):
            refuse(name, "a whole number")
    if given["jobs_per_round"] is not None and not _is_whole(given["jobs_per_round"]):
        refuse("jobs_per_round", "a whole number, or None for as many as workers")
    for name in _NUMBERS:
        if given.get(name) is not None and not _is_number(given[name]):
            refuse(name, "a number")
    fraction = given["validation_fraction"]
    if given["early_stopping"] and not (_is_number(fraction) and 0 < fraction < 1):
        raise ConfError(f"validation_fraction is {fraction!r}; it must lie between 0 and 1")


def units_of(sizes: Any) -> list[int]:
    """Return the units of each hidden layer, from one number or several; raises ``ConfError`` for invalid ones."""
    several = [sizes] if _is_number(sizes) else sizes
    is_list = isinstance(several, Iterable) and not isinstance(several, str | bytes)
    units: list[Any] = list(several) if is_list else [None]
    if not all(_is_number(unit) and unit == int(unit) for unit in units):
        raise ConfError(f"hidden_layer_sizes is {sizes!r}; give whole numbers, one for each layer, as (64, 32)")
    return [int(unit) for unit in units]


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def validated(estimator: Any, X: Any, y: Any = "no_validation", **options: Any) -> Any:
    """Return the result of scikit-learn's ``validate_data`` with ``options``.

    Raises:
        ValueError: as ``validate_data``; names row, value and column of a missing value in ``y``, or of a string among
            numbers.
    """
    has_y = not (isinstance(y, str) and y == "no_validation")
    if has_y and y is not None and not hasattr(y, "tocsr"):
        _check_gaps(y)
        if options.get("y_numeric") and np.asarray(y).dtype.kind in "US":
            _name_word(estimator, X, y, None)
        shape = np.asarray(y).shape
        if len(shape) == 2 and shape[1] > 1 and not options.get("multi_output"):
            raise ValueError(
                f"y has shape {shape}, and {type(estimator).__name__} takes one class for each row; of one-hot rows "
                "that is y.argmax(axis=1)"
            )
    try:
        return validate_data(estimator, X, y, **options)
    except ValueError as exc:
        if "could not convert string" in str(exc):
            _name_word(estimator, X, y if has_y else None, exc)
        if str(exc).startswith(("Input X contains NaN", "Input X contains infinity")):
            _name_gap(X, exc)
        raise


def _check_gaps(y: Any) -> None:
    """Raise ``ValueError`` if a target is missing, or not a number."""
    values: Array = np.asarray(y)
    if values.dtype.kind == "f":
        gaps = ~np.isfinite(values)
    elif values.dtype.kind == "O":
        gaps = np.array([_is_gap(value) for value in values.ravel()], bool).reshape(values.shape)
    else:
        return
    if not gaps.any():
        return
    row = int(np.argwhere(gaps)[0][0])
    value = values[gaps][0]
    is_infinite = isinstance(value, float) and bool(np.isinf(value))
    what = "infinity or a value too large for dtype('float64')" if is_infinite else f"{value}"
    what = "NaN" if isinstance(value, float) and value != value else what
    raise ValueError(
        f"Input y contains {what}: {int(gaps.sum())} of {values.size} targets, first in row {row}; leave out the rows "
        "without a target"
    )


def _is_gap(value: Any) -> bool:
    return value is None or type(value).__name__ in _GAPS or (isinstance(value, float) and not np.isfinite(value))


def _name_word(estimator: Any, X: Any, y: Any, exc: ValueError | None) -> None:
    """Raise ``ValueError`` that names the first string in the features, or in the targets of a regressor."""
    cells = np.asarray(X, dtype=object)
    names = [repr(name) for name in getattr(X, "columns", range(cells.shape[-1] if cells.ndim else 0))]
    if cells.ndim == 2 and (place := _first_word(cells)) is not None:
        row, column = place
        raise ValueError(
            f"X has {cells[row, column]!r} in row {row}, column {names[column]}, and a network takes numbers; encode "
            "words, for instance by OneHotEncoder in a ColumnTransformer"
        ) from exc
    targets = np.asarray(y, dtype=object).reshape(len(cells) or 1, -1)
    if (place := _first_word(targets)) is not None:
        raise ValueError(
            f"y has {targets[place]!r} in row {place[0]}, and {type(estimator).__name__} predicts numbers; "
            "DL4JClassifier tells classes apart"
        ) from exc


def _name_gap(X: Any, exc: ValueError) -> None:
    """Raise ``ValueError`` that names the place of the first feature that is not finite."""
    if hasattr(X, "tocoo"):
        entries = X.tocoo()
        wrong = ~np.isfinite(entries.data)
        places = np.column_stack([entries.row, entries.col])[wrong]
    else:
        wrong = ~np.isfinite(np.asarray(X, np.float64))
        places = np.argwhere(wrong)
    if len(places):
        row, column = places[np.lexsort(places.T[::-1])[0]]
        names = list(getattr(X, "columns", []))
        name = repr(names[column]) if names else column
        raise ValueError(f"{exc}\nThe first of {len(places)} is in row {row}, column {name}.") from exc


def _first_word(cells: Array) -> tuple[int, int] | None:
    for place in np.ndindex(cells.shape):
        try:
            float(cells[place])
        except (TypeError, ValueError):
            return place
    return None
