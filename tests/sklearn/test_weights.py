"""Weights of examples and of classes: what holds of gradients and of bits, and in scikit-learn's tools."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from sklearn import datasets
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks
from sklearn.utils.class_weight import compute_class_weight, compute_sample_weight

from dl4jlegacy import Adam, DenseLayer, MultiLayerConfiguration, MultiLayerNetwork, NeuralNetConfiguration, OutputLayer
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.datasets.dataset import DataSet, one_hot
from dl4jlegacy.sklearn import DL4JClassifier, DL4JRegressor
from dl4jlegacy.sklearn.sample_weights import weighted

QUICK: dict[str, Any] = {"hidden_layer_sizes": (8,), "epochs": 4, "random_state": 3}
X, Y = datasets.load_iris(return_X_y=True)
WEIGHTS = np.random.default_rng(0).integers(0, 4, len(X))


def exact(activation: str, loss: str) -> MultiLayerConfiguration:
    """A small network that computes in float64."""
    shared = NeuralNetConfiguration(seed=1, dtype="float64", activation="relu", updater=Adam(learning_rate=0.02))
    return MultiLayerConfiguration((DenseLayer(n_out=16), OutputLayer(activation=activation, loss=loss)), conf=shared)


def params(model: Any) -> bytes:
    found: bytes = model.model_.params.tobytes()
    return found


# --- what holds -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("activation", "loss"), [("softmax", "mcxent"), ("identity", "mse"), ("sigmoid", "xent"), ("tanh", "l1")]
)
def test_a_weight_of_two_is_the_row_twice_in_the_gradient(activation: str, loss: str) -> None:
    conf = exact(activation, loss).with_sizes(4, 3)
    labels = one_hot(Y, 3, np.float64)

    def gradient(data: DataSet) -> tuple[Any, float]:
        network = MultiLayerNetwork(conf)
        found, score = network.gradient_and_score(data.features, data.labels, Stream.of(0), None, data.labels_mask)
        return found.copy(), float(score)

    ours = gradient(weighted(X.astype(np.float64), labels, WEIGHTS.astype(float)))
    theirs = gradient(DataSet(X.repeat(WEIGHTS, axis=0), labels.repeat(WEIGHTS, axis=0)))
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-11, atol=1e-14)
    assert ours[1] == pytest.approx(theirs[1], rel=1e-12)


@pytest.mark.parametrize("check", ["dense", "sparse"])
@pytest.mark.parametrize("kind", [DL4JClassifier, DL4JRegressor])
def test_weights_are_repeated_rows_to_scikit_learns_check_in_float64(kind: Any, check: str) -> None:
    """One batch holds all rows, as in any training by all of them at once."""
    conf = exact("softmax", "mcxent") if kind is DL4JClassifier else exact("identity", "mse")
    estimator = kind(configuration=conf, epochs=20, batch_size=64)
    getattr(estimator_checks, f"check_sample_weight_equivalence_on_{check}_data")(kind.__name__, estimator)


@pytest.mark.long
@pytest.mark.parametrize("kind", [DL4JClassifier, DL4JRegressor])
def test_no_check_of_scikit_learn_fails_in_float64(kind: Any) -> None:
    conf = exact("softmax", "mcxent") if kind is DL4JClassifier else exact("identity", "mse")
    results = estimator_checks.check_estimator(
        kind(configuration=conf, epochs=20, batch_size=64), on_fail=None, on_skip=None
    )
    assert len(results) > 60
    assert [result for result in results if result["status"] != "passed"] == []


@pytest.mark.parametrize("kind", [DL4JClassifier, DL4JRegressor])
@pytest.mark.parametrize("options", [{}, {"workers": 2}, {"early_stopping": True}])
@pytest.mark.everyday(3)
def test_a_row_of_weight_zero_is_as_one_that_is_not_there(kind: Any, options: dict[str, Any]) -> None:
    model = kind(**QUICK, **options)
    there = WEIGHTS > 0
    without = params(model.fit(X[there], Y[there], sample_weight=WEIGHTS[there]))
    assert params(model.fit(X, Y, sample_weight=WEIGHTS)) == without
    plain = params(model.fit(X[there], Y[there]))
    assert params(model.fit(X, Y, sample_weight=there)) == plain != without


@pytest.mark.parametrize("kind", [DL4JClassifier, DL4JRegressor])
def test_only_ratios_of_weights_matter(kind: Any) -> None:
    model = kind(**QUICK)
    once = params(model.fit(X, Y, sample_weight=WEIGHTS))
    assert params(model.fit(X, Y, sample_weight=WEIGHTS * 4.0)) == once
    assert params(model.fit(X, Y, sample_weight=WEIGHTS * 2.0**1000)) == once
    unweighted = params(model.fit(X, Y))
    assert params(model.fit(X, Y, sample_weight=np.full(len(X), 7))) == unweighted != once
    assert params(model.fit(X, Y, sample_weight=0.5)) == unweighted


@pytest.mark.parametrize(
    ("options", "digest"),
    [
        ({}, "98b71f9bfc51"),
        ({"drop_out": 0.8}, "284065658a3e"),
        ({"workers": 3}, "79f32b89d67d"),
        ({"jobs_per_round": 3, "drop_out": 0.8}, "6283013eaa31"),
    ],
)
def test_without_weights_the_bits_are_those_of_before(options: dict[str, Any], digest: str) -> None:
    model = DL4JClassifier(**QUICK, **options).fit(X, Y)
    assert hashlib.sha256(params(model)).hexdigest()[:12] == digest


def test_the_number_of_workers_changes_no_bit_of_a_weighted_training() -> None:
    fitted = [
        DL4JClassifier(**QUICK, workers=workers, jobs_per_round=3).fit(X, Y, sample_weight=WEIGHTS)
        for workers in (1, 2, 3)
    ]
    assert len(set(map(params, fitted))) == 1


def test_a_regressor_scales_its_targets_by_the_weights() -> None:
    repeated = DL4JRegressor(**QUICK).fit(X.repeat(WEIGHTS, axis=0), Y.repeat(WEIGHTS))
    model = DL4JRegressor(**QUICK).fit(X, Y, sample_weight=WEIGHTS)
    np.testing.assert_allclose(model.target_mean_, repeated.target_mean_, rtol=1e-14)
    np.testing.assert_allclose(model.target_scale_, repeated.target_scale_, rtol=1e-14)


# --- classes ----------------------------------------------------------------------------------------------------------


def test_a_weight_of_a_class_is_that_of_its_examples() -> None:
    names = np.array(["ant", "bee", "cat"])[Y]
    given = {"bee": 3.0, "cat": 0.5}
    weights = compute_sample_weight(given | {"ant": 1.0}, names)
    by_class = DL4JClassifier(**QUICK, class_weight=given)
    by_row = DL4JClassifier(**QUICK)
    assert params(by_class.fit(X, names)) == params(by_row.fit(X, names, sample_weight=weights))
    both = params(by_class.fit(X, names, sample_weight=WEIGHTS))
    assert both == params(by_row.fit(X, names, sample_weight=weights * WEIGHTS))


def test_balanced_classes_count_alike() -> None:
    few = np.r_[0:50, 50:60, 100:125]
    x, y = X[few], Y[few]
    factors = compute_class_weight("balanced", classes=np.arange(3), y=y)
    balanced = DL4JClassifier(**QUICK, class_weight="balanced").fit(x, y)
    assert params(balanced) == params(DL4JClassifier(**QUICK, class_weight=dict(enumerate(factors))).fit(x, y))
    whole = DL4JClassifier(**QUICK, class_weight="balanced").fit(X, Y)
    assert params(whole) == params(DL4JClassifier(**QUICK).fit(X, Y))


def test_a_rare_class_is_found_more_often_if_it_weighs_more() -> None:
    x, y = datasets.make_blobs([300, 15], centers=[[0, 0], [1.5, 1.5]], random_state=0)
    options: dict[str, Any] = {"epochs": 30, "learning_rate": 0.01, "random_state": 0}

    def found(**more: Any) -> float:
        share: float = DL4JClassifier((8,), **options, **more).fit(x, y).predict(x)[y == 1].mean()
        return share

    assert found(class_weight="balanced") > 0.8 > found()


# --- tools ------------------------------------------------------------------------------------------------------------


def test_weights_go_through_pipelines_and_searches() -> None:
    pipeline = make_pipeline(StandardScaler(), DL4JClassifier(**QUICK))
    alone = DL4JClassifier(**QUICK).fit(StandardScaler().fit_transform(X), Y, sample_weight=WEIGHTS)
    inside = pipeline.fit(X, Y, dl4jclassifier__sample_weight=WEIGHTS)[-1]
    assert params(inside) == params(alone)
    grid = {"dl4jclassifier__class_weight": [None, "balanced", {0: 5.0}]}
    search = GridSearchCV(pipeline, grid, cv=2, error_score="raise")
    assert len(search.fit(X, Y, dl4jclassifier__sample_weight=WEIGHTS).cv_results_["params"]) == 3


def test_scores_are_weighted() -> None:
    model, right = DL4JClassifier(**QUICK).fit(X, Y), np.zeros(len(X))
    right[model.predict(X) == Y] = 1
    assert model.score(X, Y, sample_weight=right) == 1
    assert DL4JRegressor(**QUICK).fit(X, Y).score(X, Y, sample_weight=WEIGHTS) < 1
