"""Inspection of images in folders or listed in tables, to find problems before training."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.images.image_files import ImageRecordReader
from dl4jlegacy.datasets.images.image_folders import LeftOut, class_folders, has_parts, outside_parts
from dl4jlegacy.datasets.images.image_tables import image_at
from dl4jlegacy.datasets.tables.inspection import Inspection, Problem
from dl4jlegacy.datasets.tables.text_rows import open_table
from dl4jlegacy.datasets.tables.transform_process import TransformProcess
from dl4jlegacy.errors import DataError

__all__ = ["inspect_images", "problems_of_listed"]

_EXAMPLES = 5
_ROWS = 8192
_UNREADABLE = "images that cannot be read"
_LEFT_OUT = "images that are left out"
_SIZE = "images of another size than"
_REFUSED = (
    _UNREADABLE,
    "classes with a single image",
    "a single class",
    "classes in test that are not in train",
    "cells that name no image",
    "images that are listed twice",
    "rows that cannot be read",
)


def inspect_images(folder: Path, *, is_sized: bool = False) -> Inspection:
    """Return the number of images in each class folder, and their problems; reads every image.

    Args:
        folder: with a folder for each class, or with these in folders ``train`` and ``test``.
        is_sized: whether images will be resized, so that they may have different sizes.

    Raises:
        DataError: the folder has no images, or cannot be read.
    """
    is_parted = has_parts(folder)
    scanned = [class_folders(folder / name if name else folder) for name in (("train", "test") if is_parted else ("",))]
    parts = [each.classes for each in scanned]
    if not any(parts):
        raise DataError(f"folder {folder} has no folders with images")
    for each in scanned:
        each.say()
    left_out = [each.left_out for each in scanned] + ([outside_parts(folder)] if is_parted else [])
    place = {path: (name, n) for n, part in enumerate(parts) for name, paths in part.items() for path in paths}
    found = _Found(is_sized=is_sized)
    for path, first in found.add_all(place):
        what = "images that are there twice"
        if place[first][0] != place[path][0]:
            what = "images that are in two classes"
        elif place[first] != place[path]:
            what = "images that are in both parts"
        found.problems.setdefault(what, []).append(f"{path} is {first}")
    return Inspection(str(folder), len(place), False, (), _every(found.all() | _of_classes(parts) | _unread(left_out)))


def _of_classes(parts: list[dict[str, list[Path]]]) -> dict[str, list[str]]:
    """Return the problems of the classes in a folder, or in its parts."""
    lone = [
        f"{name}: {paths[0]}"
        for part, least in zip(parts, (1 if len(parts) > 1 else 2, 1), strict=False)
        for name, paths in part.items()
        if len(paths) < least
    ]
    unknown = [str(paths[0].parent) for part in parts[1:] for name, paths in part.items() if name not in parts[0]]
    problems = {
        "classes with a single image": lone,
        "a single class": list(parts[0]) if len(parts[0]) == 1 else [],
        "classes in test that are not in train": unknown,
    }
    return {what: places for what, places in problems.items() if places}


def _unread(left_out: list[LeftOut]) -> dict[str, list[str]]:
    """Return the ignored images with the reasons."""
    every = [f"{path} ({reason})" for each in left_out for path, reason in each.images.items()]
    return {_LEFT_OUT: every} if every else {}


def problems_of_listed(
    file: Path, column: str, process: TransformProcess, listed: dict[Path, str], *, is_sized: bool = False
) -> tuple[Problem, ...]:
    """Return the problems of the images that a table lists; reads every image.

    Args:
        file: the table.
        column: the column with the names of the images.
        process: the schema of the table, as ``image_schema`` returns it.
        listed: the place of each image named in earlier tables; those of this table are added.
        is_sized: whether images will be resized, so that they may have different sizes.
    """
    problems, paths = dict[str, list[str]](), list[Path]()
    try:
        for table in process.blocks(open_table(file), str(file), rows=_ROWS):
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
    found = _Found(problems, is_sized=is_sized)
    for path, first in found.add_all(paths):
        problems.setdefault("images that are there twice", []).append(f"{path} is {first}")
    return _every(found.all())


class _Found:
    """Images that were read, and their problems: for each kind of problem the places."""

    def __init__(self, problems: dict[str, list[str]] | None = None, *, is_sized: bool) -> None:
        self.problems, self._is_sized = {} if problems is None else problems, is_sized
        self._sizes, self._gray = dict[Path, tuple[int, int]](), list[Path]()
        self._seen = dict[bytes, Path]()

    def add_all(self, paths: Iterable[Path]) -> Iterator[tuple[Path, Path]]:
        """Read files; yield each file with the same pixels as an earlier one, together with that one."""
        reader = ImageRecordReader()
        for path in paths:
            try:
                pixels, remarks = reader.decode(path)
            except DataError as exc:
                self.problems.setdefault(_UNREADABLE, []).append(str(exc))
                continue
            for each in remarks:
                self.problems.setdefault(each, []).append(str(path))
            self._sizes[path] = (pixels.shape[1], pixels.shape[2])
            self._gray += [path] if len(pixels) == 1 else []
            first = self._seen.setdefault(_digest(pixels), path)
            if first != path:
                yield path, first

    def all(self) -> dict[str, list[str]]:
        """Return the places of every kind of problem."""
        uneven = {} if self._is_sized else _uneven(self._sizes)
        return self.problems | uneven | _mixed(self._sizes, self._gray)


def _every(problems: dict[str, list[str]]) -> tuple[Problem, ...]:
    return tuple(
        Problem(what, len(places), tuple(places[:_EXAMPLES]), what in _REFUSED or what.startswith(_SIZE))
        for what, places in problems.items()
    )


def _digest(pixels: Array) -> bytes:
    return hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).digest()


def _uneven(sizes: dict[Path, tuple[int, int]]) -> dict[str, list[str]]:
    """Return the images whose size differs from the commonest size."""
    if len(set(sizes.values())) < 2:
        return {}
    (height, width), _ = Counter(sizes.values()).most_common(1)[0]
    others = [f"{path} ({h}x{w})" for path, (h, w) in sizes.items() if (h, w) != (height, width)]
    return {f"{_SIZE} {height}x{width} (--image-size makes them alike)": others}


def _mixed(sizes: dict[Path, tuple[int, int]], gray: list[Path]) -> dict[str, list[str]]:
    """Return gray images among coloured ones, or coloured among gray ones: whichever are fewer."""
    if not 0 < len(gray) < len(sizes):
        return {}
    are_gray = set(gray)
    coloured = [path for path in sizes if path not in are_gray]
    if len(gray) <= len(coloured):
        return {"gray images among those with colours": list(map(str, gray))}
    return {"images with colours among gray ones": list(map(str, coloured))}
