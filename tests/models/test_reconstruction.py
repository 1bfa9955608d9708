"""What models give back and draw: in the units of their data, from files of all kinds, and as grids of images."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dl4jlegacy import (
    RBM,
    DataSet,
    ImageRecordReader,
    InputType,
    MultiLayerConfiguration,
    MultiLayerNetwork,
    NeuralNetConfiguration,
    NormalizerMinMaxScaler,
    OutputLayer,
    TrainedModel,
)
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.datasets import Reading, load
from dl4jlegacy.datasets.images.image_files import png_of
from dl4jlegacy.datasets.images.image_grid import image_grid, pixels_of
from dl4jlegacy.errors import ConfError, DataError, OutputError, ShapeError
from dl4jlegacy.models.reconstruction import (
    draw_samples,
    examples_of,
    image_shape,
    reconstruct,
    reconstruction_grid,
    sample_grid,
    write_grid,
)
from dl4jlegacy.nn import reconstruct_input, sample_input
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration as Configuration
from dl4jlegacy.nn.zoo import mlp, vae


def model_of(n_in: int, **fields: Any) -> TrainedModel:
    network = MultiLayerNetwork(vae(n_in, n_in, hidden=(5, 3)))
    return TrainedModel(network, Reading(**fields), "vae.zip")


def test_examples_are_given_back_in_their_own_units_and_the_error_is_that_of_all_of_them() -> None:
    x = np.random.default_rng(1).uniform(-40, 200, (70, 4)).astype(np.float32)
    scaler = NormalizerMinMaxScaler().fit(DataSet(x))
    model = model_of(4, normalizer=scaler)
    found = reconstruct(model, [x[:30], x[30:]], count=33)
    scaled = reconstruct_input(model.network, scaler.transform(DataSet(x)).features)
    expected = scaler.revert(DataSet(scaled)).features
    np.testing.assert_allclose(found.reconstructions, expected[:33], rtol=1e-4)
    np.testing.assert_array_equal(found.originals, x[:33])
    assert found.examples == 70
    assert found.mean_squared_error == pytest.approx(np.mean((expected - x.astype(float)) ** 2), rel=1e-4)


def test_samples_are_in_the_units_of_the_data_and_the_same_for_a_seed() -> None:
    x = np.random.default_rng(1).uniform(-40, 200, (70, 4)).astype(np.float32)
    scaler = NormalizerMinMaxScaler().fit(DataSet(x))
    model = model_of(4, normalizer=scaler)
    drawn = draw_samples(model, 12, seed=8)
    plain = sample_input(model.network, 12, Stream.of(8).at(purpose="sample"))
    np.testing.assert_allclose(drawn, scaler.revert(DataSet(plain)).features)
    assert drawn.tobytes() == draw_samples(model, 12, seed=8).tobytes() != draw_samples(model, 12, seed=9).tobytes()


def test_rbms_that_were_trained_further_are_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    for backprop in (True, False):
        conf = Configuration(
            conf=NeuralNetConfiguration(),
            layers=(RBM(n_in=4, n_out=3), OutputLayer(n_out=3, activation="softmax")),
            pretrain=True,
            backprop=backprop,
        )
        with caplog.at_level(logging.WARNING):
            draw_samples(TrainedModel(MultiLayerNetwork(conf), name="dbn.zip"), 2, gibbs_steps=2)
        assert ("the RBMs of model dbn.zip were trained further" in caplog.text) == backprop
        caplog.clear()


def test_what_gives_nothing_back_is_named_with_the_model() -> None:
    model = TrainedModel(MultiLayerNetwork(mlp(4, 3)), name="flowers.zip")
    with pytest.raises(ConfError, match=r"model flowers.zip: a network of dense, dense, output does not begin with"):
        reconstruct(model, [np.zeros((2, 4), np.float32)])
    with pytest.raises(ConfError, match=r"model flowers.zip: a network"):
        draw_samples(model)
    with pytest.raises(ConfError, match=r"model flowers.zip: a network"):
        image_shape(model)
    with pytest.raises(ShapeError, match=r"model vae.zip takes 4 features, the given data has 5"):
        reconstruct(model_of(4), [np.zeros((2, 5), np.float32)])
    with pytest.raises(DataError, match="there are no examples to reconstruct"):
        reconstruct(model_of(4), [])


# -- what examples and images are --------------------------------------------------------------------------------------


def test_examples_come_from_a_table_an_image_a_folder_or_a_data_set_by_name(tmp_path: Path) -> None:
    pixels = np.random.default_rng(3).integers(0, 256, (5, 4, 4), np.uint8)
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    model, expected = model_of(16), pixels.reshape(5, 16) / np.float32(255)
    shape = image_shape(model)
    np.testing.assert_array_equal(np.concatenate([*examples_of(model, str(tmp_path), shape=shape)]), expected)
    np.testing.assert_array_equal(next(examples_of(model, str(tmp_path / "2.png"), shape=shape)), expected[2:3])
    learned = model_of(16, images=ImageRecordReader(height=4, width=4, channels=1))
    np.testing.assert_array_equal(np.concatenate([*examples_of(learned, str(tmp_path))]), expected)
    np.savetxt(tmp_path / "rows.csv", expected, delimiter=",")
    np.testing.assert_allclose(next(examples_of(model, str(tmp_path / "rows.csv"), shape=shape)), expected, rtol=1e-6)
    np.testing.assert_array_equal(np.concatenate([*examples_of(model_of(64), "digits")]), load("digits").test.features)
    with pytest.raises(ShapeError, match=r"model vae.zip takes 16 features, digits has 64"):
        next(examples_of(model, "digits"))
    with pytest.raises(DataError, match=r"image .*nothing.png cannot be read"):
        next(examples_of(model, str(tmp_path / "nothing.png"), shape=shape))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no images"):
        next(examples_of(model, str(tmp_path / "empty"), shape=shape))


def test_images_have_the_shape_that_model_input_type_or_person_says() -> None:
    assert image_shape(model_of(64)) == (1, 8, 8)
    assert image_shape(model_of(48)) == (3, 4, 4)
    assert image_shape(model_of(24, images=ImageRecordReader(height=2, width=4, channels=3))) == (3, 2, 4)
    assert image_shape(model_of(24), (2, 4)) == (3, 2, 4)
    assert image_shape(model_of(64), (4, 16)) == (1, 4, 16)
    conf = MultiLayerConfiguration(
        conf=NeuralNetConfiguration(),
        layers=(OutputLayer(n_out=15, activation="sigmoid", loss="xent"),),
        input_type=InputType.convolutional_flat(3, 5, 1),
    )
    assert image_shape(TrainedModel(MultiLayerNetwork(conf))) == (1, 3, 5)
    with pytest.raises(ConfError, match=r"model vae.zip has 13 values, which are no square image.*--image-size"):
        image_shape(model_of(13))
    with pytest.raises(ConfError, match=r"has 64 values; an image of 5x5 has 25, or 75 in colours"):
        image_shape(model_of(64), (5, 5))


# -- grids -------------------------------------------------------------------------------------------------------------


def test_values_become_shades_and_none_beyond_black_and_white() -> None:
    pixels = pixels_of(np.array([[0, 0.5, 1, -3, 2, 0.25]], np.float32), (1, 2, 3))
    assert pixels.tolist() == [[[[0, 128, 255], [0, 255, 64]]]]
    assert pixels_of(np.array([[10, 20, 30, 15]]), (1, 2, 2), 10, 30).tolist() == [[[[0, 128], [255, 64]]]]
    assert not pixels_of(np.full((2, 4), 7.0), (1, 2, 2), 7, 7).any()
    with pytest.raises(ShapeError, match=r"rows of shape \(2, 5\) are no images of \(1, 2, 2\)"):
        pixels_of(np.zeros((2, 5)), (1, 2, 2))


def test_a_grid_has_its_images_in_lines_with_gray_between_them() -> None:
    images = np.arange(3 * 2 * 3, dtype=np.uint8).reshape(3, 1, 2, 3) + 100
    grid = image_grid([images[:2], images[2:]], zoom=2)
    assert grid.shape == (1, 2 * (2 * 2 + 2) + 2, 2 * (3 * 2 + 2) + 2)
    for line, column, image in ((0, 0, 0), (0, 1, 1), (1, 0, 2)):
        top, left = 2 + line * 6, 2 + column * 8
        np.testing.assert_array_equal(grid[0, top : top + 4 : 2, left : left + 6 : 2], images[image, 0])
        np.testing.assert_array_equal(grid[0, top + 1 : top + 4 : 2, left + 1 : left + 6 : 2], images[image, 0])
        grid[0, top : top + 4, left : left + 6] = 96
    assert (grid == 96).all()
    assert image_grid([np.zeros((1, 3, 8, 8), np.uint8)]).shape == (3, 52, 52), "small images are enlarged"
    assert image_grid([np.zeros((1, 1, 50, 20), np.uint8)]).shape == (1, 54, 24)
    with pytest.raises(ShapeError, match="images of one shape"):
        image_grid([np.zeros((1, 1, 2, 2), np.uint8), np.zeros((1, 1, 3, 3), np.uint8)])
    with pytest.raises(ShapeError, match="images of one shape"):
        image_grid([])


def test_originals_are_above_their_reconstructions_line_by_line() -> None:
    x = np.random.default_rng(5).random((7, 48 * 48), np.float32)
    model = model_of(48 * 48)
    found = reconstruct(model, [x], count=5)
    grid = reconstruction_grid(found, (1, 48, 48), columns=3)
    assert grid.shape == (1, 4 * 50 + 2, 3 * 50 + 2)
    for index in range(5):
        left, top = 2 + index % 3 * 50, 2 + index // 3 * 100
        for rows, below in ((found.originals, 0), (found.reconstructions, 50)):
            shown = grid[0, top + below : top + below + 48, left : left + 48]
            np.testing.assert_array_equal(shown, np.round(255 * rows[index].astype(float)).reshape(48, 48))
    samples = sample_grid(x * 100, (1, 48, 48), columns=4)
    assert samples.shape == (1, 2 * 50 + 2, 4 * 50 + 2) and samples.max() == 255


@pytest.mark.parametrize("channels", [1, 3])
def test_a_grid_is_written_as_png_in_one_step_or_not_at_all(tmp_path: Path, channels: int) -> None:
    grid = np.random.default_rng(1).integers(0, 256, (channels, 5, 7), np.uint8)
    write_grid(tmp_path / "grid.png", grid)
    with Image.open(tmp_path / "grid.png") as image:
        assert image.format == "PNG"
        found = np.asarray(image)
    np.testing.assert_array_equal(found, grid[0] if channels == 1 else grid.transpose(1, 2, 0))
    assert [path.name for path in tmp_path.iterdir()] == ["grid.png"]
    assert Image.open(io.BytesIO(png_of(grid))).size == (7, 5)
    with pytest.raises(OutputError, match=r"no/grid.png cannot be written: No such file"):
        write_grid(tmp_path / "no" / "grid.png", grid)
