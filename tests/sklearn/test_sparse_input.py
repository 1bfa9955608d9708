"""Sparse features: what they are learned as, how many of their values are in memory, and by workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn import datasets
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline

from dl4jlegacy import ActorNetworkRunner, Conf, DenseLayer, MultiLayerConfiguration, OutputLayer
from dl4jlegacy.datasets import DataSet, ListDataSetIterator
from dl4jlegacy.datasets.sparse_features import SparseFeatures
from dl4jlegacy.sklearn import DL4JClassifier, DL4JRegressor

X, Y = datasets.load_digits(return_X_y=True)
X, Y = X[:200], Y[:200]
QUICK: dict[str, Any] = {"hidden_layer_sizes": (8,), "epochs": 3, "random_state": 3}
FORMS = (sp.csr_matrix, sp.csc_matrix, sp.csr_array, sp.csc_array, sp.coo_array)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [DL4JClassifier, DL4JRegressor])
@pytest.mark.parametrize("options", [{}, {"workers": 2}, {"early_stopping": True}])
@pytest.mark.everyday(8)
def test_a_matrix_is_learned_as_its_array_is_to_the_bit(kind: Any, form: Any, options: dict[str, Any]) -> None:
    array = kind(**QUICK, **options).fit(X, Y, sample_weight=np.arange(len(Y)))
    matrix = kind(**QUICK, **options).fit(form(X), Y, sample_weight=np.arange(len(Y)))
    assert matrix.model_.params.tobytes() == array.model_.params.tobytes()
    np.testing.assert_allclose(matrix.predict(form(X)), array.predict(X), rtol=1e-12)


@pytest.mark.parametrize("options", [{"updater": "sgd"}, {"updater": "adagrad", "workers": 2, "early_stopping": True}])
def test_rows_that_the_first_layer_takes_stay_sparse(options: dict[str, Any], monkeypatch: Any) -> None:
    array = DL4JClassifier(**QUICK, **options).fit(X, Y)
    wide = sp.hstack([sp.csr_array(X), sp.csr_array((len(X), 100_000))], format="csr")
    monkeypatch.setattr(SparseFeatures, "__array__", None)
    model = DL4JClassifier(**QUICK, **options).fit(wide, Y)
    assert model.predict_proba(wide).shape == (200, 10)  # as an array it would be 160 MB
    narrow = DL4JClassifier(**QUICK, **options).fit(sp.csr_array(X), Y)
    np.testing.assert_allclose(narrow.predict_proba(X), array.predict_proba(X), rtol=1e-4)


def test_never_more_than_a_batch_has_all_of_its_values(monkeypatch: Any) -> None:
    rows: list[int] = []
    dense = SparseFeatures.dense

    def counted(self: SparseFeatures, *args: Any) -> Any:
        rows.append(len(self))
        return dense(self, *args)

    monkeypatch.setattr(SparseFeatures, "dense", counted)
    model = DL4JClassifier(**QUICK, batch_size=20, early_stopping=True, validation_fraction=0.5)
    model.fit(sp.csr_array(X), Y)
    assert max(rows) == 20


def test_a_layer_that_takes_no_sparse_rows_gets_batches() -> None:
    conf = MultiLayerConfiguration((DenseLayer(n_out=4, l2=0.01), OutputLayer(activation="softmax")))
    array = DL4JClassifier(configuration=conf, epochs=2, random_state=0).fit(X, Y)
    matrix = DL4JClassifier(configuration=conf, epochs=2, random_state=0).fit(sp.csr_array(X), Y)
    assert matrix.model_.params.tobytes() == array.model_.params.tobytes()
    assert np.array_equal(matrix.predict_proba(sp.csr_array(X)), array.predict_proba(X))


def test_texts_go_through_a_pipeline() -> None:
    texts = ["the cat sat", "a dog ran", "cats sit", "dogs run", "the cat", "the dog"]
    labels = ["cat", "dog"] * 3
    pipeline = make_pipeline(TfidfVectorizer(analyzer="char_wb"), DL4JClassifier((8,), epochs=60, random_state=0))
    assert pipeline.fit(texts, labels).score(texts, labels) == 1


def test_partial_fit_takes_arrays_and_matrices_in_turn() -> None:
    model = DL4JRegressor(**QUICK).partial_fit(sp.csr_array(X), Y).partial_fit(X, Y).partial_fit(sp.csc_array(X), Y)
    assert model.model_.params.tobytes() == DL4JRegressor(**QUICK).fit(X, Y).model_.params.tobytes()


def test_a_run_takes_sparse_data_whose_batches_a_pre_processor_makes_arrays() -> None:
    def as_arrays(batch: DataSet) -> DataSet:
        columns = np.arange(batch.features.columns, dtype=np.int32)
        return DataSet(batch.features.dense(columns), batch.labels)

    conf = MultiLayerConfiguration((OutputLayer(activation="softmax"),)).with_sizes(64, 10)
    found = []
    for features, pre_processor in ((X.astype(np.float32), None), (sp.csr_array(X.astype(np.float32)), as_arrays)):
        data = ListDataSetIterator(DataSet.of_classes(features, Y), 50, pre_processor=pre_processor)
        with ActorNetworkRunner("master", data) as runner:
            runner.setup(Conf(multi_layer_conf=conf, epochs=1))
            found.append(runner.network(runner.train(progress=False)).params.tobytes())
    assert found[0] == found[1]
