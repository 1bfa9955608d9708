"""The networks of ``nn_gpu.py`` as we train them: a ``step() -> score`` each, which waits for nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dl4jlegacy.kernels import load
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
from dl4jlegacy.nn.layers import LSTM, RnnOutputLayer
from dl4jlegacy.seeding import Stream

Step = Callable[[], Any]
CHARACTERS = 64


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


def training(case: str, batch: int, hidden: int, steps: int, *, precision: str, from_host: bool) -> Step:
    """Return one update of a network; the batch lies on the device, or comes from the host every time."""
    kernels = load("cupy", precision=precision)
    network = MultiLayerNetwork(NETWORKS[case](batch, hidden), kernels=kernels)
    x, labels = batch_of(case, batch, steps)
    if not from_host:
        x, labels = kernels.xp.asarray(x), kernels.xp.asarray(labels)
    root, done = Stream.of(1), [0]

    def step() -> Any:
        done[0] += 1
        return network.fit_batch(x, labels, iteration=done[0], stream=root.at(done[0]))

    return step


def pretraining(batch: int, hidden: int, *, precision: str) -> Step:
    """Return one step of contrastive divergence of a DBN's first layer, 784 binary visible units."""
    kernels = load("cupy", precision=precision)
    conf = MultiLayerConfiguration(
        conf=NeuralNetConfiguration(updater=Sgd(learning_rate=0.01)),
        layers=(RBM(n_in=784, n_out=hidden), OutputLayer(n_out=10, activation="softmax")),
        pretrain=True,
    )
    network = MultiLayerNetwork(conf, kernels=kernels)
    x = kernels.xp.asarray((np.random.default_rng(1).random((batch, 784)) > 0.8).astype(np.float32))
    root, done = Stream.of(1), [0]

    def step() -> Any:
        done[0] += 1
        return network.pretrain_batch(0, x, iteration=done[0], stream=root.at(done[0]))

    return step
