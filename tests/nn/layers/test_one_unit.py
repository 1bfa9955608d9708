"""Layers with one unit and vertices that take one column: what they hand to kernels is a slice (examples, 1)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dl4jlegacy.datasets import DataSet
from dl4jlegacy.kernels import elementary, load
from dl4jlegacy.nn import (
    LSTM,
    RBM,
    ActivationLayer,
    AutoEncoder,
    BatchNormalization,
    Bidirectional,
    CenterLossOutputLayer,
    Convolution1DLayer,
    ConvolutionLayer,
    DenseLayer,
    DropoutLayer,
    ElementWiseVertex,
    EmbeddingLayer,
    ExponentialReconstructionDistribution,
    GlobalPoolingLayer,
    GravesBidirectionalLSTM,
    GravesLSTM,
    InputType,
    L2NormalizeVertex,
    L2Vertex,
    LastTimeStep,
    LocalResponseNormalization,
    MergeVertex,
    MultiLayerConfiguration,
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
    VariationalAutoencoder,
    ZeroPadding1DLayer,
    ZeroPaddingLayer,
)
from dl4jlegacy.nn.conf.network import GraphBuilder
from dl4jlegacy.nn.layers.layer import Layer
from dl4jlegacy.nn.networks import Network, build_network
from dl4jlegacy.nn.optimization.functions import ACTIVATIONS

FUNCTIONS = ("exp", "expm1", "log", "log1p", "tanh", "softplus", "sine_and_cosine")
SHAPES: dict[str, tuple[int, ...]] = {"rows": (1,), "steps": (1, 4), "images": (1, 3, 3)}
KINDS = {"rows": InputType.feed_forward(1), "steps": InputType.recurrent(1), "images": InputType.convolutional(3, 3, 1)}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_elementary_functions_take_columns_and_rows_of_any_matrix(name: str, dtype: Any) -> None:
    function = getattr(elementary, name)
    whole = np.random.default_rng(1).random((6, 4)).astype(dtype)
    views = [whole[:, 1:2], whole[:, 1], whole[::2], whole.T, whole[:, ::-1], whole[:, None, 2:3], whole[2, 3]]
    load("numba")  # the compiled functions are the ones that ask how an array lies
    for view in views:
        found = np.asarray(function(view))
        np.testing.assert_array_equal(found, function(np.ascontiguousarray(view).reshape(view.shape)))
        assert found.shape == (*((2,) if name == "sine_and_cosine" else ()), *view.shape)


def run(network: Network, kind: str, examples: int) -> None:
    """Train a network of one output, and use it in every way."""
    rng = np.random.default_rng(examples)
    x = rng.integers(0, 2, (examples, *SHAPES[kind])).astype(np.float64)
    y = network.output(x)
    data = DataSet(x, rng.integers(0, 2, y.shape).astype(np.float64))
    network.fit(data)
    assert np.isfinite(network.score(data)) and np.isfinite(network.output(x)).all()


def stack(*layers: Layer, kind: str, dtype: str = "float32", **more: Any) -> Network:
    conf = NeuralNetConfiguration(dtype=dtype, seed=1)
    return build_network(MultiLayerConfiguration(conf=conf, layers=layers, input_type=KINDS[kind], **more))


RECURRENT = (LSTM, GravesLSTM, GravesBidirectionalLSTM)


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_every_activation_of_one_unit(activation: str) -> None:
    end = {"activation": "sigmoid", "loss": "xent"}
    for dtype in ("float32", "float64"):
        run(stack(DenseLayer(1, activation), OutputLayer(1, **end), kind="rows", dtype=dtype), "rows", 3)
        run(stack(OutputLayer(1, activation=activation, loss="mse"), kind="rows", dtype=dtype), "rows", 3)
        for layer in RECURRENT:
            for gate in ("sigmoid", "hardsigmoid"):
                unit = layer(n_out=1, activation=activation, gate_activation=gate)
                run(stack(unit, RnnOutputLayer(1, **end), kind="steps", dtype=dtype), "steps", 3)


LAYERS: dict[str, tuple[Any, ...]] = {
    "rows": (
        (DenseLayer(1), ActivationLayer("tanh"), DropoutLayer(drop_out=0.5), BatchNormalization()),
        (RBM(1), AutoEncoder(1)),
        (RBM(1, visible_unit="gaussian", hidden_unit="rectified"), RBM(1, hidden_unit="softmax")),
        (VariationalAutoencoder(1, encoder_layer_sizes=(1,), decoder_layer_sizes=(1,)),),
        (
            VariationalAutoencoder(
                1,
                encoder_layer_sizes=(1,),
                decoder_layer_sizes=(1,),
                reconstruction_distribution=ExponentialReconstructionDistribution(),
            ),
        ),
        (EmbeddingLayer(n_in=2, n_out=1),),
        (CenterLossOutputLayer(n_out=1, activation="sigmoid", loss="xent"),),
    ),
    "steps": (
        (
            Convolution1DLayer(n_out=1, kernel_size=2),
            ZeroPadding1DLayer(1),
            Subsampling1DLayer(kernel_size=2),
            GlobalPoolingLayer(),
        ),
        (Bidirectional(LSTM(n_out=1)), GlobalPoolingLayer()),
        (Bidirectional(GravesLSTM(n_out=1, activation="softsign")), LastTimeStep(LSTM(n_out=1))),
        (DenseLayer(1), LSTM(n_out=1), GlobalPoolingLayer("pnorm")),
    ),
    "images": (
        (ConvolutionLayer(n_out=1, kernel_size=2, activation="mish"), ZeroPaddingLayer(1), BatchNormalization()),
        (ConvolutionLayer(n_out=1, kernel_size=1), LocalResponseNormalization(), SubsamplingLayer(kernel_size=3)),
        (SubsamplingLayer(kernel_size=3, pooling_type="pnorm"), GlobalPoolingLayer()),
    ),
}


@pytest.mark.parametrize("kernels", ["numba", "numpy"])
@pytest.mark.parametrize("kind", LAYERS)
def test_every_layer_with_one_unit(kind: str, kernels: str) -> None:
    for layers in LAYERS[kind]:
        for examples in (1, 2, 3):
            conf = MultiLayerConfiguration(
                conf=NeuralNetConfiguration(seed=1),
                layers=(*layers, OutputLayer(1, activation="sigmoid", loss="xent")) if _has_no_loss(layers) else layers,
                input_type=KINDS[kind],
                pretrain=True,
            )
            run(build_network(conf, load(kernels)), kind, examples)


def _has_no_loss(layers: Any) -> bool:
    return not isinstance(layers[-1], OutputLayer)


@pytest.mark.parametrize("kind", ["rows", "steps"])
def test_vertices_hand_on_single_columns(kind: str) -> None:
    """A subset of one column goes into every kind of vertex and layer, and into losses."""
    for vertex in (
        ScaleVertex(scale_factor=2.0),
        ShiftVertex(shift_factor=1.0),
        L2NormalizeVertex(),
        ElementWiseVertex(op="product"),
        ElementWiseVertex(op="max"),
        MergeVertex(),
        L2Vertex(),
        StackVertex(),
    ):
        b = GraphBuilder(NeuralNetConfiguration(seed=1)).add_inputs("x").set_input_types(KINDS[kind])
        b.add_layer("wide", LSTM(n_out=3) if kind == "steps" else DenseLayer(3, "tanh"), "x")
        several = isinstance(vertex, ElementWiseVertex | MergeVertex | L2Vertex | StackVertex)
        columns = [f"column {number}" for number in range(2 if several else 1)]
        for number, column in enumerate(columns):
            b.add_vertex(column, SubsetVertex(number, number), "wide")
        b.add_vertex("vertex", vertex, *columns)
        if isinstance(vertex, StackVertex):
            b.add_vertex("part", UnstackVertex(from_index=1, stack_size=2), "vertex")
        source = "part" if isinstance(vertex, StackVertex) else "vertex"
        b.add_layer("activation", ActivationLayer("mish"), source)
        end = RnnOutputLayer if kind == "steps" else OutputLayer
        b.add_layer("out", end(1, activation="sigmoid", loss="xent"), "activation")
        for examples in (1, 3):
            run(build_network(b.set_outputs("out").build()), kind, examples)
