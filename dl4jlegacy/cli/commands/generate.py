"""``dl4j generate``, ``reconstruct``, ``sample``: texts, reconstructions and samples from a trained model."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dl4jlegacy.cli.options.read import DataDir, Device, ReportFormat, add_command, number_option, option
from dl4jlegacy.cli.options.values import not_empty, rate
from dl4jlegacy.cli.outputs.answer import Answer
from dl4jlegacy.errors import UsageError
from dl4jlegacy.system.console import emit

if TYPE_CHECKING:
    from dl4jlegacy.storage.paths import Output

__all__ = ["add_commands", "generate", "reconstruct", "sample"]


def add_commands(app: typer.Typer) -> None:
    """Add this module's commands to ``dl4j``."""
    add_command(app, generate, GenerateOptions)
    add_command(app, reconstruct, ReconstructOptions)
    add_command(app, sample, SampleOptions)


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


def generate(options: GenerateOptions) -> Answer | None:
    """Let a model of texts (char-lstm, word-lstm) go on with a text, a character or a word at a time."""
    from dl4jlegacy.cli.terminal.progress import use_device_and_report
    from dl4jlegacy.models.generation import generate_text
    from dl4jlegacy.training.saved_model import load_model

    if not options.seed_text:
        raise UsageError("--seed-text is missing; give what the text begins with, such as --seed-text 'Shall I'")
    with use_device_and_report(options.device) as (kernels, _):
        model = load_model(options.model, kernels=kernels)
        drawn: dict[str, Any] = {"length": options.length, "temperature": options.temperature, "seed": options.seed}
        pieces = generate_text(model, options.seed_text, **drawn)
        if options.format == "json":
            tokens = "" if model.reading.text is None else model.reading.text.tokens
            text = {"model": model.name, "tokens": tokens, "seed_text": options.seed_text, "text": "".join(pieces)}
            return Answer({**text, **drawn}, "")
        if emit(options.seed_text, end="") and all(emit(piece, end="") for piece in pieces):
            emit("")
    return None


_AUTOENCODER = typer.Argument(metavar="MODEL", help="A saved autoencoder, a folder of checkpoints, or one of these.")


@dataclass(frozen=True, slots=True, kw_only=True)
class GridOptions:
    """The options of commands that draw; None: not given."""

    model: Annotated[str, _AUTOENCODER]
    out: Annotated[str | None, option("--out", metavar="FILE", help="The image to write, a .png.", read=not_empty)] = (
        None
    )
    layer: Annotated[
        int | None, number_option("--layer", help="Turn round at this layer, from 0 (the last pretrained).", least=0)
    ] = None
    image_size: Annotated[
        str | None,
        option(
            "--image-size",
            metavar="HEIGHTxWIDTH",
            help="Of the images (that of the model's images; or they are squares).",
            read=not_empty,
        ),
    ] = None
    device: Device = None
    format: ReportFormat = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconstructOptions(GridOptions):
    """The options of ``dl4j reconstruct``; None: not given."""

    model: Annotated[str, _AUTOENCODER]
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="An image, a folder of them, or a table; digits or mnist: what is held out of these."
        ),
    ]
    count: Annotated[int, number_option("--count", help="Examples to draw, the first ones (10).", least=1)] = 10
    data_dir: DataDir = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOptions(GridOptions):
    """The options of ``dl4j sample``; None: not given."""

    rows: Annotated[int, number_option("--rows", help="Lines of samples (10).", least=1)] = 10
    columns: Annotated[int, number_option("--columns", help="Samples in a line (10).", least=1)] = 10
    seed: Annotated[int, number_option("--seed", help="Of the random numbers (123).", least=0)] = 123
    gibbs_steps: Annotated[
        int, number_option("--gibbs-steps", help="Of the chain in an RBM, for each sample (1000).", least=1)
    ] = 1000


def reconstruct(options: ReconstructOptions) -> Answer:
    """Draw examples above what an autoencoder (deep-autoencoder, vae, dbn, sda) gives back of them.

    The mean squared error is that of all examples, in their own units.
    """
    from dl4jlegacy.cli.terminal.progress import use_device_and_report
    from dl4jlegacy.models import reconstruction
    from dl4jlegacy.training.saved_model import load_model

    output = _output(options)
    with use_device_and_report(options.device) as (kernels, _):
        model = load_model(options.model, kernels=kernels)
        shape = reconstruction.image_shape(model, _size(options))
        blocks = reconstruction.examples_of(model, options.file, data_dir=options.data_dir or "", shape=shape)
        found = reconstruction.reconstruct(model, blocks, count=options.count, layer=options.layer)
    grid = reconstruction.reconstruction_grid(found, shape)
    output.save(functools.partial(reconstruction.write_grid, grid=grid))
    fields = {"examples": found.examples, "drawn": len(found.originals), "mean_squared_error": found.mean_squared_error}
    said = "{drawn} of {examples:,} examples above their reconstructions; mean squared error {mean_squared_error:.6g}"
    return _answer(options, output, fields, said)


def sample(options: SampleOptions) -> Answer:
    """Draw what a generative model (vae, dbn) finds probable: latent values, or Gibbs chains in its top RBM."""
    from dl4jlegacy.cli.terminal.progress import use_device_and_report
    from dl4jlegacy.models import reconstruction
    from dl4jlegacy.training.saved_model import load_model

    output, count = _output(options), options.rows * options.columns
    drawn = {"seed": options.seed, "gibbs_steps": options.gibbs_steps}
    with use_device_and_report(options.device) as (kernels, _):
        model = load_model(options.model, kernels=kernels)
        shape = reconstruction.image_shape(model, _size(options))
        samples = reconstruction.draw_samples(model, count, layer=options.layer, **drawn)
    grid = reconstruction.sample_grid(samples, shape, columns=options.columns)
    output.save(functools.partial(reconstruction.write_grid, grid=grid))
    fields = {"rows": options.rows, "columns": options.columns, **drawn}
    return _answer(options, output, fields, "{rows} x {columns} samples")


def _output(options: GridOptions) -> Output:
    """Return the place of the image, checked before anything is computed; raises ``UsageError``."""
    from dl4jlegacy.storage import paths as storage

    if options.out is None or not options.out.lower().endswith(".png"):
        what = "is missing" if options.out is None else f"is {options.out!r}"
        raise UsageError(f"--out {what}; give the name of a .png, such as grid.png")
    return storage.open_output(options.out)


def _size(options: GridOptions) -> tuple[int, int] | None:
    from dl4jlegacy.cli.options.images import image_size

    return None if options.image_size is None else image_size(options.image_size)


def _answer(options: GridOptions, output: Output, fields: dict[str, Any], text: str) -> Answer:
    return Answer({"model": options.model, "out": output.place, **fields}, f"{output.place}: {text.format(**fields)}")
