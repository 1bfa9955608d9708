"""EASGD: each slot trains its own replica, and an elastic force ties the replicas to a common centre.

Source: Zhang, Choromanska and LeCun 2015 (arXiv 1412.6651), the synchronous form and the asynchronous one. With an
updater that has a momentum (``Nesterovs``) it is EAMSGD.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from dl4jlegacy.errors import ConfError, WireError
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.scaleout.state.aggregate import PARAMS, STATE, Aggregation, Fold, UpdateSum
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.state.store import Buffer
from dl4jlegacy.scaleout.strategies.chains import SlotWorkRouter
from dl4jlegacy.scaleout.strategies.strategy import SlotMemory

__all__ = ["DIFFERENCE", "ElasticAveragingWorkRouter"]

DIFFERENCE = "difference"
"""The array of an update: the step by which the replica of a slot and the centre approach each other."""


@dataclass(frozen=True, kw_only=True)
class ElasticAveragingWorkRouter(SlotWorkRouter):
    """Elastic averaging: the model is a centre ``c``, and each slot trains on with a replica ``x`` of its own.

    After a job, ``d = beta / jobs_per_round * (x - c)``. The replica becomes ``x - d``, and the centre ``c`` plus the
    sum of the differences ``d`` of all slots, which is ``(1 - beta) c + beta mean(x)``. Replica and updater state
    belong to the slot. At the start of a phase every replica equals the centre and has a new updater state.

    If asynchronous, ``c`` in ``d`` is the centre that the job started from, and each ``d`` is added when it arrives,
    at any staleness: the centre gains what the replica loses.

    Attributes:
        beta: fraction of the way from the centre to the mean of the replicas that the centre moves in a round, or in as
            many jobs; more than 0, at most 1.
        jobs_per_round: of the run.
        asynchronous, bound: see ``SlotWorkRouter``.
    """

    name: ClassVar[str] = "easgd"
    beta: float = 0.9
    jobs_per_round: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.beta <= 1:
            raise ConfError(f"beta is {self.beta}; it must be more than 0 and at most 1")

    @cached_property
    def memory(self) -> SlotMemory:
        """See ``WorkRouter``."""
        return _Replicas(self.beta / self.jobs_per_round)

    def fold(self, kernels: Kernels, pool: Executor | None = None) -> Fold:
        """See ``WorkRouter``."""
        return _Centre(kernels)


class _Replicas(SlotMemory):
    """A slot remembers its replica and its updater state."""

    def __init__(self, alpha: float) -> None:
        self._alpha = alpha

    def replica(self, model: Result, state: Result | None) -> Result:
        """See ``SlotMemory``."""
        return super().replica(model, None) if state is None else state

    def settle(self, model: Result, state: Result | None, result: Result, kernels: Kernels) -> tuple[Result, Result]:
        """See ``SlotMemory``."""
        trained = result.arrays[PARAMS]
        difference = (trained - model.arrays[PARAMS]) * trained.dtype.type(self._alpha)
        after = Result({}, {PARAMS: trained - difference, STATE: result.arrays[STATE]})
        return Result(result.values, {DIFFERENCE: difference}), after


class _Centre(Fold):
    """Adds the differences to the centre."""

    is_elementwise = True

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def check(self, update: Buffer, model: Buffer) -> None:
        """See ``Fold``."""
        wanted, arrays = Result.decode(model).arrays[PARAMS], Result.decode(update).arrays
        found = arrays.get(DIFFERENCE)
        if found is None or found.shape != wanted.shape or found.dtype != wanted.dtype:
            what = {name: f"{array.dtype} {list(array.shape)}" for name, array in arrays.items()}
            raise WireError(f"it has {what}; it must have a {DIFFERENCE} of {wanted.dtype} {list(wanted.shape)}")

    def begin(self, model: Buffer, *, version: int, examples: Sequence[int], in_place: bool = False) -> Aggregation:
        """See ``Fold``."""
        return UpdateSum(
            model, lambda params, update: self._kernels.axpy(params, update.arrays[DIFFERENCE], 1.0), in_place=in_place
        )
