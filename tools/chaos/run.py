"""One run on the test bed: waits until it has recovered from a fault, and reports what is wrong if it does not.

A run has recovered when every worker works, no process is missing, and rounds are closed as fast as before.
"""

from __future__ import annotations

import signal
import time
from statistics import median

from dl4jlegacy.errors import DeadlineError, Dl4jError, TrackerError
from tools.chaos.faults import ActiveFault
from tools.chaos.schedule import Fault
from tools.chaos.testbed import Process, TestBed
from tools.chaos.watcher import RunWatcher, last_slow_moment

__all__ = ["POLL_SECONDS", "HangError", "Run", "RunEnded"]

POLL_SECONDS = 0.1
"""Seconds between two looks."""

_HEAD_SECONDS = 1.0
_HANG_SECONDS = 120.0  # without a new model version; longer than a lease, and than compiling on a busy machine
_WINDOW_SECONDS = 1.0
_RECOVERED_SHARE = 0.6  # of the usual rounds per second: the machine is also used otherwise
_USUAL_WINDOWS = 9
_LEAVE_SECONDS = 120.0
_DONE_POLL_SECONDS = 0.002
_LATE_SECONDS = 5.0
_JOURNAL_ENTRIES = 20


class HangError(DeadlineError):
    """The run made no progress."""


class RunEnded(Exception):  # noqa: N818  # not an error
    """The run has ended."""


class Run:
    """One run on the test bed. Used by one thread.

    Args:
        test_bed: runs the processes.
        watcher: reads the run's tracker.
        usual_rates: rounds per second seen after earlier faults; this run appends to them.
    """

    def __init__(self, test_bed: TestBed, watcher: RunWatcher, usual_rates: list[float]) -> None:
        self.test_bed, self.watcher, self._usual_rates = test_bed, watcher, usual_rates
        self.replaces_masters = False
        """Whether a master whose session Zookeeper has lost may end, because another one then leads."""
        self._replaced: list[str] = []
        self._jobs_before: dict[int, int] = {}
        self._worker_was_lost = False
        self._killed: Process | None = None

    @property
    def round(self) -> int:
        """The present round of the run."""
        head = self.watcher.head
        return 0 if head is None else head.round

    def wait_rounds(self, count: int) -> None:
        """Wait until ``count`` more rounds are closed."""
        target = self.round + count
        while self.round < target:
            self._poll()

    def sustain(self, fault: Fault, active: ActiveFault) -> None:
        """Let a fault last for its duration, record how many jobs each worker has done by then, and undo the fault."""
        end = time.monotonic() + fault.seconds
        while time.monotonic() < end:
            time.sleep(min(POLL_SECONDS, max(0.0, end - time.monotonic())))
        self._jobs_before = {worker.pid: worker.jobs_done for worker in self.watcher.workers()}
        self._worker_was_lost = bool(active.missing_pids)
        active.recover()

    def take_replaced(self) -> str:
        """Return a note on the masters replaced since the last call, "" if none."""
        names, self._replaced = self._replaced, []
        return f"its session lost, {', '.join(names)} had to give way to a standby" if names else ""

    def wait_until_recovered(self, since: float | None, seconds: float) -> float:
        """Return the time (monotonic clock) from which on all processes worked at the usual speed.

        Args:
            since: the moment of the fault; now by default.
            seconds: longest time to wait.

        Raises:
            DeadlineError: this did not happen within ``seconds``. Dl4jError: a process has ended. RunEnded: the run has
                ended.
        """
        begun, working = time.monotonic(), 0.0
        since, end = begun if since is None else since, begun + seconds
        while True:
            self._poll()
            now = time.monotonic()
            least = _RECOVERED_SHARE * (median(self._usual_rates) if self._usual_rates else 0.1)
            problem = self._idle_worker()
            if not problem and not working:
                working = now
            slow = last_slow_moment(
                self.watcher.samples, since=since, until=now, window=_WINDOW_SECONDS, least_rate=least
            )
            if now - max(slow, begun) < _WINDOW_SECONDS:
                problem = problem or f"{self.watcher.rate(_WINDOW_SECONDS):.1f} rounds/s; {least:.1f} are wanted"
            problem = problem or self._missing_processes()
            if not problem:
                self._usual_rates.append(self.watcher.rate(_WINDOW_SECONDS))
                del self._usual_rates[:-_USUAL_WINDOWS]
                return max(slow, working) if self._worker_was_lost else slow
            if now > end:
                raise DeadlineError(f"not recovered {seconds:g} s after the fault: {problem}; {self._describe()}")

    def _idle_worker(self) -> str:
        """Return a worker that has done no job since the fault was undone; "" if all have."""
        records = {worker.pid: worker for worker in self.watcher.workers()}
        for process in self.test_bed.workers:
            record, before = records.get(process.pid), self._jobs_before.get(process.pid, 0)
            if record is None or record.state == "stuck" or record.jobs_done <= before:
                return f"{process.name} (pid {process.pid}) has done no job yet: {record}"
        return ""

    def _missing_processes(self) -> str:
        """Return the processes that Zookeeper does not list or the master considers gone; "" if none."""
        try:
            candidates = {info.get("pid") for _, info in self.test_bed.candidates()}
            registered = list(self.test_bed.registered())
            self.test_bed.leader()
        except TrackerError as exc:
            return str(exc)
        masters, workers = self.test_bed.masters, self.test_bed.workers
        absent = [master.name for master in masters if master.pid not in candidates]
        absent += [worker.name for worker in workers if not any(f"-{worker.pid}-" in name for name in registered)]
        if absent:
            return f"not in Zookeeper: {', '.join(absent)}"
        gone = [worker.name for worker in workers if any(f"-{worker.pid}-" in name for name in self.watcher.gone())]
        return f"the master considers {', '.join(gone)} gone" if gone else ""

    def _poll(self) -> None:
        """Wait a moment; raise if the run has ended or makes no progress, or if a process has ended by itself."""
        time.sleep(POLL_SECONDS)
        self._raise_ended()
        for process in self.test_bed.processes.values():
            if process.exit_status is not None and process is not self._killed:
                if self.replaces_masters and self.test_bed.was_deposed(process):
                    self._replaced.append(process.name)
                    self.test_bed.start(process)
                    continue
                self.raise_if_ended(_LEAVE_SECONDS if process.exit_status == 0 else _HEAD_SECONDS)
                raise Dl4jError(f"{process.name} (pid {process.pid}) ended by itself, with {process.exit_status}")
        idle = self.watcher.seconds_without_progress
        if self.watcher.head is None:
            return  # it has not begun; the caller has a deadline for that
        if idle > _HANG_SECONDS:
            raise HangError(f"no round was closed for {idle:.0f} s; {self._describe()}")

    def raise_if_ended(self, seconds: float = _HEAD_SECONDS) -> None:
        """Wait at most ``seconds`` for the run to report its end; raise ``RunEnded`` if it does."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(POLL_SECONDS)
            self._raise_ended()

    def _raise_ended(self) -> None:
        if self._status() != "running":
            raise RunEnded

    def _status(self) -> str:
        """Return the run's status, from the newest head that was seen or from the report of its result.

        A finished run is soon removed from the grid: a reader that could not read it just then never sees its last
        head.
        """
        if any("params_sha256" in report for report in self.test_bed.reports()):
            return "done"
        return "running" if self.watcher.head is None else self.watcher.head.status

    def _describe(self) -> str:
        """Return the state of the run from its tracker and journal."""
        workers = [f"{w.id} {w.state} {w.job}" for w in self.watcher.workers()]
        entries = [f"{entry.source}: {entry.line()}" for entry in self.watcher.new_entries()[-_JOURNAL_ENTRIES:]]
        parts = [f"in round {self.round}", self.watcher.error, *workers, *entries]
        return "\n    ".join(part for part in parts if part)

    def kill_master_when_done(self) -> str:
        """Kill the leading master as soon as the head says that the run is done; return the master's name.

        Raises:
            Dl4jError: no master leads. HangError: the run makes no progress.
        """
        leader, tracker = self.test_bed.leader(), self.test_bed.tracker()
        try:
            while (head := tracker.head()) is None or head.status == "running":
                if self.watcher.seconds_without_progress > _HANG_SECONDS:
                    raise HangError(f"the run does not come to its end; {self._describe()}")
                time.sleep(_DONE_POLL_SECONDS)
            leader.signal(signal.SIGKILL)
        finally:
            tracker.shutdown()
        self._killed = leader
        return leader.name

    def finish(self) -> None:
        """Wait until the run and all its processes have ended.

        Processes that were restarted so late that they may not have found the run any more are killed. A master that
        was frozen while the run ended must report that.

        Raises:
            Dl4jError: the run or a process did not end well. HangError: a process does not end.
        """
        try:
            while True:
                self._poll()
        except RunEnded:
            pass
        if self._status() != "done":
            raise Dl4jError(f"the run ended with {self.watcher.head}")
        ended = time.monotonic()
        deadline = ended + _LEAVE_SECONDS
        processes = []
        for process in self.test_bed.processes.values():
            if process is self._killed:
                continue
            if process.started > ended - _LATE_SECONDS or (process.starts > 1 and not process.takes_part):
                process.signal(signal.SIGKILL)
            else:
                processes.append(process)
        while late := [process.name for process in processes if process.exit_status is None]:
            if time.monotonic() > deadline:
                raise HangError(f"{', '.join(late)} did not leave within {_LEAVE_SECONDS:g} s of the run's end")
            time.sleep(POLL_SECONDS)
        failed = [
            f"{process.name} ended with {process.exit_status}"
            for process in processes
            if process.exit_status and not self.test_bed.slept_through_end(process)
        ]
        if failed:
            raise Dl4jError(f"the run was done, but {', '.join(failed)}")
        if not self.test_bed.model.exists():
            raise Dl4jError(f"the run was done, and no master has written {self.test_bed.model}")
