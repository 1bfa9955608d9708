"""The one timer of a process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Any

import pykka

from dl4jlegacy.system.clock import RUNNING, SLICE_SECONDS
from dl4jlegacy.system.service_threads import ServiceThread

__all__ = ["Ticker"]


class Ticker:
    """The one timer of a process: sends messages to actors at fixed intervals.

    Args:
        entries: one (interval in seconds, actor, message) per timer.

    Legacy: a scheduler for every actor; the workers' schedulers ran the training, so no heartbeat was sent meanwhile.
    """

    def __init__(self, entries: Sequence[tuple[float, pykka.ActorRef[Any], Any]]) -> None:
        self._entries = entries
        self._stopped = threading.Event()
        self._thread = ServiceThread(target=self._run, name="dl4j-ticker")

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
        pause = min([*left, SLICE_SECONDS])
        while not self._stopped.wait(pause):
            RUNNING.now()  # read often: a longer gap means that this process was stopped
            for index, (interval, actor, message) in enumerate(self._entries):
                left[index] -= pause
                if left[index] <= 0:
                    left[index] = interval
                    if actor.is_alive() and actor.actor_inbox.empty():  # ticks must not pile up before a stop
                        with contextlib.suppress(pykka.ActorDeadError):  # the actor may have stopped meanwhile
                            actor.tell(message)
