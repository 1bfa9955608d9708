"""``dl4j doctor``: a preflight that checks the requirements of a run, with remedies."""

from __future__ import annotations

import os
import textwrap
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dl4jlegacy.cli.options.declarations import option
from dl4jlegacy.cli.options.read import ClusterName, DataDir, Device, Format, Tracker, Zookeeper
from dl4jlegacy.cli.options.values import not_empty
from dl4jlegacy.cli.outputs.answer import Answer
from dl4jlegacy.errors import DataError, PreflightError, UsageError, counted
from dl4jlegacy.system import files
from dl4jlegacy.system.console import emit

if TYPE_CHECKING:
    from dl4jlegacy.doctor import Result

__all__ = ["add_commands", "doctor", "variables"]

_WIDTH = 110
_READ_ELSEWHERE = frozenset(
    {
        *("DL4J_ADDRESS", "DL4J_ALLOW_UNSIGNED", "DL4J_CUDA_GRAPHS", "DL4J_CUDNN", "DL4J_KERNELS"),
        *("DL4J_HEAP", "DL4J_SECRET", "DL4J_SECRET_FILE", "DL4J_TABLES_CACHE", "DL4J_WEB_CACHE"),
        *("DL4J_UI_TOKEN", "DL4J_UI_TOKEN_FILE", "DL4J_SERVE_TOKEN", "DL4J_SERVE_TOKEN_FILE"),
    }
)
"""Environment variables that belong to no option."""


def _url(label: str, text: str) -> str:
    if not not_empty(label, text).startswith(("http://", "https://")):
        raise UsageError(f"{label} is {text!r}; give a server of the Web, such as https://example.org")
    return text


def add_commands(app: typer.Typer) -> None:
    """Add this module's command to ``dl4j``."""
    app.command()(doctor)


def doctor(
    context: typer.Context,
    tracker: Tracker = None,
    cluster_name: ClusterName = None,
    zookeeper: Zookeeper = None,
    data_dir: DataDir = None,
    device: Device = None,
    clock: Annotated[
        str | None, option("--clock", metavar="URL", help="Compare this machine's clock with this server's.", read=_url)
    ] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Create folders that are missing; remove damaged compiled kernels.")
    ] = False,
    format: Format = "text",
) -> Answer:
    """Look whether this machine, and the servers that are named, are as a run needs them; exits with 11 if not."""
    from dl4jlegacy.doctor import Result, Settings, all_checks, examine

    settings = Settings(
        data_dir=_data_dir(data_dir),
        tracker=_tracker(tracker, cluster_name),
        cluster_name=cluster_name,
        zookeeper=_zookeeper(zookeeper),
        device=device or "",
        clock_url=clock or "",
        environ=os.environ,
        variables=variables(context.find_root().command),
    )
    checks, results = all_checks(), list[Result]()
    width = max(len(check.name) for check in checks)
    for result in examine(checks, settings, fix=fix):
        if format != "json":
            emit("\n".join(_lines(result, width, is_first=not results or results[-1].area != result.area)))
        results.append(result)
    return _answer(results)


def _data_dir(given: str | None) -> str | None:
    """Return the given data directory; raises ``DataError`` if it is not a path on this machine."""
    if given is not None:
        with files.errors_as(DataError, f"--data-dir {given}"):
            files.expand(given)
    return given


def _tracker(tracker: str | None, cluster_name: str | None) -> str:
    """Return the tracker to be checked, "" for none; raises ``UsageError`` if it is not an address."""
    if not tracker or tracker == "memory":  # a possible value of DL4J_TRACKER
        return ""
    from dl4jlegacy.services.grid import grid_of

    grid_of(tracker, cluster_name or "any", or_else="memory, or ")
    return tracker


def _zookeeper(zookeeper: str | None) -> str:
    """Return the Zookeeper to be checked, "" for none; raises ``UsageError`` if it is not an address."""
    if not zookeeper:
        return ""
    try:
        from dl4jlegacy.cluster.address import zookeeper_servers
    except ImportError:  # a missing library is reported by the checks
        return zookeeper
    return zookeeper_servers(zookeeper)


def variables(command: Any) -> frozenset[str]:
    """Return the names of the environment variables that the commands under ``command`` read."""
    found = set(_READ_ELSEWHERE)
    for parameter in command.params:
        named = parameter.envvar or ()
        found |= {named} if isinstance(named, str) else set(named)
    for below in getattr(command, "commands", {}).values():
        found |= variables(below)
    return frozenset(found)


def _answer(results: list[Result]) -> Answer:
    """Return the results; the command fails if a required check failed."""
    from dl4jlegacy.cli.outputs.structs import Examined

    counts = Counter(result.status for result in results)
    found = Examined(results, counts["ok"], counts["warning"], counts["failed"], counts["skipped"])
    warnings = counted(found.warning, "warning")
    numbers = f"{found.ok} ok, {warnings}, {found.failed} failed, {found.skipped} skipped"
    fatal = [result.name for result in results if result.is_fatal]
    error = PreflightError(f"{counted(len(fatal), 'check')} failed of what a run needs: {', '.join(fatal)}")
    return Answer(found, f"\n{counted(len(results), 'check')}: {numbers}", error if fatal else None)


def _lines(result: Result, width: int, *, is_first: bool) -> Iterator[str]:
    """Yield a result as text; the first result of an area has a heading."""
    if is_first:
        yield f"\n{result.area}"
    begin = f"  {result.status:<8} {result.name:<{width}}  "
    for text, first in ((result.found, begin), (result.mended, "mended: "), (result.remedy, "-> ")):
        if text:
            indent = " " * len(begin)
            lead = first if first is begin else indent + first
            yield from textwrap.wrap(
                text,
                max(_WIDTH, len(indent) + 40),
                initial_indent=lead,
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            )
