"""The stand-in for CuPy: what it computes, what it refuses, how it captures and replays, how memory runs out."""

from __future__ import annotations

import gc
import importlib
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from dl4jlegacy.arrays.backend import asarray, get_array_module, to_host
from dl4jlegacy.errors import ConfError
from dl4jlegacy.nn.optimization.functions import ACTIVATIONS
from dl4jlegacy.nn.optimization.losses import LOSSES
from tests.support import standin
from tests.support.standin import DeviceConf, counters, installed, launch, machine
from tests.support.standin.raw_module import CudaError

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


# -- installing --------------------------------------------------------------------------------------------------------
def test_what_was_imported_before_is_back_afterwards() -> None:
    real = ModuleType("cupy")
    ours = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in ("cupy", "cupyx")}
    sys.modules["cupy"] = real
    try:
        with installed() as module:
            assert importlib.import_module("cupy") is module is standin.cupy
            assert importlib.import_module("cupy.cuda.runtime") is module.cuda.runtime
            assert importlib.import_module("cupyx").empty_pinned(2).shape == (2,)
        assert sys.modules["cupy"] is real
    finally:
        sys.modules.update(ours)


def test_the_seam_sees_device_arrays(x: Any) -> None:
    assert get_array_module(x, x + 1) is cp and get_array_module(HOST) is np
    with pytest.raises(ConfError, match=r"(?i)numpy and cupy arrays met"):
        get_array_module(x, HOST)
    assert isinstance(asarray(HOST, x, "f8"), cp.ndarray) and isinstance(to_host(x), np.ndarray)


# -- values ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "formula",
    [
        lambda xp, a: a[1:, ::-1] * 2 - a[:2] / 3,
        lambda xp, a: xp.where(a > 0, a, 0.1 * a),
        lambda xp, a: a.max(axis=1, keepdims=True),
        lambda xp, a: xp.add.reduce(a, axis=0),
        lambda xp, a: np.float32(2) * a + np.float64(1),
        lambda xp, a: a.T @ a,
        lambda xp, a: xp.moveaxis(a.reshape(3, 2, 2), -1, 0),
        lambda xp, a: xp.concatenate([a, xp.ones_like(a)], axis=1).sum(),
        lambda xp, a: xp.take_along_axis(a, xp.argsort(-a, axis=1), axis=1),
        lambda xp, a: a[xp.arange(3), a.argmax(axis=1)],
        lambda xp, a: a[a > 0],
        lambda xp, a: a.astype(xp.int64) // 2 % 3,
        lambda xp, a: a.clip(-1, None) ** 2,
        lambda xp, a: xp.pad(a, ((1, 0), (0, 2))),
        lambda xp, a: xp.add.reduceat(a, xp.asarray([0, 2]), axis=0),
        lambda xp, a: xp.stack(xp.split(a, 2, axis=1)).std(axis=0, ddof=1),
        lambda xp, a: xp.broadcast_to(a[0], (2, 4)).cumsum(),
        lambda xp, a: xp.eye(4, dtype=a.dtype)[xp.asarray([3, 0])],
    ],
)
def test_formulas_give_what_numpy_gives(x: Any, formula: Callable[[Any, Any], Any]) -> None:
    ours, numpys = formula(cp, x), np.asarray(formula(np, HOST.copy()))
    assert isinstance(ours, cp.ndarray) and ours.dtype == numpys.dtype and ours.shape == numpys.shape
    np.testing.assert_array_equal(ours.get(), numpys)


def close(ours: np.ndarray, hosts: np.ndarray) -> None:
    """Elementary functions are the device's own there, and those of ``kernels.elementary`` on the host."""
    np.testing.assert_allclose(ours, hosts, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_activations_run_on_the_device(x: Any, name: str) -> None:
    activation, dy = ACTIVATIONS[name], np.ones_like(HOST)
    y = activation.forward(x)
    close(y.get(), activation.forward(HOST))
    back = activation.backward(cp.asarray(dy), x, y)
    close(back.get(), activation.backward(dy, HOST, activation.forward(HOST)))


@pytest.mark.parametrize("name", sorted(n for n, loss in LOSSES.items() if not loss.indices))
def test_losses_run_on_the_device(name: str) -> None:
    y = np.abs(HOST) / 12 + np.float32(0.05)
    labels = np.eye(4, dtype=np.float32)[[1, 0, 3]]
    there = cp.asarray(labels), cp.asarray(y)
    close(LOSSES[name].score(*there).get(), LOSSES[name].score(labels, y))
    close(LOSSES[name].gradient(*there).get(), LOSSES[name].gradient(labels, y))


def test_views_share_memory_and_results_are_in_c_order(x: Any) -> None:
    row = x[1]
    row += 100
    x.T[0, 0] = 7
    assert x.get()[1, 0] == HOST[1, 0] + 100 and x.get()[0, 0] == 7
    assert row.base is x and row.data.ptr == x.data.ptr + x.strides[0] and not row.flags.owndata
    assert x.T.flags.f_contiguous and (x.T + 1).flags.c_contiguous  # NumPy's would be in Fortran's order
    assert cp.empty_like(x.T).strides == x.T.strides and x.T.copy().flags.c_contiguous


def test_reductions_and_single_elements_stay_on_the_device(x: Any) -> None:
    for scalar in (x.sum(), x[0, 0], x.mean(), x.max(), x.argmax(), x.any()):
        assert isinstance(scalar, cp.ndarray) and scalar.shape == ()
    assert counters.synchronisations == 0
    assert float(x.max()) == 6 and counters.synchronisations == 1 == counters.downloads


def test_a_device_does_not_warn(x: Any) -> None:
    assert np.isinf(cp.log(x * 0).get()).all() and not np.isfinite((1 / (x - x)).get()).any()


def test_what_was_never_written_is_no_number() -> None:
    assert np.isnan(cp.empty(7).get()).all() and (cp.empty(7, np.int32).get() == -1).all()


# -- refusals ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "wrong",
    [
        lambda a: a + HOST,
        lambda a: HOST + a,
        lambda a: HOST.copy().__iadd__(a),
        lambda a: a.__iadd__(HOST),
        lambda a: a == HOST,
        lambda a: cp.maximum(a, HOST),
        lambda a: cp.where(HOST > 0, a, 0),
        lambda a: cp.concatenate([a, HOST]),
        lambda a: cp.matmul(a, HOST.T),
        lambda a: a @ HOST.T,
        lambda a: cp.add(a, a, out=HOST.copy()),
        lambda a: a.sum(axis=0, out=np.zeros(4, np.float32)),
        lambda a: a.__setitem__(slice(None), HOST),
        lambda a: a.__setitem__(0, HOST[0]),
        lambda a: a[np.array([0, 1])],
        lambda a: a[[0, 1]],
        lambda a: np.exp(a),
        lambda a: np.sum(a),
        lambda a: np.maximum(np.float32(0), a),
        lambda a: np.add.reduce(a),
        lambda a: np.concatenate([a, a]),
        lambda a: np.asarray(a),
        lambda a: np.zeros_like(a),
        lambda a: np.dot(HOST, a.T),
        lambda a: HOST[a.astype(np.int64)],
        lambda a: HOST.copy().__setitem__(slice(None), a),
        lambda a: a.max(initial=0),
        lambda a: a.sum(where=a > 0),
        lambda a: cp.exp(a, where=a > 0),
        lambda a: range(a.argmax()),
        lambda a: a.set([[1.0]]),
        lambda a: a.set(HOST.astype(np.float64)),
    ],
)
def test_what_cupy_or_we_do_not_take_is_a_type_error(x: Any, wrong: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError):
        wrong(x)
    np.testing.assert_array_equal(x.get(), HOST)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda a: a.argsort(kind="quicksort"),
        lambda a: cp.add(a, a, out=a[0]),
        lambda a: cp.asarray([object()]),
        lambda a: a.set(HOST[0]),
        lambda a: cp.zeros(3, "U4"),
    ],
)
def test_wrong_values_are_value_errors(x: Any, wrong: Callable[[Any], Any]) -> None:
    with pytest.raises(ValueError):
        wrong(x)


def test_maximum_does_not_reduce(x: Any) -> None:
    with pytest.raises(NotImplementedError, match=r"`cupy_maximum.reduce` is not supported"):
        cp.maximum.reduce(x)


# -- counting ----------------------------------------------------------------------------------------------------------
def test_uploads_downloads_and_waits_are_counted(x: Any) -> None:
    counters.reset()
    y = cp.asarray(HOST) * 2 + 1
    y[0] = 3
    assert (counters.uploads, counters.launches, counters.synchronisations) == (1, 4, 0)
    assert y.get().shape == (3, 4) and bool((y > 0).any()) and int(y[0, 0]) == 3 and y.tolist() and y[0, 0].item() == 3
    assert counters.downloads == counters.synchronisations == 5
    for waits in (lambda: y[y > 0], lambda: cp.unique(y), lambda: cp.flatnonzero(y), lambda: cp.bincount(y[0] > 0)):
        before = counters.synchronisations
        waits()
        assert counters.synchronisations > before


def test_pinned_memory_is_copied_without_waiting(x: Any, stream: Any) -> None:
    import cupyx

    pinned, back = cupyx.empty_pinned((3, 4), np.float32), cupyx.empty_pinned((3, 4), np.float32)
    pinned[...] = 2 * HOST
    counters.reset()
    with stream:
        x.set(pinned, stream=stream)
        x.get(stream=stream, out=back, blocking=False)
        done = stream.record()
    assert counters.staged == 2 and counters.uploads == counters.downloads == counters.synchronisations == 0
    assert np.isnan(back).all(), "the copy is not there before somebody has waited"
    cp.cuda.get_current_stream().wait_event(done)
    done.synchronize()
    np.testing.assert_array_equal(back, 2 * HOST)


# -- capturing ---------------------------------------------------------------------------------------------------------
def capture(stream: Any, work: Callable[[], Any]) -> tuple[Any, Any]:
    with stream:
        stream.begin_capture()
        result = work()
        return stream.end_capture(), result


def test_a_graph_does_its_work_when_it_is_launched(x: Any, stream: Any) -> None:
    def step() -> Any:
        x.__iadd__(1)
        doubled = x * 2
        assert stream.is_capturing() and doubled.shape == (3, 4) and doubled.dtype == np.float32
        picked = doubled[cp.arange(3), doubled.argmax(axis=1)]
        return cp.where(picked > 0, picked, 0).sum()

    counters.reset()
    graph, total = capture(stream, step)
    assert counters.launches == 0 and not stream.is_capturing()
    assert np.isnan(total.get()), "nothing was computed yet"
    np.testing.assert_array_equal(x.get(), HOST)
    for times in (1, 2, 3):
        graph.launch(stream)
        now = HOST + times
        np.testing.assert_array_equal(x.get(), now)
        assert float(total) == np.maximum(2 * now.max(axis=1), 0).sum()
    x.set(np.zeros_like(HOST))
    graph.launch()
    assert float(total) == 6, "it reads what is in its arrays now"
    assert counters.launches == 5


def test_garbage_is_no_index_while_capturing(x: Any, stream: Any) -> None:
    graph, picked = capture(stream, lambda: x[cp.arange(1, dtype=np.uint8)])  # 255 until it is computed
    graph.launch()
    np.testing.assert_array_equal(picked.get(), HOST[:1])


@pytest.mark.parametrize(
    "waits",
    [
        lambda a, s: a.get(),
        lambda a, s: a.sum().item(),
        lambda a, s: float(a.max()),
        lambda a, s: bool(cp.isfinite(a).all()),
        lambda a, s: int(a.argmax()),
        lambda a, s: repr(a),
        lambda a, s: s.synchronize(),
        lambda a, s: s.done,
        lambda a, s: s.record().synchronize(),
        lambda a, s: cp.cuda.Device().synchronize(),
        lambda a, s: cp.cuda.runtime.deviceSynchronize(),
        lambda a, s: cp.asarray(HOST),
        lambda a, s: cp.array(3.0),
        lambda a, s: a.set(HOST),
        lambda a, s: a.get(out=np.empty_like(HOST), blocking=False),
        lambda a, s: a[a > 0],
        lambda a, s: cp.nonzero(a),
        lambda a, s: cp.unique(a),
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


@pytest.mark.parametrize(
    "product",
    [lambda a: a @ a.T, lambda a: cp.matmul(a, a.T), lambda a: a.dot(a.T), lambda a: cp.einsum("ij,kj", a, a),
     lambda a: cp.tensordot(a, a), lambda a: cp.dot(a, a.T)],
)  # fmt: skip
def test_products_of_cupy_are_not_captured(x: Any, stream: Any, product: Callable[[Any], Any]) -> None:
    assert product(x).size
    with pytest.raises(NotImplementedError, match="calling cuBLAS API during stream capture"):
        capture(stream, lambda: product(x))
    stream.end_capture()


def test_mistakes_are_found_while_capturing(x: Any, stream: Any) -> None:
    with pytest.raises(ValueError, match="broadcast"):
        capture(stream, lambda: x.__iadd__(cp.zeros((5, 4), np.float32)))
    stream.end_capture()
    with pytest.raises(TypeError, match="same_kind"):
        capture(stream, lambda: x.view(np.int32).__iadd__(0.5))
    stream.end_capture()


def test_copies_from_pinned_memory_are_captured(x: Any, stream: Any) -> None:
    import cupyx

    pinned, back = cupyx.zeros_pinned((3, 4), np.float32), cupyx.zeros_pinned((3, 4), np.float32)

    def step() -> None:
        x.set(pinned)
        x.__imul__(3)
        x.get(out=back, blocking=False)

    graph, _ = capture(stream, step)
    for value in (1, 5):
        pinned[...] = value
        graph.launch(stream)
        stream.synchronize()
        assert (back == 3 * value).all()


def test_events_take_another_stream_into_the_capture(x: Any, stream: Any) -> None:
    other, y = cp.cuda.Stream(non_blocking=True), cp.zeros(3)
    with stream:
        stream.begin_capture()
        other.wait_event(stream.record())
        with other:
            y += 1
            assert other.is_capturing()
        stream.wait_event(other.record())
        graph = stream.end_capture()
    assert not other.is_capturing() and not y.get().any()
    graph.launch(stream)
    assert (y.get() == 1).all()
    with stream:
        stream.begin_capture()
        other.wait_event(stream.record())
        with pytest.raises(cp.cuda.runtime.CUDARuntimeError, match="Unjoined"):
            stream.end_capture()
        before = other.record()
        stream.begin_capture()
        with pytest.raises(cp.cuda.runtime.CUDARuntimeError, match="Isolation"):
            stream.wait_event(before)
        with pytest.raises(cp.cuda.runtime.CUDARuntimeError, match="Invalidated"):
            stream.end_capture()


def test_work_on_other_streams_goes_on_beside_a_capture(x: Any, stream: Any) -> None:
    stream.begin_capture()
    x += 1  # on the default stream, which a non-blocking one does not wait for
    graph = stream.end_capture()
    np.testing.assert_array_equal(x.get(), HOST + 1)
    graph.launch()
    np.testing.assert_array_equal(x.get(), HOST + 1)
    blocking = cp.cuda.Stream()
    blocking.begin_capture()
    with pytest.raises(cp.cuda.runtime.CUDARuntimeError, match="Implicit"):
        x += 1
    with pytest.raises(cp.cuda.runtime.CUDARuntimeError, match="Invalidated"):
        blocking.end_capture()
    with pytest.raises(RuntimeError, match="default"):
        cp.cuda.Stream.null.begin_capture()


def test_streams_are_current_for_one_thread_only(stream: Any) -> None:
    seen = []
    with stream:
        thread = threading.Thread(target=lambda: seen.append(cp.cuda.get_current_stream()))
        thread.start()
        thread.join(timeout=60)
        assert cp.cuda.get_current_stream() is stream
    assert seen == [cp.cuda.Stream.null] == [cp.cuda.get_current_stream()]


def test_others_plug_in_by_launch(x: Any, stream: Any) -> None:
    done: list[int] = []
    launch(lambda: done.append(1))
    graph, _ = capture(stream, lambda: launch(lambda: done.append(2)))
    assert done == [1]
    graph.launch()
    graph.launch()
    assert done == [1, 2, 2]


def test_kernels_in_cuda_c_are_captured(x: Any, stream: Any) -> None:
    code = 'extern "C" __global__ void more(float* x, long long n) { if (threadIdx.x < n) x[threadIdx.x] += 1; }'
    kernel = cp.RawModule(code=code, options=("--std=c++17",)).get_function("more")
    graph, _ = capture(stream, lambda: kernel((1,), (32,), (x, 12)))
    np.testing.assert_array_equal(x.get(), HOST)
    graph.launch()
    kernel((1,), (32,), (x, 12))
    np.testing.assert_array_equal(x.get(), HOST + 2)
    with pytest.raises(CudaError, match="wrote outside"):
        kernel((1,), (32,), (x, 13))


# -- memory ------------------------------------------------------------------------------------------------------------
def test_a_pool_has_a_limit_and_keeps_what_was_freed() -> None:
    pool = cp.get_default_memory_pool()
    pool.set_limit(size=4096)
    first = cp.zeros(512, np.float32)
    assert pool.used_bytes() == 2048 == pool.total_bytes() and pool.get_limit() == 4096
    with pytest.raises(cp.cuda.memory.OutOfMemoryError, match=r"allocating 4,096 bytes .* limit set to: 4,096 bytes"):
        cp.zeros(1024, np.float32)
    address = first.data.ptr
    view = first[3:]
    del first
    assert pool.used_bytes() == 2048, "a view keeps the memory"
    del view
    assert (pool.used_bytes(), pool.free_bytes(), pool.n_free_blocks()) == (0, 2048, 1)
    assert cp.zeros(512, np.float32).data.ptr == address and address % 512 == 0
    cp.zeros(1024, np.float32)  # what is free goes back to the device first
    pool.free_all_blocks()
    assert pool.total_bytes() == 0
    with pytest.raises(ValueError, match="out of range"):
        pool.set_limit(fraction=2)


def test_a_pool_of_its_own_keeps_a_graphs_memory_apart(stream: Any) -> None:
    pool = cp.cuda.MemoryPool()
    x = cp.ones(128)

    def step() -> Any:
        return (x + 1) * 2  # the sum's memory is free again afterwards

    with cp.cuda.using_allocator(pool.malloc):
        graph, apart = capture(stream, step)
    assert pool.total_bytes() == 2048
    graph_too, mixed = capture(stream, step)
    with stream:
        bystander = cp.zeros(128)
    graph.launch(stream)
    assert not bystander.get().any() and (apart.get() == 4).all()
    graph_too.launch(stream)
    assert (bystander.get() == 2).all() and (mixed.get() == 4).all(), "as on a device: it got memory of the graph"


def test_memory_of_the_device_runs_out() -> None:
    gc.collect()  # arrays of earlier tests that only cycles keep are on the device too
    with installed(DeviceConf(memory=1 << 20)):
        free, total = cp.cuda.Device().mem_info
        assert total == 1 << 20 >= free
        kept = cp.zeros(free // 2, np.uint8)
        with pytest.raises(MemoryError):
            cp.zeros(free // 2 + 512, np.uint8)
        del kept


def test_addresses_are_real(x: Any) -> None:
    copy = cp.empty_like(x)
    copy.data.copy_from_device_async(x.data, x.nbytes)
    np.testing.assert_array_equal(copy.get(), HOST)
    copy.data.memset_async(0, 16)
    assert not copy.get()[0].any() and copy.get()[1].any()
    part = cp.ndarray((4,), np.float32, x.data + 16)
    np.testing.assert_array_equal(part.get(), HOST[1])


# -- devices -----------------------------------------------------------------------------------------------------------
def test_several_devices_with_names() -> None:
    two = DeviceConf(name="Big"), DeviceConf(name="Small", uuid=bytes(16), memory=1 << 20, capability=(9, 0))
    runtime = cp.cuda.runtime
    with installed(*two):
        assert runtime.getDeviceCount() == 2 and runtime.getDeviceProperties(1)["name"] == b"Small"
        here = cp.zeros(3)
        with cp.cuda.Device(1) as device:
            there = cp.ones(3)
            assert (device.id, device.compute_capability, runtime.getDevice()) == (1, "90", 1)
            assert there.device == device != here.device and cp.get_default_memory_pool().used_bytes() == 512
            with pytest.raises(ValueError, match="array device = 0 while current = 1"):
                there + here
            stream = cp.cuda.Stream()
        with pytest.raises(RuntimeError, match="does not match with the current device"):
            stream.use()
        with pytest.raises(runtime.CUDARuntimeError, match="cudaErrorInvalidDevice"), cp.cuda.Device(7):
            pass
        del here, there


def test_a_machine_without_a_driver() -> None:
    machine.failure, machine.driver_version = 35, 0
    assert not cp.is_available() and cp.cuda.runtime.driverGetVersion() == 0
    for fails in (cp.cuda.runtime.getDeviceCount, lambda: cp.zeros(3), lambda: cp.cuda.Stream()):
        with pytest.raises(cp.cuda.runtime.CUDARuntimeError, match="cudaErrorInsufficientDriver") as caught:
            fails()
        assert caught.value.status == 35


def test_events_measure() -> None:
    first, last = cp.cuda.Event(), cp.cuda.Event()
    first.record()
    last.record()
    last.synchronize()
    assert last.done and cp.cuda.get_elapsed_time(first, last) >= 0
    with pytest.raises(cp.cuda.runtime.CUDARuntimeError):
        cp.cuda.get_elapsed_time(first, cp.cuda.Event())
