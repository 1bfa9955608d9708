"""What is in folders of images, and what is wrong with them, before anybody learns from them."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

from dl4jlegacy.backend import Array
from dl4jlegacy.datasets.image_files import ImageRecordReader, class_folders, parts_of
from dl4jlegacy.datasets.inspection import Inspection, Problem
from dl4jlegacy.errors import DataError

__all__ = ["inspect_images"]

_EXAMPLES = 5


def inspect_images(folder: Path) -> Inspection:
    """Return how many images the folders of the classes have, and what is wrong with them; reads each of them.

    Args:
        folder: with a folder for each class, or with these in folders ``train`` and ``test``.

    Raises:
        DataError: it has no images, or cannot be read.
    """
    found = [class_folders(part) for part in parts_of(folder)]
    if not any(found):
        raise DataError(f"folder {folder} has no folders with images")
    sizes, gray, seen = dict[Path, tuple[int, int]](), list[Path](), dict[bytes, Path]()
    problems: dict[str, list[str]] = {}
    reader = ImageRecordReader()
    for path in (path for part in found for paths in part.values() for path in paths):
        try:
            pixels = reader.decode(path)
        except DataError as exc:
            problems.setdefault("images that cannot be read", []).append(str(exc))
            continue
        sizes[path] = (pixels.shape[1], pixels.shape[2])
        gray += [path] if len(pixels) == 1 else []
        first = seen.setdefault(_digest(pixels), path)
        if first != path:
            what = "images that are there twice"
            if first.parent.name != path.parent.name:
                what = "images that are in two classes"
            elif first.parent != path.parent:
                what = "images that are in both parts"
            problems.setdefault(what, []).append(f"{path} is {first}")
    problems |= _uneven(sizes) | _mixed(sizes, gray)
    lone = [
        f"{name}: {paths[0]}"
        for part, least in zip(found, (1 if len(found) > 1 else 2, 1), strict=False)
        for name, paths in part.items()
        if len(paths) < least
    ]
    problems |= {"classes with a single image": lone} if lone else {}
    refused = ("images that cannot be read", "classes with a single image")
    count = sum(len(paths) for part in found for paths in part.values())
    every = (
        Problem(what, len(places), tuple(places[:_EXAMPLES]), what in refused) for what, places in problems.items()
    )
    return Inspection(str(folder), count, False, (), tuple(every))


def _digest(pixels: Array) -> bytes:
    return hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).digest()


def _uneven(sizes: dict[Path, tuple[int, int]]) -> dict[str, list[str]]:
    """Return the images that have another size than most."""
    if len(set(sizes.values())) < 2:
        return {}
    (height, width), _ = Counter(sizes.values()).most_common(1)[0]
    others = [f"{path} ({h}x{w})" for path, (h, w) in sizes.items() if (h, w) != (height, width)]
    return {f"images of another size than {height}x{width} (--image-size makes them alike)": others}


def _mixed(sizes: dict[Path, tuple[int, int]], gray: list[Path]) -> dict[str, list[str]]:
    """Return those that are gray among others with colours, or have colours among gray ones: whichever are fewer."""
    if not 0 < len(gray) < len(sizes):
        return {}
    are_gray = set(gray)
    coloured = [path for path in sizes if path not in are_gray]
    if len(gray) <= len(coloured):
        return {"gray images among those with colours": list(map(str, gray))}
    return {"images with colours among gray ones": list(map(str, coloured))}
