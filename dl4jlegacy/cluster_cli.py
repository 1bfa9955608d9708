"""The commands of a run on a cluster: what ``dl4j master`` adds to ``train``, and ``worker``, ``status``, ``stop``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from dl4jlegacy.console import emit, open_console
from dl4jlegacy.errors import TrackerError, UsageError, nearest

if TYPE_CHECKING:
    from dl4jlegacy.cluster import ClusterAddress
    from dl4jlegacy.launch import Data, Report
    from dl4jlegacy.runner import RunStatus
    from dl4jlegacy.scaleout.conf import Conf

__all__ = ["add_commands", "is_standby", "stand_by", "starter", "work"]

MASTER = "master"
Tick = Callable[["RunStatus"], None]
Zookeeper = Annotated[
    str | None,
    typer.Option("--zookeeper", metavar="HOST:PORT", help="Where the master has registered.", envvar="DL4J_ZOOKEEPER"),
]
Format = Annotated[str, typer.Option("--format", metavar="text|json", help="As text, or as one JSON object.")]
LogFormat = Annotated[str, typer.Option("--log-format", metavar="text|json", help="Events as text or as JSON lines.")]


def add_commands(app: typer.Typer) -> None:
    """Add this module's commands to ``dl4j``."""
    for command in (worker, status, stop):
        app.command()(command)


# --- master: what train's flags mean on a cluster ---------------------------------------------------------------------


def is_standby(flags: Mapping[str, Any]) -> bool:
    """Whether the flags ask for a standby master; raises ``UsageError`` where that makes no sense."""
    if flags["standby"] and flags["context"].info_name != MASTER:
        raise UsageError("--standby belongs to dl4j master")
    return bool(flags["standby"])


def stand_by(flags: Mapping[str, Any], show: Callable[..., None], *, as_json: bool, json_lines: bool) -> None:
    """Wait behind the present master, and show its run to the end if it dies."""
    from dl4jlegacy import cluster

    address = _address(flags["zookeeper"])

    def start(tick: Tick) -> Report:
        report = cluster.stand_by(address, out=flags["out"] or "", tick=tick)
        if report is None:
            emit(
                json.dumps({"status": "done", "standby": True}) if as_json else "the run ended; nothing was to be done"
            )
            raise typer.Exit(0)
        return report

    show(start, as_json=as_json, json_lines=json_lines)


def starter(flags: Mapping[str, Any], conf: Conf, data: Data, out: str) -> Callable[[Tick], Report]:
    """Return what trains ``conf``: in this process, over a grid, or as the master of workers elsewhere."""
    from dl4jlegacy import launch

    tracker, is_master = flags["tracker"], flags["context"].info_name == MASTER
    if tracker == "memory":
        if is_master:
            raise UsageError("dl4j master needs --tracker hazelcast://host:port; dl4j train does without")
        return lambda tick: launch.train(conf, data, out=out, tick=tick)
    address = tracker.removeprefix("hazelcast://")
    if address == tracker or not address:
        raise UsageError(f"--tracker {tracker}: give memory, or hazelcast://host:port[,host:port]")
    conf = conf.replace(
        state_tracker_connection_string=address, cluster_name=flags["cluster_name"] or _local_cluster(address)
    )
    zookeeper = _address(flags["zookeeper"])
    workers = 0 if is_master else conf.workers

    def start(tick: Tick) -> Report:
        from dl4jlegacy import cluster

        return cluster.run_master(conf, data, zookeeper, local_workers=workers, out=out, tick=tick)

    return start


def _local_cluster(address: str) -> str:
    """Return the cluster's name of the local services if that is them, else Hazelcast's default."""
    from dl4jlegacy.services import Services

    state = Services.status()
    return state.cluster_name if state is not None and state.hazelcast == address else "dev"


def _address(zookeeper: str | None) -> ClusterAddress:
    from dl4jlegacy.cluster import ClusterAddress
    from dl4jlegacy.scaleout.secret import read_secret

    if not zookeeper:
        raise UsageError("--zookeeper is missing; give the host:port at which the run is, or is to be, registered")
    address = ClusterAddress(zookeeper, read_secret(os.environ))
    address.split()
    return address


# --- worker, status, stop ---------------------------------------------------------------------------------------------


def worker(
    zookeeper: Zookeeper = None,
    master: Annotated[
        str | None, typer.Option("-ad", metavar="HOST", help="The master's host; Zookeeper is at its port 2181.")
    ] = None,
    workers: Annotated[str, typer.Option("--workers", metavar="N", help="Worker threads of this process (1).")] = "1",
    wait: Annotated[
        str, typer.Option("--wait", metavar="SECONDS", help="How long to wait for a master to register (60).")
    ] = "60",
    log_format: LogFormat = "text",
) -> None:
    """Work for the run that a master has registered, until it ends."""
    work(
        zookeeper or (f"{master}:2181" if master else None),
        workers=_whole("--workers", workers, least=1),
        wait_seconds=float(_whole("--wait", wait, least=0)),
        json_lines=_is_json("--log-format", log_format),
    )


def work(zookeeper: str | None, *, workers: int = 1, wait_seconds: float = 60.0, json_lines: bool = False) -> None:
    """Be a worker, and say on stderr when it joins and leaves."""
    from dl4jlegacy import cluster

    address, console = _address(zookeeper), open_console(json_lines=json_lines)

    def on_event(name: str, fields: dict[str, Any]) -> None:
        text = f"{name}: " + ", ".join(f"{key} {value}" for key, value in fields.items())
        line = json.dumps({"event": name, **fields}) if json_lines else text
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    cluster.run_worker(address, workers=workers, wait_seconds=wait_seconds, on_event=on_event)


def status(zookeeper: Zookeeper = None, format: Format = "text") -> None:
    """Show where the registered run is."""
    from dl4jlegacy import cluster

    as_json, address = _is_json("--format", format), _address(zookeeper)
    conf = cluster.find_conf(address)
    tracker = cluster.open_tracker(conf, address.secret)
    try:
        head, workers = tracker.head(), tracker.workers()
    finally:
        tracker.shutdown()
    fields = {
        "run": conf.run,
        "head": None if head is None else msgspec.to_builtins(head),
        "workers": [msgspec.to_builtins(w) for w in workers],
    }
    if as_json:
        emit(json.dumps(fields))
        return
    where = "has not begun" if head is None else f"{head.status}, round {head.round}, {head.examples:,} examples"
    emit("\n".join([f"run {conf.run}: {where}", *(f"  {w.id}: {w.state} {w.job}" for w in workers)]))


def stop(zookeeper: Zookeeper = None) -> None:
    """Stop the registered run: its master and workers leave."""
    from dl4jlegacy import cluster

    address = _address(zookeeper)
    conf = cluster.find_conf(address)
    tracker = cluster.open_tracker(conf, address.secret)
    try:
        head = tracker.finish("stopped")
    finally:
        tracker.shutdown()
    if head is None:
        raise TrackerError(f"run {conf.run} has not begun; there is nothing to stop")
    emit(f"run {conf.run}: {head.status} in round {head.round}")


def _whole(flag: str, text: str, *, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise UsageError(f"{flag} {text}: give a whole number of at least {least}")
    return value


def _is_json(flag: str, text: str) -> bool:
    if text not in ("text", "json"):
        raise UsageError(f"{flag} {text}: unknown format{nearest(text, ('text', 'json'))}")
    return text == "json"
