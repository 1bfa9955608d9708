"""The matrix product: every element is the sum over the inner dimension in order, one fused multiply-add a step."""

from __future__ import annotations

import ctypes
import ctypes.util
import itertools
import mmap

import numpy as np
import pytest

from dl4jlegacy.errors import ShapeError
from dl4jlegacy.kernels.numba.product import COLUMNS, LEFT, matmul

LIBM = ctypes.CDLL(ctypes.util.find_library("m"))
FMA = {"float32": LIBM.fmaf, "float64": LIBM.fma}
for _kind, _function in (("float32", LIBM.fmaf), ("float64", LIBM.fma)):
    _c = {"float32": ctypes.c_float, "float64": ctypes.c_double}[_kind]
    _function.restype, _function.argtypes = _c, [_c] * 3

SIZES = (1, 2, 5, 12, 13, 20, 33, 130, 254)
LIES = tuple(itertools.product((False, True), repeat=3))


def numbers(rows: int, columns: int, dtype: str, *, turned: bool = False) -> np.ndarray:
    """Return a matrix of normals, C-contiguous or the transposed view of one that is."""
    shape = (columns, rows) if turned else (rows, columns)
    found = np.random.default_rng(rows * 1000 + columns).standard_normal(shape).astype(dtype)
    return found.T if turned else found


def in_order(a: np.ndarray, b: np.ndarray, start: np.ndarray | None = None) -> np.ndarray:
    """The oracle: the C library's fused multiply-add, step by step."""
    fma = FMA[a.dtype.name]
    out = np.zeros((len(a), b.shape[1]), a.dtype) if start is None else start.copy()
    for i, j in np.ndindex(out.shape):
        total = float(out[i, j])
        for k in range(a.shape[1]):
            total = fma(float(a[i, k]), float(b[k, j]), total)
        out[i, j] = total
    return out


@pytest.mark.parametrize("lanes", [COLUMNS, LEFT], ids=["columns", "rows"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("m", "k", "n"), [(1, 1, 1), (3, 5, 7), (13, 40, 35), (20, 19, 37), (26, 17, 66), (7, 1100, 3), (5, 9, 70)]
)
@pytest.mark.everyday(5)
def test_the_bits_are_those_of_the_steps_in_order(m: int, k: int, n: int, dtype: str, lanes: int) -> None:
    for a_turned, b_turned, out_turned in LIES:
        a, b = numbers(m, k, dtype, turned=a_turned), numbers(k, n, dtype, turned=b_turned)
        wanted, out = in_order(a, b), numbers(m, n, dtype, turned=out_turned)
        more = in_order(a, b, out)
        both = out.copy(order="K")
        matmul(a, b, out, False, lanes)
        matmul(a, b, both, True, lanes)
        np.testing.assert_array_equal(out, wanted)
        np.testing.assert_array_equal(both, more)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_size_and_both_kinds_of_lanes_agree(dtype: str) -> None:
    close = {"float32": 1e-4, "float64": 1e-12}[dtype]
    for m, n, k in itertools.product(SIZES, (1, 10, 16, 33, 129), (1, 17, 513, 1025)):
        a, b = numbers(m, k, dtype, turned=k % 2 == 1), numbers(k, n, dtype, turned=m % 2 == 1)
        found = []
        for lanes in (COLUMNS, LEFT):
            found.append(np.full((m, n), np.nan, dtype))
            matmul(a, b, found[-1], False, lanes)
        np.testing.assert_array_equal(found[0], found[1], err_msg=f"{m} x {k} x {n}")
        np.testing.assert_allclose(found[0], a.astype(float) @ b.astype(float), rtol=close, atol=close * k**0.5)


def test_a_row_has_the_bits_that_it_has_alone_and_in_any_company() -> None:
    weights = numbers(784, 250, "float32", turned=True)
    whole = numbers(300, 784, "float32")
    together = np.empty((300, 250), np.float32)
    matmul(whole, weights, together)
    for rows in (1, 2, 7, 16, 32, 128, 299):
        part = np.empty((rows, 250), np.float32)
        matmul(whole[:rows], weights, part)
        np.testing.assert_array_equal(part, together[:rows])


def test_what_lies_around_the_result_is_left_alone() -> None:
    for rows, columns in itertools.product((1, 11, 12, 14, 30), (1, 15, 32, 47)):
        around = np.full((rows + 2, columns + 20), 7, np.float32)
        for out in (around[1:-1, 10:-10], around.T[10:-10, 1:-1]):
            matmul(numbers(out.shape[0], 20, "float32"), numbers(20, out.shape[1], "float32"), out)
        around[1:-1, 10:-10] = 7
        assert (around == 7).all()


def test_matrices_in_no_order_are_copied_and_empty_ones_are_nothing() -> None:
    a, b, out = numbers(20, 30, "float32")[::2, ::3], numbers(20, 8, "float32")[::2, ::2], np.ones((10, 4), np.float32)
    matmul(a, b, out)
    np.testing.assert_array_equal(out, in_order(a, b))
    nothing = np.empty((0, 4), np.float32)
    matmul(np.empty((0, 3), np.float32), np.ones((3, 4), np.float32), nothing)
    matmul(np.empty((10, 0), np.float32), np.empty((0, 4), np.float32), out, True)
    np.testing.assert_array_equal(out, in_order(a, b))
    matmul(np.empty((10, 0), np.float32), np.empty((0, 4), np.float32), out)
    assert not out.any()


@pytest.mark.parametrize(
    ("a", "b", "out"),
    [((2, 3), (4, 5), (2, 5)), ((2, 3), (3, 5), (5, 2)), ((3,), (3, 5), (1, 5)), ((2, 3), (3, 5), (10,))],
)
def test_shapes_that_do_not_fit_are_named(a: tuple[int, ...], b: tuple[int, ...], out: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"product of \[.*\] and \[.*\] into \["):
        matmul(np.ones(a, np.float32), np.ones(b, np.float32), np.ones(out, np.float32))


def test_types_and_results_that_do_not_fit_are_named() -> None:
    a = np.ones((2, 2), np.float32)
    with pytest.raises(ShapeError, match="float32 and float64 into float32"):
        matmul(a, a.astype(np.float64), a.copy())
    with pytest.raises(ShapeError, match="neither rows nor columns are contiguous"):
        matmul(a, a, np.ones((4, 4), np.float32)[::2, ::2])


def test_a_nan_and_an_infinity_are_passed_on() -> None:
    a, b = numbers(13, 5, "float32"), numbers(5, 40, "float32")
    a[3, 2], a[4, 1] = np.nan, np.inf
    out = np.empty((13, 40), np.float32)
    matmul(a, b, out)
    assert np.isnan(out[3]).all() and np.isinf(out[4]).all() and np.isfinite(np.delete(out, [3, 4], axis=0)).all()


def at_the_end(shape: tuple[int, int], *, turned: bool) -> np.ndarray:
    """Return a matrix with protected memory right behind its last element: an access there kills the process."""
    nbytes, page = 4 * shape[0] * shape[1], mmap.PAGESIZE
    whole = -(-nbytes // page) * page
    held = np.frombuffer(mmap.mmap(-1, whole + page), np.uint8)
    beyond = ctypes.c_void_p(held.ctypes.data + whole)
    assert ctypes.CDLL(None).mprotect(beyond, ctypes.c_size_t(page), 0) == 0  # neither read nor write
    matrix = held[whole - nbytes : whole].view(np.float32).reshape(shape[::-1] if turned else shape)
    return matrix.T if turned else matrix


@pytest.mark.parametrize("lanes", [COLUMNS, LEFT], ids=["columns", "rows"])
@pytest.mark.parametrize(
    ("m", "k", "n"),
    [(32, 10, 250), (5, 3, 40), (40, 1, 33), (13, 15, 31), (12, 16, 20), (30, 70, 9), (26, 20, 66), (40, 30, 32)],
)
def test_nothing_is_read_or_written_beyond_a_matrix(m: int, k: int, n: int, lanes: int) -> None:
    for a_turned, b_turned, out_turned in LIES:
        a, b = at_the_end((m, k), turned=a_turned), at_the_end((k, n), turned=b_turned)
        out = at_the_end((m, n), turned=out_turned)
        a[...], b[...] = numbers(m, k, "float32"), numbers(k, n, "float32")
        matmul(a, b, out, False, lanes)
        np.testing.assert_allclose(out, numbers(m, k, "float32") @ numbers(k, n, "float32"), rtol=1e-4, atol=1e-4)
