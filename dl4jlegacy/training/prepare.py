"""A complete training: load the data, prepare, train, evaluate, save, report. Used by both command lines.

The command lines bring a ``Conf``. From here on a run is the same, whether ``dl4j train``, ``actor-network-runner`` or
a script started it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dl4jlegacy.datasets import AugmentedDataSetIterator, DataSet, DataSource, ListDataSetIterator, load
from dl4jlegacy.datasets.images.image_files import ImageRecordReader
from dl4jlegacy.datasets.normalizers import NormalizerStandardize, as_read
from dl4jlegacy.datasets.sources import NAMES
from dl4jlegacy.datasets.tables.stored_tables import not_kept
from dl4jlegacy.datasets.tables.table_files import is_pattern
from dl4jlegacy.datasets.tables.transform_process import TransformProcess
from dl4jlegacy.datasets.validation import ValidatedData
from dl4jlegacy.errors import (
    CheckpointError,
    ConfError,
    DataError,
    ShapeError,
    TrackerLostError,
    counted,
)
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.models.model import (
    evaluate_network,
    source_for_model,
    with_features_as_labels,
)
from dl4jlegacy.nn import zoo
from dl4jlegacy.nn.batch_evaluation import answers_each, is_classified
from dl4jlegacy.nn.class_weights import output_layer
from dl4jlegacy.nn.conf.network import ComputationGraphConfiguration, MultiLayerConfiguration
from dl4jlegacy.nn.conf.text import decode_json
from dl4jlegacy.nn.input_type import InputTypeConvolutional, InputTypeConvolutionalFlat
from dl4jlegacy.nn.interchange.dl4j.serializer import write_model
from dl4jlegacy.nn.interchange.dl4j.versions import Version
from dl4jlegacy.nn.networks import Network, NetworkConfiguration
from dl4jlegacy.nn.optimization.updaters import check_idle
from dl4jlegacy.scaleout import saved_run
from dl4jlegacy.scaleout.conf import USUAL_JOBS, Conf
from dl4jlegacy.scaleout.monitoring.monitor import ClusterMonitor
from dl4jlegacy.scaleout.monitoring.observers import RunObserver
from dl4jlegacy.scaleout.monitoring.outcome import RunStatus
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.state.records import Head
from dl4jlegacy.scaleout.tracker import StateTracker
from dl4jlegacy.scaleout.workers.device_choice import host_kernels, resolve_compute
from dl4jlegacy.scaleout.workers.perform import trained_network
from dl4jlegacy.storage import paths as storage
from dl4jlegacy.system import files
from dl4jlegacy.training.choices import Facts, choose, hidden_beside_lags, usual_model
from dl4jlegacy.training.execution import RunExecution
from dl4jlegacy.training.guess_watch import GuessWatch, guess_of
from dl4jlegacy.training.network_options import NONE_GIVEN, NetworkOptions, with_options
from dl4jlegacy.training.notices import multiply_adds
from dl4jlegacy.training.progress import shown
from dl4jlegacy.training.report import Report, params_sha256, report_fields, verdict_of
from dl4jlegacy.training.run import Run, resolve
from dl4jlegacy.training.run_data import load_new, reload, standardized

__all__ = [
    "Checkpoint",
    "Report",
    "batches",
    "check_classes",
    "is_encoded",
    "model_writer",
    "params_sha256",
    "prepare",
    "read_checkpoint",
    "read_run",
    "refusal",
    "train",
    "training_data",
    "with_absolute_paths",
    "with_network",
]


def prepare(
    conf: Conf,
    given: frozenset[str],
    *,
    network: NetworkOptions = NONE_GIVEN,
    examples_per_update: int | None = None,
    label: str = "",
    regression: bool = False,
    multi_label: bool = False,
    missing: Sequence[str] | None = None,
    local_workers: int | None = None,
    on_cluster: bool = False,
) -> tuple[Run, DataSource]:
    """Load the data and choose the network that a Conf names, and resolve the Conf; return the new run and its data.

    Args:
        conf: as read from flags, environment and file.
        given: the names of the Conf's fields that were set. Other fields get what ``choose`` chooses, and ``workers``
            the number of GPUs.
        network: what is said about the network.
        examples_per_update: examples per update of the model; the batch size is derived from this.
        label, regression, multi_label, missing: as for ``load_new``.
        local_workers, on_cluster: as for ``run.resolve``.

    Raises:
        ConfError, DeviceError, DataError: a value is unknown, not available, or does not fit the rest.
    """
    conf, compute = resolve_compute(with_absolute_paths(conf), local=local_workers != 0)
    if compute.on_gpu and "workers" not in given:
        conf, given = conf.replace(workers=len(compute.devices)), given | {"workers"}
    given_schema = conf.transform
    conf, data = load_new(
        conf,
        label=label,
        regression=regression,
        multi_label=multi_label,
        missing=missing,
        encode=is_encoded(conf),
    )
    if examples_per_update is None:
        conf = with_network(conf, data, given, network)
    else:
        conf = _with_updates_of(examples_per_update, conf, data, given, network)
    if given_schema is None and conf.transform is not None and conf.choices:
        conf = conf.replace(choices=conf.choices | {"schema": _schema_words(conf.transform)})
    data = standardized(conf, data)
    run = resolve(conf, training_data(conf, data), compute=compute, local_workers=local_workers, on_cluster=on_cluster)
    return run, data


def _schema_words(schema: TransformProcess) -> str:
    """Return the kinds of steps of a guessed schema, and why it has them."""
    kinds = dict.fromkeys(str(step.__struct_config__.tag) for step in schema.steps)
    return f"{', '.join(kinds) or 'no steps'}: what the columns need, as dl4j data inspect shows them"


def is_encoded(conf: Conf) -> bool:
    """Return whether numbers of a table are encoded for a new run: for model ``mlp``, but for no given network."""
    return conf.network_conf is None and conf.model in ("", "mlp")


def _with_updates_of(
    examples: int, conf: Conf, data: DataSource, given: frozenset[str], network: NetworkOptions
) -> Conf:
    """Return what ``with_network`` returns, with batches that give about ``examples`` examples per update."""
    fields = ("jobs_per_round", "averaging_frequency")
    first = with_examples_per_update(with_network(conf, data, given | {"examples_per_update"}, network), examples)
    # The rest is chosen again, for batches of this size.
    sized = {name: getattr(first, name) for name in ("batch_size", *fields)}
    found = with_network(conf.replace(**sized), data, given | sized.keys(), network)
    return found.replace(
        choices=found.choices | {name: first.choices[name] for name in fields if name in first.choices}
    )


def with_examples_per_update(conf: Conf, examples: int) -> Conf:
    """Return ``conf`` with the batch size that gives about ``examples`` examples per update of the model.

    Raises:
        ConfError: there would be batches without examples.
    """
    batches = (conf.jobs_per_round or USUAL_JOBS) * conf.averaging_frequency
    if examples < batches:
        jobs = counted(conf.jobs_per_round or USUAL_JOBS, "job")
        raise ConfError(
            f"{counted(examples, 'example')} cannot be shared out to the {counted(batches, 'batch', 'batches')} of an "
            f"update ({jobs} of {conf.averaging_frequency}); give at least {batches}"
        )
    return conf.replace(batch_size=examples // batches)


def with_network(conf: Conf, data: DataSource, given: frozenset[str], options: NetworkOptions = NONE_GIVEN) -> Conf:
    """Return ``conf`` with the network for a new run on ``data``; ``choose`` chooses what a model of the zoo needs.

    ``given``: the fields to leave alone, and perhaps ``examples_per_update``; ``options``: what is said about the
    network. Other args and errors as for ``prepare``.
    """
    network: NetworkConfiguration | None = conf.network_conf
    if network is None:
        conf, network = _chosen(conf, data, given, options)
    else:
        if _is_regression(data):
            _check_predicts_numbers(network)
        elif _is_multi_label(data):
            _check_multi_label(network)
        conf, network = conf.replace(choices={}), with_options(network, options)  # nothing is chosen here
    check_idle(network.conf.updater)
    train = source_for_model(data, conf.model).train
    if network.backprop and train.labels is data.train.labels and not (_is_regression(data) or _is_multi_label(data)):
        check_classes(data)
    n_in = train.features.shape[1] if data.reading.network == "sequences" else train.n_in
    network = network.with_sizes(n_in, train.n_out)
    network.validate()
    field = "computation_graph_conf" if isinstance(network, ComputationGraphConfiguration) else "multi_layer_conf"
    # If the Conf was taken from another run, its fingerprint is that of the other run's data.
    return conf.replace(**{field: network}, dataset=conf.dataset or data.name, data_fingerprint="")


def _chosen(
    conf: Conf, data: DataSource, given: frozenset[str], options: NetworkOptions
) -> tuple[Conf, NetworkConfiguration]:
    """Return the Conf and the network with everything that ``choose`` chooses for the data.

    Raises:
        ConfError, ShapeError: there is no such model, or it does not fit the data.
    """
    model = zoo.select_for(conf.model or usual_model(data.reading.network, data.image), data.reading.network)
    train = source_for_model(data, model.name).train
    network = _network_of(model, train, data, {"seed": conf.seed, **options.for_builder()})
    facts = Facts(
        kind=data.reading.network,
        rows=train.num_examples,
        image=data.image,
        multiply_adds=multiply_adds(network, train),
        can_validate=network.backprop,
        has_classes=train.labels.ndim == 2 and is_classified(network, train),
        shares=train.is_sparse or conf.router != Conf().router,
        has_lags=data.reading.linear is not None and bool(data.reading.linear.base),
    )
    values = {name: getattr(conf, name, None) for name in given} | options.given()
    if conf.jobs_per_round == 0:  # a file may say so
        values.pop("jobs_per_round", None)
    if conf.model:
        values["model"] = model.name
    choices = choose(facts, values)
    fields = {name: choice.value for name, choice in choices.items() if name in Conf.__struct_fields__}
    reasons = {name: choice.words() for name, choice in choices.items()}
    chosen = {name: choice.value for name, choice in choices.items() if name in NetworkOptions.__struct_fields__}
    network = with_options(network, msgspec.structs.replace(options, **chosen), model=model.name)
    fields |= {"model": model.name, "multi_layer_clazz": model.clazz, "choices": reasons}
    return conf.replace(**fields), network


def _network_of(
    model: zoo.ZooModel, train: DataSet, data: DataSource, arguments: Mapping[str, Any]
) -> NetworkConfiguration:
    """Return a network of the zoo for the labels of the data; ``arguments`` are for its builder."""
    schema, linear = data.reading.transform, data.reading.linear
    if schema is not None and linear is not None and model.name == "mlp":
        if linear.base:
            apart = int(schema.feature_names[0] == linear.base)
            arguments = {"apart": apart, "hidden": hidden_beside_lags(train.num_examples).value, **arguments}
        return zoo.residual_mlp(train.n_in, train.n_out, scale=linear.scale, **arguments)
    network = _built(model, train, data, **arguments)
    if _is_regression(data):
        return zoo.for_regression(model, network)
    return zoo.for_multi_label(model, network) if _is_multi_label(data) else network


def _is_regression(data: DataSource) -> bool:
    return data.reading.label_scale is not None


def _is_multi_label(data: DataSource) -> bool:
    return data.reading.is_multi_label


def _check_multi_label(network: NetworkConfiguration) -> None:
    """Raise ``ConfError`` if a given network has no independent yes-or-no output for each label."""
    if not answers_each(network):
        raise ConfError(
            "the labels do not exclude each other (multi-label), and the network's last layer tells classes apart, or "
            "predicts numbers; give it activation 'sigmoid' and loss 'xent'"
        )


def _built(model: zoo.ZooModel, train: DataSet, data: DataSource, **fields: Any) -> MultiLayerConfiguration:
    """Return a network of the zoo for the training data; raises ``ShapeError`` if images do not fit it."""
    images = data.reading.images
    if model.of_images:
        return model.build(train.n_in, train.n_out, image=data.image, **fields)
    if images is None:
        n_in = train.features.shape[1] if model.of == "sequences" else train.n_in
        return model.build(n_in, train.n_out, **fields)
    size = f"{images.height}x{images.width}"
    try:
        network = model.build(train.n_in, train.n_out, **fields)
    except ShapeError as exc:
        raise ShapeError(f"{exc} (the images are {size}: --image-size makes others of them)") from exc
    taken = getattr(network, "input_type", None)
    if isinstance(taken, InputTypeConvolutionalFlat) and (taken.height, taken.width) != (images.height, images.width):
        raise ShapeError(
            f"model {model.name} takes square images, and these are {size}; give --image-size {images.width}, or "
            "--model cnn, or a configuration file with the right input_type"
        )
    return network


def _check_predicts_numbers(network: NetworkConfiguration) -> None:
    """Raise ``ConfError`` if a given network classifies although the label is a number."""
    activation = getattr(network.layers[-1], "activation", "") if hasattr(network, "layers") else ""
    if activation in ("softmax", "sigmoid"):
        raise ConfError(
            f"the network's last layer has activation {activation!r}, which has no output beyond 0 to 1, and the label "
            "is a number to predict, standardized; give it activation 'identity' and loss 'mse'"
        )


def refusal(
    name: str, *, keep_index: bool = False, images: ImageRecordReader | None = None, **kind: Any
) -> DataError | None:
    """Return the error that a new run on a data set would raise; None if it would train.

    The data are read as for such a run, but not cached. ``keep_index`` and ``images`` are fields of a Conf; ``kind`` is
    passed to ``load_new``, whose ``ConfError`` is raised.
    """
    conf = Conf(dataset=name, keep_index=keep_index, images=images)
    try:
        with not_kept():
            _, data = load_new(conf, encode=is_encoded(conf), **kind)
            if not (_is_regression(data) or _is_multi_label(data)):
                check_classes(data)
    except DataError as error:
        return error
    return None


def check_classes(data: DataSource) -> None:
    """Raise ``DataError`` if all training examples have the same class, so that there is nothing to learn."""
    labels, names = data.train.labels, data.label_names
    if labels.ndim != 2 or labels.shape[1] != len(names):
        return
    there = np.flatnonzero(labels.any(axis=0))
    if len(there) == 1:
        raise DataError(
            f"data set {data.name} has only one class, {names[there[0]]!r}, in all of its "
            f"{counted(len(labels), 'training example')}; a network needs at least two to tell apart. Is its label "
            "column the last one, or called label in the header?"
        )


def batches(conf: Conf, data: DataSource) -> ListDataSetIterator:
    """Return an iterator over the training examples in the run's batches."""
    train, names = source_for_model(data, conf.model).train, data.label_names
    names = names if len(names) == train.n_out else ()
    if conf.augment is None:
        return ListDataSetIterator(train, conf.batch_size, seed=conf.seed, label_names=names)
    if train.labels is not data.train.labels:
        raise ConfError(f"Conf.augment is given, and model {conf.model} learns the images themselves; leave it out")
    shape, scaled = _image_shape(conf, data), data.reading.normalizer
    by_channel = scaled if isinstance(scaled, NormalizerStandardize) else None
    return AugmentedDataSetIterator(
        train, conf.batch_size, conf.augment, shape, seed=conf.seed, label_names=names, normalizer=by_channel
    )


def _image_shape(conf: Conf, data: DataSource) -> tuple[int, int, int]:
    """Return channels, height and width of a data set's images; raises ``ConfError`` if they are unknown."""
    taken = getattr(conf.multi_layer_conf, "input_type", None)
    if data.reading.images is None and isinstance(taken, InputTypeConvolutionalFlat | InputTypeConvolutional):
        return taken.channels, taken.height, taken.width
    if data.image is not None:
        return data.image
    raise ConfError(
        f"Conf.augment is for images, and data set {conf.dataset!r} has none that are known: it is no folder of them, "
        "and the network has no convolutional input_type, which would say their height, width and channels"
    )


def training_data(conf: Conf, data: DataSource) -> ListDataSetIterator | ValidatedData:
    """Return the training examples in the run's batches, with the validation data if the Conf names a data set for it.

    Raises:
        DataError: the validation data cannot be read, or have other columns or classes.
    """
    training, name = batches(conf, data), "" if conf.validation is None else conf.validation.dataset
    if not name:
        return training
    source = load(
        data.reading.local(name),
        data_dir=storage.local(conf.data_dir) or None,
        reading=data.reading.replace(stratified=False),
        n_classes=len(data.label_names) or None,
        rounded=False,
    )
    whole = as_read(data.reading.normalizer, DataSet.merge((source.train, source.test)))
    whole = whole if data.reading.normalizer is None else data.reading.normalizer.transform(whole)
    model = zoo.ZOO.get(conf.model)
    return ValidatedData(training, with_features_as_labels(whole) if model and model.reconstructs else whole)


def _exists(path: str) -> bool:
    """Return whether a data set is named by a path that exists, or by a pattern for several files."""
    with files.errors_as(DataError, f"data set {path!r} cannot be read"):
        return is_pattern(path) or files.kind_of(files.expand(path)) is not None


def with_absolute_paths(conf: Conf) -> Conf:
    """Return ``conf`` with absolute paths, so that ``resume`` works from any folder; the default data set is digits."""
    dataset = conf.dataset or "digits"
    if dataset not in NAMES and not storage.is_remote(dataset) and _exists(dataset):
        dataset = storage.absolute(dataset)
    folder = conf.checkpoint_dir
    checkpoint_dir = storage.absolute(folder)
    if conf.validation is not None:
        named = conf.validation.dataset
        if named and named not in NAMES and not storage.is_remote(named) and _exists(named):
            conf = conf.replace(validation=msgspec.structs.replace(conf.validation, dataset=storage.absolute(named)))
    return conf.replace(dataset=dataset, data_dir=storage.absolute(conf.data_dir), checkpoint_dir=checkpoint_dir)


def train(
    run: Run,
    data: DataSource,
    *,
    out: str = "",
    tick: Callable[[RunStatus], None] | None = None,
    progress: bool = True,
    tracker: StateTracker | None = None,
    monitor: ClusterMonitor | None = None,
    observers: Sequence[RunObserver] = (),
) -> Report:
    """Train a run to its end, evaluate the network on the held-out data, and save it; return the report.

    If the run was scored during training, its best model is evaluated and saved.

    Args:
        run: as ``prepare`` or ``run.resolve`` returned it.
        data: the data that the run was resolved with.
        out: the file for the model, here or in S3; "": none.
        tick, progress: as for ``RunExecution.train``.
        tracker, monitor, observers: as for ``RunExecution``.

    Raises:
        ModelError: ``out`` cannot be written; found before the training.
        TrackerLostError: the tracker did not answer for too long; the message says where the last model is saved.
        Dl4jError: other errors of ``RunExecution.train``.
    """
    learned, label_names = source_for_model(data, run.conf.model), data.label_names
    output = storage.open_model_output(out) if out else None
    training = training_data(run.conf, data)
    network_conf, labels, guess = run.conf.network_conf, learned.train.labels, math.inf
    if network_conf is not None and len(run.conf.phases()) == 1 and labels.ndim == 2:
        guess = guess_of(labels) if is_classified(network_conf, learned.train) else math.inf
    with RunExecution(training, tracker=tracker, monitor=monitor, observers=observers) as execution:
        try:
            execution.setup(run)
        except TrackerLostError as exc:
            raise TrackerLostError(f"{exc}. It had not begun") from exc
        try:
            with shown(tick, progress) as show:
                result = execution.train(GuessWatch(guess, show).tick, progress=False)
                if show is not None and tick is None:  # the last tick may have come before the last round
                    show(dataclasses.replace(execution.status(), head=result.head))
        except TrackerLostError as exc:
            raise TrackerLostError(f"{exc}{_keep_unfinished(execution.unfinished(), data)}") from exc
        network, summary = execution.network(result, best=result.best is not None), execution.summary(result)
    path, misplaced = "", None
    if output is not None:
        path, misplaced = output.save_or_keep(model_writer(network, data))  # before the evaluation, which may fail
    transform = data.reading.transform
    evaluation = evaluate_network(network, learned.test, label_names, label_scale=data.reading.label_scale)
    verdict = verdict_of(result, evaluation, learned)
    fields = report_fields(result, network, evaluation, path or None) | verdict.fields()
    if summary is not None:
        fields["cluster"] = summary.fields()
    if transform is not None:
        fields["label"] = transform.label or list(transform.labels)
    for kind, reader in run.conf.readers:
        fields[kind.name] = kind.report(reader, label_names)
    if run.conf.augment is not None:
        fields["augment"] = msgspec.to_builtins(run.conf.augment)
    if run.conf.stratify:
        fields["stratified"] = data.reading.stratified
    if run.conf.class_weights is not None and run.conf.network_conf is not None:
        weights = output_layer(run.conf.network_conf).loss_weights or ()
        fields["class_weights"] = dict(zip(label_names, weights, strict=True))
    return Report(
        {**fields, "scaled_features": data.reading.normalizer is not None},
        evaluation,
        result.warnings,
        trained_on=run.plan.examples,
        held_out=learned.test.num_examples,
        misplaced=misplaced,
        verdict=verdict,
    )


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A run at a checkpoint: its Conf, head, network, and the data that the Conf names."""

    conf: Conf
    head: Head
    network: Network
    data: DataSource


def read_checkpoint(
    folder: str, version: int | None = None, kernels: Kernels | None = None, *, best: bool = False
) -> Checkpoint:
    """Return a checkpoint of a run, which may be training meanwhile.

    Args:
        folder: the checkpoint folder, here or in S3.
        version: the version of the model; None: the newest good checkpoint.
        kernels: the network's kernels; None: the CPU kernels of the run.
        best: whether to take the best model so far; the run must be scored.

    Raises:
        CheckpointError: the folder holds no run, no usable checkpoint, or not this one; or the run is not scored.
        DataError: the data that the run's Conf names are missing.
    """
    content = saved_run.find_conf(folder)
    if content is None:
        raise CheckpointError(f"{folder} holds no run: it has no conf.json; give what --checkpoint-dir was")
    conf, checkpoints = read_run(folder, content), saved_run.open_checkpoints(folder)
    found = checkpoints.newest() if version is None else checkpoints.load(version)
    if found is None:
        raise CheckpointError(f"the run in {folder} has kept no checkpoint yet; its first one comes after a while")
    frame = found[1]
    if best:
        of_best = None if found[0].best is None else checkpoints.best_model(found[0].best)
        if of_best is None:
            raise CheckpointError(
                f"the run in {folder} has kept no best model: it is not scored, or not yet; --validation and "
                "--patience have a run scored"
            )
        frame = of_best
    data = reload(conf)
    network = trained_network(conf, Result.decode(frame), kernels or host_kernels(conf.kernels))
    return Checkpoint(conf, found[0], network, data)


def _keep_unfinished(network: Network | None, data: DataSource) -> str:
    """Save the model of an aborted run to a new file; return the end of a message that names the file."""
    if network is None:
        return ""
    kept = storage.keep(model_writer(network, data))
    return f"; the model of then is in {kept}" if kept else ""


def model_writer(network: Network, data: DataSource, dl4j_version: Version | None = None) -> Callable[[Path], None]:
    """Return a function that writes the network with the scaling and names of its data to a file."""
    return functools.partial(write_model, network, reading=data.reading, dl4j_version=dl4j_version)


def read_run(folder: str, content: bytes) -> Conf:
    """Return the Conf in the content of ``conf.json`` in a run's folder; raises ``CheckpointError``."""
    where = f"{folder.rstrip('/')}/conf.json"
    try:
        conf = decode_json(content, Conf)
    except ConfError as exc:
        raise CheckpointError(f"the run in {folder} cannot go on: {where}: {exc}") from exc
    if conf.network_conf is None or not conf.dataset:
        raise CheckpointError(
            f"{where} is no run's: it names no network or no data set; give what --checkpoint-dir was"
        )
    return conf
