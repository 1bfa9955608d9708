"""A model as one safetensors file: named arrays for any reader of the format, and all other data in the header.

Tensors are the parameters, with the names of ``param_table`` (``0_W``, ``0_b``), and ``updaterState``, a vector. The
header's metadata have one key, ``dl4jlegacy``: the JSON of the entry with that name in a model zip. It contains
``sha256``, a digest of that JSON and all tensors, since the format itself has no checksum. Deeplearning4j does not read
this format.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import safetensors
import safetensors.numpy

from dl4jlegacy.arrays.backend import Array, to_host
from dl4jlegacy.errors import ModelError
from dl4jlegacy.nn.networks import Network
from dl4jlegacy.system import files
from dl4jlegacy.system.strict_json import to_json

__all__ = ["OWN", "SUFFIX", "UPDATER_STATE", "SafetensorsFile", "digest", "is_safetensors", "write_safetensors"]

OWN: Final = "dl4jlegacy.json"
"""The file's only entry besides its arrays, by the name of the entry in a zip."""

SUFFIX: Final = ".safetensors"
UPDATER_STATE: Final = "updaterState"
_KEY: Final = "dl4jlegacy"
_DIGEST: Final = "sha256"


def is_safetensors(begin: bytes) -> bool:
    """Return whether a file with this beginning is a safetensors file: the header's length, then a JSON object."""
    return len(begin) > 8 and begin[8:9] == b"{" and begin[4:8] == bytes(4)


def write_safetensors(network: Network, path: Path, own: dict[str, Any], *, save_updater: bool) -> None:
    """Write parameters, updater state and ``own`` to ``path``; an existing file is replaced atomically.

    Raises:
        ModelError: the file cannot be written.
    """
    params, state = to_host(network.params), to_host(network.updater_state)
    spans = zip(network.param_table, network.layout.spans, strict=True)
    tensors = {name: np.ascontiguousarray(span.view(params)) for name, span in spans}
    if save_updater and state.size:
        tensors[UPDATER_STATE] = state
    header = to_json(own | {_DIGEST: digest(own, tensors)}, sort_keys=True)
    content = safetensors.numpy.save(tensors, {_KEY: header})
    with (
        files.errors_as(ModelError, f"model file {path} cannot be written", "choose a writable place"),
        files.replacing(path) as file,
    ):
        file.write(content)


def digest(own: Mapping[str, Any], tensors: Mapping[str, Array]) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal digits."""
    found = hashlib.sha256(to_json(own, sort_keys=True).encode())
    for name in sorted(tensors):
        found.update(name.encode())
        found.update(np.ascontiguousarray(tensors[name]).data)
    return found.hexdigest()


class SafetensorsFile:
    """An open file, with the interface of a model zip for all data but arrays."""

    def __init__(self, file: Any, own: str) -> None:
        self._file, self._own = file, own
        self._names = set(file.keys())

    @classmethod
    @contextlib.contextmanager
    def opened(cls, path: Path) -> Iterator[SafetensorsFile]:
        """Open the file; any error in it becomes a ``ModelError`` without the file's name."""
        try:
            with safetensors.safe_open(path, framework="np") as file:
                own, names = (file.metadata() or {}).get(_KEY), file.keys()
                if own is None:
                    raise ModelError(
                        f"it is a safetensors file without {_KEY!r} in its header, which says what network its arrays "
                        "are of, as PyTorch's programs write them: describe the same layers in a "
                        "MultiLayerConfiguration, and train that; write_model writes files that are read here"
                    )
                _check(own, {name: file.get_tensor(name) for name in names})
                yield cls(file, own)
        except safetensors.SafetensorError as exc:
            raise ModelError(f"it is truncated, corrupt or no safetensors file ({exc})") from exc

    def namelist(self) -> list[str]:
        """Return the names of the entries: there is one."""
        return [OWN]

    def open(self, name: str) -> BinaryIO:
        """Return a stream of an entry's bytes."""
        assert name == OWN
        return io.BytesIO(self._own.encode())

    @property
    def has_updater(self) -> bool:
        """Whether the updater's state was saved."""
        return UPDATER_STATE in self._names

    def params(self, names: Mapping[str, Any], spans: Any, size: int) -> Array:
        """Return the flat vector of the parameters ``names``, whose places in it are ``spans``."""
        flat = np.empty(size, np.float64)
        for name, span in zip(names, spans, strict=True):
            span.view(flat)[...] = self._array(name, span.shape)
        return flat

    def updater_state(self, size: int) -> Array:
        """Return the updater's state, a vector of ``size``."""
        return self._array(UPDATER_STATE, (size,))

    def _array(self, name: str, shape: tuple[int, ...]) -> Array:
        if name not in self._names:
            raise ModelError(f"tensor {name!r} is missing; the configuration in the header needs it")
        found = tuple(self._file.get_slice(name).get_shape())
        if found != shape:
            raise ModelError(f"tensor {name!r} has shape {found}, the configuration in the header needs {shape}")
        array: Array = self._file.get_tensor(name)
        if array.dtype.kind != "f":
            raise ModelError(f"tensor {name!r} holds {array.dtype}; parameters are floating-point numbers")
        if not (math.prod(shape) == 0 or np.isfinite(array).all()):
            raise ModelError(f"tensor {name!r} holds NaN or infinity: the model had diverged when it was saved")
        return array


def _check(own: str, tensors: Mapping[str, Array]) -> None:
    """Raise ``ModelError`` unless header and tensors match the digest."""
    try:
        said = json.loads(own)
        is_right = said.pop(_DIGEST) == digest(said, tensors)
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as exc:
        raise ModelError(f"{_KEY!r} in its header is not JSON with the key {_DIGEST!r}: {exc}") from exc
    if not is_right:
        raise ModelError(f"its header and tensors do not match the {_DIGEST} that was written with them")
