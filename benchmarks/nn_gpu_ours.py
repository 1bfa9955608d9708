"""Our networks for ``nn_gpu.py``: each a ``step() -> score``, which does not wait for the device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.kernels import load
from dl4jlegacy.kernels.protocol import DeviceKernels, device_kernels
from dl4jlegacy.nn import (
    RBM,
    Adam,
    DenseLayer,
    MultiLayerConfiguration,
    MultiLayerNetwork,
    Nesterovs,
    NeuralNetConfiguration,
    OutputLayer,
    Sgd,
    zoo,
)
from dl4jlegacy.nn.layers.lstm import LSTM
from dl4jlegacy.nn.layers.rnn_output import RnnOutputLayer

CHARACTERS = 64


@dataclass(frozen=True)
class Step:
    """One update of a network.

    Attributes:
        do: performs the update, given the number of earlier ones.
        turn: enters the network's stream, as a worker does once for a job.
    """

    do: Callable[[int], Any]
    turn: Callable[[], AbstractContextManager[None]]
    done: list[int]

    def __call__(self) -> Any:
        """Perform one more update."""
        self.done[0] += 1
        return self.do(self.done[0])


def mlp(batch: int, hidden: int) -> MultiLayerConfiguration:
    """Return 784 - hidden - hidden - 10, rectified, with Nesterov's momentum."""
    conf = NeuralNetConfiguration(activation="relu", updater=Nesterovs(learning_rate=0.01, momentum=0.9))
    layers = (DenseLayer(n_in=784, n_out=hidden), DenseLayer(n_out=hidden), OutputLayer(n_out=10))
    return MultiLayerConfiguration(conf=conf, layers=layers)


def lenet(batch: int, hidden: int) -> MultiLayerConfiguration:
    """Return the zoo's LeNet with Nesterov's momentum and without L2."""
    conf = zoo.lenet(784, 10)
    return conf.replace(conf=conf.conf.replace(updater=Nesterovs(learning_rate=0.01, momentum=0.9), l2=0.0))


def lstm(batch: int, hidden: int) -> MultiLayerConfiguration:
    """Return an LSTM over characters with a softmax at every time step."""
    conf = NeuralNetConfiguration(activation="tanh", updater=Adam(learning_rate=1e-3))
    layers = (LSTM(n_in=CHARACTERS, n_out=hidden), RnnOutputLayer(n_out=CHARACTERS))
    return MultiLayerConfiguration(conf=conf, layers=layers)


NETWORKS = {"mlp": mlp, "lenet": lenet, "lstm": lstm}


def batch_of(case: str, batch: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return features and labels of one batch, on the host."""
    rng = np.random.default_rng(1)
    if case == "lstm":
        numbers = rng.integers(0, CHARACTERS, (batch, steps + 1))
        x, labels = (np.eye(CHARACTERS, dtype=np.float32)[part] for part in (numbers[:, :-1], numbers[:, 1:]))
        return np.ascontiguousarray(x.transpose(0, 2, 1)), np.ascontiguousarray(labels.transpose(0, 2, 1))
    x = rng.random((batch, 784), dtype=np.float32)
    return x * (x > 0.8), np.eye(10, dtype=np.float32)[rng.integers(0, 10, batch)]


def _kernels(precision: str) -> DeviceKernels:
    kernels = device_kernels(load("cupy", precision=precision))
    assert kernels is not None  # cupy's are those of a device
    return kernels


def training(case: str, batch: int, hidden: int, steps: int, *, precision: str, from_host: bool) -> Step:
    """Return one update of a network; the batch is on the device, or copied from the host every time."""
    kernels = _kernels(precision)
    network = MultiLayerNetwork(NETWORKS[case](batch, hidden), kernels=kernels)
    x, labels = batch_of(case, batch, steps)
    if not from_host:
        x, labels = kernels.xp.asarray(x), kernels.xp.asarray(labels)
    root = Stream.of(1)
    return Step(lambda done: network.fit_batch(x, labels, iteration=done, stream=root.at(done)), kernels.use, [0])


def pretraining(batch: int, hidden: int, *, precision: str) -> Step:
    """Return one step of contrastive divergence of a DBN's first layer, 784 binary visible units."""
    kernels = _kernels(precision)
    conf = MultiLayerConfiguration(
        conf=NeuralNetConfiguration(updater=Sgd(learning_rate=0.01)),
        layers=(RBM(n_in=784, n_out=hidden), OutputLayer(n_out=10, activation="softmax")),
        pretrain=True,
    )
    network = MultiLayerNetwork(conf, kernels=kernels)
    x = kernels.xp.asarray((np.random.default_rng(1).random((batch, 784)) > 0.8).astype(np.float32))
    root = Stream.of(1)
    return Step(lambda done: network.pretrain_batch(0, x, iteration=done, stream=root.at(done)), kernels.use, [0])
