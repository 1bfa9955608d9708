"""Paths as users write them: local paths, ``s3://bucket/key``, or ``https://host/name`` for read-only files.

boto3 is imported only for paths in S3.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dl4jlegacy.errors import ConfError, Dl4jError, ModelError
from dl4jlegacy.storage.folders import Folder, LocalFolder
from dl4jlegacy.storage.web import fetch_file, is_web, spoken
from dl4jlegacy.system import files

if TYPE_CHECKING:
    from dl4jlegacy.storage.s3.cache import S3Versions

__all__ = [
    "Output",
    "absolute",
    "is_onnx",
    "is_remote",
    "keep",
    "local",
    "open_folder",
    "open_model_output",
    "open_output",
    "remote_versions",
]

_FOREIGN = {
    ".h5": "Keras", ".hdf5": "Keras", ".keras": "Keras", ".pb": "TensorFlow", ".tflite": "TensorFlow",
    ".pt": "PyTorch", ".pth": "PyTorch", ".pkl": "Python's pickle", ".joblib": "joblib",
}  # fmt: skip
"""Endings of other libraries' model files, which cannot be written here; training continues from model files only."""

_SCHEME = "s3://"


def is_remote(path: str) -> bool:
    """Return whether a path is in S3 or on the Web."""
    return path.startswith(_SCHEME) or is_web(path)


def absolute(path: str) -> str:
    """Return a path that means the same from any folder; an empty path is returned unchanged."""
    return path if not path or is_remote(path) else str(_expand(path).absolute())


def _expand(path: str) -> Path:
    with files.errors_as(ConfError, f"path {path!r}"):
        return files.expand(path)


def local(path: str) -> str:
    """Return the path of a local copy of an object, of all objects below a prefix, or of a file on the Web.

    Local paths are returned unchanged.

    Raises:
        DataError: there is nothing there. DownloadError: the file is unavailable now. CloudError and similar: errors of
            AWS.
    """
    if is_web(path):
        return str(fetch_file(path))
    if not is_remote(path):
        return path
    from dl4jlegacy.storage.s3.cache import fetch

    return str(fetch(path))


def remote_versions(path: str) -> S3Versions | None:
    """Return an object that detects changes of a path in S3; None for a local or Web path.

    Raises:
        ConfError: an ``s3://`` path is invalid.
    """
    if not path.startswith(_SCHEME):
        return None
    from dl4jlegacy.storage.s3.cache import S3Versions

    return S3Versions(path)


def open_folder(path: str) -> Folder:
    """Return the folder of a run: a local one, or one below a prefix in S3. Does not access it yet.

    Raises:
        ConfError: the path cannot be a folder.
    """
    if is_web(path):
        raise ConfError(
            f"{spoken(path)} is of the Web, and no folder that can be kept: give one of this machine, or in S3"
        )
    if not is_remote(path):
        return LocalFolder(path)
    from dl4jlegacy.storage.s3.folder import S3Folder
    from dl4jlegacy.storage.s3.locations import Location

    return S3Folder(Location.parse(path))


@dataclass(frozen=True, slots=True)
class Output:
    """The destination of a model: a local file, or an object in S3, to which ``_upload`` copies a file."""

    place: str
    _upload: Callable[[Path], None] | None = None

    def save(self, write: Callable[[Path], None]) -> None:
        """Save with ``write``, which gets the path of a file; raises the errors of ``write`` and the upload."""
        if self._upload is None:
            write(Path(self.place))
            return
        with tempfile.TemporaryDirectory(prefix="dl4j-out-") as folder:
            file = Path(folder, "model").with_suffix(Path(self.place).suffix)  # the ending selects the format
            write(file)
            self._upload(file)

    def save_or_keep(self, write: Callable[[Path], None]) -> tuple[str, ModelError | None]:
        """Save, or else write a file in the current or temporary folder; return its place, and the error if elsewhere.

        Hours of training must not be lost because a disk is full at the end.
        """
        try:
            self.save(write)
        except Dl4jError as exc:
            kept = keep(write)
            if kept:
                return kept, ModelError(f"{exc}. The trained model is in {kept}: move it from there")
            return "", ModelError(f"{exc}. The current and the temporary folder refuse it, too: it is lost")
        return self.place, None


def keep(write: Callable[[Path], None]) -> str:
    """Write a model to a new file in the current or temporary folder; return its path, "" if neither works."""
    for folder in (os.curdir, tempfile.gettempdir()):
        with contextlib.suppress(OSError, ModelError):
            kept = Path(folder).absolute() / f"dl4j-model-{uuid.uuid4().hex[:8]}.zip"
            write(kept)
            return str(kept)
    return ""


def is_onnx(path: str) -> bool:
    """Return whether a model's file is ONNX by its ending."""
    return path.lower().endswith(".onnx")


def open_model_output(path: str, *, takes_onnx: bool = False) -> Output:
    """Return the output for a model at ``path``; raises as ``open_output``, and for formats of other libraries.

    ONNX is one of these formats unless ``takes_onnx``: training cannot continue from ONNX.
    """
    if is_onnx(path) and not takes_onnx:
        raise ModelError(
            f"{path} would be an ONNX file, with which no training goes on; choose a .zip or .safetensors for --out, "
            "and `dl4j export` makes an ONNX file of it"
        )
    library = _FOREIGN.get(Path(path).suffix.lower())
    if library is not None:
        raise ModelError(
            f"{path} would be a file of {library} by its ending, and no such file is written; give --out the ending "
            f".zip{', .safetensors or .onnx' if takes_onnx else ' or .safetensors'}"
        )
    return open_output(path)


def open_output(path: str) -> Output:
    """Return the output at ``path`` after testing that it can be written.

    Raises:
        ModelError: the folder does not exist, the file system refuses, or the path is no regular file. CloudError and
            similar: errors of AWS.
    """
    if is_web(path):
        raise ModelError(f"{spoken(path)} is of the Web, where nothing is written; choose another --out")
    if is_remote(path):
        from dl4jlegacy.storage.s3.cache import open_upload

        return Output(path, open_upload(path))
    with files.errors_as(ModelError, f"{path} cannot be written", "choose another --out"):
        place = files.expand(path)
        folder = place.absolute().parent
        if files.is_folder(place):
            raise ModelError(f"{place} is a folder; --out takes the name of a file, such as {place / 'model.zip'}")
        if not files.is_folder(folder):
            raise ModelError(
                f"{place} cannot be written: there is no folder {folder}; create it or choose another --out"
            )
        files.check_replaceable(place)
    return Output(str(place))
