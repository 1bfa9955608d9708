"""``dl4j stats``: the durations of the phases of a run's rounds, as a table, a page, or a trace."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dl4jlegacy.cli.options.read import Format, option
from dl4jlegacy.cli.options.values import not_empty
from dl4jlegacy.cli.outputs.answer import Answer
from dl4jlegacy.errors import OutputError, counted
from dl4jlegacy.system import files
from dl4jlegacy.system.strict_json import to_json

if TYPE_CHECKING:
    from dl4jlegacy.scaleout.monitoring.stats import TrainingStats

__all__ = ["add_commands", "stats"]

logger = logging.getLogger(__name__)

_COLUMNS = ("phase", "count", "total", "mean", "median", "p95", "share")


def add_commands(app: typer.Typer) -> None:
    """Add this module's command to ``dl4j``."""
    app.command()(stats)


def stats(
    run: Annotated[
        str,
        typer.Argument(metavar="DIR|FILE", help="The checkpoint folder (or s3://...) of a run, or its stats.jsonl."),
    ],
    html: Annotated[
        str | None, option("--html", metavar="FILE", help="Write a page: timeline, histograms, table.", read=not_empty)
    ] = None,
    trace: Annotated[
        str | None,
        option("--trace", metavar="FILE", help="Write a trace, which ui.perfetto.dev opens.", read=not_empty),
    ] = None,
    format: Format = "text",
) -> Answer:
    """Show what each phase of a run took that was trained with --collect-training-stats."""
    from dl4jlegacy.scaleout import saved_run
    from dl4jlegacy.scaleout.monitoring.stats_page import stats_page
    from dl4jlegacy.scaleout.monitoring.stats_trace import chrome_trace

    found = saved_run.read_stats(run)
    if found.damaged:
        logger.warning("%s of the statistics cannot be read, and are left out", counted(found.damaged, "line"))
    if trace is not None:
        _write("--trace", trace, to_json(chrome_trace(found)))
    if html is not None:
        _write("--html", html, stats_page(found, title=f"Training statistics of {run}"))
    return Answer(_fields(found), _lines(found))


def _write(flag: str, path: str, text: str) -> None:
    with files.errors_as(OutputError, f"{path} cannot be written", f"choose another {flag}"):
        files.write(files.expand(path), text.encode(errors="replace"))


def _fields(found: TrainingStats) -> dict[str, Any]:
    """Return the statistics as one JSON object; times in seconds."""
    return {
        "events": len(found.events),
        "processes": len({event.process for event in found.events}),
        "machines": len({event.machine for event in found.events}),
        "lost": dict(found.lost),
        "damaged": found.damaged,
        "phases": [dataclasses.asdict(phase) for phase in found.phases],
    }


def _lines(found: TrainingStats) -> Iterator[str]:
    from dl4jlegacy.cli.terminal.run_table import aligned
    from dl4jlegacy.scaleout.monitoring.stats import duration

    if not found.events:
        yield "no phase was recorded"
        return
    rows = [
        (
            " ".join(phase.phase.split()),
            f"{phase.count:,}",
            *(duration(seconds) for seconds in (phase.total, phase.mean, phase.median, phase.p95)),
            f"{100 * phase.share:.1f} %",
        )
        for phase in found.phases
    ]
    yield from aligned([_COLUMNS, *rows])
    fields = _fields(found)
    processes = counted(fields["processes"], "process", "processes")
    yield f"{counted(fields['events'], 'event')} of {processes} on {counted(fields['machines'], 'machine')}"
    if lost := sum(found.lost.values()):
        yield f"{counted(lost, 'event')} of {counted(len(found.lost), 'process', 'processes')} lost on the way"
