"""Images in folders, one folder for each class: ``photos/cats/*.png``, ``photos/dogs/*.jpg``.

Follows DataVec's ``ImageRecordReader`` with its ``ParentPathLabelGenerator``. Files are decoded by Pillow (extra
``images``), which nothing else in the package imports.
"""

from __future__ import annotations

import io
import logging
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.datasets.images.image_folders import ClassFolders, class_folders, has_parts, outside_parts
from dl4jlegacy.datasets.images.image_kinds import ENDINGS, FORMATS, is_image
from dl4jlegacy.datasets.images.image_modes import (
    SEVERAL,
    Pillow,
    check_mode,
    check_range,
    find_pillow,
    is_gray,
    plain,
    several_pictures,
)
from dl4jlegacy.datasets.splitting import Split
from dl4jlegacy.errors import ConfError, DataError, counted, nearest
from dl4jlegacy.system import files
from dl4jlegacy.system.exits import exits_as_errors
from dl4jlegacy.system.resources import check_memory

__all__ = [
    "ImageError",
    "ImageRecordReader",
    "Images",
    "check_alike",
    "check_learned",
    "features_of",
    "png_of",
    "read_parts",
]

logger = logging.getLogger(__name__)

_NAMES = tuple(FORMATS)
_SMALL = 16 << 20  # smaller files are read completely before decoding
_ORIENTATION = 0x0112  # of EXIF
_BLOCK = 256  # images that threads decode ahead
_GROUP = 16  # images that a thread decodes at a time: handing out small ones singly takes longer
_MOST_THREADS = 8
_BYTES = 5  # per value while a data set is read: one as in the file, and four as float32
_BACKGROUND = re.compile(r"white|black|gray|#[0-9a-fA-F]{6}")


class ImageError(DataError):
    """An image file cannot be read; ``path`` is the file."""

    def __init__(self, message: str, path: Path) -> None:
        super().__init__(message)
        self.path = path


class ImageRecordReader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Turns image files into features: ``(examples, channels * height * width)`` from 0 to 1.

    The order is channels, rows, columns, as in the flat images that networks take
    (``InputType.convolutional_flat(height, width, channels)``). Photographs are rotated according to their EXIF data;
    of several pictures in a file the first is read. Transparent parts are drawn on a background; images with more than
    8 bits per channel, or neither gray nor colours, are refused.

    Attributes:
        height, width: in pixels; 0: those of the images, which must then all be equal.
        channels: 1 for gray, 3 for colours (red, green, blue); 0: 3 if any image has colours.
        fit: how images of another size are resized: ``resize`` stretches them, ``crop`` keeps their proportions and
            takes the middle. Both interpolate linearly.
        background: the background of transparent parts: white, black, gray, or a colour such as ``#ff8000``.
        column: the table column with the names of the image files, relative to the table's folder; "": images are in
            folders named by class.
    """

    height: int = 0
    width: int = 0
    channels: int = 0
    fit: Literal["resize", "crop"] = "resize"
    background: str = "white"
    column: str = ""

    def __post_init__(self) -> None:
        if min(self.height, self.width) < 0 or (self.height == 0) != (self.width == 0):
            raise ConfError(
                f"images of height {self.height} and width {self.width} cannot be made; give both in pixels, or neither"
            )
        if self.channels not in (0, 1, 3):
            raise ConfError(f"images of {self.channels} channels cannot be made; give 1 for gray or 3 for colours")
        if self.fit not in ("resize", "crop"):
            raise ConfError(f"fit is {self.fit!r}{nearest(self.fit, ('resize', 'crop'))}")
        if not _BACKGROUND.fullmatch(self.background):
            raise ConfError(
                f"the background of images is {self.background!r}; give white, black, gray, or red, green and blue in "
                "hexadecimal digits, such as #ff8000"
            )

    def read(self, paths: Sequence[Path]) -> Array:
        """Return the pixels of files, bytes ``(images, channels, height, width)``; decoded by several threads.

        Raises:
            DataError: a file is no image, damaged, of another size than the first one (if no size is given), or larger
                than Pillow's limit; names it. ConfError: there is not enough memory.
        """
        remarks = _Remarks()
        pixels = self._read(paths, remarks)
        remarks.say(len(paths))
        return pixels

    def _read(self, paths: Sequence[Path], remarks: _Remarks) -> Array:
        """Return the pixels of files, and collect remarks about them."""
        pixels: list[Array] = []
        for path, (image, said) in zip(paths, self._decoded(paths), strict=True):
            remarks.add(path, said)
            if not pixels:
                shape = (self.channels or 3, *image.shape[1:])
                check_memory(_BYTES * len(paths) * int(np.prod(shape)), f"reading {counted(len(paths), 'image')}")
            elif image.shape[1:] != pixels[0].shape[1:]:
                raise _uneven(paths, pixels, image)
            pixels.append(image)
        gray = sum(len(image) == 1 for image in pixels)
        if 0 < gray < len(pixels):
            logger.warning(
                "%d of %s are gray, the others have colours: all get 3 channels (--image-channels 1 makes them gray)",
                gray,
                counted(len(pixels), "image"),
            )
            pixels = [np.repeat(image, 3, axis=0) if len(image) == 1 else image for image in pixels]
        return np.stack(pixels)

    def blocks(self, paths: Sequence[Path], *, rows: int, warns: bool = True) -> Iterator[Array]:
        """Yield the features of files in blocks of ``rows``; ``warns``: log unusual images; errors as for ``read``."""
        remarks = _Remarks()
        for start in range(0, len(paths), rows):
            yield features_of(self._read(paths[start : start + rows], remarks))
        if warns:
            remarks.say(len(paths))

    def decode(self, path: Path) -> Decoded:
        """Return the pixels of one file and remarks about it; raises ``DataError``, which names the file."""
        return self._decode(path, find_pillow())

    def of(self, pixels: Array) -> ImageRecordReader:
        """Return the reader that turns any image into the size and channels of these pixels."""
        channels, height, width = pixels.shape[1:]
        return msgspec.structs.replace(self, height=height, width=width, channels=channels)

    def _decoded(self, paths: Sequence[Path]) -> Iterator[Decoded]:
        pillow = find_pillow()
        threads = min(len(os.sched_getaffinity(0)), _MOST_THREADS, len(paths))
        if threads < 2:
            for path in paths:
                yield self._decode(path, pillow)
            return
        with ThreadPoolExecutor(threads, thread_name_prefix="dl4j-images") as pool:
            for start in range(0, len(paths), _BLOCK):
                stop = min(start + _BLOCK, len(paths))
                groups = [paths[first : min(first + _GROUP, stop)] for first in range(start, stop, _GROUP)]
                for group in pool.map(lambda group: [self._decode(path, pillow) for path in group], groups):
                    yield from group

    def _decode(self, path: Path, pillow: Pillow) -> Decoded:
        """Return the pixels of a file; on any thread; raises ``ImageError``."""
        try:
            return self._opened(path, pillow)
        except DataError as exc:
            raise ImageError(str(exc), path) from (exc.__cause__ or exc)

    def _opened(self, path: Path, pillow: Pillow) -> Decoded:
        """Return the pixels of a file; raises ``DataError``."""
        with files.errors_as(DataError, f"image {path} cannot be read"):
            content = files.read(path, most=_SMALL)
            if content is None:
                with files.open_to_read(path) as file:
                    return self._image_of(path, file, pillow)
            if not content:
                raise DataError(f"{path} is empty, and no image; remove it")
            return self._image_of(path, io.BytesIO(content), pillow)

    def _image_of(self, path: Path, file: BinaryIO, pillow: Pillow) -> Decoded:
        """Return the pixels of an open file; raises ``DataError``."""
        try:
            with exits_as_errors(), pillow.image.open(file, formats=_NAMES) as image:
                _check_size(path, image, pillow)
                is_deep, no_colours = check_mode(path, image), self.channels == 1
                no_colours = no_colours or (self.channels == 0 and is_gray(image))
                image.load()  # EXIF data may come after the pixels
                if is_deep:
                    check_range(path, image)
                pixels, said = self._pixels(image, pillow, no_colours=no_colours)
                return Decoded(pixels, (*said, *((SEVERAL,) if several_pictures(image) else ())))
        except DataError:
            raise
        except pillow.too_large as exc:
            raise _too_large(path, str(exc)) from exc
        except pillow.image.UnidentifiedImageError as exc:
            kinds = ", ".join(FORMATS)
            raise DataError(f"{path} is no image that can be read ({kinds}); remove it or save it anew") from exc
        except Exception as exc:  # decoders of so many formats raise all kinds of errors for damaged files
            if isinstance(exc, OSError) and exc.errno:
                raise  # an error of the disk, not of its content
            raise DataError(f"image {path} is truncated or damaged: {exc}; remove it or save it anew") from exc

    def _pixels(self, image: Any, pillow: Pillow, *, no_colours: bool) -> tuple[Array, tuple[str, ...]]:
        """Return the pixels of a loaded image, and remarks about it."""
        is_turned = bool(image.info or image.format == "TIFF") and image.getexif().get(_ORIENTATION, 1) != 1
        upright = pillow.ops.exif_transpose(image) if is_turned else image
        upright, said = plain(upright, "L" if no_colours else "RGB", self.background, pillow)
        size = (self.width, self.height)
        if self.width and upright.size != size:
            make = pillow.ops.fit if self.fit == "crop" else pillow.image.Image.resize
            upright = make(upright, size, pillow.image.Resampling.BILINEAR)
        width, height = upright.size
        array = np.frombuffer(upright.tobytes(), np.uint8)  # like np.asarray, in fewer steps
        if no_colours:
            pixels = array.reshape(1, height, width)
        else:
            pixels = np.ascontiguousarray(array.reshape(height, width, 3).transpose(2, 0, 1))
        return pixels, (said,) if said else ()


class Decoded(NamedTuple):
    """A decoded image: its pixels, bytes ``(channels, height, width)``, and remarks if it is unusual."""

    pixels: Array
    remarks: tuple[str, ...]


class _Remarks:
    """Remarks about images: for each unusual kind the number of images, and the first one."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, Path]] = {}

    def add(self, path: Path, remarks: Sequence[str]) -> None:
        for each in remarks:
            count, first = self._found.get(each, (0, path))
            self._found[each] = (count + 1, first)

    def say(self, whole: int) -> None:
        """Log the remarks; ``whole`` is the number of all images."""
        for what, (count, first) in self._found.items():
            logger.warning("%d of %s: %s; the first is %s", count, counted(whole, "image"), what, first)


def _check_size(path: Path, image: Any, pillow: Pillow) -> None:
    """Raise ``DataError`` for an image that is too large."""
    most, (width, height) = pillow.image.MAX_IMAGE_PIXELS, image.size
    if most is not None and width * height > most:
        raise _too_large(path, f"it has {counted(width * height, 'pixel')}, more than {most:,}")


def _too_large(path: Path, why: str) -> DataError:
    return DataError(f"image {path} is too large: {why} (Pillow's limit); make it smaller, or remove it")


def _uneven(paths: Sequence[Path], pixels: list[Array], image: Array) -> DataError:
    sizes = [f"{array.shape[1]}x{array.shape[2]}" for array in (pixels[0], image)]
    return DataError(
        f"images differ in size: {paths[0]} is {sizes[0]} (height x width), {paths[len(pixels)]} is {sizes[1]}; give "
        "the size that all are to have, such as --image-size 64x64 (with --image-fit crop they keep their proportions)"
    )


def features_of(pixels: Array) -> Array:
    """Return bytes as features from 0 to 1, a row for each image."""
    x: Array = pixels.reshape(len(pixels), -1).astype(np.float32)
    x /= 255
    return x


def png_of(pixels: Array) -> bytes:
    """Return an image, bytes ``(channels, height, width)`` of one channel or three, as the contents of a PNG file.

    Raises:
        DataError: Pillow is not installed.
    """
    image = find_pillow().image.fromarray(
        pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0))
    )
    content = io.BytesIO()
    image.save(content, "PNG", optimize=True)
    return content.getvalue()


# -- folders -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Images:
    """The images of a folder.

    Attributes:
        paths: of the files, sorted by class, and by name in each class.
        classes: the class of each image, ``(images,)``.
        label_names: of the classes: the names of their folders, sorted.
        pixels: bytes, ``(images, channels, height, width)``.
        reader: turns other files into images of the same form.
    """

    paths: tuple[Path, ...]
    classes: npt.NDArray[np.intp]
    label_names: tuple[str, ...]
    pixels: Array
    reader: ImageRecordReader

    @classmethod
    def of_folder(
        cls, folder: Path, reader: ImageRecordReader | None = None, label_names: Sequence[str] | None = None
    ) -> Images:
        """Read the images in the subfolders of a folder.

        Args:
            folder: each subfolder with images, directly or in nested folders, is a class.
            reader: reads them; None: in their own size, with colours if they have some.
            label_names: the classes in order, if they are known: a folder may lack some.

        Raises:
            DataError: there are no images, or a class is unknown; and errors of ``ImageRecordReader.read``.
        """
        scanned = class_folders(folder)
        found = scanned.classes
        if not found:
            raise DataError(_nothing_in(scanned))
        scanned.say()
        names = tuple(label_names) if label_names is not None else tuple(found)
        for name in found:
            if name not in names:
                raise DataError(f"{folder / name} is a class that is not known{nearest(name, names)}")
        paths = tuple(path for each in found.values() for path in each)
        classes = np.array([names.index(name) for name, each in found.items() for _ in each], np.intp)
        pixels = (reader or ImageRecordReader()).read(paths)
        return cls(paths, classes, names, pixels, (reader or ImageRecordReader()).of(pixels))

    def dataset(self, rows: npt.NDArray[np.intp] | None = None) -> DataSet:
        """Return all examples, or some rows, as features from 0 to 1 with their classes."""
        pixels, classes = (self.pixels, self.classes) if rows is None else (self.pixels[rows], self.classes[rows])
        return DataSet.of_classes(features_of(pixels), classes, len(self.label_names))


def read_parts(
    folder: Path, reader: ImageRecordReader | None, known: Sequence[str] | None, split: Split
) -> tuple[DataSet, DataSet, tuple[str, ...], ImageRecordReader]:
    """Return training and test part, the names of the classes, and the fitted reader.

    The parts are the folders ``train`` and ``test``, each with the folders of the classes in it; or else a part of the
    images is held out.

    Raises:
        DataError: as for ``Images.of_folder``; or, unless the classes are known, there are not two classes, or not two
            images in one.
    """
    if has_parts(folder):
        outside_parts(folder).say()
        first = Images.of_folder(folder / "train", reader, known)
        _check_classes(folder / "train", first, known, least=1)
        same = msgspec.structs.replace(reader or ImageRecordReader(), channels=first.reader.channels)
        second = Images.of_folder(folder / "test", same, first.label_names)
        check_alike([folder / "train", folder / "test"], [first.pixels, second.pixels])
        return first.dataset(), second.dataset(), first.label_names, first.reader
    whole = Images.of_folder(folder, reader, known)
    _check_classes(folder, whole, known, least=2)
    if len(whole.paths) == 1:
        raise DataError(f"{folder} has a single image, {whole.paths[0]}, which cannot be split into train and test")
    train, test = split.parts_of(whole.classes, whole.label_names, str(folder))
    if known is None:
        check_learned(whole.classes, train, whole.label_names, str(folder))
    return whole.dataset(train), whole.dataset(test), whole.label_names, whole.reader


def check_learned(classes: npt.NDArray[np.intp], train: npt.NDArray[np.intp], names: Sequence[str], where: str) -> None:
    """Raise ``DataError`` if the rows ``train`` of images of these ``classes`` lack a class."""
    lost = sorted(set(classes.tolist()) - set(classes[train].tolist()))
    if lost:
        raise DataError(
            f"all {(classes == lost[0]).sum()} images of class {names[lost[0]]!r} in {where} are held out for the "
            "evaluation, and none is left to learn from; give more, or a part train and a part test"
        )


def _check_classes(folder: Path, found: Images, known: Sequence[str] | None, *, least: int) -> None:
    """Raise ``DataError`` if there are fewer than two classes, or a class has too few images."""
    if known is not None:
        return
    if len(found.label_names) == 1:
        raise DataError(
            f"{folder} has images of only one class, {found.label_names[0]!r}; a network needs at least two to tell "
            f"apart, each in a folder of its own{_one_deeper(folder / found.label_names[0], found.paths)}"
        )
    count, number = min((count, number) for number, count in Counter(found.classes.tolist()).items())
    if count < least:
        only = found.paths[found.classes.tolist().index(number)]
        raise DataError(
            f"class {found.label_names[number]!r} has a single image, {only}; a part to learn from and a part to "
            f"evaluate with need at least {least}"
        )


def check_alike(places: Sequence[Path], pixels: Sequence[Array]) -> None:
    """Raise ``DataError`` if images of two folders differ in size."""
    sizes = ["x".join(map(str, part.shape[2:])) for part in pixels]
    if sizes[0] != sizes[1]:
        raise DataError(
            f"images in {places[0]} are {sizes[0]} (height x width), those in {places[1]} {sizes[1]}; give the size "
            f"that all are to have, such as --image-size {sizes[0]}"
        )


def _one_deeper(folder: Path, paths: Sequence[Path]) -> str:
    """Return a hint that the only class may contain the class folders, if its images are in several subfolders."""
    inner = list(dict.fromkeys(path.relative_to(folder).parts[0] for path in paths if path.parent != folder))
    if len(inner) < 2 or any(path.parent == folder for path in paths):
        return ""
    return f"; if the folders in it ({', '.join(inner[:3])}{' ...' if len(inner) > 3 else ''}) are, give {folder}"


def _nothing_in(scanned: ClassFolders) -> str:
    folder = scanned.left_out.folder
    direct = [path for path in scanned.left_out.images if path.parent == folder and is_image(path.name)]
    if direct:
        return (
            f"{folder} has {counted(len(direct), 'image')} ({direct[0].name} ...), but no folders with images: put "
            "those of each class into a folder of its own, which has the class's name"
        )
    return f"folder {folder} has no folders with images (files ending in {', '.join(ENDINGS)})"
