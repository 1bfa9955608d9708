"""Learning-rate schedules: frozen structs that give the rate at an iteration.

Every schedule computes from the base rate and the iteration alone, so a resumed run and any worker get the same rate.
Legacy: ``org.nd4j.linalg.schedule.ISchedule`` (1.0.0) and ``LearningRatePolicy`` (0.9.1). # Legacy: 0.9.1 read back
the already decayed rate, so its policies compounded; its policy "Score" depends on a worker's batches and is left out.
"""

from __future__ import annotations

import math

from dl4jlegacy.errors import ConfError
from dl4jlegacy.kernels.elementary import exp, integer_power, positive_power
from dl4jlegacy.nn.arguments import Tagged

__all__ = [
    "Changes",
    "ExponentialSchedule",
    "InverseSchedule",
    "MapSchedule",
    "PolySchedule",
    "Schedule",
    "SigmoidSchedule",
    "StepSchedule",
    "TorchStepSchedule",
    "check_changes",
    "value_at",
]


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


Schedule = (
    ExponentialSchedule
    | InverseSchedule
    | StepSchedule
    | TorchStepSchedule
    | PolySchedule
    | SigmoidSchedule
    | MapSchedule
)


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
