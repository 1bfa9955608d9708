"""Activation functions and their derivatives: the table of ``activation`` names.

Pure functions on arrays, written once for numpy and cupy; the dtype of the input is kept. (CuPy makes float16 of a
boolean array and a Python number, so one of the two needs an explicit dtype.) The five functions of
``kernels.FUSED_ACTIVATIONS`` also exist as fused kernels; these formulas are the reference for their tests. Names,
constants and formulas are DL4J's (``org.nd4j.linalg.activations.Activation``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from dl4jlegacy.arrays.backend import Array, get_array_module
from dl4jlegacy.errors import ConfError, nearest
from dl4jlegacy.kernels.elementary import exp, expm1, integer_power, softplus, tanh

__all__ = ["ACTIVATIONS", "Activation", "activation"]

LEAK = 0.01
RRELU_LOWER, RRELU_UPPER = 1 / 8, 1 / 3
SELU_SCALE, SELU_ALPHA = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717
GELU_SLOPE = 1.702
SOFTPLUS_TAIL = -80.0
RATIONAL_SCALE, RATIONAL_QUARTIC = 1.7159, 1.41645

Forward = Callable[[ModuleType, Array], Array]
Slope = Callable[[ModuleType, Array, Array], Array]


@dataclass(frozen=True, slots=True)
class Activation:
    """An activation: ``y = forward(z)`` and ``dz = backward(dy, z, y)``; all arrays ``(m, n)``, none is changed.

    ``smooth``: whether the derivative is continuous, so that a numerical gradient check is meaningful. ``sample(z,
    uniforms)`` replaces ``forward`` in training for a randomised activation (``rrelu``); ``uniforms`` has a random
    number in [0, 1) for every value. ``backward`` works for both, since the drawn slope is ``y / z``.

    Activations whose values come close to 0 (and 1) without reaching it also compute ``dz`` from ``dL/d log y`` (and
    from ``dL/d logit y``): ``from_log(dlog, z, y)``, ``from_logit(dlogit, z, y)``, without a division by small numbers.
    """

    name: str
    forward: Callable[[Array], Array]
    backward: Callable[[Array, Array, Array], Array]
    smooth: bool = True
    sample: Callable[[Array, Array], Array] | None = None
    from_log: Callable[[Array, Array, Array], Array] | None = None
    from_logit: Callable[[Array, Array, Array], Array] | None = None


def activation(name: str) -> Activation:
    """Return the activation called ``name`` (lower case, as in DL4J's ``Activation`` enum).

    Raises:
        ConfError: there is no activation of that name; the message gives the nearest.
    """
    try:
        return ACTIVATIONS[name]
    except KeyError:
        raise ConfError(f"unknown activation {name!r}{nearest(name, tuple(ACTIVATIONS))}") from None


def _sigmoid(xp: ModuleType, z: Array) -> Array:
    e = exp(-xp.abs(z))  # never overflows, and keeps its relative precision in the lower tail
    result: Array = xp.where(z >= 0, 1, e) / (1 + e)
    return result


def _softmax(z: Array) -> Array:
    y: Array = exp(z - z.max(axis=1, keepdims=True))
    y /= y.sum(axis=1, keepdims=True)
    return y


def _softmax_from_logit(dlogit: Array, z: Array, y: Array) -> Array:
    """Return ``dz`` from ``dL/d logit y``, where ``logit y_k = z_k - log sum_{j != k} exp(z_j)``.

    The derivative is a softmax over the values other than ``k``. For all but the largest value it is
    ``y / (1 - y_k)``, where ``1 - y_k`` is not a difference of nearly equal numbers.
    """
    xp = get_array_module(z)
    if z.shape[1] == 1:  # the probability is 1 for any z
        nothing: Array = xp.zeros_like(z)
        return nothing
    top = xp.arange(z.shape[1]) == z.argmax(axis=1)[:, None]
    besides = exp(xp.where(top, -xp.inf, z - xp.where(top, -xp.inf, z).max(axis=1, keepdims=True)))
    besides /= besides.sum(axis=1, keepdims=True)
    shares = xp.where(top, 0, dlogit / xp.where(top, 1, 1 - y))
    largest = (dlogit * top).sum(axis=1, keepdims=True)
    result: Array = dlogit - y * (shares.sum(axis=1, keepdims=True) - shares) - largest * besides
    return result


def _softplus_from_log(dlog: Array, z: Array, y: Array) -> Array:
    xp = get_array_module(z)
    small = z < SOFTPLUS_TAIL  # softplus(z) = sigmoid(z) = exp(z) there, until both are 0
    result: Array = dlog * xp.where(small, 1, _sigmoid(xp, z) / xp.where(small, 1, y))
    return result


def _rational_tanh(xp: ModuleType, z: Array) -> Array:
    a = xp.abs(z) * (2 / 3)
    result: Array = RATIONAL_SCALE * xp.sign(z) * (1 - 1 / (1 + a + a * a + RATIONAL_QUARTIC * integer_power(a, 4)))
    return result


def _rational_tanh_slope(xp: ModuleType, z: Array, y: Array) -> Array:
    a = xp.abs(z) * (2 / 3)
    slope = (1 + 2 * a + 4 * RATIONAL_QUARTIC * integer_power(a, 3)) / (
        1 + a + a * a + RATIONAL_QUARTIC * integer_power(a, 4)
    ) ** 2
    result: Array = RATIONAL_SCALE * (2 / 3) * slope
    return result


def _expm1_negative(xp: ModuleType, z: Array) -> Array:
    result: Array = expm1(xp.minimum(z, 0))  # the branch not taken must not overflow
    return result


def _gated(gate: Forward, gate_slope: Slope) -> tuple[Forward, Slope]:
    """Return ``z g(z)`` and its derivative ``g + z g'``, where ``gate_slope(xp, z, g)`` is ``g'``."""

    def forward(xp: ModuleType, z: Array) -> Array:
        return z * gate(xp, z)

    def slope(xp: ModuleType, z: Array, y: Array) -> Array:
        g = gate(xp, z)
        result: Array = g + z * gate_slope(xp, z, g)
        return result

    return forward, slope


def _rrelu_sample(z: Array, uniforms: Array) -> Array:
    slope = uniforms * (RRELU_UPPER - RRELU_LOWER)
    slope += RRELU_LOWER
    result: Array = get_array_module(z).where(z < 0, slope * z, z)
    return result


def _rrelu_slope(xp: ModuleType, z: Array, y: Array) -> Array:
    negative = z < 0
    result: Array = xp.where(negative, y / xp.where(negative, z, 1), 1)
    return result


def _pointwise(
    name: str,
    forward: Forward,
    slope: Slope,
    *,
    smooth: bool = True,
    **more: Any,
) -> Activation:
    """Return the elementwise activation ``forward``; ``more`` are further fields of ``Activation``."""

    def apply(z: Array) -> Array:
        y: Array = forward(get_array_module(z), z).astype(z.dtype, copy=False)
        return y

    def backward(dy: Array, z: Array, y: Array) -> Array:
        result: Array = dy * slope(get_array_module(z), z, y)
        return result.astype(dy.dtype, copy=False)

    return Activation(name, apply, backward, smooth, **more)


def _table() -> dict[str, Activation]:
    swish = _gated(_sigmoid, lambda xp, z, g: g * (1 - g))
    # Legacy: DL4J's default GELU is this approximation (Hendrycks and Gimpel 2016, section 2), not the erf form.
    gelu = _gated(lambda xp, z: _sigmoid(xp, GELU_SLOPE * z), lambda xp, z, g: GELU_SLOPE * g * (1 - g))
    mish = _gated(lambda xp, z: tanh(softplus(z)), lambda xp, z, g: (1 - g * g) * _sigmoid(xp, z))
    mean = (RRELU_LOWER + RRELU_UPPER) / 2
    entries = [
        _pointwise("cube", lambda xp, z: integer_power(z, 3), lambda xp, z, y: 3 * z * z),
        _pointwise("elu", lambda xp, z: xp.where(z > 0, z, _expm1_negative(xp, z)),
                   lambda xp, z, y: xp.where(z > 0, 1, y + 1)),
        _pointwise("gelu", *gelu),
        _pointwise("hardsigmoid", lambda xp, z: xp.clip(0.2 * z + 0.5, 0, 1),
                   lambda xp, z, y: 0.2 * ((z > -2.5) & (z < 2.5)).astype(xp.float64), smooth=False),
        _pointwise("hardtanh", lambda xp, z: xp.clip(z, -1, 1), lambda xp, z, y: (z > -1) & (z < 1), smooth=False),
        _pointwise("identity", lambda xp, z: z.copy(), lambda xp, z, y: xp.ones_like(z)),
        _pointwise("leakyrelu", lambda xp, z: xp.where(z > 0, z, LEAK * z),
                   lambda xp, z, y: xp.where(z > 0, xp.float64(1), LEAK), smooth=False),
        _pointwise("mish", *mish),
        _pointwise("rationaltanh", _rational_tanh, _rational_tanh_slope),
        _pointwise("rectifiedtanh", lambda xp, z: xp.maximum(tanh(z), 0),
                   lambda xp, z, y: xp.where(z > 0, 1 - y * y, 0), smooth=False),
        _pointwise("relu", lambda xp, z: xp.maximum(z, 0), lambda xp, z, y: z > 0, smooth=False),
        _pointwise("relu6", lambda xp, z: xp.clip(z, 0, 6), lambda xp, z, y: (z > 0) & (z < 6), smooth=False),
        _pointwise("rrelu", lambda xp, z: xp.where(z < 0, mean * z, z), _rrelu_slope,
                   smooth=False, sample=_rrelu_sample),
        _pointwise("selu", lambda xp, z: SELU_SCALE * xp.where(z > 0, z, SELU_ALPHA * _expm1_negative(xp, z)),
                   lambda xp, z, y: xp.where(z > 0, SELU_SCALE, y + SELU_SCALE * SELU_ALPHA), smooth=False),
        _pointwise("sigmoid", _sigmoid, lambda xp, z, y: y * (1 - y),
                   from_log=lambda dlog, z, y: dlog * (1 - y), from_logit=lambda dlogit, z, y: dlogit.copy()),
        Activation("softmax", _softmax, lambda dy, z, y: y * (dy - (dy * y).sum(axis=1, keepdims=True)),
                   from_log=lambda dlog, z, y: dlog - y * dlog.sum(axis=1, keepdims=True),
                   from_logit=_softmax_from_logit),
        _pointwise("softplus", lambda xp, z: softplus(z), lambda xp, z, y: _sigmoid(xp, z),
                   from_log=_softplus_from_log),
        _pointwise("softsign", lambda xp, z: z / (1 + xp.abs(z)), lambda xp, z, y: 1 / (1 + xp.abs(z)) ** 2),
        _pointwise("swish", *swish),
        _pointwise("tanh", lambda xp, z: tanh(z), lambda xp, z, y: 1 - y * y),
        _pointwise("thresholdedrelu", lambda xp, z: xp.where(z > 1, z, 0), lambda xp, z, y: z > 1, smooth=False),
    ]  # fmt: skip
    return {entry.name: entry for entry in entries}


ACTIVATIONS: dict[str, Activation] = _table()
