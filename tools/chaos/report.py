"""The report of a chaos run: each fault with the recovery from it, and whether anything was lost."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from statistics import median
from typing import Any

import msgspec

from tools.chaos.faults import DETECTION_GOALS
from tools.chaos.schedule import KINDS, Fault

__all__ = ["ChaosReport", "FaultResult", "RunResult"]


class FaultResult(msgspec.Struct, frozen=True, kw_only=True):
    """A fault and the recovery from it.

    Attributes:
        at_seconds: time of the fault in the chaos run.
        detection_seconds: from the fault until the run's journal named it (for a master: until another one had taken
            over); None if it did not, or is not expected to.
        full_seconds: from the fault until everything worked again and rounds were closed as fast as before; None if the
            run ended earlier.
        note: for people.
    """

    fault: Fault
    run: str
    round: int
    at_seconds: float
    detection_seconds: float | None = None
    full_seconds: float | None = None
    note: str = ""

    def line(self) -> str:
        """Return the result in one line."""
        fault, noticed = self.fault, self.detection_seconds
        lasted = f" for {fault.seconds:g} s" if fault.seconds else ""
        parts = [] if noticed is None else [f"noticed after {noticed:.2f} s"]
        full = self.full_seconds
        parts.append("the run ended before all was well; once more" if full is None else f"all well after {full:.1f} s")
        note = f" ({self.note})" if self.note else ""
        return f"{fault.number:4} {fault.kind} {fault.target}{note}{lasted} in round {self.round}: {', '.join(parts)}"


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one of the consecutive runs, with the embedded tracker's parameters; "" if they may differ."""

    run: str
    rounds: int
    faults: int
    seconds: float
    batches_lost: int
    batches_duplicated: int
    updates_dropped: int
    params_sha256: str
    expected_sha256: str


class ChaosReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole report.

    Attributes:
        problems: empty if everything was correct.
        router, router_args, side_by_side: of the runs, and whether there were two at a time.
        hostile_neighbour: whether a process without the secret wrote to the servers.
        rounds_asked_for: approximate number of rounds requested for a run; 0: derived from the number of faults.
        neighbour: number of the neighbour's actions by kind, in the runs that have ended.
    """

    seed: int
    workers: int
    kinds: tuple[str, ...]
    not_run: dict[str, str]
    schedule: tuple[Fault, ...]
    faults: tuple[FaultResult, ...] = ()
    runs: tuple[RunResult, ...] = ()
    hangs: int = 0
    problems: tuple[str, ...] = ()
    seconds: float = 0.0
    router: str = "iterative-reduce"
    router_args: str = "{}"
    side_by_side: bool = False
    hostile_neighbour: bool = False
    neighbour: dict[str, int] = {}
    folder: str = ""
    rounds_asked_for: int = 0

    @property
    def replay(self) -> str:
        """The command that repeats the same faults."""
        rounds = f" --rounds {self.rounds_asked_for}" if self.rounds_asked_for else ""
        kinds = "" if set(self.kinds) == set(KINDS) else f" --kinds {','.join(self.kinds)}"
        count, workers = len(self.schedule), f" --workers {self.workers}"
        beside = f" --router {self.router}" if self.router != "iterative-reduce" else ""
        beside += f" --router-args {shlex.quote(self.router_args)}" if self.router_args != "{}" else ""
        beside += " --side-by-side" if self.side_by_side else ""
        beside += " --hostile-neighbour" if self.hostile_neighbour else ""
        return f"python -m tools.chaos --faults {count} --seed {self.seed}{workers}{rounds}{kinds}{beside}"

    @property
    def hash_equal(self) -> bool:
        """Whether every run that must equal the embedded tracker's run has the same parameters."""
        return bool(self.runs) and all(run.expected_sha256 in ("", run.params_sha256) for run in self.runs)

    def fields(self) -> dict[str, Any]:
        """Return the JSON object."""
        return {
            **msgspec.to_builtins(self),
            "faults_done": len(self.faults),
            "batches_lost": sum(run.batches_lost for run in self.runs),
            "batches_duplicated": sum(run.batches_duplicated for run in self.runs),
            "hash_equal": self.hash_equal,
            "by_kind": {kind: _summary(kind, self.faults) for kind in self.kinds},
            "replay": self.replay,
        }

    def text(self) -> str:
        """Return the report as text: a line for each kind, and the totals."""
        fields = self.fields()
        lines = [f"{'kind':16} {'faults':>6} {'noticed after':>22} {'all well after':>22}"]
        for kind, summary in fields["by_kind"].items():
            noticed, full = _span(summary["detection_seconds"]), _span(summary["full_seconds"])
            lines.append(f"{kind:16} {summary['faults']:6} {noticed:>22} {full:>22}")
        lines += [f"{kind:16} not run: {why}" for kind, why in self.not_run.items()]
        expected = self.runs[-1].expected_sha256 if self.runs else "not known"
        if self.runs:
            equal = "equal to the embedded tracker's" if self.hash_equal else "NOT the embedded tracker's"
        else:
            equal = "no run has ended"
        lines += [
            "",
            f"faults    {len(self.faults)} of {len(self.schedule)} in {len(self.runs)} runs, {self.seconds:.0f} s",
            f"hangs     {self.hangs}",
            f"batches   lost {fields['batches_lost']}, duplicated {fields['batches_duplicated']}",
            f"params    {equal} (sha256 {expected})" if expected else f"params    {self.router}'s depend on timing",
        ]
        if self.neighbour:
            lines.append(f"neighbour {', '.join(f'{what} {count}' for what, count in self.neighbour.items())}")
        lines.append(f"again     {self.replay}")
        lines += [f"problem   {problem}" for problem in self.problems]
        return "\n".join([*lines, f"folder    {self.folder}"] if self.folder else lines)


def _summary(kind: str, faults: Sequence[FaultResult]) -> dict[str, Any]:
    """Return the number of faults of a kind, and [least, median, most] of their seconds."""
    ours = [f for f in faults if f.fault.kind == kind]
    noticed = [f.detection_seconds for f in ours if f.detection_seconds is not None]
    full = [f.full_seconds for f in ours if f.full_seconds is not None]
    goal = DETECTION_GOALS.get(kind)
    return {
        "faults": len(ours),
        "detection_seconds": _least_median_most(noticed),
        "detection_goal": goal,
        "later_than_goal": sum(goal is not None and seconds > goal for seconds in noticed),
        "not_noticed": len(ours) - len(noticed) if goal is not None else 0,
        "full_seconds": _least_median_most(full),
    }


def _least_median_most(values: Sequence[float]) -> list[float]:
    return [round(value, 3) for value in (min(values), median(values), max(values))] if values else []


def _span(three: Sequence[float]) -> str:
    return f"{three[1]:.2f} ({three[0]:.2f}-{three[2]:.2f}) s" if three else "-"
