"""Finds the images of a folder: those of each class, those to predict, and ignored ones with the reason."""

from __future__ import annotations

import logging
import os
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dl4jlegacy.datasets.images.image_kinds import ENDINGS, begins_as_image, is_image, is_other_image
from dl4jlegacy.errors import DataError, counted
from dl4jlegacy.system import files

__all__ = ["ClassFolders", "LeftOut", "class_folders", "find_images", "has_parts", "holds_images", "outside_parts"]

logger = logging.getLogger(__name__)

_DEEPEST = 64  # maximum depth of nested folders
_LOOKED_INTO = 10_000  # maximum ignored files that are opened to see whether they are images
_SHOWN = 3
_PARTS = frozenset(
    {"train", "training", "test", "testing", "val", "valid", "validation", "validate", "dev", "eval", "evaluation"}
)
_HIDDEN = "hidden"
_UNREAD = "of a kind that is not read; save as PNG or JPEG"
_UNNAMED = f"whose names do not end as those of images ({', '.join(ENDINGS[:4])} ...)"


@dataclass(slots=True)
class LeftOut:
    """Files that are ignored.

    Attributes:
        folder: the folder that contains them.
        images: the images among them, with the reason.
        others: the files that are no images.
    """

    folder: Path
    images: dict[Path, str] = field(default_factory=dict)
    others: list[Path] = field(default_factory=list)

    def add(self, path: Path, is_hidden: bool, why: str = "") -> None:
        """Add an ignored file; ``why`` is the reason, for an image that is not hidden and could be read."""
        name, may_look = path.name, len(self.images) + len(self.others) < _LOOKED_INTO
        if is_hidden:
            known = (is_image(name) or is_other_image(name)) and (not may_look or begins_as_image(path))
            reason = _HIDDEN
        elif is_image(name):
            known, reason = True, why
        elif is_other_image(name):
            known, reason = True, _UNREAD
        else:
            known, reason = may_look and begins_as_image(path), _UNNAMED
        if known:
            self.images[path] = reason
        else:
            self.others.append(path)

    def say(self) -> None:
        """Log the numbers of ignored images and other files, with the first ones."""
        if self.images:
            by_reason: dict[str, list[Path]] = {}
            for path, reason in self.images.items():
                by_reason.setdefault(reason, []).append(path)
            parts = [f"{len(paths):,} {reason}: {self._some(paths)}" for reason, paths in by_reason.items()]
            logger.warning(
                "%s: %s left out: %s",
                self.folder,
                counted(len(self.images), "image is", "images are"),
                "; ".join(parts),
            )
        if self.others:
            what = counted(len(self.others), "file that is no image is", "files that are no images are")
            logger.warning("%s: %s left out: %s", self.folder, what, self._some(self.others))

    def _some(self, paths: list[Path]) -> str:
        shown = [path.relative_to(self.folder).as_posix() for path in paths[:_SHOWN]]
        return ", ".join(shown) + (" ..." if len(paths) > len(shown) else "")


@dataclass(frozen=True, slots=True)
class ClassFolders:
    """The images of a folder whose subfolders are classes.

    Attributes:
        classes: the images of each class, sorted by path, including those in nested folders.
        below: the nested folders with images, for classes that have some.
        without: names of folders without images, which are no classes.
        left_out: ignored files.
    """

    classes: dict[str, list[Path]]
    below: dict[str, list[Path]]
    without: list[str]
    left_out: LeftOut

    def say(self) -> None:
        """Log what may be unexpected: nested folders, folders without images, ignored files."""
        folder = self.left_out.folder
        if self.below:
            some = [self._deeper(name) for name in list(self.below)[:_SHOWN]]
            some += ["..."] if len(self.below) > _SHOWN else []
            logger.warning("%s: images in folders below those of their classes are read: %s", folder, ", ".join(some))
        if self.without:
            some = self.without[:_SHOWN] + (["..."] if len(self.without) > _SHOWN else [])
            no_class = "folder without images is no class", "folders without images are no classes"
            logger.warning("%s: %s: %s", folder, counted(len(self.without), *no_class), ", ".join(some))
        self.left_out.say()

    def _deeper(self, name: str) -> str:
        """Return the number of a class's images in nested folders, and these folders, in words."""
        inner, folder = self.below[name], self.left_out.folder
        own = folder / inner[0].relative_to(folder).parts[0]
        count = sum(path.parent != own for path in self.classes[name])
        shown = ", ".join(path.relative_to(own).as_posix() for path in inner[:_SHOWN])
        return f"{count:,} of {name} ({shown}{' ...' if len(inner) > _SHOWN else ''})"


def class_folders(folder: Path) -> ClassFolders:
    """Return the images of each class, and ignored files.

    Raises:
        DataError: the folder cannot be read, or contains parts of a data set, by their names, instead of classes.
    """
    classes, below, without, left_out = dict[str, list[Path]](), dict[str, list[Path]](), list[str](), LeftOut(folder)
    with files.errors_as(DataError, f"cannot read folder {folder}"):
        for name in files.names_in(folder):
            path = folder / name
            if name.startswith(".") or not files.is_folder(path):
                for each, is_hidden in _files_at(path):
                    left_out.add(each, is_hidden, "in no folder of a class")
                continue
            found = []
            for each, is_hidden in _files_in(path):
                if not is_hidden and is_image(each.name):
                    found.append(each)
                else:
                    left_out.add(each, is_hidden)
            if not found:
                without.append(name)
                continue
            name = unicodedata.normalize("NFC", name)  # macOS writes names in another Unicode form
            classes[name] = sorted([*classes.get(name, []), *found])
            inner = list(dict.fromkeys(each.parent for each in found if each.parent != path))
            if inner:
                below[name] = inner
                _check_no_part(path, found, inner)
    return ClassFolders(classes, below, without, left_out)


def _check_no_part(path: Path, found: list[Path], inner: list[Path]) -> None:
    """Raise ``DataError`` for a folder with the name of a part and all its images in nested folders."""
    if path.name.lower() in _PARTS and all(each.parent != path for each in found):
        names = ", ".join(each.relative_to(path).parts[0] for each in inner[:_SHOWN])
        raise DataError(
            f"{path} is a part of a data set, by its name, and has its images in folders ({names} ...), which are "
            "taken for classes only in two folders called train and test, side by side; rename the parts so, or give "
            "the one that is to be read"
        )


def outside_parts(folder: Path) -> LeftOut:
    """Return the files beside the folders train and test, which are ignored; raises ``DataError``."""
    left_out = LeftOut(folder)
    with files.errors_as(DataError, f"cannot read folder {folder}"):
        for name in files.names_in(folder):
            if name not in ("train", "test"):
                for each, is_hidden in _files_at(folder / name):
                    left_out.add(each, is_hidden, "in neither train nor test")
    return left_out


def has_parts(folder: Path) -> bool:
    """Return whether there are folders train and test with class folders in them; otherwise they may be classes."""
    with files.errors_as(DataError, f"cannot read folder {folder}"):
        both = all(files.is_folder(folder / name) for name in ("train", "test"))
        return both and _holds_classes(folder / "train")


def holds_images(folder: Path) -> bool:
    """Return whether a folder contains folders with images, which are classes or parts; raises ``DataError``."""
    with files.errors_as(DataError, f"cannot read folder {folder}"):
        return _holds_classes(folder)


def _holds_classes(folder: Path) -> bool:
    inner = [folder / name for name in files.names_in(folder) if not name.startswith(".")]
    return any(_is_read(*found) for each in inner if files.is_folder(each) for found in _files_in(each))


def find_images(place: Path) -> list[Path]:
    """Return the images in a folder and nested folders, sorted by path; a file is returned alone.

    Warns of ignored files.

    Raises:
        DataError: there are no images, or the folder cannot be read.
    """
    left_out = LeftOut(place)
    with files.errors_as(DataError, f"{place} cannot be read"):
        if not files.is_folder(place):
            return [place]
        found = []
        for path, is_hidden in _files_in(place):
            if _is_read(path, is_hidden):
                found.append(path)
            else:
                left_out.add(path, is_hidden)
    left_out.say()
    if not found:
        raise DataError(f"folder {place} has no images (files ending in {', '.join(ENDINGS)})")
    return found


def _is_read(path: Path, is_hidden: bool) -> bool:
    return not is_hidden and is_image(path.name)


def _files_at(path: Path) -> Iterator[tuple[Path, bool]]:
    """Yield a file, or those in a folder, and whether each is hidden, by its name or a folder's name."""
    is_hidden = path.name.startswith(".")
    if not is_image(path.name) and files.is_folder(path):
        yield from _files_in(path, is_hidden=is_hidden)
    else:
        yield path, is_hidden


def _files_in(
    folder: Path, *, is_hidden: bool = False, seen: set[str] | None = None, depth: int = 0
) -> Iterator[tuple[Path, bool]]:
    """Yield the files in a folder and nested folders, sorted by path; each folder once, even if linked.

    A path with an image's name counts as a file. Raises ``DataError``, or ``OSError``.
    """
    seen, real = set() if seen is None else seen, os.path.realpath(folder)
    if real in seen:
        return
    seen.add(real)
    if depth > _DEEPEST:
        raise DataError(f"{folder} is more than {_DEEPEST} folders deep; move its images up, or leave it out")
    for name in files.names_in(folder):
        path, hides = folder / name, is_hidden or name.startswith(".")
        if not is_image(name) and files.is_folder(path):
            yield from _files_in(path, is_hidden=hides, seen=seen, depth=depth + 1)
        else:
            yield path, hides
