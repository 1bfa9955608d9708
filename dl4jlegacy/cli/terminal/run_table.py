"""The summary of a cluster run as a table; ``scaleout.monitoring.run_summary`` explains its figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dl4jlegacy.errors import counted
from dl4jlegacy.training.progress import duration

__all__ = ["aligned", "run_table"]

_COLUMNS = ("worker", "jobs", "examples", "per second", "failed", "given away", "gone")
_LONGEST = 24  # characters of a worker's name; its end distinguishes workers


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table: the first column is aligned to the left, the others to the right."""
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    for name, *cells in rows:
        yield "  ".join([name.ljust(first), *(cell.rjust(width) for cell, width in zip(cells, others, strict=True))])


def run_table(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the table: a row for each worker, and the totals."""
    if summary["workers"]:
        yield from aligned([_COLUMNS, *(_row(worker) for worker in summary["workers"])])
    yield (
        f"total     {counted(summary['jobs'], 'job')}, {counted(summary['rounds'], 'round')}, "
        f"{counted(summary['batches'], 'batch', 'batches')} counted once, in {duration(summary['seconds'])}"
    )
    yield (
        f"trouble   {counted(summary['failures'], 'failed job')}, {counted(summary['backup_jobs'], 'backup job')}, "
        f"{counted(summary['broken_leases'], 'broken lease')}"
        + (f", checkpoints failed {counted(failed, 'time')}" if (failed := summary["checkpoints_failed"]) else "")
    )
    if states := {state: seconds for state, seconds in summary["states"].items() if seconds >= 0.5}:
        yield f"states    {', '.join(f'{state} {duration(seconds)}' for state, seconds in states.items())}"
    yield f"masters   {counted(summary['take_overs'], 'take-over')}, paused for {duration(summary['paused_seconds'])}"
    if summary["first_version"] > 1:
        yield f"          (what workers did is known from version {summary['first_version']} of the model on)"


def _row(worker: Mapping[str, Any]) -> tuple[str, ...]:
    name, rate = worker["worker"], worker["examples_per_second"]
    return (
        name if len(name) <= _LONGEST else f"…{name[1 - _LONGEST :]}",
        f"{worker['jobs']:,}",
        f"{worker['examples']:,}",
        "-" if rate is None else f"{rate:,.0f}",
        f"{worker['failures']:,}",
        f"{worker['lost_jobs']:,}",
        duration(worker["lost_seconds"]) if worker["lost_seconds"] else "-",
    )
