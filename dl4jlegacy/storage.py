"""Where a path may also be ``s3://bucket/key``: models, checkpoints, data sets. Below launch, runner and command line.

Nothing of AWS is imported for a path of this machine.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dl4jlegacy.errors import CheckpointError
from dl4jlegacy.scaleout.checkpoint import CheckpointStore

__all__ = ["absolute", "find_conf", "is_remote", "local", "open_checkpoints", "written"]

_SCHEME = "s3://"


def is_remote(path: str) -> bool:
    """Whether a path is one in S3."""
    return path.startswith(_SCHEME)


def absolute(path: str) -> str:
    """Return a path so that it means the same from any folder; an empty one as it is."""
    return path if not path or is_remote(path) else str(Path(path).expanduser().absolute())


def local(path: str) -> str:
    """Return the path of a copy on this machine: of an object, or of all objects below a prefix.

    Raises:
        DataError: there is nothing there. CloudError and its like: what AWS says.
    """
    if not is_remote(path):
        return path
    from dl4jlegacy.aws.s3_cache import fetch

    return str(fetch(path))


def open_checkpoints(folder: str, *, keep: int, seed: int) -> CheckpointStore:
    """Return the saver of a run's checkpoints in a folder, or below a prefix in S3."""
    if not is_remote(folder):
        return CheckpointStore(Path(folder), keep=keep, seed=seed)
    from dl4jlegacy.aws.model_saver import S3ModelSaver

    return S3ModelSaver.at(folder, keep=keep, seed=seed)


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
    path = Path(folder).expanduser() / "conf.json"
    return path if path.is_file() else None


@contextlib.contextmanager
def written(path: str) -> Iterator[Path]:
    """Give a file of this machine to write, and upload it at the end if ``path`` is in S3, unless something is raised.

    That the place can be written to is found out at the beginning.
    """
    if not is_remote(path):
        yield Path(path).expanduser()
        return
    from dl4jlegacy.aws.s3_cache import open_upload

    target = open_upload(path)
    with tempfile.TemporaryDirectory(prefix="dl4j-out-") as folder:
        file = Path(folder, "model.zip")
        yield file
        target(file)
