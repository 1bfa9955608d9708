"""``dl4j summary``: numbers against networks that exist, a table that fits, a drawing that is well formed."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from dl4jlegacy.cli.commands.summary import configuration_of
from dl4jlegacy.cli.main import main
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration, NeuralNetConfiguration
from dl4jlegacy.nn.graph.computation_graph import ComputationGraph
from dl4jlegacy.nn.input_type import InputType
from dl4jlegacy.nn.interchange.dl4j.serializer import write_model
from dl4jlegacy.nn.layers.convolution import ConvolutionLayer
from dl4jlegacy.nn.layers.embedding import EmbeddingLayer
from dl4jlegacy.nn.layers.layer import DenseLayer, FrozenLayer
from dl4jlegacy.nn.layers.lstm import LSTM
from dl4jlegacy.nn.layers.normalization import BatchNormalization
from dl4jlegacy.nn.layers.output import OutputLayer
from dl4jlegacy.nn.layers.rnn_output import RnnOutputLayer
from dl4jlegacy.nn.layers.subsampling import SubsamplingLayer
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.networks import build_network
from dl4jlegacy.nn.optimization.updaters import Adam
from dl4jlegacy.nn.summary import summarize
from dl4jlegacy.nn.zoo import ZOO
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.ui.network_svg import network_svg
from tests.nn.graph.test_computation_graph import every_vertex, golden_conf

SVG = "{http://www.w3.org/2000/svg}"


def images() -> MultiLayerConfiguration:
    layers = (
        ConvolutionLayer(kernel_size=(3, 3), n_out=4, name="edges"),
        BatchNormalization(),
        SubsamplingLayer(kernel_size=(2, 2), stride=(2, 2)),
        FrozenLayer(DenseLayer(n_out=7)),
        OutputLayer(n_out=3, activation="softmax"),
    )
    conf = NeuralNetConfiguration(updater=Adam(learning_rate=0.01))
    return MultiLayerConfiguration(conf=conf, layers=layers, input_type=InputType.convolutional(8, 10, 2))


def dl4j(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as leave:
        main(["summary", *arguments])
    captured = capsys.readouterr()
    return int(leave.value.code or 0), captured.out, captured.err


@pytest.mark.parametrize("conf", [images(), golden_conf(), every_vertex(), ZOO["dbn"].build(20, 3)])
def test_numbers_are_those_of_the_network(conf: object) -> None:
    network = build_network(conf)  # type: ignore[arg-type]
    found = summarize(network.conf)
    assert found.parameters == network.num_params
    assert found.updater_state == network.updater_state.size
    assert found.memory(1)["parameters"] == network.params.nbytes
    assert sum(row.parameters > 0 for row in found.rows) == sum(bool(layer.param_shapes()) for layer in network.layers)


def test_shapes_are_those_of_the_activations() -> None:
    net = MultiLayerNetwork(images())
    shapes = [y.shape[1:] for y in net.feed_forward(np.zeros((2, 2, 8, 10), np.float32))]
    assert [row.output for row in summarize(net.conf).rows] == shapes
    graph = ComputationGraph(every_vertex())
    found = graph.feed_forward(np.zeros((2, 6, 4)), np.zeros((2, 36)))
    for row in summarize(graph.conf).rows:
        shape = found[row.name].shape[1:]
        assert len(row.output) == len(shape) and all(a in (0, b) for a, b in zip(row.output, shape, strict=True))


def test_multiply_adds_count_every_use_of_a_weight() -> None:
    rows = summarize(images()).rows[1:]
    assert [row.multiply_adds for row in rows] == [6 * 8 * 4 * 2 * 9, 6 * 8 * 4, 0, 48 * 7, 21]
    assert [row.trained for row in rows] == [
        76,
        8,
        0,
        0,
        24,
    ]  # no running mean and variance, nothing frozen
    assert [row.pre_processor for row in rows] == ["", "", "", "cnn_to_feed_forward", ""]
    layers = (LSTM(n_out=5), RnnOutputLayer(n_out=2))
    for steps, factor in ((0, 1), (7, 7)):
        conf = MultiLayerConfiguration(layers=layers, input_type=InputType.recurrent(3, steps))
        found = summarize(conf)
        assert found.multiply_adds == factor * (4 * 5 * (3 + 5) + 10)
        assert found.has_open_length == (steps == 0)
    looked_up = MultiLayerConfiguration(layers=(EmbeddingLayer(n_in=100, n_out=5), OutputLayer(n_out=2)))
    assert summarize(looked_up).multiply_adds == 10
    shared = {row.name: row.multiply_adds for row in summarize(golden_conf()).rows}["shared"]
    assert shared == 2 * 6 * 3  # two inputs stacked


@pytest.mark.parametrize("conf", [images(), golden_conf(), every_vertex(), ZOO["vae"].build(784, 784)])
def test_the_text_fits_80_columns_and_names_everything(conf: object) -> None:
    found = summarize(conf)  # type: ignore[arg-type]
    text = found.text(128)
    assert max(len(line) for line in text.splitlines()) <= 80
    for row in found.rows:
        assert row.name[:12] in text and row.kind[:18] in text
    assert f"{found.parameters:,}" in text
    assert text.splitlines()[0].split() == ["layer", "kind", "nIn,nOut", "output", "parameters", "mult-adds"]


def test_a_layer_has_its_sizes_and_the_shapes_of_its_parameters_as_dl4j_s_summary_does() -> None:
    text = MultiLayerNetwork(images()).summary()
    for line, shapes in (
        ("0 edges       convolution         2,4         4x6x8                76      3,456", "    b 4, W 4x2x3x3"),
        ("2             subsampling         -,-         4x3x4                 0          0", ""),
        ("4             output              7,3         3                    24         21", "    W 7x3, b 3"),
    ):
        assert line in text and shapes in text.partition(line)[2].splitlines()[1]
    rows = summarize(golden_conf()).to_dict(1)["layers"]
    assert all({"n_in", "n_out", "shapes"} <= row.keys() for row in rows)
    vgg = summarize(MultiLayerConfiguration((DenseLayer(n_in=100_000, n_out=200_000), OutputLayer(n_out=2)))).text(1)
    assert "100000,200~" in vgg and "2.000e+10" in vgg


def test_the_drawing_is_well_formed_and_nothing_overlaps() -> None:
    for conf in (images(), golden_conf(), every_vertex()):
        found = summarize(conf)
        root = ElementTree.fromstring(network_svg(found, "a <network> & more"))
        boxes = [box for box in root.iter(f"{SVG}rect") if box.get("rx")]
        assert len(boxes) == len(found.rows)
        width, height = (float(root.get(side, "0")) for side in ("width", "height"))
        levels: dict[float, list[tuple[float, float]]] = {}
        for box in boxes:
            x, y, w, h = (float(box.get(name, "0")) for name in ("x", "y", "width", "height"))
            assert x >= 0 and x + w <= width and y + h <= height
            levels.setdefault(y, []).append((x, x + w))
        for spans in levels.values():
            assert all(left[1] < right[0] for left, right in pairwise(sorted(spans)))
        arrows = [path for path in root.iter(f"{SVG}path") if path.get("marker-end")]
        assert len(arrows) == sum(len(row.inputs) for row in found.rows)


def test_no_text_of_a_drawing_is_wider_than_what_it_stands_in() -> None:
    widths = {"": 0.5, "imjltf.,:'|! ": 0.28, "mwMW": 0.83, "0123456789_+": 0.556, "ABCDEFGHIJKLNOPQRSTUVXYZ…": 0.72}

    def size(text: ElementTree.Element) -> float:
        em = sum(next((w for letters, w in widths.items() if c in letters and letters), 0.556) for c in text.text or "")
        return em * float(text.get("font-size", "12")) * (1.08 if text.get("font-weight") == "bold" else 1.0)

    for name in ZOO:
        found = summarize(configuration_of(name))
        root = ElementTree.fromstring(network_svg(found, f"a-configuration-file-with-a-long-name-{name}.yaml"))
        width = float(root.get("width", "0"))
        titles = root.findall(f"{SVG}text")
        assert len(titles) == 2
        assert all(float(text.get("x", "0")) + size(text) <= width for text in titles), name
        for group in root.findall(f"{SVG}g"):
            box = group.find(f"{SVG}rect")
            assert box is not None
            assert all(size(text) <= float(box.get("width", "0")) for text in group.findall(f"{SVG}text")), name


def test_the_command_takes_models_files_and_names(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_model(ComputationGraph(golden_conf()), tmp_path / "graph.zip")
    (tmp_path / "stack.json").write_text(images().to_json())
    (tmp_path / "graph.yaml").write_text(golden_conf().to_yaml())
    (tmp_path / "conf.json").write_text(Conf(multi_layer_conf=images()).to_json())
    wanted = {"graph.zip": 130, "graph.yaml": 130, "stack.json": 459, "conf.json": 459}
    for name, parameters in wanted.items():
        code, out, err = dl4j(capsys, str(tmp_path / name), "--format", "json")
        assert (code, err) == (0, ""), err
        assert json.loads(out)["parameters"] == parameters
    code, out, _ = dl4j(capsys, "lenet", "--svg", str(tmp_path / "lenet.svg"), "--batch-size", "64")
    assert code == 0 and "with batches of 64" in out and "50x4x4" in out
    assert ElementTree.parse(tmp_path / "lenet.svg").getroot().tag == f"{SVG}svg"
    for model in ZOO:
        assert dl4j(capsys, model)[0] == 0
    code, out, _ = dl4j(capsys, "mlp", "--dataset", "iris", "--format", "json")
    body = json.loads(out)
    assert body["layers"][0]["output"] == [4]
    assert set(body["memory_bytes"]) >= {"parameters", "gradient", "updater_state", "training_of_a_batch"}


def test_what_the_command_cannot_read_it_names(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "empty.json").write_text("{}")
    (tmp_path / "broken.json").write_text('{"layers": [{"type": "dens", "n_in": 2, "n_out": 2}]}')
    (tmp_path / "bad.zip").write_text("nothing")
    cases = [
        (("lennet",), 8, "lennet is neither a file nor a model of the zoo; did you mean 'lenet'"),
        ((str(tmp_path),), 8, "is a folder"),
        ((str(tmp_path / "empty.json"),), 3, "holds no network"),
        ((str(tmp_path / "broken.json"),), 3, "unknown type 'dens'"),
        ((str(tmp_path / "bad.zip"),), 8, "truncated, corrupt or no model"),
        (("mlp", "--batch-size", "0"), 2, "--batch-size is '0'"),
        (("mlp", "--format", "jsn"), 2, "--format is 'jsn'"),
        (("mlp", "--svg", str(tmp_path / "no" / "x.svg")), 1, "choose another --svg"),
    ]
    for arguments, status, message in cases:
        code, _, err = dl4j(capsys, *arguments)
        assert code == status and message.split(";")[0] in " ".join(err.split()), (arguments, err)
