"""Opens a run's folder, local or below a prefix in S3: checkpoints, history, statistics and Conf."""

from __future__ import annotations

from pathlib import Path

from dl4jlegacy.errors import CheckpointError
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.monitoring.stats import StatsFile, TrainingStats
from dl4jlegacy.scaleout.persistence.checkpoint import CheckpointStore, RunIdentity
from dl4jlegacy.scaleout.persistence.history import HistoryEntry, HistoryFile
from dl4jlegacy.scaleout.persistence.own_folder import OwnFolder
from dl4jlegacy.storage.folders import LinesFolder, LocalFolder
from dl4jlegacy.storage.paths import is_remote, open_folder
from dl4jlegacy.system import files

__all__ = ["find_conf", "open_checkpoints", "open_lines", "read_history", "read_stats"]


def open_lines(conf: Conf) -> LinesFolder | None:
    """Return a run's folder for appended files, writable as long as the run owns it; None if the run has no folder."""
    return OwnFolder(open_folder(conf.checkpoint_dir), conf.incarnation) if conf.checkpoint_dir else None


def open_checkpoints(folder: str, *, keep: int = 3, owner: RunIdentity | None = None) -> CheckpointStore:
    """Return a run's checkpoints in a folder, or below a prefix in S3; arguments as for ``CheckpointStore``."""
    return CheckpointStore(open_folder(folder), keep=keep, owner=owner)


def read_history(folder: str | Path) -> list[HistoryEntry]:
    """Return the versions of a run's model, from its checkpoint folder, local or in S3.

    Raises:
        CheckpointError: there is no history, or it cannot be read. CloudError and its like: errors reported by AWS.
    """
    return HistoryFile(open_folder(str(folder))).read()


def read_stats(place: str | Path) -> TrainingStats:
    """Return the statistics of a run, from its checkpoint folder, local or in S3, or from a file.

    From a truncated file, the complete lines are returned, with the number of damaged ones.

    Raises:
        CheckpointError: there are none, or they cannot be read. CloudError and its like: errors reported by AWS.
    """
    if not is_remote(str(place)):
        with files.errors_as(CheckpointError, f"{place} cannot be looked into"):
            path = files.expand(place)
            if files.kind_of(path) is None:
                raise CheckpointError(f"{path}: there is nothing of that name; give what --checkpoint-dir was")
            if not files.is_folder(path):
                return StatsFile.read_alone(path)
    return StatsFile(open_folder(str(place))).read()


def find_conf(folder: str) -> bytes | None:
    """Return the ``conf.json`` beside a run's checkpoints; None if a local folder has none.

    Raises:
        CheckpointError: the folder cannot be read, or is in S3 and has none. CloudError and its like: errors reported
            by AWS.
    """
    if is_remote(folder):
        try:
            return open_folder(folder).read("conf.json")
        except FileNotFoundError as exc:
            raise CheckpointError(f"{folder} holds no run: {exc}; give what --checkpoint-dir was") from exc
    with files.errors_as(CheckpointError, f"{folder} cannot be looked into"):
        try:
            return LocalFolder(folder).read("conf.json")
        except (FileNotFoundError, NotADirectoryError):
            return None
