"""Input preprocessors: from one kind of activation to another, between two layers (L2).

``stages`` puts the right one where neighbouring layers differ in kind; a configuration names one (by layer index) only
where sizes cannot be known: from vectors or sequences to images. All work on arrays as they lie inside a network, see
``input_type``. Legacy: ``org.deeplearning4j.nn.conf.preprocessor``.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from dl4jlegacy.backend import Array
from dl4jlegacy.errors import ShapeError
from dl4jlegacy.nn.input_type import (
    AnyInputType,
    InputTypeConvolutional,
    InputTypeConvolutionalFlat,
    InputTypeFeedForward,
    InputTypeRecurrent,
)
from dl4jlegacy.nn.step import Step

__all__ = [
    "CnnToFeedForwardPreProcessor",
    "CnnToRnnPreProcessor",
    "FeedForwardToCnnPreProcessor",
    "FeedForwardToRnnPreProcessor",
    "InputPreProcessor",
    "RnnToCnnPreProcessor",
    "RnnToFeedForwardPreProcessor",
    "automatic",
]

Back = Callable[[Array], Array]


class _PreProcessor(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True):
    def title(self) -> str:
        """Return the kind, for messages."""
        return str(self.__struct_config__.tag)

    def natural_input(self) -> AnyInputType | None:
        """Return the only type that can enter, if it is known without looking at the layer before."""
        return None

    def output_type(self, given: AnyInputType) -> AnyInputType:
        """Return the type that leaves; raise ``ShapeError`` if ``given`` cannot enter."""
        raise NotImplementedError

    def rows(self, x: Array, step: Step) -> int:
        """Return the number of images (or vectors) that leave when ``x`` enters."""
        return step.rows

    def forward(self, x: Array, step: Step) -> tuple[Array, Back]:
        """Return what ``x`` becomes, and the way back for its gradient."""
        raise NotImplementedError

    def forward_mask(self, mask: Array | None, step: Step) -> Array | None:
        """Return the mask ``(time steps, examples)`` behind the preprocessor."""
        return mask

    def _refuse(self, given: AnyInputType, wants: str) -> ShapeError:
        return ShapeError(f"preprocessor {self.title()} takes {wants}, what comes in is {given}")


class _Images(_PreProcessor, frozen=True, kw_only=True):
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
        """Return ``rows (n, channels * height * width)`` as tiles, unused lanes zero."""
        lanes = step.kernels.lanes(rows.dtype.char, len(rows))
        tiles = step.buffer(name, (-(-len(rows) // lanes), self.channels, self.height, self.width, lanes), rows)
        step.kernels.tile(rows, tiles)
        return tiles

    def _untiled(self, name: str, tiles: Array, rows: int, step: Step) -> Array:
        out = step.buffer(name, (rows, self._size()), tiles)
        step.kernels.untile(tiles, out)
        return out


class FeedForwardToCnnPreProcessor(_Images, frozen=True, kw_only=True, tag="feed_forward_to_cnn"):
    """Rows ``channels x height x width`` to images."""

    def natural_input(self) -> AnyInputType | None:
        """Rows of the images' size."""
        return InputTypeFeedForward(size=self._size())

    def output_type(self, given: AnyInputType) -> AnyInputType:
        """Return the images."""
        rows = isinstance(given, InputTypeFeedForward | InputTypeConvolutionalFlat)
        if not rows or given.n_in != self._size():
            raise self._refuse(given, f"rows of {self._size()} values")
        return self._images(sequences=isinstance(given, InputTypeFeedForward) and given.sequences)

    def rows(self, x: Array, step: Step) -> int:
        """One image a row."""
        return len(x)

    def forward(self, x: Array, step: Step) -> tuple[Array, Back]:
        """Tile the rows."""
        return self._tiled("pre", x, step), lambda dy: self._untiled("pre_back", dy, len(x), step)


class CnnToFeedForwardPreProcessor(_Images, frozen=True, kw_only=True, tag="cnn_to_feed_forward"):
    """Images to rows ``channels x height x width``."""

    def output_type(self, given: AnyInputType) -> AnyInputType:
        """Return the rows."""
        return InputTypeFeedForward(size=self._size(), sequences=self._check_images(given).sequences)

    def forward(self, x: Array, step: Step) -> tuple[Array, Back]:
        """Untile the images."""
        return self._untiled("pre", x, step.rows, step), lambda dy: self._tiled("pre_back", dy, step)


class RnnToFeedForwardPreProcessor(_PreProcessor, frozen=True, kw_only=True, tag="rnn_to_feed_forward"):
    """Sequences to rows, one for every time step: nothing moves."""

    def output_type(self, given: AnyInputType) -> AnyInputType:
        """Return rows of the same size."""
        if not isinstance(given, InputTypeRecurrent):
            raise self._refuse(given, "sequences")
        return InputTypeFeedForward(size=given.size, sequences=True)

    def forward(self, x: Array, step: Step) -> tuple[Array, Back]:
        """Return views."""
        return x.reshape(-1, x.shape[2]), lambda dy: dy.reshape(x.shape)


class FeedForwardToRnnPreProcessor(_PreProcessor, frozen=True, kw_only=True, tag="feed_forward_to_rnn"):
    """Rows, time step by time step, to sequences: nothing moves."""

    def output_type(self, given: AnyInputType) -> AnyInputType:
        """Return sequences of vectors of the same size."""
        if isinstance(given, InputTypeRecurrent | InputTypeConvolutional):
            raise self._refuse(given, "rows")
        return InputTypeRecurrent(size=given.n_in)

    def forward(self, x: Array, step: Step) -> tuple[Array, Back]:
        """Return views."""
        return x.reshape(-1, step.examples, x.shape[1]), lambda dy: dy.reshape(x.shape)


class RnnToCnnPreProcessor(_Images, frozen=True, kw_only=True, tag="rnn_to_cnn"):
    """Sequences to images, one for every time step."""

    def natural_input(self) -> AnyInputType | None:
        """Sequences of vectors of the images' size."""
        return InputTypeRecurrent(size=self._size())

    def output_type(self, given: AnyInputType) -> AnyInputType:
        """Return the images."""
        if not isinstance(given, InputTypeRecurrent) or given.size != self._size():
            raise self._refuse(given, f"sequences of {self._size()} values a time step")
        return self._images(sequences=True)

    def rows(self, x: Array, step: Step) -> int:
        """One image a time step and example."""
        return len(x) * int(x.shape[1])

    def forward(self, x: Array, step: Step) -> tuple[Array, Back]:
        """Tile the time steps."""
        rows = x.reshape(-1, x.shape[2])
        return (
            self._tiled("pre", rows, step),
            lambda dy: self._untiled("pre_back", dy, len(rows), step).reshape(x.shape),
        )


class CnnToRnnPreProcessor(_Images, frozen=True, kw_only=True, tag="cnn_to_rnn"):
    """Images to sequences; images that are no time steps become sequences of length 1."""

    def output_type(self, given: AnyInputType) -> AnyInputType:
        """Return sequences of vectors of the images' size."""
        self._check_images(given)
        return InputTypeRecurrent(size=self._size())

    def rows(self, x: Array, step: Step) -> int:
        """One sequence an example."""
        return step.examples

    def forward(self, x: Array, step: Step) -> tuple[Array, Back]:
        """Untile the images."""
        rows = self._untiled("pre", x, step.rows, step)
        y = rows.reshape(-1, step.examples, self._size())
        return y, lambda dy: self._tiled("pre_back", dy.reshape(rows.shape), step)


InputPreProcessor = (
    FeedForwardToCnnPreProcessor
    | CnnToFeedForwardPreProcessor
    | RnnToFeedForwardPreProcessor
    | FeedForwardToRnnPreProcessor
    | RnnToCnnPreProcessor
    | CnnToRnnPreProcessor
)


def automatic(given: AnyInputType, consumes: tuple[str, ...]) -> InputPreProcessor | None:
    """Return the preprocessor before a layer that takes one of ``consumes`` (the preferred one first), if it needs one.

    Raises:
        ShapeError: the image sizes cannot be known.
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
