"""BMUF: parameter averaging with momentum on the averaged steps.

Source: Chen and Huo, ICASSP 2016. With block momentum 0 and block rate 1 it is parameter averaging.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import ConfError
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.scaleout.state.aggregate import PARAMS, Aggregation, Fold, ParameterAveragingAggregator, frame_like
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.state.store import Buffer
from dl4jlegacy.scaleout.strategies.averaging import IterativeReduceWorkRouter

__all__ = ["BLOCK_STEP", "BlockMomentumWorkRouter"]

BLOCK_STEP = "block_step"
"""The array of a model with the last step of the average; it has the shape of the parameters."""


@dataclass(frozen=True, kw_only=True)
class BlockMomentumWorkRouter(IterativeReduceWorkRouter):
    """Blockwise model-update filtering: the steps of the average have a momentum.

    With the mean ``W'`` of the workers' parameters after a round (a *block*) that began with ``W``, the step is
    ``D = block_momentum * D + block_rate * (W' - W)``. The model of the next round is ``W + D``. With ``nesterov`` a
    further ``block_momentum * D`` is added, and subtracted again before the next step and at the end of a phase. The
    step is zero at the start of each phase. It is stored in the model, so a master that takes the run over has it.

    Attributes:
        block_momentum: at least 0 and less than 1; None: ``1 - 1 / jobs_per_round``, with which each update counts in
            the end as in serial training.
        block_rate: more than 0.
        nesterov: whether workers start from the point that the momentum leads to.
        jobs_per_round: of the run.
    """

    name: ClassVar[str] = "bmuf"
    block_momentum: float | None = None
    block_rate: float = 1.0
    nesterov: bool = True
    jobs_per_round: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block_momentum is not None and not 0 <= self.block_momentum < 1:
            raise ConfError(f"block_momentum is {self.block_momentum}; it must be 0 or more and less than 1")
        if not 0 < self.block_rate < float("inf"):
            raise ConfError(f"block_rate is {self.block_rate}; it must be more than 0, and finite")

    @property
    def idle_options(self) -> dict[str, str]:
        """See ``WorkRouter``."""
        return {} if self.momentum else {"nesterov": "the block momentum is 0"}

    @property
    def momentum(self) -> float:
        """The block momentum in use."""
        return 1 - 1 / self.jobs_per_round if self.block_momentum is None else self.block_momentum

    def fold(self, kernels: Kernels, pool: Executor | None = None) -> Fold:
        """See ``WorkRouter``."""
        return _Filter(self, kernels, pool)


class _Filter(ParameterAveragingAggregator):
    """Averages, and adds the momentum to the step."""

    def __init__(self, strategy: BlockMomentumWorkRouter, kernels: Kernels, pool: Executor | None) -> None:
        super().__init__(kernels, weighted=strategy.is_weighted, pool=pool)
        self._strategy, self._sum = strategy, functools.partial(kernels.weighted_sum, pool=pool)

    def begin(self, model: Buffer, *, version: int, examples: Sequence[int], in_place: bool = False) -> Aggregation:
        """See ``Fold``."""
        average = super().begin(model, version=version, examples=examples)
        return _Filtered(average, Result.decode(model).arrays, self._strategy, self._sum)


class _Filtered:
    """The average so far, and the model that the round began with. An ``Aggregation``."""

    def __init__(
        self,
        average: Aggregation,
        before: Mapping[str, Array],
        strategy: BlockMomentumWorkRouter,
        weighted_sum: Callable[..., None],
    ) -> None:
        self._average, self._before, self._strategy, self._sum = average, before, strategy, weighted_sum

    def add(self, updates: Sequence[Buffer]) -> None:
        """See ``Aggregation``."""
        self._average.add(updates)

    def finish(self, *, ends_phase: bool) -> tuple[Buffer, float | None]:
        """See ``Aggregation``."""
        frame, score = self._average.finish(ends_phase=ends_phase)
        mean = Result.decode(frame)
        began, average = self._before[PARAMS], mean.arrays[PARAMS]
        last = self._before.get(BLOCK_STEP)
        if last is None:  # the first version has none
            last = np.zeros_like(began)
        new, arrays = frame_like(mean.values, {**mean.arrays, BLOCK_STEP: last})
        for name in mean.arrays.keys() - {PARAMS, BLOCK_STEP}:
            arrays[name][:] = mean.arrays[name]
        step, momentum, rate = arrays[BLOCK_STEP], self._strategy.momentum, self._strategy.block_rate
        self._sum([last, average, began], [momentum, rate, -rate], step)
        back = momentum if self._strategy.nesterov else 0.0
        ahead = 0.0 if ends_phase else back
        self._sum([began, step, step, last], [1.0, 1.0, ahead, -back], arrays[PARAMS])
        if ends_phase:
            step[:] = 0
        return new, score
