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
from tests.kernels.test_against_numpy import agree, run
from tests.kernels.test_kernels import KEY, normal
from tests.support.standin import raw_module


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
