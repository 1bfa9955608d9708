"""Checks that a user's own jobs are the same in any order, and on any thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dl4jlegacy.errors import ContractError, counted
from dl4jlegacy.scaleout.own_jobs import OwnJobs, checked_jobs

__all__ = ["check_jobs"]

_MOST_JOBS = 64
_SECONDS = 600.0
"""Maximum seconds for jobs that are requested on another thread."""


def check_jobs(jobs: Any) -> None:
    """Check that jobs follow ``JobIterator``: each is the same on every request, and can be encoded.

    Args:
        jobs: an object with a ``plan`` and a method ``work(slot)``; at most 64 of its jobs are requested.

    Raises:
        ConfError: it is not a ``JobIterator``, or its plan is inconsistent. ContractError: its work cannot be carried
            by a job, or differs when it is requested again; names class and method.
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
