"""Output layers: the gradient before the activation, however wrong the network is, against formulas in float64."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.datasets import DataSet
from dl4jlegacy.kernels import load
from dl4jlegacy.nn import (
    AutoEncoder,
    ComputationGraph,
    InputType,
    LossLayer,
    MultiLayerConfiguration,
    MultiLayerNetwork,
    NeuralNetConfiguration,
    OutputLayer,
    RnnOutputLayer,
)
from dl4jlegacy.nn.layers.reconstruction_distribution import BernoulliReconstructionDistribution
from dl4jlegacy.nn.optimization.step import Step, Workspace
from tests.support import references as r

ROWS, N, H = 24, 5, 1e-40
LOGARITHMIC = ("mcxent", "negativeloglikelihood", "sparse_mcxent", "kl_divergence", "poisson", "xent",
               "reconstruction_crossentropy")  # fmt: skip
WEIGHTS = (1.0, 0.5, 2.0, 0.25, 3.0)

both_kernels = pytest.mark.parametrize("kernels", ["numpy", "numba"])
both_dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def extreme(seed: int) -> np.ndarray:
    """Return logits ``(ROWS, N)`` of every size up to 300, some rows of them at a distance from all others."""
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((ROWS, N)) * 10.0 ** rng.uniform(-1, 2, (ROWS, 1))
    z[: N + 1] = [[25, 0, 0, 0, 0], *(30.0 * np.eye(N))]
    return np.clip(z, -300, 300).astype(np.float32).astype(float)


def labels_for(loss: str, seed: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Return labels as a layer takes them, and in the shape of the outputs."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, N, ROWS)
    if loss == "sparse_mcxent":
        return classes[:, None].astype(float), np.eye(N)[classes]
    if kind == "one-hot":
        return np.eye(N)[classes], np.eye(N)[classes]
    shown = rng.random((ROWS, N)).astype(np.float32).astype(float)  # sums from 1 to 4
    return shown, shown


def masks(kind: str) -> np.ndarray | None:
    rng = np.random.default_rng(8)
    return {
        "none": None,
        "ones": np.ones(ROWS),
        "examples": (rng.random(ROWS) < 0.6).astype(float),
        "column": (rng.random((ROWS, 1)) < 0.6).astype(float),
        "outputs": (rng.random((ROWS, N)) < 0.6).astype(float),
    }[kind]


@functools.cache
def derivatives(loss: str, activation: str, kind: str) -> np.ndarray | None:
    """Return the derivatives of every output's unclipped loss by every ``z``: ``(ROWS, N outputs, N)``."""
    z, (_, labels) = extreme(4), labels_for(loss, 5, kind)
    found = np.empty((*z.shape, N))
    for column in range(N):
        moved = z.astype(complex)
        moved[:, column] += 1j * H
        terms = r.logarithmic_loss(loss, activation, moved, labels)
        if terms is None:
            return None
        found[:, :, column] = terms.imag / H
    return found


CASES = [(loss, activation, kind) for loss in LOGARITHMIC for activation in r.LOGARITHMS for kind in ("one-hot", "any")]


def error_and_bias_gradient(
    loss: str, activation: str, kind: str, weights: Any, mask: Any, kernels: str, dtype: Any = np.float32
) -> tuple[Any, Any]:
    """Return what an output layer makes of ``extreme`` logits: ``dz`` and ``gb``, for half the loss."""
    chosen = load(kernels)
    z, zeros, labels = (
        chosen.xp.asarray(a, dtype=dtype) for a in (extreme(4), np.zeros(N), labels_for(loss, 5, kind)[0])
    )
    on = None if mask is None else chosen.xp.asarray(mask, dtype=dtype)
    step = Step(chosen, Workspace(), Stream.of(1), train=True, labels_mask=on)
    layer: Any = OutputLayer(n_in=1, n_out=N, activation=activation, loss=loss, loss_weights=weights)
    gb = chosen.xp.empty_like(zeros)
    with np.errstate(all="ignore"):
        _, dz = layer.score_gradient(z, zeros, labels, gb, step, scale=0.5)
    return dz, gb


@both_dtypes
@both_kernels
@pytest.mark.parametrize("masked", ["none", "ones", "examples", "column", "outputs"])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
def test_the_error_of_a_confident_network_is_the_derivative_of_its_loss(
    weights: Any, masked: str, kernels: str, dtype: Any
) -> None:
    mask = masks(masked)
    factors = np.ones((ROWS, N)) * (weights or 1.0) * (1.0 if mask is None else mask.reshape(ROWS, -1))
    for loss, activation, kind in CASES:
        parts = derivatives(loss, activation, kind)
        if parts is None:
            continue
        wanted = 0.5 * (factors[:, :, None] * parts).sum(axis=1)
        dz, gb = error_and_bias_gradient(loss, activation, kind, weights, mask, kernels, dtype)
        rtol, large = 2e-5 if dtype == np.float32 else 1e-11, max(1.0, float(np.abs(wanted).max()))
        what = f"{loss} behind {activation}, labels {kind}"
        np.testing.assert_allclose(dz, wanted, rtol=rtol, atol=rtol / 10 * large, err_msg=what)
        np.testing.assert_allclose(gb, wanted.sum(axis=0), rtol=rtol, atol=rtol * ROWS * large, err_msg=what)


@both_kernels
def test_masks_and_weights_of_ones_change_nothing(kernels: str) -> None:
    labels = labels_for("mcxent", 5, "any")[1]
    for loss in LOGARITHMIC[:2]:
        found = []
        for weights, mask in (
            (None, None),
            ((1.0,) * N, None),
            (None, np.ones(ROWS)),
            ((1.0,) * N, np.ones((ROWS, N))),
        ):
            layer: Any = OutputLayer(n_in=1, n_out=N, activation="softmax", loss=loss, loss_weights=weights)
            step = Step(load(kernels), Workspace(), Stream.of(1), train=True, labels_mask=mask)
            score, dz = layer.score_gradient(extreme(4), np.zeros(N), labels, np.empty(N), step, scale=1.0)
            found.append((float(score), dz.copy()))
        for score, dz in found[1:]:
            assert score == pytest.approx(found[0][0], rel=1e-12)
            np.testing.assert_allclose(dz, found[0][1], rtol=1e-12, atol=1e-14)


@both_kernels
def test_class_indices_train_as_their_one_hot_labels_to_the_last_bit(kernels: str) -> None:
    indices, labels = (a.astype(np.float32) for a in labels_for("sparse_mcxent", 5, "one-hot"))
    for mask in (None, np.ones(ROWS, np.float32)):
        step, found = Step(load(kernels), Workspace(), Stream.of(1), train=True, labels_mask=mask), []
        for loss, given in (("sparse_mcxent", indices), ("mcxent", labels)):
            layer: Any = OutputLayer(n_in=1, n_out=N, activation="softmax", loss=loss)
            z, zeros = extreme(4).astype(np.float32), np.zeros(N, np.float32)
            score, dz = layer.score_gradient(z, zeros, given, np.empty_like(zeros), step, scale=0.5)
            found.append((float(score), dz.tobytes()))
        assert found[0] == found[1]


def regression(output: Any, *, as_graph: bool = False) -> Any:
    """Return a network that is nothing but an output layer, confident and wrong about its only example."""
    conf = NeuralNetConfiguration(seed=3, dtype="float64")
    if as_graph:
        graph = NeuralNetConfiguration.builder().seed(3).dtype("float64").graph_builder().add_inputs("in")
        graph.set_input_types(
            InputType.recurrent(2) if isinstance(output, RnnOutputLayer) else InputType.feed_forward(2)
        )
        net: Any = ComputationGraph(graph.add_layer("out", output, "in").set_outputs("out").build())
    else:
        kind = InputType.recurrent(2) if isinstance(output, RnnOutputLayer) else InputType.feed_forward(2)
        net = MultiLayerNetwork(MultiLayerConfiguration(conf=conf, layers=(output,), input_type=kind))
    net.set_params(np.array([30.0, 0.0, 0.0, 0.0, 0.0, 0.0][: net.num_params]))
    return net


@pytest.mark.parametrize("as_graph", [False, True], ids=["stack", "graph"])
@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_a_wrong_example_pulls_as_hard_behind_any_mask(activation: str, as_graph: bool) -> None:
    loss = "mcxent" if activation == "softmax" else "xent"
    x, labels = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])
    plain = regression(OutputLayer(n_out=2, activation=activation, loss=loss), as_graph=as_graph)
    wanted = plain.gradient_and_score(x, labels, Stream.of(1))[0].copy()
    assert wanted[0] == pytest.approx(1.0)
    for mask in (np.ones(1), np.ones((1, 1)), np.ones((1, 2))):
        found = plain.gradient_and_score(x, labels, Stream.of(1), None, mask)[0]
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-14)
    if not as_graph:
        assert plain.score(DataSet(x, labels, labels_mask=np.ones((1, 2)))) == pytest.approx(
            plain.score(DataSet(x, labels))
        )
    weighted = regression(
        OutputLayer(n_out=2, activation=activation, loss=loss, loss_weights=(1, 1)), as_graph=as_graph
    )
    np.testing.assert_allclose(weighted.gradient_and_score(x, labels, Stream.of(1))[0], wanted, rtol=1e-12, atol=1e-14)
    steps = regression(RnnOutputLayer(n_out=2, activation=activation, loss=loss), as_graph=as_graph)
    for masks_given in ((None, None), (np.ones((1, 1)), None), (None, np.ones((1, 1)))):
        found = steps.gradient_and_score(x[:, :, None], labels[:, :, None], Stream.of(1), *masks_given)[0]
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-14)


def test_a_loss_layer_behind_wrong_logits_sends_back_the_whole_error() -> None:
    layer = LossLayer(n_in=2, n_out=2, activation="softmax", loss="mcxent", loss_weights=(1.0, 1.0))
    step = Step(load("numpy"), Workspace(), Stream.of(1), train=True)
    _, dx = layer.loss_gradient({}, np.array([[30.0, 0.0]]), np.array([[0.0, 1.0]]), {}, step, scale=1.0, need_dx=True)
    np.testing.assert_allclose(dx, [[1.0, -1.0]], rtol=1e-12)


@pytest.mark.parametrize("loss", ["xent", "kl_divergence", "poisson"])
def test_an_autoencoder_far_off_is_drawn_back(loss: str) -> None:
    layer = AutoEncoder(n_out=3, activation="sigmoid", loss=loss, corruption_level=0.0)
    conf = MultiLayerConfiguration(
        conf=NeuralNetConfiguration(seed=3, dtype="float64"), layers=(layer, OutputLayer(n_out=2)),
        input_type=InputType.feed_forward(4), pretrain=True,
    )  # fmt: skip
    net = MultiLayerNetwork(conf)
    net.param_table["0_vb"][...] = -30.0  # the reconstruction is 1e-13 where 1 is wanted
    gradient, _ = net.pretrain_gradient_and_score(0, np.ones((5, 4)), Stream.of(1))
    np.testing.assert_allclose(gradient[net.layer_slices[0]][-4:], -1, rtol=1e-8)


def test_a_bernoulli_reconstruction_behind_softmax_is_drawn_back() -> None:
    given = BernoulliReconstructionDistribution(activation="softmax")
    _, dz = given.loss(np.array([[0.0, 1.0]]), np.array([[30.0, 0.0]]))
    np.testing.assert_allclose(dz, [[2.0, -2.0]], rtol=1e-10)
