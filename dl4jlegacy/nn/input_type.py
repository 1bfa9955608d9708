"""InputType: the kind and shape of one example at the input of a layer, and the memory layout of its batches.

Sizes, kernels and preprocessors are inferred from it, so a configuration with an input type needs no ``n_in``.
Legacy: ``org.deeplearning4j.nn.conf.inputs.InputType``. Outside a network arrays have DL4J's shapes; inside they have
the layout of the kernels, and are converted once at the input and once at the output:

================  ======================================  ==============================================
kind              outside                                 inside (always C-contiguous)
================  ======================================  ==============================================
feed_forward      ``(examples, size)``                    the same
recurrent         ``(examples, size, time steps)``        ``(time steps, examples, size)``
convolutional     ``(examples, channels, height, width)`` ``(tiles, channels, height, width, lanes)``
================  ======================================  ==============================================

A tile holds ``lanes`` examples side by side as the innermost axis; ``kernels.lanes`` is their number. Lanes of the last
tile without an example (unused lanes) hold arbitrary finite values in activations and zeros in gradients.
"""

from __future__ import annotations

import math

from dl4jlegacy.errors import ShapeError
from dl4jlegacy.nn.arguments import Tagged

__all__ = [
    "AnyInputType",
    "InputType",
    "InputTypeConvolutional",
    "InputTypeConvolutionalFlat",
    "InputTypeFeedForward",
    "InputTypeRecurrent",
]


class _InputType(Tagged, omit_defaults=True):
    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            size = getattr(self, field)
            if not isinstance(size, bool) and size < (0 if field == "timesteps" else 1):
                raise ShapeError(f"input type {self.kind}: {field} is {size}; it must be positive")

    @property
    def kind(self) -> str:
        """``"feed_forward"``, ``"recurrent"``, ``"convolutional"`` or ``"convolutional_flat"``."""
        return str(self.__struct_config__.tag)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one example outside the network; 0 for a variable number of time steps."""
        raise NotImplementedError

    @property
    def n_in(self) -> int:
        """The ``n_in`` of a layer with this input: values, values of one time step, or channels."""
        return self.shape[0]

    @property
    def columns(self) -> int:
        """Number of values of an example; for sequences, of one time step."""
        return math.prod(self.shape)

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Return whether ``shape`` (examples first) is valid for a batch; flat rows of the right length are too."""
        return shape[1:] == self.shape or (len(shape) == 2 and shape[1] == self.columns)

    def fits_columns(self, columns: int) -> bool:
        """Return whether examples with ``columns`` values in total are a valid input."""
        return columns == self.columns

    def __str__(self) -> str:
        return f"{self.kind} {'x'.join(str(size or 'any') for size in self.shape)}"


class InputTypeFeedForward(_InputType, tag="feed_forward"):
    """Vectors of ``size`` values; ``sequences``: one row for each time step of each example, ordered by time step."""

    size: int
    sequences: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """``(size,)``."""
        return (self.size,)

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Return whether a batch of ``shape`` is a valid input; more dimensions are flattened."""
        return math.prod(shape[1:]) == self.size


class InputTypeRecurrent(_InputType, tag="recurrent"):
    """Sequences of vectors of ``size`` values; ``timesteps`` 0: sequences of any length."""

    size: int
    timesteps: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """``(size, timesteps)``."""
        return (self.size, self.timesteps)

    @property
    def columns(self) -> int:
        """``size``."""
        return self.size

    def fits_columns(self, columns: int) -> bool:
        """Return whether examples with ``columns`` values in total are a valid input."""
        return columns == self.size * self.timesteps if self.timesteps else columns % self.size == 0

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Return whether a batch of ``shape`` is a valid input: ``(examples, size, time steps)``."""
        return len(shape) == 3 and shape[1] == self.size and shape[2] > 0


class InputTypeConvolutional(_InputType, tag="convolutional"):
    """Images; ``sequences``: one image for each time step of each example."""

    height: int
    width: int
    channels: int
    sequences: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """``(channels, height, width)``."""
        return (self.channels, self.height, self.width)


class InputTypeConvolutionalFlat(_InputType, tag="convolutional_flat"):
    """Images given as rows of ``channels * height * width`` values, as in MNIST."""

    height: int
    width: int
    channels: int

    @property
    def shape(self) -> tuple[int, ...]:
        """``(channels * height * width,)``."""
        return (self.channels * self.height * self.width,)

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Return whether ``shape`` is valid for a batch: rows, or images (with one channel, also without its axis)."""
        plain = self.channels == 1 and shape[1:] == (self.height, self.width)
        return plain or shape[1:] in (self.shape, (self.channels, self.height, self.width))

    def __str__(self) -> str:
        return f"rows of {self.channels}x{self.height}x{self.width} images"

    def unflattened(self) -> InputTypeConvolutional:
        """Return the type of the images themselves."""
        return InputTypeConvolutional(height=self.height, width=self.width, channels=self.channels)


AnyInputType = InputTypeFeedForward | InputTypeRecurrent | InputTypeConvolutional | InputTypeConvolutionalFlat


class InputType:
    """DL4J's way to write an input type: ``InputType.convolutional(28, 28, 1)``."""

    @staticmethod
    def feed_forward(size: int) -> InputTypeFeedForward:
        """Return the type of vectors of ``size`` values."""
        return InputTypeFeedForward(size=size)

    @staticmethod
    def recurrent(size: int, timesteps: int = 0) -> InputTypeRecurrent:
        """Return the type of sequences of vectors; ``timesteps`` 0: any length."""
        return InputTypeRecurrent(size=size, timesteps=timesteps)

    @staticmethod
    def convolutional(height: int, width: int, channels: int) -> InputTypeConvolutional:
        """Return the type of images ``(examples, channels, height, width)``."""
        return InputTypeConvolutional(height=height, width=width, channels=channels)

    @staticmethod
    def convolutional_flat(height: int, width: int, channels: int) -> InputTypeConvolutionalFlat:
        """Return the type of images that come as rows."""
        return InputTypeConvolutionalFlat(height=height, width=width, channels=channels)
