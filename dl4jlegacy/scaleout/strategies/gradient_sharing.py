"""Gradient sharing: workers send only the large elements of their updates, each as one quantum, and keep the rest.

What is not sent waits in the slot's residual until it has grown. Source: Strom 2015, "Scalable distributed DNN training
using commodity GPU cloud computing"; DL4J's ``SharedTrainingMaster`` and ``EncodingHandler``. There the residual
belonged to a worker and was lost with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import ConfError, WireError, nearest
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.scaleout.state.aggregate import PARAMS, STATE, Aggregation, JobAggregator, UpdateSum
from dl4jlegacy.scaleout.state.codec import pack, unpack
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.state.store import Buffer
from dl4jlegacy.scaleout.strategies.chains import SlotWorkRouter
from dl4jlegacy.scaleout.strategies.thresholds import (
    DENSE,
    HALF_IN_20,
    AdaptiveThreshold,
    FixedThreshold,
    TargetSparsityThreshold,
    quantum,
)
from dl4jlegacy.scaleout.updater_beginning import new_state

__all__ = ["CODES", "RESIDUAL", "THRESHOLDS", "GradientSharingWorkRouter"]

CODES, RESIDUAL = "codes", "residual"
"""The array of a message, and that of a slot's state that has what was not sent yet."""
THRESHOLDS = ("adaptive", "fixed", "target-sparsity")
"""How the threshold goes on from message to message."""
STATE_EVERY = 256
"""After how many rounds at most model and states are saved, unless somebody says otherwise."""


@dataclass(frozen=True, kw_only=True)
class GradientSharingWorkRouter(SlotWorkRouter):
    """Threshold-encoded updates with a residual in each slot; in rounds, so any number of workers gives equal bits.

    A job's update is what the training of its batches has changed in the parameters: the gradients after the updater.
    It is added to the residual. Each element of the residual that is at least ``tau`` sends one quantum, ``tau`` or
    ``-tau``, which is taken from it; a message has the places and signs of these elements, Golomb-Rice coded. The next
    model is this one with all messages of the round added to it, in slot order.

    Asynchronous, each message is added when it arrives, whole, however stale it is: what is sent is what the residual
    loses. Then models are written with every version, and states with every job.

    Attributes:
        threshold: ``"adaptive"``: tau moves until a message has between ``least_sparsity`` and ``most_sparsity`` of the
            elements; ``"target-sparsity"``: towards ``sparsity`` of them; ``"fixed"``: it stays.
        tau: the first threshold, in units of the parameters, which counts with eight significant bits; None: 1e-3 if it
            is fixed, else 1e-4.
        least_sparsity, most_sparsity, sparsity: fractions of the elements; more than 0 and less than 1/16.
        decay: by what tau is multiplied or divided when it moves; at least 0.5 and less than 1.
        clip: the residual is cut to this multiple of tau, 1 or more; 0: never.
        clip_every: after so many messages of a slot.
        average: whether the plain mean of a round's messages is added instead of their sum, which is DL4J's way and
            makes the learning rate count once for every slot. Asynchronous: whether each is divided by
            ``jobs_per_round``.
        state_every: after how many rounds at most the model and the states of all slots are saved; 1 or more. In
            between only messages travel, and of a slot whose worker is gone the jobs since then are done again. Where
            that would take more than half a minute they are saved more often. Asynchronous: always 1.
        jobs_per_round: of the run.
        asynchronous, bound: see ``SlotWorkRouter``.
    """

    name: ClassVar[str] = "gradient-sharing"
    shares: ClassVar[str] = "delta"
    threshold: str = "adaptive"
    tau: float | None = None
    least_sparsity: float = 1e-4
    most_sparsity: float = 1e-2
    sparsity: float = 1e-3
    decay: float = HALF_IN_20
    clip: float = 5.0
    clip_every: int = 5
    average: bool = False
    state_every: int = STATE_EVERY
    jobs_per_round: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold not in THRESHOLDS:
            raise ConfError(f"threshold is {self.threshold!r}{nearest(self.threshold, list(THRESHOLDS))}")
        if self.tau is not None and not 2.0**-100 <= self.tau <= 2.0**100:
            raise ConfError(f"tau is {self.tau}; it must be a number between 2^-100 and 2^100")
        if self.clip != 0 and not 1 <= self.clip < float("inf"):
            raise ConfError(f"clip is {self.clip}; it must be 0, or 1 or more and finite")
        for name in ("clip_every", "state_every"):
            if getattr(self, name) < 1:
                raise ConfError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.asynchronous and self.state_every not in (1, STATE_EVERY):
            raise ConfError(
                f"state_every is {self.state_every}, and asynchronous is true: states are then saved with every job; "
                "leave it out"
            )
        for algorithm in (self._adaptive(1.0), self._target(1.0)):  # checks their numbers
            algorithm.first()

    @property
    def is_logged(self) -> bool:
        """See ``SlotStrategy``."""
        return not self.asynchronous

    @property
    def idle_options(self) -> dict[str, str]:
        """The options that change nothing, because of others: each with a reason."""
        used = {"adaptive": ("least_sparsity", "most_sparsity", "decay"), "target-sparsity": ("sparsity", "decay")}
        mine, reason = used.get(self.threshold, ()), f"threshold is {self.threshold!r}"
        idle = {option: reason for options in used.values() for option in options if option not in mine}
        return idle if self.clip else {**idle, "clip_every": "clip is 0"}

    def _adaptive(self, tau: float) -> AdaptiveThreshold:
        return AdaptiveThreshold(tau, self.least_sparsity, self.most_sparsity, self.decay)

    def _target(self, tau: float) -> TargetSparsityThreshold:
        return TargetSparsityThreshold(tau, self.sparsity, self.decay)

    @cached_property
    def algorithm(self) -> FixedThreshold | AdaptiveThreshold | TargetSparsityThreshold:
        """How the threshold goes on."""
        if self.threshold == "fixed":
            return FixedThreshold(1e-3 if self.tau is None else self.tau)
        tau = 1e-4 if self.tau is None else self.tau
        return self._adaptive(tau) if self.threshold == "adaptive" else self._target(tau)

    def replica(self, model: Result, state: Result | None) -> Result:
        """See ``SlotStrategy``: the model, with the updater state of the slot."""
        steps = new_state(model.values, model.arrays[STATE]) if state is None else state.arrays[STATE]
        return Result(model.values, {PARAMS: model.arrays[PARAMS], STATE: steps})

    def settle(self, model: Result, state: Result | None, result: Result, kernels: Kernels) -> tuple[Result, Result]:
        """See ``SlotStrategy``."""
        tau, sent = (self.algorithm.first(), 0) if state is None else (state.values["tau"], state.values["messages"])
        delta, steps = result.arrays["delta"], result.arrays[STATE]
        after = Result.allocate({"tau": tau, "messages": sent + 1}, {RESIDUAL: delta, STATE: steps})
        residual = after.arrays[RESIDUAL]
        if state is None:
            residual[...] = delta
        else:
            np.add(state.arrays[RESIDUAL], delta, out=residual)
        after.arrays[STATE][...] = steps
        step, codes = quantum(tau), np.empty(residual.size, np.int32)
        count = kernels.threshold_encode(residual, step, codes)
        format_, payload = pack(codes[:count], residual.size, step)
        clipped = self._clip(residual, step) if sent and sent % self.clip_every == 0 else 0.0
        values = {"tau": step, "format": format_, "count": count, "clipped": clipped}
        following = self.algorithm.following(tau, min(count / residual.size, DENSE))
        after = after.with_values({"tau": following, "messages": sent + 1})
        return Result({**result.values, **values}, {CODES: payload}), after

    def _clip(self, residual: Array, step: float) -> float:
        """Cut the residual to a multiple of the quantum, in place; return the sum of what that took."""
        if not self.clip:
            return 0.0
        limit = residual.dtype.type(self.clip * step)
        beyond = np.flatnonzero(np.abs(residual) > limit)
        taken = float(np.sum(np.abs(residual[beyond]) - limit, dtype=np.float64))
        residual[beyond] = np.copysign(limit, residual[beyond])
        return taken

    def check(self, update: Buffer, model: Buffer) -> None:
        """See ``SlotStrategy``."""
        _decoded(Result.decode(update), Result.decode(model).arrays[PARAMS].size)

    def aggregator(self, kernels: Kernels, pool: Executor | None = None) -> JobAggregator:
        """See ``Strategy``."""
        return _Aggregator(kernels, average=self.average, of=self.jobs_per_round if self.asynchronous else None)


class _Aggregator:
    """Adds the messages to the parameters. A ``FollowingAggregator``.

    Args:
        kernels: of the process.
        average: whether each is divided, by ``of``; None: by how many are added together.
    """

    def __init__(self, kernels: Kernels, *, average: bool, of: int | None) -> None:
        self._kernels, self._average, self._of = kernels, average, of

    def begin(self, model: Buffer, *, version: int, examples: Sequence[int]) -> Aggregation:
        """See ``JobAggregator``."""
        return UpdateSum(model, self._adding(examples))

    def follow(self, model: Buffer, rounds: Iterable[tuple[Sequence[int], Sequence[Buffer]]]) -> Buffer:
        """See ``FollowingAggregator``."""
        followed = UpdateSum(model, self._adding(()))
        for examples, updates in rounds:
            followed.add_by(self._adding(examples))
            followed.add(updates)
        return followed.finish(ends_phase=False)[0]

    def _adding(self, examples: Sequence[int]) -> Callable[[Array, Result], None]:
        """Return what adds a message of a round to the parameters."""
        count = (self._of or len(examples)) if self._average else 1  # a short round has fewer messages

        def add(params: Array, update: Result) -> None:
            codes, tau = _decoded(update, params.size)
            self._kernels.threshold_decode(codes, tau / count, params)

        return add


def _decoded(update: Result, size: int) -> tuple[Array, float]:
    """Return the codes and the quantum of a message for ``size`` parameters; raises ``WireError``."""
    values: dict[str, Any] = {name: update.values.get(name) for name in ("tau", "format", "count")}
    tau, format_, count = values.values()
    if (
        not isinstance(tau, float)
        or not isinstance(format_, str)
        or type(count) is not int
        or CODES not in update.arrays
    ):
        raise WireError(f"it is no gradient message: it has {values} and the arrays {sorted(update.arrays)}")
    if not 0 < tau < float("inf"):
        raise WireError(f"the quantum of a gradient message is {tau}; it must be positive and finite")
    return unpack(format_, update.arrays[CODES], count=count, size=size, tau=tau), tau
