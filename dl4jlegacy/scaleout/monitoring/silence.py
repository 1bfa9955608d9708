"""Measures how long workers have been silent, by the clock of the process that watches them."""

from __future__ import annotations

from collections.abc import Mapping

from dl4jlegacy.system.clock import RUNNING, Clock

__all__ = ["Silence"]


class Silence:
    """Seconds since each worker's heartbeat last changed, by this process's clock; other clocks are not used.

    Args:
        clock: of running time.
    """

    def __init__(self, clock: Clock = RUNNING) -> None:
        self._clock, self._seen = clock, dict[str, tuple[float, float]]()

    def update(self, beats: Mapping[str, float]) -> dict[str, float]:
        """Update with the present heartbeats of all workers; return the seconds since each one was first seen."""
        now = self._clock.now()
        self._seen = {
            id: self._seen[id] if id in self._seen and self._seen[id][0] == beat else (beat, now)
            for id, beat in beats.items()
        }
        return self.seconds()

    def seconds(self) -> dict[str, float]:
        """Return the seconds since each worker's last heartbeat was first seen."""
        now = self._clock.now()
        return {id: now - since for id, (_, since) in self._seen.items()}
