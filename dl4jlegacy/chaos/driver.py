"""Breaks one thing after another in a run over processes, and sees that it comes out as if nothing had happened.

As many runs of the same training as it takes follow each other, each with its own comparison with the embedded
tracker's answer: how long one is never depends on how quickly faults were overcome. Every wait has a deadline, and one
that is missed is a finding.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from dl4jlegacy.chaos import network
from dl4jlegacy.chaos.faults import GOALS, Wound, strike
from dl4jlegacy.chaos.report import ChaosReport, Overcome, RunEnd
from dl4jlegacy.chaos.schedule import Fault, draw
from dl4jlegacy.chaos.stage import Setting, Stage
from dl4jlegacy.chaos.watch import Watch, last_slow_moment
from dl4jlegacy.errors import DeadlineError, Dl4jError, TrackerError
from dl4jlegacy.scaleout.journal import Entry
from dl4jlegacy.services.jars import fetch_jars, pinned_jars

__all__ = ["run_chaos"]

_LOOK_SECONDS = 0.1
_STILL_SECONDS = 45.0  # without a new model version, longer than a lease: a hang
_FULL_SECONDS = 90.0
_BEGIN_SECONDS = 90.0
_WINDOW_SECONDS = 1.0
_FULL_SHARE = 0.6  # of the usual rounds per second: this machine has other work too
_USUAL = 9  # windows that say what is usual
_SPARE_SECONDS = 12.0  # of a run, to overcome a fault in
_LEAVE_SECONDS = 60.0
_LATE_SECONDS = 5.0
_NOTICE_SECONDS = 6.0
_LAST_ENTRIES = 20
_MOST_ROUNDS = 2000


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
    """
    wire, disk = network.wire_hindrance(), network.disk_hindrance()
    wanted = any(kind in ("partition", "packet-loss") for kind in kinds)
    not_run = {kind: wire for kind in kinds if wire and kind in ("partition", "packet-loss")}
    for kind, why in not_run.items():
        say(f"{kind} is not run: {why}")
    runnable = [kind for kind in kinds if kind not in not_run]
    setting = Setting(workers, min(_MOST_ROUNDS, 150 + 80 * count), seed, wanted and not wire, not disk)
    for server in ("hazelcast", "zookeeper"):
        fetch_jars(pinned_jars(server))  # while we still have the machine's network
    if setting.wires or setting.small_disk:
        network.enter_own_namespaces(network=setting.wires)
    folder = keep or Path(tempfile.mkdtemp(prefix="dl4j-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    schedule = draw(seed, count, runnable, workers) if runnable else ()
    driver = _Driver(folder.absolute(), setting, schedule, say)
    begun = time.monotonic()
    driver.play()
    if not driver.problems and keep is None:
        shutil.rmtree(folder, ignore_errors=True)
    return ChaosReport(
        seed=seed,
        workers=workers,
        kinds=tuple(runnable),
        not_run=not_run,
        schedule=schedule,
        faults=tuple(driver.overcome),
        runs=tuple(driver.runs),
        expected_sha256=driver.expected.get("params_sha256", ""),
        hangs=driver.hangs,
        problems=tuple(driver.problems),
        seconds=round(time.monotonic() - begun, 1),
        folder=str(folder) if driver.problems or keep is not None else "",
    )


class _Driver:
    """Plays a schedule. Used from one thread."""

    def __init__(self, folder: Path, setting: Setting, schedule: Sequence[Fault], say: Callable[[str], None]) -> None:
        self._folder, self._setting, self._left, self._say = folder, setting, list(schedule), say
        self.overcome: list[Overcome] = []
        self.runs: list[RunEnd] = []
        self.problems: list[str] = []
        self.expected: dict[str, Any] = {}
        self.hangs = 0
        self._usual: list[float] = []
        self._begun = time.monotonic()
        self._changing: set[str] = set()  # seats whose process may end

    def play(self) -> None:
        """Do all faults, or those until the first problem."""
        with Stage(self._folder, self._setting) as stage:
            self.expected = stage.expected()()
            self._say(f"{self.expected['rounds']} rounds a run, sha256 {self.expected['params_sha256']}")
            number = 0
            while self._left and not self.problems:
                number += 1
                try:
                    self._run(stage, f"chaos-{number}")
                except Dl4jError as exc:
                    self.hangs += isinstance(exc, _HangError)
                    self._find(f"run {stage.run}: {exc}", stage)
                stage.clear()

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
                    self.overcome.append(result)
                    self._say(result.line())
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
        wound = strike(act.stage, fault)
        self._left.pop(0)
        act.wound(fault, wound)
        full: float | None = None
        with contextlib.suppress(_Over):
            full = act.settle(clock, _FULL_SECONDS) - clock
        noticed = _noticed(entries := act.watch.news(), wound, at)
        end = time.monotonic() + _NOTICE_SECONDS
        while noticed is None and fault.kind in GOALS and full is not None and time.monotonic() < end:
            time.sleep(_LOOK_SECONDS)
            noticed = _noticed(entries := [*entries, *act.watch.news()], wound, at)
        return Overcome(
            fault=fault,
            run=act.stage.run,
            round=round_,
            at_seconds=round(clock - self._begun, 2),
            detection_seconds=noticed,
            full_seconds=None if full is None else round(full, 2),
            note=wound.note,
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
        """Return who is not in Zookeeper as they should be; "" if all are."""
        try:
            standing = {info.get("pid") for _, info in self.stage.candidates()}
            registered = list(self.stage.registered())
            self.stage.leader()
        except TrackerError as exc:
            return str(exc)
        absent = [seat.name for seat in self.stage.masters if seat.pid not in standing]
        absent += [s.name for s in self.stage.workers if not any(f"-{s.pid}-" in name for name in registered)]
        return f"not in Zookeeper: {', '.join(absent)}" if absent else ""

    def _look(self) -> None:
        """Let a moment pass; raise if the run is over, stands still, or has lost a process that nobody ended."""
        time.sleep(_LOOK_SECONDS)
        head = self.watch.head
        if head is not None and head.status != "running":
            raise _Over
        for seat in self.stage.seats.values():
            if seat.ended is not None:
                time.sleep(1.0)  # the head may tell that the run is over
                head = self.watch.head
                if head is not None and head.status != "running":
                    raise _Over
                raise Dl4jError(f"{seat.name} (pid {seat.pid}) ended by itself, with {seat.ended}")
        if self.watch.still_seconds > _STILL_SECONDS:
            raise _HangError(f"no round was closed for {self.watch.still_seconds:.0f} s; {self._where()}")

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


def _noticed(entries: Sequence[Entry], wound: Wound, at: float) -> float | None:
    """Return how long it took until the journal had named all that were missed; None if it did not."""
    told = [entry for entry in entries if entry.event == wound.event and entry.time >= at]
    if not wound.missed:
        return round(told[0].time - at, 3) if told else None
    moments = []
    for pid in wound.missed:
        own = [e.time for e in told if f"-{pid}-" in f"{e.fields.get('process', '')}- {e.fields.get('worker', '')}-"]
        if not own:
            return None
        moments.append(min(own) - at)
    return round(max(moments), 3)
