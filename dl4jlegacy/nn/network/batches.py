"""What ``fit`` and ``output`` walk through: the batches of some epochs, and the rows of a large batch."""

from __future__ import annotations

from collections.abc import Iterable

from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.datasets.iterator import DataSetIterator

__all__ = ["batches", "chunks"]

_ROWS = 1024  # examples per pass of output and score, so that work buffers stay small


def chunks(rows: int) -> Iterable[slice]:
    """Return the row ranges that go through a network at once."""
    return (slice(start, min(start + _ROWS, rows)) for start in range(0, max(rows, 1), _ROWS))


def batches(data: DataSetIterator | DataSet, epochs: int) -> Iterable[DataSet]:
    """Yield the batches of so many epochs; a DataSet is one batch."""
    for _ in range(epochs):
        if isinstance(data, DataSet):
            yield data
        else:
            yield from data
