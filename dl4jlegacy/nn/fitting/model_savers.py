"""Model savers: storage of the best and the newest model in early stopping.

Legacy: ``org.deeplearning4j.earlystopping.saver``: ``InMemoryModelSaver``, ``LocalFileModelSaver`` and
``LocalFileGraphSaver`` (one class here, since a file contains the kind of its network).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from dl4jlegacy.errors import ModelError
from dl4jlegacy.nn.interchange.dl4j.serializer import restore_model, write_model
from dl4jlegacy.nn.networks import Network

__all__ = ["InMemoryModelSaver", "LocalFileModelSaver", "ModelSaver"]


class ModelSaver(Protocol):
    """Keeps two models."""

    def save_best_model(self, network: Network, score: float) -> None:
        """Keep ``network`` as the best one."""

    def save_latest_model(self, network: Network, score: float) -> None:
        """Keep ``network`` as the newest one."""

    def best_model(self) -> Network | None:
        """Return the best model, None if there is none."""

    def latest_model(self) -> Network | None:
        """Return the newest model, None if there is none."""


class InMemoryModelSaver:
    """Keeps copies in memory."""

    def __init__(self) -> None:
        self._best: Network | None = None
        self._latest: Network | None = None

    def save_best_model(self, network: Network, score: float) -> None:
        """See ``ModelSaver``."""
        self._best = network.clone()

    def save_latest_model(self, network: Network, score: float) -> None:
        """See ``ModelSaver``."""
        self._latest = network.clone()

    def best_model(self) -> Network | None:
        """See ``ModelSaver``."""
        return self._best

    def latest_model(self) -> Network | None:
        """See ``ModelSaver``."""
        return self._latest

    def __repr__(self) -> str:
        return "InMemoryModelSaver()"


class LocalFileModelSaver:
    """Keeps ``bestModel.zip`` and ``latestModel.zip`` in a folder; each is replaced atomically.

    Args:
        folder: created if missing; models already in the folder are available.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise ModelError(f"folder {folder} cannot be made: {exc.strerror or exc}; choose another one") from exc

    def save_best_model(self, network: Network, score: float) -> None:
        """See ``ModelSaver``; raises ``ModelError`` if the file cannot be written."""
        write_model(network, self.folder / "bestModel.zip")

    def save_latest_model(self, network: Network, score: float) -> None:
        """See ``ModelSaver``; raises ``ModelError`` if the file cannot be written."""
        write_model(network, self.folder / "latestModel.zip")

    def best_model(self) -> Network | None:
        """See ``ModelSaver``."""
        return self._read("bestModel.zip")

    def latest_model(self) -> Network | None:
        """See ``ModelSaver``."""
        return self._read("latestModel.zip")

    def _read(self, name: str) -> Network | None:
        path = self.folder / name
        return restore_model(path) if path.exists() else None

    def __repr__(self) -> str:
        return f"LocalFileModelSaver({str(self.folder)!r})"
