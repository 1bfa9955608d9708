"""EASGD: workers that explore on their own, tied to a common centre by an elastic force.

Source: Zhang, Choromanska and LeCun 2015 (arXiv 1412.6651), the synchronous form and the asynchronous one. With an
updater that has a momentum (``Nesterovs``) it is EAMSGD.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import ClassVar

from dl4jlegacy.errors import ConfError, WireError
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.scaleout.state.aggregate import PARAMS, STATE, Aggregation, JobAggregator, UpdateSum
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.state.store import Buffer
from dl4jlegacy.scaleout.strategies.chains import SlotWorkRouter
from dl4jlegacy.scaleout.updater_beginning import new_state

__all__ = ["DIFFERENCE", "ElasticAveragingWorkRouter"]

DIFFERENCE = "difference"
"""The array of an update: by what a slot's replica and the centre approach each other."""


@dataclass(frozen=True, kw_only=True)
class ElasticAveragingWorkRouter(SlotWorkRouter):
    """Elastic averaging: the model is a centre ``c``, and each slot trains on with a replica ``x`` of its own.

    After a job, ``d = beta / jobs_per_round * (x - c)``; the replica becomes ``x - d``, and the centre ``c`` plus the
    sum of the differences ``d`` of all slots, which is ``(1 - beta) c + beta mean(x)``. Replica and updater state
    belong to the slot. At the beginning of a phase every replica is the centre, and its updater state a new one.

    Asynchronous, ``c`` in ``d`` is the centre that the job started with, and each ``d`` is added when it arrives,
    whole: what the centre gains is what the replica gives, however stale it is.

    Attributes:
        beta: how far the centre goes towards the mean of the replicas in a round, or in as many jobs; more than 0, at
            most 1.
        jobs_per_round: of the run.
        asynchronous, bound: see ``SlotWorkRouter``.
    """

    name: ClassVar[str] = "easgd"
    shares: ClassVar[str] = "params"
    state_every: ClassVar[int] = 1
    is_logged: ClassVar[bool] = False
    beta: float = 0.9
    jobs_per_round: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.beta <= 1:
            raise ConfError(f"beta is {self.beta}; it must be more than 0 and at most 1")

    def replica(self, model: Result, state: Result | None) -> Result:
        """See ``SlotStrategy``."""
        if state is not None:
            return state
        return Result(model.values, {PARAMS: model.arrays[PARAMS], STATE: new_state(model.values, model.arrays[STATE])})

    def settle(self, model: Result, state: Result | None, result: Result, kernels: Kernels) -> tuple[Result, Result]:
        """See ``SlotStrategy``."""
        trained = result.arrays[PARAMS]
        alpha = trained.dtype.type(self.beta / self.jobs_per_round)
        difference = (trained - model.arrays[PARAMS]) * alpha
        after = Result({}, {PARAMS: trained - difference, STATE: result.arrays[STATE]})
        return Result(result.values, {DIFFERENCE: difference}), after

    def check(self, update: Buffer, model: Buffer) -> None:
        """See ``SlotStrategy``."""
        wanted, arrays = Result.decode(model).arrays[PARAMS], Result.decode(update).arrays
        found = arrays.get(DIFFERENCE)
        if found is None or found.shape != wanted.shape or found.dtype != wanted.dtype:
            what = {name: f"{array.dtype} {list(array.shape)}" for name, array in arrays.items()}
            raise WireError(f"it has {what}; a difference of {wanted.dtype} {list(wanted.shape)} belongs there")

    def aggregator(self, kernels: Kernels, pool: Executor | None = None) -> JobAggregator:
        """See ``Strategy``."""
        return _Aggregator(kernels)


class _Aggregator:
    """Adds the differences to the centre. A ``JobAggregator``."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def begin(self, model: Buffer, *, version: int, examples: Sequence[int]) -> Aggregation:
        """See ``JobAggregator``."""
        return UpdateSum(model, lambda params, update: self._kernels.axpy(params, update.arrays[DIFFERENCE], 1.0))
