"""Graphs that learn several labels at once: trained, evaluated and scored as a stack of layers is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dl4jlegacy.nn import DenseLayer, MultiLayerConfiguration, NeuralNetConfiguration, OutputLayer
from dl4jlegacy.nn.conf.network import GraphBuilder
from dl4jlegacy.scaleout.conf import Conf


@pytest.fixture(autouse=True)
def plants(here: Path) -> None:
    rng = np.random.default_rng(4)
    x, y = rng.uniform(-1, 1, (2, 80))
    columns = [x, y, 3 * x + y, 2 + y, (x + y > 0.3).astype(int), (x > 0).astype(int)]
    lines = [",".join(f"{value:.6g}" for value in row) for row in zip(*columns, strict=True)]
    (here / "plants.csv").write_text("\n".join(["x,y,height,weight,edible,tall", *lines]) + "\n")


@pytest.mark.parametrize(
    ("words", "activation", "loss", "metric"),
    [
        (("--label", "height,weight"), "identity", "mse", "r2"),
        (("--label", "edible,tall", "--multi-label"), "sigmoid", "xent", "f1"),
    ],
)
def test_a_graph_is_evaluated_and_scored_as_its_layers_in_a_stack_are(
    dl4j: Any, here: Path, words: tuple[str, ...], activation: str, loss: str, metric: str
) -> None:
    hidden, output = DenseLayer(n_in=4, n_out=6), OutputLayer(n_in=6, n_out=2, activation=activation, loss=loss)
    shared = NeuralNetConfiguration(seed=3, activation="tanh")
    builder = GraphBuilder(shared).add_inputs("in").add_layer("hidden", hidden, "in").add_layer("out", output, "hidden")
    graph, stack = builder.set_outputs("out").build(), MultiLayerConfiguration(conf=shared, layers=(hidden, output))
    base = Conf(dataset="plants.csv", epochs=3, batch_size=8, jobs_per_round=2)
    found = []
    for conf in (base.replace(computation_graph_conf=graph), base.replace(multi_layer_conf=stack)):
        (here / "conf.json").write_text(conf.to_json())
        scored = ("--validation", "0.2", "--metric", metric, "--out", "m.zip", "--format", "json")
        report = dl4j.json("train", "conf.json", *words, *scored)
        whole = dl4j.json("evaluate", "m.zip", "--dataset", "plants.csv", "--split", "all")
        predicted = dl4j.json("predict", "m.zip", "plants.csv")["predictions"]
        found.append((report["best"], whole, predicted))
    assert found[0] == found[1] and metric in found[0][1]
