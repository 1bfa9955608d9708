"""Gradient normalization: the table of methods, which change a flat gradient in place.

Legacy: ``org.deeplearning4j.nn.conf.GradientNormalization``.
"""

from __future__ import annotations

from collections.abc import Callable

from dl4jlegacy.arrays.backend import Array, Scalar, get_array_module, is_on_device
from dl4jlegacy.kernels.elementary import sum_of_squares

__all__ = ["GRADIENT_NORMALIZATIONS"]


def _norm(part: Array) -> Scalar:
    return get_array_module(part).sqrt(sum_of_squares(part))


def _renormalize(part: Array, threshold: float) -> None:
    xp, norm = get_array_module(part), _norm(part)
    part /= xp.where(norm > 0, norm, 1).astype(part.dtype)


def _clip_l2(part: Array, threshold: float) -> None:
    norm = _norm(part)
    if is_on_device(part) or norm > threshold:  # no comparison on a GPU: it multiplies by 1 instead
        xp = get_array_module(part)
        part *= xp.where(norm > threshold, threshold / norm, 1).astype(part.dtype)


def _clip_elements(part: Array, threshold: float) -> None:
    get_array_module(part).clip(part, -threshold, threshold, out=part)


GRADIENT_NORMALIZATIONS: dict[str, tuple[Callable[[Array, float], None], bool] | None] = {
    "none": None,
    "renormalize_l2_per_layer": (_renormalize, False),
    "renormalize_l2_per_param_type": (_renormalize, True),
    "clip_element_wise_absolute_value": (_clip_elements, False),
    "clip_l2_per_layer": (_clip_l2, False),
    "clip_l2_per_param_type": (_clip_l2, True),
}
"""Name to (function of a flat gradient and the threshold, whether it is applied to each parameter separately)."""
