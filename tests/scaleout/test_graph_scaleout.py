"""Graphs on the scale-out: the same answer for any number of workers, by value and by reference."""

from __future__ import annotations

import numpy as np
import pytest

from dl4jlegacy.cluster.runner import ActorNetworkRunner
from dl4jlegacy.datasets import DataSet, ListDataSetIterator
from dl4jlegacy.datasets import load as load_data
from dl4jlegacy.datasets.multi_dataset import ListMultiDataSetIterator, MultiDataSet
from dl4jlegacy.errors import ConfError
from dl4jlegacy.nn.conf.network import (
    ComputationGraphConfiguration,
    GraphBuilder,
    MultiLayerConfiguration,
    NeuralNetConfiguration,
)
from dl4jlegacy.nn.graph.computation_graph import ComputationGraph
from dl4jlegacy.nn.layers.layer import DenseLayer
from dl4jlegacy.nn.layers.output import OutputLayer
from dl4jlegacy.nn.optimization.updaters import Adam
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.state.job import decode_work, encode_work


def two_inputs() -> ComputationGraphConfiguration:
    conf = NeuralNetConfiguration(seed=3, activation="relu", updater=Adam(learning_rate=0.01), drop_out=0.9)
    b = GraphBuilder(conf).add_inputs("top", "bottom")
    b.add_layer("a", DenseLayer(n_in=32, n_out=20), "top").add_layer("b", DenseLayer(n_in=32, n_out=20), "bottom")
    return b.add_layer("out", OutputLayer(n_out=10, activation="softmax"), "a", "b").set_outputs("out").build()


def one_input() -> ComputationGraphConfiguration:
    conf = NeuralNetConfiguration(seed=3, activation="relu", updater=Adam(learning_rate=0.01))
    b = GraphBuilder(conf).add_inputs("in").add_layer("a", DenseLayer(n_out=20), "in")
    b.add_layer("b", DenseLayer(n_out=20), "in").add_layer("out", OutputLayer(activation="softmax"), "a", "b")
    return b.set_outputs("out").build().with_sizes(64, 10)


def digits() -> DataSet:
    return load_data("digits").train.rows(0, 400)


def halves(data: DataSet) -> MultiDataSet:
    return MultiDataSet([data.features[:, :32], data.features[:, 32:]], [data.labels])


def trained(conf: ComputationGraphConfiguration, iterator: object, workers: int, **fields: object) -> np.ndarray:
    wanted = Conf(computation_graph_conf=conf, epochs=2, workers=workers, jobs_per_round=3, **fields)
    with ActorNetworkRunner("master", iterator) as runner:
        runner.setup(wanted)
        result = runner.train(deadline=60)
        network = runner.network(result)
    assert isinstance(network, ComputationGraph)
    assert result.head.examples == 800
    return network.params.copy()


@pytest.mark.parametrize("by_reference", [True, False])
def test_several_inputs_give_the_same_parameters_with_any_number_of_workers(by_reference: bool) -> None:
    iterator = ListMultiDataSetIterator(halves(digits()), 32)
    one = trained(two_inputs(), iterator, 1, data_by_reference=True)
    three = trained(two_inputs(), ListMultiDataSetIterator(halves(digits()), 32), 3, data_by_reference=by_reference)
    np.testing.assert_array_equal(one, three)


def test_a_graph_with_one_input_trains_on_plain_data_sets() -> None:
    one = trained(one_input(), ListDataSetIterator(digits(), 32), 1)
    two = trained(one_input(), ListDataSetIterator(digits(), 32), 2)
    np.testing.assert_array_equal(one, two)


def test_a_conf_with_a_graph_survives_json_and_holds_one_network() -> None:
    conf = Conf(computation_graph_conf=two_inputs())
    assert Conf.from_json(conf.to_json()) == conf
    assert conf.network_conf == two_inputs()
    assert [phase.kind for phase in conf.phases()] == ["finetune"]
    stack = MultiLayerConfiguration(layers=(DenseLayer(n_in=1, n_out=1),))
    with pytest.raises(ConfError, match="one network"):
        Conf(computation_graph_conf=two_inputs(), multi_layer_conf=stack)


def test_batches_of_several_arrays_travel_by_value() -> None:
    rng = np.random.default_rng(0)
    sequences, mask = rng.normal(size=(4, 3, 5)), np.ones((4, 5))
    mask[1, 3:] = 0
    work = [MultiDataSet([rng.normal(size=(4, 2)), sequences], [np.eye(4), sequences], [None, mask], [None, mask])]
    [back] = decode_work(encode_work(work))
    for name in ("features", "labels", "features_masks", "labels_masks"):
        for a, b in zip(getattr(work[0], name), getattr(back, name), strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                np.testing.assert_array_equal(a, b)


def test_data_that_do_not_fit_the_graph_are_refused_before_training() -> None:
    iterator = ListDataSetIterator(load_data("iris").train, 16)
    with ActorNetworkRunner("master", iterator) as runner, pytest.raises(ConfError, match="64 inputs, the data set 4"):
        runner.setup(Conf(computation_graph_conf=one_input()))


def test_a_graph_is_none_of_the_classes_that_are_stacks_of_layers() -> None:
    conf = Conf(computation_graph_conf=one_input(), multi_layer_clazz="DBN")
    iterator = ListDataSetIterator(load_data("digits").train, 16)
    with (
        ActorNetworkRunner("master", iterator) as runner,
        pytest.raises(ConfError, match="multi_layer_clazz is 'DBN', and the network is a graph"),
    ):
        runner.setup(conf)
