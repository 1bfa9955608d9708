"""What a stack of pretrain layers gives back, and what it draws, against formulas in float64."""

from __future__ import annotations

import numpy as np
import pytest

from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.errors import ConfError, NotFiniteError, ShapeError
from dl4jlegacy.kernels import load
from dl4jlegacy.nn import (
    RBM,
    AutoEncoder,
    BernoulliReconstructionDistribution,
    BinomialSamplingPreProcessor,
    DenseLayer,
    GraphBuilder,
    InputType,
    Layer,
    MultiLayerConfiguration,
    MultiLayerNetwork,
    NeuralNetConfiguration,
    OutputLayer,
    VariationalAutoencoder,
    generate_at_mean_given_z,
    reconstruct_input,
    sample_input,
)
from dl4jlegacy.nn.graph.computation_graph import ComputationGraph
from dl4jlegacy.nn.pretrain_stack import check_gives_back, pretrain_stack, rebuilds_input
from dl4jlegacy.nn.zoo import deep_autoencoder, mlp

N_IN = 6
X = np.random.default_rng(1).random((9, N_IN), np.float32)


def network(*layers: Layer, kernels: str = "numba", scale: float = 0.7, **conf: object) -> MultiLayerNetwork:
    conf = {"conf": NeuralNetConfiguration(seed=3), "input_type": InputType.feed_forward(N_IN), **conf}
    net = MultiLayerNetwork(MultiLayerConfiguration(layers=layers, **conf), kernels=load(kernels))
    net.set_params(np.random.default_rng(2).normal(0, scale, net.num_params).astype(np.float32))
    return net


def classes() -> OutputLayer:
    return OutputLayer(n_out=3, activation="softmax")


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def parts(net: MultiLayerNetwork, layer: int) -> list[np.ndarray]:
    return [net.param_table[f"{layer}_{name}"].astype(np.float64) for name in ("W", "b", "vb")]


@pytest.mark.parametrize("kernels", ["numpy", "numba"])
def test_a_stack_of_rbms_goes_up_and_down_through_means(kernels: str) -> None:
    net = network(
        RBM(n_out=5, visible_unit="gaussian"), RBM(n_out=4, hidden_unit="rectified"), classes(), kernels=kernels
    )
    (W0, b0, vb0), (W1, b1, vb1) = parts(net, 0), parts(net, 1)
    below = sigmoid(X @ W0 + b0)
    top = np.maximum(below @ W1 + b1, 0)
    expected = sigmoid(top @ W1.T + vb1) @ W0.T + vb0
    np.testing.assert_allclose(reconstruct_input(net, X), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(reconstruct_input(net, X, layer=0), below @ W0.T + vb0, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(reconstruct_input(net, X, layer=0), net.reconstruct(X))
    assert len(pretrain_stack(net)) == 2 and not rebuilds_input(net)


def test_a_stack_of_autoencoders_does_so_with_its_decoders_and_without_corruption() -> None:
    net = network(AutoEncoder(n_out=5, activation="sigmoid"), AutoEncoder(n_out=4, activation="tanh"), classes())
    (W0, b0, vb0), (W1, b1, vb1) = parts(net, 0), parts(net, 1)
    top = np.tanh(sigmoid(X @ W0 + b0) @ W1 + b1)
    expected = sigmoid((top @ W1.T + vb1) @ W0.T + vb0)  # a decoder is linear unless its encoder is the sigmoid
    np.testing.assert_allclose(reconstruct_input(net, X), expected, rtol=1e-4, atol=1e-5)


def vae(n_out: int = 3) -> VariationalAutoencoder:
    return VariationalAutoencoder(
        n_out=n_out,
        encoder_layer_sizes=(5,),
        decoder_layer_sizes=(5,),
        reconstruction_distribution=BernoulliReconstructionDistribution(),
        activation="tanh",
    )


def test_a_variational_autoencoder_gives_back_the_mean_for_the_mean_also_above_an_rbm() -> None:
    net = network(vae(), backprop=False, pretrain=True)
    expected = generate_at_mean_given_z(net, net.output(X))
    np.testing.assert_array_equal(reconstruct_input(net, X), expected)
    mixed = network(RBM(n_out=5), vae(), backprop=False, pretrain=True)
    W, _, vb = parts(mixed, 0)
    below = generate_at_mean_given_z(mixed, mixed.output(X), layer=1).astype(np.float64)
    np.testing.assert_allclose(reconstruct_input(mixed, X), sigmoid(below @ W.T + vb), rtol=1e-4, atol=1e-5)


def test_a_network_that_rebuilds_its_input_gives_back_its_outputs() -> None:
    net = MultiLayerNetwork(deep_autoencoder(N_IN, N_IN, hidden=(5, 2)))
    assert rebuilds_input(net)
    np.testing.assert_array_equal(reconstruct_input(net, X), net.output(X))
    assert not np.array_equal(reconstruct_input(net, X, layer=1), net.output(X)), "by its RBMs alone"
    builder = GraphBuilder(NeuralNetConfiguration()).add_inputs("x").set_input_types(InputType.feed_forward(N_IN))
    builder.add_layer("code", DenseLayer(n_out=2), "x")
    builder.add_layer("back", OutputLayer(n_out=N_IN, activation="sigmoid", loss="xent"), "code")
    graph = ComputationGraph(builder.set_outputs("back").build())
    np.testing.assert_array_equal(reconstruct_input(graph, X), graph.output(X))


def test_many_rows_are_as_the_same_rows_in_parts() -> None:
    net = network(RBM(n_out=5), RBM(n_out=4), classes())
    many = np.random.default_rng(4).random((2500, N_IN), np.float32)
    np.testing.assert_array_equal(
        reconstruct_input(net, many),
        np.concatenate([reconstruct_input(net, many[s : s + 1024]) for s in (0, 1024, 2048)]),
    )


def exact_visible_mean(W: np.ndarray, b: np.ndarray, vb: np.ndarray) -> np.ndarray:
    """The mean of p(v), by the sum over all states: exp(-free energy)."""
    states = np.array([[i >> k & 1 for k in range(len(vb))] for i in range(2 ** len(vb))], float)
    logs = states @ vb + np.logaddexp(0, states @ W + b).sum(axis=1)
    weights = np.exp(logs - logs.max())
    return weights @ states / weights.sum()


@pytest.mark.parametrize("kernels", ["numpy", "numba"])
def test_gibbs_chains_draw_from_the_distribution_of_an_rbm(kernels: str) -> None:
    net = network(RBM(n_out=4), classes(), kernels=kernels, scale=1.0)
    drawn = sample_input(net, 20_000, Stream.of(5), gibbs_steps=40)
    assert drawn.shape == (20_000, N_IN) and ((drawn >= 0) & (drawn <= 1)).all()
    expected = exact_visible_mean(*parts(net, 0))
    np.testing.assert_allclose(drawn.mean(axis=0), expected, atol=0.01)
    one_step = sample_input(net, 20_000, Stream.of(5), gibbs_steps=1)
    assert np.abs(one_step.mean(axis=0) - expected).max() > 0.03, "the chain has to forget where it began"


def test_one_step_takes_the_mean_given_hidden_units_that_are_drawn_from_their_biases() -> None:
    net = network(RBM(n_out=4), classes())
    W, b, vb = parts(net, 0)
    drawn = sample_input(net, 30_000, Stream.of(1), gibbs_steps=1)
    states = np.array([[i >> k & 1 for k in range(4)] for i in range(16)], float)
    means = sigmoid(states @ W.T + vb)
    which = np.abs(drawn[:, None] - means[None]).max(axis=2)
    assert (which.min(axis=1) < 1e-5).all(), "each sample is the mean given some hidden state"
    shares = np.bincount(which.argmin(axis=1), minlength=16) / 30_000
    p = sigmoid(b)
    np.testing.assert_allclose(shares, np.prod(np.where(states, p, 1 - p), axis=1), atol=0.01)


def test_samples_of_a_stack_go_down_from_the_top_through_means() -> None:
    net = network(RBM(n_out=5), RBM(n_out=4), classes())
    top = network(RBM(n_out=4), classes(), input_type=InputType.feed_forward(5))
    for name in ("W", "b", "vb"):
        top.param_table[f"0_{name}"][...] = net.param_table[f"1_{name}"]
    W, _, vb = parts(net, 0)
    drawn = sample_input(net, 20_000, Stream.of(2), gibbs_steps=40)
    below = sample_input(top, 20_000, Stream.of(2), gibbs_steps=40).astype(np.float64)
    np.testing.assert_allclose(drawn.mean(axis=0), sigmoid(below @ W.T + vb).mean(axis=0), atol=0.01)


@pytest.mark.parametrize("units", [("gaussian", "binary"), ("binary", "rectified"), ("softmax", "gaussian")])
def test_other_units_are_drawn_too(units: tuple[str, str]) -> None:
    net = network(RBM(n_out=4, visible_unit=units[0], hidden_unit=units[1]), classes(), scale=0.2)
    drawn = sample_input(net, 50, Stream.of(5), gibbs_steps=20)
    assert drawn.shape == (50, N_IN) and np.isfinite(drawn).all() and len(np.unique(drawn, axis=0)) > 1


def test_a_variational_autoencoder_draws_latent_values_from_the_normal_distribution() -> None:
    net = network(vae(), backprop=False, pretrain=True)
    z = Stream.of(7).at(purpose="latent").generator().standard_normal((30, 3)).astype(np.float32)
    np.testing.assert_array_equal(sample_input(net, 30, Stream.of(7)), generate_at_mean_given_z(net, z))


def test_samples_are_the_same_for_a_stream() -> None:
    for net in (network(RBM(n_out=4), classes()), network(vae(), backprop=False, pretrain=True)):
        first, again, other = (sample_input(net, 20, Stream.of(s), gibbs_steps=9) for s in (1, 1, 2))
        assert first.tobytes() == again.tobytes() != other.tobytes()


def test_what_cannot_be_is_named() -> None:
    stack = network(RBM(n_out=5), RBM(n_out=4), classes())
    with pytest.raises(ConfError, match="layer 2 is not among the layers 0 to 1 that rebuild their input"):
        reconstruct_input(stack, X, layer=2)
    with pytest.raises(ConfError, match="layer -1 is not among"):
        sample_input(stack, 1, Stream.of(1), layer=-1)
    with pytest.raises(ShapeError, match=rf"x has shape \(9, 3\); rbm wants \(examples, {N_IN}\)"):
        reconstruct_input(stack, X[:, :3])
    for name in ("count", "gibbs_steps"):
        with pytest.raises(ConfError, match=f"{name}=0; at least 1 is needed"):
            sample_input(stack, **{"count": 1, "stream": Stream.of(1), name: 0})
    with pytest.raises(ConfError, match="network of dense, dense, output does not begin with layers that rebuild"):
        check_gives_back(MultiLayerNetwork(mlp(4, 3)))
    with pytest.raises(ConfError, match=r"layer 0 \(autoencoder\) has no distribution to draw from"):
        sample_input(network(AutoEncoder(n_out=5), classes()), 3, Stream.of(1))


def test_a_stack_ends_where_something_stands_between_two_layers() -> None:
    between = {"input_pre_processors": {1: BinomialSamplingPreProcessor()}}
    net = network(RBM(n_out=5), RBM(n_out=4), classes(), **between)
    assert len(pretrain_stack(net)) == 1
    np.testing.assert_array_equal(reconstruct_input(net, X), net.reconstruct(X))


def test_what_is_not_finite_is_named_by_its_row() -> None:
    net = network(RBM(n_out=5, visible_unit="gaussian"), classes())
    net.param_table["0_W"][...] = 1e38
    rows = np.zeros_like(X)
    rows[4:] = 1
    with pytest.raises(NotFiniteError, match="reconstruction of row 4"):
        reconstruct_input(net, rows)
