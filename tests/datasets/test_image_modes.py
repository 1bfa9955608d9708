"""Every mode of Pillow's, and every depth: the pixels are those of the same picture in 8 bits, or it is refused."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from dl4jlegacy.datasets import ImageRecordReader
from dl4jlegacy.datasets.images.image_modes import Pillow, check_mode, is_gray, plain
from dl4jlegacy.errors import ConfError, DataError
from tests.support.image_contents import png, ppm, tiff

INK = np.zeros((4, 6), bool)
INK[1:3, 2:5] = True
SHADES = np.where(INK, 0, 255).astype(np.uint8)  # what black ink on white paper is


def picture() -> Any:
    """Return eight colours, gray ones among them."""
    colours = [(0, 0, 0), (255, 255, 255), (200, 30, 40), (20, 180, 60), (10, 40, 220), (128, 128, 128), (90, 90, 90)]
    return Image.fromarray(np.array([[*colours, (250, 220, 10)]] * 2, np.uint8))


def made(mode: str) -> Any:
    """Return the picture in a mode, by the ways that Pillow has."""
    if mode in ("P", "PA"):
        palette = picture().convert("P", palette=Image.Palette.ADAPTIVE)
        return palette if mode == "P" else palette.convert("PA")
    if mode == "LAB":
        return Image.new("LAB", (8, 2))
    way = {"La": ("LA",), "RGBa": ("RGBA",), "I;16B": ("I;16",), "I;16L": ("I;16",), "I;16N": ("I;16",)}.get(mode, ())
    image = picture()
    for each in (*(("L",) if mode.startswith("I;16") else ()), *way, *(() if mode in ("I;16L", "I;16N") else (mode,))):
        image = image.convert(each)
    return image if image.mode == mode else Image.new(mode, image.size)


@pytest.mark.parametrize("mode", Image.MODES)
def test_every_mode_is_the_picture_in_eight_bits_or_refused(mode: str) -> None:
    image = made(mode)
    image.tile = []  # as of one that was opened
    assert image.mode == mode
    if mode == "LAB" or mode.startswith(("I", "F")):
        with pytest.raises(DataError, match=rf"image a\.tif has mode {mode}.*; save it (with 8 bits|as RGB)"):
            check_mode(Path("a.tif"), image)
        return
    check_mode(Path("a.tif"), image)
    gray = mode in ("1", "L", "LA", "La")
    assert is_gray(image) == gray
    for wanted in ("L", "RGB"):
        pixels, said = plain(image, wanted, "white", Pillow(Image, ImageOps))
        expected = picture().convert("1") if mode == "1" else picture().convert("L") if gray else picture()
        off = np.abs(np.asarray(pixels).astype(int) - np.asarray(expected.convert(wanted))).max()
        assert off <= {"HSV": 6, "YCbCr": 2}.get(mode, 1 if wanted == "L" else 0) and said == ""


# -- files -----------------------------------------------------------------------------------------------------------


def channels(*values: Any) -> Any:
    return np.stack(np.broadcast_arrays(*values), axis=-1)


def deep(values: Any, count: int = 0) -> Any:
    """Return 10 bits of a camera in 16, in so many channels (0: a single plane)."""
    one = (np.where(INK, 20, 240) + 0 * values).astype(np.uint16)
    return channels(*[one] * count) if count else one


DEEP: dict[str, Callable[[], bytes]] = {
    "gray.png": lambda: png(deep(SHADES), 0),
    "rgb.png": lambda: png(deep(SHADES, 3), 2),
    "la.png": lambda: png(deep(SHADES, 2), 4),
    "rgba.png": lambda: png(deep(SHADES, 4), 6),
    "keyed.png": lambda: png(deep(SHADES, 3), 2, struct.pack(">HHH", 20, 20, 20)),
    "gray.pgm": lambda: ppm("P5", 65535, deep(SHADES)),
    "white_is_0.tif": lambda: tiff(SIXTEEN, 0),
    "key.png": lambda: png(channels(SIXTEEN, SIXTEEN, SIXTEEN), 2, struct.pack(">HHH", 20, 20, 20)),
    "rgb.ppm": lambda: ppm("P6", 65535, deep(SHADES, 3)),
    "text.ppm": lambda: ppm("P3", 65535, deep(SHADES, 3)),
    "text.pgm": lambda: ppm("P2", 65535, deep(SHADES)),
    "real.pfm": lambda: b"Pf 6 4 -1.0\n" + SHADES.astype("<f4").tobytes(),
    "gray.tif": lambda: tiff(deep(SHADES), 1),
    "rgb.tif": lambda: tiff(deep(SHADES, 3), 2),
    "rgba.tif": lambda: tiff(deep(SHADES, 4), 2, extra=2),
    "rgbx.tif": lambda: tiff(deep(SHADES, 4), 2, extra=0),
    "cmyk.tif": lambda: tiff(deep(SHADES, 4), 5),
    "real.tif": lambda: tiff(SHADES.astype(np.float32), 1, kind=3),
    "whole.tif": lambda: tiff(SHADES.astype(np.int32), 1, kind=2),
    "signed.tif": lambda: tiff(SHADES, 1, kind=2),
    "lab.tif": lambda: tiff(channels(SHADES, SHADES, SHADES), 8),
}


@pytest.mark.parametrize("name", DEEP)
def test_a_cameras_bits_in_sixteen_and_what_has_no_colours_are_refused_in_every_format(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    path.write_bytes(DEEP[name]())
    with pytest.raises(DataError, match=r"image .* has (mode|signed numbers) .*; save it (with 8 bits|as RGB)"):
        ImageRecordReader(channels=1).read([path])


SIXTEEN = SHADES.astype(np.uint16) * 257 - np.uint16(100) * (SHADES > 0)
OPAQUE = np.full_like(SIXTEEN, 65535)
SHADED: dict[str, Callable[[], bytes]] = {  # the whole range of more than 8 bits
    "gray.png": lambda: png(SIXTEEN, 0),
    "rgb.png": lambda: png(channels(SIXTEEN, SIXTEEN, SIXTEEN), 2),
    "la.png": lambda: png(channels(SIXTEEN, OPAQUE), 4),
    "inked_la.png": lambda: png(channels(0 * OPAQUE, OPAQUE - SIXTEEN), 4),
    "rgba.png": lambda: png(channels(SIXTEEN, SIXTEEN, SIXTEEN, OPAQUE), 6),
    "gray.pgm": lambda: ppm("P5", 65535, SIXTEEN),
    "ten.pgm": lambda: ppm("P5", 1023, (SIXTEEN >> 6)),
    "text.pgm": lambda: ppm("P2", 65535, SIXTEEN),
    "rgb.ppm": lambda: ppm("P6", 65535, channels(SIXTEEN, SIXTEEN, SIXTEEN)),
    "ten.ppm": lambda: ppm("P6", 1023, channels(SIXTEEN, SIXTEEN, SIXTEEN) >> 6),
    "text.ppm": lambda: ppm("P3", 65535, channels(SIXTEEN, SIXTEEN, SIXTEEN)),
    "gray.tif": lambda: tiff(SIXTEEN, 1),
    "rgb.tif": lambda: tiff(channels(SIXTEEN, SIXTEEN, SIXTEEN), 2),
    "rgba.tif": lambda: tiff(channels(SIXTEEN, SIXTEEN, SIXTEEN, OPAQUE), 2, extra=2),
    "premultiplied.tif": lambda: tiff(channels(SIXTEEN, SIXTEEN, SIXTEEN, OPAQUE), 2, extra=1),
    "rgbx.tif": lambda: tiff(channels(SIXTEEN, SIXTEEN, SIXTEEN, 0 * OPAQUE), 2, extra=0),
    "cmyk.tif": lambda: tiff(channels(0 * OPAQUE, 0 * OPAQUE, 0 * OPAQUE, OPAQUE - SIXTEEN), 5),
}


@pytest.mark.parametrize("name", SHADED)
def test_shades_of_more_than_eight_bits_become_the_picture_in_eight(tmp_path: Path, name: str) -> None:
    path, drawn = tmp_path / name, np.random.default_rng(5).integers(0, 256, SHADES.shape).astype(np.uint8)
    path.write_bytes(SHADED[name]())
    for count in (1, 3):
        assert np.abs(ImageRecordReader(channels=count).read([path]) - SHADES.astype(float)).max() <= 1
    assert ImageRecordReader().read([path]).shape[1] == (
        1 if name.rpartition("_")[2][:2] in ("gr", "la") or "pgm" in name else 3
    )
    (tmp_path / "drawn.png").write_bytes(png(drawn.astype(np.uint16) * 257, 0))
    assert (ImageRecordReader(channels=1).read([tmp_path / "drawn.png"])[0, 0] == drawn).all()


NOTHING = np.zeros_like(SHADES)
ALPHA = np.where(INK, 255, 0).astype(np.uint8)
COLOURS = [0, 0, 0, 255, 255, 255] * 42
INKED: dict[str, Callable[[], bytes]] = {  # black ink on nothing, or on white paper, as each format can have it
    "la.png": lambda: png(channels(NOTHING, ALPHA), 4),
    "rgba.png": lambda: png(channels(NOTHING, NOTHING, NOTHING, ALPHA), 6),
    "gray_key.png": lambda: png(np.where(INK, 0, 9).astype(np.uint8), 0, struct.pack(">H", 9)),
    "rgb_key.png": lambda: png(np.where(INK[..., None], 0, np.uint8([9, 8, 7])), 2, struct.pack(">HHH", 9, 8, 7)),
    "la.tif": lambda: tiff(channels(NOTHING, ALPHA), 1, extra=2),
    "la_premultiplied.tif": lambda: tiff(channels(NOTHING, ALPHA), 1, extra=1),
    "rgba.tif": lambda: tiff(channels(NOTHING, NOTHING, NOTHING, ALPHA), 2, extra=2),
    "rgba_premultiplied.tif": lambda: tiff(channels(NOTHING, NOTHING, NOTHING, ALPHA), 2, extra=1),
    "palette_alpha.tif": lambda: tiff(channels(NOTHING, ALPHA), 3, extra=2),
    "rgbx.tif": lambda: tiff(channels(SHADES, SHADES, SHADES, ALPHA), 2, extra=0),
    "inverted.tif": lambda: tiff(255 - SHADES, 0),
    "cmyk.tif": lambda: tiff(channels(NOTHING, NOTHING, NOTHING, 255 - SHADES), 5),
    "fifteen.ppm": lambda: ppm("P6", 15, channels(*[SHADES // 17] * 3)),
}


@pytest.mark.parametrize("name", [*INKED, "key.gif", "alpha.webp", "part.png"])
def test_ink_is_where_it_is_on_white_paper_whatever_says_so(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name in INKED:
        path.write_bytes(INKED[name]())
    else:
        image = Image.fromarray(channels(NOTHING, NOTHING, NOTHING, ALPHA))
        image.save(path, **({"lossless": True, "exact": True} if name == "alpha.webp" else {}))
    for count in (1, 3):
        assert ImageRecordReader(channels=count).read([path]).tolist() == [[SHADES.tolist()] * count]


def test_transparency_is_mixed_with_the_background_that_is_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    half = np.where(INK, 255, 128).astype(np.uint8)
    (tmp_path / "a.png").write_bytes(png(channels(NOTHING + 200, NOTHING + 100, NOTHING, half), 6))
    for background, (red, green, blue) in {"white": (255,) * 3, "black": (0,) * 3, "#ff8000": (255, 128, 0)}.items():
        pixels = ImageRecordReader(background=background).read([tmp_path / "a.png"])[0].astype(float)
        part = 128 / 255
        expected = [200 * part + red * (1 - part), 100 * part + green * (1 - part), blue * (1 - part)]
        assert np.abs(pixels[:, 0, 0] - expected).max() <= 1 and pixels[:, 1, 2].tolist() == [200, 100, 0]
    assert not caplog.records
    with pytest.raises(ConfError, match="background of images is 'pink'; give white, black, gray"):
        ImageRecordReader(background="pink")


def test_what_a_background_hides_is_said_and_what_is_all_transparent_is_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    white = NOTHING + 255
    paths = [tmp_path / f"{number}.png" for number in range(3)]
    for path in paths[:2]:
        path.write_bytes(png(channels(white, ALPHA), 4))
    paths[2].write_bytes(png(channels(SHADES, NOTHING), 4))
    blocks = np.concatenate(list(ImageRecordReader().blocks(paths, rows=1)))
    assert (blocks[:2] == 1).all() and (blocks[2].reshape(4, 6) * 255 == SHADES).all()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2 and all("3 images: images that are " in each for each in said)
    assert said[0].startswith("2 of ") and "on a white background" in said[0] and "--image-background black" in said[0]
    assert said[1].startswith("1 of ") and said[1].endswith(f"the first is {paths[2]}")
    caplog.clear()
    assert (ImageRecordReader(background="black").read(paths[:1])[0, 0] == 255 - SHADES).all() and not caplog.records


def test_pages_and_animations_are_said_to_have_more_pictures(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second = Image.fromarray(SHADES), Image.fromarray(255 - SHADES)
    for ending in ("gif", "tif", "png", "webp"):
        lossless = {"lossless": True} if ending == "webp" else {}
        first.save(tmp_path / f"a.{ending}", save_all=True, append_images=[second], **lossless)
        caplog.clear()
        pixels = ImageRecordReader(channels=1).read([tmp_path / f"a.{ending}"])
        assert (pixels[0, 0] == SHADES).all(), ending
        assert "1 of 1 image: files with several pictures, of which the first is taken" in caplog.text
