"""Layers, vertices and losses written out as formulas on arrays as they look outside, for complex numbers too.

Nothing here comes from the package. Everything is analytic but for choices that depend on real parts alone, so that
``score(params + ih).imag / h`` is the derivative to the last digit (complex-step differentiation, Squire and Trapp
1998). Images are ``(examples, channels, height, width)``, sequences ``(examples, values, time steps)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray
Params = dict[str, Array]
Value = tuple[Array, Array | None]
"""An activation and the mask of its time steps, ``(examples, time steps)``."""
Reference = Callable[[Params, Array, Array | None], Value]

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "identity": lambda z: z,
    "relu": lambda z: np.where(z.real > 0, z, 0),
    "sigmoid": lambda z: 1 / (1 + np.exp(-z)),
    "softplus": lambda z: np.log(1 + np.exp(z)),
    "tanh": np.tanh,
}


def shaped(mask: Array | None) -> Array | float:
    return 1.0 if mask is None else mask[:, None, :]


def positive(x: Array) -> Array:
    return np.where(x.real < 0, -x, x)


def softmax(z: Array) -> Array:
    e = np.exp(z - z.real.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def pool(x: Array, kind: str, p: int) -> Array:
    """Pool ``(..., values)``; of no values 0."""
    if x.shape[-1] == 0:
        return np.zeros(x.shape[:-1], x.dtype)
    if kind == "max":
        return np.take_along_axis(x, x.real.argmax(axis=-1)[..., None], -1)[..., 0]
    if kind == "pnorm":
        return (positive(x) ** p).sum(axis=-1) ** (1 / p)
    return x.mean(axis=-1) if kind == "avg" else x.sum(axis=-1)


def places(size: int, kernel: int, stride: int, pad: int, dilation: int, same: bool) -> list[list[int]]:
    """Return the places that each window along one axis looks at; those in the padding are negative or >= ``size``."""
    reach = (kernel - 1) * dilation + 1
    out = math.ceil(size / stride) if same else (size + 2 * pad - reach) // stride + 1
    before = max(0, (out - 1) * stride + reach - size) // 2 if same else pad
    return [[i * stride - before + k * dilation for k in range(kernel)] for i in range(out)]


# -- images ----------------------------------------------------------------------------------------------------------


def conv(
    activation: str, kernel: Any, stride: Any = (1, 1), pad: Any = (0, 0), dilation: Any = (1, 1), same: bool = False
) -> Reference:
    def forward(p: Params, x: Array, mask: Array | None) -> Value:
        rows, columns = (places(x.shape[2 + i], kernel[i], stride[i], pad[i], dilation[i], same) for i in (0, 1))
        y = np.zeros((len(x), len(p["b"]), len(rows), len(columns)), complex) + p["b"][:, None, None]
        for i, row in enumerate(rows):
            for j, column in enumerate(columns):
                for u, r in enumerate(row):
                    for v, c in enumerate(column):
                        if 0 <= r < x.shape[2] and 0 <= c < x.shape[3]:
                            y[:, :, i, j] += x[:, :, r, c] @ p["W"][:, :, u, v].T
        return ACTIVATIONS[activation](y), mask

    return forward


def pooling(kind: str, kernel: Any, stride: Any, pad: Any = (0, 0), same: bool = False, norm: int = 2) -> Reference:
    def forward(p: Params, x: Array, mask: Array | None) -> Value:
        rows, columns = (
            [[k for k in window if 0 <= k < x.shape[2 + i]] for window in
             places(x.shape[2 + i], kernel[i], stride[i], pad[i], 1, same)]
            for i in (0, 1)
        )  # fmt: skip
        found = [
            [pool(x[:, :, row][..., column].reshape(*x.shape[:2], -1), kind, norm) for column in columns]
            for row in rows
        ]
        return np.stack([np.stack(line, axis=-1) for line in found], axis=2), mask

    return forward


def batch_norm(eps: float) -> Reference:
    def forward(p: Params, x: Array, mask: Array | None) -> Value:
        axes = tuple(i for i in range(x.ndim) if i != 1)
        away = x - x.mean(axis=axes, keepdims=True)
        shape = (1, -1, *[1] * (x.ndim - 2))
        scaled = away / np.sqrt((away * away).mean(axis=axes, keepdims=True) + eps)
        return scaled * p["gamma"].reshape(shape) + p["beta"].reshape(shape), mask

    return forward


def response_norm(k: float, n: int, alpha: float, beta: float) -> Reference:
    def forward(p: Params, x: Array, mask: Array | None) -> Value:
        y = np.empty_like(x)
        for c in range(x.shape[1]):
            near = x[:, max(0, c - n // 2) : c + n // 2 + 1]
            y[:, c] = x[:, c] / (k + alpha * (near * near).sum(axis=1)) ** beta
        return y, mask

    return forward


def zero_padding(top: int, bottom: int, left: int, right: int) -> Reference:
    return lambda p, x, mask: (np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right))), mask)


def global_pooling(kind: str, norm: int = 2) -> Reference:
    def forward(p: Params, x: Array, mask: Array | None) -> Value:
        if mask is None:
            return pool(x.reshape(*x.shape[:2], -1), kind, norm), None
        return np.stack([pool(row[:, on > 0], kind, norm) for row, on in zip(x, mask, strict=True)]), None

    return forward


# -- rows ------------------------------------------------------------------------------------------------------------


def dense(activation: str) -> Reference:
    """Of rows, of images as rows, and of every time step of sequences by itself."""

    def forward(p: Params, x: Array, mask: Array | None) -> Value:
        act = ACTIVATIONS.get(activation, lambda z: z)
        if x.ndim == 3:
            z = np.einsum("rnt,nm->rmt", x, p["W"]) + p["b"][:, None]
            return (softmax(z) if activation == "softmax" else act(z)), mask
        z = x.reshape(len(x), -1) @ p["W"] + p["b"]
        return (softmax(z) if activation == "softmax" else act(z)), mask

    return forward


def elementwise(activation: str) -> Reference:
    return lambda p, x, mask: ((softmax(x) if activation == "softmax" else ACTIVATIONS[activation](x)), mask)


def embedding(p: Params, x: Array, mask: Array | None) -> Value:
    index = x.real.astype(int)
    return (p["W"][index[:, 0, :]] + p["b"]).transpose(0, 2, 1) if x.ndim == 3 else p["W"][index[:, 0]] + p["b"], mask


# -- sequences -------------------------------------------------------------------------------------------------------


def reduced(mask: Array | None, windows: list[list[int]]) -> Array | None:
    if mask is None:
        return None
    steps = mask.shape[1]
    if len(windows) == steps and (steps == 1 or windows[1][0] - windows[0][0] == 1):
        return mask
    return np.stack([mask[:, [k for k in window if 0 <= k < steps]].max(axis=1, initial=0) for window in windows], 1)


def conv1d(activation: str, kernel: int, stride: int = 1, pad: int = 0, dilation: int = 1, same: bool = False) -> Any:
    def forward(p: Params, x: Array, mask: Array | None) -> Value:
        windows, x = places(x.shape[2], kernel, stride, pad, dilation, same), x * shaped(mask)
        y = np.zeros((len(x), len(p["b"]), len(windows)), complex) + p["b"][:, None]
        for i, window in enumerate(windows):
            for u, k in enumerate(window):
                if 0 <= k < x.shape[2]:
                    y[:, :, i] += x[:, :, k] @ p["W"][:, :, u, 0].T
        mask = reduced(mask, windows)
        return ACTIVATIONS[activation](y) * shaped(mask), mask

    return forward


def pooling1d(kind: str, kernel: int, stride: int, pad: int = 0, norm: int = 2, same: bool = False) -> Reference:
    def forward(p: Params, x: Array, mask: Array | None) -> Value:
        windows = places(x.shape[2], kernel, stride, pad, 1, same)
        on = np.ones((len(x), x.shape[2])) if mask is None else mask
        y = np.zeros((*x.shape[:2], len(windows)), complex)
        for i, window in enumerate(windows):
            for row in range(len(x)):
                seen = [k for k in window if 0 <= k < x.shape[2] and on[row, k]]
                y[row, :, i] = pool(x[row][:, seen], kind, norm)
        mask = reduced(mask, windows)
        return y * shaped(mask), mask

    return forward


def cells(p: Params, x: Array, mask: Array | None, suffix: str = "", backwards: bool = False) -> Array:
    """Return an LSTM's outputs; with peepholes if the recurrent weights have columns for them."""
    W, RW, b = (p[name + suffix] for name in ("W", "RW", "b"))
    n, sigmoid = RW.shape[0], ACTIVATIONS["sigmoid"]
    peepholes = RW[:, 4 * n :] if RW.shape[1] > 4 * n else np.zeros((n, 3))
    h = c = np.zeros((len(x), n), complex)
    y = np.zeros((len(x), n, x.shape[2]), complex)
    for t in reversed(range(x.shape[2])) if backwards else range(x.shape[2]):
        on = 1.0 if mask is None else mask[:, t, None]
        z = x[:, :, t] @ W + h @ RW[:, : 4 * n] + b
        block, f, o, g = z[:, :n], z[:, n : 2 * n], z[:, 2 * n : 3 * n], z[:, 3 * n :]
        new = sigmoid(f + peepholes[:, 0] * c) * c + sigmoid(g + peepholes[:, 2] * c) * np.tanh(block)
        h, c = on * sigmoid(o + peepholes[:, 1] * new) * np.tanh(new), on * new
        y[:, :, t] = h
    return y


def lstm(p: Params, x: Array, mask: Array | None) -> Value:
    return cells(p, x, mask), mask


def both_ways(first: str, second: str, mode: str) -> Reference:
    """Two LSTMs whose parameters have suffixes (or, where they begin with "^", prefixes)."""

    def own(p: Params, mark: str) -> tuple[Params, str]:
        if not mark.startswith("^"):
            return p, mark
        return {name.removeprefix(mark[1:]): value for name, value in p.items() if name.startswith(mark[1:])}, ""

    def forward(p: Params, x: Array, mask: Array | None) -> Value:
        a, b = (cells(*_order(own(p, mark), x, mask), backwards=mark == second) for mark in (first, second))
        mixed = {"add": a + b, "mul": a * b, "average": (a + b) / 2}
        return (np.concatenate([a, b], axis=1) if mode == "concat" else mixed[mode]), mask

    return forward


def _order(own: tuple[Params, str], x: Array, mask: Array | None) -> tuple[Params, Array, Array | None, str]:
    return own[0], x, mask, own[1]


def last_step(inner: Reference) -> Reference:
    def forward(p: Params, x: Array, mask: Array | None) -> Value:
        y, _ = inner(p, x, mask)
        steps = y.shape[2]
        last = np.full(len(x), steps - 1) if mask is None else steps - 1 - (mask[:, ::-1] > 0).argmax(axis=1)
        return y[np.arange(len(x)), :, last], None

    return forward


# -- losses ----------------------------------------------------------------------------------------------------------


def log_sum(z: Array) -> Array:
    """Return the logarithm of the sum of the exponentials of each row, ``(rows, 1)``."""
    top = z.real.max(axis=1, keepdims=True)
    total: Array = top + np.log(np.exp(z - top).sum(axis=1, keepdims=True))
    return total


def softplus(z: Array) -> Array:
    """Return ``log(1 + exp(z))`` without overflow, and to the last digit where it is small."""
    w = np.exp(np.where(z.real > 0, -z, z))
    series = w - w**2 / 2 + w**3 / 3 - w**4 / 4 + w**5 / 5
    return np.where(z.real > 0, z, 0) + np.where(w.real < 1e-3, series, np.log(1 + w))


def log_softplus(z: Array) -> Array:
    small = z.real < -40
    return np.where(small, z, np.log(softplus(np.where(small, 0, z))))


def log_others(z: Array) -> Array:
    """Return ``log(1 - y)`` of a softmax."""
    rest = [log_sum(np.delete(z, k, axis=1)) for k in range(z.shape[1])]
    return np.concatenate(rest, axis=1) - log_sum(z)


LOGARITHMS: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array] | None]] = {
    "sigmoid": (lambda z: -softplus(-z), lambda z: -softplus(z)),
    "softmax": (lambda z: z - log_sum(z), log_others),
    "softplus": (log_softplus, None),
}
"""``log y`` and ``log(1 - y)`` of an activation, for any ``z (rows, values)``."""


def logarithmic_loss(loss: str, activation: str, z: Array, labels: Array) -> Array | None:
    """Return what each output adds to a loss that takes logarithms of ``y``, unclipped; None: it has no such form."""
    log, log_not = LOGARITHMS[activation]
    if loss in ("mcxent", "negativeloglikelihood", "sparse_mcxent"):
        return -labels * log(z)
    if loss == "kl_divergence":
        shares = np.clip(labels, 1e-5, 1)
        return shares * (np.log(shares) - log(z))
    if loss == "poisson":
        return np.exp(log(z)) - labels * log(z)
    return None if log_not is None else -labels * log(z) - (1 - labels) * log_not(z)


def cross_entropy(y: Array, labels: Array, mask: Array | None) -> Any:
    """Return the loss of softmax outputs, summed over time steps, a mean over examples."""
    return -(labels * np.log(y) * (shaped(mask) if y.ndim == 3 else 1.0)).sum() / len(y)


def squares(y: Array, labels: Array, mask: Array | None) -> Any:
    """Return the mean squared error of every example, a mean over examples."""
    return ((y - labels) ** 2).sum() / y.shape[1] / len(y)
