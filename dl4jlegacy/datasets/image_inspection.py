"""What is wrong with images in folders, or those that tables list, before anybody learns from them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from dl4jlegacy.backend import Array
from dl4jlegacy.datasets.image_files import ImageRecordReader, class_folders, parts_of
from dl4jlegacy.datasets.image_tables import image_at
from dl4jlegacy.datasets.inspection import Inspection, Problem
from dl4jlegacy.datasets.transform_process import TransformProcess
from dl4jlegacy.errors import DataError

__all__ = ["inspect_images", "problems_of_listed"]

_EXAMPLES = 5
_ROWS = 8192
_UNREADABLE = "images that cannot be read"
_REFUSED = (
    _UNREADABLE,
    "classes with a single image",
    "cells that name no image",
    "images that are listed twice",
    "rows that cannot be read",
)


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
    for path, pixels in _decoded((path for part in found for paths in part.values() for path in paths), problems):
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
    count = sum(len(paths) for part in found for paths in part.values())
    return Inspection(str(folder), count, False, (), _every(problems))


def problems_of_listed(
    file: Path, column: str, process: TransformProcess, listed: dict[Path, str]
) -> tuple[Problem, ...]:
    """Return what is wrong with the images that a table lists; reads each of them.

    Args:
        file: the table.
        column: names its images.
        process: the schema of the table, as ``image_schema`` returns it.
        listed: where each image is named in the tables before; those of this one are added.
    """
    problems, paths = dict[str, list[str]](), list[Path]()
    try:
        for table in process.blocks(file.open("rb"), str(file), rows=_ROWS):
            for row, value in enumerate(table.columns[column].tolist()):
                where = table.place(row, column)
                try:
                    path = image_at(file.parent, value.strip(), where)
                except DataError as exc:
                    problems.setdefault("cells that name no image", []).append(str(exc))
                    continue
                if path in listed:
                    what = f"{where}: {path} is in {listed[path]}"
                    problems.setdefault("images that are listed twice", []).append(what)
                    continue
                listed[path] = where
                paths.append(path)
    except DataError as exc:
        problems.setdefault("rows that cannot be read", []).append(str(exc))
    sizes, gray, seen = dict[Path, tuple[int, int]](), list[Path](), dict[bytes, Path]()
    for path, pixels in _decoded(paths, problems):
        sizes[path] = (pixels.shape[1], pixels.shape[2])
        gray += [path] if len(pixels) == 1 else []
        first = seen.setdefault(_digest(pixels), path)
        if first != path:
            problems.setdefault("images that are there twice", []).append(f"{path} is {first}")
    return _every(problems | _uneven(sizes) | _mixed(sizes, gray))


def _decoded(paths: Iterable[Path], problems: dict[str, list[str]]) -> Iterator[tuple[Path, Array]]:
    """Yield files with their pixels; those that cannot be read are added to the problems."""
    reader = ImageRecordReader()
    for path in paths:
        try:
            pixels = reader.decode(path)
        except DataError as exc:
            problems.setdefault(_UNREADABLE, []).append(str(exc))
            continue
        yield path, pixels


def _every(problems: dict[str, list[str]]) -> tuple[Problem, ...]:
    return tuple(
        Problem(what, len(places), tuple(places[:_EXAMPLES]), what in _REFUSED) for what, places in problems.items()
    )


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
