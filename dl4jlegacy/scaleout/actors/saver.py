"""``ModelSavingActor``: checkpoints while training continues."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from dl4jlegacy.errors import Dl4jError
from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.actors.actor import Actor
from dl4jlegacy.scaleout.actors.messages import Saved, SaveModel
from dl4jlegacy.scaleout.checkpoint import CheckpointStore
from dl4jlegacy.scaleout.outcome import Outcome
from dl4jlegacy.scaleout.phases import NO_PHASES, Phases
from dl4jlegacy.scaleout.records import Head
from dl4jlegacy.scaleout.store import Buffer

__all__ = ["ModelSavingActor"]

logger = logging.getLogger(__name__)


class ModelSavingActor(Actor):
    """Saves model versions while training continues; a version that cannot be saved is only a warning.

    Args:
        outcome: of the run.
        saver: the run's checkpoints; None: it keeps none.
        on_failed: called when a checkpoint cannot be written.
        keep: gets the versions too: a saver of the program's own.
        phases: where this thread says what it does.
    """

    def __init__(
        self,
        outcome: Outcome,
        saver: CheckpointStore | None,
        on_failed: Callable[[str], None] = lambda message: None,
        keep: Callable[[Head, Buffer], None] | None = None,
        phases: Phases = NO_PHASES,
    ) -> None:
        super().__init__(outcome)
        self._saver, self._on_failed, self._keep, self._phases = saver, on_failed, keep, phases
        self._failed = 0

    def on_receive(self, message: Any) -> None:
        """Save a version; after the last one, end the run."""
        if not isinstance(message, SaveModel):
            raise TypeError(f"ModelSavingActor does not know the message {message!r}")
        event = message.event
        if self._saver is not None:
            self._save(self._saver, event)
        if self._keep is not None:
            self._keep(event.head, event.frame)
        if message.reply_to.is_alive():
            message.reply_to.tell(Saved())
        if event.last:
            if self._failed > 1:
                self._outcome.warn(f"{self._failed} checkpoints in a row, up to the last, could not be written")
            self._outcome.end(event.head, event.frame, event.best)

    def _save(self, saver: CheckpointStore, event: protocol.NewModel) -> None:
        """Save a version; say once that it fails, not at every version until somebody looks."""
        if event.head.snapshot is not None and not event.states:
            logger.warning("no checkpoint is made of version %s, of which a state was lost", event.head.version)
            return
        try:
            with self._phases.phase("MasterCheckpoint", (event.head.round - 1, None)):
                saver.save(event.head, event.frame, event.best, event.states)
        except Dl4jError as exc:
            self._failed += 1
            if self._failed == 1:
                logger.warning("%s", str(exc))
                self._outcome.warn(str(exc))
                self._on_failed(str(exc))
            return
        if self._failed:
            logger.warning("checkpoints are written again, after %s that could not be", self._failed)
        self._failed = 0
