"""The probe finds patterns that a network could have learned, and none where there is none."""

from __future__ import annotations

import numpy as np
import pytest

from dl4jlegacy.datasets import DataSet
from dl4jlegacy.nn.evaluation.probe import has_pattern

RNG = np.random.default_rng(5)


def parts(x: np.ndarray, y: np.ndarray) -> tuple[DataSet, DataSet]:
    data, first = DataSet(x.astype(np.float32), y.astype(np.float32)), len(x) * 4 // 5
    return data.rows(0, first), data.rows(first, len(x))


def one_hot(classes: np.ndarray, count: int = 2) -> np.ndarray:
    return np.eye(count)[classes]


X = RNG.normal(size=(500, 4))
WIDE = RNG.normal(size=(600, 120))
SHAPES = np.zeros((300, 1, 8, 8)) + RNG.normal(size=(300, 1, 8, 8)) * 0.3
KINDS = RNG.integers(0, 3, 300)
SHAPES[KINDS == 1, :, 2:6, 2:6] += 1
SHAPES[KINDS == 2, :, ::2] += 1
STEPS = RNG.integers(0, 3, (80, 12))
FOUND = {
    "a chess board": (X[:, :2], one_hot(((X[:, 0] > 0) ^ (X[:, 1] > 0)).astype(int))),
    "a weak sum of many columns": (WIDE, one_hot((WIDE.sum(axis=1) > 0).astype(int))),
    "images": (SHAPES, one_hot(KINDS, 3)),
    "one column of 0 and 1": (X, (X[:, :1] > 0).astype(int)),
    "each step of a sequence": (STEPS[:, None, :].astype(float), ((STEPS + 1) % 3)[:, None, :]),
}


@pytest.mark.parametrize("name", FOUND)
def test_a_pattern_is_found(name: str) -> None:
    x, y = FOUND[name]
    outputs = {"images": 3, "each step of a sequence": 3}.get(name, 2)
    train, test = parts(x, y)
    assert has_pattern(train, test, outputs, classifies=True)
    shuffled = parts(x, np.random.default_rng(7).permutation(y))
    assert not has_pattern(*shuffled, outputs, classifies=True)


def test_numbers_that_follow_from_the_features_are_found() -> None:
    y = X[:, :1] ** 2 + 0.1 * RNG.normal(size=(500, 1))
    assert has_pattern(*parts(X, y), 1, classifies=False)
    assert not has_pattern(*parts(X, np.random.default_rng(7).permutation(y)), 1, classifies=False)


def test_a_pattern_that_the_commonest_class_hides_is_none() -> None:
    chance = 1 / (1 + np.exp(3.5 - X[:, 0]))  # never above a half: to answer the commonest class is right
    rare = (RNG.random(500) < chance).astype(int)
    assert not has_pattern(*parts(X, one_hot(rare)), 2, classifies=True)


def test_noise_has_hardly_ever_a_pattern() -> None:
    rng = np.random.default_rng(6)
    found = [
        has_pattern(*parts(rng.normal(size=(200, 3)), one_hot(rng.integers(0, 2, 200))), 2, classifies=True)
        for _ in range(100)
    ]
    assert sum(found) <= 2


def test_labels_that_belong_to_no_rows_are_not_judged() -> None:
    sequences = DataSet(RNG.normal(size=(40, 3, 6)), RNG.normal(size=(40, 2, 4)))
    assert not has_pattern(sequences, sequences, 2, classifies=True)
    few = DataSet(X[:5], one_hot(np.arange(5) % 2))
    assert not has_pattern(few, few, 2, classifies=True)
