"""The step that adds what a linear regression predicts, computed without BLAS: the same bits on every processor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.columns.column_scale import mean_and_std
from dl4jlegacy.datasets.columns.step import BaseStep, check_finite, tag_of
from dl4jlegacy.datasets.columns.table import Table
from dl4jlegacy.errors import ConfError, DataError

__all__ = ["Linear"]

_ROWS = 4096  # multiplied at a time; another number gives other last bits


class Linear(BaseStep, frozen=True, tag_field="type", tag="linear"):
    """Adds a column ``label[linear]`` for each number to predict, as a ridge regression on other columns predicts it.

    It is standardized as the network learns the label, and stands after all other columns. A network that adds it to
    its output learns only what is left (``zoo.residual_mlp``). The columns must have no gaps.

    Attributes:
        penalty: on the squares of the weights of standardized columns.
        weights: of each column, one for each label; learned if empty, like all that follows.
        offsets: one for each label.
        spreads: the deviation of what is left of each label in the training rows.
        labels: the numbers to predict.
    """

    adds: ClassVar[bool] = True
    learned: ClassVar[tuple[str, ...]] = ("weights",)
    numbers: ClassVar[bool | None] = True

    penalty: float = 1.0
    weights: tuple[tuple[float, ...], ...] = ()
    offsets: tuple[float, ...] = ()
    spreads: tuple[float, ...] = ()
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        lists = {"offsets": self.offsets, "spreads": self.spreads, "penalty": (self.penalty,)}
        check_finite(self, **lists, weights=[weight for weights in self.weights for weight in weights])
        if self.penalty <= 0:
            raise ConfError(f"{tag_of(self)} has penalty {self.penalty}; give a positive number")
        counts = {len(each) for each in (*self.weights, self.offsets, self.spreads, self.labels)}
        if self.weights and len(counts) > 1:
            raise ConfError(f"{tag_of(self)} has different numbers of weights, offsets, spreads and labels")

    def learn(self, table: Table, column: str) -> tuple[Any, ...]:
        """Raise ``DataError``: only from numbers to predict can be learned, with ``fit_to``."""
        raise DataError(f"{table.name}: {tag_of(self)} is for numbers to predict (regression)")

    def fit_to(self, labels: Mapping[str, Array], shape: Table, column: Callable[[str, int, int], Array]) -> Linear:
        """Return the step fitted to the training rows, in three passes over them.

        Args:
            labels: the labels as the network learns them, float64, by their names.
            shape: a table with the columns.
            column: returns the values of the named column from one row to another.

        Raises:
            DataError: a column has gaps, or holds words.
        """
        names, y = self.named_in(shape), np.stack(list(labels.values()), axis=1)
        parts = [(start, min(start + _ROWS, len(y))) for start in range(0, len(y), _ROWS)]

        def blocks() -> Iterator[Array]:
            for start, end in parts:
                block = np.stack([column(name, start, end) for name in names], axis=1)
                if np.isnan(block).any():
                    name = names[int(np.isnan(block).any(axis=0).argmax())]
                    raise DataError(f"{shape.name}: column {name!r} has gaps, and {tag_of(self)} takes none: impute")
                yield block

        mean, std = mean_and_std(blocks())
        center = mean_and_std([y])[0]
        gram, products = np.diag(np.full(len(names), self.penalty)), np.zeros((len(names), y.shape[1]))
        for block, (start, end) in zip(blocks(), parts, strict=True):
            _add_moments(gram, products, (block - mean) / std, y[start:end] - center)
        weights = _solved(gram, products) / std[:, None]
        offsets = center - (mean[:, None] * weights).sum(axis=0)
        left = (
            y[start:end] - _predicted(block.T, weights, offsets)
            for block, (start, end) in zip(blocks(), parts, strict=True)
        )
        return msgspec.structs.replace(
            self,
            columns=names,
            weights=tuple(map(tuple, weights.tolist())),
            offsets=tuple(offsets.tolist()),
            spreads=tuple(mean_and_std(left)[1].tolist()),
            labels=tuple(labels),
        )

    def unfitted(self) -> Linear:
        """Return the step without what it has learned."""
        return msgspec.structs.replace(self, weights=(), offsets=(), spreads=(), labels=())

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
        return table.with_columns({**table.columns, **dict(zip(self.made(), found.T, strict=True))})


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
