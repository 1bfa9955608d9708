"""Asynchronous strategies: an update is folded when it arrives, or together with a few others; no worker waits.

Every batch still counts exactly once; the order varies, and with it the result. The *staleness* of an update is the
number of versions between the one it started from and the one it is folded into.

Source: Zhang, Gupta, Lian and Liu 2015 (arXiv 1511.05950); Ho et al. 2013 for bounded staleness.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import ClassVar

from dl4jlegacy.errors import ConfError, nearest
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.state.aggregate import RATES, DeltaAggregator, Fold
from dl4jlegacy.scaleout.state.records import Head
from dl4jlegacy.scaleout.strategies.strategy import WorkRouter, check_bound, open_chains, open_in_phase

__all__ = ["BoundedStalenessWorkRouter", "HogWildWorkRouter", "SoftSyncWorkRouter"]


@dataclass(frozen=True, kw_only=True)
class _Asynchronous(WorkRouter):
    """Base class of the asynchronous strategies.

    Attributes:
        rate: factor of an update: ``"staleness"``, 1 / its staleness; ``"constant"``, 1.
    """

    binds_model: ClassVar[bool] = False
    update_kind: ClassVar[str] = "delta"
    rate: str = "staleness"

    def __post_init__(self) -> None:
        if self.rate not in RATES:
            raise ConfError(f"rate is {self.rate!r}{nearest(self.rate, list(RATES))}")

    def fold(self, kernels: Kernels, pool: Executor | None = None) -> Fold:
        """See ``WorkRouter``."""
        return DeltaAggregator(kernels, rate=self.rate)


@dataclass(frozen=True, kw_only=True)
class HogWildWorkRouter(_Asynchronous):
    """Each update is folded when it arrives; with a constant rate this is Downpour SGD.

    Legacy: ``HogWildWorkRouter``, which still waited for all jobs to clear.

    Attributes:
        window: number of slots that are open at a time (0: those of two rounds), which bounds the staleness. It ends
            at the end of a phase and before a validation round.
    """

    name: ClassVar[str] = "hogwild"
    window: int = 0

    def open_slots(self, plan: Plan, head: Head) -> list[int]:
        """Return the first slots that are not folded, as many as the window has."""
        return open_in_phase(plan, head, self.window or 2 * plan.jobs_per_round)


@dataclass(frozen=True, kw_only=True)
class SoftSyncWorkRouter(_Asynchronous):
    """n-softsync: the mean of every ``jobs_per_round // n`` updates is folded at once, whichever come first.

    An update's mean staleness is about ``n``. With ``n`` = 1 a round's worth of updates is folded, which need not be of
    one round; with ``n = jobs_per_round`` each update is folded alone.

    Attributes:
        n: 1 to ``jobs_per_round``.
        jobs_per_round: of the run.
    """

    name: ClassVar[str] = "softsync"
    n: int = 1
    jobs_per_round: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.n <= self.jobs_per_round:
            raise ConfError(f"n is {self.n}; it must be from 1 to jobs_per_round, {self.jobs_per_round}")

    def send_work(self, opened: Sequence[int], done: Collection[int]) -> list[int]:
        """Return the first ``jobs_per_round // n`` done slots; [] while fewer are done.

        If fewer slots are open, all of them must be done.
        """
        count = min(self.jobs_per_round // self.n, len(opened))
        ready = [number for number in opened if number in done]
        return ready[:count] if len(ready) >= count else []

    def fold(self, kernels: Kernels, pool: Executor | None = None) -> Fold:
        """See ``WorkRouter``."""
        return DeltaAggregator(kernels, rate=self.rate, together=True)


@dataclass(frozen=True, kw_only=True)
class BoundedStalenessWorkRouter(_Asynchronous):
    """Stale synchronous parallel: each update is folded when it arrives, and no slot runs far ahead of the slowest.

    A slot's clock is its round. Its next job is open when its last one is folded, which the job therefore starts from,
    and when at most ``bound`` rounds are between it and the first round that is not complete. Between start and fold
    of a job there are at most ``(jobs_per_round - 1) * (2 * bound + 1)`` others.

    Attributes:
        bound: in rounds; 0: a round begins when the one before it is complete.
    """

    name: ClassVar[str] = "ssp"
    bound: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bound(self.bound)

    def open_slots(self, plan: Plan, head: Head) -> list[int]:
        """Return the next job of each slot, unless the slot is too far ahead."""
        return open_chains(plan, head, self.bound)
