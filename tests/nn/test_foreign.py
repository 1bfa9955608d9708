"""Models of other programs: each is named, with what to do; none is loaded."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

from dl4jlegacy import load_model
from dl4jlegacy.errors import ConfError, ModelError
from dl4jlegacy.nn import ComputationGraph, DenseLayer, MultiLayerNetwork, OutputLayer
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration, NeuralNetConfiguration
from dl4jlegacy.training.checkpoints import convert_model


def of_module(module: str, *bases: type) -> Any:
    """Return an object of a class that another library would have; what it does is not looked at."""
    made: Any = type("Net", bases, {"__module__": module})
    return made()


class Mine:
    pass


TORCH = type("Module", (), {"__module__": "torch.nn.modules.module"})
OBJECTS: dict[str, tuple[Callable[[], object], str]] = {
    "PyTorch": (
        lambda: of_module("torch.nn.modules.container"),
        r"a model of PyTorch \(Net\): .*Configuration",
    ),
    "own class of PyTorch": (lambda: of_module("__main__", TORCH), r"a model of PyTorch \(Net\)"),
    "Keras": (lambda: of_module("keras.src.models.sequential"), r"a model of Keras .*model\.save\('m\.keras'\)"),
    "TensorFlow": (lambda: of_module("tensorflow.python.module"), r"a model of TensorFlow"),
    "scikit-learn": (LogisticRegression, r"an estimator of scikit-learn \(LogisticRegression\): .*DL4JClassifier"),
    "its networks": (MLPClassifier, r"an estimator of scikit-learn \(MLPClassifier\)"),
    "XGBoost": (lambda: of_module("xgboost.sklearn"), r"a model of XGBoost, which is no network"),
    "a path": (lambda: "m.zip", r"not a path, 'm\.zip'; a file of a model is read by load_model"),
    "a class": (lambda: LogisticRegression, r"not the class LogisticRegression; give an object of it"),
    "nothing": (lambda: None, r"not NoneType; docs/networks\.md shows"),
    "something": (Mine, r"not Mine; docs/networks\.md shows"),
    "a part": (lambda: NeuralNetConfiguration(), r"not a NeuralNetConfiguration"),
    "layers": (lambda: [DenseLayer(n_out=3)], r"not list; docs"),
}


@pytest.mark.parametrize("name", OBJECTS)
@pytest.mark.parametrize("network", [MultiLayerNetwork, ComputationGraph])
def test_what_is_no_configuration_is_named_with_what_to_do(network: Any, name: str) -> None:
    make, expected = OBJECTS[name]
    with pytest.raises(ConfError, match=rf"{network.__name__} takes a \w+Configuration, and .*{expected}"):
        network(make())


def test_each_kind_of_network_names_the_other_one() -> None:
    layers = (DenseLayer(n_in=2, n_out=3), OutputLayer(n_out=2))
    with pytest.raises(ConfError, match=r"not a MultiLayerConfiguration, which is for MultiLayerNetwork"):
        ComputationGraph(MultiLayerConfiguration(layers=layers))  # type: ignore[arg-type]


class Bomb:
    """Runs a program when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise SystemExit('it was loaded')",)


def zipped(entries: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return content.getvalue()


def npz() -> bytes:
    content = io.BytesIO()
    np.savez(content, x=np.zeros(3))
    return content.getvalue()


FILES: dict[str, tuple[bytes, str]] = {
    "m.pt": (
        zipped({"m/data.pkl": pickle.dumps(Bomb()), "m/version": b"3"}),
        r"a file of PyTorch: .*neither",
    ),
    "s.pt": (
        zipped({"s/data.pkl": b"", "s/constants.pkl": b"", "s/code/a.py": b""}),
        r"a file of PyTorch \(Torch",
    ),
    "old.pth": (pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(Bomb(), 2), r"a file of PyTorch: "),
    "m.pkl": (pickle.dumps(Bomb()), r"a pickle: .*would run as a program"),
    "sk.pkl": (pickle.dumps(LogisticRegression()), r"a pickle, with an object of scikit-learn: .*DL4JClassifier"),
    "sk.joblib": (b"x\x9c packed", r"a file of joblib, a pickle"),
    "m.tflite": (b"\x1c\0\0\0TFL3", r"a file of TensorFlow Lite"),
    "m.gguf": (b"GGUF\3\0\0\0", r"a GGUF file"),
    "lgb.txt": (b"tree\nversion=v4\n", r"a file of LightGBM, whose models are no networks"),
    "xgb.json": (b'{"learner":{}}', r"a file of XGBoost"),
    "w.npz": (npz(), r"a file of NumPy arrays, which are data"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_program_is_named_and_not_loaded(tmp_path: Path, name: str) -> None:
    content, expected = FILES[name]
    (tmp_path / name).write_bytes(content)
    for read in (load_model, lambda path: convert_model(str(path), str(tmp_path / "out.zip"))):
        with pytest.raises(ModelError, match=rf"{name} is unusable: it is {expected}"):
            read(tmp_path / name)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("saved_model.pb", "variables"), "a SavedModel of TensorFlow: .*m.keras"),
        (("checkpoint", "model.ckpt-1.index"), "a checkpoint of TensorFlow"),
        (("config.json", "model.safetensors"), "a model of Hugging Face's transformers"),
    ],
)
def test_a_folder_of_another_program_is_named(tmp_path: Path, names: tuple[str, ...], expected: str) -> None:
    for name in names:
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(ModelError, match=rf"is no run's folder: it is {expected}"):
        load_model(tmp_path)
