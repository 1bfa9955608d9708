"""Cells of a class label: names, their order, and gaps; all readers share these rules.

Every text is a name, also ``None`` and ``NA``, which are gaps in other columns. Only empty cells are gaps, and cells
that the user lists. Names are sorted, numbers first and by value, so that class numbers from 0 keep their positions.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Collection, Iterable, Sequence

from dl4jlegacy.datasets.tables.text_rows import MISSING, is_plain

__all__ = ["class_name", "classes_of", "label_gaps", "listed_gaps", "numbers_in", "why_no_classes"]

_MOST_NUMBERS = 200  # maximum distinct numbers that count as classes, unless they are 0 to n - 1


def label_gaps(missing: Sequence[str]) -> frozenset[str]:
    """Return the cells of a label that mark a missing class, from the gaps listed in a schema, in lower case."""
    return frozenset(("",)) if tuple(missing) == MISSING else frozenset(("", *missing))


def listed_gaps(words: Iterable[str]) -> tuple[str, ...]:
    """Return the cells that mark a missing value in features and labels: these words and empty cells.

    A whole number also counts in its form as a fraction, which gaps elsewhere in a column make of it: -999 as -999.0.
    The empty cell comes last, so that the result never equals the default list, which has another meaning for labels.
    """
    found: dict[str, None] = {}
    for word in (word.strip().lower() for word in words):
        number = _number(word)
        spellings = (word,) if number is None or not number.is_integer() else (word, str(int(number)), str(number))
        found |= dict.fromkeys(each for each in spellings if each)
    return (*found, "")


def class_name(label: str) -> str:
    """Return the name of a class: ``1`` also for ``1.0`` and ``01``, which spreadsheets write; accents as NFC."""
    number = _number(label) if label[:1] in "-0123456789" else None
    if number is not None and number.is_integer() and abs(number) < 1e15:
        return str(int(number))
    return label if label.isascii() else unicodedata.normalize("NFC", label)


def classes_of(words: Iterable[str]) -> tuple[str, ...]:
    """Return the sorted names of the classes in the cells of a label."""
    return tuple(sorted(set(map(class_name, words)), key=_order))


def numbers_in(words: Iterable[str]) -> list[float] | None:
    """Return the numbers in cells, without those that are gaps in features; None if a cell is neither."""
    numbers = [_number(word) for word in words if word.lower() not in MISSING]
    return None if None in numbers else [number for number in numbers if number is not None]


def why_no_classes(words: Collection[str]) -> str:
    """Return what kind of numbers to predict the distinct cells of a label are; "" if they are classes."""
    numbers = numbers_in(words)
    if not numbers:
        return ""
    if not all(map(float.is_integer, numbers)):
        return "real numbers"
    different = set(numbers)
    if len(different) <= _MOST_NUMBERS or different == set(range(len(different))):
        return ""
    return f"{len(different)} different numbers"


def _number(label: str) -> float | None:
    """Return a finite number; None for anything else."""
    try:
        number = float(label)
    except ValueError:
        return None
    return number if math.isfinite(number) and is_plain(label) else None


def _order(label: str) -> tuple[int, float, str]:
    number = _number(label)
    return (1, 0.0, label) if number is None else (0, number, label)
