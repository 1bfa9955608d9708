"""Calls of the CUDA kernels on the stand-in: order of threads, graphs, waits; what is refused, how they are chosen."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from dl4jlegacy.errors import ConfError, ShapeError, VersionError
from dl4jlegacy.kernels import load
from dl4jlegacy.kernels.cuda import launch, tiles
from dl4jlegacy.kernels.protocol import Kernels
from tests.kernels.cuda.test_kernels import agree, run
from tests.kernels.test_kernels import KEY, normal
from tests.kernels.test_recurrent import BACKWARD, FORWARD, GRADIENTS
from tests.kernels.test_recurrent import arrays as lstm_arrays
from tests.support.standin import counters, raw_module


@pytest.fixture
def cupy(device_arrays: Any) -> Any:
    """The stand-in for cupy."""
    return device_arrays


@pytest.fixture
def gpu(cupy: Any) -> Kernels:
    return load("cupy")


def test_no_result_depends_on_the_order_in_which_threads_run(gpu: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    x, p = normal((700, 37), np.float32), np.abs(normal((700, 37), np.float32, 2))
    image = normal((2, 3, 30, 40, 5), np.float32)
    calls: list[tuple[Any, ...]] = [
        ("activation_backward_bias", x, x + 1, np.zeros(37, np.float32), "tanh"),
        ("channel_backward", image, image + 1, np.zeros(3, np.float32), "relu"),
        ("softmax", x),
        ("softmax_cross_entropy", p, p + 1, x),
        ("softmax_loss", x, x[0].copy(), p, p + 1, np.zeros(37, np.float32), 0.1),
        ("difference_sums", x, p, p + 1, np.zeros(37, np.float32), 0.1),
        ("signed_sums", x, 300, np.zeros(37, np.float32), 0.1),
        ("threshold_encode", x.reshape(-1), 1.5, np.zeros(4000, np.int32)),
        ("tile", x, np.zeros((22, 1, 1, 37, 33), np.float32)),
        ("untile", normal((22, 1, 1, 37, 33), np.float32), x),
    ]
    for name, *args in calls:
        results = []
        for turn in (0, 1):
            monkeypatch.setattr(raw_module, "turn", turn)
            results.append(run(gpu, name, *args))
        for a, b in zip(*results, strict=True):
            assert a.tobytes() == b.tobytes(), name


def test_a_grid_smaller_than_the_work_does_all_of_it(gpu: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_MOST_BLOCKS", 2)
    monkeypatch.setattr(tiles, "_MOST_SQUARES", 2)
    x, y = normal((90, 211), np.float32), normal((90, 211), np.float32, 2)
    for turn in (0, 1):
        monkeypatch.setattr(raw_module, "turn", turn)
        agree(gpu, "bias_activation", x, x[0].copy(), "relu")
        agree(gpu, "axpy", x, y, 0.3)
        there: Any = [gpu.xp.asarray(a) for a in (x, y)]
        gpu.weighted_sum(there, [0.5, 0.25], there[0])
        assert np.array_equal(there[0].get(), x * np.float32(0.5) + y * np.float32(0.25))
        agree(gpu, "uniform", x, KEY)
        agree(gpu, "tile", x, np.full((3, 1, 1, 211, 40), 7, np.float32))
        agree(gpu, "untile", normal((3, 1, 1, 211, 40), np.float32), y)
        agree(gpu, "pool_forward", x.reshape(1, 1, 90, 211, 1), np.zeros((1, 1, 45, 105, 1), np.float32),
              np.zeros((1, 1, 45, 105, 1), np.int32), (2, 2), (2, 2), (0, 0), "max")  # fmt: skip


@pytest.mark.parametrize("turn", [0, 1])
def test_the_offsets_of_many_blocks_are_the_sums_of_what_is_before(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, turn: int
) -> None:
    monkeypatch.setattr(raw_module, "turn", turn)
    counts = np.random.default_rng(1).integers(0, 4097, 10_001).astype(np.int32)
    there = gpu.xp.asarray(counts)
    gpu.launch_blocks("threshold", "threshold_offsets", "f", (1,), (256,), there, 10_000)
    assert np.array_equal(there.get()[1:], np.cumsum(counts[:-1])) and there.get()[0] == 0


def work(gpu: Any, x: Any, y: Any, b: Any, slots: Any, winners: Any) -> Any:
    """Most kernels one after the other; return the loss."""
    gpu.bias_activation(x, b, "tanh")
    gpu.dropout(x, y, 0.9, KEY)
    gpu.sigmoid_sample(y, b, y, x, KEY)
    gpu.softmax(y)
    loss = gpu.softmax_cross_entropy(y, x, y)
    gpu.activation_backward_bias(y, x, b, "sigmoid")
    gpu.column_sums(x, slots[:37])
    gpu.tile(x, y.reshape(1, 1, 1, 37, 300))
    gpu.untile(y.reshape(1, 1, 1, 37, 300), x)
    gpu.pool_forward(x.reshape(1, 3, 100, 37, 1), y.reshape(1, 3, 100, 37, 1), winners, (1, 1), (1, 1), (0, 0), "max")
    gpu.nesterovs(x.reshape(-1)[:50], y.reshape(-1)[:50], slots, 0.1, 0.9)
    gpu.weighted_sum([slots, x.reshape(-1)[50:100]], [0.5, 0.25], slots)
    return loss


def through_time(gpu: Any, x: dict[str, Any]) -> None:
    """An LSTM there and back."""
    gpu.lstm_forward(*(x[key] for key in FORWARD))
    gpu.lstm_backward(*(x[key] for key in BACKWARD), 1, *(x[key] for key in GRADIENTS))


def given_to(cupy: Any) -> list[Any]:
    arrays = [normal((300, 37), np.float32), normal((300, 37), np.float32, 2), normal(37, np.float32), normal(50, "f")]
    return [cupy.asarray(a) for a in (*arrays, np.zeros((1, 3, 100, 37, 1), np.int32))]


def test_nothing_waits_for_the_device_or_copies_to_it(gpu: Any, cupy: Any) -> None:
    given_arrays = given_to(cupy)
    counters.reset()
    work(gpu, *given_arrays)
    assert counters.launches > 12
    assert (counters.synchronisations, counters.downloads, counters.uploads) == (0, 0, 0)


def test_kernels_are_recorded_in_a_graph_and_do_the_same_when_it_is_launched(gpu: Any, cupy: Any) -> None:
    expected = given_to(cupy)
    losses = [float(work(gpu, *expected)) for _ in range(3)]
    arrays, stream = given_to(cupy), cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        loss = work(gpu, *arrays)
        graph = stream.end_capture()
    for a, b in zip(arrays, given_to(cupy), strict=True):
        assert np.array_equal(a.get(), b.get())  # recorded, not done
    for earlier in losses:
        graph.launch(stream)
        stream.synchronize()
        assert float(loss) == earlier
    for a, b in zip(arrays, expected, strict=True):
        assert a.get().tobytes() == b.get().tobytes()


def test_an_lstm_is_recorded_in_a_graph_and_waits_for_nothing(gpu: Any, cupy: Any) -> None:
    def moved() -> dict[str, Any]:
        return {key: cupy.asarray(a) for key, a in lstm_arrays(4, 3, 5, np.float32, masked=True).items()}

    expected, own, stream = moved(), moved(), cupy.cuda.Stream(non_blocking=True)
    counters.reset()
    for _ in range(2):
        through_time(gpu, expected)
    assert (counters.synchronisations, counters.downloads, counters.uploads) == (0, 0, 0)
    with stream:
        stream.begin_capture()
        through_time(gpu, own)
        graph = stream.end_capture()
    graph.launch(stream)
    graph.launch(stream)
    stream.synchronize()
    for key, array in expected.items():
        assert own[key].get().tobytes() == array.get().tobytes(), key


def test_arrays_of_two_places_are_refused(gpu: Kernels) -> None:
    here = np.zeros((3, 4), np.float32)
    there: Any = gpu.xp.asarray(here)
    for name, args in {
        "bias_activation": (there, here[0], "relu"),
        "activation_backward_bias": (there, here, there[0], "relu"),
        "softmax": (here,),
        "sgd": (there, here, 0.1),
        "uniform": (here, 1),
        "dropout": (there, here, 0.5, 1),
        "weighted_sum": ([there, here], [1.0, 1.0], there),
        "all_finite": (here,),
        "tile": (here, there.reshape(1, 1, 1, 4, 3)),
        "threshold_encode": (there[0], 0.5, np.zeros(3, np.int32)),
    }.items():
        with pytest.raises(ConfError, match=r"NumPy and CuPy arrays met in one operation; move the data with backend"):
            getattr(gpu, name)(*args)


def test_what_a_kernel_could_not_take_is_refused_by_name(gpu: Kernels) -> None:
    z: Any = gpu.xp.zeros((4, 4), "f")
    wide: Any = gpu.xp.zeros((4, 4), "d")
    with pytest.raises(ShapeError, match=r"\[4, 4\] activations need a bias of \[4\], got \[3\]"):
        gpu.bias_activation(z, z[0, :3], "relu")
    with pytest.raises(ShapeError, match="C-contiguous"):
        gpu.bias_activation(z[:, ::2], z[0, :2], "relu")
    with pytest.raises(ConfError, match="float32 and float64"):
        gpu.sgd(z, wide, 0.1)
    with pytest.raises(ConfError, match="float32 and float64"):
        gpu.softmax(gpu.xp.zeros((2, 2), "i"))
    with pytest.raises(ShapeError, match="adam"):
        gpu.adam(z[0], z[0], z[0, :2], z[0], 0.1, 0.9, 0.9, 1e-8, 0)
    with pytest.raises(ShapeError, match="2 vectors and 1 weights"):
        gpu.weighted_sum([z, z], [1.0], z)
    with pytest.raises(ConfError, match="did you mean 'sigmoid'"):
        gpu.bias_activation(z, z[0], "sigmiod")
    with pytest.raises(ConfError, match="did you mean 'max'"):
        gpu.pool_forward(z, z, z, (1, 1), (1, 1), (0, 0), "mux")
    with pytest.raises(ShapeError, match="do not fit tiles"):
        gpu.tile(z, gpu.xp.zeros((1, 1, 1, 4, 3), "f"))
    images: Any = gpu.xp.zeros((1, 1, 4, 4, 2), "f")
    with pytest.raises(ShapeError, match="cannot give"):
        gpu.pool_forward(images, images, gpu.xp.zeros((1, 1, 4, 4, 2), "i"), (2, 2), (2, 2), (0, 0), "max")


@pytest.mark.parametrize(("precision", "compute"), [("float32", 68), ("tf32", 77), ("bf16", 75)])
def test_the_precision_of_kernels_is_that_of_their_products(cupy: Any, precision: str, compute: int) -> None:
    kernels: Any = load("cupy", precision=precision)
    x = cupy.ones((2, 2), np.float32)
    kernels.matmul(x, x, cupy.empty_like(x))
    assert kernels._cublas._library.compute_types == [compute]


def test_cupy_is_chosen_by_name_alone(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = load("cupy"), load("cupy", device=0, precision="tf32")
    assert first.name == "cupy" and first.xp is cupy and first is not second
    assert load().name != "cupy"
    with pytest.raises(ConfError, match="did you mean 'bf16'"):
        load("cupy", precision="bf17")
    monkeypatch.setenv("DL4J_KERNELS", "cupy")
    with pytest.raises(ConfError, match="ask for a GPU with --device"):
        load()


def test_without_cupy_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(VersionError, match=r"'\./install gpu'"):
        load("cupy")
