"""``dl4j explain``: the meaning of an error code or exit status, with remedies."""

from __future__ import annotations

import textwrap
from typing import Annotated, Any

import typer

from dl4jlegacy.cli.commands.explanations import EXPLANATIONS, Explanation
from dl4jlegacy.cli.options.completion import starting
from dl4jlegacy.cli.options.read import Format
from dl4jlegacy.cli.outputs.answer import Answer
from dl4jlegacy.errors import UsageError, nearest

__all__ = ["add_commands", "explain"]

_WIDTH = 100


def add_commands(app: typer.Typer) -> None:
    """Add this module's command to ``dl4j``."""
    app.command()(explain)


def explain(
    code: Annotated[
        str,
        typer.Argument(
            metavar="[CODE]",
            help="Such as DL4J-TRACKER or tracker; or an exit status.",
            autocompletion=starting([each.code for each in EXPLANATIONS]),
        ),
    ] = "",
    format: Format = "text",
) -> Answer:
    """Say what a code in a message means, and what to do about it; without one, list them all."""
    found = _found(code.strip()) if code else list(EXPLANATIONS)
    if code:
        text = "\n\n".join(map(_text, found))
    else:
        text = "\n".join(f"{each.code:<18} {_status(each):<8} {textwrap.shorten(each.means, 72)}" for each in found)
    return Answer({"codes": [_fields(each) for each in found]}, text)


def _found(code: str) -> list[Explanation]:
    """Return the explanations of a code or an exit status; raises ``UsageError``."""
    if code.isdecimal():
        found = [each for each in EXPLANATIONS if str(each.exit_status) == code]
        if not found:
            known = sorted({each.exit_status for each in EXPLANATIONS if each.exit_status is not None})
            raise UsageError(f"no error ends a command with {code}; known are {', '.join(map(str, known))}")
        return found
    name = code.strip("[]").upper()
    name = name if name.startswith("DL4J-") else f"DL4J-{name}"
    codes = {each.code: each for each in EXPLANATIONS}
    if name not in codes:
        raise UsageError(f"there is no code {code!r}{nearest(name, tuple(codes))}")
    return [codes[name]]


def _status(each: Explanation) -> str:
    return "in a job" if each.exit_status is None else f"exit {each.exit_status}"


def _text(each: Explanation) -> str:
    lines = [f"{each.code} ({_status(each)})", *textwrap.wrap(each.means, _WIDTH), ""]
    for cause, remedy in each.remedies:
        lines += textwrap.wrap(f"- If {cause}: {remedy}.", _WIDTH, subsequent_indent="  ")
    return "\n".join(lines)


def _fields(each: Explanation) -> dict[str, Any]:
    return {
        "code": each.code,
        "exit": each.exit_status,
        "means": each.means,
        "remedies": [{"cause": cause, "remedy": remedy} for cause, remedy in each.remedies],
    }
