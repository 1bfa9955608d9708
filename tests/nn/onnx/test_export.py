"""Networks exported to ONNX answer in onnxruntime as here: the zoo's, random ones, and every layer and vertex."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.datasets.normalizers import (
    ImagePreProcessingScaler,
    Normalizer,
    NormalizerMinMaxScaler,
    NormalizerStandardize,
)
from dl4jlegacy.errors import ModelError
from dl4jlegacy.nn import (
    LSTM,
    CnnToRnnPreProcessor,
    ComputationGraph,
    Convolution1DLayer,
    ConvolutionLayer,
    DenseLayer,
    GlobalPoolingLayer,
    InputType,
    MultiLayerConfiguration,
    MultiLayerNetwork,
    NeuralNetConfiguration,
    OutputLayer,
    RnnOutputLayer,
    RnnToCnnPreProcessor,
    Subsampling1DLayer,
    ZeroMeanPrePreProcessor,
)
from dl4jlegacy.nn.interchange.onnx.exporter import write_onnx
from dl4jlegacy.nn.interchange.onnx.layers import _CELLS
from dl4jlegacy.nn.layers.lstm import GATES
from dl4jlegacy.nn.vertices import shape
from dl4jlegacy.nn.zoo import ZOO
from tests.interop import matrix
from tests.nn.test_random_networks import build
from tests.support.random_networks import draw

EVERYDAY, LONG = 12, 200


def answers(network: Any, path: Path, inputs: list[np.ndarray], **more: Any) -> list[np.ndarray]:
    """Export a network, and return what onnxruntime answers."""
    write_onnx(network, path, **more)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    return session.run(None, dict(zip(names, inputs, strict=True)))


def check(network: Any, path: Path, *inputs: np.ndarray) -> None:
    """Compare the outputs of a network with those of its export."""
    x = [each.astype("f4") for each in inputs]
    wanted = network.outputs(*x) if isinstance(network, ComputationGraph) else [network.output(x[0])]
    for i, (found, y) in enumerate(zip(answers(network, path, x), wanted, strict=True)):
        np.testing.assert_allclose(found, y, rtol=1e-5, atol=1e-5, err_msg=f"output {i}")


def move(network: Any) -> None:
    """Move all parameters off their beginnings; variances stay positive."""
    rng = np.random.default_rng(1)
    for view in network.param_table.values():
        view += 0.1 * np.abs(rng.standard_normal(view.shape))


@pytest.mark.parametrize("name", ZOO)
def test_every_model_of_the_zoo(name: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sizes = {"char-lstm": (90, 30), "word-lstm": (12, 50), "lstm": (5, 3)}
    n_in, n_out = sizes.get(name, (784, 784 if ZOO[name].reconstructs else 10))
    network = MultiLayerNetwork(ZOO[name].build(n_in, n_out))
    x = rng.uniform(size=(3, 784))
    if name == "word-lstm":
        x = rng.integers(0, 50, size=(3, 1, 7)).astype(float)
    elif "lstm" in name:
        x = rng.normal(size=(3, network.n_in, 7))
    check(network, tmp_path / "m.onnx", x)


def random_case(number: int, path: Path) -> None:
    case = draw(number)
    network = build(case, "float32", "numpy")
    move(network)
    check(network, path, case.x)


@pytest.mark.parametrize("number", range(EVERYDAY))
def test_a_random_network(number: int, tmp_path: Path) -> None:
    random_case(number, tmp_path / "m.onnx")


@pytest.mark.long
def test_two_hundred_random_networks(tmp_path: Path) -> None:
    for number in range(EVERYDAY, EVERYDAY + LONG):
        random_case(number, tmp_path / "m.onnx")


@pytest.mark.long
def test_every_layer_vertex_and_activation(tmp_path: Path) -> None:
    count = 0
    for case in matrix.our_cases():
        if case.mask:
            continue
        is_stack = isinstance(case.conf, MultiLayerConfiguration)
        network: Any = MultiLayerNetwork(case.conf) if is_stack else ComputationGraph(case.conf)
        move(network)
        x = case.arrays(network)["x"]
        if any(type(layer) is LSTM and layer.activation not in _CELLS for layer in network.layers):
            with pytest.raises(ModelError, match="is an LSTM with activation"):
                write_onnx(network, tmp_path / "m.onnx")
            continue
        check(network, tmp_path / "m.onnx", *x)
        count += 1
    assert count > 200


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("activation", _CELLS)
def test_the_cells_of_an_lstm(activation: str, gate: str, tmp_path: Path) -> None:
    layers = (
        LSTM(n_out=4, activation=activation, gate_activation=gate),
        RnnOutputLayer(n_out=2, loss="mse", activation="identity"),
    )
    network = MultiLayerNetwork(MultiLayerConfiguration(layers=layers, input_type=InputType.recurrent(3)))
    check(network, tmp_path / "m.onnx", np.random.default_rng(0).normal(size=(2, 3, 5)))


def test_sequences_of_images_behind_each_other(tmp_path: Path) -> None:
    """Preprocessors between every two kinds, and vertices over rows of time steps."""
    builder = NeuralNetConfiguration.builder().seed(7).activation("tanh").graph_builder().add_inputs("a", "b")
    builder.add_vertex("s", shape.StackVertex(), "a", "b")
    images = RnnToCnnPreProcessor(height=4, width=5, channels=1)
    builder.add_layer("c", ConvolutionLayer(n_out=2, kernel_size=(2, 2)), "s", pre_processor=images)
    back = CnnToRnnPreProcessor(height=3, width=4, channels=2)
    builder.add_layer("d", LSTM(n_out=3), "c", pre_processor=back)
    builder.add_layer("e", DenseLayer(n_out=4), "d")
    builder.add_vertex("u", shape.UnstackVertex(from_index=1, stack_size=2), "e")
    builder.add_layer("out", RnnOutputLayer(n_out=2, activation="softmax"), "u")
    kinds = (InputType.recurrent(20), InputType.recurrent(20))
    network = ComputationGraph(builder.set_outputs("out").set_input_types(*kinds).build())
    rng = np.random.default_rng(0)
    check(network, tmp_path / "m.onnx", *(rng.normal(size=(3, 20, 5)) for _ in range(2)))


@pytest.mark.parametrize(
    "normalizer", [NormalizerStandardize(), NormalizerMinMaxScaler(-1.0, 2.0), ImagePreProcessingScaler()]
)
@pytest.mark.parametrize("kind", [InputType.feed_forward(6), InputType.recurrent(6), InputType.convolutional(3, 2, 1)])
def test_features_are_scaled_within_the_file(normalizer: Normalizer, kind: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sizes = (5, *(size or 4 for size in kind.shape))
    data = DataSet(rng.uniform(0, 255, size=sizes).astype("f4"), np.zeros((5, 1), "f4"))
    end = OutputLayer(n_out=2, activation="softmax")
    below = (GlobalPoolingLayer("avg"),) if kind.kind == "recurrent" else ()
    network = MultiLayerNetwork(MultiLayerConfiguration(layers=(*below, end), input_type=kind))
    normalizer.fit(data)
    path = tmp_path / "m.onnx"
    [found] = answers(network, path, [data.features], normalizer=normalizer, label_names=["yes", "no"])
    np.testing.assert_allclose(found, network.output(normalizer.transform(data).features), rtol=1e-5, atol=1e-5)
    said = onnxruntime.InferenceSession(path.read_bytes()).get_modelmeta()
    assert said.custom_metadata_map == {"label_names": '["yes", "no"]'} and said.producer_name == "dl4jlegacy"


def test_one_file_takes_batches_and_sequences_of_any_size(tmp_path: Path) -> None:
    layers = (
        Convolution1DLayer(n_out=4, kernel_size=3, stride=2, convolution_mode="same"),
        Convolution1DLayer(n_out=4, kernel_size=3, stride=2, dilation=3, convolution_mode="same"),
        Subsampling1DLayer(pooling_type="avg", kernel_size=2, stride=1, convolution_mode="same"),
        RnnOutputLayer(n_out=2, activation="softmax"),
    )
    network = MultiLayerNetwork(MultiLayerConfiguration(layers=layers, input_type=InputType.recurrent(3)))
    rng = np.random.default_rng(0)
    for sizes in ((1, 3, 1), (2, 3, 6), (5, 3, 9)):
        check(network, tmp_path / "m.onnx", rng.normal(size=sizes))


def test_equal_networks_give_equal_files(tmp_path: Path) -> None:
    conf = MultiLayerConfiguration(layers=(DenseLayer(n_in=4, n_out=9), OutputLayer(n_out=2)))
    for name in ("a.onnx", "b.onnx"):
        write_onnx(MultiLayerNetwork(conf), tmp_path / name)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


@pytest.mark.parametrize(
    ("layers", "before", "message"),
    [
        (
            (LSTM(n_out=3, activation="selu"), RnnOutputLayer(n_out=2)),
            {},
            r"layer 0 \(lstm\) cannot be exported to ONNX: it is an LSTM with activation 'selu'; its cells can be",
        ),
        (
            (LSTM(n_out=3), RnnOutputLayer(n_out=2)),
            {1: ZeroMeanPrePreProcessor()},
            r"layer 1 \(rnn_output\) behind preprocessor zero_mean cannot be exported to ONNX: it takes statistics",
        ),
    ],
)
def test_what_onnx_has_no_operator_for_is_named(layers: Any, before: Any, message: str, tmp_path: Path) -> None:
    conf = MultiLayerConfiguration(layers=layers, input_pre_processors=before, input_type=InputType.recurrent(3))
    with pytest.raises(ModelError, match=message):
        write_onnx(MultiLayerNetwork(conf), tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    network = MultiLayerNetwork(MultiLayerConfiguration(layers=(OutputLayer(n_in=4, n_out=2),)))
    with pytest.raises(ModelError, match=r"none/m\.onnx cannot be written: No such file.*choose a writable place"):
        write_onnx(network, tmp_path / "none" / "m.onnx")
