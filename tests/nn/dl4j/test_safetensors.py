"""Whole models as safetensors files: exact round trips of every kind of network, and every kind of bad file."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
import safetensors.numpy

from dl4jlegacy import load_model
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.datasets.normalizers import NormalizerStandardize
from dl4jlegacy.errors import ModelError
from dl4jlegacy.nn import (
    LSTM,
    Adam,
    BatchNormalization,
    ComputationGraph,
    ConvolutionLayer,
    DenseLayer,
    InputType,
    MultiLayerConfiguration,
    MultiLayerNetwork,
    NeuralNetConfiguration,
    OutputLayer,
    RnnOutputLayer,
)
from dl4jlegacy.nn.interchange.dl4j.safetensors_file import digest
from dl4jlegacy.nn.interchange.dl4j.serializer import restore_label_names, restore_model, write_model
from dl4jlegacy.serving.models import named_paths
from dl4jlegacy.system import files
from tests.nn.dl4j.test_serializer import assert_same, small, trained

IMAGE = InputType.convolutional(6, 5, 2)


def networks() -> list[Any]:
    adam = NeuralNetConfiguration(updater=Adam(learning_rate=0.01), seed=3)
    end = OutputLayer(n_out=3, activation="softmax")
    images = (ConvolutionLayer(n_out=3, kernel_size=(2, 3)), BatchNormalization(), end)
    steps = (LSTM(n_out=4), RnnOutputLayer(n_out=3, activation="softmax"))
    graph = NeuralNetConfiguration.builder().seed(3).updater("nesterovs").graph_builder().add_inputs("in")
    graph.add_layer("first_layer", DenseLayer(n_out=4), "in").add_layer("out", end, "first_layer")
    conf = graph.set_outputs("out").set_input_types(InputType.feed_forward(5)).build()
    return [
        trained(small()),
        trained(small().replace(conf=NeuralNetConfiguration(dtype="float64"))),
        MultiLayerNetwork(MultiLayerConfiguration(conf=adam, layers=images, input_type=IMAGE)),
        MultiLayerNetwork(MultiLayerConfiguration(conf=adam, layers=steps, input_type=InputType.recurrent(2))),
        ComputationGraph(conf),
    ]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    write_model(trained(small()), path)
    return path


@pytest.mark.parametrize("network", networks(), ids=["mlp", "float64", "images", "sequences", "graph"])
def test_a_saved_network_comes_back_exactly(network: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    network.set_params(rng.normal(size=network.params.shape))
    network.set_updater_state(rng.normal(size=network.updater_state.shape))
    network.iteration = 7
    path = tmp_path / "m.safetensors"
    write_model(network, path)
    assert_same(restore_model(path), network)
    first = path.read_bytes()
    write_model(network, path)
    assert path.read_bytes() == first and os.listdir(tmp_path) == ["m.safetensors"]


def test_any_reader_finds_the_parameters_by_their_names(model: Path) -> None:
    network, found = trained(small()), safetensors.numpy.load_file(model)
    assert set(found) == {*network.param_table, "updaterState"}
    for name, view in network.param_table.items():
        np.testing.assert_array_equal(found[name], view)


def test_training_goes_on_as_if_it_had_not_been_interrupted(model: Path) -> None:
    whole, restored = trained(small(), 3), restore_model(model)
    x, labels = np.ones((2, 4), np.float32), np.eye(3, dtype=np.float32)[:2]
    for network in (whole, restored):
        network.fit_batch(x, labels, iteration=network.iteration, stream=Stream.of(7))
    np.testing.assert_array_equal(whole.params, restored.params)


def test_what_belongs_to_a_model_travels_with_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = DataSet(rng.normal(3, 2, size=(9, 4)).astype("f4"), np.eye(3, dtype="f4")[np.arange(9) % 3])
    network, normalizer = trained(small()), NormalizerStandardize().fit(data)
    for name in ("m.zip", "m.safetensors"):
        write_model(network, tmp_path / name, normalizer=normalizer, label_names=["a", "b", "c"], save_updater=False)
    loaded, other = (load_model(tmp_path / name) for name in ("m.safetensors", "m.zip"))
    np.testing.assert_array_equal(loaded.predict(data.features), other.predict(data.features))
    assert loaded.label_names == ("a", "b", "c") == restore_label_names(tmp_path / "m.safetensors")
    assert not restore_model(tmp_path / "m.safetensors").updater_state.any()
    assert named_paths([str(tmp_path / "m.safetensors")]) == {"m": str(tmp_path / "m.safetensors")}


@pytest.mark.parametrize("ending", ["zip", "safetensors"])
def test_a_file_that_is_replaced_while_it_is_read_gives_one_model_whole(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another model takes its place after an opening of the file: never one's weights under the other's names."""
    models = {}
    for number, names in enumerate((("a", "b", "c"), ("c", "b", "a"))):
        network = trained(small())
        network.set_params(np.full(network.params.shape, number))
        write_model(network, tmp_path / f"{number}.{ending}", label_names=names)
        models[number] = names
    served, openings, opened = tmp_path / f"served.{ending}", [0], files.open_to_read

    def opened_and_replaced(path: Any) -> BinaryIO:
        file = opened(path)
        openings[0] -= 1
        if not openings[0]:
            os.replace(tmp_path / "next", served)
        return file

    monkeypatch.setattr(files, "open_to_read", opened_and_replaced)
    found = []
    for openings[0] in range(1, 5):
        shutil.copy(tmp_path / f"0.{ending}", served)
        shutil.copy(tmp_path / f"1.{ending}", tmp_path / "next")
        loaded = load_model(served)
        found.append(int(loaded.network.params[0]))
        assert loaded.label_names == models[found[-1]]
    assert set(found) == set(models)


def test_a_file_cut_short_or_damaged_at_any_byte_is_a_model_error(model: Path, tmp_path: Path) -> None:
    whole, bad = model.read_bytes(), tmp_path / "bad.safetensors"
    for position in range(0, len(whole), 11):
        damaged = bytearray(whole)
        damaged[position] ^= 0x15
        for content in (whole[:position], damaged):
            bad.write_bytes(content)
            with pytest.raises(ModelError, match=r"bad\.safetensors"):
                restore_model(bad)


def rewritten(path: Path, tensors: dict[str, np.ndarray], own: dict[str, Any]) -> None:
    said = own | {"sha256": digest({k: v for k, v in own.items() if k != "sha256"}, tensors)}
    path.write_bytes(safetensors.numpy.save(tensors, {"dl4jlegacy": json.dumps(said)}))


def test_what_is_missing_or_wrong_is_named(model: Path) -> None:
    tensors = safetensors.numpy.load_file(model)
    with safetensors.safe_open(model, framework="np") as file:
        own = json.loads(file.metadata()["dl4jlegacy"])
    rewritten(model, tensors, own)
    assert_same(restore_model(model), trained(small()))
    nan = np.full_like(tensors["0_b"], np.nan)
    wrong: list[tuple[dict[str, np.ndarray], dict[str, Any], str]] = [
        ({n: t for n, t in tensors.items() if n != "1_W"}, own, "tensor '1_W' is missing"),
        (tensors | {"1_W": tensors["1_W"].T.copy()}, own, r"'1_W' has shape \(3, 6\).*needs \(6, 3\)"),
        (tensors | {"0_b": nan}, own, "'0_b' holds NaN"),
        (tensors | {"0_b": np.ones(6, "i4")}, own, "'0_b' holds int32"),
        (tensors, {"format": 99}, "format 99"),
    ]
    for arrays, changed, message in wrong:
        rewritten(model, arrays, changed)
        with pytest.raises(ModelError, match=message):
            restore_model(model)
    for header, message in (({}, "without 'dl4jlegacy' in its header"), ({"dl4jlegacy": "{"}, "is not JSON")):
        model.write_bytes(safetensors.numpy.save(tensors, header))
        with pytest.raises(ModelError, match=message):
            restore_model(model)


def test_deeplearning4j_reads_none(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"reads no safetensors files; give .* the ending \.zip"):
        write_model(trained(small()), tmp_path / "m.safetensors", dl4j_version="1.0.0")
