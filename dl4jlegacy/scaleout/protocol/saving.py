"""Decides which model versions a master saves: a due checkpoint is saved as soon as possible."""

from __future__ import annotations

from dataclasses import dataclass

from dl4jlegacy.scaleout.protocol.events import NewModel
from dl4jlegacy.scaleout.state.records import Head

__all__ = ["DueCheckpoints"]


@dataclass(slots=True)
class DueCheckpoints:
    """The checkpoint schedule of one master: a checkpoint is due every ``every`` versions, and the last one always is.

    A version cannot be saved if it is only a log entry, if one of its states was lost, or if an earlier version is
    still being written. Then the next version that can be saved is due. Where models are stored as a whole only now and
    then, those versions need not be multiples of ``every``.

    Attributes:
        every: number of versions between checkpoints; 0: only the last version is saved.
        needs_states: whether a version is useless without the states of its slots.
        is_saving: whether a version is being written.
    """

    every: int
    needs_states: bool = True
    is_saving: bool = False
    _is_due: bool = False

    def is_to_be_saved(self, head: Head) -> bool:
        """Return whether a version that arrives now will be saved."""
        return head.status == "done" or (self._is_due_at(head) and not head.logged and not self.is_saving)

    def take(self, event: NewModel) -> bool:
        """Record a new version; return whether it must be saved now."""
        is_saved = event.last or self.is_to_be_saved(event.head)
        has_lost = self.needs_states and event.head.snapshot is not None and not event.states
        self._is_due = self._is_due_at(event.head) and (has_lost or not is_saved)
        return is_saved

    def _is_due_at(self, head: Head) -> bool:
        return self.every > 0 and (self._is_due or head.version % self.every == 0)
