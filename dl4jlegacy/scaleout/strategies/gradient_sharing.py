"""Gradient sharing: only the large elements of an update are sent, each as one quantum.

The rest stays in the residual of the slot until it has grown.

Source: Strom 2015, "Scalable distributed DNN training using commodity GPU cloud computing"; DL4J's
``SharedTrainingMaster`` and ``EncodingHandler``. There the residual belonged to a worker and was lost with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import ConfError, WireError, nearest
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.scaleout.state.aggregate import PARAMS, STATE, Aggregation, Fold, UpdateSum
from dl4jlegacy.scaleout.state.codec import pack, unpack
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.state.store import Buffer
from dl4jlegacy.scaleout.strategies.chains import SlotWorkRouter
from dl4jlegacy.scaleout.strategies.strategy import SlotMemory
from dl4jlegacy.scaleout.strategies.thresholds import (
    DENSE,
    HALF_IN_20,
    AdaptiveThreshold,
    FixedThreshold,
    TargetSparsityThreshold,
    quantum,
)

__all__ = ["CODES", "RESIDUAL", "THRESHOLDS", "GradientSharingWorkRouter"]

CODES, RESIDUAL = "codes", "residual"
"""The array of a message; the array of a slot's state with what was not sent yet."""
THRESHOLDS = ("adaptive", "fixed", "target-sparsity")
"""How the threshold changes from message to message."""
STATE_EVERY = 256
"""The usual number of rounds after which model and states are saved, at the latest."""


@dataclass(frozen=True, kw_only=True)
class GradientSharingWorkRouter(SlotWorkRouter):
    """Threshold-encoded updates with a residual in each slot; in rounds, any number of workers gives the same bits.

    The update of a job is the change of the parameters by its training: the gradients after the updater. It is added to
    the residual. Each element of the residual whose magnitude is at least ``tau`` sends one quantum, ``tau`` or
    ``-tau``, which is subtracted from it. A message has the positions and signs of these elements, Golomb-Rice coded.
    The messages of a round are added to the model, in slot order.

    If asynchronous, each message is added when it arrives, at any staleness: the model gains what the residual loses.
    Then every version of the model is written whole, and states are saved with every job.

    Attributes:
        threshold: ``"adaptive"``: tau changes until a message has between ``least_sparsity`` and ``most_sparsity`` of
            the elements; ``"target-sparsity"``: until it has about ``sparsity`` of them; ``"fixed"``: tau is constant.
        tau: the first threshold, in units of the parameters, rounded to eight significant bits; None: 1e-3 if it is
            fixed, else 1e-4.
        least_sparsity, most_sparsity, sparsity: fractions of the elements; more than 0 and less than 1/16.
        decay: factor by which tau is multiplied or divided when it changes; at least 0.5 and less than 1.
        clip: multiple of tau to which the residual is clipped, 1 or more; 0: it is not clipped.
        clip_every: number of messages of a slot between two clippings.
        average: whether the plain mean of the messages of a round is added. Their sum, the default, is DL4J's way; it
            applies the learning rate once for every slot. If asynchronous: whether each message is divided by
            ``jobs_per_round``.
        state_every: rounds after which the model and the states of all slots are saved, at the latest; 1 or more. In
            between only messages are sent. If a worker is lost, the jobs of its slots since then are repeated; if
            that would take more than half a minute, states are saved more often. If asynchronous: always 1.
        jobs_per_round: of the run.
        asynchronous, bound: see ``SlotWorkRouter``.
    """

    name: ClassVar[str] = "gradient-sharing"
    update_kind: ClassVar[str] = "delta"
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
    def log_every(self) -> int:
        """See ``WorkRouter``."""
        return 0 if self.asynchronous else self.state_every

    @property
    def idle_options(self) -> dict[str, str]:
        """See ``WorkRouter``."""
        used = {"adaptive": ("least_sparsity", "most_sparsity", "decay"), "target-sparsity": ("sparsity", "decay")}
        mine, reason = used.get(self.threshold, ()), f"threshold is {self.threshold!r}"
        idle = {option: reason for options in used.values() for option in options if option not in mine}
        return idle if self.clip else {**idle, "clip_every": "clip is 0"}

    def _adaptive(self, tau: float) -> AdaptiveThreshold:
        return AdaptiveThreshold(tau, self.least_sparsity, self.most_sparsity, self.decay)

    def _target(self, tau: float) -> TargetSparsityThreshold:
        return TargetSparsityThreshold(tau, self.sparsity, self.decay)

    @cached_property
    def memory(self) -> SlotMemory:
        """See ``WorkRouter``."""
        tau = self.tau or (1e-3 if self.threshold == "fixed" else 1e-4)
        if self.threshold == "fixed":
            return _Residuals(FixedThreshold(tau), self.clip, self.clip_every)
        kind = self._adaptive if self.threshold == "adaptive" else self._target
        return _Residuals(kind(tau), self.clip, self.clip_every)

    def fold(self, kernels: Kernels, pool: Executor | None = None) -> Fold:
        """See ``WorkRouter``."""
        return _Messages(kernels, average=self.average, of=self.jobs_per_round if self.asynchronous else None)


class _Residuals(SlotMemory):
    """A slot remembers its residual, its threshold, the number of its messages, and its updater state.

    Args:
        algorithm: how the threshold changes from message to message.
        clip, clip_every: see ``GradientSharingWorkRouter``.
    """

    def __init__(
        self, algorithm: FixedThreshold | AdaptiveThreshold | TargetSparsityThreshold, clip: float, clip_every: int
    ) -> None:
        self._algorithm, self._multiple, self._clip_every = algorithm, clip, clip_every

    def settle(self, model: Result, state: Result | None, result: Result, kernels: Kernels) -> tuple[Result, Result]:
        """See ``SlotMemory``."""
        tau, sent = (self._algorithm.first(), 0) if state is None else (state.values["tau"], state.values["messages"])
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
        clipped = self._clip(residual, step) if sent and sent % self._clip_every == 0 else 0.0
        values = {"tau": step, "format": format_, "count": count, "clipped": clipped}
        following = self._algorithm.following(tau, min(count / residual.size, DENSE))
        after = after.with_values({"tau": following, "messages": sent + 1})
        return Result({**result.values, **values}, {CODES: payload}), after

    def _clip(self, residual: Array, step: float) -> float:
        """Clip the residual to a multiple of the quantum, in place; return the sum of the magnitudes removed."""
        if not self._multiple:
            return 0.0
        limit = residual.dtype.type(self._multiple * step)
        beyond = np.flatnonzero(np.abs(residual) > limit)
        taken = float(np.sum(np.abs(residual[beyond]) - limit, dtype=np.float64))
        residual[beyond] = np.copysign(limit, residual[beyond])
        return taken


class _Messages(Fold):
    """Adds the messages to the parameters.

    Args:
        kernels: of the process.
        average: whether each is divided, by ``of``; None: by the number of messages of the round.
    """

    def __init__(self, kernels: Kernels, *, average: bool, of: int | None) -> None:
        self._kernels, self._average, self._of = kernels, average, of

    def check(self, update: Buffer, model: Buffer) -> None:
        """See ``Fold``."""
        _decoded(Result.decode(update), Result.decode(model).arrays[PARAMS].size)

    def begin(self, model: Buffer, *, version: int, examples: Sequence[int], in_place: bool = False) -> Aggregation:
        """See ``Fold``."""
        count = (self._of or len(examples)) if self._average else 1  # a short round has fewer messages

        def add(params: Array, update: Result) -> None:
            codes, tau = _decoded(update, params.size)
            self._kernels.threshold_decode(codes, tau / count, params)

        return UpdateSum(model, add, in_place=in_place)


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
