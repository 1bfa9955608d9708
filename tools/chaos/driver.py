"""Injects one fault after another into runs over processes, and checks that they end as if nothing had happened.

The same training is run as often as needed, and each run is compared with the embedded tracker's result. The necessary
length of a run depends on the machine: if a run ends before a fault, the fault is injected again, and if a run
recovered from no fault at all, the next runs are twice as long. Every wait has a deadline, and a missed deadline is
reported as a problem.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dl4jlegacy.errors import Dl4jError, UsageError
from dl4jlegacy.scaleout.strategies import create_router
from dl4jlegacy.services.jars import fetch_jars, pinned_jars
from dl4jlegacy.system.exits import Stopped
from tools.chaos import network
from tools.chaos.faults import DETECTION_GOALS, ActiveFault, inject
from tools.chaos.report import ChaosReport, FaultResult, RunResult
from tools.chaos.run import POLL_SECONDS, HangError, Run, RunEnded
from tools.chaos.schedule import AT_THE_END, Fault, draw_faults
from tools.chaos.testbed import TestBed, TestBedOptions
from tools.chaos.watcher import RunWatcher

__all__ = ["ChaosOptions", "Driver", "run_chaos"]

_LOSES_SESSIONS = ("zookeeper-kill", "zookeeper-freeze")
_NEED_LINK = ("partition", "packet-loss", "member-partition")
_NEED_MAJORITY = ("member-long-freeze", "member-partition")
"""With two members both sides would serve, and one side would lose its data."""
_RECOVERY_SECONDS = 180.0
_START_SECONDS = 180.0
_SPARE_SECONDS = 12.0  # time that a run needs to recover from a fault
_DETECTION_SECONDS = 6.0
_LEAST_ROUNDS, _MOST_ROUNDS = 500, 5000  # start and end of a run take as long as several faults
_ROUNDS_PER_FAULT = 250
_BESIDE_SECONDS = 600.0
_ACCOUNT = ("batches", "examples", "batches_lost", "batches_duplicated")


def compared_fields(router: str, router_args: str = "{}") -> tuple[str, ...]:
    """Return the report fields that must equal the embedded tracker's; asynchronous parameters depend on timing."""
    return (
        ("params_sha256", "rounds", *_ACCOUNT)
        if create_router(router, json.loads(router_args)).binds_model
        else _ACCOUNT
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosOptions:
    """Options of a chaos run.

    Attributes:
        faults: number of faults.
        seed: of the faults and of the training.
        workers: number of worker processes.
        kinds: kinds of faults; those that this machine does not allow are named in the report.
        rounds: approximate number of rounds of the first run; 0: derived from the number of faults.
        router, router_args: of the runs.
        side_by_side: whether a second run is active on the same servers.
        hostile_neighbour: whether a process without the secret writes to the servers meanwhile.
        keep: a folder for all logs; a temporary one by default, which stays if anything went wrong.
    """

    faults: int
    seed: int
    workers: int
    kinds: tuple[str, ...]
    rounds: int = 0
    router: str = "iterative-reduce"
    router_args: str = "{}"
    side_by_side: bool = False
    hostile_neighbour: bool = False
    keep: Path | None = None


def run_chaos(options: ChaosOptions, say: Callable[[str], None]) -> ChaosReport:
    """Inject the faults of a seed into runs with their own servers and processes; return the report.

    If it is interrupted, it prints the report so far with ``say``.

    This process moves into namespaces of its own if the faults need that: call this from the main thread, before other
    threads are started, and do nothing else after it.

    Args:
        options: of the chaos run.
        say: called with each line of progress.

    Raises:
        UsageError: this machine allows none of the faults, or the folder cannot be used or is not empty.
    """
    no_link, no_disk = network.why_no_lossy_link(), network.why_no_small_disk()
    runnable, not_run = _runnable(options.kinds, no_link, say)
    link = any(kind in _NEED_LINK for kind in runnable)
    schedule = draw_faults(options.seed, options.faults, runnable, options.workers)
    with _log_folder(options.keep, say) as folder:
        for server in ("hazelcast", "zookeeper"):
            fetch_jars(pinned_jars(server))  # while the machine's network is still available
        if link or not no_disk:
            network.enter_own_namespaces(network=link)
        driver = Driver(schedule, say)
        what = TestBedOptions(
            workers=options.workers,
            rounds=options.rounds or min(_MOST_ROUNDS, _LEAST_ROUNDS + _ROUNDS_PER_FAULT * options.faults),
            seed=options.seed,
            lossy_link=link,
            small_disk=not no_disk,
            router=options.router,
            router_args=options.router_args,
            hostile_neighbour=options.hostile_neighbour,
            beside=options.side_by_side,
            members=3 if any(kind in _NEED_MAJORITY for kind in runnable) else 2,
            divisible="member-partition" in runnable,
        )
        so_far = ChaosReport(
            seed=options.seed,
            workers=options.workers,
            kinds=tuple(runnable),
            router=options.router,
            router_args=options.router_args,
            side_by_side=options.side_by_side,
            hostile_neighbour=options.hostile_neighbour,
            rounds_asked_for=options.rounds,
            not_run=not_run,
            schedule=schedule,
            folder="" if options.keep is None else str(folder.path),
        )
        with TestBed(folder.path, what, temporary=options.keep is None) as test_bed:
            try:
                driver.run_all(test_bed)
            except Stopped:
                say(driver.report(so_far, test_bed).text())
                raise
            report = driver.report(so_far, test_bed)
        folder.stays = options.keep is not None or bool(driver.problems)
    return msgspec.structs.replace(report, folder=str(folder.path) if folder.stays else "")


def _runnable(kinds: Sequence[str], no_link: str, say: Callable[[str], None]) -> tuple[list[str], dict[str, str]]:
    """Return the kinds that this machine allows, and the reason for each one that it does not.

    ``no_link`` says why there can be no lossy link, "" if there can be one.

    Raises:
        UsageError: no kind is left.
    """
    not_run = {kind: no_link for kind in kinds if no_link and kind in _NEED_LINK}
    for kind, why in not_run.items():
        say(f"{kind} is not run: {why}")
    runnable = [kind for kind in kinds if kind not in not_run]
    if not runnable:
        raise UsageError(
            f"none of the faults {', '.join(kinds)} can be had here: {no_link}; choose others with --kinds"
        )
    return runnable, not_run


@dataclass(slots=True)
class _LogFolder:
    """The folder of all output, and whether it stays at the end for people to read."""

    path: Path
    stays: bool = True


@contextlib.contextmanager
def _log_folder(keep: Path | None, say: Callable[[str], None]) -> Iterator[_LogFolder]:
    """Make the folder; remove it at the end unless it ``stays``. A temporary one is removed on Ctrl-C in any case.

    Raises:
        UsageError: it cannot be made, or is not empty.
    """
    if keep is not None:
        try:
            keep.mkdir(parents=True, exist_ok=True)
            used = any(keep.iterdir())
        except OSError as exc:
            raise UsageError(f"--keep {keep} is no folder for logs: {exc.strerror or exc}; name another one") from exc
        if used:
            raise UsageError(f"--keep {keep} is not empty; name a folder that is, or one that does not exist yet")
    folder = _LogFolder((keep or Path(tempfile.mkdtemp(prefix="dl4j-chaos-"))).absolute())
    try:
        yield folder
    except Exception:  # the logs are needed to understand the error
        say(f"the logs are in {folder.path}")
        raise
    except BaseException:  # interrupted
        folder.stays = keep is not None
        raise
    finally:
        if not folder.stays:
            shutil.rmtree(folder.path, ignore_errors=True)


class Driver:
    """Injects the faults of a schedule, and collects the results. Used by one thread."""

    def __init__(self, schedule: Sequence[Fault], say: Callable[[str], None]) -> None:
        self._left, self._say = list(schedule), say
        self.results: list[FaultResult] = []
        self.runs: list[RunResult] = []
        self.problems: list[str] = []
        self.expected: dict[str, Any] = {}
        self.hangs = 0
        self._usual_rates: list[float] = []
        self._begun = time.monotonic()

    def run_all(self, test_bed: TestBed) -> None:
        """Inject all faults, or those before the first problem."""
        self._train_embedded(test_bed)
        number = 0
        while self._left and not self.problems:
            number, before = number + 1, len(self.results)
            try:
                self._run(test_bed, f"chaos-{number}")
            except Dl4jError as exc:
                self.hangs += isinstance(exc, HangError)
                self._add_problem(f"run {test_bed.run_name}: {exc}", test_bed)
            test_bed.clear()
            if test_bed.beside is not None:
                test_bed.beside.clear()
            if self._left and not self.problems and len(self.results) == before:
                test_bed.lengthen()
                self._train_embedded(test_bed)

    def report(self, asked: ChaosReport, test_bed: TestBed) -> ChaosReport:
        """Return the report ``asked`` completed with the results so far."""
        return msgspec.structs.replace(
            asked,
            faults=tuple(self.results),
            runs=tuple(self.runs),
            hangs=self.hangs,
            problems=tuple(self.problems),
            neighbour=test_bed.neighbour.done if test_bed.neighbour is not None else {},
            seconds=round(time.monotonic() - self._begun, 1),
        )

    def _train_embedded(self, test_bed: TestBed) -> None:
        """Get the expected result of this test bed's runs from the embedded tracker."""
        self.expected = test_bed.train_embedded()
        self._say(f"{self.expected['rounds']} rounds a run, sha256 {self.expected['params_sha256']}")

    def _add_problem(self, problem: str, test_bed: TestBed) -> None:
        self.problems.append(problem)
        self._say(f"PROBLEM {problem}\n  {test_bed.describe()}")

    def _run(self, test_bed: TestBed, name: str) -> None:
        """Start a run, inject as many faults as fit into it, let it end, and compare its result."""
        begun, before = time.monotonic(), len(self.results)
        test_bed.start_run(name)
        if test_bed.beside is not None:
            test_bed.beside.start_run(f"{name}-beside")
        with RunWatcher(test_bed.tracker) as watcher:
            run = Run(test_bed, watcher, self._usual_rates)
            try:
                run.wait_until_recovered(None, _START_SECONDS)
                if test_bed.neighbour is not None:
                    test_bed.neighbour.start()
                while (
                    self._left
                    and self._left[0].kind != AT_THE_END
                    and (len(self.results) == before or self._has_room(watcher))
                ):
                    result = self._inject(run, self._left[0])
                    self._say(result.line())
                    if result.full_seconds is not None:
                        self.results.append(result)
                        del self._left[0]
                if self._has_next(AT_THE_END, wanted=True):
                    self._end_with(run, self._left[0])
            except RunEnded:
                self._say(f"run {name} has ended")
            run.finish()
        if test_bed.neighbour is not None:
            test_bed.neighbour.stop()
        self._compare(test_bed, time.monotonic() - begun, len(self.results) - before)
        if test_bed.beside is not None:
            test_bed.beside.wait_for_end(_BESIDE_SECONDS)
            self._compare(test_bed.beside, time.monotonic() - begun, 0)

    def _end_with(self, run: Run, fault: Fault) -> None:
        """Kill the master at the moment when the run is done, and wait until another master has finished the run."""
        name = run.kill_master_when_done()
        clock = time.monotonic()
        run.finish()
        result = FaultResult(
            fault=fault,
            run=run.test_bed.run_name,
            round=run.round,
            at_seconds=round(clock - self._begun, 2),
            full_seconds=round(time.monotonic() - clock, 2),
            note=name,
        )
        self._say(result.line())
        self.results.append(result)
        del self._left[0]

    def _has_next(self, kind: str, *, wanted: bool) -> bool:
        """Return whether a fault is left, and the next one is of this kind (or is not)."""
        return bool(self._left) and (self._left[0].kind == kind) is wanted

    def _has_room(self, watcher: RunWatcher) -> bool:
        left: int = self.expected["rounds"] - (watcher.head.round if watcher.head is not None else 0)
        return left > _SPARE_SECONDS * max(self._usual_rates)

    def _inject(self, run: Run, fault: Fault) -> FaultResult:
        """Wait for the fault's round, inject the fault, undo it, and wait until the run has recovered."""
        run.wait_rounds(fault.after_rounds)
        run.watcher.new_entries()
        round_, at, clock = run.round, time.time(), time.monotonic()
        try:
            active = inject(run.test_bed, fault)
            run.sustain(fault, active)
        except Dl4jError:
            run.raise_if_ended()  # no fault can be injected into a run that has ended
            raise
        run.replaces_masters = any(one.kind in _LOSES_SESSIONS for one in (fault, *fault.parts))
        full: float | None = None
        with contextlib.suppress(RunEnded):
            full = run.wait_until_recovered(clock, _RECOVERY_SECONDS) - clock
        detected = _detection_seconds(run, active, at, wait=fault.kind in DETECTION_GOALS and full is not None)
        return FaultResult(
            fault=fault,
            run=run.test_bed.run_name,
            round=round_,
            at_seconds=round(clock - self._begun, 2),
            detection_seconds=detected,
            full_seconds=None if full is None else round(full, 2),
            note="; ".join(part for part in (active.note, run.take_replaced()) if part),
        )

    def _compare(self, test_bed: TestBed, seconds: float, faults: int) -> None:
        """Compare the run's result with the embedded tracker's."""
        reports = [report for report in test_bed.reports() if "params_sha256" in report]
        if not reports:
            self._add_problem(f"run {test_bed.run_name} ended, and no master has reported its result", test_bed)
            return
        report, compared = reports[-1], compared_fields(test_bed.options.router, test_bed.options.router_args)
        result = RunResult(
            run=test_bed.run_name,
            rounds=report["rounds"],
            faults=faults,
            seconds=round(seconds, 1),
            batches_lost=report["batches_lost"],
            batches_duplicated=report["batches_duplicated"],
            updates_dropped=report["updates_dropped"],
            params_sha256=report["params_sha256"],
            expected_sha256=self.expected["params_sha256"] if "params_sha256" in compared else "",
        )
        self.runs.append(result)
        self._say(f"run {result.run}: {faults} faults, {result.seconds} s, sha256 {result.params_sha256}")
        for name in compared:
            if report[name] != self.expected[name]:
                self._add_problem(
                    f"run {result.run}: {name} is {report[name]}, it should be {self.expected[name]}", test_bed
                )


def _detection_seconds(run: Run, active: ActiveFault, at: float, *, wait: bool) -> float | None:
    """Return the seconds from ``at`` until the journal named the fault; with ``wait`` wait a while for its entry."""
    entries = run.watcher.new_entries()
    detected, end = active.detected(entries, at), time.monotonic() + _DETECTION_SECONDS
    while detected is None and wait and time.monotonic() < end:
        time.sleep(POLL_SECONDS)
        entries += run.watcher.new_entries()
        detected = active.detected(entries, at)
    return detected
