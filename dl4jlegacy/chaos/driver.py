"""Breaks one thing after another in a run over processes, and sees that it comes out as if nothing had happened.

As many runs of the same training as it takes follow each other, each compared with the embedded tracker's answer. How
long one has to be depends on the machine: a fault that the end of its run overtakes is done again, and if not one could
be overcome, in runs twice as long. Every wait has a deadline, and one that is missed is a finding.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dl4jlegacy.chaos import network
from dl4jlegacy.chaos.act import LOOK_SECONDS, Act, HangError, Over
from dl4jlegacy.chaos.faults import GOALS, strike
from dl4jlegacy.chaos.report import ChaosReport, Overcome, RunEnd
from dl4jlegacy.chaos.schedule import Fault, draw
from dl4jlegacy.chaos.stage import Setting, Stage
from dl4jlegacy.chaos.watch import Watch
from dl4jlegacy.errors import Dl4jError, UsageError
from dl4jlegacy.services.jars import fetch_jars, pinned_jars

__all__ = ["run_chaos"]

_WIRED = ("partition", "packet-loss")
_FULL_SECONDS = 90.0
_BEGIN_SECONDS = 90.0
_SPARE_SECONDS = 12.0  # of a run, to overcome a fault in
_NOTICE_SECONDS = 6.0
_LEAST_ROUNDS, _MOST_ROUNDS = 500, 5000  # beginning a run, and letting it end, takes as long as several faults do
_ROUNDS_A_FAULT = 250


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
    runnable, not_run = _runnable(kinds, wire, say)
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


def _runnable(kinds: Sequence[str], wire: str, say: Callable[[str], None]) -> tuple[list[str], dict[str, str]]:
    """Return the kinds that this machine allows, and why not the others; raises ``UsageError`` if there is none.

    ``wire`` is what keeps it from those that need a network of its own, "" if nothing does.
    """
    not_run = {kind: wire for kind in kinds if wire and kind in _WIRED}
    for kind, why in not_run.items():
        say(f"{kind} is not run: {why}")
    runnable = [kind for kind in kinds if kind not in not_run]
    if not runnable:
        raise UsageError(f"none of the faults {', '.join(kinds)} can be had here: {wire}; choose others with --kinds")
    return runnable, not_run


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
                self.hangs += isinstance(exc, HangError)
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
            act = Act(stage, watch, self._usual)
            try:
                act.settle(None, _BEGIN_SECONDS)
                while self._left and (len(self.overcome) == done or self._has_room(watch)):
                    result = self._one(act, self._left[0])
                    self._say(result.line())
                    if result.full_seconds is not None:
                        self.overcome.append(result)
                        del self._left[0]
            except Over:
                self._say(f"run {run} has ended")
            act.finish()
        self._compare(stage, time.monotonic() - begun, len(self.overcome) - done)

    def _has_room(self, watch: Watch) -> bool:
        left: int = self.expected["rounds"] - (watch.head.round if watch.head is not None else 0)
        return left > _SPARE_SECONDS * max(self._usual)

    def _one(self, act: Act, fault: Fault) -> Overcome:
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
        with contextlib.suppress(Over):
            full = act.settle(clock, _FULL_SECONDS) - clock
        noticed = wound.noticed(entries := act.watch.news(), at)
        end = time.monotonic() + _NOTICE_SECONDS
        while noticed is None and fault.kind in GOALS and full is not None and time.monotonic() < end:
            time.sleep(LOOK_SECONDS)
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
