"""The Conf that the options of a training describe, and what they change in the Conf of a run that is resumed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from dl4jlegacy.cli.options.images import image_changes, is_folder
from dl4jlegacy.cli.options.mesh import mesh_changes
from dl4jlegacy.cli.options.scoring import scoring_changes
from dl4jlegacy.cli.options.texts import reader_changes
from dl4jlegacy.cli.options.values import not_empty, read_schema
from dl4jlegacy.datasets.reading import kind_named
from dl4jlegacy.datasets.tables.table_files import is_table
from dl4jlegacy.errors import UsageError
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.storage.paths import absolute, is_remote
from dl4jlegacy.training.network_options import NetworkOptions
from dl4jlegacy.training.prepare import prepare

if TYPE_CHECKING:
    from dl4jlegacy.cli.options.read import ResumeOptions, TrainOptions
    from dl4jlegacy.datasets import DataSource
    from dl4jlegacy.training.run import Run

__all__ = ["new_run", "read_conf", "resume_changes"]


def read_conf(options: TrainOptions) -> tuple[Conf, frozenset[str]]:
    """Return the Conf described by options, environment and file, and the names of the fields that they set.

    Raises:
        ConfError: the file cannot be read, or a value is not allowed.
        UsageError: two options contradict each other.
    """
    if options.examples_per_update is not None and options.batch_size is not None:
        raise UsageError("--examples-per-update sets the batch size; leave --batch-size out")
    names = (
        *("model", "dataset", "data_dir", "workers", "jobs_per_round", "batch_size", "epochs", "pretrain_epochs"),
        *("averaging_frequency", "warm_start", "warm_start_jobs", "router", "router_args", "seed", "run", "device"),
        *("checkpoint_dir", "checkpoint_every", "min_workers", "precision", "device_memory_limit", "class_weights"),
        "poison_jobs",
    )
    given = _given(options, names)
    for name in ("mixed_devices", "data_by_reference", "collect_training_stats", "stratify", "keep_index"):
        if getattr(options, name):
            given[name] = True
    given |= {"scale_features": False} if options.no_scaling else {}
    if (kernels := os.environ.get("DL4J_KERNELS")) is not None:
        given["kernels"] = not_empty("DL4J_KERNELS", kernels)
    file = None if options.conf is None else Path(options.conf)
    if file and (is_remote(str(options.conf)) or is_table(file.name) or kind_named(file) or is_folder(file)):
        if options.dataset is not None:
            raise UsageError(f"{options.conf} and --dataset {options.dataset} are two data sets; leave one out")
        given["dataset"], file = options.conf, None
    base = Conf() if file is None else Conf.read(file)
    if options.schema is not None:
        given["transform"] = read_schema(options.schema)
    for changes in (_deadlines, scoring_changes, image_changes, reader_changes, mesh_changes):
        given |= changes(options, base)
    named = frozenset(given) | (frozenset() if file is None else Conf.named_in(file))
    if "model" in given:
        given |= {"multi_layer_conf": None, "computation_graph_conf": None}  # it replaces the file's network
    conf = base.replace(**given)
    if options.collect_training_stats and not conf.checkpoint_dir:
        raise UsageError("--collect-training-stats writes beside the run's checkpoints; give --checkpoint-dir")
    return conf, named


def new_run(
    options: TrainOptions, *, local_workers: int | None = None, on_cluster: bool = False, **grid: str
) -> tuple[Run, DataSource]:
    """Return the new run described by options, environment and file, and its data.

    Args and errors as for ``training.prepare`` and ``read_conf``; ``grid``: the Conf fields of the tracker.
    """
    conf, given = read_conf(options)
    return prepare(
        conf.replace(**grid),
        given,
        network=NetworkOptions(**_given(options, NetworkOptions.__struct_fields__)),
        examples_per_update=options.examples_per_update,
        label=options.label or "",
        regression=options.regression,
        multi_label=options.multi_label,
        missing=options.missing,
        local_workers=local_workers,
        on_cluster=on_cluster,
    )


def resume_changes(options: ResumeOptions, conf: Conf) -> dict[str, Any]:
    """Return the changed fields of the run's Conf, except the workers, which belong to this process."""
    changes = _given(options, ("min_workers", "poison_jobs", "device", "device_memory_limit"))
    if options.data_dir is not None:
        changes["data_dir"] = absolute(options.data_dir)  # the next master may have another folder
    if options.mixed_devices:
        changes["mixed_devices"] = True
    return changes | _deadlines(options, conf)


def _deadlines(options: TrainOptions | ResumeOptions, conf: Conf) -> dict[str, Any]:
    """Return the Conf's deadlines that options set."""
    seconds = {
        "worker_wait_seconds": options.worker_wait,
        "tracker_wait_seconds": options.tracker_wait,
        "stuck_seconds": options.stuck,
        "session_seconds": options.session,
    }
    given: dict[str, Any] = {name: value for name, value in seconds.items() if value is not None}
    return given if options.lease is None else {**given, "limits": replace(conf.limits, lease=options.lease)}


def _given(options: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return those of the named options that were given."""
    return {name: value for name in names if (value := getattr(options, name)) is not None}
