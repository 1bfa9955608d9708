"""Input preprocessors: from one kind of activation to another, between two layers.

``stages`` puts the right one where neighbouring layers differ in kind; a configuration names one (by layer index) only
where sizes cannot be known: from vectors or sequences to images. All work on arrays as they lie inside a network, see
``input_type``. Legacy: ``org.deeplearning4j.nn.conf.preprocessor``.
"""

from __future__ import annotations

from collections.abc import Iterator

from dl4jlegacy.backend import Array
from dl4jlegacy.errors import ConfError, ShapeError
from dl4jlegacy.nn.input_type import (
    AnyInputType,
    InputTypeConvolutional,
    InputTypeConvolutionalFlat,
    InputTypeFeedForward,
    InputTypeRecurrent,
)
from dl4jlegacy.nn.preprocessors.base import Back, PreProcessor
from dl4jlegacy.nn.preprocessors.statistics import (
    BinomialSamplingPreProcessor,
    UnitVarianceProcessor,
    ZeroMeanAndUnitVariancePreProcessor,
    ZeroMeanPrePreProcessor,
)
from dl4jlegacy.nn.step import Step

__all__ = [
    "BinomialSamplingPreProcessor",
    "CnnToFeedForwardPreProcessor",
    "CnnToRnnPreProcessor",
    "ComposableInputPreProcessor",
    "FeedForwardToCnnPreProcessor",
    "FeedForwardToRnnPreProcessor",
    "InputPreProcessor",
    "RnnToCnnPreProcessor",
    "RnnToFeedForwardPreProcessor",
    "UnitVarianceProcessor",
    "ZeroMeanAndUnitVariancePreProcessor",
    "ZeroMeanPrePreProcessor",
    "automatic",
    "placed",
]


class _Images(PreProcessor, frozen=True, kw_only=True):
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


class RnnToFeedForwardPreProcessor(PreProcessor, frozen=True, kw_only=True, tag="rnn_to_feed_forward"):
    """Sequences to rows, one for every time step: nothing moves."""

    def output_type(self, given: AnyInputType) -> AnyInputType:
        """Return rows of the same size."""
        if not isinstance(given, InputTypeRecurrent):
            raise self._refuse(given, "sequences")
        return InputTypeFeedForward(size=given.size, sequences=True)

    def forward(self, x: Array, step: Step) -> tuple[Array, Back]:
        """Return views."""
        return x.reshape(-1, x.shape[2]), lambda dy: dy.reshape(x.shape)


class FeedForwardToRnnPreProcessor(PreProcessor, frozen=True, kw_only=True, tag="feed_forward_to_rnn"):
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


class ComposableInputPreProcessor(PreProcessor, frozen=True, kw_only=True, tag="composable_input"):
    """Several, one behind the other."""

    input_pre_processors: tuple[InputPreProcessor, ...]

    def __post_init__(self) -> None:
        if not self.input_pre_processors:
            raise ConfError(f"preprocessor {self.title()} has no input_pre_processors; give at least one")

    def natural_input(self) -> AnyInputType | None:
        """What the first that changes the type can take."""
        changing = next((pre for pre in self.input_pre_processors if not pre.keeps_type), None)
        return None if changing is None else changing.natural_input()

    @property
    def keeps_type(self) -> bool:
        """Whether all do."""
        return all(pre.keeps_type for pre in self.input_pre_processors)

    def output_type(self, given: AnyInputType) -> AnyInputType:
        """Return what leaves the last."""
        for pre in self.input_pre_processors:
            given = pre.output_type(given)
        return given

    def _all(self) -> Iterator[InputPreProcessor]:
        for pre in self.input_pre_processors:
            yield from pre._all() if isinstance(pre, ComposableInputPreProcessor) else (pre,)

    def rows(self, x: Array, step: Step) -> int:
        """See ``forward``, which does not say it: vectors and images become neither more nor fewer on the way."""
        vectors = {2: len(x), 3: len(x) * int(x.shape[1])}.get(x.ndim, step.rows)
        rows = step.rows
        for pre in self._all():
            if isinstance(pre, FeedForwardToCnnPreProcessor | RnnToCnnPreProcessor):
                rows = vectors
            elif isinstance(pre, CnnToRnnPreProcessor):
                rows = step.examples
        return rows

    def forward(self, x: Array, step: Step) -> tuple[Array, Back]:
        """Go through all of them; each has work buffers and random numbers of its own."""
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
        """Return the mask behind the last."""
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


def placed(
    named: InputPreProcessor | None, given: AnyInputType, consumes: tuple[str, ...]
) -> tuple[InputPreProcessor | None, AnyInputType]:
    """Return the preprocessor before a layer that takes one of ``consumes``, and what then enters the layer.

    It is the one that a configuration has ``named``, else the one that is needed, if any.

    Raises:
        ShapeError: it cannot take what is given, or does not give what the layer takes.
    """
    if named is None:
        found = automatic(given, consumes)
        return found, given if found is None else found.output_type(given)
    enters = named.output_type(given)
    if enters.kind not in consumes and automatic(enters, consumes) is not None:
        raise ShapeError(
            f"takes {' or '.join(consumes)} activations, preprocessor {named.title()} before it gives {enters}: one "
            "that is named stands in the place of the automatic one; name both, in the right order, in a "
            "ComposableInputPreProcessor"
        )
    return named, enters


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
