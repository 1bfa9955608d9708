"""Layers that keep, shorten or pad sequences: what of them counts, in training, score and evaluation alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.datasets import DataSet
from dl4jlegacy.errors import ShapeError
from dl4jlegacy.kernels import load
from dl4jlegacy.nn import (
    LSTM,
    ComputationGraph,
    Convolution1DLayer,
    InputType,
    MultiLayerConfiguration,
    MultiLayerNetwork,
    NeuralNetConfiguration,
    RnnOutputLayer,
    Subsampling1DLayer,
    ZeroPadding1DLayer,
)
from dl4jlegacy.nn.fitting.gradient_check import GradientCheckUtil

EXAMPLES, STEPS, N = 5, 9, 3
ENDS = np.array([9, 5, 1, 7, 4])
MASK = (np.arange(STEPS) < ENDS[:, None]).astype(float)


def conv(**fields: Any) -> Convolution1DLayer:
    return Convolution1DLayer(n_out=4, **fields)


def pool(kind: str, **fields: Any) -> Subsampling1DLayer:
    return Subsampling1DLayer(pooling_type=kind, **fields)  # type: ignore[arg-type]


KINDS = ("max", "avg", "sum", "pnorm")
KEEPING: list[tuple[Any, ...]] = [
    *[(conv(kernel_size=k, dilation=d, convolution_mode="same"),) for k in (1, 2, 3, 4, 5) for d in (1, 2)],
    *[(conv(kernel_size=1 + 2 * p, padding=p),) for p in (1, 2)],
    *[(pool(kind, kernel_size=k, stride=1, convolution_mode="same"),) for k in (2, 3) for kind in KINDS],
    *[(pool(kind, kernel_size=3, stride=1, padding=1),) for kind in KINDS],
    (conv(kernel_size=3, convolution_mode="same"), LSTM(n_out=4), pool("max", kernel_size=4, stride=1,
                                                                       convolution_mode="same")),
]  # fmt: skip
OTHERS: list[tuple[Any, ...]] = [
    (conv(kernel_size=3),),
    (conv(kernel_size=2, stride=2),),
    (conv(kernel_size=3, stride=2, convolution_mode="same"), LSTM(n_out=4)),
    (LSTM(n_out=4), pool("avg", kernel_size=2, stride=2)),
    (pool("max", kernel_size=3, stride=2, convolution_mode="same"), conv(kernel_size=2)),
    (ZeroPadding1DLayer(padding=(1, 2)), conv(kernel_size=2)),
    (ZeroPadding1DLayer(padding=(0, 2)),),
]


def stack(layers: tuple[Any, ...], kernels: str = "numpy") -> MultiLayerNetwork:
    conf = NeuralNetConfiguration(activation="tanh", dtype="float64", seed=7)
    output = RnnOutputLayer(n_out=3, activation="softmax")
    whole = MultiLayerConfiguration(conf=conf, layers=(*layers, output), input_type=InputType.recurrent(N))
    return MultiLayerNetwork(whole, kernels=load(kernels))


def graph(layers: tuple[Any, ...]) -> ComputationGraph:
    builder = NeuralNetConfiguration.builder().seed(7).activation("tanh").dtype("float64").graph_builder()
    builder.add_inputs("in").set_input_types(InputType.recurrent(N))
    below = "in"
    for index, layer in enumerate((*layers, RnnOutputLayer(n_out=3, activation="softmax"))):
        builder.add_layer(str(index), layer, below)
        below = str(index)
    return ComputationGraph(builder.set_outputs(below).build(), kernels=load("numpy"))


def data(net: MultiLayerNetwork) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((EXAMPLES, N, STEPS))
    classes = rng.integers(0, 3, (EXAMPLES, net.output(x).shape[2]))
    return x, np.ascontiguousarray(np.eye(3)[classes].transpose(0, 2, 1))


def titles(layers: tuple[Any, ...]) -> str:
    return "-".join(layer.title() for layer in layers)


@pytest.mark.parametrize("layers", KEEPING, ids=titles)
def test_labels_behind_the_end_of_a_sequence_are_nothing_to_a_layer_that_keeps_its_length(layers: Any) -> None:
    net = stack(layers)
    x, labels = data(net)
    y, mask = net.masked_output(x, MASK)
    np.testing.assert_array_equal(mask, MASK)
    gradient, score = (np.copy(found) for found in net.gradient_and_score(x, labels, Stream.of(1), MASK))
    assert score == pytest.approx(net.score(DataSet(x, labels, MASK)), rel=1e-12)
    assert score == pytest.approx(-(labels * np.log(y) * MASK[:, None]).sum() / EXAMPLES, rel=1e-12)
    behind = (MASK == 0)[:, None]
    changed = np.where(behind, np.roll(labels, 1, axis=1), labels), np.where(behind, 100.0, x)
    found = net.gradient_and_score(changed[1], changed[0], Stream.of(1), MASK)
    np.testing.assert_array_equal(found[0], gradient)
    assert float(found[1]) == score


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("layers", [*OTHERS, *KEEPING[::5]], ids=titles)
def test_a_stack_trains_scores_and_evaluates_as_the_same_layers_as_a_graph(layers: Any, masked: bool) -> None:
    net, other, mask = stack(layers), graph(layers), MASK if masked else None
    other.set_params(net.params)
    x, labels = data(net)
    (ours, score), (theirs, same) = (n.gradient_and_score(x, labels, Stream.of(1), mask) for n in (net, other))
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-15)
    assert float(score) == pytest.approx(float(same), rel=1e-12)
    examples = DataSet(x, labels, mask)
    assert net.score(examples) == pytest.approx(float(score), rel=1e-12)
    assert other.score(examples) == pytest.approx(float(score), rel=1e-12)
    counted = net.masked_output(x, mask)[1]
    wanted = labels.shape[0] * labels.shape[2] if counted is None else int(counted.sum())
    assert net.evaluate(examples).examples == other.evaluate(examples).examples == wanted
    report = GradientCheckUtil.check_gradients(net, x, labels, features_mask=mask, max_params=20)
    assert report.passed, report.failures
    before = net.params.copy()
    net.fit(examples)
    assert (net.params != before).any()


@pytest.mark.parametrize("layers", OTHERS, ids=titles)
def test_labels_of_another_length_are_refused_with_the_length_that_leaves_the_network(layers: Any) -> None:
    net = stack(layers)
    x, labels = data(net)
    with pytest.raises(ShapeError, match=rf"wants \({EXAMPLES}, 3, {labels.shape[2]}\)"):
        net.gradient_and_score(x, np.concatenate([labels, labels[:, :, :1]], axis=2), Stream.of(1))


def test_a_batch_that_is_shorter_than_a_window_names_the_layer() -> None:
    net = stack((LSTM(n_out=4), conv(kernel_size=4)))
    with pytest.raises(ShapeError, match=r"layer 1 \(convolution1d\): kernel length 4 is larger"):
        net.gradient_and_score(np.ones((2, N, 3)), np.ones((2, 3, 1)), Stream.of(1))


@pytest.mark.parametrize("layers", [OTHERS[0], OTHERS[1], OTHERS[3]], ids=titles)
def test_sequences_of_different_lengths_have_labels_of_the_lengths_that_leave_the_network(layers: Any) -> None:
    """Put into one batch they cost what they cost alone, and have the same gradient."""
    net, rng, parts = stack(layers), np.random.default_rng(5), []
    for steps in (9, 4, 6):
        x = rng.standard_normal((2, N, steps))
        left = net.output(x).shape[2]
        labels = np.eye(3)[rng.integers(0, 3, (2, left))].transpose(0, 2, 1)
        parts.append(DataSet(x, labels, labels_mask=(rng.random((2, left)) < 0.7) if steps == 4 else None))
    merged = DataSet.merge(parts)
    assert merged.labels.shape[2] == parts[0].labels.shape[2] == merged.labels_mask.shape[1]  # type: ignore[union-attr]
    found = [np.copy(net.gradient_and_score(p.features, p.labels, Stream.of(1), p.features_mask, p.labels_mask)[0])
             for p in (*parts, merged)]  # fmt: skip
    np.testing.assert_allclose(found[3], np.mean(found[:3], axis=0), rtol=1e-10, atol=1e-14)
    assert net.score(merged) == pytest.approx(np.mean([net.score(part) for part in parts]), rel=1e-12)
    report = GradientCheckUtil.check_gradients(
        net, merged.features, merged.labels, features_mask=merged.features_mask, labels_mask=merged.labels_mask
    )
    assert report.passed, report.failures


def test_truncated_backpropagation_needs_labels_of_the_length_of_the_features() -> None:
    net = stack((conv(kernel_size=3),))
    x, labels = data(net)
    cut = MultiLayerNetwork(net.conf.replace(backprop_type="truncated_bptt", tbptt_fwd_length=4, tbptt_back_length=4))
    with pytest.raises(ShapeError, match=r"truncated_bptt cuts features and labels along time.*'standard'"):
        cut.fit(DataSet(x, labels))
