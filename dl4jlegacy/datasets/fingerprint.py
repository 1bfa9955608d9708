"""A fingerprint of training data; a resumed run recognises its data by it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from dl4jlegacy.datasets.batches import Batch, BatchIterator
from dl4jlegacy.datasets.exported import Exported

__all__ = ["fingerprint"]

_LIMIT = 256 * 2**20  # about 0.15 s; all of MNIST is 190 MB
_BLOCKS = 1024
_BATCHES = 64


def fingerprint(data: Batch | BatchIterator, *, limit: int = _LIMIT) -> str:
    """Return the SHA-256 of names, dtypes, shapes and bytes of all features, labels and masks, as 64 hex digits.

    Of an array larger than ``limit`` bytes only evenly spread blocks of rows count, ``limit`` bytes in total. An
    iterator counts as the data set behind it, whatever its shuffling; without one, as up to 64 evenly spread batches
    of its first epoch. Exported batches all count.
    """
    if isinstance(data, Exported):
        return data.digest
    whole = hashlib.sha256()
    for part in _data_sets(data):
        for name, array in sorted(part.arrays().items()):
            whole.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
            for rows in _rows(len(array), array.nbytes, limit):
                whole.update(np.ascontiguousarray(array[rows]).reshape(-1).view(np.uint8).data)
    return whole.hexdigest()


def _data_sets(data: Batch | BatchIterator) -> Iterator[Batch]:
    if isinstance(data, Batch):
        yield data
        return
    inside = getattr(data, "dataset", None)
    if isinstance(inside, Batch):
        yield inside
        return
    for index in _spread(data.total_batches, _BATCHES):
        yield data.batch(0, index)


def _rows(rows: int, nbytes: int, limit: int) -> Iterator[slice]:
    """Yield the slices of rows that count: all rows, or evenly spread blocks."""
    if nbytes <= limit:
        yield slice(0, rows)
        return
    size = max(1, limit // _BLOCKS * rows // nbytes)  # rows of a block
    count = max(2, limit * rows // (nbytes * size))
    for start in _spread(rows - size + 1, count):
        yield slice(start, start + size)


def _spread(places: int, count: int) -> list[int]:
    """Return up to ``count`` evenly spread numbers of ``range(places)``, including the first and the last."""
    if places <= count:
        return list(range(places))
    return [index * (places - 1) // (count - 1) for index in range(count)]
