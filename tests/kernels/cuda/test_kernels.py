"""Every CUDA kernel against its NumPy version, run on the CPU by the stand-in for cupy: sizes and bits."""

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


@pytest.fixture
def cupy(device_arrays: Any) -> Any:
    """The stand-in for cupy."""
    return device_arrays


@pytest.fixture
def gpu(cupy: Any) -> Kernels:
    return load("cupy")


def run(kernels: Kernels, name: str, *args: Any) -> list[np.ndarray]:
    """Call with a copy of every array, on the device if the kernels are there; return the copies afterwards."""
    move = np.array if kernels.xp is np else kernels.xp.asarray
    own = {id(a): move(a) for a in args if isinstance(a, np.ndarray)}
    getattr(kernels, name)(*(own.get(id(a), a) for a in args))
    return [a if isinstance(a, np.ndarray) else a.get() for a in own.values()]


def agree(gpu: Kernels, name: str, *args: Any, **tolerance: float) -> list[np.ndarray]:
    """Both must do the same to the arrays in ``args``: the same bits if no tolerance is given."""
    found, expected = run(gpu, name, *args), run(NUMPY, name, *args)
    for ours, theirs in zip(found, expected, strict=True):
        if tolerance:
            np.testing.assert_allclose(ours, theirs, **tolerance)
        else:
            np.testing.assert_array_equal(ours, theirs)
    return found


def sums_close(dtype: Any) -> dict[str, float]:
    """Sums of a few hundred numbers of size about four, in other orders."""
    return {"rtol": 2e-5, "atol": 2e-4} if dtype == np.float32 else {"rtol": 1e-12, "atol": 1e-11}


# -- layers ------------------------------------------------------------------------------------------------------------
@both_dtypes
@all_shapes
@activations
def test_bias_and_activation_are_numpys(gpu: Kernels, dtype: Any, shape: Any, activation: str) -> None:
    z, b = normal(shape, dtype) * 4, normal(shape[1], dtype, 2)
    agree(gpu, "bias_activation", z, b, activation, **close(dtype))
    agree(gpu, "sigmoid_bias", z, b, **close(dtype))


@both_dtypes
@pytest.mark.parametrize("shape", [*SHAPES, (300, 33), (40_000, 3)])
@activations
def test_gradients_of_activations_and_biases_are_numpys(gpu: Kernels, dtype: Any, shape: Any, activation: str) -> None:
    dy, y, gb = normal(shape, dtype), np.tanh(normal(shape, dtype, 3)), np.full(shape[1], 7, dtype)
    tolerance = close(dtype) | ({"atol": 2e-6 * math.sqrt(len(dy) + 1) * 10} if dtype == np.float32 else {})
    agree(gpu, "activation_backward_bias", dy, y, gb, activation, **tolerance)


@both_dtypes
def test_column_sums_are_numpys(gpu: Kernels, dtype: Any) -> None:
    for shape in [*SHAPES, (300, 33), (1000, 70), (0, 7)]:
        agree(gpu, "column_sums", normal(shape, dtype), np.full(shape[1], 7, dtype), **sums_close(dtype))


@pytest.mark.parametrize("activation", ["sigmoid", "tanh"])
def test_saturated_units_are_exact(gpu: Kernels, activation: str) -> None:
    z = np.array([[-1e30, -200, -90, 0, 90, 200, 1e30]], np.float32)
    low = 0 if activation == "sigmoid" else -1
    found = run(gpu, "bias_activation", z, np.zeros(7, np.float32), activation)[0]
    np.testing.assert_allclose(found, [[low, low, low, (low + 1) / 2, 1, 1, 1]], atol=1e-6)


@activations
def test_a_nan_survives_every_activation(gpu: Kernels, activation: str) -> None:
    z = np.full((1, 20), np.nan, np.float32)
    assert np.isnan(run(gpu, "bias_activation", z, np.zeros(20, np.float32), activation)[0]).all()


@both_dtypes
@all_shapes
def test_softmax_and_cross_entropy_are_numpys(gpu: Kernels, dtype: Any, shape: Any) -> None:
    z = normal(shape, dtype) * 30
    (p,) = agree(gpu, "softmax", z, **close(dtype))
    dz = np.full_like(p, 7)
    agree(gpu, "softmax_cross_entropy", p, np.abs(normal(shape, dtype, 3)), dz, **sums_close(dtype))  # any sum
    labels = np.eye(shape[1], dtype=dtype)[np.arange(shape[0]) % shape[1]]
    there = [gpu.xp.asarray(a) for a in (p, labels)]
    loss: Any = gpu.softmax_cross_entropy(there[0], there[1], there[0])  # dz may be p
    assert loss.shape == () and loss.dtype == np.float64
    expected = NUMPY.softmax_cross_entropy(p, labels, dz)
    assert float(loss) == pytest.approx(expected, rel=1e-5) and np.array_equal(there[0].get(), dz)


@both_dtypes
@all_shapes
def test_an_output_layer_in_few_launches_is_the_same_in_many(gpu: Any, dtype: Any, shape: Any) -> None:
    z, b, dz = normal(shape, dtype), normal(shape[1:], dtype), np.zeros(shape, dtype)
    labels = np.abs(normal(shape, dtype, 3))
    p, expected, sums = z.copy(), dz.copy(), np.zeros(shape[1], dtype)
    NUMPY.bias_activation(p, b, "identity")
    NUMPY.softmax(p)
    loss = NUMPY.softmax_cross_entropy(p, labels, expected)
    expected *= dtype(0.125)
    NUMPY.column_sums(expected, sums)
    on_gpu = [gpu.xp.asarray(a) for a in (z, b, labels, dz, np.zeros_like(b))]
    np.testing.assert_allclose(float(gpu.softmax_loss(*on_gpu, 0.125)), loss, rtol=1e-5)
    for found, wanted in ((on_gpu[0], p), (on_gpu[3], expected), (on_gpu[4], sums)):
        np.testing.assert_allclose(found.get(), wanted, **sums_close(dtype))


@both_dtypes
@all_shapes
def test_the_ends_of_contrastive_divergence_are_numpys(gpu: Any, dtype: Any, shape: Any) -> None:
    model, data = (1 / (1 + np.exp(-normal(shape, dtype)))).astype(dtype), (normal(shape, dtype) > 0).astype(dtype)
    model[:1, :1] = 0.0  # is cut
    p, x, kept, out = (gpu.xp.asarray(a) for a in (model, data, np.zeros_like(data), np.zeros(shape[1], dtype)))
    clipped = np.clip(model.astype(np.float64), 1e-5, 1 - 1e-5)
    score = -(data * np.log(clipped) + (1 - data) * np.log(1 - clipped)).sum()
    np.testing.assert_allclose(float(gpu.binary_cross_entropy(p, x)), score, rtol=1e-4, atol=1e-4)
    gpu.difference_sums(p, x, kept, out, 0.25)
    np.testing.assert_array_equal(kept.get(), data)
    np.testing.assert_allclose(out.get(), (model - data).sum(axis=0) * dtype(0.25), **sums_close(dtype))
    half = shape[0] // 2
    gpu.signed_sums(p, half, out, 0.25)
    model[:half] *= dtype(-0.25)
    model[half:] *= dtype(0.25)
    np.testing.assert_array_equal(p.get(), model)
    np.testing.assert_allclose(out.get(), model.sum(axis=0), **sums_close(dtype))


def test_a_row_with_a_nan_is_all_nan_and_no_other(gpu: Kernels) -> None:
    z = normal((5, 300), np.float32)
    z[2, 117] = np.nan
    found = run(gpu, "softmax", z)[0]
    assert np.isnan(found[2]).all() and np.isfinite(np.delete(found, 2, axis=0)).all()


# -- updaters ----------------------------------------------------------------------------------------------------------
@both_dtypes
@all_sizes
@pytest.mark.parametrize("updater", sorted(UPDATERS))
def test_updaters_compute_numpys_bits(gpu: Kernels, dtype: Any, n: int, updater: str) -> None:
    slots, given_settings = UPDATERS[updater]
    state = [normal(n, dtype), *(np.zeros(n, dtype) for _ in range(slots))]
    for t in range(3):
        counter = (t,) if updater in COUNTED else ()
        gradient = normal(n, dtype, t + 5)
        found = agree(gpu, updater, state[0], gradient, *state[1:], *given_settings, *counter)
        state = [found[0], *found[2:]]


@pytest.mark.parametrize("updater", sorted(set(UPDATERS) - {"noop"}))
def test_an_updater_reads_its_numbers_from_memory_if_there_is_some(cupy: Any, updater: str) -> None:
    from dl4jlegacy.kernels.cuda.kernels import CupyKernels

    class Captured(CupyKernels):
        def _scalars(self, *values: float) -> tuple[Any, ...]:
            return (math.nan,) * 4 + (cupy.asarray([*map(float, values), *[math.nan] * (4 - len(values))]),)

        def _key(self, key: int) -> tuple[Any, Any]:
            return np.uint64(5), cupy.asarray([key], np.uint64)

    slots, given_settings = UPDATERS[updater]
    state, counter = [np.ones(9) for _ in range(slots)], (3,) if updater in COUNTED else ()
    captured: Any = Captured()
    agree(captured, updater, normal(9, float), normal(9, float, 2), *state, *given_settings, *counter)
    agree(captured, "uniform", np.empty(99), KEY)


# -- random ------------------------------------------------------------------------------------------------------------
@both_dtypes
@all_sizes
def test_random_streams_are_the_same_bits(gpu: Kernels, dtype: Any, n: int) -> None:
    for key in (0, 1, KEY, 2**64 - 1):
        agree(gpu, "uniform", np.full(n, 7, dtype), key)
    agree(gpu, "gaussian", np.full(n, 7, dtype), KEY, rtol=1e-5, atol=1e-6)


@both_dtypes
@all_shapes
def test_dropout_and_masking_noise_are_the_same_bits(gpu: Kernels, dtype: Any, shape: Any) -> None:
    x, out = normal(shape, dtype), np.full(shape, 7, dtype)
    agree(gpu, "dropout", x, out, 0.8, KEY)
    agree(gpu, "dropout", x, x, 0.8, KEY)
    agree(gpu, "dropout_backward", x, 0.5, KEY)
    agree(gpu, "corrupt", x, out, 0.3, KEY)


@both_dtypes
@all_shapes
def test_sigmoid_samples_are_numpys(gpu: Kernels, dtype: Any, shape: Any) -> None:
    z, b = normal(shape, dtype) * 3, normal(shape[1], dtype, 2)
    p, s = np.full_like(z, 7), np.full_like(z, 7)
    found = agree(gpu, "sigmoid_sample", z, b, p, s, KEY, **close(dtype))
    assert np.array_equal(found[3], philox.uniforms(z.size, KEY).reshape(shape) < found[2])
    agree(gpu, "sigmoid_sample", z, b, z, s, KEY, **close(dtype))
    assert np.array_equal(run(gpu, "sigmoid_sample", z, b, z, z, KEY)[0], found[3])


# -- flat vectors ------------------------------------------------------------------------------------------------------
@both_dtypes
@all_sizes
@pytest.mark.parametrize("k", [1, 2, 5, 16, 17, 40])
def test_weighted_sums_are_the_same_bits(gpu: Kernels, dtype: Any, n: int, k: int) -> None:
    vectors, weights = [normal(n, dtype, seed) for seed in range(k)], [1 / (i + 3) for i in range(k)]
    expected = np.empty(n, dtype)
    NUMPY.weighted_sum(vectors, weights, expected)
    there, out = [gpu.xp.asarray(v) for v in vectors], gpu.xp.empty(n, dtype)
    gpu.weighted_sum(there, weights, out)
    assert out.get().tobytes() == expected.tobytes()
    gpu.weighted_sum(there, weights, there[0])  # it may replace the first one
    assert there[0].get().tobytes() == expected.tobytes()


@both_dtypes
@all_sizes
def test_vector_kernels_compute_numpys_bits(gpu: Kernels, dtype: Any, n: int) -> None:
    x, y = normal(n, dtype), normal(n, dtype, 2)
    y[::3] = 0
    agree(gpu, "axpy", x, y, -0.3)
    for l1, l2 in [(0.01, 0.2), (0.0, 0.2), (0.01, 0.0)]:
        agree(gpu, "add_regularization", x, y, l1, l2)


@both_dtypes
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_bad_number_anywhere_is_found(gpu: Kernels, dtype: Any, bad: float) -> None:
    x = np.full(40_000, np.finfo(dtype).max, dtype)
    assert gpu.all_finite(gpu.xp.asarray(x)) and gpu.all_finite(gpu.xp.asarray(x[:0]))
    for position in (0, 16_384, 39_999):
        x[position] = bad
        assert not gpu.all_finite(gpu.xp.asarray(x))
        x[position] = 1


# -- tiles -------------------------------------------------------------------------------------------------------------
@ANY
@given(rows=st.integers(1, 90), size=st.integers(1, 70), lanes=st.sampled_from([0, 1, 3, 16, 33]), char=char)
def test_rows_go_to_tiles_and_back(gpu: Kernels, rows: int, size: int, lanes: int, char: str) -> None:
    lanes, x = lanes or rows, normal((rows, size), char)
    tiles = np.full((-(-rows // lanes), 1, 1, size, lanes), 7, char)
    filled = agree(gpu, "tile", x, tiles)[1]
    agree(gpu, "untile", filled, np.full_like(x, 7))


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
    gpu: Kernels, planes: Any, size: Any, kernel: Any, stride: Any, pad: Any, kind: str, lanes: int, char: str
) -> None:
    assume(all(pad[i] < kernel[i] <= size[i] + 2 * pad[i] for i in (0, 1)))
    out = [(size[i] + 2 * pad[i] - kernel[i]) // stride[i] + 1 for i in (0, 1)]
    x, dy = normal((*planes, *size, lanes), char), normal((*planes, *out, lanes), char, 2)
    tolerance = {"rtol": 2e-5, "atol": 2e-6} if char == "f" else {"rtol": 1e-12, "atol": 1e-13}
    found = agree(gpu, "pool_forward", x, np.full_like(dy, 7), np.full(dy.shape, 7, np.int32),
                  kernel, stride, pad, kind, 3.0, **tolerance)  # fmt: skip
    agree(gpu, "pool_backward", dy, *found, np.full_like(x, 7), kernel, stride, pad, kind, 3.0, **tolerance)


@ANY
@given(
    shape=st.tuples(*[st.integers(1, 4)] * 2, *[st.sampled_from([1, 3, 20])] * 2, st.sampled_from([1, 5, 40])),
    activation=st.sampled_from(sorted(FUSED_ACTIVATIONS)),
    char=char,
)
def test_gradients_of_channels_are_numpys(gpu: Kernels, shape: Any, activation: str, char: str) -> None:
    dy, y = normal(shape, char), np.tanh(normal(shape, char, 2))
    tolerance = {"rtol": 2e-5, "atol": 1e-3} if char == "f" else {"rtol": 1e-12, "atol": 1e-11}
    agree(gpu, "channel_backward", dy, y, np.full(shape[1], 7, char), activation, **tolerance)


@pytest.mark.parametrize("shape", [(1, 1), (33, 50), (70, 3)])
def test_a_matrix_is_transposed(gpu: Kernels, shape: tuple[int, int]) -> None:
    agree(gpu, "transpose", normal(shape, "f"), np.full(shape[::-1], 7, "f"))


# -- sequences ---------------------------------------------------------------------------------------------------------
@ANY
@given(
    steps=st.integers(1, 6), rows=st.integers(1, 9), n=st.integers(1, 20), first=st.integers(0, 3),
    masked=st.booleans(), char=char, seed=st.integers(0, 9),
)  # fmt: skip
def test_an_lstm_over_time_is_numpys(
    gpu: Kernels, steps: int, rows: int, n: int, first: int, masked: bool, char: str, seed: int
) -> None:
    own = lstm_arrays(steps, rows, n, np.dtype(char).type, masked=masked, seed=seed)
    close_by = {"rtol": 2e-5, "atol": 1e-5} if char == "f" else {"rtol": 1e-11, "atol": 1e-12}
    found = agree(gpu, "lstm_forward", *(own[key] for key in FORWARD), **close_by)
    own |= dict(zip(FORWARD, found, strict=True))
    backward, gradients = (own[key] for key in BACKWARD), (own[key] for key in GRADIENTS)
    agree(gpu, "lstm_backward", *backward, min(first, steps - 1), *gradients, **close_by)
