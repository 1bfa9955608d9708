"""Random image augmentation during training: flips, rotations, crops, brightness and colour changes.

The random numbers for an image depend only on the seed, the epoch and the number of the example, so that a batch is the
same wherever and whenever it is made. Follows DataVec's ``FlipImageTransform``, ``RotateImageTransform``,
``CropImageTransform`` and ``ColorConversionTransform``, whose random numbers depended on the order of the calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.datasets.iterator import ListDataSetIterator
from dl4jlegacy.datasets.normalizers import Normalizer
from dl4jlegacy.errors import ConfError, ShapeError, nearest

__all__ = ["AugmentedDataSetIterator", "ImageShape", "ImageTransform"]

_DRAWN = 11  # random numbers per image, always all, so that an option does not change the numbers of another
_FLIPS = ("", "horizontal", "vertical", "both")


class ImageShape(NamedTuple):
    """The shape of an image stored as a flat row."""

    channels: int
    height: int
    width: int


class ImageTransform(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Changes to an image, applied in this order, each by a random amount.

    Attributes:
        flip: ``horizontal`` (swaps left and right), ``vertical`` or ``both``: each for half of the images.
        rotate: maximum degrees of rotation about the centre, in both directions; pixels from outside are black.
        crop: maximum pixels cut off at each side; the rest is resized to the original size.
        brightness: maximum relative change of brightness, up or down: 0.2 is up to a fifth.
        color: the same for each channel separately.

    Raises:
        ConfError: a value is out of range; or nothing would be changed.
    """

    flip: Literal["", "horizontal", "vertical", "both"] = ""
    rotate: float = 0.0
    crop: int = 0
    brightness: float = 0.0
    color: float = 0.0

    def __post_init__(self) -> None:
        if self.flip not in _FLIPS:
            raise ConfError(f"augment.flip is {self.flip!r}{nearest(self.flip, _FLIPS[1:])}")
        for name, most in (("rotate", 180), ("crop", math.inf), ("brightness", 1), ("color", 1)):
            value = getattr(self, name)
            if not 0 <= value <= most or math.isinf(value):
                limit = "not negative" if math.isinf(most) else f"from 0 to {most}"
                raise ConfError(f"augment.{name} is {value}; it must be {limit}")
        if not (self.flip or self.rotate or self.crop or self.brightness or self.color):
            raise ConfError("augment does nothing; give flip, rotate, crop, brightness or color, or leave it out")

    def check(self, shape: ImageShape) -> None:
        """Raise ``ConfError`` if cropping would leave nothing of images with this shape."""
        if 2 * self.crop >= min(shape.height, shape.width):
            raise ConfError(
                f"augment.crop is {self.crop}, and images are {shape.height} x {shape.width}: nothing would be left; "
                f"give less than {min(shape.height, shape.width) / 2:g}"
            )

    def apply(self, features: Array, shape: ImageShape, streams: list[Stream]) -> Array:
        """Return images changed by random numbers from ``streams``, one for each image.

        Args:
            features: from 0 to 1, ``(examples, channels * height * width)``, or in that shape; not changed.
            shape: of an image.
            streams: of the random numbers of each image.

        Returns:
            features of the same shape and dtype.
        """
        drawn = np.stack([stream.generator().random(_DRAWN) for stream in streams])
        images = features.reshape(-1, *shape)
        if self.flip or self.rotate or self.crop:
            images = sampled(images, *self._places(drawn, shape))
        if self.brightness or self.color:
            factors = 1 + (2 * drawn[:, 7:8] - 1) * self.brightness
            factors = factors * (1 + (2 * drawn[:, 8 : 8 + shape.channels] - 1) * self.color)
            images = np.clip(images * factors[:, :, None, None], 0, 1)
        return np.ascontiguousarray(images.reshape(features.shape), features.dtype)

    def _places(self, drawn: Array, shape: ImageShape) -> tuple[Array, Array]:
        """Return the source position of each pixel: rows and columns, ``(examples, height, width)``."""
        height, width = shape.height, shape.width
        cut = np.floor(drawn[:, 3:7] * (self.crop + 1))[:, :, None, None]  # top, bottom, left, right
        rows = _kept(np.arange(height)[:, None], height, cut[:, 0], cut[:, 1])
        columns = _kept(np.arange(width)[None, :], width, cut[:, 2], cut[:, 3])
        rows, columns = np.broadcast_arrays(rows, columns)
        if self.rotate:
            angles = np.radians((2 * drawn[:, 2] - 1) * self.rotate)
            rows, columns = turned(rows, columns, angles, shape)
        if self.flip in ("vertical", "both"):
            rows = np.where((drawn[:, 1] < 0.5)[:, None, None], height - 1 - rows, rows)
        if self.flip in ("horizontal", "both"):
            columns = np.where((drawn[:, 0] < 0.5)[:, None, None], width - 1 - columns, columns)
        return rows, columns


def _kept(places: Array, size: int, before: Array, after: Array) -> Array:
    """Return the source positions of ``size`` pixels, if both ends are cut off and the rest is stretched."""
    found = before + (places + 0.5) * ((size - before - after) / size) - 0.5
    kept: Array = np.clip(found, before, size - 1 - after)
    return kept


def turned(rows: Array, columns: Array, angles: Array, shape: ImageShape) -> tuple[Array, Array]:
    """Return the source positions of pixels if images are rotated to the left about their centres, by radians."""
    row, column = (shape.height - 1) / 2, (shape.width - 1) / 2
    sines, cosines = (values[:, None, None] for values in sine_cosine(angles))
    y, x = rows - row, columns - column
    return row + y * cosines + x * sines, column + x * cosines - y * sines


def sine_cosine(angles: Array) -> tuple[Array, Array]:
    """Return the sines and cosines of angles from -2 pi to 2 pi, with the same bits on every machine.

    The functions of the C library and of NumPy differ in the last bit between machines, so that workers with the same
    images would learn from different ones. These are Taylor series of additions and multiplications only.
    """
    square = angles * angles
    sines, cosines = np.ones_like(angles), np.ones_like(angles)
    for power in range(36, 0, -2):
        cosines = 1 - cosines * (square / (power * (power - 1)))
        sines = 1 - sines * (square / (power * (power + 1)))
    return angles * sines, cosines


def sampled(images: Array, rows: Array, columns: Array) -> Array:
    """Return images with pixels from these positions, interpolated linearly; positions outside are black.

    Args:
        images: ``(examples, channels, height, width)``.
        rows, columns: ``(examples, height, width)``, from 0; or ``(1, height, width)`` for all images.
    """
    examples, channels, height, width = images.shape
    framed = np.zeros((examples, height + 2, width + 2, channels), images.dtype)  # a black frame for positions outside
    framed[:, 1:-1, 1:-1] = np.moveaxis(images, 1, -1)
    pixels = framed.reshape(-1, channels)
    row, column = np.floor(rows), np.floor(columns)
    down, right = (rows - row).astype(images.dtype), (columns - column).astype(images.dtype)
    top, left = row.astype(np.intp) + 1, column.astype(np.intp) + 1
    first = np.arange(examples)[:, None, None] * (height + 2)
    found = np.zeros((examples, *rows.shape[1:], channels), images.dtype)
    for r, by_row in ((top, 1 - down), (top + 1, down)):
        for c, by_column in ((left, 1 - right), (left + 1, right)):
            numbers = (first + r.clip(0, height + 1)) * (width + 2) + c.clip(0, width + 1)
            found += pixels.take(numbers, axis=0) * (by_row * by_column)[..., None]
    return np.moveaxis(found, -1, 1)


class AugmentedDataSetIterator(ListDataSetIterator):
    """Batches of images in memory with random changes, different ones in every epoch.

    Args:
        dataset: images from 0 to 1, flat or ``(examples, channels, height, width)``; not changed.
        batch_size: examples per batch.
        transform: the changes.
        shape: of an image; None: that of the features.
        seed: of the shuffling and of the changes: those of example n of the data set, in an epoch, are always the same.
        shuffle, drop_last, label_names, pre_processor: as for ``ListDataSetIterator``; the pre-processor comes first.
        normalizer: has scaled the images from 0 to 1; the changes are made to the unscaled images.

    Raises:
        ShapeError: examples are not images of that shape. ConfError: cropping would leave nothing of them.
    """

    def __init__(
        self,
        dataset: DataSet,
        batch_size: int,
        transform: ImageTransform,
        shape: tuple[int, int, int] | None = None,
        *,
        seed: int = 123,
        shuffle: bool = True,
        drop_last: bool = False,
        label_names: tuple[str, ...] = (),
        pre_processor: Callable[[DataSet], DataSet] | None = None,
        normalizer: Normalizer | None = None,
    ) -> None:
        super().__init__(
            dataset,
            batch_size,
            seed=seed,
            shuffle=shuffle,
            drop_last=drop_last,
            label_names=label_names,
            pre_processor=pre_processor,
        )
        given = shape if shape is not None else dataset.features.shape[1:]
        if len(given) != 3 or math.prod(given) != dataset.n_in:
            raise ShapeError(
                f"examples have {dataset.n_in} values in shape {dataset.features.shape[1:]}, which are no images of "
                f"{given if shape is not None else 'channels, rows and columns'}; give shape=(channels, height, width)"
            )
        self.transform, self.shape, self._normalizer = transform, ImageShape(*given), normalizer
        transform.check(self.shape)

    def batch(self, epoch: int, index: int) -> DataSet:
        """Return batch ``index`` of ``epoch``; pure, safe on any thread."""
        plain, start = super().batch(epoch, index), index * self.batch_size
        numbers: npt.NDArray[np.intp] = np.arange(start, start + len(plain))
        if self._shuffle:
            numbers = self._order(epoch)[numbers]
        streams = [self._stream.at(epoch, int(number), purpose="augment") for number in numbers]
        images = plain if self._normalizer is None else self._normalizer.revert(plain)
        features = self.transform.apply(images.features, self.shape, streams)
        changed = DataSet(features, plain.labels, plain.features_mask, plain.labels_mask)
        return changed if self._normalizer is None else self._normalizer.transform(changed)
