"""What a notebook's user meets first: the summary of a network, and a data set that is one batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dl4jlegacy.datasets import DataSet, ListDataSetIterator
from dl4jlegacy.nn import ComputationGraph, DenseLayer, MultiLayerNetwork, NeuralNetConfiguration, OutputLayer, zoo


def networks() -> list[Any]:
    graph = (
        NeuralNetConfiguration.builder()
        .seed(7)
        .graph_builder()
        .add_inputs("x")
        .add_layer("hidden", DenseLayer(n_in=6, n_out=5), "x")
        .add_layer("out", OutputLayer(n_out=3, activation="softmax"), "hidden")
        .set_outputs("out")
        .build()
    )
    return [MultiLayerNetwork(zoo.mlp(6, 3, hidden=(5,), seed=7)), ComputationGraph(graph)]


def test_a_network_tells_its_layers_shapes_and_parameters() -> None:
    for network in networks():
        lines = network.summary().splitlines()
        assert any(line.startswith("total") and f"{6 * 5 + 5 + 5 * 3 + 3}" in line for line in lines)
        assert any("dense" in line and " 35 " in line for line in lines)


def test_a_data_set_for_several_epochs_is_said_to_be_one_batch(caplog: pytest.LogCaptureFixture) -> None:
    data = DataSet(np.ones((40, 6)), np.eye(3)[[0, 1] * 20])
    for network in networks():
        caplog.clear()
        network.fit(data, epochs=1)
        network.fit(ListDataSetIterator(data, 32), epochs=2)
        network.fit(data.take(np.arange(20)), epochs=2)
        assert not caplog.records
        network.fit(data, epochs=20)
        assert "40 examples is one batch, so that each of the 20 epochs makes one update" in caplog.text
        assert "ListDataSetIterator(data_set, 32)" in caplog.text
