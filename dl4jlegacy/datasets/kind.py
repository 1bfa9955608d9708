"""``DataKind``: everything that the package asks about one kind of data, such as images or texts.

``DATA_KINDS`` in ``reading.py`` lists the kinds. Data that none of them recognises are tables.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Generic, TypeVar

import msgspec

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.datasets.label_scale import LabelScale
from dl4jlegacy.datasets.place import Place
from dl4jlegacy.datasets.splitting import Split
from dl4jlegacy.datasets.tables.transform_process import TransformProcess
from dl4jlegacy.errors import DataError
from dl4jlegacy.storage import paths as storage
from dl4jlegacy.system import files

__all__ = ["DataKind", "DataRequest", "LabelChoice", "LoadedData", "NewData", "NewRows"]

R = TypeVar("R", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRequest:
    """A data set to load.

    Attributes:
        place: its files.
        split: how a part is held out.
        known: the label names in order; None: they are found in the data.
        transform: the schema of its tables, if one is given.
    """

    place: Place
    split: Split
    known: tuple[str, ...] | None = None
    transform: TransformProcess | None = None


@dataclass(frozen=True, slots=True)
class LoadedData:
    """A data set as a kind has loaded it.

    Attributes:
        train, test: the training examples and the held-out examples.
        label_names: of the outputs, in order.
        reader: the reader with all that was found in the training part.
        transform: the fitted schema, if the data have one.
    """

    train: DataSet
    test: DataSet
    label_names: tuple[str, ...]
    reader: msgspec.Struct
    transform: TransformProcess | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelChoice:
    """What the user says about the labels of a new run.

    Attributes:
        label: the label column, by name or number, or several, separated by commas; "": not given.
        regression: the label is a number to predict.
        multi_label: the labels are 0 or 1 each, and do not exclude each other.
        missing: words that mark a missing value; None: not given.
        transform: the schema in the Conf.
        is_alone: whether the Conf has neither a schema nor a reader of another kind.
    """

    label: str = ""
    regression: bool = False
    multi_label: bool = False
    missing: Sequence[str] | None = None
    transform: TransformProcess | None = None
    is_alone: bool = True

    @property
    def kind(self) -> dict[str, Any]:
        """``regression`` and ``multi_label``, as arguments."""
        return {"regression": self.regression, "multi_label": self.multi_label}

    @property
    def has_label(self) -> bool:
        """Whether the user chose the labels or their kind."""
        return bool(self.label or self.regression or self.multi_label)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewData:
    """Data for a trained model to answer.

    Attributes:
        file: a file or folder, here or in S3; ``-`` is standard input.
        model: the model's name in messages.
        label_names: of the model's outputs.
        transform: the model's schema.
        rows: the number of rows in a block.
        warns: whether to warn of unusual data.
    """

    file: str
    model: str
    label_names: tuple[str, ...]
    transform: TransformProcess | None
    rows: int
    warns: bool

    @property
    def name(self) -> str:
        """The file's name in messages."""
        return "standard input" if self.file == "-" else self.file

    def open(self) -> BinaryIO:
        """Return the open file; raises ``DataError``."""
        with files.errors_as(DataError, f"cannot read {self.name}"):
            if self.file != "-":
                return files.open_to_read(storage.local(self.file))
            # A duplicate of standard input: a thread that still reads from it must not delay the end of the process.
            return os.fdopen(os.dup(0), "rb")


@dataclass(frozen=True, slots=True)
class NewRows:
    """Blocks of features for a model, and for each answer the file that it comes from; () if all are in one file."""

    blocks: Iterable[Array]
    files: tuple[Path, ...] = ()


class DataKind(Generic[R]):
    """A kind of data; this class itself stands for tables.

    A kind has a *reader*: a frozen struct of settings, by which its files become examples. It is a field of ``Conf``
    and of ``Reading``, and stored in model files. Methods get it as ``reader``. An object has no state.

    Attributes:
        name: of the reader's field.
        reader: the reader's class; without arguments it makes the default reader.
        endings: of its files, in lower case.
        options: fields of the reader that options of ``dl4j train`` with the same names set.
        is_scaled: whether features outside 0 to 1 are scaled to 0 to 1.
        media_types: of the bodies of requests to a server, with the ending of a file of that content.
        is_of_lines: whether each line of a file is a text to answer.
        not_these: the end of the error if a reader is given for other data, after "data set NAME".
    """

    name: str = ""
    reader: type[R]
    endings: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    is_scaled: bool = True
    media_types: Mapping[str, str] = MappingProxyType({})
    is_of_lines: bool = False
    not_these: str = ""

    def recognises(self, asked: DataRequest, reader: R | None) -> bool:
        """Return whether the data are of this kind: by default, whether they are a file with one of the endings."""
        return asked.transform is None and asked.place.data_kind == self.name

    def load(self, asked: DataRequest, reader: R) -> LoadedData:
        """Return the data set; raises ``DataError``, which names file, place and value."""
        raise NotImplementedError

    def new_rows(self, new: NewData, reader: R) -> NewRows | None:
        """Return the features of new data; None: they are rows of a table. Raises ``DataError``."""
        return None

    def takes_features(self, reader: R) -> bool:
        """Return whether a server also takes tables and arrays of features."""
        return False

    def local(self, name: str, reader: R) -> str:
        """Return the local path of a data set, after copying a remote one; raises ``DataError``."""
        return storage.local(name)

    def labelled(self, choice: LabelChoice, reader: R, place: Place) -> dict[str, Any] | None:
        """Return the fields of the Conf that a new run needs for its labels; None: they are columns of a table.

        Raises:
            ConfError, DataError: the data cannot have such labels.
        """
        return None

    def label_scale(self, reader: R) -> LabelScale | None:
        """Return the scale of the numbers to predict; None if the labels are classes, or a schema scales them."""
        return None

    def image(self, reader: R) -> tuple[int, int, int] | None:
        """Return the channels, height and width of the images; None if the data are no images."""
        return None

    def answers_at(self, reader: R) -> str:
        """Return the place of the answers in a network's outputs: "output", "last step" or "each step"."""
        return "output"

    def network(self, reader: R) -> str:
        """Return the kind of network that learns such data, as ``zoo.select_for`` takes it."""
        return ""

    def report(self, reader: R, label_names: tuple[str, ...]) -> dict[str, Any]:
        """Return the reader as JSON for the report of a run."""
        found: dict[str, Any] = msgspec.to_builtins(reader)
        return found
