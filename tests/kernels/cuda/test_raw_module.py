"""The stand-in that runs CUDA C on the CPU refuses what a GPU would silently compute nonsense from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support.standin import cupy, raw_module
from tests.support.standin.raw_module import CudaError, RawModule

CODE = r"""
#define WIDTH 64
template <class T> __device__ T twice(T x) { return x + x; }
__device__ void tree(REAL* part) {
    for (int half = WIDTH / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    }
    __syncthreads();
}
extern "C" __global__ void __launch_bounds__(WIDTH) sums(const REAL* __restrict__ x, REAL* y, long long n, double a) {
    __shared__ REAL part[WIDTH];
    REAL total = 0;
    for (long long i = blockIdx.x * (long long)WIDTH + threadIdx.x; i < n; i += WIDTH * gridDim.x) total += twice(x[i]);
    part[threadIdx.x] = total;
    tree(part);
    if (threadIdx.x == 0) y[blockIdx.x] = part[0] * (REAL)a;
}
extern "C" __global__ void backwards(REAL* x) {
    extern __shared__ REAL own[];
    own[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = own[blockDim.x - 1 - threadIdx.x];
}
extern "C" __global__ void racing(REAL* x) {
    __shared__ REAL own[WIDTH];
    __syncthreads();
    own[threadIdx.x] = x[threadIdx.x];
    x[threadIdx.x] = own[blockDim.x - 1 - threadIdx.x];
}
extern "C" __global__ void apart(REAL* x) { if (threadIdx.x < 3) __syncthreads(); x[threadIdx.x] = 1; }
extern "C" __global__ void elsewhere(REAL* x) { if (threadIdx.x < 3) __syncthreads(); else { __syncthreads(); } }
extern "C" __global__ void places(int* x) {
    x[(blockIdx.y * gridDim.x + blockIdx.x) * 6 + threadIdx.y * blockDim.x + threadIdx.x] =
        threadIdx.x + 10 * blockIdx.x;
}
extern "C" __global__ void outside(REAL* x, unsigned long long at) { x[at] = 1; }
"""


pytestmark = pytest.mark.usefixtures("device_arrays")


def kernel(name: str, real: str = "float") -> Any:
    return RawModule(code=CODE, options=("--std=c++17", f"-DREAL={real}")).get_function(name)


def array(*values: float, dtype: str = "f") -> Any:
    return cupy.asarray(np.array(values, dtype))


@pytest.mark.parametrize("real", ["float", "double"])
def test_blocks_threads_barriers_and_shared_memory(real: str) -> None:
    x, y = array(*range(1000), dtype=real[0]), array(*[0] * 7, dtype=real[0])
    kernel("sums", real)((7,), (64,), (x, y, 1000, 0.5))
    assert y.get().sum() == 499_500
    z = array(1, 2, 3, dtype=real[0])
    kernel("backwards", real)((1,), (3,), (z,), shared_mem=3 * z.dtype.itemsize)
    assert z.get().tolist() == [3, 2, 1]
    grid = array(*[0] * 24, dtype="i")
    kernel("places")((2, 2), (3, 2), (grid,))
    assert grid.get().tolist() == [0, 1, 2, 0, 1, 2, 10, 11, 12, 10, 11, 12] * 2


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (lambda: (1,), "takes 4 arguments"),
        (lambda: (np.zeros(3, "f"), 0, 3, 1.0), "x: ndarray is no device array"),
        (lambda: (array(1, dtype="d"), 0, 3, 1.0), r"x: float\* given an array of float64"),
        (lambda: (array(1, dtype="i"), 0, 3, 1.0), r"x: float\* given an array of int32"),
        (lambda: (1.0, 0, 3, 1.0), "x: float is no device array"),
        (lambda: (0, 0, np.int32(3), 1.0), "n: long long given int32; CuPy would pass other bits"),
        (lambda: (0, 0, np.uint64(3), 1.0), "n: long long given uint64"),
        (lambda: (0, 0, 3.0, 1.0), "n: long long given float"),
        (lambda: (0, 0, True, 1.0), "n: long long given bool"),
        (lambda: (0, 0, 2**63, 1.0), "does not fit 64 bits"),
        (lambda: (0, 0, 3, 1), "a: double given int"),
        (lambda: (0, 0, 3, np.float32(1)), "a: double given float32"),
        (lambda: (0, 0, array(1), 1.0), "n: long long given a ndarray"),
    ],
)
def test_arguments_of_other_types_are_refused(args: Callable[[], tuple[Any, ...]], complaint: str) -> None:
    with pytest.raises(CudaError, match=complaint):
        kernel("sums")((1,), (64,), args())


def test_a_barrier_that_some_threads_miss_is_found_and_the_next_launch_works() -> None:
    x = array(*[0] * 64)
    for name in ("apart", "elsewhere"):
        with pytest.raises(CudaError, match="only some threads"):
            kernel(name)((1,), (64,), (x,))
    kernel("backwards")((1,), (64,), (x,), shared_mem=256)


def test_a_missing_barrier_gives_another_result_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for turn in (0, 1):
        monkeypatch.setattr(raw_module, "turn", turn)
        x = array(*range(64))
        kernel("racing")((1,), (64,), (x,))
        results.append(x.get().tolist())
    assert results[0] != results[1]


def test_writing_outside_is_found() -> None:
    x = array(1, 2, 3)
    kernel("outside")((1,), (1,), (x, np.uint64(2)))
    with pytest.raises(CudaError, match="outside wrote outside an array"):
        kernel("outside")((1,), (1,), (x, np.uint64(3)))
    with pytest.raises(CudaError, match="wrote past its 16 bytes of shared memory"):
        kernel("backwards")((1,), (8,), (array(*range(8)),), shared_mem=16)


@pytest.mark.parametrize("grid", [(0,), (1, 65536), (2**31,), [1], (1.0,), ()], ids=str)
def test_grids_that_no_device_runs_are_refused(grid: Any) -> None:
    with pytest.raises(CudaError, match="grid"):
        kernel("backwards")(grid, (1,), (array(1),), shared_mem=4)
    with pytest.raises(CudaError, match="more than 1024 threads"):
        kernel("backwards")((1,), (32, 33), (array(1),))
    with pytest.raises(CudaError, match="bytes of shared memory"):
        kernel("backwards")((1,), (1,), (array(1),), shared_mem=(48 << 10) + 1)


def test_sources_that_are_no_kernels_are_refused() -> None:
    with pytest.raises(CudaError, match="no kernel 'sum'"):
        kernel("sum")
    for code, complaint in {
        "__global__ void k(float* x) { x[0] = 1; }": 'not extern "C"',
        'extern "C" __global__ void k(float* x) { atomicAdd(x, 1.0f); }': "atomicAdd",
        'extern "C" __global__ void k(size_t n) { }': "does not know",
    }.items():
        with pytest.raises(CudaError, match=complaint):
            RawModule(code=code).get_function("k")
    with pytest.raises(CudaError, match="is not known"):
        RawModule(code=CODE, options=("--use_fast_math",)).compile()
