"""A thread that runs steps one at a time, immediately or later; used by ``session`` and the modules built on it.

Zookeeper's callbacks must neither block nor raise, so they only schedule a step here. A step reads the server's state,
corrects differences from the wanted state, and schedules its next run. Steps may run any number of times.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from dl4jlegacy.errors import Dl4jError, TrackerClosedError
from dl4jlegacy.system.exits import exits_as_errors
from dl4jlegacy.system.service_threads import ServiceThread

__all__ = ["StepScheduler"]

logger = logging.getLogger(__name__)

RETRY_SECONDS = 0.5

Step = Callable[[], None]


class StepScheduler:
    """Runs steps on a thread of its own, which starts with the first step. Thread-safe."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._due: dict[Step, float] = {}
        self._failing: set[Step] = set()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def schedule(self, step: Step, seconds: float = 0.0) -> None:
        """Run ``step`` in ``seconds``, or earlier if it is already due earlier. Pending runs of a step are merged."""
        due = time.monotonic() + seconds
        with self._changed:
            if self._stopped:
                return
            self._due[step] = min(due, self._due.get(step, due))
            if self._thread is None:
                self._thread = ServiceThread(target=self._loop, name=self._name)
                self._thread.start()
            self._changed.notify_all()

    def run(self, step: Step, seconds: float) -> bool:
        """Run ``step`` on the thread and wait for its end; return False if that took longer than ``seconds``."""
        if self.is_current():
            step()
            return True
        done = threading.Event()

        def step_and_notify() -> None:
            try:
                step()
            finally:
                done.set()

        self.schedule(step_and_notify)
        return not self._stopped and done.wait(seconds)

    def is_current(self) -> bool:
        """Return whether the caller runs on this thread."""
        return threading.current_thread() is self._thread

    def cancel(self, step: Step) -> None:
        """Remove a pending run of ``step``."""
        with self._changed:
            self._due.pop(step, None)

    def stop(self, seconds: float) -> None:
        """Run no more steps; wait up to ``seconds`` for the current one."""
        with self._changed:
            self._stopped = True
            self._due.clear()
            self._changed.notify_all()
        if self._thread is not None and not self.is_current():
            self._thread.join(seconds)

    def _loop(self) -> None:
        while (step := self._next()) is not None:
            try:
                with exits_as_errors():
                    step()
                self._failing.discard(step)
            except TrackerClosedError as exc:  # the session was closed during a step: do not retry
                logger.debug("%s: %s", self._name, exc)
            except Dl4jError as exc:
                level = logging.DEBUG if step in self._failing else logging.WARNING  # report an outage once
                logger.log(level, "%s: %s; trying again", self._name, exc)
                self._failing.add(step)
                self.schedule(step, RETRY_SECONDS)
            except Exception:  # a caller's callback must not end the thread that renews leadership
                self._failing.discard(step)
                logger.exception("%s: a callback failed", self._name)

    def _next(self) -> Step | None:
        """Wait for the next step that is due and return it; None after ``stop``."""
        with self._changed:
            while not self._stopped:
                step = min(self._due, key=self._due.__getitem__, default=None)
                left = self._due[step] - time.monotonic() if step is not None else None
                if step is not None and left is not None and left <= 0:
                    del self._due[step]
                    return step
                self._changed.wait(left)
            return None
