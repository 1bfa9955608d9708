"""What every way into the package does with what is odd in folders of images: docs/odd-files.md shows it."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.image_contents import png, ppm, tiff
from tests.support.odd_folders import FolderBench
from tests.support.odd_page import WAYS, cells_under, of_kind

FORMATS = {
    "PNG": ("png", "image/png"),
    "JPEG": ("jpg", "image/jpeg"),
    "TIFF": ("tif", "image/tiff"),
    "PPM": ("ppm", "image/x-portable-pixmap"),
}
EACH = 6  # images of a class
EVEN = 0  # the number of an image of one shade, which another size does not change


def channels(*values: Any) -> Any:
    return np.stack(np.broadcast_arrays(*values), axis=-1)


def pixels(kind: str, number: int) -> Any:
    """Return a picture, bytes ``(8, 8, 3)``: in gray as JPEG, which keeps this to the bit, else in colours."""
    source = np.random.default_rng(number)
    drawn = source.integers(0, 256, (8, 8, 1 if kind == "JPEG" else 3)).astype(np.uint8)
    return np.broadcast_to(drawn if number % EACH != EVEN else drawn[:1, :1], (8, 8, 3))


def alpha(number: int) -> Any:
    return pixels("PNG", number)[..., 0]


def jpeg(image: Any) -> bytes:
    content = io.BytesIO()
    image.save(content, "JPEG", quality=100, subsampling=0)
    return content.getvalue()


def as_they_are(kind: str, drawn: Any) -> bytes:
    """Return a picture in the usual kind of a format's files, in colours or, ``(8, 8)``, in gray."""
    if kind == "JPEG":
        return jpeg(Image.fromarray(np.ascontiguousarray(drawn)))
    if kind == "PPM":
        return ppm("P6" if drawn.ndim == 3 else "P5", 255, drawn)
    return png(drawn, 2 if drawn.ndim == 3 else 0) if kind == "PNG" else tiff(drawn, 2 if drawn.ndim == 3 else 1)


def deep(kind: str, drawn: Any) -> bytes:
    """Return a picture of 16 bits a channel."""
    return {"PNG": lambda: png(drawn, 2), "TIFF": lambda: tiff(drawn, 2), "PPM": lambda: ppm("P6", 65535, drawn)}[
        kind
    ]()


def inked(kind: str, number: int) -> bytes:
    drawn = channels(np.zeros((8, 8), np.uint8), alpha(number))
    return png(drawn, 4) if kind == "PNG" else tiff(drawn, 1, extra=2)


def palette(kind: str, number: int) -> bytes:
    """Return a picture whose colours are shades of a palette, of which the darker ones are transparent."""
    shades = alpha(number)
    if kind == "TIFF":
        return tiff(channels(shades, np.where(shades < 99, 0, 255).astype(np.uint8)), 3, extra=2)
    image, content = Image.fromarray(shades).convert("P"), io.BytesIO()
    image.putpalette([shade for shade in range(256) for _ in range(3)])
    image.save(content, "PNG", transparency=bytes(0 if shade < 99 else 255 for shade in range(256)))
    return content.getvalue()


def on_white(number: int) -> Any:
    shades = alpha(number)
    return channels(*[np.where(shades < 99, 255, shades).astype(np.uint8)] * 3)


def cmyk(kind: str, number: int) -> bytes:
    ink = 255 - pixels(kind, number)
    drawn = np.concatenate([ink, np.zeros_like(ink[..., :1])], axis=2)
    return tiff(drawn, 5) if kind == "TIFF" else jpeg(Image.frombytes("CMYK", (8, 8), drawn.tobytes()))


def one_elsewhere(folder: Path, kind: str) -> None:
    ending = FORMATS[kind][0]
    (folder / "dogs" / "z").mkdir()
    shutil.move(folder / "dogs" / f"5.{ending}", folder / "dogs" / "z")


def all_renamed(folder: Path, kind: str) -> None:
    for path in folder.rglob(f"*.{FORMATS[kind][0]}"):
        path.rename(path.with_suffix(".jfif"))


def one_large(folder: Path, kind: str) -> None:
    drawn = np.broadcast_to(pixels(kind, EVEN)[:1, :1], (10, 12, 3))
    (folder / "cats" / f"{EVEN}.{FORMATS[kind][0]}").write_bytes(as_they_are(kind, drawn))


def with_texts(folder: Path, kind: str) -> None:
    for place in (folder, folder / "cats"):
        (place / "notes.txt").write_text(f"photos in {kind}")


def one_broken(folder: Path, kind: str) -> None:
    path = folder / "cats" / f"{EVEN}.{FORMATS[kind][0]}"
    path.write_bytes(path.read_bytes()[:-40])


Draw = Callable[[str, int], bytes]
DRAWN: dict[str, tuple[tuple[str, ...], Draw, Callable[[str, int], Any]]] = {
    "16 bits a channel": (
        ("PNG", "TIFF", "PPM"),
        lambda kind, number: deep(kind, pixels(kind, number).astype(np.uint16) * 257),
        pixels,
    ),
    "ink only in the transparency": (("PNG", "TIFF"), inked, lambda _, number: 255 - alpha(number)),
    "a palette with transparency": (("PNG", "TIFF"), palette, lambda _, number: on_white(number)),
    "CMYK": (("JPEG", "TIFF"), cmyk, pixels),
    "a camera's 10 bits in 16": (
        ("PNG", "TIFF", "PPM"),
        lambda kind, number: deep(kind, pixels(kind, number).astype(np.uint16) * 4),
        pixels,
    ),
}
"""What is odd in the pixels: in which formats, how a picture is written so, and which picture that is."""
CHANGED: dict[str, tuple[tuple[str, ...], Callable[[Path, str], None], bool]] = {
    "images in folders of a class": (tuple(FORMATS), one_elsewhere, False),
    "names that end in `.jfif`": (("JPEG",), all_renamed, False),
    "a text among the images": (tuple(FORMATS), with_texts, False),
    "several sizes without `--image-size`": (tuple(FORMATS), one_large, True),
    "a broken image": (tuple(FORMATS), one_broken, True),
}
"""What else is odd in a folder: in which formats, how it is made so, and whether an image itself is."""
ODD = {name: formats for name, (formats, *_) in {**DRAWN, **CHANGED}.items()}


def as_plain(kind: str, number: int) -> bytes:
    return as_they_are(kind, pixels(kind, number))


def written(folder: Path, kind: str, content: Draw) -> Path:
    for number in range(2 * EACH):
        path = folder / ("cats", "dogs")[number // EACH] / f"{number % EACH}.{FORMATS[kind][0]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(kind, number))
    return folder


def outcomes(
    folder: Path, kind: str, capsys: Any, ways: Sequence[str], odds: Iterable[str]
) -> Iterator[tuple[str, str, str]]:
    """Yield what is odd, the way and what becomes of it in a format; "" where the question does not arise."""
    (ending, media), benches = FORMATS[kind], dict[Any, FolderBench]()
    for place, odd in enumerate(odds):
        of_odd, of_plain = as_plain, pixels
        if odd in DRAWN:
            _, of_odd, of_plain = DRAWN[odd]
        if of_plain not in benches:
            plain = written(folder / f"plain{place}", kind, lambda *which, of=of_plain: as_they_are(kind, of(*which)))
            benches[of_plain] = FolderBench(plain, capsys, options=("--model", "mlp"), model="mlp")
        changed, is_served = written(folder / f"odd{place}", kind, of_odd), odd in DRAWN
        if odd in CHANGED:
            _, change, is_served = CHANGED[odd]
            change(changed, kind)
        one = changed / "cats" / f"{EVEN}.{ending}" if is_served else None
        found = dict(benches[of_plain].outcomes(changed, ways, one, media))
        yield from ((odd, way, found.get(way, "")) for way in ways)


def wrong_cells(found: Iterable[tuple[str, str, str]], kind: str) -> list[str]:
    page = cells_under("Images")
    assert list(page) == list(ODD)
    return [
        f"{odd}, {way}, {kind}: {what!r}; the page says {page[odd][way]!r}"
        for odd, way, what in found
        if what != of_kind(page[odd][way], kind)
    ]


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
@pytest.mark.everyday(1)
def test_the_page_says_what_becomes_of_odd_images(kind: str, tmp_path: Path, capsys: Any) -> None:
    ways = tuple(way for way in WAYS if way != "tune")
    wrong = wrong_cells(outcomes(tmp_path, kind, capsys, ways, [odd for odd in ODD if ODD[odd][0] == kind]), kind)
    assert not wrong, "\n".join(wrong)


@pytest.mark.long
@pytest.mark.parametrize("kind", FORMATS)
def test_the_page_says_what_becomes_of_odd_images_of_every_format(kind: str, tmp_path: Path, capsys: Any) -> None:
    wrong = wrong_cells(outcomes(tmp_path, kind, capsys, WAYS, [odd for odd in ODD if kind in ODD[odd]]), kind)
    assert not wrong, "\n".join(wrong)
