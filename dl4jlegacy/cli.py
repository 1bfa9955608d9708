"""``dl4j``: the command line. Reads flags and environment, prints results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import logging
import signal
import sys
import traceback
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.text import Text

from dl4jlegacy.errors import Dl4jError, JobError, UsageError
from dl4jlegacy.version import __version__

__all__ = ["app", "main", "report_error", "run_guarded", "show_training"]

EXIT_INTERNAL, EXIT_INTERRUPTED, EXIT_TERMINATED = 70, 130, 143

_CommandLineError: Any = typer.BadParameter.__mro__[
    2
]  # ClickException, which typer has in a place of its own or click's

app = typer.Typer(
    name="dl4j",
    help="Train neural networks with a master and workers; no batch is ever lost.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class OutputFormat(StrEnum):
    """How results and logs are written."""

    TEXT = "text"
    JSON = "json"


class _Terminated(KeyboardInterrupt):
    """SIGTERM: ends a run as Ctrl-C does, with another exit status."""


def _option(flag: str, text: str, **extra: Any) -> Any:
    name = flag.removeprefix("--").replace("-", "_").upper()
    return typer.Option(flag, help=text, envvar=f"DL4J_{name}", show_envvar=False, **extra)


Workers = Annotated[int | None, _option("--workers", "Worker threads.", min=1)]
DataDir = Annotated[str | None, _option("--data-dir", "Where MNIST's files are, or go to.")]
Format = Annotated[OutputFormat, _option("--format", "Results as text or as one JSON object.")]
LogFormat = Annotated[OutputFormat, _option("--log-format", "Progress and logs as text or as JSON lines.")]
Out = Annotated[str | None, _option("--out", "Save the trained model to this zip file.")]


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False) -> None:
    if version:
        print(__version__)
        raise typer.Exit


@app.command()
def train(
    conf: Annotated[Path | None, typer.Argument(help="A Conf as JSON or YAML; flags go before it.")] = None,
    model: Annotated[str | None, _option("--model", "dbn, mlp or sda.")] = None,
    dataset: Annotated[str | None, _option("--dataset", "digits, iris, mnist, FILE.csv or a folder.")] = None,
    data_dir: DataDir = None,
    workers: Workers = None,
    jobs_per_round: Annotated[int | None, _option("--jobs-per-round", "Slots of a round.", min=1)] = None,
    batch_size: Annotated[int | None, _option("--batch-size", "Examples of a batch.", min=1)] = None,
    epochs: Annotated[int | None, _option("--epochs", "Passes over the data (finetune phase).", min=1)] = None,
    pretrain_epochs: Annotated[int | None, _option("--pretrain-epochs", "Passes per pretrained layer.", min=0)] = None,
    averaging_frequency: Annotated[
        int | None, _option("--averaging-frequency", "Batches of a job between two averagings.", min=1)
    ] = None,
    router: Annotated[str | None, _option("--router", "iterative-reduce or hogwild.")] = None,
    seed: Annotated[int | None, _option("--seed", "Of everything random.")] = None,
    learning_rate: Annotated[float | None, _option("--learning-rate", "Instead of the model's own.")] = None,
    updater: Annotated[str | None, _option("--updater", "sgd, adagrad, adam, ... instead of the model's own.")] = None,
    tracker: Annotated[str, _option("--tracker", "Where the run's state is kept: memory.")] = "memory",
    run: Annotated[str | None, _option("--run", "The run's name.")] = None,
    checkpoint_dir: Annotated[str | None, _option("--checkpoint-dir", "Keep checkpoints here.")] = None,
    checkpoint_every: Annotated[
        int | None, _option("--checkpoint-every", "Rounds between two checkpoints.", min=1)
    ] = None,
    out: Out = None,
    format: Format = OutputFormat.TEXT,
    log_format: LogFormat = OutputFormat.TEXT,
) -> None:
    """Train a model with a master and workers on this machine; evaluate it on the examples held out."""
    from dl4jlegacy import launch
    from dl4jlegacy.scaleout.conf import Conf

    if tracker != "memory":
        raise UsageError(f"--tracker {tracker}: this version keeps a run's state in memory only; leave the flag out")
    base = Conf() if conf is None else Conf.read(conf)
    flags: dict[str, Any] = {
        "model": model,
        "dataset": dataset,
        "data_dir": data_dir,
        "workers": workers,
        "jobs_per_round": jobs_per_round,
        "batch_size": batch_size,
        "epochs": epochs,
        "pretrain_epochs": pretrain_epochs,
        "averaging_frequency": averaging_frequency,
        "router": router,
        "seed": seed,
        "run": run,
        "checkpoint_dir": checkpoint_dir,
        "checkpoint_every": checkpoint_every,
    }
    given = {name: value for name, value in flags.items() if value is not None}
    if model is not None:
        given["multi_layer_conf"] = None  # a model named on the command line replaces the file's network
    chosen = base.replace(**given)
    chosen = chosen.replace(dataset=chosen.dataset or "digits")
    data = launch.load_data(chosen.dataset, chosen.data_dir)
    named = frozenset(given) | (frozenset() if conf is None else Conf.named_in(conf))
    ready = launch.prepare(chosen, data, named, learning_rate=learning_rate, updater=updater)
    show_training(
        lambda tick: launch.train(ready, data, out=out or "", tick=tick), format, log_format, ready.checkpoint_dir
    )


@app.command()
def resume(
    run: Annotated[str, typer.Argument(help="A run's checkpoint folder.")],
    workers: Workers = None,
    data_dir: DataDir = None,
    out: Out = None,
    format: Format = OutputFormat.TEXT,
    log_format: LogFormat = OutputFormat.TEXT,
) -> None:
    """Go on where a run stopped; prints what train would have printed."""
    from dl4jlegacy import launch
    from dl4jlegacy.errors import CheckpointError
    from dl4jlegacy.scaleout.conf import Conf

    path = Path(run).expanduser() / "conf.json"
    if not path.is_file():
        raise CheckpointError(f"{run} holds no run: there is no file {path}; give the folder of --checkpoint-dir")
    changes: dict[str, Any] = {"checkpoint_dir": run, "workers": workers, "data_dir": data_dir}
    conf = Conf.read(path).replace(**{name: value for name, value in changes.items() if value is not None})
    data = launch.load_data(conf.dataset, conf.data_dir)
    show_training(lambda tick: launch.train(conf, data, resume=True, out=out or "", tick=tick), format, log_format, run)


def show_training(
    start: Callable[[Callable[[Any], None]], Any],
    format: OutputFormat = OutputFormat.TEXT,
    log_format: OutputFormat = OutputFormat.TEXT,
    checkpoints: str = "",
) -> None:
    """Run a training with display and signals, and print its report."""
    from dl4jlegacy.progress import ProgressDisplay

    console = _console(log_format)
    signal.signal(signal.SIGTERM, _on_sigterm)
    try:
        with ProgressDisplay(console, json_lines=log_format is OutputFormat.JSON) as display:
            report = start(display.tick)
    except KeyboardInterrupt:
        if checkpoints:
            console.print(Text(f"stopped; `dl4j resume {checkpoints}` goes on from here"), soft_wrap=True)
        raise
    for warning in report.warnings:
        console.print(Text(f"warning: {warning}"), soft_wrap=True)
    if format is OutputFormat.JSON:
        print(json.dumps(report.fields))
        return
    fields = report.fields
    print(report.evaluation.stats())
    print(
        f"run {fields['run']}: {fields['model']} on {fields['dataset']}, {fields['workers']} workers, "
        f"{fields['rounds']} rounds, {fields['examples']:,} examples in {fields['seconds']:.1f} s "
        f"({fields['examples_per_second']:,.0f}/s)"
    )
    print(f"batches lost {fields['batches_lost']}, duplicated {fields['batches_duplicated']}")
    print(f"accuracy {fields['accuracy']:.4f}, f1 {fields['f1']:.4f}, params_sha256 {fields['params_sha256']}")
    if fields["model_path"]:
        print(f"model saved to {fields['model_path']}")


@app.command()
def evaluate(
    model: Annotated[str, typer.Argument(help="A saved model.")],
    dataset: Annotated[str, _option("--dataset", "digits, iris, mnist, FILE.csv or a folder.")],
    data_dir: DataDir = None,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Evaluate a saved model on the examples of a data set that training holds out."""
    from dl4jlegacy import launch

    evaluation, fields = launch.evaluate_model(model, dataset, data_dir or "")
    print(json.dumps(fields) if format is OutputFormat.JSON else evaluation.stats())


@app.command()
def predict(
    model: Annotated[str, typer.Argument(help="A saved model.")],
    file: Annotated[Path, typer.Argument(help="A CSV file: one example a row, features only.")],
    format: Format = OutputFormat.TEXT,
) -> None:
    """Print the class that a saved model gives each row of a CSV file."""
    from dl4jlegacy import launch
    from dl4jlegacy.datasets import read_csv

    features = read_csv(file, labelled=False)[0].features
    classes, output = launch.predict(model, features, str(file))
    if format is OutputFormat.JSON:
        rounded = [[round(float(p), 6) for p in row] for row in output]
        print(json.dumps({"model": model, "predictions": [int(c) for c in classes], "probabilities": rounded}))
    else:
        print("\n".join(str(int(c)) for c in classes))


def _console(log_format: OutputFormat) -> Console:
    """Return the console on stderr, and send the package's log there."""
    console = Console(stderr=True, highlight=False)
    logger = logging.getLogger("dl4jlegacy")
    if log_format is OutputFormat.TEXT:
        handler: logging.Handler = RichHandler(console=console, show_path=False, show_time=False, markup=False)
    else:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_JsonFormatter())
    logger.handlers = [handler]
    logger.setLevel(logging.WARNING)
    return console


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return json.dumps({"event": "log", "level": record.levelname.lower(), "message": record.getMessage()})


def _on_sigterm(number: int, frame: Any) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one leaves now
    raise _Terminated


def report_error(error: Dl4jError, *, as_json: bool) -> int:
    """Print an error the way the contract says; return the exit status."""
    if isinstance(error, JobError) and error.worker_traceback:
        print(error.worker_traceback.rstrip(), file=sys.stderr)
    print(f"error [{error.code}]: {error}", file=sys.stderr)
    if as_json:
        print(json.dumps({"error": {"code": error.code, "message": str(error), "exit": error.exit_status}}))
    return error.exit_status


def run_guarded(command: Callable[[], Any], *, as_json: bool = False) -> int:
    """Run a command; return the process's exit status, with one message on stderr for whatever went wrong."""
    try:
        command()
    except Dl4jError as error:
        return report_error(error, as_json=as_json)
    except _CommandLineError as error:
        return report_error(UsageError(f"{error.format_message()} (see --help)"), as_json=as_json)
    except typer.Exit as leave:
        return leave.exit_code
    except _Terminated:
        return EXIT_TERMINATED
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return 0
    except Exception:  # noqa: BLE001  # the last line of defence: an internal bug, with its traceback
        traceback.print_exc()
        message = "internal error, see the traceback on stderr; this is a bug in dl4jlegacy"
        print(message, file=sys.stderr)
        if as_json:
            print(json.dumps({"error": {"code": "DL4J-INTERNAL", "message": message, "exit": EXIT_INTERNAL}}))
        return EXIT_INTERNAL
    return 0


def main(arguments: list[str] | None = None) -> None:
    """Entry point of ``dl4j``."""
    given = sys.argv[1:] if arguments is None else arguments
    pairs = [*zip(given, given[1:], strict=False), *((a.partition("=")[0], a.partition("=")[2]) for a in given)]
    as_json = ("--format", "json") in pairs
    sys.exit(run_guarded(lambda: app(args=given, prog_name="dl4j", standalone_mode=False), as_json=as_json))
