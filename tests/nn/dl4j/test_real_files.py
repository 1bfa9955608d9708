"""Files that the real Deeplearning4j wrote (tests/interop/golden.py): each answers as there, or is refused by name."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dl4jlegacy.errors import ModelError
from dl4jlegacy.nn import (
    LSTM,
    RBM,
    BatchNormalization,
    Bidirectional,
    Convolution1DLayer,
    ConvolutionLayer,
    DenseLayer,
    FrozenLayer,
    GlobalPoolingLayer,
    InputType,
    MultiLayerConfiguration,
    MultiLayerNetwork,
    NeuralNetConfiguration,
    OutputLayer,
    RnnOutputLayer,
    SubsamplingLayer,
)
from dl4jlegacy.nn.conf.network import ComputationGraphConfiguration
from dl4jlegacy.nn.graph.computation_graph import ComputationGraph
from dl4jlegacy.nn.interchange.dl4j.graph import graph_from_dl4j, graph_to_dl4j
from dl4jlegacy.nn.interchange.dl4j.serializer import restore_model, write_model
from dl4jlegacy.nn.optimization.updaters import Adam
from dl4jlegacy.nn.vertices.combine import ElementWiseVertex, MergeVertex
from tests.support import DATA

FOLDER = DATA / "dl4j" / "interop"
REFUSED = {
    "ConvolutionLayer__softmax_m21": r"layer 0 \(convolution 'layer0'\) has softmax between images",
    "ConvolutionLayer__NHWC_m21": r"confs\[0\]\.layer\.cnn2dDataFormat is NHWC",
    "GlobalPoolingLayer__MAX_m21": r"how large the images are; give them, restore_model\(path, input_types",
    "LSTM__NWC_m21": r"confs\[0\]\.layer\.rnnDataFormat is NWC",
    "MergeVertex__of_inputs_m21": "network input 'a': its size is not known",
    "SubsamplingLayer__AVG__padding_counted_m21": r"confs\[1\]\.layer\.avgPoolIncludePadInDivisor is true",
    "SubsamplingLayer__AVG_padded_091": r"confs\[1\]\.layer pools with padding, and .* divides by the whole window",
    "SubsamplingLayer__MAX_padded_091": r"confs\[1\]\.layer pools with padding, and .* 0\.9\.1 takes maxima against 0",
}
GIVEN = {"ConvolutionLayer__softmax_m21": [InputType.convolutional(8, 7, 2)]}
NAMES = sorted(path.stem for path in FOLDER.glob("*.zip"))


def answers(network: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return what a network answers, and what Deeplearning4j did."""
    kept = np.load(FOLDER / f"{name}.npz")
    x = [kept[key] for key in sorted(kept) if key.startswith("x")]
    mask = kept.get("fm0", None)
    if isinstance(network, ComputationGraph):
        return network.outputs(*x, features_masks=None if mask is None else [mask])[0], kept["y"]
    return network.output(x[0], mask), kept["y"]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in REFUSED])
def test_a_file_of_deeplearning4j_answers_as_it_did_there(name: str) -> None:
    kept = np.load(FOLDER / f"{name}.npz")
    shape = kept["x0"].shape[1:]
    says_it = len(shape) != 3 or name.startswith("MergeVertex")
    kinds = () if says_it else [InputType.convolutional(shape[1], shape[2], shape[0])]
    network = restore_model(FOLDER / f"{name}.zip", input_types=kinds)
    ours, theirs = answers(network, name)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_answer_otherwise_is_refused_with_its_place(name: str) -> None:
    with pytest.raises(ModelError, match=REFUSED[name]):
        restore_model(FOLDER / f"{name}.zip", input_types=GIVEN.get(name, ()))


def test_images_of_any_size_are_read_when_their_size_is_given() -> None:
    name = "GlobalPoolingLayer__MAX_m21"
    network = restore_model(FOLDER / f"{name}.zip", input_types=[InputType.convolutional(8, 7, 2)])
    ours, theirs = answers(network, name)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_the_smallest_images_that_fit_are_taken_and_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        network = restore_model(FOLDER / "ConvolutionLayer__LeNet__images_m21.zip")
    assert network.conf.input_type == InputType.convolutional(8, 6, 2)
    assert "8x6 is taken, the smallest that fits (up to 9x7 do)" in caplog.text


def test_a_layer_without_bias_gets_zeros_and_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        network = restore_model(FOLDER / "EmbeddingLayer__bias_False_m21.zip")
    assert "confs[0].layer has no bias" in caplog.text
    assert not network.param_table["0_b"].any()


# -- the versions that a file is written for -------------------------------------------------------------------------


def stack(*layers: Any, kind: Any = None, **fields: Any) -> MultiLayerNetwork:
    conf = NeuralNetConfiguration(seed=3, **fields)
    return MultiLayerNetwork(MultiLayerConfiguration(conf=conf, layers=layers, input_type=kind))


SOFTMAX = OutputLayer(n_out=2, activation="softmax")
IMAGES = InputType.convolutional(6, 6, 1)
CONVOLUTION = ConvolutionLayer(n_out=2, kernel_size=(2, 2))


@pytest.mark.parametrize(
    ("layers", "kind", "version", "why"),
    [
        (
            (RBM(n_in=3, n_out=2), SOFTMAX),
            None,
            "1.0.0",
            r"layer 0 \(rbm\) is an RBM, which 1.0.0 does not have \(0.9.1 can\)",
        ),
        ((DenseLayer(n_in=3, n_out=2, activation="mish"), SOFTMAX), None, "0.9.1", "'mish', which 0.9.1 does not have"),
        (
            (Bidirectional(layer=LSTM(n_out=2)), RnnOutputLayer(n_out=2, activation="softmax")),
            InputType.recurrent(3),
            "0.9.1",
            "is a Bidirectional, which 0.9.1 does not have",
        ),
        (
            (CONVOLUTION, SubsamplingLayer(kernel_size=(2, 2), padding=(1, 1)), SOFTMAX),
            IMAGES,
            "0.9.1",
            r"layer 1 .* pools with padding, which 0.9.1 takes for zeros \(1.0.0 can\)",
        ),
        (
            (CONVOLUTION, SubsamplingLayer(kernel_size=(2, 2), pooling_type="sum"), SOFTMAX),
            IMAGES,
            "1.0.0",
            r"pools sums, which Deeplearning4j cannot do in windows \(no version can: leave dl4j_version out",
        ),
    ],
    ids=["RBM", "mish", "Bidirectional", "padding", "sums"],
)
def test_a_version_that_cannot_take_a_network_is_refused(
    layers: tuple[Any, ...], kind: Any, version: Any, why: str, tmp_path: Path
) -> None:
    network = stack(*layers, kind=kind)
    with pytest.raises(ModelError, match=why):
        write_model(network, tmp_path / "m.zip", dl4j_version=version)
    assert not (tmp_path / "m.zip").exists()
    write_model(network, tmp_path / "m.zip")
    np.testing.assert_array_equal(restore_model(tmp_path / "m.zip").params, network.params)


def graph(vertex: Any) -> ComputationGraphConfiguration:
    """A vertex ``v`` between two layers and the output."""
    builder = NeuralNetConfiguration.builder().graph_builder().add_inputs("a")
    for name in ("b", "c"):
        builder.add_layer(name, DenseLayer(n_in=3, n_out=2), "a")
    return builder.add_vertex("v", vertex, "b", "c").add_layer("out", SOFTMAX, "v").set_outputs("out").build()


@pytest.mark.parametrize("op", ["average", "max"])
def test_vertices_that_0_9_1_lacks_are_refused_for_it(op: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=rf"vertex 'v': it has no ElementWiseVertex with op '{op}'"):
        write_model(ComputationGraph(graph(ElementWiseVertex(op=op))), tmp_path / "m.zip", dl4j_version="0.9.1")


def test_an_unknown_version_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"dl4j_version is '2.0'; known are 0\.9\.1 and 1\.0\.0"):
        write_model(stack(DenseLayer(n_in=3, n_out=2), SOFTMAX), tmp_path / "m.zip", dl4j_version="2.0")  # type: ignore[arg-type]


def test_what_a_version_would_train_otherwise_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        network = stack(DenseLayer(n_in=3, n_out=2), SOFTMAX, updater=Adam(), minimize=False)
        write_model(network, tmp_path / "m.zip", dl4j_version="0.9.1")
    assert "0.9.1 divides by the number of examples behind the updater" in caplog.text
    assert "minimize=False" in caplog.text


@pytest.mark.parametrize("version", ["0.9.1", "1.0.0", None])
def test_what_lies_otherwise_in_a_file_comes_back(version: Any, tmp_path: Path) -> None:
    layers = (
        FrozenLayer(Convolution1DLayer(n_out=4, kernel_size=3)),
        Convolution1DLayer(n_out=3, kernel_size=2),
        GlobalPoolingLayer(),
        DenseLayer(n_out=5),
        SOFTMAX,
    )
    network = stack(*layers, kind=InputType.recurrent(3), updater=Adam())
    network.updater_state[...] = np.arange(network.updater_state.size)
    write_model(network, tmp_path / "m.zip", dl4j_version=version)
    back = restore_model(tmp_path / "m.zip")
    np.testing.assert_array_equal(back.params, network.params)
    np.testing.assert_array_equal(back.updater_state, network.updater_state)


def test_the_variance_of_a_normalization_comes_back_from_0_9_1s_shape(tmp_path: Path) -> None:
    network = stack(DenseLayer(n_in=3, n_out=2), BatchNormalization(eps=1e-2), SOFTMAX)
    write_model(network, tmp_path / "m.zip", dl4j_version="0.9.1")
    np.testing.assert_allclose(restore_model(tmp_path / "m.zip").params, network.params, rtol=1e-6)


# -- keys ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("vertex", "change", "message"),
    [
        (MergeVertex(), {"mergeAxis": 2}, r"vertices\.v\.mergeAxis is 2; known here: 1"),
        (MergeVertex(), {"magic": 1}, r"vertices\.v\.magic is 1; this is not known here"),
    ],
)
def test_what_a_vertex_says_and_nobody_honours_is_refused(vertex: Any, change: Any, message: str) -> None:
    tree = graph_to_dl4j(graph(vertex), version="1.0.0")
    tree["vertices"]["v"] |= change
    with pytest.raises(ModelError, match=message):
        graph_from_dl4j(tree)
