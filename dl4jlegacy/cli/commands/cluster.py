"""``dl4j master`` and ``dl4j worker``, the processes of a cluster run; also ``train`` and ``resume`` on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from dl4jlegacy.cli.commands.dashboard import cluster_source, in_browser
from dl4jlegacy.cli.commands.observing import ObservedTrainOptions, ObservedWorkerOptions, observing
from dl4jlegacy.cli.options.read import ResumeOptions, TrainOptions, add_command, cluster_address, import_used
from dl4jlegacy.cli.outputs.answer import Answer
from dl4jlegacy.errors import UsageError
from dl4jlegacy.system.console import open_console
from dl4jlegacy.system.strict_json import to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dl4jlegacy.cli.terminal.progress import ProgressDisplay
    from dl4jlegacy.cluster.address import ClusterAddress
    from dl4jlegacy.cluster.leadership import MasterOptions
    from dl4jlegacy.scaleout.conf import Conf
    from dl4jlegacy.scaleout.monitoring.observers import RunObserver
    from dl4jlegacy.training.prepare import Report

__all__ = [
    "add_commands",
    "master",
    "resume_folder_on_cluster",
    "resume_on_cluster",
    "show_run",
    "train_on_cluster",
    "worker",
]


def add_commands(app: typer.Typer) -> None:
    """Add this module's commands to ``dl4j``."""
    add_command(app, master, ObservedTrainOptions)
    add_command(app, worker, ObservedWorkerOptions)


# --- the master -------------------------------------------------------------------------------------------------------


def show_run(
    options: TrainOptions | ResumeOptions,
    start: Callable[[ProgressDisplay], Report],
    conf: Conf,
    address: ClusterAddress | None = None,
    *,
    opening: Sequence[str] = (),
    warning: str = "",
) -> None:
    """Show a run until its end; args as for ``show_training``; ``address``: where it is registered, if it is."""
    from dl4jlegacy.cli.terminal.next_steps import RunLocation
    from dl4jlegacy.cli.terminal.progress import show_training

    show_training(
        start,
        RunLocation(conf.checkpoint_dir, conf.run, address, conf.data_dir),
        opening=opening,
        warning=warning,
        as_json=options.format == "json",
        json_lines=options.log_format == "json",
    )


def master(options: ObservedTrainOptions) -> None:
    """Be the master of a run whose workers are other processes (dl4j worker)."""
    import_used(options.use)
    if options.dry_run:
        raise UsageError("--dry-run belongs to dl4j train; with it, and these options, it says what would be trained")
    if not options.standby and options.tracker == "memory":
        raise UsageError("dl4j master needs --tracker hazelcast://host:port; dl4j train does without")
    with observing(options) as observers:
        if options.standby:
            _stand_by(options, observers)
        else:
            train_on_cluster(options, observers, local_workers=0)


def _master_options(
    options: TrainOptions | ResumeOptions, display: ProgressDisplay, observers: Sequence[RunObserver]
) -> MasterOptions:
    from dl4jlegacy.cluster.leadership import MasterOptions

    return MasterOptions(
        options.out or "", options.bind, display.tick, observers, changed_code=getattr(options, "changed_code", False)
    )


def train_on_cluster(
    options: ObservedTrainOptions, observers: Sequence[RunObserver], *, local_workers: int | None
) -> None:
    """Lead a new run as its master; ``local_workers`` threads work in this process (None: as many as the Conf says)."""
    from dl4jlegacy.cli.options.conf_options import new_run
    from dl4jlegacy.cluster.master import run_master
    from dl4jlegacy.services.grid import grid_of
    from dl4jlegacy.training.notices import few_updates, opening

    members, cluster_name = grid_of(options.tracker, options.cluster_name, or_else="memory, or ")
    address = _address(options.tracker, options.zookeeper, options.id)
    grid = {"state_tracker_connection_string": members, "cluster_name": cluster_name}
    run, data = new_run(options, local_workers=local_workers, on_cluster=True, **grid)
    with in_browser(options, lambda: cluster_source(address)):
        show_run(
            options,
            lambda display: run_master(run, data, address, _master_options(options, display, observers)),
            run.conf,
            address,
            opening=opening(run, data),
            warning=few_updates(run),
        )


def _address(tracker: str, zookeeper: str | None, id: str | None) -> ClusterAddress:
    if not zookeeper:
        raise UsageError(f"--zookeeper is missing: a run with --tracker {tracker} is registered at its host:port")
    return cluster_address(zookeeper, id)


def _stand_by(options: TrainOptions, observers: Sequence[RunObserver]) -> None:
    """Wait behind the present master, and show its run until the end if the master dies."""
    from dl4jlegacy.cli.terminal.next_steps import command
    from dl4jlegacy.cluster.address import find_conf
    from dl4jlegacy.cluster.master import stand_by

    address = cluster_address(options.zookeeper, options.id)
    conf = find_conf(address, wait_seconds=60.0)

    def start(display: ProgressDisplay) -> Report:
        def say() -> None:
            shown = command("status", address.flags())
            text = f"standing by: takes over run {conf.run} if its master dies; `{shown}` shows both"
            display.announce("standing_by", text, run=conf.run, id=address.id)

        report = stand_by(conf, address, _master_options(options, display, observers), on_stand_by=say)
        if report is None:
            over = {"status": "done", "standby": True}
            Answer(over, f"run {conf.run} is over; its master was never gone").print(as_json=options.format == "json")
            raise typer.Exit(0)
        return report

    show_run(options, start, conf, address)


def resume_on_cluster(options: ResumeOptions, observers: Sequence[RunObserver]) -> None:
    """Take over a registered run whose master is gone, and show it until the end."""
    from dl4jlegacy.cli.options.conf_options import resume_changes
    from dl4jlegacy.cluster.leadership import find_run
    from dl4jlegacy.cluster.master import resume_run

    given = cluster_address(options.zookeeper, options.id)
    address, conf = find_run(given, options.run, id_given=options.id is not None)
    conf, workers = conf.replace(**resume_changes(options, conf)), options.workers
    show_run(
        options,
        lambda display: resume_run(conf, address, _master_options(options, display, observers), workers=workers),
        conf,
        address,
    )


def resume_folder_on_cluster(options: ResumeOptions, content: bytes, observers: Sequence[RunObserver]) -> None:
    """Continue a run from its checkpoints on the grid of ``--tracker``; ``content`` is its ``conf.json``."""
    from dl4jlegacy.cli.options.conf_options import resume_changes
    from dl4jlegacy.cluster.master import resume_from_checkpoints
    from dl4jlegacy.services.grid import grid_of
    from dl4jlegacy.storage import paths as storage
    from dl4jlegacy.training import prepare as training

    tracker = options.tracker or ""
    members, cluster_name = grid_of(tracker, options.cluster_name)
    address = _address(tracker, options.zookeeper, options.id)
    begun = training.read_run(options.run, content)
    conf = begun.replace(
        **resume_changes(options, begun),
        checkpoint_dir=storage.absolute(options.run),
        state_tracker_connection_string=members,
        cluster_name=cluster_name,
    )
    show_run(
        options,
        lambda display: resume_from_checkpoints(
            conf, address, _master_options(options, display, observers), workers=options.workers
        ),
        conf,
        address,
    )


# --- a worker ---------------------------------------------------------------------------------------------------------


def worker(options: ObservedWorkerOptions) -> None:
    """Work for the run that a master has registered, until it ends; with --stay for the next ones, too."""
    from dl4jlegacy.cluster.worker import run_worker
    from dl4jlegacy.storage import paths as storage

    import_used(options.use)
    json_lines, data_dir = options.log_format == "json", storage.absolute(options.data_dir or "")
    hosts = options.master.split(",") if options.master else []
    zookeeper = options.zookeeper or ",".join(f"{host}:2181" for host in hosts) or None
    address, console = cluster_address(zookeeper, options.id), open_console(json_lines=json_lines)

    def on_event(name: str, fields: dict[str, Any]) -> None:
        text = f"{name}: " + ", ".join(f"{key} {value}" for key, value in fields.items())
        if name == "device":
            text = f"worker {fields['worker']}: {fields['text']}"
        line = to_json({"event": name, **fields}) if json_lines else text
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    with observing(options) as observers:
        run_worker(
            address,
            workers=options.workers,
            wait_seconds=float(options.wait),
            device=options.device,
            device_memory_limit=options.device_memory_limit or "",
            data_dir=data_dir,
            observers=observers,
            on_event=on_event,
            stay=options.stay,
        )
