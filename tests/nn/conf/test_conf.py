"""Network configurations: inheritance, sizes, text round trips, messages, and the fluent builder."""

from __future__ import annotations

import json
from functools import partial

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dl4jlegacy.errors import ConfError, ShapeError
from dl4jlegacy.nn.conf.builder import classifier_override
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration, NeuralNetConfiguration
from dl4jlegacy.nn.conf.stages import INHERITED
from dl4jlegacy.nn.conf.text import decode_yaml
from dl4jlegacy.nn.layers.autoencoder import AutoEncoder
from dl4jlegacy.nn.layers.layer import DenseLayer
from dl4jlegacy.nn.layers.output import OutputLayer
from dl4jlegacy.nn.layers.rbm import RBM
from dl4jlegacy.nn.optimization.functions import ACTIVATIONS
from dl4jlegacy.nn.optimization.schedules import ExponentialSchedule, MapSchedule
from dl4jlegacy.nn.optimization.updaters import AdaGrad, Adam, Nesterovs, Sgd
from dl4jlegacy.nn.optimization.weights import WEIGHT_INITS, NormalDistribution
from dl4jlegacy.scaleout.conf import Conf


def stack(*layers, **fields) -> MultiLayerConfiguration:
    return MultiLayerConfiguration(layers=layers, **fields)


# -- defaults and inheritance ------------------------------------------------------------------------------------------
def test_layers_inherit_what_they_leave_open_and_keep_what_they_set():
    conf = NeuralNetConfiguration(activation="tanh", l2=0.5, updater=Adam(), drop_out=0.8, bias_init=1.0)
    first, second = stack(
        DenseLayer(n_in=4, n_out=3), DenseLayer(n_out=2, activation="relu", l2=0.0, updater=Sgd()), conf=conf
    ).resolved()
    assert (first.activation, first.l2, first.updater, first.drop_out) == ("tanh", 0.5, Adam(), 0.8)
    assert (second.activation, second.l2, second.updater, second.bias_init) == ("relu", 0.0, Sgd(), 1.0)
    for name in set(INHERITED) - {"dist"}:
        assert getattr(first, name) is not None


def test_resolving_twice_changes_nothing():
    conf = stack(DenseLayer(n_in=4, n_out=3), OutputLayer(n_out=2))
    assert conf.replace(layers=conf.resolved()).resolved() == conf.resolved()


@pytest.mark.parametrize(
    ("loss", "activation"),
    [("mcxent", "softmax"), ("sparse_mcxent", "softmax"), ("xent", "sigmoid"), ("mse", "relu"), ("hinge", "relu")],
)
def test_an_output_layer_without_an_activation_takes_the_one_of_its_loss(loss, activation):
    conf = NeuralNetConfiguration(activation="relu")
    assert stack(OutputLayer(n_in=2, n_out=2, loss=loss), conf=conf).resolved()[0].activation == activation
    own = OutputLayer(n_in=2, n_out=2, loss=loss, activation="tanh")
    assert stack(own, conf=conf).resolved()[0].activation == "tanh"


# -- sizes -------------------------------------------------------------------------------------------------------------
def test_n_in_is_inferred_from_the_layer_below():
    layers = stack(RBM(n_in=9, n_out=7), AutoEncoder(n_out=5), OutputLayer(n_out=3)).resolved()
    assert [(layer.n_in, layer.n_out) for layer in layers] == [(9, 7), (7, 5), (5, 3)]


def test_sizes_that_do_not_fit_are_refused_naming_both_layers_and_sizes():
    with pytest.raises(ShapeError, match=r"layer 0 \(dense\) has n_out=3 but layer 1 \(output 'top'\) has n_in=4"):
        stack(DenseLayer(n_in=2, n_out=3), OutputLayer(n_in=4, n_out=2, name="top"))


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ((DenseLayer(n_out=3),), r"layer 0 \(dense\): n_in is not set"),
        ((DenseLayer(n_in=2), OutputLayer(n_out=1)), r"layer 0 \(dense\): n_out is not set"),
    ],
)
def test_sizes_that_are_still_open_are_refused_when_resolving(layers, message):
    with pytest.raises(ShapeError, match=message):
        stack(*layers).resolved()


def test_negative_sizes_are_refused_at_once():
    with pytest.raises(ShapeError, match=r"n_out is -1; it must be positive"):
        stack(DenseLayer(n_in=2, n_out=-1))


def test_with_sizes_fills_open_ends_and_refuses_other_data():
    conf = stack(DenseLayer(n_out=5), OutputLayer())
    assert [(a.n_in, a.n_out) for a in conf.with_sizes(64, 10).resolved()] == [(64, 5), (5, 10)]
    assert conf.with_sizes(64, 10).with_sizes(64, 10) == conf.with_sizes(64, 10)
    with pytest.raises(ShapeError, match=r"layer 0 \(dense\) has n_in=64 but the data has 65 feature columns"):
        conf.with_sizes(64, 10).with_sizes(65, 10)
    with pytest.raises(ShapeError, match=r"layer 1 \(output\) has n_out=10 but the data has 9 label columns"):
        conf.with_sizes(64, 10).with_sizes(64, 9)


def test_with_sizes_fits_a_single_layer_at_both_ends():
    assert stack(OutputLayer()).with_sizes(4, 3).layers == (OutputLayer(n_in=4, n_out=3),)


def test_a_network_without_layers_is_refused():
    with pytest.raises(ConfError, match="at least one layer"):
        stack()


def test_an_output_layer_must_be_the_last():
    with pytest.raises(ConfError, match=r"layer 0 \(output\) is followed by layer 1 \(dense\)"):
        stack(OutputLayer(n_in=2, n_out=2), DenseLayer(n_out=2))


def test_backprop_needs_an_output_layer_at_the_end_and_pretraining_does_not():
    with pytest.raises(ConfError, match=r"layer 0 \(rbm\) is the last layer, but backprop needs an OutputLayer"):
        stack(RBM(n_in=2, n_out=2)).validate()
    stack(RBM(n_in=2, n_out=2), backprop=False, pretrain=True).validate()


# -- values ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"activation": "rellu"}, "unknown activation 'rellu'; did you mean 'relu'"),
        ({"weight_init": "xavjer"}, "unknown weight_init 'xavjer'; did you mean 'xavier'"),
        ({"gradient_normalization": "clip_l2_per_layr"}, "did you mean 'clip_l2_per_layer'"),
        ({"l2": -1.0}, "l2 is -1.0; it must be a finite number from 0 up"),
        ({"l1_bias": float("nan")}, "l1_bias is nan"),
        ({"drop_out": 1.5}, "drop_out is 1.5; it must be a finite number from 0 to 1"),
        ({"bias_init": float("inf")}, "bias_init is inf; it must be a finite number$"),
        ({"gradient_normalization_threshold": 0.0}, "threshold is 0; it must be positive"),
    ],
)
def test_values_out_of_range_are_refused_in_the_network_and_in_a_layer(fields, message):
    with pytest.raises(ConfError, match=message):
        NeuralNetConfiguration(**fields)
    with pytest.raises(ConfError, match=message):
        stack(DenseLayer(n_in=1, n_out=1, **fields))


def test_unknown_dtypes_and_seeds_beyond_64_bits_are_refused():
    with pytest.raises(ConfError, match="unknown dtype 'float16'"):
        NeuralNetConfiguration(dtype="float16")
    with pytest.raises(ConfError, match="seed is 9223372036854775808; it must fit into 64 bits"):
        NeuralNetConfiguration(seed=2**63)


def test_weight_init_distribution_without_a_distribution_is_refused():
    layer = DenseLayer(n_in=1, n_out=1, weight_init="distribution")
    with pytest.raises(ConfError, match=r"layer 0 \(dense\): weight_init is 'distribution' but dist is not set"):
        stack(layer).resolved()
    assert stack(layer, conf=NeuralNetConfiguration(dist=NormalDistribution())).resolved()[0].dist is not None


def test_replace_refuses_unknown_fields_with_the_nearest():
    with pytest.raises(ConfError, match="NeuralNetConfiguration has no field 'sed'; did you mean 'seed'"):
        NeuralNetConfiguration().replace(sed=1)


# -- text --------------------------------------------------------------------------------------------------------------
positive = st.floats(0, 10, allow_nan=False)
changes = st.dictionaries(st.integers(0, 1000), positive, max_size=3)
updaters = st.one_of(
    st.builds(Sgd, learning_rate=positive, schedule=st.none() | st.builds(ExponentialSchedule, gamma=positive)),
    st.builds(Nesterovs, momentum_after=changes),
    st.builds(Adam, schedule=st.builds(MapSchedule, values=changes)),
)
network_wide = st.builds(
    NeuralNetConfiguration,
    seed=st.integers(-(2**63), 2**63 - 1),
    activation=st.sampled_from(sorted(ACTIVATIONS)),
    weight_init=st.sampled_from(sorted(WEIGHT_INITS)),
    dist=st.none() | st.builds(NormalDistribution, mean=positive),
    updater=updaters,
    l2=positive,
    drop_out=st.floats(0, 1),
)
hidden = st.one_of(
    st.builds(DenseLayer, n_out=st.integers(1, 9), name=st.none() | st.text(max_size=5), updater=st.none() | updaters),
    st.builds(RBM, n_out=st.integers(1, 9), k=st.integers(1, 5), hidden_unit=st.sampled_from(["binary", "rectified"])),
    st.builds(AutoEncoder, n_out=st.integers(1, 9), corruption_level=st.floats(0, 0.9)),
)
networks = st.builds(
    lambda conf, layers, pretrain: stack(*layers, OutputLayer(n_out=3), conf=conf, pretrain=pretrain),
    network_wide,
    st.lists(hidden, max_size=3),
    st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(networks)
def test_json_and_yaml_give_back_what_was_written(conf):
    assert MultiLayerConfiguration.from_json(conf.to_json()) == conf
    assert MultiLayerConfiguration.from_yaml(conf.to_yaml()) == conf
    assert NeuralNetConfiguration.from_json(conf.conf.to_json()) == conf.conf


def test_json_is_canonical():
    text = stack(DenseLayer(n_out=3, n_in=2), conf=NeuralNetConfiguration(seed=5)).to_json()
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"layers": [{"type": "dense", "n_inn": 3}]}', r"field 'n_inn' at \$\.layers\[0\]; did you mean 'n_in'"),
        ('{"layerz": []}', r"unknown field 'layerz' at \$; did you mean 'layers'"),
        ('{"layers": [], "conf": {"sed": 1}}', r"unknown field 'sed' at \$\.conf; did you mean 'seed'"),
        ('{"learnin_rate": 0.1, "layers": []}', r"at \$; did you mean \$\.conf\.updater\.learning_rate\?"),
        ('{"laers": [], "sede": 1}', r"'laers' at \$; did you mean 'layers'"),  # in this place rather than below
        ('{"conf": {"fan_in": 3}, "layers": []}', r"field 'fan_in' at \$\.conf; known:"),  # nothing is near
        ('{"layers": [{"type": "rbm", "corruption_level": 1}]}', r"field 'corruption_level' at \$\.layers\[0\]"),
        ('{"conf": {"updater": {"type": "Adam", "betta1": 0}}, "layers": []}', r"at \$\.conf\.updater; .*'beta1'"),
        ('{"conf": {"updater": {"type": "Adom"}}, "layers": []}', r"unknown type 'Adom' at .*; did you mean 'Adam'"),
        ('{"layers": [{"type": "densee"}]}', r"unknown type 'densee' at \$\.layers\[0\]\.type; did you mean 'dense'"),
        ('{"layers": [{"type": "dense", "n_in": "3"}]}', r"Expected `int`, got `str` at \$\.layers\[0\]\.n_in"),
        ('{"layers": [{"n_in": 3}]}', r"missing required field `type` at \$\.layers\[0\]"),
        ('{"layers": [{"type": "dense", "activation": "rellu"}]}', "did you mean 'relu'"),
        ("{}", "missing required field `layers`"),
        ("[]", "Expected `object`, got `array`"),
        ("{", "this is no JSON"),
        ("[" * 100_000, "this is no JSON"),
    ],
)
def test_bad_text_is_refused_saying_where_and_what_was_meant(text, message):
    with pytest.raises(ConfError, match=message):
        MultiLayerConfiguration.from_json(text)


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=40) | st.binary(max_size=40))
def test_no_text_raises_anything_but_a_configuration_error(text):
    for read in (MultiLayerConfiguration.from_json, MultiLayerConfiguration.from_yaml):
        with pytest.raises(ConfError):
            read(text)


@pytest.mark.parametrize(
    "text",
    [
        r'{"conf": {"dtype": "\ud800"}}',
        r'{"\udfff": 1}',
        r'{"layers": [{"type": "DenseLayer", "name": "\ud800"}]}',
        r'{"layers": [{"type": "\ud800"}]}',
    ],
)
def test_half_a_character_is_refused_wherever_it_stands(text):
    for decode in (MultiLayerConfiguration.from_json, MultiLayerConfiguration.from_yaml):
        with pytest.raises(ConfError):
            decode(text)
    with pytest.raises(ConfError, match="half a character"):  # a field that takes any text
        Conf.from_json(r'{"data_fingerprint": "\ud800"}')


@pytest.mark.parametrize("seed", [10**30, -(10**30), 2**64, -(2**63) - 1])
def test_integers_beyond_64_bits_are_refused_or_come_back(seed):
    text = f'{{"seed": {seed}}}'
    for decode in (Conf.from_json, partial(decode_yaml, kind=Conf)):
        try:
            conf = decode(text)
        except ConfError:
            continue
        assert Conf.from_json(conf.to_json()) == conf


def test_yaml_takes_numbers_in_the_spelling_that_yaml_reads_as_a_string():
    conf = MultiLayerConfiguration.from_yaml("layers:\n- {type: dense, n_in: 2, n_out: 2, l2: 1e-4}\n")
    assert conf.layers[0].l2 == 1e-4


def test_yaml_does_not_build_python_objects():
    with pytest.raises(ConfError, match="this is no YAML"):
        MultiLayerConfiguration.from_yaml("layers: !!python/object/apply:os.getcwd []")


# -- builder -----------------------------------------------------------------------------------------------------------
def test_the_builder_writes_what_keyword_arguments_write():
    built = (
        NeuralNetConfiguration.builder()
        .seed(7).learning_rate(0.2).updater("adagrad").activation("relu").l2(1e-4)
        .list()
        .layer(1, OutputLayer(n_out=10))
        .layer(0, RBM(n_in=784, n_out=500))
        .pretrain(True).backprop(True)
        .build()
    )  # fmt: skip
    assert built == stack(
        RBM(n_in=784, n_out=500),
        OutputLayer(n_out=10),
        conf=NeuralNetConfiguration(seed=7, activation="relu", l2=1e-4, updater=AdaGrad(learning_rate=0.2)),
        pretrain=True,
    )


def test_the_sizes_of_2014_make_a_stack_with_an_output_layer():
    built = NeuralNetConfiguration.builder().n_in(784).n_out(10).list(4).hidden_layer_sizes(500, 250, 100).build()
    assert [type(layer) for layer in built.layers] == [DenseLayer, DenseLayer, DenseLayer, OutputLayer]
    assert [(layer.n_in, layer.n_out) for layer in built.resolved()] == [(784, 500), (500, 250), (250, 100), (100, 10)]


def test_2014_layers_are_copies_of_the_prototype_and_overrides_come_last():
    built = (
        NeuralNetConfiguration.builder().layer(RBM()).k(3).hidden_unit("RECTIFIED").n_in(6).n_out(2)
        .list(3).hidden_layer_sizes(5, 4).override(2, classifier_override)
        .override(0, lambda layer: msgspec.structs.replace(layer, name="first")).build()
    )  # fmt: skip
    assert built.layers == (
        RBM(name="first", n_in=6, n_out=5, k=3, hidden_unit="rectified"),
        RBM(n_in=5, n_out=4, k=3, hidden_unit="rectified"),
        OutputLayer(n_in=4, n_out=2, activation="softmax", loss="mcxent", weight_init="zero"),
    )


def test_with_pretrain_the_hidden_layers_of_2014_are_rbms():
    built = NeuralNetConfiguration.builder().n_in(6).n_out(2).list(2).pretrain(True).hidden_layer_sizes(4).build()
    assert built.layers[0] == RBM(n_in=6, n_out=4)


def test_list_takes_the_layers_themselves():
    layers = (DenseLayer(n_in=2, n_out=3), OutputLayer(n_out=2))
    assert NeuralNetConfiguration.builder().list(*layers).build().layers == layers
    sized = NeuralNetConfiguration.builder().n_in(2).n_out(2).list(DenseLayer(n_out=3), OutputLayer()).build()
    assert [(layer.n_in, layer.n_out) for layer in sized.resolved()] == [(2, 3), (3, 2)]


def test_the_updater_collects_its_settings_whatever_the_order_of_calls():
    build = NeuralNetConfiguration.builder
    assert build().momentum(0.5).learning_rate(0.2).build().updater == Nesterovs(learning_rate=0.2, momentum=0.5)
    assert build().adam_mean_decay(0.8).updater("adam").build().updater == Adam(beta1=0.8)
    assert build().learning_rate(0.3).updater(Adam(beta2=0.9)).build().updater == Adam(learning_rate=0.3, beta2=0.9)
    assert build().momentum_after({9: 0.8, 3: 0.7}).build().updater == Nesterovs(momentum_after={3: 0.7, 9: 0.8})
    assert build().use_ada_grad(True).build().updater == AdaGrad()
    schedule = ExponentialSchedule(gamma=0.9)
    assert build().schedule(schedule).build().updater == Sgd(learning_rate=0.1, schedule=schedule)


def test_regularization_false_switches_the_penalties_off():
    conf = NeuralNetConfiguration.builder().l2(0.1).l1(0.2).regularization(False).build()
    assert (conf.l1, conf.l2) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda b: b.sed(3), "NeuralNetConfigurationBuilder has no method 'sed'; did you mean 'seed'"),
        (lambda b: b.learningRate(3), "did you mean 'learning_rate'"),
        (lambda b: b.list().layr(0), "ListBuilder has no method 'layr'; did you mean 'layer'"),
        (lambda b: b.updater("sgd").momentum(0.5).build(), r"Sgd has no momentum; those that have: .*nesterovs"),
        (lambda b: b.updater("adm").build(), "unknown updater 'adm'; did you mean 'adam'"),
        (lambda b: b.iterations(5), "train for more epochs"),
        (lambda b: b.optimization_algo("lbfgs"), "use 'stochastic_gradient_descent'"),
        (lambda b: b.list().layer(1, DenseLayer()).build(), r"layers \[1\] are given; \[0\]"),
        (lambda b: b.list().build(), "at least one layer"),
        (lambda b: b.list(3).hidden_layer_sizes(5).build(), r"1 hidden layers and the output layer make 2"),
        (lambda b: b.list(0), "one positive number of layers"),
        (lambda b: b.list(DenseLayer(n_in=1, n_out=1)).override(1, lambda x: x).build(), r"override\(1\)"),
    ],
)
def test_mistakes_in_a_builder_are_named(use, message):
    with pytest.raises(ConfError, match=message):
        use(NeuralNetConfiguration.builder())


def test_hasattr_of_a_builder_is_false_for_what_it_does_not_have():
    assert not hasattr(NeuralNetConfiguration.builder(), "nothing")
