"""The timer beside the actors (layer 4): they never wait or poll themselves, they are told when it is time.

Legacy: a scheduler for every actor; the workers' ran the training itself, so that no heart beat while they trained.
"""

from __future__ import annotations

import threading
from typing import Any

import pykka

__all__ = ["Ticker"]


class Ticker:
    """The one timer of a process: tells messages to actors at fixed intervals, and does nothing else."""

    def __init__(self, entries: list[tuple[float, pykka.ActorRef[Any], Any]]) -> None:
        self._entries = entries
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dl4j-ticker", daemon=True)

    def start(self) -> None:
        """Start ticking."""
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Stop ticking and wait for the thread."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        left = [interval for interval, _, _ in self._entries]
        pause = min(left, default=1.0)
        while not self._stopped.wait(pause):
            for index, (interval, actor, message) in enumerate(self._entries):
                left[index] -= pause
                if left[index] <= 0:
                    left[index] = interval
                    if actor.is_alive() and actor.actor_inbox.empty():  # ticks must not pile up before a stop
                        actor.tell(message)
