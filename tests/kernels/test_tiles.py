"""Kernels on tiles: the compiled ones against plain NumPy's on random shapes, and NumPy's against explicit sums."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dl4jlegacy.errors import ConfError, ShapeError
from dl4jlegacy.kernels import load
from dl4jlegacy.kernels.numba import tiles as compiled

ORACLE = load("numpy")
KERNELS: list[Any] = [load("numpy"), load("numba")]
SIZES = st.integers(1, 3)
PAIRS = st.tuples(SIZES, SIZES)


def random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def agree(a: np.ndarray, b: np.ndarray) -> None:
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * max(1.0, float(np.abs(b).max(initial=0))))


def explicit(x: np.ndarray, W: np.ndarray, b: np.ndarray, stride: Any, dilation: Any, shape: Any) -> np.ndarray:
    """The definition, in float64."""
    y = np.zeros(shape) + b[:, None, None, None]
    for i, j, u, v in itertools.product(*map(range, (*shape[2:4], *W.shape[2:]))):
        seen = x[:, :, i * stride[0] + u * dilation[0], j * stride[1] + v * dilation[1]].astype(float)
        y[:, :, i, j] += np.einsum("tcl,fc->tfl", seen, W[:, :, u, v].astype(float))
    return y


@pytest.mark.long
@settings(max_examples=20, deadline=None)
@given(
    tiles=st.integers(1, 6),
    channels=st.sampled_from([1, 3, 8]),
    filters=st.sampled_from([5, 11]),  # few values where every new one is another compilation
    kernel=st.tuples(st.integers(1, 5), st.sampled_from([1, 3])),
    out=st.tuples(st.integers(1, 7), st.sampled_from([1, 9])),
    stride=st.tuples(SIZES, st.integers(1, 2)),
    dilation=st.sampled_from([(1, 1), (1, 1), (2, 1), (1, 2), (2, 3)]),
    rest=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    relu=st.booleans(),
    seed=st.integers(0, 99),
)
def test_compiled_convolution_is_numpys(
    tiles: int, channels: int, filters: int, kernel: Any, out: Any, stride: Any, dilation: Any, rest: Any, relu: bool,
    seed: int,
) -> None:  # fmt: skip
    size = [(out[i] - 1) * stride[i] + (kernel[i] - 1) * dilation[i] + 1 + min(rest[i], stride[i] - 1) for i in (0, 1)]
    x, W, b = random(seed, tiles, channels, *size, 16), random(seed + 1, filters, channels, *kernel), random(2, filters)
    dz = random(seed + 3, tiles, filters, *out, 16)
    found = []
    for kernels in KERNELS:
        y, gW, dx = np.full_like(dz, 7), np.full_like(W, 7), np.full_like(x, 7)
        kernels.conv_forward(x, W, b, y, stride, dilation, relu)
        kernels.conv_backward_weights(x, dz, gW, stride, dilation)
        kernels.conv_backward_input(dz, W, dx, stride, dilation)
        found.append((y, gW, dx))
    for ours, theirs in zip(*reversed(found), strict=True):
        agree(ours, theirs)
    y = explicit(x, W, b, stride, dilation, dz.shape)
    agree(found[0][0], np.maximum(y, 0) if relu else y)


POOLINGS = st.sampled_from([((2, 2), (2, 2), (0, 0)), ((3, 3), (2, 2), (1, 0)), ((2, 1), (3, 2), (0, 0))])


@pytest.mark.long
@settings(max_examples=30, deadline=None)
@given(
    tiles=st.integers(1, 6),
    channels=st.sampled_from([1, 3]),
    out=st.tuples(st.integers(2, 7), st.sampled_from([4, 9])),
    stride=st.tuples(SIZES, st.integers(1, 2)),
    pooling=POOLINGS,
    relu=st.booleans(),
    needs_dx=st.booleans(),
    seed=st.integers(0, 99),
)
def test_pooling_while_convolving_gives_the_bits_of_one_after_the_other(
    tiles: int, channels: int, out: Any, stride: Any, pooling: Any, relu: bool, needs_dx: bool, seed: int
) -> None:
    window, step, pad = pooling
    assume(out[0] + 2 * pad[0] >= window[0])
    size, pooled = ([(out[i] - 1) * stride[i] + 3 for i in (0, 1)],
                    [(out[i] + 2 * pad[i] - window[i]) // step[i] + 1 for i in (0, 1)])  # fmt: skip
    x, W, b = random(seed, tiles, channels, *size, 16), random(seed + 1, 5, channels, 3, 3), random(2, 5)
    dy = random(seed + 3, tiles, 5, *pooled, 16)
    for kernels in KERNELS:
        results = []
        for at_once in (True, False):
            y, winners = np.full_like(dy, 7), np.full(dy.shape, 7, np.uint8 if at_once else np.int32)
            gW, gb, dx, z = np.full_like(W, 7), np.full_like(b, 7), np.full_like(x, 7), random(0, tiles, 5, *out, 16)
            if at_once:
                how: Any = (stride, (1, 1), (out, *pooling))
                kernels.conv_pool_forward(x, W, b, y, winners, *how[:2], relu, how[2])
                kernels.conv_pool_backward(x, W, dy.copy(), winners, gW, gb, dx if needs_dx else None, *how)
                np.testing.assert_array_equal(winners == 255, (y <= 0) if relu else np.zeros(y.shape, bool))
            else:
                dz = np.full_like(z, 7)
                kernels.conv_forward(x, W, b, z, stride, (1, 1), relu)
                kernels.pool_forward(z, y, winners, *pooling, "max")
                kernels.pool_backward(dy, z, y, winners, dz, *pooling, "max")
                kernels.channel_backward(dz, z, gb, "relu" if relu else "identity")
                kernels.conv_backward_weights(x, dz, gW, stride, (1, 1))
                if needs_dx:
                    kernels.conv_backward_input(dz, W, dx, stride, (1, 1))
            results.append((y, gW, gb, dx))
        for found, wanted in zip(*results, strict=True):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.long
@pytest.mark.parametrize("file", [(16, 32), (8, 16), (4, 32), (4, 16)], ids=str)
def test_no_width_and_number_of_registers_changes_a_bit(file: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    x, W, b = random(1, 5, 3, 11, 13, 16), random(2, 7, 3, 3, 5), random(3, 7)
    dz = random(4, 5, 7, 9, 5, 16)
    found = []
    for registers in (compiled.register_file(), file):
        monkeypatch.setattr(compiled, "register_file", lambda registers=registers: registers)
        y, gW, dx = np.empty_like(dz), np.empty_like(W), np.empty_like(x)
        compiled.conv_forward(x, W, b, y, (1, 2), (1, 1), True)
        compiled.conv_backward_weights(x, dz, gW, (1, 2), (1, 1))
        compiled.conv_backward_input(dz, W, dx, (1, 2), (1, 1))
        found.append((y, gW, dx))
    for here, there in zip(*found, strict=True):
        np.testing.assert_array_equal(here, there)


@settings(max_examples=40, deadline=None)
@given(
    planes=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=PAIRS,
    pad=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    kind=st.sampled_from(["max", "avg", "sum", "pnorm"]),
    seed=st.integers(0, 99),
)
def test_compiled_pooling_is_numpys_and_follows_its_definition(
    planes: Any, size: Any, kernel: Any, stride: Any, pad: Any, kind: str, seed: int
) -> None:
    assume(all(pad[i] < kernel[i] <= size[i] + 2 * pad[i] for i in (0, 1)))
    out = [(size[i] + 2 * pad[i] - kernel[i]) // stride[i] + 1 for i in (0, 1)]
    x, dy = random(seed, *planes, *size, 16), random(seed + 1, *planes, *out, 16)
    found = []
    for kernels in KERNELS:
        y, dx, winners = np.full_like(dy, 7), np.full_like(x, 7), np.full(dy.shape, 7, np.int32)
        kernels.pool_forward(x, y, winners, kernel, stride, pad, kind, 3.0)
        kernels.pool_backward(dy, x, y, winners, dx, kernel, stride, pad, kind, 3.0)
        found.append((y, dx))
    for ours, theirs in zip(*reversed(found), strict=True):
        agree(ours, theirs)
    reduce = {
        "max": np.max,
        "avg": np.mean,
        "sum": np.sum,
        "pnorm": lambda v, axis: (np.abs(v) ** 3).sum(axis=axis) ** (1 / 3),
    }[kind]
    for i, j in itertools.product(*map(range, out)):
        rows, columns = (
            slice(max(0, at * stride[k] - pad[k]), max(0, at * stride[k] - pad[k] + kernel[k]))
            for k, at in enumerate((i, j))
        )
        agree(found[0][0][:, :, i, j], reduce(x[:, :, rows, columns].astype(float), axis=(2, 3)))


@settings(max_examples=30, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 5), st.integers(1, 5), st.just(16)),
    activation=st.sampled_from(["identity", "leakyrelu", "relu", "sigmoid", "tanh"]),
)
def test_compiled_activation_gradients_are_numpys(shape: tuple[int, ...], activation: str) -> None:
    y = np.tanh(random(1, *shape))
    found = []
    for kernels in KERNELS:
        dy, gb = random(2, *shape), np.empty(shape[1], np.float32)
        kernels.channel_backward(dy, y, gb, activation)
        found.append((dy, gb))
    for ours, theirs in zip(*reversed(found), strict=True):
        agree(ours, theirs)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 7), st.integers(1, 9)),
    char=st.sampled_from("fd"),
    reach=st.integers(0, 5) | st.just(1 << 40),  # as many as a configuration likes
    beta=st.sampled_from([0.75, 0.6, 1.0, 0.5, 0.25, 2.0, -0.5, -0.75, -0.6]),
    k=st.sampled_from([2.0, 0.7]),
    seed=st.integers(0, 99),
)
def test_compiled_response_normalization_has_numpys_bits_and_follows_its_definition(
    shape: tuple[int, ...], char: str, reach: int, beta: float, k: float, seed: int
) -> None:
    x, dy = (random(seed + i, *shape, 16).astype(char) for i in (0, 1))
    alpha, found = 0.3, []
    for kernels in KERNELS:
        y, below, factor, dx = (np.full_like(x, 7) for _ in range(4))
        kernels.response_forward(x, y, below, factor, reach, k, alpha, beta)
        kernels.response_backward(dy, x, y, below, factor, dx, reach, alpha, beta)
        found.append((y, below, factor, dx))
    for ours, theirs in zip(*found, strict=True):
        assert ours.tobytes() == theirs.tobytes()
    wide, channels = x.astype(float), range(shape[1])
    near = np.array([[abs(i - j) <= reach for j in channels] for i in channels], float)
    under = k + alpha * np.einsum("ij,tjhwl->tihwl", near, wide**2)
    agree(found[1][0], wide * under**-beta)
    pulled = np.einsum("ij,tjhwl->tihwl", near, dy * wide * under ** (-beta - 1))
    agree(found[1][3], dy * under**-beta - 2 * alpha * beta * wide * pulled)


@settings(max_examples=60, deadline=None)
@given(kernels=st.sampled_from(KERNELS), char=st.sampled_from("fd"), rows=st.integers(1, 67), size=st.integers(1, 70))
def test_rows_come_back_from_tiles_and_unused_lanes_are_zero(kernels: Any, char: str, rows: int, size: int) -> None:
    x = random(1, rows, size).astype(char)
    width = kernels.lanes(char, rows)
    tiles = np.full((-(-rows // width), 1, 1, size, width), 7, char)
    kernels.tile(x, tiles)
    flat = tiles.transpose(0, 4, 1, 2, 3).reshape(-1, size)
    np.testing.assert_array_equal(flat[:rows], x)
    assert not flat[rows:].any()
    back = np.empty_like(x)
    kernels.untile(tiles, back)
    np.testing.assert_array_equal(back, x)


def test_shapes_that_do_not_fit_are_refused_before_any_memory_is_touched() -> None:
    x, W, y = random(1, 1, 2, 5, 5, 16), random(2, 3, 2, 3, 3), random(3, 1, 3, 3, 3, 16)
    numba = load("numba")
    with pytest.raises(ShapeError, match=r"gives \(1, 3, 2, 2, 16\)"):
        numba.conv_forward(x, W, W[:, 0, 0, 0].copy(), y, (2, 2), (1, 1), False)
    with pytest.raises(ShapeError, match="contiguous"):
        numba.conv_forward(x[:, :, ::-1], W, W[:, 0, 0, 0].copy(), y, (1, 1), (1, 1), False)
    with pytest.raises(ShapeError, match="float32 tiles with float64 weights"):
        numba.conv_forward(x, W.astype(np.float64), W[:, 0, 0, 0].copy(), y, (1, 1), (1, 1), False)
    with pytest.raises(ShapeError, match="cannot give"):
        numba.pool_forward(x, y, y.astype(np.int32), (2, 2), (2, 2), (0, 0), "max")
    with pytest.raises(ShapeError, match="do not fit tiles"):
        numba.tile(random(1, 17, 50), np.empty((1, 2, 5, 5, 16), np.float32))
    for kernels in KERNELS:
        with pytest.raises(ShapeError, match="do not fit values"):
            kernels.response_forward(x, x, x, y, 2, 2.0, 1e-4, 0.75)
    views = [x[:, :, ::-1]] * 4
    with pytest.raises(ShapeError, match="must be contiguous"):
        numba.response_forward(*views, 2, 2.0, 1e-4, 0.75)
    with pytest.raises(ConfError, match="did you mean 'max'"):
        ORACLE.pool_forward(x, x, x.astype(np.int32), (1, 1), (1, 1), (0, 0), "mux")
