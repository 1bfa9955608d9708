"""``Place``: the location of a data set's files, looked up once for all readers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dl4jlegacy.datasets.mnist import find_idx_files
from dl4jlegacy.datasets.tables.table_files import KINDS, check_one_kind, is_svmlight, is_table, tables_like
from dl4jlegacy.errors import DataError, nearest
from dl4jlegacy.system import files

__all__ = ["NAMES", "Place"]

NAMES = ("digits", "iris", "mnist", "sonnets")


@dataclass(frozen=True)
class Place:
    """A data set's files. A folder is listed once, when its contents are first needed.

    Attributes:
        name: the name or path as given.
        path: the name as a path.
        kind: ``bundled`` (one of ``NAMES``), ``file``, ``folder``, ``pattern``, something else that is no regular file,
            or None for nothing.
        data_kind: the name of the kind of data, if it is known by the name alone; "": tables, or as the folder says.
    """

    name: str
    path: Path
    kind: str | None
    data_kind: str = ""

    @cached_property
    def idx_files(self) -> dict[str, Path]:
        """Files with MNIST's names in the folder, by name; raises ``DataError``."""
        return find_idx_files(self.path) if self.kind == "folder" else {}

    @cached_property
    def tables(self) -> list[Path]:
        """The tables: the files named train and test, if both exist, else all tables sorted by name.

        Empty for a file of another kind, a bundled data set, and a folder without tables, or with IDX files.

        Raises:
            DataError: the place does not exist, or cannot be read.
        """
        if self.kind is None:
            raise self._unknown()
        if self.kind == "bundled" or self.data_kind or self.idx_files:
            return []
        if self.kind not in ("folder", "pattern"):
            return [self.path]
        found = tables_like(self.name) if self.kind == "pattern" else self._listed()
        parts = {_stem(file): file for file in found}
        return [parts["train"], parts["test"]] if {"train", "test"} <= parts.keys() else found

    @property
    def is_parted(self) -> bool:
        """Whether the tables are a training part and a held-out part."""
        return [_stem(file) for file in self.tables] == ["train", "test"]

    @property
    def is_svmlight(self) -> bool:
        """Whether the tables are SVMLight files."""
        return bool(self.tables) and is_svmlight(self.tables[0].name)

    def _listed(self) -> list[Path]:
        with files.errors_as(DataError, f"cannot read folder {self.path}"):
            found = [self.path / file for file in files.names_in(self.path)]
            tables = [file for file in found if is_table(file.name) and files.is_file(file)]
        check_one_kind(tables, f"folder {self.path}")
        return tables

    def _unknown(self) -> DataError:
        if "/" in self.name or "." in self.name:
            known = f"{', '.join(NAMES)}, a table ({KINDS}), a .txt file or a folder"
            hint = f"; there is no such file or folder ({self.path.absolute()}); give {known}"
        else:
            hint = f"{nearest(self.name, NAMES)}; or the path of a table ({KINDS}), of a .txt file or of a folder"
        return DataError(f"unknown data set {self.name!r}{hint}")


def _stem(file: Path) -> str:
    return file.name.lower().partition(".")[0]
