"""Updaters, which turn a gradient into a step: frozen structs that call the fused kernels on a flat block.

``apply`` works in place on one ``UpdaterBlock``: ``params``, ``gradient`` of n elements and ``state`` of
``state_size(n)``, laid out as in DL4J, one whole vector after the other (``[m | v]``); all elements of a new state are
``begins_at``. Formulas and defaults are those of ``org.nd4j.linalg.learning.config`` (1.0.0); initial states are those
of both versions; ``iteration`` counts from 0.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import msgspec

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import ConfError, ShapeError, nearest
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.nn.arguments import Tagged, spelled
from dl4jlegacy.nn.optimization.schedules import Changes, RunSchedule, Schedule, check_changes, value_at

__all__ = [
    "UPDATERS",
    "AMSGrad",
    "AdaBelief",
    "AdaDelta",
    "AdaGrad",
    "AdaMax",
    "Adam",
    "AdamW",
    "Nadam",
    "Nesterovs",
    "NoOp",
    "RmsProp",
    "Sgd",
    "Updater",
    "check_idle",
    "create_updater",
    "in_step",
    "resolve_updater",
    "with_learning_rate",
]


class _Updater(Tagged, tag=True):
    positional: ClassVar[tuple[str, ...]] = ()
    vectors: ClassVar[int] = 0  # number of state vectors, each as long as the parameters
    kernel: ClassVar[str] = ""  # name in ``Kernels``; "": the name of the class

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, float) and not (value >= 0 and math.isfinite(value)):
                raise ConfError(f"{type(self).__name__}: {name} is {value}; it must be a finite number, not negative")
            if name in _DECAYS and value >= 1:
                raise ConfError(f"{type(self).__name__}: {name} is {value}; it must lie in 0..1, without 1")

    @property
    def begins_at(self) -> float:
        """The value of every element of a new state."""
        return 0.0

    def state_size(self, n: int) -> int:
        """Return the number of state elements for ``n`` parameters."""
        return self.vectors * n

    def apply(self, params: Array, gradient: Array, state: Array, iteration: int, kernels: Kernels) -> bool:
        """Subtract the step for ``gradient`` from ``params`` and advance ``state``; all flat, in place.

        Return whether all parameters are finite. On a GPU the result is always True, since a check would have to wait
        for the device.

        Raises:
            ShapeError: the sizes do not fit.
        """
        n = params.size
        if gradient.size != n or state.size != self.state_size(n):
            raise ShapeError(
                f"{type(self).__name__}: {n} parameters need {n} gradients and {self.state_size(n)} elements of state, "
                f"got {gradient.size} and {state.size}"
            )
        parts = [state[k * n : (k + 1) * n] for k in range(self.vectors)]
        kernel = getattr(kernels, self.kernel or type(self).__name__.lower())
        is_finite: bool = kernel(params, gradient, *parts, *self._constants(iteration))
        return is_finite

    def _constants(self, iteration: int) -> tuple[float, ...]:
        """Return the kernel's arguments after the state vectors."""
        return ()


_DECAYS = frozenset({"beta1", "beta2", "rho", "decay"})


class _Rated(_Updater):
    positional: ClassVar[tuple[str, ...]] = ("learning_rate",)
    learning_rate: float = 1e-3
    schedule: Schedule | None = None

    def rate(self, iteration: int) -> float:
        """Return the learning rate at ``iteration``."""
        return self.learning_rate if self.schedule is None else self.schedule.value(self.learning_rate, iteration)


class Sgd(_Rated):
    """``up = lr g``."""

    def _constants(self, iteration: int) -> tuple[float, ...]:
        return (self.rate(iteration),)


class Nesterovs(_Rated):
    """Momentum with look-ahead (Nesterov 1983, as in Sutskever et al. 2013); ``v' = mu v - lr g``.

    ``momentum_after`` maps an iteration to the momentum from that iteration on.
    """

    positional = ("learning_rate", "momentum")
    vectors = 1
    learning_rate: float = 0.1
    momentum: float = 0.9
    momentum_after: Changes = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_changes("Nesterovs.momentum_after", self.momentum_after)

    def _constants(self, iteration: int) -> tuple[float, ...]:
        return self.rate(iteration), value_at(self.momentum_after, self.momentum, iteration)


class AdaGrad(_Rated):
    """Duchi et al. 2011: ``h += g^2; up = lr g / (sqrt(h) + epsilon)``; h begins at 1e-6 for any epsilon (ND4J)."""

    vectors = 1
    learning_rate: float = 0.1
    epsilon: float = 1e-6

    @property
    def begins_at(self) -> float:
        """Initial value of h, see the class."""
        return 1e-6

    def _constants(self, iteration: int) -> tuple[float, ...]:
        return self.rate(iteration), self.epsilon


class RmsProp(_Rated):
    """Tieleman and Hinton 2012: AdaGrad with a decaying mean of ``g^2``, which begins at epsilon, as in ND4J."""

    vectors = 1
    learning_rate: float = 0.1
    decay: float = 0.95
    epsilon: float = 1e-8

    @property
    def begins_at(self) -> float:
        """Initial value of the mean, see the class."""
        return self.epsilon

    def _constants(self, iteration: int) -> tuple[float, ...]:
        return self.rate(iteration), self.decay, self.epsilon


class _Moments(_Rated):
    """Base of Adam and its relatives: two decay rates and the kernel's argument order."""

    vectors = 2
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def _constants(self, iteration: int) -> tuple[float, ...]:
        return self.rate(iteration), self.beta1, self.beta2, self.epsilon, iteration


class Adam(_Moments):
    """Kingma and Ba 2014; state ``[m | v]``."""


class AdamW(Adam):
    """Loshchilov and Hutter 2019: Adam, before whose step weights lose ``lr weight_decay`` of themselves.

    ``MultiLayerUpdater`` applies the decay, and only to weights, since an updater does not know which these are. It is
    no part of the gradient or the score. Deeplearning4j: Adam with the regularization ``WeightDecay``, with the rate.
    """

    kernel = "adam"
    weight_decay: float = 0.01

    def decay(self, weights: Array, iteration: int, kernels: Kernels) -> None:
        """Let ``weights`` (flat, in place) decay, before the step at ``iteration``."""
        kernels.decay(weights, self.rate(iteration) * self.weight_decay)


class AdaMax(_Moments):
    """Kingma and Ba 2014, section 7.1: the infinity norm in place of v; state ``[m | u]``.

    ``epsilon`` does not affect the steps, as in DL4J, whose files contain it (``check_idle``).
    """


class Nadam(_Moments):
    """Dozat 2016: Adam with Nesterov's look-ahead; as in DL4J, v has no bias correction; state ``[m | v]``."""


class AMSGrad(_Moments):
    """Reddi et al. 2018: Adam with a v that never decreases; state ``[m | v | v_hat]``."""

    vectors = 3


class AdaBelief(_Moments):
    """Zhuang et al. 2020: Adam with the variance of g around m in place of v; state ``[m | s]``."""

    epsilon: float = 1e-14


class AdaDelta(_Updater):
    """Zeiler 2012; there is no learning rate; state ``[msg | msdx]``."""

    vectors = 2
    rho: float = 0.95
    epsilon: float = 1e-6

    def _constants(self, iteration: int) -> tuple[float, ...]:
        return self.rho, self.epsilon


class NoOp(_Updater):
    """``up = g``: for gradient checks, and for gradients that are already steps."""


Updater = Sgd | Nesterovs | AdaGrad | RmsProp | Adam | AdamW | AdaMax | AdaDelta | Nadam | AMSGrad | AdaBelief | NoOp

UPDATERS: dict[str, type[Updater]] = {
    "adabelief": AdaBelief,
    "adadelta": AdaDelta,
    "adagrad": AdaGrad,
    "adam": Adam,
    "adamax": AdaMax,
    "adamw": AdamW,
    "amsgrad": AMSGrad,
    "nadam": Nadam,
    "nesterovs": Nesterovs,
    "none": NoOp,
    "rmsprop": RmsProp,
    "sgd": Sgd,
}
"""The valid names for ``--updater`` and the builder's ``updater("...")`` (DL4J's enum ``Updater`` in lower case)."""


def create_updater(name: str, learning_rate: float | None = None) -> Updater:
    """Return the updater called ``name`` with its defaults, and ``learning_rate`` if it has one.

    Raises:
        ConfError: there is no updater of that name (the message gives the nearest), or the rate is negative.
    """
    found = spelled(name, UPDATERS, "updater")
    if found is None:
        raise ConfError(f"unknown updater {name!r}{nearest(name.lower(), tuple(UPDATERS))}")
    updater = UPDATERS[found]()
    return updater if isinstance(updater, AdaDelta | NoOp) else with_learning_rate(updater, learning_rate)


def resolve_updater(struct: Any, title: str) -> None:
    """Replace an updater's name or class in the field ``updater`` of a frozen struct by an updater with defaults.

    Raises:
        ConfError: there is no updater of that name, or the value is not an updater.
    """
    given = struct.updater
    if given is None or isinstance(given, _Updater):
        return
    if isinstance(given, type) and issubclass(given, _Updater):
        updater: Any = given()
    elif isinstance(given, str):
        updater = create_updater(given)
    else:
        raise ConfError(f"{title}: updater is {given!r}; give an updater, such as Adam(learning_rate=0.001)")
    msgspec.structs.force_setattr(struct, "updater", updater)


def check_idle(updater: Updater) -> None:
    """Raise ``ConfError`` if an updater has a changed setting that does not affect its steps."""
    if isinstance(updater, AdaMax) and updater.epsilon != AdaMax().epsilon:
        raise ConfError(f"AdaMax: epsilon is {updater.epsilon}, and has no part in its steps; leave it out")


def in_step(updater: Updater, *, segments: int, pretrains: bool, learning_rate: float | None) -> Updater:
    """Return ``updater`` as it takes a step: its schedule over a run does not count pretraining, and counts batches.

    Args:
        updater: a layer's.
        segments: the number of updates for each batch.
        pretrains: whether the step pretrains a layer.
        learning_rate: replaces the updater's base rate, if it has one; None: unchanged.
    """
    if isinstance(updater, AdaDelta | NoOp):
        return updater
    if isinstance(updater.schedule, RunSchedule) and (pretrains or segments > 1):
        schedule = None if pretrains else updater.schedule.in_segments(segments)
        updater = msgspec.structs.replace(updater, schedule=schedule)
    return with_learning_rate(updater, learning_rate)


def with_learning_rate(updater: Updater, learning_rate: float | None) -> Updater:
    """Return ``updater`` with another base rate; None: unchanged. Raises ``ConfError`` if it has no learning rate."""
    if learning_rate is None:
        return updater
    if isinstance(updater, AdaDelta | NoOp):
        raise ConfError(
            f"the learning rate is {learning_rate}, and {type(updater).__name__} has none; leave it out, or take an "
            "updater that has one"
        )
    return msgspec.structs.replace(updater, learning_rate=float(learning_rate))
