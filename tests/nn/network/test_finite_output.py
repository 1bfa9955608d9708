"""What a network answers is finite, or an error that names row and layer: no NaN is passed on as class 0."""

from __future__ import annotations

import contextvars
import gc
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.cli import main
from dl4jlegacy.datasets import DataSet
from dl4jlegacy.errors import ModelError, NotFiniteError
from dl4jlegacy.kernels import load
from dl4jlegacy.nn import (
    LSTM,
    ComputationGraph,
    DenseLayer,
    InputType,
    MultiLayerNetwork,
    NeuralNetConfiguration,
    OutputLayer,
    RnnOutputLayer,
    restore_model,
    write_model,
)
from dl4jlegacy.nn.interchange.dl4j import nd4j, serializer
from dl4jlegacy.system.strict_json import to_json

LARGEST = float(np.finfo(np.float32).max)
kernels = pytest.mark.parametrize("kernels", ["numpy", "numba"])


def network(kernels: str = "numpy", activation: str = "softmax", loss: str = "mcxent") -> MultiLayerNetwork:
    conf = (
        NeuralNetConfiguration.builder().seed(1).list()
        .layer(0, DenseLayer(n_in=3, n_out=4, activation="relu"))
        .layer(1, OutputLayer(n_out=2, activation=activation, loss=loss)).build()
    )  # fmt: skip
    return MultiLayerNetwork(conf, kernels=load(kernels))


def graph(kernels: str) -> ComputationGraph:
    conf = (
        NeuralNetConfiguration.builder().seed(1).graph_builder()
        .add_inputs("in").set_input_types(InputType.feed_forward(3))
        .add_layer("dense", DenseLayer(n_out=4, activation="relu"), "in")
        .add_layer("out", OutputLayer(n_out=2, activation="softmax", loss="mcxent"), "dense")
        .set_outputs("out").build()
    )  # fmt: skip
    return ComputationGraph(conf, kernels=load(kernels))


def features(rows: int = 2000, bad: int = 1500) -> np.ndarray:
    x = np.zeros((rows, 3), np.float32)
    x[bad] = LARGEST
    return x


@kernels
@pytest.mark.parametrize(
    ("weights", "layer"), [("input", "the network's input"), ("dense", "layer 0"), ("out", "layer 1")]
)
def test_the_row_and_the_first_layer_that_is_not_finite_are_named(kernels, weights, layer):
    net, x = network(kernels), features()
    net.params[:] = 2.0
    if weights == "input":
        x[1500, 0] = np.nan
    elif weights == "out":
        net.params[:] = [0.3] * 12 + [0] * 4 + [LARGEST] * 8 + [0] * 2
    labels = np.eye(2, dtype="f")[np.zeros(len(x), int)]
    scores = lambda x: net.score_examples(DataSet(x, labels))  # noqa: E731  # beside the methods
    for answer in (net.output, net.predict, *(() if weights == "input" else (scores,))):
        with pytest.raises(NotFiniteError, match=rf"row 1500 .*{layer}.* is NaN or infinite"):
            answer(x)
    assert np.isfinite(net.output(x[:1500])).all()


@kernels
def test_a_graph_names_row_and_vertex(kernels):
    net = graph(kernels)
    net.params[:] = 2.0
    for answer in (net.output, net.predict, net.outputs):
        with pytest.raises(NotFiniteError, match=r"row 1500 .*'dense' is NaN or infinite"):
            answer(features())


@pytest.mark.parametrize("build", [network, graph])
@pytest.mark.parametrize("asked", ["output", "score"])
def test_what_is_left_of_an_error_can_be_collected_in_any_context(build, asked, monkeypatch):
    """Each thread has a context of its own, and the garbage collector runs in any thread."""
    net, x = build("numpy"), features(4, 2)
    net.params[:] = 2.0
    labels = np.eye(2, dtype="f")[np.zeros(len(x), int)]
    calls = {"output": lambda: net.output(x), "score": lambda: net.gradient_and_score(x, labels, stream=Stream(1))}
    ignored: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: ignored.append(what.exc_value))
    with pytest.raises(NotFiniteError) as caught:
        contextvars.copy_context().run(calls[asked])
    del caught
    gc.collect()
    assert not ignored


def sequences(build: str) -> MultiLayerNetwork | ComputationGraph:
    layers = LSTM(n_in=2, n_out=2), RnnOutputLayer(n_in=2, n_out=2, activation="identity", loss="mse")
    conf = NeuralNetConfiguration.builder()
    if build == "network":
        listed = conf.list().layer(0, layers[0]).layer(1, layers[1])
        return MultiLayerNetwork(listed.build(), kernels=load("numpy"))
    added = conf.graph_builder().add_inputs("in").set_input_types(InputType.recurrent(2))
    added.add_layer("below", layers[0], "in").add_layer("layer 1", layers[1], "below")
    return ComputationGraph(added.set_outputs("layer 1").build(), kernels=load("numpy"))


@pytest.mark.parametrize("build", ["network", "graph"])
def test_a_sequence_network_says_it_step_by_step_too(build):
    """And NumPy warns of nothing: pytest would raise it."""
    net = sequences(build)
    net.params[-6:] = LARGEST
    net.params[:-6] = 1.0
    with pytest.raises(NotFiniteError, match=r"row 0 .*the output"):
        net.rnn_time_step(np.ones((1, 2), "f"))
    with pytest.raises(NotFiniteError, match=r"row 0 .*layer 1"):
        net.output(np.ones((1, 2, 3), "f"))


@pytest.fixture
def saved(tmp_path: Path) -> str:
    net = network()
    net.params[:] = 2.0
    write_model(net, tmp_path / "model.zip")
    return str(tmp_path / "model.zip")


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_the_command_line_prints_no_class_for_what_is_not_finite(command, form, saved, tmp_path, capsys):
    rows = [f"{value},{value},{value}" for value in (1, 2, 3e38, 1)]
    if command == "predict":
        (tmp_path / "x.csv").write_text("\n".join(rows))
    else:
        (tmp_path / "x.csv").write_text("\n".join(f"{row},{i % 2}" for i, row in enumerate(rows)))
    split = ["--split", "all"] if command == "evaluate" else []
    with pytest.raises(SystemExit) as leave:
        main.main(
            [command, saved, *(["--dataset"] if split else []), str(tmp_path / "x.csv"), *split, "--format", form]
        )
    out, err = capsys.readouterr()
    assert leave.value.code == 13
    assert "DL4J-NOTFINITE" in err
    assert "row " in err
    assert out == "" if form == "text" else set(json.loads(out)) == {"error"}


def test_weights_that_the_networks_precision_cannot_hold_are_refused(saved, monkeypatch, tmp_path):
    """A foreign file may hold float64 weights for a float32 network."""
    net = network()
    monkeypatch.setattr(serializer, "_vector_bytes", lambda v: nd4j.write(np.full((1, v.size), 1e300)))
    write_model(net, tmp_path / "large.zip")
    with pytest.raises(ModelError, match=r"large\.zip .* coefficients\.bin holds 26 numbers that float32 cannot"):
        restore_model(tmp_path / "large.zip")


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": {"b": [1.0, float("nan")]}}, r"a\.b\[1\] is nan"),
        ([(1, float("inf"))], r"\[0\]\[1\] is inf"),
        (float("-inf"), "the result is -inf"),
    ],
)
def test_json_is_never_nan(value, place):
    with pytest.raises(NotFiniteError, match=place):
        to_json(value)
