"""``dl4j``: the command line. Reads options and environment, prints results on stdout, everything else on stderr.

An option overrides its environment variable (``DL4J_...``), the variable the Conf file, and the file the defaults.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.core

from dl4jlegacy.cli.options.read import variable_of
from dl4jlegacy.cli.outputs.answer import Answer
from dl4jlegacy.errors import UsageError
from dl4jlegacy.system.console import emit, run_guarded
from dl4jlegacy.version import __version__

__all__ = ["FAMILIES", "declared", "main"]

FAMILIES = {
    **dict.fromkeys(("train", "resume"), "train"),
    **dict.fromkeys(("evaluate", "predict"), "inference"),
    "serve": "serve",
    **dict.fromkeys(("generate", "reconstruct", "sample"), "generate"),
    "tune": "tune",
    "export": "inference",
    "summary": "summary",
    "data": "data",
    "services": "services",
    **dict.fromkeys(("master", "worker"), "cluster"),
    "status": "inspect",
    "dashboard": "dashboard",
    "logs": "inspect",
    "stats": "stats",
    "plot": "plot",
    **dict.fromkeys(("drain", "stop"), "inspect"),
    "runs": "runs",
    "explain": "explain",
    "doctor": "doctor",
    "warm-up": "warm_up",
    "schema": "schema",
    "aws": "aws",
    "bench": "bench",
}
"""The commands in the usual order of their use, each with its module in ``cli/commands/``."""

_COMPLETIONS = {"--install-completion", "--show-completion"}


class _InOrderOfUse(typer.core.TyperGroup):
    """Lists the commands in the usual order of their use."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands."""
        return sorted(self.commands, key=list(FAMILIES).index)


class _Command(typer.core.TyperCommand):
    """A command that prints the ``Answer`` returned by its function, if any."""

    def invoke(self, ctx: Any) -> Any:
        """Call the function; return the exit status."""
        found = super().invoke(ctx)
        return found.print(as_json=ctx.params["format"] != "text") if isinstance(found, Answer) else found


def declared(commands: Iterable[str] = FAMILIES) -> typer.Typer:
    """Return ``dl4j`` with these commands, and those that share a module with one of them.

    The process of one command declares no other commands: declaring all takes a fifth of the start-up time.
    """
    app = typer.Typer(
        name="dl4j",
        cls=_InOrderOfUse,
        help="Train neural networks with a master and workers; no batch is ever lost.",
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback(invoke_without_command=True)(_root)
    for family in dict.fromkeys(FAMILIES[name] for name in commands):
        import_module(f"dl4jlegacy.cli.commands.{family}").add_commands(app)
    for each in (app, *(group.typer_instance for group in app.registered_groups)):
        for command in each.registered_commands if each else ():
            command.cls = _Command
    return app


def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        emit(__version__)
    elif context.invoked_subcommand is None:
        raise UsageError(f"give a command: {', '.join(FAMILIES)} (see --help)")


def _app_for(arguments: list[str]) -> typer.Typer:
    """Return ``dl4j`` with the command in the first argument; if that is none, with all, for the help or an error."""
    return declared([name for name in arguments[:1] if name in FAMILIES] or FAMILIES)


def _wants_json(arguments: list[str], flag: str) -> bool:
    """Return whether errors are printed as JSON; decided before parsing, since parsing may fail."""
    pairs = [*itertools.pairwise(arguments), *(a.split("=", 1) for a in arguments if "=" in a)]
    chosen = [value for name, value in pairs if name == flag]
    return (chosen[-1] if chosen else os.environ.get(variable_of(flag))) == "json"


def main(arguments: list[str] | None = None) -> None:
    """Entry point of ``dl4j``."""
    given = sys.argv[1:] if arguments is None else arguments
    if "_DL4J_COMPLETE" in os.environ:  # fish would take a wrapped description for two answers
        os.environ["COLUMNS"] = "1000"

    def command() -> Any:
        try:
            status = _app_for(given)(args=given, prog_name="dl4j", standalone_mode=False)
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
