"""Work routers: which slots are open, and which finished slots are folded when. Pure logic, used by all roles.

``IterativeReduceWorkRouter`` (default) is synchronous: a round is folded in slot order when all its slots are done, so
the result does not depend on which worker did what. ``HogWildWorkRouter`` is asynchronous: a bounded window of slots is
open, and each update is folded when it arrives. Every batch is still counted exactly once; only the order varies.
A validation round is synchronous with every router: it evaluates one version of the model.

Legacy: ``IterativeReduceWorkRouter`` and ``HogWildWorkRouter``. The original's ``sendWork`` swallowed every error, and
its HogWild still waited for all jobs to clear.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile
from typing import Protocol

from dl4jlegacy.errors import ConfError, nearest
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.records import Head, covered

__all__ = ["ROUTERS", "HogWildWorkRouter", "IterativeReduceWorkRouter", "WorkRouter", "create_router", "router_of"]


class WorkRouter(Protocol):
    """A strategy for combining updates. Its methods are pure functions, called by masters and workers."""

    name: str
    binds_model: bool
    """Whether a job must start from exactly the head's model version."""
    shares: str
    """What an update contains: the worker's ``"params"``, or the ``"delta"`` from the version it started with."""

    def open_slots(self, plan: Plan, head: Head) -> list[int]:
        """Return the numbers of the slots that may be worked on, in order.

        At least the first that is not folded, of one phase only, and of a validation round all or none
        (``plan.phase_of``, ``plan.is_validation``).
        """
        ...

    def send_work(self, opened: Sequence[int], done: Collection[int]) -> list[int]:
        """Return the done slots to fold now, in slot order; empty if none can be folded yet."""
        ...

    def fold_ahead(self, opened: Sequence[int], done: Collection[int]) -> list[int]:
        """Return the done slots that may be folded while others are not done yet, in slot order.

        Requires that ``send_work`` will finally return all of ``opened``, beginning with these.
        """
        ...


class IterativeReduceWorkRouter:
    """Synchronous: all slots of a round are folded together, round by round."""

    name = "iterative-reduce"
    binds_model = True
    shares = "params"

    def open_slots(self, plan: Plan, head: Head) -> list[int]:
        """Return all slots of the head's round."""
        if head.round >= plan.total_rounds:
            return []
        first = plan.number(head.round, 0)
        return list(range(first, first + plan.slots(head.round)))

    def send_work(self, opened: Sequence[int], done: Collection[int]) -> list[int]:
        """Return all open slots once all of them are done."""
        return list(opened) if all(number in done for number in opened) else []

    def fold_ahead(self, opened: Sequence[int], done: Collection[int]) -> list[int]:
        """Return the slots before the first one that is not done."""
        return list(takewhile(lambda number: number in done, opened))


_SYNCHRONOUS = IterativeReduceWorkRouter()


class HogWildWorkRouter:
    """Asynchronous, with bounded staleness: at most ``window`` slots (default: two rounds' worth) are open at a time.

    The window never extends beyond a phase or over a validation round, so that they do not overlap.
    """

    name = "hogwild"
    binds_model = False
    shares = "delta"

    def __init__(self, window: int = 0) -> None:
        self._window = window

    def open_slots(self, plan: Plan, head: Head) -> list[int]:
        """Return the first slots that are not folded, at most ``window`` of them, up to the end of the phase or the
        next validation; in a validation round all of it.
        """
        if head.round >= plan.total_rounds:
            return []
        if plan.is_validation(head.round):
            return _SYNCHRONOUS.open_slots(plan, head)
        window = self._window or 2 * plan.jobs_per_round
        first = head.folded[0][1] if covered(head.folded, 0) else 0  # its round may have more slots than the window
        candidates = range(first, min(plan.total_slots, first + 2 * window))
        phase = plan.phase_of(head.round)
        before = takewhile(lambda n: not plan.is_validation(plan.at(n)[0]), candidates)
        inside = (n for n in before if plan.phase_of(plan.at(n)[0]) == phase)
        return [n for n in inside if not covered(head.folded, n)][:window]

    def send_work(self, opened: Sequence[int], done: Collection[int]) -> list[int]:
        """Return all done slots."""
        return [number for number in opened if number in done]

    def fold_ahead(self, opened: Sequence[int], done: Collection[int]) -> list[int]:
        """Return nothing: done slots make a new model version immediately."""
        return []


ROUTERS: Mapping[str, type[IterativeReduceWorkRouter] | type[HogWildWorkRouter]] = {
    router.name: router for router in (IterativeReduceWorkRouter, HogWildWorkRouter)
}


def create_router(name: str, window: int = 0) -> WorkRouter:
    """Return the router called ``name``; raises ``ConfError``, with the nearest known name, if there is none."""
    if name not in ROUTERS:
        raise ConfError(f"unknown router {name!r}{nearest(name, list(ROUTERS))}")
    return HogWildWorkRouter(window) if name == HogWildWorkRouter.name else ROUTERS[name]()


def router_of(router: WorkRouter, plan: Plan, head: Head) -> WorkRouter:
    """Return the router of the round that the head is in: every run validates synchronously."""
    return _SYNCHRONOUS if plan.is_validation(head.round) else router
