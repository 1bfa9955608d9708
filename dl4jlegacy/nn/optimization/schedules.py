"""Learning-rate schedules: frozen structs that give the rate at an iteration.

Every schedule computes from the base rate and the iteration alone, so a resumed run and any worker get the same rate.
Legacy: ``org.nd4j.linalg.schedule.ISchedule`` (1.0.0) and ``LearningRatePolicy`` (0.9.1). # Legacy: 0.9.1 read back
the already decayed rate, so its policies compounded; its policy "Score" depends on a worker's batches and is left out.
"""

from __future__ import annotations

import math
from typing import Any, Self, TypeVar

import msgspec
import numpy as np

from dl4jlegacy.errors import ConfError
from dl4jlegacy.kernels.elementary import exp, integer_power, positive_power, sine_and_cosine
from dl4jlegacy.nn.arguments import Tagged

__all__ = [
    "Changes",
    "CosineSchedule",
    "ExponentialSchedule",
    "InverseSchedule",
    "LinearSchedule",
    "MapSchedule",
    "PolySchedule",
    "RunSchedule",
    "Schedule",
    "SigmoidSchedule",
    "StepSchedule",
    "TorchStepSchedule",
    "check_changes",
    "over_run",
    "value_at",
]

_Conf = TypeVar("_Conf")

Changes = dict[int, float]
"""Maps an iteration to the value from that iteration on."""


class _Schedule(Tagged, tag=True):
    def __post_init__(self) -> None:
        for name in ("steps", "max_iterations"):
            if not (steps := getattr(self, name, 1)) > 0:
                raise ConfError(f"{type(self).__name__}: {name} is {steps}; it must be positive")

    def value(self, base: float, iteration: int) -> float:
        """Return the rate at ``iteration`` (from 0) for the base rate ``base``."""
        raise NotImplementedError


class ExponentialSchedule(_Schedule):
    """``base gamma^t``."""

    gamma: float

    def value(self, base: float, iteration: int) -> float:
        """Return the rate at ``iteration``."""
        return float(base * integer_power(self.gamma, iteration))


class InverseSchedule(_Schedule):
    """``base / (1 + gamma t)^power``."""

    gamma: float
    power: float = 1.0

    def value(self, base: float, iteration: int) -> float:
        """Return the rate at ``iteration``."""
        return float(base / positive_power(1 + self.gamma * iteration, self.power))


class StepSchedule(_Schedule):
    """``base decay_rate^floor(t / steps)``."""

    decay_rate: float
    steps: float

    def value(self, base: float, iteration: int) -> float:
        """Return the rate at ``iteration``."""
        return float(base * integer_power(self.decay_rate, math.floor(iteration / self.steps)))


class TorchStepSchedule(_Schedule):
    """Multiplies the rate by ``decay_rate`` at every iteration above 1 that is a multiple of ``steps``.

    Legacy: DL4J tests ``steps % t == 0`` (whether the iteration divides ``steps``); this is Torch's behaviour.
    """

    decay_rate: float
    steps: int

    def value(self, base: float, iteration: int) -> float:
        """Return the rate at ``iteration``."""
        skipped = 1 if self.steps == 1 and iteration >= 1 else 0
        return float(base * integer_power(self.decay_rate, iteration // self.steps - skipped))


class PolySchedule(_Schedule):
    """``base (1 - t / max_iterations)^power``, and 0 from ``max_iterations`` on."""

    max_iterations: int
    power: float = 1.0

    def value(self, base: float, iteration: int) -> float:
        """Return the rate at ``iteration``."""
        return float(base * positive_power(max(0.0, 1 - iteration / self.max_iterations), self.power))


class SigmoidSchedule(_Schedule):
    """``base / (1 + exp(-gamma (t - steps)))``: falls around ``steps`` if ``gamma`` is negative, rises if positive."""

    gamma: float
    steps: int

    def value(self, base: float, iteration: int) -> float:
        """Return the rate at ``iteration``."""
        x = min(-self.gamma * (iteration - self.steps), 700.0)  # exp overflows beyond this
        return float(base / (1 + exp(x)))


class MapSchedule(_Schedule):
    """The value of the greatest key up to the iteration; before the first key, the base rate."""

    values: Changes

    def __post_init__(self) -> None:
        check_changes("MapSchedule.values", self.values)

    def value(self, base: float, iteration: int) -> float:
        """Return the rate at ``iteration``."""
        return value_at(self.values, base, iteration)


class RunSchedule(_Schedule):
    """Base of schedules over a whole run: the rate rises for the first part ``warm_up`` of the updates, then falls.

    A run sets ``first_iteration`` and ``iterations``, the updates before it and its own, by its plan, which is the same
    for any number of workers. Elsewhere (in ``fit`` without these two, in pretraining, after the run) the rate is the
    base rate. With truncated backpropagation a batch counts once.
    """

    warm_up: float = 0.0
    first_iteration: int = 0
    iterations: int = 0

    def __post_init__(self) -> None:
        title = type(self).__name__
        if not 0 <= self.warm_up < 1:
            raise ConfError(f"{title}: warm_up is {self.warm_up}; it must be a part of the run, from 0 to below 1")
        for name in ("first_iteration", "iterations"):
            if (count := getattr(self, name)) < 0:
                raise ConfError(f"{title}: {name} is {count}; it must not be negative")

    def value(self, base: float, iteration: int) -> float:
        """Return the rate at ``iteration``: of w updates of warm-up, update t has (t + 1) / (w + 1) of ``base``."""
        done, risen = iteration - self.first_iteration, math.floor(self.warm_up * self.iterations)
        if not 0 <= done < self.iterations:
            return base
        if done < risen:
            return base * (done + 1) / (risen + 1)
        return base * self._left((done - risen) / (self.iterations - risen))

    def _left(self, passed: float) -> float:
        """Return the part of the base rate that is left when a part of the updates after the warm-up has passed."""
        raise NotImplementedError

    def in_segments(self, count: int) -> Self:
        """Return the schedule for a batch with ``count`` updates, one for each of its segments."""
        if count == 1:
            return self
        first, all_ = self.first_iteration * count, self.iterations * count
        return msgspec.structs.replace(self, first_iteration=first, iterations=all_)


class LinearSchedule(RunSchedule):
    """``base (1 - t)`` after the warm-up, with t from 0 to 1: linearly to zero."""

    def _left(self, passed: float) -> float:
        return 1 - passed


class CosineSchedule(RunSchedule):
    """``base (1 + cos(pi t)) / 2`` after the warm-up, with t from 0 to 1 (Loshchilov and Hutter 2017)."""

    def _left(self, passed: float) -> float:
        return 0.5 * (1 + float(sine_and_cosine(np.asarray(passed / 2))[1]))


Schedule = (
    ExponentialSchedule
    | InverseSchedule
    | StepSchedule
    | TorchStepSchedule
    | PolySchedule
    | SigmoidSchedule
    | MapSchedule
    | LinearSchedule
    | CosineSchedule
)


def over_run(conf: _Conf, first_iteration: int, iterations: int) -> _Conf:
    """Return a configuration, or a part of it, whose ``RunSchedule``s have the length of a run."""
    changed: Any = conf
    if isinstance(conf, RunSchedule):
        changed = msgspec.structs.replace(conf, first_iteration=first_iteration, iterations=iterations)
    elif isinstance(conf, msgspec.Struct):
        before = {name: getattr(conf, name) for name in conf.__struct_fields__}
        after = {name: over_run(value, first_iteration, iterations) for name, value in before.items()}
        fields = {name: value for name, value in after.items() if value is not before[name]}
        changed = msgspec.structs.replace(conf, **fields) if fields else conf
    elif isinstance(conf, tuple):
        parts = tuple(over_run(part, first_iteration, iterations) for part in conf)
        changed = parts if any(new is not old for new, old in zip(parts, conf, strict=True)) else conf
    found: _Conf = changed
    return found


def value_at(changes: Changes, base: float, iteration: int) -> float:
    """Return the value of the greatest key of ``changes`` up to ``iteration``, else ``base``."""
    reached = [start for start in changes if start <= iteration]
    return changes[max(reached)] if reached else base


def check_changes(what: str, changes: Changes) -> None:
    """Raise ``ConfError`` unless iterations start from 0 and values are finite and not negative."""
    for start, value in changes.items():
        if start < 0:
            raise ConfError(f"{what}: iteration {start} is negative; iterations count from 0")
        if not (value >= 0 and math.isfinite(value)):
            raise ConfError(f"{what}: {value} from iteration {start} on; it must be a finite number, not negative")
