"""What all actors have in common, and how one drives a generator of the protocol (layer 4).

An actor's own failure ends the run, with its traceback; that of a job does not, it is data.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import pykka

from dl4jlegacy.scaleout.outcome import Outcome
from dl4jlegacy.scaleout.tracker import StateTracker

__all__ = ["Actor", "DrivenActor", "Poll"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Poll:
    """Look again: something may have changed. Told by hints of the store and by the ticker."""


class Actor(pykka.ThreadingActor):
    """An actor whose own failure ends the run, with its traceback."""

    use_daemon_thread = True  # a forgotten actor must not keep the process alive

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self._outcome = outcome

    def on_failure(
        self,
        exception_type: type[BaseException] | None,
        exception_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Runs on the actor's thread after one of its messages raised."""
        if exception_value is not None:
            self._outcome.fail(exception_value)


class DrivenActor(Actor):
    """An actor that drives a generator of the protocol, woken by ``Poll``; hints that come together count once."""

    def __init__(self, outcome: Outcome, tracker: StateTracker, topics: tuple[str, ...]) -> None:
        super().__init__(outcome)
        self._tracker, self._topics = tracker, topics
        self._stops: list[Callable[[], None]] = []
        self._hinted = threading.Event()

    def on_start(self) -> None:
        """Listen for hints; then look for work."""
        self._stops = [self._tracker.store.listen(topic, self._hint) for topic in self._topics]
        self._hint()

    def _hint(self) -> None:
        """Runs on whichever thread changed something: enqueues, and nothing else."""
        if not self._hinted.is_set():
            self._hinted.set()
            try:
                self.actor_ref.tell(Poll())
            except pykka.ActorDeadError:
                logger.debug("a hint came after %s had stopped", type(self).__name__)

    def _deaf(self) -> None:
        for stop in self._stops:
            stop()

    def on_receive(self, message: Any) -> None:
        """Drive on."""
        match message:
            case Poll():
                self._hinted.clear()
                self._drive()
            case _:
                raise TypeError(f"{type(self).__name__} does not know the message {message!r}")

    def _drive(self) -> None:
        raise NotImplementedError

    def on_stop(self) -> None:
        """Leave nothing behind that would still be called."""
        self._deaf()
