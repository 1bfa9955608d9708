"""Preprocessors that change values, and several in a row: against formulas, differences, and Deeplearning4j's JSON."""

from __future__ import annotations

import json
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.errors import ConfError, ModelError, ShapeError
from dl4jlegacy.kernels import load
from dl4jlegacy.nn import (
    LSTM,
    BinomialSamplingPreProcessor,
    CnnToFeedForwardPreProcessor,
    CnnToRnnPreProcessor,
    ComposableInputPreProcessor,
    ComputationGraph,
    ConvolutionLayer,
    DenseLayer,
    FeedForwardToCnnPreProcessor,
    FeedForwardToRnnPreProcessor,
    GradientCheckUtil,
    InputType,
    MultiLayerConfiguration,
    MultiLayerNetwork,
    NeuralNetConfiguration,
    OutputLayer,
    PreprocessorVertex,
    RnnOutputLayer,
    RnnToCnnPreProcessor,
    RnnToFeedForwardPreProcessor,
    UnitVarianceProcessor,
    ZeroMeanAndUnitVariancePreProcessor,
    ZeroMeanPrePreProcessor,
)
from dl4jlegacy.nn.conf.network import ComputationGraphConfiguration, GraphBuilder
from dl4jlegacy.nn.interchange.dl4j.graph import graph_from_dl4j, graph_to_dl4j
from dl4jlegacy.nn.interchange.dl4j.json import Version, to_dl4j
from dl4jlegacy.nn.interchange.dl4j.layers import pre_processor, pre_processor_tree
from dl4jlegacy.nn.interchange.dl4j.reader import from_dl4j
from dl4jlegacy.nn.optimization.step import Step, Workspace
from dl4jlegacy.nn.preprocessors import InputPreProcessor

MEAN, VARIANCE, BOTH = ZeroMeanPrePreProcessor(), UnitVarianceProcessor(), ZeroMeanAndUnitVariancePreProcessor()
STATISTICS = (MEAN, VARIANCE, BOTH)
VERSIONS = get_args(Version)
BINOMIAL = BinomialSamplingPreProcessor()
MASK = (np.arange(5) < np.array([[5], [3], [1], [4]])).astype(np.float64)


def several(*parts: InputPreProcessor) -> ComposableInputPreProcessor:
    return ComposableInputPreProcessor(input_pre_processors=parts)


def step(**fields: Any) -> Step:
    return Step(load("numpy"), Workspace(), Stream.of(3), **fields)


def net(*layers: Any, pres: dict[int, InputPreProcessor], **fields: Any) -> MultiLayerNetwork:
    conf = NeuralNetConfiguration(activation="tanh", dtype="float64", seed=5)
    whole = MultiLayerConfiguration(conf=conf, layers=layers, input_pre_processors=pres, **fields)
    assert MultiLayerConfiguration.from_json(whole.to_json()) == whole
    return MultiLayerNetwork(whole, kernels=load("numpy"))


def check(network: MultiLayerNetwork, x: np.ndarray, labels: np.ndarray, **masks: Any) -> None:
    report = GradientCheckUtil.check_gradients(network, x, labels, **masks)
    assert report.passed, report.failures[:4]


def out(**fields: Any) -> OutputLayer:
    return OutputLayer(n_out=2, activation="softmax", **fields)


def one_hot(*shape: int) -> np.ndarray:
    labels = np.eye(2)[np.random.default_rng(1).integers(0, 2, shape)]
    return np.ascontiguousarray(np.moveaxis(labels, -1, 1))


# -- forward ---------------------------------------------------------------------------------------------------------


def expected(pre: InputPreProcessor, x: np.ndarray) -> np.ndarray:
    """What Deeplearning4j's class makes of rows."""
    y = x - x.mean(axis=0) if pre in (MEAN, BOTH) else x
    return y / (x.std(axis=0, ddof=1) + 1e-5) if pre in (VARIANCE, BOTH) else y


@pytest.mark.parametrize("pre", STATISTICS, ids=lambda pre: pre.title())
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@given(st.integers(2, 40), st.integers(1, 9), st.integers(0, 2**32))
@settings(deadline=None, max_examples=25)
def test_columns_are_as_the_formulas_say(pre: InputPreProcessor, dtype: str, rows: int, n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(rng.normal(size=n), rng.uniform(0.5, 3, n), (rows, n)).astype(dtype)
    before = x.copy()
    y, _ = pre.forward(x, step(examples=rows, rows=rows))
    assert y.dtype == x.dtype and y.shape == x.shape
    np.testing.assert_array_equal(x, before)  # the original overwrites it
    tolerance = 1e-12 if dtype == "float64" else 2e-4
    np.testing.assert_allclose(y, expected(pre, before.astype(np.float64)), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("pre", STATISTICS, ids=lambda pre: pre.title())
def test_masked_time_steps_do_not_count(pre: InputPreProcessor) -> None:
    x = np.random.default_rng(2).normal(3, 2, (5, 4, 3))
    mask = np.ascontiguousarray(MASK.T)
    y, _ = pre.forward(x, step(examples=4, rows=4, mask=mask))
    np.testing.assert_allclose(y[mask > 0], expected(pre, x[mask > 0]), rtol=1e-12, atol=1e-12)
    rows, _ = pre.forward(x.reshape(20, 3), step(examples=4, rows=4, mask=mask))
    np.testing.assert_array_equal(rows, y.reshape(20, 3))
    whole, _ = pre.forward(x, step(examples=4, rows=4, mask=np.ones((5, 4))))
    plain, _ = pre.forward(x, step(examples=4, rows=4))
    np.testing.assert_allclose(whole, plain, rtol=1e-12)


def test_a_single_row_and_columns_that_do_not_vary_stay_finite() -> None:
    one = np.array([[3.0, -2.0]])
    here = step(examples=1, rows=1)
    np.testing.assert_array_equal(VARIANCE.forward(one, here)[0], one)
    np.testing.assert_array_equal(BOTH.forward(one, here)[0], [[0, 0]])
    masked = step(examples=2, rows=2, mask=np.array([[1.0, 0.0]]))
    np.testing.assert_array_equal(VARIANCE.forward(np.array([[3.0, -2.0], [7, 7]]), masked)[0], [[3, -2], [7, 7]])
    y, back = BOTH.forward(np.full((4, 2), 7.0), step(examples=4, rows=4))
    np.testing.assert_array_equal(y, 0)
    assert np.isfinite(back(np.ones((4, 2)))).all()


# -- gradients -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pre", STATISTICS, ids=lambda pre: pre.title())
def test_gradients_of_rows_include_mean_and_deviation(pre: InputPreProcessor) -> None:
    x = np.random.default_rng(4).normal(1, 2, (6, 5))
    check(net(DenseLayer(n_in=5, n_out=4), DenseLayer(n_out=3), out(), pres={0: pre, 1: pre, 2: pre}), x, one_hot(6))


@pytest.mark.parametrize(
    "masks",
    [
        {},
        pytest.param({"features_mask": MASK}, marks=pytest.mark.long),
        {"features_mask": MASK, "labels_mask": MASK},
    ],
)
@pytest.mark.parametrize("pre", STATISTICS, ids=lambda pre: pre.title())
@pytest.mark.everyday(1)
def test_gradients_of_sequences_and_of_their_rows(pre: InputPreProcessor, masks: dict[str, np.ndarray]) -> None:
    network = net(
        *(LSTM(n_out=3), DenseLayer(n_out=3), LSTM(n_out=3), RnnOutputLayer(n_out=2, activation="softmax")),
        pres={
            0: pre,
            1: several(pre, RnnToFeedForwardPreProcessor(), pre),
            2: several(pre, FeedForwardToRnnPreProcessor()),
            3: pre,
        },
        input_type=InputType.recurrent(2),
    )
    check(network, np.random.default_rng(5).normal(size=(4, 2, 5)), one_hot(4, 5), **masks)


def test_several_go_from_images_to_rows_to_sequences_and_back() -> None:
    """The rows that leave are as many as there are images, whichever way they came."""
    image = {"height": 3, "width": 2, "channels": 2}
    network = net(
        *(ConvolutionLayer(n_out=2, kernel_size=(1, 1)), ConvolutionLayer(n_out=2, kernel_size=(2, 2))),
        *(LSTM(n_out=3), RnnOutputLayer(n_out=2, activation="softmax")),
        pres={
            0: several(BOTH, RnnToCnnPreProcessor(**image)),
            1: several(
                several(CnnToFeedForwardPreProcessor(**image), BOTH),
                FeedForwardToRnnPreProcessor(),
                RnnToFeedForwardPreProcessor(),
                FeedForwardToCnnPreProcessor(**image),
                CnnToRnnPreProcessor(**image),
                MEAN,
                RnnToCnnPreProcessor(**image),
            ),
        },
        input_type=InputType.recurrent(12),
    )
    for masks in ({}, {"features_mask": MASK, "labels_mask": MASK}):
        check(network, np.random.default_rng(6).normal(size=(4, 12, 5)), one_hot(4, 5), **masks)
    flat = net(
        *(ConvolutionLayer(n_out=2, kernel_size=(2, 2)), DenseLayer(n_out=3), out()),
        pres={
            0: several(VARIANCE, FeedForwardToCnnPreProcessor(height=3, width=2)),
            1: several(CnnToFeedForwardPreProcessor(height=2, width=1, channels=2), BOTH),
        },
    )
    assert flat.n_in == 6
    check(flat, np.random.default_rng(6).normal(size=(5, 6)), one_hot(5))


def test_gradients_in_a_graph() -> None:
    conf = NeuralNetConfiguration(activation="tanh", dtype="float64", seed=5)
    b = GraphBuilder(conf).add_inputs("in").set_input_types(InputType.feed_forward(4))
    b.add_vertex("even", PreprocessorVertex(pre_processor=several(BOTH, MEAN)), "in")
    b.add_layer("a", DenseLayer(n_out=3), "even", pre_processor=VARIANCE)
    graph = b.add_layer("out", out(), "a", pre_processor=MEAN).set_outputs("out").build()
    assert ComputationGraphConfiguration.from_json(graph.to_json()) == graph
    for version in VERSIONS:
        read = graph_from_dl4j(json.loads(json.dumps(graph_to_dl4j(graph, version=version))))
        assert [node.pre_processor for node in read.vertices] == [node.pre_processor for node in graph.vertices]
        assert read.vertices[0].vertex == graph.vertices[0].vertex
    network = ComputationGraph(graph, kernels=load("numpy"))
    report = GradientCheckUtil.check_gradients(network, np.random.default_rng(7).normal(size=(6, 4)), one_hot(6))
    assert report.passed, report.failures[:4]


# -- sampling --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernels", ["numpy", "numba"])
def test_samples_are_ones_as_often_as_the_values_say(kernels: str) -> None:
    here = Step(load(kernels), Workspace(), Stream.of(3), train=True, examples=20_000, rows=20_000)
    x = np.tile(np.array([0.0, 0.1, 0.5, 0.9, 1.0, 1.5, -0.5], np.float32), (20_000, 1))
    y, back = BINOMIAL.forward(x, here)
    assert set(np.unique(y)) == {0, 1} and y.dtype == x.dtype
    np.testing.assert_allclose(y.mean(axis=0), [0, 0.1, 0.5, 0.9, 1, 1, 0], atol=0.015)
    assert abs(np.corrcoef(y[:, 2], y[:, 3])[0, 1]) < 0.03
    dy = np.random.default_rng(0).normal(size=x.shape).astype(np.float32)
    np.testing.assert_array_equal(back(dy), dy)  # straight through
    again, _ = BINOMIAL.forward(x, Step(load("numpy"), Workspace(), Stream.of(3), examples=20_000, rows=20_000))
    np.testing.assert_array_equal(again, y)
    other, _ = BINOMIAL.forward(x, here.at(1))
    assert (other != y).any()


def test_two_samplers_in_a_row_draw_apart() -> None:
    x = np.full((1000, 3), 0.5)
    y, _ = several(BINOMIAL, BINOMIAL).forward(x, step(examples=1000, rows=1000))
    np.testing.assert_array_equal(y, several(BINOMIAL).forward(x, step(examples=1000, rows=1000))[0])  # 0 and 1 stay
    first, _ = BINOMIAL.forward(x, step(part="0 "))
    second, _ = BINOMIAL.forward(x, step(part="1 "))
    assert (first != second).any()


def test_sampled_images_train_and_predict_the_same_twice() -> None:
    network = net(
        *(
            ConvolutionLayer(n_out=2, kernel_size=(2, 2), activation="sigmoid"),
            ConvolutionLayer(n_out=2, kernel_size=(1, 1)),
        ),
        out(),
        pres={1: BINOMIAL},
        input_type=InputType.convolutional(4, 3, 1),
    )
    x = np.random.default_rng(8).normal(size=(21, 1, 4, 3))
    for iteration in range(3):
        network.fit_batch(x, one_hot(21), iteration=iteration, stream=Stream.of(iteration))
    np.testing.assert_array_equal(network.output(x), network.output(x))
    sampled = network.feed_forward(x)
    assert np.isfinite(sampled[-1]).all()


# -- configurations --------------------------------------------------------------------------------------------------

WRAPPERS = {
    "zeroMean": (MEAN, "ZeroMeanPrePreProcessor"),
    "unitVariance": (VARIANCE, "UnitVarianceProcessor"),
    "zeroMeanAndUnitVariance": (BOTH, "ZeroMeanAndUnitVariancePreProcessor"),
    "binomialSampling": (BINOMIAL, "BinomialSamplingPreProcessor"),
    "cnnToFeedForward": (CnnToFeedForwardPreProcessor(height=2, width=3), "CnnToFeedForwardPreProcessor"),
    "rnnToFeedForward": (RnnToFeedForwardPreProcessor(), "RnnToFeedForwardPreProcessor"),
}
NESTED = several(CnnToFeedForwardPreProcessor(height=2, width=3, channels=4), several(MEAN, BINOMIAL), VARIANCE)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_names_are_deeplearning4js(wrapper: str) -> None:
    pre, name = WRAPPERS[wrapper]
    [(key, _)] = pre_processor_tree(pre, old=True).items()
    assert key == wrapper
    assert pre_processor_tree(pre, old=False)["@class"] == "org.deeplearning4j.nn.conf.preprocessor." + name
    for old in (True, False):
        assert pre_processor(pre_processor_tree(pre, old=old), "here") == pre


def test_several_are_a_list_in_deeplearning4js_json() -> None:
    old, new = (pre_processor_tree(NESTED, old=is_old) for is_old in (True, False))
    assert list(old) == ["composableInput"]
    assert [next(iter(part)) for part in old["composableInput"]["inputPreProcessors"]] == [
        *("cnnToFeedForward", "composableInput", "unitVariance")
    ]
    assert new["@class"].endswith(".ComposableInputPreProcessor") and len(new["inputPreProcessors"]) == 3
    assert pre_processor(old, "here") == pre_processor(new, "here") == NESTED


def test_what_only_the_original_keeps_is_left_out_when_reading() -> None:
    assert pre_processor({"unitVariance": {"columnStds": None}}, "here") == VARIANCE


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"composableInput": {}}, "here is a composableInput without a list inputPreProcessors: None"),
        ({"composableInput": {"inputPreProcessors": []}}, "without a list inputPreProcessors"),
        ({"composableInput": {"inputPreProcessors": [{"x": {}}]}}, r"here.inputPreProcessors\[0\] is a x; known"),
        ({"reshape": {}}, "here is a reshape; known preprocessors are Bin"),
    ],
)
def test_what_is_unknown_is_named(node: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        pre_processor(node, "here")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_network_survives_deeplearning4js_json(version: Version) -> None:
    network = net(DenseLayer(n_in=4, n_out=3), out(), pres={0: several(BINOMIAL, BOTH), 1: MEAN})
    read = from_dl4j(json.loads(json.dumps(to_dl4j(network.conf, version=version))))
    assert read.input_pre_processors == network.conf.input_pre_processors


def test_a_wrong_place_is_named() -> None:
    images = {"input_type": InputType.convolutional(4, 3, 2)}
    with pytest.raises(ShapeError, match=r"layer 0 \(dense\) preprocessor zero_mean takes rows or sequences.*Compos"):
        net(DenseLayer(n_out=2), out(), pres={0: MEAN}, **images)
    with pytest.raises(ShapeError, match=r"layer 0 \(dense\) takes feed_forward .*binomial_sampling before it gives"):
        net(DenseLayer(n_out=2), out(), pres={0: BINOMIAL}, **images)
    with pytest.raises(ConfError, match="composable_input has no input_pre_processors"):
        several()


def test_what_a_layer_says_of_its_size_counts_behind_a_preprocessor_that_keeps_it() -> None:
    assert net(DenseLayer(n_in=4, n_out=3), out(), pres={0: several(MEAN, BINOMIAL)}).n_in == 4
