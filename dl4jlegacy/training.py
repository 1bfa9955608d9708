"""A training from its data set's name to its report: load, prepare, train, evaluate, save. Below both command lines.

They bring a ``Conf``; from here on a run started by ``dl4j train``, by ``actor-network-runner`` or by a script is the
same.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dl4jlegacy import files, storage
from dl4jlegacy.backend import Array
from dl4jlegacy.datasets import DataSource, ListDataSetIterator, load
from dl4jlegacy.datasets.normalizers import Normalizer, NormalizerMinMaxScaler
from dl4jlegacy.datasets.sources import NAMES
from dl4jlegacy.errors import CheckpointError, ConfError, DataError, ModelError, TrackerLostError, counted
from dl4jlegacy.inference import NetworkEvaluation, evaluate_network, source_for_model
from dl4jlegacy.nn import zoo
from dl4jlegacy.nn.conf.network import ComputationGraphConfiguration
from dl4jlegacy.nn.dl4j.serializer import write_model
from dl4jlegacy.nn.networks import Network, NetworkConfiguration
from dl4jlegacy.nn.updaters import create_updater, with_learning_rate
from dl4jlegacy.run import Run, resolve
from dl4jlegacy.runner import ActorNetworkRunner
from dl4jlegacy.scaleout.compute import resolve_compute
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.monitor import ClusterMonitor
from dl4jlegacy.scaleout.outcome import RunStatus, TrainingResult
from dl4jlegacy.scaleout.tracker import StateTracker

__all__ = [
    "Data",
    "Report",
    "batches",
    "check_classes",
    "few_updates",
    "first_examples",
    "load_data",
    "params_sha256",
    "prepare",
    "read_run",
    "train",
    "with_absolute_paths",
    "with_network",
]

USUAL_JOBS = 4
"""Jobs of a round that the models' default numbers of epochs allow for."""


@dataclass(frozen=True, slots=True)
class Data:
    """A data set made ready: by ``normalizer`` its features are between 0 and 1; None: they are as they came."""

    source: DataSource
    normalizer: Normalizer | None


@dataclass(frozen=True, slots=True)
class Report:
    """What a finished run has to say: the contract's JSON object, and the evaluation for people.

    ``trained_on`` and ``held_out`` are the numbers of examples in the two parts of the data set; ``misplaced`` is the
    error of a model that could not be saved where it was wanted, and says where it is.
    """

    fields: dict[str, Any]
    evaluation: NetworkEvaluation
    warnings: tuple[str, ...]
    trained_on: int
    held_out: int
    misplaced: ModelError | None = None


def load_data(name: str, data_dir: str = "", *, scale: bool = True) -> Data:
    """Return the data set of that name; raises ``DataError``.

    With ``scale`` features that go beyond 0 to 1 are scaled to it, each by its smallest and largest training value.
    """
    source = dataclasses.replace(load(storage.local(name), data_dir=storage.local(data_dir) or None), name=name)
    low, high = float(source.train.features.min()), float(source.train.features.max())
    if not scale or (low >= 0.0 and high <= 1.0):
        return Data(source, None)
    normalizer = NormalizerMinMaxScaler().fit(source.train)
    train, test = normalizer.transform(source.train), normalizer.transform(source.test)
    return Data(DataSource(source.name, train, test, source.label_names), normalizer)


def first_examples(data: Data, count: int) -> Data:
    """Return the data with only the first ``count`` training examples."""
    if count < 1:
        raise ConfError(f"{counted(count, 'example')} cannot be trained on; give at least 1")
    source = data.source
    train = source.train.rows(0, min(count, source.train.num_examples))
    return Data(DataSource(source.name, train, source.test, source.label_names), data.normalizer)


def prepare(
    conf: Conf,
    given: frozenset[str],
    *,
    learning_rate: float | None = None,
    updater: str | None = None,
    examples_per_update: int | None = None,
    local_workers: int | None = None,
    on_cluster: bool = False,
) -> tuple[Run, Data]:
    """Load the data set and choose the network that a Conf names, and resolve it; return the new run and its data.

    Args:
        conf: as somebody wrote it, in flags, environment and file.
        given: the names of the Conf's fields that somebody has set; the others get the defaults of the zoo's model, and
            ``workers`` the number of GPUs.
        learning_rate, updater: replace those of the network.
        examples_per_update: examples behind one update of the model: the batches get a share of them for each job.
        local_workers, on_cluster: as for ``run.resolve``.

    Raises:
        ConfError, DeviceError, DataError: something of it is unknown, not available, or does not fit the rest.
    """
    conf, compute = resolve_compute(with_absolute_paths(conf), local=local_workers != 0)
    if compute.on_gpu and "workers" not in given:
        conf, given = conf.replace(workers=len(compute.devices)), given | {"workers"}
    data = load_data(conf.dataset, conf.data_dir, scale=conf.scale_features)
    conf = with_network(conf, data, given, learning_rate=learning_rate, updater=updater)
    if examples_per_update is not None:
        conf = with_examples_per_update(conf, examples_per_update)
    run = resolve(conf, batches(conf, data), compute=compute, local_workers=local_workers, on_cluster=on_cluster)
    return run, data


def with_examples_per_update(conf: Conf, examples: int) -> Conf:
    """Return ``conf`` with the batch size for which about so many examples are behind every update of the model.

    Raises:
        ConfError: there would be batches without examples.
    """
    batches = (conf.jobs_per_round or conf.workers) * conf.averaging_frequency
    if examples < batches:
        jobs = counted(conf.jobs_per_round or conf.workers, "job")
        raise ConfError(
            f"{counted(examples, 'example')} cannot be shared out to the {counted(batches, 'batch', 'batches')} of an "
            f"update ({jobs} of {conf.averaging_frequency}); give at least {batches}"
        )
    return conf.replace(batch_size=examples // batches)


def few_updates(run: Run) -> str:
    """Return a warning that many jobs a round mean few updates of the model; "" for as many as the defaults allow for.

    The jobs of a round train side by side and make one update together: with k of them an epoch has a k-th of the
    updates, and the model is trained less unless something makes up for that.
    """
    conf, plan = run.conf, run.plan
    if conf.router != "iterative-reduce" or conf.jobs_per_round <= USUAL_JOBS:
        return ""
    batch = conf.batch_size * conf.averaging_frequency
    usual = plan.total_rounds * conf.jobs_per_round // USUAL_JOBS
    epochs = -(-conf.epochs * conf.jobs_per_round // USUAL_JOBS)
    jobs, examples = counted(conf.jobs_per_round, "job"), counted(conf.jobs_per_round * batch, "example")
    return (
        f"{jobs} a round average {examples} to one update of the model: {plan.total_rounds:,} updates in "
        f"{counted(conf.epochs, 'epoch')}, where {counted(USUAL_JOBS, 'job')} make about {usual:,}; for as many give "
        f"--epochs {epochs}, or smaller batches with --examples-per-update {USUAL_JOBS * batch}"
    )


def with_network(
    conf: Conf, data: Data, given: frozenset[str], *, learning_rate: float | None = None, updater: str | None = None
) -> Conf:
    """Return ``conf`` with the network for a new run on ``data``, and the model's defaults for what is not ``given``.

    Args and errors as for ``prepare``.
    """
    train = source_for_model(data.source, conf.model).train
    network: NetworkConfiguration | None = conf.network_conf
    if network is None:
        model = zoo.select(conf.model or "mlp")
        defaults = {k: v for k, v in model.defaults(train.num_examples).items() if k not in given}
        conf = conf.replace(model=model.name, multi_layer_clazz=model.clazz, **defaults)
        train = source_for_model(data.source, model.name).train
        network = model.build(train.n_in, train.n_out, seed=conf.seed)
    if updater is not None or learning_rate is not None:
        base = create_updater(updater) if updater else network.conf.updater
        chosen = with_learning_rate(base, learning_rate)
        network = msgspec.structs.replace(network, conf=msgspec.structs.replace(network.conf, updater=chosen))
    if network.backprop and train.labels is data.source.train.labels:
        check_classes(data)
    network = network.with_sizes(train.n_in, train.n_out)
    network.validate()
    field = "computation_graph_conf" if isinstance(network, ComputationGraphConfiguration) else "multi_layer_conf"
    # The fingerprint is that of another run's data, if the Conf was taken from one.
    return conf.replace(**{field: network}, dataset=conf.dataset or data.source.name, data_fingerprint="")


def check_classes(data: Data) -> None:
    """Raise ``DataError`` if all training examples are of one class, so that there is nothing to tell apart."""
    labels, names = data.source.train.labels, data.source.label_names
    if labels.ndim != 2 or labels.shape[1] != len(names):
        return
    there = np.flatnonzero(labels.any(axis=0))
    if len(there) == 1:
        raise DataError(
            f"data set {data.source.name} has only one class, {names[there[0]]!r}, in all of its "
            f"{counted(len(labels), 'training example')}; a network needs at least two to tell apart. Is its label "
            "column the last one, or called label in the header?"
        )


def batches(conf: Conf, data: Data) -> ListDataSetIterator:
    """Return the training examples in the run's batches."""
    return ListDataSetIterator(source_for_model(data.source, conf.model).train, conf.batch_size, seed=conf.seed)


def _exists(path: str) -> bool:
    with files.errors_as(DataError, f"data set {path!r} cannot be read"):
        return files.kind_of(files.expand(path)) is not None


def with_absolute_paths(conf: Conf) -> Conf:
    """Return ``conf`` with its data named so that ``resume`` finds them from any folder; digits by default."""
    dataset = conf.dataset or "digits"
    if dataset not in NAMES and not storage.is_remote(dataset) and _exists(dataset):
        dataset = storage.absolute(dataset)
    folder = conf.checkpoint_dir
    checkpoint_dir = storage.absolute(folder)
    return conf.replace(dataset=dataset, data_dir=storage.absolute(conf.data_dir), checkpoint_dir=checkpoint_dir)


def train(
    run: Run,
    data: Data,
    *,
    out: str = "",
    tick: Callable[[RunStatus], None] | None = None,
    progress: bool = True,
    tracker: StateTracker | None = None,
    monitor: ClusterMonitor | None = None,
) -> Report:
    """Train a run to its end, evaluate the network on the held-out part of the data, save it; return the report.

    Args:
        run: as ``prepare`` or ``run.resolve`` returned it.
        data: the data that it was resolved with.
        out: the file to save the model to, here or in S3; "": none.
        tick, progress: as for ``ActorNetworkRunner.train``.
        tracker, monitor: as for ``ActorNetworkRunner``.

    Raises:
        ModelError: ``out`` could not be written already before the training.
        TrackerLostError: the tracker did not answer for long; the message says where the model is kept as it was.
        Dl4jError: what else ``ActorNetworkRunner.train`` raises.
    """
    test, label_names = source_for_model(data.source, run.conf.model).test, data.source.label_names
    output = storage.open_output(out) if out else None
    with ActorNetworkRunner("master", batches(run.conf, data), tracker=tracker, monitor=monitor) as runner:
        runner.setup(run)
        try:
            result = runner.train(tick, progress=progress)
        except TrackerLostError as exc:
            raise TrackerLostError(f"{exc}{_keep_unfinished(runner.unfinished(), data, label_names)}") from exc
        network = runner.network(result)
    path, misplaced = "", None
    if output is not None:
        save = functools.partial(write_model, network, normalizer=data.normalizer, label_names=label_names)
        path, misplaced = output.save_or_keep(save)  # before the evaluation, which may fail
    evaluation = evaluate_network(network, test, label_names)
    return Report(
        {**_fields(result, network, evaluation, path or None), "scaled_features": data.normalizer is not None},
        evaluation,
        result.warnings,
        trained_on=data.source.train.num_examples,
        held_out=test.num_examples,
        misplaced=misplaced,
    )


def _keep_unfinished(network: Network | None, data: Data, label_names: Sequence[str]) -> str:
    """Write the model of a run that was given up to a file of its own; return where that is, to end a message with."""
    if network is None:
        return ""
    kept = storage.keep(functools.partial(write_model, network, normalizer=data.normalizer, label_names=label_names))
    return f"; the model of then is in {kept}" if kept else ""


def _fields(
    result: TrainingResult, network: Network, evaluation: NetworkEvaluation, path: str | None
) -> dict[str, Any]:
    conf, head = result.conf, result.head
    return {
        "run": head.run,
        "model": conf.model,
        "dataset": conf.dataset,
        "router": conf.router,
        "workers": conf.workers,
        "jobs_per_round": conf.jobs_per_round,
        "averaging_frequency": conf.averaging_frequency,
        "batch_size": conf.batch_size,
        "epochs": conf.epochs,
        "rounds": head.round,
        "examples": head.examples,
        "batches": head.batches,
        "batches_lost": result.batches_lost,
        "batches_duplicated": result.batches_duplicated,
        "updates_dropped": head.updates_dropped,
        "seconds": round(result.seconds, 3),
        "examples_per_second": round(result.examples_per_second, 1),
        "score": head.score,
        **evaluation.fields(),
        "params_sha256": params_sha256(network.params),
        "model_path": path,
        "kernels": conf.kernels,
        "device": ",".join(device.label for device in result.devices),
        "devices": [device.fields() for device in result.devices],
        "precision": conf.precision,
        "mixed_devices": conf.mixed_devices,
        "seed": conf.seed,
    }


def params_sha256(params: Array) -> str:
    """Return the SHA-256 of a flat parameter vector as little-endian float32."""
    return hashlib.sha256(np.ascontiguousarray(params, dtype="<f4").tobytes()).hexdigest()


def read_run(run: str, path: Path) -> Conf:
    """Return the Conf of the run in the folder ``run``, read from ``path``; raises ``CheckpointError``."""
    try:
        conf = Conf.read(path)
    except ConfError as exc:
        raise CheckpointError(f"the run in {run} cannot go on: {exc}") from exc
    if conf.network_conf is None or not conf.dataset:
        raise CheckpointError(f"{path} is no run's: it names no network or no data set; give what --checkpoint-dir was")
    return conf
