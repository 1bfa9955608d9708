"""Checks before a run begins that the grid has enough memory: a member with too little memory crashes.

A round's updates stay until the next round is folded, and two versions of the model stay beside the one being written.
With M bytes of parameters and updater state and J jobs a round the grid thus holds ``(3 + 2J) M`` bytes at a time. It
holds more if updates arrive faster than they are folded, or if jobs carry their data. A member needs about 16 MiB for
itself beside its share: members of 64 to 160 MiB crashed with less, and did not with more. Updates of ``row-averaging``
contain only the rows that a job touches: for such a run only the models are counted.
"""

from __future__ import annotations

import itertools
import logging
import math

from dl4jlegacy.errors import ConfError, counted
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.strategies import RowAveragingWorkRouter
from dl4jlegacy.scaleout.tracker import Memory, StateTracker
from dl4jlegacy.scaleout.workers.plugins import find_router
from dl4jlegacy.training.run import Run

__all__ = ["check_grid_memory", "needed_nbytes"]

logger = logging.getLogger(__name__)

_OWN_NBYTES = 16 << 20
"""Bytes of a member's heap that the member needs for itself."""
_ENOUGH, _ADVISED = 1.5, 3.0
"""Heap relative to the bytes held: without a warning from the first factor on; the second one is advised."""
_LOOKED_AT = 64
"""Number of rounds at each end of a plan that are searched for the two consecutive rounds with the most jobs."""


def needed_nbytes(model_nbytes: int, plan: Plan, *, keeps_updates: bool = True) -> int:
    """Return the least number of bytes that the grid holds at a time, if updates are as large as the model.

    Args:
        model_nbytes: size of parameters and updater state.
        plan: the run's.
        keeps_updates: whether the jobs' updates are as large as the model; if not, only model versions are counted.
    """
    rounds = plan.total_rounds
    looked_at = [range(min(rounds, _LOOKED_AT)), range(max(0, rounds - _LOOKED_AT), rounds)]
    slots = [[0 if plan.is_validation(each) else plan.slots(each) for each in some] for some in looked_at]
    updates = max(sum(pair) for some in slots for pair in itertools.pairwise([0, *some]))
    return model_nbytes * (min(rounds, 2) + 1 + (updates if keeps_updates else 0))


def check_grid_memory(run: Run, tracker: StateTracker, *, takes_over: bool) -> None:
    """Refuse a new run whose grid is too small for it; warn if the grid may be too small.

    A grid that does not report its memory is assumed to have enough. A run that is taken over is never refused: it has
    come this far with that memory.

    Raises:
        ConfError: a new run needs more memory than the grid has.
    """
    memory = tracker.memory() if run.model_nbytes else None
    if memory is None:
        return
    router = find_router(run.conf)
    is_sure = router.memory is None  # the memory of slots is saved only now and then
    has_rows = isinstance(router, RowAveragingWorkRouter)
    needed = needed_nbytes(run.model_nbytes, run.plan, keeps_updates=not has_rows)
    least = needed if is_sure else needed_nbytes(run.model_nbytes, run.plan, keeps_updates=False)
    if memory.nbytes >= _ENOUGH * needed * memory.copies:
        return
    if memory.nbytes - memory.members * _OWN_NBYTES < least * memory.copies and not takes_over:
        raise ConfError(_said(run, memory, needed, "is too small, and would end for want of memory"))
    logger.warning("%s", _said(run, memory, needed, "may be too small, and would end for want of memory then"))


def _said(run: Run, memory: Memory, needed: int, how: str) -> str:
    jobs, members = counted(run.conf.jobs_per_round, "job"), counted(memory.members, "member")
    twice = "; everything is kept twice" if memory.copies > 1 else ""
    heap = math.ceil(_ADVISED * needed * memory.copies / memory.members / 2**20)
    return (
        f"run {run.conf.run}: the grid {how}: the model takes {_mib(run.model_nbytes)} with its updater state, "
        f"and with {jobs} a round the grid holds some {_mib(needed)} at a time; its {members} "
        f"{'has' if memory.members == 1 else 'have'} {_mib(memory.nbytes)} of heap{twice}. Start the servers with "
        f"--heap {heap}m (dl4j services down, dl4j services up --heap {heap}m; with Docker Compose DL4J_HEAP={heap}m), "
        "or take fewer --jobs-per-round or a smaller model"
    )


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:,.1f} MiB"
