"""How a run ended: set once by whichever actor knows first, waited for by the one who started it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dl4jlegacy.scaleout.records import Head
from dl4jlegacy.scaleout.store import Buffer, Clock

__all__ = ["Outcome"]


class Outcome:
    """A one-shot result between the actors and the runner. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._end: tuple[Head, Buffer | None] | None = None
        self._error: BaseException | None = None
        self._warnings: tuple[str, ...] = ()
        self._progress = clock.now()

    def end(self, head: Head, frame: Buffer | None) -> None:
        """Say that the run has ended with this head, and its last model if it is known."""
        with self._lock:
            self._end = self._end or (head, frame)
        self._over.set()

    def fail(self, error: BaseException) -> None:
        """Say that an actor died of its own bug; the first one counts, it is the root cause."""
        with self._lock:
            self._error = self._error or error
        self._over.set()

    def warn(self, message: str) -> None:
        """Say that something went wrong that does not end the run."""
        with self._lock:
            self._warnings = (*self._warnings, message)

    def progressed(self) -> None:
        """Say that the run has a new model version."""
        with self._lock:
            self._progress = self._clock.now()

    @property
    def idle_seconds(self) -> float:
        """Seconds since the run last got on."""
        with self._lock:
            return self._clock.now() - self._progress

    @property
    def warnings(self) -> tuple[str, ...]:
        """What went wrong without ending the run."""
        with self._lock:
            return self._warnings

    def wait(self, seconds: float, tick: Callable[[], None] | None = None) -> tuple[Head, Buffer | None] | None:
        """Wait up to ``seconds`` for the end; return it or None. Raises the error of an actor that died."""
        over = self._over.wait(seconds)
        if tick is not None:
            tick()
        if not over:
            return None
        with self._lock:
            if self._error is not None:
                raise self._error
            return self._end
