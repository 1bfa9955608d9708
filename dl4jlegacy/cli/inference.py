"""``dl4j evaluate`` and ``dl4j predict``: using a saved model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dl4jlegacy.cli.options import DataDir, Dataset, Device, ReportFormat, one_of, option, variable_of
from dl4jlegacy.console import emit
from dl4jlegacy.strict_json import to_json

__all__ = ["add_commands", "evaluate", "predict"]


def add_commands(app: typer.Typer) -> None:
    """Add this module's commands to ``dl4j``."""
    app.command()(evaluate)
    app.command()(predict)


def _split(label: str, text: str) -> str:
    from dl4jlegacy.inference import SPLITS

    return one_of(label, text, SPLITS)


def evaluate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A saved model.")],
    dataset: Annotated[str, Dataset],
    split: Annotated[
        str,
        option(
            "--split",
            metavar="PART",
            help="Which examples: test (held out in training), train or all.",
            read=_split,
            variable=variable_of("--split"),
        ),
    ] = "test",
    data_dir: DataDir = None,
    device: Device = None,
    format: ReportFormat = "text",
) -> None:
    """Evaluate a saved model on a data set."""
    from dl4jlegacy.cli.progress import use_device_and_report
    from dl4jlegacy.inference import evaluate_model

    with use_device_and_report(device) as (kernels, used):
        evaluation, fields = evaluate_model(model, dataset, data_dir or "", split=split, kernels=kernels)
    fields["device"] = used.label
    emit(to_json(fields) if format == "json" else evaluation.text())


def predict(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A saved model.")],
    file: Annotated[str, typer.Argument(metavar="FILE", help="A CSV file: one example a row, features only.")],
    device: Device = None,
    format: ReportFormat = "text",
) -> None:
    """Print the class that a saved model gives each row of a CSV file."""
    from dl4jlegacy import storage
    from dl4jlegacy.cli.progress import use_device_and_report
    from dl4jlegacy.inference import predict_file

    with use_device_and_report(device) as (kernels, _):
        prediction = predict_file(model, Path(storage.local(file)), kernels=kernels)
    emit(to_json(prediction.fields) if format == "json" else "\n".join(prediction.lines))
