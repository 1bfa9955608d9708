"""Recognises image files, by the endings of their names and by the beginnings of their contents."""

from __future__ import annotations

import re
from pathlib import Path

from dl4jlegacy.system import files

__all__ = ["ENDINGS", "FORMATS", "MEDIA_TYPES", "OTHER_ENDINGS", "begins_as_image", "is_image", "is_other_image"]

FORMATS = {  # by the endings of files; Pillow may decode a file as any of these, whatever its name
    "BMP": (".bmp", ".dib"),
    "GIF": (".gif",),
    "JPEG": (".jpg", ".jpeg", ".jfif", ".jfi", ".jif", ".jpe", ".pjpeg", ".pjp"),
    "PNG": (".png", ".apng"),
    "PPM": (".pgm", ".ppm", ".pbm", ".pnm", ".pfm"),
    "TIFF": (".tif", ".tiff"),
    "WEBP": (".webp",),
}
ENDINGS = tuple(ending for endings in FORMATS.values() for ending in endings)
MEDIA_TYPES = {
    "image/apng": ".png",
    "image/bmp": ".bmp",
    "image/gif": ".gif",
    "image/jpeg": ".jpg",
    "image/jpg": ".jpg",
    "image/pjpeg": ".jpg",
    "image/png": ".png",
    "image/tiff": ".tif",
    "image/webp": ".webp",
    "image/x-ms-bmp": ".bmp",
    "image/x-portable-anymap": ".ppm",
    "image/x-portable-bitmap": ".ppm",
    "image/x-portable-graymap": ".pgm",
    "image/x-portable-pixmap": ".ppm",
}
OTHER_ENDINGS = (  # of images that cannot be read here
    *(".ai", ".arw", ".avif", ".avifs", ".cr2", ".cr3", ".cur", ".dcm", ".dds", ".dicom", ".dng", ".emf", ".eps"),
    *(".exr", ".hdr", ".heic", ".heics", ".heif", ".heifs", ".hif", ".icns", ".ico", ".j2c", ".j2k", ".jp2", ".jpf"),
    *(".jpx", ".jxl", ".jxr", ".mpo", ".nef", ".orf", ".pam", ".pcx", ".pic", ".psd", ".qoi", ".raf", ".ras", ".rw2"),
    *(".sgi", ".svg", ".svgz", ".tga", ".wdp", ".wmf", ".xbm", ".xcf", ".xpm"),
)
_BEGINNINGS = (
    rb"\x89PNG\r\n\x1a\n",
    rb"\xff\xd8\xff",
    rb"GIF8[79]a",
    rb"BM.{4}\0{4}",
    rb"II[*+]\0|MM\0[*+]",
    rb"RIFF.{4}WEBP",
    rb"P[1-7Ff]\s+[#0-9W]",
    rb".{4}ftyp(heic|heix|heim|heis|hevc|hevx|mif1|msf1|avif|avis|crx )",
    rb"\0\0\0\x0c(jP  |JXL )\r\n\x87\n|\xff\x0a|\xff\x4f\xff\x51",
    rb"8BPS\0",
    rb"\x76\x2f\x31\x01",
    rb"\0\0\1\0[\1-\x20]\0",
    rb"qoif",
    rb"(\xef\xbb\xbf)?\s*(<\?xml.{0,600}?)?<svg[\s>]",
)
_IMAGE = re.compile(b"|".join(b"(?:%s)" % each for each in _BEGINNINGS), re.DOTALL)
_READ = 1024  # bytes of a file that show its kind


def is_image(name: str) -> bool:
    """Return whether a file's name ends like that of a readable image."""
    return name.lower().endswith(ENDINGS)


def is_other_image(name: str) -> bool:
    """Return whether a file's name ends like that of an image that cannot be read here."""
    return name.lower().endswith(OTHER_ENDINGS)


def begins_as_image(path: Path) -> bool:
    """Return whether a file begins like an image of any kind; False if it cannot be read."""
    try:
        with files.open_to_read(path) as file:
            return _IMAGE.match(file.read(_READ)) is not None
    except OSError:
        return False
