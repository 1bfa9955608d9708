"""Elementary functions: right to the last place, silent, and compiled bit for bit what they are in NumPy."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest

from dl4jlegacy.kernels import elementary, load

load("numba")  # from here on functions are compiled

ENDS = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 5e-324, 1e-310, -1e-310]
X = np.concatenate(
    [
        np.linspace(-750, 750, 20_001),
        np.linspace(-3, 3, 20_001),
        np.random.default_rng(0).standard_normal(999) * 1e-6,
        ENDS,
    ]
)
FUNCTIONS = ("exp", "expm1", "log", "log1p", "tanh")
PLACES = {"float32": 0.5001, "float64": 5.0}


def plainly(call: Callable[[], np.ndarray], monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Call without anything compiled."""
    with monkeypatch.context() as patch:
        patch.setattr(elementary, "_compiled", [])
        return call()


@pytest.mark.parametrize("dtype", PLACES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_right_to_the_last_places(name: str, dtype: str) -> None:
    x = X.astype(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        found = getattr(elementary, name)(x)
    with np.errstate(all="ignore"):
        exact = getattr(np, name)(x.astype(np.longdouble))
        wanted = exact.astype(dtype)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
        finite = np.isfinite(wanted)
        np.testing.assert_array_equal(found[~finite], wanted[~finite])
        off = np.abs(found[finite] - exact[finite]) / np.spacing(np.abs(wanted[finite])).astype(np.longdouble)
    assert found.dtype == x.dtype and float(off.max()) <= PLACES[dtype], x[finite][off.argmax()]


@pytest.mark.parametrize("dtype", PLACES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_compiled_it_has_the_same_bits(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, function = X.astype(dtype), getattr(elementary, name)
    bits = {"float32": np.uint32, "float64": np.uint64}[dtype]
    compiled, plain = function(x), plainly(lambda: function(x), monkeypatch)
    numbers = ~np.isnan(plain)
    np.testing.assert_array_equal(compiled[numbers].view(bits), plain[numbers].view(bits))


@pytest.mark.parametrize("dtype", PLACES)
@pytest.mark.parametrize("size", [0, 1, 63, 64, 1000])
def test_sums_of_squares_have_the_same_bits_compiled(size: int, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(size).standard_normal(size).astype(dtype)
    found = elementary.sum_of_squares(x)
    assert found == plainly(lambda: elementary.sum_of_squares(x), monkeypatch)
    assert found == pytest.approx(math.fsum(x.astype(float) ** 2), rel=1e-13)


def test_sine_and_cosine_are_those_of_turns() -> None:
    turns = np.random.default_rng(1).random(10_000)
    for dtype, close in (("float32", 6e-8), ("float64", 5e-16)):
        part = turns.astype(dtype)
        sine, cosine = elementary.sine_and_cosine(part)
        exact = 2 * np.pi * part.astype(np.longdouble)
        assert sine.dtype == part.dtype
        assert float(np.abs(sine - np.sin(exact)).max()) < close and float(np.abs(cosine - np.cos(exact)).max()) < close
    np.testing.assert_array_equal(
        elementary.sine_and_cosine(np.array([0.0, 0.25, 0.5, 0.75])), [[0, 1, 0, -1], [1, 0, -1, 0]]
    )


def test_powers() -> None:
    x = np.linspace(0, 9, 101, dtype=np.float32)
    for exponent in (0, 1, 2, 3, 7):
        np.testing.assert_allclose(elementary.integer_power(x, exponent), x.astype(float) ** exponent, rtol=1e-6)
    assert elementary.integer_power(2.0, -3) == 0.125 and elementary.integer_power(0.0, 0) == 1
    for power in (0.5, 0.75, 1.5, 2.0):
        np.testing.assert_allclose(elementary.positive_power(x, power), x.astype(float) ** power, rtol=1e-7)
    assert elementary.positive_power(1.75, -0.75) == pytest.approx(1.75**-0.75, rel=1e-14)


def test_a_softplus_never_overflows() -> None:
    np.testing.assert_array_equal(elementary.softplus(np.array([-1e4, 0.0, 1e4])), [0, math.log(2), 1e4])


def test_shapes_numbers_and_views_are_taken() -> None:
    grid = np.arange(12.0).reshape(3, 4)
    np.testing.assert_array_equal(elementary.exp(grid.T), elementary.exp(grid).T)
    assert (
        float(elementary.exp(1.0)) == pytest.approx(math.e, rel=1e-15)
        and elementary.exp(np.float32(0)).dtype == np.float32
    )
    assert elementary.log(np.empty((0, 3), np.float32)).shape == (0, 3)
