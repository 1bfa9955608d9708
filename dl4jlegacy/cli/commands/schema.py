"""``dl4j schema``: the JSON Schema of a command's output with ``--format json``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dl4jlegacy.cli.options.read import Format
from dl4jlegacy.cli.outputs.answer import Answer
from dl4jlegacy.errors import UsageError, nearest
from dl4jlegacy.system.strict_json import to_json

__all__ = ["add_commands", "schema", "schema_of"]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def add_commands(app: typer.Typer) -> None:
    """Add this module's command to ``dl4j``."""
    app.command()(schema)


def schema(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[COMMAND]...", help="Such as train, or data inspect.")
    ] = None,
    format: Format = "text",
) -> Answer:
    """Print the JSON Schema of what a command prints with --format json; without one, list the commands."""
    from dl4jlegacy.cli.outputs.structs import OUTPUTS

    name = " ".join(command or [])
    if not name:
        return Answer({"commands": list(OUTPUTS)}, OUTPUTS)
    if name not in OUTPUTS:
        raise UsageError(f"there is no schema of {name!r}{nearest(name, tuple(OUTPUTS))}")
    found = schema_of(name)
    return Answer(found, to_json(found, indent=2))


def schema_of(command: str) -> dict[str, Any]:
    """Return the schema of a command of ``OUTPUTS``: of its result, and of its output if it fails."""
    import msgspec

    from dl4jlegacy.cli.outputs.structs import OUTPUTS
    from dl4jlegacy.cli.outputs.write import Failed

    kinds = (*OUTPUTS[command], Failed)
    found, definitions = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    return {"$schema": _DIALECT, "title": f"dl4j {command} --format json", "anyOf": list(found), "$defs": definitions}
