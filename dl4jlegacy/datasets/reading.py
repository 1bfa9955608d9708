"""How a model's data are read: what made its examples, and makes examples of the data that it is shown later."""

from __future__ import annotations

import dataclasses

from dl4jlegacy.datasets.images.image_files import ImageRecordReader
from dl4jlegacy.datasets.normalizers import Normalizer
from dl4jlegacy.datasets.sequences.sequence_reader import SequenceRecordReader
from dl4jlegacy.datasets.tables.header import Header
from dl4jlegacy.datasets.tables.transform_process import TransformProcess
from dl4jlegacy.datasets.text.texts import TextReader

__all__ = ["Reading"]


@dataclasses.dataclass(frozen=True)
class Reading:
    """The data's part of a model file; each of its values is None or empty if the model has none.

    Attributes:
        normalizer: scales features (and labels) as in training.
        label_names: the names of the outputs; of a text its characters or words.
        transform: made the examples of a table's columns, fitted to the training part.
        images: made the examples of image files.
        stratified: whether the held-out part had its share of every class.
        text: made the examples of a text.
        sequences: made the examples of files of sequences.
        header: the names of a table's columns that no ``transform`` has read.
    """

    normalizer: Normalizer | None = None
    label_names: tuple[str, ...] = ()
    transform: TransformProcess | None = None
    images: ImageRecordReader | None = None
    stratified: bool = False
    text: TextReader | None = None
    sequences: SequenceRecordReader | None = None
    header: Header | None = None
