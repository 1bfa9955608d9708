"""Which model versions a master saves: those that are due, as soon as they can be saved."""

from __future__ import annotations

from dataclasses import dataclass

from dl4jlegacy.scaleout.protocol.events import NewModel
from dl4jlegacy.scaleout.state.records import Head

__all__ = ["DueCheckpoints"]


@dataclass(slots=True)
class DueCheckpoints:
    """What one master knows of its checkpoints: every so many versions one is due, and the last version always is.

    A version cannot be saved that is only an entry of a log, one of which a state was lost, or one that comes while an
    earlier one is being written. Then the next one is due that can be: where models are stored as a whole now and then,
    those need never be the versions whose numbers are multiples of ``every``.

    Attributes:
        every: a checkpoint is due with every so many versions; 0: with the last one only.
        needs_states: whether a version without the states of its slots is of no use.
        is_saving: whether a version is being written.
    """

    every: int
    needs_states: bool = True
    is_saving: bool = False
    _is_due: bool = False

    def is_to_be_saved(self, head: Head) -> bool:
        """Return whether a version that comes now will be saved."""
        return head.status == "done" or (self._is_due_at(head) and not head.logged and not self.is_saving)

    def take(self, event: NewModel) -> bool:
        """Take note of a new version; return whether it is to be saved now."""
        is_saved = event.last or self.is_to_be_saved(event.head)
        has_lost = self.needs_states and event.head.snapshot is not None and not event.states
        self._is_due = self._is_due_at(event.head) and (has_lost or not is_saved)
        return is_saved

    def _is_due_at(self, head: Head) -> bool:
        return self.every > 0 and (self._is_due or head.version % self.every == 0)
