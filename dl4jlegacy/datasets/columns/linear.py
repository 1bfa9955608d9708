"""The step that adds what a linear regression predicts, computed without BLAS: the same bits on every processor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.columns.column_scale import mean_and_std
from dl4jlegacy.datasets.columns.step import BaseStep, check_finite, column_of, tag_of
from dl4jlegacy.datasets.columns.table import Table
from dl4jlegacy.errors import ConfError, DataError

__all__ = ["Linear"]

_ROWS = 4096  # multiplied at a time; another number gives other last bits
_LEAST_FOUND = 1e-4  # part of the variance
_LESS, _LESS_IN_ROWS = 0.05, 20  # of the squares, which a regression without the base must save, and of their mean
_PENALTIES = (1.0, 10.0, 100.0, 1000.0, 10_000.0, 100_000.0)


class Linear(BaseStep, frozen=True, tag_field="type", tag="linear"):
    """Adds a column ``label[linear]`` for each number to predict, as a ridge regression on other columns predicts it.

    It is standardized as the network learns the label, and stands after all other columns. A network that adds it to
    its output learns only what is left (``zoo.residual_mlp``). The columns must have no gaps.

    Attributes:
        base: the last value of a series, in the label's units: the regression predicts the label less this column from
            the other columns. It comes to stand before them, and the network does not learn from it. "": none, as in a
            step with penalty 0 that is fitted to a series that keeps to a level, so that a regression on the base as on
            the other columns leaves much less.
        penalty: on the squares of the weights of standardized columns; 0: 1 to 100,000, by generalized cross-validation
            (Golub, Heath and Wahba, Technometrics 1979).
        weights: of each column, one for each label; learned if empty, like all that follows.
        offsets: one for each label.
        spreads: the deviation of what is left of each label in the training rows. With a base it is multiplied by the
            correlation of label less base with its prediction: where a regression finds little, there is mostly noise.
        labels: the numbers to predict.
    """

    adds: ClassVar[bool] = True
    learned: ClassVar[tuple[str, ...]] = ("weights",)
    numbers: ClassVar[bool | None] = True

    base: str = ""
    penalty: float = 1.0
    weights: tuple[tuple[float, ...], ...] = ()
    offsets: tuple[float, ...] = ()
    spreads: tuple[float, ...] = ()
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        lists = {"offsets": self.offsets, "spreads": self.spreads, "penalty": (self.penalty,)}
        check_finite(self, **lists, weights=[weight for weights in self.weights for weight in weights])
        if self.penalty < 0:
            raise ConfError(
                f"{tag_of(self)} has penalty {self.penalty}; give a positive number, or 0 to have it chosen"
            )
        counts = {len(each) for each in (*self.weights, self.offsets, self.spreads, self.labels)}
        if self.weights and len(counts) > 1:
            raise ConfError(f"{tag_of(self)} has different numbers of weights, offsets, spreads and labels")
        if self.base and self.columns and self.base not in self.columns:
            raise ConfError(f"{tag_of(self)} has base {self.base!r}, which is none of its columns")

    def named_in(self, table: Table) -> tuple[str, ...]:
        """See ``BaseStep``; raises for the base, too."""
        if self.base:
            column_of(table, self.base, self)
        return super().named_in(table)

    def learn(self, table: Table, column: str) -> tuple[Any, ...]:
        """Raise ``DataError``: only from numbers to predict can be learned, with ``fit_to``."""
        raise DataError(f"{table.name}: {tag_of(self)} is for numbers to predict (regression)")

    def fit_to(
        self,
        labels: Mapping[str, Array],
        shape: Table,
        column: Callable[[str, int, int], Array],
        *,
        stds: Sequence[float] = (),
    ) -> Linear:
        """Return the step fitted to the training rows, in three passes over them; in six if a base may be given up.

        Args:
            labels: the labels as the network learns them, float64, by their names.
            shape: a table with the columns.
            column: returns the values of the named column from one row to another.
            stds: by which the labels were divided; needed for a ``base``.

        Raises:
            DataError: a column has gaps, or holds words.
        """
        fitted, left = self._fitted(labels, shape, column, stds)
        if self.base and not self.penalty:
            rows = len(next(iter(labels.values())))
            free, free_left = self._fitted(labels, shape, column, stds, gives_up=True)
            if free_left < left * (1 - max(_LESS, _LESS_IN_ROWS / rows)):
                return free
        return fitted

    def _fitted(
        self,
        labels: Mapping[str, Array],
        shape: Table,
        column: Callable[[str, int, int], Array],
        stds: Sequence[float],
        *,
        gives_up: bool = False,
    ) -> tuple[Linear, float]:
        """Return the step fitted with its base, or without it, and the mean square of what is left; see ``fit_to``."""
        names, y = self.named_in(shape), np.stack(list(labels.values()), axis=1)
        parts = [(start, min(start + _ROWS, len(y))) for start in range(0, len(y), _ROWS)]

        def blocks() -> Iterator[Array]:
            for start, end in parts:
                block = np.stack([column(name, start, end) for name in names], axis=1)
                if np.isnan(block).any():
                    name = names[int(np.isnan(block).any(axis=0).argmax())]
                    raise DataError(f"{shape.name}: column {name!r} has gaps, and {tag_of(self)} takes none: impute")
                yield block

        if self.base:
            y = y - column(self.base, 0, len(y))[:, None] / np.array(stds)
        base = names.index(self.base) if self.base else None
        weights, offsets = self._regression(blocks, None if gives_up else base, y)
        left = (
            y[start:end] - _predicted(block.T, weights, offsets)
            for block, (start, end) in zip(blocks(), parts, strict=True)
        )
        spreads = mean_and_std(left)[1]
        found = float(np.square(spreads).mean())
        if base is not None:
            weights[base] += 1 / np.array(stds)
        if base is not None and not gives_up:
            spreads *= np.sqrt(np.maximum(1 - np.square(spreads / mean_and_std([y])[1]), _LEAST_FOUND))
        fitted = msgspec.structs.replace(
            self,
            base="" if gives_up else self.base,
            columns=names,
            weights=tuple(map(tuple, weights.tolist())),
            offsets=tuple(offsets.tolist()),
            spreads=tuple(spreads.tolist()),
            labels=tuple(labels),
        )
        return fitted, found

    def _regression(self, blocks: Callable[[], Iterator[Array]], without: int | None, y: Array) -> tuple[Array, Array]:
        """Return weights and offsets of a regression on the columns in blocks of rows; the weight of one may be 0."""
        mean, std = mean_and_std(blocks())
        if without is not None:
            std[without] = np.inf
        center, end = mean_and_std([y])[0], 0
        gram, products = np.diag(np.full(len(mean), float(self.penalty))), np.zeros((len(mean), y.shape[1]))
        for block in blocks():
            start, end = end, end + len(block)
            _add_moments(gram, products, (block - mean) / std, y[start:end] - center)
        if not self.penalty:
            gram += np.diag(np.full(len(mean), _usual_penalty(gram, products, y - center)))
        weights = _solved(gram, products) / std[:, None]
        return weights, center - (mean[:, None] * weights).sum(axis=0)

    def for_other_labels(self) -> Linear:
        """Return the step without what it has learned, and without the base, which is a last value of its labels."""
        return msgspec.structs.replace(self, base="", weights=(), offsets=(), spreads=(), labels=())

    @property
    def scale(self) -> float:
        """The size of what is left to learn, in deviations of the labels."""
        return float(np.sqrt(np.square(self.spreads).mean()))

    def made(self) -> dict[str, tuple[str, ...]]:
        """See ``BaseStep``."""
        return {f"{label}[linear]": self.columns for label in self.labels}

    def apply(self, table: Table) -> Table:
        """See ``BaseStep``."""
        columns = [table.columns[name] for name in self.named_in(table)]
        found = _predicted(columns, np.array(self.weights), np.array(self.offsets))
        others = {name: values for name, values in table.columns.items() if name != self.base}
        base = {self.base: table.columns[self.base]} if self.base else {}
        return table.with_columns({**base, **others, **dict(zip(self.made(), found.T, strict=True))})


def _predicted(columns: Sequence[Array] | Array, weights: Array, offsets: Array) -> Array:
    """Return the predictions, ``(rows, labels)``."""
    found = np.tile(offsets, (len(columns[0]), 1))
    for column, weight in zip(columns, weights, strict=True):
        found += column[:, None] * weight
    return found


def _add_moments(gram: Array, products: Array, x: Array, y: Array) -> None:
    """Add ``x'x``, of which only the lower half is filled, and ``x'y``."""
    for index, own in enumerate(x.T):
        gram[index:, index] += (x[:, index:] * own[:, None]).sum(axis=0)
        products[index] += (y * own[:, None]).sum(axis=0)


def _usual_penalty(gram: Array, products: Array, y: Array) -> float:
    """Return the penalty of the least squared error, divided by the square of the degrees of freedom that are left.

    Args:
        gram, products: as ``_add_moments`` left them.
        y: the labels, centered.
    """
    scores = {}
    for penalty in _PENALTIES:
        added = np.diag(np.full(len(gram), penalty))
        inverse = _solved(gram + added, np.eye(len(gram)))
        weights = _solved(gram + added, products.copy())
        error = np.square(y).sum() - (weights * products).sum() - penalty * np.square(weights).sum()
        free = len(y) - 1 - len(gram) + penalty * np.diag(inverse).sum()
        scores[penalty] = error / free**2
    return min(scores, key=scores.__getitem__)


def _solved(matrix: Array, right: Array) -> Array:
    """Return the solution for a positive definite matrix, by Cholesky's decomposition; changes both."""
    count = len(matrix)
    for j in range(count):
        matrix[j:, j] /= np.sqrt(matrix[j, j])
        below = matrix[j + 1 :, j]
        matrix[j + 1 :, j + 1 :] -= below[:, None] * below
    for j in range(count):
        right[j] /= matrix[j, j]
        right[j + 1 :] -= matrix[j + 1 :, j, None] * right[j]
    for j in reversed(range(count)):
        right[j] /= matrix[j, j]
        right[:j] -= matrix[j, :j, None] * right[j]
    return right
