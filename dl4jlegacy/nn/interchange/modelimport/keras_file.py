"""Keras files: the network's description and its weights, from HDF5 (``.h5``) and ``.keras``.

A ``.keras`` file is a zip of ``config.json``, ``metadata.json`` and ``model.weights.h5``; an ``.h5`` file has the
description in the attribute ``model_config`` and the weights below ``model_weights``. Nothing in a file is executed,
and no link to another file is followed.
"""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import re
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import Dl4jError, ModelError
from dl4jlegacy.nn.interchange.entries import MAX_JSON_BYTES, json_object, read_entry
from dl4jlegacy.system import files

__all__ = ["KerasFile", "is_keras", "opened", "read_array"]

_HDF5: Final = b"\x89HDF\r\n\x1a\n"
_HEAP: Final = b"GCOL\x01\0\0\0"
_OBJECT: Final = struct.Struct("<H6xQ")
_CONFIG: Final = "config.json"
_METADATA: Final = "metadata.json"
_WEIGHTS: Final = "model.weights.h5"
_MAX_BYTES: Final = 4 << 30
_PARTS: Final = ("vars", "cell/vars", "layer/vars", "forward_layer/cell/vars", "backward_layer/cell/vars")
"""Places of a layer's arrays below its group in ``.keras`` files, in the order of the layer's weights."""


def is_keras(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is a Keras file, by its content; False for an unreadable file."""
    with contextlib.suppress(OSError, ModelError), files.open_to_read(files.expand(path)) as file:
        if file.read(len(_HDF5)) == _HDF5:
            return True
        with files.damage_as(ModelError, str(path)), zipfile.ZipFile(file) as archive:
            return {_CONFIG, _METADATA} <= set(archive.namelist())
    return False


def import_h5py() -> ModuleType:
    """Return the library ``h5py``; if it is missing, raise ``ModelError`` with the install command."""
    try:
        import h5py
    except ImportError as exc:
        raise ModelError("files of Keras need the library h5py: install it with ./install keras") from exc
    found: ModuleType = h5py
    return found


@dataclass(frozen=True)
class KerasFile:
    """An open file.

    Attributes:
        config: the description of the model: ``class_name`` and ``config``.
        training: loss and optimizer as named in the file; empty if the model was not compiled.
        version: the Keras version that wrote the file; "" if unknown.
        weights: ``weights(layer, kind)`` returns the arrays of a layer, not yet read, in the order of its ``weights``.
    """

    config: Mapping[str, Any]
    training: Mapping[str, Any]
    version: str
    weights: Callable[[str, str], list[Any]]


@contextlib.contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[KerasFile]:
    """Open a file; any error in the file becomes a ``ModelError`` that names it."""
    h5py = import_h5py()
    try:
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(files.open_to_read(files.expand(path)))
            begin = file.read(len(_HDF5))
            file.seek(0)
            if begin == _HDF5:
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                    _check_heaps(content)
                yield _of_hdf5(stack.enter_context(h5py.File(file, "r")))
            else:
                yield _of_zip(h5py, stack, stack.enter_context(zipfile.ZipFile(file)))
    except FileNotFoundError as exc:
        raise ModelError(f"model file {path} does not exist") from exc
    except zipfile.BadZipFile as exc:
        raise ModelError(f"{path} is no file of Keras, neither HDF5 nor a .keras zip ({exc})") from exc
    except Dl4jError as exc:
        raise ModelError(f"file of Keras {path} is unusable: {exc}") from exc
    except Exception as exc:  # h5py and zipfile raise exceptions of any type for damaged files
        raise ModelError(f"file of Keras {path} cannot be read ({type(exc).__name__}: {exc}); save it again") from exc


def _of_hdf5(file: Any) -> KerasFile:
    said = file.attrs.get("model_config")
    if said is None:
        raise ModelError("it has no attribute model_config: weights alone say no network; save the whole model")
    training = file.attrs.get("training_config")
    trained = {} if training is None else json_object(training, "training_config")
    version = file.attrs.get("keras_version", "")
    return KerasFile(
        json_object(said, "model_config"), trained, _text(version), _hdf_arrays(_group(file, "model_weights"))
    )


def _of_zip(h5py: ModuleType, stack: contextlib.ExitStack, archive: zipfile.ZipFile) -> KerasFile:
    names = set(archive.namelist())
    if missing := sorted({_CONFIG, _METADATA, _WEIGHTS} - names):
        raise ModelError(f"entry {missing[0]} is missing, so it is no .keras file; entries: {sorted(names)[:8]}")
    config = json_object(read_entry(archive, _CONFIG, MAX_JSON_BYTES), _CONFIG)
    metadata = json_object(read_entry(archive, _METADATA, MAX_JSON_BYTES), _METADATA)
    weights = read_entry(archive, _WEIGHTS, _MAX_BYTES)
    _check_heaps(weights)
    file = stack.enter_context(h5py.File(io.BytesIO(weights), "r"))
    training = config.get("compile_config") or {}
    return KerasFile(config, training, _text(metadata.get("keras_version", "")), _ZipArrays(file).of)


def _check_heaps(content: bytes | mmap.mmap) -> None:
    """Raise ``ModelError`` if reading a global heap of an HDF5 file would never end: HDF5 does not check that.

    A heap ("GCOL"; HDF5 File Format Specification, III.E) is a sequence of objects, each with a header of 16 bytes and
    its data. Object 0 is free space, whose size includes the header: with size 0 the next object is itself.
    """
    at = content.find(_HEAP)
    while at >= 0:
        place, end = at + 16, at + int.from_bytes(content[at + 8 : at + 16], "little")
        while place + 16 <= min(end, len(content)):
            number, nbytes = _OBJECT.unpack_from(content, place)
            if (not number and nbytes < 16) or nbytes > end - place:
                raise ModelError(f"its heap at byte {at} has an object of {nbytes} bytes at byte {place}: damaged")
            place += 16 + -(-nbytes // 8) * 8 if number else nbytes
        at = content.find(_HEAP, at + 1)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


# -- arrays ----------------------------------------------------------------------------------------------------------


def _member(group: Any, name: str) -> Any:
    """Return a member of a group that is stored in this file itself; None if there is none."""
    found = group
    for part in name.split("/"):
        if not hasattr(found, "keys") or part not in found:
            return None
        link = type(found.get(part, getlink=True)).__name__
        if link != "HardLink":
            raise ModelError(f"{found.name}/{part} is a {link}; nothing but what is in the file itself is read")
        found = found[part]
    return found


def _group(file: Any, name: str) -> Any:
    found = _member(file, name)
    if found is None:
        raise ModelError(f"group {name} is missing")
    return found


def _hdf_arrays(groups: Any) -> Callable[[str, str], list[Any]]:
    """Return a reader of the arrays below ``model_weights``: each layer has a group, with ``weight_names`` in order."""

    def weights(layer: str, kind: str) -> list[Any]:
        group = _member(groups, layer)
        names = [] if group is None else [_text(name) for name in group.attrs["weight_names"]]
        return [_checked(_member(group, name), f"{layer}/{name}") for name in names]

    return weights


class _ZipArrays:
    """Reader of the arrays below ``layers``, a group for each layer: ``dense``, the second one ``dense_1``, ..."""

    def __init__(self, file: Any) -> None:
        layers = _member(file, "layers")
        if layers is None:
            layers = _group(file, "_layer_checkpoint_dependencies")
        self._by_name: dict[str, Any] = {}
        self._by_place: dict[str, Any] = {}
        self._seen: dict[str, int] = {}
        for place in layers:
            group = _member(layers, place)
            own = _member(group, "vars")
            name = None if own is None else own.attrs.get("name")
            if name is not None:
                self._by_name[_text(name)] = group
            self._by_place[place] = group

    def of(self, layer: str, kind: str) -> list[Any]:
        snake = _snake(kind)
        number = self._seen.get(snake, 0)
        self._seen[snake] = number + 1
        group = self._by_name.get(layer)
        if group is None:
            group = self._by_place.get(f"{snake}_{number}" if number else snake)
        found = []
        for part in _PARTS:
            values = None if group is None else _member(group, part)
            numbers = [] if values is None else sorted(values, key=int)
            found += [_checked(_member(values, number), f"{layer}/{part}/{number}") for number in numbers]
        return found


def _snake(kind: str) -> str:
    """Return a class's name in Keras's file notation: ``MaxPooling2D`` is ``max_pooling2d``."""
    name = re.sub(r"\W+", "", kind)
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()


def _checked(dataset: Any, name: str) -> Any:
    """Return a numeric data set that is stored in this file itself; raises ``ModelError`` otherwise."""
    if dataset is None or not hasattr(dataset, "shape"):
        raise ModelError(f"array {name} is missing")
    if dataset.external or dataset.is_virtual:
        raise ModelError(f"array {name} lies in another file; nothing but what is in the file itself is read")
    return dataset


def read_array(dataset: Any, shape: Sequence[int], what: str) -> Array:
    """Return an array of floating-point numbers of the given shape; raises ``ModelError`` otherwise."""
    if tuple(dataset.shape) != tuple(shape):
        raise ModelError(f"{what} has shape {tuple(dataset.shape)}, its layer needs {tuple(shape)}")
    if dataset.dtype.kind != "f":
        raise ModelError(f"{what} holds {dataset.dtype}; weights are floating-point numbers")
    array: Array = np.asarray(dataset[()], np.float64)
    if not np.isfinite(array).all():
        raise ModelError(f"{what} holds NaN or infinity: the model had diverged when it was saved")
    return array
