"""``dl4j evaluate`` and ``dl4j predict`` use a saved model; ``dl4j export`` makes one from a checkpoint."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dl4jlegacy.cli.options.read import (
    Bind,
    ClusterName,
    DataDir,
    Dataset,
    Device,
    Id,
    ReportFormat,
    WorkerWait,
    add_command,
    cluster_address,
    number_option,
    option,
    variable_of,
)
from dl4jlegacy.cli.options.values import not_empty, one_of
from dl4jlegacy.cli.outputs.answer import Answer
from dl4jlegacy.errors import UsageError
from dl4jlegacy.system.console import emit

if TYPE_CHECKING:
    from dl4jlegacy.arrays.backend import Array
    from dl4jlegacy.datasets import DataSet
    from dl4jlegacy.models.model import Evaluate, TrainedModel
    from dl4jlegacy.models.prediction import PredictedRows
    from dl4jlegacy.nn.networks import Network
    from dl4jlegacy.storage.paths import Output

__all__ = ["add_commands", "evaluate", "export", "predict"]


_Model = typer.Argument(metavar="MODEL", help="A saved model, a folder of checkpoints, or one checkpoint in it.")


def add_commands(app: typer.Typer) -> None:
    """Add this module's commands to ``dl4j``."""
    add_command(app, evaluate, EvaluateOptions)
    add_command(app, predict, PredictOptions)
    app.command()(export)


def _split(label: str, text: str) -> str:
    from dl4jlegacy.models.model import SPLITS

    return one_of(label, text, SPLITS)


def _form(label: str, text: str) -> str:
    return one_of(label, text, ("text", "json", "jsonl"))


# Not from the environment, which may be set for the processes of a run: these commands must not wait for workers.
_Tracker = option("--tracker", metavar="URL", help="Share it out on this grid: hazelcast://host:port.", read=not_empty)
_Zookeeper = option("--zookeeper", metavar="HOST:PORT", help="Where workers find the run.", read=not_empty)
_Workers = number_option("--workers", help="Worker threads in this process (1; with --tracker: 0).", least=1)
_Run = option("--run", metavar="NAME", help="The run's name.", read=not_empty)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhereOptions:
    """Who works on the data: this thread, several, or the workers of a cluster; None: not given."""

    workers: Annotated[int | None, _Workers] = None
    tracker: Annotated[str | None, _Tracker] = None
    cluster_name: ClusterName = None
    zookeeper: Annotated[str | None, _Zookeeper] = None
    id: Id = None
    run: Annotated[str | None, _Run] = None
    bind: Bind = "127.0.0.1"
    worker_wait: WorkerWait = None
    device: Device = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateOptions(WhereOptions):
    """The options of ``dl4j evaluate``; None: not given."""

    model: Annotated[str, _Model]
    dataset: Annotated[str, Dataset]
    split: Annotated[
        str,
        option(
            "--split",
            metavar="PART",
            help="Which examples: test (held out in training), train or all.",
            read=_split,
            variable=variable_of("--split"),
        ),
    ] = "test"
    data_dir: DataDir = None
    scores: Annotated[
        str | None,
        option("--scores", metavar="FILE", help="Write the loss of each example to this CSV file.", read=not_empty),
    ] = None
    format: ReportFormat = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictOptions(WhereOptions):
    """The options of ``dl4j predict``; None: not given."""

    model: Annotated[str, _Model]
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A table, one example a row, without labels; an image or a folder of them; a text; -: standard input.",
        ),
    ]
    out: Annotated[
        str | None, option("--out", metavar="FILE", help="Write the predictions to this file.", read=not_empty)
    ] = None
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="In text, too: the outputs of the network behind each class.")
    ] = False
    format: Annotated[
        str,
        option(
            "--format",
            metavar="text|json|jsonl",
            help="As text, as one JSON object, or as a JSON object for each row.",
            read=_form,
            variable=variable_of("--format"),
        ),
    ] = "text"


def _write_scores(output: Output, network: Network, examples: DataSet) -> None:
    """Write the index of each example, from 0, and its loss."""
    from dl4jlegacy.models.model import score_examples
    from dl4jlegacy.models.prediction import write_texts

    losses = (loss for scores in score_examples(network, examples) for loss in scores.tolist())
    lines = (f"{row},{loss!r}" for row, loss in enumerate(losses))
    output.save(functools.partial(write_texts, texts=itertools.chain(["row,loss"], lines)))


def evaluate(options: EvaluateOptions) -> Answer:
    """Evaluate a saved model on a data set; with --tracker by the workers of a cluster (dl4j worker)."""
    from dl4jlegacy.cli.terminal.figures import figure_lines, finding_lines
    from dl4jlegacy.cli.terminal.progress import use_device_and_report
    from dl4jlegacy.models.model import evaluate_model
    from dl4jlegacy.storage import paths as storage
    from dl4jlegacy.training.saved_model import load_model

    chosen: dict[str, Any] = {"split": options.split, "evaluate": _evaluate_by(options)}
    if options.scores is not None:
        chosen["then"] = functools.partial(_write_scores, storage.open_output(options.scores))
    with use_device_and_report(options.device) as (kernels, used):
        model = load_model(options.model, kernels=kernels)
        evaluation, fields = evaluate_model(model, options.dataset, options.data_dir or "", **chosen)
    fields["device"] = used.label
    lines = [*figure_lines(fields), *finding_lines(fields)]
    return Answer(fields, "\n".join([evaluation.text().rstrip("\n"), *([""] if lines else []), *lines]))


def _evaluate_by(options: EvaluateOptions) -> Evaluate:
    """Return the function that evaluates: on this thread, on several, or on a cluster."""
    from dl4jlegacy.models.model import evaluate_network

    cluster = _cluster(options)
    if cluster is not None:
        from dl4jlegacy.cluster.shared_inference import evaluate_on_cluster

        return functools.partial(evaluate_on_cluster, **cluster)
    if options.workers is None:
        return evaluate_network
    from dl4jlegacy.training.evaluation_run import evaluate_with_workers

    return functools.partial(evaluate_with_workers, workers=options.workers, device=options.device or "")


def predict(options: PredictOptions) -> Answer | None:
    """Print what a saved model says of each row of a table, or each image: its class, or a number.

    The file may be huge.
    """
    from dl4jlegacy.cli.terminal.progress import use_device_and_report
    from dl4jlegacy.models.prediction import Form, rows_in, texts_of, write_texts
    from dl4jlegacy.storage import paths as storage
    from dl4jlegacy.training.saved_model import load_model

    cluster = _cluster(options)
    output = None if options.out is None else storage.open_output(options.out)
    with use_device_and_report(options.device) as (kernels, _):
        model = load_model(options.model, kernels=kernels)
        model.output_names(model.network.n_in)  # a model with wrong names must be reported before any error of the data
        blocks, of_each = rows_in(model, options.file)
        found = _predicted(model, options, cluster, blocks)
        texts = texts_of(model, found, Form(options.format, options.probabilities, of_each))
        with contextlib.closing(found):
            if output is None:
                for text in texts:
                    if not emit(text):
                        break
                return None
            output.save(functools.partial(write_texts, texts=texts))
    return Answer({"model": model.name, "out": output.place}, f"the predictions are in {output.place}")


def _predicted(
    model: TrainedModel, options: PredictOptions, cluster: dict[str, Any] | None, blocks: Iterable[Array]
) -> Generator[PredictedRows, None, None]:
    """Return the predictions, computed on this thread, on several, or on a cluster."""
    from dl4jlegacy.models.prediction import predict_blocks, replicas

    if cluster is not None:
        from dl4jlegacy.cluster.shared_inference import predict_on_cluster

        return predict_on_cluster(model, blocks, **cluster)
    if options.workers is None or options.workers == 1:
        return predict_blocks([model.answer], blocks, model.answers)
    from dl4jlegacy.scaleout.conf import Conf
    from dl4jlegacy.scaleout.workers.device_choice import resolve_compute

    compute = resolve_compute(Conf(device=options.device or ""))[1]
    return predict_blocks(replicas(model, compute, options.workers), blocks, model.answers)


def _cluster(options: WhereOptions) -> dict[str, Any] | None:
    """Return the cluster's arguments for ``cluster.inference``; None: the work is done here.

    Raises:
        UsageError: only a part of the cluster's options is given.
    """
    if (options.tracker is None) != (options.zookeeper is None):
        missing = "--tracker" if options.tracker is None else "--zookeeper"
        raise UsageError(f"{missing} is missing: a cluster needs --tracker and --zookeeper")
    if options.tracker is None:
        return None
    from dl4jlegacy.cluster.leadership import MasterOptions
    from dl4jlegacy.scaleout.conf import Conf
    from dl4jlegacy.services.grid import grid_of

    members, name = grid_of(options.tracker, options.cluster_name)
    device = options.device or ""
    conf = Conf(run=options.run or "", device=device, state_tracker_connection_string=members, cluster_name=name)
    if options.worker_wait is not None:
        conf = conf.replace(worker_wait_seconds=options.worker_wait)
    return {
        "conf": conf,
        "address": cluster_address(options.zookeeper, options.id),
        "options": MasterOptions(bind=options.bind),
        "workers": options.workers or 0,
    }


def export(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="The checkpoints of a run, or a model file; Keras's, too.")
    ],
    out: Annotated[
        str | None, typer.Option("--out", metavar="FILE", help="The file to write: .zip, .safetensors or .onnx.")
    ] = None,
    best: Annotated[bool, typer.Option("--best", help="The model with the best score so far, not the newest.")] = False,
    dl4j_version: Annotated[
        str | None,
        typer.Option("--dl4j-version", metavar="0.9.1|1.0.0", help="The Deeplearning4j that is to read the model."),
    ] = None,
    format: ReportFormat = "text",
) -> Answer:
    """Write a run's newest checkpoint, or a model file, as a model of any kind; a run may go on."""
    from dl4jlegacy.nn.interchange.dl4j.versions import VERSIONS
    from dl4jlegacy.training.checkpoints import convert_model, export_model, is_model_file

    if out is None:
        raise UsageError("--out is missing; give the file for the model, such as model.zip")
    version = next((known for known in VERSIONS if known == dl4j_version), None)
    if dl4j_version is not None and version is None:
        raise UsageError(f"--dl4j-version is {dl4j_version!r}; it must be {' or '.join(VERSIONS)}")
    if is_model_file(model):
        if best:
            raise UsageError(f"--best chooses among the models of a run, and {model} is one model; leave it out")
        fields = convert_model(model, out, dl4j_version=version)
        said = "the model in {model} is in {model_path}, too"
    else:
        fields = export_model(model, out, best=best, dl4j_version=version)
        said = "the model of run {run} in round {round}, after {examples:,} examples, is in {model_path}"
    if best:
        said = "the best model of run {run}, scored {score:.6g} in round {round}, is in {model_path}"
    return Answer(fields, said.format(**fields))
