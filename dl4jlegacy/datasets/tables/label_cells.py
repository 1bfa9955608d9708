"""What stands in the cells of a label that is a class: names, their order, and gaps; the one rule of every reader.

Whatever stands there is a name, ``None`` and ``NA`` too, which are gaps in other columns; only empty cells are gaps,
and what somebody lists. Names are in sorted order, numbers first and by their values: numbers from 0 are therefore
their own places.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Collection, Iterable, Sequence

from dl4jlegacy.datasets.tables.text_rows import MISSING, is_plain

__all__ = ["class_name", "classes_of", "label_gaps", "listed_gaps", "numbers_in", "why_no_classes"]

_MOST_NUMBERS = 200  # different ones that are taken for classes, unless they are 0 to n - 1


def label_gaps(missing: Sequence[str]) -> frozenset[str]:
    """Return the cells of a label that stand for no class, by those that a schema lists as gaps, in small letters."""
    return frozenset(("",)) if tuple(missing) == MISSING else frozenset(("", *missing))


def listed_gaps(words: Iterable[str]) -> tuple[str, ...]:
    """Return the cells that stand for no value, of features and of labels, if these words do and empty cells.

    A whole number stands for itself as a fraction, too, which gaps elsewhere in a column make of it: -999 for -999.0.
    The empty one comes last: so this never is the usual list, which is not that of labels.
    """
    found: dict[str, None] = {}
    for word in (word.strip().lower() for word in words):
        number = _number(word)
        spellings = (word,) if number is None or not number.is_integer() else (word, str(int(number)), str(number))
        found |= dict.fromkeys(each for each in spellings if each)
    return (*found, "")


def class_name(label: str) -> str:
    """Return how a class is called: ``1`` for ``1.0`` and ``01``, which spreadsheets make of it; accents as one."""
    number = _number(label) if label[:1] in "-0123456789" else None
    if number is not None and number.is_integer() and abs(number) < 1e15:
        return str(int(number))
    return label if label.isascii() else unicodedata.normalize("NFC", label)


def classes_of(words: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the classes in the cells of a label, in their order."""
    return tuple(sorted(set(map(class_name, words)), key=_order))


def numbers_in(words: Iterable[str]) -> list[float] | None:
    """Return the numbers in cells, those that are gaps elsewhere left out; None if one holds something else."""
    numbers = [_number(word) for word in words if word.lower() not in MISSING]
    return None if None in numbers else [number for number in numbers if number is not None]


def why_no_classes(words: Collection[str]) -> str:
    """Return what the different cells of a label are if they are numbers to predict; "" if they are classes."""
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
