"""Every compiled kernel against its NumPy version, of odd sizes: numba's, and CUDA C run by the stand-in for cupy.

What CUDA computes without fused multiply-add has NumPy's bits; numba may round apart.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from dl4jlegacy.kernels import load, philox
from dl4jlegacy.kernels.protocol import FUSED_ACTIVATIONS, Kernels
from tests.kernels.test_kernels import COUNTED, DTYPES, KEY, SHAPES, SIZES, UPDATERS, close, normal
from tests.kernels.test_recurrent import BACKWARD, FORWARD, GRADIENTS
from tests.kernels.test_recurrent import arrays as lstm_arrays

NUMPY = load("numpy")
ANY = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
both_dtypes = pytest.mark.parametrize("dtype", DTYPES)
all_shapes = pytest.mark.parametrize("shape", [*SHAPES, (300, 33), (2, 1000)])
all_sizes = pytest.mark.parametrize("n", [*SIZES, 20_011])
activations = pytest.mark.parametrize("activation", sorted(FUSED_ACTIVATIONS))
char = st.sampled_from("fd")


ON_A_GPU = pytest.param("cupy", marks=pytest.mark.long)
on_a_gpu = pytest.mark.parametrize("kernels", [ON_A_GPU], indirect=True)
every_kind = pytest.mark.parametrize("kernels", ["numpy", "numba", ON_A_GPU], indirect=True)


@pytest.fixture(params=["numba", ON_A_GPU])
def kernels(request: pytest.FixtureRequest) -> Any:
    """Compiled kernels; the stand-in for cupy is there for those of a GPU."""
    if request.param == "cupy":
        request.getfixturevalue("device_arrays")
    return load(request.param)


def moved(kernels: Kernels, x: np.ndarray) -> Any:
    """Return a copy where the kernels compute."""
    return x.copy() if kernels.xp is np else kernels.xp.asarray(x)


def here(x: Any) -> np.ndarray:
    """Return an array on the host."""
    return x if isinstance(x, np.ndarray) else x.get()


def run(kernels: Kernels, name: str, *args: Any) -> list[np.ndarray]:
    """Call with a copy of every array, on the device if the kernels are there; return the copies afterwards."""
    own = {id(a): moved(kernels, a) for a in args if isinstance(a, np.ndarray)}
    getattr(kernels, name)(*(own.get(id(a), a) for a in args))
    return [here(a) for a in own.values()]


def agree(kernels: Kernels, name: str, *args: Any, **tolerance: float) -> list[np.ndarray]:
    """Both must do the same to the arrays in ``args``: the same bits if no tolerance is given."""
    found, expected = run(kernels, name, *args), run(NUMPY, name, *args)
    for ours, theirs in zip(found, expected, strict=True):
        if tolerance:
            np.testing.assert_allclose(ours, theirs, **tolerance)
        else:
            np.testing.assert_array_equal(ours, theirs)
    return found


def bits(kernels: Kernels, dtype: Any) -> dict[str, float]:
    """Return no tolerance for what a GPU computes as NumPy does, to the bit."""
    return {} if kernels.name == "cupy" else close(dtype)


def sums_close(dtype: Any) -> dict[str, float]:
    """Sums of a few hundred numbers of size about four, in other orders."""
    return {"rtol": 2e-5, "atol": 2e-4} if dtype == np.float32 else {"rtol": 1e-12, "atol": 1e-11}


# -- layers ------------------------------------------------------------------------------------------------------------
@both_dtypes
@all_shapes
@activations
def test_bias_and_activation_are_numpys(kernels: Kernels, dtype: Any, shape: Any, activation: str) -> None:
    z, b = normal(shape, dtype) * 4, normal(shape[1], dtype, 2)
    agree(kernels, "bias_activation", z, b, activation, **close(dtype))
    agree(kernels, "sigmoid_bias", z, b, **close(dtype))


@both_dtypes
@pytest.mark.parametrize("shape", [*SHAPES, (300, 33), (40_000, 3)])
@activations
def test_gradients_of_activations_and_biases_are_numpys(
    kernels: Kernels, dtype: Any, shape: Any, activation: str
) -> None:
    dy, y, gb = normal(shape, dtype), np.tanh(normal(shape, dtype, 3)), np.full(shape[1], 7, dtype)
    tolerance = close(dtype) | ({"atol": 2e-6 * math.sqrt(len(dy) + 1) * 10} if dtype == np.float32 else {})
    agree(kernels, "activation_backward_bias", dy, y, gb, activation, **tolerance)


@both_dtypes
def test_column_sums_are_numpys(kernels: Kernels, dtype: Any) -> None:
    for shape in [*SHAPES, (300, 33), (1000, 70), (0, 7)]:
        agree(kernels, "column_sums", normal(shape, dtype), np.full(shape[1], 7, dtype), **sums_close(dtype))


@every_kind
@pytest.mark.parametrize("activation", ["sigmoid", "tanh"])
def test_saturated_units_are_exact(kernels: Kernels, activation: str) -> None:
    z = np.array([[-1e30, -200, -90, 0, 90, 200, 1e30]], np.float32)
    low = 0 if activation == "sigmoid" else -1
    found = run(kernels, "bias_activation", z, np.zeros(7, np.float32), activation)[0]
    np.testing.assert_allclose(found, [[low, low, low, (low + 1) / 2, 1, 1, 1]], atol=1e-6)


@every_kind
@activations
def test_a_nan_survives_every_activation(kernels: Kernels, activation: str) -> None:
    z = np.full((1, 20), np.nan, np.float32)
    assert np.isnan(run(kernels, "bias_activation", z, np.zeros(20, np.float32), activation)[0]).all()


@both_dtypes
@all_shapes
def test_softmax_and_cross_entropy_are_numpys(kernels: Kernels, dtype: Any, shape: Any) -> None:
    z = normal(shape, dtype) * 30
    (p,) = agree(kernels, "softmax", z, **close(dtype))
    dz = np.full_like(p, 7)
    agree(kernels, "softmax_cross_entropy", p, np.abs(normal(shape, dtype, 3)), dz, **sums_close(dtype))  # any sum
    labels = np.eye(shape[1], dtype=dtype)[np.arange(shape[0]) % shape[1]]
    there = [moved(kernels, a) for a in (p, labels)]
    loss: Any = kernels.softmax_cross_entropy(there[0], there[1], there[0])  # dz may be p
    assert isinstance(loss, float) or (loss.shape == () and loss.dtype == np.float64)
    expected = NUMPY.softmax_cross_entropy(p, labels, dz)
    assert float(loss) == pytest.approx(expected, rel=1e-5) and np.array_equal(here(there[0]), dz)


@on_a_gpu
@both_dtypes
@all_shapes
def test_an_output_layer_in_few_launches_is_the_same_in_many(kernels: Any, dtype: Any, shape: Any) -> None:
    z, b, dz = normal(shape, dtype), normal(shape[1:], dtype), np.zeros(shape, dtype)
    labels = np.abs(normal(shape, dtype, 3))
    p, expected, sums = z.copy(), dz.copy(), np.zeros(shape[1], dtype)
    NUMPY.bias_activation(p, b, "identity")
    NUMPY.softmax(p)
    loss = NUMPY.softmax_cross_entropy(p, labels, expected)
    expected *= dtype(0.125)
    NUMPY.column_sums(expected, sums)
    on_gpu = [moved(kernels, a) for a in (z, b, labels, dz, np.zeros_like(b))]
    np.testing.assert_allclose(float(kernels.softmax_loss(*on_gpu, 0.125)), loss, rtol=1e-5)
    for found, wanted in ((on_gpu[0], p), (on_gpu[3], expected), (on_gpu[4], sums)):
        np.testing.assert_allclose(here(found), wanted, **sums_close(dtype))


@every_kind
@both_dtypes
@all_shapes
def test_the_ends_of_contrastive_divergence_are_numpys(kernels: Any, dtype: Any, shape: Any) -> None:
    model, data = (1 / (1 + np.exp(-normal(shape, dtype)))).astype(dtype), (normal(shape, dtype) > 0).astype(dtype)
    model[:1, :1] = 0.0  # is cut
    p, x, kept, out = (moved(kernels, a) for a in (model, data, np.zeros_like(data), np.zeros(shape[1], dtype)))
    clipped = np.clip(model.astype(np.float64), 1e-5, 1 - 1e-5)
    score = -(data * np.log(clipped) + (1 - data) * np.log(1 - clipped)).sum()
    np.testing.assert_allclose(float(kernels.binary_cross_entropy(p, x)), score, rtol=1e-4, atol=1e-4)
    kernels.difference_sums(p, x, kept, out, 0.25)
    np.testing.assert_array_equal(here(kept), data)
    np.testing.assert_allclose(here(out), (model - data).sum(axis=0) * dtype(0.25), **sums_close(dtype))
    half = shape[0] // 2
    kernels.signed_sums(p, half, out, 0.25)
    model[:half] *= dtype(-0.25)
    model[half:] *= dtype(0.25)
    np.testing.assert_array_equal(here(p), model)
    np.testing.assert_allclose(here(out), model.sum(axis=0), **sums_close(dtype))


def test_a_row_with_a_nan_is_all_nan_and_no_other(kernels: Kernels) -> None:
    z = normal((5, 300), np.float32)
    z[2, 117] = np.nan
    found = run(kernels, "softmax", z)[0]
    assert np.isnan(found[2]).all() and np.isfinite(np.delete(found, 2, axis=0)).all()


# -- updaters ----------------------------------------------------------------------------------------------------------
@both_dtypes
@all_sizes
@pytest.mark.parametrize("updater", sorted(UPDATERS))
@pytest.mark.everyday(57)
def test_updaters_compute_numpys_bits(kernels: Kernels, dtype: Any, n: int, updater: str) -> None:
    slots, given_settings = UPDATERS[updater]
    state = [normal(n, dtype), *(np.zeros(n, dtype) for _ in range(slots))]
    for t in range(3):
        counter = (t,) if updater in COUNTED else ()
        gradient = normal(n, dtype, t + 5)
        arrays = (state[0], gradient, *state[1:])
        found = agree(kernels, updater, *arrays, *given_settings, *counter, **bits(kernels, dtype))
        state = [found[0], *found[2:]]


@pytest.mark.parametrize("updater", sorted({*UPDATERS, "decay"} - {"noop"}))
def test_an_updater_reads_its_numbers_from_memory_if_there_is_some(device_arrays: Any, updater: str) -> None:
    from dl4jlegacy.kernels.cuda.kernels import CupyKernels

    class Captured(CupyKernels):
        def _scalars(self, *values: float) -> tuple[Any, ...]:
            return (math.nan,) * 4 + (device_arrays.asarray([*map(float, values), *[math.nan] * (4 - len(values))]),)

        def _key(self, key: int) -> tuple[Any, Any]:
            return np.uint64(5), device_arrays.asarray([key], np.uint64)

    slots, given_settings = UPDATERS.get(updater, (-1, (1e-3,)))
    state, counter = [np.ones(9) for _ in range(slots)], (3,) if updater in COUNTED else ()
    gradient = [normal(9, float, 2)] * (slots >= 0)
    captured: Any = Captured()
    agree(captured, updater, normal(9, float), *gradient, *state, *given_settings, *counter)
    agree(captured, "uniform", np.empty(99), KEY)


# -- random ------------------------------------------------------------------------------------------------------------
@both_dtypes
@all_sizes
def test_random_streams_are_the_same_bits(kernels: Kernels, dtype: Any, n: int) -> None:
    for key in (0, 1, KEY, 2**64 - 1):
        agree(kernels, "uniform", np.full(n, 7, dtype), key)
    agree(kernels, "gaussian", np.full(n, 7, dtype), KEY, rtol=1e-5, atol=1e-6)


@both_dtypes
@all_shapes
def test_dropout_and_masking_noise_are_the_same_bits(kernels: Kernels, dtype: Any, shape: Any) -> None:
    x, out = normal(shape, dtype), np.full(shape, 7, dtype)
    agree(kernels, "dropout", x, out, 0.8, KEY)
    agree(kernels, "dropout", x, x, 0.8, KEY)
    agree(kernels, "dropout_backward", x, 0.5, KEY)
    agree(kernels, "corrupt", x, out, 0.3, KEY)


@both_dtypes
@all_shapes
def test_sigmoid_samples_are_numpys(kernels: Kernels, dtype: Any, shape: Any) -> None:
    z, b = normal(shape, dtype) * 3, normal(shape[1], dtype, 2)
    p, s = np.full_like(z, 7), np.full_like(z, 7)
    found = agree(kernels, "sigmoid_sample", z, b, p, s, KEY, **close(dtype))
    assert np.array_equal(found[3], philox.uniforms(z.size, KEY).reshape(shape) < found[2])
    agree(kernels, "sigmoid_sample", z, b, z, s, KEY, **close(dtype))
    assert np.array_equal(run(kernels, "sigmoid_sample", z, b, z, z, KEY)[0], found[3])


# -- flat vectors ------------------------------------------------------------------------------------------------------
@both_dtypes
@all_sizes
@pytest.mark.parametrize("k", [1, 2, 5, 16, 17, 40])
def test_weighted_sums_are_the_same_bits(kernels: Kernels, dtype: Any, n: int, k: int) -> None:
    vectors, weights = [normal(n, dtype, seed) for seed in range(k)], [1 / (i + 3) for i in range(k)]
    expected = np.empty(n, dtype)
    NUMPY.weighted_sum(vectors, weights, expected)
    there, out = [moved(kernels, v) for v in vectors], kernels.xp.empty(n, dtype)
    kernels.weighted_sum(there, weights, out)
    assert here(out).tobytes() == expected.tobytes()
    kernels.weighted_sum(there, weights, there[0])  # it may replace the first one
    assert here(there[0]).tobytes() == expected.tobytes()


@both_dtypes
@all_sizes
def test_vector_kernels_compute_numpys_bits(kernels: Kernels, dtype: Any, n: int) -> None:
    x, y = normal(n, dtype), normal(n, dtype, 2)
    y[::3] = 0
    agree(kernels, "axpy", x, y, -0.3, **bits(kernels, dtype))
    agree(kernels, "decay", x, 1e-3, **bits(kernels, dtype))
    for l1, l2 in [(0.01, 0.2), (0.0, 0.2), (0.01, 0.0)]:
        agree(kernels, "add_regularization", x, y, l1, l2, **bits(kernels, dtype))


@every_kind
@both_dtypes
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_bad_number_anywhere_is_found(kernels: Kernels, dtype: Any, bad: float) -> None:
    x = np.full(40_000, np.finfo(dtype).max, dtype)
    assert kernels.all_finite(moved(kernels, x)) and kernels.all_finite(moved(kernels, x[:0]))
    for position in (0, 16_384, 39_999):
        x[position] = bad
        assert not kernels.all_finite(moved(kernels, x))
        x[position] = 1


# -- tiles and sequences: those of numba, with its own number of lanes, are in test_tiles and test_recurrent -----------
@on_a_gpu
@ANY
@given(rows=st.integers(1, 90), size=st.integers(1, 70), lanes=st.sampled_from([0, 1, 3, 16, 33]), char=char)
def test_rows_go_to_tiles_and_back(kernels: Kernels, rows: int, size: int, lanes: int, char: str) -> None:
    lanes, x = lanes or rows, normal((rows, size), char)
    tiles = np.full((-(-rows // lanes), 1, 1, size, lanes), 7, char)
    filled = agree(kernels, "tile", x, tiles)[1]
    agree(kernels, "untile", filled, np.full_like(x, 7))


@on_a_gpu
@ANY
@given(
    planes=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    pad=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    kind=st.sampled_from(["max", "avg", "sum", "pnorm"]),
    lanes=st.sampled_from([1, 2, 33]),
    char=char,
)
def test_pooling_is_numpys(
    kernels: Kernels, planes: Any, size: Any, kernel: Any, stride: Any, pad: Any, kind: str, lanes: int, char: str
) -> None:
    assume(all(pad[i] < kernel[i] <= size[i] + 2 * pad[i] for i in (0, 1)))
    out = [(size[i] + 2 * pad[i] - kernel[i]) // stride[i] + 1 for i in (0, 1)]
    x, dy = normal((*planes, *size, lanes), char), normal((*planes, *out, lanes), char, 2)
    tolerance = {"rtol": 2e-5, "atol": 2e-6} if char == "f" else {"rtol": 1e-12, "atol": 1e-13}
    found = agree(kernels, "pool_forward", x, np.full_like(dy, 7), np.full(dy.shape, 7, np.int32),
                  kernel, stride, pad, kind, 3.0, **tolerance)  # fmt: skip
    agree(kernels, "pool_backward", dy, *found, np.full_like(x, 7), kernel, stride, pad, kind, 3.0, **tolerance)


@on_a_gpu
@ANY
@given(
    shape=st.tuples(*[st.integers(1, 4)] * 2, *[st.sampled_from([1, 3, 20])] * 2, st.sampled_from([1, 5, 40])),
    activation=st.sampled_from(sorted(FUSED_ACTIVATIONS)),
    char=char,
)
def test_gradients_of_channels_are_numpys(kernels: Kernels, shape: Any, activation: str, char: str) -> None:
    dy, y = normal(shape, char), np.tanh(normal(shape, char, 2))
    tolerance = {"rtol": 2e-5, "atol": 1e-3} if char == "f" else {"rtol": 1e-12, "atol": 1e-11}
    agree(kernels, "channel_backward", dy, y, np.full(shape[1], 7, char), activation, **tolerance)


@pytest.mark.parametrize("shape", [(1, 1), (33, 50), (70, 3)])
def test_a_matrix_is_transposed(kernels: Kernels, shape: tuple[int, int]) -> None:
    agree(kernels, "transpose", normal(shape, "f"), np.full(shape[::-1], 7, "f"))


@on_a_gpu
@ANY
@given(
    steps=st.integers(1, 6), rows=st.integers(1, 9), n=st.integers(1, 20), first=st.integers(0, 3),
    masked=st.booleans(), char=char, seed=st.integers(0, 9),
)  # fmt: skip
def test_an_lstm_over_time_is_numpys(
    kernels: Kernels, steps: int, rows: int, n: int, first: int, masked: bool, char: str, seed: int
) -> None:
    own = lstm_arrays(steps, rows, n, np.dtype(char).type, masked=masked, seed=seed)
    close_by = {"rtol": 2e-5, "atol": 1e-5} if char == "f" else {"rtol": 1e-11, "atol": 1e-12}
    found = agree(kernels, "lstm_forward", *(own[key] for key in FORWARD), **close_by)
    own |= dict(zip(FORWARD, found, strict=True))
    backward, gradients = (own[key] for key in BACKWARD), (own[key] for key in GRADIENTS)
    agree(kernels, "lstm_backward", *backward, min(first, steps - 1), *gradients, **close_by)
