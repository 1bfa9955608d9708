"""``ImageData``: images as a kind of data, in folders of their classes or listed in a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dl4jlegacy.datasets.images.image_files import ImageRecordReader, read_parts
from dl4jlegacy.datasets.images.image_folders import find_images, holds_images
from dl4jlegacy.datasets.images.image_kinds import MEDIA_TYPES, begins_as_image, is_image, is_other_image
from dl4jlegacy.datasets.images.image_tables import image_schema, listed_files, read_listed
from dl4jlegacy.datasets.kind import DataKind, DataRequest, LabelChoice, LoadedData, NewData, NewRows
from dl4jlegacy.datasets.place import Place
from dl4jlegacy.datasets.tables.table_files import is_table
from dl4jlegacy.errors import DataError
from dl4jlegacy.storage import paths as storage
from dl4jlegacy.system import files

__all__ = ["ImageData", "has_images"]


class ImageData(DataKind[ImageRecordReader]):
    """Images in folders of the classes, or listed in tables by the reader's ``column``."""

    name, reader = "images", ImageRecordReader
    is_scaled, media_types = False, MEDIA_TYPES
    not_these = (
        "has no folders of images, which --image-size, --image-channels, --image-fit and --image-background (images in "
        "a Conf) are for; leave them out, or name the column of a table that lists images: --images"
    )

    def recognises(self, asked: DataRequest, reader: ImageRecordReader | None) -> bool:
        """See ``DataKind``."""
        if reader is not None and reader.column:
            return True
        place = asked.place
        if asked.transform is not None or place.kind != "folder" or place.is_svmlight:
            return False
        return has_images(place, asked=reader is not None)

    def load(self, asked: DataRequest, reader: ImageRecordReader) -> LoadedData:
        """See ``DataKind``. Listed images may be in folders of the classes instead, if the classes are known."""
        place, transform, known = asked.place, asked.transform, asked.known
        found = place.tables if reader.column else []
        if not found and reader.column:
            if transform is None or not transform.classes or not has_images(place, asked=True):
                raise DataError(
                    f"data set {place.name!r} is no table, and {reader.column!r} (--images, images.column in a Conf) "
                    "is the column of one, which names the files of images; leave it out for folders of images"
                )
            known = transform.classes
        if not found:
            train, test, names, fitted = read_parts(place.path, reader, known, asked.split)
            return LoadedData(train, test, names, reader if reader.column else fitted, transform)
        schema = image_schema(found[0], reader.column) if transform is None else transform
        train, test, process, fitted = read_listed(found, reader, schema, asked.split, parted=place.is_parted)
        return LoadedData(train, test, process.label_names, fitted, process)

    def new_rows(self, new: NewData, reader: ImageRecordReader) -> NewRows | None:
        """See ``DataKind``; the images are one file, or those of a folder or a table.

        None if the file is no image; and for standard input and tables, if the model learned from folders of images.
        """
        found = self._images(new, reader)
        return None if not found else NewRows(reader.blocks(found, rows=new.rows, warns=new.warns), tuple(found))

    def _images(self, new: NewData, reader: ImageRecordReader) -> list[Path] | None:
        file, transform = new.file, new.transform
        if file == "-":
            if not reader.column:
                return None
            raise DataError(
                f"standard input has no folder in which its images would be looked for, which model {new.model} "
                "learned from; give the table's file"
            )
        with files.errors_as(DataError, f"cannot read {file}"):
            place = files.expand(storage.local(file))
            if reader.column and transform is not None and is_table(place.name) and files.is_file(place):
                return listed_files(files.expand(self.local(file, reader)), reader, transform)
            known = is_image(place.name) or is_other_image(place.name) or files.is_folder(place)
            if not known and not begins_as_image(place):  # its name is no image's, but its content may be
                return None
        return find_images(place)

    def image(self, reader: ImageRecordReader) -> tuple[int, int, int]:
        """See ``DataKind``."""
        return reader.channels, reader.height, reader.width

    def takes_features(self, reader: ImageRecordReader) -> bool:
        """See ``DataKind``; a table would name files on the server."""
        return not reader.column

    def local(self, name: str, reader: ImageRecordReader) -> str:
        """See ``DataKind``."""
        if reader.column and storage.is_remote(name):
            raise DataError(
                f"{name} is not on this machine, and images that a table lists lie beside it: copy the folder of both "
                "here, and name the table in it"
            )
        return storage.local(name)

    def labelled(self, choice: LabelChoice, reader: ImageRecordReader, place: Place) -> dict[str, Any] | None:
        """See ``DataKind``; without tables ``load`` reports that there are none."""
        if not reader.column or choice.transform is not None:
            return None
        if not place.tables:
            return {}
        return {"transform": image_schema(place.tables[0], reader.column, label=choice.label, **choice.kind)}


def has_images(place: Place, *, asked: bool) -> bool:
    """Return whether a place is a folder of images to learn: it has no tables, or images were ``asked`` for.

    Raises:
        DataError: the folder cannot be read.
    """
    if place.kind != "folder" or (not asked and (place.idx_files or place.tables)):
        return False
    return holds_images(place.path)
