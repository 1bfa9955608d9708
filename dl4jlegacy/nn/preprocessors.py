"""Input preprocessors: placed between two layers, they change the kind of activation or its values.

``stages`` inserts the right one where neighbouring layers differ in kind. A configuration names one (by layer index)
only where sizes cannot be inferred: from vectors or sequences to images. All work on arrays in the layout inside a
network, see ``input_type``. Legacy: ``org.deeplearning4j.nn.conf.preprocessor``.

Those that change values (``UnitVarianceProcessor``, ``ZeroMeanPrePreProcessor``,
``ZeroMeanAndUnitVariancePreProcessor`` and ``BinomialSamplingPreProcessor``) differ from DL4J's in three ways:

- DL4J's ``backprop`` passes the gradient on unchanged; here it is the derivative, including mean and deviation. Only
  sampling, which has no derivative, passes the gradient straight through (Bengio 2013);
- DL4J's accept only rows; here they also accept sequences, with statistics per value over all time steps of all
  examples. Masked time steps do not count. If only one row counts, there is no deviation and nothing is divided;
- DL4J's overwrite their input.

As in DL4J, mean and deviation are always those of the current batch, in prediction too: the output of an example
depends on the other examples. ``BatchNormalization`` is the layer with running statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

from dl4jlegacy.arrays.backend import Array, get_array_module
from dl4jlegacy.errors import ConfError, ShapeError
from dl4jlegacy.nn.arguments import Tagged
from dl4jlegacy.nn.input_type import (
    AnyInputType,
    InputTypeConvolutional,
    InputTypeConvolutionalFlat,
    InputTypeFeedForward,
    InputTypeRecurrent,
)
from dl4jlegacy.nn.optimization.step import Step

__all__ = [
    "BinomialSamplingPreProcessor",
    "CnnToFeedForwardPreProcessor",
    "CnnToRnnPreProcessor",
    "ComposableInputPreProcessor",
    "FeedForwardToCnnPreProcessor",
    "FeedForwardToRnnPreProcessor",
    "InputPreProcessor",
    "PreProcessor",
    "RnnToCnnPreProcessor",
    "RnnToFeedForwardPreProcessor",
    "UnitVarianceProcessor",
    "ZeroMeanAndUnitVariancePreProcessor",
    "ZeroMeanPrePreProcessor",
    "infer_preprocessor",
    "resolve_preprocessor",
]

Back = Callable[[Array], Array]
_EPS = 1e-5
"""Added to every deviation, as ``Nd4j.EPS_THRESHOLD``: a constant column is divided by this number."""


class PreProcessor(Tagged):
    """Transforms activations between two layers; frozen, without parameters."""

    def natural_input(self) -> AnyInputType | None:
        """Return the only possible input type; None if it depends on the layer before."""
        return None

    @property
    def keeps_type(self) -> bool:
        """Whether the output has the type of the input; the layer behind then determines both."""
        return False

    def output_type(self, given: AnyInputType) -> AnyInputType:
        """Return the type of the output; raise ``ShapeError`` if ``given`` is not a possible input."""
        raise NotImplementedError

    def rows(self, x: Array, step: Step) -> int:
        """Return the number of images (or vectors) in the output for ``x``."""
        return step.rows

    def forward(self, x: Array, step: Step) -> tuple[Array, Back]:
        """Return the output for ``x``, and the backward pass of its gradient."""
        raise NotImplementedError

    def forward_mask(self, mask: Array | None, step: Step) -> Array | None:
        """Return the mask ``(time steps, examples)`` behind the preprocessor."""
        return mask

    def _refuse(self, given: AnyInputType, wants: str) -> ShapeError:
        return ShapeError(f"preprocessor {self.title()} takes {wants}, what comes in is {given}")


class _Images(PreProcessor):
    height: int
    width: int
    channels: int = 1

    def _size(self) -> int:
        return self.height * self.width * self.channels

    def _images(self, *, sequences: bool) -> InputTypeConvolutional:
        return InputTypeConvolutional(height=self.height, width=self.width, channels=self.channels, sequences=sequences)

    def _check_images(self, given: AnyInputType) -> InputTypeConvolutional:
        shape = (self.channels, self.height, self.width)
        if not isinstance(given, InputTypeConvolutional) or given.shape != shape:
            raise self._refuse(given, f"images {'x'.join(map(str, shape))}")
        return given

    def _tiled(self, name: str, rows: Array, step: Step) -> Array:
        """Return ``rows (n, channels * height * width)`` as tiles, with zeros in unused lanes."""
        lanes = step.kernels.lanes(rows.dtype.char, len(rows))
        tiles = step.buffer(name, (-(-len(rows) // lanes), self.channels, self.height, self.width, lanes), rows)
        step.kernels.tile(rows, tiles)
        return tiles

    def _untiled(self, name: str, tiles: Array, rows: int, step: Step) -> Array:
        out = step.buffer(name, (rows, self._size()), tiles)
        step.kernels.untile(tiles, out)
        return out


class FeedForwardToCnnPreProcessor(_Images, tag="feed_forward_to_cnn"):
    """Converts rows ``channels x height x width`` to images."""

    def natural_input(self) -> AnyInputType | None:
        """Return the type of rows of the images' size."""
        return InputTypeFeedForward(size=self._size())

    def output_type(self, given: AnyInputType) -> AnyInputType:
        """Return the type of the images."""
        rows = isinstance(given, InputTypeFeedForward | InputTypeConvolutionalFlat)
        if not rows or given.n_in != self._size():
            raise self._refuse(given, f"rows of {self._size()} values")
        return self._images(sequences=isinstance(given, InputTypeFeedForward) and given.sequences)

    def rows(self, x: Array, step: Step) -> int:
        """Return the number of rows: each row becomes one image."""
        return len(x)

    def forward(self, x: Array, step: Step) -> tuple[Array, Back]:
        """Convert the rows to tiles."""
        return self._tiled("pre", x, step), lambda dy: self._untiled("pre_back", dy, len(x), step)


class CnnToFeedForwardPreProcessor(_Images, tag="cnn_to_feed_forward"):
    """Converts images to rows ``channels x height x width``."""

    def output_type(self, given: AnyInputType) -> AnyInputType:
        """Return the type of the rows."""
        return InputTypeFeedForward(size=self._size(), sequences=self._check_images(given).sequences)

    def forward(self, x: Array, step: Step) -> tuple[Array, Back]:
        """Convert the tiles to rows."""
        return self._untiled("pre", x, step.rows, step), lambda dy: self._tiled("pre_back", dy, step)


class RnnToFeedForwardPreProcessor(PreProcessor, tag="rnn_to_feed_forward"):
    """Converts sequences to rows, one for every time step; no values are moved."""

    def output_type(self, given: AnyInputType) -> AnyInputType:
        """Return rows of the same size."""
        if not isinstance(given, InputTypeRecurrent):
            raise self._refuse(given, "sequences")
        return InputTypeFeedForward(size=given.size, sequences=True)

    def forward(self, x: Array, step: Step) -> tuple[Array, Back]:
        """Return views of the input, and of its gradient."""
        return x.reshape(-1, x.shape[2]), lambda dy: dy.reshape(x.shape)


class FeedForwardToRnnPreProcessor(PreProcessor, tag="feed_forward_to_rnn"):
    """Converts rows, ordered by time step, to sequences; no values are moved."""

    def output_type(self, given: AnyInputType) -> AnyInputType:
        """Return sequences of vectors of the same size."""
        if isinstance(given, InputTypeRecurrent | InputTypeConvolutional):
            raise self._refuse(given, "rows")
        return InputTypeRecurrent(size=given.n_in)

    def forward(self, x: Array, step: Step) -> tuple[Array, Back]:
        """Return views of the input, and of its gradient."""
        return x.reshape(-1, step.examples, x.shape[1]), lambda dy: dy.reshape(x.shape)


class RnnToCnnPreProcessor(_Images, tag="rnn_to_cnn"):
    """Converts sequences to images, one for every time step."""

    def natural_input(self) -> AnyInputType | None:
        """Return the type of sequences of vectors of the images' size."""
        return InputTypeRecurrent(size=self._size())

    def output_type(self, given: AnyInputType) -> AnyInputType:
        """Return the type of the images."""
        if not isinstance(given, InputTypeRecurrent) or given.size != self._size():
            raise self._refuse(given, f"sequences of {self._size()} values a time step")
        return self._images(sequences=True)

    def rows(self, x: Array, step: Step) -> int:
        """Return the number of images: one for each time step and example."""
        return len(x) * int(x.shape[1])

    def forward(self, x: Array, step: Step) -> tuple[Array, Back]:
        """Convert the time steps to tiles."""
        rows = x.reshape(-1, x.shape[2])
        return (
            self._tiled("pre", rows, step),
            lambda dy: self._untiled("pre_back", dy, len(rows), step).reshape(x.shape),
        )


class CnnToRnnPreProcessor(_Images, tag="cnn_to_rnn"):
    """Converts images to sequences; images that are not time steps become sequences of length 1."""

    def output_type(self, given: AnyInputType) -> AnyInputType:
        """Return sequences of vectors of the images' size."""
        self._check_images(given)
        return InputTypeRecurrent(size=self._size())

    def rows(self, x: Array, step: Step) -> int:
        """Return the number of sequences: one for each example."""
        return step.examples

    def forward(self, x: Array, step: Step) -> tuple[Array, Back]:
        """Convert the tiles to sequences."""
        rows = self._untiled("pre", x, step.rows, step)
        y = rows.reshape(-1, step.examples, self._size())
        return y, lambda dy: self._tiled("pre_back", dy.reshape(rows.shape), step)


class _Columns(PreProcessor):
    """``y = (x - mean) / (deviation + eps)`` by column; subclasses may leave out either part."""

    centres: ClassVar[bool] = False
    scales: ClassVar[bool] = False

    @property
    def keeps_type(self) -> bool:
        """True."""
        return True

    def output_type(self, given: AnyInputType) -> AnyInputType:
        """Return the same type."""
        if isinstance(given, InputTypeConvolutional):
            raise self._refuse(
                given,
                "rows or sequences (a ComposableInputPreProcessor can have a CnnToFeedForwardPreProcessor before it; a "
                "BatchNormalization layer takes images)",
            )
        return given

    def forward(self, x: Array, step: Step) -> tuple[Array, Back]:
        """Standardise the columns of rows, or of the time steps of sequences."""
        xp = get_array_module(x)
        rows = x.reshape(-1, x.shape[-1])
        mask = step.mask
        # A factor for every row, and the number of rows that count: a number, or with a mask a 0-d array.
        counts = mask.reshape(-1, 1) if mask is not None and mask.size == len(rows) else None
        n = len(rows) if counts is None else xp.maximum(counts.sum(), 1)
        mean = _sum(rows, counts) / n
        centred = rows - mean
        y = centred if self.centres else rows
        if not self.scales:
            return y.reshape(x.shape), lambda dy: _centred_back(dy, counts, n)
        degrees = max(n - 1, 1) if counts is None else xp.maximum(n - 1, 1)
        deviation = xp.sqrt(_sum(centred * centred, counts) / degrees)
        divisor = deviation + _EPS
        if counts is not None:
            divisor = xp.where(n > 1, divisor, xp.ones_like(divisor))
        elif n == 1:
            divisor = xp.ones_like(divisor)
        y = y / divisor

        def back(dy: Array) -> Array:
            """With s the deviation: ds/dx = (x - mean) / ((n - 1) s), taken as 0 where s is 0."""
            d = dy.reshape(rows.shape)
            slope = -(d * y).sum(axis=0) / (divisor * degrees * xp.where(deviation > 0, deviation, 1))
            through = centred * slope
            dx: Array = d / divisor
            if self.centres:
                through -= dx.sum(axis=0) / n
            dx += through if counts is None else counts * through
            return dx.reshape(x.shape)

        return y.reshape(x.shape), back


def _sum(rows: Array, counts: Array | None) -> Array:
    total: Array = (rows if counts is None else rows * counts).sum(axis=0)
    return total


def _centred_back(dy: Array, counts: Array | None, n: int | Array) -> Array:
    d = dy.reshape(-1, dy.shape[-1])
    through = d.sum(axis=0) / n
    dx: Array = d - (through if counts is None else counts * through)
    return dx.reshape(dy.shape)


class ZeroMeanPrePreProcessor(_Columns, tag="zero_mean"):
    """Subtracts from every column its mean over the batch. (The name is DL4J's.)"""

    centres = True


class UnitVarianceProcessor(_Columns, tag="unit_variance"):
    """Divides every column by its standard deviation over the batch (n - 1 degrees of freedom), plus 1e-5."""

    scales = True


class ZeroMeanAndUnitVariancePreProcessor(_Columns, tag="zero_mean_and_unit_variance"):
    """Subtracts from every column its mean, and divides it by its standard deviation plus 1e-5."""

    centres = True
    scales = True


class BinomialSamplingPreProcessor(PreProcessor, tag="binomial_sampling"):
    """Replaces each value p by 1 with probability p, else by 0; for activations of any type.

    It also draws in prediction, as in DL4J, but then always from the same random numbers. The gradient passes straight
    through, as if nothing had been drawn.
    """

    @property
    def keeps_type(self) -> bool:
        """True."""
        return True

    def output_type(self, given: AnyInputType) -> AnyInputType:
        """Return the same type."""
        return given

    def forward(self, x: Array, step: Step) -> tuple[Array, Back]:
        """Draw a 0 or 1 for each value; unused lanes of tiles get finite values too."""
        y = step.buffer("binomial", x.shape, x)
        step.kernels.uniform(y, step.key("binomial"))
        y[...] = y < x
        return y, lambda dy: dy


class ComposableInputPreProcessor(PreProcessor, tag="composable_input"):
    """Several preprocessors, one after the other."""

    input_pre_processors: tuple[InputPreProcessor, ...]

    def __post_init__(self) -> None:
        if not self.input_pre_processors:
            raise ConfError(f"preprocessor {self.title()} has no input_pre_processors; give at least one")

    def natural_input(self) -> AnyInputType | None:
        """Return the natural input of the first preprocessor that changes the type."""
        changing = next((pre for pre in self.input_pre_processors if not pre.keeps_type), None)
        return None if changing is None else changing.natural_input()

    @property
    def keeps_type(self) -> bool:
        """Whether all of them keep the type."""
        return all(pre.keeps_type for pre in self.input_pre_processors)

    def output_type(self, given: AnyInputType) -> AnyInputType:
        """Return the output type of the last one."""
        for pre in self.input_pre_processors:
            given = pre.output_type(given)
        return given

    def flattened(self) -> Iterator[InputPreProcessor]:
        """Yield all preprocessors, with nested compositions replaced by their parts."""
        for pre in self.input_pre_processors:
            yield from pre.flattened() if isinstance(pre, ComposableInputPreProcessor) else (pre,)

    def rows(self, x: Array, step: Step) -> int:
        """Return the number of images in the output of the last one; only changes of kind change this number."""
        vectors = {2: len(x), 3: len(x) * int(x.shape[1])}.get(x.ndim, step.rows)
        rows = step.rows
        for pre in self.flattened():
            if isinstance(pre, FeedForwardToCnnPreProcessor | RnnToCnnPreProcessor):
                rows = vectors
            elif isinstance(pre, CnnToRnnPreProcessor):
                rows = step.examples
        return rows

    def forward(self, x: Array, step: Step) -> tuple[Array, Back]:
        """Apply all of them; each has its own work buffers and random numbers."""
        backs: list[Back] = []
        for index, pre in enumerate(self.input_pre_processors):
            here = step.at(step.layer, part=f"{step.part}{index} ")
            y, back = pre.forward(x, here)
            backs.append(back)
            step = step.at(step.layer, rows=pre.rows(x, here), mask=pre.forward_mask(step.mask, here))
            x = y

        def whole(dy: Array) -> Array:
            for back in reversed(backs):
                dy = back(dy)
            return dy

        return x, whole

    def forward_mask(self, mask: Array | None, step: Step) -> Array | None:
        """Return the mask behind the last preprocessor."""
        for pre in self.input_pre_processors:
            mask = pre.forward_mask(mask, step)
        return mask


InputPreProcessor = (
    FeedForwardToCnnPreProcessor
    | CnnToFeedForwardPreProcessor
    | RnnToFeedForwardPreProcessor
    | FeedForwardToRnnPreProcessor
    | RnnToCnnPreProcessor
    | CnnToRnnPreProcessor
    | ComposableInputPreProcessor
    | BinomialSamplingPreProcessor
    | UnitVarianceProcessor
    | ZeroMeanPrePreProcessor
    | ZeroMeanAndUnitVariancePreProcessor
)


def resolve_preprocessor(
    named: InputPreProcessor | None, given: AnyInputType, consumes: tuple[str, ...]
) -> tuple[InputPreProcessor | None, AnyInputType]:
    """Return the preprocessor before a layer that accepts one of ``consumes``, and the type of the layer's input.

    It is the one ``named`` in the configuration, else the one required by the types, if any.

    Raises:
        ShapeError: the preprocessor does not accept ``given``, or the layer does not accept its output.
    """
    if named is None:
        found = infer_preprocessor(given, consumes)
        return found, given if found is None else found.output_type(given)
    enters = named.output_type(given)
    if enters.kind not in consumes and infer_preprocessor(enters, consumes) is not None:
        raise ShapeError(
            f"takes {' or '.join(consumes)} activations, preprocessor {named.title()} before it gives {enters}: one "
            "that is named stands in the place of the automatic one; name both, in the right order, in a "
            "ComposableInputPreProcessor"
        )
    return named, enters


def infer_preprocessor(given: AnyInputType, consumes: tuple[str, ...]) -> InputPreProcessor | None:
    """Return the preprocessor needed before a layer that accepts one of ``consumes`` (preferred first), or None.

    Raises:
        ShapeError: the image sizes cannot be inferred.
    """
    kind, wanted = given.kind, consumes[0]
    if isinstance(given, InputTypeConvolutionalFlat):
        kind = next((name for name in consumes if name in ("feed_forward", "convolutional")), "feed_forward")
        if kind == "convolutional":
            return FeedForwardToCnnPreProcessor(height=given.height, width=given.width, channels=given.channels)
    if kind in consumes:
        return None
    if isinstance(given, InputTypeConvolutional):
        size = {"height": given.height, "width": given.width, "channels": given.channels}
        return CnnToFeedForwardPreProcessor(**size) if wanted == "feed_forward" else CnnToRnnPreProcessor(**size)
    if kind == "recurrent" and "feed_forward" in consumes:
        return RnnToFeedForwardPreProcessor()
    if wanted == "convolutional":
        name = "RnnToCnnPreProcessor" if kind == "recurrent" else "FeedForwardToCnnPreProcessor"
        raise ShapeError(
            f"takes images, what comes in is {given}: set input_type=InputType.convolutional_flat(height, width, "
            f"channels), or put a {name}(height=..., width=..., channels=...) before it"
        )
    return FeedForwardToRnnPreProcessor()
