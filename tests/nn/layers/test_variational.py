"""The variational autoencoder: its bound and gradient, its distributions, and its place in a network."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.datasets import read_digits
from dl4jlegacy.errors import ConfError, ShapeError
from dl4jlegacy.kernels import load
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration, NeuralNetConfiguration
from dl4jlegacy.nn.fitting.gradient_check import GradientCheckUtil
from dl4jlegacy.nn.interchange.dl4j.json import to_dl4j
from dl4jlegacy.nn.interchange.dl4j.reader import from_dl4j
from dl4jlegacy.nn.layers.layer import DenseLayer, Layer
from dl4jlegacy.nn.layers.output import OutputLayer
from dl4jlegacy.nn.layers.reconstruction_distribution import (
    BernoulliReconstructionDistribution,
    ExponentialReconstructionDistribution,
    GaussianReconstructionDistribution,
)
from dl4jlegacy.nn.layers.variational import VariationalAutoencoder
from dl4jlegacy.nn.network.generative import (
    generate_at_mean_given_z,
    generate_random_given_z,
    reconstruction_log_probability,
)
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.optimization.updaters import Adam

DISTRIBUTIONS = {
    "gaussian": GaussianReconstructionDistribution(),
    "gaussian tanh": GaussianReconstructionDistribution(activation="tanh"),
    "bernoulli": BernoulliReconstructionDistribution(),
    "bernoulli hard": BernoulliReconstructionDistribution(activation="softsign"),
    "exponential": ExponentialReconstructionDistribution(),
    "exponential tanh": ExponentialReconstructionDistribution(activation="tanh"),
}
N_IN, LATENT = 5, 2
every_distribution = pytest.mark.parametrize("kind", sorted(set(DISTRIBUTIONS) - {"bernoulli hard"}))


def vae(kind: str = "gaussian tanh", **fields: object) -> VariationalAutoencoder:
    sizes = {"encoder_layer_sizes": (4, 3), "decoder_layer_sizes": (6,)} | fields
    return VariationalAutoencoder(n_out=LATENT, reconstruction_distribution=DISTRIBUTIONS[kind], **sizes)


def network(*layers: Layer, kernels: str = "numpy", **conf: object) -> MultiLayerNetwork:
    fields = {"seed": 4, "activation": "tanh", "dtype": "float64", "bias_init": 0.1} | conf
    first = msgspec.structs.replace(layers[0], n_in=N_IN)
    return MultiLayerNetwork(
        MultiLayerConfiguration(conf=NeuralNetConfiguration(**fields), layers=(first, *layers[1:]), pretrain=True),
        kernels=load(kernels),
    )


def data(rows: int = 7) -> np.ndarray:
    return np.random.default_rng(1).random((rows, N_IN))


@every_distribution
@pytest.mark.parametrize("samples", [1, 3])
def test_pretraining_follows_the_gradient_of_the_bound(kind: str, samples: int) -> None:
    net = network(vae(kind, num_samples=samples), l2=0.05)
    report = GradientCheckUtil.check_pretrain_gradients(net, 0, data())
    assert report.passed, report.failures[:3]
    assert report.checked == net.num_params


def test_other_activations_and_a_layer_below() -> None:
    net = network(DenseLayer(n_out=4), vae("bernoulli", pzx_activation="tanh", activation="softsign"))
    report = GradientCheckUtil.check_pretrain_gradients(net, 1, data())
    assert report.passed, report.failures[:3]


def test_in_a_network_it_is_the_encoder_up_to_the_mean() -> None:
    net = network(vae(), DenseLayer(n_out=3), OutputLayer(n_out=2), l2=0.1)
    labels = np.eye(2)[np.arange(7) % 2]
    report = GradientCheckUtil.check_gradients(net, data(), labels)
    assert report.passed, report.failures[:3]
    before = {name: view.copy() for name, view in net.param_table.items()}
    net.fit_batch(data(), labels, iteration=0, stream=Stream.of(1))
    same = {name for name, view in net.param_table.items() if np.array_equal(view, before[name])}
    assert same == {"0_pZXLogStd2W", "0_pZXLogStd2b", "0_d0W", "0_d0b", "0_pXZW", "0_pXZb"}


def test_parameters_have_dl4js_names_and_order() -> None:
    net = network(vae())
    shapes = {
        "0_e0W": (5, 4), "0_e0b": (4,), "0_e1W": (4, 3), "0_e1b": (3,), "0_pZXMeanW": (3, 2), "0_pZXMeanb": (2,),
        "0_pZXLogStd2W": (3, 2), "0_pZXLogStd2b": (2,), "0_d0W": (2, 6), "0_d0b": (6,), "0_pXZW": (6, 10),
        "0_pXZb": (10,),
    }  # fmt: skip
    assert {name: view.shape for name, view in net.param_table.items()} == shapes
    assert list(net.param_table) == list(shapes)


@pytest.mark.parametrize("kernels", ["numpy", "numba"])
def test_the_bound_in_float32_is_the_explicit_one(kernels: str) -> None:
    """One number at a time, from the flat parameters and the noise of the position."""
    net = network(vae("gaussian tanh"), dtype="float32", kernels=kernels)
    x = data().astype(np.float32)
    stream = Stream.of(9)
    score = net.pretrain_gradient_and_score(0, x, stream)[1]
    noise = np.empty((len(x), LATENT), np.float32)
    net.kernels.gaussian(noise, stream.at(0, 0, purpose="latent").key)
    p = {name[2:]: view.astype(float) for name, view in net.param_table.items()}
    total = 0.0
    for row, eps in zip(x.astype(float), noise.astype(float), strict=True):
        h = row
        for part in ("e0", "e1"):
            h = np.array([math.tanh(float(h @ p[f"{part}W"][:, k]) + b) for k, b in enumerate(p[f"{part}b"])])
        mean, log = (h @ p[f"{name}W"] + p[f"{name}b"] for name in ("pZXMean", "pZXLogStd2"))
        z = [m + math.exp(v / 2) * e for m, v, e in zip(mean, log, eps, strict=True)]
        d = np.tanh(np.array(z) @ p["d0W"] + p["d0b"])
        out = np.tanh(d @ p["pXZW"] + p["pXZb"])
        for k in range(N_IN):
            m, v = out[k], out[N_IN + k]
            total += 0.5 * (math.log(2 * math.pi) + v + (row[k] - m) ** 2 / math.exp(v))
        total -= 0.5 * sum(1 + v - m * m - math.exp(v) for m, v in zip(mean, log, strict=True))
    assert score == pytest.approx(total / len(x), rel=1e-5)


@pytest.mark.parametrize("kind", sorted(DISTRIBUTIONS))
def test_a_distribution_is_a_density_and_its_gradient_is_right(kind: str) -> None:
    distribution = DISTRIBUTIONS[kind]
    z = np.random.default_rng(2).normal(size=(1, distribution.inputs(1))) * 0.7
    if kind == "bernoulli hard":
        z = abs(z)  # softsign is a probability there
    places = {"gaussian": np.linspace(-30, 30, 60001), "bernoulli": np.array([0.0, 1.0])}
    x = places.get(kind.split()[0], np.linspace(0, 60, 600001))
    density = np.array([math.exp(-distribution.loss(np.array([[v]]), z)[0][0]) for v in x[:: max(1, len(x) // 6000)]])
    step = (x[1] - x[0]) * max(1, len(x) // 6000) if len(x) > 2 else 1.0
    assert float(density.sum() * step) == pytest.approx(1, abs=0.03)
    sample, eps = np.array([[0.3]]), 1e-6
    for k in range(z.shape[1]):
        moved = [z + sign * eps * np.eye(z.shape[1])[k] for sign in (1, -1)]
        numeric = (distribution.loss(sample, moved[0])[0] - distribution.loss(sample, moved[1])[0]) / (2 * eps)
        assert distribution.loss(sample, z)[1][0, k] == pytest.approx(numeric[0], rel=1e-6)


@pytest.mark.parametrize("kind", ["gaussian", "bernoulli", "exponential"])
def test_samples_have_the_mean_that_is_claimed(kind: str) -> None:
    distribution = DISTRIBUTIONS[kind]
    z = np.repeat(np.random.default_rng(3).normal(size=(1, distribution.inputs(2))) * 0.5, 20_000, axis=0)
    drawn = distribution.sample(z, Stream.of(1))
    assert drawn.shape == (20_000, 2)
    assert drawn.tobytes() == distribution.sample(z, Stream.of(1)).tobytes()
    np.testing.assert_allclose(drawn.mean(axis=0), distribution.mean(z)[0], rtol=0.05, atol=0.02)


def test_extreme_numbers_cost_no_infinite_loss() -> None:
    z = np.array([[-800.0, 800.0]], np.float32)
    for x in ([[0.0, 1.0]], [[1.0, 0.0]]):
        losses, dz = BernoulliReconstructionDistribution().loss(np.array(x, np.float32), z)
        assert np.isfinite(losses).all()
        assert np.isfinite(dz).all()


def test_training_is_the_same_for_the_same_position_and_learns_the_digits() -> None:
    digits = read_digits().features
    conf = MultiLayerConfiguration(
        conf=NeuralNetConfiguration(seed=1, activation="tanh", updater=Adam(learning_rate=3e-3)),
        layers=(
            VariationalAutoencoder(
                n_in=64, n_out=8, encoder_layer_sizes=(64,), decoder_layer_sizes=(64,),
                reconstruction_distribution=BernoulliReconstructionDistribution(),
            ),
        ),
        pretrain=True,
        backprop=False,
    )  # fmt: skip
    nets = [MultiLayerNetwork(conf) for _ in range(2)]
    scores = []
    for net in nets:
        for epoch in range(8):
            for index in range(14):
                batch = digits[index * 128 : (index + 1) * 128]
                iteration = epoch * 14 + index
                score = net.pretrain_batch(0, batch, iteration=iteration, stream=Stream.of(2).at(epoch, index))
                scores.append(score)
    assert nets[0].params.tobytes() == nets[1].params.tobytes()
    assert np.mean(scores[-14:]) < np.mean(scores[:14]) - 8
    rebuilt = nets[0].reconstruct(digits[:100])
    assert np.abs(rebuilt - digits[:100]).mean() < np.abs(digits[:100].mean(axis=0) - digits[:100]).mean()


def test_it_generates_and_estimates_probabilities() -> None:
    net = network(vae("bernoulli"), OutputLayer(n_out=2, activation="softmax"))
    z = np.linspace(-2, 2, 3 * LATENT).reshape(3, LATENT)
    mean = generate_at_mean_given_z(net, z)
    assert mean.shape == (3, N_IN) and ((mean > 0) & (mean < 1)).all()
    drawn = [generate_random_given_z(net, np.repeat(z, 2000, axis=0), Stream.of(seed)) for seed in (1, 1, 2)]
    assert set(np.unique(drawn[0])) == {0.0, 1.0}
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert (drawn[0] != drawn[2]).any()
    np.testing.assert_allclose(drawn[0].reshape(3, 2000, N_IN).mean(axis=1), mean, atol=0.06)
    many = reconstruction_log_probability(net, data(), 3000, Stream.of(1))
    few = [reconstruction_log_probability(net, data(), 1, Stream.of(seed)) for seed in range(300)]
    assert many.shape == (7,) and (many < 0).all()
    np.testing.assert_allclose(np.log(np.exp(few).mean(axis=0)), many, atol=0.1)  # unbiased before the logarithm
    assert np.mean(few) < many.mean()
    with pytest.raises(ConfError, match=r"layer 1 is no variational autoencoder; those that are: \[0\]"):
        generate_at_mean_given_z(net, z, layer=1)
    with pytest.raises(ShapeError, match=rf"z has shape \(3,\); .* wants \(examples, {LATENT}\)"):
        generate_at_mean_given_z(net, z[:, 0])
    with pytest.raises(ConfError, match="num_samples=0"):
        reconstruction_log_probability(net, data(), 0, Stream.of(1))


def test_configurations_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfError, match=r"variational_autoencoder 'v': encoder_layer_sizes is \(3, 0\)"):
        VariationalAutoencoder(name="v", n_out=2, encoder_layer_sizes=(3, 0))
    with pytest.raises(ConfError, match="num_samples=0"):
        VariationalAutoencoder(n_out=2, num_samples=0)
    with pytest.raises(ConfError, match=r"unknown pzx_activation 'identiti'.*identity"):
        VariationalAutoencoder(n_out=2, pzx_activation="identiti")
    with pytest.raises(ConfError, match=r"bernoulli: unknown activation 'sigmoit'.*sigmoid"):
        BernoulliReconstructionDistribution(activation="sigmoit")


@pytest.mark.parametrize("version", ["0.9.1", "1.0.0"])
@pytest.mark.parametrize("kind", sorted(DISTRIBUTIONS))
def test_it_survives_json_ours_and_dl4js(kind: str, version: str) -> None:
    net = network(vae(kind, num_samples=2), OutputLayer(n_out=2), dtype="float32")
    assert msgspec.json.decode(msgspec.json.encode(net.conf), type=MultiLayerConfiguration) == net.conf
    back = from_dl4j(to_dl4j(net.conf, version=version))
    ours, theirs = net.layers[0], back.layers[0]
    for field in ("encoder_layer_sizes", "decoder_layer_sizes", "reconstruction_distribution", "num_samples"):
        assert getattr(ours, field) == getattr(theirs, field)
