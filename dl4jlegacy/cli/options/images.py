"""Training options that say how the images of a data set are read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from dl4jlegacy.cli.options.values import one_of, rate, whole_number
from dl4jlegacy.datasets.images.image_files import ImageRecordReader
from dl4jlegacy.datasets.images.image_transforms import ImageTransform
from dl4jlegacy.errors import DataError, UsageError, nearest
from dl4jlegacy.system import files

if TYPE_CHECKING:
    from dl4jlegacy.cli.options.read import TrainOptions
    from dl4jlegacy.scaleout.conf import Conf

__all__ = ["image_changes", "image_size", "is_folder"]

_SIZE = re.compile(r"([1-9][0-9]{0,5})(?:[xX]([1-9][0-9]{0,5}))?")


def image_changes(options: TrainOptions, conf: Conf) -> dict[str, Any]:
    """Return the Conf fields that the options change; raises ``UsageError`` if an option is malformed."""
    changes: dict[str, Any] = {} if options.images is None else {"column": options.images}
    if options.image_size is not None:
        changes["height"], changes["width"] = image_size(options.image_size)
    if options.image_channels is not None:
        changes["channels"] = int(one_of("--image-channels", options.image_channels, ("1", "3")))
    if options.image_fit is not None:
        changes["fit"] = one_of("--image-fit", options.image_fit, ("resize", "crop"))
        if "height" not in changes and not (conf.images is not None and conf.images.height):
            raise UsageError(f"--image-fit {options.image_fit} needs --image-size, such as 64x64")
    if options.image_background is not None:
        changes["background"] = options.image_background
    found: dict[str, Any] = {}
    if changes:
        found["images"] = replace(conf.images or ImageRecordReader(), **changes)
    if options.augment is not None:
        found["augment"] = _augment(options.augment)
    return found


def _augment(text: str) -> ImageTransform:
    """Return the image transform that ``flip,rotate=10`` describes; raises ``UsageError``."""
    found: dict[str, Any] = {}
    for part in text.split(","):
        name, _, value = (word.strip() for word in part.partition("="))
        if name not in ImageTransform.__struct_fields__:
            raise UsageError(f"--augment has {name!r}{nearest(name, ImageTransform.__struct_fields__)}")
        if name in found:
            raise UsageError(f"--augment is {text!r}; it has {name!r} twice")
        if name == "flip":
            found[name] = one_of("--augment flip", value or "horizontal", ("horizontal", "vertical", "both"))
        elif name == "crop":
            found[name] = whole_number("--augment crop", value, 0)
        else:
            found[name] = rate(f"--augment {name}", value)
    return ImageTransform(**found)


def image_size(text: str) -> tuple[int, int]:
    """Return the height and width in ``--image-size``; raises ``UsageError``."""
    found = _SIZE.fullmatch(text)
    if found is None:
        raise UsageError(
            f"--image-size is {text!r}; it must be height and width in pixels, such as 48x64, or one for both"
        )
    return int(found[1]), int(found[2] or found[1])


def is_folder(path: Path) -> bool:
    """Return whether a path is a folder, so that the training data are in it; raises ``DataError``."""
    with files.errors_as(DataError, f"{path} cannot be read"):
        return files.is_folder(files.expand(path))
