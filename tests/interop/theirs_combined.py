"""Networks of the real Deeplearning4j that put several kinds together; see ``theirs``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.interop.theirs import (
    BOTH,
    FLAT,
    IMAGE,
    NEW,
    RNN_SOFTMAX,
    SOFTMAX,
    Node,
    Theirs,
    graph,
    images,
    input_type,
    layer,
    new,
    rows,
    steps,
)

DENSE = layer("DenseLayer", nOut=5)
RELU = layer("DenseLayer", nOut=7, activation="RELU")
CONV = layer("ConvolutionLayer", [3, 3], nOut=4)
LSTM = layer("LSTM", nOut=5)
OLD = ("0.9.1",)
OLD_UPDATERS = {
    "Nesterovs": "NESTEROVS",
    "AdaGrad": "ADAGRAD",
    "RmsProp": "RMSPROP",
    "Adam": "ADAM",
    "AdaMax": "ADAMAX",
    "Nadam": "NADAM",
    "AdaDelta": "ADADELTA",
}
ACTIVATIONS = (
    "ELU",
    "HARDSIGMOID",
    "HARDTANH",
    "LEAKYRELU",
    "RATIONALTANH",
    "RECTIFIEDTANH",
    "RELU",
    "SELU",
    "SIGMOID",
    "SOFTPLUS",
    "SOFTSIGN",
)


def combined() -> Iterator[Theirs]:
    """Every network."""
    yield from _updaters()
    yield from _activations()
    yield from _windows()
    yield from _deep()
    yield from _graphs()


def _updaters() -> Iterator[Theirs]:
    """State of updaters behind weights that lie in every order."""
    for name, old in OLD_UPDATERS.items():
        made = new(name) if name == "AdaDelta" else new(name, 0.01)
        before: dict[str, Any] = {
            "around": [("updater", old), ("learningRate", 0.05)],
            "versions": OLD,
            "is_plain": False,
        }
        for more in (before, {"around": [("updater", made)], "versions": NEW}):
            yield images(f"Updater {name}", CONV, name="of images", **more)
            yield steps(f"Updater {name}", LSTM, name="of sequences", **more)


def _activations() -> Iterator[Theirs]:
    for name in ACTIVATIONS:
        small = layer("ConvolutionLayer", [2, 2], nOut=3, activation=name)
        yield images(f"Activation {name}", small, name="of images")
        yield steps(f"Activation {name}", layer("LSTM", nOut=4, activation=name), name="of cells")


def _windows() -> Iterator[Theirs]:
    for mode in ("Truncate", "Same"):
        for kernel, stride in (([1, 1], [2, 2]), ([3, 2], [1, 3]), ([2, 4], [2, 1])):
            conv = layer("ConvolutionLayer", kernel, stride, nOut=3, convolutionMode=mode)
            yield images("ConvolutionLayer", conv, name=f"{mode} {kernel} {stride}")
    yield steps("Convolution1DLayer", layer("Convolution1DLayer", 3, nOut=5), name="labels behind it", long=4)
    halved = layer("Convolution1DLayer", 2, nOut=5, stride=2)
    yield steps("Convolution1DLayer", halved, name="labels behind a stride", long=3)
    pool = layer("Subsampling1DLayer", "MAX", 2, stride=2)
    yield steps("Subsampling1DLayer", LSTM, pool, name="labels behind it", long=3)


def _deep() -> Iterator[Theirs]:
    normal = layer("BatchNormalization", eps=1e-3, decay=0.7)
    yield rows("DenseLayer", DENSE, RELU, DENSE, name="three")
    yield rows("BatchNormalization", DENSE, normal, RELU, name="between")
    yield rows("ActivationLayer", RELU, layer("ActivationLayer", activation="SOFTSIGN"), DENSE, name="between")
    pool = layer("SubsamplingLayer", "MAX", [2, 2], [1, 1])
    small = layer("ConvolutionLayer", [2, 2], nOut=3)
    response = layer("LocalResponseNormalization", n=3.0, alpha=0.1)
    padding = layer("ZeroPaddingLayer", [1, 0, 1, 0])
    flat: dict[str, Any] = {"type": FLAT, "shape": (128,)}
    yield images("ConvolutionLayer", CONV, pool, small, name="two")
    yield images("ConvolutionLayer", padding, CONV, layer("BatchNormalization"), response, name="all", **flat)
    yield images("ConvolutionLayer", CONV, pool, RELU, DENSE, name="and two dense layers", **flat)
    yield images("GlobalPoolingLayer", CONV, layer("GlobalPoolingLayer", "MAX"), RELU, name="and dense")
    yield steps("LSTM", LSTM, layer("GravesLSTM", nOut=4), name="and another")
    yield steps("LSTM", LSTM, DENSE, layer("LSTM", nOut=3), name="and dense")
    yield steps("GravesBidirectionalLSTM", layer("GravesBidirectionalLSTM", nOut=4), LSTM, name="and another")
    last = layer("GlobalPoolingLayer", "MAX")
    yield steps("GravesLSTM", layer("GravesLSTM", nOut=4), last, DENSE, name="pooled", ends=True)


def _graphs() -> Iterator[Theirs]:
    four, three = input_type("feedForward", 4), input_type("feedForward", 3)
    end = ("addLayer", "out", SOFTMAX, ["v"])
    a = ("addLayer", "da", DENSE, ["a"])

    def one(row: str, *calls: Any, name: str, kinds: list[Node], inputs: Any, out: tuple[int, ...] = (3,)) -> Theirs:
        built = graph(["a", "b"][: len(inputs)], *calls, outputs=["out"], kinds=kinds)
        return Theirs(row, name, built, inputs, (out,), BOTH)

    merge, add = new("MergeVertex"), new("ElementWiseVertex", "Add")
    joined = ("addVertex", "v", merge, ["da", "b"])
    yield one("MergeVertex", a, joined, end, name="sizes", kinds=[four, three], inputs=((4,), (3,)))
    deep = ("addLayer", "dc", RELU, ["v"]), ("addLayer", "out", SOFTMAX, ["dc"])
    yield one("MergeVertex", a, joined, *deep, name="and dense", kinds=[four, three], inputs=((4,), (3,)))
    skipped = ("addLayer", "db", DENSE, ["da"]), ("addVertex", "v", add, ["da", "db"])
    yield one("ElementWiseVertex", a, *skipped, end, name="residual", kinds=[four], inputs=((4,),))
    sequences = [input_type("recurrent", 4), input_type("recurrent", 3)]
    lstms = ("addLayer", "l", LSTM, ["a"]), ("addLayer", "m", layer("GravesLSTM", nOut=5), ["b"])
    rnn_end = ("addLayer", "out", RNN_SOFTMAX, ["v"])
    for row, vertex in (("MergeVertex", merge), ("ElementWiseVertex", add)):
        both = (*lstms, ("addVertex", "v", vertex, ["l", "m"]), rnn_end)
        yield one(row, *both, name="sequences", kinds=sequences, inputs=((4, 6), (3, 6)), out=(3, 6))
    last = ("addVertex", "v", new("rnn.LastTimeStepVertex", "a"), ["l"])
    yield one("LastTimeStepVertex", lstms[0], last, *deep, name="and dense", kinds=sequences[:1], inputs=((4, 6),))
    same = layer("ConvolutionLayer", [3, 3], nOut=2, convolutionMode="Same")
    image = {"kinds": [IMAGE], "inputs": ((2, 8, 7),)}
    parts = ("addLayer", "c", same, ["a"]), ("addVertex", "v", add, ["c", "a"])
    yield one("ElementWiseVertex", *parts, end, name="residual of images", **image)
    scaled = ("addVertex", "v", new("ScaleVertex", -2.0), ["l"])
    yield one(
        "ScaleVertex", lstms[0], scaled, rnn_end, name="of sequences", kinds=sequences[:1], inputs=((4, 6),), out=(3, 6)
    )
