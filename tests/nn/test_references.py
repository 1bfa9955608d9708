"""Outputs and gradients in float32 against formulas written out in ``references``, within 1e-5, for both kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.kernels import load
from dl4jlegacy.nn import (
    LSTM,
    RBM,
    ActivationLayer,
    AutoEncoder,
    BatchNormalization,
    Bidirectional,
    CenterLossOutputLayer,
    ComputationGraph,
    Convolution1DLayer,
    ConvolutionLayer,
    DenseLayer,
    ElementWiseVertex,
    EmbeddingLayer,
    GlobalPoolingLayer,
    GravesBidirectionalLSTM,
    GravesLSTM,
    InputType,
    L2NormalizeVertex,
    L2Vertex,
    LastTimeStep,
    LocalResponseNormalization,
    LossLayer,
    MergeVertex,
    MultiLayerConfiguration,
    MultiLayerNetwork,
    NeuralNetConfiguration,
    OutputLayer,
    RnnOutputLayer,
    ScaleVertex,
    ShiftVertex,
    StackVertex,
    Subsampling1DLayer,
    SubsamplingLayer,
    SubsetVertex,
    UnstackVertex,
    ZeroPaddingLayer,
)
from tests.support import references as r

EXAMPLES, STEPS, H = 19, 7, 1e-40  # 19: a tile of sixteen, and three
CLOSE = 1e-5
KERNELS = ("numpy", "numba")
IMAGES, SEQUENCES, ROWS = InputType.convolutional(8, 7, 2), InputType.recurrent(3), InputType.feed_forward(6)
RNG = np.random.default_rng(11)
MASK = (np.arange(STEPS) < RNG.integers(1, STEPS + 1, EXAMPLES)[:, None]).astype(np.float32)

Layers = list[tuple[Any, r.Reference]]
SOFTMAX = (OutputLayer(n_out=3, activation="softmax"), r.dense("softmax"))
STEPWISE = (RnnOutputLayer(n_out=3, activation="softmax"), r.dense("softmax"))


def conv(activation: str = "tanh", **fields: Any) -> Any:
    given = {"kernel_size": (3, 2), "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)} | fields
    same = given.get("convolution_mode") == "same"
    shown = [given[name] for name in ("kernel_size", "stride", "padding", "dilation")]
    return ConvolutionLayer(n_out=4, activation=activation, **given), r.conv(activation, *shown, same=same)


def pooling(kind: str, kernel: Any, stride: Any, pad: Any = (0, 0), **mode: Any) -> Any:
    layer = SubsamplingLayer(pooling_type=kind, kernel_size=kernel, stride=stride, padding=pad, pnorm=3, **mode)
    return layer, r.pooling(kind, kernel, stride, pad, same=bool(mode), norm=3)


def seq(layer: Any, reference: Any) -> Layers:
    return [(layer, reference), STEPWISE]


ON_IMAGES: dict[str, Layers] = {
    "convolution": [conv(), SOFTMAX],
    "convolution of convolution": [conv("relu"), conv("sigmoid", stride=(2, 1), padding=(1, 2)), SOFTMAX],
    "same, dilated": [conv("tanh", convolution_mode="same"), conv("softplus", dilation=(2, 3)), SOFTMAX],
    **{f"pooling {kind}": [conv(), pooling(kind, (3, 2), (2, 1), (1, 1)), conv(), SOFTMAX]
       for kind in ("max", "avg", "sum", "pnorm")},
    "pooling same": [conv(), pooling("avg", (2, 2), (2, 2), convolution_mode="same"), SOFTMAX],
    "pooling 2 x 2": [conv("relu", kernel_size=(3, 4)), pooling("max", (2, 2), (2, 2)), SOFTMAX],
    "batch normalization": [conv(), (BatchNormalization(eps=1e-3), r.batch_norm(1e-3)), conv("relu"), SOFTMAX],
    "local response normalization": [
        conv(),
        (LocalResponseNormalization(k=1.5, n=3, alpha=0.3, beta=0.6), r.response_norm(1.5, 3, 0.3, 0.6)),
        conv(),
        SOFTMAX,
    ],
    "zero padding": [conv(), (ZeroPaddingLayer(padding=(1, 0, 2, 3)), r.zero_padding(1, 0, 2, 3)), conv(), SOFTMAX],
    "activation": [conv("identity"), (ActivationLayer(activation="softplus"), r.elementwise("softplus")), SOFTMAX],
    **{f"global {kind}": [conv(), (GlobalPoolingLayer(pooling_type=kind, pnorm=3), r.global_pooling(kind, 3)), SOFTMAX]
       for kind in ("max", "avg", "sum", "pnorm")},
}  # fmt: skip

ON_ROWS: dict[str, Layers] = {
    "dense": [(DenseLayer(n_out=5, activation="tanh"), r.dense("tanh")), SOFTMAX],
    "rbm": [(RBM(n_out=5), r.dense("sigmoid")), SOFTMAX],
    "autoencoder": [(AutoEncoder(n_out=5, activation="tanh"), r.dense("tanh")), SOFTMAX],
    "batch normalization": [(DenseLayer(n_out=5, activation="tanh"), r.dense("tanh")),
                            (BatchNormalization(), r.batch_norm(1e-5)), SOFTMAX],
    "loss layer": [(DenseLayer(n_out=3, activation="identity"), r.dense("identity")),
                   (LossLayer(activation="softmax"), r.elementwise("softmax"))],
}  # fmt: skip

ON_SEQUENCES: dict[str, Layers] = {
    "lstm": [(LSTM(n_out=5), r.lstm), *seq(LSTM(n_out=18), r.lstm)],
    "graves lstm": [(GravesLSTM(n_out=5), r.lstm), *seq(GravesLSTM(n_out=4), r.lstm)],
    "graves both ways": [(LSTM(n_out=4), r.lstm), *seq(GravesBidirectionalLSTM(n_out=5), r.both_ways("F", "B", "add"))],
    **{f"both ways {mode}": [(LSTM(n_out=4), r.lstm),
                             *seq(Bidirectional(layer=LSTM(n_out=5), mode=mode), r.both_ways("^f", "^b", mode))]
       for mode in ("concat", "add", "mul", "average")},
    "last step": [(LastTimeStep(layer=GravesLSTM(n_out=5)), r.last_step(r.lstm)), SOFTMAX],
    "dense at every step": [(LSTM(n_out=4), r.lstm), *seq(DenseLayer(n_out=5, activation="tanh"), r.dense("tanh"))],
    "conv1d": [(LSTM(n_out=4), r.lstm),
               *seq(Convolution1DLayer(n_out=4, kernel_size=3, padding=1), r.conv1d("tanh", 3, pad=1))],
    "conv1d same": seq(Convolution1DLayer(n_out=4, kernel_size=2, dilation=2, convolution_mode="same"),
                       r.conv1d("tanh", 2, dilation=2, same=True)),
    **{f"pooling1d {kind}": [(LSTM(n_out=4), r.lstm),
                             *seq(Subsampling1DLayer(kernel_size=3, stride=1, padding=1, pooling_type=kind, pnorm=3),
                                  r.pooling1d(kind, 3, 1, 1, norm=3))] for kind in ("max", "avg", "sum", "pnorm")},
    **{f"global {kind}": [(LSTM(n_out=4), r.lstm),
                          (GlobalPoolingLayer(pooling_type=kind, pnorm=3), r.global_pooling(kind, 3)), SOFTMAX]
       for kind in ("max", "avg", "sum", "pnorm")},
}  # fmt: skip


def one_hot(shape: tuple[int, ...]) -> np.ndarray:
    labels = np.eye(3, dtype=np.float32)[np.random.default_rng(3).integers(0, 3, shape)]
    return np.ascontiguousarray(np.moveaxis(labels, -1, 1))


def agree(found: Any, wanted: Any, what: str) -> None:
    wanted = np.asarray(wanted)
    np.testing.assert_allclose(found, wanted, rtol=CLOSE, atol=CLOSE * float(np.abs(wanted).max()), err_msg=what)


Table = dict[str, np.ndarray]


def check_gradients(
    table: Table, score: Callable[[r.Params], Any], gradients: dict[str, Table], skip: Any = ()
) -> None:
    """Compare up to a dozen entries of each kernels' gradients with the derivative of ``score``."""
    params = {name: view.astype(complex) for name, view in table.items()}
    for name, values in params.items():
        if name.split("_")[-1] in skip:
            continue
        chosen = np.unique(np.linspace(0, values.size - 1, 12).astype(int))
        wanted = []
        for place in np.array(np.unravel_index(chosen, values.shape)).T:
            values[tuple(place)] += 1j * H
            wanted.append(score(params).imag / H)
            values[tuple(place)] -= 1j * H
        for kernels, gradient in gradients.items():
            largest = float(np.abs(gradient[name]).max())
            found = np.asarray(gradient[name])[np.unravel_index(chosen, values.shape)]
            np.testing.assert_allclose(found, wanted, rtol=CLOSE, atol=CLOSE * largest, err_msg=f"{kernels}: {name}")


def tables(net: Any, gradient: np.ndarray) -> tuple[Table, Table]:
    """Return parameters and gradient by name."""
    params = {name: view.copy() for name, view in net.param_table.items()}
    kept = net.params.copy()
    net.params[...] = gradient
    grads = {name: view.copy() for name, view in net.param_table.items()}
    net.params[...] = kept
    return params, grads


def network(layers: Layers, input_type: Any, kernels: str) -> MultiLayerNetwork:
    conf = NeuralNetConfiguration(activation="tanh", seed=3)
    whole = MultiLayerConfiguration(conf=conf, layers=tuple(layer for layer, _ in layers), input_type=input_type)
    net = MultiLayerNetwork(whole, kernels=load(kernels))
    noise = np.random.default_rng(5)
    for name, view in net.param_table.items():
        if not name.endswith(("_mean", "_var")):
            view += 0.2 * noise.standard_normal(view.shape)
    return net


def run(layers: Layers, params: r.Params, x: np.ndarray, mask: np.ndarray | None) -> r.Value:
    y: r.Value = (x.astype(complex), mask)
    for index, (_, reference) in enumerate(layers):
        own = {name.partition("_")[2]: value for name, value in params.items() if name.partition("_")[0] == str(index)}
        y = reference(own, *y)
    return y


def compare(layers: Layers, input_type: Any, mask: np.ndarray | None = None) -> None:
    """Compare both kernels' outputs, score and gradients with the formulas, which are worked out once."""
    nets = [network(layers, input_type, kernels) for kernels in KERNELS]
    shape = input_type.shape if input_type is not SEQUENCES else (3, STEPS)
    x = np.random.default_rng(1).standard_normal((EXAMPLES, *shape), dtype=np.float32)
    y, left = run(layers, nets[0].param_table, x, mask)
    labels = one_hot((EXAMPLES, y.shape[2]) if y.ndim == 3 else (EXAMPLES,))
    if not any(isinstance(layer, BatchNormalization) for layer, _ in layers):  # elsewhere its running statistics count
        on = r.shaped(left) if y.ndim == 3 else 1.0
        for net in nets:
            agree(net.output(x, mask) * on, y.real * on, "output")

    def score_of(given: r.Params) -> Any:
        shown, on = run(layers, given, x, mask)
        return r.cross_entropy(shown, labels, on)

    params, gradients = nets[0].param_table, {}
    for kernels, net in zip(KERNELS, nets, strict=True):
        gradient, score = net.gradient_and_score(x, labels, Stream.of(1), mask)
        own, grads = tables(net, gradient.copy())
        assert all(np.array_equal(own[name], params[name]) for name in params)
        agree(score, score_of({name: view.astype(complex) for name, view in own.items()}).real, "score")
        gradients[kernels] = grads
    check_gradients(params, score_of, gradients, skip=("mean", "var", "vb"))


both_kernels = pytest.mark.parametrize("kernels", KERNELS)


@pytest.mark.parametrize("name", ON_IMAGES)
@pytest.mark.everyday(8)
def test_image_layers_are_their_formulas(name: str) -> None:
    compare(ON_IMAGES[name], IMAGES)


@pytest.mark.parametrize("name", ON_ROWS)
def test_layers_of_rows_are_their_formulas(name: str) -> None:
    compare(ON_ROWS[name], ROWS)


@pytest.mark.parametrize("name", ON_SEQUENCES)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.everyday(10)
def test_sequence_layers_are_their_formulas(name: str, masked: bool) -> None:
    compare(ON_SEQUENCES[name], SEQUENCES, MASK if masked else None)


@both_kernels
def test_embeddings_are_rows_of_their_matrix(kernels: str) -> None:
    layers: Layers = [
        (EmbeddingLayer(n_in=7, n_out=4, activation="identity"), r.embedding),
        (LSTM(n_out=5), r.lstm),
        STEPWISE,
    ]
    net = network(layers, InputType.recurrent(1), kernels)
    x = np.random.default_rng(1).integers(0, 7, (EXAMPLES, 1, STEPS)).astype(np.float32)
    labels = one_hot((EXAMPLES, STEPS))
    gradient, _ = net.gradient_and_score(x, labels, Stream.of(1), MASK)
    params, grads = tables(net, gradient.copy())
    agree(net.output(x, MASK) * MASK[:, None], run(layers, params, x, MASK)[0].real * MASK[:, None], "output")

    def score(given: r.Params) -> Any:
        return r.cross_entropy(run(layers, given, x, MASK)[0], labels, MASK)

    check_gradients(params, score, {kernels: grads})


@both_kernels
def test_center_loss_draws_features_to_the_centers_of_their_class(kernels: str) -> None:
    given = CenterLossOutputLayer(n_out=3, activation="softmax", lambda_=0.3, alpha=0.1)
    layers: Layers = [(DenseLayer(n_out=5, activation="tanh"), r.dense("tanh")), (given, r.dense("softmax"))]
    net = network(layers, ROWS, kernels)
    x, labels = np.random.default_rng(1).standard_normal((EXAMPLES, 6), dtype=np.float32), one_hot((EXAMPLES,))
    gradient, _ = net.gradient_and_score(x, labels, Stream.of(1))
    params, grads = tables(net, gradient.copy())

    def score(given: r.Params) -> Any:
        features = run(layers[:1], given, x, None)[0]
        away = features - labels @ given["1_centers"]
        return r.cross_entropy(run(layers, given, x, None)[0], labels, None) + 0.15 * (away**2).sum() / EXAMPLES

    check_gradients(params, score, {kernels: grads}, skip=("centers",))
    features = run(layers[:1], params, x, None)[0].real
    for k in range(3):
        members = features[labels[:, k] == 1]
        step = 0.1 * (params["1_centers"][k] - members).sum(axis=0) / (1 + len(members))
        agree(grads["1_centers"][k], step, f"center {k}")


VERTICES: dict[str, tuple[Any, Callable[[np.ndarray, np.ndarray], np.ndarray]]] = {
    "merge": (MergeVertex(), lambda a, b: np.concatenate([a, b], axis=1)),
    "add": (ElementWiseVertex(op="add"), lambda a, b: a + b),
    "subtract": (ElementWiseVertex(op="subtract"), lambda a, b: a - b),
    "product": (ElementWiseVertex(op="product"), lambda a, b: a * b),
    "average": (ElementWiseVertex(op="average"), lambda a, b: (a + b) / 2),
    "max": (ElementWiseVertex(op="max"), lambda a, b: np.where(a.real > b.real, a, b)),
    "distance": (L2Vertex(eps=1e-8), lambda a, b: np.sqrt(((a - b) ** 2).reshape(len(a), -1).sum(1, keepdims=True))),
    "subset": (SubsetVertex(from_index=1, to_index=2), lambda a, b: a[:, 1:3]),
    "scale": (ScaleVertex(scale_factor=-1.5), lambda a, b: -1.5 * a),
    "shift": (ShiftVertex(shift_factor=0.4), lambda a, b: a + 0.4),
    "unit": (
        L2NormalizeVertex(),
        lambda a, b: a / np.sqrt((a**2).reshape(len(a), -1).sum(1)).reshape(-1, *[1] * (a.ndim - 1)),
    ),
    "stack": (StackVertex(), lambda a, b: b),
}


SINGLE = ("subset", "scale", "shift", "unit")


def vertex_graph(name: str, layer: Any, kind: Any, kernels: str) -> ComputationGraph:
    """Return layers "a" and (if the vertex takes two) "b", the vertex, and an output layer."""
    sides = ("a",) if name in SINGLE else ("a", "b")
    graph = NeuralNetConfiguration.builder().seed(3).activation("tanh").graph_builder().add_inputs("in")
    graph.set_input_types(kind)
    for side in sides:
        graph.add_layer(side, layer, "in")
    graph.add_vertex("v", VERTICES[name][0], *sides)
    if name == "stack":
        graph.add_vertex("part", UnstackVertex(from_index=1, stack_size=2), "v")
    behind = "part" if name == "stack" else "v"
    graph.add_layer("out", OutputLayer(n_out=3, activation="softmax"), behind).set_outputs("out")
    net = ComputationGraph(graph.build(), kernels=load(kernels))
    net.params[...] += 0.2 * np.random.default_rng(5).standard_normal(net.num_params).astype(np.float32)
    return net


@pytest.mark.parametrize("kind", [ROWS, IMAGES], ids=["rows", "images"])
@pytest.mark.parametrize("name", VERTICES)
def test_vertices_are_their_formulas(name: str, kind: Any) -> None:
    layer, reference = conv() if kind is IMAGES else (DenseLayer(n_out=4, activation="tanh"), r.dense("tanh"))
    nets = [vertex_graph(name, layer, kind, kernels) for kernels in KERNELS]
    labels = one_hot((EXAMPLES,))
    x = np.random.default_rng(1).standard_normal((EXAMPLES, *kind.shape), dtype=np.float32)

    def output(given: r.Params) -> np.ndarray:
        def own(part: str) -> r.Params:
            return {n.partition("_")[2]: value for n, value in given.items() if n.startswith(f"{part}_")}

        a, b = (reference(own(side), x.astype(complex), None)[0] if own(side) else np.empty(0) for side in ("a", "b"))
        return SOFTMAX[1](own("out"), VERTICES[name][1](a, b), None)[0]

    params, gradients = nets[0].param_table, {}
    for kernels, net in zip(KERNELS, nets, strict=True):
        _, gradients[kernels] = tables(net, net.gradient_and_score([x], [labels], Stream.of(1))[0].copy())
        agree(net.output([x]), output(params).real, "output")
    check_gradients(params, lambda given: r.cross_entropy(output(given), labels, None), gradients)
