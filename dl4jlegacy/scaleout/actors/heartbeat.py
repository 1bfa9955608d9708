"""``HeartbeatActor``: extends the leases of this process's workers, and reports those that are stuck."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable
from typing import Any

from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.actors.actor import Actor
from dl4jlegacy.scaleout.actors.messages import Beat, Joining, Leaving, Working
from dl4jlegacy.scaleout.links.liveness.quorum import WORKER_TOPIC
from dl4jlegacy.scaleout.monitoring.outcome import Outcome
from dl4jlegacy.scaleout.state.records import WorkerRecord
from dl4jlegacy.scaleout.tracker import StateTracker, drive

__all__ = ["HeartbeatActor"]

logger = logging.getLogger(__name__)


class HeartbeatActor(Actor):
    """Extends the leases of this process's workers and renews their registration, independently of the computation.

    A worker whose performer makes no progress for ``stuck_seconds`` is reported, and its lease is left to expire.
    ``device`` returns a description of the GPU that the named worker uses.
    """

    def __init__(
        self,
        outcome: Outcome,
        tracker: StateTracker,
        *,
        stuck_seconds: float,
        kernels: str,
        device: Callable[[str], str] = lambda worker: "",
    ) -> None:
        super().__init__(outcome)
        self._tracker, self._stuck_seconds, self._kernels, self._device = tracker, stuck_seconds, kernels, device
        self._host, self._pid = socket.gethostname(), os.getpid()
        self._workers: dict[str, Callable[[], Working]] = {}
        self._seen: dict[str, tuple[Working, int, float]] = {}
        """By worker: its activity and progress when last checked, and the time since which both are unchanged."""

    def receive(self, message: Any) -> None:
        """Send a heartbeat for every worker at each ``Beat``, and immediately for a new worker."""
        match message:
            case Joining():
                self._workers[message.worker] = message.working
                self._beat(message.worker)
                self._tracker.store.publish(WORKER_TOPIC)
            case Beat():
                for name in list(self._workers):
                    self._beat(name)
            case Leaving():
                self._workers.pop(message.worker, None)
                self._seen.pop(message.worker, None)
                self._tracker.remove_worker(message.worker)
                self._tracker.store.publish(WORKER_TOPIC)
            case _:
                raise TypeError(f"HeartbeatActor does not know the message {message!r}")

    def _beat(self, name: str) -> None:
        working, now = self._workers[name](), self._tracker.clock.now()
        progress = working.progress()
        before, done, since = self._seen.get(name, (None, 0, now))
        if working is not before or progress != done:
            since = now
        self._seen[name] = (working, progress, since)
        stuck = working.record is not None and (silent := now - since) > self._stuck_seconds
        state = "stuck" if stuck else ("idle" if working.record is None else "working")
        job = "" if working.slot is None else f"{working.slot.round}/{working.slot.slot}"
        if stuck:
            logger.warning(
                "worker %s has made no progress on job %s for %.0f s; its lease is left to expire", name, job, silent
            )
        elif working.slot is not None and working.record is not None:
            drive(protocol.extend_lease(working.worker, working.slot, working.record, working.progress()))
        self._tracker.add_worker(
            WorkerRecord(
                id=name,
                host=self._host,
                pid=self._pid,
                state=state,
                job=job,
                jobs_done=working.jobs_done,
                beat=time.time(),
                kernels=self._kernels,
                device=self._device(name),
            )
        )
