"""PyTorch's part of ``nn_losses.py``: ``python nn_losses_torch.py MODEL FILE.npz`` prints held-out loss and seconds.

It needs torch and NumPy only, and uses torch's own layers, losses, gradients and optimizer.
"""

from __future__ import annotations

import command_line

if __name__ == "__main__":  # before PyTorch is imported
    parser = command_line.parser(__doc__)
    parser.add_argument("model", metavar="MODEL", help="char-lstm, deep-autoencoder or vae")
    parser.add_argument("given", metavar="FILE.npz", help="as nn_losses.py writes it")
    ARGUMENTS = parser.parse_args()
    command_line.require("torch")

import os
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  # torch's own habit

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
torch.manual_seed(1)
Given = dict[str, Any]


def adam(parameters: Iterable[torch.Tensor], given: Given) -> torch.optim.Adam:
    return torch.optim.Adam(list(parameters), lr=float(given["rate"]))


def batches(given: Given, epochs: int) -> Iterator[np.ndarray]:
    size = int(given["batch"])
    for order in given["orders"][:epochs]:
        for start in range(0, len(order), size):
            yield order[start : start + size]


def linear(given: Given, name: str, W: str = "W", b: str = "b") -> nn.Linear:
    weights = torch.from_numpy(given[f"p_{name}{W}"])
    layer = nn.Linear(*weights.shape)
    layer.weight.data.copy_(weights.T)
    layer.bias.data.copy_(torch.from_numpy(given[f"p_{name}{b}"]))
    return layer


def char_lstm(given: Given) -> float:
    W, RW, b = (given[f"p_0_{name}"] for name in ("W", "RW", "b"))
    n = RW.shape[0]
    order = np.concatenate([np.arange(n) + gate * n for gate in (3, 1, 0, 2)])  # ours: block, forget, output, input
    lstm = nn.LSTM(len(W), n, batch_first=True)
    lstm.weight_ih_l0.data.copy_(torch.from_numpy(W[:, order].T.copy()))
    lstm.weight_hh_l0.data.copy_(torch.from_numpy(RW[:, order].T.copy()))
    lstm.bias_ih_l0.data.copy_(torch.from_numpy(b[order]))
    lstm.bias_hh_l0.data.zero_()
    lstm.bias_hh_l0.requires_grad_(False)  # torch has two biases; one is enough
    out = linear(given, "1_")
    x = torch.from_numpy(given["x"].transpose(0, 2, 1).copy())
    labels = torch.from_numpy(given["labels"].argmax(axis=1))
    optimizer = adam([p for p in [*lstm.parameters(), *out.parameters()] if p.requires_grad], given)

    def loss_of(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(out(lstm(x)[0]).flatten(0, 1), labels.flatten(), reduction="sum") / len(x)

    for rows in batches(given, int(given["epochs"])):
        optimizer.zero_grad()
        loss_of(x[rows], labels[rows]).backward()
        optimizer.step()
    with torch.no_grad():
        test = torch.from_numpy(given["test_x"].transpose(0, 2, 1).copy())
        return float(loss_of(test, torch.from_numpy(given["test_labels"].argmax(axis=1))))


def pretrain(given: Given, layer: nn.Linear, x: torch.Tensor) -> None:
    """Contrastive divergence, one step."""
    visible = nn.Parameter(torch.zeros(layer.in_features))
    optimizer = adam([layer.weight, layer.bias, visible], given)
    with torch.no_grad():
        for rows in batches(given, int(given["pretrain_epochs"])):
            v = x[rows]
            p = torch.sigmoid(layer(v))
            mean = torch.sigmoid(F.linear(torch.bernoulli(p), layer.weight.T, visible))
            sample = torch.bernoulli(mean)
            q = torch.sigmoid(layer(sample))
            layer.weight.grad = (q.T @ sample - p.T @ v) / len(v)
            layer.bias.grad, visible.grad = (q - p).mean(0), (mean - v).mean(0)
            optimizer.step()


def deep_autoencoder(given: Given) -> float:
    count = sum(name.startswith("p_") and name.endswith("_W") for name in given)
    layers = [linear(given, f"{index}_") for index in range(count)]
    x, test = torch.from_numpy(given["x"]), torch.from_numpy(given["test_x"])
    below = x
    for layer in layers[: count // 2]:
        pretrain(given, layer, below)
        below = torch.sigmoid(layer(below)).detach()
    stack = [part for layer in layers for part in (layer, nn.Sigmoid())][:-1]
    net = nn.Sequential(*stack)
    optimizer = adam(net.parameters(), given)

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        return F.binary_cross_entropy_with_logits(net(x), x, reduction="sum") / len(x)

    for rows in batches(given, int(given["epochs"])):
        optimizer.zero_grad()
        loss_of(x[rows]).backward()
        optimizer.step()
    with torch.no_grad():
        return float(loss_of(test))


def vae(given: Given) -> float:
    def chain(part: str) -> list[nn.Module]:
        count = sum(name.startswith(f"p_0_{part}") and name.endswith("W") for name in given)
        return [layer for i in range(count) for layer in (linear(given, f"0_{part}{i}"), nn.LeakyReLU(0.01))]

    encoder, decoder = nn.Sequential(*chain("e")), nn.Sequential(*chain("d"), linear(given, "0_pXZ"))
    mean_of, log_variance_of = linear(given, "0_pZXMean"), linear(given, "0_pZXLogStd2")
    parts = nn.ModuleList([encoder, decoder, mean_of, log_variance_of])
    optimizer = adam(parts.parameters(), given)

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        hidden = encoder(x)
        mean, log_variance = mean_of(hidden), log_variance_of(hidden)
        z = mean + torch.exp(log_variance / 2) * torch.randn_like(mean)
        divergence = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum()
        return (F.binary_cross_entropy_with_logits(decoder(z), x, reduction="sum") + divergence) / len(x)

    x, test = torch.from_numpy(given["x"]), torch.from_numpy(given["test_x"])
    for rows in batches(given, int(given["pretrain_epochs"])):
        optimizer.zero_grad()
        loss_of(x[rows]).backward()
        optimizer.step()
    with torch.no_grad():
        return float(torch.stack([loss_of(test) for _ in range(10)]).mean())


MODELS = {"char-lstm": char_lstm, "deep-autoencoder": deep_autoencoder, "vae": vae}


def main() -> int:
    given = dict(np.load(ARGUMENTS.given))
    start = time.perf_counter()
    loss = MODELS[ARGUMENTS.model](given)
    print(loss, time.perf_counter() - start)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
