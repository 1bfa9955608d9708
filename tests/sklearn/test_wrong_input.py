"""What is given wrong is named, with its value and what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn import datasets

from dl4jlegacy.errors import ConfError
from dl4jlegacy.sklearn import DL4JAutoEncoder, DL4JClassifier, DL4JRegressor

X, Y = datasets.load_iris(return_X_y=True)
NAMES = np.array(["ant", "bee", "cat"])[Y]
FRAME = pd.DataFrame(X, columns=list("abcd"))
ONES = np.ones(len(X))


def with_value(array: Any, row: int, value: Any) -> Any:
    copy = np.array(array, dtype=object if value is None or isinstance(value, str) else float)
    copy[row] = value
    return copy


@pytest.mark.parametrize(
    ("kind", "x", "y", "message"),
    [
        (DL4JClassifier, X, with_value(Y, 2, np.nan), "y contains NaN: 1 of 150 targets, first in row 2; leave out"),
        (DL4JRegressor, X, with_value(Y, 2, np.nan), "y contains NaN: 1 of 150 targets, first in row 2; leave out"),
        (DL4JRegressor, X, with_value(Y, 2, np.inf), "y contains infinity .*, first in row 2; leave out"),
        (DL4JClassifier, X, with_value(NAMES, 3, None), "y contains None: 1 of 150 targets, first in row 3"),
        (DL4JClassifier, X, pd.Series(NAMES, dtype="string").where(Y > 0), "y contains <NA>: 50 of 150"),
        (DL4JClassifier, X, np.eye(3)[Y], r"y has shape \(150, 3\), .*; of one-hot rows that is y.argmax\(axis=1\)"),
        (DL4JRegressor, X, NAMES, "y has .*'ant'.* in row 0, and DL4JRegressor predicts numbers; DL4JClassifier tells"),
        (DL4JRegressor, X, with_value(Y, 4, "five"), "y has 'five' in row 4, and DL4JRegressor predicts numbers"),
        (
            DL4JClassifier,
            FRAME.assign(e="red"),
            Y,
            "X has 'red' in row 0, column 'e', and a network takes numbers",
        ),
        (DL4JClassifier, with_value(X, (5, 1), "?"), Y, r"X has '\?' in row 5, column 1, and a network takes numbers"),
        (
            DL4JClassifier,
            with_value(X, (5, 1), np.nan),
            Y,
            r"X contains NaN(.|\n)*imputer(.|\n)*of 1 is in row 5, column 1",
        ),
        (DL4JClassifier, FRAME.replace(X[0, 1], np.inf), Y, "X contains inf(.|\n)*The first of .* row 0, column 'b'"),
        (DL4JClassifier, sp.csr_array(with_value(X, (5, 1), np.nan)), Y, "The first of 1 is in row 5, column 1"),
        (DL4JClassifier, X[:, 0], Y, "Expected 2D array, got 1D array instead(.|\n)*Reshape your data"),
    ],
)
def test_data(kind: Any, x: Any, y: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(epochs=1).fit(x, y)


def test_a_word_at_prediction_is_named() -> None:
    model = DL4JClassifier((2,), epochs=1).fit(FRAME, Y)
    with pytest.raises(ValueError, match=r"X has 'red' in row 0, column 'd', and a network takes numbers"):
        model.predict(FRAME.assign(d="red"))


@pytest.mark.parametrize("kind", [DL4JClassifier, DL4JRegressor])
@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (with_value(ONES, 7, -1), "sample_weight of row 7 is -1.0; give a number from 0 on, 0 to leave it out"),
        (with_value(ONES, 7, np.nan), "sample_weight of row 7 is nan; give a number from 0 on"),
        (with_value(ONES, 7, np.inf), "sample_weight of row 7 is inf; give a number from 0 on"),
        (ONES[:3], r"sample_weight has shape \(3,\), and X has 150 rows; give one weight for each row"),
        (ONES[:, None], r"sample_weight has shape \(150, 1\), and X has 150 rows"),
        (ONES * 0, "all 150 weights in sample_weight are zero, so that nothing would be learned"),
        ("balanced", "sample_weight is no list of numbers .*'balanced'.*; give one number for each row"),
        (-2, "sample_weight of row 0 is -2.0; give a number"),
    ],
)
def test_weights_of_examples(kind: Any, weights: Any, message: str) -> None:
    for call in ("fit", "partial_fit"):
        more = {"classes": [0, 1, 2]} if kind is DL4JClassifier and call == "partial_fit" else {}
        with pytest.raises(ValueError, match=message):
            getattr(kind(epochs=1), call)(X, Y, sample_weight=weights, **more)


@pytest.mark.parametrize(
    ("class_weight", "message"),
    [
        ("balance", "class_weight is 'balance'; give 'balanced', a weight for each class by name, or None"),
        ([1, 2, 3], r"class_weight is \[1, 2, 3\]; give 'balanced'"),
        ({"0": 2.0}, "class_weight names '0', which is none of y's classes, 0, 1, 2"),
        ({1: -2}, "class_weight of class 1 is -2; give a number from 0 on"),
        ({1: "two"}, "class_weight of class 1 is 'two'; give a number"),
        ({1: np.nan}, "class_weight of class 1 is nan; give a number"),
        ({0: 0, 1: 0, 2: 0}, "makes all weights zero, so that nothing would be learned"),
    ],
)
def test_weights_of_classes(class_weight: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DL4JClassifier(class_weight=class_weight, epochs=1).fit(X, Y)


def test_classes_of_later_calls() -> None:
    model = DL4JClassifier((2,), class_weight="balanced")
    with pytest.raises(ValueError, match=r"has no classes; give it all classes that any call will have"):
        model.partial_fit(X, Y)
    with pytest.raises(ValueError, match=r"class_weight is 'balanced', and partial_fit sees only some of the examples"):
        model.partial_fit(X, Y, classes=[0, 1, 2])
    model.set_params(class_weight=None)
    with pytest.raises(ValueError, match=r"y has 2, which is none of the classes 0, 1; name all classes in the first"):
        model.partial_fit(X, Y, classes=[0, 1])
    model.partial_fit(X, Y, classes=range(12))
    with pytest.raises(ValueError, match=r"y has 'ant', which is none of the classes 0, .*, 8 and 3 more; name all"):
        model.partial_fit(X, NAMES)
    with pytest.raises(ValueError, match=r"classes are 0, 1, 2, and were 0, .* in the first call; leave them out"):
        model.partial_fit(X, Y, classes=[0, 1, 2])
    with pytest.raises(ValueError, match=r"X has 2 features, but DL4JClassifier is expecting 4"):
        model.partial_fit(X[:, :2], Y)
    with pytest.raises(ConfError, match=r"makes one pass over its data, and early_stopping=True .*; set early"):
        model.set_params(early_stopping=True).partial_fit(X, Y)


def test_a_warm_start_with_other_data_or_sizes() -> None:
    warm = DL4JClassifier((2,), epochs=1, warm_start=True).fit(X, Y)
    with pytest.raises(ValueError, match=r"y has the classes 0, 1, and fit with warm_start=True goes on .* for 0, 1"):
        warm.fit(X[:100], Y[:100])
    with pytest.raises(ConfError, match=r"from a network with layers of 2, 3 units, .* layers of 5, 3; set them"):
        warm.set_params(hidden_layer_sizes=(5,)).fit(X, Y)
    with pytest.raises(ValueError, match=r"y has 2 targets a row, and had 1 before; give as many"):
        DL4JRegressor((2,), epochs=1).fit(X, Y).partial_fit(X, np.c_[Y, Y])


@pytest.mark.parametrize("kind", [DL4JClassifier, DL4JRegressor, DL4JAutoEncoder])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden_layer_sizes": "64"}, "hidden_layer_sizes is '64'; give whole numbers, one for each layer"),
        ({"hidden_layer_sizes": (6.7,)}, r"hidden_layer_sizes is \(6.7,\); give whole numbers"),
        ({"hidden_layer_sizes": None}, "hidden_layer_sizes is None; give whole numbers"),
        ({"epochs": 2.5}, "epochs is 2.5; it must be a whole number"),
        ({"batch_size": "auto"}, "batch_size is 'auto'; it must be a whole number"),
        ({"workers": None}, "workers is None; it must be a whole number"),
        ({"jobs_per_round": "many"}, "jobs_per_round is 'many'; it must be a whole number, or None"),
        ({"learning_rate": "0.1"}, "learning_rate is '0.1'; it must be a number"),
        ({"l2": "a"}, "l2 is 'a'; it must be a number"),
        ({"early_stopping": "yes"}, "early_stopping is 'yes'; it must be True or False"),
        ({"early_stopping": True, "validation_fraction": 0}, "validation_fraction is 0; it must lie between 0 and 1"),
        ({"early_stopping": True, "validation_fraction": "a"}, "validation_fraction is 'a'; it must lie between"),
    ],
)
def test_arguments(kind: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfError, match=message):
        kind(**{"epochs": 1} | options).fit(X, Y)


def test_numbers_of_numpy_are_arguments() -> None:
    numbers = {"hidden_layer_sizes": np.int64(4), "epochs": np.int32(2), "batch_size": np.int64(50), "workers": 2}
    model = DL4JClassifier(**numbers, learning_rate=np.float32(0.01), early_stopping=np.bool_(False)).fit(X, Y)
    assert model.n_iter_ == 2
