"""Convolution through cuDNN, without a GPU: what is asked of it, when it is used, and why it is not.

A front end that computes in NumPy shows the results and the choice of a plan. The real front end, in a process of its
own, builds the same graphs on a library without a device behind it: it accepts them, obeys what we deselect, and hands
over our addresses. What is not run here is cuDNN itself; that takes a GPU.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from dl4jlegacy.arrays.backend import to_host
from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.kernels import load
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration, NeuralNetConfiguration
from dl4jlegacy.nn.input_type import InputTypeConvolutional
from dl4jlegacy.nn.layers.convolution import ConvolutionLayer
from dl4jlegacy.nn.layers.output import OutputLayer
from dl4jlegacy.nn.layers.subsampling import SubsamplingLayer
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.optimization.updaters import Sgd
from tests.kernels.cuda.test_convolution import SHAPES, Arrays, kernels_of
from tests.support.standin import DeviceConf, cudnn, installed
from tests.support.standin.compiler import compile_library

SINGLE = [index for index, shape in enumerate(SHAPES) if shape[-1] == 1]


@pytest.fixture
def front(monkeypatch: pytest.MonkeyPatch) -> cudnn.Front:
    front = cudnn.Front()
    monkeypatch.setitem(sys.modules, "cudnn", front)
    monkeypatch.delenv("DL4J_CUDNN", raising=False)
    return front


def images(index: int) -> Arrays:
    """One of ``SHAPES``, the examples one after the other."""
    arrays = Arrays(index, "f")
    for name in ("x", "dz"):
        tiles = getattr(arrays, name)
        setattr(arrays, name, np.ascontiguousarray(np.moveaxis(tiles, 4, 1)).reshape(-1, *tiles.shape[1:4], 1))
    oracle = Arrays.run
    arrays.wanted = oracle(arrays, load("numpy"), lambda array: array.copy(), lambda array: array)
    return arrays


@pytest.mark.parametrize("index", range(len(SHAPES)))
def test_through_cudnn_it_is_numpys(front: cudnn.Front, device_arrays: ModuleType, index: int) -> None:
    kernels = kernels_of(device_arrays)
    assert (kernels.convolution_path, kernels.convolution_reason) == ("cudnn 9.10.2", "")
    arrays = images(index)
    arrays.agree(arrays.run(kernels, device_arrays.asarray, lambda array: array.get()))
    assert kernels.products == []
    assert [graph.kind for graph in front.graphs[1:]] == ["conv_fprop", "conv_wgrad", "conv_dgrad"]
    arrays.run(kernels, device_arrays.asarray, lambda array: array.get())
    assert [graph.runs for graph in front.graphs] == [1, 2, 2, 2], "graphs are built once"
    assert set(front.streams) == {device_arrays.cuda.get_current_stream().ptr}


@pytest.mark.parametrize("offset", [1, 3])
def test_arrays_may_begin_anywhere(front: cudnn.Front, device_arrays: ModuleType, offset: int) -> None:
    """As a layer's parameters do, which lie behind those of other layers; cuDNN takes multiples of 16 bytes."""

    def elsewhere(array: np.ndarray) -> np.ndarray:
        held = device_arrays.asarray(np.concatenate([np.zeros(offset, np.float32), array.reshape(-1)]))
        view: np.ndarray = held[offset:].reshape(array.shape)
        return view

    arrays = images(0)
    arrays.agree(arrays.run(kernels_of(device_arrays), elsewhere, lambda array: array.get()))
    assert [graph.kind for graph in front.graphs[1:]] == ["conv_fprop", "conv_wgrad", "conv_dgrad"]


def test_float32_images_lie_one_after_the_other_and_float64_goes_the_own_way(
    front: cudnn.Front, device_arrays: ModuleType
) -> None:
    kernels = kernels_of(device_arrays)
    assert [kernels.lanes(char, 512) for char in "fd"] == [1, 512]
    for arrays in (Arrays(0, "d"), Arrays(0, "f"), Arrays(SINGLE[0], "d")):
        arrays.agree(arrays.run(kernels, device_arrays.asarray, lambda array: array.get()))
    assert len(front.graphs) == 1, "only the first try"


@pytest.mark.parametrize(("precision", "notes"), [
    ("float32", ()), ("tf32", (cudnn.numerical_note.TENSOR_CORE,)), ("bf16", (cudnn.numerical_note.TENSOR_CORE,)),
])  # fmt: skip
def test_tensor_cores_are_used_when_asked_for_and_nothing_that_rounds_anew_ever(
    front: cudnn.Front, device_arrays: ModuleType, precision: str, notes: tuple[object, ...]
) -> None:
    kernels = kernels_of(device_arrays, precision)
    assert kernels.convolution_path == "cudnn 9.10.2"
    assert cudnn.PLANS[front.graphs[0].built] == notes


def test_what_cudnn_has_no_plan_for_goes_the_own_way(front: cudnn.Front, device_arrays: ModuleType) -> None:
    front.refuses = {"conv_wgrad"}
    kernels = kernels_of(device_arrays)
    arrays = images(2)
    arrays.agree(arrays.run(kernels, device_arrays.asarray, lambda array: array.get()))
    arrays.run(kernels, device_arrays.asarray, lambda array: array.get())
    assert [graph.kind for graph in front.graphs[1:]] == ["conv_fprop", "conv_wgrad", "conv_dgrad"], "asked once"
    [(key, said)] = kernels._cudnn.refused.items()
    assert key[0] == "conv_wgrad" and said == "No valid engine configs for conv_wgrad"
    assert {(rows, columns) for rows, _, columns in kernels.products} == {(3, 18)}


def test_a_plan_that_wants_gigabytes_is_left_out(front: cudnn.Front, device_arrays: ModuleType) -> None:
    front.workspaces = [1000, (1 << 30) + 1, 1000, 1000]
    kernels_of(device_arrays, "tf32")
    assert front.graphs[0].built == 3


def test_the_handle_belongs_to_the_device_of_the_kernels(front: cudnn.Front) -> None:
    with installed(DeviceConf(), DeviceConf()) as cupy:
        kernels_of(cupy, device=1)
        assert front.devices == [1] and cupy.cuda.Device().id == 0


@pytest.mark.parametrize("way", ["cudnn 9.10.2", "own"])
def test_a_network_learns_the_same_either_way(
    front: cudnn.Front, device_arrays: ModuleType, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps are captured from the second on, and replayed; the last batch is a smaller one."""
    if way == "own":
        monkeypatch.setenv("DL4J_CUDNN", "0")
    layers = (
        ConvolutionLayer(n_out=3, kernel_size=(3, 3), padding=(1, 1), activation="relu"),
        SubsamplingLayer(kernel_size=(2, 2)),
        ConvolutionLayer(n_out=4, kernel_size=(2, 3), stride=(2, 1), activation="tanh"),
        OutputLayer(n_out=3, activation="softmax", loss="negativeloglikelihood"),
    )
    conf = MultiLayerConfiguration(
        conf=NeuralNetConfiguration(seed=3, updater=Sgd(learning_rate=0.1)),
        layers=layers,
        input_type=InputTypeConvolutional(height=8, width=8, channels=1),
    )
    random = np.random.default_rng(0)
    batches = [(random.standard_normal((rows, 64), dtype="f"), np.eye(3, dtype="f")[:rows]) for rows in (3, 3, 3, 2)]
    found = []
    for kernels in (load("numpy"), load("cupy")):
        network = MultiLayerNetwork(conf, kernels=kernels)
        for x, labels in batches:
            network.fit(DataSet(x, labels))
        found.append(to_host(network.params).copy())
    assert kernels.convolution_path == way  # type: ignore[attr-defined]
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4, atol=1e-5)
    assert bool(len(front.graphs) > 1) == (way != "own")


def test_why_it_is_not_cudnn(device_arrays: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, refusing = cudnn.Front(), cudnn.Front()
    wrong.factor, refusing.refuses = 2.0, {"conv_fprop"}
    fails = RuntimeError("Unable to find symbol cudnnCreate")
    monkeypatch.delenv("DL4J_CUDNN", raising=False)
    for front, reason in (
        (None, "the front end of cuDNN cannot be imported .*'./install gpu'"),
        (cudnn.Front(fails=fails), r"cannot be used \(Unable to find symbol cudnnCreate\); type './install gpu'"),
        (cudnn.Front(version=8907), "cuDNN 8907 is too old, 9.0 is needed"),
        (refusing, r"cannot be used \(No valid engine configs for conv_fprop\)"),
        (wrong, r"cannot be used \(the sum of nine ones was 18.0\)"),
        (ModuleType("cudnn"), "cannot be used .*has no attribute 'backend_version'"),
    ):
        monkeypatch.setitem(sys.modules, "cudnn", front)
        kernels = kernels_of(device_arrays)
        assert kernels.convolution_path == "own" and kernels.lanes("f", 9) == 9
        assert re.search(reason, kernels.convolution_reason), kernels.convolution_reason
    monkeypatch.setitem(sys.modules, "cudnn", cudnn.Front())
    monkeypatch.setenv("DL4J_CUDNN", "0")
    assert kernels_of(device_arrays).convolution_reason == "DL4J_CUDNN=0"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a libcudnn.so.9 that needs no device."""
    folder = tmp_path_factory.mktemp("cudnn")
    source = Path(cudnn.__file__).with_name("cudnn_library.cpp")
    compile_library(source.read_text(encoding="utf-8"), folder / "libcudnn.so.9")
    return folder


def with_the_real_front_end(folder: Path, repository: Path, *command: str) -> subprocess.CompletedProcess[str]:
    if find_spec("cudnn") is None:
        pytest.skip("nvidia-cudnn-frontend is not installed; the extra 'dev' has it")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(repository)}
    environment.pop("DL4J_CUDNN", None)
    return subprocess.run(
        [sys.executable, *command], env=environment, cwd=repository, capture_output=True, text=True, timeout=120
    )


THROUGH_THE_REAL_FRONT_END = """
import sys
import cudnn  # before the stand-in, which hides it otherwise
from tests.kernels.cuda.test_cudnn_convolution import images, kernels_of
from tests.support.standin import installed

with installed() as cupy, cupy.cuda.Stream() as stream:
    kernels = kernels_of(cupy, sys.argv[1])
    print("path", kernels.convolution_path, kernels.convolution_reason)
    print("our stream", stream.ptr)
    for index in (0, 2, 3):
        for _ in range(2):
            arrays = images(index)
            arrays.agree(arrays.run(kernels, cupy.asarray, lambda array: array.get()))
    assert not kernels.products and not kernels._cudnn.refused, kernels._cudnn.refused
"""


@pytest.mark.long
@pytest.mark.parametrize(("precision", "engine"), [("float32", 3), ("tf32", 1), ("bf16", 1)])
def test_the_real_front_end_takes_our_graphs_and_obeys(
    library: Path, repository: Path, precision: str, engine: int
) -> None:
    done = with_the_real_front_end(library, repository, "-c", THROUGH_THE_REAL_FRONT_END, precision)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.split("\n")
    assert "path cudnn 9.10.2 " in lines
    assert {line for line in lines if "stream" in line} == {"our stream 4096", "stream 4096"}
    assert [line for line in lines if line.startswith("engine")] == [f"engine {engine}"] * (1 + 3 * 2 * 3)


@pytest.mark.long
def test_a_library_that_is_only_half_there_is_a_reason_and_no_error(tmp_path: Path, repository: Path) -> None:
    compile_library("int nothing;\n", tmp_path / "libcudnn.so.9")
    code = (
        "from dl4jlegacy.kernels.cuda.cudnn_convolution import find_cudnn; print(find_cudnn(None, 0, 'float32', None))"
    )
    done = with_the_real_front_end(tmp_path, repository, "-c", code)
    assert done.returncode == 0, done.stderr
    assert "(None, " in done.stdout and "Unable to find symbol cudnnGetVersion" in done.stdout
