"""Splits the rows of a data set into a training part and a held-out part, by a seed and optionally by class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.errors import DataError, counted

__all__ = ["Split", "class_numbers", "lone_rows", "split_order", "stratified"]

Rows = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Split:
    """How a part of a data set is held out.

    Attributes:
        test_fraction: the held-out share, between 0 and 1.
        seed: draws the rows.
        stratify: whether the held-out part gets its share of every class.
        allows_lone: whether a class may have a single example, which then goes to the training part: classes were known
            before.
    """

    test_fraction: float
    seed: int
    stratify: bool = False
    allows_lone: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.test_fraction < 1:
            raise DataError(f"test fraction is {self.test_fraction}; it must lie between 0 and 1 (exclusive)")

    def parts(self, rows: int) -> tuple[Rows, Rows]:
        """Return the training rows and the held-out rows, regardless of classes; raises ``DataError``."""
        return split_order(rows, 1 - self.test_fraction, self.seed)

    def parts_of(self, classes: Rows, names: Sequence[str], what: str) -> tuple[Rows, Rows]:
        """Return the two parts for rows of these classes, split class by class if ``stratify`` is set.

        Raises:
            DataError: a class has a single row, unless that is allowed; names the class and ``what``.
        """
        parts = self.parts(len(classes))
        if not self.stratify:
            return parts
        if (lone := lone_rows(classes)) and not self.allows_lone:
            number, row = min(lone.items(), key=lambda item: item[1])
            raise DataError(
                f"{what}: class {names[number]!r} has a single example, number {row} (from 0), and a stratified split "
                "needs two of every class, one to learn from and one to be held out: leave that example out, or "
                "--stratify"
            )
        return stratified(classes, parts)


def split_order(rows: int, fraction: float, seed: int | None) -> tuple[Rows, Rows]:
    """Return the training rows and the other rows.

    Args:
        rows: the number of rows; at least 2.
        fraction: the share of the training part, between 0 and 1, rounded to whole rows; neither part is ever empty.
        seed: shuffles the rows first; None keeps their order.

    Raises:
        DataError: too few rows, or an invalid share.
    """
    if not 0 < fraction < 1:
        raise DataError(f"the training part was to be {fraction} of the data set; it must lie between 0 and 1")
    if rows < 2:
        raise DataError(f"a data set of {counted(rows, 'example')} cannot be split into train and test; it needs 2")
    order = np.arange(rows)
    if seed is not None:
        order = Stream.of(seed).at(purpose="split").generator().permutation(rows)
    cut = min(max(round(rows * fraction), 1), rows - 1)
    return order[:cut], order[cut:]


def stratified(classes: Rows, parts: tuple[Rows, Rows], fewest: int = 1) -> tuple[Rows, Rows]:
    """Return the two parts of a split, changed so that each has its share of every class.

    The second part keeps its size, distributed over the classes by the largest remainders. It never gets all rows of a
    class, so that a class with a single row stays in the first part. Both parts keep the order of the rows.

    Args:
        classes: of the rows, ``(rows,)``.
        parts: the rows in two parts, as ``split_order`` draws them.
        fewest: 1: the second part gets a row of every class that has two; of equal remainders the lower class comes
            first. 0: a class whose share is less than a row may stay in the first part; of equal remainders the class
            of an earlier row comes first. If no class has two rows, the parts then stay as they are.

    Raises:
        DataError: no class has two rows, and ``fewest`` is 1.
    """
    order, wanted = np.concatenate(parts), len(parts[1])
    _, numbers, counts = np.unique(classes, return_inverse=True, return_counts=True)
    if counts.max() < 2:
        if fewest == 0:
            return parts
        raise DataError(
            f"{counted(len(classes), 'example')} of as many classes cannot be split class by class: each has only one"
        )
    shares, remainders = np.divmod(counts * wanted, len(classes))
    second = np.minimum(np.maximum(shares, fewest), counts - 1)
    shuffled = numbers[order]
    ranks = np.arange(len(counts)) if fewest else np.unique(shuffled, return_index=True)[1]
    for number in np.lexsort((ranks, -remainders)):
        if second.sum() < wanted and shares[number] == second[number] < counts[number] - 1:
            second[number] += 1
    grouped = np.argsort(shuffled, kind="stable")  # by class, in the order of the rows within each
    places = np.empty_like(grouped)
    places[grouped] = np.arange(len(order)) - (np.cumsum(counts) - counts)[shuffled[grouped]]
    is_first = places < (counts - second)[shuffled]
    return order[is_first], order[~is_first]


def lone_rows(classes: Rows) -> dict[int, int]:
    """Return the row of every class that has only one row, by class."""
    found, rows, counts = np.unique(classes, return_index=True, return_counts=True)
    return {int(found[index]): int(rows[index]) for index in np.flatnonzero(counts == 1)}


def class_numbers(labels: Array) -> Rows:
    """Return the class of every row of labels, ``(examples, classes)`` or class indices ``(examples, 1)``.

    Raises:
        DataError: the labels are not one class for each example.
    """
    if labels.ndim == 2 and labels.shape[1] > 1 and (labels.max(axis=1) == 1).all() and (labels.sum(axis=1) == 1).all():
        classes: Rows = labels.argmax(axis=1)
        return classes
    if labels.ndim == 2 and labels.shape[1] == 1 and ((labels >= 0) & (labels == np.floor(labels))).all():
        return labels[:, 0].astype(np.intp)
    raise DataError(
        f"labels of shape {labels.shape} are not one class for each example, so that their parts cannot have equal "
        "shares of the classes; leave stratify out"
    )
