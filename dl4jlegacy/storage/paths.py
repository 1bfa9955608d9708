"""Paths as users give them: of this machine, ``s3://bucket/key``, or ``https://host/name`` for what is only read.

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
"""The ending of files that only answer; model files can be trained on."""

_SCHEME = "s3://"


def is_remote(path: str) -> bool:
    """Whether a path is one in S3, or of the Web."""
    return path.startswith(_SCHEME) or is_web(path)


def absolute(path: str) -> str:
    """Return a path so that it means the same from any folder; an empty one as it is."""
    return path if not path or is_remote(path) else str(_expand(path).absolute())


def _expand(path: str) -> Path:
    with files.errors_as(ConfError, f"path {path!r}"):
        return files.expand(path)


def local(path: str) -> str:
    """Return the path of a copy on this machine: of an object, of all objects below a prefix, or of a file of the Web.

    Raises:
        DataError: there is nothing there. DownloadError: not now. CloudError and its like: what AWS says.
    """
    if is_web(path):
        return str(fetch_file(path))
    if not is_remote(path):
        return path
    from dl4jlegacy.storage.s3.cache import fetch

    return str(fetch(path))


def remote_versions(path: str) -> S3Versions | None:
    """Return what tells whether a path in S3 has changed; None for one of this machine, and of the Web.

    Raises:
        ConfError: it is no path in S3.
    """
    if not path.startswith(_SCHEME):
        return None
    from dl4jlegacy.storage.s3.cache import S3Versions

    return S3Versions(path)


def open_folder(path: str) -> Folder:
    """Return the folder of a run: one of this machine, or below a prefix in S3. Looks at nothing there yet.

    Raises:
        ConfError: it can be none.
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
    """Where a model is to go: a file of this machine, or an object in S3, to which ``_upload`` brings a file."""

    place: str
    _upload: Callable[[Path], None] | None = None

    def save(self, write: Callable[[Path], None]) -> None:
        """Save with ``write``, which is given the path of a file; raises what that and the upload raise."""
        if self._upload is None:
            write(Path(self.place))
            return
        with tempfile.TemporaryDirectory(prefix="dl4j-out-") as folder:
            file = Path(folder, "model").with_suffix(Path(self.place).suffix)  # which says what is written
            write(file)
            self._upload(file)

    def save_or_keep(self, write: Callable[[Path], None]) -> tuple[str, ModelError | None]:
        """Save, or else write a file in the current or the temporary folder; return where, and the error if elsewhere.

        Hours of training must not be lost because a disk is full at their end.
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
    """Write a model to a file in the current or the temporary folder; return which, "" if neither takes it."""
    for folder in (os.curdir, tempfile.gettempdir()):
        with contextlib.suppress(OSError, ModelError):
            kept = Path(folder).absolute() / f"dl4j-model-{uuid.uuid4().hex[:8]}.zip"
            write(kept)
            return str(kept)
    return ""


def is_onnx(path: str) -> bool:
    """Return whether a model's file is one of ONNX by its ending."""
    return path.lower().endswith(".onnx")


def open_model_output(path: str, *, takes_onnx: bool = False) -> Output:
    """Return the output of a model that ``path`` names; raises as ``open_output``, and for other libraries' kinds.

    ONNX is one of these unless ``takes_onnx``: no training goes on with it.
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
    """Return the output that ``path`` names, after it was tried whether it can be written.

    Raises:
        ModelError: there is no such folder, a file system that refuses, or no regular file to replace. CloudError and
            its like: what AWS says.
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
