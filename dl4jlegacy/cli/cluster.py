"""The commands of a run on a cluster: what ``dl4j master`` and ``resume`` add to ``train``, and ``dl4j worker``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dl4jlegacy.cli import inspect
from dl4jlegacy.cli.options import Id, LogFormat, Zookeeper, access, is_json, whole
from dl4jlegacy.console import emit, open_console
from dl4jlegacy.errors import UsageError

if TYPE_CHECKING:
    from dl4jlegacy.scaleout.conf import Conf
    from dl4jlegacy.scaleout.outcome import RunStatus
    from dl4jlegacy.training import Data, Report

__all__ = ["add_commands", "is_standby", "resumer", "stand_by", "starter", "work"]

MASTER = "master"
Tick = Callable[["RunStatus"], None]


def add_commands(app: typer.Typer) -> None:
    """Add this module's commands to ``dl4j``."""
    for command in (worker, inspect.status, inspect.logs, inspect.stop):
        app.command()(command)


# --- master: what train's flags mean on a cluster ---------------------------------------------------------------------


def is_standby(flags: Mapping[str, Any]) -> bool:
    """Whether the flags ask for a standby master; raises ``UsageError`` where that makes no sense."""
    if flags["standby"] and flags["context"].info_name != MASTER:
        raise UsageError("--standby belongs to dl4j master")
    return bool(flags["standby"])


def stand_by(flags: Mapping[str, Any], show: Callable[..., None], *, as_json: bool, json_lines: bool) -> None:
    """Wait behind the present master, and show its run to the end if it dies."""
    from dl4jlegacy.cluster import master as cluster

    address = access(flags["zookeeper"], flags["id"])

    def start(tick: Tick) -> Report:
        report = cluster.stand_by(address, cluster.Lead(0, flags["out"] or "", flags["bind"], tick))
        if report is None:
            emit(
                json.dumps({"status": "done", "standby": True}) if as_json else "the run ended; nothing was to be done"
            )
            raise typer.Exit(0)
        return report

    show(start, as_json=as_json, json_lines=json_lines, goes_on=f"dl4j resume {address.id} {address.flags()}")


def starter(flags: Mapping[str, Any], conf: Conf, data: Data, out: str) -> tuple[Callable[[Tick], Report], str]:
    """Return what trains ``conf`` (in this process, over a grid, or as the master of workers elsewhere), and by which
    command somebody goes on with it; "" where that is not in the cluster.
    """
    from dl4jlegacy import training

    tracker, is_master = flags["tracker"], flags["context"].info_name == MASTER
    if tracker == "memory":
        if is_master:
            raise UsageError("dl4j master needs --tracker hazelcast://host:port; dl4j train does without")
        return lambda tick: training.train(conf, data, out=out, tick=tick), ""
    where = tracker.removeprefix("hazelcast://")
    if where == tracker or not where:
        raise UsageError(f"--tracker {tracker}: give memory, or hazelcast://host:port[,host:port]")
    if not flags["zookeeper"]:
        raise UsageError(f"--zookeeper is missing: a run with --tracker {tracker} is registered at its host:port")

    from dl4jlegacy.scaleout.worker_pool import process_name

    address = access(flags["zookeeper"], flags["id"])
    conf = conf.replace(
        run=conf.run or process_name(),
        state_tracker_connection_string=where,
        cluster_name=flags["cluster_name"] or _local_cluster(where),
    )
    workers = 0 if is_master else conf.workers

    def start(tick: Tick) -> Report:
        from dl4jlegacy.cluster import master as cluster

        return cluster.run_master(conf, data, address, cluster.Lead(workers, out, flags["bind"], tick))

    return start, f"dl4j resume {conf.run} {address.flags()}"


def resumer(
    run: str, flags: Mapping[str, Any], changes: Mapping[str, Any], out: str
) -> tuple[Callable[[Tick], Report], str, str]:
    """Return what goes on with a run that is registered, by which command somebody goes on after that, its folder."""
    from dl4jlegacy.cluster import master as cluster

    address, conf = cluster.find_run(access(flags["zookeeper"], flags["id"]), run, id_given=flags["id"] is not None)
    conf = conf.replace(**{name: value for name, value in changes.items() if name != "workers"})
    lead = cluster.Lead(out=out, bind=flags["bind"])
    return (
        lambda tick: cluster.resume_run(conf, address, replace(lead, tick=tick), workers=changes.get("workers")),
        f"dl4j resume {conf.run} {address.flags()}",
        conf.checkpoint_dir,
    )


def _local_cluster(address: str) -> str:
    """Return the cluster's name of the local services if that is them, else Hazelcast's default."""
    from dl4jlegacy.services import Services

    state = Services.status()
    return state.cluster_name if state is not None and state.hazelcast == address else "dev"


# --- worker -----------------------------------------------------------------------------------------------------------


def worker(
    zookeeper: Zookeeper = None,
    master: Annotated[
        str | None, typer.Option("-ad", metavar="HOST", help="The master's host; Zookeeper is at its port 2181.")
    ] = None,
    workers: Annotated[
        str | None, typer.Option("--workers", metavar="N", help="Worker threads of this process (1; one for each GPU).")
    ] = None,
    wait: Annotated[
        str, typer.Option("--wait", metavar="SECONDS", help="How long to wait for a master to register (60).")
    ] = "60",
    id: Id = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device", metavar="cpu|gpu|gpu:N|auto", help="What to compute on (as the run does).", envvar="DL4J_DEVICE"
        ),
    ] = None,
    device_memory_limit: Annotated[
        str | None,
        typer.Option(
            "--device-memory-limit",
            metavar="SIZE|PART",
            help="Of each GPU, such as 8GiB or 80% (all).",
            envvar="DL4J_DEVICE_MEMORY_LIMIT",
        ),
    ] = None,
    log_format: LogFormat = "text",
) -> None:
    """Work for the run that a master has registered, until it ends."""
    work(
        zookeeper or (f"{master}:2181" if master else None),
        id=id,
        workers=None if workers is None else whole("--workers", workers, least=1),
        wait_seconds=float(whole("--wait", wait, least=0)),
        device=device,
        device_memory_limit=device_memory_limit or "",
        json_lines=is_json("--log-format", log_format),
    )


def work(
    zookeeper: str | None,
    *,
    id: str | None = None,
    workers: int | None = None,
    wait_seconds: float = 60.0,
    device: str | None = None,
    device_memory_limit: str = "",
    json_lines: bool = False,
) -> None:
    """Be a worker, and say on stderr when it joins and leaves, and on which devices."""
    from dl4jlegacy.cluster import master as cluster
    from dl4jlegacy.devices import check_choice, memory_limit

    if device is not None:
        check_choice(device, "--device")
    if device_memory_limit:
        memory_limit(device_memory_limit)
    address, console = access(zookeeper, id), open_console(json_lines=json_lines)

    def on_event(name: str, fields: dict[str, Any]) -> None:
        text = f"{name}: " + ", ".join(f"{key} {value}" for key, value in fields.items())
        if name == "device":
            text = f"worker {fields['worker']}: {fields['text']}"
        line = json.dumps({"event": name, **fields}) if json_lines else text
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    cluster.run_worker(
        address,
        workers=workers,
        wait_seconds=wait_seconds,
        device=device,
        device_memory_limit=device_memory_limit,
        on_event=on_event,
    )
