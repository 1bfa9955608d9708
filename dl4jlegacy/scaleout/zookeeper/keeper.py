"""One thread that keeps promises alive: it runs steps, one at a time, now or later (L4, below ``session``).

Zookeeper's callbacks may neither block nor raise, so all they do is wake a step here. A step looks at the server, puts
right what is not as it should be, and says when it wants to look again. It never matters how often a step runs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from dl4jlegacy.errors import Dl4jError, TrackerClosedError

__all__ = ["Keeper"]

logger = logging.getLogger(__name__)

RETRY_SECONDS = 0.5

Step = Callable[[], None]


class Keeper:
    """Runs steps on a thread of its own, which begins with the first step. Thread-safe."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._due: dict[Step, float] = {}
        self._failing: set[Step] = set()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def wake(self, step: Step, seconds: float = 0.0) -> None:
        """Run ``step`` in ``seconds``, or earlier if it is due earlier already; many wakes are one run."""
        due = time.monotonic() + seconds
        with self._changed:
            if self._stopped:
                return
            self._due[step] = min(due, self._due.get(step, due))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def perform(self, step: Step, seconds: float) -> bool:
        """Run ``step`` between other steps and wait for its end; False if that took longer than ``seconds``."""
        if self.is_current():
            step()
            return True
        done = threading.Event()

        def step_and_tell() -> None:
            try:
                step()
            finally:
                done.set()

        self.wake(step_and_tell)
        return not self._stopped and done.wait(seconds)

    def is_current(self) -> bool:
        """Whether the caller is a step."""
        return threading.current_thread() is self._thread

    def forget(self, step: Step) -> None:
        """Do not run ``step`` any more unless it is woken again."""
        with self._changed:
            self._due.pop(step, None)

    def stop(self, seconds: float) -> None:
        """Run nothing more; wait up to ``seconds`` for the step that is under way."""
        with self._changed:
            self._stopped = True
            self._due.clear()
            self._changed.notify_all()
        if self._thread is not None and not self.is_current():
            self._thread.join(seconds)

    def _run(self) -> None:
        while (step := self._next()) is not None:
            try:
                step()
                self._failing.discard(step)
            except TrackerClosedError as exc:  # the session was closed under a step: nothing is left to be tried
                logger.debug("%s: %s", self._name, exc)
            except Dl4jError as exc:
                level = logging.DEBUG if step in self._failing else logging.WARNING  # an outage is told once
                logger.log(level, "%s: %s; trying again", self._name, exc)
                self._failing.add(step)
                self.wake(step, RETRY_SECONDS)
            except Exception:  # a caller's callback must not end the thread that renews its leadership
                self._failing.discard(step)
                logger.exception("%s: a callback failed", self._name)

    def _next(self) -> Step | None:
        """Wait for the next step that is due and take it; None at the end."""
        with self._changed:
            while not self._stopped:
                step = min(self._due, key=self._due.__getitem__, default=None)
                left = self._due[step] - time.monotonic() if step is not None else None
                if step is not None and left is not None and left <= 0:
                    del self._due[step]
                    return step
                self._changed.wait(left)
            return None
