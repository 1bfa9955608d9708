"""Networks of this package that put several kinds together: updaters behind all weights, deeper networks, graphs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dl4jlegacy.nn import (
    LSTM,
    ActivationLayer,
    AutoEncoder,
    BatchNormalization,
    Convolution1DLayer,
    ConvolutionLayer,
    DenseLayer,
    EmbeddingLayer,
    FrozenLayer,
    GlobalPoolingLayer,
    GravesBidirectionalLSTM,
    GravesLSTM,
    InputType,
    LocalResponseNormalization,
    OutputLayer,
    RnnOutputLayer,
    Subsampling1DLayer,
    SubsamplingLayer,
    ZeroPaddingLayer,
)
from dl4jlegacy.nn.interchange.dl4j import names
from dl4jlegacy.nn.optimization import updaters as u
from dl4jlegacy.nn.vertices import combine, shape
from tests.interop.ours import FLAT, RNN_SOFTMAX, SOFTMAX, Ours, graph, images, rows, stack, steps

DENSE = DenseLayer(n_out=5)
CONV = ConvolutionLayer(n_out=4, kernel_size=(3, 3))
UPDATERS = ("nesterovs", "adagrad", "rmsprop", "adam", "adamax", "nadam", "adadelta")


def combined() -> Iterator[Ours]:
    """Every network."""
    yield from _updaters()
    yield from _activations()
    yield from _windows()
    yield from _deep()
    yield from _graphs()


def _updaters() -> Iterator[Ours]:
    """State of updaters behind weights that lie in every order: biases first, gates, means that take no step."""
    for name in UPDATERS:
        row, updater = f"Updater {u.UPDATERS[name].__name__}", u.UPDATERS[name]()
        yield images(row, CONV, name="of images", updater=updater)
        yield steps(row, LSTM(n_out=5), name="of sequences", updater=updater)
        yield rows(row, DENSE, BatchNormalization(), name="behind normalization", updater=updater)
    adam = u.Adam(learning_rate=0.01)
    yield steps("GravesLSTM", GravesLSTM(n_out=5), name="adam", updater=adam)
    yield steps("GravesBidirectionalLSTM", GravesBidirectionalLSTM(n_out=5), name="adam", updater=adam)
    yield rows("AutoEncoder", AutoEncoder(n_out=5), name="adam", updater=adam)
    yield images("FrozenLayer", FrozenLayer(CONV), DENSE, name="of images", updater=adam)
    own = DenseLayer(n_out=5, updater=u.Nesterovs(learning_rate=0.05))
    yield rows("DenseLayer", own, DENSE, name="updaters of its own", updater=adam)
    indices: dict[str, Any] = {"kind": "index", "updater": adam}
    yield stack("EmbeddingLayer", "adam", (EmbeddingLayer(n_in=4, n_out=5), SOFTMAX), None, (1,), indices)


def _activations() -> Iterator[Ours]:
    for name in names.OLD_ACTIVATIONS:
        if name in ("softmax", "rrelu"):
            continue
        small = ConvolutionLayer(n_out=3, kernel_size=(2, 2), activation=name)
        yield images(f"Activation {name}", small, name="of images")
        if name != "cube":  # which grows from time step to time step
            yield steps(f"Activation {name}", LSTM(n_out=4, activation=name), name="of cells")


def _windows() -> Iterator[Ours]:
    for mode in ("truncate", "same"):
        for kernel, stride in (((1, 1), (2, 2)), ((3, 2), (1, 3)), ((2, 4), (2, 1))):
            title = f"{mode} {kernel} {stride}"
            fields: dict[str, Any] = {"kernel_size": kernel, "stride": stride, "convolution_mode": mode}
            yield images("ConvolutionLayer", ConvolutionLayer(n_out=3, **fields), name=title)
    strict = ConvolutionLayer(n_out=3, kernel_size=(2, 3), stride=(2, 2), convolution_mode="strict")
    yield images("ConvolutionLayer", strict, name="strict")
    for title, layer in (
        ("labels behind a window", Convolution1DLayer(n_out=5, kernel_size=3)),
        ("labels behind a stride", Convolution1DLayer(n_out=5, kernel_size=2, stride=2)),
    ):
        yield steps("Convolution1DLayer", layer, name=title)
    pool = Subsampling1DLayer(kernel_size=2, stride=2)
    yield steps("Subsampling1DLayer", LSTM(n_out=5), pool, name="labels behind it")
    yield steps("Subsampling1DLayer", Convolution1DLayer(n_out=4, kernel_size=2), pool, LSTM(n_out=3), name="between")


def _deep() -> Iterator[Ours]:
    relu = DenseLayer(n_out=7, activation="relu")
    yield rows("DenseLayer", DENSE, relu, DENSE, name="three")
    yield rows("BatchNormalization", DENSE, BatchNormalization(eps=1e-3, decay=0.7), relu, name="between")
    yield rows("ActivationLayer", relu, ActivationLayer(activation="softsign"), DENSE, name="between")
    pool = SubsamplingLayer(kernel_size=(2, 2), stride=(1, 1))
    normal = (BatchNormalization(), LocalResponseNormalization(n=3, alpha=0.1))
    yield images("ConvolutionLayer", CONV, pool, ConvolutionLayer(n_out=3, kernel_size=(2, 2)), name="two")
    yield images("ConvolutionLayer", ZeroPaddingLayer(padding=(1, 0, 1, 0)), CONV, *normal, name="all", type=FLAT)
    yield images("ConvolutionLayer", CONV, pool, relu, DENSE, name="and two dense layers", type=FLAT)
    yield images("GlobalPoolingLayer", CONV, GlobalPoolingLayer(pooling_type="max"), relu, name="and dense")
    yield steps("LSTM", LSTM(n_out=4), GravesLSTM(n_out=5), name="and another")
    yield steps("LSTM", LSTM(n_out=4), DENSE, LSTM(n_out=3), name="and dense")
    yield steps("LSTM", DENSE, LSTM(n_out=3), name="behind dense", mask=True)
    yield steps("GravesBidirectionalLSTM", GravesBidirectionalLSTM(n_out=4), LSTM(n_out=3), name="and another")
    last = GlobalPoolingLayer(pooling_type="max")
    yield steps("GravesLSTM", GravesLSTM(n_out=4), last, DENSE, name="pooled", end=SOFTMAX)
    squared = RnnOutputLayer(n_out=2, activation="identity", loss="mse")
    yield steps("RnnOutputLayer", LSTM(n_out=4), end=squared, kind="values", name="mse")
    yield rows(
        "OutputLayer", DENSE, end=OutputLayer(n_out=1, activation="sigmoid", loss="xent"), kind="positive", name="one"
    )


def _graphs() -> Iterator[Ours]:
    end, a = ("out", SOFTMAX, ("v",)), ("da", DENSE, ("a",))
    sizes = (InputType.feed_forward(4), InputType.feed_forward(3))
    merge, add = combine.MergeVertex(), combine.ElementWiseVertex(op="add")
    yield graph("MergeVertex", a, ("v", merge, ("da", "b")), end, inputs=sizes, name="sizes")
    skipped = ("db", DENSE, ("da",))
    yield graph("ElementWiseVertex", a, skipped, ("v", add, ("da", "db")), end, name="residual", inputs=sizes[:1])
    adam = {"updater": "adam"}
    yield graph("MergeVertex", a, ("v", merge, ("da", "b")), end, inputs=sizes, name="adam", conf=adam)
    deep = ("dc", DenseLayer(n_out=6, activation="relu"), ("v",)), ("out", SOFTMAX, ("dc",))
    yield graph("MergeVertex", a, ("v", merge, ("da", "b", "a")), *deep, inputs=sizes, name="three")
    sequences = (InputType.recurrent(4), InputType.recurrent(3))
    lstms = ("l", LSTM(n_out=4), ("a",)), ("m", GravesLSTM(n_out=4), ("b",))
    rnn_end = ("out", RNN_SOFTMAX, ("v",))
    yield graph("MergeVertex", *lstms, ("v", merge, ("l", "m")), rnn_end, inputs=sequences, name="sequences")
    yield graph("ElementWiseVertex", *lstms, ("v", add, ("l", "m")), rnn_end, inputs=sequences, name="sequences")
    last = ("v", shape.LastTimeStepVertex(mask_array_input="a"), ("l",))
    yield graph("LastTimeStepVertex", lstms[0], last, *deep, inputs=sequences[:1], name="and dense")
    image = (InputType.convolutional(6, 5, 2),)
    same = ConvolutionLayer(n_out=2, kernel_size=(3, 3), convolution_mode="same")
    nodes = ("c", same, ("a",)), ("v", add, ("c", "a"))
    yield graph("ElementWiseVertex", *nodes, end, inputs=image, name="residual of images")
    subset = ("s", combine.SubsetVertex(from_index=1, to_index=3), ("v",)), ("out", SOFTMAX, ("s",))
    yield graph("SubsetVertex", ("c", same, ("a",)), ("v", merge, ("c", "a")), *subset, inputs=image, name="of images")
    scaled = ("s", combine.ScaleVertex(scale_factor=-2.0), ("l",)), ("out", RNN_SOFTMAX, ("s",))
    yield graph("ScaleVertex", lstms[0], *scaled, inputs=sequences[:1], name="of sequences")
