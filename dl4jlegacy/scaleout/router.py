"""Work routers: which slots are open and which of the finished ones are folded when. Pure logic, shared by all roles.

``IterativeReduceWorkRouter`` (default) is synchronous: a round is folded when all its slots are done, in slot order,
so the answer does not depend on who did what. ``HogWildWorkRouter`` is asynchronous: a bounded window of slots is
open and each update is folded as soon as it is there; what is folded is accounted for exactly, the order is that of
arrival.

Legacy: ``IterativeReduceWorkRouter`` and ``HogWildWorkRouter``; the original's ``sendWork`` swallowed every error and
its HogWild still waited for all jobs to clear.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile
from typing import Protocol

from dl4jlegacy.errors import ConfError, nearest
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.records import Head, covered

__all__ = ["ROUTERS", "HogWildWorkRouter", "IterativeReduceWorkRouter", "WorkRouter", "create_router"]


class WorkRouter(Protocol):
    """A strategy; its methods are pure, and masters and workers call them alike."""

    name: str
    binds_model: bool
    """Whether a job must start from the head's very model version."""
    shares: str
    """What a worker's update holds: its ``"params"``, or the ``"delta"`` to the version it started from."""

    def open_slots(self, plan: Plan, head: Head) -> list[int]:
        """Return the numbers of the slots that may be worked on, in order."""
        ...

    def send_work(self, opened: Sequence[int], done: Collection[int]) -> list[int]:
        """Return which of the done slots to fold now, in slot order; empty: not yet."""
        ...

    def fold_ahead(self, opened: Sequence[int], done: Collection[int]) -> list[int]:
        """Return the done slots that may be folded before the others are done, in slot order.

        Only if ``send_work`` will name all of ``opened`` in the end, and begin with these.
        """
        ...


class IterativeReduceWorkRouter:
    """Synchronous: round by round, all slots of a round together."""

    name = "iterative-reduce"
    binds_model = True
    shares = "params"

    def open_slots(self, plan: Plan, head: Head) -> list[int]:
        """All slots of the head's round."""
        if head.round >= plan.total_rounds:
            return []
        first = plan.number(head.round, 0)
        return list(range(first, first + plan.slots(head.round)))

    def send_work(self, opened: Sequence[int], done: Collection[int]) -> list[int]:
        """All of them, once all are done."""
        return list(opened) if all(number in done for number in opened) else []

    def fold_ahead(self, opened: Sequence[int], done: Collection[int]) -> list[int]:
        """Those before the first that is not done."""
        return list(takewhile(lambda number: number in done, opened))


class HogWildWorkRouter:
    """Asynchronous, with bounded staleness: at most ``window`` slots (default: two rounds' worth) are open at a time.

    The window never reaches beyond a phase, so that phases follow each other cleanly.
    """

    name = "hogwild"
    binds_model = False
    shares = "delta"

    def __init__(self, window: int = 0) -> None:
        self._window = window

    def open_slots(self, plan: Plan, head: Head) -> list[int]:
        """The first slots that are not folded yet, up to the window, within the head's phase."""
        if head.round >= plan.total_rounds:
            return []
        window = self._window or 2 * plan.jobs_per_round
        first = plan.number(head.round, 0)
        candidates = range(first, min(plan.total_slots, first + 2 * window))
        phase = plan.phase_of(head.round)
        inside = (n for n in candidates if plan.phase_of(plan.at(n)[0]) == phase)
        return [n for n in inside if not covered(head.folded, n)][:window]

    def send_work(self, opened: Sequence[int], done: Collection[int]) -> list[int]:
        """Whatever is done."""
        return [number for number in opened if number in done]

    def fold_ahead(self, opened: Sequence[int], done: Collection[int]) -> list[int]:
        """None: what is done makes a new model version at once."""
        return []


ROUTERS: Mapping[str, type[IterativeReduceWorkRouter] | type[HogWildWorkRouter]] = {
    router.name: router for router in (IterativeReduceWorkRouter, HogWildWorkRouter)
}


def create_router(name: str, window: int = 0) -> WorkRouter:
    """Return the router of that name; raises ``ConfError`` naming the nearest known one."""
    if name not in ROUTERS:
        raise ConfError(f"unknown router {name!r}{nearest(name, list(ROUTERS))}")
    return HogWildWorkRouter(window) if name == HogWildWorkRouter.name else ROUTERS[name]()
