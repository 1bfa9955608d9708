"""Training steps as CUDA graphs, on the stand-in for CuPy: the same bits as launch by launch, and nobody waits."""

from __future__ import annotations

import contextlib
import gc
import logging
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.errors import CaptureError, DeviceError, DeviceMemoryError, ShapeError
from dl4jlegacy.kernels import load
from dl4jlegacy.kernels.cuda.graph_parameters import GraphParameters, trace
from dl4jlegacy.nn import (
    Adam,
    AdamW,
    DenseLayer,
    LinearSchedule,
    MultiLayerConfiguration,
    MultiLayerNetwork,
    NeuralNetConfiguration,
    OutputLayer,
    zoo,
)
from dl4jlegacy.nn.network import cuda_graphs
from dl4jlegacy.nn.networks import build_network
from tests.support.standin import counters, installed

ROOT = Stream.of(11)
MODELS = {"mlp": 10, "dbn": 10, "sda": 10, "lenet": 10, "char-lstm": 12, "deep-autoencoder": 784, "vae": 784}
BATCHES = [5, 5, 5, 3, 5, 3, 3]  # sizes: a smaller one comes in between, as at the end of an epoch


def small(**layer: Any) -> MultiLayerConfiguration:
    conf = NeuralNetConfiguration(activation="relu", updater=Adam(learning_rate=0.01), **layer)
    return MultiLayerConfiguration(conf=conf, layers=(DenseLayer(n_in=6, n_out=5), OutputLayer(n_out=3)))


def some(size: int, n_in: int = 6, n_out: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.random((size, n_in), dtype=np.float32), np.eye(n_out, dtype=np.float32)[rng.integers(0, n_out, size)]


def model_batch(name: str, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    if name == "char-lstm":
        numbers = np.random.default_rng(seed).integers(0, 12, (size, 61))
        x, labels = (np.eye(12, dtype=np.float32)[part] for part in (numbers[:, :-1], numbers[:, 1:]))
        return x.transpose(0, 2, 1).copy(), labels.transpose(0, 2, 1).copy()
    x, labels = some(size, 784, 10, seed)
    return x, x if MODELS[name] == 784 else labels


@pytest.mark.parametrize("name", MODELS)
def test_a_captured_step_gives_the_bits_of_single_launches_whatever_comes_in_between(
    name: str, device_arrays: ModuleType
) -> None:
    n_in = 12 if name == "char-lstm" else 784
    conf = zoo.select(name).build(n_in, MODELS[name], seed=1)
    if name == "char-lstm":  # several updates a batch, whose rate and decay change from one to the next
        conf = conf.replace(conf=conf.conf.replace(updater=AdamW(schedule=LinearSchedule(iterations=9))))
    networks: list[Any] = []
    for captures in (False, True):
        kernels: Any = load("cupy")
        kernels.captures = captures
        networks.append(build_network(conf, kernels))
    for iteration, size in enumerate(BATCHES):
        x, labels = model_batch(name, size, iteration)
        scores = []
        for network in networks:
            at = ROOT.at(iteration)
            for layer in network.pretrain_layers:
                scores.append(network.pretrain_batch(layer, x, iteration=iteration, stream=at.at(layer)))
            if conf.backprop:
                scores.append(network.fit_batch(x, labels, iteration=iteration, stream=at))
        half = len(scores) // 2
        assert [float(s) for s in scores[:half]] == [float(s) for s in scores[half:]]
    one, other = networks
    assert one.params.get().tobytes() == other.params.get().tobytes()
    assert one.updater_state.get().tobytes() == other.updater_state.get().tobytes()
    assert not other._captured.refused and len(other._captured._steps) >= 2


def test_a_replayed_step_uploads_once_and_waits_for_nothing(device_arrays: ModuleType) -> None:
    network = MultiLayerNetwork(small(drop_out=0.5), kernels=load("cupy"))
    batches = [some(4, seed=seed) for seed in range(8)]
    for iteration in range(2):
        network.fit_batch(*batches[iteration], iteration=iteration, stream=ROOT.at(iteration))
    counters.reset()
    scores = [network.fit_batch(*batches[i], iteration=i, stream=ROOT.at(i)) for i in range(2, 8)]
    assert (counters.synchronisations, counters.downloads, counters.uploads) == (0, 0, 0)
    assert counters.staged == 6
    assert len({float(score) for score in scores}) == 6  # a score does not change when the next step is launched


def test_batches_that_lie_on_the_device_are_read_anew_in_every_replay(device_arrays: ModuleType) -> None:
    host, device = (MultiLayerNetwork(small(), kernels=load(name)) for name in ("numpy", "cupy"))
    for iteration in range(5):
        x, labels = some(4, seed=iteration)
        host.fit_batch(x, labels, iteration=iteration, stream=ROOT)
        on_device = map(device_arrays.asarray, (x, labels))
        device.fit_batch(*on_device, iteration=iteration, stream=ROOT)
    np.testing.assert_allclose(device.params.get(), host.params, atol=1e-6)


def test_a_step_that_cannot_be_captured_is_done_launch_by_launch_and_says_so_once(
    device_arrays: ModuleType, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks = [MultiLayerNetwork(small(), kernels=load(name)) for name in ("numpy", "cupy")]
    device = networks[1]
    whole = device._fit_batch

    def waits(*args: Any) -> Any:
        score = whole(*args)
        float(score)
        return score

    monkeypatch.setattr(device, "_fit_batch", waits)
    with caplog.at_level(logging.WARNING):
        for iteration in range(4):
            for network in networks:
                network.fit_batch(*some(4), iteration=iteration, stream=ROOT.at(iteration))
    assert [r.message for r in caplog.records if "CUDA graph" in r.message] == [
        f"steps of this kind are not captured into a CUDA graph: {reason}"
        for reason in device._captured.refused.values()  # type: ignore[union-attr]
    ]
    assert len(device._captured.refused) == 1  # type: ignore[union-attr]
    np.testing.assert_allclose(device.params.get(), networks[0].params, atol=1e-6)


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, DeviceError, DeviceMemoryError])  # CuPy's are the first
def test_what_a_gpu_says_only_of_a_capture_does_not_end_the_training(
    error: type[Exception], device_arrays: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks = [MultiLayerNetwork(small(), kernels=load(name)) for name in ("numpy", "cupy")]
    device = networks[1]
    whole = device._fit_batch

    def fails(*args: Any) -> Any:
        score = whole(*args)
        if device_arrays.cuda.get_current_stream().is_capturing():
            raise error("CUDA_ERROR_STREAM_CAPTURE_INVALIDATED")
        return score

    monkeypatch.setattr(device, "_fit_batch", fails)
    for iteration in range(4):
        for network in networks:
            network.fit_batch(*some(4), iteration=iteration, stream=ROOT.at(iteration))
    assert ["CAPTURE_INVALIDATED" in reason for reason in device._captured.refused.values()] == [True]  # type: ignore[union-attr]
    np.testing.assert_allclose(device.params.get(), networks[0].params, atol=1e-6)


def test_a_launch_into_a_spoilt_capture_ends_the_capture_and_not_the_training(
    device_arrays: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks = [MultiLayerNetwork(small(), kernels=load(name)) for name in ("numpy", "cupy")]
    device = networks[1]
    whole = device._fit_batch

    def looks_and_goes_on(*args: Any) -> Any:
        with contextlib.suppress(RuntimeError):
            float(device.params[0])
        return whole(*args)

    monkeypatch.setattr(device, "_fit_batch", looks_and_goes_on)
    for iteration in range(4):
        for network in networks:
            network.fit_batch(*some(4), iteration=iteration, stream=ROOT.at(iteration))
    [reason] = device._captured.refused.values()  # type: ignore[union-attr]
    assert reason == "DeviceError: cublasGemmEx failed with CUBLAS_STATUS_EXECUTION_FAILED"  # its launch came first
    np.testing.assert_allclose(device.params.get(), networks[0].params, atol=1e-6)


def test_an_error_of_the_step_itself_is_not_taken_for_a_refusal(
    device_arrays: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = MultiLayerNetwork(small(), kernels=load("cupy"))
    network.fit_batch(*some(4), iteration=0, stream=ROOT)

    def fails(*args: Any) -> Any:
        raise ShapeError("a bug")

    with monkeypatch.context() as patch, pytest.raises(ShapeError, match="a bug"):
        patch.setattr(network, "_fit_batch", fails)
        network.fit_batch(*some(4), iteration=1, stream=ROOT)
    network.fit_batch(*some(4), iteration=1, stream=ROOT)  # the stream is usable again
    network.check_finite()


def test_sequences_of_many_lengths_keep_only_the_last_graphs(
    device_arrays: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_graphs, "_KEPT", 2)
    networks = [MultiLayerNetwork(small(drop_out=0.5), kernels=load(name)) for name in ("numpy", "cupy")]
    for iteration, size in enumerate([4, 4, 3, 3, 2, 2, 4, 4, 3, 3, 3]):
        for network in networks:
            network.fit_batch(*some(size, seed=iteration), iteration=iteration, stream=ROOT.at(iteration))
    assert len(networks[1]._captured._steps) == 2  # type: ignore[union-attr]
    np.testing.assert_allclose(networks[1].params.get(), networks[0].params, atol=1e-5)


def test_no_garbage_is_collected_while_a_step_is_captured(
    device_arrays: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = MultiLayerNetwork(small(), kernels=load("cupy"))
    whole, seen = network._fit_batch, []

    def looks(*args: Any) -> Any:
        seen.append((device_arrays.cuda.get_current_stream().is_capturing(), gc.isenabled()))
        return whole(*args)

    monkeypatch.setattr(network, "_fit_batch", looks)
    for iteration in range(2):
        network.fit_batch(*some(4), iteration=iteration, stream=ROOT.at(iteration))
    assert seen == [(False, True), (True, False)] and gc.isenabled()


def test_waiting_for_one_worker_leaves_the_capture_of_another_alone(device_arrays: ModuleType) -> None:
    kernels, other = load("cupy"), device_arrays.cuda.Stream(non_blocking=True)
    other.begin_capture()
    kernels.synchronize()  # type: ignore[attr-defined]
    other.end_capture()


def test_graphs_can_be_switched_off(device_arrays: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DL4J_CUDA_GRAPHS", "0")
    assert MultiLayerNetwork(small(), kernels=load("cupy"))._captured is None


# -- the numbers of a step ---------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**32), other=st.integers(0, 2**32))
def test_graph_parameters_give_every_key_of_another_batch_where_the_step_looks_for_it(seed: int, other: int) -> None:
    with installed() as xp:
        parameters, first = GraphParameters(xp.zeros(16, np.uint64)), trace(Stream.of(seed))

        def keys(stream: Stream) -> list[int]:
            layer = stream.at(3, 0, purpose="dropout")
            return [layer.key, stream.at(1, purpose="segment").at(4, purpose="hidden").key, layer.key, stream.key]

        places = [(parameters.key(key) - int(parameters.words.data.ptr)) // 8 for key in keys(first)]
        scalars = (parameters.scalars(4) - int(parameters.words.data.ptr)) // 8
        assert keys(first) == keys(Stream.of(seed))
        words = parameters.values(Stream.of(other), [0.5, 1.5, 2.5, 3.5])
        assert [int(words[place]) for place in places] == keys(Stream.of(other))
        assert words[scalars : scalars + 4].view(np.float64).tolist() == [0.5, 1.5, 2.5, 3.5]
        assert len(words) == len(parameters) == 7


def test_what_graph_parameters_cannot_hold_is_refused(device_arrays: ModuleType) -> None:
    parameters, stream = GraphParameters(device_arrays.zeros(4, np.uint64)), trace(Stream.of(1))
    with pytest.raises(CaptureError, match="does not follow from its position"):
        parameters.key(Stream.of(2).key)
    with pytest.raises(CaptureError, match="random numbers on the host"):
        stream.at(1).generator()
    parameters.scalars(4)
    with pytest.raises(CaptureError, match="more than 4 keys and scalars"):
        parameters.key(stream.key)
    with pytest.raises(CaptureError, match="5 scalars"):
        parameters.values(Stream.of(1), [0.0] * 5)
