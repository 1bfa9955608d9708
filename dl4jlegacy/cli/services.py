"""``dl4j services``: start, show and stop the local Hazelcast and Zookeeper servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dl4jlegacy.console import emit
from dl4jlegacy.errors import TrackerError, UsageError, nearest

if TYPE_CHECKING:
    from dl4jlegacy.services.servers import ServicesState

__all__ = ["services_app"]

services_app = typer.Typer(
    name="services",
    help="Local Hazelcast and Zookeeper servers, for this machine only unless told otherwise.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    no_args_is_help=False,
)

Folder = Annotated[
    Path | None,
    typer.Option("--folder", metavar="DIR", help="Where their state, logs and data are.", envvar="DL4J_SERVICES"),
]
Format = Annotated[str, typer.Option("--format", metavar="text|json", help="As text, or as one JSON object.")]


@services_app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        raise UsageError("give a command: services up, services status or services down (see --help)")


@services_app.command()
def up(
    members: Annotated[str, typer.Option("--members", metavar="N", help="Hazelcast members (1).")] = "1",
    hazelcast_port: Annotated[
        str, typer.Option("--hazelcast-port", metavar="PORT", help="The first member's (0: a free one).")
    ] = "0",
    zookeeper_port: Annotated[
        str, typer.Option("--zookeeper-port", metavar="PORT", help="Zookeeper's (0: a free one).")
    ] = "0",
    cluster_name: Annotated[
        str | None, typer.Option("--cluster-name", metavar="NAME", help="Clients must name it (random).")
    ] = None,
    heap: Annotated[str, typer.Option("--heap", metavar="SIZE", help="Memory of a member, like 512m (1g).")] = "1g",
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="The address that they bind (127.0.0.1).")
    ] = "127.0.0.1",
    folder: Folder = None,
    format: Format = "text",
) -> None:
    """Start servers and return once they answer; they run until services down."""
    from dl4jlegacy.services.servers import Services

    as_json = _is_json(format)
    state = Services.up(
        members=_whole("--members", members),
        hazelcast_port=_whole("--hazelcast-port", hazelcast_port),
        zookeeper_port=_whole("--zookeeper-port", zookeeper_port),
        cluster_name=cluster_name,
        folder=folder,
        heap=heap,
        host=host,
    )
    _show(state, as_json)


@services_app.command()
def status(folder: Folder = None, format: Format = "text") -> int:
    """Show the servers; exits with 4 unless all run and answer."""
    from dl4jlegacy.services.servers import Services

    as_json, state = _is_json(format), Services.status(folder)
    if state is None:
        raise TrackerError(f"no servers run in {Services.folder(folder)}; start some with 'dl4j services up'")
    silent = state.silent
    _show(state, as_json, silent)
    return TrackerError.exit_status if silent or state.stopped else 0


@services_app.command()
def down(folder: Folder = None, format: Format = "text") -> None:
    """Stop the servers; what they held is gone."""
    from dl4jlegacy.services.servers import Services

    as_json = _is_json(format)
    stopped = Services.down(folder)
    if as_json:
        emit(json.dumps({"stopped": stopped, "folder": str(Services.folder(folder))}))
    else:
        emit(f"stopped {', '.join(stopped)}" if stopped else f"no servers ran in {Services.folder(folder)}")


def _show(state: ServicesState, as_json: bool, silent: tuple[str, ...] = ()) -> None:
    if as_json:
        emit(json.dumps({**state.to_dict(), "silent": list(silent)}))
        return
    lines = [
        f"hazelcast  {state.hazelcast or 'none'}",
        f"zookeeper  {state.zookeeper or 'none'}",
        f"cluster    {state.cluster_name}",
        f"pids       {', '.join(f'{name} {pid}' for name, pid in state.pids.items()) or 'none'}",
        f"folder     {state.folder}",
    ]
    if state.stopped:
        lines.append(f"stopped    {', '.join(state.stopped)}: look into the logs there")
    if silent:
        lines.append(f"silent     {', '.join(silent)}: running, but not answering")
    emit("\n".join(lines))


def _whole(flag: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{flag} is {text!r}; it must be a whole number") from None


def _is_json(text: str) -> bool:
    if text not in ("text", "json"):
        raise UsageError(f"--format is {text!r}{nearest(text, ('text', 'json'))}")
    return text == "json"
