"""Thresholds follow the sparsity as DL4J's do, and a quantum is taken off a residual without rounding."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dl4jlegacy.errors import ConfError
from dl4jlegacy.kernels import load
from dl4jlegacy.scaleout.strategies.thresholds import (
    DENSE,
    AdaptiveThreshold,
    FixedThreshold,
    TargetSparsityThreshold,
    quantum,
)

# -- DL4J's ThresholdAlgorithmTests ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("threshold", "sparsities", "steps"),
    [
        (
            AdaptiveThreshold(initial=1e-3, least_sparsity=1e-4, most_sparsity=1e-2, decay=0.95),
            (1e-3, 1e-4, 1e-2, 9e-5, 0.0, 1.1e-2, DENSE),
            (0, 0, 0, -1, -1, 1, 1),
        ),
        (
            TargetSparsityThreshold(initial=1e-3, sparsity=1e-3, decay=0.95),
            (1e-3, 9e-4, 0.0, 1.1e-3, DENSE),
            (0, -1, -1, 1, 1),
        ),
    ],
)
def test_a_threshold_falls_when_too_little_is_sent_and_rises_when_too_much_is(
    threshold: AdaptiveThreshold | TargetSparsityThreshold, sparsities: tuple[float, ...], steps: tuple[int, ...]
) -> None:
    tau = threshold.first()
    assert tau == 1e-3
    for sparsity, step in zip(sparsities, steps, strict=True):
        found = threshold.following(tau, sparsity)
        assert found == {0: tau, -1: tau * 0.95, 1: tau / 0.95}[step]
        tau = found


def test_a_fixed_threshold_stays() -> None:
    threshold = FixedThreshold(5e-4)
    assert threshold.first() == 5e-4
    assert {threshold.following(1.0, sparsity) for sparsity in (0.0, 1e-3, DENSE)} == {5e-4}


def test_20_messages_that_send_nothing_halve_it() -> None:
    for threshold in (AdaptiveThreshold(), TargetSparsityThreshold()):
        tau = threshold.first()
        for _ in range(20):
            tau = threshold.following(tau, 0.0)
        assert tau == pytest.approx(threshold.first() / 2, rel=1e-12)


def test_a_sparsity_that_is_no_number_moves_nothing() -> None:
    assert AdaptiveThreshold().following(0.5, math.nan) == 0.5


def test_a_threshold_stays_usable_when_nothing_or_everything_is_sent_for_ever() -> None:
    threshold = AdaptiveThreshold(decay=0.5)
    small = large = threshold.first()
    for _ in range(500):
        small, large = threshold.following(small, 0.0), threshold.following(large, DENSE)
    assert (small, large) == (2.0**-100, 2.0**100) == (quantum(small), quantum(large))


@pytest.mark.parametrize("tau", [0.0, -1.0, math.nan, math.inf, -math.inf, 1e-40, 1e40])
def test_a_threshold_that_means_nothing_is_refused(tau: float) -> None:
    for make in (FixedThreshold, AdaptiveThreshold, TargetSparsityThreshold, quantum):
        with pytest.raises(ConfError, match=re.escape(f"is {tau}; it must be a positive number")):
            make(tau)


@pytest.mark.parametrize("decay", [0.49, 1.0, -0.5, math.nan, math.inf])
def test_a_decay_that_means_nothing_is_refused(decay: float) -> None:
    for kind in (AdaptiveThreshold, TargetSparsityThreshold):
        with pytest.raises(ConfError, match=r"^decay is .*; it must be at least 0\.5 and less than 1$"):
            kind(decay=decay)


@pytest.mark.parametrize("sparsity", [0.0, -1.0, DENSE, 1.0, math.nan])
def test_a_sparsity_that_means_nothing_is_refused(sparsity: float) -> None:
    for kind, name in (
        (AdaptiveThreshold, "least_sparsity"),
        (AdaptiveThreshold, "most_sparsity"),
        (TargetSparsityThreshold, "sparsity"),
    ):
        with pytest.raises(ConfError, match=f"^{name} is .*; it must be more than 0 and less than 1/16"):
            kind(**{name: sparsity})


def test_bounds_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfError, match=r"least_sparsity is 0\.02, more than most_sparsity, 0\.01"):
        AdaptiveThreshold(least_sparsity=0.02)
    assert AdaptiveThreshold(least_sparsity=0.01).following(1.0, 0.01) == 1.0


# -- the quantum -----------------------------------------------------------------------------------------------------


def test_a_quantum_has_eight_significant_bits() -> None:
    assert quantum(1.0) == 1.0 and quantum(0.5) == 0.5 and quantum(255.0) == 255.0
    assert quantum(1 + 1 / 128) == 1 + 1 / 128
    assert quantum(257.0) == 256.0 and quantum(255.9) == 256.0
    assert quantum(1e-3) == 131 / 2**17


@given(st.floats(2.0**-100, 2.0**100))
def test_a_quantum_is_near_and_its_own_quantum(tau: float) -> None:
    found = quantum(tau)
    assert abs(found - tau) <= tau / 256
    assert quantum(found) == found == float(np.float32(found))


@pytest.fixture(scope="module", params=["numpy", "numba"])
def kernels(request: pytest.FixtureRequest):
    return load(request.param)


def sent_and_kept(kernels, x: np.ndarray, tau: float) -> tuple[np.ndarray, np.ndarray]:
    """Encode and decode; return what was sent and what stays, together, and the error of what stays."""
    residual, codes = x.copy(), np.empty(x.size, np.int32)
    count = kernels.threshold_encode(residual, tau, codes)
    assert count == np.count_nonzero(np.abs(x) >= np.float32(tau))
    total = residual.copy()
    kernels.threshold_decode(codes[:count], tau, total)
    exact = x.astype(np.float64) - np.where(np.abs(x) >= np.float32(tau), np.copysign(np.float32(tau), x), 0.0)
    return total, residual - exact


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tau=st.floats(2.0**-100, 2.0**100), seed=st.integers(0, 999))
def test_a_quantum_is_taken_off_without_rounding(kernels, tau: float, seed: int) -> None:
    """Residuals of all magnitudes up to 2^16 quanta, to the last bit: what is decoded and what stays are what was."""
    tau, rng = quantum(tau), np.random.default_rng(seed)
    edges = np.float32(tau) * np.float32([1, 2, 3, 2**15, 2**16])
    edges = np.r_[edges, np.nextafter(edges, np.float32(0)), np.nextafter(edges[:-1], np.float32(np.inf))]
    x = np.r_[edges, (tau * 2 ** rng.uniform(-8, 16, 500)).astype(np.float32)]
    x = np.where(rng.random(x.size) < 0.5, x, -x)
    total, error = sent_and_kept(kernels, x, tau)
    assert np.array_equal(total, x) and not error.any()


def test_without_a_quantum_or_beyond_its_range_it_is_rounded(kernels) -> None:
    x = (1e-3 * 2 ** np.random.default_rng(3).uniform(0, 16, 500)).astype(np.float32)
    assert sent_and_kept(kernels, x, 1e-3)[1].any()
    assert not sent_and_kept(kernels, x, quantum(1e-3))[1].any()
    beyond = np.float32(2**17) + np.arange(1, 50, dtype=np.float32) / 64
    assert sent_and_kept(kernels, beyond, 255 / 256)[1].any()
