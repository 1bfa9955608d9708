"""How far a run is, in words, for the message of a run that does not get on."""

from __future__ import annotations

from dl4jlegacy.errors import Dl4jError
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.tracker import StateTracker

__all__ = ["where_it_is"]

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
    where = f"it is in round {0 if head is None else head.round} of {plan.total_rounds}"
    said = [where, *(states or ["it has no worker"])]
    said += [f"worker {failure.worker} has failed: {failure.message}" for failure in failures[:_SHOWN]]
    return "; ".join(said)
