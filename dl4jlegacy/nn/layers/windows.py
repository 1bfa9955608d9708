"""Convolution and pooling windows along one axis: sizes, padding, and unfolding of sequences.

Legacy: ``org.deeplearning4j.nn.conf.ConvolutionMode`` and ``ConvolutionUtils.getOutputSize``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Literal, get_args

from dl4jlegacy.arrays.backend import Array, get_array_module
from dl4jlegacy.errors import ConfError, ShapeError
from dl4jlegacy.nn.arguments import resolve_name

__all__ = ["PAIRS", "Mode", "Window", "check_window", "image_windows", "time_window"]

Mode = Literal["truncate", "same", "strict"]
PAIRS = {"kernel_size": 2, "stride": 2, "padding": 2, "dilation": 2}
"""Fields of image layers that one number sets for both height and width."""


def check_window(title: str, layer: Any, count: int) -> None:
    """Check ``kernel_size, stride, padding, dilation, convolution_mode`` of a layer, ``count`` values each.

    Raises:
        ConfError: a size is not a positive whole number, the mode is unknown, or there is padding in the mode "same".
    """
    for field, least in (("kernel_size", 1), ("stride", 1), ("padding", 0), ("dilation", 1)):
        given = getattr(layer, field, 1)
        if hasattr(layer, field):
            _check_dimensions(title, field, given, count)
        for size in given if isinstance(given, tuple) else (given,):
            if size < least:
                raise ConfError(f"{title}: {field} is {_text(given)}; it must be at least {least}")
    resolve_name(layer, title, "convolution_mode", get_args(Mode))
    if layer.convolution_mode == "same" and layer.padding not in (0, (0, 0)):
        raise ConfError(
            f"{title}: padding is {_text(layer.padding)}, but convolution_mode 'same' makes its own; leave padding out"
        )


def _check_dimensions(title: str, field: str, given: Any, count: int) -> None:
    """Raise ``ConfError`` unless ``given`` is a whole number, or a pair of whole numbers if ``count`` is 2."""
    numbers = given if isinstance(given, tuple) else (given,)
    is_right = isinstance(given, tuple) == (count > 1) and len(numbers) == count
    if not is_right or not all(type(size) is int for size in numbers):
        wanted = "(height, width), two whole numbers" if count > 1 else "one whole number"
        raise ConfError(f"{title}: {field} is {given!r}; give {wanted}")


def _text(size: Any) -> str:
    return "x".join(map(str, size)) if isinstance(size, tuple) else str(size)


@dataclass(frozen=True, slots=True)
class Window:
    """A window of ``kernel`` places, ``dilation`` apart, that moves over ``size`` places in steps of ``stride``.

    ``before`` and ``after`` are the places of padding at the two ends, ``out`` is the number of window positions.
    """

    size: int
    kernel: int
    stride: int
    dilation: int
    before: int
    after: int
    out: int

    @property
    def padded(self) -> int:
        """The number of places, the padding at both ends included."""
        return self.before + self.size + self.after

    @classmethod
    @functools.lru_cache(maxsize=1024)  # every training step calls this again
    def along(
        cls, axis: str, size: int, *, kernel: int, stride: int, padding: int, mode: Mode, dilation: int = 1
    ) -> Window:
        """Return the window of a layer along one axis; ``axis`` is the name of that axis in messages.

        Raises:
            ShapeError: the kernel is larger than the padded input, or in mode "strict" the stride leaves a remainder.
        """
        reach = (kernel - 1) * dilation + 1
        if mode == "same":
            out = -(-size // stride)
            total = max(0, (out - 1) * stride + reach - size)
            return cls(size, kernel, stride, dilation, total // 2, total - total // 2, out)
        rest = size + 2 * padding - reach
        if rest < 0:
            dilated = f" (dilated to {reach})" if dilation > 1 else ""
            raise ShapeError(
                f"kernel {axis} {kernel}{dilated} is larger than its input of {axis} {size} with padding {padding}; "
                "use a smaller kernel, more padding, convolution_mode='same', or fewer layers that shrink the input"
            )
        if mode == "strict" and rest % stride:
            raise ShapeError(
                f"convolution_mode 'strict': input {axis} {size} with padding {padding} less kernel {reach} is {rest}, "
                f"no multiple of stride {stride}; use 'truncate' or 'same', or sizes that fit"
            )
        return cls(size, kernel, stride, dilation, padding, padding, rest // stride + 1)

    def unfold(self, x: Array, fill: float = 0.0) -> Array:
        """Return the values of ``(size, examples, n)`` under each window: ``(out, examples, kernel, n)``."""
        xp = get_array_module(x)
        padded = xp.full((self.padded, *x.shape[1:]), fill, x.dtype)
        padded[self.before : self.before + self.size] = x
        columns: Array = xp.empty((self.out, x.shape[1], self.kernel, x.shape[2]), x.dtype)
        for place in range(self.kernel):
            columns[:, :, place] = padded[self._met(place)]
        return columns

    def fold(self, columns: Array, shape: tuple[int, ...]) -> Array:
        """Return the adjoint of ``unfold``: sequences of ``shape``, in which overlapping ``columns`` are summed."""
        xp = get_array_module(columns)
        padded = xp.zeros((self.padded, *shape[1:]), columns.dtype)
        seen = columns.reshape(self.out, shape[1], self.kernel, shape[2])
        for place in range(self.kernel):
            padded[self._met(place)] += seen[:, :, place]
        whole: Array = xp.ascontiguousarray(padded[self.before : self.before + self.size])
        return whole

    def reduced_mask(self, mask: Array) -> Array:
        """Return the mask ``(out, examples)`` of the window positions: the largest mask value under each window.

        If the window keeps the length of a sequence at stride 1, the mask stays as it is: windows that reach behind the
        end of a sequence do not make the sequence longer. Legacy: ``ConvolutionUtils.cnn1dMaskReduction``, for mode
        "same".
        """
        if self.stride == 1 and self.out == self.size:
            return mask
        seen: Array = self.unfold(mask[:, :, None]).max(axis=2)[:, :, 0]
        reduced: Array = get_array_module(seen).ascontiguousarray(seen)
        return reduced

    def _met(self, place: int) -> slice:
        start = place * self.dilation
        return slice(start, start + (self.out - 1) * self.stride + 1, self.stride)


def image_windows(layer: Any, shape: tuple[int, int]) -> tuple[Window, Window]:
    """Return a layer's windows along both axes of images of ``shape`` (height, width)."""
    sizes = zip(shape, layer.kernel_size, layer.stride, layer.padding, getattr(layer, "dilation", (1, 1)), strict=True)
    rows, columns = (
        Window.along(
            axis, size, kernel=kernel, stride=stride, padding=padding, dilation=dilation, mode=layer.convolution_mode
        )
        for axis, (size, kernel, stride, padding, dilation) in zip(("height", "width"), sizes, strict=True)
    )
    return rows, columns


def time_window(layer: Any, steps: int) -> Window:
    """Return a layer's window along sequences of ``steps`` time steps."""
    return Window.along(
        "length",
        steps,
        kernel=layer.kernel_size,
        stride=layer.stride,
        padding=layer.padding,
        dilation=getattr(layer, "dilation", 1),
        mode=layer.convolution_mode,
    )
