"""Checks that the results of a user's own performer depend only on the job and the model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from dl4jlegacy.errors import ContractError
from dl4jlegacy.kernels import load
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.plan import SlotPlan
from dl4jlegacy.scaleout.state.job import CollectionJobIterator, Job, JobIterator, Result
from dl4jlegacy.scaleout.workers.perform import CheckedPerformer
from dl4jlegacy.scaleout.workers.plugins import PerformerFactory

__all__ = ["check_performer"]

_MOST_JOBS = 8
_OTHERS = itertools.count(1)
"""Numbers that overwrite the arrays of a model after ``update``, since they may not be used any more."""


def check_performer(
    make: PerformerFactory, jobs: JobIterator | Sequence[Any], model: Result, *, conf: Conf | None = None
) -> None:
    """Check that performers follow ``WorkerPerformer``: a job's result is the same on every performer, in any order.

    Args:
        make: makes a performer from a Conf and kernels, as for ``register_performer``.
        jobs: some work as a list of JSON values, or the jobs of a run, of which the first eight are done.
        model: the model that the jobs start from.
        conf: of the run; None: ``Conf()``.

    Raises:
        ContractError: a result depends on earlier jobs of the performer, or on the model's arrays after ``update``;
            names class and method. JobError, NotFiniteError: a result is invalid, as in a run.
    """
    conf = conf or Conf()
    iterator: JobIterator = CollectionJobIterator(jobs) if isinstance(jobs, Sequence) else jobs
    plan = iterator.plan
    slots = [plan.slot(*plan.at(number)) for number in range(min(_MOST_JOBS, plan.total_slots))]
    made = [make(conf, load("numpy")) for _ in range(2)]
    name = type(made[0]).__name__
    if made[0] is made[1]:
        raise ContractError(f"{name}: the same performer is made twice; every worker needs one of its own")
    first, second = (CheckedPerformer(each) for each in made)
    once = [_done(first, iterator, slot, model) for slot in slots]
    for what, performer, order in (
        ("a performer that has done others", first, list(reversed(range(len(slots))))),
        ("another performer", second, list(range(len(slots)))),
    ):
        for index in order:
            if _done(performer, iterator, slots[index], model) != once[index]:
                place = f"round {slots[index].round}, slot {slots[index].slot}"
                raise ContractError(
                    f"{name}.perform: {what} returns something else for {place}, of the same model; does it remember "
                    "something, or keep arrays of the model that update() did not copy?"
                )
    _done(first, iterator, slots[0], model, is_wanted=False)


def _done(
    performer: CheckedPerformer, jobs: JobIterator, slot: SlotPlan, model: Result, *, is_wanted: bool = True
) -> bytes | None:
    """Return the frame of a job's result; the model's arrays are overwritten after they were loaded."""
    given = Result(model.values, {name: np.array(array) for name, array in model.arrays.items()})
    for array in given.arrays.values():
        array.flags.writeable = False
    performer.update(given)
    for array in given.arrays.values():
        array.flags.writeable = True
        array[...] = next(_OTHERS)
    job = Job(slot, jobs.plan.work_of(slot.round), jobs.work(slot), "checked", is_wanted=lambda: is_wanted)
    result = performer.perform(job)
    _ = performer.progress  # a number
    return None if result is None else bytes(result.encode())
