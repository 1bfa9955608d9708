"""Which images of a folder are read, deep ones too; and what is said, as images, of those that are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dl4jlegacy.datasets import Images, load
from dl4jlegacy.datasets.images.image_folders import find_images
from dl4jlegacy.datasets.images.image_inspection import inspect_images
from dl4jlegacy.errors import DataError


def save(path: Path, value: int, format: str = "PNG") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.arange(value, value + 64, dtype=np.uint8).reshape(8, 8)).save(path, format)
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Cats in their own folder, foxes by the years, deeper and deeper."""
    for number in range(6):
        save(tmp_path / "photos" / "cat" / f"{number}.png", number)
    for place in ("2023", "2024/may", "2024/june/a/b"):
        for number in range(2):
            save(tmp_path / "photos" / "fox" / place / f"{number}.png", 100 + number + len(place))
    return tmp_path / "photos"


def test_images_below_the_folder_of_a_class_are_the_class(photos: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = Images.of_folder(photos)
    assert found.label_names == ("cat", "fox") and found.classes.tolist() == [0] * 6 + [1] * 6
    assert "images in folders below those of their classes are read: 6 of fox (2023, 2024/june/a/b, 2024/may)" in (
        caplog.text
    )
    assert [path for path in find_images(photos) if "fox" in path.parts] == list(found.paths[6:])
    whole = inspect_images(photos)
    assert whole.rows == 12 and not whole.problems
    source = load(photos)
    assert len(source.train) + len(source.test) == 12


def test_folders_that_lead_back_are_read_once(photos: Path) -> None:
    (photos / "fox" / "again").symlink_to(photos / "fox")
    (photos / "fox" / "2023" / "up").symlink_to(photos / "fox" / "2024")
    assert len(Images.of_folder(photos).paths) == 12 and len(find_images(photos)) == 12


@pytest.mark.parametrize("ending", ["jfif", "jpe", "jif", "jfi", "pjpeg", "pjp", "JFIF", "apng", "dib", "pnm", "TIF"])
def test_siblings_of_the_common_endings_are_images(photos: Path, ending: str) -> None:
    formats = {"apng": "PNG", "dib": "BMP", "pnm": "PPM", "tif": "TIFF"}
    save(photos / "fox" / f"a.{ending}", 9, formats.get(ending.lower(), "JPEG"))
    assert len(Images.of_folder(photos).paths) == 13 == len(find_images(photos))


def leave_some_out(photos: Path) -> None:
    save(photos / "loose.png", 1)
    save(photos / "cat" / ".hidden.png", 1)
    save(photos / ".thumbs" / "deep" / "1.png", 1)
    save(photos / "cat" / "IMG_0001", 1)
    save(photos / "cat" / "photo.backup", 1, "JPEG")
    (photos / "cat" / "phone.heic").write_bytes(b"\0\0\0\x18ftypheic")
    (photos / "cat" / "drawing").write_text("<?xml version='1.0'?>\n<svg xmlns='http://www.w3.org/2000/svg'/>")
    (photos / "cat" / "._1.png").write_bytes(b"\0\5\x16\7 of a Mac, no image")
    (photos / "fox" / "2023" / "notes.txt").write_text("P4 is a page, BM a name")
    (photos / "empty" / "deep").mkdir(parents=True)


def test_images_that_are_left_out_are_counted_as_images_with_the_reason(
    photos: Path, caplog: pytest.LogCaptureFixture
) -> None:
    leave_some_out(photos)
    assert len(Images.of_folder(photos).paths) == 12
    said = [record.getMessage().removeprefix(f"{photos}: ") for record in caplog.records]
    assert "1 folder without images is no class: empty" in said
    images = next(each for each in said if each.startswith("7 images are left out: "))
    for part in (
        "2 hidden: .thumbs/deep/1.png, cat/.hidden.png",
        "1 in no folder of a class: loose.png",
        "1 of a kind that is not read; save as PNG or JPEG: cat/phone.heic",
        "3 whose names do not end as those of images (.bmp, .dib, .gif, .jpg ...): cat/IMG_0001, cat/drawing, cat/phot",
    ):
        assert part in images
    assert "2 files that are no images are left out: cat/._1.png, fox/2023/notes.txt" in said
    problems = {problem.what: problem for problem in inspect_images(photos).problems}
    assert problems["images that are left out"].count == 7 and not problems["images that are left out"].is_refused
    caplog.clear()
    assert len(find_images(photos)) == 13  # the loose one, too
    assert "6 images are left out: 2 hidden" in caplog.text


def test_images_beside_the_parts_are_said(photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for part in ("train", "test"):
        (tmp_path / "parts").mkdir(exist_ok=True)
        (tmp_path / "parts" / part).symlink_to(photos)
    save(tmp_path / "parts" / "val" / "cat" / "1.png", 3)
    save(tmp_path / "parts" / "1.png", 3)
    assert len(load(tmp_path / "parts").train) == 12
    assert "2 images are left out: 2 in neither train nor test: 1.png, val/cat/1.png" in caplog.text
    found = {problem.what: problem.count for problem in inspect_images(tmp_path / "parts").problems}
    assert found == {"images that are in both parts": 12, "images that are left out": 2}


@pytest.mark.parametrize("names", [("train", "val"), ("Train", "Test"), ("training", "validation"), ("train",)])
def test_parts_by_other_names_are_not_taken_for_classes(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        for animal in ("cat", "dog"):
            save(tmp_path / name / animal / "1.png", 1)
    for read in (load, inspect_images):
        with pytest.raises(DataError, match=r"is a part of a data set, by its name, .*called train and test"):
            read(tmp_path)


def test_one_folder_around_the_classes_is_named(photos: Path) -> None:
    (photos.parent / "outer").mkdir()
    photos.rename(photos.parent / "outer" / "photos")
    with pytest.raises(DataError, match=r"only one class, 'photos'; .*; if the folders in it \(cat, fox\) are, give "):
        load(photos.parent / "outer")
    problems = {problem.what: problem.is_refused for problem in inspect_images(photos.parent / "outer").problems}
    assert problems == {"a single class": True}


def test_tables_beside_folders_of_images_are_learned_and_the_images_said(
    photos: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (photos / "notes.csv").write_text("a,label\n" + "".join(f"{n},{'xy'[n % 2]}\n" for n in range(10)))
    assert load(photos).reading.images is None
    assert "has tables, such as notes.csv, and folders with images, which are left out" in caplog.text
