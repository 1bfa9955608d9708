"""``MasterActor``, which watches, folds and closes rounds, and ``BatchActor``, which issues jobs with their data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pykka

from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.actors.actor import Actor, ProtocolActor
from dl4jlegacy.scaleout.actors.issue import JobIssuer
from dl4jlegacy.scaleout.actors.messages import Saved, SaveModel
from dl4jlegacy.scaleout.actors.saver import ModelSavingActor
from dl4jlegacy.scaleout.monitoring.monitor import ClusterMonitor
from dl4jlegacy.scaleout.monitoring.outcome import Outcome
from dl4jlegacy.scaleout.tracker import StateTracker

__all__ = ["BatchActor", "MasterActor", "issuing"]


class MasterActor(ProtocolActor):
    """Runs the master's role: watches, folds and closes rounds. Other actors issue jobs and save models.

    Args:
        outcome: of the run.
        tracker: of the run.
        master: of the run.
        issue: issues jobs; called on the master's thread.
        saver: receives the versions to be saved.
        checkpoint_every: number of versions between checkpoints; the last version is always saved.
        keeps: whether the saver uses versions other than the last one.
        keeps_states: whether the saver writes checkpoints.
        monitor: monitor of a cluster's master.
        takes_more: returns whether the consumer of the jobs' results keeps up. While it does not, no more jobs are
            issued, and the run waits without counting as stalled.
        on_version: called with every version, on the master's thread, when the next jobs are issued or the run ends.
    """

    def __init__(
        self,
        outcome: Outcome,
        tracker: StateTracker,
        master: protocol.Master,
        issue: Callable[[protocol.MoreWork], None],
        saver: pykka.ActorRef[ModelSavingActor],
        *,
        checkpoint_every: int = 1,
        keeps: bool = True,
        keeps_states: bool = True,
        monitor: ClusterMonitor | None = None,
        takes_more: Callable[[], bool] = lambda: True,
        on_version: Callable[[protocol.NewModel], None] = lambda event: None,
    ) -> None:
        super().__init__(outcome, tracker, (protocol.UPDATE_TOPIC, protocol.HEAD_TOPIC))
        self._on_version, self._takes_more = on_version, takes_more
        self._issue_now, self._saver, self._monitor = issue, saver, monitor
        self._checkpoints = protocol.DueCheckpoints(checkpoint_every if keeps else 0, keeps_states)
        self._held: protocol.MoreWork | None = None
        self._untold: list[protocol.NewModel] = []
        self._steps, self._attempts = protocol.master_steps(master), master.attempts
        self._ended = False
        master.is_to_be_saved = self._checkpoints.is_to_be_saved if keeps_states else lambda head: False

    def _drive(self) -> None:
        if self._monitor is not None and not self._monitor.check_in():
            return  # do not start the run again before it is known whether it is over
        while not self._ended:
            try:
                event = next(self._steps)
            except StopIteration as stop:
                self._ended = True
                self._tell_versions()
                if stop.value.status != "done":  # a finished run is reported by the saver, after its last checkpoint
                    self._outcome.end(stop.value, None)
                return
            match event:
                case protocol.Wait():
                    self._issue(self._held)  # also counts down while there are too few workers
                    return
                case protocol.MoreWork():
                    self._issue(event)
                case protocol.NewModel():
                    self._new_model(event)
                case _:
                    continue

    def _issue(self, work: protocol.MoreWork | None) -> None:
        """Issue jobs; hold them back while there are too few workers, or while the consumer of results is behind."""
        if self._monitor is not None and not self._monitor.quorum.is_met(self._attempts.finished):
            self._held = work
        elif work is not None and not self._takes_more():
            self._held = work
            self._outcome.progressed()  # it waits for somebody, and does not stand still
        elif work is not None:
            self._issue_now(work)
            self._held = None

    def receive(self, message: Any) -> None:
        """Run the role; a ``Saved`` message only notes that the saving actor is free."""
        if isinstance(message, Saved):
            self._checkpoints.is_saving = False
            return
        try:
            super().receive(message)
        finally:
            self._tell_versions()

    def _new_model(self, event: protocol.NewModel) -> None:
        """Record a new version, and send it to the saving actor if it is due and can be saved."""
        self._outcome.progressed()
        self._untold.append(event)
        if event.last:
            self._tell_versions()  # when it is saved the run is over
        if self._checkpoints.take(event):
            self._saver.tell(SaveModel(event, self.actor_ref))
            self._checkpoints.is_saving = True

    def _tell_versions(self) -> None:
        """Call ``on_version`` for new versions, after the next jobs are issued, so that no worker waits for it."""
        while self._untold:
            self._on_version(self._untold.pop(0))


class BatchActor(Actor):
    """Issues jobs that carry their data, on its own thread since that would block the master; see ``JobIssuer``."""

    def __init__(self, outcome: Outcome, issuer: JobIssuer) -> None:
        super().__init__(outcome)
        self._issuer = issuer

    def receive(self, message: Any) -> None:
        """Issue the jobs that the master asks for."""
        if not isinstance(message, protocol.MoreWork):
            raise TypeError(f"BatchActor does not know the message {message!r}")
        self._issuer.issue(message)


def issuing(
    outcome: Outcome, issuer: JobIssuer
) -> tuple[Callable[[protocol.MoreWork], None], list[pykka.ActorRef[Any]]]:
    """Return the function that issues a master's jobs, and its actors: none if jobs refer to their data."""
    if issuer.by_reference:
        return issuer.issue, []
    batch = BatchActor.start(outcome, issuer)
    return batch.tell, [batch]
