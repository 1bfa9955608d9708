"""Sparse features: rows of which only the values are held that are not 0."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from dl4jlegacy.datasets import DataSet, ListDataSetIterator, NormalizerStandardize, export, load
from dl4jlegacy.datasets.exported import ExportedDataSetIterator
from dl4jlegacy.datasets.fingerprint import fingerprint
from dl4jlegacy.datasets.sparse_features import SparseFeatures
from dl4jlegacy.datasets.tables.sparse_files import read_svmlight
from dl4jlegacy.errors import DataError
from dl4jlegacy.scaleout.state.job import decode_work, encode_work

DENSE = np.where(np.random.default_rng(1).random((12, 30)) < 0.1, 1.5, 0.0).astype(np.float32)
DENSE[4] = 0
LABELS = np.eye(3, dtype=np.float32)[np.arange(12) % 3]
EVERY = np.arange(30, dtype=np.int32)


def sparse() -> DataSet:
    return DataSet(SparseFeatures.of(DENSE), LABELS)


def whole(data: DataSet) -> Any:
    return data.features.dense(EVERY)


def test_rows_are_those_of_the_array() -> None:
    data = sparse()
    assert data.is_sparse and (data.num_examples, data.n_in, data.n_out) == (12, 30, 3)
    assert (whole(data) == DENSE).all()
    assert (whole(data.rows(3, 6)) == DENSE[3:6]).all() and len(data.rows(5, 5)) == 0
    order = np.array([7, 4, 4, 0])
    assert (whole(data.take(order)) == DENSE[order]).all()
    train, test = data.split_test_and_train(0.5, 3)
    dense = DataSet(DENSE, LABELS).split_test_and_train(0.5, 3)
    assert (whole(train) == dense.train.features).all() and (whole(test) == dense.test.features).all()
    assert DataSet.merge([data.rows(0, 5), data.rows(5, 12)]) == data
    assert data != DataSet(SparseFeatures.of(DENSE * 2), LABELS)


def test_only_the_columns_that_have_a_value_are_touched() -> None:
    features = sparse().features[2:5]
    columns = features.touched()
    assert columns.tolist() == np.flatnonzero(DENSE[2:5].any(axis=0)).tolist()
    assert (features.dense(columns) == DENSE[2:5][:, columns]).all()
    assert (features.dense(columns, 10)[:, len(columns) :] == 0).all()


def test_a_matrix_of_scipy_is_taken_as_it_is() -> None:
    twice = scipy.sparse.coo_matrix(([1.0, 2.0, 4.0], ([0, 0, 1], [3, 3, 0])), shape=(2, 5))
    data = DataSet(twice, np.eye(2))
    assert data.features.dense(np.arange(5, dtype=np.int32)).tolist() == [[0, 0, 0, 3, 0], [4, 0, 0, 0, 0]]


def test_batches_go_with_jobs_and_into_files(tmp_path: Path) -> None:
    data = sparse()
    parts = [data.rows(0, 8), data.rows(8, 12)]
    assert decode_work(encode_work(parts)) == parts
    export(ListDataSetIterator(data, 5, shuffle=False), tmp_path)
    kept = ExportedDataSetIterator.open(tmp_path)
    assert kept.batch(0, 1) == data.rows(5, 10) and kept.input_columns == 30
    assert fingerprint(data) == fingerprint(sparse()) != fingerprint(data.rows(0, 11))


WRONG: list[tuple[tuple[Any, ...], str]] = [
    (([0, 1], [30], [1.0], 30), "indices of sparse features must be from 0 to 29; there is 30"),
    (([0, 2], [3, 3], [1.0, 1.0], 30), "the indices of sparse features of example 0 do not ascend"),
    (([0, 2, 1], [3, 4], [1.0, 1.0], 30), "offsets of sparse features must ascend from 0 to 2"),
    (([0, 1], [3, 4], [1.0], 30), "an index for each value"),
    (([0, 1], [3], [np.nan], 30), "features of example 0, column 3 (from 0) are nan"),
    (([0, 1], [3], [1.0], 0), "sparse features have 0 columns"),
    (([0, 1], [3.5], [1.0], 30), "indices of float64"),
]


@pytest.mark.parametrize(("arrays", "said"), WRONG)
def test_arrays_that_do_not_belong_together_are_named(arrays: Any, said: str) -> None:
    with pytest.raises(DataError, match=re.escape(said)):
        SparseFeatures(*arrays)


def test_what_needs_every_value_refuses_them_by_name() -> None:
    with pytest.raises(DataError, match=r"features are sparse, 12 rows of 30 columns, .* only a network"):
        NormalizerStandardize().fit(sparse())
    with pytest.raises(DataError, match="must all have sparse features, or none"):
        DataSet.merge([sparse(), DataSet(DENSE, LABELS)])


def test_a_file_with_more_columns_than_a_table_may_have_is_read_as_sparse_features(tmp_path: Path) -> None:
    path = tmp_path / "a.svm"
    path.write_text("".join(f"{row % 2} {row + 1}:0.5 {150_000 + row}:1\n" for row in range(10)))
    source = load(path, test_fraction=0.2)
    assert source.train.is_sparse and source.train.n_in == 150_010 and source.label_names == ("0", "1")
    assert (len(source.train), len(source.test)) == (8, 2)
    data, names = read_svmlight(path, columns=200_000)
    assert data.n_in == 200_000 and names == ("0", "1")
    assert data.features[0:1].touched().tolist() == [1, 150_000]
    with pytest.raises(DataError, match=r"a.svm, line 10: index 150009 is larger than 149999"):
        read_svmlight(path, columns=150_000)
    with pytest.raises(DataError, match=r"a.svm, line 2: label '1' is none of the classes 0"):
        read_svmlight(path, label_names=("0",))
