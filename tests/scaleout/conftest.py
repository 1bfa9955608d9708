"""Fixtures of the tests of runs."""

from __future__ import annotations

import threading

import pytest

from dl4jlegacy.scaleout.actors import MasterActor, ModelSavingActor, SaveModel
from dl4jlegacy.scaleout.protocol import NewModel


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A master that waits with the next round until the version before is saved.

    Others leave versions out while a checkpoint is being written, which on a slow disk may be all of a short run.
    """
    saved = threading.Event()
    saved.set()
    new_model, receive = MasterActor._new_model, ModelSavingActor.receive

    def wait(self: MasterActor, event: NewModel) -> None:
        assert saved.wait(30)
        saved.clear()
        self._checkpoints.is_saving = False
        new_model(self, event)
        if not self._checkpoints.is_saving:  # this one is not to be saved
            saved.set()

    def save(self: ModelSavingActor, message: SaveModel) -> None:
        receive(self, message)
        saved.set()

    monkeypatch.setattr(MasterActor, "_new_model", wait)
    monkeypatch.setattr(ModelSavingActor, "receive", save)
