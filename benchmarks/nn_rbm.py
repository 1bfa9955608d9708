"""The RBM of ``nn_cpu.py``: 784 binary visible and 500 hidden units, one step of contrastive divergence, plain SGD."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

VISIBLE, HIDDEN, EXAMPLES, RATE = 784, 500, 2048, 0.01
Epoch = Callable[[], int]


def data() -> np.ndarray:
    return (np.random.default_rng(1).random((EXAMPLES, VISIBLE)) > 0.8).astype(np.float32)


def network(kernels: Any) -> Any:
    """Return our network: an RBM, and an output layer that is not trained here."""
    from dl4jlegacy.nn import RBM, MultiLayerConfiguration, MultiLayerNetwork, NeuralNetConfiguration, OutputLayer, Sgd

    conf = MultiLayerConfiguration(
        conf=NeuralNetConfiguration(updater=Sgd(learning_rate=RATE)),
        layers=(RBM(n_in=VISIBLE, n_out=HIDDEN), OutputLayer(n_out=10, activation="softmax")),
        pretrain=True,
    )
    return MultiLayerNetwork(conf, kernels=kernels)


def ours(batch: int, kernels: str) -> Epoch:
    """Return an epoch of the public ``pretrain``, with its reconstruction error."""
    from dl4jlegacy.datasets import DataSet, ListDataSetIterator
    from dl4jlegacy.kernels import load

    machine, x = network(load(kernels)), data()
    iterator = ListDataSetIterator(DataSet(x, x), batch, shuffle=False)

    def epoch() -> int:
        machine.pretrain(iterator)
        return EXAMPLES

    return epoch


def torch(batch: int) -> Epoch:
    """Return an epoch of the same computation in PyTorch, in place and without autograd: the fastest variant found."""
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    x, W = torch.from_numpy(data()), torch.randn(VISIBLE, HIDDEN) * 0.01
    b, vb, rate = torch.zeros(HIDDEN), torch.zeros(VISIBLE), RATE / batch

    def step(v: torch.Tensor) -> None:
        p = torch.sigmoid(torch.addmm(b, v, W))
        h = (torch.rand_like(p) < p).float()
        mean = torch.sigmoid(torch.addmm(vb, h, W.T))
        sample = (torch.rand_like(mean) < mean).float()
        q = torch.sigmoid(torch.addmm(b, sample, W))
        W.addmm_(v.T, p, alpha=rate)
        W.addmm_(sample.T, q, alpha=-rate)
        b.add_((p - q).sum(0), alpha=rate)
        vb.add_((v - mean).sum(0), alpha=rate)

    def epoch() -> int:
        for start in range(0, EXAMPLES, batch):
            step(x[start : start + batch])
        return EXAMPLES

    return epoch


def sklearn(batch: int) -> Epoch:
    """Return an epoch of persistent contrastive divergence, the only kind it has."""
    from sklearn.neural_network import BernoulliRBM

    x, model = data(), BernoulliRBM(HIDDEN, learning_rate=RATE, batch_size=batch, random_state=0)

    def epoch() -> int:
        for start in range(0, EXAMPLES, batch):
            model.partial_fit(x[start : start + batch])
        return EXAMPLES

    return epoch


CONTENDERS: dict[str, Callable[[str, int], Epoch]] = {
    "ours": lambda case, batch: ours(batch, "numba"),
    "ours-numpy": lambda case, batch: ours(batch, "numpy"),
    "torch": lambda case, batch: torch(batch),
    "sklearn": lambda case, batch: sklearn(batch),
}
