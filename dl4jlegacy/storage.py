"""Where a path may also be ``s3://bucket/key``: models, checkpoints, data sets. Below launch, runner and command line.

Nothing of AWS is imported for a path of this machine.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dl4jlegacy import files
from dl4jlegacy.errors import CheckpointError, ConfError, Dl4jError, ModelError
from dl4jlegacy.scaleout.checkpoint import CheckpointStore, RunIdentity

__all__ = [
    "Output",
    "absolute",
    "check_on_cluster",
    "find_conf",
    "is_remote",
    "keep",
    "local",
    "open_checkpoints",
    "open_output",
]

_SCHEME = "s3://"


def is_remote(path: str) -> bool:
    """Whether a path is one in S3."""
    return path.startswith(_SCHEME)


def absolute(path: str) -> str:
    """Return a path so that it means the same from any folder; an empty one as it is."""
    return path if not path or is_remote(path) else str(_expand(path).absolute())


def check_on_cluster(folder: str) -> None:
    """Raise ``ConfError`` if the folder of a run on a cluster is in S3, where only a run of one process can have it."""
    if is_remote(folder):
        raise ConfError(
            f"--checkpoint-dir {folder}: a run on a cluster keeps checkpoints and journal in a folder that its masters "
            "share, and cannot keep them in S3; give such a folder, or none (its model can go to S3 all the same, with "
            "--out)"
        )


def _expand(path: str) -> Path:
    with files.errors_as(ConfError, f"path {path!r}"):
        return files.expand(path)


def local(path: str) -> str:
    """Return the path of a copy on this machine: of an object, or of all objects below a prefix.

    Raises:
        DataError: there is nothing there. CloudError and its like: what AWS says.
    """
    if not is_remote(path):
        return path
    from dl4jlegacy.aws.s3_cache import fetch

    return str(fetch(path))


def open_checkpoints(folder: str, *, keep: int, owner: RunIdentity | None = None) -> CheckpointStore:
    """Return the saver of a run's checkpoints in a folder, or below a prefix in S3; arguments as for that class."""
    if not is_remote(folder):
        return CheckpointStore(Path(folder), keep=keep, owner=owner)
    from dl4jlegacy.aws.model_saver import S3ModelSaver

    return S3ModelSaver.at(folder, keep=keep, owner=owner)


def find_conf(folder: str) -> Path | None:
    """Return the ``conf.json`` beside a run's checkpoints, or a copy of it on this machine; None if there is none.

    Raises:
        CheckpointError: the folder is in S3, and has none. CloudError and its like: what AWS says.
    """
    if is_remote(folder):
        from dl4jlegacy.aws.s3_cache import fetch
        from dl4jlegacy.errors import DataError

        try:
            return Path(fetch(f"{folder.rstrip('/')}/conf.json"))
        except DataError as exc:
            raise CheckpointError(f"{folder} holds no run: {exc}; give what --checkpoint-dir was") from exc
    with files.errors_as(CheckpointError, f"{folder} cannot be looked into"):
        path = files.expand(folder) / "conf.json"
        return path if files.is_file(path) else None


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
            file = Path(folder, "model.zip")
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


def open_output(path: str) -> Output:
    """Return the output that ``path`` names, after it was tried whether it can be written.

    Raises:
        ModelError: there is no such folder, a file system that refuses, or no regular file to replace. CloudError and
            its like: what AWS says.
    """
    if is_remote(path):
        from dl4jlegacy.aws.s3_cache import open_upload

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
