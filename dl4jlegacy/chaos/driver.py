"""Breaks one thing after another in a run over processes, and sees that it comes out as if nothing had happened.

As many runs of the same training as it takes follow each other, each compared with the embedded tracker's answer. How
long one has to be depends on the machine: a fault that the end of its run overtakes is done again, and if not one could
be overcome, in runs twice as long. Every wait has a deadline, and one that is missed is a finding.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from dl4jlegacy.chaos import network
from dl4jlegacy.chaos.faults import GOALS, Wound, strike
from dl4jlegacy.chaos.report import ChaosReport, Overcome, RunEnd
from dl4jlegacy.chaos.schedule import Fault, draw
from dl4jlegacy.chaos.stage import Setting, Stage
from dl4jlegacy.chaos.watch import Watch, last_slow_moment
from dl4jlegacy.errors import DeadlineError, Dl4jError, TrackerError, UsageError
from dl4jlegacy.services.jars import fetch_jars, pinned_jars

__all__ = ["run_chaos"]

_WIRED = ("partition", "packet-loss")
_LOOK_SECONDS = 0.1
_HEAD_SECONDS = 1.0
_STILL_SECONDS = 45.0  # without a new model version, longer than a lease: a hang
_FULL_SECONDS = 90.0
_BEGIN_SECONDS = 90.0
_WINDOW_SECONDS = 1.0
_FULL_SHARE = 0.6  # of the usual rounds per second: this machine has other work too
_USUAL = 9  # windows that say what is usual
_SPARE_SECONDS = 10.0  # of a run, to overcome a fault in
_LEAVE_SECONDS = 60.0
_LATE_SECONDS = 5.0
_NOTICE_SECONDS = 6.0
_LAST_ENTRIES = 20
_LEAST_ROUNDS, _MOST_ROUNDS = 400, 5000  # beginning a run, and letting it end, takes as long as several faults do
_ROUNDS_A_FAULT = 200


class _HangError(DeadlineError):
    """The run stood still."""


class _Over(Exception):  # noqa: N818  # not an error
    """The run has come to its end."""


def run_chaos(
    count: int, seed: int, workers: int, kinds: Sequence[str], keep: Path | None, say: Callable[[str], None]
) -> ChaosReport:
    """Do the faults of a seed, with servers and processes of our own; return what came of it.

    This process moves into namespaces of its own where the faults need that: call it from the main thread, before
    others are started, and do nothing else after it.

    Args:
        count: how many faults.
        seed: of the faults and of the training.
        workers: how many worker processes.
        kinds: which faults; those that this machine does not allow are named in the report.
        keep: a folder for all logs; a temporary one by default, which stays if anything went wrong.
        say: is told how it goes, a line at a time.

    Raises:
        UsageError: this machine allows none of the faults, or the folder cannot be had or is not empty.
    """
    wire, disk = network.wire_hindrance(), network.disk_hindrance()
    not_run = {kind: wire for kind in kinds if wire and kind in _WIRED}
    for kind, why in not_run.items():
        say(f"{kind} is not run: {why}")
    runnable = [kind for kind in kinds if kind not in not_run]
    if not runnable:
        raise UsageError(f"none of the faults {', '.join(kinds)} can be had here: {wire}; choose others with --kinds")
    wires = any(kind in _WIRED for kind in runnable)
    schedule = draw(seed, count, runnable, workers)
    with _folder(keep, say) as folder:
        for server in ("hazelcast", "zookeeper"):
            fetch_jars(pinned_jars(server))  # while we still have the machine's network
        if wires or not disk:
            network.enter_own_namespaces(network=wires)
        driver = _Driver(schedule, say)
        begun = time.monotonic()
        setting = Setting(workers, min(_MOST_ROUNDS, _LEAST_ROUNDS + _ROUNDS_A_FAULT * count), seed, wires, not disk)
        with Stage(folder.path, setting, temporary=keep is None) as stage:
            driver.play(stage)
        folder.stays = keep is not None or bool(driver.problems)
    return ChaosReport(
        seed=seed,
        workers=workers,
        kinds=tuple(runnable),
        not_run=not_run,
        schedule=schedule,
        faults=tuple(driver.overcome),
        runs=tuple(driver.runs),
        hangs=driver.hangs,
        problems=tuple(driver.problems),
        seconds=round(time.monotonic() - begun, 1),
        folder=str(folder.path) if folder.stays else "",
    )


@dataclass(slots=True)
class _Folder:
    """Where everything writes, and whether it is there for people to read when all is over."""

    path: Path
    stays: bool = True


@contextlib.contextmanager
def _folder(keep: Path | None, say: Callable[[str], None]) -> Iterator[_Folder]:
    """Make the folder; remove it at the end unless it ``stays``. One that is not to be kept never outlives Ctrl-C.

    Raises:
        UsageError: it cannot be made, or there is something in it.
    """
    if keep is not None:
        try:
            keep.mkdir(parents=True, exist_ok=True)
            used = any(keep.iterdir())
        except OSError as exc:
            raise UsageError(f"--keep {keep} is no folder for logs: {exc.strerror or exc}; name another one") from exc
        if used:
            raise UsageError(f"--keep {keep} is not empty; name a folder that is, or one that does not exist yet")
    folder = _Folder((keep or Path(tempfile.mkdtemp(prefix="dl4j-chaos-"))).absolute())
    try:
        yield folder
    except Exception:  # whoever reads of it wants to see the logs
        say(f"the logs are in {folder.path}")
        raise
    except BaseException:  # interrupted
        folder.stays = keep is not None
        raise
    finally:
        if not folder.stays:
            shutil.rmtree(folder.path, ignore_errors=True)


class _Driver:
    """Plays a schedule. Used from one thread."""

    def __init__(self, schedule: Sequence[Fault], say: Callable[[str], None]) -> None:
        self._left, self._say = list(schedule), say
        self.overcome: list[Overcome] = []
        self.runs: list[RunEnd] = []
        self.problems: list[str] = []
        self.expected: dict[str, Any] = {}
        self.hangs = 0
        self._usual: list[float] = []
        self._begun = time.monotonic()

    def play(self, stage: Stage) -> None:
        """Do all faults, or those until the first problem."""
        self._expect(stage)
        number = 0
        while self._left and not self.problems:
            number, done = number + 1, len(self.overcome)
            try:
                self._run(stage, f"chaos-{number}")
            except Dl4jError as exc:
                self.hangs += isinstance(exc, _HangError)
                self._find(f"run {stage.run}: {exc}", stage)
            stage.clear()
            if self._left and not self.problems and len(self.overcome) == done:
                stage.setting = replace(stage.setting, rounds=2 * stage.setting.rounds)
                self._expect(stage)

    def _expect(self, stage: Stage) -> None:
        """Have the embedded tracker say how runs on this stage have to end."""
        self.expected = stage.expected()()
        self._say(f"{self.expected['rounds']} rounds a run, sha256 {self.expected['params_sha256']}")

    def _find(self, problem: str, stage: Stage) -> None:
        self.problems.append(problem)
        self._say(f"PROBLEM {problem}\n  {stage.where()}")

    def _run(self, stage: Stage, run: str) -> None:
        """Do as many faults as one run has room for; let it end, and compare."""
        begun, done = time.monotonic(), len(self.overcome)
        stage.begin(run)
        with Watch(stage.tracker) as watch:
            act = _Act(stage, watch, self._usual)
            try:
                act.settle(None, _BEGIN_SECONDS)
                while self._left and (len(self.overcome) == done or self._has_room(watch)):
                    result = self._one(act, self._left[0])
                    self._say(result.line())
                    if result.full_seconds is not None:
                        self.overcome.append(result)
                        del self._left[0]
            except _Over:
                self._say(f"run {run} has ended")
            act.finish()
        self._compare(stage, time.monotonic() - begun, len(self.overcome) - done)

    def _has_room(self, watch: Watch) -> bool:
        left: int = self.expected["rounds"] - (watch.head.round if watch.head is not None else 0)
        return left > _SPARE_SECONDS * max(self._usual)

    def _one(self, act: _Act, fault: Fault) -> Overcome:
        """Wait for the fault's moment, strike, mend, and wait until all is well."""
        act.wait_rounds(fault.after_rounds)
        act.watch.news()
        round_, at, clock = act.round, time.time(), time.monotonic()
        try:
            wound = strike(act.stage, fault)
            act.wound(fault, wound)
        except Dl4jError:
            act.raise_if_over()  # nothing can be done to a run that has ended meanwhile
            raise
        act.replaces_masters = fault.kind == "zookeeper-kill"
        full: float | None = None
        with contextlib.suppress(_Over):
            full = act.settle(clock, _FULL_SECONDS) - clock
        noticed = wound.noticed(entries := act.watch.news(), at)
        end = time.monotonic() + _NOTICE_SECONDS
        while noticed is None and fault.kind in GOALS and full is not None and time.monotonic() < end:
            time.sleep(_LOOK_SECONDS)
            noticed = wound.noticed(entries := [*entries, *act.watch.news()], at)
        return Overcome(
            fault=fault,
            run=act.stage.run,
            round=round_,
            at_seconds=round(clock - self._begun, 2),
            detection_seconds=noticed,
            full_seconds=None if full is None else round(full, 2),
            note="; ".join(part for part in (wound.note, act.replaced()) if part),
        )

    def _compare(self, stage: Stage, seconds: float, faults: int) -> None:
        reports = [report for report in stage.reports() if "params_sha256" in report]
        if not reports:
            self._find(f"run {stage.run} ended, and no master has reported its result", stage)
            return
        report = reports[-1]
        end = RunEnd(
            run=stage.run,
            rounds=report["rounds"],
            faults=faults,
            seconds=round(seconds, 1),
            batches_lost=report["batches_lost"],
            batches_duplicated=report["batches_duplicated"],
            updates_dropped=report["updates_dropped"],
            params_sha256=report["params_sha256"],
            expected_sha256=self.expected["params_sha256"],
        )
        self.runs.append(end)
        self._say(f"run {end.run}: {faults} faults, {end.seconds} s, sha256 {end.params_sha256}")
        for name in ("params_sha256", "rounds", "batches", "examples", "batches_lost", "batches_duplicated"):
            if report[name] != self.expected[name]:
                self._find(f"run {end.run}: {name} is {report[name]}, it should be {self.expected[name]}", stage)


class _Act:
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
            time.sleep(min(_LOOK_SECONDS, max(0.0, end - time.monotonic())))
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
            DeadlineError: not in ``seconds``. Dl4jError: a process has ended. _Over: the run has.
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
        time.sleep(_LOOK_SECONDS)
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
            raise _HangError(f"no round was closed for {self.watch.still_seconds:.0f} s; {self._where()}")

    def raise_if_over(self) -> None:
        """Give the head a moment to tell that the run has ended; raise ``_Over`` if it does."""
        time.sleep(_HEAD_SECONDS)
        self._raise_over()

    def _raise_over(self) -> None:
        head = self.watch.head
        if head is not None and head.status != "running":
            raise _Over

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
        except _Over:
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
                raise _HangError(f"{', '.join(late)} did not leave within {_LEAVE_SECONDS:g} s of the run's end")
            time.sleep(_LOOK_SECONDS)
        badly = [f"{seat.name} with {seat.ended}" for seat in seats if seat.ended != 0]
        if badly:
            raise Dl4jError(f"the run was done, and yet there ended {', '.join(badly)}")
