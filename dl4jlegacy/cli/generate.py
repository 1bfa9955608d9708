"""``dl4j generate``: what a trained model makes by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from dl4jlegacy.cli.options import Device, ReportFormat, add_command, number_option, option
from dl4jlegacy.cli.values import rate
from dl4jlegacy.console import emit
from dl4jlegacy.errors import UsageError
from dl4jlegacy.strict_json import to_json

__all__ = ["add_commands", "generate"]


def add_commands(app: typer.Typer) -> None:
    """Add this module's commands to ``dl4j``."""
    add_command(app, generate, GenerateOptions)


def _temperature(label: str, text: str) -> float:
    value = rate(label, text)
    if not value:
        raise UsageError(f"{label} is {text!r}; it must be above 0, such as 0.01 for what is most probable")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOptions:
    """The options of ``dl4j generate``; None: not given."""

    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A saved model of texts, a folder of checkpoints, or one of these.")
    ]
    seed_text: Annotated[
        str | None, option("--seed-text", metavar="TEXT", help="What the text begins with; the model goes on.")
    ] = None
    length: Annotated[int, number_option("--length", help="Characters, or words, to add (200).", least=1)] = 200
    temperature: Annotated[
        float,
        option(
            "--temperature",
            metavar="X",
            help="Below 1: what is probable more often; above: more of all (1).",
            read=_temperature,
        ),
    ] = 1.0
    seed: Annotated[int, number_option("--seed", help="Of the random numbers (123).", least=0)] = 123
    device: Device = None
    format: ReportFormat = "text"


def generate(options: GenerateOptions) -> None:
    """Let a model of texts (char-lstm, word-lstm) go on with a text, a character or a word at a time."""
    from dl4jlegacy.cli.progress import use_device_and_report
    from dl4jlegacy.generation import generate_text
    from dl4jlegacy.saved_model import load_model

    if not options.seed_text:
        raise UsageError("--seed-text is missing; give what the text begins with, such as --seed-text 'Shall I'")
    with use_device_and_report(options.device) as (kernels, _):
        model = load_model(options.model, kernels=kernels)
        drawn = {"length": options.length, "temperature": options.temperature, "seed": options.seed}
        pieces = generate_text(
            model, options.seed_text, length=options.length, temperature=options.temperature, seed=options.seed
        )
        if options.format == "json":
            tokens = "" if model.text is None else model.text.tokens
            text = {"model": model.name, "tokens": tokens, "seed_text": options.seed_text, "text": "".join(pieces)}
            emit(to_json({**text, **drawn}))
        elif emit(options.seed_text, end="") and all(emit(piece, end="") for piece in pieces):
            emit("")
