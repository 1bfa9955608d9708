"""Transfer learning: what is kept, what begins anew, what stays frozen, for stacks and graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dl4jlegacy.datasets import DataSet, ListDataSetIterator, load
from dl4jlegacy.errors import ConfError, ShapeError
from dl4jlegacy.nn.conf.network import GraphBuilder, MultiLayerConfiguration, NeuralNetConfiguration
from dl4jlegacy.nn.fitting.transfer_learning import FineTuneConfiguration, TransferLearning
from dl4jlegacy.nn.graph.computation_graph import ComputationGraph
from dl4jlegacy.nn.input_type import InputType
from dl4jlegacy.nn.interchange.dl4j.serializer import restore_model, write_model
from dl4jlegacy.nn.layers.convolution import ConvolutionLayer
from dl4jlegacy.nn.layers.layer import DenseLayer
from dl4jlegacy.nn.layers.normalization import BatchNormalization
from dl4jlegacy.nn.layers.output import OutputLayer
from dl4jlegacy.nn.layers.subsampling import SubsamplingLayer
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.optimization.updaters import Adam, Sgd
from dl4jlegacy.nn.vertices.combine import ElementWiseVertex, MergeVertex


def stack() -> MultiLayerNetwork:
    conf = NeuralNetConfiguration(seed=1, activation="relu", updater=Adam(learning_rate=0.005))
    layers = (
        ConvolutionLayer(kernel_size=(3, 3), n_out=4),
        BatchNormalization(),
        SubsamplingLayer(kernel_size=(2, 2), stride=(2, 2)),
        DenseLayer(n_out=12),
        OutputLayer(n_out=10, activation="softmax"),
    )
    kind = InputType.convolutional_flat(8, 8, 1)
    return MultiLayerNetwork(MultiLayerConfiguration(conf=conf, layers=layers, input_type=kind))


def digits() -> tuple[DataSet, DataSet]:
    data = load("digits")
    return data.train, data.test


def odd_or_even(data: DataSet) -> DataSet:
    return DataSet.of_classes(data.features, data.classes % 2)


def snapshot(network: MultiLayerNetwork | ComputationGraph) -> dict[str, np.ndarray]:
    return {name: value.copy() for name, value in network.param_table.items()}


def test_a_new_head_on_frozen_features_learns_while_they_stay(tmp_path: Path) -> None:
    train, test = digits()
    old = stack()
    old.fit(ListDataSetIterator(train, 32), epochs=5)
    before = snapshot(old)
    new = (
        TransferLearning.builder(old)
        .fine_tune_configuration(FineTuneConfiguration(updater=Sgd(learning_rate=0.1), l2=1e-4, activation="tanh"))
        .set_feature_extractor(2)
        .remove_output_layer()
        .add_layer(OutputLayer(n_out=2, activation="softmax"))
        .build()
    )
    started = snapshot(new)
    for name in before:
        assert np.array_equal(before[name], started[name]) == (not name.startswith("4_")), name
    assert [layer.frozen for layer in new.layers] == [True, True, True, False, False]
    assert (new.layers[3].updater, new.layers[3].activation, new.layers[3].l2) == (Sgd(learning_rate=0.1), "tanh", 1e-4)
    assert (new.layers[4].updater, new.layers[4].activation, new.layers[4].n_in) == (
        Sgd(learning_rate=0.1), "softmax", 12,
    )  # fmt: skip
    assert new.updater_state.size == 0
    new.fit(ListDataSetIterator(odd_or_even(train), 32), epochs=8)
    after = snapshot(new)
    for name in after:
        assert np.array_equal(after[name], started[name]) == (name[0] in "012"), name
    assert new.evaluate(odd_or_even(test)).accuracy() > 0.9
    assert dict.fromkeys(before, True) == {
        name: np.array_equal(value, before[name]) for name, value in snapshot(old).items()
    }
    write_model(new, tmp_path / "new.zip")
    back = restore_model(tmp_path / "new.zip")
    assert back.conf == new.conf and back.layers[0].frozen
    np.testing.assert_array_equal(back.params, new.params)


def test_replacing_n_out_begins_the_layer_and_the_next_ones_anew() -> None:
    old = stack()
    new = TransferLearning.builder(old).n_out_replace(0, 6, "relu", "xavier").build()
    shapes = {name: value.shape for name, value in new.param_table.items()}
    assert shapes["0_W"] == (6, 1, 3, 3) and shapes["1_gamma"][-1] == 6 and shapes["3_W"] == (54, 12)
    assert new.layers[0].weight_init == "relu"
    kept = {name for name, value in new.param_table.items() if value.shape == old.param_table[name].shape}
    same = {name for name in kept if np.array_equal(new.param_table[name], old.param_table[name])}
    assert {"4_W", "4_b"} <= same  # what lies above the next layer with parameters stays
    new.fit(digits()[0].rows(0, 32))
    wider = TransferLearning.builder(old).n_out_replace(3, 20).build()
    for name in ("0_W", "1_gamma"):
        np.testing.assert_array_equal(wider.param_table[name], old.param_table[name])
    assert (wider.layers[3].n_out, wider.layers[4].n_in) == (20, 20)


def test_layers_come_off_and_others_on() -> None:
    old = stack()
    new = (
        TransferLearning.builder(old)
        .remove_layers_from_output(2)
        .add_layer(DenseLayer(n_out=7, activation="sigmoid"))
        .add_layer(OutputLayer(n_out=10, activation="softmax"))
        .build()
    )
    assert [(layer.n_in, layer.n_out) for layer in new.layers[3:]] == [(36, 7), (7, 10)]
    assert new.layers[3].activation == "sigmoid"
    np.testing.assert_array_equal(new.param_table["0_W"], old.param_table["0_W"])
    with pytest.raises(ConfError, match=r"set_feature_extractor\(4\): only 3 layers"):
        TransferLearning.builder(old).set_feature_extractor(4).remove_layers_from_output(2).build()
    with pytest.raises(ConfError, match=r"n_out_replace\(5\): there are only layers 0 to 4"):
        TransferLearning.builder(old).n_out_replace(5, 3)
    with pytest.raises(ConfError, match=r"layer 2 \(subsampling\) has as many outputs as inputs"):
        TransferLearning.builder(old).n_out_replace(2, 3)
    with pytest.raises(ShapeError, match="n_out is 0"):
        TransferLearning.builder(old).n_out_replace(3, 0)
    with pytest.raises(ConfError, match=r"remove_layers_from_output\(6\): there are 5"):
        TransferLearning.builder(old).remove_layers_from_output(6)
    with pytest.raises(ConfError, match=r"no method 'freeze'"):
        TransferLearning.builder(old).freeze  # noqa: B018


def graph() -> ComputationGraph:
    conf = NeuralNetConfiguration(seed=1, activation="relu", updater=Adam(learning_rate=0.01))
    b = GraphBuilder(conf).add_inputs("in")
    b.add_layer("base", DenseLayer(n_in=64, n_out=24), "in")
    b.add_layer("left", DenseLayer(n_out=10), "base").add_layer("right", DenseLayer(n_out=10), "base")
    b.add_vertex("merged", MergeVertex(), "left", "right").add_layer("top", DenseLayer(n_out=8), "merged")
    b.add_layer("out", OutputLayer(n_out=10, activation="softmax"), "top").set_outputs("out")
    return ComputationGraph(b.build())


def test_a_graph_keeps_what_a_new_output_stands_on() -> None:
    train, test = digits()
    old = graph()
    old.fit(ListDataSetIterator(train, 32), epochs=5)
    new = (
        TransferLearning.graph_builder(old)
        .fine_tune_configuration(FineTuneConfiguration(updater=Adam(learning_rate=0.02), seed=9))
        .set_feature_extractor("left", "right")
        .remove_vertex_keep_connections("out")
        .add_layer("out", OutputLayer(n_out=2, activation="softmax"), "top")
        .build()
    )
    started = snapshot(new)
    frozen = {node.name for node in new.nodes if node.stage is not None and node.stage.layer.frozen}
    assert frozen == {"base", "left", "right"}
    for name in started:
        assert np.array_equal(started[name], old.param_table[name]) == (not name.startswith("out")), name
    new.fit(ListDataSetIterator(odd_or_even(train), 32), epochs=8)
    for name, value in snapshot(new).items():
        assert np.array_equal(value, started[name]) == name.startswith(("base", "left", "right")), name
    assert new.evaluate(odd_or_even(test)).accuracy() > 0.85
    assert new.conf.conf.seed == 9


def test_a_graphs_n_out_is_replaced_through_its_vertices() -> None:
    old = graph()
    new = TransferLearning.graph_builder(old).n_out_replace("left", 14).build()
    sizes = {node.name: node.stage.layer.n_in for node in new.nodes if node.stage is not None}
    assert sizes == {"base": 64, "left": 24, "right": 24, "top": 24, "out": 8}
    kept = {n for n, v in new.param_table.items() if np.array_equal(v, old.param_table[n]) and not n.endswith("_b")}
    assert kept == {"base_W", "right_W", "out_W"}


def test_vertices_come_out_with_their_connections() -> None:
    old = graph()
    new = (
        TransferLearning.graph_builder(old)
        .remove_vertex_and_connections("right")
        .remove_vertex_keep_connections("top")
        .add_vertex("top", ElementWiseVertex(op="add"), "merged", "left")
        .remove_vertex_keep_connections("out")
        .add_layer("out", OutputLayer(n_out=4, activation="softmax"), "top")
        .set_outputs("out")
        .build()
    )
    assert [node.name for node in new.nodes] == ["in", "base", "left", "merged", "top", "out"]
    np.testing.assert_array_equal(new.param_table["left_W"], old.param_table["left_W"])
    with pytest.raises(ConfError, match=r"no vertex 'lefft'.*'left'"):
        TransferLearning.graph_builder(old).set_feature_extractor("lefft")
    with pytest.raises(ConfError, match=r"unknown input 'top'"):
        TransferLearning.graph_builder(old).remove_vertex_keep_connections("top").build()
    with pytest.raises(ConfError, match="is no layer but a merge_vertex"):
        TransferLearning.graph_builder(old).n_out_replace("merged", 3)


def test_a_fine_tune_configuration_survives_json() -> None:
    tuning = FineTuneConfiguration(updater=Adam(learning_rate=0.02), seed=9, drop_out=0.5)
    assert FineTuneConfiguration.from_json(tuning.to_json()) == tuning
    with pytest.raises(ConfError, match=r"unknown field .drop_uot..*drop_out"):
        FineTuneConfiguration.from_json('{"drop_uot": 0.5}')
