"""The stand-in for CuPy finds the faults that a GPU would not forgive, or would compute nonsense from."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.support import standin
from tests.support.standin import DeviceConf, counters, installed, raw_module
from tests.support.standin.compiler import compile_library
from tests.support.standin.raw_module import CudaError, RawModule

cp: Any = standin.cupy
HOST = np.arange(12, dtype=np.float32).reshape(3, 4) - 5


@pytest.fixture(autouse=True)
def _installed(device_arrays: ModuleType) -> None:
    """Every test here sees the stand-in as cupy."""


@pytest.fixture
def x() -> Any:
    return cp.asarray(HOST)


@pytest.fixture
def stream() -> Any:
    return cp.cuda.Stream(non_blocking=True)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda a: a + HOST,
        lambda a: HOST + a,
        lambda a: HOST.copy().__iadd__(a),
        lambda a: a == HOST,
        lambda a: cp.where(HOST > 0, a, 0),
        lambda a: cp.concatenate([a, HOST]),
        lambda a: cp.add(a, a, out=HOST.copy()),
        lambda a: a.__setitem__(0, HOST[0]),
        lambda a: a[[0, 1]],
        lambda a: np.exp(a),
        lambda a: np.concatenate([a, a]),
        lambda a: np.asarray(a),
        lambda a: HOST[a.astype(np.int64)],
        lambda a: a.max(initial=0),
        lambda a: cp.exp(a, where=a > 0),
        lambda a: a.set(HOST.astype(np.float64)),
        lambda a: (a > 0) * 0.5,
    ],
)
def test_what_cupy_does_not_take_is_refused(x: Any, wrong: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError):
        wrong(x)
    np.testing.assert_array_equal(x.get(), HOST)


def test_uploads_downloads_and_waits_are_counted_and_never_written_memory_is_no_number(x: Any, stream: Any) -> None:
    counters.reset()
    y = cp.asarray(HOST) * 2 + 1
    assert (counters.uploads, counters.launches, counters.synchronisations) == (1, 3, 0)
    assert bool((y > 0).any()) and int(y[0, 0]) == -9 and y[y > 0].shape == (7,)
    assert (counters.downloads, counters.synchronisations) == (2, 3)
    assert np.isnan(cp.empty(7).get()).all()


def captured(stream: Any, work: Callable[[], Any]) -> tuple[Any, Any]:
    with stream:
        stream.begin_capture()
        try:
            result = work()
        finally:
            graph = stream.end_capture()
        return graph, result


@pytest.mark.parametrize(
    "waits",
    [
        lambda a, s: a.get(),
        lambda a, s: float(a.max()),
        lambda a, s: bool(cp.isfinite(a).all()),
        lambda a, s: s.synchronize(),
        lambda a, s: s.record().synchronize(),
        lambda a, s: s.record().done,
        lambda a, s: cp.asarray(HOST),
        lambda a, s: a.set(HOST),
        lambda a, s: a[a > 0],
    ],
)
def test_a_wait_or_upload_spoils_the_capture(x: Any, stream: Any, waits: Callable[[Any, Any], Any]) -> None:
    error = cp.cuda.runtime.CUDARuntimeError
    with stream:
        stream.begin_capture()
        with pytest.raises(error, match="cudaErrorStreamCaptureUnsupported"):
            waits(x, stream)
        with pytest.raises(error, match="cudaErrorStreamCaptureInvalidated"):
            stream.end_capture()
    np.testing.assert_array_equal(x.get(), HOST)


def test_a_graph_does_its_work_when_it_is_launched(x: Any, stream: Any) -> None:
    graph, total = captured(stream, lambda: (x.__iadd__(1) * 2).sum())
    assert np.isnan(total.get()), "nothing was computed yet"
    np.testing.assert_array_equal(x.get(), HOST)
    for times in (1, 2):
        graph.launch(stream)
        np.testing.assert_array_equal(x.get(), HOST + times)
        assert float(total) == 2 * (HOST + times).sum()
    with pytest.raises(NotImplementedError, match="calling cuBLAS API during stream capture"):
        captured(stream, lambda: cp.matmul(x, x.T))
    with pytest.raises(cp.cuda.runtime.CUDARuntimeError, match="Invalidated"):  # by what it waits for
        other = cp.cuda.Stream(non_blocking=True).record()
        captured(stream, lambda: stream.wait_event(other))
    blocking = cp.cuda.Stream()
    blocking.begin_capture()
    with pytest.raises(cp.cuda.runtime.CUDARuntimeError, match="Implicit"):
        x += 1


def test_freed_memory_is_handed_out_again_to_a_graphs_harm(stream: Any) -> None:
    pool, x = cp.get_default_memory_pool(), cp.ones(128)
    graph, result = captured(stream, lambda: (x + 1) * 2)  # the sum's memory is free again afterwards
    with stream:
        bystander = cp.zeros(128)
    graph.launch(stream)
    assert (bystander.get() == 2).all() and (result.get() == 4).all()
    pool.set_limit(size=4096)
    with pytest.raises(cp.cuda.memory.OutOfMemoryError, match=r"allocating 4,096 bytes .* limit set to: 4,096 bytes"):
        cp.zeros(1024, np.float32)


def test_arrays_of_another_device_are_refused(x: Any) -> None:
    with installed(DeviceConf(), DeviceConf()):
        here = cp.zeros(3)
        with cp.cuda.Device(1), pytest.raises(ValueError, match="array device = 0 while current = 1"):
            here + cp.ones(3)


# -- kernels -----------------------------------------------------------------------------------------------------------
CODE = r"""
extern "C" __global__ void scaled(const float* __restrict__ x, float* y, long long n, double a) {
    if (threadIdx.x < n) y[threadIdx.x] = x[threadIdx.x] * (float)a;
}
extern "C" __global__ void backwards(float* x) {
    extern __shared__ float own[];
    own[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = own[blockDim.x - 1 - threadIdx.x];
}
extern "C" __global__ void racing(float* x) {
    __shared__ float own[64];
    __syncthreads();
    own[threadIdx.x] = x[threadIdx.x];
    x[threadIdx.x] = own[blockDim.x - 1 - threadIdx.x];
}
extern "C" __global__ void apart(float* x) { if (threadIdx.x < 3) __syncthreads(); x[threadIdx.x] = 1; }
extern "C" __global__ void elsewhere(float* x) { if (threadIdx.x < 3) __syncthreads(); else { __syncthreads(); } }
"""


def run(name: str, *args: Any, grid: tuple[int, ...] = (1,), block: tuple[int, ...] = (64,), shared: int = 0) -> None:
    RawModule(code=CODE, options=("--std=c++17",)).get_function(name)(grid, block, args, shared_mem=shared)


def floats(count: int, kind: str = "f") -> Any:
    return cp.asarray(np.arange(count, dtype=kind))


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        (lambda: run("scaled", 1), "takes 4 arguments"),
        (lambda: run("scaled", np.zeros(3, "f"), 0, 3, 1.0), "x: ndarray is no device array"),
        (lambda: run("scaled", floats(1, "d"), 0, 3, 1.0), r"x: float\* given an array of float64"),
        (lambda: run("scaled", 0, 0, np.int32(3), 1.0), "n: long long given int32; CuPy would pass other bits"),
        (lambda: run("scaled", 0, 0, 3.0, 1.0), "n: long long given float"),
        (lambda: run("scaled", 0, 0, True, 1.0), "n: long long given bool"),
        (lambda: run("scaled", 0, 0, 3, 1), "a: double given int"),
        (lambda: run("scaled", 0, 0, 3, np.float32(1)), "a: double given float32"),
        (lambda: run("scaled", floats(4), floats(3), 4, 1.0), "scaled wrote outside an array"),
        (lambda: run("backwards", floats(64), shared=16), "wrote past its 16 bytes of shared memory"),
        (lambda: run("apart", floats(64)), "only some threads of a block came to the same barrier"),
        (lambda: run("elsewhere", floats(64)), "only some threads"),
        (lambda: run("backwards", floats(64), grid=(0,)), "grid"),
        (lambda: run("backwards", floats(64), grid=(1, 65536)), "grid"),
        (lambda: run("backwards", floats(64), block=(32, 33)), "a block of"),
        (lambda: run("backwards", floats(64), shared=(48 << 10) + 1), "49153 bytes of shared memory"),
        (lambda: RawModule(code=CODE, options=("--use_fast_math",)).compile(), "not known here"),
        (lambda: RawModule(code="__global__ void k(float* x) { x[0] = 1; }").compile(), 'not extern "C"'),
        (
            lambda: RawModule(code='extern "C" __global__ void k(float* x) { atomicAdd(x, 1.0f); }').compile(),
            "atomicAdd",
        ),
    ],
)
def test_a_fault_of_a_kernel_or_its_launch_is_found(fault: Callable[[], None], complaint: str) -> None:
    with pytest.raises(CudaError, match=complaint):
        fault()
    x = floats(64)
    run("backwards", x, shared=256)
    assert x.get().tolist() == [*range(63, -1, -1)], "the next launch works"


def test_a_missing_barrier_gives_another_result_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for turn in (0, 1):
        monkeypatch.setattr(raw_module, "turn", turn)
        x = floats(64)
        run("racing", x)
        results.append(x.get().tolist())
    assert results[0] != results[1]


def test_products_and_sums_are_not_fused(tmp_path: Path) -> None:
    compile_library('extern "C" double f(double a, double b) { return a * a - b; }\n', tmp_path / "f.so")
    function = ctypes.CDLL(str(tmp_path / "f.so")).f
    function.restype, function.argtypes = ctypes.c_double, [ctypes.c_double, ctypes.c_double]
    assert function(1 + 2.0**-30, 1 + 2.0**-29) == 0.0  # 2**-60 if fused
