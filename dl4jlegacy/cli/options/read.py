"""The options of the commands: their names, their parsing, and the typed groups that commands take.

``conf_options`` beside it makes a run's Conf of them.

The environment (``DL4J_...``) replaces an option that is not given. Every option arrives as text and is parsed here, so
that each kind of mistake has one message, which names the option (or the variable), the text and the allowed values.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dl4jlegacy.cli.options import completion
from dl4jlegacy.cli.options.declarations import PoisonJobs, add_command, number_option, option, variable_of
from dl4jlegacy.cli.options.declarations import count_option as _number
from dl4jlegacy.cli.options.declarations import text_option as _text
from dl4jlegacy.cli.options.values import (
    class_weights,
    json_object,
    not_empty,
    one_of,
    rate,
    seconds,
    share,
    sizes,
    text_or_json,
    words,
)
from dl4jlegacy.errors import UsageError

if TYPE_CHECKING:
    from dl4jlegacy.cluster.address import ClusterAddress

__all__ = [
    "MODELS",
    "UPDATERS",
    "Bind",
    "ClusterName",
    "DataDir",
    "Dataset",
    "Device",
    "Format",
    "Id",
    "Images",
    "KeepIndex",
    "Label",
    "LogFormat",
    "Missing",
    "MultiLabel",
    "Regression",
    "ReportFormat",
    "ResumeOptions",
    "Tracker",
    "TrainOptions",
    "WorkerOptions",
    "Zookeeper",
    "add_command",
    "cluster_address",
    "number_option",
    "option",
    "variable_of",
]

MODELS, UPDATERS = completion.listed(completion.MODELS), completion.listed(completion.UPDATERS)
"""Names of the zoo's models and of the updaters, for the help."""

_ID = re.compile(r"[A-Za-z0-9_.-]{1,100}")

# -- reading one value -------------------------------------------------------------------------------------------------


def _device(label: str, text: str) -> str:
    from dl4jlegacy.arrays.devices import check_choice

    check_choice(not_empty(label, text), label)
    return text


def _memory_limit(label: str, text: str) -> str:
    from dl4jlegacy.arrays.devices import memory_limit

    memory_limit(not_empty(label, text), label)
    return text


def _metric(label: str, text: str) -> str:
    return one_of(label, text, completion.METRICS)


def _path(label: str, text: str) -> Path:
    return Path(not_empty(label, text))


def _precision(label: str, text: str) -> str:
    from dl4jlegacy.arrays.devices import PRECISIONS

    return one_of(label, not_empty(label, text), PRECISIONS)


Bind = Annotated[str, _text("--bind", "HOST", "Where a cluster's master listens for signs of life (127.0.0.1).", None)]
ClusterName = Annotated[
    str | None,
    _text("--cluster-name", "NAME", "Name of the Hazelcast cluster (that of dl4j services here, else dev).", None),
]
DataDir = Annotated[
    str | None, _text("--data-dir", "DIR", "Folder of MNIST's files, which are downloaded to it if missing.")
]
Dataset = _text("--dataset", "NAME", "digits, iris, mnist, sonnets, a table, a .txt file or a folder.")
Device = Annotated[
    str | None, _text("--device", "cpu|gpu|gpu:N|auto", "What to compute on (cpu); gpu: all GPUs.", _device)
]
Format = Annotated[
    str, option("--format", metavar="text|json", help="As text, or as one JSON object.", read=text_or_json)
]
Id = Annotated[
    str | None,
    option("--id", metavar="ID", help="The run's id in Zookeeper (master).", variable="DL4J_ID", show_variable=True),
]
Label = Annotated[
    str | None,
    _text("--label", "COLUMN[,COLUMN]", "The column of a table to learn, by name or number (the last); or several."),
]
Images = Annotated[str | None, _text("--images", "COLUMN", "The column of a table that names the images to learn.")]
ImageSize = Annotated[str | None, _text("--image-size", "HEIGHTxWIDTH", "Of images (their own, if they are alike).")]
LogFormat = Annotated[
    str, option("--log-format", metavar="text|json", help="Events as text or as JSON lines.", read=text_or_json)
]
MemoryLimit = Annotated[
    str | None, _text("--device-memory-limit", "SIZE|PART", "Of each GPU, such as 8GiB or 80% (all).", _memory_limit)
]
MinWorkers = Annotated[int | None, _number("--min-workers", "Workers that a master needs to issue jobs (1).", least=0)]
DataByReference = Annotated[
    bool,
    typer.Option(
        "--data-by-reference",
        envvar="DL4J_DATA_BY_REFERENCE",
        show_envvar=False,
        help="Let a cluster's workers read the data set themselves, each on its machine (it goes with the jobs).",
    ),
]
CollectTrainingStats = Annotated[
    bool,
    typer.Option(
        "--collect-training-stats",
        envvar="DL4J_COLLECT_TRAINING_STATS",
        show_envvar=False,
        help="Record what takes time, in --checkpoint-dir; dl4j stats DIR shows it.",
    ),
]
MixedDevices = Annotated[
    bool,
    typer.Option(
        "--mixed-devices",
        envvar="DL4J_MIXED_DEVICES",
        show_envvar=False,
        help="Let CPUs and GPUs of any kind train together; the answer is then not the same bit by bit.",
    ),
]
KeepIndex = Annotated[bool, typer.Option("--keep-index", help="Learn from pandas' index, too, which is left out.")]
Missing = Annotated[Any, _text("--missing", "WORDS", "Cells without a value besides empty ones: '?,NA'.", words)]
MultiLabel = Annotated[
    bool, typer.Option("--multi-label", help="The labels are 0 or 1 each, and do not exclude each other.")
]
Out = Annotated[str | None, _text("--out", "FILE", "Save the model to this file: .zip or .safetensors.")]
ProgressFormat = Annotated[
    str, _text("--log-format", "text|json", "Progress as text, or as lines of JSON.", text_or_json)
]
Regression = Annotated[bool, typer.Option("--regression", help="The label is a number to predict, and not a class.")]
ReportFormat = Annotated[str, _text("--format", "text|json", "Results as text, or as one JSON object.", text_or_json)]
Workers = Annotated[int | None, _number("--workers", "Worker threads (4).")]
WorkerWait = Annotated[
    float | None, _text("--worker-wait", "SECONDS", "How long it waits for them before it gives up (300).", seconds)
]
Tracker = Annotated[str | None, _text("--tracker", "URL", "The grid: hazelcast://host:port[,host:port].")]
TrackerWait = Annotated[
    float | None,
    _text("--tracker-wait", "SECONDS", "How long a run's processes wait for a tracker that is away (300).", seconds),
]
Lease = Annotated[
    float | None,
    _text("--lease", "SECONDS", "A job whose worker is not heard of for so long is given to another (30).", seconds),
]
Stuck = Annotated[
    float | None,
    _text("--stuck", "SECONDS", "A worker that does no batch for so long counts as stuck (300).", seconds),
]
Session = Annotated[
    float | None,
    _text("--session", "SECONDS", "Zookeeper drops a process that it does not hear of for so long (3).", seconds),
]
Use = Annotated[
    str | None,
    option(
        "--use",
        metavar="MODULE[,MODULE]",
        help="Python modules to import first, which register parts of the run: its performer, its router.",
        read=not_empty,
        variable="DL4J_USE",
        show_variable=True,
    ),
]
Zookeeper = Annotated[
    str | None,
    option(
        "--zookeeper",
        metavar="HOST:PORT[,HOST:PORT]",
        help="Where the master has registered.",
        variable="DL4J_ZOOKEEPER",
        show_variable=True,
    ),
]

# -- the options of a command ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """The options of ``dl4j train`` and ``dl4j master``; None: not given."""

    conf: Annotated[
        str | None,
        typer.Argument(metavar="CONF|DATA", help="A Conf file, JSON or YAML; or a table, a text or a folder to learn."),
    ] = None
    model: Annotated[
        str | None, _text("--model", "NAME", f"{MODELS}; default mlp, of texts and sequences an LSTM.")
    ] = None
    dataset: Annotated[str | None, Dataset] = None
    data_dir: DataDir = None
    data_by_reference: DataByReference = False
    label: Label = None
    regression: Regression = False
    multi_label: MultiLabel = False
    missing: Missing = None
    keep_index: KeepIndex = False
    schema: Annotated[
        Path | None,
        _text(
            "--schema", "FILE", "What is made of the columns, as dl4j data inspect --out writes it (guessed).", _path
        ),
    ] = None
    stratify: Annotated[bool, typer.Option("--stratify", help="Give each part its share of every class.")] = False
    class_weights: Annotated[
        Any,
        _text(
            "--class-weights",
            "balanced|NAME=X,...",
            "What an example of each class counts for in the loss (1).",
            class_weights,
        ),
    ] = None
    images: Images = None
    image_size: ImageSize = None
    image_channels: Annotated[str | None, _text("--image-channels", "1|3", "Gray, or colours (if any has).")] = None
    image_fit: Annotated[str | None, _text("--image-fit", "resize|crop", "How images get that size (resize).")] = None
    image_background: Annotated[
        str | None, _text("--image-background", "COLOUR", "Behind transparency: white, black, gray or #rrggbb (white).")
    ] = None
    augment: Annotated[
        str | None,
        _text(
            "--augment",
            "HOW",
            "Change images at random while learning: flip,rotate=10,crop=2,brightness=0.2,color=0.1.",
        ),
    ] = None
    sequences: Annotated[
        bool, typer.Option("--sequences", help="Each CSV file in the folder is a sequence, a row a time step.")
    ] = False
    tokens: Annotated[str | None, _text("--tokens", "characters|words", "What a text is read by (characters).")] = None
    vocabulary_size: Annotated[int | None, _number("--vocabulary-size", "Words that are told apart (1000).")] = None
    workers: Workers = None
    jobs_per_round: Annotated[
        int | None, _number("--jobs-per-round", "Jobs of a round, whose results are averaged (chosen, often 1).")
    ] = None
    batch_size: Annotated[int | None, _number("--batch-size", "Examples in a batch (chosen).")] = None
    epochs: Annotated[int | None, _number("--epochs", "Passes over the data after pretraining (chosen).")] = None
    pretrain_epochs: Annotated[
        int | None,
        _number("--pretrain-epochs", "Passes over the data for each pretrained layer (chosen).", least=0),
    ] = None
    averaging_frequency: Annotated[
        int | None, _number("--averaging-frequency", "Batches that a job trains on before it is averaged (chosen).")
    ] = None
    warm_start: Annotated[
        float | None, _text("--warm-start", "PART", "Part of the first epoch with narrower rounds (0).", rate)
    ] = None
    warm_start_jobs: Annotated[int | None, _number("--warm-start-jobs", "Jobs of such a round (1).")] = None
    examples_per_update: Annotated[
        int | None,
        _number("--examples-per-update", "Examples behind one update, shared out to the jobs; sets --batch-size."),
    ] = None
    no_scaling: Annotated[
        bool,
        typer.Option("--no-scaling", help="Leave features beyond 0..1 as they are (they are scaled to it)."),
    ] = False
    router: Annotated[
        str | None, _text("--router", "NAME", "How updates are combined (iterative-reduce); see docs/strategies.md.")
    ] = None
    router_args: Annotated[
        dict[str, Any] | None, _text("--router-args", "JSON", "The router's own options.", json_object)
    ] = None
    mesh: Annotated[str | None, _text("--mesh", "plain|mesh", "Let workers push their messages to each other.")] = None
    network_mask: Annotated[str | None, _text("--network-mask", "NETWORK", "Where they do so (on loopback).")] = None
    use: Use = None
    validation: Annotated[
        str | None,
        _text(
            "--validation",
            "PART|NAME",
            "Score the model on a part of the training data, such as 0.1, or a data set (chosen: a tenth).",
        ),
    ] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be trained, and why; train nothing.")] = (
        False
    )
    no_validation: Annotated[
        bool, typer.Option("--no-validation", help="Train on all training data, and keep the last model, not the best.")
    ] = False
    validate_every: Annotated[
        int | None, _number("--validate-every", "Rounds of training between two validations (an epoch).")
    ] = None
    metric: Annotated[
        str | None,
        _text("--metric", "NAME", f"What the model is scored by (loss): {', '.join(completion.METRICS)}.", _metric),
    ] = None
    patience: Annotated[int | None, _number("--patience", "Stop after so many scores in a row that are no better.")] = (
        None
    )
    min_improvement: Annotated[
        float | None, _text("--min-improvement", "X", "By more than this a score must be better to count (0).", rate)
    ] = None
    stop_at_score: Annotated[
        float | None, _text("--stop-at-score", "X", "Stop when the score is better than this.", rate)
    ] = None
    max_seconds: Annotated[float | None, _text("--max-seconds", "SECONDS", "Stop after so many seconds.", seconds)] = (
        None
    )
    stop_if_invalid: Annotated[
        bool,
        typer.Option("--stop-if-invalid", help="Stop with the best model, and no error, at NaN or infinity."),
    ] = False
    seed: Annotated[int | None, _number("--seed", "Seed of everything random (123).", least=-(2**63))] = None
    learning_rate: Annotated[
        float | None,
        _text("--learning-rate", "X", "Learning rate of all layers without one of their own (chosen).", rate),
    ] = None
    updater: Annotated[str | None, _text("--updater", "NAME", f"{UPDATERS} (the model's own).")] = None
    schedule: Annotated[
        str | None,
        _text(
            "--schedule",
            "NAME[:WARM-UP]",
            "The learning rate over the run: constant, linear or cosine, both down to zero; cosine:0.05 rises over the "
            "first twentieth (the model's own).",
        ),
    ] = None
    weight_decay: Annotated[
        float | None,
        _text(
            "--weight-decay",
            "X",
            "Decoupled decay of weights: AdamW, which takes Adam's place (the model's own).",
            rate,
        ),
    ] = None
    hidden: Annotated[
        Any, _text("--hidden", "N[,N]", "Sizes of the model's hidden layers, such as 256,128 (its own).", sizes)
    ] = None
    drop_out: Annotated[
        float | None,
        _text(
            "--drop-out",
            "X",
            "Share of hidden units that is KEPT, as in Deeplearning4j: 0.8 drops a fifth; 0: no drop-out (the "
            "model's own).",
            share,
        ),
    ] = None
    tracker: Annotated[
        str, _text("--tracker", "URL", "Where the run's state is kept: memory, or hazelcast://host:port.", None)
    ] = "memory"
    cluster_name: ClusterName = None
    zookeeper: Annotated[str | None, _text("--zookeeper", "HOST:PORT", "Where workers find the run.", None)] = None
    id: Id = None
    bind: Bind = "127.0.0.1"
    min_workers: MinWorkers = None
    poison_jobs: PoisonJobs = None
    worker_wait: WorkerWait = None
    tracker_wait: TrackerWait = None
    lease: Lease = None
    stuck: Stuck = None
    session: Session = None
    device: Device = None
    precision: Annotated[
        str | None,
        _text(
            "--precision",
            "NAME",
            "Precision of matrix products on GPUs: float32 (the default), tf32 or bf16.",
            _precision,
        ),
    ] = None
    mixed_devices: MixedDevices = False
    device_memory_limit: MemoryLimit = None
    standby: Annotated[bool, typer.Option("--standby", help="Wait behind a master, and take over if it dies.")] = False
    run: Annotated[str | None, _text("--run", "NAME", "The run's name.")] = None
    checkpoint_dir: Annotated[
        str | None, _text("--checkpoint-dir", "DIR", "Keep checkpoints in this folder; dl4j resume goes on from them.")
    ] = None
    checkpoint_every: Annotated[int | None, _number("--checkpoint-every", "Rounds between two checkpoints (10).")] = (
        None
    )
    collect_training_stats: CollectTrainingStats = False
    out: Out = None
    format: ReportFormat = "text"
    log_format: ProgressFormat = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeOptions:
    """The options of ``dl4j resume``; None: not given."""

    run: Annotated[
        str, typer.Argument(metavar="RUN|DIR", help="A run's checkpoint folder, or its name or id in Zookeeper.")
    ]
    workers: Annotated[
        int | None,
        _number("--workers", "Worker threads in this process (the run's; 0 on a cluster: only its workers).", least=0),
    ] = None
    data_dir: DataDir = None
    tracker: Annotated[
        str | None, _text("--tracker", "URL", "Continue DIR on this grid: hazelcast://host:port (else: here).")
    ] = None
    cluster_name: ClusterName = None
    zookeeper: Zookeeper = None
    id: Id = None
    bind: Bind = "127.0.0.1"
    min_workers: MinWorkers = None
    poison_jobs: PoisonJobs = None
    worker_wait: WorkerWait = None
    tracker_wait: TrackerWait = None
    lease: Lease = None
    stuck: Stuck = None
    session: Session = None
    device: Device = None
    mixed_devices: MixedDevices = False
    device_memory_limit: MemoryLimit = None
    use: Use = None
    out: Out = None
    format: ReportFormat = "text"
    log_format: ProgressFormat = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """The options of ``dl4j worker``; None: not given."""

    zookeeper: Zookeeper = None
    master: Annotated[
        str | None, option("-ad", metavar="HOST", help="The master's host; Zookeeper is at its port 2181.")
    ] = None
    workers: Annotated[
        int | None, number_option("--workers", help="Worker threads of this process (1; one for each GPU).", least=1)
    ] = None
    wait: Annotated[
        int,
        number_option("--wait", metavar="SECONDS", help="How long to wait for a master to register (60).", least=0),
    ] = 60
    stay: Annotated[bool, typer.Option("--stay", help="Wait for the next run after each, and for the first.")] = False
    id: Id = None
    data_dir: DataDir = None
    device: Annotated[
        str | None,
        option(
            "--device",
            metavar="cpu|gpu|gpu:N|auto",
            help="What to compute on (as the run does).",
            read=_device,
            variable="DL4J_DEVICE",
            show_variable=True,
        ),
    ] = None
    device_memory_limit: Annotated[
        str | None,
        option(
            "--device-memory-limit",
            metavar="SIZE|PART",
            help="Memory to use of each GPU, such as 8GiB or 80% (all).",
            read=_memory_limit,
            variable="DL4J_DEVICE_MEMORY_LIMIT",
            show_variable=True,
        ),
    ] = None
    use: Use = None
    log_format: LogFormat = "text"


def import_used(modules: str | None) -> None:
    """Import the modules that ``--use`` names; raises ``UsageError`` if that fails."""
    if modules:
        from dl4jlegacy.scaleout.workers.plugins import import_parts

        import_parts(modules.split(","))


def cluster_address(zookeeper: str | None, id: str | None) -> ClusterAddress:
    """Return the address of a run on a cluster, with the secret from the environment.

    Raises:
        UsageError: an option is missing or malformed.
        NotAuthorisedError: Zookeeper is beyond loopback, and there is no secret.
    """
    from dl4jlegacy.cluster.address import MASTER, ClusterAddress
    from dl4jlegacy.system.secret import allows_unsigned, read_secret

    if not zookeeper:
        raise UsageError("--zookeeper is missing; give the host:port at which the run is, or is to be, registered")
    if id is not None and (not _ID.fullmatch(id) or id in (".", "..")):
        raise UsageError(f"--id {id!r}: an id is made of letters, digits, '_', '.' and '-', at most 100 of them")
    return ClusterAddress(zookeeper, read_secret(os.environ), id or MASTER, allows_unsigned(os.environ))
