"""Every method of every builder changes what is built, or is refused: no setting is lost in silence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from dl4jlegacy.errors import ConfError, ShapeError
from dl4jlegacy.nn import (
    RBM,
    AutoEncoder,
    ComputationGraph,
    DenseLayer,
    FineTuneConfiguration,
    GraphBuilder,
    InputType,
    ListBuilder,
    MergeVertex,
    MultiLayerNetwork,
    NeuralNetConfiguration,
    NeuralNetConfigurationBuilder,
    NormalDistribution,
    OutputLayer,
    ScaleVertex,
    TransferLearning,
    ZeroMeanPrePreProcessor,
)
from dl4jlegacy.nn.conf.builder import Fluent, classifier_override
from dl4jlegacy.nn.fitting.transfer_learning import GraphTransferBuilder, TransferBuilder
from dl4jlegacy.nn.optimization.schedules import ExponentialSchedule
from dl4jlegacy.nn.optimization.updaters import UPDATERS

Call = tuple[Any, ...]
OUT = OutputLayer(n_out=2)


def base() -> NeuralNetConfigurationBuilder:
    return NeuralNetConfiguration.builder().seed(7).l2(0.01)


# -- settings before the layers ----------------------------------------------------------------------------------------
UPDATER: dict[str, Call] = {
    "learning_rate": (0.3,),
    "schedule": (ExponentialSchedule(gamma=0.9),),
    "momentum": (0.5,),
    "momentum_after": ({3: 0.5},),
    **dict.fromkeys(("rho", "rms_decay", "epsilon", "adam_mean_decay", "adam_var_decay"), (0.5,)),
}
GLOBAL: dict[str, Call] = {
    **UPDATER,
    "seed": (8,),
    "activation": ("relu",),
    "activation_function": ("relu",),
    "weight_init": ("zero",),
    "dist": (NormalDistribution(mean=1.0),),
    "bias_init": (0.5,),
    **dict.fromkeys(("l1", "l2", "l1_bias", "l2_bias", "drop_out"), (0.25,)),
    "regularization": (False,),
    "gradient_normalization": ("clip_l2_per_layer",),
    "gradient_normalization_threshold": (0.5,),
    "constrain_gradient_to_unit_norm": (True,),
    "mini_batch": (False,),
    "minimize": (False,),
    "dtype": ("float64",),
    "updater": ("adam",),
    "use_ada_grad": (True,),
    "layer": (RBM(k=4),),
    "n_in": (4,),
    "n_out": (2,),
    "k": (5,),
    "visible_unit": ("gaussian",),
    "hidden_unit": ("gaussian",),
    "corruption_level": (0.9,),
    "sparsity": (0.1,),
    "optimization_algo": ("lbfgs",),
    "iterations": (5,),
}
NEVER = {"optimization_algo", "iterations"}
"""Refused but for the one value that there is."""
NETWORKS: dict[str, Callable[[Any], Any]] = {
    "no layers": lambda b: b.build(),
    "layers": lambda b: b.list(RBM(n_out=3), AutoEncoder(n_out=3), OutputLayer()).build(),
    "dense layers": lambda b: b.list(DenseLayer(n_in=5, n_out=3), OutputLayer(n_out=3)).build(),
    "sizes": lambda b: b.list(2).hidden_layer_sizes(3).build(),
    "sizes, pretrained": lambda b: b.list(2).hidden_layer_sizes(3).pretrain(True).build(),
    "graph": lambda b: (
        b.graph_builder().add_inputs("in").add_layer("a", RBM(n_in=4, n_out=3), "in")
        .add_layer("b", AutoEncoder(n_out=3), "a").add_layer("out", OUT, "b").set_outputs("out").build()
    ),
    "dense graph": lambda b: (
        b.graph_builder().add_inputs("in").add_layer("out", OutputLayer(n_in=4, n_out=2), "in")
        .set_outputs("out").build()
    ),
}  # fmt: skip


def built(use: Callable[[], Any]) -> str:
    """Return what is built as text; "refused" if a message says that it cannot be."""
    try:
        result = use()
    except ConfError:
        return "refused"
    if isinstance(result, MultiLayerNetwork | ComputationGraph):
        return f"{result.conf.to_json()} {result.params.tobytes().hex()}"
    return str(result.to_json())


def effects(make: Callable[[], Any], calls: Mapping[str, Call], use: Callable[[Any], Any]) -> dict[str, str]:
    """Return for each call on a new builder what it does to the result: "changed", "refused" or "lost"."""
    without = built(lambda: use(make()))
    found = {}
    for name, args in calls.items():
        after = built(lambda name=name, args=args: use(getattr(make(), name.partition("'")[0])(*args)))
        found[name] = "refused" if after == "refused" else "lost" if after == without else "changed"
    return found


def lost(found: dict[str, str]) -> list[str]:
    return [name for name, effect in found.items() if effect == "lost"]


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def leaves(kind: type) -> set[type]:
    """Return the classes below one that no other class is below."""
    return set().union(*map(leaves, kind.__subclasses__())) or {kind}


def test_every_builder_is_gone_through():
    assert leaves(Fluent) == {
        *(NeuralNetConfigurationBuilder, ListBuilder, GraphBuilder, TransferBuilder, GraphTransferBuilder)
    }
    assert public(NeuralNetConfigurationBuilder) == {*GLOBAL, "build", "list", "graph_builder", "settled"}


@pytest.mark.parametrize("network", NETWORKS)
def test_every_setting_before_the_layers_changes_the_network_or_is_refused(network):
    assert lost(effects(base, GLOBAL, NETWORKS[network])) == []


def test_every_setting_before_the_layers_changes_some_network():
    found = [effects(base, GLOBAL, use) for use in NETWORKS.values()]
    never = {name for name in GLOBAL if not any(each[name] == "changed" for each in found)}
    others = {"rho", "rms_decay", "epsilon", "adam_mean_decay", "adam_var_decay"}
    assert never == {*NEVER, *others}  # the others need one more call beside them


@pytest.mark.parametrize("updater", UPDATERS)
def test_every_setting_of_an_updater_changes_it_or_is_refused(updater):
    for network in ("no layers", "dense layers"):
        assert lost(effects(lambda: base().updater(updater), UPDATER, NETWORKS[network])) == []


@pytest.mark.parametrize("name", ["k", "visible_unit", "hidden_unit", "sparsity", "corruption_level"])
def test_settings_of_layers_reach_those_that_leave_them_open(name):
    value = GLOBAL[name][0]
    for network in ("layers", "graph"):
        conf = NETWORKS[network](getattr(base(), name)(value))
        layers = conf.layers if network == "layers" else [node.vertex for node in conf.vertices]
        having = [layer for layer in layers if name in layer.__struct_fields__]
        assert having and all(getattr(layer, name) == value for layer in having)


def test_a_layers_own_setting_wins():
    layers = base().k(5).corruption_level(0.9).list(RBM(n_in=4, n_out=3, k=2), AutoEncoder(n_out=3), OUT).build().layers
    assert (layers[0].k, layers[1].corruption_level) == (2, 0.9)


SAID: dict[str, tuple[Callable[[], Any], type[ConfError], str]] = {
    "the seed's line": (
        lambda: NeuralNetConfiguration.builder().n_in(784).n_out(10).build(),
        ConfError,
        r"n_in\(784\), n_out\(10\): build\(\) makes no layers .* put \.list\(n\) with \.hidden_layer_sizes",
    ),
    "k of dense layers": (
        lambda: base().k(5).n_in(4).n_out(2).list(2).hidden_layer_sizes(3).build(),
        ConfError,
        r"k\(5\) reaches none of the layers, DenseLayer, OutputLayer; leave it out",
    ),
    "sizes of a graph": (lambda: base().n_in(4).graph_builder(), ConfError, r"n_in\(4\) before graph_builder\(\)"),
    "another size": (
        lambda: base().n_in(5).list(DenseLayer(n_in=4, n_out=3), OUT).build(),
        ShapeError,
        r"n_in\(5\), and the first layer, dense, has n_in=4; leave one of them out",
    ),
    "another size of 2014": (
        lambda: base().n_in(4).n_out(3).list(2).hidden_layer_sizes(3).layer(1, OUT).build(),
        ShapeError,
        r"n_out\(3\), and the last layer, output, has n_out=2",
    ),
    "a prototype of none": (
        lambda: base().layer(RBM(k=2)).list(DenseLayer(n_in=4, n_out=3), OUT).build(),
        ConfError,
        r"before list\(\): hidden layers of list\(n\) are made like it",
    ),
    "dist beside another weight init": (
        lambda: base().dist(NormalDistribution()).weight_init("xavier").list(DenseLayer(n_in=4, n_out=3), OUT).build(),
        ConfError,
        r"dist\(.*\) reaches none of the layers, .* as weight_init is 'xavier'",
    ),
    "a threshold of nothing": (
        lambda: base().gradient_normalization_threshold(0.5).list(DenseLayer(n_in=4, n_out=3), OUT).build(),
        ConfError,
        "as gradient_normalization is 'none'; choose one that clips",
    ),
    "a rate of AdaDelta": (
        lambda: base().updater("adadelta").learning_rate(0.1).build(),
        ConfError,
        "updater AdaDelta has no learning_rate; those that have: ",
    ),
    "a length of nothing cut": (
        lambda: base().list(DenseLayer(n_in=4, n_out=3), OUT).t_bptt_forward_length(9).build(),
        ConfError,
        r"tbptt_fwd_length 9 reaches nothing, as backprop_type is 'standard': call \.backprop_type",
    ),
    "nothing to pretrain": (
        lambda: base().list(DenseLayer(n_in=4, n_out=3), OUT).pretrain(True).build(),
        ConfError,
        r"pretrain\(True\): none of the layers, DenseLayer, OutputLayer, is pretrained",
    ),
}


@pytest.mark.parametrize("case", SAID)
def test_what_would_reach_nothing_is_named_with_what_to_do(case):
    use, kind, words = SAID[case]
    with pytest.raises(kind, match=words):
        use()


# -- the layers --------------------------------------------------------------------------------------------------------
SEVERAL = {"backprop_type": ("truncated_bptt",), "t_bptt_forward_length": (9,), "t_bptt_backward_length": (9,)}
LIST: dict[str, Call] = {
    "layer": (1, OutputLayer(n_out=5)),
    "pretrain": (True,),
    "backprop": (False,),
    "set_input_type": (InputType.feed_forward(4),),
    "input_pre_processor": (0, ZeroMeanPrePreProcessor()),
    **SEVERAL,
    "hidden_layer_sizes": (3,),
    "override": (1, classifier_override),
}
GRAPH: dict[str, Call] = {
    "add_inputs": ("more",),
    "set_input_types": (InputType.feed_forward(4),),
    "add_layer": ("more", DenseLayer(n_out=3), "in"),
    "add_layer'merged": ("more", OUT, "in", "a"),
    "add_vertex": ("more", MergeVertex(), "in", "a"),
    "remove_vertex": ("a",),
    "set_outputs": ("a",),
    **SEVERAL,
}


@pytest.mark.parametrize(
    "layers", [(DenseLayer(n_in=4, n_out=3), OUT), (RBM(n_in=4, n_out=3), OUT)], ids=["dense", "rbm"]
)
@pytest.mark.parametrize("cut", [False, True])
def test_every_method_of_a_list_changes_the_network_or_is_refused(layers, cut):
    assert public(ListBuilder) == {*LIST, "build"}
    calls = {**LIST, "backprop_type": ("standard",)} if cut else LIST

    def make() -> ListBuilder:
        return base().list(*layers).backprop_type("truncated_bptt") if cut else base().list(*layers)

    assert lost(effects(make, calls, lambda b: b.build())) == []


def test_every_method_of_a_graph_changes_the_network_or_is_refused():
    assert public(GraphBuilder) == {*(name.partition("'")[0] for name in GRAPH), "build"}

    def make() -> GraphBuilder:
        return (
            base().graph_builder().add_inputs("in").add_layer("a", DenseLayer(n_in=4, n_out=3), "in")
            .add_layer("out", OUT, "a").set_outputs("out")
        )  # fmt: skip

    assert lost(effects(make, GRAPH, lambda b: b.build())) == []


# -- transfer learning -------------------------------------------------------------------------------------------------
TUNING: dict[str, Any] = {
    name: args[0] for name, args in GLOBAL.items() if name in FineTuneConfiguration.__struct_fields__
}
TUNED = {f"fine_tune_configuration'{name}": (FineTuneConfiguration(**{name: value}),) for name, value in TUNING.items()}
REPLACED = {
    "n_out_replace": (0, 5),
    "n_out_replace'weight_init": (0, 3, "zero"),
    "n_out_replace'next": (0, 3, None, "zero"),
    "n_out_replace'last": (1, 2, None, "zero"),
}
TRANSFER: dict[str, Call] = {
    **TUNED,
    **REPLACED,
    "set_feature_extractor": (0,),
    "remove_output_layer": (),
    "remove_layers_from_output": (1,),
    "add_layer": (DenseLayer(n_out=3),),
    "set_input_pre_processor": (0, ZeroMeanPrePreProcessor()),
}
GRAPH_TRANSFER: dict[str, Call] = {
    **TUNED,
    **{name: (("a", "out")[args[0]], *args[1:]) for name, args in REPLACED.items()},
    "set_feature_extractor": ("a",),
    "remove_vertex_keep_connections": ("a",),
    "remove_vertex_and_connections": ("a",),
    "add_layer": ("a", DenseLayer(n_out=5), "in"),
    "add_vertex": ("more", ScaleVertex(scale_factor=2.0), "in"),
    "set_outputs": ("a",),
}


def test_every_method_of_transfer_learning_changes_the_network_or_is_refused():
    assert set(TUNING) == set(FineTuneConfiguration.__struct_fields__)
    for kind, calls in ((TransferBuilder, TRANSFER), (GraphTransferBuilder, GRAPH_TRANSFER)):
        assert public(kind) == {*(name.partition("'")[0] for name in calls), "build"}
    network = MultiLayerNetwork(base().list(DenseLayer(n_in=4, n_out=3), OUT).build())
    assert lost(effects(lambda: TransferLearning.builder(network), TRANSFER, lambda b: b.build())) == []
    graph = ComputationGraph(
        base().graph_builder().add_inputs("in").add_layer("a", DenseLayer(n_in=4, n_out=3), "in")
        .add_layer("out", OUT, "a").set_outputs("out").build()
    )  # fmt: skip
    found = effects(lambda: TransferLearning.graph_builder(graph), GRAPH_TRANSFER, lambda b: b.build())
    assert lost(found) == []


def test_a_distribution_beside_another_weight_init_is_refused():
    network = MultiLayerNetwork(base().list(DenseLayer(n_in=4, n_out=3), OUT).build())
    with pytest.raises(ConfError, match="weight_init is 'xavier', which draws from no dist"):
        TransferLearning.builder(network).n_out_replace(0, 5, "xavier", dist=NormalDistribution())
