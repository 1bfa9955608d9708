"""Checks whether a process still leads its run, for its monitor and its master: another process may have taken over."""

from __future__ import annotations

import time
from typing import Protocol

from dl4jlegacy.scaleout.links.liveness.failure_detector import StallDetector
from dl4jlegacy.scaleout.protocol import Steps
from dl4jlegacy.scaleout.tracker import StateTracker, drive

__all__ = ["Leadership", "StallGuard"]

_STALL_SECONDS = 3.0


class Leadership(Protocol):
    """Tells whether this process is still the master of its run."""

    def check(self) -> None:
        """Raise ``TrackerError`` if another process is the master."""
        ...

    def may_begin(self) -> Steps[bool]:
        """Return True if this process may write a head, False if that cannot be determined now.

        Raises:
            TrackerError: another process is the master, or the run has ended.
        """
        ...

    def may_hand_over(self) -> Steps[bool]:
        """Return whether this process, which is leaving, may write a head for the standby that leads the run."""
        ...

    def restore(self) -> None:
        """Register the run again if its registration is lost or damaged."""
        ...


class StallGuard:
    """Holds a thread back after its process was stopped, until it is confirmed that the process is still the master."""

    def __init__(self, leadership: Leadership, tracker: StateTracker) -> None:
        self._leadership, self._tracker = leadership, tracker
        self._stall = StallDetector(_STALL_SECONDS)
        self._in_doubt = False

    def may_continue(self) -> bool:
        """Return whether the thread may continue: leadership is confirmed, or unknown while the run has a head.

        Raises:
            TrackerError: another process is the master, or the run is over.
        """
        self._in_doubt = self._stall.has_stalled(time.monotonic()) or self._in_doubt
        self._in_doubt = self._in_doubt and not drive(self._leadership.may_begin())
        return not self._in_doubt or self._tracker.head() is not None
