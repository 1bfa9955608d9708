"""Our binding of cuBLAS, over a library that does with host memory what cuBLAS does with the device's."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dl4jlegacy.errors import ConfError, DeviceError, ShapeError
from dl4jlegacy.kernels.cuda import cublas as binding
from dl4jlegacy.kernels.cuda.cublas import Cublas
from tests.support.standin import installed
from tests.support.standin.cublas import FakeCublas


@pytest.fixture(scope="module")
def xp() -> Iterator[Any]:
    with installed() as module:
        yield module


def matrix(xp: Any, rows: int, columns: int, layout: str, dtype: type, seed: int) -> tuple[Any, np.ndarray]:
    """Return a device matrix in some layout, and the same on the host."""
    whole = np.random.default_rng(seed).standard_normal((rows + 2, columns + 3)).astype(dtype)
    if layout == "rows":
        host = np.ascontiguousarray(whole[:rows, :columns])
        return xp.asarray(host), host
    if layout == "transposed":
        host = np.ascontiguousarray(whole[:rows, :columns].T)
        return xp.asarray(host).T, host.T
    if layout == "range of columns":
        return xp.asarray(whole)[:rows, 1 : 1 + columns], whole[:rows, 1 : 1 + columns]
    return xp.asarray(np.ascontiguousarray(whole.T))[1 : 1 + columns, :rows].T, whole.T[1 : 1 + columns, :rows].T


REAL = binding.load_library
LAYOUTS = st.sampled_from(["rows", "transposed", "range of columns", "range of rows, transposed"])
SIZES = st.integers(0, 5)


@given(m=SIZES, n=SIZES, k=SIZES, a=LAYOUTS, b=LAYOUTS, c=LAYOUTS, accumulate=st.booleans(), single=st.booleans())
def test_products_of_any_size_and_layout_are_numpys(
    xp: Any, m: int, n: int, k: int, a: str, b: str, c: str, accumulate: bool, single: bool
) -> None:
    dtype = np.float32 if single else np.float64
    (left, left_host), (right, right_host) = matrix(xp, m, k, a, dtype, 1), matrix(xp, k, n, b, dtype, 2)
    out, before = matrix(xp, m, n, c, dtype, 3)
    Cublas(xp, library=FakeCublas()).matmul(left, right, out, accumulate)
    wanted = left_host @ right_host + (before if accumulate else 0)
    np.testing.assert_allclose(out.get(), wanted, rtol=1e-5 if single else 1e-12, atol=1e-5 if single else 1e-12)


@pytest.mark.parametrize(("precision", "compute"), [("float32", 68), ("tf32", 77), ("bf16", 75)])
def test_the_precision_decides_the_compute_type_of_float32_only(xp: Any, precision: str, compute: int) -> None:
    library = FakeCublas()
    cublas = Cublas(xp, precision, library)
    for dtype in (np.float32, np.float64):
        x = xp.zeros((2, 2), dtype)
        cublas.matmul(x, x, xp.empty((2, 2), dtype))
    assert library.compute_types == [compute, 70]


def test_a_new_stream_gets_the_workspace_again_and_an_old_one_costs_nothing(xp: Any) -> None:
    library = FakeCublas()
    cublas = Cublas(xp, library=library)
    x = xp.zeros((2, 2), np.float32)
    for _ in range(3):
        cublas.matmul(x, x, xp.empty_like(x))
    with xp.cuda.Stream(non_blocking=True):
        cublas.matmul(x, x, xp.empty_like(x))
    assert library.calls.count("cublasSetStream_v2") == library.calls.count("cublasSetWorkspace_v2") == 2


def test_the_handle_goes_with_its_owner(xp: Any) -> None:
    library = FakeCublas()
    cublas = Cublas(xp, library=library)
    assert library.open_handles
    del cublas
    gc.collect()
    assert not library.open_handles


def test_what_cannot_be_multiplied_is_told_with_its_shapes(xp: Any) -> None:
    cublas = Cublas(xp, library=FakeCublas())
    x, y = xp.zeros((2, 3), np.float32), xp.zeros((2, 3), np.float64)
    with pytest.raises(ShapeError, match=r"\[2, 3\] times \[2, 3\] does not go into \[2, 2\]"):
        cublas.matmul(x, x, xp.empty((2, 2), np.float32))
    with pytest.raises(ShapeError, match="float32, float64"):
        cublas.matmul(x, y.T, xp.empty((2, 2), np.float32))
    with pytest.raises(ShapeError, match="neither row by row nor column by column"):
        cublas.matmul(
            xp.zeros((4, 6), np.float32)[::2, ::2], xp.zeros((3, 2), np.float32), xp.empty((2, 2), np.float32)
        )
    with pytest.raises(ConfError, match="float16"):
        Cublas(xp, "float16", FakeCublas())


def test_a_failure_of_cublas_is_told_by_its_name(xp: Any) -> None:
    library = FakeCublas()
    cublas = Cublas(xp, library=library)
    library.fails_with["cublasGemmEx"] = 13
    x = xp.zeros((2, 2), np.float32)
    with pytest.raises(DeviceError, match="cublasGemmEx failed with CUBLAS_STATUS_EXECUTION_FAILED"):
        cublas.matmul(x, x, xp.empty_like(x))


def test_a_library_that_is_not_there_is_told_with_its_remedy(xp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xp.cuda.runtime, "runtimeGetVersion", lambda: 99000)
    with pytest.raises(DeviceError, match=r"cuBLAS for CUDA 99 cannot be loaded: .*pip install 'cupy-cuda99x\[ctk\]'"):
        REAL(xp)
