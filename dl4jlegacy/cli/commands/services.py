"""``dl4j services``: start, show and stop the local Hazelcast and Zookeeper servers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dl4jlegacy.cli.options.read import Format, number_option
from dl4jlegacy.cli.outputs.answer import Answer
from dl4jlegacy.errors import TrackerError, UsageError, counted
from dl4jlegacy.system.console import open_console

if TYPE_CHECKING:
    from dl4jlegacy.services.ensemble import Ensemble
    from dl4jlegacy.services.servers import ServicesState

__all__ = ["add_commands"]

_app = typer.Typer(
    name="services",
    help="Local Hazelcast and Zookeeper servers, for this machine only unless told otherwise.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    no_args_is_help=False,
)


def add_commands(app: typer.Typer) -> None:
    """Add ``dl4j services`` to ``app``."""
    app.add_typer(_app)


_LEAST = -(2**63)  # the allowed range is checked by ``Services.up``


def _number(flag: str, metavar: str, help: str) -> Any:
    return number_option(flag, metavar=metavar, help=help, least=_LEAST)


Folder = Annotated[
    Path | None,
    typer.Option("--folder", metavar="DIR", help="Where their state, logs and data are.", envvar="DL4J_SERVICES"),
]


@_app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        raise UsageError("give a command: services up, services status or services down (see --help)")


@_app.command()
def up(
    members: Annotated[int, _number("--members", "N", "Hazelcast members (1).")] = 1,
    hazelcast_port: Annotated[
        int | None,
        _number("--hazelcast-port", "PORT", "The first member's (5701; 0: a free one, as if it is taken here)."),
    ] = None,
    zookeeper_port: Annotated[
        int | None, _number("--zookeeper-port", "PORT", "Zookeeper's (2181; 0: a free one, as if it is taken here).")
    ] = None,
    cluster_name: Annotated[
        str | None, typer.Option("--cluster-name", metavar="NAME", help="Clients must name it (random, and then kept).")
    ] = None,
    heap: Annotated[str, typer.Option("--heap", metavar="SIZE", help="Memory of a member, like 512m (1g).")] = "1g",
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="The address that they bind (127.0.0.1).")
    ] = "127.0.0.1",
    hosts: Annotated[
        str,
        typer.Option(
            "--hosts", metavar="A,B,C", help="Three hosts or more, --host among them, whose servers are one set."
        ),
    ] = "",
    witness: Annotated[
        str, typer.Option("--witness", metavar="C", help="Those of --hosts with a Zookeeper server only.")
    ] = "",
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay, start again what ends, and stop them at SIGTERM or Ctrl-C.")
    ] = False,
    folder: Folder = None,
    format: Format = "text",
) -> None:
    """Start servers, or those that have ended, and return once they answer; they run until services down."""
    from dl4jlegacy.services.servers import Services

    open_console()
    state = Services.up(
        members=members,
        hazelcast_port=hazelcast_port,
        zookeeper_port=zookeeper_port,
        cluster_name=cluster_name,
        folder=folder,
        heap=heap,
        host=host,
        hosts=hosts.split(",") if hosts else (),
        witnesses=witness.split(",") if witness else (),
    )
    if foreground:
        _stay(state, format)
    else:
        _show(state, format, _waiting(state))


def _stay(state: ServicesState, format: str) -> None:
    """Show the servers and watch them until somebody stops them; in any case they are stopped at the end."""
    from dl4jlegacy.services.servers import Services
    from dl4jlegacy.services.supervisor import say_ready, supervise

    folder = Path(state.folder)
    try:
        _show(state, format, _waiting(state))
        say_ready()
        supervise(folder)
    finally:
        Services.down(folder)


@_app.command()
def status(folder: Folder = None, format: Format = "text") -> int:
    """Show the servers; exits with 4 unless all run and answer."""
    from dl4jlegacy.services.servers import Services

    state = Services.status(folder)
    if state is None:
        raise TrackerError(f"no servers run in {Services.folder(folder)}; start some with 'dl4j services up'")
    silent = state.silent
    _show(state, format, silent)
    return TrackerError.exit_status if silent or state.stopped else 0


@_app.command()
def down(folder: Folder = None, format: Format = "text") -> Answer:
    """Stop the servers; what they held is gone."""
    from dl4jlegacy.services.servers import Services

    stopped = Services.down(folder)
    place = str(Services.folder(folder))
    text = f"stopped {', '.join(stopped)}" if stopped else f"no servers ran in {place}"
    return Answer({"stopped": stopped, "folder": place}, text)


def _waiting(state: ServicesState) -> tuple[str, ...]:
    """Return the servers that were just started and wait for those of other hosts."""
    return () if state.ensemble is None else state.silent


def _for_others(ensemble: Ensemble, waiting: tuple[str, ...]) -> Iterator[str]:
    """Yield what this host's servers cannot do while those of other hosts are missing."""
    hosts, members = len(ensemble.hosts), counted(len(ensemble.member_hosts), "member")
    for name in waiting:
        if name == "zookeeper":
            yield f"waiting    {name}: it serves once it sees {hosts // 2 + 1} of {hosts} hosts, itself included"
        else:
            yield f"waiting    {name}: no host may be lost before it sees all {members}, and all is kept twice"


def _show(state: ServicesState, format: str, silent: tuple[str, ...] = ()) -> None:
    """Print the servers; next steps are suggested on stderr."""
    lines = [
        f"hazelcast  {state.hazelcast or 'none'}",
        f"zookeeper  {state.zookeeper or 'none'}",
        f"cluster    {state.cluster_name}",
        f"pids       {', '.join(f'{name} {pid}' for name, pid in state.pids.items()) or 'none'}",
        f"folder     {state.folder}",
    ]
    if state.stopped:
        lines.append(f"stopped    {', '.join(state.stopped)}: look into the logs there")
    if silent and state.ensemble is not None:
        lines += _for_others(state.ensemble, silent)
    elif silent:
        lines.append(f"silent     {', '.join(silent)}: running, but not answering")
    as_json = format == "json"
    Answer({**state.to_dict(), "silent": list(silent)}, lines).print(as_json=as_json)
    if not as_json and not state.stopped and (not silent or state.ensemble is not None):
        from dl4jlegacy.cli.terminal.next_steps import after_services_up

        console = open_console()
        for step in after_services_up(state, os.environ):
            console.print(step, markup=False, soft_wrap=True)
