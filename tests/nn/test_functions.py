"""Activations: values against their definitions, derivatives against central differences."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dl4jlegacy.errors import ConfError
from dl4jlegacy.nn.optimization.functions import ACTIVATIONS, activation

KINKS = {
    "hardsigmoid": [-2.5, 2.5],
    "hardtanh": [-1, 1],
    "leakyrelu": [0],
    "rectifiedtanh": [0],
    "relu": [0],
    "relu6": [0, 6],
    "rrelu": [0],
    "selu": [0],
    "thresholdedrelu": [1],
}

AT = {  # value at (-2, 0.5, 7), computed from the definitions with plain floats
    "cube": (-8, 0.125, 343),
    "elu": (math.expm1(-2), 0.5, 7),
    "gelu": (-2 / (1 + math.exp(1.702 * 2)), 0.5 / (1 + math.exp(-1.702 * 0.5)), 7 / (1 + math.exp(-1.702 * 7))),
    "hardsigmoid": (0.1, 0.6, 1),
    "hardtanh": (-1, 0.5, 1),
    "identity": (-2, 0.5, 7),
    "leakyrelu": (-0.02, 0.5, 7),
    "mish": tuple(x * math.tanh(math.log1p(math.exp(x))) for x in (-2, 0.5, 7)),
    "rectifiedtanh": (0, math.tanh(0.5), math.tanh(7)),
    "relu": (0, 0.5, 7),
    "relu6": (0, 0.5, 6),
    "rrelu": (-2 * (1 / 8 + 1 / 3) / 2, 0.5, 7),
    "selu": tuple(1.0507009873554805 * x for x in (1.6732632423543772 * math.expm1(-2), 0.5, 7)),
    "sigmoid": tuple(1 / (1 + math.exp(-x)) for x in (-2, 0.5, 7)),
    "softplus": tuple(math.log(1 + math.exp(x)) for x in (-2, 0.5, 7)),
    "softsign": (-2 / 3, 0.5 / 1.5, 7 / 8),
    "swish": tuple(x / (1 + math.exp(-x)) for x in (-2, 0.5, 7)),
    "tanh": tuple(math.tanh(x) for x in (-2, 0.5, 7)),
    "thresholdedrelu": (0, 0, 7),
}


def points(name: str) -> np.ndarray:
    z = np.random.default_rng(7).normal(0, 3, size=(40, 5))
    for kink in KINKS.get(name, []):
        z[np.abs(z - kink) < 1e-3] += 0.01
    return z


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_the_derivative_agrees_with_central_differences(name):
    f, z, eps = ACTIVATIONS[name], points(name), 1e-6
    dy = np.random.default_rng(8).normal(size=z.shape)
    dz = f.backward(dy, z, f.forward(z))
    for column in range(z.shape[1]):
        step = np.zeros_like(z)
        step[:, column] = eps
        numeric = ((f.forward(z + step) - f.forward(z - step)) * dy).sum(axis=1) / (2 * eps)
        np.testing.assert_allclose(dz[:, column], numeric, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", sorted(AT))
def test_the_values_are_those_of_the_definition(name):
    y = ACTIVATIONS[name].forward(np.array([[-2.0, 0.5, 7.0]]))
    np.testing.assert_allclose(y[0], AT[name], rtol=1e-12)


def test_rational_tanh_is_close_to_the_tanh_that_it_approximates():
    z = np.linspace(-4, 4, 101).reshape(1, -1)
    y = ACTIVATIONS["rationaltanh"].forward(z)
    np.testing.assert_allclose(y, 1.7159 * np.tanh(2 * z / 3), atol=0.05)
    np.testing.assert_allclose(y, -y[:, ::-1], atol=1e-12)


def test_softmax_rows_sum_to_one_and_do_not_overflow():
    y = ACTIVATIONS["softmax"].forward(np.array([[1000.0, 1000.0], [-1000.0, 0.0]]))
    np.testing.assert_allclose(y, [[0.5, 0.5], [0.0, 1.0]])


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_dtype_is_kept_and_the_input_is_not_changed(name, dtype):
    z = points(name).astype(dtype)
    z.flags.writeable = False
    f = ACTIVATIONS[name]
    y = f.forward(z)
    dz = f.backward(np.ones_like(z), z, y)
    assert y.dtype == dz.dtype == dtype
    assert y.shape == dz.shape == z.shape
    assert not np.shares_memory(y, z)


@pytest.mark.parametrize("name", sorted(set(ACTIVATIONS) - {"cube"}))
def test_extreme_inputs_give_finite_values_and_slopes(name):
    z = np.array([[-1e4, -90.0, 0.0, 90.0, 1e4]], dtype=np.float32)
    f = ACTIVATIONS[name]
    with np.errstate(under="ignore"):
        y = f.forward(z)
        dz = f.backward(np.ones_like(z), z, y)
    assert np.isfinite(y).all()
    assert np.isfinite(dz).all()


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_smooth_is_claimed_exactly_by_those_without_a_kink(name):
    assert ACTIVATIONS[name].smooth == (name not in KINKS)


def test_randomised_relu_takes_its_slopes_from_uniforms_and_differentiates_them():
    f, z = ACTIVATIONS["rrelu"], points("rrelu")
    uniforms = np.random.default_rng(3).random(z.shape)
    assert f.sample is not None
    y = f.sample(z, uniforms)
    slope = (y / z)[z < 0]
    assert (y[z > 0] == z[z > 0]).all()
    assert ((slope >= 1 / 8) & (slope <= 1 / 3)).all()
    assert np.ptp(slope) > 0.1
    assert (f.sample(z, uniforms) == y).all()
    np.testing.assert_allclose(f.backward(np.ones_like(z), z, y)[z < 0], slope)


def test_an_unknown_activation_is_refused_with_the_nearest_name():
    with pytest.raises(ConfError, match="unknown activation 'rellu'; did you mean 'relu'"):
        activation("rellu")
