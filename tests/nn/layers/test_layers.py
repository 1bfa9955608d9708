"""Layers, the layout of their parameters, and the updater over the flat vectors."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.errors import ConfError, ShapeError
from dl4jlegacy.kernels import load
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration, NeuralNetConfiguration
from dl4jlegacy.nn.layers.autoencoder import AutoEncoder
from dl4jlegacy.nn.layers.layer import DenseLayer, Layer
from dl4jlegacy.nn.layers.output import OutputLayer
from dl4jlegacy.nn.layers.rbm import RBM
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.optimization.gradient_normalization import GRADIENT_NORMALIZATIONS
from dl4jlegacy.nn.optimization.step import Step, Workspace
from dl4jlegacy.nn.optimization.updaters import AdaGrad, Adam, Nesterovs, Sgd
from dl4jlegacy.nn.parameters import ParamLayout


def network(*layers: Layer, **conf: object) -> MultiLayerNetwork:
    fields = {"activation": "tanh"} | conf
    return MultiLayerNetwork(
        MultiLayerConfiguration(conf=NeuralNetConfiguration(**fields), layers=layers), kernels=load("numpy")
    )


def output(n_out: int = 2, **fields: object) -> OutputLayer:
    return OutputLayer(n_out=n_out, activation="softmax", **fields)


def test_layers_survive_json() -> None:
    layers = (
        DenseLayer(n_in=4, n_out=5, activation="relu", updater=Adam()),
        RBM(n_out=3, k=2, visible_unit="gaussian"),
        AutoEncoder(n_out=3, corruption_level=0.1),
        OutputLayer(n_out=2, loss="mse", loss_weights=(1.0, 2.0)),
    )
    assert msgspec.json.decode(msgspec.json.encode(layers), type=tuple[Layer, ...]) == layers


def test_parameters_lie_in_dl4js_order_and_matrices_column_by_column() -> None:
    net = network(RBM(n_in=3, n_out=2, name="first"), output())
    assert [(s.layer, s.name, s.start, s.stop) for s in net.layout.spans] == [
        (0, "W", 0, 6), (0, "b", 6, 8), (0, "vb", 8, 11), (1, "W", 11, 15), (1, "b", 15, 17),
    ]  # fmt: skip
    net.set_params(np.arange(17, dtype=np.float32))
    assert net.param_table["0_W"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert list(net.param_table) == ["0_W", "0_b", "0_vb", "1_W", "1_b"]
    net.param_table["1_b"][...] = -1
    assert net.params[15:].tolist() == [-1, -1]
    assert net.layer_slices == (slice(0, 11), slice(11, 17))


def test_a_vector_of_the_wrong_length_is_refused_with_both_lengths() -> None:
    net = network(DenseLayer(n_in=3, n_out=2), output())
    with pytest.raises(ShapeError, match=r"\(5,\).*\(14,\)"):
        net.set_params(np.zeros(5, np.float32))
    with pytest.raises(ShapeError, match="updater state"):
        net.set_updater_state(np.zeros(5, np.float32))


def test_drop_out_keeps_the_mean_and_drops_only_in_training() -> None:
    layer = DenseLayer(n_in=1000, n_out=1, drop_out=0.8)
    x = np.ones((50, 1000), np.float32)
    step = Step(load("numpy"), Workspace(), Stream.of(1), train=True)
    dropped = layer.drop(x, step)
    assert set(np.unique(dropped)) == {np.float32(0), np.float32(1.25)}
    assert dropped.mean() == pytest.approx(1, abs=0.02)
    assert layer.drop(x, Step(load("numpy"), Workspace(), Stream.of(1))) is x


def test_buffers_are_reused_and_grow() -> None:
    workspace, like = Workspace(), np.zeros(1, np.float32)
    large = workspace.buffer((0, "y"), (4, 6), like)
    assert np.shares_memory(large, workspace.buffer((0, "y"), (3, 5), like))
    assert not np.shares_memory(large, workspace.buffer((1, "y"), (4, 6), like))
    assert workspace.buffer((0, "y"), (9, 9), like).shape == (9, 9)


def test_neighbours_with_equal_updaters_share_a_block_and_visible_biases_stand_alone() -> None:
    net = network(
        DenseLayer(n_in=4, n_out=3),
        RBM(n_out=3),
        DenseLayer(n_out=2, updater=Sgd(learning_rate=0.5)),
        output(updater=Adam()),
    )
    blocks = [(b.start, b.stop, b.rows, b.is_pretrain) for b in net.updater.blocks]
    assert blocks == [(0, 27, 0, False), (27, 30, 0, True), (30, 38, 0, False), (38, 44, 2, False)]
    assert net.updater_state.size == 12


def test_pretraining_a_layer_changes_only_its_parameters_and_its_columns_of_a_shared_block() -> None:
    net = network(DenseLayer(n_in=4, n_out=3), RBM(n_out=3), output(), updater=Adam(learning_rate=0.01))
    before, state = net.params.copy(), net.updater_state.copy()
    x = np.random.default_rng(1).random((5, 4), dtype=np.float32)
    net.pretrain_batch(1, x, iteration=0, stream=Stream.of(1))
    changed = np.flatnonzero(net.params != before)
    assert changed.min() == 15 and changed.max() < net.layer_slices[1].stop
    m, v = net.updater_state[:54].reshape(2, 27)  # the block spans the dense layer and the RBM's W and b
    assert not m[:15].any() and not v[:15].any()
    assert m[15:].any() and v[15:].any()
    assert (net.updater_state != state).sum() <= 2 * 15


def test_fine_tuning_leaves_visible_biases_alone() -> None:
    net = network(RBM(n_in=4, n_out=3, visible_bias_init=0.5), output(), updater=Nesterovs(), l2_bias=0.1)
    x = np.random.default_rng(1).random((5, 4), dtype=np.float32)
    net.pretrain_batch(0, x, iteration=0, stream=Stream.of(1))
    kept = net.param_table["0_vb"].copy()
    net.fit_batch(x, np.eye(2, dtype=np.float32)[[0, 1, 0, 1, 0]], iteration=0, stream=Stream.of(1))
    assert (net.param_table["0_vb"] == kept).all()
    assert (kept != 0.5).any()


@pytest.mark.parametrize("rule", sorted(GRADIENT_NORMALIZATIONS))
def test_gradient_normalizations_follow_their_definitions(rule: str) -> None:
    net = network(
        DenseLayer(n_in=3, n_out=4), output(), gradient_normalization=rule, gradient_normalization_threshold=0.5
    )
    gradient = np.random.default_rng(1).normal(size=net.num_params).astype(np.float32)
    given = gradient.copy()
    net.updater.normalize(gradient)
    spans = [slice(s.start, s.stop) for s in net.layout.spans]
    pieces = spans if rule.endswith("param_type") else list(net.layer_slices)
    for piece in pieces:
        g, norm = given[piece], np.linalg.norm(given[piece])
        expected = {
            "none": g,
            "clip_element_wise_absolute_value": np.clip(g, -0.5, 0.5),
        }.get(rule, g / norm if rule.startswith("renorm") else g * min(1, 0.5 / norm))
        np.testing.assert_allclose(gradient[piece], expected, rtol=1e-5)


def test_normalizing_a_gradient_of_zeros_leaves_zeros() -> None:
    net = network(DenseLayer(n_in=3, n_out=4), output(), gradient_normalization="renormalize_l2_per_layer")
    gradient = np.zeros(net.num_params, np.float32)
    net.updater.normalize(gradient)
    assert not gradient.any()


def test_an_update_normalizes_then_regularizes_then_steps() -> None:
    net = network(
        DenseLayer(n_in=3, n_out=4), output(),
        updater=AdaGrad(learning_rate=0.1), l2=0.5, l1=0.1, gradient_normalization="clip_element_wise_absolute_value",
        gradient_normalization_threshold=0.01,
    )  # fmt: skip
    gradient = np.random.default_rng(1).normal(size=net.num_params).astype(np.float32)
    params = net.params.copy()
    is_weight = np.concatenate([np.full(s.stop - s.start, not s.is_bias) for s in net.layout.spans])
    g = np.clip(gradient, -0.01, 0.01) + is_weight * (0.5 * params + 0.1 * np.sign(params))
    net.update_from(gradient, iteration=0)
    h = g * g + 1e-6
    np.testing.assert_allclose(net.params, params - 0.1 * g / (np.sqrt(h) + 1e-6), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(net.updater_state, h, rtol=1e-5)


def test_wrong_names_are_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfError, match="did you mean 'relu'"):
        DenseLayer(activation="rellu")
    with pytest.raises(ConfError, match="did you mean 'mcxent'"):
        OutputLayer(loss="mcxnt")
    with pytest.raises(ConfError, match="3 loss_weights for 2 outputs"):
        OutputLayer(n_out=2, loss_weights=(1.0, 1.0, 1.0))


def test_layout_of_no_layers_is_empty() -> None:
    assert ParamLayout.of(()).size == 0
