"""Recognises objects, files and folders of other frameworks, and says how to use them here.

Nothing is loaded, unpickled or imported: an object is recognised by the modules of its classes, a file by its first
bytes and the names in it.
"""

from __future__ import annotations

import contextlib
import os
import zipfile

from dl4jlegacy.errors import ConfError
from dl4jlegacy.system import files

__all__ = ["check_configuration", "foreign_file"]

_PYTORCH = (
    "dl4jlegacy neither loads nor runs it: describe the same layers in a MultiLayerConfiguration or a Conf's file and "
    "train that; weights of one's own go into network.param_table, those of a dense layer transposed"
)
_KERAS = "save it with model.save('m.keras'), and read that with KerasModelImport or `dl4j export m.keras --out m.zip`"
_SKLEARN = (
    "train an estimator of dl4jlegacy.sklearn on the same data, DL4JClassifier or DL4JRegressor, which are networks"
)
_PICKLE = "what is in it would run as a program when it is loaded, so nothing here does; save the model in another form"
_OTHER = "dl4jlegacy does not read it: describe the same layers in a MultiLayerConfiguration, and train that"
_SAVED_MODEL = "load it there, and save it as m.keras, which `dl4j export m.keras --out m.zip` reads"
_OBJECTS = {  # keys: the first part of a module's name
    "torch": ("a model of PyTorch", _PYTORCH),
    "torchvision": ("a model of PyTorch", _PYTORCH),
    "transformers": ("a model of Hugging Face's transformers", _PYTORCH),
    "keras": ("a model of Keras", _KERAS),
    "tf_keras": ("a model of Keras", _KERAS),
    "tensorflow": ("a model of TensorFlow", _KERAS),
    "sklearn": ("an estimator of scikit-learn", _SKLEARN),
    "xgboost": ("a model of XGBoost, which is no network", _OTHER),
    "lightgbm": ("a model of LightGBM, which is no network", _OTHER),
    "catboost": ("a model of CatBoost, which is no network", _OTHER),
    "flax": ("a model of Flax", _OTHER),
    "haiku": ("a model of Haiku", _OTHER),
    "equinox": ("a model of Equinox", _OTHER),
    "paddle": ("a model of PaddlePaddle", _OTHER),
    "mxnet": ("a model of MXNet", _OTHER),
    "onnx": ("an ONNX model, a form that is written here and not read", _OTHER),
    "onnxruntime": ("an ONNX model, a form that is written here and not read", _OTHER),
}
_OLD_PYTORCH = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # a pickled number: the magic number of old files
_READ = 1 << 16


def check_configuration(network: str, given: object, expected: type) -> None:
    """Raise ``ConfError`` if ``given`` is not a configuration of this network's kind; the message says what it is."""
    if isinstance(given, expected):
        return
    kind = type(given).__name__
    wanted = f"{network} takes a {expected.__name__}"
    if isinstance(given, type):
        raise ConfError(f"{wanted}, and not the class {given.__name__}; give an object of it")
    if isinstance(given, (str, os.PathLike)):
        raise ConfError(f"{wanted}, and not a path, {os.fspath(given)!r}; a file of a model is read by load_model")
    if kind.endswith("Configuration") and type(given).__module__.startswith("dl4jlegacy."):
        other = "ComputationGraph" if kind.startswith("Computation") else "MultiLayerNetwork"
        more = "" if hasattr(given, "network_outputs") or hasattr(given, "layers") else ", once it has its layers"
        raise ConfError(f"{wanted}, and not a {kind}, which is for {other}{more}")
    for module in (each.__module__.partition(".")[0] for each in type(given).__mro__):
        if module in _OBJECTS:
            what, remedy = _OBJECTS[module]
            raise ConfError(f"{wanted}, and not {what} ({kind}): {remedy}")
    raise ConfError(f"{wanted}, and not {kind}; docs/networks.md shows how to write one")


def foreign_file(path: str | os.PathLike[str]) -> str:
    """Return a description of another framework's file or folder, and what to do; "" if it is not recognised."""
    with contextlib.suppress(OSError):
        place = files.expand(path)
        if files.is_folder(place):
            return _in_folder(set(files.names_in(place)))
        with files.open_to_read(place) as file:
            begin = file.read(_READ)
            if begin.startswith(b"PK\3\4"):
                with contextlib.suppress(zipfile.BadZipFile, ValueError, NotImplementedError, UnicodeDecodeError):
                    file.seek(0)
                    return _in_zip(zipfile.ZipFile(file).namelist())
                return ""
            return _beginning(begin, place.suffix.lower())
    return ""


def _in_zip(names: list[str]) -> str:
    if any(name.rpartition("/")[2] == "data.pkl" for name in names):
        is_script = any(name.rpartition("/")[2] == "constants.pkl" for name in names)
        return f"it is a file of PyTorch{' (TorchScript)' if is_script else ''}: {_PYTORCH}"
    if names and all(name.endswith(".npy") for name in names):
        return "it is a file of NumPy arrays, which are data or weights and no model; give them as --dataset"
    return ""


def _beginning(begin: bytes, ending: str) -> str:
    """Return the description of a file that is not a zip, from its first bytes; "" if it is not recognised."""
    if begin.startswith(_OLD_PYTORCH):
        return f"it is a file of PyTorch: {_PYTORCH}"
    if begin[:1] == b"\x80" and begin[1:2] in (b"\2", b"\3", b"\4", b"\5"):
        for word, what in ((b"sklearn", "scikit-learn"), (b"torch", "PyTorch"), (b"keras", "Keras")):
            if word in begin:
                remedy = {"scikit-learn": _SKLEARN, "PyTorch": _PYTORCH, "Keras": _KERAS}[what]
                return f"it is a pickle, with an object of {what}: {_PICKLE}; {remedy}"
        return f"it is a pickle: {_PICKLE}"
    if ending == ".joblib":
        return f"it is a file of joblib, a pickle in another wrapper: {_PICKLE}; {_SKLEARN}"
    if begin[4:8] == b"TFL3":
        return f"it is a file of TensorFlow Lite; of the model that it was made of: {_KERAS}"
    if begin.startswith(b"GGUF"):
        return f"it is a GGUF file, of a language model: {_OTHER}"
    if begin.startswith(b"tree\nversion="):
        return f"it is a file of LightGBM, whose models are no networks: {_OTHER}"
    if begin[:100].lstrip().startswith((b'{"learner"', b"{L\0\0\0\0\0\0\7learner")) or b"learner" in begin[:24]:
        return f"it is a file of XGBoost, whose models are no networks: {_OTHER}"
    return ""


def _in_folder(names: set[str]) -> str:
    if names & {"saved_model.pb", "saved_model.pbtxt"}:
        return f"it is a SavedModel of TensorFlow: {_SAVED_MODEL}"
    if "checkpoint" in names and any(name.endswith(".index") for name in names):
        return f"it is a checkpoint of TensorFlow: {_SAVED_MODEL}"
    if "config.json" in names and any(name.startswith(("pytorch_model", "model.safetensors")) for name in names):
        return f"it is a model of Hugging Face's transformers: {_PYTORCH}"
    if "MLmodel" in names:
        return f"it is a model of MLflow: {_OTHER}"
    return ""
