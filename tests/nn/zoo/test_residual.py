"""The multilayer perceptron beside a linear regression."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.nn import ComputationGraph, restore_computation_graph, write_model
from dl4jlegacy.nn.fitting.gradient_check import GradientCheckUtil
from dl4jlegacy.nn.zoo import residual_mlp


def test_the_network_begins_at_the_linear_prediction_and_learns_what_is_left(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(256, 3)).astype(np.float32)
    y = 0.1 * np.abs(x[:, :2]) + x[:, :2] + x[:, 2:]  # the linear part is x0 + x2, x1 + x2
    features = np.concatenate([x, x[:, :2] + x[:, 2:]], axis=1)
    net = ComputationGraph(residual_mlp(5, 2, scale=0.1, hidden=(16,), seed=4))
    np.testing.assert_array_equal(net.output(features), features[:, 3:])
    before, root = np.square(net.output(features) - y).mean(), Stream.of(4)
    for iteration in range(400):
        net.fit_batch(features, y, iteration=iteration, stream=root.at(iteration))
    assert np.square(net.output(features) - y).mean() < before / 20
    write_model(net, tmp_path / "model.zip")
    restored = restore_computation_graph(tmp_path / "model.zip")
    np.testing.assert_array_equal(restored.output(features), net.output(features))


def test_features_that_stand_apart_and_the_prediction_do_not_reach_the_layers() -> None:
    rng, net = np.random.default_rng(2), ComputationGraph(residual_mlp(4, 1, apart=1, hidden=(6,)))
    net.set_params(rng.normal(0, 0.4, net.params.shape).astype(np.float32))
    x = rng.normal(size=(9, 4)).astype(np.float32)
    moved = x + np.array([7, 0, 0, 0], np.float32)
    np.testing.assert_array_equal(net.output(moved), net.output(x))
    moved[:, 3] += 5
    np.testing.assert_allclose(net.output(moved), net.output(x) + 5, rtol=1e-5)
    assert residual_mlp(2, 1, apart=1, hidden=(6,)) == residual_mlp(2, 1, hidden=(6,)), "there is nothing else"


@pytest.mark.parametrize("apart", [0, 1])
def test_its_gradients_are_those_of_the_loss(apart: int) -> None:
    rng = np.random.default_rng(1)
    conf = residual_mlp(4, 1, scale=0.3, apart=apart, hidden=(6, 5), seed=2)
    net = ComputationGraph(msgspec.structs.replace(conf, conf=msgspec.structs.replace(conf.conf, dtype="float64")))
    net.set_params(rng.normal(0, 0.4, net.params.shape))
    report = GradientCheckUtil.check_gradients(net, rng.normal(size=(5, 4)), rng.normal(size=(5, 1)))
    assert report.passed
