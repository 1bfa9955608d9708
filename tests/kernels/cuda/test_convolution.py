"""Convolution on CuPy arrays, computed on the CPU: the own way against NumPy's, cuDNN's against both.

The own way runs its CUDA C on the CPU. The way through cuDNN is run twice: with a front end that computes in NumPy,
and, in a process of its own, with the real front end on a library that has no device behind it, which shows that our
graphs are accepted and which plan is taken. No convolution of cuDNN itself is executed here: that takes a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from dl4jlegacy.errors import ConfError, ShapeError
from dl4jlegacy.kernels import load
from dl4jlegacy.kernels.cuda.convolution import Convolutions
from dl4jlegacy.kernels.cuda.cublas import Cublas
from dl4jlegacy.kernels.cuda.scratch import Scratch
from tests.support.standin import raw_module
from tests.support.standin.cublas import FakeCublas

ORACLE = load("numpy")
TOLERANCE = {"f": 1e-5, "d": 1e-12}
SHAPES = [  # tiles, channels, filters, kernel, out, stride, dilation, rest of the input, lanes
    (1, 1, 4, (5, 5), (6, 6), (1, 1), (1, 1), (0, 0), 8),
    (1, 3, 5, (3, 2), (4, 7), (1, 1), (1, 1), (0, 0), 16),
    (1, 2, 3, (3, 3), (5, 4), (2, 3), (1, 1), (1, 2), 6),
    (1, 2, 3, (2, 3), (4, 3), (1, 2), (3, 2), (0, 1), 5),
    (1, 3, 2, (2, 2), (3, 3), (3, 2), (2, 3), (2, 1), 1),
    (1, 4, 6, (1, 1), (3, 5), (1, 1), (1, 1), (0, 0), 12),
    (1, 4, 6, (1, 1), (3, 5), (2, 2), (1, 1), (1, 1), 12),
    (1, 4, 6, (1, 3), (5, 1), (1, 1), (2, 2), (0, 0), 4),
    (1, 2, 1, (4, 4), (1, 1), (1, 1), (1, 1), (0, 0), 7),
    (3, 2, 3, (3, 3), (4, 4), (1, 1), (1, 1), (0, 0), 4),
    (4, 2, 3, (3, 3), (3, 2), (2, 2), (1, 1), (1, 0), 1),
    (1, 3, 4, (5, 5), (6, 6), (1, 1), (1, 1), (0, 0), 8),  # from here on more places than conv_direct takes
    (1, 11, 9, (2, 3), (4, 3), (2, 1), (1, 2), (1, 0), 5),
    (2, 9, 17, (3, 3), (3, 4), (1, 2), (2, 1), (0, 1), 4),
    (3, 70, 5, (1, 1), (2, 3), (2, 1), (1, 1), (1, 0), 1),
    (1, 4, 20, (4, 4), (3, 3), (1, 1), (1, 1), (0, 0), 4),  # and one that it just takes
]


class Arrays:
    """What a convolution of one of ``SHAPES`` is given, and what it must give, in NumPy."""

    def __init__(self, index: int, char: str, relu: bool = True) -> None:
        tiles, channels, filters, kernel, out, self.stride, self.dilation, rest, lanes = SHAPES[index]
        size = [
            (out[i] - 1) * self.stride[i] + (kernel[i] - 1) * self.dilation[i] + 1 + min(rest[i], self.stride[i] - 1)
            for i in (0, 1)
        ]
        random = np.random.default_rng(index)

        def normal(*shape: int) -> np.ndarray:
            return random.standard_normal(shape).astype(char)

        self.relu, self.char = relu, char
        self.x, self.W, self.b = (
            normal(tiles, channels, *size, lanes),
            normal(filters, channels, *kernel),
            normal(filters),
        )
        self.dz = normal(tiles, filters, *out, lanes)
        self.wanted = self.run(ORACLE, lambda array: array.copy(), lambda array: array)

    def run(self, kernels: Any, put: Callable[[np.ndarray], Any], get: Callable[[Any], np.ndarray]) -> list[np.ndarray]:
        """Return ``y``, ``gW`` and ``dx`` by ``kernels``; what was in them before must not matter."""
        x, W, b, dz = map(put, (self.x, self.W, self.b, self.dz))
        y, gW, dx = (put(np.full_like(like, np.nan)) for like in (self.dz, self.W, self.x))
        kernels.conv_forward(x, W, b, y, self.stride, self.dilation, self.relu)
        kernels.conv_backward_weights(x, dz, gW, self.stride, self.dilation)
        kernels.conv_backward_input(dz, W, dx, self.stride, self.dilation)
        for given, kept in zip((x, W, b, dz), (self.x, self.W, self.b, self.dz), strict=True):
            np.testing.assert_array_equal(get(given), kept)
        return [get(array) for array in (y, gW, dx)]

    def agree(self, found: list[np.ndarray]) -> None:
        for ours, theirs in zip(found, self.wanted, strict=True):
            scale = max(1.0, float(np.abs(theirs).max()))
            np.testing.assert_allclose(ours, theirs, rtol=TOLERANCE[self.char], atol=TOLERANCE[self.char] * scale)


@pytest.fixture
def own(device_arrays: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Kernels that go the own way."""
    monkeypatch.setenv("DL4J_CUDNN", "0")
    return kernels_of(device_arrays)


def kernels_of(cupy: ModuleType, precision: str = "float32", device: int = 0) -> Any:
    """Return the convolutions with products through our cuBLAS, which are noted in ``products``."""
    cublas = Cublas(cupy, precision, FakeCublas())

    class Kernels(Convolutions):
        products: list[tuple[int, int, int]]

        def matmul(self, a: Any, b: Any, out: Any, accumulate: bool = False) -> None:
            self.products.append((*a.shape, b.shape[1]))
            cublas.matmul(a, b, out, accumulate)

    kernels = Kernels(device, precision)
    kernels.products = []
    return kernels


@pytest.mark.parametrize("chunk", [1 << 28, 3000, 1], ids=["whole", "rows", "pixels"])
@pytest.mark.parametrize("char", "fd")
@pytest.mark.parametrize("index", range(len(SHAPES)))
def test_the_own_way_is_numpys(own: Any, device_arrays: ModuleType, index: int, char: str, chunk: int) -> None:
    own.chunk_bytes = chunk
    arrays = Arrays(index, char, relu=bool(index % 2))
    arrays.agree(arrays.run(own, device_arrays.asarray, lambda array: array.get()))


@pytest.mark.parametrize("chunk", [1 << 28, 3000])
def test_two_calls_give_the_same_bits_in_whatever_order_threads_run(
    own: Any, device_arrays: ModuleType, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size of the chunks is a part of the result, so it is the same in both."""
    own.chunk_bytes = chunk
    for index in range(len(SHAPES)):
        arrays = Arrays(index, "f")
        monkeypatch.setattr(raw_module, "turn", 0)
        first = arrays.run(own, device_arrays.asarray, lambda array: array.get())
        monkeypatch.setattr(raw_module, "turn", 1)
        for a, b in zip(first, arrays.run(own, device_arrays.asarray, lambda array: array.get()), strict=True):
            np.testing.assert_array_equal(a, b)


def test_addresses_that_do_not_allow_sixteen_bytes_at_a_time_give_the_same_bits(
    own: Any, device_arrays: ModuleType
) -> None:
    def shifted(array: np.ndarray) -> Any:
        flat = device_arrays.asarray(np.concatenate((np.zeros(1, array.dtype), array.ravel())))
        return flat[1:].reshape(array.shape)

    arrays = Arrays(1, "f")
    assert shifted(arrays.x).data.ptr % 16, "this test wants what it is named after"
    straight = arrays.run(own, device_arrays.asarray, lambda array: array.get())
    for a, b in zip(straight, arrays.run(own, shifted, lambda array: array.get()), strict=True):
        np.testing.assert_array_equal(a, b)


def test_images_are_unrolled_into_memory_that_is_bounded_and_kept(own: Any, device_arrays: ModuleType) -> None:
    arrays = Arrays(11, "f")  # 75 rows, 36 pixels of 8 lanes
    arrays.run(own, device_arrays.asarray, lambda array: array.get())
    whole = own._scratch.size
    assert whole == 75 * 36 * 8 * 4
    assert own.products == [(4, 75, 288), (4, 288, 75), (75, 4, 288)]
    own.products.clear()
    arrays.run(own, device_arrays.asarray, lambda array: array.get())
    assert own._scratch.size == whole, "the second time nothing is allocated"
    own.chunk_bytes = 75 * 13 * 8 * 4  # two rows of six pixels, and one that does not help
    own.products.clear()
    arrays.run(own, device_arrays.asarray, lambda array: array.get())
    assert own.products == [(4, 75, 96)] * 3 + [(4, 96, 75)] * 3 + [(75, 4, 96)] * 3


def test_a_small_kernel_is_applied_without_unrolling(own: Any, device_arrays: ModuleType) -> None:
    for index in (0, 15):
        arrays = Arrays(index, "f")
        y = device_arrays.asarray(arrays.dz)
        x, W, b = map(device_arrays.asarray, (arrays.x, arrays.W, arrays.b))
        own.conv_forward(x, W, b, y, arrays.stride, arrays.dilation, True)
    assert own.products == [] and own._scratch.size == 0


def test_a_kernel_of_one_pixel_needs_no_unrolling(own: Any, device_arrays: ModuleType) -> None:
    arrays = Arrays(5, "f")
    arrays.run(own, device_arrays.asarray, lambda array: array.get())
    assert own._scratch.size == 0
    assert own.products == [(6, 4, 180), (6, 180, 4), (4, 6, 180)]


def test_all_rows_lie_side_by_side(own: Any) -> None:
    assert (own.convolution_path, own.convolution_reason) == ("own", "DL4J_CUDNN=0")
    assert [own.lanes(char, rows) for char in "fd" for rows in (0, 1, 512)] == [1, 1, 512] * 2


def test_a_rectifier_does_not_hide_what_is_not_a_number(own: Any, device_arrays: ModuleType) -> None:
    x, W, b = (np.ones(shape, np.float32) for shape in ((1, 1, 1, 1, 4), (1, 1, 1, 1), (1,)))
    x[..., 1], x[..., 2] = np.nan, -5
    y = device_arrays.asarray(np.zeros_like(x))
    own.conv_forward(
        device_arrays.asarray(x), device_arrays.asarray(W), device_arrays.asarray(b), y, (1, 1), (1, 1), True
    )
    np.testing.assert_array_equal(y.get().ravel(), [2, np.nan, 0, 2])


def test_no_rows_are_no_work(own: Any, device_arrays: ModuleType) -> None:
    x, W, b, y = (
        device_arrays.asarray(np.ones(s, np.float32)) for s in ((0, 2, 3, 3, 1), (4, 2, 2, 2), (4,), (0, 4, 2, 2, 1))
    )
    own.conv_forward(x, W, b, y, (1, 1), (1, 1), True)
    own.conv_backward_weights(x, y, W, (1, 1), (1, 1))
    own.conv_backward_input(y, W, x, (1, 1), (1, 1))
    assert not W.get().any()


def test_what_does_not_fit_is_refused_before_any_kernel_runs(own: Any, device_arrays: ModuleType) -> None:
    arrays = Arrays(1, "f")
    x, W, b, y = map(device_arrays.asarray, (arrays.x, arrays.W, arrays.b, arrays.dz))
    steps = (arrays.stride, arrays.dilation)
    with pytest.raises(ShapeError, match=r"gives \(1, 5, 2, 7, 16\), not \(1, 5, 4, 7, 16\)"):
        own.conv_forward(x, W, b, y, (2, 1), (1, 1), False)
    with pytest.raises(ShapeError, match="needs 5 biases"):
        own.conv_forward(x, W, b[:4], y, *steps, False)
    with pytest.raises(ShapeError, match="contiguous"):
        own.conv_forward(x[..., ::-1], W, b, y, *steps, False)
    with pytest.raises(ConfError, match="float32 and float64"):
        own.conv_backward_weights(x, device_arrays.asarray(arrays.dz.astype("d")), W, *steps)
    with pytest.raises(ConfError, match=r"(?i)numpy and cupy"):
        own.conv_backward_input(y, arrays.W, x, *steps)
    assert own.products == []


def test_scratch_at_least_doubles_and_keeps_what_graphs_may_point_to(device_arrays: ModuleType) -> None:
    scratch = Scratch(device_arrays)
    first = scratch.buffer("a", (10,), "f")
    assert scratch.buffer("a", (2, 3), "d").data.ptr != first.data.ptr, "48 bytes are more than 40"
    assert scratch.size == 40 + 80
    assert scratch.buffer("a", (10, 2), "f").shape == (10, 2)
    assert scratch.buffer("b", (1,), "f").dtype == np.float32
    assert scratch.size == 40 + 80 + 4
