"""``dl4j runs``: lists the runs in grids and in Zookeeper, active or not."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dl4jlegacy.cli.options.read import ClusterName, Format, Tracker, Zookeeper, cluster_address
from dl4jlegacy.cli.outputs.answer import Answer
from dl4jlegacy.errors import UsageError

if TYPE_CHECKING:
    from dl4jlegacy.cluster.runs import FoundRun

__all__ = ["add_commands", "runs"]

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"))


def add_commands(app: typer.Typer) -> None:
    """Add this module's command to ``dl4j``."""
    app.command()(runs)


def runs(
    tracker: Tracker = None,
    cluster_name: ClusterName = None,
    zookeeper: Zookeeper = None,
    is_clean: Annotated[
        bool, typer.Option("--clean", help="Remove what has no master and cannot be resumed; the rest stays.")
    ] = False,
    format: Format = "text",
) -> Answer:
    """List the runs of which anything is in a grid or in Zookeeper: those with a master, and what others left."""
    from dl4jlegacy.cluster.address import Access
    from dl4jlegacy.cluster.runs import Grid, clean, find_runs
    from dl4jlegacy.services.grid import grid_of
    from dl4jlegacy.system.secret import allows_unsigned, read_secret

    if not tracker and not zookeeper:
        raise UsageError("--tracker or --zookeeper is missing; give a grid, or the Zookeeper in which runs register")
    grids = [Grid(*grid_of(tracker, cluster_name))] if tracker else []
    if zookeeper:
        cluster_address(zookeeper, None)
    access = Access(read_secret(os.environ), allows_unsigned(os.environ))
    found = find_runs(zookeeper or "", grids, access)
    removed = clean(found, access) if is_clean else []
    lines = [line for run in found for line in _lines(run, run in removed)]
    fields = {"runs": [{**_fields(run), "removed": run in removed} for run in found]}
    return Answer(fields, lines or "there are no runs")


def _fields(run: FoundRun) -> dict[str, Any]:
    state = run.state()
    return {
        "run": run.run,
        "incarnation": run.incarnation,
        "id": run.id or None,
        "state": None if state is None else state.state,
        "reason": _unknown(run) if state is None else state.reason,
        "status": run.facts.status or None,
        "standing": run.standing,
        "version": run.version,
        "round": run.round,
        "rounds": run.rounds,
        "age_seconds": _age(run),
        "bytes": run.nbytes,
        "master": run.master,
        "tracker": f"hazelcast://{run.grid.members}" if run.grid.members else None,
        "zookeeper": run.zookeeper or None,
        "registered": run.conf is not None,
        "checkpoint_dir": (run.conf.checkpoint_dir if run.conf else "") or None,
    }


def _age(run: FoundRun) -> float | None:
    return None if run.began is None else round(max(0.0, time.time() - run.began), 1)


def _lines(run: FoundRun, is_removed: bool) -> Iterator[str]:
    state = run.state()
    name = f"{run.run} ({run.incarnation})" if run.run else f"id {run.id}"
    progress = "" if run.round is None else f" in round {run.round} of {run.rounds or '?'}, version {run.version}"
    age = _age(run)
    began = [] if age is None else [f"began {_duration(age)} ago"]
    grid = [f"{run.nbytes:,} bytes in the grid at {run.grid.members}"] if run.grid.members else []
    yield ", ".join([f"{name}: {'state unknown' if state is None else state.state}{progress}", *began, *grid])
    if state is not None and state.reason:
        yield f"  {state.text()}"
    yield f"  {_standing(run, is_removed)}"


def _duration(seconds: float) -> str:
    for unit, name in _UNITS:
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"


def _standing(run: FoundRun, is_removed: bool) -> str:
    """Return in words who leads a run, or what can be done about it."""
    from dl4jlegacy.cli.terminal.next_steps import command
    from dl4jlegacy.cluster.address import flags_of

    if is_removed:
        return "removed: it had no master and could not be resumed"
    if run.standing == "live":
        master, role = run.master or {}, "master" if run.facts.has_master else "standby, which takes over"
        return f"{role}: {master.get('host')}, pid {master.get('pid')}"
    if run.standing == "resumable":
        flags = flags_of(run.zookeeper, run.id)
        return (
            f"no master; `{command('resume', run.run, flags)}` goes on with it, `{command('stop', flags)}` removes it "
            "(--clean does not)"
        )
    if run.standing == "abandoned":
        return "abandoned: it has no master and cannot be resumed; --clean removes it"
    if run.unseen == "unreachable" and run.conf is not None:
        gone = command("stop", flags_of(run.zookeeper, run.id), "--lost-grid")
        return (
            f"no master, and its grid at {run.grid.members} does not answer: stays, since the run may be there; when "
            f"that grid is gone for ever, `{gone}` removes it"
        )
    return f"stays, since whether it has a master is unknown: {_unknown(run)}"


def _unknown(run: FoundRun) -> str:
    if run.unseen == "unreadable":
        return "it has another secret (DL4J_SECRET), or is of another version"
    if run.unseen == "not asked":
        return f"its grid at {run.grid.members} is not to be asked without a secret"
    return (
        f"Zookeeper at {run.zookeeper or 'an unknown place'}, where it was registered, was not asked or did not answer"
    )
