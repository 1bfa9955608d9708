"""Images in folders: which files count, what becomes of their pixels, and what is said of those that are wrong."""

from __future__ import annotations

import builtins
import errno
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dl4jlegacy.datasets import ImageRecordReader, Images, Reading, load
from dl4jlegacy.datasets.dataset import split_order
from dl4jlegacy.datasets.images import image_files
from dl4jlegacy.datasets.images.image_folders import find_images
from dl4jlegacy.errors import ConfError, DataError
from dl4jlegacy.system import files


def save(path: Path, pixels: Any, mode: str = "", **options: Any) -> Path:
    """Write an image of these pixels, of a mode that they are converted to."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(np.asarray(pixels, np.uint8))
    (image.convert(mode) if mode else image).save(path, **options)
    return path


def gray(value: int, height: int = 2, width: int = 3) -> Any:
    return np.arange(value, value + height * width, dtype=np.uint8).reshape(height, width)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three cats and four dogs, gray, 2 high and 3 wide."""
    for number in range(3):
        save(tmp_path / "photos" / "cats" / f"{number}.png", gray(10 * number))
    for number in range(4):
        save(tmp_path / "photos" / "dogs" / f"{number}.png", gray(100 + 10 * number))
    return tmp_path / "photos"


def test_folders_are_classes_and_pixels_are_features_from_0_to_1_in_the_order_of_the_paths(photos: Path) -> None:
    found = Images.of_folder(photos)
    assert [path.relative_to(photos).as_posix() for path in found.paths][2:4] == ["cats/2.png", "dogs/0.png"]
    assert found.label_names == ("cats", "dogs") and found.classes.tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert found.pixels.shape == (7, 1, 2, 3) and found.reader == ImageRecordReader(height=2, width=3, channels=1)
    whole = found.dataset()
    expected = np.stack([gray(10 * n) for n in range(3)] + [gray(100 + 10 * n) for n in range(4)])
    assert np.array_equal(whole.features, expected.reshape(7, 6).astype(np.float32) / 255)
    assert whole.features.dtype == np.float32 and whole.classes.tolist() == found.classes.tolist()


def test_a_fifth_is_held_out_as_of_every_other_data_set(photos: Path) -> None:
    whole, source = Images.of_folder(photos).dataset(), load(photos)
    train, test = split_order(7, 0.8, 123)
    assert (source.train, source.test) == (whole.take(train), whole.take(test))
    assert source.label_names == ("cats", "dogs") and source.reading.images == ImageRecordReader(
        height=2, width=3, channels=1
    )


def test_folders_train_and_test_are_the_parts(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    photos.rename(tmp_path / "parts" / "train")
    save(tmp_path / "parts" / "test" / "dogs" / "new.png", gray(1))
    source = load(tmp_path / "parts")
    assert len(source.train) == 7 and source.test.classes.tolist() == [1]
    save(tmp_path / "parts" / "test" / "cow" / "new.png", gray(1))
    with pytest.raises(DataError, match=r"test/cow is a class that is not known; known: cats, dogs"):
        load(tmp_path / "parts")
    (tmp_path / "parts" / "test" / "cow" / "new.png").unlink()
    save(tmp_path / "parts" / "test" / "cats" / "new.png", gray(1, 4, 4))
    save(tmp_path / "parts" / "test" / "dogs" / "new.png", gray(1, 4, 4))
    with pytest.raises(DataError, match=r"train are 2x3 \(height x width\), those in .*test 4x4; give the size"):
        load(tmp_path / "parts")
    assert len(load(tmp_path / "parts", reading=Reading(images=ImageRecordReader(height=4, width=4))).test) == 2


def test_classes_may_be_called_train_and_test(tmp_path: Path) -> None:
    for name in ("train", "test"):
        for number in range(9):
            save(tmp_path / name / f"{number}.png", gray(number))
    assert load(tmp_path).label_names == ("test", "train")


def test_colours_are_three_channels_and_gray_images_among_them_get_three(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    red = np.zeros((2, 2, 3), np.uint8)
    red[0, 1] = (200, 100, 50)
    paths = [save(tmp_path / "red.png", red), save(tmp_path / "gray.png", gray(7, 2, 2))]
    pixels = ImageRecordReader().read(paths)
    assert pixels[0].tolist() == [[[0, 200], [0, 0]], [[0, 100], [0, 0]], [[0, 50], [0, 0]]]
    assert (pixels[1] == gray(7, 2, 2)).all() and pixels.shape == (2, 3, 2, 2)
    assert "1 of 2 images are gray" in caplog.text
    assert (ImageRecordReader(channels=3).read(paths) == pixels).all()
    assert ImageRecordReader(channels=1).read(paths)[:, 0].tolist() == [[[0, 124], [0, 0]], gray(7, 2, 2).tolist()]


@pytest.mark.parametrize("ending", ["png", "bmp", "gif", "ppm", "tiff", "JPG", "jpeg", "webp"])
def test_every_format_is_read(tmp_path: Path, ending: str) -> None:
    path = save(tmp_path / f"a.{ending}", np.full((8, 8), 128), "RGB")
    assert abs(ImageRecordReader(channels=1).read([path]).astype(int) - 128).max() <= 1


def test_images_are_stretched_or_cropped_to_the_size_that_is_asked_for(tmp_path: Path) -> None:
    path = save(tmp_path / "wide.png", np.repeat([[0, 0, 90, 90, 180, 180]], 2, axis=0))
    crop = ImageRecordReader(height=2, width=2, fit="crop")
    assert crop.read([path])[0, 0].tolist() == [[90, 90], [90, 90]]
    stretched = ImageRecordReader(height=2, width=3).read([path])[0, 0, 0].tolist()
    assert stretched[0] < 45 < 85 < stretched[1] < 95 and stretched[2] > 135


def test_a_photograph_is_turned_as_it_says(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned by 90 degrees
    path = save(tmp_path / "a.png", [[1, 2, 3], [4, 5, 6]], exif=exif)
    assert ImageRecordReader().read([path])[0, 0].tolist() == [[4, 1], [5, 2], [6, 3]]


def test_a_known_order_of_classes_counts_and_some_may_be_missing(photos: Path) -> None:
    source = load(photos, reading=Reading(label_names=("dogs", "birds", "cats")))
    assert source.train.n_out == 3 and set(source.train.classes.tolist()) == {0, 2}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("cats/9.png", b"", r"cats/9\.png is empty, and no image"),
        ("cats/9.png", b"hello", r"cats/9\.png is no image that can be read \(BMP, GIF, JPEG, PNG"),
        ("cats/9.png", "half", r"image .*cats/9\.png is truncated or damaged: "),
        ("cats/9.pgm", b"P5 30000 20000 255\n", r"image .*cats/9\.pgm is too large: .*\(Pillow's limit\)"),
        ("cats/9.pgm", b"P5 10000 10000 255\n", r"image .*cats/9\.pgm is too large: .*\(Pillow's limit\)"),
        ("dogs/9.png", "4x4", r"differ in size: .*cats/0\.png is 2x3 .*dogs/9\.png is 4x4; .*--image-size 64x64"),
        ("cow/9.png", "2x3", r"class 'cow' has a single image, .*cow/9\.png"),
        ("cats/9.png", None, r"image .*cats/9\.png cannot be read: .*"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_name(photos: Path, name: str, content: Any, message: str) -> None:
    path = photos / name
    path.parent.mkdir(exist_ok=True)
    if content is None:
        path.mkdir()
    elif content == "half":
        noise = np.random.default_rng(1).integers(0, 255, (64, 64))
        path.write_bytes(save(path, noise).read_bytes()[:2000])
    elif isinstance(content, str):
        height, width = map(int, content.split("x"))
        save(path, gray(0, height, width))
    else:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        load(photos)


def test_a_disk_that_fails_while_a_file_is_read_is_said_with_its_name(photos: Path, monkeypatch) -> None:
    read, opened = os.read, files.open_to_read

    def failing(descriptor: int, nbytes: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("/2.png"):
            raise OSError(errno.EIO, "Input/output error")
        return read(descriptor, nbytes)

    class Failing(io.BufferedReader):
        def read(self, size=-1):
            raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "read", failing)
        with pytest.raises(DataError, match=r"image .*/2\.png cannot be read: Input/output error"):
            load(photos)
    monkeypatch.setattr(image_files, "_SMALL", 1)  # those that are larger are not read at once
    monkeypatch.setattr(
        files, "open_to_read", lambda path: Failing(opened(path).detach()) if path.name == "2.png" else opened(path)
    )
    with pytest.raises(DataError, match=r"image .*/2\.png cannot be read: Input/output error"):
        load(photos)


def test_what_is_wrong_with_a_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty holds no data set: .*a folder of images for each class; found nothing"):
        load(tmp_path / "empty")
    save(tmp_path / "one" / "cats" / "1.png", gray(1))
    with pytest.raises(DataError, match="one has images of only one class, 'cats'; a network needs at least two"):
        load(tmp_path / "one")
    save(tmp_path / "flat" / "1.png", gray(1))
    with pytest.raises(DataError, match=r"flat has 1 image \(1\.png \.\.\.\), but no folders with images"):
        Images.of_folder(tmp_path / "flat")
    with pytest.raises(DataError, match="empty has no images"):
        find_images(tmp_path / "empty")


@pytest.mark.parametrize("fields", [{"height": 3}, {"height": -1, "width": 3}, {"channels": 2}, {"fit": "stretch"}])
def test_a_reader_that_cannot_be_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfError):
        ImageRecordReader(**fields)


def test_without_pillow_it_is_said_how_to_install_it(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *rest: Any) -> Any:
        if name == "PIL":
            raise ModuleNotFoundError("No module named 'PIL'", name="PIL")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(DataError, match=r"images need Pillow, which is not installed: type '\./install images'"):
        load(photos)
