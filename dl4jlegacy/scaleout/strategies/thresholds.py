"""Thresholds of gradient sharing: constant ones, and ones that depend on how much was sent.

A threshold depends on the *sparsity* of a message: the fraction of all elements that it has, or 1/16 if it is dense.
All are pure: the encoder remembers the last threshold, as ``following`` returned it, and sends its ``quantum``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dl4jlegacy.errors import ConfError

__all__ = [
    "DENSE",
    "HALF_IN_20",
    "AdaptiveThreshold",
    "FixedThreshold",
    "TargetSparsityThreshold",
    "quantum",
]

DENSE = 1 / 16
"""The sparsity of a dense message: its two bits per element are 1/16 of a float32."""

_SMALLEST, _LARGEST = 2.0**-100, 2.0**100
HALF_IN_20 = 0.9659363289248456  # to the power of 20 it is a half


@dataclass(frozen=True)
class FixedThreshold:
    """The same threshold for every message. Source: Strom 2015; DL4J's ``FixedThresholdAlgorithm``.

    Attributes:
        tau: in units of the parameters; between 2^-100 and 2^100.
    """

    tau: float = 1e-3

    def __post_init__(self) -> None:
        _check_tau("tau", self.tau)

    def first(self) -> float:
        """Return the threshold of the first message."""
        return self.tau

    def following(self, tau: float, sparsity: float) -> float:
        """Return the threshold of the next message, after one with ``tau`` that had this ``sparsity``."""
        return self.tau


@dataclass(frozen=True)
class AdaptiveThreshold:
    """A threshold that changes until the sparsity of messages lies within bounds.

    After a message below the bounds it is multiplied by ``decay``, after one above them divided by it.
    Source: DL4J's ``AdaptiveThresholdAlgorithm``, with its defaults: 20 messages halve it.

    Attributes:
        initial: the first threshold; between 2^-100 and 2^100.
        least_sparsity, most_sparsity: the bounds; more than 0 and less than ``DENSE``.
        decay: at least 0.5 and less than 1.
    """

    initial: float = 1e-4
    least_sparsity: float = 1e-4
    most_sparsity: float = 1e-2
    decay: float = HALF_IN_20

    def __post_init__(self) -> None:
        _check_tau("initial", self.initial)
        _check_sparsity("least_sparsity", self.least_sparsity)
        _check_sparsity("most_sparsity", self.most_sparsity)
        if self.least_sparsity > self.most_sparsity:
            raise ConfError(f"least_sparsity is {self.least_sparsity}, more than most_sparsity, {self.most_sparsity}")
        _check_decay(self.decay)

    def first(self) -> float:
        """Return the threshold of the first message."""
        return self.initial

    def following(self, tau: float, sparsity: float) -> float:
        """Return the threshold of the next message, after one with ``tau`` that had this ``sparsity``."""
        return _moved(tau, sparsity, self.least_sparsity, self.most_sparsity, self.decay)


@dataclass(frozen=True)
class TargetSparsityThreshold:
    """A threshold that changes with every message, towards a target for their sparsity.

    Source: DL4J's ``TargetSparsityThresholdAlgorithm``, with its defaults.

    Attributes:
        initial: the first threshold; between 2^-100 and 2^100.
        sparsity: the target; more than 0 and less than ``DENSE``.
        decay: factor by which the threshold is multiplied or divided; at least 0.5 and less than 1.
    """

    initial: float = 1e-4
    sparsity: float = 1e-3
    decay: float = HALF_IN_20

    def __post_init__(self) -> None:
        _check_tau("initial", self.initial)
        _check_sparsity("sparsity", self.sparsity)
        _check_decay(self.decay)

    def first(self) -> float:
        """Return the threshold of the first message."""
        return self.initial

    def following(self, tau: float, sparsity: float) -> float:
        """Return the threshold of the next message, after one with ``tau`` that had this ``sparsity``."""
        return _moved(tau, sparsity, self.sparsity, self.sparsity, self.decay)


def quantum(tau: float) -> float:
    """Return ``tau`` rounded to eight significant bits, which makes ``residual - quantum`` exact in float32.

    That holds for residuals from one up to 2^16 quanta: both numbers are multiples of the residual's last bit, and so
    is their difference. So rounding loses nothing of an update.

    Remember the threshold and not its quantum: with a ``decay`` near 1 the quantum would be rounded back each time.

    Raises:
        ConfError: ``tau`` is not between 2^-100 and 2^100.
    """
    _check_tau("the threshold", tau)
    fraction, exponent = math.frexp(tau)
    return math.ldexp(round(fraction * 256), exponent - 8)


def _moved(tau: float, sparsity: float, least: float, most: float, decay: float) -> float:
    """Return the next threshold, within the range of float32 even if a worker never sends anything."""
    if sparsity < least:
        return max(tau * decay, _SMALLEST)
    return min(tau / decay, _LARGEST) if sparsity > most else tau


def _check_tau(name: str, tau: float) -> None:
    if not _SMALLEST <= tau <= _LARGEST:
        raise ConfError(f"{name} is {tau}; it must be a positive number, between 2^-100 and 2^100")


def _check_sparsity(name: str, sparsity: float) -> None:
    if not 0 < sparsity < DENSE:
        raise ConfError(f"{name} is {sparsity}; it must be more than 0 and less than 1/16, which is a dense message")


def _check_decay(decay: float) -> None:
    if not 0.5 <= decay < 1:
        raise ConfError(f"decay is {decay}; it must be at least 0.5 and less than 1")
