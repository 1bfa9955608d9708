"""Watches the servers of a folder, and restarts those that end: ``dl4j services up --foreground``.

A restarted Hazelcast member is empty; the master of a run writes the necessary data into it. Zookeeper keeps its data.
If restarts do not help, this process ends, and its own supervisor (systemd) starts it anew.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from dl4jlegacy.errors import TrackerError
from dl4jlegacy.services.servers import Services
from dl4jlegacy.system.clock import RUNNING, SLICE_SECONDS, Clock, Deadline

__all__ = ["say_ready", "supervise"]

logger = logging.getLogger(__name__)

_WINDOW_SECONDS = 600.0
_PAUSES = (0.0, 1.0, 2.0, 4.0, 8.0)
"""Seconds before each restart in the time window; their number is the maximum of restarts."""


def say_ready() -> None:
    """Tell systemd that the servers answer, if it waits for that (``Type=notify``)."""
    where = os.environ.get("NOTIFY_SOCKET", "")
    if not where:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.connect(f"\0{where[1:]}" if where.startswith("@") else where)
            notify.send(b"READY=1")
    except OSError as exc:
        logger.warning("systemd cannot be told at %s that the servers answer: %s", where, exc.strerror or exc)


def supervise(
    folder: Path | None = None, *, clock: Clock = RUNNING, sleep: Callable[[float], object] = time.sleep
) -> None:
    """Restart servers when they end; return after they were stopped with ``services down``.

    Args:
        folder: the folder of the servers; the user's default folder if None.
        clock, sleep: replaceable for tests.

    Raises:
        TrackerError: servers ended, or failed to start, more than five times in ten minutes; the others keep running.
    """
    restarts: list[float] = []  # start times
    while (state := Services.status(folder)) is not None:
        if not state.stopped:
            _pause(SLICE_SECONDS, clock, sleep)
            continue
        restarts = [at for at in restarts if clock.now() - at < _WINDOW_SECONDS]
        if len(restarts) == len(_PAUSES):
            raise TrackerError(
                f"{', '.join(state.stopped)} of {state.folder} ended again after {len(restarts)} restarts within "
                f"{_WINDOW_SECONDS / 60:g} minutes; the logs there say why"
            )
        _pause(_PAUSES[len(restarts)], clock, sleep)
        restarts.append(clock.now())
        try:
            Services.start_stopped(folder)
        except TrackerError as exc:
            logger.warning("%s could not be started again: %s", ", ".join(state.stopped), exc)


def _pause(seconds: float, clock: Clock, sleep: Callable[[float], object]) -> None:
    deadline = Deadline(seconds, clock)
    while not deadline.passed():
        sleep(deadline.slice())
