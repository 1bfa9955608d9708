"""Files of the real Keras, 2 and 3, answer here as they did there; what is not here is named."""

from __future__ import annotations

import json
import shutil
import struct
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from dl4jlegacy import load_model
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.errors import ModelError
from dl4jlegacy.nn import ComputationGraph, KerasModelImport, MultiLayerNetwork
from dl4jlegacy.nn.interchange.dl4j.serializer import restore_model, write_model
from dl4jlegacy.nn.interchange.modelimport.keras_file import is_keras
from dl4jlegacy.training.checkpoints import convert_model
from tests.support import DATA

FOLDER = DATA / "keras"
FILES = sorted(path.name for path in FOLDER.iterdir() if path.suffix in (".h5", ".keras"))
load = KerasModelImport.import_keras_model_and_weights


def as_here(x: np.ndarray) -> np.ndarray:
    """Images and sequences of Keras have their channels and values last."""
    return np.ascontiguousarray(np.moveaxis(x, -1, 1))


def kept(name: str, network: Any) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the inputs of a file, and what Keras answered, both as they are here."""
    found = np.load(FOLDER / f"{Path(name).stem}.npz")
    x, y = ([found[key] for key in sorted(found) if key.startswith(kind)] for kind in "xy")
    kinds = network.input_types if isinstance(network, ComputationGraph) else [network.stages[0].input_type]
    takes = [each[:, None] if kind.kind == "recurrent" and each.ndim == 2 else as_here(each) if each.ndim > 2 else each
             for each, kind in zip(x, kinds, strict=True)]  # fmt: skip
    return takes, [as_here(each) if each.ndim > 2 else each for each in y]


def answers(network: Any, x: list[np.ndarray]) -> list[np.ndarray]:
    return network.outputs(*x) if isinstance(network, ComputationGraph) else [network.output(x[0])]


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_keras_answers_as_it_did_there(name: str) -> None:
    assert is_keras(FOLDER / name)
    network = load(FOLDER / name)
    x, wanted = kept(name, network)
    for found, y in zip(answers(network, x), wanted, strict=True):
        np.testing.assert_allclose(found, y, rtol=1e-5, atol=1e-5)
    flattens_sequences = "_flat_" in name
    joins = name.startswith(("several", "residual", "index", "normalized"))
    assert isinstance(network, ComputationGraph if joins or flattens_sequences else MultiLayerNetwork)


def test_there_are_files_of_both_versions_and_kinds() -> None:
    kinds = {(name.partition(".")[0][-1], Path(name).suffix) for name in FILES}
    assert kinds == {(version, ending) for version in "23" for ending in (".h5", ".keras")}


@pytest.mark.parametrize("name", ["dense_3.keras", "words_2.h5", "functional_3.keras", "lstm_2.h5", "convolution_3.h5"])
def test_training_goes_on_with_its_loss_and_its_optimizer(name: str) -> None:
    network = load(FOLDER / name)
    losses = {"dense": "mcxent", "words": "xent", "functional": "mae", "lstm": "mse"}
    last = network.layers[-1]
    assert last.loss == losses.get(name.partition("_")[0], "mcxent")
    x, y = kept(name, network)
    before = network.params.copy()
    network.fit_batch(x[0], y[0], iteration=0, stream=Stream.of(0))
    assert np.abs(network.params - before).max() > 0


def test_it_becomes_a_model_file_and_travels_on(tmp_path: Path) -> None:
    network = load(FOLDER / "convolution_3.keras")
    write_model(network, tmp_path / "m.zip", dl4j_version="1.0.0")
    np.testing.assert_array_equal(restore_model(tmp_path / "m.zip").params, network.params)
    said = convert_model(str(FOLDER / "convolution_3.h5"), str(tmp_path / "n.zip"))
    np.testing.assert_array_equal(restore_model(said["model_path"]).params, network.params)
    model = load_model(FOLDER / "convolution_3.h5")
    x, [y] = kept("convolution_3.h5", network)
    np.testing.assert_allclose(model.answer(x[0].reshape(3, -1)), y, atol=1e-5)


def test_a_graph_is_no_chain_of_layers() -> None:
    sequential = KerasModelImport.import_keras_sequential_model_and_weights
    assert isinstance(sequential(FOLDER / "dense_3.h5"), MultiLayerNetwork)
    with pytest.raises(ModelError, match=r"several_3\.h5 is no plain chain of layers here"):
        sequential(FOLDER / "several_3.h5")


def test_layers_that_were_not_trained_are_frozen(tmp_path: Path) -> None:
    network = load(changed(tmp_path, "convolution_3.keras", "Conv2D", trainable=False))
    assert [layer.frozen for layer in network.layers if layer.param_shapes()] == [True] + [False] * 5
    x, [y] = kept("convolution_3.keras", network)
    np.testing.assert_allclose(network.output(x[0]), y, atol=1e-5)


def test_images_with_their_channels_first_come_as_they_are(tmp_path: Path) -> None:
    """No file of the real Keras: on a CPU it does not compute them."""
    first = {"data_format": "channels_first"}
    path = changed(tmp_path, "average_3.keras", "InputLayer", batch_shape=[None, 1, 7, 6])
    for of in ("Conv2D", "GlobalAveragePooling2D"):
        path = changed(tmp_path, path, of, **first)
    network = load(path)
    x, [y] = kept("average_3.keras", network)
    np.testing.assert_allclose(network.output(x[0]), y, atol=1e-5)


# -- what is not here ------------------------------------------------------------------------------------------------


def changed(tmp_path: Path, name: str | Path, of: str, kind: str = "", **fields: Any) -> Path:
    """Return a copy of a ``.keras`` file in which a layer is described differently."""
    path = tmp_path / ("changed.keras" if isinstance(name, str) else f"again-{name.name}")
    with zipfile.ZipFile(FOLDER / name) as there, zipfile.ZipFile(path, "w") as here:
        for entry in there.namelist():
            content = there.read(entry)
            if entry == "config.json":
                tree = json.loads(content)
                [found] = [each for each in tree["config"]["layers"] if each["class_name"] == of][:1]
                found["class_name"] = kind or of
                found["config"] |= fields
                content = json.dumps(tree).encode()
            here.writestr(entry, content)
    return path


@pytest.mark.parametrize(
    ("name", "layer", "fields", "message"),
    [
        ("lstm_3", "LSTM", {"kind": "GRU"}, r"layer 'lstm\w*' \(GRU\): this kind of layer is not here"),
        ("lstm_3", "LSTM", {"kind": "Custom>Mine"}, r"\(Custom>Mine\): this kind of layer is not here"),
        ("lstm_3", "LSTM", {"go_backwards": True}, "go_backwards is True, which is not here"),
        ("lstm_3", "LSTM", {"stateful": True}, "stateful is True"),
        ("lstm_3", "LSTM", {"recurrent_activation": "tanh"}, "recurrent_activation 'tanh' is not here"),
        ("lstm_3", "LSTM", {"units": 9}, r"kernel of layer .* has shape \(3, 16\), its layer needs \(3, 36\)"),
        ("dense_3", "Dense", {"activation": "gelu"}, r"layer 'dense\w*' \(Dense\): activation 'gelu' is not here"),
        ("dense_3", "Dense", {"activation": "hard_sigmoid"}, "activation 'hard_sigmoid' is not here"),
        ("dense_3", "BatchNormalization", {"axis": 0}, "axis is 0, which is not here"),
        ("convolution_3", "BatchNormalization", {"axis": 1}, "axis is 1, which is not here; it can be -1 or 3"),
        ("convolution_3", "MaxPooling2D", {"data_format": "channels_first"}, "data_format is 'channels_last'"),
        ("residual_3", "Concatenate", {"axis": 1}, "axis is 1, which is not here; it can be -1 or 3"),
        ("convolution_3", "Conv2D", {"groups": 2}, "groups is 2"),
        ("convolution_3", "Conv2D", {"padding": "full"}, "padding is 'full'"),
        ("convolution_3", "Flatten", {"kind": "Lambda"}, r"\(Lambda\): this kind of layer is not here"),
        ("words_3", "Embedding", {"mask_zero": True}, "mask_zero is True"),
        ("dense_3", "InputLayer", {"batch_shape": [None, None]}, r"has shape \[None, None\]; vectors, sequences"),
        ("both_3", "TimeDistributed", {"kind": "Masking"}, r"\(Masking\)"),
        ("functional_3", "Dense", {"kind": "Functional"}, r"\(Functional\): this kind of layer is not here"),
    ],
)
def test_what_is_not_here_is_named(name: str, layer: str, fields: Any, message: str, tmp_path: Path) -> None:
    path = changed(tmp_path, f"{name}.keras", layer, **fields)
    with pytest.raises(ModelError, match=message) as caught:
        load(path)
    assert "changed.keras" in str(caught.value)


def test_both_directions_need_whole_sequences(tmp_path: Path) -> None:
    with h5py.File(FOLDER / "both_3.h5") as file:
        told = json.loads(file.attrs["model_config"])["config"]["layers"][1]["config"]["layer"]
    told["config"]["return_sequences"] = False
    with pytest.raises(ModelError, match=r"\(Bidirectional\): its return_sequences is False"):
        load(changed(tmp_path, "both_3.keras", "Bidirectional", layer=told))


def test_a_damaged_or_foreign_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        load(tmp_path / "none.h5")
    for name in ("dense_3.h5", "dense_3.keras"):
        whole = (FOLDER / name).read_bytes()
        for stop in range(0, len(whole), max(1, len(whole) // 40)):
            (tmp_path / name).write_bytes(whole[:stop])
            with pytest.raises(ModelError, match=name.replace(".", r"\.")):
                load(tmp_path / name)
    bare = tmp_path / "weights.h5"
    with h5py.File(bare, "w") as file:
        file.create_group("model_weights")
    with pytest.raises(ModelError, match="no attribute model_config: weights alone say no network"):
        load(bare)
    for name in ("dense_3.h5", "dense_3.keras"):
        with pytest.raises(ModelError, match=r"of Keras|such as Keras writes.*KerasModelImport makes a model"):
            restore_model(FOLDER / name)


@pytest.mark.parametrize("name", ["several_2.h5", "several_2.keras"])
@pytest.mark.parametrize(("number", "nbytes"), [(0, 0), (1, 2**64 - 8), (1, 8192)])
def test_a_heap_of_hdf5_that_never_ends_is_refused(name: str, number: int, nbytes: int, tmp_path: Path) -> None:
    content = (FOLDER / "several_2.h5").read_bytes()  # files of Keras 3 have no such heap
    first = content.index(b"GCOL\x01\0\0\0") + 16
    content = content[:first] + struct.pack("<H6xQ", number, nbytes) + content[first + 16 :]
    path = tmp_path / name
    if path.suffix == ".h5":
        path.write_bytes(content)
    else:
        with zipfile.ZipFile(path, "w") as file:
            for entry, text in (("config.json", b"{}"), ("metadata.json", b"{}"), ("model.weights.h5", content)):
                file.writestr(entry, text)
    with pytest.raises(ModelError, match=rf"{name}.*heap at byte \d+ has an object of \d+ bytes"):
        load(path)


def test_no_other_file_is_read_through_links(tmp_path: Path) -> None:
    for kind in ("link", "external"):
        path = tmp_path / f"{kind}.h5"
        shutil.copy(FOLDER / "dense_3.h5", path)
        with h5py.File(path, "r+") as file:
            group = file["model_weights"]
            layer = next(name for name in group if name.startswith("dense"))
            names = group[layer].attrs["weight_names"]
            kernel = f"{layer}/{names[0]}"
            shape = group[kernel].shape
            del group[kernel]
            if kind == "link":
                group[kernel] = h5py.ExternalLink(str(FOLDER / "dense_2.h5"), "/model_weights")
            else:
                size = 4 * int(np.prod(shape))
                group.create_dataset(kernel, shape, "f4", external=[(str(FOLDER / "dense_2.h5"), 0, size)])
        with pytest.raises(ModelError, match="nothing but what is in the file itself is read"):
            load(path)
