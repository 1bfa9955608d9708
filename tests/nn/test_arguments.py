"""What anyone would write works, and what cannot is answered with what to write: configurations and data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import msgspec
import numpy as np
import pytest

from dl4jlegacy import Conf
from dl4jlegacy.datasets import DataSet, ListDataSetIterator
from dl4jlegacy.errors import ConfError, DataError, Dl4jError, ShapeError
from dl4jlegacy.kernels import load
from dl4jlegacy.nn import (
    LSTM,
    RBM,
    ActivationLayer,
    Adam,
    AutoEncoder,
    BatchNormalization,
    Bidirectional,
    ComputationGraph,
    Convolution1DLayer,
    ConvolutionLayer,
    DenseLayer,
    DropoutLayer,
    ElementWiseVertex,
    EmbeddingLayer,
    FineTuneConfiguration,
    GlobalPoolingLayer,
    GravesLSTM,
    InputType,
    LossLayer,
    MultiLayerConfiguration,
    MultiLayerNetwork,
    Nesterovs,
    NeuralNetConfiguration,
    NormalDistribution,
    OutputLayer,
    RmsProp,
    RnnOutputLayer,
    ScaleVertex,
    Sgd,
    StepSchedule,
    SubsamplingLayer,
    VariationalAutoencoder,
    ZeroPadding1DLayer,
    ZeroPaddingLayer,
)
from dl4jlegacy.nn.arguments import ALIASES
from dl4jlegacy.nn.layers.layer import Layer
from dl4jlegacy.nn.optimization.functions import ACTIVATIONS
from dl4jlegacy.nn.optimization.losses import LOSSES
from dl4jlegacy.nn.optimization.updaters import UPDATERS
from dl4jlegacy.nn.optimization.weights import WEIGHT_INITS

# -- configurations ------------------------------------------------------------------------------------------------

SAME: list[tuple[Callable[[], Any], Any]] = [
    (lambda: DenseLayer(4), DenseLayer(n_out=4)),
    (lambda: DenseLayer(4, "ReLU"), DenseLayer(n_out=4, activation="relu")),
    (lambda: DenseLayer(np.int64(4), drop_out=np.float32(0.5)), DenseLayer(n_out=4, drop_out=0.5)),
    (lambda: OutputLayer(10, loss="cross_entropy"), OutputLayer(n_out=10, loss="mcxent")),
    (lambda: OutputLayer(2, "Softmax", loss="CrossEntropyLoss"), OutputLayer(n_out=2, activation="softmax")),
    (lambda: OutputLayer(loss_weights=np.array([1.0, 2.0])), OutputLayer(loss_weights=(1.0, 2.0))),
    (lambda: ConvolutionLayer(16, 3), ConvolutionLayer(n_out=16, kernel_size=(3, 3))),
    (
        lambda: ConvolutionLayer(kernel_size=[3, 5], stride=2, padding=np.int8(1), dilation=2),
        ConvolutionLayer(kernel_size=(3, 5), stride=(2, 2), padding=(1, 1), dilation=(2, 2)),
    ),
    (lambda: ConvolutionLayer(convolution_mode="SAME"), ConvolutionLayer(convolution_mode="same")),
    (lambda: ConvolutionLayer(convolution_mode="valid"), ConvolutionLayer()),
    (lambda: Convolution1DLayer(8, (3,)), Convolution1DLayer(n_out=8, kernel_size=3)),
    (lambda: SubsamplingLayer(2, 2), SubsamplingLayer(kernel_size=(2, 2), stride=(2, 2))),
    (lambda: SubsamplingLayer(pooling_type="Average"), SubsamplingLayer(pooling_type="avg")),
    (lambda: GlobalPoolingLayer("MAX"), GlobalPoolingLayer()),
    (lambda: ZeroPaddingLayer(1), ZeroPaddingLayer(padding=(1, 1, 1, 1))),
    (lambda: ZeroPadding1DLayer([1, 2]), ZeroPadding1DLayer(padding=(1, 2))),
    (lambda: ActivationLayer("Leaky_ReLU"), ActivationLayer(activation="leakyrelu")),
    (lambda: LossLayer("MSE"), LossLayer(loss="mse")),
    (lambda: LSTM(5, gate_activation="HardSigmoid"), LSTM(n_out=5, gate_activation="hardsigmoid")),
    (lambda: Bidirectional(GravesLSTM(5), "sum"), Bidirectional(layer=GravesLSTM(n_out=5), mode="add")),
    (lambda: EmbeddingLayer(100, 8), EmbeddingLayer(n_in=100, n_out=8)),
    (lambda: RBM(5, visible_unit="GAUSSIAN"), RBM(n_out=5, visible_unit="gaussian")),
    (lambda: AutoEncoder(5, loss="mean_squared_error"), AutoEncoder(n_out=5, loss="mse")),
    (lambda: VariationalAutoencoder(encoder_layer_sizes=9), VariationalAutoencoder(encoder_layer_sizes=(9,))),
    (lambda: DenseLayer(weight_init="HE_NORMAL", updater="ADAM"), DenseLayer(weight_init="relu", updater=Adam())),
    (lambda: DenseLayer(updater=Adam, gradient_normalization="ClipL2PerLayer"),
     DenseLayer(updater=Adam(), gradient_normalization="clip_l2_per_layer")),
    (lambda: Adam(0.01), Adam(learning_rate=0.01)),
    (lambda: Nesterovs(0.1, 0.8), Nesterovs(learning_rate=0.1, momentum=0.8)),
    (lambda: RmsProp(np.float64(0.5)), RmsProp(learning_rate=0.5)),
    (lambda: NormalDistribution(0.0, 0.01), NormalDistribution(mean=0.0, std=0.01)),
    (lambda: StepSchedule(0.5, 10), StepSchedule(decay_rate=0.5, steps=10)),
    (lambda: InputType.convolutional(np.int64(8), 8, 1), InputType.convolutional(8, 8, 1)),
    (lambda: ElementWiseVertex("Add"), ElementWiseVertex(op="add")),
    (lambda: ScaleVertex(2.0), ScaleVertex(scale_factor=2.0)),
    (
        lambda: NeuralNetConfiguration(updater="sgd", activation="ReLU", weight_init="Glorot_Uniform", dtype="double"),
        NeuralNetConfiguration(updater=Sgd(), activation="relu", weight_init="xavier_uniform", dtype="float64"),
    ),
    (
        lambda: MultiLayerConfiguration([DenseLayer(3), OutputLayer(2)], backprop_type="TruncatedBPTT"),
        MultiLayerConfiguration(layers=(DenseLayer(n_out=3), OutputLayer(n_out=2)), backprop_type="truncated_bptt"),
    ),
    (lambda: FineTuneConfiguration(updater="adam"), FineTuneConfiguration(updater=Adam())),
    (
        lambda: NeuralNetConfiguration.builder().list([DenseLayer(3), OutputLayer(2)]).build(),
        NeuralNetConfiguration.builder().list().layer(DenseLayer(3)).layer(OutputLayer(2)).build(),
    ),
    (lambda: Conf(workers=np.int64(3)), Conf(workers=3)),
]  # fmt: skip


@pytest.mark.parametrize(("written", "meant"), SAME)
def test_what_anyone_would_write_is_what_is_meant(written: Callable[[], Any], meant: Any) -> None:
    found = written()
    assert found == meant
    assert msgspec.json.encode(found) == msgspec.json.encode(meant)  # it travels as it would otherwise


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: DenseLayer(784, 100), r"DenseLayer\(n_in=\.\.\., n_out=\.\.\.\)"),
    (lambda: DenseLayer(4, n_out=5), "n_out by name too"),
    (lambda: DenseLayer(units=4), "no field 'units'; did you mean 'n_out'"),
    (lambda: ConvolutionLayer(filters=4), "did you mean 'n_out'"),
    (lambda: ConvolutionLayer(1, 16, 5), r"at most 2 \(n_out, kernel_size\)"),
    (lambda: DenseLayer(dropout=0.5), "did you mean 'drop_out' .*share of values that is kept"),
    (lambda: DropoutLayer(0.5), r"none of its values by position.*DropoutLayer\(drop_out=\.\.\.\)"),
    (lambda: BatchNormalization(5), "none of its values by position"),
    (lambda: DenseLayer("4"), "n_out is '4': expected int"),
    (lambda: DenseLayer(4.5), "n_out is 4.5: expected int"),
    (lambda: DenseLayer(True), "n_out is True: expected int"),
    (lambda: DenseLayer(4, activation=np.tanh), "activation is .*give a name: cube, "),
    (lambda: DenseLayer(4, "relo"), "unknown activation 'relo'; did you mean 'relu'"),
    (lambda: OutputLayer(4, loss="huber"), "unknown loss 'huber'; known: "),
    (lambda: DenseLayer(weight_init="xaver"), "unknown weight_init 'xaver'; did you mean 'xavier'"),
    (lambda: DenseLayer(updater="adamx"), "unknown updater 'adamx'; did you mean 'adam'"),
    (lambda: DenseLayer(updater=0.1), "updater is 0.1; give an updater, such as Adam"),
    (lambda: DenseLayer(dist="normal"), r"dist is 'normal'.*give a NormalDistribution\(\.\.\.\)"),
    (lambda: ConvolutionLayer(kernel_size=3.5), "kernel_size is 3.5.*2 whole numbers, or one for all"),
    (lambda: ConvolutionLayer(kernel_size=(1, 2, 3)), "2 whole numbers, or one for all"),
    (lambda: ConvolutionLayer(convolution_mode="causal"), "unknown convolution_mode 'causal'"),
    (lambda: LSTM(3, gate_activation="relu"), "unknown gate_activation 'relu'; known: hardsigmoid, sigmoid"),
    (lambda: Bidirectional(LSTM(3), "median"), "unknown mode 'median'"),
    (lambda: Adam(lr=0.1), "Adam has no field 'lr'; did you mean 'learning_rate'"),
    (lambda: Adam("0.1"), "learning_rate is '0.1': expected float"),
    (lambda: Adam(-0.1), "learning_rate is -0.1"),
    (lambda: InputType.feed_forward("5"), "size is '5': expected int"),
    (lambda: NeuralNetConfiguration(optimizer="adam"), "did you mean 'updater'"),
    (lambda: NeuralNetConfiguration(7), r"NeuralNetConfiguration\(seed=\.\.\.\)"),
    (lambda: NeuralNetConfiguration(dtype="half"), "unknown dtype 'half'"),
    (lambda: MultiLayerConfiguration([4]), r"layers is \(4,\)"),
    (lambda: NeuralNetConfiguration.builder().list().layer(3), r"layer\(3, None\): give an index and a layer"),
    (lambda: Bidirectional(), r"Bidirectional needs layer: Bidirectional\(layer=\.\.\.\)"),
    (lambda: Conf(batchsize=5), "Conf has no field 'batchsize'; did you mean 'batch_size'"),
    (lambda: Conf(workers="4"), "workers is '4': expected int"),
]


@pytest.mark.parametrize(("written", "words"), REFUSED)
def test_what_cannot_be_meant_is_answered_with_what_to_write(written: Callable[[], Any], words: str) -> None:
    with pytest.raises(ConfError, match=words):
        written()


def spellings(name: str) -> set[str]:
    return {name.upper(), name.title(), name.title().replace("_", ""), name.replace("_", "-"), name.replace("_", " ")}


@pytest.mark.parametrize(
    ("names", "made"),
    [
        (ACTIVATIONS, lambda name: DenseLayer(activation=name).activation),
        (LOSSES, lambda name: OutputLayer(loss=name).loss),
        (WEIGHT_INITS, lambda name: DenseLayer(weight_init=name).weight_init),
    ],
)
def test_every_name_is_known_in_every_case_and_spelling(names: dict[str, Any], made: Callable[[str], str]) -> None:
    assert {(name, made(spelled)) for name in names for spelled in spellings(name)} == {(name, name) for name in names}


def test_what_others_call_a_name_is_one_of_ours() -> None:
    known: dict[str, Any] = {
        "activation": ACTIVATIONS,
        "loss": LOSSES,
        "weight_init": WEIGHT_INITS,
        "updater": UPDATERS,
    }
    for field, names in known.items():
        assert set(ALIASES[field].values()) <= set(names) and not set(ALIASES[field]) & set(names)
    for theirs, ours in ALIASES["updater"].items():
        assert type(NeuralNetConfiguration(updater=theirs).updater) is UPDATERS[ours]


@pytest.mark.parametrize("value", ["x", 4.5, -1, True, None, [], {}, object(), (1, 2, 3, 4, 5)])
def test_no_first_argument_and_no_unknown_field_raises_anything_but_an_answer(value: Any) -> None:
    for kind in get_args(Layer):
        for fields in ({}, {"nonsense": value}, *({name: value} for name in kind.__struct_fields__ if name != "name")):
            try:
                kind(**fields) if fields else kind(value)
            except Dl4jError as error:
                assert len(str(error)) > 20


# -- data ----------------------------------------------------------------------------------------------------------

X = np.random.default_rng(0).random((90, 3))
CLASSES = (X[:, 0] > 0.5).astype(int)
ONE_HOT = np.eye(2)[CLASSES]


def network(*layers: Layer, input_type: Any, rate: float = 0.1) -> MultiLayerNetwork:
    base = NeuralNetConfiguration(activation="tanh", updater=Adam(rate))
    return MultiLayerNetwork(MultiLayerConfiguration(layers, base, input_type=input_type), kernels=load("numpy"))


def classifier() -> MultiLayerNetwork:
    return network(DenseLayer(8), OutputLayer(2, "softmax"), input_type=InputType.feed_forward(3))


def graph() -> ComputationGraph:
    builder = NeuralNetConfiguration.builder().updater("adam").learning_rate(0.1).graph_builder().add_inputs("x")
    builder.add_layer("out", OutputLayer(2, "softmax"), "x").set_input_types(InputType.feed_forward(3))
    return ComputationGraph(builder.set_outputs("out").build(), kernels=load("numpy"))


@pytest.mark.parametrize("make", [classifier, graph])
@pytest.mark.parametrize(
    ("features", "labels"),
    [
        (X, CLASSES),
        (X.tolist(), CLASSES.tolist()),
        (X.astype(np.float16), CLASSES.reshape(-1, 1)),
        (X.astype(np.float32), CLASSES.astype(bool)),
        (tuple(X), CLASSES * 1.0),
        (X, ONE_HOT),
    ],
)
def test_arrays_and_lists_train_score_and_evaluate(make: Callable[[], Any], features: Any, labels: Any) -> None:
    trained = make()
    before = trained.score(features, labels)
    trained.fit(features, labels, epochs=np.int64(4), batch_size=np.int64(16))
    assert trained.score(features, labels) < before
    assert trained.evaluate(features, labels, ["low", "high"]).accuracy() > 0.7
    assert trained.iteration == 4 * 6
    same = make()
    same.fit(ListDataSetIterator(DataSet(np.asarray(features), ONE_HOT), 16, seed=123), 4)
    assert np.array_equal(same.params, trained.params)


@pytest.mark.parametrize("make", [classifier, graph])
def test_the_ways_to_give_data_and_epochs_that_there_were_before_go_on(make: Callable[[], Any]) -> None:
    data, trained = DataSet(X, ONE_HOT), make()
    trained.fit(data)
    trained.fit(data, 2)
    trained.fit(ListDataSetIterator(data, 30), epochs=2)
    trained.fit([data, data])
    assert trained.iteration == 1 + 2 + 6 + 2
    assert "low" in trained.evaluate(data, ["low", "high"]).stats()


@pytest.mark.parametrize("make", [classifier, graph])
def test_output_takes_lists_and_one_example_alone(make: Callable[[], Any]) -> None:
    trained = make()
    wanted = trained.output(np.array([[1.0, 2.0, 3.0]], np.float32))
    for given in ([[1, 2, 3]], [1, 2, 3], np.array([1, 2, 3]), ((1, 2, 3),), np.array([[1, 2, 3]], np.int8)):
        assert np.array_equal(trained.output(given), wanted)
        assert trained.predict(given).shape == (1,)


def test_images_sequences_and_single_values_come_as_they_are() -> None:
    rng = np.random.default_rng(1)
    images = network(ConvolutionLayer(2, 3), OutputLayer(2, "softmax"), input_type=InputType.convolutional(6, 6, 1))
    images.fit(rng.random((8, 6, 6)), [0, 1] * 4)
    assert images.output(rng.random((3, 6, 6)).tolist()).shape == (3, 2)
    with pytest.raises(ShapeError, match=r"np\.moveaxis\(x, -1, 1\)"):
        images.output(rng.random((3, 6, 6, 1)))
    line = network(OutputLayer(1, "identity", loss="mse"), input_type=InputType.feed_forward(1))
    line.fit([0.0, 1.0, 2.0], [1.0, 3.0, 5.0], epochs=300)
    assert np.allclose(line.output([0, 1, 2])[:, 0], [1, 3, 5], atol=0.5)
    words = network(LSTM(3), RnnOutputLayer(2, "softmax"), input_type=InputType.recurrent(3))
    assert words.output(rng.random((2, 3, 5)).tolist()).shape == (2, 2, 5)
    assert words.rnn_time_step([[1, 2, 3]]).shape == (1, 2)


BAD: list[tuple[Callable[[Any], Any], type[Dl4jError], str]] = [
    (lambda n: n.output([["a", "b", "c"]]), DataError, "features have dtype .*np.unique"),
    (lambda n: n.output([[1, 2], [3]]), DataError, "features are not a rectangular array"),
    (lambda n: n.output(None), DataError, "features have dtype object"),
    (lambda n: n.output("digits"), DataError, "features have dtype"),
    (lambda n: n.output([[1, 2]]), ShapeError, "2"),
    (lambda n: n.fit(X), DataError, "labels are missing"),
    (lambda n: n.fit("digits"), DataError, "labels are missing"),
    (lambda n: n.evaluate(X), DataError, "labels are missing"),
    (lambda n: n.fit(X, ["a", "b"] * 45), DataError, "labels have dtype .*np.unique"),
    (lambda n: n.fit(X, CLASSES + 1), DataError, "label 2 of example .*classes are 0 to 1"),
    (lambda n: n.fit(X, CLASSES - 1), DataError, "label -1 of example"),
    (lambda n: n.fit(X, CLASSES + 0.5), DataError, "label .*5 of example"),
    (lambda n: n.fit(X, CLASSES[:5]), DataError, "90"),
    (lambda n: n.fit(X * np.nan, CLASSES), DataError, "are nan"),
    (lambda n: n.fit(X, CLASSES, batch_size=0), DataError, "batch size is 0"),
    (lambda n: n.fit(X, np.eye(3)[CLASSES]), ShapeError, r"\(.*, 3\)"),
]


@pytest.mark.parametrize("make", [classifier, graph])
@pytest.mark.parametrize(("call", "kind", "words"), BAD)
def test_data_that_mean_nothing_are_answered(make: Any, call: Any, kind: type[Dl4jError], words: str) -> None:
    with pytest.raises(kind, match=words):
        call(make())
