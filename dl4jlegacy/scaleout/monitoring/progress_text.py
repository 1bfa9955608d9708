"""Sentences about the progress of a run and its checkpoints, for messages about a run that hangs or was stopped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dl4jlegacy.errors import Dl4jError, counted
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.persistence.run_folder import RunFolder
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.state.records import Head
from dl4jlegacy.scaleout.state.store import Buffer
from dl4jlegacy.scaleout.tracker import StateTracker

__all__ = ["save_known", "what_is_kept", "where_it_is"]

_SHOWN = 8
"""Maximum number of workers, and of failures, named in a message."""


def where_it_is(tracker: StateTracker, plan: Plan) -> str:
    """Return the progress of a run, the states of its workers, and the last failures, as text."""
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
    """Return where an interrupted run is stored after its shutdown, and how to continue it, as text."""
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


def save_known(
    known: tuple[Head, Buffer] | None,
    best: Callable[[Head], Any],
    folder: RunFolder,
    plan: Plan,
    check_leads: Callable[[], None],
) -> str:
    """Save the newest version that a master knows of a run whose tracker is lost; return the result as text.

    Args:
        known: the newest version; None: there is none.
        best: returns the best model that belongs to a head.
        folder, plan: of the run.
        check_leads: raises ``Dl4jError`` if another process leads the run by now.
    """
    if known is None:
        return "It had not begun"
    where = f"It was in round {known[0].round} of {plan.total_rounds}"
    if not folder.keeps:
        return f"{where}, and has no folder for checkpoints"
    try:
        if not folder.has(known[0].version):
            if known[0].snapshot is not None:
                return f"{where}; the states of its slots were in the tracker, so only an older checkpoint can be used"
            check_leads()
            folder.save(*known, best(known[0]))
    except Dl4jError as exc:
        return f"{where}. No checkpoint of that was saved: {exc}"
    return f"{where}, and a checkpoint of that is in {folder.place}"
