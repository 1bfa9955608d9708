"""Meaning of the pixels of an image file: each Pillow mode is converted to 8-bit gray or colours, or is refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dl4jlegacy.errors import DataError, how_to_install

__all__ = [
    "SEVERAL",
    "Pillow",
    "check_mode",
    "check_range",
    "find_pillow",
    "is_gray",
    "plain",
    "several_pictures",
    "shown",
]

_GRAY = frozenset({"1", "L", "LA", "La"})
_READ = _GRAY | {"P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV"}
_ALPHA = frozenset({"LA", "La", "PA", "RGBA", "RGBa"})
_BITS, _PHOTOMETRIC, _SAMPLES = 258, 262, 339  # of TIFF: BitsPerSample, PhotometricInterpretation and SampleFormat
_PALEST = 16  # of 256 shades: a 16-bit image without brighter pixels holds 10 or 12 bits of a camera
_UNSIGNED = frozenset({1, 4})  # of SampleFormat; 4 is "undefined"
SEVERAL = "files with several pictures, of which the first is taken"


@dataclass(frozen=True, slots=True)
class Pillow:
    """The modules of Pillow, imported when the first image is read."""

    image: Any
    ops: Any

    @property
    def too_large(self) -> tuple[type[Exception], ...]:
        """Exceptions for images beyond Pillow's limit, including its warning, in case warnings are errors."""
        return (self.image.DecompressionBombError, self.image.DecompressionBombWarning)


def find_pillow() -> Pillow:
    """Return the modules of Pillow; raises ``DataError`` if it is not installed."""
    try:
        from PIL import Image, ImageOps
    except ModuleNotFoundError as exc:
        raise DataError(f"images need Pillow, which is not installed: {how_to_install('images')}") from exc
    return Pillow(Image, ImageOps)


def shown(image: Any) -> Any:
    """Return a Pillow image as gray or RGB, with transparent parts on white.

    Images with other pixels (more than 8 bits, fractions), and other objects, are returned unchanged.
    """
    mode, info = getattr(image, "mode", ""), getattr(image, "info", {})
    if mode not in _READ or (mode in ("1", "L", "RGB") and "transparency" not in info):
        return image
    return plain(image, "L" if mode in _GRAY else "RGB", "white", find_pillow())[0]


def check_mode(path: Path, image: Any) -> bool:
    """Raise ``DataError`` for an opened image whose pixels cannot become bytes of gray or colours.

    Returns:
        Whether it has more than 8 bits per channel, so that ``check_range`` must check it after loading.
    """
    bits = _bits(image)
    is_deep = bits > 8 or image.mode.startswith(("I", "F"))
    if is_deep and not _has_shades(image, bits):
        raise _no_range(path, image, bits)
    if is_deep:
        return True
    if image.mode not in _READ:
        raise DataError(
            f"image {path} has mode {image.mode}, of which no red, green and blue are made here; save it as RGB"
        )
    if image.format == "TIFF" and not _UNSIGNED.issuperset(image.tag_v2.get(_SAMPLES, ())):
        raise DataError(f"image {path} has signed numbers or fractions for pixels; save it with 8 bits from 0 to 255")
    return False


def _has_shades(image: Any, bits: int) -> bool:
    """Return whether values of more than 8 bits are shades from black to white; Pillow keeps the upper 8 bits."""
    if image.format == "TIFF":
        tags = image.tag_v2
        is_plain = _UNSIGNED.issuperset(tags.get(_SAMPLES, ())) and int(tags.get(_PHOTOMETRIC, 0)) > 0
        return bits == 16 and is_plain and image.mode in (*_READ, "I;16", "I;16B")
    if image.format == "PNG":
        return bits == 16 and "transparency" not in image.info  # a transparent 16-bit value matches no 8-bit pixel
    return bits > 8 and image.format == "PPM" and image.mode in ("I", "RGB")  # its header says the white level


def check_range(path: Path, image: Any) -> None:
    """Raise ``DataError`` if a loaded image of more than 8 bits per channel is black, or has only dark shades."""
    if image.mode.startswith("I"):
        brightest = image.getextrema()[1] // 257
    else:
        bands = [image.getchannel(band).getextrema() for band in image.getbands()]
        if image.mode in _ALPHA and bands[-1][0] == bands[-1][1]:  # otherwise alpha may hold the only shades
            del bands[-1]
        brightest = max(most for _, most in bands)
    if brightest < _PALEST:
        raise _no_range(path, image, 16)


def _no_range(path: Path, image: Any, bits: int) -> DataError:
    how_many = f"{bits} bits" if bits > 8 else "more than 8 bits"
    return DataError(
        f"image {path} has mode {image.mode} with {how_many} a channel, which would lose its range here; save it "
        "with 8 bits, its darkest value as 0 and its brightest as 255, or read it into an array of your own"
    )


def _bits(image: Any) -> int:
    """Return the bits per channel in the file, as far as known; at least 8."""
    if image.format == "TIFF":
        return max(8, *map(int, image.tag_v2.get(_BITS, (1,))))
    parts = [tile[3] for tile in image.tile]
    if image.format == "PNG" or (image.format == "PPM" and image.mode == "I" and isinstance(parts[0], str)):
        return 16 if any(isinstance(part, str) and ";16" in part for part in parts) else 8
    if image.format == "PPM":
        most = [part[1] for part in parts if isinstance(part, tuple) and len(part) == 2]  # the kind, and its white
        return max(8, *(int(value).bit_length() for value in most), 8)
    return 8


def is_gray(image: Any) -> bool:
    """Return whether an image has no colours, by its mode."""
    is_deep = any(isinstance(tile[3], str) and tile[3].startswith("LA;16") for tile in image.tile)
    return image.mode in _GRAY or image.mode.startswith("I") or is_deep


def several_pictures(image: Any) -> bool:
    """Return whether a file has more pictures than the one that is read, like animations and multi-page TIFF files."""
    return bool(getattr(image, "is_animated", False))


def plain(image: Any, mode: str, background: str, pillow: Pillow) -> tuple[Any, str]:
    """Return an image in mode L or RGB, with transparent parts on a background.

    Args:
        image: loaded, of a mode that ``check_mode`` accepts.
        mode: L or RGB.
        background: a colour, in Pillow's notation.
        pillow: its modules.

    Returns:
        the image; and a warning about this kind of image, or "".
    """
    if image.mode.startswith("I"):
        shades = (np.asarray(image).astype(np.int64) + 128) // 257
        image = pillow.image.fromarray(shades.astype(np.uint8))
    if image.mode not in _ALPHA and "transparency" not in image.info:
        return (image if image.mode == mode else image.convert(mode)), ""
    rgba = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
    colours, alpha = rgba.convert("RGB"), rgba.getchannel("A")
    least, most = alpha.getextrema()
    said, laid = "", colours
    if most == 0 and not _is_even(colours):
        said = "images that are transparent all over, of which the colours are taken as they are"
    elif least < 255:
        laid = pillow.image.new("RGB", colours.size, background)
        laid.paste(colours, mask=alpha)
        if least < most and _is_even(laid):
            said = (
                f"images that are of one colour all over on a {background} background, and are not without it; give "
                f"--image-background {'white' if background == 'black' else 'black'} (background in a Conf's images)"
            )
    return (laid if mode == "RGB" else laid.convert(mode)), said


def _is_even(image: Any) -> bool:
    return all(low == high for low, high in image.getextrema())
