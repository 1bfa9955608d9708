"""``dl4j train`` and ``dl4j resume``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import typer

from dl4jlegacy.cli.commands import cluster
from dl4jlegacy.cli.commands.dashboard import in_browser, local_source
from dl4jlegacy.cli.commands.observing import ObservedResumeOptions, ObservedTrainOptions, observing
from dl4jlegacy.cli.options.read import add_command, import_used
from dl4jlegacy.errors import CheckpointError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dl4jlegacy.cli.terminal.progress import ProgressDisplay
    from dl4jlegacy.scaleout.monitoring.observers import RunObserver
    from dl4jlegacy.training.prepare import Report

__all__ = ["add_commands", "resume", "train"]


def add_commands(app: typer.Typer) -> None:
    """Add this module's commands to ``dl4j``."""
    add_command(app, train, ObservedTrainOptions)
    add_command(app, resume, ObservedResumeOptions)


def train(options: ObservedTrainOptions) -> None:
    """Train a model here and evaluate it on held-out examples.

    Flags win over DL4J_... environment variables, those over CONF.
    """
    if options.standby:
        raise UsageError("--standby belongs to dl4j master")
    if options.tracker == "memory" and options.zookeeper not in (None, "", os.environ.get("DL4J_ZOOKEEPER")):
        raise UsageError(
            f"--tracker is missing: a run that is registered in Zookeeper, at {options.zookeeper}, has its state in a "
            "grid; give --tracker hazelcast://host:port, or leave --zookeeper out to train here alone"
        )
    import_used(options.use)
    if options.dry_run:
        _plan(options)
        return
    with observing(options) as observers:
        if options.tracker == "memory":
            _train_here(options, observers)
        else:
            cluster.train_on_cluster(options, observers, local_workers=None)


def _plan(options: ObservedTrainOptions) -> None:
    """Print what would be trained, with the reason of each choice."""
    from dl4jlegacy.cli.options.conf_options import new_run
    from dl4jlegacy.system.console import emit
    from dl4jlegacy.system.strict_json import to_json
    from dl4jlegacy.training.report import planned

    run, _ = new_run(options)
    fields = planned(run)
    if options.format == "json":
        emit(to_json(fields))
        return
    chosen = fields.pop("choices")
    for name, value in fields.items():
        if name not in chosen:
            emit(f"{name:20}  {value}")
    for name, words in chosen.items():
        emit(f"{name:20}  {words}")


def _train_here(options: ObservedTrainOptions, observers: Sequence[RunObserver]) -> None:
    from dl4jlegacy.cli.options.conf_options import new_run
    from dl4jlegacy.scaleout.tracker import InMemoryStateTracker
    from dl4jlegacy.training import prepare as training
    from dl4jlegacy.training.notices import few_updates, opening

    run, data = new_run(options)
    tracker = InMemoryStateTracker()

    def start(display: ProgressDisplay) -> Report:
        parts: Any = {"tracker": tracker, "observers": observers}
        return training.train(run, data, out=options.out or "", tick=display.tick, **parts)

    with in_browser(options, lambda: local_source(run, tracker)):
        cluster.show_run(options, start, run.conf, opening=opening(run, data), warning=few_updates(run))


def resume(options: ObservedResumeOptions) -> None:
    """Go on where a run stopped; prints what train would have printed.

    A folder of checkpoints continues here, or with --tracker and --zookeeper on any cluster.
    """
    from dl4jlegacy.scaleout import saved_run

    import_used(options.use)
    content = saved_run.find_conf(options.run)
    if content is None and not options.zookeeper:
        raise CheckpointError(
            f"{options.run} holds no run: it has no conf.json; give what --checkpoint-dir was, or a name and "
            "--zookeeper"
        )
    with observing(options) as observers:
        if content is None:
            cluster.resume_on_cluster(options, observers)
        elif options.tracker in (None, "memory"):
            _resume_folder(options, content, observers)
        else:
            cluster.resume_folder_on_cluster(options, content, observers)


def _resume_folder(options: ObservedResumeOptions, content: bytes, observers: Sequence[RunObserver]) -> None:
    """Continue a run from its checkpoints, in this process; ``content`` is its ``conf.json``."""
    from dl4jlegacy.cli.options.conf_options import resume_changes
    from dl4jlegacy.storage import paths as storage
    from dl4jlegacy.system import files
    from dl4jlegacy.training import prepare as training
    from dl4jlegacy.training import run_data
    from dl4jlegacy.training.run import resolve

    folder = options.run if storage.is_remote(options.run) else str(files.expand(options.run))
    begun = training.read_run(folder, content)
    workers = begun.workers if options.workers is None else options.workers
    conf = begun.replace(**resume_changes(options, begun), workers=workers, checkpoint_dir=folder)
    data = run_data.reload(conf)

    def start(display: ProgressDisplay) -> Report:
        there = training.training_data(conf, data)
        run = resolve(conf, there, resume=True, changed_code=options.changed_code)
        return training.train(run, data, out=options.out or "", tick=display.tick, observers=observers)

    cluster.show_run(options, start, conf)
