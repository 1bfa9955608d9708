"""partial_fit and warm starts: to the bit what one long training does; and how losses went."""

from __future__ import annotations

import io
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn import datasets
from sklearn.base import clone

from dl4jlegacy import DenseLayer, MultiLayerConfiguration, OutputLayer, Sgd
from dl4jlegacy.errors import ConfError
from dl4jlegacy.sklearn import DL4JClassifier, DL4JRegressor

X, Y = datasets.load_iris(return_X_y=True)
QUICK: dict[str, Any] = {"hidden_layer_sizes": (8,), "random_state": 3}


def params(model: Any) -> bytes:
    found: bytes = model.model_.params.tobytes()
    return found


@pytest.mark.parametrize("options", [{}, {"drop_out": 0.8, "updater": "nesterovs"}, {"jobs_per_round": 3}])
@pytest.mark.parametrize("kind", [DL4JClassifier, DL4JRegressor])
def test_calls_of_partial_fit_train_as_so_many_epochs(kind: Any, options: dict[str, Any]) -> None:
    whole = kind(**QUICK, **options, epochs=4).fit(X, Y)
    model = kind(**QUICK, **options)
    model.partial_fit(X, Y, classes=[0, 1, 2]) if kind is DL4JClassifier else model.partial_fit(X, Y)
    for _ in range(2):
        with io.BytesIO() as file:
            joblib.dump(model, file)
            file.seek(0)
            model = joblib.load(file).partial_fit(X, Y)
    model.partial_fit(X, Y)
    assert params(model) == params(whole)
    assert model.loss_curve_ == whole.loss_curve_
    assert (model.n_iter_, whole.n_iter_) == (1, 4)


def test_partial_fit_goes_on_after_fit() -> None:
    model = DL4JClassifier(**QUICK, epochs=3).fit(X, Y).partial_fit(X, Y)
    assert params(model) == params(DL4JClassifier(**QUICK, epochs=4).fit(X, Y))
    assert params(model.fit(X, Y)) == params(DL4JClassifier(**QUICK, epochs=3).fit(X, Y))


def test_partial_fit_learns_from_parts_that_lack_classes() -> None:
    order = np.random.default_rng(0).permutation(len(X))
    model = DL4JClassifier((16,), learning_rate=0.05, random_state=1)
    x = (X - X.mean(axis=0)) / X.std(axis=0)
    for _ in range(4):
        for rows in np.array_split(order, 30):
            model.partial_fit(x[rows], Y[rows], classes=np.unique(Y))
    assert model.score(x, Y) > 0.93
    assert len(model.loss_curve_) == 120


def test_a_random_state_is_drawn_from_once() -> None:
    random = np.random.RandomState(5)
    model = DL4JRegressor((4,), random_state=random).partial_fit(X, Y)
    state = random.get_state()[2]
    model.partial_fit(X, Y)
    assert random.get_state()[2] == state


@pytest.mark.parametrize("workers", [1, 2])
def test_a_warm_start_goes_on_from_what_was_learned(workers: int) -> None:
    warm = DL4JRegressor(**QUICK, epochs=3, warm_start=True, workers=workers).fit(X, Y)
    first = list(warm.loss_curve_)
    assert warm.fit(X, Y).n_iter_ == 3
    assert len(warm.loss_curve_) == 6 and warm.loss_curve_[:3] == first
    assert max(warm.loss_curve_[3:]) < min(first)
    cold = DL4JRegressor(**QUICK, epochs=3, workers=workers).fit(X, Y).fit(X, Y)
    assert cold.loss_curve_ == first
    assert not hasattr(clone(warm), "model_")


def test_a_warm_start_may_have_another_updater_and_rate() -> None:
    warm = DL4JClassifier(**QUICK, epochs=2, warm_start=True).fit(X, Y)
    before = warm.model_.params.copy()
    warm.set_params(updater=Sgd(learning_rate=0.0)).fit(X, Y)
    assert np.array_equal(warm.model_.params, before)
    warm.partial_fit(X, Y)
    assert np.array_equal(warm.model_.params, before)


@pytest.mark.parametrize("workers", [1, 2])
def test_early_stopping_keeps_the_scores_of_all_passes(workers: int) -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(120, 20)), random.normal(size=120)
    options: dict[str, Any] = {"early_stopping": True, "epochs_without_improvement": 3, "random_state": 1}
    model = DL4JRegressor((32,), learning_rate=0.01, batch_size=8, epochs=60, workers=workers, **options).fit(x, y)
    assert len(model.validation_scores_) == len(model.loss_curve_) == model.n_iter_ < 60
    assert np.argmax(model.validation_scores_) == model.n_iter_ - 4
    assert model.best_validation_score_ == max(model.validation_scores_) < 0
    assert model.best_loss_ is None and model.loss_ == model.loss_curve_[-1]


def test_without_early_stopping_the_best_loss_is_kept() -> None:
    model = DL4JClassifier(**QUICK, epochs=4).fit(X, Y)
    assert model.best_loss_ == min(model.loss_curve_) and len(model.loss_curve_) == 4
    assert model.validation_scores_ is model.best_validation_score_ is None


def test_a_network_that_pretrains_goes_on_without() -> None:
    conf = MultiLayerConfiguration((DenseLayer(n_out=4), OutputLayer(activation="softmax")), pretrain=True)
    model = DL4JClassifier(configuration=conf, epochs=2, random_state=0)
    with pytest.raises(ConfError, match="does not pretrain, and the configuration has pretrain=True; call fit first"):
        model.partial_fit(X, Y, classes=[0, 1, 2])
    assert len(model.fit(X, Y).partial_fit(X, Y).loss_curve_) == 3
