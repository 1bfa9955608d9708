"""``dl4j warm-up``: compile the kernels of models before they are needed."""

from __future__ import annotations

from typing import Annotated

import typer

from dl4jlegacy.cli.options.completion import MODELS, starting
from dl4jlegacy.cli.options.read import Format
from dl4jlegacy.cli.outputs.answer import Answer
from dl4jlegacy.system.console import emit

__all__ = ["add_commands", "warm_up"]


def add_commands(app: typer.Typer) -> None:
    """Add this module's command to ``dl4j``."""
    app.command("warm-up")(warm_up)


def warm_up(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL]...", help="Of the zoo; all.", autocompletion=starting(MODELS)),
    ] = None,
    format: Format = "text",
) -> Answer:
    """Compile the kernels of models for this processor, so that their first run need not wait for it."""
    from dl4jlegacy.kernels import load_for_host
    from dl4jlegacy.nn.compiling import warm_up as warming

    done: list[tuple[str, dict[str, float]]] = []
    for each in warming.warm_up(models or ()):
        done.append((each.name, {"seconds": round(each.seconds, 3), "again": round(each.again, 3)}))
        if format == "text":
            shown = "what any run needs" if each.name == warming.RUNS else each.name
            emit(f"{shown:<18} {each.seconds:6.1f} s, the next time {each.again:.2f} s")
    folder = _cache() if load_for_host().name == "numba" else None
    *trained, (_, runs) = done
    return Answer(
        {"models": [{"model": name, **times} for name, times in trained], "runs": runs, "cache": folder},
        f"kept in {folder}" if folder else "kept nowhere: not compiled (NumPy's), or no folder is writable",
    )


def _cache() -> str | None:
    from dl4jlegacy.kernels.numba.compile import cache_folder

    folder = cache_folder()
    return None if folder is None else str(folder)
