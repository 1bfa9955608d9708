"""Declaration of command options: their names, their help, and how their text or environment variable is parsed."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from dl4jlegacy.cli.options.completion import completed
from dl4jlegacy.cli.options.values import not_empty, one_of, whole_number

__all__ = ["PoisonJobs", "add_command", "count_option", "number_option", "option", "text_option", "variable_of"]

T = TypeVar("T")


def option(
    *names: str,
    metavar: str,
    help: str,
    read: Callable[[str, str], Any] | None = None,
    variable: str | None = None,
    show_variable: bool = False,
) -> Any:
    """Return the declaration of an option.

    Args:
        names: of the option; errors use the first.
        metavar, help: as the help shows them.
        read: converts (label, text) to the value; None: the text is the value.
        variable: the environment variable used if the option is not given; ``show_variable``: the help names it.
    """

    def parse(value: Any) -> Any:
        text = str(value)
        label = variable if variable is not None and os.environ.get(variable) == text else names[0]
        return text if read is None else read(label, text)

    return typer.Option(
        *names,
        metavar=metavar,
        help=help,
        envvar=variable,
        show_envvar=show_variable,
        parser=parse,
        autocompletion=completed(names[0], metavar),
    )


def number_option(*names: str, metavar: str = "N", help: str, least: int, variable: str | None = None) -> Any:
    """Return the declaration of an option that takes a whole number of at least ``least``."""
    return option(
        *names, metavar=metavar, help=help, read=lambda label, text: whole_number(label, text, least), variable=variable
    )


def variable_of(flag: str) -> str:
    """Return the environment variable that replaces an omitted option: ``DL4J_BATCH_SIZE`` for ``--batch-size``."""
    return f"DL4J_{flag.removeprefix('--').replace('-', '_').upper()}"


def text_option(flag: str, metavar: str, help: str, read: Callable[[str, str], Any] | None = not_empty) -> Any:
    """Return the declaration of an option with an environment variable, as for ``option``."""
    return option(flag, metavar=metavar, help=help, read=read, variable=variable_of(flag))


def _what_becomes(label: str, text: str) -> str:
    return one_of(label, text, ("fail", "set-aside"))


PoisonJobs = Annotated[
    str | None,
    text_option("--poison-jobs", "fail|set-aside", "What becomes of a job that kills workers (fail).", _what_becomes),
]


def count_option(flag: str, help: str, *, least: int = 1) -> Any:
    """Return the declaration of an option for a whole number of at least ``least``, with its variable."""
    return number_option(flag, help=help, least=least, variable=variable_of(flag))


def add_command(app: typer.Typer, run: Callable[[T], Any], options: type[T], **settings: Any) -> None:
    """Add a command to ``app`` whose parameters are the fields of a dataclass; inherited fields come last.

    Args:
        run: called with the options; its name and docstring are the command's.
        options: the dataclass; its fields are annotated with ``typer`` declarations.
        settings: as for ``typer.Typer.command``.
    """

    def command(**values: Any) -> Any:
        return run(options(**values))

    hints = get_type_hints(options, include_extras=True)
    fields = dataclasses.fields(options)  # type: ignore[arg-type]  # T is a dataclass
    parameters = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in sorted(fields, key=lambda field: field.name not in options.__annotations__)
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
    command.__name__, command.__doc__ = run.__name__, run.__doc__
    app.command(**settings)(command)
