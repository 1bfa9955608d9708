"""EmbeddingLayer: a dense layer on one-hot rows, without the zeros."""

from __future__ import annotations

import numpy as np
import pytest

from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.errors import DataError, ShapeError
from dl4jlegacy.kernels import load
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration, NeuralNetConfiguration
from dl4jlegacy.nn.fitting.gradient_check import GradientCheckUtil
from dl4jlegacy.nn.input_type import InputType
from dl4jlegacy.nn.interchange.dl4j.json import to_dl4j
from dl4jlegacy.nn.interchange.dl4j.reader import from_dl4j
from dl4jlegacy.nn.layers.embedding import EmbeddingLayer
from dl4jlegacy.nn.layers.layer import DenseLayer, Layer
from dl4jlegacy.nn.layers.lstm import LSTM
from dl4jlegacy.nn.layers.output import OutputLayer
from dl4jlegacy.nn.layers.rnn_output import RnnOutputLayer
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork

CLASSES = 7


def network(*layers: Layer, dtype: str = "float64", **fields: object) -> MultiLayerNetwork:
    conf = NeuralNetConfiguration(seed=5, activation="tanh", dtype=dtype)
    return MultiLayerNetwork(MultiLayerConfiguration(conf=conf, layers=layers, **fields), kernels=load("numba"))


def indices(rows: int = 9) -> np.ndarray:
    return np.random.default_rng(3).integers(0, CLASSES, (rows, 1)).astype(float)


def test_gradient_is_the_derivative_of_the_score() -> None:
    net = network(EmbeddingLayer(n_in=CLASSES, n_out=4, bias_init=0.1, l2=0.1), OutputLayer(n_out=2))
    labels = np.eye(2)[np.arange(9) % 2]
    report = GradientCheckUtil.check_gradients(net, indices(), labels)
    assert report.passed, report.failures[:3]


def test_it_is_a_dense_layer_on_one_hot_rows() -> None:
    x, labels = indices(), np.eye(2)[np.arange(9) % 2]
    embedded = network(EmbeddingLayer(n_in=CLASSES, n_out=4), OutputLayer(n_out=2))
    dense = network(DenseLayer(n_in=CLASSES, n_out=4), OutputLayer(n_out=2))
    one_hot = np.eye(CLASSES)[x[:, 0].astype(int)]
    assert embedded.params.tobytes() == dense.params.tobytes()
    ours, theirs = (
        net.gradient_and_score(given, labels, Stream.of(1)) for net, given in ((embedded, x), (dense, one_hot))
    )
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-12, atol=1e-15)
    assert ours[1] == pytest.approx(theirs[1], rel=1e-12)


def test_sequences_of_indices_go_into_a_recurrent_layer() -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(0, CLASSES, (4, 1, 6)).astype(float)
    labels = np.eye(2)[rng.integers(0, 2, (4, 6))].transpose(0, 2, 1).copy()
    mask = (np.arange(6)[None] < np.array([6, 2, 5, 3])[:, None]).astype(float)
    net = network(
        EmbeddingLayer(n_in=CLASSES, n_out=3), LSTM(n_out=4), RnnOutputLayer(n_out=2), input_type=InputType.recurrent(1)
    )
    report = GradientCheckUtil.check_gradients(net, x, labels, features_mask=mask)
    assert report.passed, report.failures[:3]
    one_by_one = np.stack([net.rnn_time_step(x[:, :, t]) for t in range(6)], axis=2)
    np.testing.assert_allclose(one_by_one, net.output(x), rtol=1e-12)


@pytest.mark.parametrize("wrong", [-1.0, CLASSES, 2.5])
def test_what_is_no_index_is_named(wrong: float) -> None:
    x = indices()
    x[4] = wrong
    net = network(EmbeddingLayer(n_in=CLASSES, n_out=3, name="words"), OutputLayer(n_out=2))
    with pytest.raises(DataError, match=rf"embedding 'words': row 4 holds {float(wrong)}.*0 to 6"):
        net.output(x)


def test_sizes_that_cannot_be_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"layer 0 \(embedding\): n_in is not set"):
        network(EmbeddingLayer(n_out=3), OutputLayer(n_out=2))
    with pytest.raises(ShapeError, match=r"layer 1 \(embedding\): takes one column of class indices.*feed_forward 5"):
        network(DenseLayer(n_in=2, n_out=5), EmbeddingLayer(n_in=5, n_out=3), OutputLayer(n_out=2))
    conf = MultiLayerConfiguration(layers=(EmbeddingLayer(n_in=9, n_out=3), OutputLayer()))
    assert conf.with_sizes(1, 4).stages()[1].layer.n_out == 4
    with pytest.raises(ShapeError, match="the data has 5 feature columns"):
        conf.with_sizes(5, 4)


@pytest.mark.parametrize("version", ["0.9.1", "1.0.0"])
def test_it_survives_dl4js_json(version: str) -> None:
    net = network(EmbeddingLayer(n_in=CLASSES, n_out=4), OutputLayer(n_out=2), dtype="float32")
    copy = MultiLayerNetwork(from_dl4j(to_dl4j(net.conf, version=version)))
    copy.set_params(net.params)
    np.testing.assert_allclose(copy.output(indices()), net.output(indices()), rtol=1e-6)
