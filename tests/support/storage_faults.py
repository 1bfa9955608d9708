"""Faults of a run's folder while it is in use; a test begins and ends each."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.persistence.checkpoint import CheckpointStore, RunIdentity
from dl4jlegacy.storage.folders import LocalFolder
from tests.scaleout.test_checkpoint import frame, head

__all__ = ["FAULTS", "StorageFault"]

_SAVE = CheckpointStore.save
THEIRS = Conf(run="theirs", incarnation="f" * 16)


class StorageFault:
    """A fault of one folder. Modes do not restrict root, so the file system's errors are simulated.

    Attributes:
        kept: what another run has in the folder, if that is the fault.
    """

    def __init__(self, kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kind, self._folder, self._is_on = kind, folder, False
        self._aside = folder.with_name(f"{folder.name}-aside")
        self.kept: dict[str, bytes] = {}
        for method in ("write", "delete", "append", "lock"):
            self._refuse(monkeypatch, method, {"read-only": errno.EROFS, "away": errno.ESTALE})
        for method in ("names", "read", "read_lines", "read_new_lines"):
            self._refuse(monkeypatch, method, {"away": errno.ESTALE})

    def _refuse(self, monkeypatch: pytest.MonkeyPatch, method: str, errors: dict[str, int]) -> None:
        real: Callable[..., Any] = getattr(LocalFolder, method)

        def call(this: LocalFolder, *args: Any, **more: Any) -> Any:
            if self._is_on and this.path == self._folder and self.kind in errors:
                raise OSError(errors[self.kind], f"it is {self.kind}")
            return real(this, *args, **more)

        monkeypatch.setattr(LocalFolder, method, call)

    def begin(self) -> None:
        self._is_on = True
        if self.kind == "a file":
            self._folder.rename(self._aside)
            self._folder.write_text("a file in its place")
        elif self.kind in ("deleted", "another run's"):
            shutil.rmtree(self._folder)
        if self.kind == "another run's":
            theirs = CheckpointStore(self._folder, keep=9, owner=RunIdentity.of(THEIRS))
            theirs.keep_conf(THEIRS)
            for version in (1, 2, 3):
                _SAVE(theirs, head(version), frame(version))
            theirs.release()
            self.kept = self.contents()

    def contents(self) -> dict[str, bytes]:
        return {each.name: each.read_bytes() for each in self._folder.iterdir()}

    def end(self) -> None:
        self._is_on = False
        if self.kind == "a file":
            self._folder.unlink()
            self._aside.rename(self._folder)
        elif self.kind == "another run's":
            assert self.contents() == self.kept
            shutil.rmtree(self._folder)


FAULTS = ("read-only", "away", "a file", "deleted", "another run's")
