"""Whether the jobs of one's own are the same for whoever asks, in any order and on whichever thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dl4jlegacy.errors import ContractError, counted
from dl4jlegacy.scaleout.own_jobs import OwnJobs, checked_jobs

__all__ = ["check_jobs"]

_MOST_JOBS = 64
_SECONDS = 600.0
"""So long may jobs take that are asked for on another thread."""


def check_jobs(jobs: Any) -> None:
    """Check that jobs keep to ``JobIterator``: each is the same whenever it is asked for, and can travel.

    Args:
        jobs: an object with a ``plan`` and a method ``work(slot)``; of its jobs 64 are asked for, at most.

    Raises:
        ConfError: it is no ``JobIterator``, or its plan contradicts itself. ContractError: its work is none that a job
            can carry, or other work when it is asked for again; names class and method.
    """
    checked = checked_jobs(jobs)
    if not isinstance(checked, OwnJobs):  # this package's own
        checked = OwnJobs(checked)
    plan = checked.plan
    slots = [plan.slot(*plan.at(n)) for n in range(0, plan.total_slots, -(-plan.total_slots // _MOST_JOBS))]
    for slot in slots:
        checked.frame(slot)
    name = type(jobs).__name__
    pool = ThreadPoolExecutor(1, thread_name_prefix="dl4j-check-jobs")
    asked = pool.submit(lambda: [checked.frame(slot) for slot in reversed(slots)])
    try:
        asked.result(_SECONDS)
    except TimeoutError as exc:
        raise ContractError(
            f"{name}.work has not returned {counted(len(slots), 'job')} on another thread within {_SECONDS:g} s"
        ) from exc
    finally:
        pool.shutdown(wait=asked.done())
