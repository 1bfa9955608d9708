"""How far a run is, and what is kept of it, in words: for messages about a run that does not get on, or was stopped."""

from __future__ import annotations

from dl4jlegacy.errors import Dl4jError, counted
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.run_folder import RunFolder
from dl4jlegacy.scaleout.tracker import StateTracker

__all__ = ["what_is_kept", "where_it_is"]

_SHOWN = 8
"""So many workers, and so many failures, are named in a message."""


def where_it_is(tracker: StateTracker, plan: Plan) -> str:
    """Return how far a run is, what its workers do, and what failed last, in words."""
    try:
        head, records, workers = tracker.head(), tracker.current_jobs(plan), tracker.workers()
    except Dl4jError as exc:
        return f"where it is of {plan.total_rounds} rounds cannot be told: {exc}"
    states = [f"worker {w.id} is {w.state}{w.job and f' on job {w.job}'}" for w in workers[:_SHOWN]]
    failures = [failure for record in records.values() for failure in record.failures[-1:]]
    died = {place: len(record.crashes) for place, record in records.items() if record.crashes}
    where = f"it is in round {0 if head is None else head.round} of {plan.total_rounds}"
    said = [where, *(states or ["it has no worker"])]
    said += [
        f"{counted(count, 'process', 'processes')} died computing round {round_}, slot {slot}"
        for (round_, slot), count in list(died.items())[:_SHOWN]
    ]
    said += [f"worker {failure.worker} has failed: {failure.message}" for failure in failures[:_SHOWN]]
    return "; ".join(said)


def what_is_kept(conf: Conf, plan: Plan, folder: RunFolder, *, in_grid: bool) -> str:
    """Return where a run is that was interrupted and shut down, and how it goes on."""
    run = conf.run
    if in_grid:
        return f"run {run} was stopped; it stays in its tracker: setup(conf, resume=True) goes on with it"
    if not folder.keeps:
        return f"run {run} was stopped; nothing of it is kept: with Conf(checkpoint_dir=...) a run can go on later"
    try:
        saved = folder.newest()
    except Dl4jError as exc:
        return f"run {run} was stopped; what is kept of it cannot be told now: {exc}"
    if saved is None:
        return f"run {run} was stopped before it began; nothing of it is left"
    return (
        f"run {run} was stopped; its checkpoint of round {saved.round} of {plan.total_rounds} is in "
        f"{conf.checkpoint_dir}: setup(conf, resume=True) goes on from there"
    )
