"""Loads a data set by name or path, as training and test part; defines the meaning of ``--dataset``.

The split depends only on the data and on ``seed`` of ``load``, never on a run's seed: training and a later evaluation
must hold out the same examples.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dl4jlegacy.datasets.bundled import DIGITS_NAMES, IRIS_NAMES, read_digits, read_iris
from dl4jlegacy.datasets.columns.table import Table
from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.datasets.images.image_folders import holds_images
from dl4jlegacy.datasets.kind import DataRequest
from dl4jlegacy.datasets.mnist import read_idx_dataset, read_mnist
from dl4jlegacy.datasets.place import NAMES, Place
from dl4jlegacy.datasets.reading import DATA_KINDS, UNREAD, Reading, place_of
from dl4jlegacy.datasets.splitting import Split, class_numbers, stratified
from dl4jlegacy.datasets.tables.csv_files import read_csv_files
from dl4jlegacy.datasets.tables.pandas_index import warn_of_index
from dl4jlegacy.datasets.tables.sparse_files import read_svmlight_files
from dl4jlegacy.datasets.tables.stored_tables import is_large, stored_tables
from dl4jlegacy.datasets.tables.svmlight_files import TooWideError
from dl4jlegacy.datasets.tables.svmlight_schema import svmlight_schema
from dl4jlegacy.datasets.tables.table_files import KINDS, index_columns
from dl4jlegacy.datasets.tables.transform_process import TransformedTables, TransformProcess
from dl4jlegacy.errors import DataError, counted
from dl4jlegacy.system import files

__all__ = ["NAMES", "SPLIT_SEED", "DataSource", "load"]

logger = logging.getLogger(__name__)

SPLIT_SEED = 123


@dataclass(frozen=True, slots=True)
class DataSource:
    """A data set for training and evaluation.

    Attributes:
        name: the name or path from which it was loaded.
        train: the training examples.
        test: the held-out examples.
        reading: how they were read, fitted to the training part.
        columns: the names of the feature columns, if they have names.
        image: the channels, height and width of the images, if the data are images whose shape is known.
    """

    name: str
    train: DataSet
    test: DataSet
    reading: Reading = UNREAD
    columns: tuple[str, ...] = ()
    image: tuple[int, int, int] | None = None

    @property
    def label_names(self) -> tuple[str, ...]:
        """A name for each output."""
        return self.reading.label_names

    def with_reading(self, **changes: Any) -> DataSource:
        """Return a copy with changed values in its reading."""
        return dataclasses.replace(self, reading=self.reading.replace(**changes))

    def rounded(self) -> DataSource:
        """Return a copy with both parts rounded by ``DataSet.rounded``, for the far columns of the training part."""
        far = self.train.far()
        return dataclasses.replace(self, train=self.train.rounded(far), test=self.test.rounded(far))


def load(
    name_or_path: str | Path | Place,
    *,
    data_dir: str | Path | None = None,
    test_fraction: float = 0.2,
    seed: int = SPLIT_SEED,
    reading: Reading = UNREAD,
    n_classes: int | None = None,
    columns: int = 0,
    keep_index: bool = False,
    rounded: bool = True,
) -> DataSource:
    """Return the data set called ``name_or_path``.

    Args:
        name_or_path: a name, a path or a ``Place``, one of these:

            * digits, iris, mnist, sonnets
            * a table (CSV, JSON lines, Parquet, Arrow, Feather, NumPy or SVMLight, by its ending, CSV by default)
            * a pattern such as ``part-*.csv`` for parts of a table
            * a text (.txt), which is cut into windows of characters or words; the labels are the following ones
            * a folder with 4 IDX files under MNIST's names (checksums are not compared), with a table called train and
              one called test, with other tables, or with a folder of images for each class (directly, or in folders
              train and test)
        data_dir: the folder of MNIST, also for its download.
        test_fraction: the held-out share, if the data set does not come in two parts.
        seed: shuffles before that split.
        reading: how the data are read, from a trained model, or as far as known:

            * ``label_names``: the classes of tables and images in order (files may lack some), and the characters or
              words of texts
            * ``transform``: fitted to the training part, unless it is fitted already. Without it, the columns of tables
              are numbers and a class; SVMLight files get a schema without steps
            * ``images``: without it, images in folders keep their size, which must be the same for all. With its
              ``column``, the images are listed in tables, whose labels ``transform`` names (None: the column called
              label, class or target, or the last one)
            * ``text``: without it, texts are cut into characters
            * ``sequences``: the CSV files of a folder are sequences; without it, they are parts of one table
            * ``stratified``: a part that is held out by ``test_fraction`` gets its share of every class
            * ``header``: finds named columns
            * ``normalizer``: not used
        n_classes: the number of classes in tables and IDX files, if the files alone do not show it.
        columns: SVMLight files have this many columns and are read as sparse features; 0: they are sparse only with
            more columns than a table may have.
        keep_index: keep pandas' index as a column, in a table that no schema or header describes; else it is dropped.
        rounded: features are float32, or float64 if a column of the training part is so far from 0 that float32 would
            lose differences. False: texts and tables stay float64, to be scaled by a model's normalizer.

    Raises:
        DataError: unknown, missing or damaged; the message names what was searched for and where. Or the data are to be
            ``stratified``, and labels are no classes, or a class has a single example and is not known already.
    """
    place = name_or_path if isinstance(name_or_path, Place) else place_of(str(name_or_path))
    split = Split(test_fraction, seed, reading.stratified, allows_lone=bool(reading.label_names))
    asked = _Request(
        place=place,
        split=split,
        known=reading.label_names or None,
        transform=reading.transform,
        reading=reading,
        data_dir=data_dir,
        n_classes=n_classes,
        columns=columns,
        index=() if keep_index else None,
    )
    found = _load(asked)
    return found.rounded() if rounded else found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request(DataRequest):
    """The arguments of ``load``."""

    reading: Reading
    data_dir: str | Path | None
    n_classes: int | None
    columns: int
    index: Sequence[str] | None

    def source(
        self,
        train: DataSet,
        test: DataSet,
        *,
        columns: tuple[str, ...] = (),
        image: tuple[int, int, int] | None = None,
        **reading: Any,
    ) -> DataSource:
        """Return the two parts of the data set, and how they were read."""
        return DataSource(self.place.name, train, test, Reading(**reading), columns, image)

    def split_up(self, dataset: DataSet, names: tuple[str, ...], **more: Any) -> DataSource:
        """Return a data set split into a training part and a held-out part."""
        split, whole = self.split, dataset
        if split.stratify:
            learned, held_out = split.parts_of(class_numbers(whole.labels), names, f"data set {self.place.name!r}")
            train, test = whole.take(learned), whole.take(held_out)
        else:
            train, test = whole.split_test_and_train(1 - split.test_fraction, split.seed)
        return self.source(train, test, label_names=names, stratified=split.stratify, **more)


def _load(asked: _Request) -> DataSource:
    """Return the data set; features of tables and sequences are float64."""
    place = asked.place
    for kind in DATA_KINDS:
        reader = getattr(asked.reading, kind.name)
        if kind.recognises(asked, reader):
            found = kind.load(asked, kind.reader() if reader is None else reader)
            read: dict[str, Any] = {kind.name: found.reader, "stratified": asked.split.stratify}
            names, transform = found.label_names, found.transform
            image = kind.image(found.reader)
            return asked.source(found.train, found.test, image=image, label_names=names, transform=transform, **read)
    if asked.transform is not None:
        return _transformed(asked, asked.transform)
    if place.kind == "bundled":
        return _bundled(asked)
    if place.is_svmlight:
        return _svmlight(asked)
    return _idx(asked) if place.idx_files else _numbers(asked)


def _bundled(asked: _Request) -> DataSource:
    name = asked.place.name
    if name == "mnist":
        train, test = (read_mnist(part, data_dir=asked.data_dir) for part in ("train", "t10k"))
        return asked.source(train, test, image=(1, 28, 28), label_names=DIGITS_NAMES)
    if name == "digits":
        return asked.split_up(read_digits(), DIGITS_NAMES, image=(1, 8, 8))
    return asked.split_up(read_iris(), IRIS_NAMES)


def _transformed(asked: _Request, transform: TransformProcess) -> DataSource:
    """Return a data set's tables, transformed by a schema."""
    place, split = asked.place, asked.split
    found, parted = place.tables, place.is_parted
    if not found:
        raise DataError(
            f"data set {place.name!r} has no columns to choose from: a schema is for tables ({KINDS}), and it is none"
        )
    if is_large(found, len(transform.columns), transform.bins):
        return _of_process(asked, stored_tables(transform, found, split, parted=parted))
    tables = [transform.read(path) for path in found]
    if parted:
        train, test = tables
        transform = transform.with_classes_learned(train)  # other classes in the test part are an error there
    else:
        whole = Table.merge(tables)
        if split.stratify:
            transform = transform.with_classes_of([whole])  # a class with a single row is an error there
            order = stratified(transform.class_numbers(whole), split.parts(len(whole)))
        else:
            order = split.parts(len(whole))
        train, test = whole.take(order[0]), whole.take(order[1])
    return _of_process(asked, TransformedTables.of(transform, train, test))


def _of_process(asked: _Request, ready: TransformedTables) -> DataSource:
    """Return the data set that a schema has prepared."""
    process = ready.process
    reading: dict[str, Any] = {
        "transform": process,
        "label_names": process.label_names,
        "stratified": asked.split.stratify,
    }
    return asked.source(ready.train, ready.test, columns=ready.columns, **reading)


def _svmlight(asked: _Request) -> DataSource:
    """Return SVMLight files as a table, or with sparse features if they are wide or the model has learned from such."""
    tables = asked.place.tables
    if not asked.columns:
        with contextlib.suppress(TooWideError):
            schema = svmlight_schema(tables, n_classes=asked.n_classes, label_names=asked.known)
            return _transformed(asked, schema)
    datasets, names = read_svmlight_files(tables, columns=asked.columns, label_names=asked.known or ())
    if asked.place.is_parted:
        return asked.source(*datasets, label_names=names)
    return asked.split_up(DataSet.merge(datasets), names)


def _idx(asked: _Request) -> DataSource:
    """Return the data set of a folder with IDX files."""
    path = asked.place.path
    train, image = read_idx_dataset(path, "train", asked.n_classes)
    test, _ = read_idx_dataset(path, "t10k", train.n_out)  # a class without training images is an error
    if test.n_in != train.n_in:
        raise DataError(f"{path}: training images have {counted(train.n_in, 'pixel')}, test images {test.n_in}")
    return asked.source(train, test, image=image, label_names=tuple(map(str, range(train.n_out))))


def _numbers(asked: _Request) -> DataSource:
    """Return tables of numbers and a class: named train and test, or one table that is split."""
    place, found = asked.place, asked.place.tables
    _check_tables(place)
    header, known, index = asked.reading.header, asked.known, asked.index
    if place.is_parted:
        index = index_columns(found) if index is None and header is None else index
        learned = read_csv_files(found[:1], n_classes=asked.n_classes, label_names=known, header=header, index=index)
        warn_of_index(learned.left_out, str(found[0]))
        train, names = learned.parts[0], learned.label_names
        test = read_csv_files(found[1:], label_names=names, header=learned.header, index=index).parts[0]
        if test.n_in != train.n_in:
            raise DataError(f"{found[0]} has {counted(train.n_in, 'feature')}, {found[1]} has {test.n_in}")
        return asked.source(train, test, columns=learned.columns, label_names=names, header=learned.header)
    is_new = asked.n_classes is None and known is None
    whole = read_csv_files(
        found, n_classes=asked.n_classes, label_names=known, is_split=is_new, header=header, index=index
    )
    return asked.split_up(DataSet.merge(whole.parts), whole.label_names, columns=whole.columns, header=whole.header)


def _check_tables(place: Place) -> None:
    """Raise ``DataError`` if a folder has no tables; the message says if it has images."""
    if place.kind != "folder":
        return
    path, tables = place.path, place.tables
    if not tables:
        with files.errors_as(DataError, f"cannot read folder {path}"):
            found = files.names_in(path)
        raise DataError(
            f"folder {path} holds no data set: looked for four IDX files under MNIST's names, for tables ({KINDS}), "
            f"and for a folder of images for each class; found {', '.join(found[:5]) or 'nothing'}"
            f"{' ...' if len(found) > 5 else ''}"
        )
    if holds_images(path):
        logger.warning(
            "%s has tables, such as %s, and folders with images, which are left out; to learn these, give "
            "--image-channels 3 (or 1), or move the tables elsewhere",
            path,
            min(tables).name,
        )
