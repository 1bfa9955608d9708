"""Structs of the commands' output with ``--format json``; ``dl4j schema`` makes the JSON Schemas from them.

Commands do not print these structs but their own results, and tests compare the results with the structs. A field that
is not always present has the default ``UNSET``.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from dl4jlegacy.cli.outputs.cloud import CloudCluster, CloudDown, DryRun, Price, Reaped, ServersDown, ServersUp
from dl4jlegacy.cli.outputs.run_outputs import Histories, Journaled, JournalLine, Status, Watched
from dl4jlegacy.cli.outputs.write import ErrorFields, Output
from dl4jlegacy.datasets.reading import DATA_KINDS
from dl4jlegacy.doctor.check import Result
from dl4jlegacy.nn.evaluation.verdict import Baseline
from dl4jlegacy.scaleout.monitoring.run_summary import RunSummary
from dl4jlegacy.scaleout.state.records import Figures

__all__ = ["OUTPUTS"]

_Object = dict[str, Any]


# -- training ----------------------------------------------------------------------------------------------------------


class Device(Output):
    """What a worker computed on."""

    device: str
    name: str
    uuid: str
    memory: int
    compute_capability: str
    reason: str | UnsetType = UNSET


class LabelFigures(Output):
    """How well one of several labels is told."""

    accuracy: float
    precision: float
    recall: float
    f1: float
    matthews_correlation: float
    true_positives: int
    true_negatives: int
    false_positives: int
    false_negatives: int


class _Evaluated(Output, kw_only=True):
    """Figures of classes are null where numbers are predicted, and those of numbers are there only then."""

    loss: float
    accuracy: float | None
    f1: float | None
    macro_f1: float | UnsetType = UNSET
    class_recall: dict[str, float | None] | UnsetType = UNSET
    mse: float | UnsetType = UNSET
    rmse: float | UnsetType = UNSET
    mae: float | UnsetType = UNSET
    r2: float | UnsetType = UNSET
    labels: dict[str, LabelFigures] | UnsetType = UNSET


class _Judged(_Evaluated, kw_only=True):
    """``learned`` is null if that cannot be told, ``baseline`` where there is nothing to compare with."""

    learned: bool | None
    baseline: Baseline | None
    findings: list[str]


class BestModel(Output):
    """The best model of a run that is scored."""

    round: int
    epoch: int
    version: int
    metric: str
    score: float
    params_sha256: str
    figures: Figures | None


_Read: Any = msgspec.defstruct(
    "_Read", [(kind.name, _Object | UnsetType, UNSET) for kind in DATA_KINDS], bases=(_Judged,), kw_only=True
)
"""The figures, and by the names of the kinds of data how they were read."""


class PlannedRun(Output):
    """What ``dl4j train --dry-run`` would train, and why: the values that were chosen."""

    dry_run: Literal[True]
    model: str
    dataset: str
    parameters: int
    examples: int
    batches: int
    batch_size: int
    epochs: int
    pretrain_epochs: int
    rounds: int
    jobs_per_round: int
    averaging_frequency: int
    validation: float | str | None
    choices: dict[str, str]


class Report(_Read, kw_only=True):  # type: ignore[misc, call-arg]
    """The report of a training; ``cluster`` is there on a cluster."""

    run: str
    model: str
    dataset: str
    router: str
    workers: int
    jobs_per_round: int
    averaging_frequency: int
    batch_size: int
    epochs: int
    rounds: int
    examples: int
    batches: int
    batches_lost: int
    batches_duplicated: int
    batches_set_aside: int
    updates_dropped: int
    seconds: float
    examples_per_second: float
    score: float | None
    params_sha256: str
    model_path: str | None
    kernels: str
    device: str
    devices: list[Device]
    precision: str
    mixed_devices: bool
    seed: int
    scaled_features: bool
    choices: dict[str, str]
    best: BestModel | UnsetType | None = UNSET
    validation: Figures | UnsetType | None = UNSET
    stopped_by: str | UnsetType | None = UNSET
    cluster: RunSummary | UnsetType = UNSET
    label: str | list[str] | UnsetType = UNSET
    augment: _Object | UnsetType = UNSET
    stratified: bool | UnsetType = UNSET
    class_weights: dict[str, float] | UnsetType = UNSET
    error: ErrorFields | UnsetType = UNSET


class StoodBy(Output):
    """A standby whose master was never gone."""

    status: Literal["done"]
    standby: Literal[True]


class Evaluated(_Judged, kw_only=True):
    """The evaluation of a saved model."""

    model: str
    dataset: str
    split: str
    examples: int
    device: str
    precision: float | None
    recall: float | None


class Predicted(Output):
    """Of classes the numbers of these; of several labels 0 or 1 for each; of numbers these."""

    model: str
    examples: int
    predictions: list[int | float | list[float]]
    label_names: list[str] | UnsetType = UNSET
    probabilities: list[list[float]] | UnsetType = UNSET
    column: str | UnsetType = UNSET
    columns: list[str] | UnsetType = UNSET
    files: list[str] | UnsetType = UNSET


class PredictionsWritten(Output):
    """Where the predictions are, with ``--out``."""

    model: str
    out: str


class Exported(Output):
    """The model of a run's checkpoint; of the best one it is not known how many examples it has had."""

    run: str
    model: str
    dataset: str
    version: int
    round: int
    examples: int | None
    score: float | None
    params_sha256: str
    model_path: str


class Converted(Output):
    """A model file of another kind."""

    model: str
    params_sha256: str
    model_path: str


class Generated(Output):
    """A text that a model has gone on with, and how it was drawn."""

    model: str
    tokens: str
    seed_text: str
    text: str
    length: int
    temperature: float
    seed: int


class Reconstructed(Output):
    """The image of examples above their reconstructions."""

    model: str
    out: str
    examples: int
    drawn: int
    mean_squared_error: float


class Sampled(Output):
    """The image of samples, and how they were drawn."""

    model: str
    out: str
    rows: int
    columns: int
    seed: int
    gibbs_steps: int


class Served(Output):
    """Where models are served, by their names."""

    url: str
    models: list[str]


class Trial(Output):
    """A trial of a search."""

    trial: int
    state: Literal["complete", "pruned", "failed"]
    score: float | None
    params: _Object
    scores: list[float]
    seconds: float
    params_sha256: str | None
    is_start: bool
    failure: str | None


class Tuned(Output):
    """A search, and its best trial; ``evaluation`` is of that."""

    study: str
    storage: str | None
    seed: int
    metric: str
    trials: list[Trial]
    best: Trial
    start_score: float | None
    evaluation: _Evaluated
    conf_path: str | None
    model_path: str | None
    plot_path: str | None


# -- networks and data -------------------------------------------------------------------------------------------------


class LayerSize(Output):
    """A layer, vertex or input; ``output`` is the shape of one example, with 0 for any number of time steps.

    ``n_in`` and ``n_out`` are 0 if there are no parameters; ``shapes`` are those of the parameters, by name.
    """

    name: str
    kind: str
    inputs: list[str]
    pre_processor: str
    output: list[int]
    parameters: int
    trained: int
    multiply_adds: int
    activations: int
    frozen: bool
    n_in: int
    n_out: int
    shapes: dict[str, list[int]]


class NetworkSize(Output):
    """A network's layers and sizes."""

    model: str
    kind: str
    dtype: str
    layers: list[LayerSize]
    outputs: list[str]
    parameters: int
    trained_parameters: int
    multiply_adds: int
    per_time_step: bool
    batch_size: int
    memory_bytes: dict[str, int]
    svg: str | None


class Column(Output):
    """A column of a table: of numbers their range, of words how many there are."""

    name: str
    type: str
    missing: int
    invalid: int
    min: float | UnsetType = UNSET
    max: float | UnsetType = UNSET
    mean: float | UnsetType = UNSET
    categories: int | UnsetType = UNSET
    more_categories: bool | UnsetType = UNSET
    most_frequent: dict[str, int] | UnsetType = UNSET


class Inspected(Output):
    """A table, and the schema that training would make of it."""

    path: str
    rows: int
    header: bool
    columns: list[Column]
    label: str | list[str]
    regression: bool
    multi_label: bool
    classes: dict[str, int] | None
    ones: dict[str, int] | None
    schema: _Object
    schema_path: str | None


class Problem(Output):
    """Something wrong with a file."""

    what: str
    count: int
    examples: list[str]


class ValidatedFile(Output):
    """A table with its rows, or a folder with its images."""

    path: str
    problems: list[Problem]
    rows: int | UnsetType = UNSET
    images: int | UnsetType = UNSET


class Validated(Output):
    """What is wrong with data; ``error`` is there if training would refuse them."""

    is_accepted: bool
    files: list[ValidatedFile]
    error: ErrorFields | UnsetType = UNSET


# -- runs --------------------------------------------------------------------------------------------------------------


class Phase(Output):
    """What a phase took, in seconds."""

    phase: str
    count: int
    total: float
    mean: float
    median: float
    p95: float
    share: float


class Statistics(Output):
    """What each phase of a run took; ``lost`` and ``damaged`` events are not in it."""

    events: int
    processes: int
    machines: int
    lost: dict[str, int]
    damaged: int
    phases: list[Phase]


class CurveRange(Output):
    """A curve: where it begins and ends, and between which values it lies."""

    points: int
    first: float
    last: float
    least: float
    most: float


class PlottedRun(Output):
    """A run in a drawing."""

    name: str
    place: str
    versions: int
    examples: int
    seconds: float
    curves: dict[str, CurveRange]


class Plotted(Output):
    """What was drawn, and where."""

    svg: str
    runs: list[PlottedRun]


class ListedRun(Output):
    """What was found of a run; ``removed`` by ``--clean``.

    ``state`` and ``status`` as those of ``dl4j status``; null: it cannot be told, and ``reason`` says why.
    """

    run: str
    incarnation: str
    id: str | None
    state: str | None
    reason: str
    status: str | None
    standing: str
    version: int | None
    round: int | None
    rounds: int | None
    age_seconds: float | None
    bytes: int
    master: _Object | None
    tracker: str | None
    zookeeper: str | None
    registered: bool
    checkpoint_dir: str | None
    removed: bool


class ListedRuns(Output):
    """The runs of which anything is in a grid or in Zookeeper."""

    runs: list[ListedRun]


class Shown(Output):
    """Where the page of a run is, and the file of its token, unless the address has it or it was given."""

    url: str
    run: str | None
    token_file: str | None = None


class Examined(Output):
    """The checks of this machine, how many of them came out how, and the error if one failed that is needed."""

    checks: list[Result]
    ok: int
    warning: int
    failed: int
    skipped: int
    error: ErrorFields | UnsetType = UNSET


class Remedy(Output):
    """A cause, and what to do then."""

    cause: str
    remedy: str


class Explained(Output):
    """A code; one that ends no command has no exit status."""

    code: str
    exit: int | None
    means: str
    remedies: list[Remedy]


class Explanations(Output):
    """The codes that were asked for."""

    codes: list[Explained]


class WarmRuns(Output):
    """What any run needs is compiled now: seconds of its first use, and of the same once more."""

    seconds: float
    again: float


class WarmModel(Output):
    """A model whose kernels are compiled now: seconds of its first batch, and of the same once more."""

    model: str
    seconds: float
    again: float


class Warmed(Output):
    """The models, what any run needs, and the folder that keeps their kernels (null: nothing is kept)."""

    models: list[WarmModel]
    runs: WarmRuns
    cache: str | None


class CommandSchema(Output):
    """The JSON Schema of a command."""

    dialect: str = msgspec.field(name="$schema")
    title: str
    kinds: list[_Object] = msgspec.field(name="anyOf")
    definitions: dict[str, _Object] = msgspec.field(name="$defs")


class Schemas(Output):
    """The commands that have a schema."""

    commands: list[str]


OUTPUTS: dict[str, tuple[type[msgspec.Struct], ...]] = {
    "train": (Report, PlannedRun),
    "resume": (Report,),
    "evaluate": (Evaluated,),
    "predict": (Predicted, PredictionsWritten),
    "serve": (Served,),
    "generate": (Generated,),
    "reconstruct": (Reconstructed,),
    "sample": (Sampled,),
    "tune": (Tuned,),
    "export": (Exported, Converted),
    "summary": (NetworkSize,),
    "data inspect": (Inspected,),
    "data validate": (Validated,),
    "services up": (ServersUp,),
    "services status": (ServersUp,),
    "services down": (ServersDown,),
    "master": (Report, StoodBy),
    "status": (Status, Watched),
    "dashboard": (Shown,),
    "logs": (Journaled, Histories, JournalLine),
    "stats": (Statistics,),
    "plot": (Plotted,),
    "runs": (ListedRuns,),
    "explain": (Explanations,),
    "doctor": (Examined,),
    "warm-up": (Warmed,),
    "aws up": (CloudCluster, DryRun),
    "aws join": (CloudCluster,),
    "aws status": (CloudCluster,),
    "aws scale": (CloudCluster,),
    "aws down": (CloudDown,),
    "aws reap": (Reaped,),
    "aws price": (Price,),
    "schema": (Schemas, CommandSchema),
}
"""By command: the types of its JSON object, or of a line's object if it prints several; failures are ``Failed``."""
