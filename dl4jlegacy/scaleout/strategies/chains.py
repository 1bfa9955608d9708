"""Chains: the jobs of one slot, one after the other, each of which goes on with what the last one has left.

Strategies whose slots remember something are synchronous, and fold whole rounds; or asynchronous, and then nobody waits
for a round. In both a slot's next job opens when its last one is folded in the head, so it starts from a model that has
its slot's own last update, and from the state that belongs to it.

Source: Ho et al. 2013 for the bound of the asynchronous ones.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dl4jlegacy.errors import ConfError
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.state.records import Head
from dl4jlegacy.scaleout.strategies.strategy import all_once_done, check_bound, done_in_front, open_chains, open_round

__all__ = ["SlotWorkRouter"]

_BOUND = 1


@dataclass(frozen=True, kw_only=True)
class SlotWorkRouter:
    """Which slots are open, and when they are folded, where slots remember something.

    Attributes:
        asynchronous: whether each update is folded when it arrives, onto whatever version there is then; else all slots
            of a round are folded together, in slot order.
        bound: only where that is so: how many rounds a slot may be ahead of the first that is not complete; 0 or more.
            None: 1. Between start and fold of a job there are at most ``(jobs_per_round - 1) * (2 * bound + 1)`` other
            ones.
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
        """Return all slots of the head's round, or the first job of each slot that is not too far ahead."""
        if not self.asynchronous:
            return open_round(plan, head)
        return open_chains(plan, head, _BOUND if self.bound is None else self.bound)

    def send_work(self, opened: Sequence[int], done: Collection[int]) -> list[int]:
        """Return all open slots once all of them are done, or whichever are."""
        return [number for number in opened if number in done] if self.asynchronous else all_once_done(opened, done)

    def fold_ahead(self, opened: Sequence[int], done: Collection[int]) -> list[int]:
        """Return the slots before the first one that is not done; none where done ones are folded at once anyway."""
        return [] if self.asynchronous else done_in_front(opened, done)
