"""ComputationGraph: against Deeplearning4j (tests/data/dl4j), gradients of every vertex, and what can be wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.datasets import DataSet, ListDataSetIterator
from dl4jlegacy.datasets import load as load_data
from dl4jlegacy.datasets.multi_dataset import ListMultiDataSetIterator, MultiDataSet
from dl4jlegacy.errors import ConfError, DataError, ModelError, NotFiniteError, ShapeError
from dl4jlegacy.kernels import load
from dl4jlegacy.nn.conf.graph_order import topological_order
from dl4jlegacy.nn.conf.graph_stages import GraphNode
from dl4jlegacy.nn.conf.network import (
    ComputationGraphConfiguration,
    GraphBuilder,
    MultiLayerConfiguration,
    NeuralNetConfiguration,
)
from dl4jlegacy.nn.evaluation.regression import RegressionEvaluation
from dl4jlegacy.nn.fitting.gradient_check import GradientCheckUtil
from dl4jlegacy.nn.graph.computation_graph import ComputationGraph
from dl4jlegacy.nn.input_type import InputType
from dl4jlegacy.nn.interchange.dl4j.graph import graph_from_dl4j, graph_to_dl4j
from dl4jlegacy.nn.interchange.dl4j.serializer import (
    restore_computation_graph,
    restore_multi_layer_network,
    write_model,
)
from dl4jlegacy.nn.layers.convolution import ConvolutionLayer
from dl4jlegacy.nn.layers.layer import DenseLayer, FrozenLayer
from dl4jlegacy.nn.layers.lstm import LSTM
from dl4jlegacy.nn.layers.output import OutputLayer
from dl4jlegacy.nn.layers.rnn_output import RnnOutputLayer
from dl4jlegacy.nn.layers.subsampling import SubsamplingLayer
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.optimization.updaters import Adam, Sgd
from dl4jlegacy.nn.preprocessors import FeedForwardToCnnPreProcessor, RnnToFeedForwardPreProcessor
from dl4jlegacy.nn.vertices import combine as v
from dl4jlegacy.nn.vertices import shape as ve
from tests.support import DATA

GOLDEN = DATA / "dl4j"
EXAMPLES, STEPS = 5, 4


def builder(**conf: Any) -> GraphBuilder:
    fields = {"seed": 7, "dtype": "float64", "activation": "tanh", "l2": 1e-3} | conf
    return GraphBuilder(NeuralNetConfiguration(**fields))


def golden_conf() -> ComputationGraphConfiguration:
    """The graph of tests/data/dl4j/GraphGolden.java."""
    return (
        NeuralNetConfiguration.builder()
        .seed(7)
        .activation("tanh")
        .updater(Adam(learning_rate=0.01))
        .l2(1e-3)
        .graph_builder()
        .add_inputs("left", "right")
        .add_layer("zeta", DenseLayer(n_in=4, n_out=6), "left")
        .add_layer("alpha", DenseLayer(n_in=5, n_out=6, activation="sigmoid"), "right")
        .add_vertex("sum", v.ElementWiseVertex(op="add"), "zeta", "alpha")
        .add_vertex("product", v.ElementWiseVertex(op="product"), "zeta", "alpha")
        .add_vertex("difference", v.ElementWiseVertex(op="subtract"), "alpha", "zeta")
        .add_vertex("merged", v.MergeVertex(), "sum", "product")
        .add_vertex("part", v.SubsetVertex(from_index=2, to_index=8), "merged")
        .add_vertex("scaled", v.ScaleVertex(scale_factor=1.5), "part")
        .add_vertex("shifted", v.ShiftVertex(shift_factor=0.25), "scaled")
        .add_vertex("normal", v.L2NormalizeVertex(), "shifted")
        .add_vertex("distance", v.L2Vertex(), "zeta", "alpha")
        .add_vertex("stacked", ve.StackVertex(), "zeta", "difference")
        .add_layer("shared", DenseLayer(n_out=3), "stacked")
        .add_vertex("first", ve.UnstackVertex(from_index=0, stack_size=2), "shared")
        .add_vertex("second", ve.UnstackVertex(from_index=1, stack_size=2), "shared")
        .add_layer("outA", OutputLayer(n_out=3, activation="softmax"), "normal", "first")
        .add_layer("outB", OutputLayer(n_out=2, loss="mse", activation="identity"), "second", "distance")
        .set_outputs("outA", "outB")
        .build()
    )


def golden_data() -> MultiDataSet:
    def grid(columns: int, shift: float) -> np.ndarray:
        i, j = np.mgrid[:6, :columns]
        return np.sin(i * 1.3 + j * 0.7 + shift).astype(np.float32)

    return MultiDataSet([grid(4, 0), grid(5, 1)], [np.eye(3)[np.arange(6) % 3], grid(2, 2)])


# -- against Deeplearning4j ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["m21", "091"])
def test_order_output_and_score_are_dl4js(version: str) -> None:
    expected = json.loads((GOLDEN / "graphs" / f"graph_{version}.json").read_text())
    graph, data = restore_computation_graph(GOLDEN / "graphs" / f"graph_{version}.zip"), golden_data()
    assert [node.name for node in graph.nodes] == expected["order"]
    assert list(golden_conf().order()) == expected["order"]
    np.testing.assert_allclose(graph.params, expected["params"], atol=1e-6)
    for name, found in zip(("outA", "outB"), graph.outputs(*data.features), strict=True):
        np.testing.assert_allclose(found.ravel(), expected[name], atol=1e-6)
    if version == "m21":  # 0.9.1 divides the penalty by the number of examples
        assert graph.score(data) == pytest.approx(expected["score"], abs=1e-5)
    assert graph.iteration == 3


def test_the_next_step_of_training_is_dl4js() -> None:
    before, after = (json.loads((GOLDEN / "graphs" / f"graph_m21{end}.json").read_text()) for end in ("", "_next"))
    graph = ComputationGraph(golden_conf())
    graph.set_params(np.array(before["params"], np.float32))
    graph.set_updater_state(np.array(before["updater_state"], np.float32))
    graph.iteration = 3
    graph.fit(golden_data())
    np.testing.assert_allclose(graph.params, after["params"], atol=2e-6)


def test_the_order_of_wide_graphs_is_that_of_javas_hash_sets() -> None:
    wide = {f"v{i}": ["in"] for i in range(14)}  # places 1 to 14, more than 12: the table has grown, so ascending
    assert topological_order(["in"], wide) == ("in", *wide)
    late = {**{f"v{i}": ["in" if i == 0 else f"v{i - 1}"] for i in range(14)}, "x": ["v0"], "y": ["v0"]}
    order = topological_order(["in"], late)  # v0 leads to places 2, 15 and 16; 16 lies in the first bucket
    assert order[1:5] == ("v0", "y", "v1", "x")


@pytest.mark.parametrize("version", ["0.9.1", "1.0.0"])
def test_a_graph_survives_dl4js_json(version: Any) -> None:
    conf = every_vertex()
    back = graph_from_dl4j(json.loads(json.dumps(graph_to_dl4j(conf, version=version))))
    assert back.order() == conf.order()
    assert [n.vertex for n in back.vertices if not hasattr(n.vertex, "n_in")] == [
        n.vertex for n in conf.vertices if not hasattr(n.vertex, "n_in")
    ]
    first, second = ComputationGraph(conf), ComputationGraph(back)
    second.set_params(first.params)
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(3, 6, STEPS)), rng.normal(size=(3, 36))]
    np.testing.assert_allclose(first.output(x), second.output(x), atol=1e-6)  # 0.9.1 keeps no data type


def every_vertex() -> ComputationGraphConfiguration:
    return (
        builder()
        .add_inputs("words", "image")
        .add_layer("lstm", LSTM(n_in=6, n_out=4), "words")
        .add_vertex("last", ve.LastTimeStepVertex(mask_array_input="words"), "lstm")
        .add_layer("pixels", DenseLayer(n_in=36, n_out=36), "image")
        .add_vertex("shaped", ve.ReshapeVertex(new_shape=(-1, 1, 6, 6)), "pixels")
        .add_vertex("helped", ve.PoolHelperVertex(), "shaped")
        .add_layer("conv", ConvolutionLayer(kernel_size=(2, 2), n_out=2), "helped")
        .add_layer("flat", DenseLayer(n_out=4), "conv")
        .add_vertex("again", ve.DuplicateToTimeSeriesVertex(input_name="words"), "flat")
        .add_vertex("both", v.MergeVertex(), "again", "lstm")
        .add_vertex("rows", ve.PreprocessorVertex(pre_processor=RnnToFeedForwardPreProcessor()), "both")
        .add_layer("each", DenseLayer(n_out=3), "rows")
        .add_layer("out", RnnOutputLayer(n_out=2, activation="softmax"), "each")
        .add_vertex("stacked", ve.StackVertex(), "last", "flat")
        .add_vertex("part", ve.UnstackVertex(from_index=1, stack_size=2), "stacked")
        .add_layer("other", OutputLayer(n_out=2, activation="softmax"), "part")
        .set_outputs("out", "other")
        .build()
    )


# -- gradients -------------------------------------------------------------------------------------------------------


CHECKED = 45  # parameters of a graph, evenly spread: all of them take minutes


def vectors(n: int = 4, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(EXAMPLES, n))


def sequences(n: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(EXAMPLES, n, STEPS))


def images(channels: int = 2, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(EXAMPLES, channels, 5, 6))


def one_hot(n: int = 3) -> np.ndarray:
    return np.eye(n)[np.arange(EXAMPLES) % n]


def steps_hot(n: int = 2) -> np.ndarray:
    return np.eye(n)[(np.arange(EXAMPLES)[:, None] + np.arange(STEPS)) % n].transpose(0, 2, 1)


MASK = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]], float)


def check(graph: ComputationGraph, x: list[np.ndarray], labels: list[np.ndarray], **masks: Any) -> None:
    report = GradientCheckUtil.check_gradients(graph, x, labels, max_params=CHECKED, **masks)
    assert report.passed, report.failures[:3]
    assert report.checked >= min(CHECKED, graph.num_params)


def both_sides(kind: str) -> GraphBuilder:
    """Two trained layers "a" and "b" of one kind of output, for a vertex behind them."""
    if kind == "vectors":
        b = builder().add_inputs("in").set_input_types(InputType.feed_forward(4))
        return b.add_layer("a", DenseLayer(n_out=4), "in").add_layer("b", DenseLayer(n_out=4), "in")
    if kind == "sequences":
        b = builder().add_inputs("in").set_input_types(InputType.recurrent(3))
        return b.add_layer("a", LSTM(n_out=4), "in").add_layer("b", LSTM(n_out=4), "in")
    b = builder().add_inputs("in").set_input_types(InputType.convolutional(5, 6, 2))
    conv = ConvolutionLayer(kernel_size=(2, 2), n_out=4)
    return b.add_layer("a", conv, "in").add_layer("b", conv, "in")


PAIRS = {
    "merge": v.MergeVertex(),
    **{op: v.ElementWiseVertex(op=op) for op in ("add", "subtract", "product", "average", "max")},  # type: ignore
    "l2": v.L2Vertex(),
    "stack": ve.StackVertex(),
}
SINGLES = {
    "subset": v.SubsetVertex(from_index=1, to_index=2),
    "scale": v.ScaleVertex(scale_factor=-2.5),
    "shift": v.ShiftVertex(shift_factor=0.5),
    "l2_normalize": v.L2NormalizeVertex(),
    "pool_helper": ve.PoolHelperVertex(),
}
KINDS = {"vectors": vectors, "sequences": sequences, "images": images}


VERTICES = [(name, kind) for name in (*PAIRS, *SINGLES) for kind in KINDS if name != "pool_helper" or kind == "images"]


@pytest.mark.parametrize("kernels", ["numpy", "numba"])
@pytest.mark.parametrize(("name", "kind"), VERTICES)
@pytest.mark.everyday(14)
def test_gradients_of_a_vertex_are_the_derivative_of_the_score(name: str, kind: str, kernels: str) -> None:
    b = both_sides(kind)
    if name in PAIRS:
        b.add_vertex("v", PAIRS[name], "a", "b")
    else:
        b.add_vertex("both", v.ElementWiseVertex(op="add"), "a", "b").add_vertex("v", SINGLES[name], "both")
    behind = "v"
    if name == "stack":
        b.add_vertex("part", ve.UnstackVertex(from_index=1, stack_size=2), "v")
        b.add_vertex("first", ve.UnstackVertex(from_index=0, stack_size=2), "v")
        b.add_vertex("sum", v.ElementWiseVertex(op="product"), "part", "first")
        behind = "sum"
    if kind == "sequences" and name != "l2":
        b.add_layer("out", RnnOutputLayer(n_out=2, activation="softmax"), behind)
        labels = steps_hot()
    else:
        b.add_layer("out", OutputLayer(n_out=3, activation="softmax"), behind)
        labels = one_hot()
    graph = ComputationGraph(b.set_outputs("out").build(), kernels=load(kernels))
    check(graph, [KINDS[kind]()], [labels])
    if kind == "sequences":
        check(graph, [sequences()], [labels], features_mask=[MASK])


@pytest.mark.parametrize("masks", [{}, {"features_mask": [MASK, None]}])
def test_gradients_between_sequences_images_and_vectors(masks: dict[str, Any]) -> None:
    graph = ComputationGraph(every_vertex())
    x = [sequences(6), vectors(36)]
    check(graph, x, [steps_hot(2), one_hot(2)], **masks)
    conf = (
        builder()
        .add_inputs("words")
        .set_input_types(InputType.recurrent(3))
        .add_layer("lstm", LSTM(n_out=4), "words")
        .add_vertex("last", ve.LastTimeStepVertex(mask_array_input="words"), "lstm")
        .add_vertex("again", ve.DuplicateToTimeSeriesVertex(input_name="words"), "last")
        .add_layer("decoder", LSTM(n_out=3), "again", "words")
        .add_layer("out", RnnOutputLayer(n_out=2, activation="softmax"), "decoder")
        .set_outputs("out")
        .build()
    )
    wanted = {name: mask[:1] for name, mask in masks.items()}
    check(ComputationGraph(conf), [sequences()], [steps_hot()], **wanted)


def test_gradients_with_masks_of_labels_and_several_outputs_from_one_branch() -> None:
    conf = (
        builder()
        .add_inputs("words")
        .add_layer("lstm", LSTM(n_in=3, n_out=4), "words")
        .add_layer("a", RnnOutputLayer(n_out=2, activation="softmax"), "lstm")
        .add_layer("b", RnnOutputLayer(n_out=2, activation="tanh", loss="mse"), "lstm")
        .set_outputs("a", "b")
        .build()
    )
    other = np.roll(MASK, 1, axis=0)
    graph = ComputationGraph(conf)
    check(graph, [sequences()], [steps_hot(), steps_hot()], features_mask=[MASK], labels_mask=[None, other])


def test_images_find_their_way_through_preprocessors() -> None:
    conf = (
        builder(activation="softplus")
        .add_inputs("image")
        .set_input_types(InputType.convolutional_flat(5, 6, 2))
        .add_layer("conv", ConvolutionLayer(kernel_size=(2, 3), n_out=3), "image")
        .add_layer("pool", SubsamplingLayer(kernel_size=(2, 2), stride=(2, 2), pooling_type="avg"), "conv")
        .add_vertex("rows", ve.ReshapeVertex(new_shape=(-1, 12)), "pool")
        .add_layer("dense", DenseLayer(n_out=4), "pool")
        .add_layer("out", OutputLayer(n_out=3, activation="softmax"), "dense", "rows")
        .set_outputs("out")
        .build()
    )
    graph = ComputationGraph(conf)
    check(graph, [vectors(60)], [one_hot()])
    assert graph.layers[2].n_in == 12
    shapes = {name: y.shape for name, y in graph.feed_forward(vectors(60)).items()}
    assert shapes["conv"] == (EXAMPLES, 3, 4, 4) and shapes["rows"] == (EXAMPLES, 12)
    explicit = (
        builder()
        .add_inputs("image")
        .add_layer("conv", ConvolutionLayer(kernel_size=(2, 2), n_out=2), "image",
                   pre_processor=FeedForwardToCnnPreProcessor(height=5, width=6, channels=2))
        .add_layer("out", OutputLayer(n_out=3, activation="softmax"), "conv")
        .set_outputs("out")
        .build()
    )  # fmt: skip
    check(ComputationGraph(explicit), [vectors(60)], [one_hot()])


# -- like a MultiLayerNetwork ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernels", ["numpy", "numba"])
def test_a_chain_of_layers_is_a_multi_layer_network_bit_for_bit(kernels: str) -> None:
    layers = (DenseLayer(n_in=8, n_out=6), DenseLayer(n_out=5), OutputLayer(n_out=3))
    conf = NeuralNetConfiguration(seed=5, activation="relu", updater=Adam(learning_rate=0.01), l2=0.01)
    net = MultiLayerNetwork(MultiLayerConfiguration(conf=conf, layers=layers), kernels=load(kernels))
    b = GraphBuilder(conf).add_inputs("in")
    names = ["in", "first", "second", "out"]
    for below, name, layer in zip(names, names[1:], layers, strict=False):
        b.add_layer(name, layer, below)
    graph = ComputationGraph(b.set_outputs("out").build(), kernels=load(kernels))
    np.testing.assert_array_equal(graph.params, net.params)
    rng = np.random.default_rng(1)
    data = DataSet(rng.normal(size=(20, 8)), np.eye(3)[rng.integers(0, 3, 20)])
    net.fit(data, epochs=3)
    graph.fit(data, epochs=3)
    np.testing.assert_array_equal(graph.params, net.params)
    np.testing.assert_array_equal(graph.updater_state, net.updater_state)
    assert graph.score(data) == net.score(data)
    np.testing.assert_array_equal(graph.output(data.features), net.output(data.features))
    np.testing.assert_array_equal(graph.predict([data.features]), net.predict(data.features))


def test_a_graph_learns_the_digits_and_evaluates_itself() -> None:
    data = load_data("digits")
    conf = (
        builder(dtype="float32", activation="relu", updater=Adam(learning_rate=0.005), l2=0.0)
        .add_inputs("top", "bottom")
        .set_input_types(InputType.feed_forward(32), InputType.feed_forward(32))
        .add_layer("a", DenseLayer(n_out=48), "top")
        .add_layer("b", DenseLayer(n_out=48), "bottom")
        .add_layer("digit", OutputLayer(n_out=10, activation="softmax"), "a", "b")
        .add_layer("mean", OutputLayer(n_out=1, activation="identity", loss="mse"), "a", "b")
        .set_outputs("digit", "mean")
        .build()
    )

    def split(part: DataSet) -> MultiDataSet:
        x = part.features
        return MultiDataSet([x[:, :32], x[:, 32:]], [part.labels, 10 * x.mean(axis=1, keepdims=True)])

    graph = ComputationGraph(conf)
    graph.fit(ListMultiDataSetIterator(split(data.train), 32), epochs=12)
    assert graph.evaluate(split(data.test)).accuracy() >= 0.95
    regression = RegressionEvaluation()
    graph.do_evaluation(split(data.test), {"mean": (regression,)})
    assert regression.r2(0) > 0.9
    copy = graph.clone()
    np.testing.assert_array_equal(copy.params, graph.params)
    with pytest.raises(ConfError, match="'men' is no network output"):
        graph.do_evaluation(split(data.test), {"men": ()})


def test_a_graph_survives_its_file_and_trains_on_the_same(tmp_path: Path) -> None:
    graph, data = ComputationGraph(golden_conf()), golden_data()
    graph.fit(data, epochs=2)
    write_model(graph, tmp_path / "graph.zip")
    back = restore_computation_graph(tmp_path / "graph.zip")
    assert back.conf == graph.conf and back.iteration == 2
    for network in (graph, back):
        network.fit(data)
    np.testing.assert_array_equal(back.params, graph.params)
    with pytest.raises(ModelError, match="holds a ComputationGraph"):
        restore_multi_layer_network(tmp_path / "graph.zip")


def test_frozen_layers_and_what_is_below_them_stay_while_the_rest_learns() -> None:
    conf = golden_conf()
    nodes = tuple(
        GraphNode(name=n.name, inputs=n.inputs, vertex=FrozenLayer(n.vertex)) if n.name in ("zeta", "shared") else n  # type: ignore[arg-type]
        for n in conf.vertices
    )
    graph = ComputationGraph(conf.replace(vertices=nodes))
    before = {name: value.copy() for name, value in graph.param_table.items()}
    graph.fit(golden_data(), epochs=3)
    for name, value in graph.param_table.items():
        assert np.array_equal(value, before[name]) == name.startswith(("zeta", "shared")), name


def test_batches_larger_than_a_pass_give_the_same_output() -> None:
    graph = ComputationGraph(golden_conf())
    rng = np.random.default_rng(2)
    x = [rng.normal(size=(1500, n)).astype(np.float32) for n in (4, 5)]
    whole = graph.outputs(*x)
    part = graph.outputs(*(a[1400:1450] for a in x))
    for a, b in zip(whole, part, strict=True):
        np.testing.assert_allclose(a[1400:1450], b, atol=1e-6)


# -- configuration ---------------------------------------------------------------------------------------------------


def test_a_configuration_survives_json_and_yaml() -> None:
    for conf in (golden_conf(), every_vertex()):
        assert ComputationGraphConfiguration.from_json(conf.to_json()) == conf
        assert ComputationGraphConfiguration.from_yaml(conf.to_yaml()) == conf


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '"scale_factor"',
            '"scale_facter"',
            r"unknown field 'scale_facter' at \$.vertices\[\d+\].*scale_factor",
        ),
        ('"network_inputs"', '"network_input"', "unknown field 'network_input'.*network_inputs"),
        ('"shift_vertex"', '"shif_vertex"', "unknown type 'shif_vertex'.*shift_vertex"),
    ],
)
def test_an_unknown_field_names_the_nearest(old: str, new: str, message: str) -> None:
    with pytest.raises(ConfError, match=message):
        ComputationGraphConfiguration.from_json(golden_conf().to_json().replace(old, new))


def out(n_out: int = 3, **fields: Any) -> OutputLayer:
    return OutputLayer(n_out=n_out, activation="softmax", **fields)


def test_what_cannot_work_is_refused_by_name() -> None:
    dense = DenseLayer(n_in=4, n_out=4)
    chain = builder().add_inputs("in").add_layer("a", dense, "in")
    cases = [
        (
            builder().add_inputs("in").add_layer("a", dense, "in", "b").add_layer("b", dense, "a")
            .add_layer("o", out(), "b").set_outputs("o"),
            r"a-merge -> a -> b -> a-merge form a circle|form a circle",
        ),
        (builder().add_inputs("in").add_layer("a", dense, "inn").set_outputs("a"), "unknown input 'inn'.*'in'"),
        (builder().add_inputs("in").add_layer("a", dense, "in").set_outputs("b"), "network output 'b' is no vertex"),
        (builder().add_inputs("in").add_layer("a", dense, "in").add_layer("a", dense, "in").set_outputs("a"),
         "called 'a'"),
        (builder().add_inputs("in", "other").add_layer("a", dense, "in").set_outputs("a"),
         "'other' .network input. leads nowhere"),
        (builder().add_inputs("in").add_layer("o", out(n_in=4), "in").add_layer("a", dense, "o").set_outputs("a"),
         r"output layer 'o' \(output\) is followed by 'a' \(dense\)"),
        (chain.add_vertex("s", v.L2Vertex(), "a").set_outputs("s"), r"'s' \(l2_vertex\) has 1 inputs .* takes 2"),
        (builder().add_inputs("in").add_vertex("d", ve.DuplicateToTimeSeriesVertex(input_name="i"), "in")
         .set_outputs("d"), "refers to 'i', no network input"),
        (builder().set_outputs("a"), "network_inputs is empty"),
    ]  # fmt: skip
    for graph, message in cases:
        with pytest.raises(ConfError, match=message):
            graph.build()
    with pytest.raises(ConfError, match="from_index is 2"):
        ve.UnstackVertex(from_index=2, stack_size=2)
    with pytest.raises(ConfError, match="new_shape"):
        ve.ReshapeVertex(new_shape=(5, 4))
    with pytest.raises(ConfError, match=r"no method 'add_layr'.*add_layer"):
        builder().add_layr  # noqa: B018


def test_sizes_that_cannot_follow_are_named_with_both_vertices() -> None:
    base = builder().add_inputs("in").add_layer("a", DenseLayer(n_in=4, n_out=4), "in")
    with pytest.raises(ShapeError, match=r"'b' \(dense\) behind 'a' \(dense\): n_in=5, but what comes in is .* 4"):
        base.add_layer("b", DenseLayer(n_in=5, n_out=2), "a").set_outputs("b").build().nodes()
    base.remove_vertex("b")
    with pytest.raises(ShapeError, match=r"'s' behind 'a' \(dense\): subset_vertex keeps values 1 to 4.*0 to 3"):
        base.add_vertex("s", v.SubsetVertex(from_index=1, to_index=4), "a").set_outputs("s").build().nodes()
    base.remove_vertex("s").add_layer("b", DenseLayer(n_out=5), "a")
    with pytest.raises(ShapeError, match=r"'e' behind 'a' \(dense\) and 'b' \(dense\): .*ward 4, feed_forward 5"):
        base.add_vertex("e", v.ElementWiseVertex(op="add"), "a", "b").set_outputs("e").build().nodes()
    with pytest.raises(ShapeError, match=r"network input 'in': its size is not known"):
        builder().add_inputs("in").add_layer("o", out(), "in").set_outputs("o").build().nodes()
    with pytest.raises(ConfError, match=r"network output 'a' \(dense\) has no loss"):
        builder().add_inputs("in").add_layer("a", DenseLayer(n_in=4, n_out=4), "in").set_outputs("a").build().validate()


def test_data_that_do_not_fit_are_named() -> None:
    graph, data = ComputationGraph(golden_conf()), golden_data()
    x, y = list(data.features), list(data.labels)
    with pytest.raises(ShapeError, match=r"\(6, 5\), network input 'left' takes feed_forward 4"):
        graph.outputs(x[1], x[1])
    with pytest.raises(ShapeError, match=r"1 arrays of features for \['left', 'right'\]"):
        graph.outputs(x[0])
    with pytest.raises(ShapeError, match=r"labels have shape \(6, 2\), network output 'outA' \(output\) has n_out=3"):
        graph.fit(MultiDataSet(x, [y[1], y[1]]))
    with pytest.raises(DataError, match=r"features\[0\] have 6 examples and features\[1\] 5"):
        MultiDataSet([x[0], x[1][:5]], y)
    with pytest.raises(DataError, match=r"labels\[1\]: .*not finite"):
        MultiDataSet(x, [y[0], y[1] * np.nan])
    with pytest.raises(ConfError, match="trains by backpropagation only"):
        graph.pretrain_batch(0, x[0], iteration=0, stream=Stream.of(0))
    graph.params[:] = np.nan
    with pytest.raises(NotFiniteError, match="'zeta'"):
        graph.fit(data)


def test_a_multi_data_set_never_changes_and_gives_every_epoch_another_order() -> None:
    data = golden_data()
    with pytest.raises(ValueError, match="read-only"):
        data.features[0][0, 0] = 1
    iterator = ListMultiDataSetIterator(data, 4)
    first, second = list(iterator), list(iterator)
    assert [len(batch) for batch in first] == [4, 2]
    assert not np.array_equal(first[0].features[0], second[0].features[0])
    single = ListDataSetIterator(DataSet(data.features[0], data.labels[0]), 4)
    np.testing.assert_array_equal(iterator.batch(3, 1).features[0], single.batch(3, 1).features)
    assert ListMultiDataSetIterator(data, 4, shuffle=False).batch(0, 1).num_examples == 2


def test_sgd_on_a_graph_is_the_gradient_step() -> None:
    graph = ComputationGraph(golden_conf().replace(conf=NeuralNetConfiguration(updater=Sgd(learning_rate=0.5))))
    data = golden_data()
    gradient, _ = graph.gradient_and_score(data.features, data.labels, Stream.of(0))
    wanted = graph.params - np.float32(0.5) * gradient
    graph.update_from(gradient.copy(), iteration=0)
    np.testing.assert_allclose(graph.params, wanted, atol=1e-7)


# -- sequences in pieces ---------------------------------------------------------------------------------------------


def recurrent(**fields: Any) -> ComputationGraphConfiguration:
    b = builder(updater=Sgd(learning_rate=0.1), l2=0.0).add_inputs("words")
    b.add_layer("lstm", LSTM(n_in=3, n_out=4), "words")
    b.add_layer("out", RnnOutputLayer(n_out=2, activation="softmax"), "lstm").set_outputs("out")
    return b.build().replace(**fields)


def stack_of(conf: ComputationGraphConfiguration) -> MultiLayerConfiguration:
    layers = (LSTM(n_in=3, n_out=4), RnnOutputLayer(n_out=2, activation="softmax"))
    names = ("backprop_type", "tbptt_fwd_length", "tbptt_back_length")
    fields = {name: getattr(conf, name) for name in names}
    return MultiLayerConfiguration(conf=conf.conf, layers=layers, **fields)


@pytest.mark.parametrize("fields", [{}, {"backprop_type": "truncated_bptt", "tbptt_fwd_length": 3}])
def test_sequences_are_learned_and_scored_as_by_a_stack_of_layers(fields: dict[str, Any]) -> None:
    conf = recurrent(**fields)
    graph, net = ComputationGraph(conf), MultiLayerNetwork(stack_of(conf))
    data = DataSet(sequences(), steps_hot(), MASK)
    for network in (graph, net):
        network.fit(data, epochs=3)
    np.testing.assert_array_equal(graph.params, net.params)
    assert graph.score(data) == net.score(data)
    assert graph.evaluate(data).examples == net.evaluate(data).examples == MASK.sum()
    own = DataSet(sequences(), steps_hot(), MASK, np.eye(5, 4))
    assert graph.evaluate(own).examples == net.evaluate(own).examples == 4


def test_time_steps_one_by_one_give_what_the_whole_gives() -> None:
    graph, x = ComputationGraph(recurrent()), sequences()
    whole = graph.output(x)
    found = [graph.rnn_time_step(x[:, :, t])[0] for t in range(STEPS)]
    np.testing.assert_allclose(np.stack(found, axis=2), whole, atol=1e-12)
    graph.rnn_clear_previous_state()
    np.testing.assert_allclose(graph.rnn_time_step(x)[0], whole, atol=1e-12)
    with pytest.raises(ShapeError):
        graph.rnn_time_step(x[:2])


def test_truncated_backpropagation_needs_labels_that_are_sequences() -> None:
    conf = every_vertex().replace(backprop_type="truncated_bptt", tbptt_fwd_length=2)
    with pytest.raises(ShapeError, match="labels must be"):
        ComputationGraph(conf).fit(MultiDataSet([sequences(6), vectors(36)], [steps_hot(2), one_hot(2)]))
    with pytest.raises(ConfError, match="tbptt_fwd_length is 0"):
        conf.replace(tbptt_fwd_length=0)
