"""Random networks with what they compute: layers of every family beside their formulas of ``references``.

A case is drawn from its number alone. Its last layer is dense, with logits of any size, its loss any that takes
logarithms; labels, masks and ``loss_weights`` are drawn too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dl4jlegacy.nn import (
    LSTM,
    RBM,
    ActivationLayer,
    AutoEncoder,
    BatchNormalization,
    Bidirectional,
    Convolution1DLayer,
    ConvolutionLayer,
    DenseLayer,
    GlobalPoolingLayer,
    GravesBidirectionalLSTM,
    GravesLSTM,
    InputType,
    LastTimeStep,
    LocalResponseNormalization,
    OutputLayer,
    RnnOutputLayer,
    Subsampling1DLayer,
    SubsamplingLayer,
    ZeroPaddingLayer,
)
from tests.support import references as r

Pair = tuple[Any, r.Reference]
Rng = np.random.Generator

ACTIVATIONS = tuple(r.ACTIVATIONS)
KINDS = ("max", "avg", "sum", "pnorm")
LOSSES = {
    "softmax": ("mcxent", "negativeloglikelihood", "sparse_mcxent", "kl_divergence", "poisson", "xent"),
    "sigmoid": ("mcxent", "kl_divergence", "poisson", "xent", "reconstruction_crossentropy"),
    "softplus": ("kl_divergence", "poisson"),
}


@dataclass(frozen=True)
class Case:
    """One network with its batch; ``output`` is its last layer, ``below`` the others with their formulas.

    ``size`` is what the parameters of the last layer are multiplied by.
    """

    number: int
    family: str
    below: tuple[Pair, ...]
    output: Any
    input_type: Any
    x: np.ndarray
    features_mask: np.ndarray | None
    size: float
    rng: Rng

    @property
    def layers(self) -> tuple[Any, ...]:
        """Every layer."""
        return (*(layer for layer, _ in self.below), self.output)

    @property
    def is_smooth(self) -> bool:
        """Whether the rounding of float32 cannot take another branch than the formulas: no rectifier, no maximum."""
        fields = [getattr(layer, name, None) for layer in self.layers for name in ("activation", "pooling_type")]
        return not {"relu", "max"} & {field for field in fields if field}

    def title(self) -> str:
        """Return what one needs to know of it when it fails."""
        kinds = "-".join(layer.title() for layer in self.layers)
        loss = f"{self.output.loss} behind {self.output.activation}"
        masked = "whole" if self.features_mask is None else "masked"
        return f"case {self.number}: {kinds}, {loss}, weights {self.output.loss_weights}, x {self.x.shape} {masked}"

    def loss(self, z: np.ndarray, left: np.ndarray | None, labels: np.ndarray, mask: np.ndarray | None) -> Any:
        """Return the unclipped mean loss for logits ``z`` with the mask that is left of the features'."""
        terms = r.logarithmic_loss(self.output.loss, self.output.activation, _rows(z), _rows(labels))
        assert terms is not None
        if self.output.loss_weights is not None:
            terms = terms * np.array(self.output.loss_weights)
        on = left if mask is None and z.ndim == 3 else mask
        if on is not None:
            terms = terms * on.reshape(len(terms), -1)
        return terms.sum() / len(z)

    def clips(self, z: np.ndarray) -> bool:
        """Return whether the score of some logits is cut off where DL4J cuts it off."""
        log, log_not = r.LOGARITHMS[self.output.activation]
        found = [log(_rows(z))] + ([] if log_not is None else [log_not(_rows(z))])
        lowest = min(float(values.real.min()) for values in found)
        above = self.output.activation == "softplus" and float(found[0].real.max()) > 0
        return lowest < np.log(2e-5) or above

    def logits(self, params: r.Params) -> r.Value:
        """Return what enters the loss's activation, and its mask."""
        y: r.Value = (self.x.astype(complex), self.features_mask)
        for index, (_, reference) in enumerate((*self.below, (self.output, r.dense("identity")))):
            mark = f"{index}_"
            y = reference({n.removeprefix(mark): v for n, v in params.items() if n.startswith(mark)}, *y)
        return y


def draw(number: int) -> Case:
    """Return case ``number``."""
    rng = np.random.default_rng([20, number])
    family = ("rows", "images", "sequences")[number % 3]
    examples, n_out = int(rng.integers(2, 20)), int(rng.integers(2, 6))
    input_type, x, mask = _batch(family, examples, rng)
    count = int(rng.integers(0 if family == "rows" else 1, 4))
    below = [_LAYERS[family](rng, x) for _ in range(count)]
    ends = family == "sequences" and rng.random() < 0.4
    if ends:
        below.append(_end(rng))
    activation = str(rng.choice(tuple(LOSSES)))
    weights = tuple(float(w) for w in rng.uniform(0.1, 3, n_out)) if rng.random() < 0.4 else None
    kind = RnnOutputLayer if family == "sequences" and not ends else OutputLayer
    loss = str(rng.choice(LOSSES[activation]))
    output = kind(n_out=n_out, activation=activation, loss=loss, loss_weights=weights)
    x = x.astype(np.float32).astype(float)
    return Case(number, family, tuple(below), output, input_type, x, mask, float(10 ** rng.uniform(-0.5, 2)), rng)


def _batch(family: str, examples: int, rng: Rng) -> tuple[Any, np.ndarray, np.ndarray | None]:
    if family == "rows":
        size = int(rng.integers(1, 8))
        return InputType.feed_forward(size), rng.standard_normal((examples, size)), None
    if family == "images":
        shape = tuple(int(n) for n in (rng.integers(1, 4), rng.integers(3, 9), rng.integers(3, 9)))
        return InputType.convolutional(shape[1], shape[2], shape[0]), rng.standard_normal((examples, *shape)), None
    size, steps = int(rng.integers(1, 5)), int(rng.integers(3, 9))
    x, ends = rng.standard_normal((examples, size, steps)), rng.integers(1, steps + 1, examples)
    mask = (np.arange(steps) < ends[:, None]).astype(float) if rng.random() < 0.6 else None
    return InputType.recurrent(size), x, mask


def _row_layer(rng: Rng, x: np.ndarray) -> Pair:
    act, n = str(rng.choice(ACTIVATIONS)), int(rng.integers(1, 20))
    return _pick(rng, [
        lambda: (DenseLayer(n_out=n, activation=act), r.dense(act)),
        lambda: (RBM(n_out=n), r.dense("sigmoid")),
        lambda: (AutoEncoder(n_out=n, activation=act), r.dense(act)),
        lambda: (BatchNormalization(eps=1e-2), r.batch_norm(1e-2)),
        lambda: (ActivationLayer(activation=act), r.elementwise(act)),
    ])  # fmt: skip


def _image_layer(rng: Rng, x: np.ndarray) -> Pair:
    act, kind = str(rng.choice(ACTIVATIONS)), str(rng.choice(KINDS))
    kernel, stride, dilation = (_two(rng, *span) for span in ((1, 4), (1, 3), (1, 3)))
    pad = (kernel[0] - 1, kernel[1] - 1)  # whatever is left of the image, the kernel fits
    wide = ((kernel[0] - 1) * dilation[0], (kernel[1] - 1) * dilation[1])
    same = bool(rng.random() < 0.5)
    mode = "same" if same else "truncate"
    around = (0, 0) if same else wide
    held = (0, 0) if same else pad
    border = tuple(int(n) for n in rng.integers(0, 3, 4))
    return _pick(rng, [
        lambda: (ConvolutionLayer(n_out=int(rng.integers(1, 6)), activation=act, kernel_size=kernel, stride=stride,
                                  padding=around, dilation=dilation, convolution_mode=mode),
                 r.conv(act, kernel, stride, around, dilation, same)),
        lambda: (SubsamplingLayer(pooling_type=kind, kernel_size=kernel, stride=stride, padding=held, pnorm=2,
                                  convolution_mode=mode), r.pooling(kind, kernel, stride, held, same, 2)),
        lambda: (BatchNormalization(eps=1e-2), r.batch_norm(1e-2)),
        lambda: (LocalResponseNormalization(k=1.5, n=3, alpha=0.3, beta=0.6), r.response_norm(1.5, 3, 0.3, 0.6)),
        lambda: (ZeroPaddingLayer(padding=border), r.zero_padding(*border)),
        lambda: (ActivationLayer(activation=act), r.elementwise(act)),
    ])  # fmt: skip


def _step_layer(rng: Rng, x: np.ndarray) -> Pair:
    n, kind, act = int(rng.integers(1, 20)), str(rng.choice(KINDS)), str(rng.choice(ACTIVATIONS))
    kernel, stride, dilation = (int(rng.integers(1, last)) for last in (5, 3, 3))
    mode = str(rng.choice(("concat", "add", "mul", "average")))
    same = bool(rng.random() < 0.6)
    fields = {"kernel_size": kernel, "stride": stride, "convolution_mode": "same" if same else "truncate"}
    around, held = (0, 0) if same else ((kernel - 1) * dilation, kernel - 1)
    return _pick(rng, [
        lambda: (LSTM(n_out=n), r.lstm),
        lambda: (GravesLSTM(n_out=n), r.lstm),
        lambda: (GravesBidirectionalLSTM(n_out=n), r.both_ways("F", "B", "add")),
        lambda: (Bidirectional(layer=LSTM(n_out=n), mode=mode), r.both_ways("^f", "^b", mode)),
        lambda: (DenseLayer(n_out=n, activation=act), r.dense(act)),
        lambda: (Convolution1DLayer(n_out=n, activation=act, dilation=dilation, padding=around, **fields),
                 r.conv1d(act, kernel, stride, around, dilation, same)),
        lambda: (Subsampling1DLayer(pooling_type=kind, pnorm=2, padding=held, **fields),
                 r.pooling1d(kind, kernel, stride, held, 2, same)),
    ])  # fmt: skip


def _end(rng: Rng) -> Pair:
    kind = str(rng.choice(KINDS))
    return _pick(rng, [
        lambda: (LastTimeStep(layer=LSTM(n_out=5)), r.last_step(r.lstm)),
        lambda: (GlobalPoolingLayer(pooling_type=kind, pnorm=2), r.global_pooling(kind, 2)),
    ])  # fmt: skip


_LAYERS: dict[str, Callable[[Rng, np.ndarray], Pair]] = {
    "rows": _row_layer, "images": _image_layer, "sequences": _step_layer,
}  # fmt: skip


def _rows(z: np.ndarray) -> np.ndarray:
    return z if z.ndim == 2 else z.transpose(0, 2, 1).reshape(-1, z.shape[1])


def _pick(rng: Rng, makers: list[Callable[[], Pair]]) -> Pair:
    return makers[int(rng.integers(len(makers)))]()


def _two(rng: Rng, low: int, high: int) -> tuple[int, int]:
    first, second = rng.integers(low, high, 2)
    return int(first), int(second)
