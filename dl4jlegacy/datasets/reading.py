"""``Reading``: the settings by which files become examples; stored with a data set, a trained model and its file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import msgspec

from dl4jlegacy.datasets.images.image_files import ImageRecordReader
from dl4jlegacy.datasets.label_scale import LabelScale
from dl4jlegacy.datasets.normalizers import Normalizer
from dl4jlegacy.datasets.sequences.sequence_reader import SequenceRecordReader
from dl4jlegacy.datasets.tables.header import Header
from dl4jlegacy.datasets.tables.table import Column
from dl4jlegacy.datasets.tables.transform_process import TransformProcess
from dl4jlegacy.datasets.text.texts import TextReader
from dl4jlegacy.errors import ConfError
from dl4jlegacy.system.decoding import decodable
from dl4jlegacy.system.strict_json import to_json

__all__ = ["UNREAD", "Reading"]

_READERS: dict[str, Any] = {
    "images": ImageRecordReader,
    "text": TextReader,
    "sequences": SequenceRecordReader,
    "header": Header,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """How data are read. A value that the data do not need is None, or empty.

    Attributes:
        transform: turns the columns of a table into examples; fitted to the training part after reading it.
        images: reads image files.
        text: reads a text.
        sequences: reads files of sequences.
        header: the columns of a table without a ``transform``.
        stratified: whether the held-out part gets its share of every class.
        label_names: names of the outputs, in order; for a text its characters or words.
        normalizer: scales features (and labels).
    """

    transform: TransformProcess | None = None
    images: ImageRecordReader | None = None
    text: TextReader | None = None
    sequences: SequenceRecordReader | None = None
    header: Header | None = None
    stratified: bool = False
    label_names: tuple[str, ...] = ()
    normalizer: Normalizer | None = None

    def replace(self, **changes: Any) -> Reading:
        """Return a copy with changed values."""
        return dataclasses.replace(self, **changes)

    def fields(self) -> dict[str, Any]:
        """Return the values as JSON, for a model file; without the normalizer, which has its own entry there."""
        found = {name: getattr(self, name) for name in _READERS}
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
        for name, kind in _READERS.items():
            try:
                readers[name] = msgspec.convert(fields.get(name), type=decodable(kind | None))
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
        described = self.transform if self.sequences is None else self.sequences
        return None if described is None else described.label_scale

    @property
    def is_multi_label(self) -> bool:
        """Whether several labels do not exclude each other."""
        return self.transform is not None and self.transform.multi_label

    @property
    def schema(self) -> TransformProcess | None:
        """The schema that finds data frame columns by name; None: the columns have no names."""
        if any(kind is not None for kind in (self.images, self.text, self.sequences)):
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
    def label_columns(self) -> tuple[str, ...]:
        """The names of the label columns; () if they have no names."""
        if self.transform is not None:
            return self.transform.label_columns
        return (self.header.label,) if self.header is not None and self.header.label else ()


UNREAD = Reading()
"""The reading of data that were not read yet, or came as arrays."""
