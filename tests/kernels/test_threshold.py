"""The threshold codec in every implementation: DL4J's vector, what is sent and what stays add up, refusals."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dl4jlegacy.errors import ConfError, ShapeError
from dl4jlegacy.kernels import load
from dl4jlegacy.kernels.protocol import Kernels


@pytest.fixture(params=["numpy", "numba", "cupy"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    if request.param == "cupy":
        request.getfixturevalue("device_arrays")
    return load(request.param)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3) as made:
        yield made


def up(kernels: Kernels, x: np.ndarray) -> Any:
    return kernels.xp.asarray(x.copy())


def down(x: Any) -> np.ndarray:
    return x if isinstance(x, np.ndarray) else x.get()


def encode(kernels: Kernels, x: np.ndarray, tau: float, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the codes and the residual."""
    residual, codes = up(kernels, x), up(kernels, np.full(capacity, 77, np.int32))
    count = kernels.threshold_encode(residual, tau, codes)
    assert type(count) is int and (down(codes)[count:] == 77).all()
    return down(codes)[:count], down(residual)


def decode(kernels: Kernels, codes: np.ndarray, tau: float, target: np.ndarray) -> np.ndarray:
    there = up(kernels, target)
    kernels.threshold_decode(up(kernels, codes), tau, there)
    return down(there)


def test_the_vector_that_dl4j_encodes(kernels: Kernels) -> None:
    codes, residual = encode(kernels, np.array([1.5, 2.5, -3.5], np.float32), 0.5, 3)
    assert codes.tolist() == [1, 2, -3] and residual.tolist() == [1, 2, -3]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    n=st.one_of(st.integers(0, 70), st.sampled_from([4095, 4096, 4097, 9000, 70_000])),
    tau=st.sampled_from([1e-3, 0.5, 1.5, 3.0, 9.0]),
    share=st.sampled_from([0.0, 0.01, 0.5, 1.0]),
    char=st.sampled_from("fd"),
    seed=st.integers(0, 99),
)
def test_message_and_residual_add_up_to_what_was_there(
    kernels: Kernels, n: int, tau: float, share: float, char: str, seed: int
) -> None:
    x = np.random.default_rng(seed).standard_normal(n).astype(char)
    x[:: max(1, n // 7)] = tau  # just enough
    x[1 :: max(2, n // 5)] = -tau
    codes, residual = encode(kernels, x, tau, math.ceil(n * share))
    quantum = x.dtype.type(tau)
    found = np.flatnonzero(np.abs(x) >= quantum)[: math.ceil(n * share)]
    np.testing.assert_array_equal(codes, np.where(x[found] > 0, found + 1, -found - 1))
    expected = x.copy()
    expected[found] -= np.copysign(quantum, x[found])
    np.testing.assert_array_equal(residual, expected)
    sent = decode(kernels, codes, tau, np.zeros(n, char))
    np.testing.assert_array_equal(np.abs(sent[found]), quantum)
    assert np.count_nonzero(sent) == len(found)
    np.testing.assert_array_equal(sent + residual, sent + expected)
    np.testing.assert_allclose(sent + residual, x, rtol=1e-6, atol=1e-6 * tau)
    twice = decode(kernels, codes, tau, sent)
    np.testing.assert_array_equal(twice, 2 * sent)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    n=st.one_of(st.integers(0, 300), st.sampled_from([1024, 1025, 5000])),
    block=st.sampled_from([1, 63, 64, 100, 1024]),
    tau=st.sampled_from([1e-9, 1.0, 2.5, 9.0]),
    room=st.sampled_from([0.5, 1.0]),
    char=st.sampled_from("fd"),
)
def test_blocks_on_threads_make_the_same_codes_and_residual(
    pool: ThreadPoolExecutor, n: int, block: int, tau: float, room: float, char: str
) -> None:
    x = np.random.default_rng(n).standard_normal(n).astype(char)
    expected, whole = encode(load("numba"), x, tau, math.ceil(n * room))
    residual, codes = x.copy(), np.zeros(math.ceil(n * room), np.int32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dl4jlegacy.kernels.numba.kernels._ENCODED", block)
        count = load("numba").threshold_encode(residual, tau, codes, pool)
    assert codes[:count].tolist() == expected.tolist()
    assert residual.tobytes() == whole.tobytes()


def test_a_large_vector_is_cut_and_a_pool_is_optional_everywhere(pool: ThreadPoolExecutor) -> None:
    x = np.random.default_rng(1).standard_normal(2_200_000, np.float32)
    answers = []
    for name, given_pool in (("numba", None), ("numba", pool), ("numpy", pool)):
        residual, codes = x.copy(), np.empty(x.size, np.int32)
        count = load(name).threshold_encode(residual, 2.0, codes, given_pool)
        answers.append((codes[:count].tobytes(), residual.tobytes()))
    assert answers[0] == answers[1] == answers[2] and len(answers[0][0]) > 4 * 90_000


def test_what_is_no_number_is_not_sent_and_infinity_stays(kernels: Kernels) -> None:
    codes, residual = encode(kernels, np.array([np.nan, np.inf, -np.inf, 0, 1]), 1.0, 5)
    assert codes.tolist() == [2, -3, 5]
    np.testing.assert_array_equal(residual, [np.nan, np.inf, -np.inf, 0, 0])


@pytest.mark.parametrize("char", "fd")
def test_every_place_of_a_stretch_is_found_and_what_is_no_number_is_not(kernels: Kernels, char: str) -> None:
    """In a stretch of 64 elements (one bit each in compiled code), and in the rest behind the last stretch."""
    for at in range(70):
        x = np.full(70, np.nan, char)
        x[at], x[(at + 1) % 70] = (-np.inf, -1.5)[at % 2], np.nextafter(x.dtype.type(1), x.dtype.type(0))
        codes, residual = encode(kernels, x, 1.0, 70)
        assert codes.tolist() == [-(at + 1)]
        expected = x.copy()
        expected[at] += 1
        np.testing.assert_array_equal(residual, expected)


@pytest.mark.parametrize(
    "codes", [[0], [4], [-4], [2, 1], [1, 1], [1, -1], [-(2**31)], [1, 2**31 - 1], [3, 0]], ids=str
)
def test_codes_that_nobody_encoded_are_refused_and_nothing_is_added(kernels: Kernels, codes: list[int]) -> None:
    target = up(kernels, np.zeros(3, np.float32))
    with pytest.raises(ShapeError, match="do not fit a vector of 3 elements"):
        kernels.threshold_decode(up(kernels, np.array(codes, np.int32)), 0.5, target)
    assert not down(target).any()


@pytest.mark.parametrize("tau", [0.0, -1.0, math.inf, math.nan])
def test_a_threshold_that_is_none_is_refused(kernels: Kernels, tau: float) -> None:
    x, codes = up(kernels, np.ones(3)), up(kernels, np.ones(1, np.int32))
    with pytest.raises(ConfError, match="must be a positive number"):
        kernels.threshold_encode(x, tau, codes)
    with pytest.raises(ConfError, match="must be a positive number"):
        kernels.threshold_decode(codes, tau, x)


def test_arrays_that_do_not_fit_are_refused(kernels: Kernels) -> None:
    for shape, char in (((3, 3), "i"), ((9,), "q")):
        with pytest.raises(ShapeError, match="threshold_encode"):
            kernels.threshold_encode(up(kernels, np.ones((3, 3))).reshape(shape), 1.0, up(kernels, np.ones(3, char)))
    with pytest.raises((ShapeError, ConfError), match=r"int64|do not fit|threshold_decode"):
        kernels.threshold_decode(up(kernels, np.ones(1, np.int64)), 1.0, up(kernels, np.ones(3)))
