"""Images arranged as one image, for display of a network's outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import ShapeError

__all__ = ["image_grid", "pixels_of"]

_GAP = 2
_BACKGROUND = 96
_LEAST = 48  # minimum pixels of an image's longer side; smaller images are enlarged


def pixels_of(rows: Array, shape: tuple[int, int, int], low: float = 0.0, high: float = 1.0) -> Array:
    """Return values as bytes ``(examples, channels, height, width)``, clipped to ``low`` (black) .. ``high`` (white).

    Args:
        rows: ``(examples, channels * height * width)``, in the order of ``shape``.
        shape: channels, height and width.
        low, high: the range; if they are equal, all pixels are black.

    Raises:
        ShapeError: the rows have another number of values.
    """
    if rows.ndim != 2 or rows.shape[1] != math.prod(shape):
        raise ShapeError(f"rows of shape {rows.shape} are no images of {shape} (channels, height, width)")
    scale = 255 / (high - low) if high > low else 0.0
    shades = ((rows.astype(np.float64) - low) * scale).clip(0, 255)
    pixels: Array = shades.round().astype(np.uint8).reshape(-1, *shape)
    return pixels


def image_grid(lines: Sequence[Array], *, zoom: int | None = None) -> Array:
    """Return rows of images as one image, bytes ``(channels, height, width)``, on gray with gaps.

    Args:
        lines: rows from top to bottom; each has its images from left to right, bytes
            ``(images, channels, height, width)``.
        zoom: the enlargement factor; None: chosen so that small images are visible.

    Raises:
        ShapeError: there is no image, or they differ in size.
    """
    shapes = {line.shape[1:] for line in lines if len(line)}
    if len(shapes) != 1:
        raise ShapeError(f"a grid needs images of one shape, and is given {sorted(shapes)}")
    channels, height, width = shapes.pop()
    factor = zoom or max(1, -(-_LEAST // max(height, width)))
    high, wide = height * factor + _GAP, width * factor + _GAP
    columns = max(map(len, lines))
    grid = np.full((channels, len(lines) * high + _GAP, columns * wide + _GAP), _BACKGROUND, np.uint8)
    for top, line in zip(range(_GAP, grid.shape[1], high), lines, strict=False):
        for left, image in zip(range(_GAP, grid.shape[2], wide), line, strict=False):
            enlarged = image.repeat(factor, axis=1).repeat(factor, axis=2)
            grid[:, top : top + height * factor, left : left + width * factor] = enlarged
    return grid
