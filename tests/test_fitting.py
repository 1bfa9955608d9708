"""Data that do not fit a network are refused before anything is trained: by the runner, and so by every command."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dl4jlegacy import ActorNetworkRunner, Conf
from dl4jlegacy.datasets import DataSet, ListDataSetIterator
from dl4jlegacy.errors import ConfError, DataError, ShapeError
from dl4jlegacy.nn import (
    LSTM,
    DenseLayer,
    GlobalPoolingLayer,
    InputType,
    MultiLayerConfiguration,
    NeuralNetConfiguration,
    OutputLayer,
    RnnOutputLayer,
)
from dl4jlegacy.nn.layers import Layer

ROWS = np.random.default_rng(1).random((12, 6), dtype=np.float32)
ONE_HOT = np.eye(3, dtype=np.float32)[np.arange(12) % 3]
SEQUENCES, STEP_LABELS = np.ones((12, 6, 5), np.float32), np.zeros((12, 3, 5), np.float32)


def setup(data: DataSet, *layers: Layer, input_type: Any = None, workers: int = 1) -> None:
    """Set a run up, no more."""
    network = MultiLayerConfiguration(
        conf=NeuralNetConfiguration(activation="tanh"),
        layers=layers,
        input_type=input_type or InputType.feed_forward(6),
    )
    with ActorNetworkRunner("master", ListDataSetIterator(data, 4)) as runner:
        runner.setup(Conf(multi_layer_conf=network, workers=workers, epochs=1, run="fits"))


def out(**fields: Any) -> OutputLayer:
    return OutputLayer(**{"n_out": 3, "activation": "softmax"} | fields)


def test_what_fits_is_accepted() -> None:
    setup(DataSet(ROWS, ONE_HOT), DenseLayer(n_out=4), out())
    setup(DataSet(ROWS, 2 * ONE_HOT - 1), DenseLayer(n_out=4), out(loss="hinge", activation="identity"))
    setup(DataSet(ROWS, np.float32([[i % 3] for i in range(12)])), DenseLayer(n_out=4), out(loss="sparse_mcxent"))
    setup(DataSet(ROWS, -5 * ONE_HOT), DenseLayer(n_out=4), out(loss="mse", activation="identity"))


@pytest.mark.parametrize(
    ("labels", "fields", "message"),
    [
        (2 * ONE_HOT, {}, r"layer 1 \(output\): loss 'mcxent' wants labels that are from 0 to 1, example \d+ has 2.0"),
        (
            ONE_HOT,
            {"loss": "hinge", "activation": "identity"},
            "loss 'hinge' wants labels that are -1 or 1, .* has 0.0",
        ),
        (-ONE_HOT, {"loss": "poisson", "activation": "softplus"}, "'poisson' wants labels that are not negative"),
        (-ONE_HOT, {"loss": "msle", "activation": "relu"}, "'msle' wants labels that are above -1"),
        (
            np.full((12, 1), 3, np.float32),
            {"loss": "sparse_mcxent"},
            "'sparse_mcxent' wants labels that are a whole number from 0 to 2, example 0 has 3.0",
        ),
    ],
)
def test_labels_that_the_loss_has_no_meaning_for_are_named(labels: Any, fields: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        setup(DataSet(ROWS, labels), DenseLayer(n_out=4), out(**fields))


@pytest.mark.parametrize("loss", ["mcxent", "negativeloglikelihood", "xent", "sparse_mcxent"])
@pytest.mark.parametrize("activation", ["relu", "identity", "tanh"])
def test_losses_of_probabilities_need_an_activation_that_gives_them(loss: str, activation: str) -> None:
    labels = np.zeros((12, 1), np.float32) if loss == "sparse_mcxent" else ONE_HOT
    with pytest.raises(ConfError, match=rf"'{loss}' takes probabilities, which activation '{activation}' does not"):
        setup(DataSet(ROWS, labels), DenseLayer(n_out=4), out(loss=loss, activation=activation))


def test_shapes_that_do_not_fit_are_named_with_the_layer() -> None:
    with pytest.raises(ShapeError, match=r"layer 1 \(output\) has n_out=3 and wants \(4, 1\)"):
        setup(DataSet(ROWS, ONE_HOT), DenseLayer(n_out=4), out(loss="sparse_mcxent"))
    with pytest.raises(ConfError, match="the network has 6 inputs, the data set 7"):
        setup(DataSet(np.ones((12, 7), np.float32), ONE_HOT), DenseLayer(n_out=4), out())
    recurrent = InputType.recurrent(6)
    with pytest.raises(ShapeError, match=r"layer 0 \(lstm\) takes recurrent 6xany: \(examples, 6, time steps\)"):
        setup(DataSet(ROWS, ONE_HOT), LSTM(n_out=4), GlobalPoolingLayer(), out(), input_type=recurrent)
    with pytest.raises(ShapeError, match=r"labels have shape \(4, 3, 5\), layer 2 \(output\).* wants \(4, 3\)"):
        setup(DataSet(SEQUENCES, STEP_LABELS), LSTM(n_out=4), GlobalPoolingLayer(), out(), input_type=recurrent)
    stepwise = RnnOutputLayer(n_out=3, activation="softmax")
    with pytest.raises(ShapeError, match=r"labels have shape \(4, 3\), layer 1 \(rnn_output\).* wants \(4, 3, 5\)"):
        setup(DataSet(SEQUENCES, ONE_HOT), LSTM(n_out=4), stepwise, input_type=recurrent)
    with pytest.raises(DataError, match=r"features mask has shape \(12, 4\).*expected \(12, 5\)"):
        DataSet(SEQUENCES, STEP_LABELS, np.ones((12, 4), np.float32))
