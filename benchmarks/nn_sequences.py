"""The LSTM of ``nn_cpu.py``: 64 characters in, 128 units, softmax at every one of 64 time steps; Adam."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

CHARACTERS, UNITS, STEPS, EXAMPLES = 64, 128, 64, 512
RATE = 1e-3
Epoch = Callable[[], int]


def data() -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of characters, and of the characters after them, each ``(examples, time steps)``."""
    numbers = np.random.default_rng(1).integers(0, CHARACTERS, (EXAMPLES, STEPS + 1))
    return numbers[:, :-1], numbers[:, 1:]


def one_hot(numbers: np.ndarray) -> np.ndarray:
    return np.eye(CHARACTERS, dtype=np.float32)[numbers]


def ours(case: str, batch: int, kernels: str) -> Epoch:
    """The public ``fit``, with a listener that reads the score."""
    from dl4jlegacy.datasets import DataSet, ListDataSetIterator
    from dl4jlegacy.kernels import load
    from dl4jlegacy.nn import Adam, CollectScoresListener, MultiLayerConfiguration, MultiLayerNetwork
    from dl4jlegacy.nn.conf.network import NeuralNetConfiguration
    from dl4jlegacy.nn.layers.lstm import LSTM
    from dl4jlegacy.nn.layers.rnn_output import RnnOutputLayer

    conf = MultiLayerConfiguration(
        conf=NeuralNetConfiguration(activation="tanh", updater=Adam(learning_rate=RATE)),
        layers=(LSTM(n_in=CHARACTERS, n_out=UNITS), RnnOutputLayer(n_out=CHARACTERS)),
    )
    network = MultiLayerNetwork(conf, kernels=load(kernels))
    network.listeners.append(CollectScoresListener())
    x, labels = (one_hot(part).transpose(0, 2, 1).copy() for part in data())
    iterator = ListDataSetIterator(DataSet(x, labels), batch, shuffle=False)

    def epoch() -> int:
        network.fit(iterator)
        return EXAMPLES

    return epoch


def torch(case: str, batch: int) -> Epoch:
    import os

    import torch
    from torch import nn

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.out = nn.LSTM(CHARACTERS, UNITS), nn.Linear(UNITS, CHARACTERS)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.lstm(x)[0])

    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE, fused=True)
    loss_of = nn.CrossEntropyLoss(reduction="sum")
    x_data, labels_data = data()
    x = torch.from_numpy(one_hot(x_data.T).copy())  # time first, as nn.LSTM prefers
    labels = torch.from_numpy(labels_data.T.copy())

    def epoch() -> int:
        for start in range(0, EXAMPLES, batch):
            optimizer.zero_grad(set_to_none=True)
            part = slice(start, start + batch)
            loss = loss_of(net(x[:, part]).flatten(0, 1), labels[:, part].flatten()) / batch
            loss.backward()
            optimizer.step()
            loss.item()
        return EXAMPLES

    return epoch


CONTENDERS: dict[str, Callable[[str, int], Epoch]] = {
    "ours": lambda case, batch: ours(case, batch, "numba"),
    "ours-numpy": lambda case, batch: ours(case, batch, "numpy"),
    "torch": torch,
}
