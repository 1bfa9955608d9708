"""MultiLayerNetwork: training, using, cloning, and what it says when something is wrong."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.datasets import DataSet, ListDataSetIterator
from dl4jlegacy.datasets import load as load_data
from dl4jlegacy.errors import ConfError, DataError, NotFiniteError, ShapeError
from dl4jlegacy.kernels import load
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration, NeuralNetConfiguration
from dl4jlegacy.nn.layers.autoencoder import AutoEncoder
from dl4jlegacy.nn.layers.layer import DenseLayer, Layer
from dl4jlegacy.nn.layers.output import OutputLayer
from dl4jlegacy.nn.layers.rbm import RBM
from dl4jlegacy.nn.layers.variational import VariationalAutoencoder
from dl4jlegacy.nn.listeners import CollectScoresListener, PerformanceListener, ScoreIterationListener
from dl4jlegacy.nn.network.dbn import DBN, StackedDenoisingAutoEncoder
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.optimization.updaters import AdaGrad, Adam, Sgd


def configuration(*layers: Layer, pretrain: bool = False, **conf: object) -> MultiLayerConfiguration:
    fields = {"activation": "relu", "updater": AdaGrad(learning_rate=0.05), "seed": 42} | conf
    return MultiLayerConfiguration(conf=NeuralNetConfiguration(**fields), layers=layers, pretrain=pretrain)


def output(n_out: int = 10) -> OutputLayer:
    return OutputLayer(n_out=n_out, activation="softmax")


def mlp(kernels: str = "numba", **conf: object) -> MultiLayerNetwork:
    layers = (DenseLayer(n_in=64, n_out=128, name="first"), DenseLayer(n_out=64), output())
    return MultiLayerNetwork(configuration(*layers, **conf), kernels=load(kernels))


def batch(examples: int = 32, n_in: int = 64) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.random((examples, n_in), dtype=np.float32)
    labels = np.eye(10, dtype=np.float32)[rng.integers(0, 10, examples)]
    for array in (x, labels):
        array.flags.writeable = False
    return x, labels


@pytest.mark.parametrize("kernels", ["numpy", "numba"])
def test_a_dense_network_learns_the_digits(kernels: str) -> None:
    data = load_data("digits")
    net = mlp(kernels)
    net.fit(ListDataSetIterator(data.train, 32), epochs=15)
    assert net.evaluate(data.test).accuracy() >= 0.97
    assert (net.predict(data.test.features) == data.test.classes).mean() >= 0.97


@pytest.mark.parametrize(("kind", "layer"), [(DBN, RBM), (StackedDenoisingAutoEncoder, AutoEncoder)])
def test_pretrained_networks_learn_the_digits(kind: type[MultiLayerNetwork], layer: type[RBM]) -> None:
    data = load_data("digits")
    net = kind(configuration(layer(n_in=64, n_out=128), layer(n_out=64), output(), activation="sigmoid"))
    net.fit(ListDataSetIterator(data.train, 32), epochs=10)
    assert net.evaluate(data.test).accuracy() >= 0.95
    assert net.pretrain_iterations == {0: net.iteration, 1: net.iteration}


def test_a_dbn_without_rbms_is_refused() -> None:
    with pytest.raises(ConfError, match=r"DBN needs at least one RBM layer.*dense 'first', output"):
        DBN(configuration(DenseLayer(n_in=64, n_out=8, name="first"), output()))


def test_fine_tuning_after_pretraining_starts_with_a_fresh_updater() -> None:
    conf = configuration(RBM(n_in=64, n_out=8), output(), pretrain=True, updater=Adam())
    data = DataSet(*batch())
    both, tuned = MultiLayerNetwork(conf), MultiLayerNetwork(conf)
    both.fit(data)
    tuned.pretrain(data)
    tuned.updater_state[...] = 0
    x, labels = batch()
    tuned.fit_batch(x, labels, iteration=0, stream=Stream.of(0))
    assert (both.params == tuned.params).all()


@pytest.mark.parametrize("kernels", ["numpy", "numba"])
def test_one_step_of_plain_sgd_is_the_formula(kernels: str) -> None:
    conf = configuration(DenseLayer(n_in=64, n_out=7), output(), updater=Sgd(learning_rate=0.3), dtype="float64")
    net = MultiLayerNetwork(conf, kernels=load(kernels))
    x, labels = (a.astype(np.float64) for a in batch())
    W0, b0, W1, b1 = (p.copy() for p in net.param_table.values())
    hidden = np.maximum(x @ W0 + b0, 0)
    z = hidden @ W1 + b1
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    dz = (p - labels) / len(x)
    dh = dz @ W1.T * (hidden > 0)
    score = net.fit_batch(x, labels, iteration=0, stream=Stream.of(1))
    assert score == pytest.approx(-(labels * np.log(p)).sum() / len(x), abs=1e-12)
    new = net.param_table
    for name, old, gradient in (
        ("0_W", W0, x.T @ dh), ("0_b", b0, dh.sum(0)), ("1_W", W1, hidden.T @ dz), ("1_b", b1, dz.sum(0)),
    ):  # fmt: skip
        np.testing.assert_allclose(new[name], old - 0.3 * gradient, atol=1e-12)


def test_the_mean_of_equal_shards_gradients_is_the_gradient_of_the_joined_batch() -> None:
    net = mlp(dtype="float64")
    x, labels = batch(64)
    whole = net.gradient_and_score(x, labels, Stream.of(1))[0].copy()
    parts = [
        net.gradient_and_score(x[i : i + 16], labels[i : i + 16], Stream.of(1))[0].copy() for i in range(0, 64, 16)
    ]
    np.testing.assert_allclose(np.mean(parts, axis=0), whole, atol=1e-14)


def test_without_mini_batch_gradients_are_sums_and_maximising_turns_them_round() -> None:
    x, labels = batch()
    mean = mlp().gradient_and_score(x, labels, Stream.of(1))[0]
    for net, factor in ((mlp(mini_batch=False), 32), (mlp(minimize=False), -1)):
        np.testing.assert_allclose(net.gradient_and_score(x, labels, Stream.of(1))[0], factor * mean, atol=1e-5)


def test_equal_seeds_give_equal_networks_and_other_seeds_others() -> None:
    assert (mlp(seed=1).params == mlp(seed=1).params).all()
    assert (mlp(seed=1).params != mlp(seed=2).params).any()
    net = mlp(seed=1)
    net.params[...] = 0
    net.updater_state[...] = 3
    assert (net.init().params == mlp(seed=1).params).all()
    assert (net.updater_state == np.float32(1e-6)).all()  # where AdaGrad begins


def test_a_step_depends_on_params_state_batch_and_position_alone() -> None:
    x, labels = batch()
    used, fresh = mlp(drop_out=0.5), mlp(drop_out=0.5)
    start = used.params.copy()
    for i in range(3):
        used.fit_batch(x[:13], labels[:13], iteration=i, stream=Stream.of(9))
    used.output(np.random.default_rng(3).random((1500, 64)))
    used.set_params(start)
    used.reset_updater()
    scores = [net.fit_batch(x, labels, iteration=0, stream=Stream.of(5)) for net in (used, fresh)]
    assert scores[0] == scores[1]
    assert (used.params == fresh.params).all()
    assert (used.updater_state == fresh.updater_state).all()


def test_networks_in_several_threads_do_not_disturb_each_other() -> None:
    x, labels = batch(128)

    def train(results: list[np.ndarray]) -> None:
        net = mlp(drop_out=0.8)
        for i in range(20):
            net.fit_batch(x, labels, iteration=i, stream=Stream.of(i))
        results.append(net.params)

    alone: list[np.ndarray] = []
    train(alone)
    together: list[np.ndarray] = []
    threads = [threading.Thread(target=train, args=(together,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(together) == 4
    assert all((params == alone[0]).all() for params in together)


def test_a_clone_is_equal_and_independent() -> None:
    x, labels = batch()
    net = mlp()
    net.finetune(DataSet(x, labels), 3)
    twin = net.clone()
    assert twin.iteration == 3
    assert (twin.params == net.params).all() and (twin.updater_state == net.updater_state).all()
    net.finetune(DataSet(x, labels))
    assert (twin.params != net.params).any()
    twin.finetune(DataSet(x, labels))
    assert (twin.params == net.params).all()


def test_output_does_not_depend_on_how_examples_are_grouped_and_matches_feed_forward() -> None:
    net = mlp()
    x = np.random.default_rng(1).random((2100, 64), dtype=np.float32)
    y = net.output(x)
    np.testing.assert_allclose(y.sum(axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(net.output(x[2000:]), y[2000:], atol=1e-6)
    activations = net.feed_forward(x[:5])
    assert [a.shape for a in activations] == [(5, 64), (5, 128), (5, 64), (5, 10)]
    np.testing.assert_allclose(activations[-1], y[:5], atol=1e-6)
    assert net.output(x[:0]).shape == (0, 10)


def test_score_is_the_mean_loss_plus_the_penalty() -> None:
    x, labels = batch()
    net = mlp(l2=0.1, l1=0.01)
    weights = [net.param_table[f"{i}_W"] for i in range(3)]
    penalty = sum(0.05 * float((W**2).sum()) + 0.01 * float(np.abs(W).sum()) for W in weights)
    loss = -(labels * np.log(net.output(x))).sum() / len(x)
    assert net.score(DataSet(x, labels)) == pytest.approx(loss + penalty, rel=1e-5)
    assert net.gradient_and_score(x, labels, Stream.of(1))[1] == pytest.approx(loss + penalty, rel=1e-5)
    assert net.score_examples(DataSet(x, labels)).shape == (32,)


def test_images_are_flattened_and_other_dtypes_converted() -> None:
    net = mlp()
    x, _ = batch()
    np.testing.assert_array_equal(net.output(x.reshape(32, 8, 8)), net.output(x))
    assert net.output(x.astype(np.float64)).dtype == np.float32


def test_listeners_hear_every_update() -> None:
    x, labels = batch()
    lines: list[str] = []
    times = iter(range(100))
    collect = CollectScoresListener()
    speed = PerformanceListener(2, lines.append, clock=lambda: float(next(times)))
    net = mlp()
    net.listeners = [collect, ScoreIterationListener(2, lines.append), speed]
    net.fit(DataSet(x, labels), epochs=5)
    assert [i for i, _ in collect.scores] == [0, 1, 2, 3, 4]
    assert collect.scores[0][1] > collect.scores[-1][1]
    assert sum(line.startswith("Score at iteration") for line in lines) == 3
    assert speed.examples_per_second == 32.0


def test_sizes_that_do_not_fit_are_named_with_their_layer() -> None:
    net = mlp()
    x, labels = batch()
    with pytest.raises(ShapeError, match=r"63 features, layer 0 \(dense 'first'\) has n_in=64"):
        net.output(x[:, :63])
    with pytest.raises(ShapeError, match=r"layer 2 \(output\) has n_out=10"):
        net.fit_batch(x, labels[:, :9], iteration=0, stream=Stream.of(1))
    with pytest.raises(DataError, match="32 examples and 31 labels"):
        net.fit_batch(x, labels[:31], iteration=0, stream=Stream.of(1))
    with pytest.raises(DataError, match="0 examples"):
        net.fit_batch(x[:0], labels[:0], iteration=0, stream=Stream.of(1))


def test_sparse_labels_are_class_indices() -> None:
    x, labels = batch()
    dense = mlp()
    sparse = MultiLayerNetwork(
        configuration(
            DenseLayer(n_in=64, n_out=128), DenseLayer(n_out=64),
            OutputLayer(n_out=10, activation="softmax", loss="sparse_mcxent"),
        )
    )  # fmt: skip
    indices = labels.argmax(axis=1)[:, None].astype(np.float32)
    a = dense.gradient_and_score(x, labels, Stream.of(1))
    b = sparse.gradient_and_score(x, indices, Stream.of(1))
    np.testing.assert_allclose(a[0], b[0], atol=1e-6)
    assert a[1] == pytest.approx(b[1], rel=1e-5)


@pytest.mark.parametrize("kernels", ["numpy", "numba"])
def test_a_score_that_is_not_finite_stops_before_the_update_and_names_the_layer(kernels: str) -> None:
    x, labels = batch()
    net = mlp(kernels)
    net.param_table["1_b"][3] = np.nan
    kept = net.params.copy()
    with pytest.raises(NotFiniteError, match=r"layer 1 \(dense\): a parameter is NaN"):
        net.fit_batch(x, labels, iteration=0, stream=Stream.of(1))
    np.testing.assert_array_equal(net.params, kept)
    with pytest.raises(NotFiniteError, match="layer 1"):
        net.check_finite()
    net = mlp(kernels)
    net.check_finite()
    net.param_table["0_W"][...] = 1e38
    with pytest.raises(NotFiniteError, match=r"layer 0 \(dense 'first'\): an activation"):
        net.fit_batch(x, labels, iteration=0, stream=Stream.of(1))


def test_a_pretraining_loss_that_is_not_finite_names_the_layer() -> None:
    net = MultiLayerNetwork(configuration(RBM(n_in=64, n_out=8), RBM(n_out=8, name="second"), output()))
    net.param_table["1_W"][...] = np.inf
    with pytest.raises(NotFiniteError, match=r"layer 1 \(rbm 'second'\): a parameter"):
        net.pretrain_batch(1, batch()[0], iteration=0, stream=Stream.of(1))


def test_a_network_without_output_layer_pretrains_but_has_no_score() -> None:
    conf = configuration(RBM(n_in=64, n_out=8), pretrain=True).replace(backprop=False)
    net = MultiLayerNetwork(conf)
    x, labels = batch()
    net.fit(DataSet(x, labels))
    assert net.output(x).shape == (32, 8)
    with pytest.raises(ConfError, match="the last layer is rbm"):
        net.fit_batch(x, labels, iteration=0, stream=Stream.of(1))


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("kind", ["rbm", "autoencoder", "vae"])
def test_a_pretraining_that_diverges_names_its_layer(kind: str, layer: int) -> None:
    """Its parameters and activations may be finite; it was said of the output layer."""
    fields = {"updater": Sgd(learning_rate=5.0), "activation": "identity"}
    made: Any = {
        "rbm": lambda n: RBM(n_in=n, n_out=4, visible_unit="identity", hidden_unit="identity", **fields),
        "autoencoder": lambda n: AutoEncoder(n_in=n, n_out=4, loss="mse", **fields),
        "vae": lambda n: VariationalAutoencoder(
            n_in=n, n_out=4, encoder_layer_sizes=(3,), decoder_layer_sizes=(3,), **fields
        ),
    }[kind]
    still = DenseLayer(n_in=4, n_out=4, activation="identity")
    layers = (made(4), still) if layer == 0 else (still, made(4))
    conf = MultiLayerConfiguration(layers=(*layers, OutputLayer(n_in=4, n_out=2, activation="softmax")), pretrain=True)
    data = DataSet(np.random.default_rng(0).random((8, 4)) * 50, np.eye(2)[[0, 1] * 4])
    with pytest.raises(NotFiniteError, match=rf"^layer {layer} \(.*\): (a parameter|the score of its pretraining) is"):
        MultiLayerNetwork(conf).pretrain(data, 200)
