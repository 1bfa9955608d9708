"""Images that are changed at random: each change, and that an example's depend on its place in the run alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.datasets import (
    AugmentedDataSetIterator,
    DataSet,
    ImageTransform,
    ListDataSetIterator,
    NormalizerStandardize,
)
from dl4jlegacy.datasets.images.image_transforms import ImageShape, sampled, sine_cosine, turned
from dl4jlegacy.datasets.validation import split_off
from dl4jlegacy.errors import ConfError, ShapeError

RNG = np.random.default_rng(2)
IMAGES = RNG.random((6, 3, 7, 7)).astype(np.float32)
SHAPE = ImageShape(3, 7, 7)
STREAMS = [Stream.of(1).at(number) for number in range(6)]
WRITTEN_DOWN = [
    "-0x0.0p+0",
    "-0x1.f3794384bb40dp-1",
    "0x1.6726ab8af9308p-3",
    "0x1.6a09e667f3bccp-1",
    "0x1.ab2a9b25a9ab9p-1",
    "-0x1.0000000000000p+0",
    "0x1.c23eba0ec2e8cp-3",
    "0x1.f810cd0198aeap-1",
    "0x1.6a09e667f3bcdp-1",
    "-0x1.1a43870d371fcp-1",
]
EVERYTHING = ImageTransform(flip="both", rotate=20, crop=1, brightness=0.2, color=0.2)


def is_same(one: np.ndarray, other: np.ndarray) -> bool:
    return bool((one == other).all())


def test_half_of_the_images_are_flipped_and_no_pixel_is_another() -> None:
    found = ImageTransform(flip="horizontal").apply(IMAGES, SHAPE, STREAMS)
    kinds = [is_same(new, old) + 2 * is_same(new, old[:, :, ::-1]) for new, old in zip(found, IMAGES, strict=True)]
    assert set(kinds) == {1, 2} and found.dtype == np.float32
    upright = ImageTransform(flip="vertical").apply(IMAGES, SHAPE, STREAMS)
    assert all(is_same(new, old) or is_same(new, old[:, ::-1]) for new, old in zip(upright, IMAGES, strict=True))


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_a_quarter_turn_moves_pixels_only(turns: int) -> None:
    rows, columns = np.broadcast_arrays(np.arange(7.0)[:, None], np.arange(7.0)[None, :])
    angles = np.full(6, turns * math.pi / 2)
    found = sampled(IMAGES, *turned(rows[None], columns[None], angles, SHAPE))
    np.testing.assert_allclose(found, np.rot90(IMAGES, turns, axes=(2, 3)), atol=1e-6)


def test_a_turned_image_is_pillows() -> None:
    rows, columns = np.broadcast_arrays(np.arange(7.0)[:, None], np.arange(7.0)[None, :])
    found = sampled(IMAGES[:1], *turned(rows[None], columns[None], np.array([0.3]), SHAPE))
    theirs = Image.fromarray(IMAGES[0, 0]).rotate(math.degrees(0.3), resample=Image.Resampling.BILINEAR)
    np.testing.assert_allclose(found[0, 0, 2:5, 2:5], np.asarray(theirs)[2:5, 2:5], atol=1e-3)
    assert found[0, 0, 0, 0] < IMAGES[0, 0].min() + 0.5  # black comes in at the corners


def test_sines_and_cosines_are_the_same_bits_on_every_machine() -> None:
    """These are written down: the C library's and NumPy's differ between machines in a last bit."""
    angles = np.radians(np.array([-180.0, -77.3, 10.1, 45.0, 123.456]))
    sines, cosines = sine_cosine(angles)
    np.testing.assert_allclose(sines, [math.sin(angle) for angle in angles], atol=3e-15)
    np.testing.assert_allclose(cosines, [math.cos(angle) for angle in angles], atol=3e-15)
    assert [float(value).hex() for value in (*sines, *cosines)] == WRITTEN_DOWN
    # Whatever numbers of angles are asked for together, and in whatever order.
    assert [sine_cosine(angles[n : n + 1])[0][0] for n in range(5)] == list(sines)


def test_what_is_cropped_is_stretched_from_what_is_left() -> None:
    ramp = np.broadcast_to(np.arange(7, dtype=np.float32) / 6, (6, 1, 7, 7))
    found = ImageTransform(crop=2).apply(ramp, ImageShape(1, 7, 7), STREAMS)
    left, right = found[:, 0, 3, 0] * 6, 6 - found[:, 0, 3, -1] * 6
    for cut in (left, right):
        assert set(np.round(cut, 5)) <= {0, 1, 2} and len(set(np.round(cut, 5))) > 1
    assert (np.diff(found[:, 0, 3], axis=1) >= 0).all()


def test_brightness_is_one_factor_and_colour_one_for_each_channel() -> None:
    dim = IMAGES / 2
    by = ImageTransform(brightness=0.3).apply(dim, SHAPE, STREAMS) / dim
    factors = by[:, 0, 0, 0]
    np.testing.assert_allclose(by, np.broadcast_to(factors[:, None, None, None], by.shape), rtol=1e-5)
    assert len(set(factors)) == 6 and (np.abs(factors - 1) <= 0.3).all()
    by = ImageTransform(color=0.3).apply(dim, SHAPE, STREAMS) / dim
    assert len(np.unique(by[0].round(4))) == 3
    bright = ImageTransform(brightness=1.0).apply(np.ones_like(IMAGES), SHAPE, STREAMS)
    assert bright.max() == 1.0 > bright.min()


def test_an_option_changes_nothing_that_the_others_draw() -> None:
    turned_too = ImageTransform(flip="horizontal", brightness=0.3).apply(IMAGES / 2, SHAPE, STREAMS)
    flipped = ImageTransform(flip="horizontal").apply(IMAGES / 2, SHAPE, STREAMS)
    factors = ImageTransform(brightness=0.3).apply(IMAGES / 2, SHAPE, STREAMS) / (IMAGES / 2)
    np.testing.assert_allclose(turned_too, flipped * factors[:, :1, :1, :1], rtol=1e-5)


def iterator(**more: Any) -> AugmentedDataSetIterator:
    data = DataSet.of_classes(IMAGES.reshape(6, -1), [0, 1] * 3)
    return AugmentedDataSetIterator(data, 4, EVERYTHING, SHAPE, seed=3, **more)


def test_a_batch_is_the_same_whoever_asks_and_another_in_each_epoch() -> None:
    one, other = iterator(), iterator()
    last = other.batch(1, 1)
    assert one.batch(0, 0) == other.batch(0, 0) and one.batch(1, 1) == last
    assert one.batch(0, 0) != one.batch(1, 0)
    plain = ListDataSetIterator(one.dataset, 4, seed=3)
    assert is_same(one.batch(0, 0).labels, plain.batch(0, 0).labels)
    assert not is_same(one.batch(0, 0).features, plain.batch(0, 0).features)


def test_an_examples_changes_do_not_depend_on_its_batch() -> None:
    small, whole = iterator(shuffle=False), iterator(shuffle=False)
    whole.batch_size = 6
    assert is_same(small.batch(2, 1).features, whole.batch(2, 0).features[4:])


def test_scaled_images_are_changed_as_they_were_before() -> None:
    """Brightness and the black of corners are of the pixels, from 0 to 1, not of what a network takes."""
    plain = iterator()
    normalizer = NormalizerStandardize().fit_channels(plain.dataset, 3)
    scaled = plain.over(normalizer.transform(plain.dataset))
    aware = AugmentedDataSetIterator(scaled.dataset, 4, EVERYTHING, SHAPE, seed=3, normalizer=normalizer)
    wanted = normalizer.transform(plain.batch(1, 0))
    np.testing.assert_allclose(aware.batch(1, 0).features, wanted.features, atol=1e-5)
    assert abs(scaled.batch(1, 0).features - wanted.features).max() > 0.5
    again = aware.over(aware.dataset)
    assert aware.batch(1, 0) == again.batch(1, 0)


def test_what_validates_is_not_changed() -> None:
    parts = split_off(iterator(), 0.34, 5)
    assert isinstance(parts.training, AugmentedDataSetIterator) and parts.training.transform == EVERYTHING
    assert isinstance(parts.validation, DataSet) and len(parts.validation) == 2
    assert all(any(is_same(row, image.reshape(-1)) for image in IMAGES) for row in parts.validation.features)


def test_what_are_no_images_is_refused() -> None:
    data = DataSet.of_classes(np.zeros((2, 10)), [0, 1])
    with pytest.raises(ShapeError, match=r"10 values in shape \(10,\), which are no images of channels, rows"):
        AugmentedDataSetIterator(data, 2, EVERYTHING)
    with pytest.raises(ShapeError, match=r"which are no images of \(1, 3, 3\)"):
        AugmentedDataSetIterator(data, 2, EVERYTHING, (1, 3, 3))
    with pytest.raises(ConfError, match="crop is 2, and images are 2 x 5: nothing would be left; give less than 1"):
        AugmentedDataSetIterator(data, 2, ImageTransform(crop=2), (1, 2, 5))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "augment does nothing"),
        ({"rotate": 200.0}, "augment.rotate is 200.0; it must be from 0 to 180"),
        ({"crop": -1}, "augment.crop is -1; it must be not negative"),
        ({"color": float("nan")}, "augment.color is nan"),
        ({"flip": "horizontl"}, "augment.flip is 'horizontl'; did you mean 'horizontal'"),
    ],
)
def test_changes_that_make_no_sense_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfError, match=message):
        ImageTransform(**fields)
