"""AdamW's decay and schedules over a run, in whole networks: which parameters, at which rate, with the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.kernels import load
from dl4jlegacy.nn import (
    Adam,
    AdamW,
    BatchNormalization,
    ComputationGraph,
    DenseLayer,
    FrozenLayer,
    GraphBuilder,
    GravesLSTM,
    LinearSchedule,
    MultiLayerConfiguration,
    MultiLayerNetwork,
    NeuralNetConfiguration,
    OutputLayer,
    RnnOutputLayer,
    Sgd,
)
from dl4jlegacy.nn.layers.autoencoder import AutoEncoder
from dl4jlegacy.nn.networks import learning_rate_at
from dl4jlegacy.nn.optimization.schedules import over_run

RNG = np.random.default_rng(5)
X, Y = RNG.normal(size=(12, 4)), np.eye(3)[RNG.integers(0, 3, 12)]
WORDS, NEXT = RNG.normal(size=(5, 2, 6)), np.eye(3)[RNG.integers(0, 3, (5, 6))].transpose(0, 2, 1)
LAYERS = (DenseLayer(n_in=4, n_out=5, activation="tanh"), BatchNormalization(n_out=5), OutputLayer(n_out=3))
STREAM = Stream(3)


def network(updater: Any, layers: Any = LAYERS, kernels: str = "numpy", dtype: str = "float64", **more: Any) -> Any:
    conf = MultiLayerConfiguration(
        layers=layers, conf=NeuralNetConfiguration(seed=1, updater=updater, dtype=dtype), **more
    )
    return MultiLayerNetwork(conf, kernels=load(kernels))


def fit(net: Any, updates: int, x: Any = X, y: Any = Y) -> Any:
    for t in range(updates):
        net.fit_batch(x, y, iteration=t, stream=STREAM)
    return net


def test_only_weights_decay_by_the_rate_and_the_gradient_and_the_state_do_not_change():
    schedule = LinearSchedule(warm_up=0.5, iterations=4)
    updater = AdamW(learning_rate=0.1, weight_decay=0.2, schedule=schedule)
    plain, net = network(Adam(learning_rate=0.1, schedule=schedule)), network(updater)
    assert [str(b.updater.title()) for b in net.updater.blocks][:1] == ["AdamW"]
    assert net.updater_state.shape == plain.updater_state.shape
    for t in range(4):
        plain.set_params(net.params)
        before = {name: value.copy() for name, value in net.param_table.items()}
        gradients = [each.gradient_and_score(X, Y, STREAM) for each in (plain, net)]
        assert np.array_equal(gradients[0][0], gradients[1][0]) and gradients[0][1] == gradients[1][1]
        for each in (plain, net):
            each.fit_batch(X, Y, iteration=t, stream=STREAM)
        rate = 0.1 * [1 / 3, 2 / 3, 1, 0.5][t]
        for name, value in net.param_table.items():
            decayed = 0.2 * rate * before[name] if name.endswith("_W") else 0.0
            np.testing.assert_allclose(value, plain.param_table[name] - decayed, rtol=1e-12, atol=1e-15)
    assert np.array_equal(net.updater_state, plain.updater_state)


def test_frozen_layers_do_not_decay_and_a_layer_may_have_adamw_of_its_own():
    dense = DenseLayer(n_in=4, n_out=5, activation="tanh")
    net = network(AdamW(weight_decay=0.5), (FrozenLayer(layer=dense), OutputLayer(n_out=3, updater=Sgd())))
    before = net.params.copy()
    fit(net, 2)
    assert np.array_equal(net.param_table["0_W"], before[:20].reshape(net.param_table["0_W"].shape, order="F"))
    own = network(Sgd(), (DenseLayer(n_in=4, n_out=5, updater=AdamW(weight_decay=0.5)), OutputLayer(n_out=3)))
    twin = network(Sgd(), (DenseLayer(n_in=4, n_out=5, updater=Adam()), OutputLayer(n_out=3)))
    first = own.param_table["0_W"].copy()
    fit(own, 1), fit(twin, 1)
    np.testing.assert_allclose(own.param_table["0_W"], twin.param_table["0_W"] - 5e-4 * first, rtol=1e-12)
    assert np.array_equal(own.param_table["1_W"], twin.param_table["1_W"])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_compiled_kernels_decay_with_numpys_bits(dtype):
    vectors = [np.linspace(-2, 2, 1101).astype(dtype) for _ in range(2)]
    for kernels, vector in zip(("numpy", "numba"), vectors, strict=True):
        load(kernels).decay(vector, 0.1 / 3)
    assert vectors[0].tobytes() == vectors[1].tobytes()


def test_pretraining_decays_its_own_layer_and_is_no_part_of_the_schedule():
    layers = (AutoEncoder(n_in=4, n_out=5), AutoEncoder(n_out=4), OutputLayer(n_out=3))
    found = []
    for schedule in (None, LinearSchedule(iterations=2)):
        net = network(AdamW(learning_rate=0.1, weight_decay=0.5, schedule=schedule), layers)
        before = net.params.copy()
        for t in range(3):
            net.pretrain_batch(1, X, iteration=t, stream=STREAM)
        for index, part in enumerate(net.layer_slices):
            assert np.array_equal(net.params[part], before[part]) == (index != 1)
        assert learning_rate_at(net.conf, 1, pretrained=1) == 0.1
        found.append(net.params.copy())
    assert np.array_equal(*found)


def recurrent(updater: Any) -> Any:
    layers = (GravesLSTM(n_in=2, n_out=4), RnnOutputLayer(n_out=3))
    return network(updater, layers, backprop_type="truncated_bptt", tbptt_fwd_length=2, tbptt_back_length=2)


def test_with_truncated_backpropagation_a_batch_counts_once_however_many_segments_it_has():
    net = recurrent(Sgd(learning_rate=1.0, schedule=LinearSchedule(iterations=2, first_iteration=1)))
    taken, updater = [], net.updater

    class Watched:
        penalty = updater.penalty

        def update(self, params: Any, gradient: Any, state: Any, **more: Any) -> bool:
            before, largest = params.copy(), np.abs(gradient).argmax()
            updater.update(params, gradient, state, **more)
            taken.append(float((before - params)[largest] / gradient[largest]))
            return True

    net.updater = Watched()
    for t, steps in ((1, 6), (2, 4)):
        net.fit_batch(WORDS[:, :, :steps], NEXT[:, :, :steps], iteration=t, stream=STREAM)
    np.testing.assert_allclose(taken, [1, 5 / 6, 4 / 6, 0.5, 0.25], rtol=1e-9)
    assert [learning_rate_at(net.conf, t) for t in (1, 2)] == [1.0, 0.5]


def test_a_graph_decays_and_counts_as_a_stack_does():
    updater = AdamW(learning_rate=0.1, weight_decay=0.2, schedule=LinearSchedule(iterations=3))
    conf = NeuralNetConfiguration(seed=1, updater=updater, dtype="float64")
    layers = {"a": DenseLayer(n_in=4, n_out=5, activation="tanh"), "out": OutputLayer(n_in=5, n_out=3)}
    built = GraphBuilder(conf).add_inputs("in").add_layer("a", layers["a"], "in").add_layer("out", layers["out"], "a")
    graph = ComputationGraph(built.set_outputs("out").build(), kernels=load("numpy"))
    stack = network(updater, tuple(layers.values()))
    graph.set_params(stack.params)
    assert np.array_equal(fit(graph, 3).params, fit(stack, 3).params)


def test_the_length_of_a_run_goes_into_every_schedule_over_it_and_nothing_else():
    own = DenseLayer(n_in=4, n_out=5, updater=Adam(schedule=LinearSchedule(warm_up=0.1)))
    conf = network(AdamW(schedule=LinearSchedule()), (own, OutputLayer(n_out=3))).conf
    changed = over_run(conf, 7, 20)
    assert changed.conf.updater.schedule == LinearSchedule(first_iteration=7, iterations=20)
    assert changed.layers[0].updater.schedule == LinearSchedule(warm_up=0.1, first_iteration=7, iterations=20)
    assert changed.layers[1] is conf.layers[1]
    assert over_run(changed, 0, 0) == conf
    assert MultiLayerConfiguration.from_json(changed.to_json()) == changed
    without = network(Adam()).conf
    assert over_run(without, 7, 20) is without
