"""The networks of ``nn_gpu.py`` in PyTorch: eager with fused optimizers, and with the whole step as a CUDA graph."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

Step = Callable[[], Any]
CHARACTERS = 64


def set_precision(precision: str) -> None:
    """Set whether float32 products may use TF32; "bf16" is autocast, see ``training``."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = True  # picks the fastest convolution


class _Lstm(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(CHARACTERS, hidden), nn.Linear(hidden, CHARACTERS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.out(self.lstm(x)[0])
        return result


def network(case: str, hidden: int) -> nn.Module:
    """Return the network with our layers."""
    if case == "mlp":
        return nn.Sequential(
            nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 10)
        )
    if case == "lstm":
        return _Lstm(hidden)
    return nn.Sequential(
        nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5, stride=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10),
    )  # fmt: skip


def _batch(case: str, x: np.ndarray, labels: np.ndarray, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    if case == "lstm":  # time first, as nn.LSTM prefers, and classes as numbers
        return (torch.from_numpy(x).permute(2, 0, 1).contiguous().to(device),
                torch.from_numpy(labels.argmax(1)).T.contiguous().flatten().to(device))  # fmt: skip
    features = torch.from_numpy(x).view(-1, 1, 28, 28) if case == "lenet" else torch.from_numpy(x)
    return features.to(device), torch.from_numpy(labels.argmax(1)).to(device)


def training(
    case: str, hidden: int, batch: tuple[np.ndarray, np.ndarray], *, precision: str, graph: bool, device: str = "cuda"
) -> Step:
    """Return one update; with ``graph`` the whole step (forward, backward, optimizer) is one CUDA graph."""
    net = network(case, hidden).to(device)
    if case == "lstm":
        optimizer: Any = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True, capturable=graph)
    else:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, nesterov=True, fused=True)
    loss_of = nn.CrossEntropyLoss(reduction="sum")
    x, labels = _batch(case, *batch, device)
    count = len(batch[0])

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=precision == "bf16"):
            y = net(x)
        loss: torch.Tensor = loss_of(y.float().flatten(0, -2), labels) / count
        loss.backward()
        optimizer.step()
        return loss.detach()

    return _as_graph(step) if graph else step


def _as_graph(step: Step) -> Step:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    return functools.partial(_replay, graph, loss, step)


def _replay(graph: torch.cuda.CUDAGraph, loss: torch.Tensor, kept: Step) -> torch.Tensor:
    """Launch a graph; it uses the memory of the network and the batch, which ``kept`` keeps alive."""
    graph.replay()
    return loss


def pretraining(batch: int, hidden: int, *, device: str = "cuda") -> Step:
    """Return one step of contrastive divergence, in place and without autograd."""
    torch.manual_seed(0)
    generator = np.random.default_rng(1)
    x = torch.from_numpy((generator.random((batch, 784)) > 0.8).astype(np.float32)).to(device)
    W = torch.randn(784, hidden, device=device) * 0.01
    b, vb, rate = torch.zeros(hidden, device=device), torch.zeros(784, device=device), 0.01 / batch

    @torch.no_grad()
    def step() -> torch.Tensor:
        p = torch.sigmoid(torch.addmm(b, x, W))
        h = (torch.rand_like(p) < p).float()
        mean = torch.sigmoid(torch.addmm(vb, h, W.T))
        sample = (torch.rand_like(mean) < mean).float()
        q = torch.sigmoid(torch.addmm(b, sample, W))
        W.addmm_(x.T, p, alpha=rate)
        W.addmm_(sample.T, q, alpha=-rate)
        b.add_((p - q).sum(0), alpha=rate)
        vb.add_((x - mean).sum(0), alpha=rate)
        return mean

    return step
