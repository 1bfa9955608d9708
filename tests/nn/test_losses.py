"""Losses: values against their definitions, gradients against central differences, the fused shortcuts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dl4jlegacy.errors import ConfError, DataError, ShapeError
from dl4jlegacy.nn.optimization.functions import ACTIVATIONS
from dl4jlegacy.nn.optimization.losses import LOSSES, loss

M, N = 7, 4
PROBABILITIES = {"xent", "reconstruction_crossentropy", "kl_divergence"}
CLASSES = {"mcxent", "negativeloglikelihood"}
POSITIVE = {"mean_squared_logarithmic_error", "msle", "poisson", "mean_absolute_percentage_error", "mape"}


def example(name: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    if name == "sparse_mcxent":
        return rng.integers(0, N, size=(M, 1)).astype(float), rng.dirichlet(np.ones(N), size=M)
    if name in CLASSES:
        return np.eye(N)[rng.integers(0, N, size=M)], rng.dirichlet(np.ones(N), size=M)
    if name in PROBABILITIES:
        return rng.uniform(0.05, 0.95, size=(M, N)), rng.uniform(0.05, 0.95, size=(M, N))
    if name in POSITIVE:
        return rng.uniform(0.5, 3, size=(M, N)), rng.uniform(0.5, 3, size=(M, N))
    if "hinge" in name:
        return rng.choice([-1.0, 1.0], size=(M, N)), rng.normal(size=(M, N))
    return rng.normal(size=(M, N)), rng.normal(size=(M, N))


def expected(name: str, labels: np.ndarray, y: np.ndarray) -> float:
    """One example's score from the definition, in plain floats."""
    pairs = [(float(a), float(b)) for a, b in zip(labels, y, strict=True)]
    n = len(pairs)
    squares = sum((b - a) ** 2 for a, b in pairs)
    absolutes = sum(abs(b - a) for a, b in pairs)
    dot, norms = sum(a * b for a, b in pairs), math.hypot(*labels) * math.hypot(*y)
    return {
        "l2": lambda: squares,
        "mse": lambda: squares / n,
        "squared_loss": lambda: squares / n,
        "l1": lambda: absolutes,
        "mean_absolute_error": lambda: absolutes / n,
        "xent": lambda: -sum(a * math.log(b) + (1 - a) * math.log(1 - b) for a, b in pairs),
        "reconstruction_crossentropy": lambda: -sum(a * math.log(b) + (1 - a) * math.log(1 - b) for a, b in pairs),
        "mcxent": lambda: -sum(a * math.log(b) for a, b in pairs if a),
        "negativeloglikelihood": lambda: -sum(a * math.log(b) for a, b in pairs if a),
        "kl_divergence": lambda: sum(a * math.log(a / b) for a, b in pairs),
        "cosine_proximity": lambda: -dot / norms,
        "hinge": lambda: sum(max(0.0, 1 - a * b) for a, b in pairs),
        "squared_hinge": lambda: sum(max(0.0, 1 - a * b) ** 2 for a, b in pairs),
        "mean_absolute_percentage_error": lambda: 100 / n * sum(abs(a - b) / abs(a) for a, b in pairs),
        "mean_squared_logarithmic_error": lambda: sum(math.log((a + 1) / (b + 1)) ** 2 for a, b in pairs) / n,
        "poisson": lambda: sum(b - a * math.log(b) for a, b in pairs),
        "wasserstein": lambda: dot / n,
    }[name]()


@pytest.mark.parametrize("weights", [None, (1.0, 0.5, 2.0, 0.25)])
@pytest.mark.parametrize("name", sorted(LOSSES))
def test_the_gradient_agrees_with_central_differences(name, weights):
    labels, y = example(name)
    gradient, eps = LOSSES[name].gradient(labels, y, weights), 1e-6
    for column in range(N):
        step = np.zeros_like(y)
        step[:, column] = eps
        up, down = (LOSSES[name].score(labels, y + s, weights) for s in (step, -step))
        np.testing.assert_allclose(gradient[:, column], (up - down) / (2 * eps), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", sorted(set(LOSSES) - {"sparse_mcxent", "mae", "mape", "msle"}))
def test_the_score_is_that_of_the_definition(name):
    labels, y = example(name)
    wanted = [expected(name, labels[i], y[i]) for i in range(M)]
    np.testing.assert_allclose(LOSSES[name].score(labels, y), wanted, rtol=1e-10)


def test_sparse_labels_score_like_the_one_hot_labels_they_stand_for():
    labels, y = example("sparse_mcxent")
    one_hot = np.eye(N)[labels[:, 0].astype(int)]
    np.testing.assert_array_equal(LOSSES["sparse_mcxent"].score(labels, y), LOSSES["mcxent"].score(one_hot, y))
    np.testing.assert_array_equal(LOSSES["sparse_mcxent"].gradient(labels, y), LOSSES["mcxent"].gradient(one_hot, y))


@pytest.mark.parametrize("weights", [None, (1.0, 0.5, 2.0, 0.25)])
@pytest.mark.parametrize("name", sorted(LOSSES))
def test_the_gradient_before_an_activation_is_the_chain_rule(name, weights):
    loss_, (labels, z) = LOSSES[name], (example(name)[0], np.random.default_rng(9).normal(size=(M, N)))
    for function in ACTIVATIONS.values():
        y = function.forward(z)
        found = loss_.gradient_before(labels, z, y, function, weights)
        if found is not None:
            chained = function.backward(loss_.gradient(labels, y, weights), z, y)
            np.testing.assert_allclose(found, chained, atol=1e-10, err_msg=function.name)


def test_losses_of_logarithms_skip_the_division_behind_activations_that_come_near_zero():
    z = np.zeros((1, 2))
    pairs = {
        (name, function.name)
        for name in LOSSES
        for function in ACTIVATIONS.values()
        if LOSSES[name].gradient_before(z[:, :1] if LOSSES[name].indices else z, z, z + 0.5, function) is not None
    }
    logarithms = ("mcxent", "negativeloglikelihood", "sparse_mcxent", "kl_divergence", "poisson")
    assert pairs == {
        *((name, function) for name in logarithms for function in ("sigmoid", "softmax", "softplus")),
        *((name, f) for name in ("xent", "reconstruction_crossentropy") for f in ("sigmoid", "softmax")),
    }


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", sorted(LOSSES))
def test_the_dtype_is_kept_and_saturated_outputs_stay_finite(name, dtype):
    labels, _ = example(name)
    labels = labels.astype(dtype)
    labels.flags.writeable = False
    for y in (np.zeros((M, N), dtype), np.ones((M, N), dtype)):
        score, gradient = LOSSES[name].score(labels, y), LOSSES[name].gradient(labels, y)
        assert score.dtype == gradient.dtype == dtype
        assert score.shape == (M,)
        assert gradient.shape == (M, N)
        assert np.isfinite(score).all()
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize("name", sorted(set(LOSSES) - {"sparse_mcxent"}))
def test_labels_of_another_shape_are_refused_naming_both_shapes(name):
    with pytest.raises(ShapeError, match=r"\(7, 3\).*\(7, 4\)"):
        LOSSES[name].score(np.zeros((7, 3)), np.ones((7, 4)))


def test_a_sparse_label_out_of_range_is_refused_naming_the_example():
    with pytest.raises(DataError, match=r"label 4.0 of example 1 is no class index; need whole numbers from 0 to 3"):
        LOSSES["sparse_mcxent"].score(np.array([[0.0], [4.0]]), np.full((2, 4), 0.25))


def test_the_wrong_number_of_weights_is_refused():
    labels, y = example("mse")
    with pytest.raises(ShapeError, match="3 weights for 4 outputs"):
        LOSSES["mse"].score(labels, y, (1.0, 1.0, 1.0))


def test_an_unknown_loss_is_refused_with_the_nearest_name():
    with pytest.raises(ConfError, match="unknown loss 'mcxnt'; did you mean 'mcxent'"):
        loss("mcxnt")


@pytest.mark.parametrize("weights", [None, (1.0, 0.5, 2.0, 0.25)])
@pytest.mark.parametrize("size", [1e-1, 3e-5, 9e-6, 1e-6, 1e-9])
def test_the_gradient_of_a_proximity_is_that_of_its_score_however_short_the_outputs_are(size, weights):
    labels, y = example("cosine_proximity")
    y *= size / np.linalg.norm(y, axis=1, keepdims=True)
    proximity, eps = LOSSES["cosine_proximity"], size * 1e-5
    gradient = proximity.gradient(labels, y, weights)
    for column in range(N):
        step = np.zeros_like(y)
        step[:, column] = eps
        up, down = (proximity.score(labels, y + s, weights) for s in (step, -step))
        np.testing.assert_allclose(gradient[:, column], (up - down) / (2 * eps), rtol=1e-5, atol=1e-7 / size)
