"""Parameter averaging: the next model is the mean of what the workers of a round made of the present one.

Synchronous: the result does not depend on which worker did what. Source: Su and Chen 2015 (arXiv 1507.01239); DL4J's
``ParameterAveragingTrainingMaster``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import takewhile
from typing import ClassVar

from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.scaleout.aggregate import JobAggregator, ParameterAveragingAggregator
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.records import Head
from dl4jlegacy.scaleout.strategies.strategy import open_round

__all__ = ["IterativeReduceWorkRouter"]


@dataclass(frozen=True, kw_only=True)
class IterativeReduceWorkRouter:
    """Synchronous: all slots of a round are folded together, round by round, in slot order.

    Legacy: ``IterativeReduceWorkRouter``, the default.

    Attributes:
        weighted_average: whether the mean is weighted by examples; that of the original was not.
    """

    name: ClassVar[str] = "iterative-reduce"
    binds_model: ClassVar[bool] = True
    shares: ClassVar[str] = "params"
    weighted_average: bool = True

    def open_slots(self, plan: Plan, head: Head) -> list[int]:
        """Return all slots of the head's round."""
        return open_round(plan, head)

    def send_work(self, opened: Sequence[int], done: Collection[int]) -> list[int]:
        """Return all open slots once all of them are done."""
        return list(opened) if all(number in done for number in opened) else []

    def fold_ahead(self, opened: Sequence[int], done: Collection[int]) -> list[int]:
        """Return the slots before the first one that is not done."""
        return list(takewhile(lambda number: number in done, opened))

    def aggregator(self, kernels: Kernels, pool: Executor | None = None) -> JobAggregator:
        """See ``Strategy``."""
        return ParameterAveragingAggregator(kernels, weighted=self.weighted_average, pool=pool)
