"""``ModelSavingActor``: checkpoints while training continues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dl4jlegacy.scaleout.actors.actor import Actor
from dl4jlegacy.scaleout.actors.messages import Saved, SaveModel
from dl4jlegacy.scaleout.monitoring.outcome import Outcome
from dl4jlegacy.scaleout.persistence.run_folder import RunFolder
from dl4jlegacy.scaleout.phases import NO_PHASES, Phases
from dl4jlegacy.scaleout.state.records import Head
from dl4jlegacy.scaleout.state.store import Buffer

__all__ = ["ModelSavingActor"]


class ModelSavingActor(Actor):
    """Saves model versions while training continues; failing to save one is only a warning.

    Args:
        outcome: of the run.
        folder: of the run.
        keep: a saver of the user's program, which also receives the versions.
        phases: records the activity of this thread.
    """

    def __init__(
        self,
        outcome: Outcome,
        folder: RunFolder,
        keep: Callable[[Head, Buffer], None] | None = None,
        phases: Phases = NO_PHASES,
    ) -> None:
        super().__init__(outcome)
        self._folder, self._keep, self._phases = folder, keep, phases

    def receive(self, message: Any) -> None:
        """Save a version; after the last one, end the run."""
        if not isinstance(message, SaveModel):
            raise TypeError(f"ModelSavingActor does not know the message {message!r}")
        event = message.event
        if self._folder.keeps:
            with self._phases.phase("MasterCheckpoint", (event.head.round - 1, None)):
                self._folder.keep(event.head, event.frame, event.best, event.states)
        if self._keep is not None:
            self._keep(event.head, event.frame)
        if message.reply_to.is_alive():
            message.reply_to.tell(Saved())
        if event.last:
            if self._folder.failed > 1:
                self._outcome.warn(f"{self._folder.failed} checkpoints in a row, up to the last, could not be written")
            self._outcome.end(event.head, event.frame, event.best)
