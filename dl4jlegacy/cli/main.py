"""``dl4j``: the command line. Reads flags and environment, prints results on stdout, everything else on stderr.

What a flag says wins over the environment (``DL4J_...``), that over the Conf file, that over the defaults.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from dl4jlegacy.cli import cluster, summary
from dl4jlegacy.cli.aws import aws_app
from dl4jlegacy.cli.bench import bench_app
from dl4jlegacy.cli.options import Id, Zookeeper, seconds
from dl4jlegacy.cli.services import services_app
from dl4jlegacy.console import emit, run_guarded
from dl4jlegacy.errors import CheckpointError, UsageError, nearest
from dl4jlegacy.version import __version__

__all__ = ["app", "main"]

# ClickException, which typer has in a place of its own or click's
_CommandLineError: Any = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="dl4j",
    help="Train neural networks with a master and workers; no batch is ever lost.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.add_typer(services_app)
app.add_typer(aws_app)
app.add_typer(bench_app)
cluster.add_commands(app)
summary.add_commands(app)

_LEAST = {
    "workers": 1,
    "jobs_per_round": 1,
    "batch_size": 1,
    "epochs": 1,
    "pretrain_epochs": 0,
    "averaging_frequency": 1,
    "checkpoint_every": 1,
    "min_workers": 0,
    "seed": -(2**63),
}
"""The whole numbers among the flags, and the least that each may be."""

_CONF_FLAGS = (
    *("model", "dataset", "data_dir", "workers", "jobs_per_round", "batch_size", "epochs", "pretrain_epochs"),
    *("averaging_frequency", "router", "seed", "run", "checkpoint_dir", "checkpoint_every", "min_workers"),
    *("device", "precision", "mixed_devices", "device_memory_limit"),
)
"""Flags that are fields of ``Conf``."""


def _variable(name: str) -> str:
    return f"DL4J_{name.upper()}"


def _option(flag: str, metavar: str, text: str) -> Any:
    variable = _variable(flag.removeprefix("--").replace("-", "_"))
    return typer.Option(flag, metavar=metavar, help=text, envvar=variable, show_envvar=False)


# Flags arrive as text and are read here, so that every message names flag, value and what is allowed.
Workers = Annotated[str | None, _option("--workers", "N", "Worker threads (4).")]
DataDir = Annotated[str | None, _option("--data-dir", "DIR", "Where MNIST's files are, or are to go.")]
Format = Annotated[str, _option("--format", "text|json", "Results as text, or as one JSON object.")]
LogFormat = Annotated[str, _option("--log-format", "text|json", "Progress as text, or as lines of JSON.")]
Out = Annotated[str | None, _option("--out", "FILE", "Save the trained model to this zip file.")]
Bind = Annotated[str, _option("--bind", "HOST", "Where a cluster's master listens for signs of life (127.0.0.1).")]
MinWorkers = Annotated[
    str | None, _option("--min-workers", "N", "Workers below which a cluster's master issues no jobs (1).")
]
WorkerWait = Annotated[str | None, _option("--worker-wait", "SECONDS", "How long it waits for them then (300).")]
Device = Annotated[str | None, _option("--device", "cpu|gpu|gpu:N|auto", "What to compute on (cpu); gpu: all GPUs.")]
MemoryLimit = Annotated[
    str | None, _option("--device-memory-limit", "SIZE|PART", "Of each GPU, such as 8GiB or 80% (all).")
]
Precision = Annotated[
    str | None, _option("--precision", "NAME", "Of matrix products on GPUs: float32 (the default), tf32 or bf16.")
]
MixedDevices = Annotated[
    bool,
    typer.Option(
        "--mixed-devices",
        envvar="DL4J_MIXED_DEVICES",
        show_envvar=False,
        help="Let CPU and GPU workers train together; the answer is then not the same bit by bit.",
    ),
]
DatasetOption = _option("--dataset", "NAME", "digits, iris, mnist, sonnets, a CSV or .txt file, or a folder.")


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    if version:
        emit(__version__)
    elif context.invoked_subcommand is None:
        raise UsageError("give a command: train, resume, evaluate, predict, master, worker, ... (see --help)")


@app.command("master", help="Be the master of a run whose workers are other processes (dl4j worker).")
@app.command()
def train(
    context: typer.Context,
    conf: Annotated[Path | None, typer.Argument(metavar="CONF", help="A Conf file, JSON or YAML.")] = None,
    model: Annotated[str | None, _option("--model", "NAME", "mlp (the default), dbn, lenet, char-lstm, ...")] = None,
    dataset: Annotated[str | None, DatasetOption] = None,
    data_dir: DataDir = None,
    workers: Workers = None,
    jobs_per_round: Annotated[
        str | None, _option("--jobs-per-round", "N", "Jobs between two averagings (as many as workers).")
    ] = None,
    batch_size: Annotated[str | None, _option("--batch-size", "N", "Examples of a batch.")] = None,
    epochs: Annotated[str | None, _option("--epochs", "N", "Passes over the data, pretraining apart.")] = None,
    pretrain_epochs: Annotated[
        str | None, _option("--pretrain-epochs", "N", "Passes for every pretrained layer.")
    ] = None,
    averaging_frequency: Annotated[
        str | None, _option("--averaging-frequency", "N", "Batches that a job trains on before it is averaged.")
    ] = None,
    router: Annotated[str | None, _option("--router", "NAME", "iterative-reduce (the default) or hogwild.")] = None,
    seed: Annotated[str | None, _option("--seed", "N", "Of everything random (123).")] = None,
    learning_rate: Annotated[
        str | None, _option("--learning-rate", "X", "For all layers that have none of their own.")
    ] = None,
    updater: Annotated[str | None, _option("--updater", "NAME", "sgd, nesterovs, adagrad, adam, ...")] = None,
    tracker: Annotated[
        str, _option("--tracker", "URL", "Where the run's state is kept: memory, or hazelcast://host:port.")
    ] = "memory",
    cluster_name: Annotated[
        str | None, _option("--cluster-name", "NAME", "Of the Hazelcast members (of dl4j services, else dev).")
    ] = None,
    zookeeper: Annotated[str | None, _option("--zookeeper", "HOST:PORT", "Where workers find the run.")] = None,
    id: Id = None,
    bind: Bind = "127.0.0.1",
    min_workers: MinWorkers = None,
    worker_wait: WorkerWait = None,
    device: Device = None,
    precision: Precision = None,
    mixed_devices: MixedDevices = False,
    device_memory_limit: MemoryLimit = None,
    standby: Annotated[bool, typer.Option("--standby", help="Wait behind a master, and take over if it dies.")] = False,
    run: Annotated[str | None, _option("--run", "NAME", "The run's name.")] = None,
    checkpoint_dir: Annotated[str | None, _option("--checkpoint-dir", "DIR", "Keep checkpoints here.")] = None,
    checkpoint_every: Annotated[
        str | None, _option("--checkpoint-every", "N", "Rounds between two checkpoints (10).")
    ] = None,
    out: Out = None,
    format: Format = "text",
    log_format: LogFormat = "text",
) -> None:
    """Train a model here and evaluate it on held-out examples.

    Flags win over DL4J_... environment variables, those over CONF.
    """
    _train(dict(locals()))


def _train(flags: dict[str, Any]) -> None:
    """Do what ``train`` was asked to; ``flags`` are its arguments by name."""
    from dl4jlegacy import training
    from dl4jlegacy.cli.progress import show_training
    from dl4jlegacy.scaleout.conf import Conf

    as_json, json_lines = _is_json("format", flags["format"]), _is_json("log_format", flags["log_format"])
    if cluster.is_standby(flags):
        cluster.stand_by(flags, show_training, as_json=as_json, json_lines=json_lines)
        return
    path: Path | None = flags["conf"]
    given = _values({name: flags[name] for name in _CONF_FLAGS} | {"kernels": os.environ.get("DL4J_KERNELS")})
    out, rate = _text("out", flags["out"]) or "", _rate(flags["learning_rate"])
    base = Conf() if path is None else Conf.read(path)
    named = frozenset(given) | (frozenset() if path is None else Conf.named_in(path))
    if "model" in given:
        given |= {"multi_layer_conf": None, "computation_graph_conf": None}  # it replaces the file's network
    conf = training.with_absolute_paths(base.replace(**given))
    conf, named = training.on_devices(conf, named, local=flags["context"].info_name != cluster.MASTER)
    data = training.load_data(conf.dataset, conf.data_dir)
    conf = _with_wait(conf, flags["worker_wait"])
    ready = training.prepare(conf, data, named, learning_rate=rate, updater=_text("updater", flags["updater"]))
    start, goes_on = cluster.starter(flags, ready, data, out)
    show_training(start, as_json=as_json, json_lines=json_lines, checkpoints=ready.checkpoint_dir, goes_on=goes_on)


def _with_wait(conf: Any, worker_wait: str | None) -> Any:
    return conf if worker_wait is None else conf.replace(worker_wait_seconds=seconds("--worker-wait", worker_wait))


@app.command()
def resume(
    run: Annotated[
        str, typer.Argument(metavar="RUN|DIR", help="A run's checkpoint folder, or its name or id in Zookeeper.")
    ],
    workers: Workers = None,
    data_dir: DataDir = None,
    zookeeper: Zookeeper = None,
    id: Id = None,
    bind: Bind = "127.0.0.1",
    min_workers: MinWorkers = None,
    worker_wait: WorkerWait = None,
    device: Device = None,
    device_memory_limit: MemoryLimit = None,
    out: Out = None,
    format: Format = "text",
    log_format: LogFormat = "text",
) -> None:
    """Go on where a run stopped; prints what train would have printed."""
    from dl4jlegacy import storage
    from dl4jlegacy.cli.progress import show_training

    as_json, json_lines = _is_json("format", format), _is_json("log_format", log_format)
    changes = _values(
        {
            "workers": workers,
            "data_dir": data_dir,
            "min_workers": min_workers,
            "device": device,
            "device_memory_limit": device_memory_limit,
        }
    )
    if worker_wait is not None:
        changes["worker_wait_seconds"] = seconds("--worker-wait", worker_wait)
    target = _text("out", out) or ""
    path = storage.find_conf(run)
    if path is not None:
        checkpoints = run if storage.is_remote(run) else str(path.parent)
        start, goes_on = _folder_resumer(run, path, {**changes, "checkpoint_dir": checkpoints}, target), ""
    elif zookeeper:
        flags = {"zookeeper": zookeeper, "id": id, "bind": bind}
        start, goes_on, checkpoints = cluster.resumer(run, flags, changes, target)
    else:
        raise CheckpointError(
            f"{run} holds no run: it has no conf.json; give what --checkpoint-dir was, or a name and --zookeeper"
        )
    show_training(start, as_json=as_json, json_lines=json_lines, checkpoints=checkpoints, goes_on=goes_on)


def _folder_resumer(run: str, path: Path, changes: Mapping[str, Any], out: str) -> Callable[..., Any]:
    """Return what goes on with a run from its checkpoints, in this process."""
    from dl4jlegacy import training

    conf = training.read_run(run, path).replace(**changes)
    data = training.load_data(conf.dataset, conf.data_dir)
    return lambda tick: training.train(conf, data, resume=True, out=out, tick=tick)


@app.command()
def evaluate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A saved model.")],
    dataset: Annotated[str, DatasetOption],
    split: Annotated[
        str, _option("--split", "PART", "Which examples: test (held out in training), train or all.")
    ] = "test",
    data_dir: DataDir = None,
    device: Device = None,
    format: Format = "text",
) -> None:
    """Evaluate a saved model on a data set."""
    from dl4jlegacy.cli.progress import use_device_and_report
    from dl4jlegacy.inference import SPLITS, evaluate_model

    as_json, part = _is_json("format", format), _choice("split", split, SPLITS)
    name = _text("dataset", dataset) or ""
    with use_device_and_report(_device(device)) as (kernels, used):
        folder = _text("data_dir", data_dir) or ""
        evaluation, fields = evaluate_model(model, name, folder, split=part, kernels=kernels)
    fields["device"] = used.label
    emit(json.dumps(fields) if as_json else evaluation.text())


@app.command()
def predict(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A saved model.")],
    file: Annotated[str, typer.Argument(metavar="FILE", help="A CSV file: one example a row, features only.")],
    device: Device = None,
    format: Format = "text",
) -> None:
    """Print the class that a saved model gives each row of a CSV file."""
    from dl4jlegacy import storage
    from dl4jlegacy.cli.progress import use_device_and_report
    from dl4jlegacy.inference import predict_file

    as_json = _is_json("format", format)
    with use_device_and_report(_device(device)) as (kernels, _):
        prediction = predict_file(model, Path(storage.local(file)), kernels=kernels)
    emit(json.dumps(prediction.fields) if as_json else "\n".join(prediction.lines))


# -- reading flags ---------------------------------------------------------------------------------------------------


def _values(texts: Mapping[str, str | bool | None]) -> dict[str, Any]:
    """Return the flags that were given, as the values that they spell."""
    return {name: _value(name, text) for name, text in texts.items() if text not in (None, False)}


def _device(text: str | None) -> str | None:
    return None if text is None else str(_value("device", text))


def _value(name: str, given: str | bool | None) -> Any:
    from dl4jlegacy.devices import PRECISIONS, check_choice, memory_limit

    if given is True:
        return True
    text = _text(name, str(given)) or ""
    if name == "device":
        check_choice(text, _label(name, text))
    elif name == "precision":
        _choice(name, text, PRECISIONS)
    elif name == "device_memory_limit":
        memory_limit(text, _label(name, text))
    return _whole(name, text) if name in _LEAST else text


def _label(name: str, text: str) -> str:
    """Return the flag's name, or the variable's that stood in for it."""
    variable = _variable(name)
    return variable if os.environ.get(variable) == text else f"--{name.replace('_', '-')}"


def _text(name: str, text: str | None) -> str | None:
    if text is not None and not text.strip():
        raise UsageError(f"{_label(name, text)} is empty; give a value or leave it out")
    return text


def _whole(name: str, text: str) -> int:
    least = _LEAST[name]
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value < 2**63:
        allowed = "a whole number of 64 bits" if least < 0 else f"a whole number, at least {least}"
        raise UsageError(f"{_label(name, text)} is {text!r}; it must be {allowed}")
    return value


def _rate(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise UsageError(f"{_label('learning_rate', text)} is {text!r}; it must be a number, not negative")
    return value


def _choice(name: str, text: str, known: tuple[str, ...]) -> str:
    if text not in known:
        raise UsageError(f"{_label(name, text)} is {text!r}{nearest(text, known)}")
    return text


def _is_json(name: str, text: str) -> bool:
    return _choice(name, text, ("text", "json")) == "json"


def _wants_json(arguments: list[str], flag: str) -> bool:
    """Whether errors are to be JSON: asked before anything is parsed, since parsing may be what fails."""
    pairs = [*itertools.pairwise(arguments), *(a.split("=", 1) for a in arguments if "=" in a)]
    chosen = [value for name, value in pairs if name == flag]
    return (chosen[-1] if chosen else os.environ.get(_variable(flag.removeprefix("--").replace("-", "_")))) == "json"


def main(arguments: list[str] | None = None) -> None:
    """Entry point of ``dl4j``."""
    given = sys.argv[1:] if arguments is None else arguments

    def command() -> Any:
        try:
            return app(args=given, prog_name="dl4j", standalone_mode=False)
        except _CommandLineError as error:
            raise UsageError(f"{error.format_message().rstrip('.')} (see --help)") from error
        except typer.Exit as leave:
            return leave.exit_code

    sys.exit(
        run_guarded(command, as_json=_wants_json(given, "--format"), json_lines=_wants_json(given, "--log-format"))
    )
