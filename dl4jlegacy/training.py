"""Launching a run from names: data set, zoo model, defaults; train, evaluate, save, and report. Below both CLIs.

What the command lines say ends up here as a ``Conf``; from there on a run started by ``dl4j train``, by
``actor-network-runner`` or by a script is the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dl4jlegacy import storage
from dl4jlegacy.backend import Array
from dl4jlegacy.datasets import DataSource, ListDataSetIterator, load
from dl4jlegacy.datasets.normalizers import Normalizer, NormalizerMinMaxScaler
from dl4jlegacy.datasets.sources import NAMES
from dl4jlegacy.errors import CheckpointError, ConfError, ModelError
from dl4jlegacy.inference import NetworkEvaluation, evaluate_network, source_for_model
from dl4jlegacy.nn import zoo
from dl4jlegacy.nn.conf.network import ComputationGraphConfiguration
from dl4jlegacy.nn.dl4j.serializer import write_model
from dl4jlegacy.nn.networks import Network, NetworkConfiguration
from dl4jlegacy.nn.updaters import create_updater, with_learning_rate
from dl4jlegacy.runner import ActorNetworkRunner
from dl4jlegacy.scaleout.checkpoint import with_fingerprint
from dl4jlegacy.scaleout.compute import resolve_compute
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.job import DataSetJobIterator
from dl4jlegacy.scaleout.monitor import ClusterMonitor
from dl4jlegacy.scaleout.outcome import RunStatus, TrainingResult
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.tracker import StateTracker

__all__ = [
    "Data",
    "Report",
    "check_writable",
    "first_examples",
    "load_data",
    "on_devices",
    "params_sha256",
    "plan_of",
    "prepare",
    "read_run",
    "train",
    "with_absolute_paths",
    "with_data",
]


@dataclass(frozen=True, slots=True)
class Data:
    """A data set made ready: its features between 0 and 1, by ``normalizer`` if they were not so already."""

    source: DataSource
    normalizer: Normalizer | None


@dataclass(frozen=True, slots=True)
class Report:
    """What a finished run has to say: the contract's JSON object, and the evaluation for people."""

    fields: dict[str, Any]
    evaluation: NetworkEvaluation
    warnings: tuple[str, ...]


def load_data(name: str, data_dir: str = "") -> Data:
    """Return the data set of that name, scaled; raises ``DataError``."""
    source = dataclasses.replace(load(storage.local(name), data_dir=storage.local(data_dir) or None), name=name)
    low, high = float(source.train.features.min()), float(source.train.features.max())
    if low >= 0.0 and high <= 1.0:
        return Data(source, None)
    normalizer = NormalizerMinMaxScaler().fit(source.train)
    train, test = normalizer.transform(source.train), normalizer.transform(source.test)
    return Data(DataSource(source.name, train, test, source.label_names), normalizer)


def first_examples(data: Data, count: int) -> Data:
    """Return the data with only the first ``count`` training examples."""
    if count < 1:
        raise ConfError(f"{count} examples are too few to train on; give at least 1")
    source = data.source
    train = source.train.rows(0, min(count, source.train.num_examples))
    return Data(DataSource(source.name, train, source.test, source.label_names), data.normalizer)


def prepare(conf: Conf, data: Data, given: frozenset[str], *, learning_rate: float | None, updater: str | None) -> Conf:
    """Return ``conf`` with the zoo model's network and defaults for everything not in ``given``.

    Args:
        conf: what flags, environment and file say.
        data: the data set, whose size the network takes.
        given: the names of Conf fields that somebody has set.
        learning_rate, updater: instead of the model's own.
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
    network = network.with_sizes(train.n_in, train.n_out)
    network.validate()
    field = "computation_graph_conf" if isinstance(network, ComputationGraphConfiguration) else "multi_layer_conf"
    # A new run: its data are its own, whatever run the Conf was taken from.
    return conf.replace(**{field: network}, dataset=conf.dataset or data.source.name, data_fingerprint="")


def with_data(conf: Conf, data: Data) -> Conf:
    """Return the Conf with the fingerprint of its data; raises ``CheckpointError`` if it has that of others."""
    return with_fingerprint(conf, source_for_model(data.source, conf.model).train)


def on_devices(conf: Conf, given: frozenset[str], *, local: bool) -> tuple[Conf, frozenset[str]]:
    """Return ``conf`` with its devices settled, a worker for each GPU, and the names of fields that are set by now.

    ``given`` are the names that somebody has set; ``local`` says whether the workers are in this process.
    """
    conf, compute = resolve_compute(conf, local=local)
    if compute.on_gpu and "workers" not in given:
        return conf.replace(workers=len(compute.devices)), given | {"workers"}
    return conf, given


def with_absolute_paths(conf: Conf) -> Conf:
    """Return ``conf`` with its data named so that ``resume`` finds them from any folder; digits by default."""
    dataset = conf.dataset or "digits"
    if dataset not in NAMES and not storage.is_remote(dataset) and Path(dataset).expanduser().exists():
        dataset = storage.absolute(dataset)
    folder = conf.checkpoint_dir
    checkpoint_dir = folder if not folder or storage.is_remote(folder) else str(Path(folder).expanduser())
    return conf.replace(dataset=dataset, data_dir=storage.absolute(conf.data_dir), checkpoint_dir=checkpoint_dir)


def plan_of(conf: Conf, data: Data) -> Plan:
    """Return the plan of a run whose Conf has its ``jobs_per_round``."""
    iterator = ListDataSetIterator(data.source.train, conf.batch_size, seed=conf.seed)
    return DataSetJobIterator(
        iterator,
        jobs_per_round=conf.jobs_per_round,
        averaging_frequency=conf.averaging_frequency,
        phases=conf.phases(),
    ).plan


def train(
    conf: Conf,
    data: Data,
    *,
    resume: bool = False,
    out: str = "",
    tick: Callable[[RunStatus], None] | None = None,
    tracker: StateTracker | None = None,
    local_workers: int | None = None,
    monitor: ClusterMonitor | None = None,
) -> Report:
    """Run ``conf`` on ``data`` to its end, evaluate on the held-out part, save the model; return the report.

    ``tracker``, ``local_workers`` and ``monitor`` are ``ActorNetworkRunner``'s.
    """
    source = source_for_model(data.source, conf.model)
    iterator = ListDataSetIterator(source.train, conf.batch_size, seed=conf.seed)
    with storage.written(out) if out else contextlib.nullcontext() as path:
        if path is not None:
            check_writable(path)
        with ActorNetworkRunner(
            "master", iterator, tracker=tracker, local_workers=local_workers, monitor=monitor
        ) as runner:
            runner.setup(conf, resume=resume)
            result = runner.train(tick)
            network = runner.network(result)
        evaluation = evaluate_network(network, source.test, source.label_names)
        if path is not None:
            write_model(network, path, normalizer=data.normalizer, label_names=data.source.label_names)
    where = out if storage.is_remote(out) else path
    return Report(_fields(result, network, evaluation, where), evaluation, result.warnings)


def _fields(
    result: TrainingResult, network: Network, evaluation: NetworkEvaluation, path: Path | str | None
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
        "model_path": None if path is None else str(path),
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
        return Conf.read(path)
    except ConfError as exc:
        raise CheckpointError(f"the run in {run} cannot go on: {exc}") from exc


def check_writable(path: Path) -> None:
    """Raise ``ModelError`` now if ``path`` could not be written after hours of training."""
    folder = path.absolute().parent
    if path.is_dir():
        raise ModelError(f"{path} is a folder; --out takes the name of a file, for instance {path / 'model.zip'}")
    if not folder.is_dir():
        raise ModelError(f"{path} cannot be written: there is no folder {folder}; create it or choose another --out")
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{path.name}.", suffix=".tmp"):
            pass  # permission bits do not tell: the file system may be read-only
    except OSError as exc:
        reason = exc.strerror or exc
        raise ModelError(f"{path} cannot be written: {reason} ({folder}); choose another --out") from exc
