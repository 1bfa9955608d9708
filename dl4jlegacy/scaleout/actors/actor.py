"""Base classes of the actors: a failure ends the run, and hints wake the actors that run a role of the protocol.

If an actor raises an exception that is not an ``Exception``, pykka stops all actors of the process without a message.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any

import pykka

from dl4jlegacy.scaleout.actors.messages import Poll
from dl4jlegacy.scaleout.monitoring.outcome import Outcome
from dl4jlegacy.scaleout.tracker import StateTracker
from dl4jlegacy.system.exits import exits_as_errors

__all__ = ["Actor", "ProtocolActor"]

logger = logging.getLogger(__name__)


class Actor(pykka.ThreadingActor):
    """An actor that ends the run, with the traceback, if any of its methods raises, including ``sys.exit``."""

    use_daemon_thread = True  # a forgotten actor must not keep the process alive

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self._outcome = outcome

    def begin(self) -> None:
        """Run before the first message; overridden by subclasses."""

    def receive(self, message: Any) -> None:
        """Handle a message."""
        raise NotImplementedError

    def end(self) -> None:
        """Run after the last message; overridden by subclasses."""

    def on_start(self) -> None:
        """Call ``begin``; an exception in it ends the run."""
        try:
            with exits_as_errors():
                self.begin()
        except Exception as exc:  # pykka does not report these to ``on_failure``
            self._outcome.fail(exc)
            raise

    def on_receive(self, message: Any) -> None:
        """Handle a message; ``SystemExit`` becomes an error."""
        with exits_as_errors():
            self.receive(message)

    def on_stop(self) -> None:
        """Call ``end``."""
        with exits_as_errors():
            self.end()

    def on_failure(
        self,
        exception_type: type[BaseException] | None,
        exception_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Report the exception that a message raised; runs on the actor's thread."""
        if exception_value is not None:
            self._outcome.fail(exception_value)


class ProtocolActor(Actor):
    """An actor that runs a role of the protocol, woken by ``Poll``; hints that arrive together wake it once."""

    def __init__(self, outcome: Outcome, tracker: StateTracker, topics: tuple[str, ...]) -> None:
        super().__init__(outcome)
        self._tracker, self._topics = tracker, topics
        self._stops: list[Callable[[], None]] = []
        self._is_hinted = False

    def begin(self) -> None:
        """Listen for hints, and run the role for the first time."""
        self._stops = [self._tracker.store.listen(topic, self._hint) for topic in self._topics]
        self._hint()

    def _hint(self) -> None:
        """Wake the actor. Runs on the thread that changed something, and only enqueues."""
        if not self._is_hinted:
            self._is_hinted = True
            try:
                self.actor_ref.tell(Poll())
            except pykka.ActorDeadError:
                logger.debug("a hint came after %s had stopped", type(self).__name__)

    def receive(self, message: Any) -> None:
        """Run the role until it waits."""
        if not isinstance(message, Poll):
            raise TypeError(f"{type(self).__name__} does not know the message {message!r}")
        self._is_hinted = False
        self._drive()

    def _drive(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """Stop listening for hints."""
        for stop in self._stops:
            stop()
