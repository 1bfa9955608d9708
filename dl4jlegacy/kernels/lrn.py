"""Local response normalization by whole arrays: the reference, also used in float64, on a GPU or without Numba.

Source: Krizhevsky, Sutskever, Hinton 2012, section 3.3. The compiled version is ``numba.lrn``, with the same
bits.
"""

from __future__ import annotations

import numpy as np

from dl4jlegacy.arrays.backend import Array, get_array_module, is_on_device
from dl4jlegacy.errors import ShapeError
from dl4jlegacy.kernels.elementary import positive_power

__all__ = ["ROOTS", "check_responses", "response_backward", "response_forward"]

ROOTS = (0.25, 0.5, 0.75)
"""Exponents whose power is computed by square roots, accurate to two units in the last place."""


def response_forward(
    x: Array, y: Array, below: Array, factor: Array, reach: int, k: float, alpha: float, beta: float
) -> None:
    """See ``Kernels``."""
    check_responses(x, y, below, factor)
    kind = x.dtype.type
    below[...] = _neighbours(x * x, reach)
    below *= kind(alpha)
    below += kind(k)
    factor[...] = _inverse_power(below, beta)
    get_array_module(x).multiply(x, factor, out=y)


def response_backward(
    dy: Array, x: Array, y: Array, below: Array, factor: Array, dx: Array, reach: int, alpha: float, beta: float
) -> None:
    """See ``Kernels``."""
    check_responses(x, y, below, factor, dy, dx)
    across = _neighbours(dy * y / below, reach)
    dx[...] = dy * factor - x * x.dtype.type(2 * alpha * beta) * across


def check_responses(x: Array, *others: Array) -> None:
    """Raise ``ShapeError`` if the tiles do not have the shape of ``x``."""
    if any(other.shape != x.shape for other in others):
        shapes = ", ".join(str(other.shape) for other in others)
        raise ShapeError(f"response normalization: arrays of shapes {shapes} do not fit values of shape {x.shape}")


def _inverse_power(x: Array, beta: float) -> Array:
    """Return ``x ** -beta``, if possible by square roots, which take a fifth of the time of logarithms."""
    found: Array
    if beta not in ROOTS or is_on_device(x):
        found = positive_power(x, -beta)
    else:
        root = np.sqrt(x)
        found = 1 / (root if beta == 0.5 else np.sqrt(root) if beta == 0.25 else root * np.sqrt(root))
    return found


def _neighbours(x: Array, reach: int) -> Array:
    """Return, for every channel, the sum over channels at most ``reach`` away: its own first, then nearest first."""
    total = x.copy()
    for shift in range(1, min(reach, x.shape[1] - 1) + 1):
        total[:, shift:] += x[:, :-shift]
        total[:, :-shift] += x[:, shift:]
    return total
