"""``dl4j``: the command line. Reads options and environment, prints results on stdout, everything else on stderr.

An option wins over its environment variable (``DL4J_...``), that over the Conf file, that over the defaults.
"""

from __future__ import annotations

import itertools
import os
import sys
from typing import Annotated, Any

import typer
import typer.core

from dl4jlegacy.cli import (
    cluster,
    dashboard,
    doctor,
    explain,
    generate,
    inference,
    inspect,
    plot,
    runs,
    schema,
    serve,
    stats,
    summary,
    train,
    tune,
    warm_up,
)
from dl4jlegacy.cli.aws import aws_app
from dl4jlegacy.cli.bench import bench_app
from dl4jlegacy.cli.data import data_app
from dl4jlegacy.cli.options import variable_of
from dl4jlegacy.cli.services import services_app
from dl4jlegacy.console import emit, run_guarded
from dl4jlegacy.errors import UsageError
from dl4jlegacy.version import __version__

__all__ = ["app", "main"]

_COMMANDS = (
    *("train", "resume", "evaluate", "predict", "serve", "generate", "reconstruct", "sample", "tune"),
    *("export", "summary", "data", "services", "master", "worker", "status", "dashboard", "logs"),
    *("stats", "plot", "drain", "stop", "runs", "explain", "doctor", "warm-up", "schema", "aws", "bench"),
)

_COMPLETIONS = {"--install-completion", "--show-completion"}


class _InOrderOfUse(typer.core.TyperGroup):
    """The commands, listed in the order in which one comes to use them."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands."""
        return sorted(self.commands, key=_COMMANDS.index)


app = typer.Typer(
    name="dl4j",
    cls=_InOrderOfUse,
    help="Train neural networks with a master and workers; no batch is ever lost.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.add_typer(services_app)
app.add_typer(aws_app)
app.add_typer(bench_app)
app.add_typer(data_app)
for module in (
    cluster,
    dashboard,
    doctor,
    explain,
    generate,
    inference,
    inspect,
    plot,
    runs,
    schema,
    serve,
    stats,
    summary,
    train,
    tune,
    warm_up,
):
    module.add_commands(app)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        emit(__version__)
    elif context.invoked_subcommand is None:
        raise UsageError(f"give a command: {', '.join(_COMMANDS)} (see --help)")


def _wants_json(arguments: list[str], flag: str) -> bool:
    """Return whether errors are to be JSON; asked before anything is parsed, since parsing may be what fails."""
    pairs = [*itertools.pairwise(arguments), *(a.split("=", 1) for a in arguments if "=" in a)]
    chosen = [value for name, value in pairs if name == flag]
    return (chosen[-1] if chosen else os.environ.get(variable_of(flag))) == "json"


def main(arguments: list[str] | None = None) -> None:
    """Entry point of ``dl4j``."""
    given = sys.argv[1:] if arguments is None else arguments
    if "_DL4J_COMPLETE" in os.environ:  # a description that is wrapped is two answers for fish
        os.environ["COLUMNS"] = "1000"

    def command() -> Any:
        try:
            status = app(args=given, prog_name="dl4j", standalone_mode=False)
        except typer.TyperException as error:
            raise UsageError(f"{error.format_message().rstrip('.')} (see --help)") from error
        except typer.Exit as leave:
            return leave.exit_code
        if status and _COMPLETIONS & set(given):
            raise UsageError(
                "the shell that dl4j is called from cannot be told, or is none of bash, zsh, fish and PowerShell; "
                "`_DL4J_COMPLETE=source_bash dl4j` prints the completion for one of these"
            )
        return status

    sys.exit(
        run_guarded(command, as_json=_wants_json(given, "--format"), json_lines=_wants_json(given, "--log-format"))
    )
