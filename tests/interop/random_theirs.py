"""Random networks of the real Deeplearning4j, each from its number alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.interop.theirs import FLAT, IMAGE, RNN_SOFTMAX, SOFTMAX, STEPS, Node, Theirs, input_type, layer, new, stack

_OLD = [
    "ELU",
    "HARDSIGMOID",
    "HARDTANH",
    "IDENTITY",
    "LEAKYRELU",
    "RATIONALTANH",
    "RELU",
    "SELU",
    "SIGMOID",
    "SOFTMAX",
    "SOFTPLUS",
    "SOFTSIGN",
    "TANH",
    "RECTIFIEDTANH",
]
_NEW = [*_OLD, "RELU6", "SWISH", "THRESHOLDEDRELU", "GELU", "MISH"]
Rng = np.random.Generator


def draw(number: int, version: str) -> Theirs:
    """Return network ``number`` for a version."""
    rng = np.random.default_rng([30, number])
    is_old = version == "0.9.1"
    family = ("rows", "images", "sequences")[number % 3]
    layers = [_LAYERS[family](rng, is_old) for _ in range(int(rng.integers(1, 4)))]
    kind, shape, labels, end = _ends(family, rng, layers, is_old)
    around: list[tuple[str, Any]] = [("activation", _of(rng, _OLD if is_old else _NEW))]
    if is_old:
        around += [("updater", "SGD"), ("learningRate", 0.05)]
    else:
        known = ["Sgd", "Adam", "Nesterovs", "AdaMax", "Nadam", "AMSGrad"]
        if any(each["class"].startswith("BatchNormalization") for each in layers):
            known = ["Sgd"]  # the others make steps of what rounding leaves where one normalization follows another
        around.append(("updater", new(_of(rng, known), 0.01)))
    if rng.random() < 0.2:
        around.append(("miniBatch", False))
    if not is_old and rng.random() < 0.3:
        around += [("l2", 0.01)] if rng.random() < 0.5 else [("gradientNormalization", "ClipL2PerLayer")]
    exceptions = ("Convolution1D", "recurrent.Bidirectional")  # with masks, see docs/dl4j-files.md
    is_maskable = not any(each["class"].startswith(exceptions) for each in layers)
    mask = family == "sequences" and rng.random() < 0.4 and is_maskable
    network = stack(*layers, end, kind=kind, around=around)
    return Theirs("random", f"random {number}", network, (shape,), (labels,), mask=mask, padded_with_zeros=True)


def _ends(
    family: str, rng: Rng, layers: list[Node], is_old: bool
) -> tuple[Node, tuple[int, ...], tuple[int, ...], Node]:
    if family == "rows":
        return input_type("feedForward", 4), (4,), (3,), SOFTMAX
    if family == "images":
        flat = rng.random() < 0.3
        return (FLAT, (128,), (3,), SOFTMAX) if flat else (IMAGE, (2, 8, 7), (3,), SOFTMAX)
    if rng.random() < 0.4:
        layers.append(layer("GlobalPoolingLayer", _of(rng, ["MAX", "AVG", "SUM"])))
        return STEPS, (4, 6), (3,), SOFTMAX
    return STEPS, (4, 6), (3, 6), RNN_SOFTMAX


def _row_layer(rng: Rng, is_old: bool) -> Node:
    size, act = int(rng.integers(2, 8)), _of(rng, _OLD if is_old else _NEW)
    return _pick(
        rng,
        [
            lambda: layer("DenseLayer", nOut=size, activation=act),
            lambda: layer("DenseLayer", nOut=size, activation=act, biasInit=0.2),
            lambda: layer("AutoEncoder", nOut=size, activation=act),
            lambda: layer(
                "BatchNormalization", eps=float(rng.choice([1e-5, 1e-2])), lockGammaBeta=bool(rng.random() < 0.3)
            ),
            lambda: layer("ActivationLayer", activation=act),
        ],
    )


def _image_layer(rng: Rng, is_old: bool) -> Node:
    size, act = int(rng.integers(1, 5)), _of(rng, _OLD if is_old else _NEW)
    kernel = [int(n) for n in rng.integers(1, 4, 2)]
    stride = [int(n) for n in rng.integers(1, 3, 2)]
    padding = [int(n) for n in rng.integers(0, 2, 2)]
    mode = _of(rng, ["Truncate", "Same"])
    padding = [0, 0] if mode == "Same" else [min(p, k - 1) for p, k in zip(padding, kernel, strict=True)]
    kind = _of(rng, ["MAX", "AVG"])
    more = {} if is_old else {"hasBias": bool(rng.random() < 0.8)}
    counted = {} if is_old or rng.random() < 0.7 else {"avgPoolIncludePadInDivisor": True}
    return _pick(
        rng,
        [
            lambda: layer(
                "ConvolutionLayer", kernel, stride, padding, nOut=size, activation=act, convolutionMode=mode, **more
            ),
            lambda: layer("SubsamplingLayer", kind, kernel, stride, padding, convolutionMode=mode, **counted),
            lambda: layer("BatchNormalization"),
            lambda: layer("LocalResponseNormalization", n=3.0, alpha=0.1),
            lambda: layer("ZeroPaddingLayer", [int(n) for n in rng.integers(0, 3, 4)]),
            lambda: layer("ActivationLayer", activation=act),
        ],
    )


def _step_layer(rng: Rng, is_old: bool) -> Node:
    size, act = int(rng.integers(2, 7)), _of(rng, _OLD if is_old else _NEW)
    makers = [
        lambda: layer("LSTM", nOut=size),
        lambda: layer("GravesLSTM", nOut=size, gateActivationFunction="HARDSIGMOID"),
        lambda: layer("GravesBidirectionalLSTM", nOut=size),
        lambda: layer("DenseLayer", nOut=size, activation=act),
        lambda: layer("Convolution1DLayer", int(rng.integers(1, 4)), nOut=size, activation=act, convolutionMode="Same"),
    ]
    if not is_old:
        makers.append(lambda: layer("LSTM", nOut=size, dataFormat="NWC"))
        makers.append(lambda: new("recurrent.Bidirectional", _of(rng, ["CONCAT", "ADD"]), layer("LSTM", nOut=size)))
    return _pick(rng, makers)


_LAYERS = {"rows": _row_layer, "images": _image_layer, "sequences": _step_layer}


def _of(rng: Rng, names: list[str]) -> str:
    return names[int(rng.integers(len(names)))]


def _pick(rng: Rng, makers: list[Any]) -> Node:
    made: Node = makers[int(rng.integers(len(makers)))]()
    return made
