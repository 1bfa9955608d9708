"""One run on the stage: waits for what it should do, whatever is done to it, and says what it did instead.

All is well when every worker works, nobody is missing, and rounds are closed as fast as before.
"""

from __future__ import annotations

import signal
import time
from statistics import median

from dl4jlegacy.chaos.faults import Wound
from dl4jlegacy.chaos.schedule import Fault
from dl4jlegacy.chaos.stage import Stage
from dl4jlegacy.chaos.watch import Watch, last_slow_moment
from dl4jlegacy.errors import DeadlineError, Dl4jError, TrackerError

__all__ = ["LOOK_SECONDS", "Act", "HangError", "Over"]

LOOK_SECONDS = 0.1
"""How long to wait before looking again."""

_HEAD_SECONDS = 1.0
_STILL_SECONDS = 45.0  # without a new model version, longer than a lease: a hang
_WINDOW_SECONDS = 1.0
_FULL_SHARE = 0.6  # of the usual rounds per second: this machine has other work too
_USUAL = 9  # windows that say what is usual
_LEAVE_SECONDS = 60.0
_LATE_SECONDS = 5.0
_LAST_ENTRIES = 20


class HangError(DeadlineError):
    """The run stood still."""


class Over(Exception):  # noqa: N818  # not an error
    """The run has come to its end."""


class Act:
    """One run on the stage, and what it takes to know that all is well."""

    def __init__(self, stage: Stage, watch: Watch, usual: list[float]) -> None:
        self.stage, self.watch, self._usual = stage, watch, usual
        self._before: dict[int, int] = {}
        self._hurt = False  # whether a worker was
        self.replaces_masters = False  # those whose session Zookeeper has lost, so that another one leads
        self._replaced: list[str] = []

    @property
    def round(self) -> int:
        """The round that the run is in."""
        head = self.watch.head
        return 0 if head is None else head.round

    def wait_rounds(self, count: int) -> None:
        """Wait until so many more rounds are closed."""
        target = self.round + count
        while self.round < target:
            self._look()

    def wound(self, fault: Fault, wound: Wound) -> None:
        """Let a fault last, and mend it; remember what each worker had done by then."""
        end = time.monotonic() + fault.seconds
        while time.monotonic() < end:
            time.sleep(min(LOOK_SECONDS, max(0.0, end - time.monotonic())))
        self._before = {worker.pid: worker.jobs_done for worker in self.watch.workers()}
        self._hurt = bool(wound.missed)
        wound.heal()

    def replaced(self) -> str:
        """Return which masters had to be replaced since the last call, "" if none."""
        names, self._replaced = self._replaced, []
        return f"its session lost, {', '.join(names)} had to give way to a standby" if names else ""

    def settle(self, since: float | None, seconds: float) -> float:
        """Wait until all is well; return the moment from which on all worked, and at the usual speed.

        Raises:
            DeadlineError: not in ``seconds``. Dl4jError: a process has ended. Over: the run has.
        """
        begun, working = time.monotonic(), 0.0
        since, end = begun if since is None else since, begun + seconds
        while True:
            self._look()
            now, least = time.monotonic(), _FULL_SHARE * (median(self._usual) if self._usual else 0.1)
            why = self._idle()
            if not why and not working:
                working = now
            slow = last_slow_moment(self.watch.samples, since, now, _WINDOW_SECONDS, least)
            if now - max(slow, begun) < _WINDOW_SECONDS:
                why = why or f"{self.watch.rate(_WINDOW_SECONDS):.1f} rounds/s; {least:.1f} are wanted"
            why = why or self._missing()
            if not why:
                self._usual.append(self.watch.rate(_WINDOW_SECONDS))
                del self._usual[:-_USUAL]
                return max(slow, working) if self._hurt else slow
            if now > end:
                raise DeadlineError(f"all was not well {seconds:g} s after the fault: {why}; {self._where()}")

    def _idle(self) -> str:
        """Return which worker has done no job since the fault was mended; "" if all have."""
        records = {worker.pid: worker for worker in self.watch.workers()}
        for seat in self.stage.workers:
            record = records.get(seat.pid)
            if record is None or record.state == "stuck" or record.jobs_done <= self._before.get(seat.pid, 0):
                return f"{seat.name} (pid {seat.pid}) has done no job yet: {record}"
        return ""

    def _missing(self) -> str:
        """Return who is not in Zookeeper as they should be, or taken for gone by the master; "" if all are there."""
        try:
            standing = {info.get("pid") for _, info in self.stage.candidates()}
            registered = list(self.stage.registered())
            self.stage.leader()
        except TrackerError as exc:
            return str(exc)
        absent = [seat.name for seat in self.stage.masters if seat.pid not in standing]
        absent += [s.name for s in self.stage.workers if not any(f"-{s.pid}-" in name for name in registered)]
        if absent:
            return f"not in Zookeeper: {', '.join(absent)}"
        gone = [s.name for s in self.stage.workers if any(f"-{s.pid}-" in process for process in self.watch.gone())]
        return f"the master takes {', '.join(gone)} for gone" if gone else ""

    def _look(self) -> None:
        """Let a moment pass; raise if the run is over, stands still, or has lost a process that nobody ended."""
        time.sleep(LOOK_SECONDS)
        self._raise_over()
        for seat in self.stage.seats.values():
            if seat.ended is not None:
                if self.replaces_masters and self.stage.was_deposed(seat):
                    self._replaced.append(seat.name)
                    self.stage.start(seat)
                    continue
                self.raise_if_over()
                raise Dl4jError(f"{seat.name} (pid {seat.pid}) ended by itself, with {seat.ended}")
        if self.watch.still_seconds > _STILL_SECONDS:
            raise HangError(f"no round was closed for {self.watch.still_seconds:.0f} s; {self._where()}")

    def raise_if_over(self) -> None:
        """Give the head a moment to tell that the run has ended; raise ``Over`` if it does."""
        time.sleep(_HEAD_SECONDS)
        self._raise_over()

    def _raise_over(self) -> None:
        head = self.watch.head
        if head is not None and head.status != "running":
            raise Over

    def _where(self) -> str:
        """Return how the run itself says that it stands."""
        workers = [f"{w.id} {w.state} {w.job}" for w in self.watch.workers()]
        news = [f"{entry.source}: {entry.line()}" for entry in self.watch.news()[-_LAST_ENTRIES:]]
        parts = [f"in round {self.round}", self.watch.trouble, *workers, *news]
        return "\n    ".join(part for part in parts if part)

    def finish(self) -> None:
        """Wait for the run's end, and for that of all its processes; raises ``Dl4jError`` if they do not end well.

        Those that came so late that they may have found no run any more are ended.
        """
        try:
            while True:
                self._look()
        except Over:
            pass
        head = self.watch.head
        if head is None or head.status != "done":
            raise Dl4jError(f"the run ended with {head}")
        over = time.monotonic()
        end = over + _LEAVE_SECONDS
        for seat in self.stage.seats.values():
            if seat.started > over - _LATE_SECONDS:
                seat.signal(signal.SIGKILL)
        seats = [seat for seat in self.stage.seats.values() if seat.started <= over - _LATE_SECONDS]
        while any(seat.ended is None for seat in seats):
            if time.monotonic() > end:
                late = [seat.name for seat in seats if seat.ended is None]
                raise HangError(f"{', '.join(late)} did not leave within {_LEAVE_SECONDS:g} s of the run's end")
            time.sleep(LOOK_SECONDS)
        badly = [f"{seat.name} with {seat.ended}" for seat in seats if seat.ended != 0]
        if badly:
            raise Dl4jError(f"the run was done, and yet there ended {', '.join(badly)}")
