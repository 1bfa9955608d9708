"""Parameter averaging: the next model is the mean of what the workers of a round made of the present one.

Synchronous: the result does not depend on which worker did what. Source: Su and Chen 2015 (arXiv 1507.01239); DL4J's
``ParameterAveragingTrainingMaster``.
"""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass
from typing import ClassVar

from dl4jlegacy.errors import ConfError
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.scaleout.state.aggregate import GroupAggregator, ParameterAveragingAggregator
from dl4jlegacy.scaleout.strategies.strategy import WholeRounds

__all__ = ["IterativeReduceWorkRouter"]

MOST_DEPTH = 32
"""A tree of this depth has two branches at each node, however many slots there are."""


@dataclass(frozen=True, kw_only=True)
class IterativeReduceWorkRouter(WholeRounds):
    """Synchronous: all slots of a round are folded together, round by round, in slot order.

    Legacy: ``IterativeReduceWorkRouter``, the default; ``VoidConfiguration.numberOfShards`` and
    ``ParameterAveragingTrainingMaster.aggregationDepth``, whose default was 2.

    Attributes:
        weighted_average: whether the mean is weighted by examples; that of the original was not.
        parameter_servers: into how many slices models and updates are cut, each of which a worker folds; 0: the master
            folds them. The bits are the same for any number.
        aggregation_depth: in how many steps at most a round's updates are folded. 1: all at once. With more, workers
            fold the means of groups, several at the same time, and these means in turn; each depth rounds otherwise.
    """

    name: ClassVar[str] = "iterative-reduce"
    binds_model: ClassVar[bool] = True
    shares: ClassVar[str] = "params"
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
        """Into how many slices models and updates are cut; 0: the master folds whole rounds."""
        return self.parameter_servers or (1 if self.aggregation_depth > 1 else 0)

    def aggregator(self, kernels: Kernels, pool: Executor | None = None) -> GroupAggregator:
        """See ``Strategy``."""
        weighted = self.weighted_average or self.aggregation_depth > 1  # groups count for what is in them
        return ParameterAveragingAggregator(kernels, weighted=weighted, pool=pool)

    def weight(self, examples: int) -> int:
        """Return what an update of so many examples counts for."""
        return examples if self.weighted_average else 1
