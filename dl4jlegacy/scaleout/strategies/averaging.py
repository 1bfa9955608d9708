"""Parameter averaging: the next model is the mean of the models that the jobs of a round trained.

Synchronous: the result does not depend on which worker did which job.

Source: Su and Chen 2015 (arXiv 1507.01239); DL4J's ``ParameterAveragingTrainingMaster``.
"""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass
from typing import ClassVar

from dl4jlegacy.errors import ConfError
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.scaleout.state.aggregate import Fold, ParameterAveragingAggregator
from dl4jlegacy.scaleout.strategies.strategy import WorkRouter

__all__ = ["IterativeReduceWorkRouter"]

MOST_DEPTH = 32
"""At this depth each node of the tree has two branches, for any number of slots."""


@dataclass(frozen=True, kw_only=True)
class IterativeReduceWorkRouter(WorkRouter):
    """Synchronous: all slots of a round are folded together, round by round, in slot order.

    Legacy: ``IterativeReduceWorkRouter``, the default; ``VoidConfiguration.numberOfShards`` and
    ``ParameterAveragingTrainingMaster.aggregationDepth``, whose default was 2.

    Attributes:
        weighted_average: whether the mean is weighted by examples; that of the original was not.
        parameter_servers: number of slices of the model that workers fold, each slice by one worker; 0: the master
            folds the whole. Any number gives the same bits.
        aggregation_depth: steps in which the updates of a round are folded, at most. 1: all at once. With more steps,
            workers fold groups of updates at the same time, and then the means of these groups. Each depth rounds
            differently.
    """

    name: ClassVar[str] = "iterative-reduce"
    weighted_average: bool = True
    parameter_servers: int = 0
    aggregation_depth: int = 1

    def __post_init__(self) -> None:
        if self.parameter_servers < 0:
            raise ConfError(f"parameter_servers is {self.parameter_servers}; it must not be negative")
        if not 1 <= self.aggregation_depth <= MOST_DEPTH:
            raise ConfError(f"aggregation_depth is {self.aggregation_depth}; it must be from 1 to {MOST_DEPTH}")

    @property
    def slices(self) -> int:
        """Number of slices that workers fold; 0: the master folds the whole model."""
        return self.parameter_servers or (1 if self.aggregation_depth > 1 else 0)

    @property
    def is_weighted(self) -> bool:
        """Whether the mean is weighted; with groups always, since a group counts by its size."""
        return self.weighted_average or self.aggregation_depth > 1

    def fold(self, kernels: Kernels, pool: Executor | None = None) -> Fold:
        """See ``WorkRouter``."""
        return ParameterAveragingAggregator(kernels, weighted=self.is_weighted, pool=pool)

    def weight(self, examples: int) -> int:
        """Return the weight of an update of so many examples."""
        return examples if self.weighted_average else 1
