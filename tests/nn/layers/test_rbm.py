"""Restricted Boltzmann machines and autoencoders: what pretraining must achieve."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from sklearn.neural_network import BernoulliRBM

from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.datasets import ListDataSetIterator, read_digits
from dl4jlegacy.errors import ConfError
from dl4jlegacy.kernels import load
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration, NeuralNetConfiguration
from dl4jlegacy.nn.layers.autoencoder import AutoEncoder
from dl4jlegacy.nn.layers.layer import Layer
from dl4jlegacy.nn.layers.output import OutputLayer
from dl4jlegacy.nn.layers.rbm import RBM
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.optimization.updaters import AdaGrad, Sgd
from dl4jlegacy.nn.optimization.weights import NormalDistribution

HIDDEN, RATE, BATCH, EPOCHS = 64, 0.05, 20, 10


def digits() -> np.ndarray:
    return read_digits().features


def network(layer: Layer, *, kernels: str = "numba", rate: float = RATE) -> MultiLayerNetwork:
    conf = NeuralNetConfiguration(
        updater=Sgd(learning_rate=rate), weight_init="distribution", dist=NormalDistribution(mean=0.0, std=0.01)
    )
    output = OutputLayer(n_in=layer.n_out, n_out=10, activation="softmax")
    return MultiLayerNetwork(
        MultiLayerConfiguration(conf=conf, layers=(layer, output), pretrain=True), kernels=load(kernels)
    )


def rbm(**fields: object) -> RBM:
    return RBM(n_in=64, n_out=HIDDEN, **fields)


def error(net: MultiLayerNetwork, x: np.ndarray) -> float:
    return float(((net.reconstruct(x) - x) ** 2).mean())


def pretrain(net: MultiLayerNetwork, epochs: int = EPOCHS) -> None:
    net.pretrain(ListDataSetIterator(read_digits(), BATCH), epochs)


@pytest.mark.parametrize("kernels", ["numpy", "numba"])
def test_free_energy_of_the_data_falls_against_that_of_noise(kernels: str) -> None:
    net = network(rbm(), kernels=kernels)
    x, layer = digits(), net.layers[0]
    noise = np.random.default_rng(1).permuted(x, axis=1)
    assert isinstance(layer, RBM)

    def gap() -> float:
        params = net._stack.params[0]
        return float(layer.free_energy(params, x).mean() - layer.free_energy(params, noise).mean())

    gaps = [gap()]
    for _ in range(3):
        pretrain(net, 1)
        gaps.append(gap())
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < -1


def test_free_energy_is_minus_the_log_of_the_summed_joint_probability() -> None:
    net = network(RBM(n_in=5, n_out=3))
    rng = np.random.default_rng(2)
    net.params[...] = rng.normal(size=net.num_params)
    W, b, vb = (net.param_table[name].astype(float) for name in ("0_W", "0_b", "0_vb"))
    v = rng.integers(0, 2, 5).astype(float)
    hidden = np.array([[i >> k & 1 for k in range(3)] for i in range(8)], float)
    energies = -(v @ W @ hidden.T) - hidden @ b - v @ vb
    expected = -np.log(np.exp(-energies).sum())
    layer = net.layers[0]
    assert isinstance(layer, RBM)
    assert layer.free_energy(net._stack.params[0], v[None])[0] == pytest.approx(expected, rel=1e-5)


def test_reconstruction_of_digits_is_at_least_as_good_as_that_of_scikit_learns_bernoulli_rbm() -> None:
    x = digits()
    theirs = BernoulliRBM(HIDDEN, learning_rate=RATE, batch_size=BATCH, n_iter=EPOCHS, random_state=0).fit(x)
    z = theirs.transform(x) @ theirs.components_ + theirs.intercept_visible_
    their_error = float(((1 / (1 + np.exp(-z)) - x) ** 2).mean())
    net = network(rbm())
    pretrain(net)
    assert error(net, x) <= their_error


@pytest.mark.parametrize(
    ("layer", "rate"),
    [
        (rbm(k=3), 0.05),
        (rbm(hidden_unit="rectified"), 0.01),
        (rbm(visible_unit="gaussian"), 0.01),
        (rbm(visible_unit="gaussian", hidden_unit="rectified"), 0.002),
        (rbm(visible_unit="linear", hidden_unit="gaussian"), 0.002),
        (rbm(visible_unit="softmax"), 0.01),
        (AutoEncoder(n_in=64, n_out=HIDDEN), 0.1),
        (AutoEncoder(n_in=64, n_out=HIDDEN, activation="relu"), 0.01),
        (AutoEncoder(n_in=64, n_out=HIDDEN, loss="mse", activation="tanh", corruption_level=0.0), 0.1),
    ],
    ids=lambda value: "",
)
def test_every_kind_of_pretraining_improves_the_reconstruction(layer: Layer, rate: float) -> None:
    net = network(layer, rate=rate)
    x = digits()
    if getattr(layer, "visible_unit", "") == "softmax":
        x = x / x.sum(axis=1, keepdims=True)
    before = error(net, x)
    for i in range(300):
        start = i * BATCH % (len(x) - BATCH)
        net.pretrain_batch(0, x[start : start + BATCH], iteration=i, stream=Stream.of(1).at(i))
    assert np.isfinite(net.params).all()
    assert error(net, x) < 0.8 * before


def test_contrastive_divergence_gradient_follows_its_formula() -> None:
    net = network(rbm(), kernels="numpy")
    x = digits()[:8].copy()
    x.flags.writeable = False
    W, b = net.param_table["0_W"], net.param_table["0_b"]
    W += np.random.default_rng(3).normal(scale=0.1, size=W.shape)
    gradient, _ = net.pretrain_gradient_and_score(0, x, Stream.of(4))
    grads = net.layout.views(gradient)[0]
    buffers = {name: flat for (_, name), flat in net._workspace._flat.items()}
    sigmoid = lambda z: 1 / (1 + np.exp(-z))  # noqa: E731
    v1 = buffers["visible"].reshape(16, 64)[8:]
    positive, negative = sigmoid(x @ W + b), sigmoid(v1 @ W + b)
    assert set(np.unique(v1)) <= {0.0, 1.0}
    np.testing.assert_allclose(grads["W"], -(x.T @ positive - v1.T @ negative) / 8, atol=1e-6)
    np.testing.assert_allclose(grads["b"], -(positive - negative).mean(axis=0), atol=1e-6)
    mean = buffers["visible_mean"].reshape(8, 64)
    np.testing.assert_allclose(grads["vb"], -(x - mean).mean(axis=0), atol=1e-6)


def test_sparsity_drives_the_mean_activation_of_hidden_units() -> None:
    x = digits()
    means = []
    for sparsity in (0.0, 0.1):
        net = network(rbm(sparsity=sparsity), rate=0.3)
        pretrain(net, 5)
        means.append(float(net.feed_forward(x)[1].mean()))
    assert abs(means[1] - 0.1) < 0.05 < means[0] - means[1]


def test_same_stream_gives_the_same_update_and_another_stream_another() -> None:
    def params(seed: int) -> np.ndarray:
        net = network(rbm())
        net.pretrain_batch(0, digits()[:BATCH], iteration=0, stream=Stream.of(seed))
        return net.params

    assert (params(1) == params(1)).all()
    assert (params(1) != params(2)).any()


def test_wrong_units_and_losses_are_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfError, match="did you mean 'gaussian'"):
        RBM(visible_unit="gausian")
    with pytest.raises(ConfError, match="k=0"):
        RBM(k=0)
    with pytest.raises(ConfError, match="unknown loss"):
        AutoEncoder(loss="nothing")
    with pytest.raises(ConfError, match="corruption_level"):
        AutoEncoder(corruption_level=1.0)
    net = network(rbm(hidden_unit="rectified"))
    layer = net.layers[0]
    assert isinstance(layer, RBM)
    with pytest.raises(ConfError, match="no free energy"):
        layer.free_energy(net._stack.params[0], digits())
    with pytest.raises(ConfError, match="layer 1 cannot pretrain"):
        net.pretrain_batch(1, digits(), iteration=0, stream=Stream.of(1))


@pytest.mark.parametrize("layer", [RBM(n_in=64, n_out=16), AutoEncoder(n_in=64, n_out=16)], ids=["rbm", "autoencoder"])
@pytest.mark.parametrize("updater", [Sgd(learning_rate=0.5), AdaGrad(learning_rate=0.5)], ids=["sgd", "adagrad"])
def test_a_layer_pretrains_at_its_own_rate_and_finetunes_at_the_updaters(
    layer: RBM | AutoEncoder, updater: Sgd | AdaGrad
) -> None:
    def steps(rate: float | None, base: float) -> tuple[np.ndarray, np.ndarray]:
        conf = MultiLayerConfiguration(
            conf=NeuralNetConfiguration(seed=5, updater=msgspec.structs.replace(updater, learning_rate=base)),
            layers=(msgspec.structs.replace(layer, pretrain_learning_rate=rate), OutputLayer(n_out=10)),
            pretrain=True,
        )
        net = MultiLayerNetwork(MultiLayerConfiguration.from_json(conf.to_json()))
        net.pretrain_batch(0, digits()[:BATCH], iteration=0, stream=Stream.of(1))
        pretrained = net.params.copy()
        net.init().fit_batch(digits()[:BATCH], np.eye(10)[np.arange(BATCH) % 10], iteration=0, stream=Stream.of(2))
        return pretrained, net.params.copy()

    own, at_half, at_tenth = steps(0.1, 0.5), steps(None, 0.5), steps(None, 0.1)
    assert (own[0] == at_tenth[0]).all()
    assert (own[0] != at_half[0]).any()
    assert (own[1] == at_half[1]).all()


def test_a_pretraining_rate_that_is_no_rate_is_refused() -> None:
    with pytest.raises(ConfError, match="pretrain_learning_rate is -1"):
        RBM(pretrain_learning_rate=-1.0)
    with pytest.raises(ConfError, match="pretrain_learning_rate is nan"):
        AutoEncoder(pretrain_learning_rate=float("nan"))
