"""The estimators: scikit-learn's own checks and tools, the same bits for any number of workers, floors."""

from __future__ import annotations

import functools
import io
import pickle
import subprocess
import sys
import threading
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn import datasets
from sklearn.base import BaseEstimator, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks
from threadpoolctl import threadpool_limits

from dl4jlegacy import (
    Adam,
    ConvolutionLayer,
    DenseLayer,
    InputType,
    MultiLayerConfiguration,
    MultiLayerNetwork,
    NeuralNetConfiguration,
    OutputLayer,
    load_model,
    write_model,
)
from dl4jlegacy.errors import ConfError, NotFiniteError, ShapeError
from dl4jlegacy.sklearn import DL4JAutoEncoder, DL4JClassifier, DL4JRegressor

WEIGHTS_AS_ROWS = {f"check_sample_weight_equivalence_on_{kind}_data" for kind in ("dense", "sparse")}
"""Checks to seven places, which hold for training in float64 (``test_weights.py``), and in float32 to five."""
QUICK: dict[str, Any] = {"hidden_layer_sizes": (16,), "epochs": 20, "learning_rate": 0.02}


def split(name: str, seed: int = 1) -> Any:
    """Training and test features, training and test targets, features standardized by the training part."""
    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    parts = train_test_split(x, y, test_size=0.25, random_state=seed, stratify=None if name == "diabetes" else y)
    scaler = StandardScaler().fit(parts[0])
    return scaler.transform(parts[0]), scaler.transform(parts[1]), parts[2], parts[3]


# --- scikit-learn's checks --------------------------------------------------------------------------------------------


@parametrize_with_checks([DL4JClassifier(**QUICK), DL4JRegressor(**QUICK), DL4JAutoEncoder(**QUICK)])
@pytest.mark.everyday(16)
def test_scikit_learns_checks(estimator: BaseEstimator, check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if check.func.__name__ in WEIGHTS_AS_ROWS:
        close = functools.partial(estimator_checks.assert_allclose_dense_sparse, rtol=1e-5)
        monkeypatch.setattr(estimator_checks, "assert_allclose_dense_sparse", close)
    check(estimator)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "workers"),
    [
        *((kind, 1) for kind in (DL4JClassifier, DL4JRegressor, DL4JAutoEncoder)),
        *(
            pytest.param(kind, 3, marks=pytest.mark.release)
            for kind in (DL4JClassifier, DL4JRegressor, DL4JAutoEncoder)
        ),
    ],
)
def test_no_check_of_scikit_learn_is_left_out(kind: Any, workers: int) -> None:
    """As they come, and trained by workers; expected to fail is only what needs float64 and all rows in one batch."""
    estimator = kind() if workers == 1 else kind(**QUICK | {"batch_size": 8}, workers=workers)
    results = check_estimator(estimator, on_fail=None, on_skip=None)
    assert len(results) > 40
    failed = {result["check_name"] for result in results if result["status"] != "passed"}
    assert failed == (set() if kind is DL4JAutoEncoder else WEIGHTS_AS_ROWS)


# --- the same bits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"drop_out": 0.8}, {"early_stopping": True, "epochs_without_improvement": 2}])
@pytest.mark.parametrize("jobs", [1, 3])
def test_the_number_of_workers_does_not_change_a_bit(jobs: int, options: dict[str, Any]) -> None:
    x, _, y, _ = split("iris")
    fitted = [
        DL4JClassifier((8,), epochs=5, workers=workers, jobs_per_round=jobs, random_state=3, **options).fit(x, y)
        for workers in (1, 2, 4)
    ]
    assert len({each.model_.params.tobytes() for each in fitted}) == 1
    assert len({each.epochs_ for each in fitted}) == 1


def test_jobs_of_a_round_are_as_many_as_workers_unless_they_are_given() -> None:
    x, _, y, _ = split("iris")

    def params(**options: int | None) -> bytes:
        found: bytes = DL4JClassifier((8,), epochs=2, random_state=3, **options).fit(x, y).model_.params.tobytes()
        return found

    assert params(workers=2) == params(workers=1, jobs_per_round=2) != params(workers=1)


@pytest.mark.parametrize("kind", [DL4JClassifier, DL4JRegressor, DL4JAutoEncoder])
def test_random_state_decides_the_network(kind: Any) -> None:
    x, _, y, _ = split("iris")

    def params(random_state: Any) -> bytes:
        found: bytes = kind((4,), epochs=1, random_state=random_state).fit(x, y).model_.params.tobytes()
        return found

    assert params(7) == params(7) == params(np.random.RandomState(7))
    assert params(7) != params(8)
    one_after_another = np.random.RandomState(7)
    assert params(one_after_another) != params(one_after_another)


def test_an_example_is_predicted_alike_whatever_is_beside_it() -> None:
    x, rest, y, _ = split("wine")
    model = DL4JClassifier(**QUICK, random_state=1).fit(x, y)
    together = model.predict_proba(rest)
    alone = np.concatenate([model.predict_proba(rest[row : row + 1]) for row in range(len(rest))])
    np.testing.assert_allclose(together, alone, rtol=1e-12)
    assert together.dtype == np.float64
    np.testing.assert_allclose(together.sum(axis=1), 1, rtol=1e-12)


def test_one_estimator_predicts_on_several_threads_at_once() -> None:
    x, rest, y, _ = split("breast_cancer")
    model = DL4JClassifier(**QUICK, random_state=1).fit(x, y)
    expected, found = model.predict_proba(rest), {}

    def predict(thread: int) -> None:
        found[thread] = all(np.array_equal(model.predict_proba(rest), expected) for _ in range(30))

    threads = [threading.Thread(target=predict, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert found == dict.fromkeys(range(4), True)


# --- copies, pickles, files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [DL4JClassifier, DL4JRegressor, DL4JAutoEncoder])
def test_a_pickle_predicts_the_same_and_holds_plain_data(kind: Any) -> None:
    x, rest, y, _ = split("iris")
    model = kind(**QUICK, random_state=1).fit(x, y)
    use = "transform" if kind is DL4JAutoEncoder else "predict"
    expected = getattr(model, use)(rest)
    with io.BytesIO() as file:
        joblib.dump(model, file)
        file.seek(0)
        np.testing.assert_array_equal(getattr(joblib.load(file), use)(rest), expected)
    pickled = pickle.dumps(model)
    for inner in (b"multilayer", b"kernels", b"lock"):
        assert inner not in pickled, "a part of the network itself is in the pickle"


def test_a_clone_has_the_arguments_and_nothing_learned() -> None:
    given = MultiLayerConfiguration((DenseLayer(n_out=4), OutputLayer(activation="softmax")))
    model = DL4JClassifier(updater=Adam(learning_rate=0.1), configuration=given, epochs=1)
    x, _, y, _ = split("iris")
    copy = clone(model.fit(x, y))
    assert copy.get_params() == model.get_params()
    assert not hasattr(copy, "model_")


def test_the_network_in_it_is_one_of_the_project_s(tmp_path: Any) -> None:
    x, rest, y, _ = split("iris")
    model = DL4JClassifier(**QUICK, random_state=1).fit(x, y)
    network = model.model_.network()
    assert isinstance(network, MultiLayerNetwork)
    write_model(network, tmp_path / "model.zip")
    again = load_model(tmp_path / "model.zip").network
    np.testing.assert_allclose(again.output(rest.astype(np.float32)), model.predict_proba(rest), atol=1e-6)


# --- arguments --------------------------------------------------------------------------------------------------------


def test_a_whole_configuration_takes_the_place_of_sizes() -> None:
    x, rest, y, labels = split("digits")
    given = MultiLayerConfiguration(
        conf=NeuralNetConfiguration(seed=5, activation="relu", updater=Adam(learning_rate=0.01)),
        layers=(ConvolutionLayer(n_out=8, kernel_size=(3, 3)), DenseLayer(n_out=32), OutputLayer(activation="softmax")),
        input_type=InputType.convolutional_flat(8, 8, 1),
    )
    model = DL4JClassifier(configuration=given, epochs=4).fit(x, y)
    assert model.score(rest, labels) > 0.93
    assert [type(layer) for layer in model.model_.conf.layers] == [ConvolutionLayer, DenseLayer, OutputLayer]
    assert model.model_.conf.conf.seed == 5
    assert DL4JClassifier(configuration=given, epochs=1, random_state=0).fit(x, y).model_.conf.conf.seed != 5


def test_with_a_configuration_targets_are_learned_as_they_are() -> None:
    x = np.linspace(0, 1, 64)[:, None]
    y = 100 + 10 * x[:, 0]
    given = MultiLayerConfiguration((OutputLayer(activation="identity", loss="mse"),))
    model = DL4JRegressor(configuration=given, epochs=300).fit(x, y)
    assert (model.target_mean_, model.target_scale_) == (0, 1)
    np.testing.assert_allclose(model.predict(x), y, atol=0.5)
    assert DL4JRegressor(epochs=1).fit(x, y).target_mean_ == pytest.approx(105)


def test_several_targets_are_learned_at_once() -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(200, 3))
    y = np.column_stack([x @ [1.0, 2, 3], 1000 * (x @ [3.0, -2, 1])])
    model = DL4JRegressor(**QUICK | {"epochs": 60}, random_state=0).fit(x, y)
    assert model.predict(x).shape == y.shape
    assert model.score(x, y) > 0.98
    assert model.fit(x, y[:, 0]).predict(x).shape == (200,)


def test_classes_may_be_words_in_any_order() -> None:
    x, _, y, _ = split("iris")
    words = np.array(["zebra", "ant", "mole"])[y]
    model = DL4JClassifier(**QUICK | {"epochs": 60}, random_state=1).fit(x, words)
    assert list(model.classes_) == ["ant", "mole", "zebra"]
    assert model.score(x, words) > 0.9


@pytest.mark.parametrize("workers", [1, 3])
def test_early_stopping_ends_before_the_last_epoch_and_keeps_the_best(workers: int) -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(120, 20)), random.normal(size=120)
    y += x[:, 0]  # little to learn: after some epochs it gets worse on what is held out
    options: dict[str, Any] = {"learning_rate": 0.01, "batch_size": 8, "random_state": 1, "workers": workers}
    model = DL4JRegressor((32,), epochs=60, early_stopping=True, epochs_without_improvement=3, **options).fit(x, y)
    assert 5 <= model.epochs_ < 60
    best = model.epochs_ - 3
    shorter, held_in = (
        DL4JRegressor((32,), epochs=epochs, early_stopping=True, epochs_without_improvement=60, **options).fit(x, y)
        for epochs in (best - 1, best)
    )
    assert (shorter.epochs_, held_in.epochs_) == (best - 1, best)
    assert held_in.model_.params.tobytes() == model.model_.params.tobytes() != shorter.model_.params.tobytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden_layer_sizes": (5, 0)}, r"hidden_layer_sizes is \(5, 0\)"),
        ({"updater": "adan"}, "did you mean 'adam'"),
        ({"activation": "rellu"}, "did you mean '.*relu'"),
        ({"epochs": 0}, "epochs is 0; it must be at least 1"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"workers": 0}, "workers is 0"),
        ({"jobs_per_round": -1}, "jobs_per_round is -1"),
        ({"early_stopping": True, "validation_fraction": 1.0}, r"validation_fraction is 1\.0"),
        ({"configuration": "lenet"}, "configuration is str; give a MultiLayerConfiguration"),
        ({"configuration": MultiLayerConfiguration((DenseLayer(n_out=3),), backprop=False)}, "add an OutputLayer"),
    ],
)
@pytest.mark.parametrize("kind", [DL4JClassifier, DL4JRegressor])
def test_an_argument_that_is_none_is_named(kind: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfError, match=message):
        kind(**options).fit([[0.0], [1.0], [2.0]], [0, 1, 1])


def test_a_configuration_for_other_data_is_refused_with_the_sizes() -> None:
    given = MultiLayerConfiguration((DenseLayer(n_in=4, n_out=3), OutputLayer(activation="softmax")))
    with pytest.raises(ShapeError, match="n_in=4 but the data has 2 feature columns"):
        DL4JClassifier(configuration=given).fit([[0, 1], [1, 0]], [0, 1])
    with pytest.raises(ConfError, match="'sigmoid', whose outputs are no probabilities"):
        DL4JClassifier(configuration=given.replace(layers=(OutputLayer(activation="sigmoid"),))).fit([[0], [1]], [0, 1])


def test_a_training_that_diverges_says_so() -> None:
    x, _, y, _ = split("diabetes")
    with pytest.raises(NotFiniteError):
        DL4JRegressor((8,), activation="identity", updater="sgd", learning_rate=1e6, epochs=20).fit(x, y)


# --- scikit-learn's tools ---------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_grid_of_eight_settings_is_searched_with_four_workers() -> None:
    x, rest, y, labels = split("iris")
    model = DL4JClassifier((16,), epochs=30, batch_size=4, workers=4, random_state=1)
    grid = {"dl4jclassifier__learning_rate": [1e-6, 1e-3, 1e-2, 3e-2], "dl4jclassifier__l2": [0.0, 0.01]}
    search = GridSearchCV(make_pipeline(StandardScaler(), model), grid, cv=2, error_score="raise").fit(x, y)
    assert len(search.cv_results_["params"]) == 8
    assert search.best_params_["dl4jclassifier__learning_rate"] > 1e-6
    assert search.score(rest, labels) >= 0.9


def test_a_search_finds_the_better_setting() -> None:
    x, _, y, _ = split("iris")
    search = GridSearchCV(DL4JClassifier(**QUICK, random_state=1), {"learning_rate": [1e-6, 0.02]}, cv=2).fit(x, y)
    assert search.best_params_ == {"learning_rate": 0.02}


def test_cross_validation_on_threads_gives_the_scores_of_one_after_another() -> None:
    x, _, y, _ = split("wine")
    model = DL4JClassifier(**QUICK, random_state=1)
    scores = cross_val_score(model, x, y, cv=4)
    with joblib.parallel_backend("threading", n_jobs=2):
        np.testing.assert_array_equal(cross_val_score(model, x, y, cv=4), scores)
    assert scores.mean() > 0.93


def test_calibration_takes_it_for_a_classifier() -> None:
    x, rest, y, labels = split("breast_cancer")
    calibrated = CalibratedClassifierCV(DL4JClassifier(**QUICK, random_state=1), cv=3).fit(x, y)
    assert calibrated.score(rest, labels) > 0.93
    np.testing.assert_allclose(calibrated.predict_proba(rest).sum(axis=1), 1)


def test_an_autoencoder_is_a_step_of_a_pipeline() -> None:
    x, rest, y, labels = split("digits")
    coder = DL4JAutoEncoder((32, 12), epochs=15, learning_rate=0.005, random_state=1)
    pipeline = make_pipeline(coder, LogisticRegression(max_iter=2000)).fit(x, y)
    assert pipeline.score(rest, labels) > 0.85
    fitted = pipeline[0]
    codes = fitted.transform(rest)
    assert codes.shape == (len(rest), 12)
    assert list(fitted.get_feature_names_out()) == [f"dl4jautoencoder{unit}" for unit in range(12)]
    again = fitted.inverse_transform(codes)
    assert fitted.score(rest) == pytest.approx(-np.mean((again - rest) ** 2))
    linear = PCA(2).fit(x)
    assert fitted.score(rest) > -np.mean((linear.inverse_transform(linear.transform(rest)) - rest) ** 2)


def test_a_corrupted_input_makes_a_different_coder() -> None:
    x, *_ = split("iris")
    plain, noisy = (DL4JAutoEncoder((3,), epochs=2, corruption_level=c, random_state=1).fit(x) for c in (0.0, 0.4))
    assert noisy.model_.conf.layers[0].drop_out == pytest.approx(0.6)
    assert plain.model_.params.tobytes() != noisy.model_.params.tobytes()
    with pytest.raises(ConfError, match=r"corruption_level is 1\.0"):
        DL4JAutoEncoder(corruption_level=1.0).fit(x)


@pytest.mark.long
def test_processes_of_joblib_fit_it() -> None:
    """In an interpreter of their own: they stay for a while."""
    code = """
import numpy as np
from sklearn.datasets import load_iris
from sklearn.model_selection import cross_val_score
from dl4jlegacy.sklearn import DL4JClassifier
x, y = load_iris(return_X_y=True)
model = DL4JClassifier((8,), epochs=10, random_state=1)
assert np.array_equal(cross_val_score(model, x, y, n_jobs=2), cross_val_score(model, x, y))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


# --- beside scikit-learn's own networks -------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("name", ["iris", "wine", "breast_cancer", "digits"])
def test_it_classifies_about_as_well_as_scikit_learns_network(name: str) -> None:
    x, rest, y, labels = split(name)
    ours = DL4JClassifier((100,), random_state=1).fit(x, y).score(rest, labels)
    with threadpool_limits(limits=1):
        theirs = MLPClassifier((100,), max_iter=2000, random_state=1).fit(x, y).score(rest, labels)
    assert ours >= theirs - 0.02 and ours > 0.93, f"{name}: {ours:.4f}, MLPClassifier {theirs:.4f}"


@pytest.mark.long
def test_it_predicts_about_as_well_as_scikit_learns_network() -> None:
    x, rest, y, targets = split("diabetes")
    ours = DL4JRegressor((100,), early_stopping=True, random_state=1).fit(x, y).score(rest, targets)
    network = MLPRegressor(hidden_layer_sizes=(100,), early_stopping=True, max_iter=2000, random_state=1)
    same = TransformedTargetRegressor(network, transformer=StandardScaler())  # as ours does by itself
    with threadpool_limits(limits=1):
        theirs = same.fit(x, y).score(rest, targets)
    assert ours >= theirs - 0.03 and ours > 0.35, f"{ours:.4f}, MLPRegressor {theirs:.4f}"


# --- without it -------------------------------------------------------------------------------------------------------


def test_without_scikit_learn_the_extra_is_named() -> None:
    code = """
import sys
sys.modules["sklearn"] = None
import dl4jlegacy
from dl4jlegacy.errors import ConfError
try:
    import dl4jlegacy.sklearn
except ConfError as exc:
    print(exc)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "needs scikit-learn, which is not installed: type './install sklearn'" in done.stdout


def test_a_classifier_tells_logarithms_of_probabilities_and_its_passes() -> None:
    x, y = datasets.load_iris(return_X_y=True)
    model = DL4JClassifier(hidden_layer_sizes=(4,), epochs=3, random_state=1).fit(x, y)
    assert np.allclose(np.exp(model.predict_log_proba(x)), model.predict_proba(x)) and model.n_iter_ == 3
