"""``dl4j bench``: chaos, and what else is measured. ``cli.py`` mounts it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dl4jlegacy.console import emit, open_console
from dl4jlegacy.errors import UsageError, nearest

__all__ = ["bench_app"]

bench_app = typer.Typer(
    name="bench",
    help="Break things on purpose, and see that nothing is lost.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    no_args_is_help=False,
)


@bench_app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        raise UsageError("give a command: bench chaos (see --help)")


@bench_app.command()
def chaos(
    faults: Annotated[str, typer.Option("--faults", metavar="N", help="How many faults (20).")] = "20",
    seed: Annotated[str, typer.Option("--seed", metavar="N", help="Of the faults and of the training (1).")] = "1",
    workers: Annotated[str, typer.Option("--workers", metavar="N", help="Worker processes (4).")] = "4",
    kinds: Annotated[
        str | None, typer.Option("--kinds", metavar="A,B", help="Only faults of these kinds (all).")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="FOLDER", help="Write all logs here, and leave them.")
    ] = None,
    format: Annotated[str, typer.Option("--format", metavar="text|json", help="As text, or one JSON object.")] = "text",
) -> int:
    """Train over own servers and processes while these are broken; the result must be as if nothing had happened.

    Exits with 1 if it is not, and names the command that does the same again.
    """
    from dl4jlegacy.chaos.driver import run_chaos
    from dl4jlegacy.chaos.schedule import checked_kinds

    if format not in ("text", "json"):
        raise UsageError(f"--format {format}: unknown format{nearest(format, ('text', 'json'))}")
    console = open_console()
    report = run_chaos(
        _whole("--faults", faults, 1),
        _whole("--seed", seed, -(2**63)),
        _whole("--workers", workers, 1),
        checked_kinds(kinds),
        keep,
        lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True),
    )
    emit(json.dumps(report.fields()) if format == "json" else report.text())
    return 1 if report.problems else 0


def _whole(flag: str, text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value < 2**63:
        allowed = "a whole number of 64 bits" if least < 0 else f"a whole number, at least {least}"
        raise UsageError(f"{flag} is {text!r}; it must be {allowed}")
    return value
