"""``Reading``: the settings by which files become examples; stored with a data set, a trained model and its file."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import msgspec

from dl4jlegacy.datasets.columns.linear import Linear
from dl4jlegacy.datasets.columns.table import Column
from dl4jlegacy.datasets.images.image_data import ImageData
from dl4jlegacy.datasets.images.image_files import ImageRecordReader
from dl4jlegacy.datasets.kind import DataKind
from dl4jlegacy.datasets.label_scale import LabelScale
from dl4jlegacy.datasets.normalizers import Normalizer
from dl4jlegacy.datasets.place import NAMES, Place
from dl4jlegacy.datasets.sequences.sequence_reader import SequenceData, SequenceRecordReader
from dl4jlegacy.datasets.tables.header import Header
from dl4jlegacy.datasets.tables.table_files import is_pattern
from dl4jlegacy.datasets.tables.transform_process import TransformProcess
from dl4jlegacy.datasets.text.texts import TextData, TextReader
from dl4jlegacy.errors import ConfError, DataError
from dl4jlegacy.system import files
from dl4jlegacy.system.decoding import decodable
from dl4jlegacy.system.strict_json import to_json

__all__ = ["DATA_KINDS", "UNREAD", "Readers", "Reading", "kind_named", "place_of"]

DATA_KINDS: tuple[DataKind[Any], ...] = (SequenceData(), ImageData(), TextData())
"""The kinds of data besides tables; the first one that recognises a data set loads it."""
_TABLES: DataKind[Any] = DataKind()


class Readers(msgspec.Struct, frozen=True, kw_only=True):
    """The schema of tables, and the reader of each other kind of data; those are None that the data do not need.

    Attributes:
        transform: turns the columns of a table into examples, instead of scaling them to 0 to 1; fitted to the training
            part after reading it, unless it is already fitted.
        images: how images are read that are in folders or listed in a table.
        text: how a text is read: by characters (also None), or by words.
        sequences: how a folder of CSV files is read as sequences, one per file; None: as parts of one table.
    """

    transform: TransformProcess | None = None
    images: ImageRecordReader | None = None
    text: TextReader | None = None
    sequences: SequenceRecordReader | None = None

    @property
    def readers(self) -> list[tuple[DataKind[Any], Any]]:
        """The kinds of data that have a reader, each with it."""
        every = [(kind, getattr(self, kind.name)) for kind in DATA_KINDS]
        return [(kind, reader) for kind, reader in every if reader is not None]

    @property
    def kind(self) -> DataKind[Any]:
        """The kind of data, by its reader; the one of tables if there is none."""
        return self.readers[0][0] if self.readers else _TABLES

    def local(self, name: str) -> str:
        """Return the local path of a data set, after copying a remote one; raises ``DataError``."""
        return self.kind.local(name, self.reader)

    @property
    def reader(self) -> Any:
        """The reader of the kind; None for tables."""
        return self.readers[0][1] if self.readers else None


def place_of(name: str) -> Place:
    """Return the place with this name; raises ``DataError`` if it cannot be looked up."""
    if name in NAMES:
        return Place(name, Path(name), "bundled", "text" if name == "sonnets" else "")
    with files.errors_as(DataError, f"data set {name!r} cannot be read"):
        path = files.expand(name)
        kind: str | None = files.kind_of(path) if name else None
    if kind is None and is_pattern(name):
        kind = "pattern"
    return Place(name, path, kind, kind_named(path) if kind == "file" else "")


def kind_named(path: Path) -> str:
    """Return the name of a file's kind by its ending; "": it is a table."""
    return next((kind.name for kind in DATA_KINDS if path.suffix.lower() in kind.endings), "")


class Reading(Readers, frozen=True, kw_only=True):
    """How data are read. A value that the data do not need is None, or empty.

    Attributes:
        header: the columns of a table without a ``transform``.
        stratified: whether the held-out part gets its share of every class.
        label_names: names of the outputs, in order; for a text its characters or words.
        normalizer: scales features (and labels).
    """

    header: Header | None = None
    stratified: bool = False
    label_names: tuple[str, ...] = ()
    normalizer: Normalizer | None = None

    def replace(self, **changes: Any) -> Self:
        """Return a copy with changed values."""
        return msgspec.structs.replace(self, **changes)

    def fields(self) -> dict[str, Any]:
        """Return the values as JSON, for a model file; without the normalizer, which has its own entry there."""
        found = {name: getattr(self, name) for name in _stored()}
        return {
            **{name: None if value is None else msgspec.to_builtins(value) for name, value in found.items()},
            "transform": None if self.transform is None else json.loads(self.transform.to_json()),
            "stratified": self.stratified or None,
            "label_names": list(self.label_names) or None,
        }

    @staticmethod
    def of_fields(fields: Mapping[str, Any], label_names: tuple[str, ...], normalizer: Normalizer | None) -> Reading:
        """Return the reading from the result of ``fields``; raises ``ConfError`` if that is invalid."""
        readers: dict[str, Any] = {}
        for name, kind in _stored().items():
            try:
                readers[name] = msgspec.convert(fields.get(name), type=decodable(kind))
            except msgspec.ValidationError as exc:
                raise ConfError(f"{name}: {exc}") from exc
        transform = fields.get("transform")
        return Reading(
            transform=None if transform is None else TransformProcess.from_json(to_json(transform)),
            stratified=fields.get("stratified") is True,
            label_names=label_names,
            normalizer=normalizer,
            **readers,
        )

    @property
    def label_scale(self) -> LabelScale | None:
        """The scale of the numbers to predict, which ``label_names`` names; None if the labels are no such numbers."""
        of_schema = None if self.transform is None else self.transform.label_scale
        return self.kind.label_scale(self.reader) or of_schema

    @property
    def network(self) -> str:
        """The kind of network that learns the data, as ``zoo.select_for`` takes it."""
        return self.kind.network(self.reader)

    @property
    def linear(self) -> Linear | None:
        """The step of the schema that predicts the labels by a regression; None: there is none."""
        steps = () if self.transform is None else self.transform.steps
        return next((step for step in steps if isinstance(step, Linear)), None)

    @property
    def is_multi_label(self) -> bool:
        """Whether several labels do not exclude each other."""
        return self.transform is not None and self.transform.multi_label

    @property
    def schema(self) -> TransformProcess | None:
        """The schema that finds data frame columns by name; None: the columns have no names."""
        if self.reader is not None:
            return None
        if self.transform is not None or self.header is None or "" in self.header.names:
            return self.transform
        columns = tuple(
            Column(name, "category" if name == self.header.label else "number") for name in self.header.names
        )
        return TransformProcess(columns=columns, label=self.header.label, classes=self.label_names)

    @property
    def feature_columns(self) -> tuple[str, ...]:
        """The names of a table's feature columns, in order; () if they have no names."""
        if self.transform is None:
            return () if self.header is None else self.header.features
        return tuple(c.name for c in self.transform.columns if c.name not in self.transform.label_columns)

    @property
    def has_numbers_alone(self) -> bool:
        """Whether no feature column of a table holds words."""
        columns = () if self.transform is None else self.transform.columns
        return all(column.type == "number" for column in columns if column.name in self.feature_columns)

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The names of the label columns; () if they have no names."""
        if self.transform is not None:
            return self.transform.label_columns
        return (self.header.label,) if self.header is not None and self.header.label else ()


@functools.cache
def _stored() -> dict[str, Any]:
    """Return the types of the fields that model files hold as they are, by name."""
    readers = {field.name: field.type for field in msgspec.structs.fields(Readers) if field.name != "transform"}
    return {**readers, "header": Header | None}


UNREAD = Reading()
"""The reading of data that were not read yet, or came as arrays."""
