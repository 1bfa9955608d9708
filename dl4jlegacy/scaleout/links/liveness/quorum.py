"""The minimum number of workers that a run needs, and how long it waits for them.

Legacy: none; a master without workers waited forever.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dl4jlegacy.errors import NotEnoughWorkersError

__all__ = ["WORKER_TOPIC", "Quorum", "Waiting"]

WORKER_TOPIC = "worker"
"""Topic of the hints that a worker has registered."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A run that issues no jobs because it has too few workers, and how many more seconds it will wait."""

    present: int
    needed: int
    seconds_left: float

    def text(self) -> str:
        """Return this as a line of text."""
        return f"waiting for workers: {self.present} of {self.needed}, giving up in {self.seconds_left:.0f} s"


class Quorum:
    """Checks that enough workers are present. ``is_met`` is called by one thread; ``waiting`` may be read by any.

    Args:
        run: the run's name, for the message.
        needed: with fewer workers than this no new jobs are issued.
        wait_seconds: how long the run waits for more workers. Several waits are added up, unless between them a job was
            finished or enough workers were present for ``wait_seconds``; so workers that join and die do not extend the
            wait.
        present: returns the number of workers.
        clock: returns monotonic seconds.
        on_change: called with True when waiting begins and with False when it ends.
    """

    def __init__(
        self,
        run: str,
        *,
        needed: int,
        wait_seconds: float,
        present: Callable[[], int],
        clock: Callable[[], float],
        on_change: Callable[[bool], None] = lambda is_waiting: None,
    ) -> None:
        self._run, self._needed, self._seconds = run, needed, wait_seconds
        self._present, self._clock, self._on_change = present, clock, on_change
        self._until: float | None = None
        self._left, self._finished, self._met = wait_seconds, 0, 0.0
        self.waiting: Waiting | None = None
        self.known = ""
        """A sentence about the known cause of missing workers, appended to the error; set by any thread."""

    def is_met(self, finished: int = 0) -> bool:
        """Return whether enough workers are present; ``finished`` is the number of finished jobs so far.

        Raises:
            NotEnoughWorkersError: there were too few for ``wait_seconds``.
        """
        present, now = self._present(), self._clock()
        if finished != self._finished:
            self._finished, self._left = finished, self._seconds
        if present >= self._needed:
            self.waiting = None
            if self._until is not None:
                self._left, self._met = max(0.0, self._until - now), now
                self._until = None
                self._on_change(False)
            return True
        if self._until is None:
            self._left = self._seconds if now - self._met >= self._seconds else self._left
            self._until = now + self._left
            self._on_change(True)
        self.waiting = Waiting(present, self._needed, max(0.0, self._until - now))
        if now >= self._until:
            raise NotEnoughWorkersError(
                f"run {self._run} has waited {self._seconds:g} s for workers: {present} of the {self._needed} that it "
                f"needs are there; start more (dl4j worker), or lower --min-workers, then resume the run{self.known}"
            )
        return False
