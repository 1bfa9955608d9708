"""Data that do not fit a network are refused before anything is trained: by the runner, and so by every command."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dl4jlegacy import ActorNetworkRunner, Conf
from dl4jlegacy.datasets import DataSet, ListDataSetIterator, ListMultiDataSetIterator, MultiDataSet
from dl4jlegacy.errors import ConfError, DataError, ShapeError
from dl4jlegacy.nn import (
    LSTM,
    Convolution1DLayer,
    DenseLayer,
    GlobalPoolingLayer,
    InputType,
    LastTimeStepVertex,
    MultiLayerConfiguration,
    NeuralNetConfiguration,
    OutputLayer,
    RnnOutputLayer,
    StackVertex,
    UnstackVertex,
)
from dl4jlegacy.nn.conf.network import ComputationGraphConfiguration, GraphBuilder
from dl4jlegacy.nn.layers.layer import Layer

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
    setup(DataSet(ROWS, ONE_HOT), DenseLayer(n_out=4), out(loss="sparse_mcxent"))
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
    with pytest.raises(ConfError, match="the network has 3 outputs, the data set 2"):
        setup(DataSet(ROWS, ONE_HOT[:, :2]), DenseLayer(n_out=4), out(loss="sparse_mcxent"))
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


# -- graphs ----------------------------------------------------------------------------------------------------------


def rows_and_sequences(
    rows_end: Layer | None = None, steps_end: Layer | None = None, *, kernel: int = 0
) -> ComputationGraphConfiguration:
    """Two inputs, "rows" of 6 values and "steps" of 2 a time step; outputs "class" and "each", one for every step."""
    conf = NeuralNetConfiguration(activation="tanh")
    b = GraphBuilder(conf).add_inputs("rows", "steps")
    b.set_input_types(InputType.feed_forward(6), InputType.recurrent(2))
    b.add_layer("lstm", LSTM(n_out=3), "steps")
    if kernel:
        b.add_layer("conv", Convolution1DLayer(n_out=3, kernel_size=kernel), "lstm")
    b.add_vertex("last", LastTimeStepVertex(mask_array_input="steps"), "lstm")
    b.add_layer("class", rows_end or out(), "rows", "last")
    b.add_layer("each", steps_end or RnnOutputLayer(n_out=2, activation="softmax"), "conv" if kernel else "lstm")
    return b.set_outputs("class", "each").build()


STEPS = np.ones((12, 2, 5), np.float32)
EACH = np.full((12, 2, 5), 0.5, np.float32)


def set_up(conf: ComputationGraphConfiguration, data: MultiDataSet | DataSet) -> None:
    iterator: Any = (
        ListMultiDataSetIterator(data, 4) if isinstance(data, MultiDataSet) else ListDataSetIterator(data, 4)
    )
    with ActorNetworkRunner("master", iterator) as runner:
        runner.setup(Conf(computation_graph_conf=conf, workers=1, run="fits"))


def test_graphs_whose_data_fit_are_accepted() -> None:
    set_up(rows_and_sequences(), MultiDataSet([ROWS, STEPS], [ONE_HOT, EACH]))
    set_up(rows_and_sequences(kernel=2), MultiDataSet([ROWS, STEPS], [ONE_HOT, EACH[:, :, :4]]))
    indices = np.zeros((12, 1), np.float32)
    set_up(rows_and_sequences(out(loss="sparse_mcxent")), MultiDataSet([ROWS, STEPS], [indices, EACH]))
    masks: Any = [None, np.ones((12, 5), np.float32)]
    set_up(rows_and_sequences(), MultiDataSet([ROWS, STEPS], [ONE_HOT, EACH], masks, masks))


@pytest.mark.parametrize(
    ("features", "labels", "kernel", "error", "message"),
    [
        ([ROWS], [ONE_HOT, EACH], 0, ShapeError, r"1 arrays of features for \['rows', 'steps'\]; give one for each"),
        ([ROWS, STEPS], [ONE_HOT], 0, ShapeError, r"1 arrays of labels for \['class', 'each'\]; give one for each"),
        (
            [ROWS[:, :4], STEPS],
            [ONE_HOT, EACH],
            0,
            ShapeError,
            r"features have shape \(4, 4\), network input 'rows' takes feed_forward 6: \(examples, 6\)",
        ),
        (
            [ROWS, SEQUENCES],
            [ONE_HOT, EACH],
            0,
            ShapeError,
            r"features have shape \(4, 6, 5\), network input 'steps' takes recurrent 2xany: \(examples, 2, time st",
        ),
        (
            [ROWS, STEPS],
            [ONE_HOT[:, :2], EACH],
            0,
            ShapeError,
            r"labels have shape \(4, 2\), network output 'class' \(output\) has n_out=3 and wants \(4, 3\)",
        ),
        (
            [ROWS, STEPS],
            [ONE_HOT, EACH[:, :, :4]],
            0,
            ShapeError,
            r"labels have shape \(4, 2, 4\), network output 'each' \(rnn_output\) has n_out=2 and wants \(4, 2, 5\)",
        ),
        ([ROWS, STEPS], [ONE_HOT, EACH], 2, ShapeError, r"\(4, 2, 5\), network output 'each'.* wants \(4, 2, 4\)"),
        (
            [ROWS, STEPS],
            [ONE_HOT, EACH[:, :, 0]],
            0,
            ShapeError,
            r"\(4, 2\), network output 'each'.* wants \(4, 2, 5\)",
        ),
        (
            [ROWS, STEPS],
            [ONE_HOT, 3 * EACH],
            0,
            DataError,
            r"network output 'each' \(rnn_output\): loss 'mcxent' wants labels that are from 0 to 1, .* has 1.5",
        ),
    ],
)
def test_every_input_and_output_of_a_graph_is_looked_at(
    features: Any, labels: Any, kernel: int, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        set_up(rows_and_sequences(kernel=kernel), MultiDataSet(features, labels))


def test_losses_of_a_graph_need_fitting_activations_and_labels() -> None:
    data = MultiDataSet([ROWS, STEPS], [ONE_HOT, EACH])
    with pytest.raises(ConfError, match=r"network output 'class' \(output\): loss 'xent' takes pro.*'relu'"):
        set_up(rows_and_sequences(out(loss="xent", activation="relu")), data)
    with pytest.raises(DataError, match=r"'class' .*'hinge' wants labels that are -1 or 1, example 0 has 0.0"):
        set_up(rows_and_sequences(out(loss="hinge", activation="identity")), data)
    with pytest.raises(ConfError, match=r"network output 'class' \(dense\) has no loss"):
        set_up(rows_and_sequences(DenseLayer(n_out=3)), data)


def test_a_graph_of_several_inputs_wants_several_arrays_and_a_stack_of_layers_one() -> None:
    with pytest.raises(ShapeError, match=r"1 arrays of features for \['rows', 'steps'\]"):
        set_up(rows_and_sequences(), DataSet(ROWS, ONE_HOT))
    network = MultiLayerConfiguration(layers=(out(n_in=6),))
    iterator = ListMultiDataSetIterator(MultiDataSet([ROWS], [ONE_HOT]), 4)
    with (
        ActorNetworkRunner("master", iterator) as runner,
        pytest.raises(ConfError, match="takes DataSets, and batch 0 is Multi"),
    ):
        runner.setup(Conf(multi_layer_conf=network, run="fits"))


def test_examples_that_vertices_put_together_are_counted() -> None:
    b = GraphBuilder(NeuralNetConfiguration(activation="tanh")).add_inputs("a", "b")
    b.set_input_types(InputType.feed_forward(6), InputType.feed_forward(6))
    b.add_vertex("both", StackVertex(), "a", "b").add_layer("shared", DenseLayer(n_out=4), "both")
    b.add_vertex("one", UnstackVertex(from_index=1, stack_size=2), "shared")
    set_up(b.add_layer("end", out(), "one").set_outputs("end").build(), MultiDataSet([ROWS, ROWS], [ONE_HOT]))
    b = GraphBuilder(NeuralNetConfiguration(activation="tanh")).add_inputs("a", "b")
    b.set_input_types(InputType.feed_forward(6), InputType.feed_forward(6))
    together = b.add_vertex("both", StackVertex(), "a", "b").add_layer("end", out(), "both").set_outputs("end").build()
    with pytest.raises(ShapeError, match=r"labels have shape \(4, 3\), network output 'end'.* wants \(8, 3\)"):
        set_up(together, MultiDataSet([ROWS, ROWS], [ONE_HOT]))
