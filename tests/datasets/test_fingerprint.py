"""The fingerprint of training data: every byte of small data counts, and large ones are looked at from end to end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dl4jlegacy.datasets import DataSet, ListDataSetIterator, ListMultiDataSetIterator, MultiDataSet
from dl4jlegacy.datasets.fingerprint import fingerprint

X = np.random.default_rng(1).random((30, 4), dtype=np.float32)
Y = np.eye(3, dtype=np.float32)[np.arange(30) % 3]


def changed(array: np.ndarray, place: int) -> np.ndarray:
    """Return a copy in which one value is the next one that a float can hold."""
    copy = array.copy()
    copy.flat[place] = np.nextafter(copy.flat[place], np.float32(9), dtype=np.float32)
    return copy


def test_it_is_the_same_for_equal_data_however_they_are_dealt_out() -> None:
    found = fingerprint(DataSet(X, Y))
    assert len(found) == 64 and int(found, 16)
    assert fingerprint(DataSet(X.copy(), Y.copy())) == found
    assert fingerprint(DataSet(np.asfortranarray(X), Y)) == found
    assert fingerprint(ListDataSetIterator(DataSet(X, Y), 7, seed=1)) == found
    assert fingerprint(ListDataSetIterator(DataSet(X, Y), 4, seed=2, shuffle=False)) == found
    many = fingerprint(MultiDataSet([X, X], [Y]))
    assert many == fingerprint(ListMultiDataSetIterator(MultiDataSet([X, X], [Y]), 5)) != found


@given(st.integers(0, X.size - 1), st.integers(0, Y.size - 1))
def test_every_value_counts(x: int, y: int) -> None:
    found = fingerprint(DataSet(X, Y))
    assert fingerprint(DataSet(changed(X, x), Y)) != found
    assert fingerprint(DataSet(X, changed(Y, y))) != found
    assert fingerprint(MultiDataSet([X, changed(X, x)], [Y])) != fingerprint(MultiDataSet([X, X], [Y]))


def test_shapes_types_order_and_masks_count() -> None:
    steps, labels = np.ones((6, 2, 3), np.float32), np.ones((6, 2, 3), np.float32)
    mask = np.ones((6, 3), np.float32)
    different: list[Any] = [
        DataSet(X, Y),
        DataSet(X.astype(np.float64), Y.astype(np.float64)),
        DataSet(X.reshape(30, 2, 2), Y),
        DataSet(X[::-1], Y),
        DataSet(X[:29], Y[:29]),
        DataSet(Y, X),
        DataSet(steps, labels),
        DataSet(steps, labels, mask),
        DataSet(steps, labels, None, mask),
        MultiDataSet([X], [Y]),
        MultiDataSet([X, X], [Y]),
        MultiDataSet([X], [Y, Y]),
    ]
    assert len({fingerprint(data) for data in different}) == len(different)


@pytest.mark.parametrize(("rows", "columns"), [(50_000, 3), (2000, 100), (9, 20_000)])
def test_of_large_data_blocks_from_the_first_row_to_the_last_count(rows: int, columns: int) -> None:
    x, limit = np.zeros((rows, columns), np.float32), 64 * 1024
    labels = np.zeros((rows, 1), np.float32)
    found = fingerprint(DataSet(x, labels), limit=limit)
    for place in (0, x.size - 1):
        assert fingerprint(DataSet(changed(x, place), labels), limit=limit) != found
    seen = sum(
        fingerprint(DataSet(changed(x, row * columns), labels), limit=limit) != found
        for row in np.linspace(0, rows - 1, 200).astype(int)
    )
    assert 200 * min(1.0, limit / x.nbytes) * 0.5 < seen
    assert rows == 9 or seen < 200  # or it would not be a sample


class Unlisted:
    """An iterator that has no data set: every batch is made when it is asked for."""

    batch_size, total_examples, total_batches, input_columns, total_outcomes = 2, 400, 200, 1, 1

    def __init__(self, shift: float) -> None:
        self.shift, self.asked = shift, 0

    def batch(self, epoch: int, index: int) -> DataSet:
        self.asked += 1
        return DataSet(np.full((2, 1), index + self.shift, np.float32), np.zeros((2, 1), np.float32))

    has_next = next = reset = seek = __iter__ = None


def test_of_an_iterator_without_a_data_set_some_batches_count() -> None:
    iterator = Unlisted(0.0)
    found = fingerprint(iterator)  # type: ignore[arg-type]
    assert 1 < iterator.asked <= 64
    assert fingerprint(Unlisted(0.0)) == found != fingerprint(Unlisted(0.5))  # type: ignore[arg-type]
