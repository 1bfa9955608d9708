"""Chains: the jobs of one slot, each of which starts from the state that the job before it left.

Strategies whose slots have a state fold whole rounds; or they are asynchronous, and no worker waits for a round. In
both cases the next job of a slot opens when its last one is folded. So it starts from a model with the last update of
its slot, and from the state that belongs to that update.

Source: Ho et al. 2013 for the bound of the asynchronous ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from dl4jlegacy.errors import ConfError
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.state.records import Head
from dl4jlegacy.scaleout.strategies.strategy import WorkRouter, check_bound, open_chains

__all__ = ["SlotWorkRouter"]

_BOUND = 1


@dataclass(frozen=True, kw_only=True)
class SlotWorkRouter(WorkRouter):
    """Base class of strategies whose slots have a state, synchronous or not.

    Attributes:
        asynchronous: whether each update is folded when it arrives, into the newest version; else all slots of a round
            are folded together, in slot order.
        bound: only if asynchronous: rounds that a slot may be ahead of the first round that is not complete; 0 or more.
            None: 1. Between start and fold of a job at most ``(jobs_per_round - 1) * (2 * bound + 1)`` others are
            folded.
    """

    asynchronous: bool = False
    bound: int | None = None

    def __post_init__(self) -> None:
        if self.bound is None:
            return
        if not self.asynchronous:
            raise ConfError(f"bound is {self.bound}, and asynchronous is false: rounds have none; leave it out")
        check_bound(self.bound)

    @property
    def binds_model(self) -> bool:
        """See ``WorkRouter``."""
        return not self.asynchronous

    def open_slots(self, plan: Plan, head: Head) -> list[int]:
        """Return the slots of the head's round; if asynchronous, the next job of each slot within the bound."""
        if not self.asynchronous:
            return super().open_slots(plan, head)
        return open_chains(plan, head, _BOUND if self.bound is None else self.bound)
